"""A law: whatever a command's options are given, the answer is an ordinary one, or one message and
no traceback.
"""

from __future__ import annotations

import contextlib
import io
import random
import signal
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn import cli
from privlearn.cli.options import COMMANDS, Option, options_of

#: What is put in for numbers and for texts.
TEXTS = (
    "",
    "x",
    ":",
    ",",
    "=",
    "a:b=nan",
    "a=nan",
    "nan",
    "-1",
    "0",
    "1e300",
    "/nowhere/at/all",
    ".",
    "\u00e9\u0301",
    "9" * 30,
)
NUMBERS = ("", "x", "nan", "inf", "-inf", "-1", "0", "0.5", "1", "2", "1e300", "1e-300", "9" * 30)
#: The seconds that a case may take.
LIMIT = 120
#: Commands that work, in which one option at a time is replaced; `{data}` and the like are made
#: beforehand.
BASES: dict[str, tuple[tuple[str, ...], ...]] = {
    "budget": (
        ("--examples", "1000", "--epsilon", "2", "--epochs", "3", "--batch-size", "100"),
        (
            "--examples",
            "1000",
            "--rho",
            "0.1",
            "--epochs",
            "3",
            "--batch-size",
            "100",
            "--sampling",
            "shuffle",
        ),
        (
            "--examples",
            "1000",
            "--epsilon",
            "2",
            "--epochs",
            "3",
            "--batch-size",
            "100",
            "--sampling",
            "partition",
        ),
        ("--examples", "1000", "--noise-multiplier", "4", "--epochs", "3"),
        ("--method", "dpmac", "--examples", "1000", "--epsilon", "2", "--epochs", "3"),
        ("--method", "pate", "--epsilon", "2", "--queries", "10"),
        (
            "--method",
            "pate",
            "--epsilon",
            "2",
            "--queries",
            "10",
            "--threshold",
            "150",
            "--answers",
            "5",
        ),
        (
            "--method",
            "features",
            "--examples",
            "1000",
            "--epsilon",
            "2",
            "--classes",
            "3",
            "--numbers",
            "5",
        ),
        (
            "--method",
            "boosting",
            "--examples",
            "1000",
            "--epsilon",
            "2",
            "--classes",
            "2",
            "--numbers",
            "3",
        ),
    ),
    "train": (
        (
            "--data",
            "{data}",
            "--classes",
            "2",
            "--range",
            "0,1",
            "--epsilon",
            "2",
            "--epochs",
            "1",
            "--out",
            "{out}",
            "--dry-run",
        ),
        (
            "--data",
            "{data}",
            "--classes",
            "2",
            "--range",
            "0,1",
            "--epsilon",
            "2",
            "--method",
            "features",
            "--out",
            "{out}",
            "--dry-run",
        ),
    ),
    "audit": (("--noise-multiplier", "1", "--trials", "50"),),
    "ledger": (("{ledger}", "--epsilon", "1"), ("{ledger}",)),
    "verify": (("{nothing}",),),
    "export": (("{nothing}", "--to", "registry"),),
    "predict": (("{nothing}", "--data", "{data}"),),
    "commit": (("--data", "{data}", "--classes", "2", "--range", "0,1", "--out", "{out}"),),
    "replay": (("{nothing}",),),
    "certify": (
        (
            "{state}",
            "--from",
            "opacus",
            "--sampling",
            "poisson",
            "--examples",
            "1000",
            "--batch-size",
            "10",
            "--epochs",
            "1",
            "--delta",
            "1e-5",
        ),
        (
            "{state}",
            "--from",
            "opacus",
            "--sampling",
            "shuffle",
            "--examples",
            "1000",
            "--batch-size",
            "10",
            "--delta",
            "1e-5",
        ),
    ),
    "reproduce": (("--list",),),
    # refused, whatever is put in for one of the two: the engine takes half a minute to start
    "demo": (("hospitals", "--sites", "1", "--out", "{data}"),),
    "data": (
        ("list",),
        ("check", "{data}", "--classes", "2"),
        ("schema", "{table}"),
        ("pack", "{table}", "--out", "{out}"),
    ),
    "key": (("{key}",),),
    "completion": (("bash",),),
    "selfcheck": (),
}


