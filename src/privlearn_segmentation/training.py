"""Volumes and their maps, moved alike: mirrored, turned, stretched, shifted, and cut to patches.

How a network learns maps of classes from volumes: teachers on their own records, students, and what
is public.

Volumes that carry their maps as further channels: whatever moves the one moves the other, under
DP-SGD, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn._checks import between, checked, count, positive, with_plain_numbers
from privlearn.core.clipping.augmentation import Augmentation
from privlearn.core.tensors import as_tensor
from privlearn.errors import BadInput


@checked
@final
@dataclass(frozen=True)
class Warp:
    """Moves each volume of a batch by itself, at random, together with its map.

    Draws from PyTorch's global generator, as augmentations do.

    Attributes:
        angle: largest turn about each axis, in radians.
        stretch: largest relative change of each axis' length.
        shift: largest shift along each axis, as a share of half its length.
        mirror: the chance that the first axis (left and right) is mirrored.
        patch: the size of the patch that is cut out, somewhere, the same for the whole batch; None:
            whole volumes.
    """

    angle: float = 0.25
    stretch: float = 0.1
    shift: float = 0.1
    mirror: float = 0.5
    patch: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        for name in ("angle", "stretch", "shift"):
            between(name, getattr(self, name), 0.0, 1.0)
        between("mirror", self.mirror, 0.0, 1.0)
        for side in self.patch or ():
            count("a side of patch", side)

    def __call__(self, volumes: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
        """Move `volumes` (rows, channels, *size) and `maps` (rows, classes, *size),
        three-dimensional both.

        What comes in from outside is 0 in volumes, and the nearest voxel's class in maps.

        Raises:
            BadInput: no volumes of three dimensions, or smaller ones than the patch.
        """
        if volumes.dim() != 5 or maps.shape[2:] != volumes.shape[2:]:
            raise BadInput(
                f"volumes of shape {tuple(volumes.shape)} and maps of {tuple(maps.shape)} can't be "
                "moved: expected three dimensions behind rows and channels, the same for both"
            )
        grid = F.affine_grid(
            self._matrices(len(volumes)), [len(volumes), 1, *volumes.shape[2:]], align_corners=False
        )
        moved = F.grid_sample(volumes, grid, align_corners=False)
        turned = F.grid_sample(maps, grid, align_corners=False, padding_mode="border")
        return self._cut(moved, turned)

    def _matrices(self, rows: int) -> Tensor:
        """An affine map of coordinates by row, shape (rows, 3, 4); the last coordinate is the
        volume's first axis.
        """
        angles = self.angle * _uniform(rows, 3)
        matrices = torch.eye(3, device="cpu").expand(rows, 3, 3)
        for at, (one, other) in enumerate(((0, 1), (0, 2), (1, 2))):
            turn = torch.eye(3, device="cpu").repeat(rows, 1, 1)
            turn[:, one, one] = turn[:, other, other] = angles[:, at].cos()
            turn[:, one, other], turn[:, other, one] = -angles[:, at].sin(), angles[:, at].sin()
            matrices = matrices @ turn
        lengths = 1 + self.stretch * _uniform(rows, 3)
        lengths[:, 2] *= torch.where(torch.rand(rows, device="cpu") < self.mirror, -1.0, 1.0)
        return torch.cat(
            [matrices * lengths[:, None, :], self.shift * _uniform(rows, 3)[:, :, None]], 2
        )

    def _cut(self, volumes: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
        if self.patch is None:
            return volumes, maps
        places = []
        for size, side in zip(volumes.shape[2:], self.patch, strict=True):
            if side > size:
                raise BadInput(
                    f"patches of {self.patch} can't be cut out of volumes of "
                    f"{tuple(volumes.shape[2:])}"
                )
            start = int(torch.randint(size - side + 1, (), device="cpu"))
            places.append(slice(start, start + side))
        return volumes[:, :, *places], maps[:, :, *places]


def _uniform(rows: int, numbers: int) -> Tensor:
    """Numbers between -1 and 1."""
    return 2 * torch.rand(rows, numbers, device="cpu") - 1


_MOST_CLASSES = 1 << 16
_AT_ONCE = 16


@with_plain_numbers
@final
@dataclass(frozen=True)
class Training:
    """Adam with a learning rate that rises and falls once, on cross-entropy plus soft Dice.

    For teachers, students and public data. `map_losses` alone is a loss for DP-SGD: one value for
    each example.

    Attributes:
        steps: of Adam.
        batch_size: volumes in a step, drawn with replacement.
        learning_rate: the highest.
        warp: how volumes and maps are moved in each step; None: not.
    """

    steps: int = 600
    batch_size: int = 4
    learning_rate: float = 1e-2
    warp: Warp | None = Warp()

    def __post_init__(self) -> None:
        count("steps", self.steps), count("batch_size", self.batch_size)
        positive("learning_rate", self.learning_rate)

    def __call__(
        self, network: nn.Module, volumes: Tensor | NDArray[Any], maps: Tensor | NDArray[Any]
    ) -> nn.Module:
        """Train `network` in place on volumes and the probabilities of classes in them, and return
        it.

        Args:
            network: from volumes to a score for each class and voxel.
            volumes: shape (rows, channels, *size); a tensor or an array.
            maps: shape (rows, classes, *size); the same.

        Raises:
            BadInput: not as many maps as volumes, maps of another size, or a network that can't
                run on the volumes.
        """
        volumes, maps = (
            as_tensor(volumes, "volumes", whole_is_float=True),
            as_tensor(maps, "maps", whole_is_float=True),
        )
        if len(volumes) != len(maps) or volumes.shape[2:] != maps.shape[2:]:
            raise BadInput(
                f"volumes of shape {tuple(volumes.shape)} and maps of {tuple(maps.shape)} don't go "
                "together: expected as many, of the same size, and maps with a probability for "
                "each class and voxel, as maps_of gives them"
            )
        descent = torch.optim.Adam(network.parameters(), self.learning_rate)
        rates = torch.optim.lr_scheduler.OneCycleLR(
            descent, self.learning_rate, total_steps=max(self.steps, 2)
        )
        network.train()
        for _ in range(self.steps):
            rows = torch.randint(len(volumes), (self.batch_size,), device="cpu")
            seen, wanted = volumes[rows], maps[rows]
            if self.warp is not None:
                seen, wanted = self.warp(seen, wanted)
            descent.zero_grad()
            map_losses(_scores_of(network, seen), wanted).mean().backward()  # type: ignore[no-untyped-call]
            descent.step()
            rates.step()
        return network.eval()


@checked
def map_losses(scores: Tensor, maps: Tensor) -> Tensor:
    """Cross-entropy (the mean over voxels) plus one minus soft Dice (the mean over classes), one
    for each row.

    Args:
        scores: shape (rows, classes, *size).
        maps: classes, whole numbers (rows, *size), or probabilities of classes (rows, classes,
            *size).
    """
    if scores.dim() < 3 or maps.shape not in (scores.shape, scores.shape[:1] + scores.shape[2:]):
        raise BadInput(
            f"scores have shape {tuple(scores.shape)} and maps {tuple(maps.shape)}: expected "
            "(rows, classes, *size), and the same or (rows, *size)"
        )
    classes = scores.shape[1]
    wanted = maps if maps.is_floating_point() else _one_hot(maps, classes)
    entropy = -(wanted * scores.log_softmax(1)).sum(1).flatten(1).mean(1)
    shares, truth = scores.softmax(1)[:, 1:].flatten(2), wanted[:, 1:].flatten(2)
    # One more above and below, so that classes that are in neither don't count.
    overlap = (2 * (shares * truth).sum(2) + 1) / (shares.sum(2) + truth.sum(2) + 1)
    return entropy + 1 - overlap.mean(1)


@checked
def maps_of(labels: Tensor | NDArray[Any], classes: int) -> Tensor:
    """Maps of classes, a tensor or an array of shape (rows, *size), as probabilities, shape (rows,
    classes, *size).
    """
    whole = labels if isinstance(labels, Tensor) else as_tensor(labels, "labels")
    count("classes", classes, most=_MOST_CLASSES)
    if whole.numel() and not 0 <= float(whole.min()) <= float(whole.max()) < classes:
        raise BadInput(
            f"labels lie beyond the {classes} classes: expected whole numbers from 0 to "
            f"{classes - 1}"
        )
    return _one_hot(whole, classes)


def _one_hot(labels: Tensor, classes: int) -> Tensor:
    return F.one_hot(labels.long(), classes).movedim(-1, 1).float()


@torch.no_grad()
@checked
def probabilities(network: nn.Module, volumes: Tensor | NDArray[Any]) -> Tensor:
    """What a network says of each class and voxel of volumes, a tensor or an array: shape (rows,
    classes, *size).
    """
    volumes = as_tensor(volumes, "volumes", whole_is_float=True)
    parts = volumes.split(_AT_ONCE)  # type: ignore[no-untyped-call]
    return torch.cat([_scores_of(network, part).softmax(1) for part in parts])


def _scores_of(network: nn.Module, volumes: Tensor) -> Tensor:
    """What a network gives for volumes.

    Raises:
        BadInput: it can't run on them.
    """
    try:
        scores: Tensor = network(volumes)
    except (RuntimeError, TypeError, IndexError) as error:
        raise BadInput(
            f"the network cannot run on volumes of shape {tuple(volumes.shape)}: expected one that "
            "takes (rows, channels, *size)"
        ) from error
    return scores


@with_plain_numbers
@final
@dataclass(frozen=True)
class Pairs:
    """What DP-SGD needs to learn from moved volumes: augmentations change inputs alone, so maps
    ride along in these.

        pairs = Pairs(classes=3)
        pv.dpsgd(plan, pairs.network(unet), pairs.losses, pairs.rows(volumes, masks),
        augmentation=pairs.moved(Warp(), 2))

    trains `unet` in place. A row is a volume with its map, and its copies are one example: the mean
    of their gradients is clipped as one, so that the sensitivity and the price are those without
    copies.

    Attributes:
        classes: how many there are in a map, the background included.
    """

    classes: int

    def __post_init__(self) -> None:
        count("classes", self.classes, least=2)

    def rows(
        self, volumes: Tensor | NDArray[Any], masks: Tensor | NDArray[Any]
    ) -> tuple[Tensor, Tensor]:
        """Inputs and targets for `pv.dpsgd`: volumes with the maps of their masks behind them; the
        targets say nothing.

        Args:
            volumes: shape (rows, channels, *size).
            masks: classes, whole numbers of shape (rows, *size).
        """
        seen = torch.cat(
            [torch.as_tensor(volumes, device="cpu").float(), maps_of(masks, self.classes)], 1
        )
        return seen, torch.zeros(len(seen), dtype=torch.int64, device="cpu")

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
