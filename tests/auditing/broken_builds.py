"""Thirty planted bugs, each run through the audits that fit: which of them refute its claim, and
with how many trials.

`python -m tests.auditing.broken_builds` writes docs/measured/broken-builds.json and prints the
table of docs/measured/audits.md. The bugs are those of the rooms' own `mutants*.py`, by name; what
no audit finds is caught by the named check that they are planted for.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import nn

import privlearn as pv
from privlearn.auditing import Audit, audit_training
from privlearn.core.clipping import per_example
from privlearn.core.sampling import FullBatch, Sampler
from privlearn.errors import PrivlearnError
from tests.conftest import ROOT
from tests.support.mutant import Mutant, forget_results

#: What came of each audit of each build, as the program below measured it last.
MEASURED = ROOT / "docs" / "measured" / "broken-builds.json"

#: Trials of each kind, or canaries, one number after the other until a claim is refuted.
EFFORTS = (100, 400, 1600)
CONFIDENCE, NOISE = 0.99, 0.5
ENTROPY = nn.CrossEntropyLoss(reduction="none")


PADDING = Mutant(
    "the padding's row is left out of the norm",
    per_example.SparseRows.squares,
    "self.norms[0].values.square()",
    "self.norms[0].values.square() * (self._keys % self._shape[0] > 0)",
    "check_every_kind_of_gradient_is_what_it_stands_for",
)


@dataclass(frozen=True)
class Build:
    """A planted bug, and the audits that could meet it.

    Attributes:
        place: of its file of planted bugs below tests, without `mutants`: "clipping" or
            "descent_leaks".
        name: the bug's.
        audits: names of functions of `AUDITS`.
        why: why no audit finds it; empty: one does.
        planted: the bug, if it is none of a room's.
    """

    place: str
    name: str
    audits: tuple[str, ...] = ("step", "run")
    why: str = ""
    planted: Mutant | None = None

    def mutant(self) -> Mutant:
        """The bug itself."""
        if self.planted:
            return self.planted
        room, _, rest = self.place.partition("_")
        module = import_module(f"tests.{room}.mutants{'_' + rest if rest else ''}")
        return next(each for each in module.MUTANTS if each.name == self.name)


def step(
    sampler: Sampler,
    trials: int,
    *own: object,
    clip: object = None,
    discrete: bool = False,
    **options: object,
) -> Audit:
    plan = pv.Plan(sampler, schedule=pv.schedules.Constant(NOISE), examples=100)
    if clip is not None:
        plan = pv.Plan(sampler, schedule=pv.schedules.Constant(NOISE), examples=100, clip=clip)
    streams = pv.Streams.new(11, discrete=discrete)
    return pv.audit(plan, *own, trials=trials, confidence=CONFIDENCE, streams=streams, **options)


def network(trials: int, clip: object = None) -> Audit:
    """Two layers, in micro-batches of two examples."""
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    data = pv.Dataset(
        50 * rng.random((6, 4), np.float32), rng.integers(3, size=6), classes=3, public=True
    )
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    return step(FullBatch(), trials, model, ENTROPY, data, clip=clip, microbatch=2)


def embedding(trials: int) -> Audit:
    """Tokens, most of the canary's padding, which is a row like any other."""
    torch.manual_seed(2)
    rng = np.random.default_rng(2)
    tokens = rng.integers(1, 900, (6, 8))
    tokens[0, 2:] = 0
    data = pv.Dataset(tokens, rng.integers(3, size=6), classes=3, public=True)
    model = nn.Sequential(nn.Embedding(1000, 5), nn.Flatten(), nn.Linear(40, 3))
    return step(FullBatch(), trials, model, lambda outputs, _: 50 * outputs[:, 0], data)


def run(canaries: int) -> Audit:
    """A training of three epochs with falling noise."""
    rng = np.random.default_rng(9)
    data = pv.Dataset(
        rng.random((30, 3), np.float32), rng.integers(2, size=30), classes=2, public=True
    )
    torch.manual_seed(0)
    noise = pv.schedules.Exponential(k=0.3, start=1.5)
    return audit_training(
        pv.Plan(pv.Partition(3), 3, noise, examples=30 + canaries),
        nn.Linear(3, 2),
        ENTROPY,
        data,
        canaries=canaries,
        confidence=CONFIDENCE,
        streams=pv.Streams.new(5),
    )


AUDITS: dict[str, Callable[[int], Audit]] = {
    "step": lambda trials: step(FullBatch(), trials),
    "grid": lambda trials: step(FullBatch(), trials, discrete=True),
    "Poisson": lambda trials: step(pv.Poisson(0.5), trials),
    "partition": lambda trials: step(pv.Partition(3), trials),
    "network": network,
    "per layer": lambda trials: network(trials, pv.clipping.PerLayer(1.0)),
    "automatic": lambda trials: network(trials, pv.clipping.Automatic(1.0)),
    "embedding": embedding,
    "run": run,
}
NOTICED = "the run compares its rules with single examples, and takes another way"

