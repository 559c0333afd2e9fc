"""What a sampler of anyone's draws is what its event prices, or the run is refused: named
checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from scipy import stats

import privlearn as pv
from privlearn._public import kinds
from privlearn.core import plan
from privlearn.core.accounting.events import Event, Repeated
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import FixedBatches, Gaussian, Partitioned, PoissonSampled
from privlearn.core.accounting.pld.truncation import TruncatedPoissonSampled
from privlearn.core.samples import EpochCharge
from privlearn.core.sampling import Sample, Sampler
from privlearn.core.sampling.draws import Draws, is_too_many
from tests.support.checks import check
from tests.support.registries import forgotten
from tests.support.training import by_dpsgd, by_make_private, by_train, must_be_refused


class Broken(Sampler):
    """What a stranger's samplers have in common: Poisson batches of a third of the rows, three in
    an epoch.
    """

    adjacencies = (Adjacency.ZERO_OUT,)
    kind: ClassVar[str]

    @classmethod
    def of_size(cls, batch_size: int, examples: int) -> Any:
        return cls()

    def steps(self, examples: int) -> int:
        return 3

    def expected_batch_size(self, examples: int) -> float:
        return examples / 3

    def event(self, mechanism: Gaussian) -> Event:
        return PoissonSampled(1 / 3, mechanism)

    def epoch_event(self, mechanism: Gaussian) -> Event:
        return Repeated(self.event(mechanism), 3)

    def rows(self, examples: int, rng: np.random.Generator) -> Any:
        return np.flatnonzero(rng.random(examples) < 1 / 3)

    def draw(self, examples: int, rng: np.random.Generator) -> Iterator[Sample]:
        for _ in range(3):
            yield Sample(self.rows(examples, rng), self.epoch_charge())


class WholeEpochs(Broken):
    """An epoch of three batches of fixed size is the unit."""

    def event(self, mechanism: Gaussian) -> Event:
        return FixedBatches(mechanism)

    def epoch_event(self, mechanism: Gaussian) -> Event:
        return self.event(mechanism)

    def draw(self, examples: int, rng: np.random.Generator) -> Iterator[Sample]:
        unit = self.epoch_charge()
        for rows in self.batches(np.arange(examples), rng):
            yield Sample(rows, unit)

    def batches(self, rows: Any, rng: np.random.Generator) -> list[Any]:
        return np.array_split(rows, 3)


def broken() -> dict[str, Sampler]:
    """Samplers whose draws are not what their events price, each in another way, registered."""
    made: dict[str, Sampler] = {}

    def enter(cls: type[Any]) -> type[Any]:
        cls.kind = cls.__name__.lower()
        made[cls.__name__] = plan.registered(final(dataclass(frozen=True)(cls)))()
        return cls

    @enter
    class Twice(Broken):
        def rows(self, examples: int, rng: np.random.Generator) -> Any:
            drawn = super().rows(examples, rng)
            return np.append(drawn, drawn[:1])

    @enter
    class Outside(Broken):
        def rows(self, examples: int, rng: np.random.Generator) -> Any:
            return super().rows(examples, rng) - 1

    @enter
    class TooLarge(Broken):
        def rows(self, examples: int, rng: np.random.Generator) -> Any:
            return np.flatnonzero(rng.random(examples) < 0.95)

    @enter
    class FirstRowAlways(Broken):
        def rows(self, examples: int, rng: np.random.Generator) -> Any:
            return np.union1d(super().rows(examples, rng), [0])

    @enter
    class SameRows(Broken):
        def rows(self, examples: int, rng: np.random.Generator) -> Any:
            rng.random()
            return np.arange(0, examples, 3)

    @enter
    class NoRandomness(Broken):
        def rows(self, examples: int, rng: np.random.Generator) -> Any:
            return super().rows(examples, np.random.default_rng())

    @enter
    class MoreSteps(Broken):
        def draw(self, examples: int, rng: np.random.Generator) -> Iterator[Sample]:
            yield from super().draw(examples, rng)
            yield from super().draw(examples, rng)

    @enter
    class FewerCharges(Broken):
        def epoch_event(self, mechanism: Gaussian) -> Event:
            return self.event(mechanism)

    @enter
    class OneChargeForAll(Broken):
        def draw(self, examples: int, rng: np.random.Generator) -> Iterator[Sample]:
            unit = self.epoch_charge()
            for _ in range(3):
                yield Sample(self.rows(examples, rng), unit)

    units: list[EpochCharge] = []

    @enter
    class PaidBefore(WholeEpochs):
        def epoch_charge(self) -> EpochCharge:
            units.append(super().epoch_charge())
            return units[0]

    @enter
    class RowsInTwoBatches(WholeEpochs):
        def batches(self, rows: Any, rng: np.random.Generator) -> list[Any]:
            first, second, third = super().batches(rows, rng)
            return [first, np.append(first[-1:], second), third]

    @enter
    class RestsTooLittle(WholeEpochs):
        def separation(self, examples: int) -> int:
            return 3

        def batches(self, rows: Any, rng: np.random.Generator) -> list[Any]:
            return super().batches(rng.permutation(rows), rng)

    @enter
    class AlwaysTheSamePartition(WholeEpochs):
        def event(self, mechanism: Gaussian) -> Event:
            return Partitioned(3, mechanism)

        def batches(self, rows: Any, rng: np.random.Generator) -> list[Any]:
            rng.random()
            return super().batches(rows, rng)

    @enter
    class NowAndThenAll(Broken):
        def rows(self, examples: int, rng: np.random.Generator) -> Any:
            return np.flatnonzero(rng.random(examples) < (1.0 if rng.random() < 0.1 else 0.2))

    @enter
    class BeyondItsMaximum(Broken):
        def event(self, mechanism: Gaussian) -> Event:
            return TruncatedPoissonSampled(1 / 3, 4096, 1500, mechanism)

        def rows(self, examples: int, rng: np.random.Generator) -> Any:
            return rng.permutation(examples)[: 1501 if rng.random() < 0.5 else 1100]

    @enter
    class CheapEpoch(Broken):
        def epoch_event(self, mechanism: Gaussian) -> Event:
            return Repeated(PoissonSampled(0.01, mechanism), 3)

    @enter
    class OtherCharges(Broken):
        """Each batch is paid by a charge that costs less than the event."""

        def epoch_charge(self) -> EpochCharge:
            return EpochCharge(lambda mechanism: PoissonSampled(1e-9, mechanism), self.adjacencies)

    return made


@check
def check_a_sampler_that_breaks_its_event_is_refused_by_name() -> None:
    """Whatever is wrong with its batches, before anything is charged."""
    with forgotten():
        samplers = broken()
        sound = {"BeyondItsMaximum", "OtherCharges", "PaidBefore"}
        for name, sampler in samplers.items():
            if name in sound:
                continue
            wanted = pv.Plan(sampler, epochs=2, schedule=pv.schedules.Constant(1.0))
            ledger = pv.Ledger()
            must_be_refused(
                name, lambda wanted=wanted, ledger=ledger: by_dpsgd(wanted, ledger=ledger), ledger
            )
        must_be_refused("BeyondItsMaximum", lambda: Draws(samplers["BeyondItsMaximum"], 4096))
        must_be_refused("Twice", lambda: by_train(sampling="twice", batch_size=20))
        must_be_refused("Twice", lambda: by_make_private(sampling=samplers["Twice"]))


@check
def check_batches_are_charged_what_the_sampler_says_whoever_made_their_charges() -> None:
    """A sample's own charge may price anything: the run charges the event."""
    with forgotten():
        samplers = broken()
        for name in ("OtherCharges", "PaidBefore"):
            wanted = pv.Plan(samplers[name], epochs=2, schedule=pv.schedules.Constant(1.0))
            assert by_dpsgd(wanted).ledger.event == wanted.event(), name


