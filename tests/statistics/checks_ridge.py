"""Named checks of ridge regression from released sums; mutations must make them fail."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import Tensor

import privlearn as pv
from privlearn.core.accounting.events import tally
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.clipping import row_sums
from privlearn.core.clipping.row_sums import symmetric
from privlearn.methods.statistics.regression import RidgePlan, ridge
from privlearn.methods.statistics.sums import ridge_sums
from tests.support.checks import check, must_raise
from tests.support.nets import one_sample

R, C = 2.0, 0.5
LENGTH = math.hypot(R, C)
RANDOM = torch.Generator().manual_seed(5)
X = 3 * torch.randn(7, 4, generator=RANDOM, dtype=torch.float64)
Y = 2 * torch.randn(7, generator=RANDOM, dtype=torch.float64)


def sums(x: Tensor, y: Tensor, adjacency: Adjacency) -> list[tuple[Tensor, float]]:
    found = ridge_sums(x, y, one_sample(examples=len(x)), adjacency, norm=R, constant=C)
    return [(part.values[0], part.sensitivity) for part in found]


def with_row(row: list[float] | None, target: float) -> tuple[Tensor, Tensor]:
    """The rows, and one more at their end; none if `row` is None."""
    if row is None:
        return X, Y
    return torch.cat([X, torch.tensor([row], dtype=torch.float64)]), torch.cat(
        [Y, torch.tensor([target]).double()]
    )


@check
def check_one_row_moves_ridge_sums_by_at_most_the_sensitivity() -> None:
    """X'y and X'X, for every kind of neighbour, whatever the row and the target hold; each bound is
    reached.
    """
    root = math.sqrt(R * R - C**4 / R**2)  # rows whose inner product with the next is - constant^2
    rows = [
        [R, 0.0, 0, 0],
        [-R, 0.0, 0, 0],
        [1e9, 1e9, -1e9, 1],
        [0.0, 0, 0, 0],
        [C * C / R, -root, 0, 0],
        [1e-9, 0, 0, 0],
    ]
    strange = [[math.nan, 1.0, 0, 0], [math.inf, 0.0, 0, 0]]
    targets = [1.0, -1.0, 0.0, 1e12, -math.inf, math.nan]
    each = list(itertools.product(rows + strange, targets))
    for adjacency in Adjacency:
        nothing = (None, 0.0) if adjacency is Adjacency.ADD_REMOVE else ([math.nan] * 4, 0.0)
        pairs = (
            itertools.combinations(each, 2)
            if adjacency is Adjacency.REPLACE_ONE
            else itertools.product(each, [nothing])
        )
        most = [0.0, 0.0]
        for one, other in pairs:
            moved = [
                float((a - b).norm()) / sensitivity
                for (a, sensitivity), (b, _) in zip(
                    sums(*with_row(*one), adjacency),
                    sums(*with_row(*other), adjacency),
                    strict=True,
                )
            ]
            assert max(moved) <= 1 + 1e-9, (adjacency, one, other, moved)
            most = [max(pair) for pair in zip(most, moved, strict=True)]
        assert min(most) > 1 - 1e-6, (adjacency, most)


@check
def check_ridge_sums_are_those_of_clipped_rows_and_targets() -> None:
    """In whatever blocks: sums over clipped rows, followed by the constant, and clipped targets."""
    rows = torch.cat(
        [X * (R / X.norm(dim=1, keepdim=True)).clamp(max=1), torch.full((7, 1), C).double()], 1
    )
    usual = row_sums._AT_ONCE
    try:
        for at_once in (1, 9, usual):
            row_sums._AT_ONCE = at_once  # type: ignore[misc]
            (products, _), (gram, _) = sums(X, Y, Adjacency.ADD_REMOVE)
            torch.testing.assert_close(products[:, 0], rows.T @ Y.clamp(-1, 1))
            torch.testing.assert_close(symmetric(gram, 5), rows.T @ rows)
    finally:
        row_sums._AT_ONCE = usual  # type: ignore[misc]
    usual_sums = sums(X, Y, Adjacency.ADD_REMOVE)
    for row, target in (([1.0] * 4, math.nan), ([math.nan] * 4, 1.0)):
        for (own, _), (more, _) in zip(
            usual_sums, sums(*with_row(row, target), Adjacency.ADD_REMOVE), strict=True
        ):
            torch.testing.assert_close(own, more, rtol=0, atol=0)


@check
def check_ridge_regression_costs_what_it_says_and_is_right() -> None:
    """One Gaussian release; without noise it is the plane, in units of the target, and its folder
    verifies.
    """
    x = np.random.default_rng(0).uniform(-1, 1, (400, 3))
    y = 20 + 4 * x[:, 0] - 2 * x[:, 2]
    for adjacency in Adjacency:
        plan = RidgePlan(3, 2.0, 10.0, 30.0, adjacency, noise_multiplier=1e-4)
        ledger = pv.Ledger()
        result = ridge(plan, (x, y), ledger=ledger)
        assert tally(ledger.event) == {Gaussian(1e-4): 1}
        with torch.no_grad():
            assert np.allclose(
                result.model(torch.from_numpy(x).float())[:, 0].numpy(), y, atol=0.05
            )
    plan = RidgePlan(3, 2.0, 10.0, 30.0).calibrate(epsilon=1.0, delta=1e-5)
    one, other = (ridge(plan, (x, y)).model[-1][-1].weight.detach().numpy() for _ in range(2))
    assert (one != other).all()
    assert 0.999 <= plan.guarantee(1e-5).epsilon <= 1.0
    for bad in (
        {"low": 30.0},
        {"row_norm": None},
        {"row_norm": 0.0},
        {"features": 20_000},
        {"split": (1.0,)},
    ):
        fields = {"features": 3, "row_norm": 2.0, "low": 10.0, "high": 30.0} | bad
        must_raise(pv.errors.BadInput, lambda fields=fields: RidgePlan(**fields))  # type: ignore[misc]
    for targets in (y[:, None], y.astype(str), None):
        must_raise(pv.errors.BadInput, lambda t=targets: ridge(plan, pv.Dataset(x, t)))  # type: ignore[misc]
