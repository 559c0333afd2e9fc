"""Made-up rows lie in a range that a loss accepts: which one is learned from what the loss refuses.

A loss is tried on made-up rows before the first private row. Some losses refuse random numbers: a
binary cross-entropy wants targets in [0, 1]. Then other ranges are tried, one after the other. What
is tried follows from the shapes and types of rows alone, never from what a row holds.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from privlearn.core.clipping.indices import looking_at
from privlearn.core.clipping.losses import BatchShape, Leaves, Loss, losses_of
from privlearn.core.clipping.model_check import made_up_rows
from privlearn.core.clipping.parameters.frozen import FrozenState
from privlearn.core.clipping.randomness import generators_at
from privlearn.core.clipping.sharded.models import is_sharded
from privlearn.core.devices import place_of
from privlearn.core.rows import Rows
from privlearn.errors import PrivlearnError, first_line
from privlearn.training.loop_losses import with_made_up

#: A public map from made-up values to those of another range.
Range = Callable[[Tensor], Tensor]

_EXAMPLES = 5
#: How often a loss is tried, at most.
_TRIES = 150
#: What says that code is wrong, whatever the rows hold.
_OTHER_FAULTS = (TypeError, AttributeError, NameError, KeyError, ImportError, PrivlearnError)


def _to_unit(leaf: Tensor) -> Tensor:
    return leaf.abs().frac()


def _to_two(leaf: Tensor) -> Tensor:
    return (leaf > 0).to(leaf.dtype)


def _to_signs(leaf: Tensor) -> Tensor:
    return 2 * (leaf > 0).to(leaf.dtype) - 1


def _to_positive(leaf: Tensor) -> Tensor:
    return leaf.abs().frac() + 0.5


def _to_probabilities(leaf: Tensor) -> Tensor:
    return leaf.abs().frac().softmax(-1) if leaf.dim() > 1 else _to_unit(leaf)


def _to_one_and_two(leaf: Tensor) -> Tensor:
    return 1 + (leaf > 0).to(leaf.dtype)


_FLOATS: tuple[Range, ...] = (_to_unit, _to_two, _to_signs, _to_positive, _to_probabilities)
_INTEGERS: tuple[Range, ...] = (_to_one_and_two, torch.ones_like, torch.zeros_like, _to_signs)
_BOOLEANS: tuple[Range, ...] = (torch.ones_like, torch.zeros_like)


@final
@dataclass(frozen=True)
class MadeUpRanges:
    """A loss's `made_up`: brings each tensor of a made-up batch into a range; None: leaves it."""

    ranges: tuple[Range | None, ...]

    def __call__(self, batch: Any) -> Any:
        """The batch, with other values."""
        leaves, structure = tree_flatten(batch)
        changed = [
            leaf if change is None else change(leaf)
            for leaf, change in zip(leaves, self.ranges, strict=True)
        ]
        return tree_unflatten(changed, structure)

    def wider(self, like: Sequence[Tensor]) -> Iterator[MadeUpRanges]:
        """Those in which one more tensor has a range, the last one first; and all floats one."""
        places = [place for place, known in enumerate(self.ranges) if known is None]
        for place in reversed(places):
            for change in _ranges_of(like[place]):
                yield MadeUpRanges((*self.ranges[:place], change, *self.ranges[place + 1 :]))
        floats = [place for place in places if like[place].is_floating_point()]
        for change in _FLOATS if len(floats) > 1 else ():
            yield MadeUpRanges(
                tuple(
                    change if place in floats else known for place, known in enumerate(self.ranges)
                )
            )


def _ranges_of(leaf: Tensor) -> tuple[Range, ...]:
    if leaf.is_floating_point():
        return _FLOATS
    return _BOOLEANS if leaf.dtype == torch.bool else _INTEGERS


class _Answer(IntEnum):
    """What a loss says to a made-up batch: nothing, numbers that tell nothing, or losses."""

    REFUSED = 0
    EMPTY = 1
    LOSSES = 2


def in_accepted_ranges(model: nn.Module, loss: Loss, rows: Rows) -> Loss:
    """The loss, with a `made_up` where it has none and refuses the usual made-up rows, or gives no
    loss but zero for them. If it refuses all ranges, it is returned as it is.

    Args:
        model: what the loss is of; it stays as it is.
        loss: of outputs and targets, or of the model and the batch.
        rows: whose shapes and types made-up rows have; no row is fetched.
    """
    shape = BatchShape.of(rows, loss)
    if shape.change is not None or is_sharded(model):
        return loss
    usual = MadeUpRanges((None,) * len(rows.like))
    best, answer = usual, _Answer.REFUSED
    for ranges, answered in _tried(_Trial(model, loss, rows.like, shape), usual, rows.like):
        if answered > answer:
            best, answer = ranges, answered
        if answer is _Answer.LOSSES:
            break
    return loss if best == usual else with_made_up(loss, best)


def _tried(
    trial: _Trial, usual: MadeUpRanges, like: Sequence[Tensor]
) -> Iterator[tuple[MadeUpRanges, _Answer]]:
    """Ranges with the answers to them, the usual ones first.

    Where another range leads to another refusal, it may have been one of two that are needed.
    """
    refusals, waiting, seen = set[str](), deque([usual]), 0
    while waiting and seen < _TRIES:
        seen += 1
        ranges = waiting.popleft()
        answer, refusal = trial(ranges)
        yield ranges, answer
        if ranges == usual or (answer is _Answer.REFUSED and refusal not in refusals):
            waiting.extend(ranges.wider(like) if trial.goes_on else ())
        refusals.add(refusal)


@final
class _Trial:
    """Tries a loss on made-up rows.

    Attributes:
        goes_on: whether other values may help.
    """

    def __init__(
        self, model: nn.Module, loss: Loss, like: Sequence[Tensor], shape: BatchShape
    ) -> None:
        self._loss, self._shape, self.goes_on = loss, shape, True
        device = place_of(model)
        self._model, self._fixed = model, FrozenState(model, loss)
        self._rows: Leaves = tuple(
            leaf.to(device) for leaf in made_up_rows(like, shape.inputs, _EXAMPLES)
        )

    def __call__(self, ranges: MadeUpRanges) -> tuple[_Answer, str]:
        """The answer, and what a refusal says."""
        clones = [leaf.clone() for leaf in self._rows]
        leaves = tree_flatten(ranges(clones))[0]
        try:
            with (
                self._fixed.holding(),
                generators_at(0),
                looking_at(self._rows[0].device),
                torch.no_grad(),
                warnings.catch_warnings(action="ignore"),
            ):
                losses = losses_of(self._model, self._loss, leaves, self._shape)
        except _OTHER_FAULTS as error:
            self.goes_on = False
            return _Answer.REFUSED, first_line(error)
        except Exception as error:
            return _Answer.REFUSED, f"{type(error).__name__}: {first_line(error)}"
        if not isinstance(losses, Tensor):
            return _Answer.LOSSES, ""  # which is refused as what it is
        finite = losses[losses.isfinite()]
        return (_Answer.LOSSES if bool(finite.any()) else _Answer.EMPTY), ""
