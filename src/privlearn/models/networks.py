"""Small networks without batch norm, by name; for volumes, MONAI's U-Net with group norm and an
autoencoder.

MONAI is an extra, `pip install 'privlearn[medical]'`; it is imported only where a U-Net is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from privlearn._checks import count, require_fit, with_plain_numbers
from privlearn._user_code import import_function
from privlearn.core.clipping.model_check import require_shaped
from privlearn.core.devices import building
from privlearn.errors import BadInput, first_line
from privlearn.models.boosted import boosted
from privlearn.models.network_spec import name_of, require_spec

#: A text such as `mlp:100`, a network, or a function from the shape of one example to one.
NetworkSpec = str | nn.Module | Callable[[tuple[int, ...]], nn.Module]

#: Hidden layers that a network by name has at most.
_DEEPEST = 1000
#: Channels from which on an input is taken for maps of features.
_MAPS = 16
#: Outputs of a linear layer that `layers:` may have.
_WIDEST = 1 << 24
#: Parts of `layers:` that are no linear layers, by name.
_STOCK: dict[str, type[nn.Module]] = {
    "flatten": nn.Flatten,
    "identity": nn.Identity,
    "relu": nn.ReLU,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
}
#: What `boosting` makes.
_BOOSTED = ("boosted", "boosted-counts")


@with_plain_numbers
def build(
    spec: NetworkSpec, input_shape: Sequence[int], classes: int | None, rng: np.random.Generator
) -> nn.Module:
    """Build the network that `spec` names or makes, with initial weights drawn from `rng`.

    Args:
        spec: `linear`, `mlp:100` or `mlp:10,20,10` (hidden widths), `layers:flatten,64,tanh,10`
            (linear layers by their outputs, and activations between them), `cnn`, `unet` or
            `unet:16,32,64` (channels, for maps of classes), or `package.module:function`, a factory
            that is called with `input_shape=` and `classes=` and returns an nn.Module; or a
            network itself; or a function from the shape of one example to one.
        input_shape: the shape of one example.
        classes: the number of outputs; None: a factory knows it itself.
        rng: the initialisation stream.

    Raises:
        BadInput: a spec that cannot be read or does not fit the input.
    """
    require_spec("spec", spec)
    require_fit("input_shape", input_shape, Sequence[int])
    if not hasattr(rng, "integers"):
        require_fit("rng", rng, np.random.Generator)
    if isinstance(spec, nn.Module):
        return spec
    shape = tuple(input_shape)
    called = f"(input_shape={shape}, classes={classes})" if isinstance(spec, str) else f"({shape})"
    with torch.random.fork_rng(), building():
        torch.manual_seed(int(rng.integers(2**63)))
        try:
            if isinstance(spec, str):
                model = _builder(spec)(input_shape=shape, classes=classes)
            else:
                model = spec(shape)
        except BadInput:
            raise
        except Exception as error:
            raise BadInput(
                f"model {name_of(spec)} failed: {type(error).__name__}: {first_line(error)}. A "
                f"factory is called as f{called}"
            ) from error
    if not isinstance(model, nn.Module):
        raise BadInput(
            f"model {name_of(spec)} returned a {type(model).__name__}: expected a torch.nn.Module"
        )
    require_shaped(model)
    return model


def is_built_in(spec: str | None) -> bool:
    """Whether `spec` names a network of privlearn's own, not the user's code."""
    return spec is not None and (
        spec in ("linear", "cnn") or spec.partition(":")[0] in ("mlp", "layers", "unet", *_BOOSTED)
    )


def makes_maps(spec: str | None) -> bool:
    """Whether `spec` names a network of privlearn's own that gives a class to each voxel."""
    return spec is not None and spec.partition(":")[0] == "unet"


def require_known(spec: str) -> None:
    """Raise `BadInput` unless `build` could build `spec`."""
    _builder(spec)


def _builder(spec: str) -> Callable[..., Any]:
    name, _, rest = spec.partition(":")
    if spec == "linear":
        return _mlp
    if spec == "cnn":
        return _cnn
    if name == "unet":
        return _unet(rest)
    if name in _BOOSTED:
        return lambda **shapes: boosted(spec, **shapes)
    if name == "layers":
        return partial(_of_layers, _layer_parts(rest))
    if name == "mlp":
        if not rest:
            raise BadInput(
                "model 'mlp' needs the width of each hidden layer: give mlp:100 for one, or "
                "mlp:100,50 for two"
            )
        widths = _widths(rest)
        if min(widths) < 1 or len(widths) > _DEEPEST:
            raise BadInput(
                f"model {spec[:60]!r} cannot be read: expected at most {_DEEPEST} hidden widths, "
                "for example mlp:100 or mlp:10,20,10"
            )
        return lambda **shapes: _mlp(widths, **shapes)
    place, _, function = spec.rpartition(":")
    if place and function.isidentifier():
        return import_function("model", spec)
    raise BadInput(
        f"model {spec!r} is unknown: expected linear, mlp:100, mlp:10,20,10, cnn, unet, or a "
        "factory package.module:function",
        spec=spec,
    )


