"""The networks that private steps are timed on, with made-up rows; and the layers that Opacus needs
in their place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 10
#: Tensors by parameter name.
Tensors = dict[str, Tensor]


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of each example, the mean over its positions if it has several; shape
    (batch,).
    """
    each = F.cross_entropy(outputs, targets, reduction="none")
    return each if each.dim() == 1 else each.flatten(1).mean(1)


def _as_it_is(model: nn.Module) -> nn.Module:
    return model


def _same_names(tensors: Tensors) -> Tensors:
    return tensors


@dataclass(frozen=True)
class Network:
    """A network, its batch and where to clip.

    Attributes:
        name: what `--only` calls it.
        about: its size, for titles.
        make: builds it.
        inputs: made-up inputs, from their number.
        batch: rows in a batch.
        clip: the clip norm, near the median of the gradients' norms, so that some are clipped and
            some are not.
        within: how far, relative to its norm, a clipped sum may be from the one in double
            precision. In float32 a relu near zero falls on its other side now and then, and
            convolutions depend on the batch that they run in.
        targets: the shape of one example's target.
        checked: rows on which clipped sums are compared; None: all.
        for_opacus: puts layers that Opacus covers in place of those it does not, with the same
            weights.
        from_opacus: takes sums by the names of those layers back to the network's own.
    """

    name: str
    about: str
    make: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]
    batch: int
    clip: float
    within: float = 2e-3
    targets: tuple[int, ...] = ()
    checked: int | None = None
    for_opacus: Callable[[nn.Module], nn.Module] = _as_it_is
    from_opacus: Callable[[Tensors], Tensors] = _same_names

    @property
    def parameters(self) -> int:
        """The number of its parameters."""
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in self.make().parameters())

    @property
    def title(self) -> str:
        """The name, the size and the batch."""
        return f"{self.name}: {self.about}, batch {self.batch:,}"

    def built(self, device: str = "cpu") -> nn.Module:
        """The network in training mode, always with the same weights."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.make().to(device).train()

    def rows(self, device: str = "cpu") -> tuple[Tensor, Tensor]:
        """The batch: inputs and targets, always the same."""
        with torch.random.fork_rng():
            torch.manual_seed(1)
            x = self.inputs(self.batch)
            y = torch.randint(CLASSES, (self.batch, *self.targets))
        return x.to(device), y.to(device)


# Multi-layer perceptrons


def mlp(
    name: str, widths: Sequence[int], batch: int, clip: float, checked: int | None = None
) -> Network:
    """Linear layers of `widths` with relu between them."""

    def make() -> nn.Module:
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    about = "MLP " + "-".join(str(width) for width in widths)
    return Network(
        name, about, make, lambda n: torch.randn(n, widths[0]), batch, clip, checked=checked
    )


# Convolutions


def cnn(batch: int, clip: float) -> Network:
    """The network of Opacus's MNIST example."""

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 16, 8, stride=2, padding=3),
            nn.ReLU(),
            nn.MaxPool2d(2, 1),
            nn.Conv2d(16, 32, 4, stride=2),
            nn.ReLU(),
            nn.MaxPool2d(2, 1),
            nn.Flatten(),
            nn.Linear(512, 32),
            nn.ReLU(),
            nn.Linear(32, CLASSES),
        )

    return Network(
        "cnn", "CNN of 26 thousand", make, lambda n: torch.randn(n, 1, 28, 28), batch, clip
    )


