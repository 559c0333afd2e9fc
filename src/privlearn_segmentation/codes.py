"""What teachers' maps are released as: short codes, by a reducer that is fitted on public maps.

Three ways: corrections of a public network's maps, and the two of Fay et al. (2020), principal
components of maps and an autoencoder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from privlearn._checks import one_of
from privlearn.data.dataset import Dataset
from privlearn.methods.pate import Autoencoder, PublicPCA, Reducer, Teachers
from privlearn.methods.pate.plan import Ball, PatePlan
from privlearn.models import volume_decoder, volume_encoder
from privlearn_segmentation.plan import AUTOENCODER_SIZE, CORRECTIONS, WAYS
from privlearn_segmentation.start import MapStudent, Seen, Start, as_probabilities, public_maps
from privlearn_segmentation.training import Warp

#: Moved copies of the public masks that reducers are fitted on, beside the public network's maps.
_MOVED = 100
#: Of the codes of public maps by principal components, the share within the radius.
_SHARE = 0.9
#: Epochs of the autoencoder over the public maps.
_EPOCHS = 16


@final
@dataclass(frozen=True, eq=False, repr=False)
class MapCodes:
    """Codes of maps for one plan. Everything here follows from public maps and the plan's noise.

    Attributes:
        plan: with the radius that codes are clipped to.
        reducer: from maps, or corrections of them, to codes.
        recover: from what is released to probabilities, shape (queries, classes, *size).
    """

    plan: PatePlan
    reducer: Reducer
    recover: Callable[[Tensor], Tensor]
    _start: Start
    _corrections: bool

    @classmethod
    def choose(cls, name: str | None, plan: PatePlan, start: Start) -> MapCodes:
        """The codes of one of `WAYS`.

        Args:
            name: of the way; None: corrections.
            plan: with its noise, but for the radius.
            start: what was learned from public volumes.

        Raises:
            BadInput: there is no such way; no principal component is above the noise; or maps that
                are not of three dimensions, which the last two ways need.
        """
        one_of("codes", name or CORRECTIONS, WAYS)
        if name == "pca":
            return cls._by_components(plan, start)
        if name == "autoencoder":
            return cls._by_autoencoder(plan, start)
        settled = replace(plan, aggregate=Ball(start.radius))
        recover = start.student(settled).recover
        return cls(settled, start.reducer, recover, start, True)

    @classmethod
    def _by_components(cls, plan: PatePlan, start: Start) -> MapCodes:
        maps = draw_moved_maps(start)
        components = PublicPCA.fit(maps)
        settled = replace(plan, aggregate=Ball(components.radius(maps, _SHARE)))
        reducer = components.for_noise(settled.noise_std)
        return cls(settled, reducer, as_probabilities, start, False)

    @classmethod
    def _by_autoencoder(cls, plan: PatePlan, start: Start) -> MapCodes:
        settled = replace(plan, aggregate=Ball(1.0))
        reducer = fit_autoencoder(draw_moved_maps(start), settled.noise_std)
        return cls(settled, reducer, as_probabilities, start, False)

    def answering(self, teachers: Teachers) -> Teachers:
        """The same teachers, answering with what the reducer takes."""
        if self._corrections:
            return self._start.correcting(teachers)
        return Seen(teachers, _in_single_precision, "probabilities of classes")

    def student(self) -> MapStudent:
        """A student that goes on from the public network on the released maps and the public
        ones.
        """
        return replace(self._start.student(self.plan), recover=self.recover)


def _in_single_precision(maps: Tensor) -> Tensor:
    return maps.float()


def draw_moved_maps(start: Start, seed: int = 0) -> Dataset:
    """Public maps that a reducer is fitted on: masks, each moved at random, and the public
    network's maps of the volumes to ask about.

    Args:
        start: what was learned from public volumes.
        seed: of the movements; public.

    Raises:
        BadInput: maps that are not of three dimensions.
    """
    x, maps = public_maps(start.labelled, start.classes)
    warp = Warp(mirror=0.0)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        moved = [warp(x, maps)[1] for _ in range(-(-_MOVED // len(x)))]
    targets = torch.cat([*moved, start.reference])
    return Dataset(targets, targets, public=True)


def fit_autoencoder(
    maps: Dataset, noise_std: float, *, epochs: int = _EPOCHS, seed: int = 0
) -> Autoencoder:
    """The autoencoder of Fay et al. (2020), trained with noise on public maps.

    Args:
        maps: probabilities of classes in y, shape (maps, classes, depth, height, width), declared
            public.
        noise_std: standard deviation of the release's noise on each number of a code.
        epochs: times that each map is seen.
        seed: of initial weights and of everything that is drawn; public.

    Raises:
        BadInput: as `Autoencoder.fit`.
    """
    shape = tuple(maps.y.shape[1:])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder = volume_encoder(shape, AUTOENCODER_SIZE)
        decoder = volume_decoder(shape, AUTOENCODER_SIZE, middle=maps.y.mean(0))
    return Autoencoder.fit(
        maps,
        AUTOENCODER_SIZE,
        noise_std,
        encoder=encoder,
        decoder=decoder,
        loss="cross_entropy",
        epochs=epochs,
        batch_size=16,
        learning_rate=5e-3,
        seed=seed,
    )
