"""Wavelet scattering of images (Bruna and Mallat 2013): features that nobody's data were used to choose."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn._validate import count
from privlearn.errors import BadInput

#: Groups of channels that are normalised together, at most: Tramèr and Boneh (2021) found a few dozen to do best.
_GROUPS = 32
#: Scales beyond 4 leave nothing of a small image, and a file may ask for no more.
_LARGEST_SCALE = 4
_SMALLEST, _LARGEST = 8, 1024


@final
class Scattering(nn.Module):
    """Second-order scattering with 8 angles, then each example's groups of channels brought to mean 0 and variance 1.

    It holds no weights, and no row has a part in another's features. So it is as public as a change of units, and clipping,
    which comes after it, bounds what an example can do all the same. With a linear model on top: Tramèr and Boneh (2021).

    Args:
        scale: images shrink to a 2^scale-th of their height and width (J).

    Raises:
        BadInput: a scale out of range.
    """

    def __init__(self, scale: int = 2) -> None:
        super().__init__()
        self.scale = count("the scale of scattering", scale, most=_LARGEST_SCALE)

    @property
    def spec(self) -> str:
        """What `encoders.encoder` makes the same from."""
        return f"scatter:J={self.scale}"

    def describe(self) -> dict[str, Any]:
        """What the certificate says of it."""
        return {
            "kind": "scatter",
            "spec": self.spec,
            "scale": self.scale,
            "angles": 8,
            "normalisation": "of each example, in groups",
        }

    def forward(self, x: Tensor) -> Tensor:
        """Turn images (batch, height, width) or (batch, channels, height, width) into (batch, features, h / 2^J, w / 2^J)."""
        require_images(self.scale, tuple(x.shape[1:]))
        planes = x[:, None] if x.dim() == 3 else x
        if not len(planes):  # which the transform can't take
            return planes.new_zeros(0, *self(planes.new_zeros(1, *planes.shape[1:])).shape[1:])
        paths = _transform(self.scale, *planes.shape[-2:], planes.device)(planes.float().contiguous()).flatten(1, 2)
        return F.group_norm(paths, groups_of(paths.shape[1]))


def groups_of(channels: int) -> int:
    """The largest number of equal groups that there may be."""
    return max(number for number in range(1, _GROUPS + 1) if channels % number == 0)


def require_images(scale: int, shape: tuple[int, ...]) -> None:
    """Raise `BadInput` unless examples of `shape` are images that can be scattered."""
    least = max(_SMALLEST, 1 << scale)
    if len(shape) not in (2, 3) or not all(least <= size <= _LARGEST for size in shape[-2:]):
        raise BadInput(
            f"examples of shape {shape} can't be scattered: expected images, (height, width) or (channels, height, width) "
            f"of {least} to {_LARGEST} pixels. Leave out --features, or use features that fit these data"
        )


@lru_cache(maxsize=4)
def _transform(scale: int, height: int, width: int, device: torch.device) -> Any:
    # Its filters are functions of these numbers alone: they are not weights, and are not published.
    from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D

    return cast(nn.Module, ScatteringTorch2D(J=scale, shape=(height, width))).to(device)
