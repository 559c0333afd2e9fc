"""Runs of stock layers in `nn.Sequential` are computed as one operation.

What autograd and a function mode cost for each operation is then paid once for all of them: on a
network of two small layers these cost .3 of a plain step
(docs/decisions/runs-of-stock-layers-are-one-operation.md). Each layer computes what it computes by
itself, by the same rules. A layer of another type, or that has hooks, a forward of its own or
frozen parameters, ends a run and is called as always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import pairwise
from operator import ne
from typing import Any, Protocol, cast, final

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules import module as torch_module

from privlearn.core.clipping.capture import Call, Capture, Operation, OperationFunction
from privlearn.core.clipping.layout import NotLayerwise
from privlearn.core.clipping.operations.convolution import convolution
from privlearn.core.clipping.operations.linear import linear
from privlearn.core.clipping.operations.normalisation import group_norm, layer_norm
from privlearn.core.devices import on_processor
from privlearn.core.precision import full_precision

_aten = torch.ops.aten
#: What a layer gave, what its backward pass needs, and whether nothing else holds what it gave.
_Given = tuple[Tensor, tuple[Tensor, ...], bool]


class Parameterless(Protocol):
    """A layer without parameters. Numbers that are `free` are held by nothing else, and may be
    written over.
    """

    def forward(self, layer: Any, x: Tensor, free: bool) -> _Given:
        """What it gives for `x`."""
        ...

    def backward(self, layer: Any, held: Sequence[Tensor], g: Tensor, free: bool) -> Tensor:
        """The gradient of what it was given."""
        ...


@final
class FromOutput:
    """An activation whose derivative follows from its output; both are computed in place where that
    is free.
    """

    def __init__(
        self, function: Callable[[Tensor], Tensor], backward: Any, *options: float
    ) -> None:
        self._function, self._backward, self._options = function, backward, options

    def forward(self, layer: Any, x: Tensor, free: bool) -> _Given:
        """The output, which is held."""
        out = self._function(x if free else x.clone())
        return out, (out,), False

    def backward(self, layer: Any, held: Sequence[Tensor], g: Tensor, free: bool) -> Tensor:
        """As PyTorch."""
        into = {"grad_input": g} if free else {}
        gradient: Tensor = self._backward(g, *held, *self._options, **into)
        return gradient


@final
class FromInput:
    """A layer whose derivative follows from its input."""

    def __init__(self, backward: Callable[[Any, Tensor, Tensor], Tensor]) -> None:
        self._backward = backward

    def forward(self, layer: Any, x: Tensor, free: bool) -> _Given:
        """The output; the input is held."""
        return layer.forward(x), (x,), True

    def backward(self, layer: Any, held: Sequence[Tensor], g: Tensor, free: bool) -> Tensor:
        """As PyTorch."""
        return self._backward(layer, g, held[0])


@final
class MaxPool:
    """Maximum pooling of images."""

    def forward(self, layer: Any, x: Tensor, free: bool) -> _Given:
        """The maxima; the input and their places are held."""
        # PyTorch takes several channels at once where they come last: faster from 8 on, copied.
        many = on_processor(x) and x.dim() == 4 and x.shape[1] >= 8
        rows = x.contiguous(memory_format=torch.channels_last) if many else x
        pooled = _aten.max_pool2d_with_indices(rows, *self._sizes(layer))
        out, places = (numbers.contiguous() for numbers in pooled)
        return out, (x, places), True

    def backward(self, layer: Any, held: Sequence[Tensor], g: Tensor, free: bool) -> Tensor:
        """As PyTorch."""
        x, places = held
        gradient: Tensor = _aten.max_pool2d_with_indices_backward(g, x, *self._sizes(layer), places)
        return gradient

    @staticmethod
    def _sizes(layer: Any) -> tuple[Any, ...]:
        sizes = map(_pair, (layer.kernel_size, layer.stride, layer.padding, layer.dilation))
        return (*sizes, layer.ceil_mode)


@final
class Reshape:
    """Dimensions after the batch's as one: the same numbers."""

    def forward(self, layer: Any, x: Tensor, free: bool) -> _Given:
        """A view, if it can be; the input is held for its shape."""
        return layer.forward(x), (x,), free

    def backward(self, layer: Any, held: Sequence[Tensor], g: Tensor, free: bool) -> Tensor:
        """The gradient in the input's shape."""
        return g.reshape(held[0].shape)


