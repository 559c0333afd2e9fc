"""Named check of models and losses that couple examples, through a script in Opacus' form."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import privlearn as pv
from tests.loop.checks_couplings import loader
from tests.support.checks import check
from tests.support.couplings import ExampleLosses, Row, losses_of_batch, require_apart


def by_script(
    network: nn.Module,
    data: list[Row],
    plan: pv.Plan,
    losses: ExampleLosses,
    move: Callable[[nn.Module], None],
) -> str | None:
    """The loop of a script, with the mean of its losses."""
    engine = pv.opacus.PrivacyEngine()
    model, optimizer, batches = engine.make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        data_loader=loader(data),
        noise_multiplier=1.0,
        max_grad_norm=plan.clip.clip_norm,
        epochs=1,
        sampling="full",
        adjacency=plan.adjacency,
        examples=plan.examples,
        streams=pv.Streams.new(0),
    )
    for batch in batches:
        move(network)
        optimizer.zero_grad()
        losses_of_batch(losses)(model, batch).mean().backward()
        optimizer.step()
    way: str | None = engine.run.task.gradients.way
    return way


@check
def check_examples_that_are_coupled_stay_apart_in_a_script() -> None:
    """What users wrote, and what a program draws: one row moves the sum before noise by at most the
    sensitivity.
    """
    require_apart(by_script, recorded=True)
