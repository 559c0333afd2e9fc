"""Small networks without batch norm, by name; the public transforms in front of them; and the per-example check."""

from __future__ import annotations

import copy
import importlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast, final

import numpy as np
import torch
from torch import Tensor, nn

from privlearn.errors import BadInput, NotPerExample

#: Numbers in an example from which on the per-example check makes do with few of them.
_LARGE = 1 << 14
#: Hidden layers that a network by name has at most.
_DEEPEST = 1000
#: Channels from which on an input is taken for maps of features.
_MAPS = 16

_COUPLED: dict[type[nn.Module], str] = {
    nn.modules.batchnorm._BatchNorm: "normalises over the batch; use nn.GroupNorm (images) or nn.LayerNorm instead",
}


@final
class Scale(nn.Module):
    """Clip to declared public ranges and scale: to [0, 1], or into [-1, 1] with 0 kept where a range reaches below 0.

    Part of the published model.
    """

    def __init__(self, low: Tensor, high: Tensor) -> None:
        super().__init__()
        self.register_buffer("low", low)
        self.register_buffer("high", high)

    def forward(self, x: Tensor) -> Tensor:
        """Scale `x`, shape (batch, ...); the bounds are scalars or have the shape of one example."""
        low, high = self.get_buffer("low"), self.get_buffer("high")
        clipped = torch.minimum(torch.maximum(x.to(low), low), high)
        signed = low < 0
        width = torch.where(signed, torch.maximum(low.abs(), high.abs()), high - low)
        return (clipped - low.where(~signed, 0)) / width


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


@final
class Standardise(nn.Module):
    """Clip rows to `norm`, take off `mean`, divide by `deviation`, and bring every row to norm sqrt(features).

    A feature is then of order one, and each example keeps to itself.
    """

    def __init__(self, mean: Tensor, deviation: Tensor, norm: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)
        self.register_buffer("norm", norm)

    def forward(self, x: Tensor) -> Tensor:
        """Standardise `x`, shape (batch, ...), to shape (batch, features)."""
        mean, norm = self.get_buffer("mean"), self.get_buffer("norm")
        rows = x.flatten(1).to(mean)
        rows = rows * (norm / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=norm))
        rows = (rows - mean) / self.get_buffer("deviation")
        lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
        return cast(Tensor, rows / lengths * math.sqrt(rows.shape[1]))


@final
class Keep(nn.Module):
    """The features at `indices`, of flattened rows."""

    def __init__(self, indices: Tensor) -> None:
        super().__init__()
        self.register_buffer("indices", indices)

    def forward(self, x: Tensor) -> Tensor:
        """Pick from `x`, shape (batch, ...), to shape (batch, kept)."""
        return x.flatten(1)[:, self.get_buffer("indices")]


@final
class ClipRows(nn.Module):
    """Flatten rows, and scale those longer than `norm` down to it."""

    def __init__(self, norm: Tensor) -> None:
        super().__init__()
        self.register_buffer("norm", norm)

    def forward(self, x: Tensor) -> Tensor:
        """Clip `x`, shape (batch, ...), to shape (batch, features)."""
        rows, norm = x.flatten(1), self.get_buffer("norm")
        rows = rows.to(norm)
        return cast(Tensor, rows * (norm / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=norm)))


def build(spec: str, input_shape: Sequence[int], classes: int, rng: np.random.Generator) -> nn.Module:
    """Build the network that `spec` names, with initial weights drawn from `rng`.

    Args:
        spec: `linear`, `mlp:100` or `mlp:10,20,10` (hidden widths), `cnn`, `unet` or `unet:16,32,64` (channels, for maps of
            classes), or `package.module:function`, a factory that is called with `input_shape=` and `classes=` and returns
            an nn.Module.
        input_shape: the shape of one example.
        classes: the number of outputs.
        rng: the initialisation stream.

    Raises:
        BadInput: a spec that cannot be read or does not fit the input.
    """
    make = _builder(spec)
    with torch.random.fork_rng():
        torch.manual_seed(int(rng.integers(2**63)))
        try:
            model = make(input_shape=tuple(input_shape), classes=classes)
        except BadInput:
            raise
        except Exception as error:
            raise BadInput(
                f"model {spec!r} failed: {type(error).__name__}: {first_line(error)}. A factory is called as "
                f"f(input_shape={tuple(input_shape)}, classes={classes})"
            ) from error
    if not isinstance(model, nn.Module):
        raise BadInput(f"model {spec!r} returned a {type(model).__name__}: expected a torch.nn.Module")
    require_shaped(model)
    return model


