"""Small networks without batch norm, by name; the public transforms in front of them; and the per-example check."""

from __future__ import annotations

import copy
import importlib
import math
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast, final

import numpy as np
import torch
from torch import Tensor, nn

from privlearn.errors import BadInput, NotPerExample

_COUPLED: dict[type[nn.Module], str] = {
    nn.modules.batchnorm._BatchNorm: "normalises over the batch; use nn.GroupNorm (images) or nn.LayerNorm instead",
}


@final
class Scale(nn.Module):
    """Map declared public ranges to [0, 1]; values outside are clipped. Part of the published model."""

    def __init__(self, low: Tensor, high: Tensor) -> None:
        super().__init__()
        self.register_buffer("low", low)
        self.register_buffer("high", high)

    def forward(self, x: Tensor) -> Tensor:
        """Scale `x`, shape (batch, ...); the bounds are scalars or have the shape of one example."""
        low, high = self.get_buffer("low"), self.get_buffer("high")
        unit = (x.to(low) - low) / (high - low)
        return unit.clamp(0.0, 1.0)


@final
class Project(nn.Module):
    """Clip rows to norm 1, multiply by `components` (features, kept), and bring every row to norm sqrt(kept).

    A feature is then of order one, and each example keeps to itself.
    """

    def __init__(self, components: Tensor) -> None:
        super().__init__()
        self.register_buffer("components", components)

    def forward(self, x: Tensor) -> Tensor:
        """Project `x`, shape (batch, ...), to shape (batch, kept)."""
        rows = x.flatten(1)
        components = self.get_buffer("components")
        rows = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=1.0)
        kept = rows @ components
        tiny = torch.finfo(kept.dtype).tiny
        lengths = torch.linalg.vector_norm(kept, dim=1, keepdim=True).clamp(min=tiny)
        return cast(Tensor, kept / lengths * math.sqrt(kept.shape[1]))


def build(spec: str, input_shape: Sequence[int], classes: int, rng: np.random.Generator) -> nn.Module:
    """Build the network that `spec` names, with initial weights drawn from `rng`.

    Args:
        spec: `linear`, `mlp:100` or `mlp:10,20,10` (hidden widths), `cnn`, or `package.module:function`, a factory that
            is called with `input_shape=` and `classes=` and returns an nn.Module.
        input_shape: the shape of one example.
        classes: the number of outputs.
        rng: the initialisation stream.

    Raises:
        BadInput: a spec that cannot be read or does not fit the input.
    """
    make = _builder(spec)
    with torch.random.fork_rng():
        torch.manual_seed(int(rng.integers(2**63)))
        model = make(input_shape=tuple(input_shape), classes=classes)
    if not isinstance(model, nn.Module):
        raise BadInput(f"model {spec!r} returned a {type(model).__name__}: expected a torch.nn.Module")
    return model


def _builder(spec: str) -> Callable[..., Any]:
    name, _, rest = spec.partition(":")
    if spec == "linear":
        return _mlp
    if spec == "cnn":
        return _cnn
    if name == "mlp":
        try:
            widths = [int(width) for width in rest.split(",")]
        except ValueError:
            widths = [0]
        if min(widths) < 1:
            raise BadInput(
                f"model {spec!r} cannot be read: expected hidden widths, for example mlp:100 or mlp:10,20,10"
            )
        return lambda **shapes: _mlp(widths, **shapes)
    if rest and rest.isidentifier():
        return _imported(spec, name, rest)
    raise BadInput(
        f"model {spec!r} is unknown: expected linear, mlp:100, mlp:10,20,10, cnn, or a factory package.module:function",
        spec=spec,
    )


def _imported(spec: str, module: str, function: str) -> Callable[..., Any]:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(
            f"model {spec!r} cannot be imported: {error}. Expected package.module:function, importable from here"
        ) from error
    return cast(Callable[..., Any], found)


def _mlp(widths: Sequence[int] = (), *, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    sizes = [int(np.prod(input_shape)), *widths]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes))


def _cnn(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two strided convolutions and a hidden layer: 26 thousand parameters on 28 x 28 grey images."""
    channels = 1 if len(input_shape) == 2 else input_shape[0]
    if len(input_shape) not in (2, 3) or min(input_shape[-2:]) < 16:
        raise BadInput(
            f"model 'cnn' needs images of shape (height, width) or (channels, height, width), 16 x 16 or larger: the "
            f"inputs have shape {tuple(input_shape)}. Use mlp:100 or your own package.module:function"
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
        width = nn.Sequential(*body)(torch.zeros(1, *input_shape)).shape[1]
    return nn.Sequential(*body, nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, classes))


def require_per_example(model: nn.Module, x: Tensor) -> None:
    """Check that the output for one example depends on that example alone, and that nothing is remembered.

    Known offenders are refused by name; then a copy of the model, in float64 and in its own mode, runs on made-up rows of the
    shape and type of `x`: the first output must not move when the other rows change, and no buffer may change.

    Raises:
        NotPerExample: with the module's name and what to use in its place.
    """
    for name, module in model.named_modules():
        for kind, reason in _COUPLED.items():
            if isinstance(module, kind):
                raise NotPerExample(f"{type(module).__name__} at {name or 'the top'!r} {reason}", module=name)
        if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
            raise NotPerExample(
                f"{type(module).__name__} at {name!r} keeps running statistics of the data: set track_running_stats=False",
                module=name,
            )
    twin = copy.deepcopy(model).double()
    before = {name: buffer.clone() for name, buffer in twin.named_buffers()}
    first, second = _made_up_rows(x)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        one = twin(first)
        torch.manual_seed(0)
        two = twin(second)
    if not isinstance(one, Tensor) or one.shape[:1] != first.shape[:1]:
        shape = tuple(one.shape) if isinstance(one, Tensor) else type(one).__name__
        raise NotPerExample(
            f"the model turns a batch of {len(first)} into {shape}: expected one output tensor with a row for each example"
        )
    scale = float(one[0].abs().max()) + 1e-300
    if not torch.allclose(one[0], two[0], rtol=0, atol=1e-9 * scale):
        raise NotPerExample(
            "the model's output for one example moves when other examples of the batch change. Look for an operation "
            "over the batch dimension (a batch norm, a mean over the batch, attention across examples) and remove it"
        )
    for name, buffer in twin.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise NotPerExample(
                f"the buffer {name!r} changes when the model runs: it would carry the data into the published model. Remove "
                "it, or keep it fixed",
                buffer=name,
            )


def _made_up_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two batches with the same first row and different others."""
    shape = (4, *x.shape[1:])
    if not x.is_floating_point():
        first = x.new_zeros(shape)
        second = first.clone()
        second[1:] = 1
        return first, second
    made_up = torch.Generator().manual_seed(0)
    first = torch.randn(shape, generator=made_up, dtype=torch.float64)
    second = first.clone()
    second[1:] = 3.0 * torch.randn((3, *x.shape[1:]), generator=made_up, dtype=torch.float64) + 1.0
    return first, second
