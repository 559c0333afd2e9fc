"""Named checks of what is said of how many rows there are, where that is declared and where it is
not.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

import privlearn as pv
from privlearn import cli
from privlearn._storage import digest
from privlearn.cli import jobs
from privlearn.cli.request import Request
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.sampling import Sampler
from privlearn.errors import BadInput
from privlearn.publishing import publish
from privlearn.training import rules
from privlearn.training.choices import TrainRequest
from privlearn.training.train import facts_of
from tests.support.checks import check, must_raise
from tests.support.nets import cross_entropy
from tests.support.registries import completed

ADD, EMPTY = Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT
ROWS, NUMBERS, CLASSES = 40, 6, 3
#: One over the declared number: below it, and not, according to which number is looked at.
DELTA = 1 / ROWS
BOUNDS = ("--classes", str(CLASSES), "--range", "0,1")


def rows(number: int = ROWS, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The first so many of the same rows: two numbers that differ by one give neighbours."""
    made_up = np.random.default_rng(seed)
    x, y = made_up.random((ROWS, NUMBERS)), np.arange(ROWS) % CLASSES
    x[np.arange(ROWS), y] = 0.9
    return x[:number], y[:number]


def dataset(number: int = ROWS, **more: Any) -> pv.Dataset:
    return pv.Dataset(*rows(number), classes=CLASSES, low=0.0, high=1.0, **more)


# The command line


def files(folder: Path, number: int = ROWS) -> dict[str, str]:
    """Files of rows, one with ids of persons (each of two rows), public rows and candidates."""
    x, y = rows(number)
    np.savez(folder / "rows.npz", x=x, y=y)
    last = ROWS - number  # whose two rows go
    np.savez(
        folder / "persons.npz",
        x=np.repeat(x, 2, 0),
        y=np.repeat(y, 2),
        groups=np.repeat(np.arange(number) + last, 2),
    )
    x, y = rows(seed=1)
    np.savez(folder / "public.npz", x=x, y=y)
    (folder / "blocks.toml").write_text(CANDIDATES)
    (folder / "stopping.toml").write_text(f'way = "random-stopping"\nmean = 1.0\n{CANDIDATES}')
    return {path.name: str(path) for path in folder.iterdir()}


CANDIDATES = '[[candidate]]\nname = "a"\n\n[[candidate]]\nname = "b"\nepochs = 2\n'
#: Times the declared number it is just enough for moments to be usual.
EPSILON, NOISE = ("--epsilon", "250"), ("--noise-multiplier", "2", "--epochs", "2")
#: Every way to train for neighbours that differ in the number of rows.
COMMANDS: dict[str, tuple[str, ...]] = {
    "poisson": NOISE,
    "explained": (*EPSILON, "--epochs", "2", "--explain"),
    "partition": (
        *NOISE,
        "--sampling",
        "partition",
        "--batch-size",
        "8",
        "--clip",
        "quantile",
        "--average",
        "0.5",
    ),
    "all in one batch": (
        *NOISE,
        "--sampling",
        "full",
        "--adjacency",
        "add_remove",
        "--model",
        "mlp:4",
    ),
    "selected": (*EPSILON, "--epochs", "1", "--select", "3"),
    "moments": (*EPSILON, "--epochs", "1", "--normalise", "moments"),
    "usual moments": (*EPSILON, "--epochs", "1", "--features", "norm:power=0.5"),
    "validations": (
        *EPSILON,
        "--epochs",
        "2",
        "--schedule",
        "validation:k=0.5,m=1,period=1,noise=6",
    ),
    "persons": (*NOISE, "--rows-per-person", "2"),
    "dpmac": ("--method", "dpmac", "--model", "mlp:3", *NOISE),
    "blocks": (*EPSILON, "--epochs", "1", "--tune", "blocks.toml"),
    "random stopping": (*EPSILON, "--epochs", "1", "--tune", "stopping.toml"),
    "statistics": ("--method", "features", *EPSILON),
    "features kept": ("--method", "features", "--keep", "3", *EPSILON),
    "mode auto": ("--method", "features", "--mode", "auto", *EPSILON),
    "least squares": ("--method", "features", "--mode", "least-squares", *EPSILON),
    "pate": (
        "--method",
        "pate",
        *EPSILON,
        "--public",
        "public.npz",
        "--teachers",
        "4",
        "--queries",
        "6",
        "--teacher",
        "logistic",
        "--epochs",
        "1",
    ),
}