def layers_text(model: nn.Module) -> str | None:
    """The spec that builds a network like this one, `layers:64,relu,10`: a `nn.Sequential` of
    linear layers, by their outputs, and of activations without parameters, by their names.

    None: it is no such sequence.
    """
    names = {kind: name for name, kind in _STOCK.items()}
    parts = []
    for part in model if type(model) is nn.Sequential else [nn.Module()]:
        if type(part) is nn.Linear and part.bias is not None:
            parts.append(str(part.out_features))
        elif type(part) in names and str(part) == str(type(part)()):
            parts.append(names[type(part)])
        else:
            return None
    return f"layers:{','.join(parts)}" if 0 < len(parts) <= 2 * _DEEPEST else None


def _layer_parts(text: str) -> list[str | int]:
    """The parts of `layers:`: names, and outputs of linear layers.

    Raises:
        BadInput: one is neither, or there are too many.
    """
    texts = text.split(",")
    parts = [part if part in _STOCK else _widths(part)[0] for part in texts[: 2 * _DEEPEST]]
    wrong = [
        part
        for part, read in zip(texts, parts, strict=False)
        if isinstance(read, int) and not 0 < read <= _WIDEST
    ]
    if wrong or len(texts) > len(parts):
        raise BadInput(
            f"model 'layers:...' has {len(texts)} parts, and {(wrong or texts)[0][:40]!r} among "
            "them: expected outputs of linear layers, or some of "
            f"{', '.join(_STOCK)}, such as layers:flatten,64,relu,10"
        )
    return parts


def _of_layers(
    parts: Sequence[str | int], *, input_shape: tuple[int, ...], classes: int | None
) -> nn.Sequential:
    """The network that `layers_text` describes."""
    layers: list[nn.Module] = []
    numbers = math.prod(input_shape) if parts[0] == "flatten" else input_shape[-1]
    for part in parts:
        if isinstance(part, str):
            layers.append(_STOCK[part]())
        else:
            layers.append(nn.Linear(numbers, part))
            numbers = part
    if classes is not None and numbers != classes:
        raise BadInput(
            f"model 'layers:...' has {numbers} outputs, and {classes} are needed: let its last "
            "linear layer have that many"
        )
    return nn.Sequential(*layers)


def _widths(text: str) -> list[int]:
    """The numbers in a spec; [0], which no network takes, if they can't be read."""
    try:
        return [int(width) for width in text.split(",")]
    except ValueError:
        return [0]


def _unet(text: str) -> Callable[..., Any]:

    channels = _widths(text) if text else CHANNELS
    require_channels(channels)
    require_monai()
    return lambda **shapes: unet(channels, **shapes)


def _mlp(widths: Sequence[int] = (), *, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    sizes = [int(np.prod(input_shape)), *widths]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes))


