"""What is public in `pate-segmentation`: volumes, a U-Net that learned from few of them, and what follows from it alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from privlearn import models
from privlearn.data.dataset import Dataset
from privlearn.data.named import load
from privlearn.data.volumes import CLASSES, LABELLED, POOL, Parts, split
from privlearn.reducers import PCA
from privlearn.segmentation import Corrections, Training, Warp, dice, maps_of, probabilities
from privlearn.segmentation.warps import mirrored

#: How many moved copies of the public maps reducers are fitted on, beside the public network's own predictions.
_MOVED = 100
#: Of proxies' codes, the share of the median length that corrections are clipped to.
_RADIUS_SHARE = 0.7
#: Of public codes, the share within the radius that codes of principal components are clipped to.
_CODES_SHARE = 0.9


@final
@dataclass(frozen=True)
class Settings:
    """How long networks learn; public numbers.

    Attributes:
        public: steps of the public U-Net.
        teacher: steps of a teacher, which begins as the public U-Net.
        student: steps of a student, likewise.
        alone: steps of a student from nothing.
        epochs: of the autoencoder.
    """

    public: int = 800
    teacher: int = 150
    student: int = 150
    alone: int = 400
    epochs: int = 16


@final
@dataclass(frozen=True, eq=False)
class Public:
    """The public side of a run; nothing here saw a private volume.

    Attributes:
        labelled: the public volumes with masks.
        volumes: what teachers can be asked about: the pool and its mirror images.
        network: the U-Net that learned from `labelled`.
        reference: its probabilities for `volumes`.
        corrections: codes beside that reference.
        radius: what corrections are clipped to.
        maps: probabilities that the autoencoder is fitted on: moved masks of `labelled`, and the reference.
        pca: all principal components of these.
        pca_radius: what their codes are clipped to.
        logits: all principal components of the network's scores for `volumes`.
        logits_radius: what their codes are clipped to.
    """

    labelled: Dataset
    volumes: Tensor
    network: nn.Module
    reference: Tensor
    corrections: Corrections
    radius: float
    maps: Dataset
    pca: PCA
    pca_radius: float
    logits: PCA
    logits_radius: float


@lru_cache(maxsize=1)
def parts() -> Parts:
    """The hippocampus volumes."""
    return split(load("hippocampus"))


def fresh(shape: Sequence[int], seed: int) -> nn.Module:
    """An untrained U-Net."""
    return models.build("unet", tuple(shape), CLASSES, np.random.default_rng([seed, CLASSES]))


def chosen(labelled: int, seed: int) -> Dataset:
    """The public volumes with masks of a run: so many of the eight, others for other seeds."""
    whole = parts().labelled
    places = (seed * labelled + np.arange(labelled)) % LABELLED
    return replace(whole, x=whole.x[places], y=whole.y[places])


@lru_cache(maxsize=2)
def public_side(labelled: int, seed: int, settings: Settings) -> Public:
    """Train the public U-Net on `labelled` volumes, and prepare what rests on it."""
    own = chosen(labelled, seed)
    x, y = own.tensors()
    maps = maps_of(y, CLASSES)
    pool = parts().pool.tensors()[0]
    volumes = torch.cat([pool, mirrored(pool)])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = Training(steps=settings.public)(fresh(x.shape[1:], seed), x, maps)
        # Stand-ins for teachers, each with half of the volumes: they tell how long corrections are.
        half = max(1, labelled // 2)
        proxies = [
            Training(steps=settings.teacher, learning_rate=3e-3)(copy.deepcopy(network), x[own_half], maps[own_half])
            for own_half in (slice(None, half), slice(labelled - half, None))
        ]
        warp = Warp(mirror=0.0)
        moved = [warp(x, maps)[1] for _ in range(-(-_MOVED // labelled))]
    reference = probabilities(network, volumes)
    corrections = Corrections(reference)
    lengths = torch.cat([corrections.encode(probabilities(proxy, volumes)).norm(dim=1) for proxy in proxies])
    with torch.no_grad():
        logits = network(volumes)
    targets = torch.cat([*moved, reference])
    reduced = [Dataset(part, part, public=True) for part in (targets, logits)]
    every = [PCA.fit(part) for part in reduced]
    return Public(
        own, volumes, network, reference, corrections, _RADIUS_SHARE * float(lengths.median()), reduced[0], every[0],
        every[0].radius(reduced[0], _CODES_SHARE), every[1], every[1].radius(reduced[1], _CODES_SHARE),
    )  # fmt: skip


def scores(found: Tensor, truth: Dataset | Tensor) -> tuple[float, ...]:
    """Dice of each class, of probabilities or scores (volumes, classes, *size)."""
    masks = truth.tensors()[1] if isinstance(truth, Dataset) else truth
    return tuple(dice(found.argmax(1), masks, CLASSES))


@lru_cache(maxsize=1)
def pool_truth() -> Tensor:
    """The pool's masks and their mirror images, which no method looks at: for figures on answers."""
    data = load("hippocampus")
    masks = torch.from_numpy(np.asarray(data.y_test)[LABELLED : LABELLED + POOL].astype(np.int64))
    return torch.cat([masks, masks.flip(1)])
