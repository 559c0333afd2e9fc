"""An encoder of photographs that was trained on drawn images alone, without labels, joined with
`RandomUnits`.

`bench/drawn_encoder.py` is its recipe, with the seed: two views of an image get codes that are
alike, and codes of all images spread (Wang and Isola 2020). Images of random processes in place of
photographs: Baradad et al. (2021), and in front of private training Tang et al. (2023). No data
have a part in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, final

import torch
from safetensors.torch import load
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn.core.devices import building
from privlearn.core.row_transform import RowTransform
from privlearn.errors import BadInput
from privlearn.transforms.made_up_images import directions, learned, projected
from privlearn.transforms.scattering import RandomUnits
from privlearn.transforms.specs import ENCODER_ANSWERS, ScatterRandom

#: SHA-256 of the file of weights, which are in half precision.
DIGEST = "19d6fd2fe80c2034544e45b27328e6382332570e7814f60763aa4bf33c387c27"
_FILE = Path(__file__).with_name("drawn_encoder.safetensors")
#: Channels before and after each convolution, its stride, and its height and width.
_CONVOLUTIONS = (
    (3, 32, 2, 5),
    (32, 64, 1, 3),
    (64, 64, 1, 3),
    (64, 128, 2, 3),
    (128, 128, 1, 3),
    (128, 256, 2, 3),
    (256, 256, 1, 3),
)
#: Answers are averaged in so many parts of the image's height and width, which may overlap in small
#: images.
_GRID = 4


@lru_cache(maxsize=1)
def _weights() -> dict[str, Tensor]:
    """The weights that are shipped, in single precision.

    Raises:
        BadInput: they are not those of the recipe.
    """
    content = _FILE.read_bytes()
    if hashlib.sha256(content).hexdigest() != DIGEST:
        raise BadInput(
            f"the encoder's weights in {_FILE.name} are not those that were shipped: install "
            "privlearn anew"
        )
    return {name: value.float() for name, value in load(content).items()}


class DrawnEncoder(nn.Module):
    """Seven convolutions, some added to what they were given, and the directions of their answers
    that are kept.

    Answers of an image and its mirror image are averaged where that is wanted. Each image by
    itself: batch norm is in the weights, with the statistics of drawn images.

    Args:
        mirrored: whether an image and its mirror image have the same features.
        weights: of the convolutions, `weight0`, `bias0`, ...
        mean: of answers to made-up images, (features,).
        components: what they are multiplied by, (features, kept).
    """

    def __init__(
        self, mirrored: bool, weights: dict[str, Tensor], mean: Tensor, components: Tensor
    ) -> None:
        super().__init__()
        self.mirrored = mirrored
        for name, value in (weights | {"mean": mean, "components": components}).items():
            self.register_buffer(name, value)

    @classmethod
    def empty(cls, mirrored: bool, dimensions: int) -> Self:
        """With room for so many directions."""
        weights: dict[str, Tensor] = {}
        for index, (inputs, outputs, _, size) in enumerate(_CONVOLUTIONS):
            weights[f"weight{index}"] = torch.empty(outputs, inputs, size, size, device=building())
            weights[f"bias{index}"] = torch.empty(outputs, device=building())
        return cls(
            mirrored,
            weights,
            torch.empty(ENCODER_ANSWERS, device=building()),
            torch.empty(ENCODER_ANSWERS, dimensions, device=building()),
        )

    @classmethod
    def learned(
        cls,
        mirrored: bool,
        dimensions: int,
        shape: Sequence[int],
        cache: Path | None = None,
        begin: Callable[[], None] | None = None,
    ) -> Self:
        """With the shipped weights, and the directions that matter most in made-up images of
        `shape`, `dimensions` of them.

        Raises:
            BadInput: other weights than those of the recipe, or more directions than there are
                features.
        """
        plain = cls(
            mirrored, _weights(), torch.zeros(0, device="cpu"), torch.zeros(0, device="cpu")
        )
        title = f"drawn-encoder-{DIGEST[:16]}-{_GRID}-mirror={int(mirrored)}-kept={dimensions}"
        tensors = learned(
            title, shape, cache, lambda: directions(plain.answers, shape, dimensions), begin
        )
        return cls(mirrored, _weights(), tensors["mean"], tensors["components"])

    @property
    def kept(self) -> int:
        """How many directions are kept."""
        return self.get_buffer("components").shape[1]

    def answers(self, x: Tensor) -> Tensor:
        """The last convolution's answers to images in [0, 1], (rows, 256, 4, 4)."""
        seen = self._encode(x)
        return (seen + self._encode(x.flip(-1))) / 2 if self.mirrored else seen

    def forward(self, x: Tensor) -> Tensor:
        """Images (rows, 3, height, width) into features (rows, kept), each row of norm
        sqrt(kept).
        """
        return projected(self.answers(x), self.get_buffer("mean"), self.get_buffer("components"))

    def _encode(self, x: Tensor) -> Tensor:
        maps = 2 * x.float() - 1
        for index, (inputs, outputs, stride, size) in enumerate(_CONVOLUTIONS):
            weight, bias = self.get_buffer(f"weight{index}"), self.get_buffer(f"bias{index}")
            convolved = F.conv2d(maps, weight, bias, stride, size // 2)
            maps = F.relu(maps + convolved if inputs == outputs else convolved)
        return F.adaptive_avg_pool2d(maps, _GRID)


@final
class WithEncoder(RowTransform):
    """Features by random units, followed by those of the encoder: each part of each row has norm
    sqrt(its length).

    Args:
        units: of scattering coefficients.
        encoder: with its directions.
    """

    kind = ScatterRandom.kind

    def __init__(self, units: RandomUnits, encoder: DrawnEncoder) -> None:
        super().__init__()
        self.units, self.encoder = units, encoder

    @classmethod
    def learned(
        cls,
        units: RandomUnits,
        dimensions: int,
        shape: Sequence[int],
        cache: Path | None = None,
        begin: Callable[[], None] | None = None,
    ) -> Self:
        """With the shipped encoder, and `dimensions` directions of its answers to made-up images of
        `shape`.
        """
        return cls(units, DrawnEncoder.learned(units.mirrored, dimensions, shape, cache, begin))

    @classmethod
    def empty(cls, units: RandomUnits, dimensions: int) -> Self:
        """With room for so many directions of the encoder."""
        return cls(units, DrawnEncoder.empty(units.mirrored, dimensions))

    @property
    def spec(self) -> str:
        """What `specs.parse` reads."""
        return f"{self.units.spec},encoded={self.encoder.kept}"

    def describe(self) -> dict[str, Any]:
        """What the certificate says of it."""
        what = (
            f"{self.encoder.kept} directions of one that was trained on drawn images, sha256 "
            f"{DIGEST}"
        )
        return self.units.describe() | {"spec": self.spec, "encoder": what}

    def config(self) -> dict[str, Any]:
        """What a published configuration states of it."""
        return self.units.config() | {"spec": self.spec}

    def forward(self, x: Tensor) -> Tensor:
        """Turn images (batch, 3, height, width) into features (batch, kept + encoded)."""
        units = self.units(x)
        return torch.cat(
            (units, self.encoder(x) if len(x) else units.new_zeros(0, self.encoder.kept)), 1
        )
