"""Networks for volumes: MONAI's U-Net with group norm, and the 3-D convolutional autoencoder of Fay et al. (2020).

MONAI is an extra, `pip install 'privlearn[medical]'`; it is imported only where a U-Net is made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import final

from torch import Tensor, nn

from privlearn.errors import BadInput

#: Channels of the usual U-Net, level by level; each level halves the volume.
CHANNELS = (16, 32, 64)
_GROUPS = 4
_MOST_LEVELS, _MOST_CHANNELS = 8, 4096


def unet(channels: Sequence[int] = CHANNELS, *, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """MONAI's U-Net: a score for each class and voxel, shape (rows, classes, *volume).

    Each level halves the volume by a strided convolution, and group norm takes the place of batch norm, so that each
    example is computed by itself.

    Args:
        channels: of each level, multiples of 4.
        input_shape: the shape of one example: channels, and two or three sizes.
        classes: how many there are.

    Raises:
        BadInput: MONAI is not installed, or sizes that can't be halved as often as there are levels.
    """
    require_monai()
    from monai.networks.nets.unet import UNet

    require_channels(channels)
    sizes, halvings = input_shape[1:], len(channels) - 1
    if len(input_shape) not in (3, 4) or any(size % 2**halvings for size in sizes):
        raise BadInput(
            f"a U-Net of {len(channels)} levels needs volumes of shape (channels, height, width) or (channels, depth, height, "
            f"width), sizes in multiples of {2**halvings}: the inputs have shape {tuple(input_shape)}. Pad them, or use fewer "
            "levels, such as unet:16,32"
        )
    network: nn.Module = UNet(
        spatial_dims=len(sizes), in_channels=input_shape[0], out_channels=classes, channels=tuple(channels),
        strides=(2,) * halvings, num_res_units=0, norm=("GROUP", {"num_groups": _GROUPS}), act="RELU",
    )  # fmt: skip
    return network


def require_channels(channels: Sequence[int]) -> None:
    """Raise `BadInput` unless these can be the channels of a U-Net's levels."""
    if not 2 <= len(channels) <= _MOST_LEVELS or any(
        width < _GROUPS or width % _GROUPS or width > _MOST_CHANNELS for width in channels
    ):
        raise BadInput(
            f"a U-Net can't have levels of {', '.join(map(str, channels))} channels: expected 2 to {_MOST_LEVELS} numbers, "
            f"multiples of {_GROUPS} up to {_MOST_CHANNELS}, for example unet:16,32,64"
        )


def require_monai() -> None:
    """Raise `BadInput` unless MONAI is installed."""
    if find_spec("monai") is None:
        raise BadInput("a U-Net needs MONAI, which is not installed: pip install 'privlearn[medical]'")


def volume_encoder(shape: Sequence[int], size: int, width: int = 4) -> nn.Module:
    """The encoder of the autoencoder: 3 x 3 x 3 convolutions with ReLU and max-pooling, then a fully connected layer.

    Args:
        shape: of one target: classes, and three sizes in multiples of 4.
        size: numbers in a code; the encoder ends in one more, for the unit ball.
        width: channels of the first level.
    """
    classes, *sizes = _by_four(shape)
    inner = [side // 4 for side in sizes]
    return nn.Sequential(
        nn.Conv3d(classes, width, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2),
        nn.Conv3d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2),
        nn.Flatten(), nn.Linear(2 * width * math.prod(inner), size + 1),
    )  # fmt: skip


def volume_decoder(shape: Sequence[int], size: int, width: int = 4, middle: Tensor | None = None) -> nn.Module:
    """The decoder: a fully connected layer, then transposed convolutions and convolutions with ReLU.

    Args:
        shape: as for `volume_encoder`.
        size: numbers in a code.
        width: as for `volume_encoder`.
        middle: public probabilities, of shape `shape`, that outputs start from, so that a rare class is not lost at first.
    """
    classes, *sizes = _by_four(shape)
    inner = [side // 4 for side in sizes]
    return nn.Sequential(
        nn.Linear(size, 2 * width * math.prod(inner)), nn.ReLU(), nn.Unflatten(1, (2 * width, *inner)),
        nn.ConvTranspose3d(2 * width, width, 2, stride=2), nn.ReLU(),
        nn.ConvTranspose3d(width, width, 2, stride=2), nn.ReLU(),
        nn.Conv3d(width, classes, 3, padding=1), *([] if middle is None else [_Beginning(middle)]),
    )  # fmt: skip


@final
class _Beginning(nn.Module):
    """Adds the logarithms of public probabilities to scores."""

    def __init__(self, middle: Tensor) -> None:
        super().__init__()
        self.register_buffer("scores", middle.clamp(min=1e-3).log())

    def forward(self, x: Tensor) -> Tensor:
        """Add them to each row."""
        return x + self.get_buffer("scores")


def _by_four(shape: Sequence[int]) -> tuple[int, ...]:
    if len(shape) != 4 or any(side % 4 for side in shape[1:]):
        raise BadInput(
            f"the autoencoder takes maps of shape (classes, depth, height, width), sizes in multiples of 4: not {tuple(shape)}"
        )
    return tuple(shape)
