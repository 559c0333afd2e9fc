"""What the curator may look at of a run: computed on private data without a release."""

from __future__ import annotations

import math
from typing import Any, final

import torch
from torch import Tensor


@final
class Diagnostics:
    """Collects, epoch by epoch, the mean loss, the share of clipped gradients, and how many examples were left out because
    they could not be computed or were not finite: private, for the curator.

    Only sums are kept: small tensors kept from every batch would split up the memory that the next ones need.
    """

    def __init__(self) -> None:
        self.figures: dict[str, list[float]] = {"loss": [], "clipped_share": [], "left_out": []}
        self.clip_norm = math.inf
        self._drawn, self._rows, self._loss, self._clipped = 0, 0, 0.0, 0
        self._before = (0, 0, 0.0, 0)

    def begin(self, drawn: int, clip_norm: float) -> None:
        """A batch of `drawn` examples comes."""
        self._before = (self._drawn, self._rows, self._loss, self._clipped)
        self._drawn += drawn
        self.clip_norm = clip_norm

    def see(self, losses: Tensor, norms: Tensor) -> None:
        """Some of its examples' losses and gradient norms."""
        self._rows += len(losses)
        self._loss += float(losses.sum(dtype=torch.float64))
        self._clipped += int((norms > self.clip_norm).sum())

    def batch(self) -> dict[str, float]:
        """The same figures of the last batch, and how many examples it had; those of none are nan."""
        now = (self._drawn, self._rows, self._loss, self._clipped)
        drawn, rows, loss, clipped = (after - before for after, before in zip(now, self._before, strict=True))
        mean = {"loss": loss / rows if rows else math.nan, "clipped_share": clipped / rows if rows else math.nan}
        return {**mean, "examples": drawn, "left_out": drawn - rows}

    def end_epoch(self) -> None:
        """Add the epoch to `figures`."""
        if self._rows:
            self.figures["loss"].append(self._loss / self._rows)
            self.figures["clipped_share"].append(self._clipped / self._rows)
        self.figures["left_out"].append(self._drawn - self._rows)
        self._drawn, self._rows, self._loss, self._clipped = 0, 0, 0.0, 0

    def state_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        return {"figures": self.figures, "epoch": [self._drawn, self._rows, self._loss, self._clipped]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        self.figures = state["figures"]
        self._drawn, self._rows, self._loss, self._clipped = state["epoch"]


@final
class Scalars:
    """A list of numbers as a part of a run."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def state_dict(self) -> dict[str, Any]:
        """The numbers."""
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what they were, in the same list."""
        self.values[:] = state["values"]
