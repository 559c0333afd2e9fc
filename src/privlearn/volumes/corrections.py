"""What is known without any teacher is taken off their answers before these are clipped.

A public network's own predictions for the queries are such a reference. Teachers mostly agree with it, so what they say
beyond it is short, is clipped to a small ball, and gets little noise. A reference is public: it changes no sensitivity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, final

import torch
from torch import Tensor

from privlearn._checks import count
from privlearn.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.errors import BadInput
from privlearn.streams import Streams
from privlearn.teachers.ensemble import Progress, Teachers
from privlearn.teachers.sums import Shapes
from privlearn.teachers.trained import fingerprint

#: Of the longest direction's square, what is too short to be a direction.
_HARDLY = 1e-6


@final
class Seen(Teachers):
    """Teachers whose answers are seen through a public function: logits as probabilities, say, or as corrections.

    Guarantee: each teacher's answers go through the function by themselves, so one record still reaches one teacher's
    answers only. A teacher for whose answers the function fails has none, and nothing says so.

    Args:
        teachers: the ensemble.
        through: from one teacher's answers, a row for each query, to what is asked for, a row for each query; public, and
            without memory.
        what: public words that tell this function from others, for certificates and interrupted runs.
    """

    def __init__(
        self, teachers: Teachers, through: Callable[[Tensor], Tensor], what: str = "a public function"
    ) -> None:
        self._teachers, self._through, self._what = teachers, through, what

    @property
    def count(self) -> int:
        """How many there are."""
        return self._teachers.count

    def require_covered(self, adjacency: Adjacency, unit: PrivacyUnit) -> None:
        """As the teachers that are looked at."""
        self._teachers.require_covered(adjacency, unit)

    def require_same(self, inputs: Tensor) -> None:
        """As the teachers that are looked at."""
        self._teachers.require_same(inputs)

    def describe(self) -> dict[str, Any]:
        """As the teachers that are looked at, and through what."""
        own = self._teachers.describe()
        return own | {"seen_through": [*own.get("seen_through", []), self._what]}

    def answers(
        self, inputs: Tensor, streams: Streams, progress: Progress | None = None, shapes: Shapes | None = None
    ) -> Iterator[Tensor | None]:
        """Each teacher's answers, seen through the function. Of which shape they are before is not judged."""
        for said in self._teachers.answers(inputs, streams, progress):
            yield None if said is None else self._seen(said)

    def _seen(self, said: Tensor) -> Tensor | None:
        try:
            return self._through(said)
        except Exception:
            return None


