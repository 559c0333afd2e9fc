"""One backward pass in which only gradients of activations flow, and what each parameter needs is kept on the way.

A torch function mode sees every operation of the model, wherever it is called from. An operation that has a rule and
uses a trained parameter runs as an autograd function of ours: its backward pass hands on the gradient of its input, and
keeps each example's gradient of its parameters, or what tells their norms. The parameters' own gradients are never
computed; if autograd nevertheless finds one, a use went unseen, and the whole way is given up.

Activation checkpointing is switched off: parts that are computed again in the backward pass would go unseen. Memory is
bounded by the number of examples that are computed at once instead.

Operations are separated by examples through their place in the batch. A model that sorts, picks or drops rows breaks
that, and may do so only on data of a certain kind, which no made-up row has: so every such operation is looked at.
Which dimensions of its tensor are the batch's is known from made-up batches of two sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, cast, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from privlearn.clipping.kernels import Kernels
from privlearn.clipping.parameters.derived import Derived, tensors_in
from privlearn.clipping.per_example import ExampleGradients, together
from privlearn.errors import PrivlearnError


class NotLayerwise(PrivlearnError):
    """The gradients can't be read off the operations' inputs and outputs."""


@final
@dataclass(frozen=True)
class Layout:
    """Where the examples are in a tensor of one call.

    Attributes:
        axis: the dimension of the batch, 0 or 1.
        rows: how many entries in that dimension belong to one example, one after the other.
    """

    axis: int
    rows: int

    @classmethod
    def between(cls, one: Sequence[int], other: Sequence[int], batches: tuple[int, int]) -> Layout:
        """The layout that explains the shapes of the same call at two batch sizes."""
        if one and one[0] % batches[0] == 0 and one[0] * batches[1] == other[0] * batches[0]:
            return cls(0, one[0] // batches[0])
        if len(one) > 1 and (one[1], other[1]) == batches:
            return cls(1, 1)
        raise NotLayerwise(f"an operation on shape {tuple(one)} has no dimension for the batch of {batches[0]}")


@final
@dataclass
class Call:
    """One call of an operation: turns its tensors into one row of positions for each example.

    Attributes:
        layout: where the examples are.
        examples: how many there are.
        copies: rows of the batch that belong to one example.
        dtype: of the parameters; gradients are computed in it, whatever the operation computes in.
        keep: takes what the backward pass finds: (parameter, block of its rows, gradients).
    """

    layout: Layout
    examples: int
    copies: int
    dtype: torch.dtype
    keep: Callable[[Tensor, slice | None, ExampleGradients], None]

    def grouped(self, t: Tensor) -> Tensor:
        """`t` as (examples, rows of one example, ...)."""
        if self.layout.axis == 1:
            t = t.transpose(0, 1)
        rows = self.copies * self.layout.rows
        if len(t) != self.examples * rows:
            raise NotLayerwise(f"an operation on {len(t)} rows: expected {rows} for each of {self.examples} examples")
        typed = t.to(self.dtype) if t.is_floating_point() else t
        return typed.reshape(self.examples, rows, *typed.shape[1:])

    def single(self, t: Tensor) -> bool:
        """Whether each example is one row of `t`, of shape (examples, features)."""
        one = self.layout.axis == 0 and self.layout.rows * self.copies == 1
        return one and t.dim() == 2 and t.shape[0] == self.examples and t.dtype == self.dtype

    def positions(self, t: Tensor) -> Tensor:
        """`t` as (examples, positions, features)."""
        return self.grouped(t).flatten(1, -2)


class Operation(Protocol):
    """One operation with parameters, as one call has them."""

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """Those that are trained."""
        ...

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        ...

    def backward(self, call: Call, x: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        """Keep the parameters' gradients in `call`; return the gradient of `x` if it is `wanted`."""
        ...


