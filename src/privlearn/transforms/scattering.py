"""Wavelet scattering of images (Bruna and Mallat 2013): features that nobody's data were used to choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn._checks import count
from privlearn.errors import BadInput
from privlearn.transforms.made_up_images import directions, learned, projected
from privlearn.transforms.modules import RowTransform
from privlearn.transforms.specs import ANGLES, Scatter, require_images

#: Groups of channels that are normalised together, at most: Tramèr and Boneh (2021) found a few dozen to do best.
_GROUPS = 32


@final
class Scattering(RowTransform):
    """Second-order scattering with 8 angles, then each example's groups of channels brought to mean 0 and variance 1.

    No private row has a part in it, and none in another's features. So it is as public as a change of units, and clipping,
    which comes after it, bounds what an example can do all the same. With a linear model on top: Tramèr and Boneh (2021).

    With `mean` and `components` features are then projected on directions that matter in made-up images, and each example
    brought to norm sqrt(kept): noise grows with the number of weights, and most features say what others say. Random
    processes as a source of public priors: Baradad et al. (2021), Tang et al. (2023).

    Args:
        scale: images shrink to a 2^scale-th of their height and width (J).
        mean: of the features of made-up images, (features,).
        components: what they are multiplied by, (features, kept).

    Raises:
        BadInput: a scale out of range.
    """

    kind = Scatter.kind

    def __init__(self, scale: int = 2, mean: Tensor | None = None, components: Tensor | None = None) -> None:
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
        tensors = learned(f"{plain.spec},kept={kept}", shape, cache, lambda: directions(plain, shape, kept), begin)
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
        stated = {"kind": self.kind, "spec": self.spec, "scale": self.scale, "angles": ANGLES, "normalisation": norm}
        return stated | ({"directions": f"{self.kept}, learned from made-up images"} if self.kept else {})

    def config(self) -> dict[str, Any]:
        """What a published configuration states of it."""
        return {"kind": self.kind, "spec": self.spec, "shape": self.shape}

    def forward(self, x: Tensor) -> Tensor:
        """Turn images (batch, height, width) or (batch, channels, height, width) into (batch, features, h / 2^J, w / 2^J).

        With directions into (batch, kept).
        """
        require_images(self.scale, tuple(x.shape[1:]))
        if not len(x):  # which the transform can't take
            return x.new_zeros(0, *self(x.new_zeros(1, *x.shape[1:])).shape[1:])
        maps = scattered(x, self.scale)
        features = F.group_norm(maps, groups_of(maps.shape[1]))
        return projected(features, self.get_buffer("mean"), self.get_buffer("components")) if self.kept else features


def scattered(x: Tensor, scale: int) -> Tensor:
    """The coefficients of images (rows, height, width) or (rows, channels, height, width), 81 maps for each channel."""
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
            "scattering needs kymatio, which is not installed: pip install 'privlearn[scattering]'. Or use other features, "
            "such as norm:power=0.5 or raw"
        ) from error

    return cast(nn.Module, ScatteringTorch2D(J=scale, shape=(height, width))).to(device)
