"""The fixed transforms in front of a network, as modules: each row by itself, and published with the model."""

from __future__ import annotations

import math
from typing import Any, ClassVar, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn.transforms.specs import RowNorm


class RowTransform(nn.Module):
    """A fixed transform of rows, each by itself, as it stands in front of a network and in a published model.

    Attributes:
        kind: of the `Transform` that makes such modules, and that makes an empty one for published weights to fill.
    """

    kind: ClassVar[str]

    @property
    def spec(self) -> str:
        """What it is called."""
        return self.kind

    def describe(self) -> dict[str, Any]:
        """What a certificate says of public features."""
        return self.config()

    def config(self) -> dict[str, Any]:
        """What a published configuration states of it: enough for `Transform.empty`, and none of its numbers."""
        first = next(iter(self.buffers()))
        return {"kind": self.kind, "shape": list(first.shape)}


@final
class Scale(RowTransform):
    """Clip to declared public ranges and scale: to [0, 1], or into [-1, 1] with 0 kept where a range reaches below 0.

    Part of the published model.
    """

    kind = "scale"

    def __init__(self, low: Tensor, high: Tensor) -> None:
        super().__init__()
        self.register_buffer("low", low)
        self.register_buffer("high", high)

    def forward(self, x: Tensor) -> Tensor:
        """Scale `x`, shape (batch, ...); the bounds are scalars or have the shape of one example."""
        low, high = self.get_buffer("low"), self.get_buffer("high")
        clipped = torch.minimum(torch.maximum(x.to(low), low), high)
        signed = low < 0
        width = torch.where(signed, torch.maximum(low.abs(), high.abs()), high - low)
        return (clipped - low.where(~signed, 0)) / width


@final
class Project(RowTransform):
    """Clip rows to norm 1, multiply by `components` (features, kept), and bring every row to norm sqrt(kept).

    A feature is then of order one, and each example keeps to itself.
    """

    kind = "pca"

    def __init__(self, components: Tensor) -> None:
        super().__init__()
        self.register_buffer("components", components)

    def forward(self, x: Tensor) -> Tensor:
        """Project `x`, shape (batch, ...), to shape (batch, kept)."""
        rows = x.flatten(1)
        components = self.get_buffer("components")
        rows = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=1.0)
        kept = rows @ components
        tiny = torch.finfo(kept.dtype).tiny
        lengths = torch.linalg.vector_norm(kept, dim=1, keepdim=True).clamp(min=tiny)
        return cast(Tensor, kept / lengths * math.sqrt(kept.shape[1]))


@final
class Standardise(RowTransform):
    """Clip rows to `norm`, take off `mean`, divide by `deviation`, and bring every row to norm sqrt(features).

    A feature is then of order one, and each example keeps to itself.
    """

    kind = "moments"

    def __init__(self, mean: Tensor, deviation: Tensor, norm: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)
        self.register_buffer("norm", norm)

    def forward(self, x: Tensor) -> Tensor:
        """Standardise `x`, shape (batch, ...), to shape (batch, features)."""
        mean, norm = self.get_buffer("mean"), self.get_buffer("norm")
        rows = x.flatten(1).to(mean)
        rows = rows * (norm / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=norm))
        rows = (rows - mean) / self.get_buffer("deviation")
        lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
        return cast(Tensor, rows / lengths * math.sqrt(rows.shape[1]))


@final
class Keep(RowTransform):
    """The features at `indices`, of flattened rows."""

    kind = "select"

    def __init__(self, indices: Tensor) -> None:
        super().__init__()
        self.register_buffer("indices", indices)

    def forward(self, x: Tensor) -> Tensor:
        """Pick from `x`, shape (batch, ...), to shape (batch, kept)."""
        return x.flatten(1)[:, self.get_buffer("indices")]


@final
class ClipRows(RowTransform):
    """Flatten rows, and scale those longer than `norm` down to it."""

    kind = "clip"

    def __init__(self, norm: Tensor) -> None:
        super().__init__()
        self.register_buffer("norm", norm)

    def forward(self, x: Tensor) -> Tensor:
        """Clip `x`, shape (batch, ...), to shape (batch, features)."""
        rows, norm = x.flatten(1), self.get_buffer("norm")
        rows = rows.to(norm)
        return cast(Tensor, rows * (norm / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=norm)))


@final
class Normalised(RowTransform):
    """Numbers raised to a power (negative ones count as 0), then each example brought to mean 0 and variance 1.

    The root tames the few large numbers in which networks' features differ most; all rows then have the same norm, so that
    clipping treats them alike and the noise in a score is known beforehand.

    Args:
        power: 0.5 is the root; 1 leaves numbers as they are, negative ones too.

    Raises:
        BadInput: a power out of range.
    """

    kind = RowNorm.kind

    def __init__(self, power: float = 0.5) -> None:
        super().__init__()
        self.power = RowNorm(power).power

    @property
    def spec(self) -> str:
        """What `specs.parse` reads."""
        return RowNorm(self.power).spec

    def describe(self) -> dict[str, Any]:
        """What the certificate says of it."""
        return {"kind": self.kind, "spec": self.spec, "power": self.power}

    def config(self) -> dict[str, Any]:
        """What a published configuration states of it."""
        return {"kind": self.kind, "spec": self.spec}

    def forward(self, x: Tensor) -> Tensor:
        """Normalise rows (batch, ...), to shape (batch, numbers)."""
        rows = x.flatten(1).float()
        rows = rows if self.power == 1 else rows.clamp(min=0) ** self.power
        return F.layer_norm(rows, rows.shape[1:])
