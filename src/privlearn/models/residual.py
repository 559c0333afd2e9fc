"""Wide residual networks for images, with norms and convolutions that treat examples one by one.

Their form is that of Zagoruyko and Komodakis 2016, with norms before convolutions. De et al. 2022
(arXiv:2204.13650) train them by DP-SGD with group norms and weight standardisation. Klause et al.
2022 (arXiv:2203.00324) normalise the sum of a block's two branches once more: scale norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from torch import Tensor, nn

from privlearn._checks import count, require_fit, with_plain_numbers
from privlearn.core.devices import building
from privlearn.errors import BadInput

#: What is added to the variance of a filter, times its numbers.
_EPS = 1e-4
#: Layers outside of blocks, and layers for each block of a level, times the levels.
_OUTSIDE, _LEVELS, _EACH = 4, 3, 6
_DEEPEST, _WIDEST = 1000, 4096


@final
class StandardisedConv2d(nn.Conv2d):
    """A convolution whose filters have mean 0 and variance one over the fan-in."""

    def forward(self, x: Tensor) -> Tensor:
        """The maps."""
        mean = self.weight.mean((1, 2, 3), keepdim=True)
        variance = self.weight.var((1, 2, 3), keepdim=True, unbiased=False)
        scale = (variance * self.weight[0].numel() + _EPS).rsqrt()
        maps: Tensor = self._conv_forward(x, (self.weight - mean) * scale, self.bias)
        return maps


@final
class ResidualBlock(nn.Module):
    """Two convolutions beside a shortcut, with norms before them.

    Args:
        inputs: channels.
        outputs: channels.
        stride: of the first convolution.
        groups: of the norms.
        standardised: whether filters are standardised.
        scale_norm: whether the sum of both branches is normalised.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        *,
        groups: int,
        standardised: bool,
        scale_norm: bool,
    ) -> None:
        super().__init__()
        convolution = StandardisedConv2d if standardised else nn.Conv2d
        self.first = nn.Sequential(nn.GroupNorm(groups, inputs), nn.ReLU())
        self.body = nn.Sequential(
            convolution(inputs, outputs, 3, stride, 1),
            nn.GroupNorm(groups, outputs),
            nn.ReLU(),
            convolution(outputs, outputs, 3, 1, 1),
        )
        is_same = stride == 1 and inputs == outputs
        self.shortcut = None if is_same else convolution(inputs, outputs, 1, stride)
        self.scale = nn.GroupNorm(groups, outputs) if scale_norm else None

    def forward(self, x: Tensor) -> Tensor:
        """The block's maps."""
        maps = self.first(x)
        shortcut = x if self.shortcut is None else self.shortcut(maps)
        added: Tensor = shortcut + self.body(maps)
        if self.scale is not None:
            added = self.scale(added)
        return added


@with_plain_numbers
def wide_resnet(
    input_shape: Sequence[int],
    classes: int,
    *,
    depth: int = 16,
    width: int = 4,
    channels: int = 16,
    groups: int = 16,
    standardised: bool = True,
    scale_norm: bool = False,
) -> nn.Sequential:
    """A wide residual network of three levels, with group norms: WRN-16-4 where nothing is given.

    Initial weights are drawn from PyTorch's generator. Called as a factory
    (`model="privlearn.models.residual:wide_resnet"`), they follow from the run's seed.

    Args:
        input_shape: of one image, (height, width) or (channels, height, width).
        classes: how many scores it gives.
        depth: convolutions and the linear layer: 6 n + 4 for n blocks in each level.
        width: channels of the levels are this times `channels`, then twice, then four times that.
        channels: of the first convolution.
        groups: of the norms; they divide `channels`.
        standardised: filters have mean 0 and variance one over the fan-in (De et al. 2022).
        scale_norm: another group norm behind each block's addition (Klause et al. 2022).

    Raises:
        BadInput: numbers out of range, or that do not go together.
    """
    require_fit("input_shape", input_shape, Sequence[int])
    classes = count("classes", classes, most=1 << 24)
    depth, width = count("depth", depth, most=_DEEPEST), count("width", width, most=_WIDEST)
    channels, groups = count("channels", channels, most=_WIDEST), count("groups", groups)
    require_fit("standardised", standardised, bool)
    require_fit("scale_norm", scale_norm, bool)
    shape = tuple(input_shape)
    if len(shape) not in (2, 3) or min(shape) < 1:
        raise BadInput(
            f"one input has shape {shape}: expected an image, (height, width) or (channels, "
            "height, width)"
        )
    if (depth - _OUTSIDE) % _EACH or depth <= _OUTSIDE or channels % groups:
        raise BadInput(
            f"depth is {depth}, and there are {groups} groups of {channels} channels: expected 10, "
            "16, 22 or another depth of 6 n + 4, and groups that divide the channels"
        )
    convolution = StandardisedConv2d if standardised else nn.Conv2d
    with building():
        layers: list[nn.Module] = []
        if len(shape) == 2:
            layers.append(nn.Unflatten(1, (1, shape[0])))
        layers.append(convolution(1 if len(shape) == 2 else shape[0], channels, 3, 1, 1))
        inputs = channels
        for level in range(_LEVELS):
            outputs = channels * width << level
            for at in range((depth - _OUTSIDE) // _EACH):
                stride = 2 if level and not at else 1
                block = ResidualBlock(
                    inputs,
                    outputs,
                    stride,
                    groups=groups,
                    standardised=standardised,
                    scale_norm=scale_norm,
                )
                layers.append(block)
                inputs = outputs
        layers += [nn.GroupNorm(groups, inputs), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(inputs, classes))
