"""Rows of many non-negative numbers, such as another network's features: each by itself to mean 0 and variance 1."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor, nn
from torch.nn import functional as F

from privlearn._checks import between


@final
class Normalised(nn.Module):
    """Numbers raised to a power (negative ones count as 0), then each example brought to mean 0 and variance 1.

    The root tames the few large numbers in which networks' features differ most; all rows then have the same norm, so that
    clipping treats them alike and the noise in a score is known beforehand.

    Args:
        power: 0.5 is the root; 1 leaves numbers as they are, negative ones too.

    Raises:
        BadInput: a power out of range.
    """

    def __init__(self, power: float = 0.5) -> None:
        super().__init__()
        self.power = between("the power of norm", power, 0.1, 1.0)

    @property
    def spec(self) -> str:
        """What `encoders.encoder` makes the same from."""
        return f"norm:power={self.power:g}"

    def describe(self) -> dict[str, Any]:
        """What the certificate says of it."""
        return {"kind": "norm", "spec": self.spec, "power": self.power}

    def forward(self, x: Tensor) -> Tensor:
        """Normalise rows (batch, ...), to shape (batch, numbers)."""
        rows = x.flatten(1).float()
        rows = rows if self.power == 1 else rows.clamp(min=0) ** self.power
        return F.layer_norm(rows, rows.shape[1:])