def _pair(size: Any) -> list[int]:
    return [size, size] if isinstance(size, int) else list(size)


def _average(layer: Any, g: Tensor, x: Tensor) -> Tensor:
    sizes = map(_pair, (layer.kernel_size, layer.stride, layer.padding))
    rest = layer.ceil_mode, layer.count_include_pad, layer.divisor_override
    return cast(Tensor, _aten.avg_pool2d_backward(g, x, *sizes, *rest))


#: Layers without parameters.
WITHOUT_PARAMETERS: dict[type[nn.Module], Parameterless] = {
    nn.ReLU: FromOutput(torch.relu_, _aten.threshold_backward, 0.0),
    nn.Tanh: FromOutput(torch.tanh_, _aten.tanh_backward),
    nn.Sigmoid: FromOutput(torch.sigmoid_, _aten.sigmoid_backward),
    nn.GELU: FromInput(
        lambda layer, g, x: _aten.gelu_backward(g, x, approximate=layer.approximate)
    ),
    nn.SiLU: FromInput(lambda layer, g, x: _aten.silu_backward(g, x)),
    nn.AvgPool2d: FromInput(_average),
    nn.MaxPool2d: MaxPool(),
    nn.Flatten: Reshape(),
}


def _convolve(spatial: int, tape: Any, layer: Any, x: Tensor) -> Any:
    sizes = layer.stride, layer.padding, layer.dilation, layer.groups
    return convolution(spatial, tape, x, layer.weight, layer.bias, *sizes)


#: Layers with parameters, and how each calls its rule.
WITH_PARAMETERS: dict[type[nn.Module], Callable[[Any, Any, Tensor], Any]] = {
    nn.Linear: lambda tape, layer, x: linear(tape, x, layer.weight, layer.bias),
    nn.Conv1d: partial(_convolve, 1),
    nn.Conv2d: partial(_convolve, 2),
    nn.Conv3d: partial(_convolve, 3),
    nn.GroupNorm: lambda tape, layer, x: group_norm(
        tape, x, layer.num_groups, layer.weight, layer.bias, layer.eps
    ),
    nn.LayerNorm: lambda tape, layer, x: layer_norm(
        tape, x, layer.normalized_shape, layer.weight, layer.bias, layer.eps
    ),
}


@final
class Tape:
    """To the rules a capture: runs their operations one after another, and then their backward
    passes.
    """

    def __init__(self, capture: Capture) -> None:
        self.trains, self.knows, self.call = capture.trains, capture.knows, capture.call
        self.kernels, self.derived = capture.kernels, capture.derived
        self._steps: list[tuple[Any, Any, int]] = []
        #: What backward passes need, which autograd holds for them.
        self.held: list[Tensor] = []

    def run(self, operation: Operation, x: Tensor, low: bool = True) -> Tensor:
        """As a capture's, without autograd."""
        self._note(operation, self.call(x, operation.parameters[0].dtype), (x,))
        return operation.forward(x)

    def _note(self, rule: Any, of: Any, held: Sequence[Tensor]) -> None:
        self._steps.append((rule, of, len(held)))
        self.held += held

    def forward(self, layers: Sequence[nn.Module], x: Tensor) -> Tensor:
        """What the layers give."""
        free = False
        for layer in layers:
            kind = type(layer)
            if (known := WITHOUT_PARAMETERS.get(kind)) is not None:
                x, held, free = known.forward(layer, x, free)
                self._note(known, layer, held)
                continue
            x, free = WITH_PARAMETERS[kind](self, layer, x), True
            if x is NotImplemented:
                raise NotLayerwise(f"there is no rule for {kind.__name__} on rows of this shape")
        return x

    def backward(self, held: Sequence[Tensor], g: Tensor, wanted: bool) -> Tensor | None:
        """Keep the parameters' gradients; the gradient of what the layers were given, if it is
        `wanted`.
        """
        end, free = len(held), False
        first = (
            0
            if wanted
            else next(at for at, step in enumerate(self._steps) if isinstance(step[1], Call))
        )
        for at in range(len(self._steps) - 1, first - 1, -1):
            rule, of, count = self._steps[at]
            start = end - count
            if isinstance(of, Call):
                g = rule.backward(of, held[start], g, wanted or at > first)
                free = True
            else:
                g = rule.backward(of, held[start:end], g, free)
                free = free or not isinstance(rule, Reshape)
            end = start
        return g


