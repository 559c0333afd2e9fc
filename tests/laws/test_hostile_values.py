"""A law: whatever a public function or class is given, the answer is one of privlearn's errors, or
it works.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import os
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import privlearn as pv
from privlearn import _checks
from privlearn._checks import checked
from privlearn.errors import BadInput, PrivlearnError
from privlearn.training.choices import TrainRequest
from tests.laws.hostile_calls import Call
from tests.laws.hostile_names import ELSEWHERE, calls, public_names
from tests.laws.test_hostile_options import limited


def strings() -> Any:
    import pandas as pd

    return pd.DataFrame({"name": ["Ada", "Bo"], "town": ["Ulm", "Bern"]})


def scheduler() -> Any:
    return torch.optim.lr_scheduler.StepLR(
        torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1), 1
    )


#: What is put in for one argument after another.
HOSTILE: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "a text": lambda: "x",
    "no text": lambda: "",
    "a number as text": lambda: "1",
    "bytes": lambda: b"\xff\x00",
    "NaN": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "-1": lambda: -1,
    "-0.5": lambda: -0.5,
    "0": lambda: 0,
    "0.5": lambda: 0.5,
    "2": lambda: 2,
    "1e300": lambda: 1e300,
    "10**30": lambda: 10**30,
    "10**400": lambda: 10**400,
    "1e-300": lambda: 1e-300,
    "1j": lambda: 1j,
    "a NumPy float": lambda: np.float32(0.5),
    "a NumPy int": lambda: np.int64(3),
    "a list": lambda: [],
    "a list of texts": lambda: ["a", "b"],
    "a list of None": lambda: [None],
    "a tuple": lambda: (),
    "a tuple of NaN": lambda: (math.nan, math.nan),
    "a dict": lambda: {},
    "a dict of texts": lambda: {"a": "b"},
    "an object": object,
    "a module": lambda: pv.sampling,
    "a class": lambda: int,
    "a function": lambda: lambda: None,
    "a network": lambda: nn.Linear(2, 2),
    "a torch scheduler": scheduler,
    "an optimizer": lambda: torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1),
    "a table of texts": strings,
    "an empty array": lambda: np.zeros((0, 5)),
    "an array of NaN": lambda: np.full((24, 5), math.nan),
    "an array of texts": lambda: np.array(["a", "b"]),
    "an array of objects": lambda: np.array([None, {}], dtype=object),
    "an empty tensor": lambda: torch.zeros(0),
    "a tensor": lambda: torch.ones(2, 2),
    "a budget": lambda: pv.Budget(rho=1.0),
    "a folder that is not there": lambda: Path("nowhere", "at", "all"),
}
#: The seconds that a case may take.
LIMIT = 120


FOLDER = Path(tempfile.gettempdir(), f"hostile-{os.getpid()}")


@functools.cache
def made() -> dict[str, Call]:
    """The calls, in the folder that they may write to."""
    return calls(FOLDER)


@functools.cache
def cases() -> list[tuple[str, str, str]]:
    """Each name, each of its arguments, each hostile value."""
    return [
        (name, own, value)
        for name, call in made().items()
        for own in call.arguments
        for value in HOSTILE
    ]


def emptied(folder: Path) -> Path:
    """The folder, with nothing in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def answer(name: str, argument: str | None, value: str | None) -> str | None:
    """What is wrong with the answer of a function of which one argument was replaced; None:
    nothing.
    """
    with (
        contextlib.chdir(emptied(FOLDER)),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        hostile = {} if argument is None or value is None else {argument: HOSTILE[value]()}
        try:
            with limited(LIMIT):
                made()[name](**hostile)
        except PrivlearnError as error:
            return None if value is not None else f"{type(error).__name__}: {error}"
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return f"{type(error).__name__}: {str(error)[:150]}"
    return None


#: Arguments that are functions: what one does that takes other arguments is its own error, not
#: privlearn's.
FUNCTIONS = (
    "progress",
    "loss",
    "train",
    "student",
    "begin",
    "model",
    "make",
    "fit",
    "optimizer",
    "through",
    "mu",
    "learning_rate_schedule",
)
CALLABLE = ("a class", "a function", "a network")
#: Errors that others make: scikit-learn's rule for rows of objects, Python's for members of an
#: enum.
OTHERS = {
    "X": ("TypeError: float() argument", "OverflowError: int too large"),
    "value": ("ValueError: The truth value",),
}


def faults(chosen: list[tuple[str, str, str]]) -> list[str]:
    """The cases whose answer is neither one of privlearn's errors nor that it works."""
    found = []
    for name, argument, value in chosen:
        wrong = answer(name, argument, value)
        excused = argument in FUNCTIONS and value in CALLABLE
        if wrong and not excused and not wrong.startswith(OTHERS.get(argument, ("nothing",))):
            found.append(f"{name}({argument}={value}): {wrong}")
    return found


#: Where the usual value is asked for by None, and takes long.
SLOW = {("audit", "trials", "None")}


def every_case() -> list[tuple[str, str, str]]:
    return sorted(set(cases()) - SLOW)


def test_every_public_name_is_here() -> None:
    assert public_names() == (set(made()) & public_names()) | set(ELSEWHERE)


def test_the_calls_work() -> None:
    """But for those of Hugging Face, which need a pretrained model: without one they are refused in
    words.
    """
    unmade = {name: wrong for name in made() if (wrong := answer(name, None, None))}
    assert set(unmade) <= {name for name in made() if name.startswith("huggingface.")}, unmade


@pytest.mark.parametrize("part", range(2))
def test_some_hostile_values(part: int) -> None:
    """One argument and value of each name, drawn by a seed; all of them are nightly."""
    draws = random.Random(part)
    drawn = [
        (name, draws.choice(call.arguments), draws.choice(list(HOSTILE)))
        for name, call in made().items()
    ]
    print(f"{len(drawn)} of {len(every_case())} cases of {len(made())} calls")
    assert len(every_case()) > 39_000
    assert not faults(sorted(set(drawn) - SLOW))


def test_without_its_guard_a_function_answers_in_others_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = [
        ("Ledger.approve", "plan", "0"),
        ("boosting.shape", "result", "None"),
        ("verify", "folder", "10**30"),
    ]
    assert not faults(chosen)
    monkeypatch.setattr(_checks, "fits", lambda value, kind: True)
    assert len(faults(chosen)) == len(chosen)


@pytest.mark.parametrize("name", ["sampling", "schedule", "clip", "mechanism"])
def test_annotations_of_a_parents_module_guard_what_a_class_inherits(name: str) -> None:
    with pytest.raises(BadInput, match=name):
        TrainRequest(epsilon=1.0, **{name: np.full(3, math.nan)})


@pytest.mark.parametrize("name", ["device", "augmentation", "world"])
def test_annotations_that_are_imported_for_type_checkers_guard(name: str) -> None:
    with pytest.raises(BadInput, match=name):
        pv.ComputeConfig(**{name: np.full(3, math.nan)})


def test_an_annotation_that_names_nothing_is_an_error() -> None:
    @checked
    def function(value: Unknown) -> None:  # type: ignore[name-defined]  # noqa: F821
        pass

    with pytest.raises(NameError, match="Unknown"):
        function(1)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(16))
def test_hostile_values(part: int) -> None:
    assert not faults(every_case()[part::16])
