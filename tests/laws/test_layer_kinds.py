"""Every layer kind, alone and composed, against a plain loop over single examples.

The registry names small networks. For each, the clipped sum is the loop's, one example moves it by
at most the stated sensitivity, and the user's model is left as it was; the kinds that have rules
are computed by them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, rnn
from torch.utils.checkpoint import checkpoint

from privlearn.core import clipping
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping import kernels
from privlearn.core.clipping.bounded import kept
from privlearn.core.clipping.clips import Clip, Flat, PerLayer
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.errors import BadInput, PrivlearnError
from tests.support.nets import cross_entropy, one_sample

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)

Loss = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def used_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also small tensors use memory again, and what was not written first is seen."""
    monkeypatch.setattr(kernels, "_LEAST", 0)
    empty = kernels.Scratch.empty

    def spoilt(self: kernels.Scratch, shape: Any, like: Tensor) -> Tensor:
        return empty(self, shape, like).fill_(math.nan)

    monkeypatch.setattr(kernels.Scratch, "empty", spoilt)


#: Every batch size up to this one is met, and with them the sequence lengths and channel counts
#: below.
ROWS = 8


@dataclass(frozen=True)
class Kind:
    """A network, and what is expected of it.

    Attributes:
        make: builds it.
        shape: of one example.
        way: "layers", "not layers" or "" where only the numbers count.
        tokens: where inputs are integers: how many there are.
        exact: only in double precision.
        loss: from the network to its loss.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    way: str = ""
    tokens: int = 0
    exact: bool = False
    loss: Callable[[Any], Loss] = lambda net: cross_entropy


def covered(make: Callable[[], nn.Module], *shape: int, **options: Any) -> Kind:
    """A network whose every layer has a rule."""
    return Kind(make, shape, way="layers", **options)


def correct(make: Callable[[], nn.Module], *shape: int, **options: Any) -> Kind:
    """A network that may be computed in any way."""
    return Kind(make, shape, **options)


class Net(nn.Module):
    """Its parts, and how they are run."""

    def __init__(
        self, run: Callable[[Any, Tensor], Tensor], **parts: nn.Module | nn.Parameter | Tensor
    ) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            if isinstance(part, nn.Module | nn.Parameter):
                setattr(self, name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def read(*layers: nn.Module) -> nn.Module:
    """The layers, and a linear layer on all of their output."""
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3))


def headed(
    run: Callable[[Any, Tensor], Tensor], **parts: nn.Module | nn.Parameter | Tensor
) -> nn.Module:
    """What `run` makes of the parts, and a linear layer on all of it."""
    return read(Net(run, **parts))


def frozen(layer: Any, *names: str) -> Any:
    """The layer with the named parameters, or all of them, not trained."""
    for name, parameter in layer.named_parameters():
        if not names or name in names:
            parameter.requires_grad_(False)
    return layer


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(0.5 * torch.randn(shape))


LINEAR = {
    "linear": covered(lambda: nn.Linear(5, 3), 5),
    "linear without bias": covered(lambda: nn.Linear(5, 3, bias=False), 5),
    "linear, one number in and one out": covered(lambda: read(nn.Linear(1, 1)), 1),
    "mlp": covered(
        lambda: nn.Sequential(
            nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 3)
        ),
        5,
    ),
    "linear on short sequences": covered(lambda: read(nn.Linear(12, 10), nn.Tanh()), 3, 12),
    "linear on short sequences without bias": covered(
        lambda: read(nn.Linear(12, 10, bias=False), nn.Tanh()), 3, 12
    ),
    "linear on long sequences": covered(
        lambda: read(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)), 24, 5
    ),
    "linear on long sequences without bias": covered(
        lambda: read(nn.Linear(5, 4, bias=False)), 24, 5
    ),
    "linear on sequences of one": covered(lambda: read(nn.Linear(5, 4)), 1, 5),
    "linear on sequences of equal rows": covered(
        lambda: headed(
            lambda n, x: n.a(x[:, None].expand(-1, 4, -1)).tanh().square(), a=nn.Linear(7, 6)
        ),
        7,
    ),
    "linear on sequences whose terms cancel": covered(
        lambda: headed(
            lambda n, x: n.a(torch.stack([x, x * 1.001], 1)).diff(dim=1), a=nn.Linear(9, 8)
        ),
        9,
    ),
    "linear on grids": covered(lambda: read(nn.Linear(5, 4)), 2, 3, 5),
    "linear on grids of grids": covered(lambda: read(nn.Linear(4, 3), nn.Tanh()), 2, 3, 2, 4),
    "linear on some positions": covered(
        lambda: headed(
            lambda n, x: n.a(x[:, 0]) + n.b(x[:, 1:3]).sum(1), a=nn.Linear(5, 4), b=nn.Linear(5, 4)
        ),
        6,
        5,
    ),
    "linear over positions": covered(
        lambda: headed(lambda n, x: n.a(x.mT), a=nn.Linear(6, 4)), 6, 5
    ),
    "linear on flattened rows": covered(
        lambda: Net(
            lambda n, x: n.b(n.a(x.reshape(-1, 5)).tanh().reshape(len(x), -1)),
            a=nn.Linear(5, 4),
            b=nn.Linear(24, 3),
        ),
        6,
        5,
    ),
    "linear on flattened grids": covered(
        lambda: headed(
            lambda n, x: n.a(x.flatten(0, 2)).tanh().unflatten(0, x.shape[:3]), a=nn.Linear(5, 4)
        ),
        2,
        3,
        5,
    ),
    "batch second": covered(
        lambda: Net(lambda n, x: n.a(x.transpose(0, 1)).sum(0), a=nn.Linear(5, 3)), 6, 5
    ),
    "batch second, as long as the batch": covered(
        lambda: Net(lambda n, x: n.a(x.transpose(0, 1)).tanh().sum(0), a=nn.Linear(5, 3)), ROWS, 5
    ),
    "batch second, short and wide": covered(
        lambda: headed(
            lambda n, x: n.a(x.transpose(0, 1)).tanh().transpose(0, 1), a=nn.Linear(12, 10)
        ),
        3,
        12,
    ),
    "batch third": correct(
        lambda: headed(
            lambda n, x: n.a(x.permute(1, 2, 0, 3)).tanh().permute(2, 0, 1, 3), a=nn.Linear(5, 4)
        ),
        2,
        3,
        5,
    ),
    "flattened rows, position by position": correct(
        lambda: headed(
            lambda n, x: (
                n.a(x.transpose(0, 1).reshape(-1, 5)).tanh().view(6, len(x), 4).transpose(0, 1)
            ),
            a=nn.Linear(5, 4),
        ),
        6,
        5,
    ),
    "bilinear": correct(
        lambda: Net(
            lambda n, x: n.a(x[:, :3].contiguous(), x[:, 3:].contiguous()), a=nn.Bilinear(3, 4, 3)
        ),
        7,
    ),
}


def channels_last() -> nn.Module:
    net = nn.Sequential(
        nn.Conv2d(4, 6, 3), nn.Tanh(), nn.Conv2d(6, 4, 2), nn.Flatten(), nn.Linear(16, 3)
    )
    return net.to(memory_format=torch.channels_last)


CONVOLUTIONS = {
    "conv1d": covered(lambda: read(nn.Conv1d(2, 3, 3)), 2, 8),
    "conv1d, long": covered(lambda: read(nn.Conv1d(2, 3, 3), nn.Tanh(), nn.Conv1d(3, 2, 5)), 2, 30),
    "conv1d, many channels": covered(lambda: read(nn.Conv1d(12, 14, 3), nn.Tanh()), 12, 5),
    "conv1d, many channels without bias": covered(
        lambda: read(nn.Conv1d(12, 14, 3, bias=False), nn.Tanh()), 12, 5
    ),
    "conv1d, stride, padding, dilation": covered(lambda: read(nn.Conv1d(2, 4, 3, 2, 3, 2)), 2, 10),
    "conv1d, a stride that leaves a rest": covered(
        lambda: read(nn.Conv1d(2, 4, 2, stride=3)), 2, 10
    ),
    "conv1d, groups": covered(lambda: read(nn.Conv1d(4, 6, 3, groups=2)), 4, 7),
    "conv1d, depthwise": covered(
        lambda: read(nn.Conv1d(4, 4, 3, groups=4), nn.Conv1d(4, 8, 3, groups=4)), 4, 8
    ),
    "conv1d, 1x1": covered(
        lambda: read(nn.Conv1d(4, 6, 1), nn.Tanh(), nn.Conv1d(6, 2, 1, bias=False)), 4, 7
    ),
    "conv1d, 1x1 with stride": covered(lambda: read(nn.Conv1d(4, 6, 1, stride=2)), 4, 7),
    "conv1d, one channel": covered(lambda: read(nn.Conv1d(1, 4, 3)), 1, 8),
    "conv1d, same": covered(lambda: read(nn.Conv1d(2, 4, 3, padding="same", dilation=2)), 2, 8),
    "conv1d, same with an even kernel": covered(
        lambda: read(nn.Conv1d(2, 4, 4, padding="same")), 2, 8
    ),
    "conv1d, valid": covered(lambda: read(nn.Conv1d(2, 4, 3, padding="valid")), 2, 8),
    "conv1d, circular": covered(
        lambda: read(nn.Conv1d(2, 4, 3, padding=2, padding_mode="circular")), 2, 8
    ),
    "conv1d over the whole input": covered(lambda: read(nn.Conv1d(3, 4, 6)), 3, 6),
    "conv2d": covered(lambda: read(nn.Conv2d(2, 4, 3), nn.ReLU()), 2, 6, 6),
    "conv2d, large": covered(
        lambda: read(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Conv2d(3, 2, 3)), 2, 12, 12
    ),
    "conv2d, many channels": covered(
        lambda: read(nn.Conv2d(10, 12, 3, padding=1), nn.Tanh()), 10, 3, 3
    ),
    "conv2d, every option": covered(
        lambda: read(nn.Conv2d(4, 8, 3, 2, 2, 2, groups=2, bias=False)), 4, 9, 7
    ),
    "conv2d, uneven": covered(
        lambda: read(nn.Conv2d(2, 3, (2, 3), (1, 2), (0, 1), (2, 1))), 2, 6, 7
    ),
    "conv2d, depthwise": covered(
        lambda: read(nn.Conv2d(4, 4, 3, groups=4), nn.Tanh(), nn.Conv2d(4, 6, 1)), 4, 6, 6
    ),
    "conv2d, 1x1": covered(lambda: read(nn.Conv2d(4, 6, 1), nn.Tanh()), 4, 3, 4),
    "conv2d, 1x1 with padding": covered(lambda: read(nn.Conv2d(4, 6, 1, padding=1)), 4, 3, 4),
    "conv2d, 1x1 with groups": covered(lambda: read(nn.Conv2d(4, 6, 1, groups=2)), 4, 3, 4),
    "conv2d, one channel": covered(lambda: read(nn.Conv2d(1, 4, 4, stride=2, padding=1)), 1, 7, 7),
    "conv2d, same": covered(lambda: read(nn.Conv2d(2, 4, 3, padding="same")), 2, 5, 5),
    "conv2d, same with an uneven kernel": covered(
        lambda: read(nn.Conv2d(2, 4, (2, 3), padding="same")), 2, 5, 5
    ),
    "conv2d, valid": covered(lambda: read(nn.Conv2d(2, 4, 3, padding="valid", stride=2)), 2, 6, 6),
    "conv2d, circular": covered(
        lambda: read(nn.Conv2d(2, 3, 3, padding="same", padding_mode="circular")), 2, 5, 5
    ),
    "conv2d, reflect": covered(
        lambda: read(nn.Conv2d(2, 3, 3, padding=(1, 2), padding_mode="reflect")), 2, 5, 5
    ),
    "conv2d over the whole input": covered(lambda: read(nn.Conv2d(3, 4, (4, 5))), 3, 4, 5),
    "conv2d, channels last": covered(channels_last, 4, 5, 5),
    "conv2d and pooling": covered(
        lambda: read(
            nn.Conv2d(1, 4, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 2),
            nn.AdaptiveAvgPool2d(1),
        ),
        1,
        8,
        8,
    ),
    "conv3d": covered(lambda: read(nn.Conv3d(2, 3, 2), nn.Tanh()), 2, 4, 3, 4, exact=True),
    "conv3d, every option": covered(
        lambda: read(
            nn.Conv3d(4, 4, (1, 2, 3), (1, 2, 1), (0, 1, 1), (1, 1, 2), groups=2, bias=False)
        ),
        *(4, 3, 4, 5),
        exact=True,
    ),
    "conv3d, many channels": covered(
        lambda: read(nn.Conv3d(8, 9, 2), nn.Tanh()), 8, 2, 3, 2, exact=True
    ),
    "conv3d, depthwise": covered(
        lambda: read(nn.Conv3d(3, 6, 2, groups=3)), 3, 3, 3, 3, exact=True
    ),
    "conv3d, 1x1": covered(lambda: read(nn.Conv3d(3, 4, 1)), 3, 2, 2, 3, exact=True),
    "conv3d, one channel": covered(
        lambda: read(nn.Conv3d(1, 3, 2, stride=2)), 1, 4, 4, 5, exact=True
    ),
    "conv3d, same": covered(
        lambda: read(nn.Conv3d(2, 2, 3, padding="same")), 2, 3, 3, 3, exact=True
    ),
    "conv3d, circular": covered(
        lambda: read(nn.Conv3d(2, 2, 3, padding=1, padding_mode="circular")), 2, 3, 3, 3, exact=True
    ),
    "transposed conv1d": covered(lambda: read(nn.ConvTranspose1d(3, 4, 3), nn.Tanh()), 3, 6),
    "transposed conv1d, many channels": covered(lambda: read(nn.ConvTranspose1d(12, 10, 2)), 12, 3),
    "transposed conv1d, every option": covered(
        lambda: read(nn.ConvTranspose1d(4, 6, 3, 3, 2, 1, groups=2, dilation=2, bias=False)), 4, 5
    ),
    "transposed conv1d, kernel as long as its stride": covered(
        lambda: read(nn.ConvTranspose1d(4, 3, 2, 2)), 4, 5
    ),
    "transposed conv1d, 1x1": covered(lambda: read(nn.ConvTranspose1d(4, 3, 1)), 4, 5),
    "transposed conv1d, depthwise": covered(
        lambda: read(nn.ConvTranspose1d(4, 8, 3, groups=4)), 4, 5
    ),
    "transposed conv2d": covered(
        lambda: read(nn.ConvTranspose2d(3, 2, 3, padding=1), nn.Tanh()), 3, 4, 5
    ),
    "transposed conv2d, every option": covered(
        lambda: read(nn.ConvTranspose2d(4, 4, (3, 2), (2, 3), (1, 0), (1, 2), groups=2)), 4, 3, 4
    ),
    "transposed conv2d, kernel as long as its stride": covered(
        lambda: read(nn.ConvTranspose2d(3, 2, 2, 2)), 3, 3, 4
    ),
    "transposed conv2d, to a given size": covered(
        lambda: headed(
            lambda n, x: n.a(x, output_size=(8, 7)), a=nn.ConvTranspose2d(3, 2, 3, 2, 1)
        ),
        3,
        4,
        4,
    ),
    "transposed conv3d": covered(lambda: read(nn.ConvTranspose3d(2, 3, 2)), 2, 2, 3, 2, exact=True),
    "transposed conv3d, every option": covered(
        lambda: read(nn.ConvTranspose3d(4, 4, 2, 2, 1, 1, groups=2, bias=False)),
        4,
        2,
        2,
        3,
        exact=True,
    ),
    "transposed conv3d, kernel as long as its stride": covered(
        lambda: read(nn.ConvTranspose3d(2, 2, 2, 2)), 2, 2, 2, 2, exact=True
    ),
    "conv on frames": correct(
        lambda: headed(
            lambda n, x: n.a(x.flatten(0, 1)).tanh().unflatten(0, x.shape[:2]), a=nn.Conv1d(2, 3, 3)
        ),
        *(4, 2, 6),
    ),
    "conv with the batch along the picture": correct(
        lambda: headed(
            lambda n, x: n.a(x[None, None])[0].transpose(0, 1), a=nn.Conv2d(1, 4, (1, 3))
        ),
        6,
    ),
    "conv to a grid and back": covered(
        lambda: headed(
            lambda n, x: n.up(F.max_pool2d(n.down(x).relu(), 2)),
            down=nn.Conv2d(2, 4, 3),
            up=nn.ConvTranspose2d(4, 2, 3),
        ),
        *(2, 6, 6),
    ),
}

EMBEDDINGS = {
    "embedding": covered(lambda: read(nn.Embedding(6, 4)), 7, tokens=6),
    "embedding, repeated tokens": covered(lambda: read(nn.Embedding(2, 4), nn.Tanh()), 7, tokens=2),
    "embedding, one token": covered(lambda: read(nn.Embedding(6, 4)), 1, tokens=6),
    "embedding, a token for each example": covered(
        lambda: Net(lambda n, x: n.b(n.a(x[:, 0])), a=nn.Embedding(6, 4), b=nn.Linear(4, 3)),
        2,
        tokens=6,
    ),
    "embedding, grids of tokens": covered(
        lambda: read(nn.Embedding(6, 4), nn.Linear(4, 2)), 3, 4, tokens=6
    ),
    "embedding with padding": covered(lambda: read(nn.Embedding(6, 4, padding_idx=0)), 7, tokens=6),
    "embedding with padding from the end": covered(
        lambda: read(nn.Embedding(6, 4, padding_idx=-2)), 7, tokens=6
    ),
    "embedding, only padding": covered(
        lambda: read(nn.Embedding(2, 4, padding_idx=0)), 7, tokens=1
    ),
    "embedding, batch second": covered(
        lambda: headed(lambda n, x: n.a(x.T).transpose(0, 1).tanh(), a=nn.Embedding(6, 4)),
        ROWS,
        tokens=6,
    ),
    "embedding, flattened": correct(
        lambda: headed(lambda n, x: n.a(x.flatten()).view(len(x), -1), a=nn.Embedding(6, 4)),
        5,
        tokens=6,
    ),
    "embedding of what is computed": covered(
        lambda: headed(lambda n, x: n.a((x > 0).long()), a=nn.Embedding(2, 4)), 6
    ),
    "embedding of positions": correct(
        lambda: headed(
            lambda n, x: (n.a(x) + n.b(torch.arange(x.shape[1]))).tanh(),
            a=nn.Embedding(6, 4),
            b=nn.Embedding(ROWS, 4),
        ),
        ROWS,
        tokens=6,
    ),
    "embedding of positions, for each example": covered(
        lambda: headed(
            lambda n, x: (n.a(x) + n.b(torch.arange(5).expand(len(x), 5))).tanh(),
            **{"a": nn.Embedding(6, 4), "b": nn.Embedding(5, 4)},
        ),
        5,
        tokens=6,
    ),
    "embedding, two features": covered(
        lambda: headed(
            lambda n, x: n.a(x[:, 0]) * n.b(x[:, 1]), a=nn.Embedding(6, 4), b=nn.Embedding(6, 4)
        ),
        2,
        tokens=6,
    ),
    "embedding with a largest norm": Kind(
        lambda: read(nn.Embedding(3, 4, max_norm=1.0)), (7,), way="not layers", tokens=3, exact=True
    ),
    "embedding scaled by frequency": Kind(
        lambda: read(nn.Embedding(6, 4, scale_grad_by_freq=True)), (7,), way="not layers", tokens=6
    ),
    "embedding, sparse": Kind(
        lambda: read(nn.Embedding(6, 4, sparse=True)), (7,), way="not layers", tokens=6
    ),
    "embedding bag": Kind(lambda: read(nn.EmbeddingBag(6, 4)), (7,), way="not layers", tokens=6),
    "embedding bag, sums": Kind(
        lambda: read(nn.EmbeddingBag(6, 4, mode="sum")), (7,), way="not layers", tokens=6
    ),
    "embedding bag, largest": Kind(
        lambda: read(nn.EmbeddingBag(6, 4, mode="max")), (7,), way="not layers", tokens=6
    ),
    "rows of a parameter": correct(
        lambda: headed(lambda n, x: n.w[x], w=parameter(6, 4)), 7, tokens=6
    ),
    "one-hot times a parameter": correct(
        lambda: headed(lambda n, x: F.one_hot(x, 6).to(n.w.dtype) @ n.w, w=parameter(6, 4)),
        7,
        tokens=6,
    ),
    "integers as numbers": correct(
        lambda: Net(lambda n, x: n.a(x.to(n.a.weight.dtype)), a=nn.Linear(7, 3)), 7, tokens=6
    ),
}

NORMS = {
    "layer norm": covered(
        lambda: nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 3)), 5
    ),
    "layer norm on sequences": covered(lambda: read(nn.LayerNorm(5), nn.Tanh()), 6, 5),
    "layer norm on grids": covered(lambda: read(nn.LayerNorm(5)), 2, 3, 5),
    "layer norm over two dimensions": covered(lambda: read(nn.LayerNorm((3, 5))), 2, 3, 5),
    "layer norm over all dimensions": covered(lambda: read(nn.LayerNorm((2, 3, 5))), 2, 3, 5),
    "layer norm without bias": covered(lambda: read(nn.LayerNorm(5, bias=False), nn.Tanh()), 6, 5),
    "layer norm without parameters": covered(
        lambda: read(nn.Linear(5, 4), nn.LayerNorm(4, elementwise_affine=False), nn.Tanh()), 6, 5
    ),
    "layer norm, batch second": covered(
        lambda: headed(
            lambda n, x: n.a(x.transpose(0, 1)).tanh().transpose(0, 1), a=nn.LayerNorm(5)
        ),
        ROWS,
        5,
    ),
    "layer norm on flattened rows": correct(
        lambda: headed(
            lambda n, x: n.a(x.flatten(0, 1)).tanh().unflatten(0, x.shape[:2]), a=nn.LayerNorm(5)
        ),
        4,
        5,
    ),
    "group norm": covered(lambda: read(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU()), 2, 6, 6),
    "group norm on rows": covered(
        lambda: nn.Sequential(nn.Linear(5, 8), nn.GroupNorm(2, 8), nn.Linear(8, 3)), 5
    ),
    "group norm on signals": covered(lambda: read(nn.GroupNorm(2, 4), nn.Tanh()), 4, 6),
    "group norm on volumes": covered(lambda: read(nn.GroupNorm(2, 4), nn.Tanh()), 4, 2, 3, 2),
    "group norm, one group": covered(lambda: read(nn.GroupNorm(1, 4), nn.Tanh()), 4, 3, 3),
    "group norm, a group for each channel": covered(
        lambda: read(nn.GroupNorm(4, 4), nn.Tanh()), 4, 3, 3
    ),
    "group norm without parameters": covered(
        lambda: read(nn.Conv1d(2, 4, 3), nn.GroupNorm(2, 4, affine=False), nn.Tanh()), 2, 6
    ),
    "instance norm 1d": covered(lambda: read(nn.InstanceNorm1d(4, affine=True), nn.Tanh()), 4, 6),
    "instance norm 2d": covered(
        lambda: read(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True)), 2, 5, 5
    ),
    "instance norm 3d": covered(
        lambda: read(nn.InstanceNorm3d(4, affine=True), nn.Tanh()), 4, 2, 3, 2
    ),
    "instance norm without parameters": covered(
        lambda: read(nn.Conv1d(2, 4, 3), nn.InstanceNorm1d(4), nn.Tanh()), 2, 6
    ),
    "rms norm": covered(lambda: read(nn.RMSNorm(5), nn.Tanh()), 6, 5),
    "rms norm with its own epsilon": covered(
        lambda: read(nn.Linear(5, 4), nn.RMSNorm(4, eps=0.1)), 6, 5
    ),
    "rms norm on rows": covered(
        lambda: nn.Sequential(nn.Linear(5, 6), nn.RMSNorm(6), nn.Linear(6, 3)), 5
    ),
    "rms norm over two dimensions": covered(lambda: read(nn.RMSNorm((3, 5)), nn.Tanh()), 2, 3, 5),
    "rms norm without parameters": covered(
        lambda: read(nn.Linear(5, 4), nn.RMSNorm(4, elementwise_affine=False), nn.Tanh()), 6, 5
    ),
    "batch norm that only applies": correct(
        lambda: nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)).eval(), 5
    ),
    "a slope that is learnt": correct(
        lambda: read(nn.Linear(5, 4), nn.PReLU(), nn.Linear(4, 4), nn.PReLU(4)), 5
    ),
}


def attention(attend: Callable[[Any, Tensor], Tensor], **options: Any) -> nn.Module:
    """`attend` with an attention layer `a` of width 8."""
    return headed(attend, a=nn.MultiheadAttention(8, 2, **options))


def attention_after_linear(attend: Callable[[Any, Tensor], Tensor], **options: Any) -> nn.Module:
    """`attend` with an attention layer `a` and a linear layer `b`, both of width 8."""
    return headed(attend, a=nn.MultiheadAttention(8, 2, **options), b=nn.Linear(8, 8))


def itself(n: Any, x: Tensor, **options: Any) -> Tensor:
    out: Tensor = n.a(x, x, x, **options)[0]
    return out


def encoder(**options: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(8, 2, 6, dropout=0.0, **options)


def decoder(**options: Any) -> nn.TransformerDecoderLayer:
    return nn.TransformerDecoderLayer(8, 2, 6, dropout=0.0, **options)


def causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def padded(x: Tensor) -> Tensor:
    """Which positions of an example are padding: a rule of the input's, never all of them."""
    return (x[..., 0] > 0.5) & (torch.arange(x.shape[1]) > 0)


