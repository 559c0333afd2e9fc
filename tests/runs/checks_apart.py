"""Named checks of whose rows are tested on or asked about, and that one process trains."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

import privlearn as pv
from privlearn.core.accounting.ledger import Ledger
from privlearn.data import formats
from privlearn.data.dataset import overlap
from privlearn.data.schema import parse_schema
from privlearn.errors import BadInput
from privlearn.methods.statistics.plan import FisherPlan, LeastSquaresPlan, RowsPlan, SelectionPlan
from privlearn_segmentation import Seen
from tests.runs.checks_size import (
    BOUNDS,
    CLASSES,
    COMMANDS,
    EPSILON,
    NUMBERS,
    ROWS,
    command,
    dataset,
    files,
    rows,
    run,
)
from tests.support.checks import check, must_raise
from tests.support.nets import cross_entropy, small_net

# Whose rows are tested on, or asked about


def read(folder: Path, x: Any, y: Any, x_test: Any) -> list[Callable[[], pv.Dataset]]:
    """These rows and test rows, by every reader, and by hand."""
    y_test = np.resize(y, len(x_test))
    schema = parse_schema(
        'target = "c"\n[columns.c]\nkind = "target"\nclasses = ["0", "1", "2"]\n'
        + "".join(
            f'\n[columns.n{i}]\nkind = "number"\nlow = 0\nhigh = 1\n' for i in range(x.shape[1])
        ),
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
        lambda: pv.Dataset.of(
            pv.Dataset(torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(x_test), y_test)
        ),
    ]


@check
def check_training_rows_are_not_tested_on() -> None:
    """Some of them, in any order, mixed with others, in another type: refused by every reader.
    Other rows are not.
    """
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
        (x * 255).astype(np.uint8),
        y,
        (x[:9] * 255).astype(np.uint8).astype(np.float32),
        y[:9],
        classes=3,
    )
    must_raise(BadInput, narrow.checked)


@check
def check_rows_that_are_often_alike_may_be_tested_on() -> None:
    """Of three binary columns nearly every fresh row is like some training row; the table itself is
    still refused.
    """
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
    digits = formats.digits({})
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
    """Test rows of a file are nobody's to publish: --public is asked for, and must not hold the
    training rows.
    """
    x, y = rows()
    fresh, labels = rows(seed=1)
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there)
        np.savez(folder / "rows.npz", x=x, y=y, x_test=fresh, y_test=labels)
        words = (
            "train",
            "--method",
            "pate",
            *EPSILON,
            "--data",
            str(folder / "rows.npz"),
            *BOUNDS,
            "--teachers",
            "4",
        )
        for more, expected in (
            ((), "--public PATH"),
            (("--public", str(folder / "rows.npz")), "the rows of --public"),
        ):
            code, said = command((*words, *more, "--out", str(folder / "model")))
            assert code == 2, said
            assert expected in " ".join(said.split()), said
            assert [path.name for path in folder.iterdir()] == ["rows.npz"]
        book = folder / "book.json"
        assert command((*words, "--out", str(folder / "model"), "--ledger", str(book)))[0] == 2
        assert not book.exists()


@check
def check_records_are_no_public_inputs() -> None:
    """In Python, too: not as the pool, in other types, behind a function or as what labels are
    spread over.
    """
    x, y = rows()
    fresh = rows(seed=1)[0]
    data = pv.Dataset(x, y, classes=CLASSES)
    plan = pv.teachers.PatePlan(3, 2, pv.teachers.Votes(CLASSES), noise_multiplier=1.0)

    def never(*_: Any) -> Any:
        raise AssertionError("it was trained")

    def spreading(pool: Any) -> Any:
        return pv.teachers.Spreading(
            pv.Dataset(pool, public=True), CLASSES, components=2, neighbours=3
        )

    own = pv.teachers.Trained(data, never, 2)
    doubles = pv.teachers.Trained(
        replace(data, x=torch.as_tensor(x, dtype=torch.float64)), never, 2
    )
    for name, ensemble, pool in (
        ("the rows", own, x),
        ("a part of them, in double precision", own, np.asarray(x)[5:15].astype(np.float64)),
        ("the rows, of records in double precision", doubles, x),
        ("declared public", own, pv.Dataset(torch.as_tensor(x), public=True)),
        ("behind a function", Seen(own, lambda said: said), x),
        ("spread over", pv.teachers.Trained(data, spreading(x), 2), fresh),
    ):
        for ask in (
            lambda book: pv.pate(plan, ensemble, None, pool, never, ledger=book),  # noqa: B023
            lambda book: pv.teachers.ask_teachers(plan, ensemble, None, pool, ledger=book),  # noqa: B023
        ):
            ledger = Ledger()
            error = must_raise(BadInput, lambda: ask(ledger))  # noqa: B023
            assert "are among the training rows" in str(error), (name, error)
            assert ledger.event.events == (), name
    pv.teachers.ask_teachers(plan, pv.teachers.Trained(data, spreading(fresh), 2), None, fresh)


# Several processes


def methods(data: pv.Dataset) -> dict[str, Callable[[Ledger], Any]]:
    """Every way to spend in Python, on a ledger."""
    plan = pv.Plan(pv.Poisson(0.5), epochs=1, schedule=pv.schedules.Constant(2.0))
    mac = replace(plan, clip=pv.mac.Derivatives(0.3))
    loud = {
        kind.kind: kind(CLASSES, NUMBERS, keep, 2.0, 1.0, noise_multiplier=1.0)
        for kind, keep in ((FisherPlan, 6), (SelectionPlan, 3), (RowsPlan, 6))
    }
    squares = LeastSquaresPlan(CLASSES, NUMBERS, 2.0, noise_multiplier=1.0)
    candidates = tuple(pv.tuning.Candidate(name, plan) for name in "ab")
    votes = pv.teachers.PatePlan(3, 2, pv.teachers.Votes(CLASSES), noise_multiplier=1.0)

    def never(*_: Any) -> Any:
        raise AssertionError("it was trained")

    def teachers() -> Any:
        return pv.teachers.Trained(data, never, 2)

    public = rows(seed=1)[0]
    return {
        "train": lambda book: pv.train(data, epsilon=3.0, ledger=book),
        "dpsgd": lambda book: pv.dpsgd(
            plan, nn.Linear(NUMBERS, CLASSES), cross_entropy, data, ledger=book
        ),
        "dpmac": lambda book: pv.dpmac(
            mac, nn.Linear(NUMBERS, CLASSES), "binary_cross_entropy", data, ledger=book
        ),
        "fisher": lambda book: pv.statistics.fisher(loud["fisher"], data, ledger=book),
        "select_features": lambda book: pv.statistics.select_features(
            loud["selection"], data, ledger=book
        ),
        "release_features": lambda book: pv.statistics.release_features(
            loud["rows"], data, ledger=book
        ),
        "least_squares": lambda book: pv.statistics.least_squares(squares, data, ledger=book),
        "tune": lambda book: pv.tune(
            pv.tuning.Blocks(candidates, selection_epsilon=1.0), never, data, ledger=book
        ),
        "pate": lambda book: pv.pate(
            votes,
            teachers(),
            None,
            public,
            pv.teachers.Student(lambda shape: small_net()),
            ledger=book,
        ),
        "ask_teachers": lambda book: pv.teachers.ask_teachers(
            votes, teachers(), None, public, ledger=book
        ),
    }


@check
def check_one_process_trains() -> None:
    """In one of several processes of torchrun, mpirun or srun: refused, nothing charged, begun or
    written.
    """
    for name, method in methods(dataset()).items():
        ledger = Ledger()
        with mock.patch.dict("os.environ", {"WORLD_SIZE": "2"}):
            error = must_raise(BadInput, lambda run=method, book=ledger: run(book))  # type: ignore[misc]
        assert "WORLD_SIZE is 2" in str(error), (name, error)
        assert ledger.event.events == (), name
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there)
        given = files(folder)
        declared = ("--data", given["rows.npz"], *BOUNDS, "--examples", str(ROWS))
        out = ("--out", str(folder / "model"), "--ledger", str(folder / "book.json"))
        launchers = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
        for number, words in enumerate(COMMANDS.values()):
            launcher = launchers[number % len(launchers)]
            with mock.patch.dict("os.environ", {launcher: "2"}):
                code, said = command(
                    ("train", *(given.get(word, word) for word in words), *declared, *out)
                )
            assert code == 2, said
            assert f"{launcher} is 2" in said, said
            assert sorted(path.name for path in folder.iterdir()) == sorted(given)
        for alone in ("1", "", "x"):
            with mock.patch.dict("os.environ", {"WORLD_SIZE": alone, "SLURM_NTASKS": "4"}):
                assert run("statistics", folder, ROWS)[0] == 0
            for path in (folder / "model").iterdir():
                path.unlink()
            (folder / "model").rmdir()