class _Through(torch.autograd.Function):
    """Runs an operation. The parameters are arguments so that autograd comes here on its way to them."""

    @staticmethod
    def forward(ctx: Any, operation: Operation, call: Call, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.operation, ctx.call = operation, call
        ctx.save_for_backward(x)
        out = operation.forward(x)
        # To autograd a tensor of its own, which may be changed in place.
        return torch.ops.aten._unsafe_view(out, list(out.shape)) if out._is_view() else out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        back = ctx.operation.backward(ctx.call, x.detach(), g, ctx.needs_input_grad[2])
        return (None, None, back, *([None] * len(ctx.operation.parameters)))


#: A rule takes the arguments of the operation it is for, behind the capture, and answers like it, or NotImplemented.
Rule = Callable[..., Any]


@final
@dataclass
class ParameterUses:
    """What the uses of parameters brought: for each, by identity, blocks of its rows and their gradients."""

    uses: dict[int, list[tuple[slice | None, ExampleGradients]]] = field(default_factory=dict)

    def keep(self, parameter: Tensor, rows: slice | None, gradients: ExampleGradients) -> None:
        """Add one use."""
        self.uses.setdefault(id(parameter), []).append((rows, gradients))

    def of(self, parameter: Tensor) -> ExampleGradients | None:
        """All uses of `parameter` together, or None if there was none."""
        uses = self.uses.pop(id(parameter), None)
        return together(uses, parameter.shape) if uses else None


class Capture(TorchFunctionMode):
    """While it is active, operations that have a rule and use a trained parameter run as ours.

    Args:
        rules: for each of torch's functions, its rule.
        trained: the trained parameters.
        kernels: for matrix products.
        examples: in the batch.
        copies: rows of the batch for each example.
        layouts: of each call, in order; None to write down the shapes instead.
        batch: of each operation that may move rows, in order, the batch's dimensions of what it moves.
        shared: of each call, in order, whether it derives from trained parameters, and not from the batch.
    """

    def __init__(
        self,
        rules: dict[Any, Rule],
        trained: Sequence[Tensor],
        kernels: Kernels,
        examples: int,
        copies: int = 1,
        layouts: Sequence[Layout] | None = None,
        batch: Sequence[set[int]] = (),
        shared: Sequence[bool] = (),
    ) -> None:
        super().__init__()
        self.kernels = kernels
        self.uses = ParameterUses()
        self.derived = Derived(trained)
        self.shapes: list[tuple[int, ...]] = []
        #: Tells sequences of operations apart.
        self.trace = 0
        #: Operations without a rule that were given a trained parameter, by its identity.
        self.unseen: dict[int, str] = {}
        #: While shapes are written down: of each operation's tensors, and what operations that may move rows move.
        self.seen: list[list[tuple[int, ...]]] = []
        self.moves: list[tuple[str, tuple[int, ...], set[int]]] = []
        self._rules, self._examples, self._copies, self._layouts = rules, examples, copies, layouts
        self._batch, self._looks, self._shared, self._calls = batch, 0, shared if any(shared) else (), 0
        self._trained = {id(p) for p in trained}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run `func` by its rule, or as it is."""
        kwargs = kwargs or {}
        name, unruled, may_move = _facts(func)
        self.trace = hash((self.trace, name))
        if self._shared:
            self._calls += 1
            if self._calls <= len(self._shared) and self._shared[self._calls - 1]:
                out = func(*args, **kwargs)
                self.derived.see(func, args, kwargs, out)
                return out
        rule = self._rules.get(func)
        if rule is not None:
            answer = rule(self, *args, **kwargs)
            if answer is not NotImplemented:
                return answer
        if unruled:
            raise NotLayerwise(f"there is no rule for what {func} does with rows")
        if may_move:
            self._look(func, name, args, kwargs)
        if name != "__get__" or self._layouts is None:  # attributes such as its shape use nothing
            parts = tensors_in(args, kwargs)
            if self._layouts is None:
                self.seen.append([tuple(part.shape) for part in parts])
            for part in parts if name != "__get__" else ():
                for root in self.derived.roots(part):
                    self.unseen.setdefault(root, name)
        return func(*args, **kwargs)

    def _look(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise if `func`, which may change whose rows are where, does so."""
        self._looks += 1
        if self._layouts is None:
            tensor = source(func, args, kwargs)
            self.moves.append((name, () if tensor is None else tuple(tensor.shape), moved(func, args, kwargs)))
        elif self._looks > len(self._batch):
            raise NotLayerwise("the model calls other operations than it did on made-up rows")
        elif (batch := self._batch[self._looks - 1]) and batch & moved(func, args, kwargs):
            raise NotLayerwise(f"{name} may change whose rows are where")

    def trains(self, *parameters: Tensor | None) -> bool:
        """Whether one of `parameters` is trained, or derived from what is."""
        for p in parameters:  # noqa: SIM110 - asked several times by each operation: a generator takes three times as long
            if id(p) in self._trained or p in self.derived:
                return True
        return False

    def knows(self, *parameters: Tensor | None) -> bool:
        """Whether each of `parameters` is trained, or stays out of the gradient."""
        for p in parameters:  # noqa: SIM110 - as above
            if p is not None and not self.trains(p) and p.requires_grad:
                return False
        return True

    def call(self, shape: Sequence[int], dtype: torch.dtype) -> Call:
        """What the next call of an operation has to know; `shape` is its input's."""
        number = len(self.shapes)
        self.shapes.append(tuple(shape))
        if self._layouts is None:
            layout = Layout(0, 1)
        elif number < len(self._layouts):
            layout = self._layouts[number]
        else:
            raise NotLayerwise("the model calls other operations than it did on made-up rows")
        return Call(layout, self._examples, self._copies, dtype, self.uses.keep)

    def run(self, operation: Operation, x: Tensor, low: bool = True) -> Tensor:
        """Run `operation` on `x`.

        Args:
            operation: with the parameters of this call.
            x: its input.
            low: whether autocast runs it in its low precision; otherwise in single precision.
        """
        call = self.call(x.shape, operation.parameters[0].dtype)
        own = [self.derived.leaf(p) for p in operation.parameters]
        if not torch.is_autocast_enabled(x.device.type):
            return cast(Tensor, _Through.apply(operation, call, x, *own))  # type: ignore[no-untyped-call]
        if x.is_floating_point():
            x = x.to(torch.get_autocast_dtype(x.device.type) if low else torch.float32)
        with no_autocast(x):
            return cast(Tensor, _Through.apply(operation, call, x, *own))  # type: ignore[no-untyped-call]


def moving(one: Capture, other: Capture) -> list[set[int]]:
    """From two captures of made-up rows: for operations that may move rows, the batch's dimensions of what each moves.

    Raises:
        NotLayerwise: rows are moved, or put together by a matrix.
    """
    for shapes, others in zip(one.seen, other.seen, strict=True):
        if any(len(batch_dimensions(*pair)) > 1 for pair in zip(shapes, others, strict=True)):
            raise NotLayerwise("a matrix from rows of the batch to its rows may change whose rows are where")
    batched = []
    for (name, shape, dims), (_, other_shape, other_dims) in zip(one.moves, other.moves, strict=True):
        batched.append(batch_dimensions(shape, other_shape))
        if batched[-1] & (dims | other_dims):
            raise NotLayerwise(f"{name} may change whose rows are where")
    return batched


@final
class _Once:
    """In place of checkpoints that begin a backward pass of their own."""

    @staticmethod
    def apply(function: Callable[..., Any], _preserve_rng_state: bool, *args: Any) -> Any:
        """What the part gives."""
        return function(*args)


def _around(*args: Any, **kwargs: Any) -> Iterator[None]:
    """What PyTorch does before and after a part that is computed again: nothing."""
    yield


#: What `torch.utils.checkpoint.checkpoint` calls for its two kinds. PyTorch has no public switch; without these names
#: checkpoints stay as they are.
_INSTEAD: dict[str, Any] = {"CheckpointFunction": _Once, "_checkpoint_without_reentrant_generator": _around}


@contextmanager
def without_checkpoints() -> Iterator[None]:
    """For the block, what is checkpointed is computed once, like everything else."""
    held = {name: getattr(checkpoint, name) for name in _INSTEAD if hasattr(checkpoint, name)}
    for name in held:
        setattr(checkpoint, name, _INSTEAD[name])
    try:
        yield
    finally:
        for name, own in held.items():
            setattr(checkpoint, name, own)


def no_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Types are what they are for the block. Where there is no autocast anyway, this costs nothing."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


_GET = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
#: Operations that move entries along one dimension: its place among their arguments, and what it is by default.
_ALONG: dict[str, tuple[int, int | None]] = {
    **dict.fromkeys(["index_select", "index_add", "index_copy", "index_fill", "gather", "scatter"], (1, None)),
    **dict.fromkeys(["scatter_add", "scatter_reduce", "index_reduce", "flip", "narrow", "select"], (1, None)),
    **dict.fromkeys(["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"], (1, None)),
    **dict.fromkeys(["roll", "repeat_interleave", "take_along_dim"], (2, None)),
    **dict.fromkeys(["split", "split_with_sizes", "chunk", "tensor_split"], (2, 0)),
    **{"sort": (1, -1), "msort": (9, 0), "topk": (2, -1), "unbind": (1, 0)},
}
_ANYWHERE = {
    "take", "put", "masked_select", "masked_scatter", "index_put", "flipud", "unique", "_return_output",
    "_return_inverse", "_return_counts", "unique_consecutive", "_unique_impl", "_unique2",
}  # fmt: skip
_LOOK_UP = {"embedding", "embedding_bag"}


@lru_cache(maxsize=4096)
def _facts(func: Any) -> tuple[str, bool, bool]:
    """An operation's name, whether there is no rule for any of its kind, and whether it may move entries."""
    overload = isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket)
    return getattr(func, "__name__", ""), overload, looked_at(func)


