"""Named checks of schemas that are drafted from private rows; planted bugs must make them fail."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import torch

import privlearn as pv
from privlearn.core.accounting.accountant import guarantee
from privlearn.core.accounting.events import Repeated, compose, tally
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.sampling import FullBatch
from privlearn.data.schema import Category, Number, parse_schema
from privlearn.errors import BudgetExceeded
from privlearn.methods.statistics import draft
from privlearn.methods.statistics.sums import cell_counts
from tests.support.checks import check, must_raise

RNG = np.random.default_rng(0)
ROWS = 3000
FRAME = pd.DataFrame(
    {
        "age": RNG.integers(17, 91, ROWS),
        # heavy tails: no mean
        "gain": np.where(RNG.random(ROWS) < 0.9, 0.0, RNG.pareto(0.5, ROWS) * 100),
        "work": RNG.choice(["Private", "Self-employed", "State-gov"], ROWS),
        "ill": RNG.choice(["no", "yes"], ROWS),
        "gone": [None] * ROWS,
    }
)
COLUMNS: dict[str, Any] = {
    "target": "ill",
    "numbers": ["age", "gain", "gone"],
    "categories": ["work", "ill"],
}


def drafted(frame: Any = FRAME, epsilon: float = 4.0, seed: int = 0, **more: Any) -> draft.Draft:
    given = {**COLUMNS, "budget": pv.Budget(epsilon, 1e-5), "streams": pv.Streams.new(seed), **more}
    return draft.draft_schema(frame, **given)


@check
def check_a_drafted_schema_is_useful() -> None:
    """Bounds on powers of two around most rows, all frequent categories, and nothing of a column
    without values.
    """
    made = drafted()
    assert made.bounds["age"] == (16.0, 128.0)
    low, high = made.bounds["gain"] or (1.0, 0.0)
    assert low == 0.0
    assert np.mean(FRAME["gain"] <= high) > 0.97
    assert made.bounds["gone"] is None
    assert dict(made.categories) == {
        "work": ("Private", "Self-employed", "State-gov"),
        "ill": ("no", "yes"),
    }
    schema = parse_schema(made.to_toml(), "draft.toml")
    assert schema.classes == ("no", "yes")
    assert [type(own) for own in schema.features] == [Number, Number, Category]


@check
def check_bounds_of_a_draft_are_on_the_public_grid() -> None:
    """Whatever the rows hold: bounds are 0 and powers of two; no value and no extreme of the rows
    is among them.
    """
    for scale in (1.0, -3.7e9, 1e-12, 1e300):
        frame = FRAME.assign(age=FRAME["age"].astype(float) * scale)
        for pair in drafted(frame).bounds.values():
            for bound in pair or ():
                assert bound == 0 or math.frexp(abs(bound))[0] == 0.5, bound


@check
def check_a_rare_category_is_not_in_a_draft() -> None:
    """A category, or an extreme, of one row alone does not come out, in ten drafts."""
    frame = FRAME.copy()
    frame.loc[0, "work"], frame.loc[1, "age"] = "Ambassador", 1e12
    for seed in range(10):
        made = drafted(frame, epsilon=1.0, seed=seed)
        assert "Ambassador" not in made.categories["work"]
        assert (made.bounds["age"] or (0.0, 0.0))[1] < 1e9


@check
def check_a_row_moves_the_counts_of_a_draft_by_the_sensitivity_at_most() -> None:
    """Over all columns together, and the worst case is reached."""
    cells = [np.array([0, 1, 1]), np.array([2, 0, -1]), np.array([3, 3, 0])]

    def counts(rows: list[int], adjacency: Adjacency, own: list[Any]) -> tuple[torch.Tensor, float]:
        (sample,) = FullBatch().draw(len(rows))
        made = cell_counts([column[rows] for column in own], [4, 4, 4], sample, adjacency)
        return torch.cat(made.values), made.sensitivity

    whole, bound = counts([0, 1, 2], Adjacency.ADD_REMOVE, cells)
    moved = max(
        float((whole - counts(rows, Adjacency.ADD_REMOVE, cells)[0]).norm())
        for rows in ([0, 1], [1, 2])
    )
    assert moved == bound == math.sqrt(3)
    other = [np.array([3, 1, 1]), np.array([1, 0, -1]), np.array([0, 3, 0])]
    one, bound = counts([0, 1, 2], Adjacency.REPLACE_ONE, cells)
    assert (
        float((one - counts([0, 1, 2], Adjacency.REPLACE_ONE, other)[0]).norm())
        == bound
        == math.sqrt(6)
    )


@check
def check_a_draft_is_charged_to_its_ledger() -> None:
    """All its releases together cost what was asked for, at most; without room nothing is drawn."""
    ledger = pv.Ledger(pv.Budget(1.2, 1e-5))
    drafted(epsilon=1.0, ledger=ledger)
    events = tally(ledger.event)
    assert len(events) == 1
    ((each, times),) = events.items()
    assert isinstance(each, Gaussian)
    # the numbers, and a level for each two bytes of the longest category
    assert 5 <= times <= 17, times
    whole = compose([Repeated(each, 17)])
    assert 0.99 < guarantee(whole, Adjacency.ZERO_OUT, 1e-5).epsilon <= 1.0
    streams = pv.Streams.new(0)
    must_raise(BudgetExceeded, lambda: drafted(epsilon=1.5, ledger=ledger, streams=streams))
    assert streams.noise.position == 0


@check
def check_the_counts_of_a_draft_have_noise() -> None:
    """Of columns without values hardly ever something stands out, and of few rows it is the noise
    that decides.
    """
    empty, seen = pd.DataFrame({name: [None] * 50 for name in FRAME.columns}), set()
    of_numbers: dict[str, Any] = {"target": "age", "categories": ()}
    every = [drafted(empty, seed=seed, **of_numbers).bounds.values() for seed in range(30)]
    assert sum(any(pair is not None for pair in bounds) for bounds in every) <= 6
    for seed in range(12):
        seen.add(drafted(FRAME[:20], seed=seed, **of_numbers).bounds["age"])
    assert len(seen) > 1
