"""The networks of packaged encoders, made of the content of a package's file.

Batch norm is in the weights of the convolution before it, with the statistics that the network was
trained with: images have no part in each other's features. MobileNetV2: Sandler et al. (2018).
VGG16: Simonyan and Zisserman (2015).
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn._user_code import import_function
from privlearn.core.clipping.model_check import require_per_example
from privlearn.core.clipping.separation.meeting import name_meeting
from privlearn.core.row_transform import RowTransform
from privlearn.errors import BadInput
from privlearn.transforms.packaged import SMALLEST, Packaged, ShippedEncoder

_IMAGES_AT_ONCE = 32
#: Encoders whose images were seen to have no part in each other's features.
_TRIED: set[ShippedEncoder] = set()
#: Of MobileNetV2's blocks: how much wider they are inside, their channels, how many, and the stride
#: of the first.
_BLOCKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_STEM = 32
_NORM_FLOOR = 1e-5  # what PyTorch's batch norm adds to a variance
#: Convolutions of each block of VGG16; a maximum over 2 x 2 pixels follows every block.
_CONVOLUTIONS = (2, 2, 3, 3, 3)


@final
class PackagedModule(RowTransform):
    """Images into the means of the maps that a packaged network makes of each.

    Args:
        packaged: which encoder, at which size.

    Attributes:
        digest: SHA-256 of the file of weights.

    Raises:
        BadInput: the package is not installed, or holds other weights.
    """

    kind = Packaged.kind
    is_users_code = True

    def __init__(self, packaged: Packaged) -> None:
        super().__init__()
        shipped = packaged.shipped
        self.packaged, self.digest = packaged, shipped.digest
        with torch.device("cpu"):
            network = read_network(packaged)
        # in a tuple: not among this module's own weights, and left alone by train()
        self._held = (network.eval().requires_grad_(False),)
        self._mean, self._deviation = shipped.mean, shipped.deviation
        self._size = packaged.size or shipped.size

    @property
    def spec(self) -> str:
        """What `specs.parse` reads."""
        return self.packaged.spec

    def describe(self) -> dict[str, Any]:
        """What the certificate says of it."""
        shipped = self.packaged.shipped
        return self.config() | {
            "package": f"{shipped.package} {shipped.version}",
            "trained_on": shipped.trained_on,
        }

    def config(self) -> dict[str, Any]:
        """What a published configuration states of it."""
        return {"kind": self.kind, "spec": self.spec, "digest": self.digest}

    def forward(self, x: Tensor) -> Tensor:
        """Images of [0, 1], (rows, height, width) or (rows, 1 or 3, height, width), into features
        (rows, features), none of them negative.
        """
        if not len(x):
            return x.new_zeros(0, self.packaged.shipped.features, dtype=torch.float32)
        parts = x.split(_IMAGES_AT_ONCE)  # type: ignore[no-untyped-call]
        network = self._held[0].eval()
        return torch.cat([network(self.prepared(part)).mean((2, 3)) for part in parts])

    def prepared(self, x: Tensor, size: int | None = None) -> Tensor:
        """Images as the network saw them in its training, (rows, 3, size, size)."""
        size = size or self._size
        images = x.float().clamp(0, 1)
        images = images.unsqueeze(1) if images.ndim == 3 else images
        images = images.expand(-1, 3, -1, -1)
        if images.shape[-2:] != (size, size):
            images = F.interpolate(images, (size, size), mode="bicubic", antialias=True).clamp(0, 1)
        mean, deviation = (
            torch.tensor(values, device=x.device).view(1, 3, 1, 1)
            for values in (self._mean, self._deviation)
        )
        return ((images - mean) / deviation).contiguous(memory_format=torch.channels_last)

    def require_per_example(self, row: Tensor) -> None:
        """Refuse a network in which rows have a part in each other's features. It is tried once in
        a process, on the smallest images: it has the same weights at every size.

        Args:
            row: made-up, shape (1, ...), of the shape and type of the rows.

        Raises:
            NotPerExample: it mixes them.
        """
        shipped = self.packaged.shipped
        if shipped in _TRIED:
            return
        images = self.prepared(row, SMALLEST)
        require_per_example(self._held[0], images, fixed=True, explain=name_meeting)
        _TRIED.add(shipped)


def read_network(packaged: Packaged) -> nn.Module:
    """The network of an encoder with the package's weights, from prepared images to maps.

    Raises:
        BadInput: the package is not installed, or holds other weights.
    """
    shipped = packaged.shipped
    content = shipped.read()
    known = {"mobilenet_v2": mobilenet_v2, "vgg16": vgg16}
    make = known.get(shipped.network) or import_function("network", shipped.network)
    network = make(content)
    assert isinstance(network, nn.Module)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def mobilenet_v2(content: bytes) -> nn.Module:
    """MobileNetV2 up to its last maps of 1,280 channels, of a PyTorch file of its weights."""
    weights = cast(
        dict[str, Tensor], torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    )
    layers: list[nn.Module] = [
        _folded(weights, "features.0.0", "features.0.1", stride=2),
        nn.ReLU6(),
    ]
    channels, place = _STEM, 1
    for wider, outputs, number, stride in _BLOCKS:
        for index in range(number):
            first = stride if index == 0 else 1
            layers.append(_Block(weights, f"features.{place}.conv", wider, first, channels))
            channels, place = outputs, place + 1
    layers += [_folded(weights, f"features.{place}.0", f"features.{place}.1"), nn.ReLU6()]
    return nn.Sequential(*layers)


@final
class _Block(nn.Module):
    """An inverted residual: wider, a convolution of each channel, and narrow again."""

    def __init__(
        self, weights: dict[str, Tensor], name: str, wider: int, stride: int, inputs: int
    ) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        place = 0
        if wider > 1:
            parts += [_folded(weights, f"{name}.0", f"{name}.1"), nn.ReLU6()]
            place = 3
        parts += [
            _folded(weights, f"{name}.{place}", f"{name}.{place + 1}", stride, inputs * wider),
            nn.ReLU6(),
        ]
        last = _folded(weights, f"{name}.{place + 3}", f"{name}.{place + 4}")
        self.layers = nn.Sequential(*parts, last)
        self.adds = stride == 1 and last.out_channels == inputs

    def forward(self, x: Tensor) -> Tensor:
        """Maps (rows, channels, height, width) into others."""
        maps = cast(Tensor, self.layers(x))
        return x + maps if self.adds else maps


def _folded(
    weights: dict[str, Tensor], convolution: str, norm: str, stride: int = 1, groups: int = 1
) -> nn.Conv2d:
    """A convolution with the batch norm behind it in its weights."""
    kernel = weights[f"{convolution}.weight"].double()
    spread = (weights[f"{norm}.running_var"].double() + _NORM_FLOOR).sqrt()
    scale = weights[f"{norm}.weight"].double() / spread
    mean = weights[f"{norm}.running_mean"].double()
    bias = weights[f"{norm}.bias"].double() - mean * scale
    return _convolution(kernel * scale.view(-1, 1, 1, 1), bias, stride, groups)


def _convolution(kernel: Tensor, bias: Tensor, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    outputs, inputs, size, _ = kernel.shape
    layer = nn.Conv2d(
        inputs * groups, outputs, size, stride, size // 2, groups=groups, device="cpu"
    )
    layer.load_state_dict({"weight": kernel.float(), "bias": bias.float()})
    return layer


def vgg16(content: bytes) -> nn.Module:
    """VGG16's convolutions, five blocks that a maximum halves, of an ONNX file that Keras's names
    are in. Images are red, green and blue; the network's own are the reverse.
    """
    weights = dict(read_onnx_tensors(content))
    layers: list[nn.Module] = []
    for block, number in enumerate(_CONVOLUTIONS, 1):
        for index in range(1, number + 1):
            name = f"functional_1/block{block}_conv{index}_1"
            kernel = weights[f"{name}/convolution/ReadVariableOp:0"]
            kernel = kernel.flip(1) if not layers else kernel
            layers += [_convolution(kernel, weights[f"{name}/Squeeze:0"]), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


#: Numbers of fields in ONNX's messages: the model's graph, its tensors, and a tensor's sizes, type,
#: name and bytes. The type of single precision is 1.
_GRAPH, _TENSOR, _SIZES, _TYPE, _NAME, _BYTES, _SINGLE = 7, 5, 1, 2, 8, 9, 1
_VARINT, _EIGHT, _TEXT, _FOUR = 0, 1, 2, 5
#: Bits of the longest numbers: ten groups of seven.
_LONGEST = 70


def read_onnx_tensors(content: bytes) -> Iterator[tuple[str, Tensor]]:
    """The tensors of single precision in an ONNX file, with their names, without the package onnx.

    A file is a message of protocol buffers: numbered fields, some of which are messages. The
    numbers are those of onnx.proto.

    Raises:
        BadInput: the content is no such file.
    """
    try:
        graphs = [value for field, value in _fields(memoryview(content)) if field == _GRAPH]
        for graph in graphs:
            for field, value in _fields(graph):
                if field == _TENSOR:
                    yield from _tensor(value)
    except (IndexError, ValueError, TypeError, RuntimeError) as error:
        raise BadInput(
            "the content is not an ONNX file: expected a model as ONNX writes it. Get another copy"
        ) from error


def _tensor(message: memoryview) -> Iterator[tuple[str, Tensor]]:
    sizes: list[int] = []
    name, numbers, kind = "", memoryview(b""), 0
    for field, value in _fields(message):
        if field == _SIZES:
            sizes += [value] if isinstance(value, int) else _varints(value)
        elif field == _TYPE:
            kind = value
        elif field == _NAME:
            name = str(value, "utf-8")  # a TypeError for a number, of which bytes() makes zeros
        elif field == _BYTES:
            numbers = value
    if kind == _SINGLE and len(numbers):
        yield name, torch.frombuffer(bytearray(numbers), dtype=torch.float32).view(sizes)


def _fields(message: memoryview) -> Iterator[tuple[int, Any]]:
    """Numbers of a message's fields, with what is in them."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        if kind == _VARINT:
            value: Any
            value, place = _varint(message, place)
        else:
            length = {_EIGHT: 8, _FOUR: 4}.get(kind, -1)
            if kind == _TEXT:
                length, place = _varint(message, place)
            if length < 0 or place + length > len(message):
                raise ValueError("a field is cut off")
            value, place = message[place : place + length], place + length
        yield key >> 3, value


def _varints(message: memoryview) -> list[int]:
    numbers, place = [], 0
    while place < len(message):
        number, place = _varint(message, place)
        numbers.append(number)
    return numbers


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    """A whole number in groups of seven bits, the lowest first, and the place behind it."""
    number = 0
    for shift in range(0, _LONGEST, 7):
        byte = message[place]
        number |= (byte & 127) << shift
        place += 1
        if byte < 128:
            return number, place
    raise ValueError("a number is too long")
