"""What is public in `pate-segmentation`: volumes, a U-Net that learned from few of them, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from privlearn.data.dataset import Dataset
from privlearn.data.hippocampus import CLASSES, LABELLED, POOL, Parts, split
from privlearn.data.named import load
from privlearn.models import networks
from privlearn.teachers import PublicPCA
from privlearn.volumes import Start, Training, Warp, dice
from privlearn.volumes.start import public_maps

#: How many moved copies of the public maps reducers are fitted on, beside the public network's own predictions.
_MOVED = 100
#: Of public codes, the share within the radius that codes of principal components are clipped to.
_CODES_SHARE = 0.9


@final
@dataclass(frozen=True)
class Settings:
    """How long networks learn; public numbers.

    Attributes:
        public: steps of the public U-Net.
        teacher: steps of a teacher or a student, which begin as the public U-Net.
        alone: steps of a student from nothing.
        epochs: of the autoencoder.
    """

    public: int = 800
    teacher: int = 200
    alone: int = 400
    epochs: int = 16


@final
@dataclass(frozen=True, eq=False)
class Public:
    """The public side of a run; nothing here saw a private volume.

    Attributes:
        start: the U-Net that learned from the public masks, what it says of the volumes that teachers can be asked
            about (the pool and its mirror images), and corrections of that.
        maps: probabilities that the autoencoder is fitted on: moved public masks, and the reference.
        pca: all principal components of these.
        pca_radius: what their codes are clipped to.
        logits: all principal components of the reference's logits.
        logits_radius: what their codes are clipped to.
    """

    start: Start
    maps: Dataset
    pca: PublicPCA
    pca_radius: float
    logits: PublicPCA
    logits_radius: float


@lru_cache(maxsize=1)
def parts() -> Parts:
    """The hippocampus volumes."""
    return split(load("hippocampus"))


def fresh(shape: Sequence[int], seed: int) -> nn.Module:
    """An untrained U-Net."""
    return networks.build("unet", tuple(shape), CLASSES, np.random.default_rng([seed, CLASSES]))


def chosen(labelled: int, seed: int) -> Dataset:
    """The public volumes with masks of a run: so many of the eight, others for other seeds."""
    whole = parts().labelled
    places = (seed * labelled + np.arange(labelled)) % LABELLED
    return replace(whole, x=whole.x[places], y=whole.y[places])


@lru_cache(maxsize=2)
def public_side(labelled: int, seed: int, settings: Settings) -> Public:
    """Train the public U-Net on `labelled` volumes, and prepare what rests on it."""
    own, pool = chosen(labelled, seed), parts().pool
    x, maps = public_maps(own, CLASSES)
    asked = replace(pool, x=np.concatenate([pool.x, np.flip(pool.x, 2)]), y=None)
    start = Start.learn(
        own, asked, fresh(x.shape[1:], seed), seed=seed,
        learning=Training(steps=settings.public), tuning=Training(steps=settings.teacher, learning_rate=3e-3),
    )  # fmt: skip
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        warp = Warp(mirror=0.0)
        moved = [warp(x, maps)[1] for _ in range(-(-_MOVED // labelled))]
    targets = torch.cat([*moved, start.reference])
    reduced = [Dataset(part, part, public=True) for part in (targets, logits_of(start.reference))]
    every = [PublicPCA.fit(part) for part in reduced]
    return Public(
        start, reduced[0], every[0], every[0].radius(reduced[0], _CODES_SHARE), every[1],
        every[1].radius(reduced[1], _CODES_SHARE),
    )  # fmt: skip


def logits_of(said: Tensor) -> Tensor:
    """Scores that belong to probabilities (rows, classes, *size), with their mean over classes at 0."""
    logits = said.float().clamp(min=1e-6).log()
    return logits - logits.mean(1, keepdim=True)


def scores(maps: Tensor, truth: Dataset | Tensor) -> tuple[float, ...]:
    """Dice of each class, of probabilities or scores (volumes, classes, *size)."""
    masks = truth.tensors()[1] if isinstance(truth, Dataset) else truth
    return tuple(dice(maps.argmax(1), masks, CLASSES))


@lru_cache(maxsize=1)
def pool_truth() -> Tensor:
    """The pool's masks and their mirror images, which no method looks at: for figures on answers."""
    data = load("hippocampus")
    masks = torch.from_numpy(np.asarray(data.y_test)[LABELLED : LABELLED + POOL].astype(np.int64))
    return torch.cat([masks, masks.flip(1)])
