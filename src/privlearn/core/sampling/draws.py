"""This file compares the batches that a sampler draws, any user's sampler included, with what its
event prices.

An event says how often an example is in the batches that it pays for, and with which probability.
What follows from the drawn indices alone is checked exactly: each is a row, none comes twice in a
batch, or more often in the batches of one charge than that prices, and there are as many batches
and charges as are paid. What is random is compared with what would happen once in 10^15 runs of a
sampler that keeps its word: how large batches are, how often a row is drawn, how many rows are
where they were in the epoch before. So a sampler that draws a few rows a little too often passes:
no number of draws proves a distribution.

Indices and sizes follow from the random numbers and the number of rows, never from what a row
holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, final

import numpy as np

from privlearn._public import is_own
from privlearn.core.accounting.events import Event, compose, tally
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.samples import EpochCharge, Indices, Sample
from privlearn.core.sampling.sampler import Sampler
from privlearn.errors import PrivlearnError, UnsoundExtension

#: -ln of the probability with which a sampler that keeps its word is refused.
_NEVER = 15 * math.log(10)
#: Rows whose draws are counted, at most, evenly spread over all rows.
_COUNTED = 1 << 20
#: Rows, batches and epochs of a rehearsal, at most.
_FEW_ROWS, _FEW_BATCHES, _FEW_EPOCHS = 4096, 2000, 50


def is_too_many(times: float, of: float, rate: float, among: float = 1.0) -> bool:
    """Whether so many hits, in one of `among` series of independent tries of this rate, are too
    many for chance.

    By Chernoff's bound: P(X >= k) <= exp(-n KL(k / n, q)).
    """
    share = times / max(of, 1.0)
    if share <= rate:
        return False
    distance = share * math.log(share / rate)
    if share < 1:
        distance += (1 - share) * math.log((1 - share) / (1 - rate))
    return of * distance > _NEVER + math.log(max(among, 1.0))


@final
class Draws:
    """The batches of one run, epoch by epoch, each compared with the sampler's event before it is
    handed out.

    Guarantee: each batch holds distinct rows; an example is in the batches of one charge no more
    often than its event prices; an epoch is charged exactly the sampler's `epoch_event`, on units
    made here. Random properties are compared as the module says.

    Args:
        sampler: anyone's.
        examples: how many rows there are.
        priced: what an epoch of this noise was priced as; by default, what the sampler says.

    Raises:
        UnsoundExtension: a sampler of a stranger's fails in a rehearsal, with random numbers of its
            own; nothing was spent.
    """

    def __init__(
        self, sampler: Sampler, examples: int, priced: Callable[[float], Event] | None = None
    ) -> None:
        self._sampler, self._examples = sampler, examples
        self._price = priced or (lambda noise: sampler.epoch_event(Gaussian(noise)))
        self._steps = sampler.steps(examples)
        unit = tally(sampler.event(Gaussian(1.0)))
        #: How often an example may be in the batches of one charge, and with which probability in
        #: each of them.
        self._times = sum(unit.values())
        self._rate = max((leaf.inclusion for leaf in unit), default=1.0)
        self._most = min(
            (leaf.most_rows for leaf in unit if leaf.most_rows is not None), default=examples
        )
        self._units = self._charges(Gaussian(1.0))
        self._rest = sampler.separation(examples)
        self._stride = -(-max(examples, 1) // _COUNTED)
        counted = -(-examples // self._stride)
        #: Of the rows that are counted: how often they were drawn, and the step in which they were
        #: drawn last.
        self._drawn, self._last = np.zeros(counted, np.int64), np.full(counted, -(1 << 40))
        self._epochs, self._batches = 0, 0
        self._priced: dict[Gaussian, Event] = {}
        #: How often each row was drawn on the present charge, where that is for several batches.
        self._paid = np.zeros(examples if self._units < self._steps else 0, np.uint16)
        if not is_own(type(sampler)):
            self._rehearse()

    def _refuse(self, what: str) -> UnsoundExtension:
        return UnsoundExtension(
            f"the sampler {type(self._sampler).__name__} {what}: its event does not price such "
            "batches, and the run ends here. Mend draw(), or the event"
        )

    def _charges(self, mechanism: Gaussian) -> int:
        """How many of the sampler's events an epoch is charged."""
        unit, epoch = (
            self._sampler.event(mechanism),
            compose([self._price(mechanism.noise_multiplier)]),
        )
        here, whole = tally(unit), tally(epoch)
        number = sum(whole.values()) // max(sum(here.values()), 1)
        if compose([unit] * number) != epoch or not number:
            raise self._refuse("has an epoch_event that is not its event, some number of times")
        return number

    def epoch(self, rng: np.random.Generator) -> Iterator[Sample]:
        """Draw the batches of the next epoch, each as a sample that is charged what the sampler's
        event says.

        Raises:
            UnsoundExtension: they are not what is priced; the batch is not handed out.
        """
        secret = self._rate < 1 and self._examples > 0
        before, first = _state(rng) if secret else "", self._batches
        units: dict[int, tuple[EpochCharge, EpochCharge]] = {}
        repeated = 0
        for sample in self._sampler.draw(self._examples, rng):
            if type(sample) is not Sample or type(sample.unit) is not EpochCharge:
                raise self._refuse("hands out something else than samples")
            if self._batches - first == self._steps:
                raise self._refuse(f"draws more than the {self._steps} batches of its epoch")
            if id(sample.unit) not in units:
                if len(units) == self._units:
                    raise self._refuse(f"makes more than the {self._units} charges of its epoch")
                units[id(sample.unit)] = (
                    EpochCharge(self._event, self._sampler.adjacencies),
                    sample.unit,
                )
                self._paid.fill(0)
            elif sample.unit is not list(units.values())[-1][1]:
                raise self._refuse("goes back to a charge of earlier batches")
            rows = self._require_rows(sample)
            self._require_times(rows)
            repeated += self._count(rows, self._batches - first)
            if secret and self._batches == first and _state(rng) == before:
                raise self._refuse("draws without random numbers")
            self._batches += 1
            yield Sample(sample.indices, units[id(sample.unit)][0])
        self._epochs += 1
        if (self._batches - first, len(units)) != (self._steps, self._units):
            raise self._refuse(
                f"draws {self._batches - first} batches on {len(units)} charges, where its epoch "
                f"has {self._steps} on {self._units}"
            )
        if self._units == 1 and self._epochs > 1 and self._rate < 1:
            self._require_chance(
                repeated, len(self._last), "leaves rows in the batches of the epoch before"
            )

    def _event(self, mechanism: Gaussian) -> Event:
        """What a charge costs, as long as an epoch of these costs what the sampler says of an
        epoch.
        """
        if mechanism not in self._priced:
            if self._charges(mechanism) != self._units:
                raise self._refuse("charges an epoch otherwise than before")
            self._priced = {mechanism: self._sampler.event(mechanism)}
        return self._priced[mechanism]

    def _require_rows(self, sample: Sample) -> Indices:
        """The indices, ascending: each a row, and none twice."""
        rows = sample.indices
        if not (
            isinstance(rows, np.ndarray)
            and rows.ndim == 1
            and np.issubdtype(rows.dtype, np.integer)
        ):
            raise self._refuse("draws something else than row numbers")
        if len(rows) > 1 and not (rows[1:] > rows[:-1]).all():
            rows = np.sort(rows)
            if (rows[1:] == rows[:-1]).any():
                raise self._refuse("draws a row twice in a batch")
        if len(rows) and not (rows[0] >= 0 and rows[-1] < self._examples):
            raise self._refuse(f"draws rows that there are not among {self._examples}")
        if len(rows) > self._most:
            raise self._refuse(f"draws more than {self._most} rows")
        self._require_chance(
            len(rows), self._examples, "draws too large batches", among=self._batches + 1
        )
        return rows

    def _require_chance(self, times: int, of: int, what: str, *, among: float = 1.0) -> None:
        if self._rate < 1 and is_too_many(times, of, self._rate, among):
            raise self._refuse(f"{what}, for batches of a share of {self._rate:.3g} of all rows")

    def _require_times(self, rows: Indices) -> None:
        """Over the batches of one charge an example comes as often as is priced, at most."""
        if not len(self._paid) or not len(rows):
            return
        self._paid[rows] += 1
        if (most := int(self._paid[rows].max())) > self._times:
            raise self._refuse(
                f"draws a row {most} times on one charge, which prices {self._times}"
            )

    def _count(self, rows: Indices, step: int) -> int:
        """Note where rows were drawn; how many are in the same batch as in the epoch before."""
        here = rows[rows % self._stride == 0] // self._stride if self._stride > 1 else rows
        if not len(here):
            return 0
        # the batches of each charge are one try for every row
        if self._units > 1 and self._rate < 1:
            tries = self._epochs * self._units + step * self._units // self._steps + 1
            self._drawn[here] += 1
            among = float(len(self._drawn)) * tries
            self._require_chance(
                int(self._drawn[here].max()), tries, "draws a row too often", among=among
            )
        if self._rest == 1 and (self._units > 1 or self._rate == 1):
            return 0
        now, last = self._epochs * self._steps + step, self._last[here]
        self._last[here] = now
        if (least := int((now - last).min())) < self._rest:
            raise self._refuse(
                f"draws a row again after {least} steps, and says at least {self._rest}"
            )
        return int((now - last == self._steps).sum())

    def _rehearse(self) -> None:
        """Draw some epochs of few rows, with random numbers that are no secret."""
        few = min(self._examples, _FEW_ROWS)
        epochs = max(2, min(_FEW_EPOCHS, _FEW_BATCHES // max(self._steps, 1)))
        rehearsal = object.__new__(Draws)
        vars(rehearsal).update(vars(self))
        try:
            rehearsal._steps, rehearsal._rest = (
                self._sampler.steps(few),
                self._sampler.separation(few),
            )
            rehearsal._examples, rehearsal._stride, rehearsal._paid = (
                few,
                1,
                self._paid[:few].copy(),
            )
            rehearsal._drawn, rehearsal._last = np.zeros(few, np.int64), np.full(few, -(1 << 40))
            rng = np.random.default_rng(0)
            for _ in range(epochs):
                for _ in rehearsal.epoch(rng):
                    pass
        except UnsoundExtension:
            raise
        except PrivlearnError:
            return  # it does not take so few rows
        except Exception as error:
            raise self._refuse(f"fails with {type(error).__name__}") from error


def _state(rng: np.random.Generator) -> Any:
    return repr(rng.bit_generator.state)
