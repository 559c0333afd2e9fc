"""Public transforms as plans hold them: frozen values, without torch. Their modules are beside, one
file a kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from privlearn import _public
from privlearn._checks import between, checked, count, one_of, with_plain_numbers
from privlearn.core.transform import PublicTransform, Shape
from privlearn.errors import BadInput
from privlearn.transforms.sources import External

if TYPE_CHECKING:
    from privlearn.core.row_transform import RowTransform

#: Angles of wavelets.
ANGLES = 8
#: Scales beyond 4 leave nothing of a small image, and a file may ask for no more.
_LARGEST_SCALE = 4
_SMALLEST, _LARGEST = 8, 1024
_LARGEST_BOUND = 1e30
#: Images from this size on, with at most so many channels, are scattered; rows of so many numbers
#: are normalised.
_LEAST_IMAGE, _MOST_CHANNELS, _LEAST_NUMBERS = 16, 4, 256
#: Images of so many numbers have several thousand features, of which directions are kept.
_LARGE = 512
#: Larger images take hours and gigabytes to be scattered as often as directions need, and none were
#: tried.
_LARGEST_IMAGE = 64
#: Numbers that the encoder of drawn images makes of an image, of which directions are kept.
ENCODER_ANSWERS = 4096
_COLOURS = 3  # channels of what is taken for a photograph
#: Directions kept: of grey images and of those in colour, of both where examples times epsilon are
#: few, of encoders.
_DIRECTIONS, _LEAST_DIRECTIONS, _FEW, _ENCODED = (1000, 2000), 300, 3000, 500


@with_plain_numbers
@final
@dataclass(frozen=True)
class Rescale(PublicTransform):
    """Numbers of a declared public range, clipped to it and scaled: to [0, 1], or [-1, 1] where it
    reaches below 0.

    `Dataset(low=, high=)` declares ranges of the rows, which are scaled before everything else;
    this is for what has none.

    Attributes:
        low: the lower end.
        high: the upper end.
    """

    low: float
    high: float

    kind: ClassVar[str] = "scale"
    keeps_places: ClassVar[bool] = True

    def __post_init__(self) -> None:
        between("low of Rescale", self.low, -_LARGEST_BOUND, _LARGEST_BOUND)
        between("high of Rescale", self.high, -_LARGEST_BOUND, _LARGEST_BOUND)
        if not self.low < self.high:
            raise BadInput(f"the range is {self.low:g} to {self.high:g}: expected low below high")

    @property
    def spec(self) -> str:
        """What it is called."""
        return f"scale:low={self.low:g},high={self.high:g}"

    def output_shape(self, shape: Shape) -> Shape:
        """That of the example."""
        return shape

    def module(
        self, shape: Shape, cache: Path | None = None, begin: Callable[[], None] | None = None
    ) -> RowTransform:
        """The module for examples of any shape."""
        import torch

        from privlearn.core.row_transform import Scale

        return Scale(
            torch.tensor(float(self.low), device="cpu"),
            torch.tensor(float(self.high), device="cpu"),
        )

    @classmethod
    def empty(cls, stated: Mapping[str, Any], code: str | None = None) -> RowTransform:
        """A module with room for bounds of the stated shape."""
        import torch

        from privlearn.core.devices import building
        from privlearn.core.row_transform import Scale

        return Scale(
            torch.empty(stated["shape"], device=building()),
            torch.empty(stated["shape"], device=building()),
        )


@with_plain_numbers
@final
@dataclass(frozen=True)
class Centre(PublicTransform):
    """Some of the numbers in flat rows, from 0 to 1, taken to -1 to 1; the others stay as they are.

    Attributes:
        columns: the places of these numbers, ascending; public.
    """

    columns: tuple[int, ...]

    kind: ClassVar[str] = "centre"

    def __post_init__(self) -> None:
        places = self.columns if isinstance(self.columns, tuple) else ()
        whole = all(isinstance(place, int) and not isinstance(place, bool) for place in places)
        if not places or not whole or places[0] < 0 or list(places) != sorted(set(places)):
            raise BadInput(
                f"the columns of Centre are {str(self.columns)[:60]}: expected places of numbers, "
                "whole and ascending, for example (0, 1, 4)"
            )

    @property
    def spec(self) -> str:
        """What it is called."""
        return f"centre:columns={len(self.columns)}"

    def output_shape(self, shape: Shape) -> Shape:
        """That of the example."""
        if len(shape) != 1 or self.columns[-1] >= shape[0]:
            raise BadInput(
                f"examples of shape {shape} can't be centred at {self.columns[-1]}: expected "
                f"vectors of at least {self.columns[-1] + 1} numbers"
            )
        return shape

    def module(
        self, shape: Shape, cache: Path | None = None, begin: Callable[[], None] | None = None
    ) -> RowTransform:
        """The module for vectors of `shape`."""
        import torch

        from privlearn.transforms.modules import Centred

        indicator = torch.zeros(self.output_shape(shape), device="cpu")
        indicator[list(self.columns)] = 1
        return Centred(indicator)

    @classmethod
    def empty(cls, stated: Mapping[str, Any], code: str | None = None) -> RowTransform:
        """A module with room for its places."""
        import torch

        from privlearn.core.devices import building
        from privlearn.transforms.modules import Centred

        return Centred(torch.empty(stated["shape"], device=building()))


@with_plain_numbers
@final
@dataclass(frozen=True)
class ClipToNorm(PublicTransform):
    """Flatten rows, and scale those longer than a public norm down to it.

    Attributes:
        norm: L2 norm of a row at most.
    """

    norm: float

    kind: ClassVar[str] = "clip"

    def __post_init__(self) -> None:
        between("norm of ClipToNorm", self.norm, 1e-12, 1e12)

    @property
    def spec(self) -> str:
        """What it is called."""
        return f"clip:norm={self.norm:g}"

    def output_shape(self, shape: Shape) -> Shape:
        """All numbers in a row."""
        return (math.prod(shape),)

    def module(
        self, shape: Shape, cache: Path | None = None, begin: Callable[[], None] | None = None
    ) -> RowTransform:
        """The module for examples of any shape."""
        import torch

        from privlearn.transforms.modules import ClipRows

        return ClipRows(torch.tensor(float(self.norm), device="cpu"))

    @classmethod
    def empty(cls, stated: Mapping[str, Any], code: str | None = None) -> RowTransform:
        """A module with room for a norm."""
        import torch

        from privlearn.core.devices import building
        from privlearn.transforms.modules import ClipRows

        return ClipRows(torch.empty(stated["shape"], device=building()))


@with_plain_numbers
@final
@dataclass(frozen=True)
class Scatter(PublicTransform):
    """Second-order wavelet scattering of images, each example's groups of channels normalised
    (`Scattering`).

    Attributes:
        J: images shrink to a 2^J-th of their height and width.
        kept: how many directions of the features to keep, learned from made-up images; 0: all
            features as they are.
    """

    J: int = 2
    kept: int = 0

    kind: ClassVar[str] = "scatter"
    stated: ClassVar[frozenset[str]] = frozenset({"spec", "shape"})

    def __post_init__(self) -> None:
        count("the scale of scattering", self.J, most=_LARGEST_SCALE)
        count("kept", self.kept, least=0)

    @property
    def spec(self) -> str:
        """What `parse` reads."""
        return f"scatter:J={self.J}" + (f",kept={self.kept}" if self.kept else "")

    @property
    def normalises(self) -> bool:
        """Each row by itself, in groups."""
        return True

    def output_shape(self, shape: Shape) -> Shape:
        """The directions kept, or maps of features, (features, h / 2^J, w / 2^J)."""
        require_images(self.J, shape)
        return (self.kept,) if self.kept else maps_of(self.J, shape)

    def module(
        self, shape: Shape, cache: Path | None = None, begin: Callable[[], None] | None = None
    ) -> RowTransform:
        """The module for images of `shape`."""
        from privlearn.transforms.scattering import Scattering

        require_images(self.J, shape)
        return (
            Scattering.learned(self.J, self.kept, shape, cache, begin)
            if self.kept
            else Scattering(self.J)
        )

    @classmethod
    def empty(cls, stated: Mapping[str, Any], code: str | None = None) -> RowTransform:
        """A module with room for the directions that it keeps."""
        import torch

        from privlearn.core.devices import building
        from privlearn.transforms.scattering import Scattering

        transform, shape = parse(stated["spec"][:80]), stated["shape"]
        if (
            not isinstance(transform, cls)
            or len(shape) != (2 if transform.kept else 0)
            or (transform.kept and shape[1] != transform.kept)
        ):
            raise _no_features(stated)
        return (
            Scattering(
                transform.J,
                torch.empty(shape[0], device=building()),
                torch.empty(shape, device=building()),
            )
            if shape
            else Scattering(transform.J)
        )


@with_plain_numbers
@final
@dataclass(frozen=True)
class ScatterRandom(PublicTransform):
    """Scattering of photographs, seen at each place by units drawn from made-up images
    (`RandomUnits`).

    Attributes:
        J: as for `Scatter`.
        units: how many.
        mirror: 1 if an image and its mirror image have the same features, as suits photographs, and
            no letters; else 0.
        kept: how many directions of their answers to keep, learned from made-up images.
        encoded: how many more to join, of the answers of an encoder of photographs in colour
            (`DrawnEncoder`); 0: none.
    """

    J: int = 2
    units: int = 400
    mirror: int = 1
    kept: int = 2000
    encoded: int = field(default=0, metadata=_public.OMITTED)

    kind: ClassVar[str] = "scatter-random"
    stated: ClassVar[frozenset[str]] = frozenset({"spec", "shape", "local"})

    def __post_init__(self) -> None:
        count("the scale of scattering", self.J, most=_LARGEST_SCALE)
        count("units", self.units)
        one_of("mirror of scatter-random", str(self.mirror), ("0", "1"))
        count("kept", self.kept)
        count("encoded", self.encoded, least=0, most=ENCODER_ANSWERS)

    @property
    def spec(self) -> str:
        """What `parse` reads."""
        joined = f",encoded={self.encoded}" if self.encoded else ""
        sizes = f"J={self.J},units={self.units},mirror={self.mirror},kept={self.kept}"
        return f"scatter-random:{sizes}{joined}"

    @property
    def normalises(self) -> bool:
        """Each row by itself."""
        return True

    def output_shape(self, shape: Shape) -> Shape:
        """The directions kept."""
        require_images(self.J, shape)
        if self.encoded and (len(shape) != 3 or shape[0] != _COLOURS):
            raise BadInput(
                f"the encoder takes images in colour, (3, height, width), not {shape}: leave "
                "encoded= out"
            )
        return (self.kept + self.encoded,)

    def module(
        self, shape: Shape, cache: Path | None = None, begin: Callable[[], None] | None = None
    ) -> RowTransform:
        """The module for images of `shape`, with all that is learned from made-up ones."""
        from privlearn.transforms.scattering import RandomUnits

        self.output_shape(shape)
        units = RandomUnits.learned(
            self.J, self.units, self.mirror == 1, self.kept, shape, cache, begin
        )
        if self.encoded:
            from privlearn.transforms.drawn_encoder import WithEncoder

            return WithEncoder.learned(units, self.encoded, shape, cache, begin)
        return units

    @classmethod
    def empty(cls, stated: Mapping[str, Any], code: str | None = None) -> RowTransform:
        """A module with room for the units, the encoder and the directions that it keeps."""
        from privlearn.transforms.scattering import RandomUnits

        transform, shape, local = parse(stated["spec"][:80]), stated["shape"], stated["local"]
        sized = len(shape) == len(local) == 2
        if (
            not sized
            or not isinstance(transform, cls)
            or (local[1], shape[1]) != (transform.units, transform.kept)
        ):
            raise _no_features(stated)
        units = RandomUnits.empty(transform.J, transform.mirror == 1, local, shape)
        if transform.encoded:
            from privlearn.transforms.drawn_encoder import WithEncoder

            return WithEncoder.empty(units, transform.encoded)
        return units


@with_plain_numbers
@final
@dataclass(frozen=True)
class RowNorm(PublicTransform):
    """Numbers raised to a power, then each row brought to mean 0 and variance 1 (`Normalised`).

    Attributes:
        power: 0.5 is the root, negative numbers counting as 0; 1 leaves numbers as they are.
    """

    power: float = 0.5

    kind: ClassVar[str] = "norm"
    stated: ClassVar[frozenset[str]] = frozenset({"spec"})

    def __post_init__(self) -> None:
        between("the power of norm", self.power, 0.1, 1.0)

    @property
    def spec(self) -> str:
        """What `parse` reads."""
        return f"norm:power={self.power:g}"

    @property
    def normalises(self) -> bool:
        """Each row by itself."""
        return True

    def output_shape(self, shape: Shape) -> Shape:
        """All numbers in a row."""
        return (math.prod(shape),)

    def module(
        self, shape: Shape, cache: Path | None = None, begin: Callable[[], None] | None = None
    ) -> RowTransform:
        """The module for examples of any shape."""
        from privlearn.transforms.modules import Normalised

        return Normalised(self.power)

    @classmethod
    def empty(cls, stated: Mapping[str, Any], code: str | None = None) -> RowTransform:
        """The module itself: it keeps no numbers."""
        transform = parse(stated["spec"][:80])
        if not isinstance(transform, cls):
            raise _no_features(stated)
        return transform.module(())


_BY_NUMBERS: dict[str, type[Scatter | ScatterRandom | RowNorm]] = {
    transform.kind: transform for transform in (Scatter, ScatterRandom, RowNorm)
}


@checked
def parse(spec: str) -> PublicTransform | None:
    """The public transform that `spec` names, or None for "raw".

    Args:
        spec: `raw`, `scatter:J=2`, `scatter:J=2,kept=1000`,
            `scatter-random:J=2,units=400,mirror=1,kept=2000`, `norm:power=0.5`, `package:NAME`, or
            `package.module:function`.

    Raises:
        BadInput: an unknown name or number.
    """
    name, _, rest = spec.partition(":")
    if spec == "raw":
        return None
    if name == "pca":
        raise BadInput(
            f"features {spec[:60]!r} are learned from the private rows: they are a release, not an "
            "encoder. Give pv.Plan(front=(pv.transforms.PrivatePCA(L, 16.0),)), or "
            "features='pca:L' to pv.train"
        )
    if name == "package":
        from privlearn.transforms.packaged import Packaged

        return Packaged.parse(spec)
    if name in _BY_NUMBERS:
        kind = _BY_NUMBERS[name]
        from privlearn._short_specs import parse_spec  # only where a text is given

        numbers: dict[str, Any] = parse_spec("features", spec)[1]
        if kind is not RowNorm:
            numbers = {
                each: int(number) if number.is_integer() else number
                for each, number in numbers.items()
            }
        whole = kind is RowNorm or all(isinstance(number, int) for number in numbers.values())
        if not whole or not set(numbers) <= set(kind.__dataclass_fields__):
            raise BadInput(
                f"features {spec[:60]!r} cannot be read: expected scatter:J=2, "
                f"scatter:J=2,kept=1000 or {ScatterRandom().spec}, with whole numbers, or "
                "norm:power=0.5"
            )
        return kind(**numbers)
    if name and rest.isidentifier():
        return External(spec)
    raise BadInput(
        f"features {spec[:60]!r} are unknown: expected raw, scatter:J=2, scatter:J=2,kept=1000, "
        f"{ScatterRandom().spec}, norm:power=0.5, pca:L (a release), package:NAME, "
        "package.module:function, or a folder",
        spec=spec,
    )


@checked
def usual(shape: Sequence[int], low: object, signal: float = math.inf) -> str | None:
    """The spec of the features in front of a linear model where none are given, by public facts.

    Args:
        shape: of one example.
        low: the declared lower bound of its numbers, or None.
        signal: examples times epsilon. The less there is, the fewer directions a model can learn
            of.
    """
    sized = len(shape) in (2, 3) and all(
        _LEAST_IMAGE <= size <= _LARGEST_IMAGE for size in shape[-2:]
    )
    if sized and (len(shape) == 2 or shape[0] <= _MOST_CHANNELS):
        if len(shape) == 3 and shape[0] == _COLOURS:
            directions, encoded = (
                (_DIRECTIONS[1], _ENCODED) if signal >= _FEW else (_LEAST_DIRECTIONS, 0)
            )
            return ScatterRandom(kept=directions, encoded=encoded).spec
        directions = _DIRECTIONS[0] if signal >= _FEW else _LEAST_DIRECTIONS
        return Scatter(kept=directions if math.prod(shape) >= _LARGE else 0).spec
    positive = isinstance(low, int | float) and low >= 0
    return RowNorm().spec if len(shape) == 1 and shape[0] >= _LEAST_NUMBERS and positive else None


def require_images(scale: int, shape: Shape) -> None:
    """Raise `BadInput` unless examples of `shape` are images that can be scattered."""
    least = max(_SMALLEST, 1 << scale)
    if len(shape) not in (2, 3) or not all(least <= size <= _LARGEST for size in shape[-2:]):
        raise BadInput(
            f"examples of shape {shape} can't be scattered: expected images, (height, width) or "
            f"(channels, height, width) of {least} to {_LARGEST} pixels. Give features='raw', or "
            "others that fit these data"
        )


def maps_of(scale: int, shape: Shape) -> Shape:
    """The shape of the scattering coefficients of an image: for each channel one of order 0, then
    of orders 1 and 2.
    """
    channels = 1 if len(shape) == 2 else shape[0]
    coefficients = 1 + ANGLES * scale + ANGLES**2 * scale * (scale - 1) // 2
    return (channels * coefficients, *(size >> scale for size in shape[-2:]))


def _no_features(description: Mapping[str, Any]) -> BadInput:
    return BadInput(
        f"the published features are {str(dict(description))[:80]}: get an unchanged copy of the "
        "model"
    )
