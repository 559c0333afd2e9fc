"""A public network that all begins with: teachers go on from it, and answer with corrections of what it says.

Students of maps: a copy of a network that learns from released answers, and from public maps beside them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from privlearn._checks import between
from privlearn.data.dataset import Dataset, as_tensor
from privlearn.errors import BadInput
from privlearn.teachers import Identity, Network, Teachers, Trained
from privlearn.teachers.answers import Answers
from privlearn.teachers.plan import Ball, PatePlan
from privlearn.transforms.modules import Scale
from privlearn.volumes.corrections import Corrections, Seen, as_probabilities
from privlearn.volumes.training import Training, maps_of, probabilities

#: How the public network learns, and how teachers and students go on from it.
LEARNING, TUNING = Training(steps=800), Training(steps=200, learning_rate=3e-3)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Start:
    """What is known before any private volume is met. Made by `learn`.

    Attributes:
        labelled: the public volumes with masks that the public network learned from.
        inputs: the public volumes that teachers can be asked about, scaled, shape (volumes, channels, *size).
        reference: that network's probabilities for `inputs`.
        corrections: codes of what teachers say beyond it.
        radius: what codes are clipped to: twice the median length of corrections by public stand-ins for teachers.
        tuning: how teachers and students go on from `network`.
        classes: how many there are.
    """

    _trained: nn.Module
    labelled: Dataset
    inputs: Tensor
    reference: Tensor
    corrections: Corrections
    radius: float
    tuning: Training
    classes: int

    @property
    def network(self) -> nn.Module:
        """A copy of the public network, a new one each time: training it on private volumes leaves the start public."""
        return copy.deepcopy(self._trained)

    @classmethod
    def learn(
        cls,
        labelled: Dataset,
        pool: Dataset,
        network: nn.Module,
        *,
        learning: Training = LEARNING,
        tuning: Training = TUNING,
        share: float = 2.0,
        seed: int = 0,
    ) -> Start:
        """Train `network` on public volumes, and look at what it says about the pool.

        Stand-ins for teachers go on from it with half of the public volumes each: how far they come from it tells the radius.
        (Teachers, whose volumes are new to it, come about twice as far.)

        Args:
            labelled: volumes with maps of classes, declared public.
            pool: volumes that teachers can be asked about, declared public; their maps are not looked at.
            network: untrained, from volumes to scores for each class and voxel. It is trained in place.
            learning: how it learns.
            tuning: how teachers, stand-ins and students go on from it.
            share: what codes are clipped to, over the stand-ins' median length.
            seed: of everything that is drawn; public.

        Raises:
            BadInput: data that are not declared public, or that don't say how many classes there are.
        """
        between("share", share, 1e-3, 1e3)
        if not pool.public:
            raise BadInput("what teachers are asked about is not protected: give a pool that is declared public")
        if labelled.classes is None:
            raise BadInput("the public volumes don't say how many classes there are: give pv.Dataset(..., classes=)")
        x, maps = public_maps(labelled, labelled.classes)
        inputs, half = scaled(pool), max(1, len(x) // 2)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            learning(network, x, maps)
            standing_in = [
                tuning(copy.deepcopy(network), x[own], maps[own])
                for own in (slice(None, half), slice(len(x) - half, None))
            ]
        reference = probabilities(network, inputs)
        corrections = Corrections(reference)
        codes = torch.cat([corrections.encode(probabilities(one, inputs)) for one in standing_in])
        # A network that nothing moves would leave no room at all.
        radius = max(share * float(codes.norm(dim=1).median()), 1e-3)
        # A copy: whoever goes on training `network` must not change what is public.
        return cls(copy.deepcopy(network), labelled, inputs, reference, corrections, radius, tuning, labelled.classes)

    def teachers(self, private: Dataset, count: int, *, folder: str | Path | None = None, jobs: int = 1) -> Teachers:
        """As many teachers on the private volumes, each going on from the public network; their answers are probabilities.

        Args:
            private: the records, with maps of classes; each is with one teacher, drawn by chance.
            count: how many there are.
            folder: where answers are kept, for an interrupted run to go on with: as secret as the records.
            jobs: processes that train at once.
        """
        recipe = Network(lambda: self.network, _Tuned(self.tuning, self.classes))
        # Half the memory; what is rounded off is far below any noise.
        return Seen(Trained(private, recipe, count, folder=folder, jobs=jobs), lambda said: said.softmax(1).half(),
                    "softmax")  # fmt: skip

    def correcting(self, teachers: Teachers) -> Teachers:
        """The same teachers, answering with codes: what their probabilities say beyond the reference."""
        return Seen(teachers, self.corrections.encode, self.corrections.describe())

    def plan(self, queries: int, teachers: int) -> PatePlan:
        """The questions to so many correcting teachers; noise is to be settled by `calibrate`."""
        return PatePlan(queries, teachers, Ball(self.radius))

    @property
    def reducer(self) -> Identity:
        """Codes are released as they are."""
        return Identity((self.corrections.size,))

    def student(self, plan: PatePlan, seed: int = 0) -> MapStudent:
        """A student that goes on from the public network with the corrected maps, noise held back, and the public maps."""
        noise = plan.noise_std
        return MapStudent(
            self.network, self.tuning, self.labelled, lambda codes: self.corrections.recovered(codes, noise), seed
        )


@final
@dataclass(frozen=True)
class _Tuned:
    """How a teacher is fitted on its volumes and maps of classes."""

    training: Training
    classes: int

    def __call__(self, network: nn.Module, x: Tensor, y: Tensor) -> None:
        """Train in place."""
        self.training(network, x, maps_of(y, self.classes))


@final
@dataclass(frozen=True, eq=False)
class MapStudent:
    """A recipe for students: a copy of `start`, trained on answers, and on public volumes about half as often.

    Attributes:
        start: what the student begins as; never changed.
        training: how it learns.
        labelled: public volumes with maps of classes; None: it learns from answers alone.
        recover: from the released numbers to maps, shape (queries, classes, *size); by default they are maps already.
        seed: of everything that is drawn; public.
    """

    start: nn.Module
    training: Training = Training()  # noqa: RUF009 - a frozen value
    labelled: Dataset | None = None
    recover: Callable[[Tensor], Tensor] = as_probabilities
    seed: int = 0

    def __call__(self, answers: Answers) -> nn.Module:
        """Train it.

        Raises:
            BadInput: public maps that are not declared public, or recovered answers that are no maps.
        """
        volumes, released = answers.learnable()
        maps = self.recover(released)
        if maps.dim() != volumes.dim() or maps.shape[2:] != volumes.shape[2:]:
            raise BadInput(
                f"answers become {tuple(maps.shape)} for volumes of shape {tuple(volumes.shape)}: expected a probability "
                "for each class and voxel"
            )
        if self.labelled is not None:
            known, truth = public_maps(self.labelled, maps.shape[1])
            times = max(1, len(volumes) // (2 * len(known)))
            volumes, maps = torch.cat([volumes, *[known] * times]), torch.cat([maps, *[truth] * times])
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            return self.training(copy.deepcopy(self.start), volumes, maps)


def public_maps(labelled: Dataset, classes: int) -> tuple[Tensor, Tensor]:
    """Public volumes, scaled as a student sees them, and their maps as probabilities.

    Raises:
        BadInput: they are not declared public.
    """
    if not labelled.public:
        raise BadInput(
            "maps that a student learns from beside the answers are not protected: give public ones, "
            "pv.Dataset(x, y, public=True)"
        )
    return scaled(labelled), maps_of(labelled.tensors()[1], classes)


def scaled(data: Dataset) -> Tensor:
    """The volumes of `data` as networks see them: clipped to their declared bounds, and scaled."""
    x = as_tensor(data.x, whole_is_float=data.low is not None)
    values: Tensor = x if data.low is None else Scale(*data.bounds())(x)
    return values
