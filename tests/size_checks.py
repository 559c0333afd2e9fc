"""Named checks of what is said of how many rows there are, whose rows are tested on, and runs in several processes."""

from __future__ import annotations

import contextlib
import io
import json
import re
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from checks import check, cross_entropy, must_raise, small_net
from torch import nn

import privlearn as pv
from privlearn import cli
from privlearn.accounting.adjacency import Adjacency
from privlearn.accounting.ledger import Ledger
from privlearn.cli import encoding
from privlearn.data import recipes
from privlearn.data.overlap import overlap
from privlearn.data.schema import parse_schema
from privlearn.errors import BadInput
from privlearn.methods import train as train_module
from privlearn.publishing import bundle
from privlearn.sampling import Sampler

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
        folder / "persons.npz", x=np.repeat(x, 2, 0), y=np.repeat(y, 2), groups=np.repeat(np.arange(number) + last, 2)
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
    "partition": (*NOISE, "--sampling", "partition", "--batch-size", "8", "--clip", "quantile", "--average", "0.5"),
    "all in one batch": (*NOISE, "--sampling", "full", "--adjacency", "add_remove", "--model", "mlp:4"),
    "selected": (*EPSILON, "--epochs", "1", "--select", "3"),
    "moments": (*EPSILON, "--epochs", "1", "--normalise", "moments"),
    "usual moments": (*EPSILON, "--epochs", "1", "--features", "norm:power=0.5"),
    "validations": (*EPSILON, "--epochs", "2", "--schedule", "validation:k=0.5,m=1,period=1,noise=6"),
    "persons": (*NOISE, "--rows-per-person", "2"),
    "dpmac": ("--method", "dpmac", "--model", "mlp:3", *NOISE),
    "blocks": (*EPSILON, "--epochs", "1", "--tune", "blocks.toml"),
    "random stopping": (*EPSILON, "--epochs", "1", "--tune", "stopping.toml"),
    "statistics": ("--method", "features", *EPSILON),
    "features kept": ("--method", "features", "--keep", "3", *EPSILON),
    "mode auto": ("--method", "features", "--mode", "auto", *EPSILON),
    "least squares": ("--method", "features", "--mode", "least-squares", *EPSILON),
    "pate": ("--method", "pate", *EPSILON, "--public", "public.npz", "--teachers", "4", "--queries", "6", "--teacher",
             "logistic", "--epochs", "1"),
}  # fmt: skip


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


#: What follows from released numbers: which features and candidates were chosen, thresholds, and digests of weights.
_RELEASED = {"chosen", "thresholds", "accuracies", "files", "digests"}
#: How long it took, and scores of features as they were released.
_OTHERS = re.compile(r"seconds +[\d.]+|\d:\d\d:\d\d|\d+: [\d.]+ ± [\d.]+|\s+")


def public_settings(folder: Path) -> Any:
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
    """What is printed and certified is the same for neighbours, of whose number of rows one is the declared one."""
    with folders() as (one, other):
        said = []
        for folder, number in ((one, ROWS), (other, ROWS - 1)):
            code, text = run(name, folder, number)
            assert code == 0, (name, number, text)
            said.append(_OTHERS.sub(" ", text.replace(str(folder), "")))
        assert said[0] == said[1], name
        assert public_settings(one) == public_settings(other), name
        assert public_settings(one)["claim"]["adjacency"] == "add_remove", name
        assert pv.verify(one / "model").ok, name
        assert f"not below one over the {ROWS} examples" in said[1], (name, said[1])


def _named(name: str) -> Callable[[], None]:
    def is_alike() -> None:
        require_alike(name)

    is_alike.__name__ = f"check_neighbours_of_a_declared_number_publish_the_same_by_{name.replace(' ', '_')}"
    return is_alike


# One for each way: what is printed and certified does not look at how many rows there are.
for _each in COMMANDS:
    check(_named(_each))


@check
def check_rules_look_at_the_declared_number() -> None:
    """Which features are usual depends on the declared number of examples times epsilon."""
    images = pv.Dataset(np.zeros((3, 16, 32)), np.arange(3) % 2, classes=2, low=0.0, high=1.0)
    options = Namespace(method="dpsgd", model="linear", tune=None, pca=None, select=None, normalise=None, epsilon=1.0)
    for examples, kept in ((2999, 300), (3000, 1000)):
        assert encoding._usual(Namespace(**vars(options), examples=examples), images) == f"scatter:J=2,kept={kept}"

    class Seen(Exception):
        pass

    def seen(shape: Any, low: Any, signal: float) -> None:
        raise Seen(signal)

    with mock.patch.object(train_module, "usual", seen):
        error = must_raise(Seen, lambda: pv.train(images, epsilon=2.0, examples=3000))
    assert error.args == (6000.0,)


