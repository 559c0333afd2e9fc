"""`Boosted`: sums of tables over binned columns, as a network: additive models and trees with
public splits.
"""

from __future__ import annotations

import math
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from privlearn._checks import count
from privlearn.core.devices import building
from privlearn.errors import BadInput

#: Numbers in all tables, at most.
_MOST = 1 << 28


@final
class Boosted(nn.Module):
    """Bins each column of a row, looks its scores up in one table for each block, and adds them up.

    A block's cell is made of the groups that some columns' bins fall into. Everything is a buffer,
    so a published model needs nothing but its weights. A number that is missing (NaN) is in bin 0,
    and so is a category that is not declared.

    Args:
        columns: how many there are.
        bins: of a column, at most, that for missing values included.
        blocks: how many tables there are.
        depth: columns of a block, at most.
        cells: of a block, at most.
        outputs: numbers that are predicted; scores of classes, or one value.
        logarithm: whether what tables add up to is the logarithm of the prediction.

    Attributes:
        logarithm: as given.
        takes_missing: NaN is a missing value.
    """

    takes_missing: ClassVar[bool] = True
    places: Tensor
    edges: Tensor
    members: Tensor
    groups: Tensor
    strides: Tensor
    scores: Tensor
    base: Tensor
    limits: Tensor

    def __init__(
        self,
        columns: int,
        bins: int,
        blocks: int,
        depth: int,
        cells: int,
        outputs: int,
        *,
        logarithm: bool = False,
    ) -> None:
        super().__init__()
        self.logarithm = logarithm
        # For each column its first number, how many it has, and whether these are categories.
        self.register_buffer(
            "places", torch.zeros(columns, 3, dtype=torch.int64, device=building())
        )
        self.register_buffer(
            "edges", torch.full((columns, max(bins - 2, 0)), math.inf, device=building())
        )
        self.register_buffer(
            "members", torch.zeros(blocks, depth, dtype=torch.int64, device=building())
        )
        self.register_buffer(
            "groups", torch.zeros(blocks, depth, bins, dtype=torch.int64, device=building())
        )
        self.register_buffer(
            "strides", torch.zeros(blocks, depth, dtype=torch.int64, device=building())
        )
        self.register_buffer("scores", torch.zeros(blocks, cells, outputs, device=building()))
        self.register_buffer("base", torch.zeros(outputs, device=building()))
        self.register_buffer("limits", torch.tensor([-math.inf, math.inf], device=building()))

    @property
    def spec(self) -> str:
        """What `models.build` makes one of this size of."""
        columns, bins = len(self.places), self.groups.shape[2]
        blocks, depth = self.members.shape
        kind = "boosted-counts" if self.logarithm else "boosted"
        return f"{kind}:{columns},{bins},{blocks},{depth},{self.scores.shape[1]}"

    def bins(self, x: Tensor) -> Tensor:
        """The bin of each column, shape (rows, columns), of rows of shape (rows, numbers)."""
        rows = x.flatten(1).float()
        parts = []
        for column, (first, width, categories) in enumerate(self.places.tolist()):
            numbers = rows[:, first : first + width]
            if categories:
                largest, place = numbers.nan_to_num(0.0).max(1)
                parts.append(torch.where(largest > 0.5, place + 1, 0))
            else:
                # edges that are not there are infinite
                finite = numbers[:, 0].clamp(max=torch.finfo(numbers.dtype).max)
                place = torch.bucketize(finite.contiguous(), self.edges[column], right=True) + 1
                parts.append(torch.where(numbers[:, 0].isnan(), 0, place))
        return torch.stack(parts, 1)

    def cells(self, bins: Tensor, block: int) -> Tensor:
        """The cell of one block that each row falls into, shape (rows,)."""
        cell = torch.zeros(len(bins), dtype=torch.int64, device=bins.device)
        for member, groups, stride in zip(
            self.members[block], self.groups[block], self.strides[block], strict=True
        ):
            cell += stride * groups[bins[:, member]]
        return cell

    def forward(self, x: Tensor) -> Tensor:
        """Predictions of shape (rows, outputs): scores of classes, values, or expected counts."""
        bins = self.bins(x)
        total = self.base.expand(len(bins), -1).clone()
        for block in range(len(self.scores)):
            total += self.scores[block, self.cells(bins, block)]
        total = total.clamp(self.limits[0], self.limits[1])
        return total.exp() if self.logarithm else total


def boosted(spec: str, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The empty network that `spec` names, `boosted:columns,bins,blocks,depth,cells`, for published
    weights to fill.

    Raises:
        BadInput: a spec that can't be read, or numbers beyond all measure.
    """
    name, _, text = spec.partition(":")
    try:
        sizes = [count("a size of the model", int(part), most=1 << 20) for part in text.split(",")]
    except ValueError:
        sizes = []
    if name not in ("boosted", "boosted-counts") or len(sizes) != 5:
        raise BadInput(
            f"model {spec[:60]!r} cannot be read: expected boosted:columns,bins,blocks,depth,cells"
        )
    columns, bins, blocks, depth, cells = sizes
    if max(columns * bins, blocks * depth * bins, blocks * cells * classes) > _MOST:
        raise BadInput(
            f"model {spec[:60]!r} has more than {_MOST:,} numbers in its tables: expected fewer"
        )
    return Boosted(columns, bins, blocks, depth, cells, classes, logarithm=name == "boosted-counts")
