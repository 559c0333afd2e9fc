"""Rows of different lengths: how a collate function pads them, learned from a few, and lengths of
their own to pad to.

A row is padded to a length that follows from its own, never to the longest of a batch: so what it
adds to a sum does not depend on who else was drawn, whatever the model makes of padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, final

import torch
from torch import Tensor

from privlearn.core.rows import Leaves

#: The shapes of one row's tensors, without the first axis.
Shapes = tuple[tuple[int, ...], ...]
#: The shortest length that rows are padded to.
_SHORTEST = 8


@final
@dataclass(frozen=True)
class Padding:
    """How rows are brought to one length.

    Attributes:
        axes: for each tensor of a row, the axes that differ from row to row, counted without the
            first, and whether it is padded at their beginning.
        fills: for each tensor, what with.
    """

    axes: tuple[tuple[tuple[int, bool], ...], ...]
    fills: tuple[Any, ...]

    @classmethod
    def learned(
        cls, alone: Sequence[Leaves], together: Sequence[Any], *, drawn: bool = False
    ) -> Padding | None:
        """What makes of rows, each collated by itself, the batch that they are collated to; None if
        nothing does.

        Args:
            alone: the rows.
            together: their batch.
            drawn: whether values are drawn at random, so that only what stands beside the rows can
                be compared.
        """
        learned = [
            _learn(leaves, batch, drawn=drawn) if isinstance(batch, Tensor) else None
            for leaves, batch in zip(zip(*alone, strict=True), together, strict=True)
        ]
        if any(each is None for each in learned):
            return None
        axes, fills = zip(*[each for each in learned if each is not None], strict=True)
        return cls(axes, fills)

    @property
    def varies(self) -> bool:
        """Whether rows have different lengths at all."""
        return any(self.axes)

    def lengths_aside(self, shapes: Shapes) -> Shapes:
        """Shapes with 1 for each length that differs from row to row: what may be stated of
        them.
        """
        return tuple(
            tuple(1 if axis in dict(axes) else size for axis, size in enumerate(shape))
            for shape, axes in zip(shapes, self.axes, strict=True)
        )

    def rounded_up(self, shapes: Shapes) -> Shapes:
        """Shapes with each of these lengths rounded up to a power of two, at least 8: what follows
        from a row alone.
        """
        return tuple(
            tuple(
                max(_SHORTEST, 1 << (size - 1).bit_length()) if axis in dict(axes) else size
                for axis, size in enumerate(shape)
            )
            for shape, axes in zip(shapes, self.axes, strict=True)
        )

    def padded(self, row: Leaves, shapes: Shapes) -> Leaves:
        """A row, brought to larger shapes."""
        return tuple(
            leaf if tuple(leaf.shape[1:]) == shape else _place([leaf], (1, *shape), axes, fill)
            for leaf, shape, axes, fill in zip(row, shapes, self.axes, self.fills, strict=True)
        )

    def to_length(self, rows: Sequence[Leaves], length: int) -> list[Leaves]:
        """Rows of one length, which follows from none of them: longer ones are cut where they would
        be padded.
        """
        return [self._cut_or_padded(row, length) for row in rows]

    def _cut_or_padded(self, row: Leaves, length: int) -> Leaves:
        leaves = []
        for leaf, axes in zip(row, self.axes, strict=True):
            for axis, at_beginning in axes:
                excess = leaf.shape[axis + 1] - length
                if excess > 0:
                    leaf = leaf.narrow(axis + 1, excess if at_beginning else 0, length)
            leaves.append(leaf)
        shapes = tuple(
            tuple(
                length if axis in dict(axes) else size for axis, size in enumerate(leaf.shape[1:])
            )
            for leaf, axes in zip(leaves, self.axes, strict=True)
        )
        return self.padded(tuple(leaves), shapes)

    def to_longest(self, rows: Sequence[Leaves]) -> list[Leaves]:
        """Rows, brought to the longest of them: to be looked at together, not to be computed
        with.
        """
        each = [shapes_of(row) for row in rows]
        longest = tuple(
            tuple(map(max, zip(*shapes, strict=True))) for shapes in zip(*each, strict=True)
        )
        return [self.padded(row, longest) for row in rows]


def shapes_of(row: Sequence[Tensor]) -> Shapes:
    """The shapes of a row's tensors, without the first axis."""
    return tuple(tuple(leaf.shape[1:]) for leaf in row)


def _learn(
    rows: Sequence[Tensor], batch: Tensor, *, drawn: bool
) -> tuple[tuple[tuple[int, bool], ...], Any] | None:
    """The axes and the fill of one tensor, or None if the batch is not its rows, padded."""
    shapes = [row.shape[1:] for row in rows]
    if (
        len({len(shape) for shape in shapes}) > 1
        or len(batch) != len(rows)
        or batch.dtype != rows[0].dtype
    ):
        return None
    differ = [axis for axis, sizes in enumerate(zip(*shapes, strict=True)) if len(set(sizes)) > 1]
    if tuple(batch.shape[1:]) != tuple(max(sizes) for sizes in zip(*shapes, strict=True)):
        return None
    for sides in product((False, True), repeat=len(differ)):
        axes = tuple(zip(differ, sides, strict=True))
        covered = _place(
            [torch.ones_like(row, dtype=torch.bool) for row in rows],
            tuple(batch.shape),
            axes,
            False,
        )
        beside = batch[~covered]
        fill = beside[0].item() if len(beside) else 0
        expected = _place(rows, tuple(batch.shape), axes, fill)
        if torch.equal(beside, torch.full_like(beside, fill)) and (drawn or _same(batch, expected)):
            return axes, fill
    return None


def _place(
    rows: Sequence[Tensor], shape: tuple[int, ...], axes: tuple[tuple[int, bool], ...], fill: Any
) -> Tensor:
    """Rows, each in its place of a tensor of this shape."""
    batch = torch.full(shape, fill, dtype=rows[0].dtype, device="cpu")
    before = dict(axes)
    for number, row in enumerate(rows):
        place = tuple(
            slice(whole - size, whole) if before.get(axis) else slice(0, size)
            for axis, (size, whole) in enumerate(zip(row.shape[1:], shape[1:], strict=True))
        )
        batch[(slice(number, number + 1), *place)] = row
    return batch


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same, but for rounding."""
    return torch.allclose(one.double(), other.double(), rtol=1e-5, atol=1e-6, equal_nan=True)