@check
def check_runs_in_python_divide_by_the_declared_number() -> None:
    """`pv.train`, `pv.dpsgd` and `pv.dpmac` on neighbours, one of which has as many rows as are declared: equal settings."""
    steep = {"schedule": pv.schedules.Constant(2.0), "epochs": 1, "examples": ROWS, "adjacency": ADD}

    def by(plan: pv.Plan, method: Callable[..., Any], loss: Any) -> Callable[[pv.Dataset], Any]:
        return lambda data: method(plan, nn.Linear(NUMBERS, CLASSES), loss, data, optimizer=descent)

    def descent(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    runs: list[Callable[[pv.Dataset], Any]] = [
        lambda data: pv.train(data, epsilon=250.0, delta=1e-3, examples=ROWS),
        *(by(pv.Plan(sampler, **steep), pv.dpsgd, cross_entropy)  # type: ignore[arg-type]
          for sampler in (pv.Poisson(0.3), pv.Partition(5), pv.FullBatch())),
        by(pv.Plan(pv.Poisson(0.3), clip=pv.Derivatives(0.3), **steep), pv.dpmac, "binary_cross_entropy"),  # type: ignore[arg-type]
    ]  # fmt: skip
    for method in runs:
        one, other = (method(dataset(number)) for number in (ROWS, ROWS - 1))
        assert one.adjacency is other.adjacency is ADD
        assert one.settings == other.settings
        assert one.settings["examples"] == ROWS
        assert one.settings["examples_declared"] is True


# A number that nobody declared


@check
def check_an_undeclared_number_of_examples_is_public() -> None:
    """Without --examples the number of rows is in the certificate, and the claim for neighbours with as many."""
    for name in ("poisson", "partition", "persons", "dpmac", "blocks", "random stopping"):
        with tempfile.TemporaryDirectory() as there:
            folder = Path(there)
            code, said = run(name, folder, ROWS - 1, declared=False)
            assert code == 0, said
            found = public_settings(folder)
            counted = found["settings"].get("tuning", found["settings"])
            if "tuning" not in found["settings"] or name == "blocks":
                assert counted["examples"] == ROWS - 1
            assert found["settings"]["examples_declared"] is False
            assert found["claim"]["adjacency"] == "zero_out", name
            assert f"{ROWS - 1} examples" not in said, said  # no warning: delta is below one over them
            card = (folder / "model" / "README.md").read_text()
            assert "replaced by an empty one (the number of " in card
            assert "the length of the data, not protected" in card
            verified = pv.verify(folder / "model")
            assert verified.ok
            assert len(verified.warnings) == 1, verified.warnings  # of the seed


@check
def check_add_remove_needs_a_declared_number() -> None:
    """Refused where a plan is made, and on the command line before anything is read, begun or written."""
    data = dataset()
    for sampler in (pv.Poisson(0.3), pv.Partition(4), pv.FullBatch()):
        for name in (ADD, "add_remove"):
            error = must_raise(BadInput, lambda s=sampler, n=name: pv.Plan(s, adjacency=n))  # type: ignore[misc,arg-type]
            assert "examples=N (--examples N)" in str(error)
        plan = pv.Plan(sampler, adjacency=ADD, examples=ROWS)
        must_raise(BadInput, lambda p=plan: replace(p, examples=None))  # type: ignore[misc]
    for name in ("poisson", "dpmac", "blocks", "random stopping"):
        with tempfile.TemporaryDirectory() as there:
            words = (*COMMANDS[name], "--adjacency", "add_remove", *BOUNDS, "--data", "nothing.npz")
            book = str(Path(there) / "ledger.json")
            code, said = command(("train", *words, "--out", str(Path(there) / "model"), "--ledger", book))
            assert code == 2, (name, said)
            assert "--examples N" in said, said
            assert list(Path(there).iterdir()) == []
    result = pv.train(data, epsilon=3.0, delta=1e-3)
    assert result.adjacency is EMPTY
    assert result.settings["examples_declared"] is False


@check
def check_the_usual_kind_of_neighbour_follows_from_what_is_declared() -> None:
    """Zero-out costs what add/remove does, for samples and partitions; with other batches nothing depends on it."""
    usual: list[tuple[Sampler, Adjacency]] = [
        (pv.Poisson(0.1), ADD), (pv.Partition(10), ADD), (pv.Shuffle(4), EMPTY), (pv.FixedOrder(4), EMPTY),
        (pv.FullBatch(), EMPTY),
    ]  # fmt: skip
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
    """One that does, as they were once made, is refused: its neighbours would have other certificates."""
    result = pv.train(dataset(), epsilon=3.0, delta=1e-3, examples=ROWS)
    with tempfile.TemporaryDirectory() as there:
        made = bundle.publish(result, Path(there) / "model", delta=1e-3)
        assert pv.verify(made).ok
        undeclared = replace(result, settings=result.settings | {"examples_declared": False})
        made = bundle.publish(undeclared, Path(there) / "other", delta=1e-3)
        (problem,) = pv.verify(made).problems
        assert "claims add_remove" in problem, problem


# Whose rows are tested on, or asked about


def read(folder: Path, x: Any, y: Any, x_test: Any) -> list[Callable[[], pv.Dataset]]:
    """These rows and test rows, by every reader, and by hand."""
    y_test = np.resize(y, len(x_test))
    schema = parse_schema(
        'target = "c"\n[columns.c]\nkind = "target"\nclasses = ["0", "1", "2"]\n'
        + "".join(f'\n[columns.n{i}]\nkind = "number"\nlow = 0\nhigh = 1\n' for i in range(x.shape[1])),
        "rows.toml",
    )
    np.savez(folder / "rows.npz", x=x, y=y, x_test=x_test, y_test=y_test)
    for name, numbers, labels in (("rows.csv", x, y), ("test.csv", x_test, y_test)):
        lines = [",".join([f"n{i}" for i in range(x.shape[1])] + ["c"])]
        lines += [
            ",".join([*(repr(float(value)) for value in row), str(label)])
            for row, label in zip(numbers, labels, strict=True)
        ]
        (folder / name).write_text("\n".join(lines))
    npz, table, test = (str(folder / name) for name in ("rows.npz", "rows.csv", "test.csv"))
    return [
        lambda: pv.load(npz, classes=3, value_range=(0, 1)),
        lambda: pv.load(table, schema=schema, test=test),
        lambda: pv.Dataset(x, y, x_test, y_test, classes=3).checked(),
        lambda: pv.Dataset.of(pv.Dataset(torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(x_test), y_test)),
    ]


@check
def check_training_rows_are_not_tested_on() -> None:
    """Some of them, in any order, others among them, in another type: refused by every reader. Rows of others are not."""
    x, y = rows()
    fresh, _ = rows(seed=1)
    tests = {
        "all": x,
        "some": x[3:9].copy(),
        "one": x[7:8].copy(),
        "turned round": x[::-1].copy(),
        "others among them": np.concatenate([x[:8], fresh[:4]]),
    }
    for name, x_test in tests.items():
        with tempfile.TemporaryDirectory() as there:
            for reader in read(Path(there), x, y, x_test):
                error = must_raise(BadInput, reader)
                assert "are the training data, or most of them are" in str(error), (name, error)
    few = np.concatenate([x[:2], fresh[:9]])  # as chance may have it
    with tempfile.TemporaryDirectory() as there:
        for x_test in (fresh, few):
            for reader in read(Path(there), x, y, x_test):
                assert len(reader().x_test) == len(x_test)
    narrow = pv.Dataset(
        (x * 255).astype(np.uint8), y, (x[:9] * 255).astype(np.uint8).astype(np.float32), y[:9], classes=3
    )
    must_raise(BadInput, narrow.checked)


@check
def check_rows_that_are_often_alike_may_be_tested_on() -> None:
    """Of three columns of yes and no nearly every fresh row is like some training row; the table itself is still refused."""
    made_up = np.random.default_rng(0)
    x = made_up.integers(2, size=(120, 3)).astype(float)
    y = made_up.integers(3, size=120)
    with tempfile.TemporaryDirectory() as there:
        for reader in read(Path(there), x, y, made_up.integers(2, size=(30, 3)).astype(float)):
            assert len(reader().x_test) == 30
        for reader in read(Path(there), x, y, x):
            must_raise(BadInput, reader)
    assert overlap(x[:5], x) == (1.0, 1.0)


@check
def check_named_data_are_compared_with_their_test_rows() -> None:
    """A named data set whose files were mixed up."""
    digits = recipes.digits({})
    assert digits.checked() is digits
    must_raise(BadInput, replace(digits, x_test=digits.x[:300], y_test=digits.y[:300]).checked)


@check
def check_nothing_is_spent_on_data_that_are_tested_on() -> None:
    """Data made by hand are looked at before a ledger is charged, whatever the method."""
    x, y = rows()
    data = pv.Dataset(x, y, x[:9], y[:9], classes=CLASSES, low=0.0, high=1.0)
    for name, method in methods(data).items():
        ledger = Ledger()
        error = must_raise(BadInput, lambda run=method, book=ledger: run(book))  # type: ignore[misc]
        assert "are the training data" in str(error), (name, error)
        assert ledger.event.events == (), name


@check
def check_teachers_are_asked_about_rows_that_were_given_for_it() -> None:
    """Test rows of a file are nobody's to publish: --public is asked for, and must not hold the training rows."""
    x, y = rows()
    fresh, labels = rows(seed=1)
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there)
        np.savez(folder / "rows.npz", x=x, y=y, x_test=fresh, y_test=labels)
        words = ("train", "--method", "pate", *EPSILON, "--data", str(folder / "rows.npz"), *BOUNDS, "--teachers", "4")
        for more, expected in (((), "--public PATH"), (("--public", str(folder / "rows.npz")), "are training rows")):
            code, said = command((*words, *more, "--out", str(folder / "model")))
            assert code == 2, said
            assert expected in " ".join(said.split()), said
            assert [path.name for path in folder.iterdir()] == ["rows.npz"]


