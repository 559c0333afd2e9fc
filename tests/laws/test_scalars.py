"""A law: numbers of other libraries are taken wherever numbers are, and leave plain numbers."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import json
import math
import random
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import privlearn as pv
from privlearn import _checks
from privlearn._checks import as_plain
from privlearn._figures import private_figures
from privlearn._public import to_json
from privlearn.errors import BadInput
from tests.laws.hostile_calls import Call
from tests.laws.hostile_names import calls
from tests.laws.test_hostile_values import FOLDER, emptied

#: A plain number, as other libraries hold the same.
FORMS: dict[str, Callable[[Any], Any]] = {
    "a NumPy scalar": lambda n: np.int64(n) if isinstance(n, int) else np.float64(n),
    "a narrow NumPy scalar": lambda n: np.int32(n) if isinstance(n, int) else np.float32(n),
    "an array without axes": np.array,
    "a tensor without axes": lambda n: torch.tensor(
        n, dtype=torch.int64 if isinstance(n, int) else torch.float64
    ),
    "a fraction": lambda n: Fraction(repr(n)) if math.isfinite(n) else n,
    "a decimal": lambda n: Decimal(repr(n)),
}
#: In single precision the default is a little below the least that is taken.
ROUNDED_OUT = {("clipping.Quantile", "least", "a narrow NumPy scalar")}


def is_number(value: object) -> bool:
    return type(value) in (int, float)


def in_form(value: Any, form: Callable[[Any], Any]) -> Any:
    """A number, or the numbers of a tuple, a list or a dictionary, in another form; None: there is
    none.
    """
    if is_number(value):
        return form(value)
    if type(value) in (tuple, list) and value and all(map(is_number, value)):
        return type(value)(map(form, value))
    if type(value) is dict and any(map(is_number, value.values())):
        return {name: form(part) if is_number(part) else part for name, part in value.items()}
    return None


def numbers_of(call: Call) -> dict[str, Any]:
    """The arguments of a call that are numbers, as given or by default."""
    known = inspect.signature(call.function).parameters
    usual = {name: part.default for name, part in known.items()} | call.given
    return {
        name: usual[name] for name in call.arguments if in_form(usual.get(name), float) is not None
    }


def result_of(call: Call, **given: Any) -> Any:
    with (
        contextlib.chdir(emptied(FOLDER)),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        return call(**given)


def strange_parts(value: Any, deepest: int = 6) -> list[str]:
    """What a value holds in fields that is a number of another library."""
    if isinstance(value, np.generic | Fraction | Decimal):
        return [repr(value)]
    if deepest == 0 or isinstance(value, torch.Tensor | np.ndarray):
        return []
    if isinstance(value, Mapping):
        parts: list[Any] = list(value.values())
    elif isinstance(value, tuple | list):
        parts = list(value)
    elif is_dataclass(value):
        parts = [getattr(value, field.name) for field in fields(value)]
    else:
        return []
    return [strange for part in parts for strange in strange_parts(part, deepest - 1)]


@functools.cache
def made() -> dict[str, Call]:
    return {
        name: call
        for name, call in calls(Path(FOLDER)).items()
        if not name.startswith("huggingface.") and numbers_of(call)
    }


def cases() -> list[tuple[str, str, str]]:
    return [
        (name, argument, form)
        for name, call in made().items()
        for argument in numbers_of(call)
        for form in FORMS
        if (name, argument, form) not in ROUNDED_OUT
    ]


@functools.cache
def usual_result(name: str) -> Any:
    """What a call gives with plain numbers, if it is a value and the same each time."""
    usual = result_of(made()[name])
    comparable = is_dataclass(usual) and repr(usual) == repr(result_of(made()[name]))
    return usual if comparable and not strange_parts(usual) else None


def fault(name: str, argument: str, form: str) -> str | None:
    """What is wrong with what a call makes of a number of another library."""
    call, case = made()[name], f"{name}({argument}={form})"
    expected = usual_result(name)
    try:
        result = result_of(call, **{argument: in_form(numbers_of(call)[argument], FORMS[form])})
    except Exception as error:
        return f"{case}: {type(error).__name__}: {str(error)[:150]}"
    if expected is None:
        return None
    if strange := strange_parts(result):
        return f"{case}: holds {strange}"
    if form == "a narrow NumPy scalar" or vars(type(result)).get("__eq__") is object.__eq__:
        return None
    same = result == expected or repr(result) == repr(expected)
    return None if same else f"{case}: {result!r}"[:200]


def faults(chosen: list[tuple[str, str, str]]) -> list[str]:
    return [wrong for case in chosen if (wrong := fault(*case))]


def test_numbers_of_other_libraries() -> None:
    """Two cases of each class, drawn by a seed; all of them, and those of functions, are
    nightly.
    """
    draws = random.Random(0)
    by_name: dict[str, list[tuple[str, str, str]]] = {}
    for case in cases():
        if is_dataclass(made()[case[0]].function):
            by_name.setdefault(case[0], []).append(case)
    assert len(by_name) > 50
    assert not faults([case for each in by_name.values() for case in draws.sample(each, 2)])


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(8))
def test_all_numbers_of_other_libraries(part: int) -> None:
    assert not faults(cases()[part::8])


def test_without_the_mechanism_the_law_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_checks, "as_plain", lambda value, kind: value)
    chosen = [
        ("Budget", "epsilon", "a decimal"),
        ("Poisson", "sampling_rate", "a NumPy scalar"),
        ("PrivacyConfig", "epochs", "a tensor without axes"),
    ]
    assert len(faults(chosen)) == len(chosen)


@pytest.mark.parametrize("form", FORMS)
def test_plans_are_written_as_with_plain_numbers(form: str) -> None:
    read = FORMS[form]
    schedule = pv.schedules.Exponential(read(0.5), read(2.0))
    plan = pv.Plan(pv.Poisson(read(0.25)), schedule=schedule, epochs=read(3), examples=read(24))
    plain = pv.Plan(
        pv.Poisson(0.25), schedule=pv.schedules.Exponential(0.5, 2.0), epochs=3, examples=24
    )
    assert plan == plain
    assert hash(plan) == hash(plain)
    assert json.dumps(to_json(plan)) == json.dumps(to_json(plain))
    assert plan.guarantee(read(2**-17)) == plain.guarantee(2**-17)


@pytest.mark.parametrize(
    "number",
    [
        Fraction(1, 3),
        Fraction(5, 7),
        Decimal("0.1"),
        Decimal("0.12345678901234567890123"),
        Decimal("0.99999999999999999999"),
        np.longdouble(1) / np.longdouble(3),
        np.float32(0.1),
        np.float16(0.7),
    ],
)
def test_a_target_is_never_above_what_was_asked(number: Any) -> None:
    budget = pv.Budget(epsilon=number, delta=number)
    assert type(budget.epsilon) is type(budget.delta) is float
    exact = Fraction(*map(int, number.as_integer_ratio()))
    single = isinstance(number, np.floating)
    written = Fraction(budget.epsilon) if single else Fraction(repr(budget.epsilon))
    assert exact * Fraction(1 - 2**-50) <= written <= exact
    assert budget.delta == budget.epsilon


def test_what_is_written_alike_is_alike() -> None:
    assert pv.Budget(Decimal("0.1"), Decimal("1e-5")) == pv.Budget(0.1, 1e-5)
    assert pv.Budget(Fraction(1, 10), Fraction(1, 10**5)) == pv.Budget(0.1, 1e-5)


@pytest.mark.parametrize(
    "value",
    [
        np.True_,
        np.array(True),
        torch.tensor(True),
        np.datetime64(5, "ns"),
        np.timedelta64(5, "ns"),
        np.complex64(1),
        np.array([1.0]),
        torch.ones(1),
        torch.tensor(1.0, requires_grad=True),
        torch.tensor(1.0, device="meta"),
        Decimal("NaN"),
        Decimal("sNaN"),
        Decimal("Infinity"),
        Decimal("1e999999999"),
        Decimal("1e-999999999"),
        Fraction(10**400),
        Fraction(1, 10**400),
        private_figures(0.5),
        private_figures(2),
    ],
    ids=repr,
)
def test_what_is_no_public_number_is_refused(value: Any) -> None:
    with pytest.raises(BadInput, match="epsilon"):
        pv.Budget(epsilon=value, delta=1e-5)
    with pytest.raises(BadInput, match="epochs"):
        pv.PrivacyConfig(epsilon=1.0, epochs=value)
    with pytest.raises(BadInput, match="rate"):
        pv.Poisson(value)


@pytest.mark.parametrize("value", [np.float32(2.0), 2.0, Fraction(5, 2), Decimal("2.5")])
def test_whole_numbers_are_whole(value: Any) -> None:
    with pytest.raises(BadInput, match="epochs"):
        pv.PrivacyConfig(epsilon=1.0, epochs=value)


def test_what_may_be_a_tensor_stays_one() -> None:
    tensor = torch.tensor(2.0)
    assert as_plain(tensor, torch.Tensor | float) is tensor
    assert as_plain(tensor, Any) is tensor
    assert as_plain(np.float64(0.5), float | None) == 0.5


def test_a_grid_of_numpys_numbers() -> None:
    from sklearn.model_selection import GridSearchCV

    x = np.random.default_rng(0).random((60, 4))
    y = (x[:, 0] > 0.5).astype(int)
    estimator = pv.sklearn.DPClassifier(bounds=(0, 1), classes=[0, 1], random_state=np.int64(0))
    grid = {
        "epsilon": np.array([1.0, 4.0]),
        "delta": [Decimal("1e-3"), Fraction(1, 1000)],
        "options": [{"epochs": np.int64(1), "batch_size": np.array(20)}],
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search = GridSearchCV(estimator, grid, cv=2, refit=False, error_score="raise").fit(x, y)
    assert len(search.cv_results_["params"]) == 4
