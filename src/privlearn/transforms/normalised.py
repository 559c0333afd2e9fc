"""Rows of many non-negative numbers, such as another network's features: each by itself to mean 0 and variance 1."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor
from torch.nn import functional as F

from privlearn.transforms.modules import RowTransform
from privlearn.transforms.specs import RowNorm


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