def second(layer: nn.Module) -> nn.Module:
    """The layer on sequences whose batch is second."""
    return headed(lambda n, x: n.a(x.transpose(0, 1)).transpose(0, 1), a=layer)


def weighted_attention(n: Any, x: Tensor) -> Tensor:
    out, weights = n.a(x, x, x, need_weights=True)
    return torch.cat([out.flatten(1), 3 * weights.flatten(1)], 1)


def weights_of_heads(n: Any, x: Tensor) -> Tensor:
    out, weights = n.a(x, n.b(x), x, need_weights=True, average_attn_weights=False)
    return torch.cat([out.flatten(1), 3 * weights.square().flatten(1)], 1)


def mask_of_heads(n: Any, x: Tensor) -> Tensor:
    distance = (x[:, :, None, 0] - x[:, None, :, 0]).abs()
    return itself(n, x, attn_mask=-distance.repeat_interleave(2, 0))


ATTENTION = {
    "self-attention": covered(lambda: attention(itself, batch_first=True), 4, 8),
    "self-attention, short": covered(lambda: attention(itself, batch_first=True), 2, 8),
    "self-attention, long": covered(lambda: attention(itself, batch_first=True), 20, 8),
    "self-attention, as long as the batch": covered(
        lambda: attention(itself, batch_first=True), ROWS, 8
    ),
    "self-attention, batch second": covered(
        lambda: attention(lambda n, x: itself(n, x.transpose(0, 1)).transpose(0, 1)), 4, 8
    ),
    "self-attention, batch second, as long as the batch": covered(
        lambda: attention(lambda n, x: itself(n, x.transpose(0, 1)).transpose(0, 1)), ROWS, 8
    ),
    "self-attention without bias": covered(
        lambda: attention(itself, batch_first=True, bias=False), 4, 8
    ),
    "self-attention without weights": covered(
        lambda: attention(lambda n, x: itself(n, x, need_weights=False), batch_first=True), 4, 8
    ),
    "self-attention of what is computed": covered(
        lambda: attention_after_linear(lambda n, x: itself(n, n.b(x).tanh()), batch_first=True),
        4,
        8,
    ),
    "self-attention, its weights in the loss": covered(
        lambda: attention(weighted_attention, batch_first=True), 4, 8
    ),
    "attention, each head's weights in the loss": covered(
        lambda: attention_after_linear(weights_of_heads, batch_first=True), 4, 8
    ),
    "attention with an added bias": covered(
        lambda: attention(itself, batch_first=True, add_bias_kv=True), 4, 8
    ),
    "attention with an added zero": covered(
        lambda: attention(itself, batch_first=True, add_zero_attn=True), 4, 8
    ),
    "cross-attention": covered(
        lambda: attention_after_linear(
            lambda n, x: n.a(x, *[n.b(x[:, 1:])] * 2)[0].tanh(), batch_first=True
        ),
        4,
        8,
    ),
    "cross-attention, batch second": covered(
        lambda: attention_after_linear(
            lambda n, x: n.a(x.transpose(0, 1), *[n.b(x[:, 1:]).transpose(0, 1)] * 2)[0].transpose(
                0, 1
            )
        ),
        4,
        8,
    ),
    "attention of three": covered(
        lambda: attention_after_linear(
            lambda n, x: n.a(x[:, :2], n.b(x), x.sin())[0].tanh(), batch_first=True
        ),
        4,
        8,
    ),
    "attention to other widths": covered(
        lambda: attention(
            lambda n, x: n.a(x, x[..., :3], x[..., 3:])[0], batch_first=True, kdim=3, vdim=5
        ),
        4,
        8,
    ),
    "attention to other widths without bias": covered(
        lambda: attention(
            lambda n, x: n.a(x, x[..., :3], x[..., 3:])[0],
            batch_first=True,
            kdim=3,
            vdim=5,
            bias=False,
        ),
        4,
        8,
    ),
    "attention with a mask": covered(
        lambda: attention(lambda n, x: itself(n, x, attn_mask=causal(4)), batch_first=True), 4, 8
    ),
    "attention with a mask, without weights": covered(
        lambda: attention(
            lambda n, x: itself(n, x, attn_mask=causal(4), need_weights=False), batch_first=True
        ),
        4,
        8,
    ),
    "attention with a mask of numbers": covered(
        lambda: attention(
            lambda n, x: itself(n, x, attn_mask=-causal(4).to(x) * 2, need_weights=False),
            batch_first=True,
        ),
        4,
        8,
    ),
    "attention with a mask for each example": covered(
        lambda: attention(mask_of_heads, batch_first=True), 4, 8
    ),
    "attention that is causal": covered(
        lambda: attention(
            lambda n, x: itself(n, x, attn_mask=causal(4), is_causal=True, need_weights=False),
            batch_first=True,
        ),
        4,
        8,
    ),
    "attention past padding": covered(
        lambda: attention(lambda n, x: itself(n, x, key_padding_mask=padded(x)), batch_first=True),
        4,
        8,
    ),
    "attention past padding, with a mask": covered(
        lambda: attention(
            lambda n, x: itself(
                n, x, key_padding_mask=padded(x), attn_mask=causal(4), need_weights=False
            ),
            batch_first=True,
        ),
        4,
        8,
    ),
    "attention, partly frozen": covered(
        lambda: headed(
            itself, a=frozen(nn.MultiheadAttention(8, 2, batch_first=True), "in_proj_weight")
        ),
        4,
        8,
    ),
    "attention of a single head": covered(
        lambda: headed(itself, a=nn.MultiheadAttention(6, 1, batch_first=True)), 4, 6
    ),
    "attention of its own": covered(
        lambda: headed(
            lambda n, x: n.b(F.scaled_dot_product_attention(*n.a(x).chunk(3, -1))),
            **{"a": nn.Linear(6, 18), "b": nn.Linear(6, 6)},
        ),
        4,
        6,
    ),
    "transformer layer": covered(lambda: read(encoder(batch_first=True)), 4, 8),
    "transformer layer, norm first": covered(
        lambda: read(encoder(batch_first=True, norm_first=True)), 4, 8
    ),
    "transformer layer, batch second": covered(lambda: second(encoder()), 4, 8),
    "transformer layer, batch second, norm first": covered(
        lambda: second(encoder(norm_first=True)), 4, 8
    ),
    "transformer layer without bias": covered(
        lambda: read(encoder(batch_first=True, bias=False)), 4, 8
    ),
    "transformer layer that only applies": covered(
        lambda: read(encoder(batch_first=True)).eval(), 4, 8
    ),
    "transformer encoder": covered(
        lambda: read(
            nn.TransformerEncoder(
                encoder(batch_first=True), 2, norm=nn.LayerNorm(8), enable_nested_tensor=False
            )
        ),
        4,
        8,
    ),
    "transformer encoder, masked": covered(
        lambda: headed(
            lambda n, x: n.a(x, mask=causal(4), is_causal=True, src_key_padding_mask=padded(x)),
            a=nn.TransformerEncoder(encoder(batch_first=True), 2, enable_nested_tensor=False),
        ),
        4,
        8,
    ),
    "transformer decoder layer": covered(
        lambda: headed(
            lambda n, x: n.a(x, n.b(x[:, 1:])), a=decoder(batch_first=True), b=nn.Linear(8, 8)
        ),
        4,
        8,
    ),
    "transformer decoder layer, norm first": covered(
        lambda: headed(lambda n, x: n.a(x, x.sin()), a=decoder(batch_first=True, norm_first=True)),
        4,
        8,
    ),
    "transformer decoder layer, batch second": covered(
        lambda: headed(lambda n, x: n.a(*[x.transpose(0, 1)] * 2).transpose(0, 1), a=decoder()),
        4,
        8,
    ),
    "transformer decoder layer, batch second, norm first": covered(
        lambda: headed(
            lambda n, x: n.a(*[x.transpose(0, 1)] * 2).transpose(0, 1), a=decoder(norm_first=True)
        ),
        4,
        8,
    ),
    "transformer": covered(
        lambda: headed(
            lambda n, x: n.a(x, x.sin()),
            a=nn.Transformer(8, 2, 1, 1, dim_feedforward=6, dropout=0.0, batch_first=True),
        ),
        4,
        8,
    ),
    "language model": covered(
        lambda: headed(
            lambda n, x: n.b(n.a(x), mask=causal(5)),
            **{"a": nn.Embedding(6, 8), "b": nn.TransformerEncoder(encoder(batch_first=True), 1)},
        ),
        5,
        tokens=6,
    ),
}