class _Fused(OperationFunction):
    """Runs layers. The parameters are arguments so that autograd comes here on its way to them."""

    @staticmethod
    def forward(
        ctx: Any, tape: Tape, layers: Sequence[nn.Module], x: Tensor, *parameters: Tensor
    ) -> Tensor:
        out = tape.forward(layers, x)
        ctx.tape, ctx.parameters = tape, len(parameters)
        ctx.save_for_backward(*tape.held)
        tape.held = []
        return _aten._unsafe_view(out, list(out.shape)) if out._is_view() else out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        held = [t.detach() for t in ctx.saved_tensors]
        with full_precision():
            back = ctx.tape.backward(held, g, ctx.needs_input_grad[2])
        return None, None, back, *([None] * ctx.parameters)


class TracingMode(Protocol):
    """A function mode that tells sequences of operations apart."""

    trace: int


#: A container, and its layers, those of a run together.
_Container = tuple[nn.Module, list[list[nn.Module]]]


@final
class FusedLayers:
    """The containers in a model that hold runs of stock layers and compute with the batch.

    Args:
        model: what is trained.
        trained: its trained parameters.
        batches: each computes a batch of another size. What has the same shape in all, such as
            positions that are encoded, has nothing to do with the batch.
    """

    def __init__(
        self,
        model: nn.Module,
        trained: Sequence[Tensor],
        batches: Sequence[Callable[[], object]] = (),
    ) -> None:
        self._trained = {id(p) for p in trained}
        self._containers: list[_Container] = []
        inner = set[int]()
        for module in model.modules():
            if id(module) not in inner and _is_container(module):
                layers = list(_flatten(module, inner))
                runs = self._runs(layers)
                if any(len(run) > 1 for run in runs):
                    self._containers.append((module, runs))
        shapes = [self._inputs(batch) for batch in batches if self._containers]
        for one, other in pairwise(shapes):
            apart = [all(map(ne, *pair)) for pair in zip(one, other, strict=True)]
            self._containers = [
                container
                for container, batched in zip(self._containers, apart, strict=True)
                if batched
            ]

    def _inputs(self, compute: Callable[[], object]) -> list[list[tuple[int, ...]]]:
        """The shapes of what each container is called with."""
        shapes: list[list[tuple[int, ...]]] = [[] for _ in self._containers]

        def watch(number: int, module: nn.Module, input: Any) -> Any:
            shapes[number].append(tuple(getattr(input, "shape", ())))
            return nn.Sequential.forward(module, input)  # type: ignore[arg-type, no-untyped-call]

        with self._instead(lambda number, module, runs: partial(watch, number, module)):
            compute()
        return shapes

    def _runs(self, layers: Sequence[nn.Module]) -> list[list[nn.Module]]:
        """Layers, one after another, those of a run together."""
        runs: list[list[nn.Module]] = []
        open_run = False
        for layer in layers:
            stock = self._is_stock(layer)
            # The first layer of a run gets numbers that others hold.
            begins = stock and not getattr(layer, "inplace", False)
            if open_run and stock:
                runs[-1].append(layer)
            else:
                runs.append([layer])
                open_run = begins
        return [part for run in runs for part in self._trim(run)]

    def _trim(self, run: list[nn.Module]) -> list[list[nn.Module]]:
        """A run without reshapes at its end, which give a view of what is held; single layers if
        none has a rule.
        """
        if not any(type(layer) in WITH_PARAMETERS for layer in run):
            return [[layer] for layer in run]
        end = len(run)
        while isinstance(run[end - 1], nn.Flatten):
            end -= 1
        return [run[:end], *([layer] for layer in run[end:])]

    def _is_stock(self, layer: nn.Module) -> bool:
        if _is_altered(layer):
            return False
        if (known := WITHOUT_PARAMETERS.get(type(layer))) is not None:
            # What is computed in place would overwrite an input that is held.
            in_place = getattr(layer, "inplace", False) and not isinstance(known, FromOutput)
            odd = getattr(layer, "return_indices", False) or getattr(layer, "start_dim", 1) < 1
            return not in_place and not odd
        parameters = [p for p in layer._parameters.values() if p is not None]
        usual = getattr(layer, "padding_mode", "zeros") == "zeros" and not isinstance(
            getattr(layer, "padding", 0), str
        )
        trained = bool(parameters) and all(
            type(p) is nn.Parameter and id(p) in self._trained for p in parameters
        )
        return type(layer) in WITH_PARAMETERS and usual and trained

    def under(self, mode: TracingMode) -> AbstractContextManager[None]:
        """For the block the containers compute runs of layers as one operation, to `mode` a call of
        its own.
        """
        return self._instead(
            lambda number, module, runs: partial(_through, mode, runs, self._trained)
        )

    @contextmanager
    def _instead(
        self, forward: Callable[[int, nn.Module, Any], Callable[[Any], Any]]
    ) -> Iterator[None]:
        for number, (module, runs) in enumerate(self._containers):
            vars(module)["forward"] = forward(number, module, runs)
        try:
            yield
        finally:
            for module, _ in self._containers:
                vars(module).pop("forward", None)


