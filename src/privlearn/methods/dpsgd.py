"""DP-SGD: clipped per-example gradients, one Gaussian release a batch (Abadi et al. 2016; Yu et al. 2019, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from privlearn._validate import one_of
from privlearn.accounting.ledger import Ledger
from privlearn.clipping.fixed import Fixed
from privlearn.clipping.gradients import Augmentation, ClippedGradients
from privlearn.clipping.ways import Loss
from privlearn.data.dataset import Dataset
from privlearn.mechanisms.release import release
from privlearn.methods.refusals import (
    OptimizerFactory,
    device_of,
    network_from,
    optimizer_from,
    require_finite,
    require_kinds,
    require_public_numbers,
    require_usable,
)
from privlearn.methods.result import PrivateDiagnostics, Result
from privlearn.models import Scale, require_per_example
from privlearn.plan import Plan
from privlearn.rng import Streams
from privlearn.schedules import Constant, Schedule, spec


def dpsgd(
    plan: Plan,
    model: nn.Module | Callable[[tuple[int, ...]], nn.Module],
    loss: Loss,
    dataset: Dataset | tuple[Any, Any],
    *,
    optimizer: OptimizerFactory = torch.optim.SGD,
    learning_rate_schedule: Schedule = Constant(),  # noqa: B008 - a frozen value
    ledger: Ledger | None = None,
    streams: Streams | None = None,
    microbatch: int | None = None,
    augmentation: Augmentation | None = None,
    device: str | torch.device | None = None,
    precision: str = "float32",
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Train `model` with differential privacy.

    Guarantee: the returned model (its weights and the transforms in front of it) is `plan.guarantee(delta)`-DP for
    the plan's adjacency; the unit is one example. The ledger is charged exactly `plan.event()`. Nothing else that is
    returned is covered. Before anything is spent, the data are looked at once to refuse what can't be used, which is
    outside the guarantee; from then on nothing that is raised, drawn or called depends on what an example holds.

    Args:
        plan: what will be spent, and how.
        model: a network, or a function from the shape of one (transformed) example to one. Trained in place.
        loss: (outputs, targets) to one loss for each example, shape (batch,).
        dataset: a `Dataset`, or a pair (inputs, targets) of arrays or tensors with one row for each example.
        optimizer: makes the optimizer from the parameters; any of torch.optim.
        learning_rate_schedule: the optimizer's learning rates are multiplied by its value over its value at epoch 0.
        ledger: what to charge; by default a new one with the plan's budget.
        streams: the random streams; by default new ones, seeded by the operating system.
        microbatch: examples computed at once, or None for what fits into memory; the result is the same.
        augmentation: changed copies of each example, whose gradients are averaged before clipping.
        device: where to compute, for example "cuda"; by default where the model is. The result is on the CPU.
        precision: "float32", or "bf16" to run the model in bfloat16; norms, sums and noise stay in single precision.
        progress: called with (steps done, steps in all) after each step.

    Raises:
        BudgetExceeded: the plan does not fit the ledger's budget; before any data is touched.
        NotPerExample: the model or the loss couples examples.
        BadInput: inputs and targets that do not fit each other, or the plan; before anything is spent. Or weights that
            are no longer finite at the end of an epoch, because steps were too long.
    """
    require_kinds(plan, model, loss, learning_rate_schedule, ledger, streams, augmentation, progress)
    ledger = Ledger(plan.budget) if ledger is None else ledger
    streams = streams or Streams.new()
    ledger.approve(plan.event(), plan.neighbours)

    data = Dataset.of(dataset)
    x, y = data.tensors()
    examples = plan.examples or len(x)
    transforms: list[nn.Module] = [] if data.low is None else [Scale(*data.bounds())]
    x = _through(transforms, x)

    # Whatever can be refused is refused here, before anything is spent.
    require_public_numbers(plan, examples, x, learning_rate_schedule)
    shape = plan.before[-1].output_shape if plan.before else tuple(x.shape[1:])
    network = model if isinstance(model, nn.Module) else network_from(model, shape)
    network.to(device_of(device, network)).train()
    require_per_example(network, x.new_zeros(1, *shape).to(device_of(None, network)))
    watched, fixed = _Watch(), Fixed(network)
    gradients = ClippedGradients(
        network,
        loss,
        plan.clip,
        plan.neighbours,
        microbatch=microbatch,
        augmentation=augmentation,
        autocast=torch.bfloat16 if one_of("precision", precision, ["float32", "bf16"]) == "bf16" else None,
        observe=watched.see,
        computed=fixed.restore,
    )
    require_usable(network, loss, x.new_zeros(0, *shape) if plan.before else x, y)
    gradients.prepare(x.new_zeros(1, *shape), y)
    parameters = list(gradients.parameters.values())
    descent = optimizer_from(optimizer, parameters)
    rates = [group["lr"] for group in descent.param_groups]
    divisor = plan.sampling.expected_batch_size(examples)
    steps = plan.sampling.steps(len(x))

    for earlier in plan.before:
        transforms.append(earlier.run(x, plan.neighbours, ledger, streams.noise))
        x = _through(transforms[-1:], x)

    sums = gradients.buffers()
    with _leaving_nothing_behind(parameters, streams):
        for parameter, total in zip(parameters, sums, strict=True):
            parameter.grad = total
        for epoch, noise_multiplier in enumerate(plan.noise_multipliers()):
            for step, sample in enumerate(plan.sampling.draw(len(x), streams.sampling)):
                watched.begin(len(sample), gradients.clip_norm)
                clipped_sum = gradients(sample, x, y, out=sums)
                (noisy,) = release(clipped_sum, noise_multiplier=noise_multiplier, ledger=ledger, stream=streams.noise)
                torch._foreach_div_(list(gradients.released(noisy, divisor)), divisor)
                factor = learning_rate_schedule(epoch + step / steps) / learning_rate_schedule(0)
                for group, rate in zip(descent.param_groups, rates, strict=True):
                    group["lr"] = rate * factor
                descent.step()
                if progress:
                    progress(epoch * steps + step + 1, plan.epochs * steps)
            watched.end_epoch()
            fixed.restore(thoroughly=True)
            require_finite(parameters, rates[0], f"epoch {epoch + 1} of {plan.epochs}")
    network.to("cpu" if device is not None else device_of(None, network)).eval()

    return Result(
        model=nn.Sequential(*transforms, network).eval(),
        ledger=ledger,
        adjacency=plan.neighbours,
        delta=plan.budget.delta if plan.budget else None,
        budget=plan.budget,
        method="dpsgd",
        settings=_settings(
            plan, examples, plan.examples is not None, plan.epochs * steps, descent, learning_rate_schedule
        )
        | {"precision": precision, "augmentation_copies": augmentation.copies if augmentation else 1},
        architecture={"input_shape": list(data.x.shape[1:]), "network_input_shape": list(x.shape[1:])},
        seeded=streams.seeded,
        private_diagnostics=PrivateDiagnostics(watched.figures),
    )