# Several processes


def methods(data: pv.Dataset) -> dict[str, Callable[[Ledger], Any]]:
    """Every way to spend in Python, on a ledger."""
    plan = pv.Plan(pv.Poisson(0.5), epochs=1, schedule=pv.schedules.Constant(2.0))
    mac = replace(plan, clip=pv.Derivatives(0.3))
    loud = {purpose: pv.FeaturesPlan(CLASSES, NUMBERS, keep, 2.0, 1.0, purpose=purpose, noise_multiplier=1.0)
            for purpose, keep in (("classifier", 6), ("selection", 3), ("rows", 6), ("least-squares", 6))}  # fmt: skip
    candidates = tuple(pv.Candidate(name, plan) for name in "ab")
    votes = pv.PatePlan(3, 2, pv.Votes(CLASSES), noise_multiplier=1.0)

    def never(*_: Any) -> Any:
        raise AssertionError("it was trained")

    def teachers() -> Any:
        return pv.teachers.Trained(data, never, 2)

    public = rows(seed=1)[0]
    return {
        "train": lambda book: pv.train(data, epsilon=3.0, ledger=book),
        "dpsgd": lambda book: pv.dpsgd(plan, nn.Linear(NUMBERS, CLASSES), cross_entropy, data, ledger=book),
        "dpmac": lambda book: pv.dpmac(mac, nn.Linear(NUMBERS, CLASSES), "binary_cross_entropy", data, ledger=book),
        "fisher": lambda book: pv.fisher(loud["classifier"], data, ledger=book),
        "select_features": lambda book: pv.select_features(loud["selection"], data, ledger=book),
        "release_features": lambda book: pv.release_features(loud["rows"], data, ledger=book),
        "least_squares": lambda book: pv.least_squares(loud["least-squares"], data, ledger=book),
        "tune": lambda book: pv.tune(pv.Blocks(candidates, selection_epsilon=1.0), never, data, ledger=book),
        "pate": lambda book: pv.pate(
            votes, teachers(), None, public, pv.Student(lambda shape: small_net()), ledger=book
        ),
        "ask_teachers": lambda book: pv.ask_teachers(votes, teachers(), None, public, ledger=book),
    }


