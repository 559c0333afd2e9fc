"""The release is the only place where a charge and noise meet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from privlearn._checks import positive, quoted, require_fit, with_plain_numbers
from privlearn.core.accounting.account import Account
from privlearn.core.accounting.guarantee import require_same
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.clipping.bounded import Bounded
from privlearn.core.streams import NoiseStream
from privlearn.errors import BadInput, SampleReused, UnsoundExtension

if TYPE_CHECKING:
    from torch import Tensor

    from privlearn.core.mechanisms.correlated_stream import CorrelatedStream


@with_plain_numbers
def release(
    *parts: Bounded,
    noise_multiplier: float,
    ledger: Account,
    stream: NoiseStream | CorrelatedStream,
    shares: Sequence[float] | None = None,
) -> list[tuple[Tensor, ...]]:
    """Release one or several bounded values of one sample, jointly, as one Gaussian event.

    Guarantee: the event that the sample makes of Gaussian(noise_multiplier), for the adjacency of
    the parts. It is charged first; if the ledger refuses, nothing is drawn. With m parts, part i
    gets noise of standard deviation noise_multiplier x sqrt(m) x its sensitivity, so that together
    they are one release of sensitivity 1 (DP-MAC, sec. 2.3). Any other public split of that unit
    will do: with `shares` whose squares add up to at most 1, part i gets noise of noise_multiplier
    x its sensitivity / its share.

    Args:
        parts: values bounded by the clipping package, all of the same sample.
        noise_multiplier: noise standard deviation over sensitivity; public.
        ledger: a ledger, or a filter on one; charged before anything is drawn.
        stream: the run's noise stream, which also says whether noise goes on a grid; or one that
            correlates the noise of the run's steps, for single parts of samples that are far enough
            apart (`mechanisms.correlated`).
        shares: a public share of the unit of sensitivity for each part; by default 1 / sqrt(m)
            each.

    Returns:
        For each part its tensors, to which noise has been added in place; free to use from here on.

    Raises:
        BadInput: values bounded in L1 or that noise can't be added to, or shares that are more than
            the whole; nothing is charged.
        SampleReused: the sample was released before, or the parts come from different samples.
        BudgetExceeded, AdjacencyMismatch, UnsupportedEvent: by the ledger.
    """
    if not parts:
        raise BadInput("release() was given nothing: expected at least one bounded value")
    for part in parts:
        require_fit("a part of release()", part, Bounded)
    if not hasattr(ledger, "charge"):
        require_fit("ledger", ledger, Account)
    if shares is not None:
        require_fit("shares", shares, Sequence[float])
    sample, adjacency = parts[0].sample, parts[0].adjacency
    for part in parts[1:]:
        require_same(adjacency, part.adjacency, "this release")
        if part.sample is not sample:
            raise SampleReused(
                "the parts of one release come from different samples: release each sample by "
                "itself"
            )

    if any(part.norm != "L2" for part in parts):
        raise BadInput(
            "a value is bounded in L1: Gaussian noise is for values that are bounded in L2. "
            "Nothing was charged"
        )
    from privlearn.core.mechanisms.correlated_stream import CorrelatedStream

    if not isinstance(stream, CorrelatedStream) and not hasattr(stream, "words"):
        raise BadInput(
            f"stream is {quoted(stream)}: expected a noise stream, such as Streams.new().noise"
        )
    if isinstance(stream, CorrelatedStream) and len(parts) > 1:
        raise BadInput(
            "correlated noise is for one bounded value a step: release the parts with a noise "
            "stream"
        )
    from privlearn.core.mechanisms.noise import require_noisable

    require_noisable([value for part in parts for value in part.values])
    factors = (
        [math.sqrt(len(parts))] * len(parts) if shares is None else _factors(shares, len(parts))
    )
    mechanism = Gaussian(noise_multiplier)
    sample.spend(mechanism, adjacency, ledger)
    # Only from here on is anything drawn.
    return [
        _add_noise(part, noise_multiplier * factor, stream)
        for part, factor in zip(parts, factors, strict=True)
    ]


def _factors(shares: Sequence[float], parts: int) -> list[float]:
    """What each part's noise is multiplied by: one over its share."""
    numbers = [positive("a share of the sensitivity", share) for share in shares]
    whole = math.fsum(share**2 for share in numbers)
    if len(numbers) != parts or whole > 1 + 1e-9:
        raise BadInput(
            f"there are {len(numbers)} shares for {parts} parts, and their squares add up to "
            f"{whole:.6g}: expected one for each, with squares that add up to at most 1"
        )
    return [math.sqrt(max(whole, 1.0)) / share for share in numbers]


def _add_noise(
    part: Bounded, multiplier: float, stream: NoiseStream | CorrelatedStream
) -> tuple[Tensor, ...]:
    from privlearn.core.mechanisms import noise
    from privlearn.core.mechanisms.correlated_stream import CorrelatedStream

    if not isinstance(stream, CorrelatedStream) and not NoiseStream.is_one(stream):
        raise UnsoundExtension(
            f"noise would come from a {type(stream).__name__}, which may be anything: expected the "
            "noise stream of privlearn.Streams. It was charged, and nothing was released"
        )
    values, places = part.share.own(part.values) if part.share else (part.values, None)
    with stream.drawing_for(values, places):  # noted first: the same noise goes to no other sum
        if isinstance(stream, CorrelatedStream):
            # whatever a subclass has
            CorrelatedStream.add(stream, values, multiplier * part.sensitivity, places)
        elif stream.discrete:
            noise.add_on_grid(values, multiplier, part.sensitivity, stream, places)
        else:
            noise.add_gaussian(values, multiplier * part.sensitivity, stream, places)
    if part.share:
        part.share.complete(part.values)
    return part.values