BUILDS = (
    Build("auditing", "half of the noise"),
    Build("auditing", "no noise"),
    Build("auditing", "the same noise at every step"),
    Build("auditing", "noise for the first parameter alone"),
    Build("clipping", "biases are released without noise"),
    Build("auditing", "less noise than was charged"),
    Build("auditing", "epochs after the first get less noise"),
    Build("auditing", "a grid without its noise", ("step", "grid")),
    Build("auditing", "a grid whose noise is too narrow", ("step", "grid")),
    Build("auditing", "half of the sensitivity"),
    Build("auditing", "a large gradient is not clipped"),
    Build("descent_weights", "weights multiply clipped gradients"),
    Build("loop", "a micro-batch is not clipped", ("step", "network")),
    Build("clipping", "tokens are added unclipped", ("step", "embedding"), NOTICED),
    Build("clipping", PADDING.name, ("step", "embedding"), NOTICED, PADDING),
    Build("clipping", "a layer is clipped by the first one's norm", ("network", "per layer")),
    Build("clipping", "automatic weights without the norm", ("network", "automatic")),
    Build("auditing", "sums count twice", ("step", "network", "run")),
    Build("auditing", "the number of examples drawn divides the sum"),
    Build("descent_leaks", "the realised batch size as divisor", ("step", "Poisson")),
    Build("auditing", "a loader that is billed as Poisson", ("step", "Poisson")),
    Build("auditing", "twice the rate", ("step", "Poisson")),
    Build("auditing", "the price of half the rate", ("step", "Poisson")),
    Build("auditing", "an example in every batch of each epoch", ("partition", "run")),
    Build("mechanisms", "grid noise 3% too small", ("grid",), "too small for so few trials"),
    Build(
        "clipping",
        "copies are clipped one by one",
        ("step", "network"),
        "the audited run makes no copies",
    ),
    Build("mechanisms", "the noise stream starts over", why="the audited run is not interrupted"),
    Build("ranks", "one place of the noise for two slices", why="the audited run has one process"),
    Build(
        "descent_leaks",
        "the charge comes after the noise",
        why="no released number shows when it was paid for",
    ),
    Build("descent_leaks", "empty batches are skipped", ("step", "Poisson")),
)


def effort(build: Build, audit: str, efforts: tuple[int, ...] = EFFORTS) -> str:
    """The fewest trials or canaries at which an audit refutes the claim of a broken build; or what
    came instead.
    """
    forget_results()
    try:
        with build.mutant().planted():
            for trials in efforts:
                if not AUDITS[audit](trials).ok:
                    return f"{trials:,}"
    except (PrivlearnError, RuntimeError) as error:
        return f"stopped: {type(error).__name__}"
    finally:
        forget_results()
    return "no"


def outcomes() -> list[dict[str, Any]]:
    """Each build by name, with the outcome of each of its audits, the check that catches it, and
    why no audit does.
    """
    return [
        {
            "build": build.name,
            "audits": {audit: effort(build, audit) for audit in build.audits},
            "check": build.mutant().caught_by,
            "why": build.why,
        }
        for build in BUILDS
    ]


def rows(builds: list[dict[str, Any]]) -> Iterator[str]:
    """The page's table: the builds that are refuted, by the trials of the best audit, and those
    that no audit finds.
    """
    yield "| refuted | broken builds |"
    yield "| --- | --- |"
    refuted: dict[int, list[str]] = {trials: [] for trials in EFFORTS}
    stopped: dict[str, list[str]] = {}
    missed: dict[tuple[str, str], list[str]] = {}
    for build in builds:
        results = [result for result in build["audits"].values() if result != "no"]
        trials = [
            int(result.replace(",", "")) for result in results if not result.startswith("stopped")
        ]
        if trials:
            refuted[min(trials)].append(build["build"])
        elif results:
            stopped.setdefault(results[0].removeprefix("stopped: "), []).append(build["build"])
        else:
            missed.setdefault((build["check"], build["why"]), []).append(build["build"])
    for least, names in refuted.items():
        yield f"| with {least:,} trials | {'; '.join(names)} |"
    for error, names in stopped.items():
        yield f"| stopped: `{error}` | {'; '.join(names)} |"
    for (check, why), names in missed.items():
        yield f"| by no audit: {why} | {'; '.join(names)} (`{check}`) |"


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        builds = outcomes()
    lines = ",\n".join(" " + json.dumps(build) for build in builds)
    MEASURED.write_text(f"[\n{lines}\n]\n", "utf-8")
    sys.stdout.write("".join(f"{row}\n" for row in rows(builds)))
