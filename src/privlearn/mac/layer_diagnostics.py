"""`LayerDiagnostics`: what the curator may look at of a DP-MAC run, layer by layer. Private."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor


@final
class LayerDiagnostics:
    """Collects, epoch by epoch: the mean loss of the network, and of each layer's first derivatives the mean norm and the
    share that was clipped. How many examples had a layer that was not finite (such layers add nothing) is `left_out`.
    """

    def __init__(self, layers: int) -> None:
        self.figures: dict[str, list[Any]] = {"loss": [], "norms": [], "clipped_shares": [], "left_out": []}
        self._layers = layers
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._rows, self._loss, self._left_out = 0, 0.0, 0
        self._norms, self._clipped, self._counted = ([0.0] * self._layers for _ in range(3))

    def see(self, losses: Tensor, norms: list[Tensor], clipped: Tensor) -> None:
        """Some examples' losses, shape (examples,), norms for each layer, and which were clipped, shape (layers, examples)."""
        finite = losses.isfinite()
        self._rows += int(finite.sum())
        self._loss += float(losses[finite].sum(dtype=torch.float64))
        usable = torch.stack(norms).isfinite()
        self._left_out += int((~usable.all(0)).sum())
        for layer, (own, ok) in enumerate(zip(norms, usable, strict=True)):
            self._norms[layer] += float(own[ok].sum())
            self._clipped[layer] += int(clipped[layer][ok].sum())
            self._counted[layer] += int(ok.sum())

    def end_epoch(self) -> None:
        """Add the epoch to `figures`."""
        if self._rows and min(self._counted):
            self.figures["loss"].append(self._loss / self._rows)
            for name, sums in (("norms", self._norms), ("clipped_shares", self._clipped)):
                self.figures[name].append([own / number for own, number in zip(sums, self._counted, strict=True)])
        self.figures["left_out"].append(self._left_out)
        self._begin_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        sums = [self._rows, self._loss, self._left_out, self._norms, self._clipped, self._counted]
        return {"figures": self.figures, "epoch": sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        self.figures = state["figures"]
        self._rows, self._loss, self._left_out, self._norms, self._clipped, self._counted = state["epoch"]
