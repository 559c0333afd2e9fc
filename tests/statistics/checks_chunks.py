"""Named checks of sums over rows that come chunk by chunk; planted bugs must make them fail."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import privlearn as pv
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.errors import BadInput
from privlearn.methods.statistics import Chunks
from tests.support.checks import check, must_raise

ROWS, FEATURES = 2600, 4
ADD = Adjacency.ADD_REMOVE


def arrays() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """More rows than are taken at once, some of which are no numbers."""
    made_up = np.random.default_rng(0)
    x = made_up.normal(size=(ROWS, FEATURES)).astype(np.float32)
    x[::97] = np.nan
    return x, made_up.integers(0, 3, ROWS)


def cut(x: Any, size: int) -> Callable[[], Iterator[Any]]:
    return lambda: (x[start : start + size] for start in range(0, len(x), size))


def released(x: Any, y: Any) -> list[Any]:
    """What statistics, moments and principal directions release of the rows, and the events that
    they charge.
    """
    shared: dict[str, Any] = {
        "features": FEATURES,
        "row_norm": 1.0,
    }
    target = {"epsilon": 1.0, "delta": 1e-6}
    ridge = pv.statistics.RidgePlan(FEATURES, 1.0, 0.0, 2.0).calibrate(**target)
    squares = pv.statistics.LeastSquaresPlan(classes=3, **shared).calibrate(**target)
    few = pv.statistics.FisherPlan(classes=3, keep=2, **shared).calibrate(**target)
    results = [
        pv.statistics.ridge(ridge, (x, y), streams=pv.Streams.new(1)),
        pv.statistics.least_squares(squares, (x, y), streams=pv.Streams.new(1)),
        pv.statistics.fisher(few, (x, y), streams=pv.Streams.new(1)),
    ]
    made = [[result.model.state_dict(), result.ledger.event] for result in results]
    for release in (pv.transforms.Moments(FEATURES, 2.0, 1.0), pv.transforms.PrivatePCA(2, 2.0)):
        ledger = Ledger()
        transform = release.fit(x, ADD, ledger, pv.Streams.new(2).noise)
        made.append([transform.state_dict(), ledger.event])
    return made


def require_equal(one: list[Any], other: list[Any]) -> None:
    for (state, event), (its, same) in zip(one, other, strict=True):
        assert event == same
        assert all(torch.equal(state[name], its[name]) for name in state), event


@check
def check_sums_over_chunks_are_those_over_rows_in_memory() -> None:
    """Bit for bit, with the same charges: of tensors, memory-mapped arrays, and chunks of any
    size.
    """
    x, y = arrays()
    whole = released(torch.from_numpy(x), torch.from_numpy(y))
    with tempfile.TemporaryDirectory() as there:
        path = Path(there) / "x.npy"
        np.save(path, x)
        require_equal(released(np.load(path, mmap_mode="r"), y), whole)
    for size in (7, 1000, 1024, ROWS):
        require_equal(released(Chunks(cut(x, size), ROWS), y), whole)
    inputs, targets = Chunks.labelled(
        lambda: ((x[n : n + 300], y[n : n + 300]) for n in range(0, ROWS, 300))
    )
    require_equal(released(inputs, targets), whole)


@check
def check_chunks_with_other_rows_than_were_said_are_refused_before_a_charge() -> None:
    """Fewer, more, or of another type or shape; and what takes rows in another order than
    theirs.
    """
    x, _ = arrays()
    wide = [x[:1000], np.zeros((1600, FEATURES + 1), np.float32)]
    for own in (
        Chunks(cut(x, 1000), ROWS + 1),
        Chunks(cut(x, 1000), ROWS - 1),
        Chunks(cut(x, 1000), 2000),
        Chunks(lambda: iter(wide), ROWS),
        Chunks(lambda: [x[:1000], x[1000:].astype(np.float64)], ROWS),
    ):
        for release in (
            pv.transforms.Moments(FEATURES, 2.0, 1.0),
            pv.transforms.PrivatePCA(2, 2.0),
        ):
            ledger = Ledger()
            must_raise(BadInput, lambda: release.fit(own, ADD, ledger, pv.Streams.new(2).noise))  # noqa: B023
            assert ledger.event == Ledger().event
    rows = Chunks(cut(x, 1000), ROWS)
    for wrong in (lambda: rows[5:9], lambda: rows[np.array([3, 1])], lambda: np.asarray(rows)):
        assert "order" in str(must_raise(BadInput, wrong))
    must_raise(BadInput, lambda: Chunks(lambda: [], 4))


@check
def check_few_chunks_are_in_memory_at_a_time() -> None:
    """Of a hundred chunks those that 1,024 rows lie in, which are added at once, and one before and
    after.
    """
    handed: list[weakref.ref[Any]] = []
    most = [0]

    def made() -> Iterator[Any]:
        for number in range(100):
            chunk = np.full((50, FEATURES), number, np.float32)
            handed.append(weakref.ref(chunk))
            most[0] = max(most[0], sum(own() is not None for own in handed))
            yield chunk
            del chunk

    inputs = Chunks(made, 5000)
    most[0] = 0
    pv.transforms.PrivatePCA(2, 2.0).fit(inputs, ADD, Ledger(), pv.Streams.new(2).noise)
    assert 20 <= most[0] <= 1024 // 50 + 3, most