@contextmanager
def _leaving_nothing_behind(parameters: Iterable[nn.Parameter], streams: Streams) -> Iterator[None]:
    """However the block ends, no sum without noise stays in the gradients, and PyTorch's own generators are where they were.

    Dropout and augmentations draw as many numbers as a batch has rows, so the numbers after them would tell how many
    that were. In the block they have a seed from the initialisation stream.
    """
    with torch.random.fork_rng():
        torch.manual_seed(int(streams.initialisation.integers(2**63)))
        try:
            yield
        finally:
            for parameter in parameters:
                parameter.grad = None


def _through(transforms: Iterable[nn.Module], x: Tensor) -> Tensor:
    """Apply public, per-example transforms to all rows."""
    with torch.no_grad():
        for transform in transforms:
            x = transform(x)
    return x


class _Watch:
    """Collects, epoch by epoch, the mean loss, the share of clipped gradients, and how many examples were left out because
    they could not be computed or were not finite: private, for the curator.

    Only sums are kept: small tensors kept from every batch would split up the memory that the next ones need.
    """

    def __init__(self) -> None:
        self.figures: dict[str, list[float]] = {"loss": [], "clipped_share": [], "left_out": []}
        self.clip_norm = math.inf
        self._drawn, self._rows, self._loss, self._clipped = 0, 0, 0.0, 0

    def begin(self, drawn: int, clip_norm: float) -> None:
        self._drawn += drawn
        self.clip_norm = clip_norm

    def see(self, losses: Tensor, norms: Tensor) -> None:
        self._rows += len(losses)
        self._loss += float(losses.sum(dtype=torch.float64))
        self._clipped += int((norms > self.clip_norm).sum())

    def end_epoch(self) -> None:
        if self._rows:
            self.figures["loss"].append(self._loss / self._rows)
            self.figures["clipped_share"].append(self._clipped / self._rows)
        self.figures["left_out"].append(self._drawn - self._rows)
        self._drawn, self._rows, self._loss, self._clipped = 0, 0, 0.0, 0


def _settings(
    plan: Plan, examples: int, declared: bool, steps: int, descent: torch.optim.Optimizer, rates: Schedule
) -> dict[str, Any]:
    """The public numbers of the run, as plain values."""
    defaults = {k: v for k, v in descent.defaults.items() if isinstance(v, int | float | str | bool | tuple)}
    return {
        "sampling": plan.sampling.describe(),
        "epochs": plan.epochs,
        "steps": steps,
        "noise_multipliers": list(plan.noise_multipliers()),
        "schedule": spec(plan.schedule),
        "clip": {"kind": plan.clip.kind, **vars(plan.clip)},
        "examples": examples,
        "examples_declared": declared,
        "before": [{"kind": "pca", **vars(release)} for release in plan.before],
        "optimizer": {"name": type(descent).__name__, **defaults},
        "learning_rate_schedule": spec(rates),
    }
