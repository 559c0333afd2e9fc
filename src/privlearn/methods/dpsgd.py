"""DP-SGD: clipped per-example gradients, one Gaussian release a batch (Abadi et al. 2016; Yu et al. 2019, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privlearn._validate import one_of
from privlearn.accounting.ledger import Ledger
from privlearn.clipping.gradients import Augmentation, ClippedGradients
from privlearn.clipping.ways import Loss
from privlearn.data.dataset import Dataset
from privlearn.data.persons import require_groups, rows_of_persons
from privlearn.errors import BadInput, NotPerExample
from privlearn.mechanisms.release import release
from privlearn.methods.result import PrivateDiagnostics, Result
from privlearn.models import Scale, require_per_example
from privlearn.plan import Plan
from privlearn.rng import Streams
from privlearn.schedules import Constant, Schedule, spec

#: A factory of optimizers: parameters to a torch.optim optimizer.
OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


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
    the plan's adjacency and `plan.unit`: one example, up to `group_size` examples of one person, or one person with all
    their rows (where the data have `groups`). The ledger is charged exactly `plan.event()`. Nothing else that is returned is
    covered.

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
        augmentation: changed copies of each row, whose gradients are averaged before clipping.
        device: where to compute, for example "cuda"; by default where the model is. The result is on the CPU.
        precision: "float32", or "bf16" to run the model in bfloat16; norms, sums and noise stay in single precision.
        progress: called with (steps done, steps in all) after each step.

    Raises:
        BudgetExceeded: the plan does not fit the ledger's budget; before any data is touched.
        NotPerExample: the model or the loss couples examples.
        BadInput: inputs and targets that do not fit each other, or the plan; person ids that the plan does not speak of, or
            the other way round.
    """
    ledger = Ledger(plan.budget) if ledger is None else ledger
    streams = streams or Streams.new()
    ledger.approve(plan.event(), plan.neighbours, plan.unit)

    data = Dataset.of(dataset)
    x, y = data.tensors()
    rows = _rows_of_examples(plan, data, streams)
    present = len(x) if rows is None else len(rows)
    examples = plan.examples or present
    transforms: list[nn.Module] = [] if data.low is None else [Scale(*data.bounds())]
    x = _through(transforms, x)

    # Whatever can be refused is refused here, before anything is spent.
    shape = plan.before[-1].output_shape if plan.before else tuple(x.shape[1:])
    network = model if isinstance(model, nn.Module) else model(shape)
    network.to(_device(device, network)).train()
    require_per_example(network, x.new_zeros(1, *shape).to(_device(None, network)))
    watched = _Watch()
    gradients = ClippedGradients(
        network,
        loss,
        plan.clip,
        plan.neighbours,
        microbatch=microbatch,
        augmentation=augmentation,
        autocast=torch.bfloat16 if one_of("precision", precision, ["float32", "bf16"]) == "bf16" else None,
        rows=rows,
        observe=watched.see,
    )
    gradients.prepare(x.new_zeros(1, *shape), y)
    parameters = list(gradients.parameters.values())
    descent = optimizer(parameters)
    rates = [group["lr"] for group in descent.param_groups]
    fixed = {name: value.clone() for name, value in _untrained(network).items()}
    divisor = plan.sampling.expected_batch_size(examples)
    steps = plan.sampling.steps(present)

    for earlier in plan.before:
        transforms.append(earlier.run(x, plan.neighbours, ledger, streams.noise, rows))
        x = _through(transforms[-1:], x)

    sums = gradients.buffers()
    for parameter, total in zip(parameters, sums, strict=True):
        parameter.grad = total
    for epoch, noise_multiplier in enumerate(plan.noise_multipliers()):
        for step, sample in enumerate(plan.sampling.draw(present, streams.sampling)):
            watched.clip_norm = gradients.clip_norm
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
        _require_unchanged(_untrained(network), fixed)
    descent.zero_grad()
    network.to("cpu" if device is not None else _device(None, network)).eval()

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


def require_same_examples(plan: Plan, data: Dataset) -> None:
    """Raise `BadInput` unless the plan and the data agree on whether an example is a row or a person."""
    if plan.rows_per_person is None and data.groups is not None:
        raise BadInput(
            "the data carry person ids (groups), and the plan protects single rows: say how many rows of each person are used "
            "with Plan(rows_per_person=K) (--rows-per-person K), or leave out groups"
        )
    if plan.rows_per_person is not None and data.groups is None:
        raise BadInput(
            f"the plan uses up to {plan.rows_per_person} rows of each person, and the data do not say whose rows they are: "
            "give Dataset(groups=ids), a person's id for each row (groups in an .npz)"
        )


def _rows_of_examples(plan: Plan, data: Dataset, streams: Streams) -> Tensor | None:
    """Where examples are persons: the rows that stand for each, shape (persons, rows_per_person)."""
    require_same_examples(plan, data)
    if plan.rows_per_person is None:
        return None
    groups = np.asarray(data.groups)
    require_groups(data.name, groups, len(data.x))
    return torch.from_numpy(rows_of_persons(groups, plan.rows_per_person, streams.sampling.bytes(32)))


def _device(given: str | torch.device | None, network: nn.Module) -> torch.device:
    """Where to compute.

    Raises:
        BadInput: there is no such device here.
    """
    if given is None:
        return next((p.device for p in network.parameters()), torch.device("cpu"))
    try:
        device = torch.device(given)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise BadInput(
            f"device {str(given)!r} can't be used: {str(error).splitlines()[0]}. Expected cpu or cuda"
        ) from error
    return device


def _untrained(network: nn.Module) -> dict[str, Tensor]:
    """Buffers and frozen parameters: they are published, but no release ever fills them."""
    trained = {name for name, p in network.named_parameters(remove_duplicate=False) if p.requires_grad}
    return {name: value for name, value in network.state_dict().items() if name not in trained}


def _require_unchanged(now: dict[str, Tensor], before: dict[str, Tensor]) -> None:
    for name, value in before.items():
        if not torch.equal(now[name], value):
            raise NotPerExample(
                f"{name!r} changed during training: it carries private data from one batch to the next, outside any release. "
                "Nothing is returned; remove it from the model, or keep it fixed",
                state=name,
            )


def _through(transforms: Iterable[nn.Module], x: Tensor) -> Tensor:
    """Apply public, per-example transforms to all rows."""
    with torch.no_grad():
        for transform in transforms:
            x = transform(x)
    return x


class _Watch:
    """Collects training loss and the share of clipped gradients: private, for the curator.

    Only sums are kept: small tensors kept from every batch would split up the memory that the next ones need.
    """

    def __init__(self) -> None:
        self.figures: dict[str, list[float]] = {"loss": [], "clipped_share": []}
        self.clip_norm = math.inf
        self._rows, self._loss, self._clipped = 0, 0.0, 0

    def see(self, losses: Tensor, norms: Tensor) -> None:
        self._rows += len(losses)
        self._loss += float(losses.sum(dtype=torch.float64))
        self._clipped += int((norms > self.clip_norm).sum())

    def end_epoch(self) -> None:
        if self._rows:
            self.figures["loss"].append(self._loss / self._rows)
            self.figures["clipped_share"].append(self._clipped / self._rows)
        self._rows, self._loss, self._clipped = 0, 0.0, 0


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
