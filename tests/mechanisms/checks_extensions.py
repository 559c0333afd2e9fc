"""Noise of anyone's is as large and as fresh as is charged, or the run is refused: named checks."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor

import privlearn as pv
from privlearn._public import kinds
from privlearn.core import plan
from privlearn.core.accounting.events import Event
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.clipping.bounded import Bounded, Contributions
from privlearn.core.mechanisms import noise as noise_module
from privlearn.core.mechanisms.correlated import Column, Correlation, filtered, impulse
from privlearn.core.mechanisms.correlated_stream import CorrelatedStream
from privlearn.core.mechanisms.covariance import require_priced
from privlearn.core.streams import NoiseStream
from privlearn.core.transform import PrivateTransform
from privlearn.errors import UnsoundExtension
from privlearn.transforms.modules import RowTransform
from tests.support.checks import check, must_raise
from tests.support.nets import bounded
from tests.support.registries import forgotten
from tests.support.training import by_dpsgd, by_make_private, must_be_refused

STEPS = 12


class TwoBands(Correlation):
    """C = (1, 1/2) / norm: a sound matrix, of which subclasses break one thing."""

    tried = (2,)
    disjoint: ClassVar[bool] = True
    momentum: float = 0.0

    @property
    def rest(self) -> int:
        return 2

    def coefficients(self, steps: int, separation: int = 1) -> Column:
        column = np.array([1.0, 0.5])
        return column / (np.linalg.norm(column) * (1 + 1e-6))

    def inverse(self, steps: int, separation: int = 1) -> Column:
        return filtered([1.0], self.coefficients(steps), impulse(steps))

    def stream(self, noise: NoiseStream, steps: int, separation: int = 1) -> CorrelatedStream:
        return Filled(noise, self)

    def draw(self, fresh: list[Tensor], std: float, stream: Filled, places: Any) -> None:
        noise_module.add_gaussian(fresh, std, stream._stream, places)

    def require_suited(self, sampling: Any, examples: int) -> None:
        return

    def text(self) -> str:
        return "correlated over two steps"


class Filled(CorrelatedStream):
    """What adds the noise of two bands, of which the correlation draws what is independent."""

    changes = True

    def __init__(self, stream: NoiseStream, correlation: TwoBands) -> None:
        super().__init__(stream)
        self._correlation, self._before = correlation, list[list[Tensor]]()

    def _fill(self, fresh: list[Tensor], std: float, places: Any) -> None:
        first, *others = self._correlation.coefficients(STEPS)
        self._correlation.draw(fresh, std, self, places)
        for coefficient, before in zip(others, self._before, strict=False):
            torch._foreach_add_(fresh, before, alpha=-float(coefficient))
        torch._foreach_div_(fresh, float(first))
        self._before = [[own.clone() for own in fresh], *self._before]

    def _save(self) -> dict[str, Any]:
        return {}

    def _go_on(self, kept: dict[str, Any]) -> None:
        return


def correlations() -> dict[str, Correlation]:
    """A sound one, and those that break their word, each in another way, registered."""
    made: dict[str, Correlation] = {}

    def enter(cls: type[Any]) -> type[Any]:
        cls.kind = cls.__name__.lower()
        made[cls.__name__] = plan.registered(final(dataclass(frozen=True)(cls)))()
        return cls

    @enter
    class Sound(TwoBands):
        bands: int = 2

    @enter
    class HalfOfTheNoise(TwoBands):
        bands: int = 2

        def draw(self, fresh: list[Tensor], std: float, stream: Filled, places: Any) -> None:
            noise_module.add_gaussian(fresh, std / 2, stream._stream, places)

    @enter
    class NoNoise(TwoBands):
        bands: int = 2

        def draw(self, fresh: list[Tensor], std: float, stream: Filled, places: Any) -> None:
            stream._stream.words(8)

    @enter
    class NoWords(TwoBands):
        bands: int = 2

        def draw(self, fresh: list[Tensor], std: float, stream: Filled, places: Any) -> None:
            noise_module.add_gaussian(fresh, std, NoiseStream(bytes(16)), places)

    @enter
    class TheSameTwice(TwoBands):
        bands: int = 2

        def draw(self, fresh: list[Tensor], std: float, stream: Filled, places: Any) -> None:
            stream._stream.words(8)
            noise_module.add_gaussian(fresh, std, NoiseStream(bytes(16)), places)

    @enter
    class TooSensitive(TwoBands):
        bands: int = 2

        def coefficients(self, steps: int, separation: int = 1) -> Column:
            return 1.2 * super().coefficients(steps)

    @enter
    class OtherInverse(TwoBands):
        bands: int = 2

        def inverse(self, steps: int, separation: int = 1) -> Column:
            return impulse(steps)

    @enter
    class TooManyBands(TwoBands):
        bands: int = 2

        def coefficients(self, steps: int, separation: int = 1) -> Column:
            return np.array([0.7, 0.1, 0.1])[:steps]

    @enter
    class OverridesAdd(TwoBands):
        bands: int = 2

        def stream(self, noise: NoiseStream, steps: int, separation: int = 1) -> CorrelatedStream:
            return Silent(noise, self)

        def draw(self, fresh: list[Tensor], std: float, stream: Filled, places: Any) -> None:
            noise_module.add_gaussian(fresh, std / 3, stream._stream, places)

    return made


class Silent(Filled):
    """Adds nothing at all, where that is let."""

    def add(self, values: Any, std: float, places: Any = None) -> None:
        return


def plan_of(correlation: Correlation, epochs: int = 2) -> pv.Plan:
    cyclic = pv.sampling.CyclicPartition(3, 2)
    return pv.Plan(
        cyclic, epochs=epochs, schedule=pv.schedules.Constant(1.0), correlation=correlation
    )


@check
def check_a_correlation_that_breaks_its_matrix_is_refused_by_name() -> None:
    """Less noise, none, the same twice, a matrix that costs more: refused before anything is
    charged.
    """
    with forgotten():
        made = correlations()
        by_dpsgd(plan_of(made.pop("Sound")))
        for name, correlation in made.items():
            ledger = pv.Ledger()
            must_be_refused(
                name, lambda c=correlation, to=ledger: by_dpsgd(plan_of(c), ledger=to), ledger
            )
        door = {
            "sampling": pv.sampling.CyclicPartition(3, 2),
            "noise_multiplier": 1.0,
            "epsilon": None,
            "delta": None,
        }
        must_be_refused(
            "HalfOfTheNoise", lambda: by_make_private(mechanism=made["HalfOfTheNoise"], **door)
        )


@check
def check_every_registered_correlation_adds_the_noise_that_is_charged() -> None:
    """Of every kind there is, as it is tried where it is left open."""
    for kind in kinds(Correlation).values():
        sampler = pv.sampling.FixedOrder(10)
        for number in kind.tried[:3]:
            if (own := kind(number)).rest <= sampler.separation(400):
                require_priced(own, sampler, 400, 5 * sampler.steps(400))


@check
def check_noise_is_compared_in_every_step_before_it_is_added() -> None:
    """A stream that is sound at first: a step with less noise, an old one or none is not
    released.
    """
    inverse = TwoBands().inverse(STEPS)
    for weak in ("less", "elsewhere", "again"):
        turned = [False]

        @dataclass(frozen=True)
        class Turns(TwoBands):
            weak: str
            turned: list[bool]

            def draw(self, fresh: list[Tensor], std: float, stream: Filled, places: Any) -> None:
                weak, turned, stream._before = self.weak, self.turned, []
                draws = NoiseStream(bytes(16)) if turned[0] and weak != "less" else stream._stream
                if weak != "elsewhere":
                    stream._stream.words(2)
                noise_module.add_gaussian(
                    fresh, std / (4 if turned[0] and weak == "less" else 1), draws, places
                )

        stream = Filled(pv.Streams.new(0).noise, Turns(weak, turned))
        stream.expect(inverse)
        value = torch.zeros(400)
        turned[0] = weak == "again"
        CorrelatedStream.add(stream, [value], 1.0)
        before = value.clone()
        turned[0] = True
        error = must_raise(
            UnsoundExtension, lambda s=stream, v=value: CorrelatedStream.add(s, [v], 1.0)
        )
        assert "Filled" in str(error)
        torch.testing.assert_close(value, before)


@check
def check_release_adds_noise_whatever_a_subclass_does() -> None:
    """A subclass that takes the place of `add` is not asked."""
    stream = Silent(pv.Streams.new(0).noise, TwoBands())
    value = torch.zeros(1000)
    pv.release(bounded(value), noise_multiplier=1.0, ledger=Ledger(), stream=stream)
    assert float(value.std()) > 0.9


class NoStream:
    """Words that are no random ones."""

    discrete = False

    def words(self, number: int) -> Any:
        return np.zeros(number, np.int64)

    def skip(self, number: int) -> None:
        return

    def drawing_for(self, *given: Any) -> Any:
        return contextlib.nullcontext()


@check
def check_noise_comes_from_a_noise_stream_alone() -> None:
    """What only looks like one makes noise that anyone knows: nothing is released."""
    value = torch.zeros(4)
    error = must_raise(
        UnsoundExtension,
        lambda: pv.release(
            bounded(value), noise_multiplier=1.0, ledger=Ledger(), stream=NoStream()
        ),  # type: ignore[arg-type]
    )
    assert "NoStream" in str(error)
    assert not value.any()


class Shift(RowTransform):
    """Rows less a vector."""

    kind = "shift"

    def __init__(self, by: Tensor) -> None:
        super().__init__()
        self.register_buffer("by", by)

    def forward(self, x: Tensor) -> Tensor:
        return x - self.get_buffer("by")


def transforms() -> dict[str, PrivateTransform]:
    """Transforms that release a mean of clipped rows; all but the first break their word."""
    made: dict[str, PrivateTransform] = {}

    def enter(cls: type[Any]) -> type[Any]:
        made[cls.__name__] = final(dataclass(frozen=True)(cls))(4.0)
        return cls

    class Mean(PrivateTransform):
        noise_multiplier: float

        def event(self) -> Event:
            return Gaussian(self.noise_multiplier)

        def text(self) -> str:
            return "a mean"

        def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
            return shape

        def clip(self, x: Tensor) -> Tensor:
            return x * (1 / x.norm(dim=1, keepdim=True)).clamp(max=0.999)

        def fit(
            self,
            x: Tensor,
            adjacency: Adjacency,
            ledger: Any,
            stream: Any,
            examples: Any = None,
            labels: Any = None,
        ) -> RowTransform:
            (sample,) = pv.sampling.FullBatch().draw(len(x))
            rows = self.clip(x.double())
            added = Contributions.of(rows.norm(dim=1), 1.0, type(self).__name__)
            part = Bounded((rows.sum(0),), adjacency.sum_sensitivity(1.0), adjacency, sample, added)
            ((noisy,),) = pv.release(
                part, noise_multiplier=self.noise_multiplier, ledger=ledger, stream=stream
            )
            return Shift((noisy / len(x)).float())

        @classmethod
        def empty(cls, stated: Mapping[str, Any], code: str | None = None) -> RowTransform:
            return Shift(torch.empty(stated["shape"]))

    @enter
    class SoundMean(Mean):
        noise_multiplier: float
        kind: ClassVar[str] = "sound-mean"

    @enter
    class UnclippedMean(Mean):
        noise_multiplier: float
        kind: ClassVar[str] = "unclipped-mean"

        def clip(self, x: Tensor) -> Tensor:
            return x

    @enter
    class FreeMean(Mean):
        noise_multiplier: float
        kind: ClassVar[str] = "free-mean"

        def fit(
            self,
            x: Tensor,
            adjacency: Adjacency,
            ledger: Any,
            stream: Any,
            *more: Any,
            **named: Any,
        ) -> Any:
            stream.words(8)
            return Shift(x.mean(0))

    @enter
    class NoiselessMean(Mean):
        noise_multiplier: float
        kind: ClassVar[str] = "noiseless-mean"

        def fit(
            self,
            x: Tensor,
            adjacency: Adjacency,
            ledger: Any,
            stream: Any,
            *more: Any,
            **named: Any,
        ) -> Any:
            ledger.charge(self.event(), adjacency)
            return Shift(x.mean(0))

    return made


@check
def check_a_transform_that_breaks_its_event_is_refused_by_name() -> None:
    """One whose rows are longer than its sensitivity says, that is not charged, or that draws no
    noise.
    """
    with forgotten():
        for name, transform in transforms().items():
            wanted = pv.Plan(
                pv.Poisson(1 / 3), epochs=1, schedule=pv.schedules.Constant(1.0), front=(transform,)
            )
            if name == "SoundMean":
                assert by_dpsgd(wanted).ledger.event == wanted.event()
            else:
                must_be_refused(name, lambda wanted=wanted: by_dpsgd(wanted))