def looked_at(func: Any) -> bool:
    """Whether `func` is an operation that may move entries of a tensor."""
    name = _name(func)
    return func in _GET or name in _ALONG or name in _ANYWHERE or name in _LOOK_UP


def source(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor | None:
    """The tensor whose entries `func` may move."""
    place, keyword = (1, "weight") if _name(func) in _LOOK_UP else (0, "input")
    argument = args[place] if len(args) > place else kwargs.get(keyword)
    return argument if isinstance(argument, Tensor) else None


def moved(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> set[int]:
    """The dimensions of `source` along which `func` may move entries on these arguments."""
    tensor = source(func, args, kwargs)
    if tensor is None or tensor.dim() == 0:
        return set()
    if func in _GET:
        return set(_indexed(tensor, args[1]))
    name, everything = _name(func), set(range(tensor.dim()))
    if name in _LOOK_UP:
        return {0}
    if name in _ANYWHERE:
        return everything
    if name == "repeat_interleave" and isinstance(args[1] if len(args) > 1 else kwargs.get("repeats"), int):
        return set()  # copies stay with their row
    place, usual = _ALONG[name]
    dims = kwargs.get("dim", kwargs.get("dims", kwargs.get("axis", args[place] if len(args) > place else usual)))
    if name == "flip" and len(args) > 2:
        dims = args[1:]
    if isinstance(dims, bool) or not isinstance(dims, int | tuple | list):
        return {tensor.dim() - 1} if name == "sort" else everything
    return {int(dim) % tensor.dim() for dim in (dims if isinstance(dims, tuple | list) else [dims])}


def batch_dimensions(one: Sequence[int], other: Sequence[int]) -> set[int]:
    """The dimensions that tell apart the shapes of one tensor at two batch sizes."""
    return {dim for dim, (a, b) in enumerate(zip(one, other, strict=True)) if a != b}


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", "")).rstrip("_")


def _indexed(tensor: Tensor, index: Any) -> Iterator[int]:
    """The dimensions along which tensor[index] has other entries than the tensor, or has them elsewhere."""
    items = [_item(item) for item in (index if isinstance(index, tuple) else (index,))]
    taken = sum(_taken(item) for item in items)
    dim = 0
    for item in items:
        size = tensor.shape[dim] if dim < tensor.dim() else 0
        if item is Ellipsis:
            dim += tensor.dim() - taken
        elif isinstance(item, slice):
            if item.indices(size) != (0, size, 1):
                yield dim
        elif isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8):
            yield from range(dim, dim + item.dim())
        elif isinstance(item, Tensor):
            kept = item.dim() > 0 and item.numel() == len(item) == size
            if not kept or not torch.equal(item.flatten().long(), torch.arange(size, device=item.device)):
                yield dim
        dim += _taken(item)


def _item(item: Any) -> Any:
    return item if item is None or item is Ellipsis or isinstance(item, slice | Tensor) else torch.as_tensor(item)


def _taken(item: Any) -> int:
    """How many dimensions this part of an index is for."""
    if item is None or item is Ellipsis:
        return 0
    return item.dim() if isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8) else 1
