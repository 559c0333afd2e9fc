"""A script's loss of a batch, a mean or a sum over its examples, as one value for each example.

What a mean is of is not believed: on made-up rows the loss of a batch must be the mean, or the sum,
of what the same function gives for each example by itself. That of an example by itself is its
loss.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache, partial
from types import FunctionType, MethodType
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

from privlearn.core.clipping.indices import looking_at
from privlearn.core.clipping.losses import BatchShape, Loss
from privlearn.core.clipping.model_check import made_up_rows
from privlearn.core.clipping.parameters.frozen import FrozenState
from privlearn.core.clipping.randomness import drawn_by, generators_at
from privlearn.core.clipping.sharded.models import is_sharded
from privlearn.core.devices import place_of
from privlearn.core.rows import Rows, nested
from privlearn.errors import NotPerExample
from privlearn.training.loop_losses import ModelLoss, WrappedLoss, unwrapped

#: Examples of made-up batches.
_SIZES = (5, 7)
#: Difference up to which two losses in single precision are equal.
_EQUAL = 1e-4


@final
class BatchLoss(WrappedLoss):
    """A function of (model, batch) that gives one number for a batch, computed for each example.

    Args:
        function: the function.
        made_up: of it.
        of_rows: for each mean and sum over everything that it takes, whether it is one over
            examples. All examples are then computed in one call, in which these are taken over each
            example's own values. None: in a call for each.
    """

    def __init__(
        self, function: Callable[..., Tensor], made_up: Any, of_rows: Sequence[bool] | None
    ) -> None:
        super().__init__(function, made_up)
        self._of_rows = of_rows
        if of_rows is None and self.slowness is None:
            self.slowness = (
                "the loss of a batch is computed for one example at a time",
                "a loss that gives one value for each example, with reduction='none'",
            )

    def __call__(self, model: Any, batch: Any) -> Tensor:
        """Shape (batch,)."""
        rows = _length(batch)
        if self._of_rows is not None:
            over = _OverEachExample(rows, self._of_rows)
            with over:
                values = self.call(model, batch)
            if len(over.sizes) == len(self._of_rows):
                return values
        return _of_each(self.function, model, batch)


def _length(batch: Any) -> int:
    return len(tree_flatten(batch)[0][0])


def _of_each(function: Callable[..., Tensor], model: Any, batch: Any) -> Tensor:
    """What the function gives for each example by itself.

    Raises:
        NotPerExample: it is not one number.
    """
    values = []
    for row in range(_length(batch)):
        value = function(model, tree_map(lambda leaf, row=row: leaf[row : row + 1], batch))
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise NotPerExample(
                "the loss of one example is not one number: expected its loss, of shape () or (1,)"
            )
        values.append(value.reshape(()))
    return torch.stack(values)


@final
class _OverEachExample(TorchFunctionMode):
    """A block in which means and sums over everything are taken over each example's own values.

    Losses of torch.nn.functional take theirs within.

    Args:
        rows: how many examples there are.
        of_rows: which of the means and sums, in the order of their calls; others are as usual.

    Attributes:
        sizes: of how many numbers each was taken.
        weighted: whether one was taken by class weights, and divides by their sum.
    """

    def __init__(self, rows: int, of_rows: Sequence[bool]) -> None:
        super().__init__()
        self._rows, self._of_rows = rows, of_rows
        self.sizes: list[int] = []
        self.weighted = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _losses_of_torch():
            bound = inspect.signature(func).bind(*args, **kwargs)
            bound.apply_defaults()
            named = {**bound.arguments, "size_average": None, "reduce": None}
            reduction = named["reduction"]
            if reduction != "none":
                known = {name: named[name] for name in bound.arguments}
                values = func(**{**known, "reduction": "none"})
                usual = partial(func, *args, **kwargs)
                if "ignore_index" not in named or named["target"].is_floating_point():
                    return self._over(values, usual, mean=reduction == "mean")
                self.weighted |= named["weight"] is not None and reduction == "mean"
                counted = named["target"] != named["ignore_index"]
                return self._over(values, usual, mean=reduction == "mean", counted=counted)
        elif func in _MEANS | _SUMS and len(args) == 1 and not kwargs:
            return self._over(args[0], partial(func, args[0]), mean=func in _MEANS)
        return func(*args, **kwargs)

    def _over(
        self,
        values: Tensor,
        usual: Callable[[], Any],
        *,
        mean: bool,
        counted: Tensor | None = None,
    ) -> Any:
        number = len(self.sizes)
        self.sizes.append(values.numel())
        if not (number < len(self._of_rows) and self._of_rows[number]):
            return usual()
        by_row = values.reshape(self._rows, -1)
        if counted is not None and mean:
            return by_row.sum(1) / counted.reshape(self._rows, -1).sum(1)
        return by_row.mean(1) if mean else by_row.sum(1)


_MEANS = frozenset([torch.mean, Tensor.mean])
_SUMS = frozenset([torch.sum, Tensor.sum])


@cache
def _losses_of_torch() -> frozenset[Any]:
    """The functions of torch.nn.functional that take a mean or a sum."""
    functions = [each for each in vars(nn.functional).values() if inspect.isfunction(each)]
    return frozenset(
        each for each in functions if "reduction" in inspect.signature(each).parameters
    )


@final
class ConstantDraws(TorchFunctionMode):
    """A block in which all that is drawn at random is one half: an example then draws what it draws
    beside others.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        before = drawn_by(self._device)
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not _equal(before, drawn_by(self._device)):
            return torch.full_like(result, 0.5)
        return result


