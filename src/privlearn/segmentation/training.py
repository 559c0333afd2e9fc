"""How a network learns maps of classes from volumes: teachers on their own records, students, and what is public."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn._validate import count, positive
from privlearn.data.dataset import as_tensor
from privlearn.errors import BadInput
from privlearn.segmentation.warps import Warp

_AT_ONCE = 16


@final
@dataclass(frozen=True)
class Training:
    """Adam with a learning rate that rises and falls once, on cross-entropy plus soft Dice.

    For teachers, students and public data. `map_losses` alone is a loss for DP-SGD: one value for each example.

    Attributes:
        steps: of Adam.
        batch_size: volumes in a step, drawn with replacement.
        learning_rate: the highest.
        warp: how volumes and maps are moved in each step; None: not.
    """

    steps: int = 600
    batch_size: int = 4
    learning_rate: float = 1e-2
    warp: Warp | None = Warp()  # noqa: RUF009 - a frozen value

    def __post_init__(self) -> None:
        count("steps", self.steps), count("batch_size", self.batch_size)
        positive("learning_rate", self.learning_rate)

    def __call__(self, network: nn.Module, volumes: Tensor | NDArray[Any], maps: Tensor | NDArray[Any]) -> nn.Module:
        """Train `network` in place on volumes and the probabilities of classes in them, and return it.

        Args:
            network: from volumes to a score for each class and voxel.
            volumes: shape (rows, channels, *size); a tensor or an array.
            maps: shape (rows, classes, *size); the same.

        Raises:
            BadInput: not as many maps as volumes, or maps of another size.
        """
        volumes, maps = as_tensor(volumes, "volumes", whole_is_float=True), as_tensor(maps, "maps", whole_is_float=True)
        if len(volumes) != len(maps) or volumes.shape[2:] != maps.shape[2:]:
            raise BadInput(
                f"volumes of shape {tuple(volumes.shape)} and maps of {tuple(maps.shape)} don't go together: expected as "
                "many, of the same size, and maps with a probability for each class and voxel, as maps_of gives them"
            )
        descent = torch.optim.Adam(network.parameters(), self.learning_rate)
        rates = torch.optim.lr_scheduler.OneCycleLR(descent, self.learning_rate, total_steps=max(self.steps, 2))
        network.train()
        for _ in range(self.steps):
            rows = torch.randint(len(volumes), (self.batch_size,))
            seen, wanted = volumes[rows], maps[rows]
            if self.warp is not None:
                seen, wanted = self.warp(seen, wanted)
            descent.zero_grad()
            map_losses(network(seen), wanted).mean().backward()  # type: ignore[no-untyped-call]
            descent.step()
            rates.step()
        return network.eval()


def map_losses(scores: Tensor, maps: Tensor) -> Tensor:
    """Cross-entropy (the mean over voxels) plus one minus soft Dice (the mean over classes), one for each row.

    Args:
        scores: shape (rows, classes, *size).
        maps: classes, whole numbers (rows, *size), or probabilities of classes (rows, classes, *size).
    """
    classes = scores.shape[1]
    wanted = maps if maps.is_floating_point() else maps_of(maps, classes)
    entropy = -(wanted * scores.log_softmax(1)).sum(1).flatten(1).mean(1)
    found, truth = scores.softmax(1)[:, 1:].flatten(2), wanted[:, 1:].flatten(2)
    # One more above and below, so that classes that are in neither don't count.
    overlap = (2 * (found * truth).sum(2) + 1) / (found.sum(2) + truth.sum(2) + 1)
    return entropy + 1 - overlap.mean(1)


def maps_of(labels: Tensor | NDArray[Any], classes: int) -> Tensor:
    """Maps of classes, a tensor or an array of shape (rows, *size), as probabilities, shape (rows, classes, *size)."""
    whole = labels if isinstance(labels, Tensor) else as_tensor(labels, "labels")
    return F.one_hot(whole.long(), classes).movedim(-1, 1).float()


@torch.no_grad()
def probabilities(network: nn.Module, volumes: Tensor | NDArray[Any]) -> Tensor:
    """What a network says of each class and voxel of volumes, a tensor or an array: shape (rows, classes, *size)."""
    volumes = as_tensor(volumes, "volumes", whole_is_float=True)
    return torch.cat([network(part).softmax(1) for part in volumes.split(_AT_ONCE)])  # type: ignore[no-untyped-call]
