"""A clip of anyone's keeps its bound, or is refused: named checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor

import privlearn as pv
from privlearn.core import plan, sampling
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.bounded import Bounded, Contributions
from privlearn.core.clipping.clips import Clip
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.errors import UnsoundExtension
from tests.support.checks import check, must_raise
from tests.support.nets import one_sample
from tests.support.registries import forgotten
from tests.support.training import (
    LOSS,
    by_dpsgd,
    by_make_private,
    by_train,
    must_be_refused,
    net,
    rows,
)


class Broken(Clip):
    """What a stranger's clips have in common."""

    clip_norm: float
    kind: ClassVar[str]

    def norm(self, clip_norm: float, layers: int) -> float:
        return clip_norm

    def weights(self, norms: Tensor, clip_norm: float) -> Tensor:
        return (clip_norm / norms).clamp(max=1.0)


def broken() -> dict[str, Clip]:
    """Clips that break their word, each in another way, registered."""
    made: dict[str, Clip] = {}

    def enter(cls: type[Any]) -> type[Any]:
        cls.kind = cls.__name__.lower()
        made[cls.__name__] = plan.registered(final(dataclass(frozen=True)(cls)))(0.2)
        return cls

    @enter
    class AllOnes(Broken):
        clip_norm: float

        def weights(self, norms: Tensor, clip_norm: float) -> Tensor:
            return torch.ones_like(norms)

    @enter
    class HalfNorm(Broken):
        clip_norm: float

        def norm(self, clip_norm: float, layers: int) -> float:
            return clip_norm / 2

    @enter
    class OfTheBatch(Broken):
        """Every product is within the bound, and one example changes the weights of all."""

        clip_norm: float

        def weights(self, norms: Tensor, clip_norm: float) -> Tensor:
            return (clip_norm / norms.max()).clamp(max=1.0).expand_as(norms)

    @enter
    class Negative(Broken):
        clip_norm: float

        def weights(self, norms: Tensor, clip_norm: float) -> Tensor:
            return -clip_norm / norms.clamp(min=clip_norm)

    @enter
    class Unbounded(Broken):
        clip_norm: float

        def weights(self, norms: Tensor, clip_norm: float) -> Tensor:
            return clip_norm / norms  # infinite at 0

    @enter
    class NoNorm(Broken):
        clip_norm: float

        def norm(self, clip_norm: float, layers: int) -> float:
            return float("nan")

    return made


@check
def check_a_clip_that_breaks_its_bound_is_refused_by_name() -> None:
    """Whatever is wrong with it, before anything is charged: in every door."""
    with forgotten():
        clips = broken()
        for name, clip in clips.items():
            wanted = pv.Plan(
                sampling.Poisson(1 / 3), epochs=1, schedule=pv.schedules.Constant(1.0), clip=clip
            )
            ledger = pv.Ledger()
            must_be_refused(
                name, lambda wanted=wanted, ledger=ledger: by_dpsgd(wanted, ledger=ledger), ledger
            )
        must_be_refused("AllOnes", lambda: by_train(clip="allones"))
        must_be_refused("AllOnes", lambda: by_make_private(clip=clips["AllOnes"]))


def rare() -> Clip:
    """A clip that lets pass what no made-up norm is: those in a narrow range."""

    @final
    @dataclass(frozen=True)
    class Rare(Broken):
        clip_norm: float
        kind: ClassVar[str] = "rare"

        def weights(self, norms: Tensor, clip_norm: float) -> Tensor:
            inside = (norms > 5.6 * clip_norm) & (norms < 6.0 * clip_norm)
            return (clip_norm / norms).clamp(max=1.0).masked_fill(inside, 1.0)

    return Rare(0.2)


@check
def check_an_example_adds_no_more_than_the_bound_whatever_the_clip_does() -> None:
    """A clip that breaks its word on some norms alone: nothing is raised for these rows, and they
    add nothing.
    """
    (x, y), seen = rows(), list[int]()

    def total(x: Tensor) -> Bounded:
        network = net()
        clipped = ClippedGradients(
            network, LOSS, rare(), Adjacency.ZERO_OUT, observe=lambda _, n: seen.append(len(n))
        )
        clipped.prepare(x, y)
        (sample,) = sampling.FullBatch().draw(len(x))
        return clipped(sample, x, y)

    whole = total(x)
    left_out = len(x) - seen[-1]
    assert 0 < left_out < len(x), (
        "no row has a gradient that the clip lets pass: the check shows nothing"
    )
    for row in range(0, len(x), 8):
        fewer = x.clone()
        fewer[row] = np.nan
        parts = zip(whole.values, total(fewer).values, strict=True)
        moved = torch.cat([(one - other).flatten() for one, other in parts]).norm()
        assert float(moved) <= whole.sensitivity, (row, float(moved))


@check
def check_a_sum_is_made_with_what_was_measured_of_it() -> None:
    """No value is bounded without the norms of what examples add, and none if one is above the
    bound.
    """
    value, sample = torch.ones(3), one_sample()
    for contributions, sensitivity in (
        (Contributions.of(torch.tensor([1.0, 1.1]), 1.0, "Loose"), 1.0),
        (Contributions.of(torch.tensor([torch.nan]), 1.0, "Loose"), 1.0),
        (Contributions.of(torch.tensor([1.0]), 1.0, "Loose"), 0.5),
        (Contributions(1.0, "Loose"), 1.0),
        (Contributions.of(torch.tensor([0.0]), 0.0, "Loose"), 0.0),
    ):
        error = must_raise(
            UnsoundExtension,
            lambda s=sensitivity, c=contributions: Bounded(
                (value,), s, Adjacency.ZERO_OUT, sample, c
            ),
        )
        assert "Loose" in str(error)
    must_raise(TypeError, lambda: Bounded((value,), 1.0, Adjacency.ZERO_OUT, sample))  # type: ignore[call-arg]
    Bounded(
        (value,), 2.0, Adjacency.REPLACE_ONE, sample, Contributions.of(torch.ones(2), 1.0, "Kept")
    )