def _equal(one: Iterable[Tensor], other: Iterable[Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def of_each_example(model: nn.Module, loss: Loss, rows: Rows) -> Loss:
    """The loss, as one of each example where it is a script's function that gives a mean or a sum
    over a batch, or divides by its length. Any other is returned as it is.

    Args:
        model: what the loss is of; it stays as it is.
        loss: the loss.
        rows: whose shapes and types made-up rows have; no row is fetched.
    """
    function = unwrapped(loss)
    if not isinstance(loss, ModelLoss) or is_sharded(model):
        return loss
    if not isinstance(function, FunctionType | MethodType | partial):
        return loss
    shape = BatchShape.of(rows, loss)
    leaves = shape.made_up(made_up_rows(rows.like, shape.inputs, max(_SIZES)))
    device = place_of(model)

    def computed(call: Callable[[Any, Any], Any], size: int) -> Any:
        batch = nested([leaf[:size].clone().to(device) for leaf in leaves], rows.structure)
        with looking_at(device):
            return call(model, batch)

    def taken(size: int) -> _OverEachExample:
        over = _OverEachExample(size, ())
        with over:
            computed(function, size)
        return over

    modes = [(module, module.training) for module in model.modules()]
    fixed = FrozenState(model, loss)
    try:
        model.eval()  # without dropout, which two computations would draw differently
        with fixed.holding(), generators_at(0), torch.no_grad(), ConstantDraws(device):
            means = [taken(size) for size in _SIZES]
            if any(over.weighted for over in means):
                return loss
            for size in _SIZES:
                together = computed(function, size)
                if not isinstance(together, Tensor) or together.shape not in ((), (size,)):
                    return loss
                if not _is_of_batch(together, computed(partial(_of_each, function), size)):
                    return loss
            by_each = BatchLoss(function, loss.made_up, None)
            with suppress(RuntimeError, ValueError, IndexError, TypeError):
                numbers = (over.sizes for over in means)
                of_rows = [_grow(*both) for both in zip(*numbers, strict=True)]
                at_once = BatchLoss(function, loss.made_up, of_rows)
                # a last part of a batch may be a single example
                sizes = (1, *_SIZES)
                if all(_close(computed(at_once, size), computed(by_each, size)) for size in sizes):
                    return at_once
            return by_each
    except Exception:  # what fails is said where the loss is refused
        return loss
    finally:
        for module, training in modes:
            module.training = training


def _is_of_batch(together: Tensor, each: Tensor) -> bool:
    """Whether one number is the mean or the sum of those of single examples; or whether all of
    theirs are divided by their number.
    """
    if not together.dim():
        return _close(together, each.mean()) or _close(together, each.sum())
    return not _close(together, each) and _close(together * len(each), each)


def _grow(one: int, other: int) -> bool:
    """Whether there are as many numbers for each example in batches of both sizes."""
    return one * _SIZES[1] == other * _SIZES[0] != 0


def _close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=_EQUAL, atol=_EQUAL)
