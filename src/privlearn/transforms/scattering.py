"""Wavelet scattering of images (Bruna and Mallat 2013): features that no data were used to choose.

As they are, or seen at each place by random units that are drawn from made-up images, as suits
photographs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn._checks import checked, count
from privlearn.core.devices import building
from privlearn.core.row_transform import RowTransform
from privlearn.errors import BadInput
from privlearn.transforms.made_up_images import directions, images, learned, projected
from privlearn.transforms.specs import ANGLES, Scatter, ScatterRandom, require_images

#: Groups of channels that are normalised together, at most: Tramèr and Boneh (2021) found a few
#: dozen to do best.
_GROUPS = 32


@checked
@final
class Scattering(RowTransform):
    """Second-order scattering with 8 angles, then each example's groups of channels brought to mean
    0 and variance 1.

    No private row has a part in it, and none in another's features. So it is as public as a change
    of units, and clipping, which comes after it, bounds what an example can do all the same. With a
    linear model on top: Tramèr and Boneh (2021).

    With `mean` and `components` features are then projected on directions that matter in made-up
    images, and each example brought to norm sqrt(kept): noise grows with the number of weights, and
    most features say what others say. Random processes as a source of public priors: Baradad et al.
    (2021), Tang et al. (2023).

    Args:
        scale: images shrink to a 2^scale-th of their height and width (J).
        mean: of the features of made-up images, (features,).
        components: what they are multiplied by, (features, kept).

    Raises:
        BadInput: a scale out of range.
    """

    kind = Scatter.kind

    def __init__(
        self, scale: int = 2, mean: Tensor | None = None, components: Tensor | None = None
    ) -> None:
        super().__init__()
        self.scale = Scatter(scale).J
        self.register_buffer("mean", mean)
        self.register_buffer("components", components)

    @classmethod
    def learned(
        cls,
        scale: int,
        kept: int,
        shape: Sequence[int],
        cache: Path | None = None,
        begin: Callable[[], None] | None = None,
    ) -> Scattering:
        """With the `kept` directions that matter most in made-up images of `shape`.

        `cache` is a folder to keep them in; `begin` is called before they are learned.
        """
        require_images(scale, tuple(shape))
        plain = cls(scale)
        count("kept", kept)
        tensors = learned(
            f"{plain.spec},kept={kept}", shape, cache, lambda: directions(plain, shape, kept), begin
        )
        return cls(scale, tensors["mean"], tensors["components"])

    @property
    def kept(self) -> int:
        """How many directions are kept; 0: all features are as they are."""
        return 0 if self._buffers["components"] is None else self.get_buffer("components").shape[1]

    @property
    def shape(self) -> list[int]:
        """The shape of what it keeps of made-up images; empty if nothing."""
        return list(self.get_buffer("components").shape) if self.kept else []

    @property
    def spec(self) -> str:
        """What `specs.parse` reads."""
        return Scatter(self.scale, self.kept).spec

    def describe(self) -> dict[str, Any]:
        """What the certificate says of it."""
        norm = "of each example, in groups"
        description = {
            "kind": self.kind,
            "spec": self.spec,
            "scale": self.scale,
            "angles": ANGLES,
            "normalisation": norm,
        }
        return description | (
            {"directions": f"{self.kept}, learned from made-up images"} if self.kept else {}
        )

    def config(self) -> dict[str, Any]:
        """What a published configuration states of it."""
        return {"kind": self.kind, "spec": self.spec, "shape": self.shape}

    def forward(self, x: Tensor) -> Tensor:
        """Images (batch, height, width) or (batch, channels, height, width) become (batch,
        features, h / 2^J, w / 2^J).

        With directions into (batch, kept).
        """
        require_images(self.scale, tuple(x.shape[1:]))
        if not len(x):  # which the transform can't take
            return x.new_zeros(0, *self(x.new_zeros(1, *x.shape[1:])).shape[1:])
        maps = scattered(x, self.scale)
        features = F.group_norm(maps, groups_of(maps.shape[1]))
        return (
            projected(features, self.get_buffer("mean"), self.get_buffer("components"))
            if self.kept
            else features
        )


def scattered(x: Tensor, scale: int) -> Tensor:
    """The coefficients of images (rows, height, width) or (rows, channels, height, width), 81 maps
    for each channel.
    """
    planes = x[:, None] if x.dim() == 3 else x
    transform = _transform(scale, *planes.shape[-2:], planes.device)
    return cast(Tensor, transform(planes.float().contiguous()).flatten(1, 2))


def groups_of(channels: int) -> int:
    """The largest number of equal groups that there may be."""
    return max(number for number in range(1, _GROUPS + 1) if channels % number == 0)


@lru_cache(maxsize=4)
def _transform(scale: int, height: int, width: int, device: torch.device) -> Any:
    # Its filters are functions of these numbers alone: they are not weights, and are not published.
    try:
        from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D
    except ImportError as error:
        raise BadInput(
            "scattering needs kymatio, which is not installed: pip install "
            "'privlearn[scattering]'. Or use other features, such as norm:power=0.5 or raw"
        ) from error

    return cast(nn.Module, ScatteringTorch2D(J=scale, shape=(height, width))).to(device)


#: Added to coefficients before their logarithm.
_FLOOR = 0.01
#: What is added to a variance, as a part of the mean, and the power that decides how much of
#: whitening is done.
_ADDED, _WHITENED = 0.1, 0.5
#: Units' answers are averaged in so many parts of the image's height and width.
_GRID = 4
#: Made-up images that units are drawn from.
_IMAGES = 4000


@checked
@final
class RandomUnits(RowTransform):
    """Logarithms of scattering coefficients, half whitened at each place, and how much random units
    make of them.

    A unit answers with max(0, its product with the coefficients at a place); answers are averaged
    over a grid of 4 x 4, added to those of the mirror image where that is wanted, and projected on
    the directions that matter in made-up images. Whitening and units, which are coefficients at
    random places, come from made-up images, too: no data have a part in any of it. Dictionaries of
    random patches in front of a linear model: Coates and Ng (2011).

    Args:
        scale: of scattering (J).
        mirrored: whether an image and its mirror image have the same features, as suits
            photographs, and no letters.
        local_mean: of the logarithms at a place, (coefficients,).
        whitening: what they are multiplied by, (coefficients, coefficients).
        units: (coefficients, units), each of norm 1.
        mean: of the averaged answers, (features,).
        components: what they are multiplied by, (features, kept).

    Raises:
        BadInput: a scale out of range.
    """

    kind = ScatterRandom.kind

    def __init__(
        self,
        scale: int,
        mirrored: bool,
        local_mean: Tensor,
        whitening: Tensor,
        units: Tensor,
        mean: Tensor,
        components: Tensor,
    ) -> None:
        super().__init__()
        self.scale, self.mirrored = ScatterRandom(scale).J, mirrored
        buffers = {
            "local_mean": local_mean,
            "whitening": whitening,
            "units": units,
            "mean": mean,
            "components": components,
        }
        for name, value in buffers.items():
            self.register_buffer(name, value)

    @classmethod
    def empty(
        cls, scale: int, mirrored: bool, local: Sequence[int], shape: Sequence[int]
    ) -> RandomUnits:
        """With room for tensors of these sizes: `local` (coefficients, units) and `shape`
        (features, kept).
        """
        (coefficients, units), (features, components) = local, shape
        return cls(
            scale,
            mirrored,
            torch.empty(coefficients, device=building()),
            torch.empty(coefficients, coefficients, device=building()),
            torch.empty(coefficients, units, device=building()),
            torch.empty(features, device=building()),
            torch.empty(features, components, device=building()),
        )

    @classmethod
    def learned(
        cls,
        scale: int,
        units: int,
        mirrored: bool,
        kept: int,
        shape: Sequence[int],
        cache: Path | None = None,
        begin: Callable[[], None] | None = None,
    ) -> RandomUnits:
        """With all that is learned from made-up images of `shape`.

        `cache` is a folder to keep it in; `begin` is called before it is learned.

        Raises:
            BadInput: examples that are no images, or more directions than there are features.
        """
        require_images(scale, tuple(shape))
        spec = ScatterRandom(scale, units, int(mirrored), kept).spec

        def learn() -> dict[str, Tensor]:
            local = _local(shape, scale, units)
            grid = [min(_GRID, size >> scale) for size in shape[-2:]]
            features = units * grid[0] * grid[1]
            plain = cls(
                scale,
                mirrored,
                **local,
                mean=torch.zeros(features, device="cpu"),
                components=torch.zeros(features, 1, device="cpu"),
            )
            return local | directions(plain.answers, shape, kept)

        title = f"{spec}-{_FLOOR}-{_ADDED}-{_WHITENED}-{_GRID}-{_IMAGES}"
        return cls(scale, mirrored, **learned(title, shape, cache, learn, begin))

    @property
    def kept(self) -> int:
        """How many directions are kept."""
        return self.get_buffer("components").shape[1]

    @property
    def shape(self) -> list[int]:
        """The shape of its directions, (features, kept)."""
        return list(self.get_buffer("components").shape)

    @property
    def local(self) -> list[int]:
        """The shape of its units, (coefficients, units)."""
        return list(self.get_buffer("units").shape)

    @property
    def spec(self) -> str:
        """What `specs.parse` reads."""
        return ScatterRandom(self.scale, self.local[1], int(self.mirrored), self.kept).spec

    def describe(self) -> dict[str, Any]:
        """What the certificate says of it."""
        return {
            "kind": self.kind,
            "spec": self.spec,
            "scale": self.scale,
            "angles": ANGLES,
            "normalisation": "of each example",
            "units": f"{self.local[1]}, drawn from made-up images",
            "directions": f"{self.kept}, learned from made-up images",
            "mirrored": self.mirrored,
        }

    def config(self) -> dict[str, Any]:
        """What a published configuration states of it."""
        return {"kind": self.kind, "spec": self.spec, "shape": self.shape, "local": self.local}

    def answers(self, x: Tensor) -> Tensor:
        """The units' averaged answers to images, (rows, units, rows of the grid, columns of the
        grid).
        """
        require_images(self.scale, tuple(x.shape[1:]))
        seen = self._encode(x)
        return seen + self._encode(x.flip(-1)) if self.mirrored else seen

    def forward(self, x: Tensor) -> Tensor:
        """Turn images (batch, height, width) or (batch, channels, height, width) into features
        (batch, kept).
        """
        if not len(x):  # which the transform can't take
            return x.new_zeros(0, self.kept)
        return projected(self.answers(x), self.get_buffer("mean"), self.get_buffer("components"))

    def _encode(self, x: Tensor) -> Tensor:
        places = (_logarithms(x, self.scale) - self.get_buffer("local_mean")) @ self.get_buffer(
            "whitening"
        )
        answers = (_unit(places) @ self.get_buffer("units")).relu().permute(0, 3, 1, 2)
        grid = (min(_GRID, answers.shape[2]), min(_GRID, answers.shape[3]))
        return F.adaptive_avg_pool2d(answers, grid)


def _logarithms(x: Tensor, scale: int) -> Tensor:
    """Of scattering coefficients: (rows, height, width, coefficients). Low-pass ones may be a
    little below 0.
    """
    return (scattered(x, scale).clamp(min=0) + _FLOOR).log().permute(0, 2, 3, 1)


def _unit(rows: Tensor) -> Tensor:
    return cast(Tensor, rows / torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp(min=1e-6))


def _local(shape: Sequence[int], scale: int, units: int) -> dict[str, Tensor]:
    """Mean, whitening and units, from places in made-up images."""
    places = torch.cat([_logarithms(part, scale).flatten(0, 2) for part in images(shape, _IMAGES)])
    if units > len(places):
        raise BadInput(
            f"units is {units}: expected at most {len(places)}, the places in made-up images"
        )
    mean = places.mean(0)
    variances, axes = torch.linalg.eigh(torch.cov(places.T))
    whitening = (axes * (variances + _ADDED * variances.mean()) ** (-_WHITENED / 2)) @ axes.T
    chosen = places[
        torch.randperm(len(places), generator=torch.Generator().manual_seed(0), device="cpu")[
            :units
        ]
    ]
    return {
        "local_mean": mean,
        "whitening": whitening,
        "units": _unit((chosen - mean) @ whitening).T.contiguous(),
    }