class TooLong(BaseException):
    """A case took longer than its limit."""


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise `TooLong` after so many seconds."""

    def stop(*_: Any) -> None:
        raise TooLong(f"longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def files(place: Path) -> dict[str, str]:
    """What the commands are given, made anew in a folder."""
    draws = np.random.default_rng(0)
    np.savez(
        place / "rows.npz", x=draws.random((60, 5)).astype(np.float32), y=draws.integers(0, 2, 60)
    )
    (place / "rows.csv").write_text(
        "age,kind\n" + "".join(f"{age},{'ab'[age % 2]}\n" for age in range(20, 40))
    )
    (place / "state.json").write_text('{"history": [[1.0, 0.01, 100]], "mechanism": "prv"}')
    names = {
        "data": "rows.npz",
        "state": "state.json",
        "table": "rows.csv",
        "ledger": "ledger.json",
        "key": "key",
        "out": "out",
        "nothing": "-",
    }
    return {name: str(place / file) for name, file in names.items()}


def cases() -> list[tuple[str, tuple[str, ...], str, str]]:
    """Each command that works, each of its options, each hostile value."""
    return [
        (command, base, option.name, value)
        for command, bases in BASES.items()
        for base in bases
        for option in options_of(command).values()
        if option.kind is not bool and option.flag and option.name not in NEVER
        for value in values_of(option)
    ]


#: Options that would open a port.
NEVER = ("port",)


def values_of(option: Option) -> tuple[str, ...]:
    """What is put in for an option."""
    if option.choices:
        return ("", "x", *option.choices)
    return NUMBERS if option.kind in (int, float) else (*TEXTS, *NUMBERS[:2])


def answer(command: str, base: tuple[str, ...], name: str, value: str) -> str | None:
    """What is wrong with the answer to a command line with one option replaced; None: nothing."""
    out, asides = io.StringIO(), io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        made = files(Path(folder))
        given = [part.format(**made) for part in base]
        if f"--{name}" in given:
            at = given.index(f"--{name}")
            del given[at : at + 2]
        try:
            with (
                limited(LIMIT),
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(asides),
            ):
                code = cli.main([command, *given, f"--{name}={value}"])
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return f"{type(error).__name__}: {str(error)[:100]}"
    said = asides.getvalue()
    if code not in (0, 1, 2):
        return f"code {code}"
    if "Traceback" in said or (code == 2 and "privlearn: " not in said):
        return f"said {said[:200]}"
    return None


def faults(chosen: list[tuple[str, tuple[str, ...], str, str]]) -> list[str]:
    """The command lines whose answer is none."""
    answers = {
        (command, base, name, value): answer(command, base, name, value)
        for command, base, name, value in chosen
    }
    return [
        f"{command} {' '.join(base)} --{name}={value}: {wrong}"
        for (command, base, name, value), wrong in answers.items()
        if wrong
    ]


def test_every_command_is_here() -> None:
    assert set(BASES) == set(COMMANDS)


@pytest.mark.parametrize("part", range(2))
def test_some_hostile_options(part: int) -> None:
    whole = cases()
    assert len(whole) > 8_000
    assert not faults(random.Random(part).sample(whole, 50))


@pytest.mark.parametrize("sampling", ["poisson", "shuffle", "partition", "fixed"])
def test_a_tiny_target_is_refused_at_once(sampling: str) -> None:
    base = ("--examples", "1000", "--epochs", "3", "--batch-size", "100", "--sampling", sampling)
    for name in ("epsilon", "rho"):
        assert not faults([("budget", base, name, value) for value in ("1e-300", "1e-30", "1e-13")])


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(16))
def test_hostile_options(part: int) -> None:
    assert not faults(cases()[part::16])