def recurrent(
    layer: nn.Module,
    pick: Callable[[Tensor, Any], Tensor] = lambda out, state: out,
    first: bool = True,
) -> nn.Module:
    """What `pick` takes of the layer's output and state, the batch first or second."""
    return headed(lambda n, x: pick(*n.a(x if first else x.transpose(0, 1))), a=layer)


def hidden(out: Tensor, state: Any) -> Tensor:
    """The last hidden state, batch first."""
    state = state[0] if isinstance(state, tuple) else state
    return state.transpose(0, 1)


def cell(out: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
    return state[1].transpose(0, 1)


def states(out: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
    return torch.cat([out.flatten(1), *(part.transpose(0, 1).flatten(1) for part in state)], 1)


def batch_to_front(out: Tensor, state: Any) -> Tensor:
    return out.transpose(0, 1)


def from_input(n: Any, x: Tensor) -> Tensor:
    """A recurrent layer whose initial hidden state is computed from the input."""
    start = n.start(x[:, 0]).tanh()[None]
    return n.a(x, (start, torch.zeros_like(start)) if isinstance(n.a, nn.LSTM) else start)[0]


def from_constant(n: Any, x: Tensor) -> Tensor:
    start = torch.full((1, len(x), n.a.hidden_size), 0.3, dtype=x.dtype)
    return n.a(x, (start, -start) if isinstance(n.a, nn.LSTM) else start)[0]


def from_parameter(n: Any, x: Tensor) -> Tensor:
    start = n.start.expand(1, len(x), -1).contiguous()
    return n.a(x, (start, start.sin()) if isinstance(n.a, nn.LSTM) else start)[0]


def packed(n: Any, x: Tensor) -> Tensor:
    lengths = (1 + (x[:, 1:, 0] > 0).sum(1)).cpu()
    _, state = n.a(rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    return hidden(x, state)


def unrolled(n: Any, x: Tensor) -> Tensor:
    state = None
    for position in x.unbind(1):
        state = n.a(position, state)
    return state[0] if isinstance(state, tuple) else state


def generated(n: Any, x: Tensor) -> Tensor:
    """The layer's output is its own next input."""
    out, state = n.a(x)
    for _ in range(2):
        out, state = n.a(out[:, -1:, :], state)
    return out


RECURRENT = {
    f"{make.__name__.lower()}{name}": kind
    for make in (nn.LSTM, nn.GRU)
    for name, kind in {
        "": covered(lambda make=make: recurrent(make(5, 4, batch_first=True)), 4, 5),
        ", long": covered(lambda make=make: recurrent(make(3, 2, batch_first=True)), 16, 3),
        ", one step": covered(lambda make=make: recurrent(make(5, 4, batch_first=True)), 1, 5),
        ", as long as the batch": covered(
            lambda make=make: recurrent(make(5, 8, batch_first=True)), ROWS, 5
        ),
        ", batch second": covered(
            lambda make=make: recurrent(make(5, 4), batch_to_front, first=False), 4, 5
        ),
        ", batch second, as long as the batch": covered(
            lambda make=make: recurrent(make(5, 4), batch_to_front, first=False), ROWS, 5
        ),
        ", two layers": covered(lambda make=make: recurrent(make(5, 4, 2, batch_first=True)), 4, 5),
        ", both directions": covered(
            lambda make=make: recurrent(make(5, 4, batch_first=True, bidirectional=True)), 4, 5
        ),
        ", both directions, two layers": covered(
            lambda make=make: recurrent(
                make(5, 3, 2, bidirectional=True), batch_to_front, first=False
            ),
            4,
            5,
        ),
        " without bias": covered(
            lambda make=make: recurrent(make(5, 4, bias=False, batch_first=True)), 4, 5
        ),
        ", only the last state": covered(
            lambda make=make: recurrent(make(5, 4, 2, batch_first=True), hidden), 4, 5
        ),
        ", only the last output": covered(
            lambda make=make: recurrent(
                make(5, 4, batch_first=True), lambda out, state: out[:, -1]
            ),
            4,
            5,
        ),
        " from a constant": covered(
            lambda make=make: headed(from_constant, a=make(5, 4, batch_first=True)), 4, 5
        ),
        " from a state that is computed": covered(
            lambda make=make: headed(
                from_input, a=make(5, 4, batch_first=True), start=nn.Linear(5, 4)
            ),
            4,
            5,
        ),
        " from a state that is learnt": correct(
            lambda make=make: headed(
                from_parameter, a=make(5, 4, batch_first=True), start=parameter(4)
            ),
            4,
            5,
        ),
        " on its own output": correct(
            lambda make=make: headed(generated, a=make(5, 5, batch_first=True)), 4, 5
        ),
        " after an embedding": covered(
            lambda make=make: headed(
                lambda n, x: n.a(n.e(x))[0], e=nn.Embedding(6, 5), a=make(5, 4, batch_first=True)
            ),
            4,
            tokens=6,
        ),
        ", partly frozen": covered(
            lambda make=make: recurrent(
                frozen(make(5, 4, batch_first=True), "weight_hh_l0", "bias_ih_l0")
            ),
            4,
            5,
        ),
        ", packed": correct(lambda make=make: headed(packed, a=make(5, 4, batch_first=True)), 4, 5),
        " that only applies": covered(
            lambda make=make: recurrent(make(5, 4, batch_first=True)).eval(), 4, 5
        ),
    }.items()
} | {
    "lstm, only the last cell": covered(
        lambda: recurrent(nn.LSTM(5, 4, batch_first=True), cell), 4, 5
    ),
    "lstm, output and states": covered(
        lambda: recurrent(nn.LSTM(5, 4, 2, batch_first=True), states), 4, 5
    ),
    "lstm with projections": correct(
        lambda: recurrent(nn.LSTM(5, 4, proj_size=2, batch_first=True)), 4, 5
    ),
    "rnn": Kind(lambda: recurrent(nn.RNN(5, 4, batch_first=True)), (4, 5), way="not layers"),
    "rnn, relu, both directions": Kind(
        lambda: recurrent(
            nn.RNN(5, 4, 2, nonlinearity="relu", batch_first=True, bidirectional=True)
        ),
        (4, 5),
        way="not layers",
    ),
    "lstm cell": correct(lambda: headed(unrolled, a=nn.LSTMCell(5, 4)), 3, 5),
    "gru cell": correct(lambda: headed(unrolled, a=nn.GRUCell(5, 4)), 3, 5),
    "rnn cell": correct(lambda: headed(unrolled, a=nn.RNNCell(5, 4)), 3, 5),
}


def tied_embedding() -> nn.Module:
    net = Net(
        lambda n, x: n.b(n.a(x).mean(1).tanh()), a=nn.Embedding(3, 4), b=nn.Linear(4, 3, bias=False)
    )
    net.b.weight = net.a.weight
    return net


def two_linears_with_one(name: str, on: int = 5) -> nn.Module:
    net = Net(lambda n, x: n.b(n.a(x).tanh()), a=nn.Linear(on, on), b=nn.Linear(on, on))
    setattr(net.b, name, getattr(net.a, name))
    return read(net)


def linear_and_norm_with_one_bias() -> nn.Module:
    net = Net(lambda n, x: n.b(n.a(x)).tanh(), a=nn.Linear(5, 4), b=nn.LayerNorm(4))
    net.b.bias = net.a.bias
    return read(net)


def lora(n: Any, x: Tensor) -> Tensor:
    return n.base(x) + 2 * n.up(n.down(x))


def raw_lora(n: Any, x: Tensor) -> Tensor:
    return n.base(x) + x @ n.down.T @ n.up.T


SHARED = {
    "tied weights": covered(tied_embedding, 7, tokens=3),
    "two linears, one weight": covered(lambda: two_linears_with_one("weight"), 5),
    "two linears, one weight, on sequences": covered(lambda: two_linears_with_one("weight"), 3, 5),
    "two linears, one weight, on sequences of one": covered(
        lambda: two_linears_with_one("weight"), 1, 5
    ),
    "two linears, one bias": covered(lambda: two_linears_with_one("bias"), 5),
    "a linear and a norm, one bias": covered(linear_and_norm_with_one_bias, 6, 5),
    "two convolutions, one weight": covered(
        lambda: headed(lambda n, x: F.conv2d(n.a(x).tanh(), n.a.weight), a=nn.Conv2d(2, 2, 3)),
        2,
        6,
        6,
    ),
    "a layer called twice": covered(
        lambda: read(Net(lambda n, x: n.a(n.a(x).tanh()), a=nn.Linear(5, 5))), 5
    ),
    "a layer called twice, on rows and sequences": covered(
        lambda: read(Net(lambda n, x: n.a(x).tanh().sum(1) + n.a(x[:, 0]), a=nn.Linear(5, 4))), 6, 5
    ),
    "a layer called twice, on flattened rows and rows": correct(
        lambda: read(
            Net(
                lambda n, x: n.a(x.flatten(0, 1)).view(len(x), 6, 4).sum(1) + n.a(x[:, 0]),
                a=nn.Linear(5, 4),
            )
        ),
        *(6, 5),
    ),
    "a convolution called twice": covered(
        lambda: read(Net(lambda n, x: n.a(n.a(x).tanh()), a=nn.Conv2d(2, 2, 3))), 2, 6, 6
    ),
    "a norm called twice": covered(
        lambda: read(
            Net(lambda n, x: n.a(n.b(n.a(x)).tanh()), a=nn.LayerNorm(5), b=nn.Linear(5, 5))
        ),
        6,
        5,
    ),
    "an attention called twice": covered(
        lambda: headed(
            lambda n, x: itself(n, itself(n, x)), a=nn.MultiheadAttention(8, 2, batch_first=True)
        ),
        4,
        8,
    ),
    "an lstm called twice": covered(
        lambda: headed(lambda n, x: n.a(n.a(x)[0])[0], a=nn.LSTM(5, 5, batch_first=True)), 4, 5
    ),
    "one layer under two names": covered(
        lambda: (lambda a: read(a, nn.Tanh(), a))(nn.Linear(5, 5)), 5
    ),
    "a weight used beside its layer": correct(
        lambda: read(Net(lambda n, x: n.a(x) + x @ n.a.weight, a=nn.Linear(5, 5))), 5
    ),
    "a weight used beside its layer, transposed": correct(
        lambda: read(Net(lambda n, x: F.linear(n.a(x).tanh(), n.a.weight.T), a=nn.Linear(5, 4))), 5
    ),
    "a bias used beside its layer": correct(
        lambda: read(Net(lambda n, x: n.a(x) * n.a.bias, a=nn.Linear(5, 4))), 5
    ),
    "an embedding used beside its layer": correct(
        lambda: Net(lambda n, x: (n.a(x).tanh() @ n.a.weight.T).mean(1), a=nn.Embedding(3, 4)),
        5,
        tokens=3,
    ),
    "half of a weight": correct(
        lambda: read(Net(lambda n, x: F.linear(x, n.a.weight[:2]), a=nn.Linear(5, 4))), 5
    ),
    "overlapping parts of a weight": correct(
        lambda: read(
            Net(lambda n, x: F.linear(x, n.w[:3]) + F.linear(x.sin(), n.w[1:]), w=parameter(4, 5))
        ),
        5,
    ),
    "a weight that was computed": correct(
        lambda: read(
            Net(
                lambda n, x: F.linear(x, n.a.weight * 2 + n.a.weight.sin(), n.a.bias),
                a=nn.Linear(5, 4),
            )
        ),
        5,
    ),
    "a weight without its gradient beside its layer": correct(
        lambda: read(
            Net(lambda n, x: n.a(x) * F.linear(x, n.a.weight.detach()), a=nn.Linear(5, 4))
        ),
        5,
    ),
    "a layer called again without gradients": correct(
        lambda: read(Net(lambda n, x: n.a(x) * without_gradients(n.a, x.sin()), a=nn.Linear(5, 4))),
        5,
    ),
    "a layer on constants": correct(
        lambda: Net(
            lambda n, x: n.b(x @ n.a(n.c).tanh().T),
            a=nn.Linear(4, 5),
            b=nn.LazyLinear(3),
            c=torch.rand(ROWS, 4),
        ),
        5,
    ),
    "a frozen weight": covered(lambda: read(frozen(nn.Linear(5, 4), "weight"), nn.Tanh()), 5),
    "a frozen weight, on sequences": covered(
        lambda: read(nn.Linear(5, 4), frozen(nn.Linear(4, 4), "weight")), 6, 5
    ),
    "a frozen bias": covered(lambda: read(frozen(nn.Linear(5, 4), "bias"), nn.Tanh()), 5),
    "a frozen bias of a convolution": covered(
        lambda: read(frozen(nn.Conv2d(2, 4, 3), "bias"), nn.Tanh()), 2, 5, 5
    ),
    "a frozen weight of a convolution": covered(
        lambda: read(frozen(nn.Conv2d(2, 4, 3), "weight"), nn.Tanh()), 2, 5, 5
    ),
    "a frozen weight of a norm": covered(
        lambda: read(frozen(nn.LayerNorm(5), "weight"), nn.Tanh()), 6, 5
    ),
    "a frozen bias of a norm": covered(
        lambda: read(frozen(nn.GroupNorm(2, 4), "bias"), nn.Tanh()), 4, 6
    ),
    "a frozen first layer": covered(
        lambda: read(frozen(nn.Linear(5, 4)), nn.Tanh(), nn.Linear(4, 4)), 5
    ),
    "a frozen middle": covered(
        lambda: read(nn.Linear(5, 4), frozen(nn.Linear(4, 4)), nn.Tanh()), 5
    ),
    "a frozen embedding": covered(
        lambda: read(frozen(nn.Embedding(6, 4)), nn.Linear(4, 2)), 7, tokens=6
    ),
    "a frozen attention": covered(
        lambda: headed(
            lambda n, x: itself(n, n.b(x)),
            b=nn.Linear(8, 8),
            a=frozen(nn.MultiheadAttention(8, 2, batch_first=True)),
        ),
        4,
        8,
    ),
    "a frozen lstm": covered(
        lambda: headed(
            lambda n, x: n.a(n.b(x))[0],
            b=nn.Linear(5, 5),
            a=frozen(nn.LSTM(5, 4, batch_first=True)),
        ),
        4,
        5,
    ),
    "only the head": covered(
        lambda: nn.Sequential(
            frozen(nn.Conv2d(1, 4, 3)), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
        ),
        1,
        6,
        6,
    ),
    "lora": covered(
        lambda: read(
            Net(
                lora,
                base=frozen(nn.Linear(5, 6)),
                down=nn.Linear(5, 2, bias=False),
                up=nn.Linear(2, 6, bias=False),
            )
        ),
        5,
    ),
    "lora on sequences": covered(
        lambda: read(
            Net(
                lora,
                base=frozen(nn.Linear(8, 6)),
                down=nn.Linear(8, 2, bias=False),
                up=nn.Linear(2, 6, bias=False),
            )
        ),
        *(4, 8),
    ),
    "lora as parameters": correct(
        lambda: read(
            Net(raw_lora, base=frozen(nn.Linear(5, 6)), down=parameter(2, 5), up=parameter(6, 2))
        ),
        5,
    ),
    "lora as parameters on sequences": correct(
        lambda: read(
            Net(raw_lora, base=frozen(nn.Linear(5, 6)), down=parameter(2, 5), up=parameter(6, 2))
        ),
        4,
        5,
    ),
}


def without_gradients(layer: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        out: Tensor = layer(x)
    return out


class Shifted(nn.Linear):
    """A linear layer with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * 2 + 1) + self.bias


class Standardised(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return self._conv_forward(x, weight, self.bias)


class Square(torch.autograd.Function):
    """A user's function, which vmap can't run."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g * ctx.saved_tensors[0]


class Cube(torch.autograd.Function):
    """A user's function, which vmap can run."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * g * ctx.saved_tensors[0].square()


class OwnLinear(torch.autograd.Function):
    """A user's function around an operation that has a rule, with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return g @ weight, 3 * g.T @ x


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight + weight.T


def parametrized() -> nn.Module:
    layer = nn.Linear(5, 5)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


def hooked() -> nn.Module:
    layer = nn.Linear(5, 4)
    layer.register_forward_hook(lambda module, inputs, output: output.sin() * 2)
    layer.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    return read(layer)


def transposed_storage() -> nn.Module:
    layer = nn.Linear(5, 4)
    layer.weight = nn.Parameter(torch.randn(5, 4).T)
    return read(layer, nn.Tanh())


def changed_in_place(layer: nn.Module, *change: str) -> nn.Module:
    """The layer, and its output changed in place."""

    def run(n: Any, x: Tensor) -> Tensor:
        out = n.a(x)
        out = out[0] if isinstance(out, tuple) else out
        for name in change:
            if name == "assign":
                out[:, 0] = 0.5
            elif name == "part":
                out[:, 1:].mul_(3)
            elif name == "view":
                out.view(-1).mul_(2).add_(1)
            else:
                getattr(out, name)()
        return out

    return headed(run, a=layer)


def experts(n: Any, x: Tensor) -> Tensor:
    """Each example goes through one of two layers: a layer sees some of the rows."""
    chosen = x[:, 0] > 0
    out = x.new_zeros(len(x), 4)
    out[chosen] = n.a(x[chosen])
    out[~chosen] = n.b(x[~chosen]).tanh()
    return out


def sorted_rows(n: Any, x: Tensor) -> Tensor:
    order = x[:, 0].argsort()
    return n.a(x[order]).tanh()[order.argsort()]


def views_side_by_side(n: Any, x: Tensor) -> Tensor:
    one, two = n.a(torch.cat([x, x.sin()])).tanh().chunk(2)
    return one * two


def views_in_turn(n: Any, x: Tensor) -> Tensor:
    out = n.a(torch.stack([x, x.sin()], 1).flatten(0, 1)).tanh().unflatten(0, (len(x), 2))
    return out.prod(1)


def gradient_inside(n: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(n.a(x).tanh().square().sum(), x, create_graph=True)
    return found


def with_class_token(n: Any, x: Tensor) -> Tensor:
    tokens = torch.cat([n.token.expand(len(x), 1, -1), x], 1) + n.places
    return n.a(tokens).tanh()[:, 0]


def half_without_gradients(n: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        features = n.features(x)
    return n.a(features)


def penalised(net: Any) -> Loss:
    return lambda output, y: cross_entropy(output, y) + net.a.weight.square().sum()


def headed_by_the_loss(net: Any) -> Loss:
    return lambda output, y: cross_entropy(F.linear(output, net.w), y)


class Residual(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"body": nn.ModuleList([nn.Sequential(*layers)])})

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner["body"][0](x)


OWN_WAYS = {
    "a scale": correct(
        lambda: read(Net(lambda n, x: n.a(x * n.w), w=parameter(5), a=nn.Linear(5, 4))), 5
    ),
    "a number": correct(
        lambda: read(Net(lambda n, x: n.a(x) * n.w.exp(), w=parameter(), a=nn.Linear(5, 4))), 5
    ),
    "positions": correct(
        lambda: read(Net(lambda n, x: n.a(x + n.w).tanh(), w=parameter(6, 5), a=nn.Linear(5, 4))),
        6,
        5,
    ),
    "positions, as many as the batch": correct(
        lambda: read(
            Net(lambda n, x: n.a(x + n.w).tanh(), w=parameter(ROWS, 5), a=nn.Linear(5, 4))
        ),
        ROWS,
        5,
    ),
    "a class token": correct(
        lambda: read(
            Net(
                with_class_token,
                token=parameter(1, 1, 5),
                places=parameter(1, 7, 5),
                a=nn.Linear(5, 4),
            )
        ),
        6,
        5,
    ),
    "a product with a parameter": correct(
        lambda: read(Net(lambda n, x: x @ n.w, w=parameter(5, 4))), 5
    ),
    "an einsum with a parameter": correct(
        lambda: read(Net(lambda n, x: torch.einsum("btd,hde->bhte", x, n.w), w=parameter(2, 5, 3))),
        4,
        5,
    ),
    "a product of a parameter with rows": correct(
        lambda: read(Net(lambda n, x: (n.w @ x.T).T, w=parameter(4, 5))), 5
    ),
    "functions with parameters": correct(
        lambda: read(
            Net(
                lambda n, x: F.layer_norm(F.linear(x, n.w, n.b), (4,), n.s, n.s),
                w=parameter(4, 5),
                b=parameter(4),
                s=parameter(4),
            )
        ),
        *(6, 5),
    ),
    "a convolution with a parameter": correct(
        lambda: read(Net(lambda n, x: F.conv1d(x, n.w, stride=2), w=parameter(4, 2, 3))), 2, 7
    ),
    "a list of parameters": correct(
        lambda: read(
            Net(lambda n, x: x * n.w[0] + n.w[1], w=nn.ParameterList([parameter(5), parameter(5)]))
        ),
        5,
    ),
    "an unused parameter": correct(
        lambda: read(
            Net(lambda n, x: n.a(x), w=parameter(3), a=nn.Linear(5, 4), b=nn.Linear(2, 2))
        ),
        5,
    ),
    "an unused convolution": correct(
        lambda: read(Net(lambda n, x: n.a(x), a=nn.Linear(5, 4), b=nn.Conv2d(2, 2, 2))), 5
    ),
    "a layer whose output is not used": correct(
        lambda: read(Net(lambda n, x: (n.b(x), n.a(x))[1], a=nn.Linear(5, 4), b=nn.Linear(5, 2))), 5
    ),
    "in place after a linear": covered(
        lambda: read(nn.Linear(5, 8), nn.ReLU(inplace=True), nn.Linear(8, 4)), 5
    ),
    "in place after a linear on sequences": covered(
        lambda: read(nn.Linear(5, 8), nn.ReLU(inplace=True)), 6, 5
    ),
    "in place after convolutions": covered(
        lambda: read(
            nn.Conv2d(2, 3, 3),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(3, 2, 2),
            nn.SiLU(inplace=True),
        ),
        *(2, 5, 5),
    ),
    "in place after an embedding": covered(
        lambda: read(nn.Embedding(6, 4), nn.ELU(inplace=True)), 7, tokens=6
    ),
    "in place after a layer norm": covered(
        lambda: read(nn.LayerNorm(5), nn.ReLU(inplace=True)), 6, 5
    ),
    "in place after a group norm": covered(
        lambda: read(nn.GroupNorm(2, 4), nn.ReLU(inplace=True)), 4, 3, 3
    ),
    "in place after an instance norm": covered(
        lambda: read(nn.InstanceNorm1d(4, affine=True), nn.ReLU(inplace=True)), 4, 6
    ),
    "in place after an rms norm": covered(
        lambda: read(nn.RMSNorm(5), nn.LeakyReLU(inplace=True)), 6, 5
    ),
    "in place after an attention": covered(
        lambda: changed_in_place(
            nn.TransformerEncoderLayer(8, 2, 6, 0.0, batch_first=True), "relu_"
        ),
        4,
        8,
    ),
    "in place after two uses": correct(
        lambda: read(
            Net(lambda n, x: (lambda h: h.clone() * h.relu_())(n.a(x)), a=nn.Linear(5, 4))
        ),
        5,
    ),
    "an output changed in place": correct(
        lambda: changed_in_place(nn.Linear(5, 4), "view", "tanh_"), 5
    ),
    "an output overwritten in part": correct(
        lambda: changed_in_place(nn.Linear(5, 4), "assign"), 5
    ),
    "an output changed in part": correct(
        lambda: changed_in_place(nn.Linear(5, 4), "part", "sigmoid_"), 6, 5
    ),
    "an output of a convolution changed in part": correct(
        lambda: changed_in_place(nn.Conv2d(2, 4, 3), "part", "assign", "relu_"), 2, 5, 5
    ),
    "an output of an embedding changed in part": correct(
        lambda: changed_in_place(nn.Embedding(6, 4), "part", "assign"), 7, tokens=6
    ),
    "an input changed in place where it is not needed": correct(
        lambda: read(
            Net(
                lambda n, x: (lambda h: n.a(h) + h.mul_(2))(x * 1),
                a=frozen(nn.Linear(5, 5), "weight"),
            )
        ),
        5,
    ),
    "an output used twice": covered(
        lambda: read(
            Net(
                lambda n, x: (lambda h: n.b(h).tanh() * h)(n.a(x)),
                a=nn.Linear(5, 4),
                b=nn.Linear(4, 4),
            )
        ),
        5,
    ),
    "residuals": covered(
        lambda: read(*[Residual(nn.LayerNorm(5), nn.Linear(5, 5), nn.Tanh()) for _ in range(3)]), 5
    ),
    "residual convolutions": covered(
        lambda: read(
            nn.Conv2d(2, 4, 1),
            Residual(nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1)),
        ),
        2,
        4,
        4,
    ),
    "containers in containers": covered(
        lambda: read(
            nn.Sequential(
                nn.Sequential(Residual(nn.Linear(5, 5)), nn.Tanh()), Residual(nn.Linear(5, 5))
            )
        ),
        5,
    ),
    "weight norm": correct(
        lambda: read(parametrizations.weight_norm(nn.Linear(5, 4)), nn.Tanh()), 5
    ),
    "weight norm of a convolution": correct(
        lambda: read(parametrizations.weight_norm(nn.Conv1d(2, 4, 3)), nn.Tanh()), 2, 7
    ),
    "weight norm by a hook": correct(
        lambda: read(nn.utils.weight_norm(nn.Linear(5, 4)), nn.Tanh()), 5
    ),
    "a parametrized weight": correct(lambda: read(parametrized(), nn.Tanh()), 5),
    "recomputed": correct(
        lambda: headed(
            lambda n, x: checkpoint(n.b, n.a(x).tanh(), use_reentrant=False).tanh(),
            a=nn.Linear(5, 4),
            b=nn.Linear(4, 6),
        ),
        5,
    ),
    "recomputed from the input": correct(
        lambda: headed(
            lambda n, x: checkpoint(n.a, x, use_reentrant=False).tanh(), a=nn.Conv1d(2, 4, 3)
        ),
        2,
        6,
    ),
    "a subclass with a forward of its own": correct(lambda: read(Shifted(5, 4), nn.Tanh()), 5),
    "a convolution with a forward of its own": correct(
        lambda: read(Standardised(2, 4, 3), nn.Tanh()), 2, 5, 5
    ),
    "hooks that change input and output": correct(hooked, 5),
    "a user's function": correct(
        lambda: headed(lambda n, x: Square.apply(n.a(x)), a=nn.Linear(5, 4)), 5
    ),
    "a user's function for vmap": correct(
        lambda: headed(lambda n, x: Cube.apply(n.a(x)), a=nn.Linear(5, 4)), 5
    ),
    "a user's function around a layer": correct(
        lambda: headed(
            lambda n, x: OwnLinear.apply(n.b(x).tanh(), n.a.weight),
            a=nn.Linear(4, 4),
            b=nn.Linear(5, 4),
        ),
        5,
    ),
    "torch.where": correct(
        lambda: headed(
            lambda n, x: torch.where(x[:, :1] > 0, n.a(x), n.b(x).tanh()),
            a=nn.Linear(5, 4),
            b=nn.Linear(5, 4),
        ),
        5,
    ),
    "detach": correct(
        lambda: headed(
            lambda n, x: n.b(n.a(x)) * n.a(x).detach(), a=nn.Linear(5, 4), b=nn.Linear(4, 4)
        ),
        5,
    ),
    "detach before a layer": covered(
        lambda: headed(
            lambda n, x: n.b(n.a(x).detach()) + n.c(x),
            a=frozen(nn.Linear(5, 4)),
            b=nn.Linear(4, 4),
            c=nn.Linear(5, 4),
        ),
        5,
    ),
    "frozen features without gradients": covered(
        lambda: headed(
            half_without_gradients,
            features=frozen(nn.Sequential(nn.Conv1d(2, 4, 3), nn.Tanh())),
            a=nn.Conv1d(4, 2, 2),
        ),
        2,
        7,
    ),
    "features without gradients": correct(
        lambda: headed(half_without_gradients, features=nn.Linear(5, 4), a=nn.Linear(4, 4)), 5
    ),
    "experts": correct(lambda: headed(experts, a=nn.Linear(5, 4), b=nn.Linear(5, 4)), 5),
    "rows backwards": correct(
        lambda: headed(lambda n, x: n.a(x.flip(0)).tanh().flip(0), a=nn.Linear(5, 4)), 5
    ),
    "rows sorted": correct(lambda: headed(sorted_rows, a=nn.Linear(5, 4)), 5),
    "two views side by side": correct(lambda: headed(views_side_by_side, a=nn.Linear(5, 4)), 5),
    "two views in turn": correct(lambda: headed(views_in_turn, a=nn.Linear(5, 4)), 5),
    "a vmap inside": correct(
        lambda: headed(lambda n, x: torch.vmap(n.a)(x).tanh(), a=nn.Linear(5, 4)), 5
    ),
    "a gradient inside": correct(lambda: headed(gradient_inside, a=nn.Linear(5, 4)), 5),
    "weights stored transposed": covered(transposed_storage, 5),
    "a penalty in the loss": correct(
        lambda: Net(lambda n, x: n.a(x), a=nn.Linear(5, 3)), 5, loss=penalised
    ),
    "a layer in the loss": correct(
        lambda: Net(lambda n, x: n.a(x), a=nn.Linear(5, 4), w=parameter(3, 4)),
        5,
        loss=headed_by_the_loss,
    ),
}

KINDS: dict[str, Kind] = {
    **LINEAR,
    **CONVOLUTIONS,
    **EMBEDDINGS,
    **NORMS,
    **ATTENTION,
    **RECURRENT,
    **SHARED,
    **OWN_WAYS,
}


# Random compositions: each step fits the shape that the one before it left.


def on_rows(draw: random.Random, width: int) -> tuple[nn.Module, tuple[int, ...]]:
    to = draw.randint(2, 9)
    choices: list[tuple[nn.Module, tuple[int, ...]]] = [
        (nn.Linear(width, to, bias=draw.random() < 0.7), (to,)),
        (nn.LayerNorm(width), (width,)),
        (nn.RMSNorm(width), (width,)),
        (nn.Sequential(nn.Linear(width, 6), nn.GroupNorm(2, 6)), (6,)),
        (Residual(nn.Linear(width, width), nn.Tanh()), (width,)),
        (Residual(nn.Linear(width, 2, bias=False), nn.Linear(2, width, bias=False)), (width,)),
        (nn.Sequential(frozen(nn.Linear(width, to)), nn.LeakyReLU(0.3, inplace=True)), (to,)),
        (nn.Sequential(nn.Linear(width, 12), nn.Unflatten(1, (3, 4))), (3, 4)),
        (nn.Sequential(nn.Linear(width, 32), nn.Unflatten(1, (2, 4, 4))), (2, 4, 4)),
    ]
    return draw.choice(choices)


def on_sequences(draw: random.Random, length: int, width: int) -> tuple[nn.Module, tuple[int, ...]]:
    to, same = 2 * draw.randint(2, 4), (length, width)
    attend = nn.MultiheadAttention(width, 2 - width % 2, batch_first=True)
    shared = nn.Linear(width, width)
    choices: list[tuple[nn.Module, tuple[int, ...]]] = [
        (nn.Linear(width, to), (length, to)),
        (nn.LayerNorm((length, width)), same),
        (nn.RMSNorm(width, eps=1e-3), same),
        (Net(lambda n, x: x + itself(n, x), a=attend), same),
        (Net(lambda n, x: n.a(x)[0], a=nn.LSTM(width, to, batch_first=True)), (length, to)),
        (
            Net(
                lambda n, x: n.a(x.transpose(0, 1))[0].transpose(0, 1),
                a=nn.GRU(width, 2, bidirectional=True),
            ),
            (length, 4),
        ),
        (
            nn.TransformerEncoderLayer(
                width, 1, 5, 0.0, batch_first=True, norm_first=draw.random() < 0.5
            ),
            same,
        ),
        (Net(lambda n, x: n.a(x.mT).mT, a=nn.Conv1d(width, to, 3, padding=1)), (length, to)),
        (nn.Sequential(shared, nn.Tanh(), shared), same),
        (Net(lambda n, x: x.mean(1)), (width,)),
        (Net(lambda n, x: n.a(x.transpose(0, 1))[-1], a=nn.Linear(width, to)), (to,)),
    ]
    return draw.choice(choices)


def on_pictures(draw: random.Random, channels: int, side: int) -> tuple[nn.Module, tuple[int, ...]]:
    to, same = 2 * draw.randint(2, 3), (channels, side, side)
    choices: list[tuple[nn.Module, tuple[int, ...]]] = [
        (nn.Conv2d(channels, to, 3, padding=1, bias=draw.random() < 0.7), (to, side, side)),
        (
            nn.Conv2d(channels, to, 3, padding="same", padding_mode="circular", groups=2),
            (to, side, side),
        ),
        (nn.Sequential(nn.Conv2d(channels, to, 1), nn.ReLU(inplace=True)), (to, side, side)),
        (nn.Sequential(nn.ConvTranspose2d(channels, to, 2, 2), nn.AvgPool2d(2)), (to, side, side)),
        (nn.GroupNorm(2, channels), same),
        (nn.InstanceNorm2d(channels, affine=True), same),
        (Residual(nn.Conv2d(channels, channels, 3, padding=1, groups=channels), nn.SiLU()), same),
        (nn.Flatten(), (channels * side * side,)),
        (Net(lambda n, x: x.flatten(2).mT), (side * side, channels)),
    ]
    return draw.choice(choices)


def composed(seed: int) -> Kind:
    """A network of five to eight random steps."""

    def make() -> nn.Module:
        draw = random.Random(seed)
        now, layers = shape, []
        if tokens:
            layers, now = [nn.Embedding(tokens, 4)], (shape[0], 4)
        for _ in range(draw.randint(5, 8)):
            step = (
                on_rows(draw, *now)
                if len(now) == 1
                else on_sequences(draw, *now)
                if len(now) == 2
                else None
            )
            layer, now = step or on_pictures(draw, *now[:2])
            layers += [layer, draw.choice([nn.Identity(), nn.Tanh(), nn.GELU()])]
        return read(*layers)

    shape, tokens = random.Random(seed).choice([((5,), 0), ((4, 6), 0), ((2, 4, 4), 0), ((5,), 6)])
    return covered(make, *shape, tokens=tokens)


SEEDS = 30
KINDS |= {f"composition {seed}": composed(seed) for seed in range(SEEDS)}
#: Where nothing in `clipping` changed, a fifth of the tests of kinds run by day.
drawn = pytest.mark.one_of(5, clipping)
by_kind = pytest.mark.parametrize("name", KINDS)


def everywhere(test: Callable[[str], None]) -> Callable[[str], None]:
    return drawn(by_kind(test))


def rounded(test: Callable[[str], None]) -> Callable[[str], None]:
    """For each kind that is not exact by its nature."""
    names = [name for name, kind in KINDS.items() if not kind.exact]
    return drawn(pytest.mark.parametrize("name", names)(test))


# The truth.


def made(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor, Tensor]:
    """The network, with weights that are the same numbers in both precisions, and its data; always
    the same objects.
    """
    return _made(name, dtype)


@cache
def _made(name: str, dtype: torch.dtype) -> tuple[nn.Module, Tensor, Tensor]:
    kind = KINDS[name]
    torch.manual_seed(1)
    net = kind.make()
    made_up = torch.Generator().manual_seed(2)
    if kind.tokens:
        x = torch.randint(kind.tokens, (ROWS, *kind.shape), generator=made_up)
    else:
        scales = torch.linspace(0.1, 3, ROWS).view(-1, *[1] * len(kind.shape))
        x = torch.randn(ROWS, *kind.shape, generator=made_up) * scales
    with torch.no_grad():
        net(x)  # lazy layers find their shapes
        for p in net.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=made_up))
        net = net.to(dtype)
        x = x.to(dtype) if x.is_floating_point() else x
        net(x)
    return net, x, torch.randint(3, (ROWS,), generator=made_up)


@cache
def by_the_loop(name: str, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Each example's gradient by itself, the plain way; shape (examples, *parameter)."""
    net, x, y = made(name, dtype)
    trained = {key: p for key, p in net.named_parameters() if p.requires_grad}
    rows: dict[str, list[Tensor]] = {key: [] for key in trained}
    loss = KINDS[name].loss(net)
    for row in range(ROWS):
        loss(net(x[row : row + 1]), y[row : row + 1]).sum().backward()
        for key, p in trained.items():
            rows[key].append(torch.zeros_like(p) if p.grad is None else p.grad.to_dense())
            p.grad = None
    return {key: torch.stack(parts).double() for key, parts in rows.items()}


def groups(clip: Clip, names: Any) -> list[list[str]]:
    """The parameters that are clipped together."""
    if isinstance(clip, Flat):
        return [list(names)]
    layers = dict.fromkeys(name.rpartition(".")[0] for name in names)
    return [[name for name in names if name.rpartition(".")[0] == layer] for layer in layers]


def norms(clip: Clip, gradients: dict[str, Tensor]) -> list[Tensor]:
    """The norms of each group, one for each example."""
    return [
        torch.stack(
            [gradients[name].reshape(len(gradients[name]), -1).square().sum(1) for name in group]
        )
        .sum(0)
        .sqrt()
        for group in groups(clip, gradients)
    ]


def at_the_median(kind: type[Flat] | type[PerLayer], name: str) -> Clip:
    """A clip that some examples are above and some below."""
    found = torch.cat(norms(kind(1.0), by_the_loop(name)))
    return kind(max(float(found[found > 0].median()), 1e-9) if (found > 0).any() else 1.0)


def clipped(
    gradients: dict[str, Tensor], clip: Clip, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """The sum of the gradients, clipped to the clip's norm less the room for the rounding of
    numbers of `dtype`.
    """
    total, most = {}, kept(clip.clip_norm, [dtype])
    for group, lengths in zip(groups(clip, gradients), norms(clip, gradients), strict=True):
        weights = (most / lengths).clamp(max=1.0)
        total |= {key: torch.tensordot(weights, gradients[key], 1) for key in group}
    return {key: total[key] for key in gradients}


def error(
    found: Iterable[Tensor],
    name: str,
    clip: Clip,
    rows: int = ROWS,
    floor: float = 1e-4,
    dtype: torch.dtype = torch.float64,
) -> float:
    """How far any parameter's sum is from the loop's, relative to the largest number that the truth
    has in it.

    Args:
        found: one tensor for each parameter.
        name: which network.
        clip: how it was clipped.
        rows: how many of the examples.
        floor: a parameter whose gradients are smaller than this part of the largest's is compared
            with that.
        dtype: what it was computed in.
    """
    gradients = {key: part[:rows] for key, part in by_the_loop(name).items()}
    expected = clipped(gradients, clip, dtype)
    scales = {
        key: float(part.abs().max()) for key, part in clipped(absolute(gradients), clip).items()
    }
    least = max(floor * max(scales.values()), 1e-300)
    worst = 0.0
    for (key, sums), one in zip(expected.items(), found, strict=True):
        assert one.shape == sums.shape, key
        assert one.isfinite().all(), key
        worst = max(worst, float((one.double() - sums).abs().max()) / max(scales[key], least))
    return worst


def absolute(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: part.abs() for key, part in gradients.items()}


def engine(
    name: str, clip: Clip, dtype: torch.dtype = torch.float64, microbatch: int | None = None
) -> Any:
    net = made(name, dtype)[0]
    return ClippedGradients(
        net, KINDS[name].loss(net), clip, Adjacency.ADD_REMOVE, microbatch=microbatch
    )


def prepared(name: str, dtype: torch.dtype = torch.float64) -> Any:
    """One engine for many laws."""
    return _prepared(name, dtype)


@cache
def _prepared(name: str, dtype: torch.dtype) -> Any:
    found = engine(name, at_the_median(Flat, name), dtype)
    found.prepare(*made(name, dtype)[1:])
    return found


# The laws.

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks_with_kwargs",
)


def picture(net: nn.Module) -> Any:
    """Everything of the user's that must stay as it is."""
    modules = [
        (
            name,
            type(m),
            m.training,
            set(vars(m)),
            [list(getattr(m, hooks).items()) for hooks in HOOKS],
        )
        for name, m in net.named_modules()
    ]
    parameters = [
        (
            name,
            id(p),
            type(p),
            p.requires_grad,
            p.tolist(),
            id(p.grad),
            p._backward_hooks,
            p.stride(),
        )
        for name, p in net.named_parameters(remove_duplicate=False)
    ]
    buffers = [(name, id(b), b.tolist()) for name, b in net.named_buffers()]
    return (
        modules,
        parameters,
        buffers,
        torch.is_grad_enabled(),
        torch._C._len_torch_function_stack(),
    )


@contextmanager
def untouched(net: nn.Module) -> Iterator[None]:
    before = picture(net)
    yield
    assert picture(net) == before


def require_the_loops_sum(name: str, clip: Clip, microbatch: int | None) -> None:
    net, x, y = made(name)
    with untouched(net):
        found = engine(name, clip, microbatch=microbatch)(one_sample(examples=ROWS), x, y)
    assert error(found.values, name, clip) <= 1e-10


#: Clips and microbatches. Each kind meets one of the first by its number; at night each kind meets
#: all.
WAYS: list[tuple[type[Flat] | type[PerLayer] | None, int | None]] = [
    (PerLayer, 2),
    (PerLayer, None),
    (PerLayer, 7),
    (PerLayer, 1),
    (Flat, 3),
    (Flat, None),
    (None, 100),  # nothing is clipped
]
FIRST_WAYS = 4


def clip_of(kind: type[Flat] | type[PerLayer] | None, name: str) -> Clip:
    return Flat(1e6) if kind is None else at_the_median(kind, name)


@drawn
@pytest.mark.parametrize(("number", "name"), list(enumerate(KINDS)), ids=KINDS)
def test_the_clipped_sum_is_the_loops(number: int, name: str) -> None:
    kind, microbatch = WAYS[number % FIRST_WAYS]
    require_the_loops_sum(name, clip_of(kind, name), microbatch)


@pytest.mark.nightly
@by_kind
def test_the_clipped_sum_is_the_loops_by_every_clip_and_microbatch(name: str) -> None:
    for kind, microbatch in WAYS:
        require_the_loops_sum(name, clip_of(kind, name), microbatch)


@everywhere
def test_batches_of_other_sizes(name: str) -> None:
    net, x, y = made(name)
    clipper = prepared(name)
    for rows in range(1, ROWS + 1):
        with untouched(net):
            found = clipper(one_sample(examples=rows), x[:rows], y[:rows])
        assert error(found.values, name, clipper.clip, rows) <= 1e-10


@rounded
def test_single_precision(name: str) -> None:
    """To 1e-5, or where the loop in single precision is less exact, to a few times its own
    error.
    """
    alone = by_the_loop(name, torch.float32)
    net, x, y = made(name, torch.float32)
    clipper = prepared(name, torch.float32)
    single = clipped(alone, clipper.clip, torch.float32).values()
    own = error(single, name, clipper.clip, floor=0.1, dtype=torch.float32)
    assert own <= 2e-4
    with untouched(net):
        found = clipper(one_sample(examples=ROWS), x, y).values
    assert all(value.dtype == torch.float32 for value in found)
    assert error(found, name, clipper.clip, floor=0.1, dtype=torch.float32) <= max(1e-5, 4 * own)


@everywhere
def test_one_example_moves_the_sum_by_at_most_the_sensitivity(name: str) -> None:
    require_bounded(name, torch.float64, 1 + 1e-6)


@rounded
def test_one_example_moves_the_sum_by_at_most_the_sensitivity_in_single_precision(
    name: str,
) -> None:
    require_bounded(name, torch.float32, 1 + 1e-4)


def require_bounded(name: str, dtype: torch.dtype, slack: float) -> None:
    _, x, y = made(name, dtype)
    clipper = prepared(name, dtype)
    few = clipper(one_sample(examples=3), x[:3], y[:3]).values
    for row in adversaries(name, x):
        more = clipper(one_sample(examples=4), torch.cat([x[:3], row]), y[:4])
        moved = math.sqrt(
            sum(
                float((a - b).double().square().sum())
                for a, b in zip(more.values, few, strict=True)
            )
        )
        assert moved <= more.sensitivity * slack, f"moved by {moved} of {more.sensitivity}"
        if row.is_floating_point() and not row.isfinite().all():
            assert all(value.isfinite().all() for value in more.values)


def adversaries(name: str, x: Tensor) -> list[Tensor]:
    """Rows that would move the sum the most."""
    if KINDS[name].tokens:
        return [torch.full_like(x[:1], token) for token in {0, KINDS[name].tokens - 1}]
    return [x[3:4] * scale for scale in (1e-30, 1.0, 1e30, math.nan, math.inf)]


class Interrupted(Exception):
    pass


@pytest.mark.one_of(5)
@by_kind
def test_a_loss_that_fails_leaves_the_model_as_it_was(name: str) -> None:
    """On made-up rows it is refused; from there on, rows on which it fails add nothing."""
    net, x, y = made(name)
    failing = True

    def loss(output: Tensor, target: Tensor) -> Tensor:
        if failing:
            raise Interrupted
        return KINDS[name].loss(net)(output, target)

    clipper = ClippedGradients(net, loss, Flat(1.0), Adjacency.ADD_REMOVE)
    before = {key: torch.ones_like(p) for key, p in net.named_parameters()}
    for key, p in net.named_parameters():
        p.grad = before[key]
    try:
        with (
            untouched(net),
            pytest.raises(BadInput, match="made-up rows: Interrupted: Interrupted"),
        ):
            clipper(one_sample(examples=ROWS), x, y)
        failing = False
        with untouched(net):
            clipper.prepare(x, y)
        failing = True
        with untouched(net):
            sums = clipper(one_sample(examples=ROWS), x, y).values
        assert not any(total.any() for total in sums)
        for key, p in net.named_parameters():
            assert p.grad is before[key]
            assert p.grad.eq(1).all()
    finally:
        for p in net.parameters():
            p.grad = None


@everywhere
def test_the_way_that_is_taken(name: str) -> None:
    clipper = prepared(name)
    assert clipper.way in {"layers", "vmap", "loop"}
    if KINDS[name].way == "layers":
        # Some processors round a product of a constant differently from one place to the next.
        is_rounded = "a constant that differs from one place in the batch" in (clipper.reason or "")
        assert clipper.way == "layers" or (is_rounded and name.endswith("from a constant")), (
            clipper.reason
        )
    elif KINDS[name].way:
        assert clipper.way != "layers"
    assert clipper.way == "layers" or len(clipper.reason.split()) > 2


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("rnn", "rnn"),
        ("embedding with a largest norm", "embedding"),
        ("embedding scaled by frequency", "embedding"),
        ("embedding, sparse", "embedding"),
        ("embedding bag", "embedding"),
    ],
)
def test_the_reason_names_what_has_no_rule(name: str, names: str) -> None:
    assert names in prepared(name).reason.lower()


def test_recomputing_reentrantly_is_right_or_refused() -> None:
    """PyTorch can't give such a model's gradients without writing into `.grad`."""
    torch.manual_seed(0)
    net = headed(
        lambda n, x: checkpoint(n.b, n.a(x).tanh(), use_reentrant=True).tanh(),
        a=nn.Linear(5, 4),
        b=nn.Linear(4, 6),
    )
    x, y = torch.randn(ROWS, 5), torch.arange(ROWS) % 3
    net(x)
    trained = list(net.parameters())
    total = [torch.zeros_like(p) for p in trained]
    for row in range(ROWS):
        cross_entropy(net(x[row : row + 1]), y[row : row + 1]).sum().backward()
        length = math.sqrt(sum(float(p.grad.square().sum()) for p in trained if p.grad is not None))
        for sums, p in zip(total, trained, strict=True):
            assert p.grad is not None
            sums += p.grad * min(1.0, kept(0.2, [p.dtype]) / length)
            p.grad = None
    clipper = ClippedGradients(net, cross_entropy, Flat(0.2), Adjacency.ADD_REMOVE)
    try:
        found = clipper(one_sample(examples=ROWS), x, y).values
    except (PrivlearnError, RuntimeError) as error:
        assert isinstance(error, PrivlearnError) or "use_reentrant" in str(error)  # noqa: PT017
        return
    for one, other in zip(found, total, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


DROPOUT: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dropout": (lambda: read(nn.Dropout(0.5), nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.3)), (5,)),
    "dropout of channels": (
        lambda: read(nn.Conv2d(2, 4, 3), nn.Dropout2d(0.5), nn.Conv2d(4, 2, 2)),
        (2, 6, 6),
    ),
    "alpha dropout": (lambda: read(nn.Linear(5, 8), nn.AlphaDropout(0.5)), (6, 5)),
    "dropout as a function": (
        lambda: headed(lambda n, x: F.dropout(n.a(x), 0.5), a=nn.Linear(5, 8)),
        (5,),
    ),
    "random leaks": (lambda: read(nn.Linear(5, 8), nn.RReLU()), (5,)),
    "noise": (
        lambda: headed(lambda n, x: n.a(x) + torch.randn_like(x[..., :1]), a=nn.Linear(5, 4)),
        (5,),
    ),
    "dropout in an attention": (
        lambda: headed(itself, a=nn.MultiheadAttention(8, 2, 0.5, batch_first=True)),
        (4, 8),
    ),
    "dropout in a transformer": (
        lambda: read(nn.TransformerEncoderLayer(8, 2, 6, 0.5, batch_first=True)),
        (4, 8),
    ),
    "dropout in an lstm": (
        lambda: recurrent(nn.LSTM(5, 4, 2, dropout=0.5, batch_first=True)),
        (4, 5),
    ),
    "dropout in a gru": (lambda: recurrent(nn.GRU(5, 4, 2, dropout=0.5, batch_first=True)), (4, 5)),
}


@pytest.mark.parametrize("name", DROPOUT)
def test_networks_that_draw_random_numbers_stay_within_their_bounds(name: str) -> None:
    make, shape = DROPOUT[name]
    torch.manual_seed(0)
    net = make()
    x, y = torch.randn(ROWS, *shape), torch.arange(ROWS) % 3
    net(x)
    net, x = net.double(), x.double()
    for clip in (Flat(0.05), PerLayer(0.05)):
        clipper = ClippedGradients(net, cross_entropy, clip, Adjacency.ADD_REMOVE)
        sums = []
        for first in (ROWS - 1, 0, 1):  # one row, all, and all but the first
            torch.manual_seed(7)
            with untouched(net):
                sums.append(clipper(one_sample(examples=ROWS - first), x[first:], y[first:]))
        one, whole, rest = ([*found.values] for found in sums)
        assert clipper.way == "layers"
        moved = math.sqrt(
            sum(float((a - b).square().sum()) for a, b in zip(whole, rest, strict=True))
        )
        length = math.sqrt(sum(float(value.square().sum()) for value in one))
        assert 0 < max(length, moved) <= sums[0].sensitivity * (1 + 1e-6)


def test_parameters_of_two_precisions() -> None:
    torch.manual_seed(0)
    net = Net(
        lambda n, x: n.b(n.a(x.float()).tanh().double()),
        a=nn.Linear(5, 4),
        b=nn.Linear(4, 3).double(),
    )
    x, y = torch.randn(ROWS, 5, dtype=torch.float64), torch.arange(ROWS) % 3
    found = ClippedGradients(net, cross_entropy, Flat(0.2), Adjacency.ADD_REMOVE)(
        one_sample(examples=ROWS), x, y
    )
    # the room that single precision takes
    same = Flat(kept(0.2, [torch.float32]) * 0.2 / kept(0.2, [torch.float64]))
    twin = ClippedGradients(net.double(), cross_entropy, same, Adjacency.ADD_REMOVE)
    net.run = lambda n, x: n.b(n.a(x).tanh())
    for one, other in zip(found.values, twin(one_sample(examples=ROWS), x, y).values, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-6)


MISSING = -1.0


def marked_rows_last(n: Any, x: Tensor) -> Tensor:
    order = (x[:, 0] == MISSING).long().argsort(stable=True)
    return n.a(x[order]).tanh()[order.argsort()]


def marked_rows_twice(n: Any, x: Tensor) -> Tensor:
    out, marked = n.a(x).tanh(), x[:, :1] == MISSING
    return out + n.a(x.sin()) * marked if marked.any() else out


def marked_rows_apart(n: Any, x: Tensor) -> Tensor:
    out, marked = n.a(x).tanh(), x[:, 0] == MISSING
    if marked.any():
        out = out.clone()
        out[marked] = n.a(x[marked].sin())
    return out


@pytest.mark.parametrize("run", [marked_rows_last, marked_rows_twice, marked_rows_apart])
def test_branches_that_only_real_data_take_are_right_or_refused(
    run: Callable[[Any, Tensor], Tensor],
) -> None:
    """No made-up row has the mark for a missing value."""
    torch.manual_seed(0)
    net = headed(run, a=nn.Linear(5, 4))
    x, y = torch.randn(ROWS, 5) * torch.linspace(0.1, 5, ROWS)[:, None], torch.arange(ROWS) % 3
    x[[1, 4], 0] = MISSING
    net(x)
    net, x = net.double(), x.double()
    trained = list(net.parameters())
    total = [torch.zeros_like(p) for p in trained]
    for row in range(ROWS):
        found = torch.autograd.grad(
            cross_entropy(net(x[row : row + 1]), y[row : row + 1]).sum(), trained
        )
        length = math.sqrt(sum(float(part.square().sum()) for part in found))
        weight = min(1.0, kept(0.5, [torch.float64]) / length)
        total = [sums + part * weight for sums, part in zip(total, found, strict=True)]
    try:
        values = ClippedGradients(net, cross_entropy, Flat(0.5), Adjacency.ADD_REMOVE)(
            one_sample(examples=ROWS), x, y
        ).values
    except PrivlearnError:
        return
    for one, other in zip(values, total, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