@check
def check_a_sampler_that_changes_while_it_runs_is_refused_by_name() -> None:
    """What a rehearsal of public random numbers does not show is seen in the run, before the batch
    is released.
    """
    calls = [0]

    @final
    @dataclass(frozen=True)
    class Later(Broken):
        kind: ClassVar[str] = "later"

        def rows(self, examples: int, rng: np.random.Generator) -> Any:
            calls[0] += 1
            drawn = super().rows(examples, rng)
            return np.append(drawn, drawn[:1]) if calls[0] == limit else drawn

    limit = 10**9
    wanted = pv.Plan(Later(), epochs=2, schedule=pv.schedules.Constant(1.0))
    by_dpsgd(wanted)
    limit = calls[0] - 2  # the fourth batch of six, after a rehearsal
    calls[0] = 0
    ledger = pv.Ledger()
    must_be_refused("Later", lambda: by_dpsgd(wanted, ledger=ledger))
    charged = sum(getattr(event, "count", 1) for event in ledger.event.events)
    assert charged == 3, ledger.event

    last = [0]
    for name, charges in (("Longer", 6), ("Parted", 2)):
        calls[0] = 0

        class Turning(Broken if name == "Longer" else WholeEpochs):  # type: ignore[misc]
            kind: ClassVar[str] = "turning"

            def draw(
                self, examples: int, rng: np.random.Generator, name: str = name
            ) -> Iterator[Sample]:
                calls[0] += 1
                turned, samples = calls[0] > last[0], list(super().draw(examples, rng))
                if name == "Longer":
                    yield from [*samples, *super().draw(examples, rng)] if turned else samples
                else:
                    yield from (
                        [Sample(own.indices, self.epoch_charge()) for own in samples]
                        if turned
                        else samples
                    )

        sampler = final(dataclass(frozen=True)(type(name, (Turning,), {"kind": name.lower()})))()
        last[0] = 10**9
        wanted = pv.Plan(sampler, epochs=2, schedule=pv.schedules.Constant(1.0))
        by_dpsgd(wanted)
        last[0], calls[0], ledger = calls[0] - 1, 0, pv.Ledger()
        must_be_refused(name, lambda wanted=wanted, ledger=ledger: by_dpsgd(wanted, ledger=ledger))
        charged = sum(getattr(event, "count", 1) for event in ledger.event.events)
        assert charged == charges, (name, ledger.event)

    more = [False]

    @final
    @dataclass(frozen=True)
    class FourBatches(WholeEpochs):
        kind: ClassVar[str] = "four-batches"

        def batches(self, rows: Any, rng: np.random.Generator) -> list[Any]:
            return np.array_split(rows, 4 if more[0] else 3)

    handed_out, four = list[Sample](), Draws(FourBatches(), 60)
    more[0] = True
    must_be_refused("FourBatches", lambda: handed_out.extend(four.epoch(np.random.default_rng(0))))
    assert len(handed_out) == 3

    prices = [3]

    @final
    @dataclass(frozen=True)
    class Cheaper(Broken):
        kind: ClassVar[str] = "cheaper"

        def epoch_event(self, mechanism: Gaussian) -> Event:
            return Repeated(PoissonSampled(prices[0] / 9, mechanism), 3)

        def event(self, mechanism: Gaussian) -> Event:
            return PoissonSampled(prices[0] / 9, mechanism)

    wanted = pv.Plan(Cheaper(), epochs=2, schedule=pv.schedules.Constant(1.0))
    wanted.event()
    prices[0] = 1
    must_be_refused("Cheaper", wanted.event)
    must_be_refused("Cheaper", lambda: by_dpsgd(wanted))


@check
def check_chance_alone_is_never_refused() -> None:
    """Every kind of sampler that is registered draws what it prices, over many epochs; and the
    bound is a bound.
    """
    rng = pv.Streams.new(3).sampling
    for kind in kinds(Sampler).values():
        draws = Draws(kind.of_size(50, 600), 600)
        for _ in range(8):
            assert sum(1 for _ in draws.epoch(rng)) == draws._steps
    for tries, rate in ((10, 0.5), (1000, 0.02), (60, 1 / 3)):
        least = next((k for k in range(tries + 1) if is_too_many(k, tries, rate)), tries + 1)
        assert stats.binom.sf(least - 1, tries, rate) <= 1e-15, (tries, rate)
        assert least < 3 * tries * rate + 45, (tries, rate, least)