def _cnn(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two strided convolutions and a hidden layer: 26 thousand parameters on 28 x 28 grey
    images.
    """
    channels = 1 if len(input_shape) == 2 else input_shape[0]
    if len(input_shape) == 3 and channels >= _MAPS and min(input_shape[-2:]) >= 2:
        return _cnn_on_maps(input_shape, classes)
    if len(input_shape) not in (2, 3) or min(input_shape[-2:]) < 16:
        raise BadInput(
            "model 'cnn' needs images of shape (height, width) or (channels, height, width), 16 x "
            f"16 or larger, or {_MAPS} maps of features or more: the inputs have shape "
            f"{tuple(input_shape)}. Use mlp:100 or your own package.module:function"
        )
    body = [
        nn.Unflatten(1, (channels, input_shape[-2])) if len(input_shape) == 2 else nn.Identity(),
        nn.Conv2d(channels, 16, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
    ]
    with torch.no_grad():
        width = nn.Sequential(*body)(torch.zeros(1, *input_shape, device=building())).shape[1]
    return nn.Sequential(*body, nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, classes))


def _cnn_on_maps(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two small convolutions over maps of features, such as scattering makes: 33 thousand
    parameters on 81 x 7 x 7.
    """
    channels, height, width = input_shape
    rest = max(1, height // 4) * max(1, width // 4)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d((max(1, height // 4), max(1, width // 4))),
        nn.Flatten(),
        nn.Linear(32 * rest, classes),
    )


#: Channels of the usual U-Net, level by level; each level halves the volume.
CHANNELS = (16, 32, 64)
_GROUPS = 4
_MOST_LEVELS, _MOST_CHANNELS = 8, 4096


def unet(
    channels: Sequence[int] = CHANNELS, *, input_shape: tuple[int, ...], classes: int
) -> nn.Module:
    """MONAI's U-Net: a score for each class and voxel, shape (rows, classes, *volume).

    Each level halves the volume by a strided convolution, and group norm takes the place of batch
    norm, so that each example is computed by itself.

    Args:
        channels: of each level, multiples of 4.
        input_shape: the shape of one example: channels, and two or three sizes.
        classes: how many there are.

    Raises:
        BadInput: MONAI is not installed, or sizes that can't be halved as often as there are
            levels.
    """
    require_monai()
    from monai.networks.nets.unet import UNet

    require_channels(channels)
    sizes, halvings = input_shape[1:], len(channels) - 1
    if len(input_shape) not in (3, 4) or any(size % 2**halvings for size in sizes):
        raise BadInput(
            f"a U-Net of {len(channels)} levels needs volumes of shape (channels, height, width) "
            f"or (channels, depth, height, width), sizes in multiples of {2**halvings}: the inputs "
            f"have shape {tuple(input_shape)}. Pad them, or use fewer levels, such as unet:16,32"
        )
    network: nn.Module = UNet(
        spatial_dims=len(sizes),
        in_channels=input_shape[0],
        out_channels=classes,
        channels=tuple(channels),
        strides=(2,) * halvings,
        num_res_units=0,
        norm=("GROUP", {"num_groups": _GROUPS}),
        act="RELU",
    )
    return network


def require_channels(channels: Sequence[int]) -> None:
    """Raise `BadInput` unless these can be the channels of a U-Net's levels."""
    if not 2 <= len(channels) <= _MOST_LEVELS or any(
        width < _GROUPS or width % _GROUPS or width > _MOST_CHANNELS for width in channels
    ):
        raise BadInput(
            f"a U-Net can't have levels of {', '.join(map(str, channels))} channels: expected 2 to "
            f"{_MOST_LEVELS} numbers, multiples of {_GROUPS} up to {_MOST_CHANNELS}, for example "
            "unet:16,32,64"
        )


def require_monai() -> None:
    """Raise `BadInput` unless MONAI is installed."""
    if find_spec("monai") is None:
        raise BadInput(
            "a U-Net needs MONAI, which is not installed: pip install 'privlearn[medical]'"
        )


@with_plain_numbers
def volume_encoder(shape: Sequence[int], size: int, width: int = 4) -> nn.Module:
    """The encoder of the autoencoder: 3 x 3 x 3 convolutions with ReLU and max-pooling, then a
    fully connected layer.

    Args:
        shape: of one target: classes, and three sizes in multiples of 4.
        size: numbers in a code; the encoder ends in one more, for the unit ball.
        width: channels of the first level.
    """
    classes, *sizes = _by_four(shape)
    size = count("size", size, most=_MOST_CHANNELS)
    width = count("width", width, most=_MOST_CHANNELS)
    inner = [side // 4 for side in sizes]
    with building():
        return nn.Sequential(
            nn.Conv3d(classes, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool3d(2),
            nn.Conv3d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool3d(2),
            nn.Flatten(),
            nn.Linear(2 * width * math.prod(inner), size + 1),
        )


@with_plain_numbers
def volume_decoder(
    shape: Sequence[int], size: int, width: int = 4, middle: Tensor | None = None
) -> nn.Module:
    """The decoder: a fully connected layer, then transposed convolutions and convolutions with
    ReLU.

    Args:
        shape: as for `volume_encoder`.
        size: numbers in a code.
        width: as for `volume_encoder`.
        middle: public probabilities, of shape `shape`, that outputs start from, so that a rare
            class is not lost at first.
    """
    classes, *sizes = _by_four(shape)
    size = count("size", size, most=_MOST_CHANNELS)
    width = count("width", width, most=_MOST_CHANNELS)
    if middle is not None:
        require_fit("middle", middle, Tensor)
        if tuple(middle.shape) != (classes, *sizes):
            raise BadInput(
                f"middle has shape {tuple(middle.shape)}: expected {(classes, *sizes)}, or None"
            )
    inner = [side // 4 for side in sizes]
    with building():
        return nn.Sequential(
            nn.Linear(size, 2 * width * math.prod(inner)),
            nn.ReLU(),
            nn.Unflatten(1, (2 * width, *inner)),
            nn.ConvTranspose3d(2 * width, width, 2, stride=2),
            nn.ReLU(),
            nn.ConvTranspose3d(width, width, 2, stride=2),
            nn.ReLU(),
            nn.Conv3d(width, classes, 3, padding=1),
            *([] if middle is None else [_Beginning(middle)]),
        )


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
    require_fit("shape", shape, Sequence[int])
    if len(shape) != 4 or shape[0] < 1 or any(side < 4 or side % 4 for side in shape[1:]):
        raise BadInput(
            "the autoencoder takes maps of shape (classes, depth, height, width), sizes in "
            f"multiples of 4: not {tuple(shape)}"
        )
    return tuple(shape)
