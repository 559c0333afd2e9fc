"""What is looked at, and refused, before anything is spent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from privlearn.clipping.ways import Loss
from privlearn.errors import BadInput
from privlearn.plan import Plan
from privlearn.schedules import Schedule

#: A factory of optimizers: parameters to a torch.optim optimizer.
OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def device_of(given: str | torch.device | None, network: nn.Module) -> torch.device:
    """Where to compute: as `given`, or else where the network is.

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


def require_public_numbers(plan: Plan, examples: int, x: Tensor, rates: Schedule) -> None:
    """Refuse numbers that would fail in the middle of the run.

    Raises:
        BadInput: no examples to divide by, more components than features, or a learning rate that starts at 0.
    """
    if not examples:
        raise BadInput("the data have 0 rows: expected at least one, or a declared number, Plan(examples=N)")
    features = math.prod(x.shape[1:])
    for earlier in plan.before:
        earlier.require_fit(features)
        features = earlier.components
    start = rates(0)
    if not 0 < start < math.inf:
        raise BadInput(
            f"the learning rate schedule is {start:g} at epoch 0: expected a finite number above 0, which later ones are "
            "relative to"
        )


def require_usable(network: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> None:
    """Run the model and the loss on the smallest and the largest whole numbers there are in each column.

    This looks at the data: it is for whoever holds them, before anything is spent, and outside the guarantee. From there on,
    an example that can't be computed adds nothing, and nothing is said about it.

    Raises:
        BadInput: they fail, for example on a label beyond the last class.
    """
    device = device_of(None, network)
    try:
        with torch.no_grad(), torch.random.fork_rng():
            loss(network(_ends(x).to(device)), _ends(y).to(device))
    except Exception as error:
        raise BadInput(
            f"the model or the loss fails on the smallest or largest whole numbers in the data: {type(error).__name__}: "
            f"{(str(error).strip() or 'no message').splitlines()[0]}. Expected labels below the number of outputs, and tokens "
            "below the size of the embedding"
        ) from error


def _ends(values: Tensor) -> Tensor:
    """Two rows: each column's smallest and largest number if they are whole numbers, zeros otherwise."""
    if values.is_floating_point() or values.is_complex() or not len(values):
        return values.new_zeros(2, *values.shape[1:])
    return torch.stack([values.amin(0), values.amax(0)])


def made(optimizer: OptimizerFactory, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer, if it can step on noisy gradients as they are.

    Raises:
        BadInput: it is none, or needs a closure or sparse gradients.
    """
    found = optimizer(parameters) if callable(optimizer) else optimizer
    unfit = (torch.optim.LBFGS, torch.optim.SparseAdam)
    if not callable(optimizer) or not isinstance(found, torch.optim.Optimizer) or isinstance(found, unfit):
        what = f"made a {type(found).__name__}" if callable(optimizer) else f"is a {type(found).__name__}"
        raise BadInput(
            f"optimizer {what}: expected a function from parameters to an optimizer of torch.optim that steps on dense "
            "gradients, for example lambda parameters: torch.optim.SGD(parameters, lr=0.1)"
        )
    return found


def through(transforms: Iterable[nn.Module], x: Tensor) -> Tensor:
    """Apply public, per-example transforms to all rows."""
    with torch.no_grad():
        for transform in transforms:
            x = transform(x)
    return x
