"""Named checks of models and losses that couple examples, through `make_private` and `dpsgd`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import privlearn as pv
from privlearn.training import run as dpsgd
from tests.support.checks import check
from tests.support.couplings import ExampleLosses, Row, losses_of_batch, require_apart


class Rows(Dataset[Row]):
    """A data set of PyTorch."""

    def __init__(self, data: list[Row]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, row: int) -> Row:
        return self.data[row]


def loader(data: list[Row]) -> DataLoader[Row]:
    """All rows in each batch."""
    return DataLoader(Rows(data), batch_size=len(data))


def by_make_private(
    network: nn.Module,
    data: list[Row],
    plan: pv.Plan,
    losses: ExampleLosses,
    move: Callable[[nn.Module], None],
) -> str | None:
    """A loop as users write it, whose loss is of the model and a batch."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    private = pv.make_private(
        network,
        optimizer,
        loader(data),
        noise_multiplier=1.0,
        clip=plan.clip,
        epochs=1,
        sampling="full",
        adjacency=plan.adjacency,
        examples=plan.examples,
        streams=pv.Streams.new(0),
    )
    for batch in private.batches():
        move(network)
        private.step(batch, losses_of_batch(losses))
    return private.task.gradients.way


def by_dpsgd(
    network: nn.Module,
    data: list[Row],
    plan: pv.Plan,
    losses: ExampleLosses,
    move: Callable[[nn.Module], None],
) -> str | None:
    """One call, before which the network has the weights that training brings it to."""
    tasks: list[Any] = []
    usual = dpsgd.Task

    def task(*arguments: Any, **options: Any) -> Any:
        tasks.append(usual(*arguments, **options))
        return tasks[-1]

    move(network)
    with mock.patch.object(dpsgd, "Task", task):
        pv.dpsgd(plan, network, losses_of_batch(losses), Rows(data), streams=pv.Streams.new(0))
    way: str | None = tasks[-1].gradients.way
    return way


@check
def check_examples_that_are_coupled_stay_apart_in_a_loop() -> None:
    """What users wrote, and what a program draws: one row moves the sum before noise by at most the
    sensitivity.
    """
    require_apart(by_make_private)


@check
def check_examples_that_are_coupled_stay_apart_in_one_call() -> None:
    """The same in `dpsgd`, at the weights that training brings what begins at zero to."""
    require_apart(by_dpsgd)
