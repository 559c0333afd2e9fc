"""A public network that all begins with: teachers go on from it, and answer with corrections of
what it says.

What is known without any teacher is taken off their answers before these are clipped. A public
network's own predictions for the queries are such a reference. Teachers mostly agree with it, so
what they say beyond it is short, is clipped to a small ball, and gets little noise. A reference is
public: it changes no sensitivity.

Students of maps: a copy of a network that learns from released answers, and from public maps beside
them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from privlearn._checks import between, checked, count
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.core.streams import Streams
from privlearn.core.tensors import as_tensor
from privlearn.data.dataset import Dataset, require_others
from privlearn.errors import BadInput
from privlearn.methods.pate import Identity, Network, Teachers, Trained
from privlearn.methods.pate.answers import Answers
from privlearn.methods.pate.ensemble import Progress
from privlearn.methods.pate.plan import Ball, PatePlan
from privlearn.methods.pate.sums import Shapes
from privlearn.methods.pate.trained import fingerprint
from privlearn.runs.code_digest import code_digest
from privlearn.transforms.modules import Scale
from privlearn_segmentation.training import Training, maps_of, probabilities

#: Of the longest direction's square, what is too short to be a direction.
_HARDLY = 1e-6


@checked
@final
class Seen(Teachers):
    """Teachers whose answers are seen through a public function: logits as probabilities, say, or
    as corrections.

    Guarantee: each teacher's answers go through the function by themselves, so one record still
    reaches one teacher's answers only. A teacher for whose answers the function fails has none, and
    nothing says so.

    Args:
        teachers: the ensemble.
        through: from one teacher's answers, a row for each query, to what is asked for, a row for
            each query; public, and without memory.
        what: public words that tell this function from others, for certificates and interrupted
            runs.
    """

    def __init__(
        self,
        teachers: Teachers,
        through: Callable[[Tensor], Tensor],
        what: str = "a public function",
    ) -> None:
        self._teachers, self._through, self._what = teachers, through, what

    @property
    def count(self) -> int:
        """How many there are."""
        return self._teachers.count

    def require_covered(self, adjacency: Adjacency, unit: PrivacyUnit) -> None:
        """As the teachers that are looked at."""
        self._teachers.require_covered(adjacency, unit)

    def require_others(self, inputs: Tensor) -> None:
        """As the teachers that are looked at."""
        self._teachers.require_others(inputs)

    def require_same(self, inputs: Tensor) -> None:
        """As the teachers that are looked at."""
        self._teachers.require_same(inputs)

    def determined(self, inputs: Tensor) -> dict[str, str]:
        """As the teachers that are looked at, and the code of what they are seen through."""
        return self._teachers.determined(inputs) | {"seen through": code_digest(self._through)}

    def describe(self) -> dict[str, Any]:
        """As the teachers that are looked at, and through what."""
        description = self._teachers.describe()
        return description | {"seen_through": [*description.get("seen_through", []), self._what]}

    def answers(
        self,
        inputs: Tensor,
        streams: Streams,
        progress: Progress | None = None,
        shapes: Shapes | None = None,
    ) -> Iterator[Tensor | None]:
        """Each teacher's answers, seen through the function. Of which shape they are before is not
        judged.
        """
        for said in self._teachers.answers(inputs, streams, progress):
            yield None if said is None else self._see(said)

    def _see(self, said: Tensor) -> Tensor | None:
        try:
            return self._through(said)
        except Exception:
            return None


@checked
@final
class Corrections:
    """Short codes of what probabilities say beyond a public reference, in a few smooth directions
    for each query.

    A direction raises the score of one class by a slow wave over the volume: a product of cosines,
    of `order` half waves in all. It moves the reference most where that is unsure, at the borders
    of its segments, and hardly elsewhere. Codes are in an orthonormal basis of these directions,
    the one nearest to them, so a code's L2 norm is that of the change of the maps, and numbers mean
    the same in all queries.

    Args:
        reference: public probabilities for each query, shape (queries, classes, *size).
        order: most half waves over the volume, along all axes together.

    Raises:
        BadInput: a reference that is not finite, or no probabilities of volumes.
    """

    def __init__(self, reference: Tensor, order: int = 3) -> None:
        count("order", order, least=0, most=8)
        sums = (
            reference.sum(1)
            if reference.dim() > 2 and reference.numel()
            else torch.zeros(1, device="cpu")
        )
        if not bool(reference.isfinite().all()) or float((sums - 1).abs().max()) > 1e-3:
            raise BadInput(
                f"the reference has shape {tuple(reference.shape)} and sums from "
                f"{float(sums.min()):.3g} to {float(sums.max()):.3g}: expected finite "
                "probabilities of classes, shape (queries, classes, *size)"
            )
        self._shape = reference.shape[2:]
        self._reference = reference.float().flatten(2)
        self._waves = _waves(tuple(self._shape), order)
        self._whitening = torch.stack([self._root(maps) for maps in self._reference])

    @property
    def size(self) -> int:
        """Numbers in a code."""
        return self._whitening.shape[1]

    def describe(self) -> str:
        """What tells these from corrections of another reference."""
        return (
            f"{self.size} corrections of a public reference (SHA-256 "
            f"{fingerprint(self._reference, self._waves)[:16]})"
        )

    def encode(self, said: Tensor) -> Tensor:
        """Codes, shape (rows, size), of a teacher's probabilities for the first queries, (rows,
        classes, *size).
        """
        reference = self._reference[: len(said)]
        along = self._along(reference, said.float().flatten(2) - reference)
        return torch.einsum("qij,qj->qi", self._whitening[: len(said)], along)

    def decode(self, codes: Tensor) -> Tensor:
        """The reference of the first queries, corrected: probabilities, shape (rows, classes,
        *size).
        """
        reference = self._reference[: len(codes)]
        weights = torch.einsum("qij,qj->qi", self._whitening[: len(codes)], codes.float())
        raised = weights.view(len(codes), reference.shape[1] - 1, -1) @ self._waves
        moved = _moved(reference, torch.cat([torch.zeros_like(raised[:, :1]), raised], 1))
        return as_probabilities((reference + moved).unflatten(2, self._shape))  # type: ignore[no-untyped-call]

    def recovered(self, codes: Tensor, noise_std: float) -> Tensor:
        """As `decode`, with the noise held back: each number goes towards what all queries have in
        common.

        Empirical Bayes, after the release: how far numbers differ between queries, beyond the
        noise, tells how much of a difference can be believed; their mean is held back likewise,
        towards no correction.
        """
        rows, noise = len(codes), noise_std**2
        middle = codes.mean(0)
        common = middle * _signal_share(middle.square() - noise / rows, noise / rows)
        spread = codes.var(0) - noise if rows > 1 else torch.zeros_like(middle)
        return self.decode(common + _signal_share(spread, noise) * (codes - common))

    def _along(self, reference: Tensor, change: Tensor) -> Tensor:
        """How far a change of maps (rows, classes, voxels) goes along each direction, shape (rows,
        size).
        """
        return (_moved(reference, change)[:, 1:] @ self._waves.T).flatten(1)

    def _root(self, reference: Tensor) -> Tensor:
        """The inverse root of the directions' Gram matrix for one query; 0 where there is hardly
        any direction.
        """
        classes, waves = len(reference), len(self._waves)
        gram = torch.empty(
            (classes - 1) * waves, (classes - 1) * waves, dtype=torch.float64, device="cpu"
        )
        for label in range(1, classes):
            raised = torch.zeros(waves, classes, self._waves.shape[1], device="cpu")
            raised[:, label] = self._waves
            wide = reference.expand(waves, -1, -1)
            rows = slice((label - 1) * waves, label * waves)
            gram[rows] = self._along(wide, _moved(wide, raised)).double()
        lengths, directions = torch.linalg.eigh(gram)
        usable = lengths > _HARDLY * lengths[-1].clamp(min=torch.finfo(torch.float64).tiny)
        roots = torch.where(usable, lengths.clamp(min=torch.finfo(torch.float64).tiny).rsqrt(), 0.0)
        root: Tensor = ((directions * roots) @ directions.T).float()
        return root


def _moved(reference: Tensor, raised: Tensor) -> Tensor:
    """How probabilities (rows, classes, voxels) move, to first order, where scores are raised by so
    much.

    The map is symmetric: it also tells how far a change of probabilities goes along that of each
    score.
    """
    moved: Tensor = reference * (raised - (reference * raised).sum(1, keepdim=True))
    return moved


def as_probabilities(maps: Tensor) -> Tensor:
    """Maps, shape (rows, classes, *size), with nothing below a ten-thousandth, and sums of one over
    classes.
    """
    held = maps.clamp(1e-4, 1.0)
    return held / held.sum(1, keepdim=True)


def _signal_share(signal: Tensor, noise: float) -> Tensor:
    """The share of what was seen that is signal, where `signal` is an estimate of its variance."""
    signal = signal.clamp(min=0)
    share: Tensor = signal / (signal + noise)
    return share


def _waves(size: tuple[int, ...], order: int) -> Tensor:
    """Products of cosines over a volume, of at most `order` half waves together, slow ones first:
    (waves, voxels).
    """
    places = [(torch.arange(side, device="cpu") + 0.5) / side for side in size]
    numbers = sorted(
        (sum(each), each)
        for each in product(range(order + 1), repeat=len(size))
        if sum(each) <= order
    )
    waves = []
    for _, each in numbers:
        wave = torch.ones(size, device="cpu")
        for axis, (half_waves, place) in enumerate(zip(each, places, strict=True)):
            wave = wave * torch.cos(math.pi * half_waves * place).view(
                [-1 if at == axis else 1 for at in range(len(size))]
            )
        waves.append(wave.flatten())
    return torch.stack(waves)


#: How the public network learns, and how teachers and students go on from it.
LEARNING, TUNING = Training(steps=800), Training(steps=200, learning_rate=3e-3)


@checked
def public_network(
    labelled: Dataset, network: nn.Module, *, learning: Training = LEARNING, seed: int = 0
) -> nn.Module:
    """Train `network` in place on public volumes with masks, which costs nothing: what DP-SGD can
    begin as.

    It is the network that `Start.learn` trains by the same seed.

    Args:
        labelled: volumes with maps of classes, declared public.
        network: untrained, from volumes to scores for each class and voxel.
        learning: how it learns.
        seed: of everything that is drawn; public.

    Raises:
        BadInput: data that are not declared public, or that don't say how many classes there are.
    """
    count("seed", seed, least=0, most=2**63 - 1)
    if labelled.classes is None:
        raise BadInput(
            "the public volumes don't say how many classes there are: give pv.Dataset(..., "
            "classes=)"
        )
    x, maps = public_maps(labelled, labelled.classes)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return learning(network, x, maps)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Start:
    """What is known before any private volume is met. Made by `learn`.

    Attributes:
        labelled: the public volumes with masks that the public network learned from.
        inputs: the public volumes that teachers can be asked about, scaled, shape (volumes,
            channels, *size).
        reference: that network's probabilities for `inputs`.
        corrections: codes of what teachers say beyond it.
        radius: what codes are clipped to: twice the median length of corrections by public
            stand-ins for teachers.
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
        """A copy of the public network, a new one each time: training it on private volumes leaves
        the start public.
        """
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

        Stand-ins for teachers go on from it with half of the public volumes each: how far they come
        from it tells the radius. (Teachers, whose volumes are new to it, come about twice as far.)

        Args:
            labelled: volumes with maps of classes, declared public.
            pool: volumes that teachers can be asked about, declared public; their maps are not
                looked at.
            network: untrained, from volumes to scores for each class and voxel. It is trained in
                place.
            learning: how it learns.
            tuning: how teachers, stand-ins and students go on from it.
            share: what codes are clipped to, over the stand-ins' median length.
            seed: of everything that is drawn; public.

        Raises:
            BadInput: data that are not declared public, or that don't say how many classes there
                are.
        """
        between("share", share, 1e-3, 1e3)
        count("seed", seed, least=0, most=2**63 - 1)
        if not pool.public:
            raise BadInput(
                "what teachers are asked about is not protected: give a pool that is declared "
                "public"
            )
        if labelled.classes is None:
            raise BadInput(
                "the public volumes don't say how many classes there are: give pv.Dataset(..., "
                "classes=)"
            )
        x, maps = public_maps(labelled, labelled.classes)
        inputs, half = scaled(pool), max(1, len(x) // 2)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            learning(network, x, maps)
            standing_in = [
                tuning(copy.deepcopy(network), x[rows], maps[rows])
                for rows in (slice(None, half), slice(len(x) - half, None))
            ]
        reference = probabilities(network, inputs)
        corrections = Corrections(reference)
        codes = torch.cat([corrections.encode(probabilities(one, inputs)) for one in standing_in])
        # A network that nothing moves would leave no room at all.
        radius = max(share * float(codes.norm(dim=1).median()), 1e-3)
        # A copy: training `network` further must not change what is public.
        return cls(
            copy.deepcopy(network),
            labelled,
            inputs,
            reference,
            corrections,
            radius,
            tuning,
            labelled.classes,
        )

    def teachers(
        self, private: Dataset, count: int, *, folder: str | Path | None = None, jobs: int = 1
    ) -> Teachers:
        """`count` teachers on the private volumes, each going on from the public network; answers
        are probabilities.

        Args:
            private: the records, with maps of classes; each is with one teacher, drawn by chance.
            count: how many there are.
            folder: where answers are kept, for an interrupted run to go on with: as secret as the
                records.
            jobs: processes that train at once.

        Raises:
            BadInput: volumes that this start learned from are among the records.
        """
        require_others(self.labelled.x, private.x, "the public volumes with masks")
        recipe = Network(lambda: self.network, _Tuned(self.tuning, self.classes))
        # Half the memory; what is rounded off is far below any noise.
        return Seen(
            Trained(private, recipe, count, folder=folder, jobs=jobs),
            lambda said: said.softmax(1).half(),
            "softmax",
        )

    def correcting(self, teachers: Teachers) -> Teachers:
        """The same teachers, answering with codes: what their probabilities say beyond the
        reference.
        """
        return Seen(teachers, self.corrections.encode, self.corrections.describe())

    def plan(self, queries: int, teachers: int) -> PatePlan:
        """The questions to so many correcting teachers; noise is to be settled by `calibrate`."""
        return PatePlan(queries, teachers, Ball(self.radius))

    @property
    def reducer(self) -> Identity:
        """Codes are released as they are."""
        return Identity((self.corrections.size,))

    def student(self, plan: PatePlan, seed: int = 0) -> MapStudent:
        """A student that goes on from the public network on corrected maps, noise held back, and
        the public maps.
        """
        noise = plan.noise_std
        return MapStudent(
            self.network,
            self.tuning,
            self.labelled,
            lambda codes: self.corrections.recovered(codes, noise),
            seed,
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


@checked
@final
@dataclass(frozen=True, eq=False)
class MapStudent:
    """A recipe for students: a copy of `start`, trained on answers, and on public volumes about
    half as often.

    Attributes:
        start: what the student begins as; never changed.
        training: how it learns.
        labelled: public volumes with maps of classes; None: it learns from answers alone.
        recover: from the released numbers to maps, shape (queries, classes, *size); by default they
            are maps already.
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
            BadInput: public maps that are not declared public, or recovered answers that are no
                maps.
        """
        volumes, released = answers.learnable()
        maps = self.recover(released)
        if maps.dim() != volumes.dim() or maps.shape[2:] != volumes.shape[2:]:
            raise BadInput(
                f"answers become {tuple(maps.shape)} for volumes of shape {tuple(volumes.shape)}: "
                "expected a probability for each class and voxel"
            )
        if self.labelled is not None:
            known, truth = public_maps(self.labelled, maps.shape[1])
            times = max(1, len(volumes) // (2 * len(known)))
            volumes, maps = (
                torch.cat([volumes, *[known] * times]),
                torch.cat([maps, *[truth] * times]),
            )
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
            "maps that a student learns from beside the answers are not protected: give public "
            "ones, pv.Dataset(x, y, public=True)"
        )
    return scaled(labelled), maps_of(labelled.tensors()[1], classes)


def scaled(data: Dataset) -> Tensor:
    """The volumes of `data` as networks see them: clipped to their declared bounds, and scaled."""
    x = as_tensor(data.x, whole_is_float=data.low is not None)
    values: Tensor = x if data.low is None else Scale(*data.bounds())(x)
    return values
