"""Volumes that carry their maps as further channels: whatever moves the one moves the other, under DP-SGD, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privlearn._validate import count
from privlearn.clipping.augmentation import Augmentation
from privlearn.segmentation.training import map_losses, maps_of
from privlearn.segmentation.warps import Warp


@final
@dataclass(frozen=True)
class Pairs:
    """What DP-SGD needs to learn from moved volumes: an augmentation changes inputs alone, so the maps ride along in these.

        pairs = Pairs(classes=3)
        pv.dpsgd(plan, pairs.network(unet), pairs.losses, pairs.rows(volumes, masks), augmentation=pairs.moved(Warp(), 2))

    trains `unet` in place. A row is a volume with its map, and its copies are one example: the mean of their gradients is
    clipped as one, so that the sensitivity and the price are those without copies.

    Attributes:
        classes: how many there are in a map, the background included.
    """

    classes: int

    def __post_init__(self) -> None:
        count("classes", self.classes, least=2)

    def rows(self, volumes: Tensor | NDArray[Any], masks: Tensor | NDArray[Any]) -> tuple[Tensor, Tensor]:
        """Inputs and targets for `pv.dpsgd`: volumes with the maps of their masks behind them; the targets say nothing.

        Args:
            volumes: shape (rows, channels, *size).
            masks: classes, whole numbers of shape (rows, *size).
        """
        seen = torch.cat([torch.as_tensor(volumes).float(), maps_of(masks, self.classes)], 1)
        return seen, torch.zeros(len(seen), dtype=torch.int64)

    def network(self, network: nn.Module) -> nn.Module:
        """`network`, from volumes to scores, as one that hands on the maps behind its scores."""
        return _Paired(network, self.classes)

    def losses(self, scores: Tensor, targets: Tensor) -> Tensor:
        """`map_losses` of what `network` gives, one for each row."""
        return map_losses(scores[:, : self.classes], scores[:, self.classes :])

    def moved(self, warp: Warp, copies: int = 1) -> Augmentation:
        """Copies of each row, each moved anew by `warp`."""
        return Augmentation(copies, _Moved(warp, self.classes))


class _Paired(nn.Module):
    def __init__(self, network: nn.Module, classes: int) -> None:
        super().__init__()
        self.inner, self.classes = network, classes

    def forward(self, rows: Tensor) -> Tensor:
        return torch.cat([self.inner(rows[:, : -self.classes]), rows[:, -self.classes :]], 1)


@final
@dataclass(frozen=True)
class _Moved:
    """A warp as augmentations draw: by a generator that they are given."""

    warp: Warp
    classes: int

    def __call__(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return torch.cat(self.warp(rows[:, : -self.classes], rows[:, -self.classes :]), 1)