def _norm(channels: int) -> nn.Module:
    return nn.GroupNorm(min(32, channels // 2), channels)


class _Residual(nn.Module):
    """Two convolutions around which the input is added."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            _norm(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            _norm(outputs),
        )
        self.short = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), _norm(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.short(x))


def resnet(batch: int, clip: float, width: int = 64, side: int = 32) -> Network:
    """ResNet-18 with group norm: a stem of 3 x 3 without pooling, for small images."""

    def make() -> nn.Module:
        layers: list[nn.Module] = [
            nn.Conv2d(3, width, 3, 1, 1, bias=False),
            _norm(width),
            nn.ReLU(),
        ]
        before = width
        for stage in range(4):
            after = width << stage
            layers += [_Residual(before, after, 1 if stage == 0 else 2), _Residual(after, after, 1)]
            before = after
        return nn.Sequential(
            *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES)
        )

    about = f"ResNet-18, group norm, {side} x {side}"
    return Network("resnet", about, make, lambda n: torch.randn(n, 3, side, side), batch, clip)


def _twice(inputs: int, outputs: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before in (inputs, outputs):
        layers += [nn.Conv3d(before, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class _UNet(nn.Module):
    """A 3-D U-Net of three levels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        one, two, four = width, 2 * width, 4 * width
        self.down = nn.ModuleList([_twice(1, one), _twice(one, two)])
        self.bottom = _twice(two, four)
        self.lift = nn.ModuleList(
            [nn.ConvTranspose3d(four, two, 2, 2), nn.ConvTranspose3d(two, one, 2, 2)]
        )
        self.up = nn.ModuleList([_twice(four, two), _twice(two, one)])
        self.head = nn.Conv3d(one, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped = []
        for down in self.down:
            x = down(x)
            skipped.append(x)
            x = F.max_pool3d(x, 2)
        x = self.bottom(x)
        for lift, up in zip(self.lift, self.up, strict=True):
            x = up(torch.cat([lift(x), skipped.pop()], 1))
        return cast(Tensor, self.head(x))


def unet(batch: int, clip: float, width: int = 16, side: int = 32) -> Network:
    """A 3-D U-Net that labels voxels."""
    shape = (side, side, side)
    about = f"3-D U-Net of {width}, {2 * width} and {4 * width} channels, {side} voxels cubed"
    return Network(
        "unet",
        about,
        lambda: _UNet(width),
        lambda n: torch.randn(n, 1, *shape),
        batch,
        clip,
        targets=shape,
    )


# Sequences


class _Encoder(nn.Module):
    """Tokens to classes: an embedding, transformer layers, the mean over positions and a linear
    head.
    """

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.encoder(self.embedding(tokens)).mean(1)))


class _Attention(nn.Module):
    """Self-attention from linear layers, in the place of `nn.MultiheadAttention` and with its
    weights.

    Opacus's own replacement, `DPMultiheadAttention`, computes something else with
    `batch_first=True` (in release 1.6 heads and positions change places), so it can't be held
    against the original.
    """

    _qkv_same_embed_dim, batch_first = False, True
    parts = ("q", "k", "v")

    def __init__(self, original: nn.MultiheadAttention) -> None:
        super().__init__()
        self.heads = original.num_heads
        width = original.embed_dim
        weights, biases = (
            original.in_proj_weight.detach().chunk(3),
            original.in_proj_bias.detach().chunk(3),
        )
        for name, weight, bias in zip(self.parts, weights, biases, strict=True):
            layer = nn.Linear(width, width)
            layer.load_state_dict({"weight": weight, "bias": bias})
            self.add_module(name, layer)
        self.out_proj = nn.Linear(width, width)
        self.out_proj.load_state_dict(original.out_proj.state_dict())

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, **options: object
    ) -> tuple[Tensor, None]:
        parts = zip(self.parts, (query, key, value), strict=True)
        q, k, v = (
            self.get_submodule(name)(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for name, x in parts
        )
        joined = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.out_proj(joined), None


def _with_own_attention(model: nn.Module) -> nn.Module:
    for layer in list(model.modules()):
        if isinstance(layer, nn.TransformerEncoderLayer):
            layer.self_attn = _Attention(layer.self_attn)  # type: ignore[assignment]
    return model.to(next(model.parameters()).device)


def _joined_attention(tensors: Tensors) -> Tensors:
    joined = {}
    for name, tensor in tensors.items():
        module, _, kind = name.rpartition(".")
        owner, _, part = module.rpartition(".")
        if not owner.endswith("self_attn") or part not in _Attention.parts:
            joined[name] = tensor
        elif part == "q":
            joined[f"{owner}.in_proj_{kind}"] = torch.cat(
                [tensors[f"{owner}.{p}.{kind}"] for p in _Attention.parts]
            )
    return joined


def transformer(
    batch: int, clip: float, width: int = 128, layers: int = 4, length: int = 64
) -> Network:
    """A transformer encoder of four heads over a vocabulary of 1000."""
    return Network(
        "transformer",
        f"transformer of {layers} x {width}, length {length}",
        lambda: _Encoder(1000, width, layers),
        lambda n: torch.randint(1000, (n, length)),
        batch,
        clip,
        for_opacus=_with_own_attention,
        from_opacus=_joined_attention,
    )


class _LastState(nn.Module):
    """A classifier that reads the last output of an LSTM."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.lstm(x)[0][:, -1]))


def _with_dp_lstm(model: nn.Module) -> nn.Module:
    from opacus.validators import ModuleValidator

    device = next(model.parameters()).device
    return cast(nn.Module, ModuleValidator.fix(model)).to(device).train()


def lstm(batch: int, clip: float, hidden: int = 128, length: int = 64) -> Network:
    """An LSTM classifier over inputs 64 wide."""
    return Network(
        "lstm",
        f"LSTM of {hidden}, length {length}",
        lambda: _LastState(64, hidden),
        lambda n: torch.randn(n, length, 64),
        batch,
        clip,
        for_opacus=_with_dp_lstm,
    )


FULL = (
    mlp("mlp-small", (60, 1000, CLASSES), 600, 13.0),
    mlp("mlp-large", (784, 1000, 1000, CLASSES), 1024, 8.5),
    cnn(256, 4.6),
    transformer(64, 9.6),
    resnet(64, 65.0),
    lstm(64, 1.93),
    unet(4, 1.12),
)
QUICK = (
    mlp("mlp-small", (60, 1000, CLASSES), 600, 13.0),
    cnn(64, 4.4),
    transformer(16, 6.1, layers=2, length=32),
)
SMOKE = (
    mlp("mlp-small", (6, 5, CLASSES), 6, 2.0),
    cnn(4, 4.9),
    transformer(4, 2.6, width=8, layers=1, length=4),
    resnet(3, 180.0, width=8, side=8),
    lstm(4, 1.6, hidden=8, length=4),
    unet(2, 0.955, width=4, side=8),
)


def wide(width: int, batch: int) -> Network:
    """An MLP of any width, for sweeps: clipped sums are compared on few rows."""
    return mlp(
        "mlp", (784, width, width, CLASSES), batch, 8.5 * math.sqrt(width / 1000), checked=16
    )
