"""What a step of a settled run takes: measured on made-up rows of the same shape, so that nothing
private is looked at.

Operations, time, memory, and whether gradients of single examples are computed the fast way.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.bounded import BLOCK
from privlearn.core.clipping.losses import Loss
from privlearn.core.devices import synchronize
from privlearn.core.plan import Plan
from privlearn.core.sampling import Poisson
from privlearn.core.schedules import Constant
from privlearn.core.streams import Streams
from privlearn.core.transform import shape_after
from privlearn.data.dataset import Dataset
from privlearn.runs.given import device_of
from privlearn.training.rules import Settled
from privlearn.training.run import Run
from privlearn.training.train import network_for, optimizer_of

#: Epochs of two steps that are taken, and examples of a step, at most.
_EPOCHS, _MOST_EXAMPLES = 3, 2048


@final
@dataclass(frozen=True)
class Rehearsal:
    """What was measured: estimates, no promises.

    Attributes:
        steps: in the whole run.
        batch: examples in a batch, expected.
        step_seconds: of a step of such a batch.
        plain_seconds: of a step on it without privacy.
        memory: bytes that training holds beside the data, about; None where the number of examples
            that are computed at once was given.
        parameters: numbers that are trained.
        way: how gradients of single examples are computed: `layers` is the fast way, `vmap` and
            `loop` are slow.
        reason: why it is not `layers`.
    """

    steps: int
    batch: int
    step_seconds: float
    plain_seconds: float
    memory: int | None
    parameters: int
    way: str
    reason: str | None

    @property
    def seconds(self) -> float:
        """All steps together."""
        return self.steps * self.step_seconds

    @property
    def factor(self) -> float:
        """How many times as long as a step without privacy a step takes."""
        return self.step_seconds / self.plain_seconds


def rehearse(settled: Settled, data: Dataset, loss: Loss | None = None) -> Rehearsal:
    """Take a few steps of a settled run of DP-SGD on made-up rows; nothing is charged to any ledger
    but its own.

    Args:
        settled: the run.
        data: what it was settled for, of which only shapes and types are read.
        loss: another loss than the task's.

    Raises:
        BadInput, NotPerExample: whatever the run would refuse of the network, the loss and the
            optimizer.
    """
    plan, head, request = settled.plan, settled.head(vars(data)), settled.request
    rows = plan.rows_per_person or 1
    batch = max(1, math.ceil(plan.sampling.expected_batch_size(settled.facts.examples)))
    size = min(batch * rows, _MOST_EXAMPLES)
    made_up = _make_rows(settled, data, 2 * size)
    chosen_loss = loss or head.loss(request)
    # Half of twice as many: batches differ in size, as those of the run do.
    trial = Plan(
        Poisson(0.5),
        epochs=_EPOCHS,
        schedule=Constant(1.0),
        clip=plan.clip,
        adjacency=Adjacency.ZERO_OUT,
    )
    streams = Streams.new(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is said of the run is in what is measured
        run = Run(
            trial,
            partial(network_for, settled, data, streams),
            chosen_loss,
            made_up,
            optimizer=optimizer_of(settled),
            streams=streams,
            config=replace(request.config, post_processing={}),
        )
    task = run.task
    private = mean([*_step_seconds(run)][1:])  # the first one has to warm up
    gradients, share = task.gradients, batch * rows / size
    held = None
    if request.config.microbatch is None:
        held = min(size, gradients.state_dict()["microbatch"], BLOCK) * gradients.bytes_per_example
        # Weights, sums, and what the optimizer keeps.
        held += 4 * sum(parameter.nbytes for parameter in task.parameters)
    return Rehearsal(
        plan.epochs * plan.sampling.steps(settled.facts.examples),
        batch,
        private * share,
        mean([_plain_seconds(task.network, chosen_loss, made_up, size) for _ in range(4)][1:])
        * share,
        held,
        sum(parameter.numel() for parameter in task.parameters),
        str(gradients.way),
        gradients.reason,
    )


def count_operations(settled: Settled, data: Dataset) -> float:
    """Floating-point operations of a step's forward pass, from public numbers: those of one made-up
    row, or two for each weight if these are more, times the expected number of rows.

    Args:
        settled: the run.
        data: what it was settled for, of which only shapes and types are read.

    Raises:
        BadInput: the network can't be made.
    """
    plan, made_up = settled.plan, _make_rows(settled, data, 1)
    network = network_for(settled, data, Streams.new(0), tuple(made_up.x.shape[1:]))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(made_up.x)
    weights = sum(parameter.numel() for parameter in network.parameters())
    batch = plan.sampling.expected_batch_size(settled.facts.examples) * (plan.rows_per_person or 1)
    return float(batch * max(counter.get_total_flops(), 2 * weights))


def _make_rows(settled: Settled, data: Dataset, size: int) -> Dataset:
    """Made-up rows as the network gets them, with the first class, or the number 0, as targets."""
    shape = shape_after(settled.plan.front, tuple(np.shape(data.x)[1:]))
    kind = torch.as_tensor(data.x[:0], device="cpu").dtype
    x = torch.zeros(
        size, *shape, dtype=kind if not settled.plan.front else torch.float32, device="cpu"
    )
    if x.is_floating_point():
        x.uniform_(generator=torch.Generator().manual_seed(0))
    y = np.zeros((size, *np.shape(data.y)[1:]), np.asarray(data.y[:0]).dtype)
    return Dataset(
        x,
        settled.head(vars(data)).prepared(y),
        classes=data.classes,
        labels=data.labels,
        target_ranges=data.target_ranges,
    )


def _step_seconds(run: Run) -> Iterator[float]:
    """The seconds of each step of a run, with what comes before and after it."""
    started = time.perf_counter()
    with run:
        for epoch in run:
            for batch in epoch:
                run.step(batch)
                _finish(run.optimizer.param_groups[0]["params"][0])
                yield (now := time.perf_counter()) - started
                started = now


def _plain_seconds(network: nn.Module, loss: Any, data: Dataset, size: int) -> float:
    """The seconds of one step on so many examples without privacy: forward, backward, without the
    optimizer.
    """
    device = device_of(None, network)
    x, y = (torch.as_tensor(part[:size], device="cpu").to(device) for part in (data.x, data.y))
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    started = time.perf_counter()
    torch.autograd.grad(loss(network(x), y).sum(), trained, allow_unused=True)
    _finish(trained[0])
    return time.perf_counter() - started


def _finish(tensor: Tensor) -> None:
    """Wait for the device."""
    synchronize(tensor.device)