def command(words: tuple[str, ...]) -> tuple[int, str]:
    """The exit code of `privlearn`, and all that it prints."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = cli.main(list(words))
    return code, said.getvalue()


def run(name: str, folder: Path, number: int, declared: bool = True) -> tuple[int, str]:
    """Train in one of these ways on that many rows, which are in `folder`."""
    there = files(folder, number)
    words = [there.get(word, word) for word in COMMANDS[name]]
    data = there["persons.npz" if name == "persons" else "rows.npz"]
    declare = ("--examples", str(ROWS)) if declared else ()
    given = ("--data", data, *BOUNDS, "--delta", str(DELTA), "--seed", "3", *declare)
    return command(("train", *words, *given, "--out", str(folder / "model")))


#: What follows from released numbers: which features and candidates were chosen, thresholds, and
#: digests of weights.
_RELEASED = {"chosen", "fitted_temperature", "thresholds", "accuracies", "files", "digests"}
#: How long it took, and scores of features as they were released.
_OTHERS = re.compile(r"seconds +[\d.]+|\d:\d\d:\d\d|\d+: [\d.]+ ± [\d.]+|\s+")


def public_certificate(folder: Path) -> Any:
    """The certificate without what follows from released numbers."""

    def public(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: public(part) for name, part in value.items() if name not in _RELEASED}
        return [public(part) for part in value] if isinstance(value, list) else value

    return public(json.loads((folder / "model" / "privacy.json").read_text()))


@contextlib.contextmanager
def folders() -> Iterator[tuple[Path, Path]]:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        yield Path(one), Path(other)


def require_alike(name: str) -> None:
    """What is printed and certified is the same for neighbours, of whose number of rows one is the
    declared one.
    """
    with folders() as (one, other):
        said = []
        for folder, number in ((one, ROWS), (other, ROWS - 1)):
            code, text = run(name, folder, number)
            assert code == 0, (name, number, text)
            said.append(_OTHERS.sub(" ", text.replace(str(folder), "")))
        assert said[0] == said[1], name
        assert public_certificate(one) == public_certificate(other), name
        assert public_certificate(one)["claim"]["adjacency"] == "add_remove", name
        checked = pv.verify(one / "model")
        assert checked.ok, name
        assert f"not below one over the {ROWS} examples" in said[1], (name, said[1])
        warned = "**This delta is too large.**" in (one / "model/README.md").read_text("utf-8")
        assert warned == any("not below one over" in each for each in checked.warnings), name


def _named(name: str) -> Callable[[], None]:
    def is_alike() -> None:
        require_alike(name)

    is_alike.__name__ = (
        f"check_neighbours_of_a_declared_number_publish_the_same_by_{name.replace(' ', '_')}"
    )
    return is_alike


# One for each way: what is printed and certified does not look at how many rows there are.
for _each in COMMANDS:
    check(_named(_each))


@check
def check_rules_look_at_the_declared_number() -> None:
    """Which features are usual depends on the declared number of examples times epsilon."""
    images = pv.Dataset(np.zeros((3, 16, 32)), np.arange(3) % 2, classes=2, low=0.0, high=1.0)
    for examples, kept in ((2999, 300), (3000, 1000)):
        usual = rules.usual_features(TrainRequest(epsilon=1.0), facts_of(images, examples))
        assert usual == f"scatter:J=2,kept={kept}"

    class Seen(Exception):
        pass

    def seen(shape: Any, low: Any, signal: float) -> None:
        raise Seen(signal)

    with mock.patch.object(rules, "usual", seen):
        error = must_raise(Seen, lambda: pv.train(images, epsilon=2.0, examples=3000))
        assert error.args == (6000.0,)
        chosen, request = (
            TrainRequest(epsilon=1.0, examples=3000),
            Request.of("train", epsilon=1.0, examples=3000),
        )
        error = must_raise(Seen, lambda: jobs.featured(request, images, chosen).__enter__())
        assert error.args == (3000.0,)


@check
def check_runs_in_python_divide_by_the_declared_number() -> None:
    """`pv.train`, `pv.dpsgd`, `pv.dpmac` on neighbours, one of them with as many rows as declared:
    equal settings.
    """
    steep = {
        "schedule": pv.schedules.Constant(2.0),
        "epochs": 1,
        "examples": ROWS,
        "adjacency": ADD,
    }

    def by(plan: pv.Plan, method: Callable[..., Any], loss: Any) -> Callable[[pv.Dataset], Any]:
        return lambda data: method(plan, nn.Linear(NUMBERS, CLASSES), loss, data, optimizer=descent)

    def descent(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    runs: list[Callable[[pv.Dataset], Any]] = [
        lambda data: pv.train(data, epsilon=250.0, delta=1e-3, examples=ROWS),
        *(
            by(pv.Plan(sampler, **steep), pv.dpsgd, cross_entropy)  # type: ignore[arg-type]
            for sampler in (pv.Poisson(0.3), pv.Partition(5), pv.sampling.FullBatch())
        ),
        by(
            pv.Plan(pv.Poisson(0.3), clip=pv.mac.Derivatives(0.3), **steep),
            pv.dpmac,
            "binary_cross_entropy",
        ),  # type: ignore[arg-type]
    ]
    for method in runs:
        one, other = (method(dataset(number)) for number in (ROWS, ROWS - 1))
        assert one.adjacency is other.adjacency is ADD
        # a release
        assert {**one.facts, "fitted_temperature": None} == {
            **other.facts,
            "fitted_temperature": None,
        }
        assert one.facts["examples"] == ROWS
        assert one.plan == other.plan
        assert one.plan.examples == ROWS


# A number that nobody declared


@check
def check_an_undeclared_number_of_examples_is_public() -> None:
    """Without --examples the number of rows is in the certificate, and the claim for neighbours
    with as many.
    """
    for name in ("poisson", "partition", "persons", "dpmac", "blocks", "random stopping"):
        with tempfile.TemporaryDirectory() as there:
            folder = Path(there)
            code, said = run(name, folder, ROWS - 1, declared=False)
            assert code == 0, said
            found = public_certificate(folder)
            counted = found["facts"].get("tuning", found["facts"])
            if "tuning" not in found["facts"] or name == "blocks":
                assert counted["examples"] == ROWS - 1
            plans = [
                each["plan"] for each in found["plan"].get("candidates", [{"plan": found["plan"]}])
            ]
            assert all(plan["examples"] is None for plan in plans)
            assert found["claim"]["adjacency"] == "zero_out", name
            # no warning: delta is below one over them
            assert f"{ROWS - 1} examples" not in said, said
            card = (folder / "model" / "README.md").read_text()
            assert "replaced by an empty one (the number of " in card
            assert "the length of the data, not protected" in card
            verified = pv.verify(folder / "model")
            assert verified.ok
            assert len(verified.warnings) == 1, verified.warnings  # of the seed


@check
def check_add_remove_needs_a_declared_number() -> None:
    """Refused where a plan is made, and on the command line before anything is read, begun or
    written.
    """
    data = dataset()
    for sampler in (pv.Poisson(0.3), pv.Partition(4), pv.sampling.FullBatch()):
        for name in (ADD, "add_remove"):
            error = must_raise(BadInput, lambda s=sampler, n=name: pv.Plan(s, adjacency=n))  # type: ignore[misc,arg-type]
            assert "examples=N" in str(error)
        plan = pv.Plan(sampler, adjacency=ADD, examples=ROWS)
        must_raise(BadInput, lambda p=plan: replace(p, examples=None))  # type: ignore[misc]
    for name in ("poisson", "dpmac", "blocks", "random stopping"):
        with tempfile.TemporaryDirectory() as there:
            words = (*COMMANDS[name], "--adjacency", "add_remove", *BOUNDS, "--data", "nothing.npz")
            book = str(Path(there) / "ledger.json")
            code, said = command(
                ("train", *words, "--out", str(Path(there) / "model"), "--ledger", book)
            )
            assert code == 2, (name, said)
            assert "--examples N" in said, said
            assert list(Path(there).iterdir()) == []
    result = pv.train(data, epsilon=3.0, delta=1e-3)
    assert result.adjacency is EMPTY
    assert result.plan.examples is None


@check
def check_the_usual_kind_of_neighbour_follows_from_what_is_declared() -> None:
    """Zero-out costs what add/remove does, for samples and partitions; with other batches nothing
    depends on it.
    """
    usual: list[tuple[Sampler, Adjacency]] = completed(
        "samplers",
        [
            (pv.Poisson(0.1), ADD),
            (pv.Partition(10), ADD),
            (pv.Shuffle(4), EMPTY),
            (pv.sampling.FixedOrder(4), EMPTY),
            (pv.sampling.FullBatch(), EMPTY),
        ],
        like=lambda sampler: (sampler, sampler.default_adjacency),
    )
    for sampler, declared in usual:
        for more in ({}, {"group_size": 3}):
            without, plan = (pv.Plan(sampler, epochs=3, examples=n, **more) for n in (None, ROWS))  # type: ignore[arg-type]
            assert plan.neighbours is declared
            assert without.neighbours is EMPTY
            assert plan.event() == without.event()
            assert plan.guarantee(1e-5).epsilon == without.guarantee(1e-5).epsilon
    kept = pv.Plan(pv.Poisson(0.1), adjacency=EMPTY, examples=ROWS)
    assert kept.neighbours is EMPTY


@check
def check_certificates_of_undeclared_numbers_claim_no_add_remove() -> None:
    """One that does, as they were once made, is refused: its neighbours would have other
    certificates.
    """
    result = pv.train(dataset(), epsilon=3.0, delta=1e-3, examples=ROWS)
    with tempfile.TemporaryDirectory() as there:
        made = publish.publish(result, Path(there) / "model", delta=1e-3)
        assert pv.verify(made).ok
        body = json.loads((made / "privacy.json").read_text())
        body["plan"]["examples"] = None
        body["digests"]["plan"] = digest(body["plan"])
        (made / "privacy.json").write_text(json.dumps(body))
        problems = pv.verify(made).problems
        assert len(problems) == 1, problems
        assert (
            "add_remove neighbours differ in the number of examples, and none is declared"
            in problems[0]
        ), problems
