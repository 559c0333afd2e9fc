"""Named checks of runs of DP-SGD; mutations must make them fail."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import privlearn as pv
from privlearn.core import sampling
from privlearn.core import streams as streams_module
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping.clips import Flat
from privlearn.core.plan import Plan
from privlearn.errors import (
    BudgetExceeded,
)
from tests.support.checks import check, must_raise
from tests.support.nets import SAMPLERS, clipped, cross_entropy, small_data, small_net


@check
def check_the_ledger_ends_where_the_plan_said() -> None:
    for sampler in SAMPLERS:
        for before in ((), (pv.transforms.PrivatePCA(3, 5.0),)):
            plan = Plan(
                sampler,
                epochs=3,
                schedule=pv.schedules.Exponential(k=0.2, start=4.0),
                front=before,
                examples=12,
            )
            network = nn.Sequential(nn.Linear(3 if before else 5, 3)).double()
            result = pv.dpsgd(
                plan, network, cross_entropy, small_data(), streams=streams_module.Streams.new(0)
            )
            assert result.ledger.event == plan.event()
            assert result.ledger.adjacency is sampler.default_adjacency


@check
def check_every_step_is_noisy_and_paid() -> None:
    """With nearly empty batches the parameters still move at every step, by noise over the public
    divisor.
    """
    plan = Plan(
        sampling.Poisson(0.02),
        epochs=1,
        schedule=pv.schedules.Constant(1.0),
        clip=Flat(1.0),
        examples=500,
    )
    moves = recorded_updates(plan, *small_data(3), seed=1)
    assert len(moves) == 50
    draws = torch.stack(moves).flatten().numpy()
    # Three examples of norm at most 1 hardly show; noise 1 over the declared 10 a batch does.
    assert 0.09 < draws.std() < 0.11


@check
def check_the_divisor_is_public() -> None:
    """With the same noise, one example more changes the update by its gradient over the declared
    number, no more.
    """
    x, y = small_data(6)
    plan = Plan(
        sampling.FullBatch(),
        epochs=1,
        schedule=pv.schedules.Constant(1e-6),
        clip=Flat(1e6),
        examples=10,
        adjacency=Adjacency.ADD_REMOVE,
    )
    five, six = (recorded_updates(plan, x[:rows], y[:rows]) for rows in (5, 6))
    own = clipped(Flat(1e6), Adjacency.ADD_REMOVE, x[5:], y[5:]).values
    torch.testing.assert_close(
        six[0] - five[0], torch.cat([g.flatten() for g in own]) / 10, rtol=0, atol=1e-9
    )


def recorded_updates(
    plan: Plan, x: torch.Tensor, y: torch.Tensor, seed: int = 0
) -> list[torch.Tensor]:
    """The noisy averages that the optimizer was given, step by step."""
    seen: list[torch.Tensor] = []

    class Recorder(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            seen.append(
                torch.cat([p.grad.flatten().clone() for p in self.param_groups[0]["params"]])
            )
            super().step(closure)

    pv.dpsgd(
        plan,
        small_net(),
        cross_entropy,
        (x, y),
        optimizer=lambda p: Recorder(p, lr=0.1),
        streams=streams_module.Streams.new(seed),
    )
    return seen


@check
def check_neighbouring_runs_differ_only_by_the_released_sums() -> None:
    """Record and replay with the same randomness: one step on neighbours moves each update by at
    most C / divisor.
    """
    x, y = small_data(12)
    plan = Plan(
        sampling.FullBatch(),
        epochs=1,
        schedule=pv.schedules.Constant(0.7),
        clip=Flat(0.25),
        examples=12,
        adjacency=Adjacency.ADD_REMOVE,
    )
    eleven, twelve = (recorded_updates(plan, x[:rows], y[:rows], seed=3) for rows in (11, 12))
    moved = float((eleven[0] - twelve[0]).norm())
    assert 0 < moved <= 0.25 / 12 * (1 + 1e-9)


@check
def check_training_refuses_before_touching_data() -> None:
    class Untouchable:
        def __len__(self) -> int:
            raise AssertionError("data was touched")

    plan = Plan(sampling.FullBatch(), epochs=5, schedule=pv.schedules.Constant(1.0))
    must_raise(
        BudgetExceeded,
        lambda: pv.dpsgd(
            plan,
            small_net(),
            cross_entropy,
            (Untouchable(), Untouchable()),
            ledger=Ledger(Budget(rho=1.0)),
        ),
    )
