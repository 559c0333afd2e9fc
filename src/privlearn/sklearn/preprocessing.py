"""What an estimator's rows came through before its `fit`: steps that learned from private rows
without noise.

Whatever transformed the rows counts as such a step, unless it can be seen that it learned nothing
from them. What is not under way when `fit` is called can't be seen, but for the names that
scikit-learn gives to columns.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, clone
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.utils import _safe_indexing, all_estimators

from privlearn._display import shortened
from privlearn.sklearn.table_encoder import DPTableEncoder

Array = NDArray[Any]
#: Rows that go through the steps by themselves, to see that they come out as they did among all
#: others.
_FEW = 3
#: Relative to the largest number: what products of other shapes round differently.
_ROUNDING = 1e-5
#: Names of columns as `ColumnTransformer` and `FeatureUnion` make them, and as PCA does:
#: `onehotencoder__sex`, `pca0`.
_PREFIXED, _NUMBERED = re.compile(r"([A-Za-z][A-Za-z0-9_-]*?)__.*"), re.compile(r"([a-z]+)[0-9]+")
#: A prefix of columns that are passed on as they are.
_PASSED = "remainder"


@final
@dataclass(frozen=True, eq=False)
class _Call:
    """An estimator that is at work, and the rows and targets that it was given; None: that can't be
    seen.
    """

    estimator: Any
    X: Any
    y: Any


def reasons_of(estimator: Any, private: type[Any], *, declared: bool) -> Iterator[str]:
    """Why nothing can be claimed of what an estimator learns in the fit that is under way.

    Args:
        estimator: whose `fit` calls this.
        private: the kind of estimators whose fits are charged.
        declared: whether steps without noise are declared to have learned nothing.
    """
    if not declared and (through := [*dict.fromkeys(_through(estimator, private))]):
        yield (
            f"rows came through {shortened(', '.join(through), 50)}, fitted to private rows "
            "without noise: use DPTableEncoder, or DPStandardScaler on one ledger. "
            "preprocessing='public' is true only if all of it was fitted to other, public rows"
        )
    if elsewhere := [*dict.fromkeys(_find_charged_elsewhere(estimator, private))]:
        yield (
            f"rows came through {shortened(', '.join(elsewhere), 50)}, whose release this fit's "
            "epsilon leaves out: give both, in one pipeline, the same "
            "ledger=pv.Ledger(pv.Budget(E, D))"
        )


def person_column(estimator: Any) -> str:
    """The column that says whose row each is, by the schema of an encoder that the rows of the fit
    under way came through; empty: none does.
    """
    for step in _steps_before(estimator):
        if isinstance(step, DPTableEncoder) and step.person is not None:
            return step.person
    return ""


def _find_charged_elsewhere(estimator: Any, private: type[Any]) -> Iterator[str]:
    """The names of private steps that the rows came through, and whose releases the claim of the
    estimator's ledger does not count.
    """
    ledger, seen = estimator.ledger, False
    for step in _steps_before(estimator):
        if isinstance(step, private):
            seen = True
            if ledger is None or not _is_same(step.ledger, ledger):
                yield type(step).__name__
    calls = _calls(estimator)
    if not seen and calls:
        yield from (name for name in _prefixes(calls[-1].X) if name in {*_names_of(private)})


def is_behind_release(estimator: Any, private: type[Any]) -> bool:
    """Whether the rows of the fit under way came through a private step."""
    return any(isinstance(step, private) for step in _steps_before(estimator))


def _is_same(one: Any, other: Any) -> bool:
    """Whether two ledgers are one."""
    return one is other or (one is not None and one.path is not None and one.path == other.path)


def _steps_before(estimator: Any) -> Iterator[Any]:
    """All steps, one by one, of the pipelines under way before this estimator."""
    for inner, outer in pairwise(_calls(estimator)):
        if isinstance(outer.estimator, Pipeline):
            for step in _earlier(outer, inner):
                yield from _parts(step)


def _parts(step: Any) -> Iterator[Any]:
    """A step, or what it consists of."""
    if isinstance(step, Pipeline):
        inner_steps = [part for _, part in step.steps]
    elif isinstance(step, FeatureUnion):
        inner_steps = [part for _, part in step.transformer_list]
    elif isinstance(step, ColumnTransformer):
        fitted = getattr(step, "transformers_", step.transformers)
        inner_steps = [part for _, part, _ in fitted]
    else:
        yield step
        return
    for part in inner_steps:
        yield from _parts(part)


def _through(estimator: Any, private: type[Any]) -> Iterator[str]:
    """The names of what transformed the rows and may have learned from them."""
    calls = _calls(estimator)
    for inner, outer in pairwise(calls):
        if isinstance(outer.estimator, private):
            continue
        if isinstance(outer.estimator, Pipeline):
            yield from _find_learned(outer, inner, private)
        elif outer.X is None or not _are_rows_of(inner, outer):
            yield type(outer.estimator).__name__
    yield from _find_by_names(calls[-1].X if calls else None, private)


def _calls(estimator: Any) -> list[_Call]:
    """The estimators whose methods are under way, from this one outwards, each as it was called
    first.
    """
    calls: dict[int, _Call] = {}
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_argcount and code.co_varnames[0] == "self":
            names = frame.f_locals
            owner = names.get("self")
            if isinstance(owner, BaseEstimator) and (calls or owner is estimator):
                before = calls.get(id(owner), _Call(owner, None, None))
                calls[id(owner)] = _Call(owner, names.get("X", before.X), names.get("y", before.y))
        frame = frame.f_back  # type: ignore[assignment]
    return list(calls.values())


def _find_learned(outer: _Call, inner: _Call, private: type[Any]) -> Iterator[str]:
    """The steps of a pipeline before the one that is fitted that learned from rows, or whose rows
    meet.
    """
    earlier = _earlier(outer, inner)
    if not earlier:
        return
    names = [type(step).__name__ for step in earlier]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = _safe_indexing(outer.X, list(range(min(_FEW, _length(outer.X)))))
            for name, step in zip(names, earlier, strict=True):
                if not _learns_nothing(step, _safe_indexing(rows, [0]), private):
                    yield name
                rows = step.transform(rows)
            together = _numbers(_safe_indexing(inner.X, list(range(_length(rows)))))
            alone = _numbers(rows)
    except Exception:  # whatever can't be tried counts as fitted
        yield from names
        return
    room = _ROUNDING * max(1.0, float(np.abs(together).max(initial=0.0)))
    if alone.shape != together.shape or not np.allclose(
        alone, together, rtol=0, atol=room, equal_nan=True
    ):
        yield from names


def _earlier(outer: _Call, inner: _Call) -> list[Any]:
    """The steps of a pipeline before the one that is fitted."""
    steps = [step for _, step in outer.estimator.steps]
    alike = [at for at, step in enumerate(steps) if step is inner.estimator]
    # a clone, with memory=
    alike += [at for at, step in enumerate(steps) if type(step) is type(inner.estimator)]
    before = steps[: alike[0] if alike else None]
    return [step for step in before if step not in (None, "passthrough")]


def _learns_nothing(step: Any, row: Any, private: type[Any]) -> bool:
    """Whether a fitted step is as it would be had it been fitted to this one row."""
    if step in (None, "passthrough", "drop") or isinstance(step, DPTableEncoder):
        return True
    if isinstance(step, private):
        return not bool(step.privacy_.undeclared)
    if isinstance(step, Pipeline):
        for _, part in step.steps:
            if not _learns_nothing(part, row, private):
                return False
            row = row if part in (None, "passthrough") else part.transform(row)
        return True
    if isinstance(step, FeatureUnion):
        return all(_learns_nothing(part, row, private) for _, part in step.transformer_list)
    if isinstance(step, ColumnTransformer):
        parts = (
            (part, _safe_indexing(row, columns, axis=1)) for _, part, columns in step.transformers_
        )
        return all(_learns_nothing(part, cells, private) for part, cells in parts)
    if any(isinstance(value, private) for value in step.get_params().values()):
        return False  # to fit it would be charged
    try:
        alone = clone(step).fit(row)
    except Exception:  # it needs more than a row, or its target
        return False
    return _alike(_state(step), _state(alone))


def _state(step: Any) -> dict[str, Any]:
    """What a step holds beside its parameters."""
    parameters = step.get_params(deep=False)
    return {name: value for name, value in vars(step).items() if name not in parameters}


def _alike(one: Any, other: Any) -> bool:
    """Whether two states are the same, to the last bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, np.ndarray) and one.dtype == object:
        return _alike(one.tolist(), other.tolist())
    if isinstance(one, np.ndarray):
        same = one.dtype == other.dtype and one.shape == other.shape
        return bool(same and one.tobytes() == other.tobytes())
    if isinstance(one, BaseEstimator):
        return _alike(vars(one), vars(other))
    return one is other or bool(one == other)