@check
def check_one_process_trains() -> None:
    """With what torchrun, mpirun or srun say to each of several processes: refused, nothing charged, begun or written."""
    for name, method in methods(dataset()).items():
        ledger = Ledger()
        with mock.patch.dict("os.environ", {"WORLD_SIZE": "2"}):
            error = must_raise(BadInput, lambda run=method, book=ledger: run(book))  # type: ignore[misc]
        assert "WORLD_SIZE is 2" in str(error), (name, error)
        assert ledger.event.events == (), name
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there)
        given = files(folder)
        for words in COMMANDS.values():
            line = (
                "train",
                *(given.get(word, word) for word in words),
                "--data",
                given["rows.npz"],
                *BOUNDS,
                "--examples",
                "40",
            )
            for launcher in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"):
                with mock.patch.dict("os.environ", {launcher: "2"}):
                    code, said = command((*line, "--out", str(folder / "model"), "--ledger", str(folder / "book.json")))
                assert code == 2, said
                assert f"{launcher} is 2" in said, said
                assert sorted(path.name for path in folder.iterdir()) == sorted(given)
        for alone in ("1", "", "x"):
            with mock.patch.dict("os.environ", {"WORLD_SIZE": alone, "SLURM_NTASKS": "4"}):
                assert run("statistics", folder, ROWS)[0] == 0
            for path in (folder / "model").iterdir():
                path.unlink()
            (folder / "model").rmdir()
