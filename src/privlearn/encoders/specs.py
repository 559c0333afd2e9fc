"""Encoders by name, and those that are usual."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from privlearn._validate import one_of, parse_spec
from privlearn.encoders.external import External
from privlearn.encoders.normalised import Normalised
from privlearn.encoders.precomputed import EACH_EXAMPLE, Precomputed
from privlearn.encoders.random_units import RandomUnits
from privlearn.encoders.scattering import Scattering
from privlearn.errors import BadInput

Encoder = Scattering | RandomUnits | Normalised | External | Precomputed
#: Images from this size on, with at most so many channels, are scattered; rows of so many numbers are normalised.
_LEAST_IMAGE, _MOST_CHANNELS, _LEAST_NUMBERS = 16, 4, 256
#: Images of so many numbers have several thousand features, of which directions are kept.
_LARGE = 512
#: Larger images take hours and gigabytes to be scattered as often as directions need, and none were tried.
_LARGEST_IMAGE = 64
#: Images of three channels are taken for photographs in colour.
_COLOURS = 3
_RANDOM = {"J": 2, "units": 400, "mirror": 1, "kept": 2000}
#: How many directions are kept, of grey images and of those in colour, and of both where examples times epsilon are few.
_DIRECTIONS, _LEAST_DIRECTIONS, _FEW = (1000, 2000), 300, 3000


def encoder(
    spec: str, shape: Sequence[int] = (), cache: Path | None = None, begin: Callable[[], None] | None = None
) -> Encoder | None:
    """The encoder that `spec` names, or None for "raw".

    Args:
        spec: `raw`, `scatter:J=2`, `scatter:J=2,kept=1000`, `scatter-random:J=2,units=400,mirror=1,kept=2000`,
            `norm:power=0.5`, or `package.module:function`.
        shape: of one example; what is learned from made-up images is learned from such.
        cache: a folder to keep that in.
        begin: called before something is learned, which takes a minute or more; not where it is kept already.

    Raises:
        BadInput: an unknown name or number, or code that can't be used.
    """
    name, _, rest = spec.partition(":")
    if spec == "raw":
        return None
    if name == "pca":
        raise BadInput(
            f"features {spec[:60]!r} are learned from the private rows, and paid for: they are a release, not an encoder. "
            "Give pv.Plan(before=(pv.PCA(L, 16.0),)), or features='pca:L' to pv.train (--features pca:L or --pca L)"
        )
    if name in ("scatter", "scatter-random", "norm"):
        _, numbers = parse_spec("features", spec)
        if name == "norm" and set(numbers) <= {"power"}:
            return Normalised(**numbers)
        whole = {each: int(number) for each, number in numbers.items() if number == int(number)}
        if name == "scatter" and set(numbers) <= {"J", "kept"} and len(whole) == len(numbers):
            scale, kept = whole.get("J", 2), whole.get("kept", 0)
            return Scattering.learned(scale, kept, shape, cache, begin) if kept else Scattering(scale)
        if name == "scatter-random" and set(numbers) <= set(_RANDOM) and len(whole) == len(numbers):
            scale, units, mirror, kept = (_RANDOM | whole).values()
            mirrored = one_of("mirror of scatter-random", str(mirror), ("0", "1")) == "1"
            return RandomUnits.learned(scale, units, mirrored, kept, shape, cache, begin)
        raise BadInput(
            f"features {spec[:60]!r} cannot be read: expected scatter:J=2, scatter:J=2,kept=1000 or "
            f"{_random(2000)}, with whole numbers, or norm:power=0.5"
        )
    if name and rest.isidentifier():
        return External(spec)
    raise BadInput(
        f"features {spec[:60]!r} are unknown: expected raw, scatter:J=2, scatter:J=2,kept=1000, {_random(2000)}, "
        "norm:power=0.5, pca:L (paid for), package.module:function, or a folder",
        spec=spec,
    )


def row_norm(made: Encoder, numbers: int) -> float | None:
    """The norm of all rows of so many features, where each is normalised by itself: public. None: nothing is known of it."""
    by_itself = isinstance(made, Scattering | RandomUnits | Normalised)
    by_itself |= isinstance(made, Precomputed) and made.normalisation == EACH_EXAMPLE
    return math.sqrt(numbers) if by_itself else None


def usual(shape: Sequence[int], low: object, signal: float = math.inf) -> str | None:
    """The spec of what stands in front of a linear model where nobody says otherwise, by public facts.

    Args:
        shape: of one example.
        low: the declared lower bound of its numbers, or None.
        signal: examples times epsilon. The less there is, the fewer directions a model can learn of.
    """
    sized = len(shape) in (2, 3) and all(_LEAST_IMAGE <= size <= _LARGEST_IMAGE for size in shape[-2:])
    if sized and (len(shape) == 2 or shape[0] <= _MOST_CHANNELS):
        if len(shape) == 3 and shape[0] == _COLOURS:
            return _random(_DIRECTIONS[1] if signal >= _FEW else _LEAST_DIRECTIONS)
        kept = _DIRECTIONS[0] if signal >= _FEW else _LEAST_DIRECTIONS
        return f"scatter:J=2,kept={kept}" if math.prod(shape) >= _LARGE else "scatter:J=2"
    positive = isinstance(low, int | float) and low >= 0
    return "norm:power=0.5" if len(shape) == 1 and shape[0] >= _LEAST_NUMBERS and positive else None


def _random(kept: int) -> str:
    return "scatter-random:" + ",".join(f"{name}={number}" for name, number in (_RANDOM | {"kept": kept}).items())