def _are_rows_of(inner: _Call, outer: _Call) -> bool:
    """Whether what was passed on are columns, or some of the rows, that were given, with their
    targets.

    No row may come twice as often: that would be another weight than it has.
    """
    try:
        original, passed = _columns(outer.X), _columns(inner.X)
        if inner.y is not None:
            original, passed = [*original, *_columns(outer.y)], [*passed, *_columns(inner.y)]
    except Exception:
        return False
    if {len(column) for column in original} == {len(column) for column in passed}:
        there = {column.tobytes() for column in original}
        if all(column.tobytes() in there for column in passed):
            return True
    if len(original) != len(passed):
        return False
    size = len(passed[0])
    codes = [
        np.unique(np.concatenate(pair), return_inverse=True)[1]
        for pair in zip(passed, original, strict=True)
    ]
    numbers = np.unique(np.stack(codes, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    most = int(numbers.max()) + 1
    counts = (np.bincount(part, minlength=most) for part in (numbers[:size], numbers[size:]))
    used, had = counts
    return bool((used <= had).all())


def _columns(rows: Any) -> list[Array]:
    """The columns of rows or of targets, of numbers in double precision or of texts."""
    if hasattr(rows, "columns"):
        columns = [np.asarray(rows[name]) for name in rows.columns]
    else:
        array = rows.toarray() if issparse(rows) else np.asarray(rows)
        columns = list(array.reshape(len(array), -1).T)
    return [_plain(column) for column in columns]


def _plain(column: Array) -> Array:
    try:
        return np.ascontiguousarray(column, dtype=np.float64)
    except (TypeError, ValueError):
        return np.array([str(cell) for cell in column.tolist()], dtype=object).astype("U")


def _numbers(rows: Any) -> Array:
    """Rows of numbers, in double precision."""
    return np.asarray(rows.toarray() if issparse(rows) else rows, dtype=np.float64)


def _length(rows: Any) -> int:
    return int(rows.shape[0]) if hasattr(rows, "shape") else len(rows)


def _find_by_names(rows: Any, private: type[Any]) -> Iterator[str]:
    """The transformers that all columns are called after, as `set_output` does."""
    names = [str(name) for name in getattr(rows, "columns", ())]
    prefixed = _prefixes(rows)
    numbered = [match and match[1] for match in map(_NUMBERED.fullmatch, names)]
    if prefixed:
        known = {*_names_of(private), DPTableEncoder.__name__.lower(), _PASSED}
        yield from (name for name in prefixed if name not in known)
    elif (
        names
        and all(numbered)
        and {*numbered} <= {name.lower() for name, _ in all_estimators("transformer")}
    ):
        yield from map(str, numbered)


def _prefixes(rows: Any) -> list[str]:
    """The transformers that all columns are called after; none where some are not."""
    names = [str(name) for name in getattr(rows, "columns", ())]
    prefixes = [match[1] for match in map(_PREFIXED.fullmatch, names) if match]
    if len(prefixes) < len(names):
        return []
    # the second of a kind is called after it and a number, such as "dppca-2"
    return [name.rpartition("-")[0] or name for name in prefixes]


def _names_of(kind: type[Any]) -> Iterator[str]:
    """The names of all classes of a kind, in small letters."""
    for subclass in kind.__subclasses__():
        yield subclass.__name__.lower()
        yield from _names_of(subclass)