def is_built_in(spec: str | None) -> bool:
    """Whether `spec` names a network of privlearn's own, not somebody's code."""
    return spec is not None and (spec in ("linear", "cnn") or spec.partition(":")[0] in ("mlp", "unet"))


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
    if name == "mlp":
        widths = _widths(rest)
        if min(widths) < 1 or len(widths) > _DEEPEST:
            raise BadInput(
                f"model {spec[:60]!r} cannot be read: expected at most {_DEEPEST} hidden widths, for example mlp:100 or "
                "mlp:10,20,10"
            )
        return lambda **shapes: _mlp(widths, **shapes)
    if rest and rest.isidentifier():
        return _imported(spec, name, rest)
    raise BadInput(
        f"model {spec!r} is unknown: expected linear, mlp:100, mlp:10,20,10, cnn, unet, or a factory "
        "package.module:function",
        spec=spec,
    )


def _widths(text: str) -> list[int]:
    """The numbers in a spec; [0], which no network takes, if they can't be read."""
    try:
        return [int(width) for width in text.split(",")]
    except ValueError:
        return [0]


def _unet(text: str) -> Callable[..., Any]:
    from privlearn.models import unets

    channels = _widths(text) if text else unets.CHANNELS
    unets.require_channels(channels)
    unets.require_monai()
    return lambda **shapes: unets.unet(channels, **shapes)


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
    if len(input_shape) == 3 and channels >= _MAPS and min(input_shape[-2:]) >= 2:
        return _cnn_on_maps(input_shape, classes)
    if len(input_shape) not in (2, 3) or min(input_shape[-2:]) < 16:
        raise BadInput(
            f"model 'cnn' needs images of shape (height, width) or (channels, height, width), 16 x 16 or larger, or {_MAPS} "
            f"maps of features or more: the inputs have shape {tuple(input_shape)}. Use mlp:100 or your own "
            "package.module:function"
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


def _cnn_on_maps(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two small convolutions over maps of features, such as scattering makes: 33 thousand parameters on 81 x 7 x 7."""
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


def require_shaped(model: nn.Module) -> None:
    """Raise `BadInput` if a parameter or a buffer waits for rows to take its shape from."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise BadInput(
                f"{name!r} has no shape yet: a lazy module takes it from the first rows that it sees. Run the model once on "
                "made-up rows, for example model(torch.zeros(1, *shape)), or use modules that are not lazy"
            )


def require_per_example(model: nn.Module, x: Tensor, *, fixed: bool = False) -> None:
    """Check that the output for one example depends on that example alone, and that nothing is remembered.

    Known offenders are refused by name. Then a copy of the model, in training mode, runs on made-up rows of the shape and
    type of `x`, of several scales: each row of small and larger batches must come out as it does by itself (for a
    model that draws random numbers: as it does beside other rows), and no buffer or parameter may change.

    With `fixed` the model is never trained and always in evaluation mode, and is checked in that: there norms with running
    statistics are fixed affine maps.

    Raises:
        NotPerExample: with the module's name and what to use in its place.
        BadInput: the model cannot run on such inputs at all.
    """
    require_shaped(model)
    for name, module in model.named_modules():
        for kind, reason in _COUPLED.items():
            if isinstance(module, kind) and not (fixed and module.track_running_stats):
                raise NotPerExample(f"{type(module).__name__} at {name or 'the top'!r} {reason}", module=name)
        if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats and not fixed:
            raise NotPerExample(
                f"{type(module).__name__} at {name!r} keeps running statistics of the data: set track_running_stats=False",
                module=name,
            )
    try:
        twin = copy.deepcopy(model).double().train(not fixed)
    except RuntimeError as error:
        raise NotPerExample(f"the model cannot be copied, so it cannot be checked: {first_line(error)}") from error
    before = {name: value.clone() for name, value in twin.state_dict().items()}
    try:
        with torch.random.fork_rng(), torch.no_grad(), without_dropout(twin):
            sizes = (5, 40) if x[:1].numel() < _LARGE else (3, 5)
            coupled = any(_rows_depend_on_others(twin, x, size) for size in sizes)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise BadInput(
            f"the model cannot run on inputs of shape {tuple(x.shape[1:])} and type {x.dtype}: {first_line(error)}"
        ) from error
    if coupled:
        raise NotPerExample(
            "the model's output for one example moves when other examples of the batch change. Look for an operation "
            "over the batch dimension (a batch norm, a mean over the batch, attention across examples) and remove it"
        )
    for name, value in twin.state_dict().items():
        if not torch.equal(value, before[name]):
            raise NotPerExample(
                f"{name!r} changes when the model runs: it would carry the data into the published model. Remove it, or "
                "keep it fixed",
                state=name,
            )


def _rows_depend_on_others(model: nn.Module, x: Tensor, size: int) -> bool:
    """Whether a row's output changes with the batch around it."""
    batch, _ = made_up_batch(x, torch.zeros(1, dtype=torch.int64), size)
    batch = batch.double() if batch.is_floating_point() else batch
    out = _seeded(model, batch, 0)
    if not isinstance(out, Tensor) or out.shape[:1] != batch.shape[:1]:
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise NotPerExample(
            f"the model turns a batch of {size} into {shape}: expected one output tensor with a row for each example"
        )
    draws = not _same(out, _seeded(model, batch, 1))
    for row in sorted({0, 1, 2, min(3, size - 1), size // 2, size - 1}):
        if draws:
            # Its random numbers depend on the batch's shape: keep the shape, and change all other rows.
            others = batch.flip(0).roll(1, 0)
            others[row] = batch[row]
            single = _seeded(model, others, 0)[row]
        else:
            single = _seeded(model, batch[row : row + 1], 0)[0]
        if not _same(out[row], single):
            return True
    return False


def _seeded(model: nn.Module, batch: Tensor, seed: int) -> Any:
    torch.manual_seed(seed)
    return model(batch.clone())  # it may write into its input


def _same(one: Tensor, other: Tensor) -> bool:
    scale = float(one.abs().nan_to_num(0, 0, 0).max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=0, atol=1e-9 * scale + 1e-300, equal_nan=True)


def made_up_batch(x: Tensor, y: Tensor, size: int = 6) -> tuple[Tensor, Tensor]:
    """Made-up rows of the shape and type of `x` and `y`: of many scales, and with different targets."""
    rows, targets = made_up_rows((x, y), 1, size)
    return rows, targets


def made_up_rows(like: Sequence[Tensor], inputs: int, size: int = 6) -> tuple[Tensor, ...]:
    """A made-up batch of tensors of the shapes and types of `like`, of which the first `inputs` are inputs."""
    made_up = torch.Generator().manual_seed(0)
    parts = [_made_up_inputs(leaf, size, made_up) for leaf in like[:inputs]]
    parts += [_made_up_targets(leaf, size, made_up) for leaf in like[inputs:]]
    return tuple(part.to(leaf.dtype).to(leaf.device) for part, leaf in zip(parts, like, strict=True))


def _made_up_inputs(x: Tensor, size: int, made_up: torch.Generator) -> Tensor:
    if not x.is_floating_point():
        return torch.randint(2, (size, *x.shape[1:]), generator=made_up)
    scales = torch.tensor([1.0, 0.0, 300.0, 0.01, 3.0, 1e-3]).repeat(size // 6 + 1)[:size]
    return torch.randn((size, *x.shape[1:]), generator=made_up) * scales.view(-1, *[1] * (x.dim() - 1))


def _made_up_targets(y: Tensor, size: int, made_up: torch.Generator) -> Tensor:
    if y.is_floating_point():
        return torch.rand((size, *y.shape[1:]), generator=made_up)
    return (torch.arange(size).view(-1, *[1] * (y.dim() - 1)) % 2).expand(size, *y.shape[1:])


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Dropout off for the block: two computations would draw different masks. All other modes stay as they are."""
    kind = nn.modules.dropout._DropoutNd
    switched = [module for module in model.modules() if isinstance(module, kind) and module.training]
    for module in switched:
        module.training = False
    try:
        yield
    finally:
        for module in switched:
            module.training = True


def first_line(error: Exception) -> str:
    """What an error says, in short."""
    return str(error).strip().split("\n")[0][:200].rstrip(".") or "no message"
