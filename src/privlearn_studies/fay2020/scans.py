"""What is public in the studies of segmentation: volumes, a U-Net that learned from few of them,
and what follows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from privlearn.data.dataset import Dataset
from privlearn.data.named import load
from privlearn.methods.pate import PublicPCA
from privlearn.models import networks
from privlearn_segmentation import Start, Training, dice
from privlearn_segmentation.codes import draw_moved_maps
from privlearn_segmentation.hippocampus import LABELLED, POOL, Parts, split
from privlearn_studies.fay2020.tumours import tumours

#: Of public codes, the share within the radius that codes of principal components are clipped to.
_CODES_SHARE = 0.9
HIPPOCAMPUS, TUMOURS = "hippocampus", "tumours"


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
        data: `HIPPOCAMPUS` or `TUMOURS`.
        start: the U-Net that learned from the public masks, what it says of the volumes that
            teachers can be asked about (the pool and its mirror images), and corrections of that.
        maps: probabilities that the autoencoder is fitted on: moved public masks, and the
            reference.
        pca: all principal components of these.
        pca_radius: what their codes are clipped to.
        logits: all principal components of the reference's logits.
        logits_radius: what their codes are clipped to.
    """

    data: str
    start: Start
    maps: Dataset
    pca: PublicPCA
    pca_radius: float
    logits: PublicPCA
    logits_radius: float


def volumes(data: str) -> Dataset:
    """All volumes: those of persons, or those that a program draws."""
    return tumours() if data == TUMOURS else load(HIPPOCAMPUS)


@lru_cache(maxsize=2)
def parts(data: str = HIPPOCAMPUS) -> Parts:
    """The volumes in four parts."""
    return split(replace(volumes(data), name=HIPPOCAMPUS))  # both have the same parts


def classes_of(data: Dataset) -> int:
    """How many classes a voxel may have."""
    assert data.classes is not None
    return data.classes


def fresh(data: str, seed: int) -> nn.Module:
    """An untrained U-Net."""
    volumes = parts(data).private
    classes = classes_of(volumes)
    return networks.build(
        "unet", volumes.x.shape[1:], classes, np.random.default_rng([seed, classes])
    )


def chosen(labelled: int, seed: int, data: str = HIPPOCAMPUS) -> Dataset:
    """The public volumes with masks of a run: so many of the eight, others for other seeds."""
    whole = parts(data).labelled
    places = (seed * labelled + np.arange(labelled)) % LABELLED
    return replace(whole, x=whole.x[places], y=whole.y[places])


@lru_cache(maxsize=2)
def public_side(labelled: int, seed: int, settings: Settings, data: str = HIPPOCAMPUS) -> Public:
    """Train the public U-Net on `labelled` volumes, and prepare what rests on it."""
    labelled_volumes, pool = chosen(labelled, seed, data), parts(data).pool
    asked = replace(pool, x=np.concatenate([pool.x, np.flip(pool.x, 2)]), y=None)
    start = Start.learn(
        labelled_volumes,
        asked,
        fresh(data, seed),
        seed=seed,
        learning=Training(steps=settings.public),
        tuning=Training(steps=settings.teacher, learning_rate=3e-3),
    )
    logits = logits_of(start.reference)
    reduced = [draw_moved_maps(start, seed), Dataset(logits, logits, public=True)]
    every = [PublicPCA.fit(part) for part in reduced]
    return Public(
        data,
        start,
        reduced[0],
        every[0],
        every[0].radius(reduced[0], _CODES_SHARE),
        every[1],
        every[1].radius(reduced[1], _CODES_SHARE),
    )


def logits_of(said: Tensor) -> Tensor:
    """Scores that belong to probabilities (rows, classes, *size), with their mean over classes at
    0.
    """
    logits = said.float().clamp(min=1e-6).log()
    return logits - logits.mean(1, keepdim=True)


def scores(maps: Tensor, truth: Dataset | Tensor) -> tuple[float, ...]:
    """Dice of each class, of probabilities or scores (volumes, classes, *size)."""
    masks = truth.tensors()[1] if isinstance(truth, Dataset) else truth
    return tuple(dice(maps.argmax(1), masks, maps.shape[1]))


@lru_cache(maxsize=2)
def pool_truth(data: str = HIPPOCAMPUS) -> Tensor:
    """The pool's masks and their mirror images, which no method looks at: for figures on
    answers.
    """
    masks = torch.from_numpy(
        np.asarray(volumes(data).y_test)[LABELLED : LABELLED + POOL].astype(np.int64)
    )
    return torch.cat([masks, masks.flip(1)])