#: Where PyTorch keeps hooks: in a module, and with `_global` before the name, for all.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _through(
    mode: TracingMode, runs: Sequence[Sequence[nn.Module]], trained: set[int], input: Any
) -> Any:
    x = input
    hooked = any(getattr(torch_module, f"_global{name}", None) for name in _HOOKS)
    usual = hooked or not isinstance(x, Tensor) or torch.is_autocast_enabled(x.device.type)
    for run in runs:
        parameters = [p for layer in run for p in layer._parameters.values() if p is not None]
        # `functional_call` puts other tensors in the places of parameters.
        if len(run) == 1 or usual or not trained.issuperset(map(id, parameters)):
            for layer in run:
                x = layer(x)
            continue
        with torch._C.DisableTorchFunction():
            mode.trace = hash((mode.trace, "run"))
            if isinstance(mode, Capture):
                mode.program.call("run", (id(run[0]), x), {})
                x = _Fused.apply(Tape(mode), run, x, *parameters)  # type: ignore[no-untyped-call]
                mode.program.number(x)
            else:
                for layer in run:
                    x = layer(x)
    return x


def _is_altered(module: nn.Module) -> bool:
    """Whether something is done around a module's forward, or in its place."""
    attributes = vars(module)
    return (
        "forward" in attributes
        or attributes.get("_compiled_call_impl") is not None
        or any(attributes.get(name) for name in _HOOKS)
    )


def _is_container(module: nn.Module) -> bool:
    return type(module) is nn.Sequential and not _is_altered(module)


def _flatten(module: nn.Module, inner: set[int]) -> Iterator[nn.Module]:
    """The layers of a container, and of those that it holds, whose identities go into `inner`."""
    for layer in module._modules.values():  # `children()` leaves out what comes twice
        assert layer is not None
        if _is_container(layer):
            inner.add(id(layer))
            yield from _flatten(layer, inner)
        else:
            yield layer