@final
class Corrections:
    """Short codes of what probabilities say beyond a public reference, in a few smooth directions for each query.

    A direction raises the score of one class by a slow wave over the volume: a product of cosines, of `order` half waves in
    all. It moves the reference most where that is unsure, at the borders of what it found, and hardly elsewhere. Codes are
    in an orthonormal basis of these directions, the one nearest to them, so a code's L2 norm is that of the change of the
    maps, and numbers mean the same in all queries.

    Args:
        reference: public probabilities for each query, shape (queries, classes, *size).
        order: most half waves over the volume, along all axes together.

    Raises:
        BadInput: a reference that is not finite, or no probabilities of volumes.
    """

    def __init__(self, reference: Tensor, order: int = 3) -> None:
        count("order", order, least=0, most=8)
        sums = reference.sum(1)
        if reference.dim() < 3 or not bool(reference.isfinite().all()) or float((sums - 1).abs().max()) > 1e-3:
            raise BadInput(
                f"the reference has shape {tuple(reference.shape)} and sums from {float(sums.min()):.3g} to "
                f"{float(sums.max()):.3g}: expected finite probabilities of classes, shape (queries, classes, *size)"
            )
        self._shape = reference.shape[2:]
        self._reference = reference.float().flatten(2)
        self._waves = _waves(tuple(self._shape), order)
        self._whitening = torch.stack([self._root(own) for own in self._reference])

    @property
    def size(self) -> int:
        """Numbers in a code."""
        return self._whitening.shape[1]

    def describe(self) -> str:
        """What tells these from corrections of another reference."""
        return (
            f"{self.size} corrections of a public reference (SHA-256 {fingerprint(self._reference, self._waves)[:16]})"
        )

    def encode(self, said: Tensor) -> Tensor:
        """Codes, shape (rows, size), of one teacher's probabilities for the first queries, shape (rows, classes, *size)."""
        reference = self._reference[: len(said)]
        along = self._along(reference, said.float().flatten(2) - reference)
        return torch.einsum("qij,qj->qi", self._whitening[: len(said)], along)

    def decode(self, codes: Tensor) -> Tensor:
        """The reference of the first queries, corrected: probabilities, shape (rows, classes, *size)."""
        reference = self._reference[: len(codes)]
        weights = torch.einsum("qij,qj->qi", self._whitening[: len(codes)], codes.float())
        raised = weights.view(len(codes), reference.shape[1] - 1, -1) @ self._waves
        moved = _moved(reference, torch.cat([torch.zeros_like(raised[:, :1]), raised], 1))
        return as_probabilities((reference + moved).unflatten(2, self._shape))  # type: ignore[no-untyped-call]

    def recovered(self, codes: Tensor, noise_std: float) -> Tensor:
        """As `decode`, with the noise held back: each number goes towards what all queries have in common.

        Empirical Bayes, after the release: how far numbers differ between queries, beyond the noise, tells how much of a
        difference can be believed; their mean is held back likewise, towards no correction.
        """
        rows, noise = len(codes), noise_std**2
        middle = codes.mean(0)
        common = middle * _kept(middle.square() - noise / rows, noise / rows)
        spread = codes.var(0) - noise if rows > 1 else torch.zeros_like(middle)
        return self.decode(common + _kept(spread, noise) * (codes - common))

    def _along(self, reference: Tensor, change: Tensor) -> Tensor:
        """How far a change of maps (rows, classes, voxels) goes along each direction, shape (rows, size)."""
        return (_moved(reference, change)[:, 1:] @ self._waves.T).flatten(1)

    def _root(self, reference: Tensor) -> Tensor:
        """The inverse root of the directions' Gram matrix for one query; 0 where there is hardly any direction."""
        classes, waves = len(reference), len(self._waves)
        gram = torch.empty((classes - 1) * waves, (classes - 1) * waves, dtype=torch.float64)
        for label in range(1, classes):
            raised = torch.zeros(waves, classes, self._waves.shape[1])
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
    """How probabilities (rows, classes, voxels) move, to first order, where scores are raised by so much.

    The map is symmetric: it also tells how far a change of probabilities goes along that of each score.
    """
    moved: Tensor = reference * (raised - (reference * raised).sum(1, keepdim=True))
    return moved


def as_probabilities(maps: Tensor) -> Tensor:
    """Maps, shape (rows, classes, *size), with nothing below a ten-thousandth, and sums of one over classes."""
    held = maps.clamp(1e-4, 1.0)
    return held / held.sum(1, keepdim=True)


def _kept(signal: Tensor, noise: float) -> Tensor:
    """The share of what was seen that is signal, where `signal` is an estimate of its variance."""
    signal = signal.clamp(min=0)
    share: Tensor = signal / (signal + noise)
    return share


def _waves(size: tuple[int, ...], order: int) -> Tensor:
    """Products of cosines over a volume, of at most `order` half waves together, the slow ones first: (waves, voxels)."""
    places = [(torch.arange(side) + 0.5) / side for side in size]
    numbers = sorted((sum(each), each) for each in product(range(order + 1), repeat=len(size)) if sum(each) <= order)
    waves = []
    for _, each in numbers:
        wave = torch.ones(size)
        for axis, (half_waves, place) in enumerate(zip(each, places, strict=True)):
            wave = wave * torch.cos(math.pi * half_waves * place).view(
                [-1 if at == axis else 1 for at in range(len(size))]
            )
        waves.append(wave.flatten())
    return torch.stack(waves)
