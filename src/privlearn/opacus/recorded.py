"""What a script computes from a batch, noted while it computes, so that it can be computed again
for each example.

A script in Opacus's form calls the model, the loss and `backward` itself, for a whole batch. The
tensors it is given are `Recorded`: they hold the batch's values, and operations on them become
entries on the tape of their `Turn`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten

from privlearn._figures import COMPARED, PLAIN, as_figures, note
from privlearn.errors import BadInput

#: Operations whose first size may be the number of rows.
_SIZED = {"view", "reshape", "expand", "new_zeros", "new_ones", "new_full", "new_empty"}
#: What is known of a batch without looking at its values.
_PUBLIC = {
    "size",
    "dim",
    "ndimension",
    "numel",
    "nelement",
    "__len__",
    "stride",
    "is_floating_point",
    "is_complex",
    "is_contiguous",
    "element_size",
    "type",
    "get_device",
    "__hash__",
    "__get__",
    "__set__",
    "retain_grad",
}
_WRITES = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__"}


@final
@dataclass(frozen=True)
class Ref:
    """An output of an entry of the tape."""

    entry: int
    output: int = 0


class Mark(Enum):
    """What stands in an entry for values that are another for each batch."""

    ROWS = "the number of rows"
    CHANGED = "a tensor that was changed in place"
    STALE = "a tensor of another batch"


@final
@dataclass(frozen=True, eq=False)
class Entry:
    """One operation.

    Attributes:
        function: what is called: a tensor of the batch by its number, None for the model, or a
            function of torch.
        values: the leaves of (args, kwargs), in which `Ref` and `Mark` stand for what is computed
            from the batch.
        structure: the nest of these.
        late: whether numbers were read out of a batch before it: constants may then follow from
            rows.
    """

    function: Any
    values: list[Any]
    structure: TreeSpec
    late: bool

    @property
    def name(self) -> str:
        """What its function is called."""
        return "the model" if self.function is None else getattr(self.function, "__name__", "")


@final
@dataclass
class Watch:
    """Whether numbers were read out of any batch of a run."""

    was_read: bool = False


@final
@dataclass(eq=False)
class Turn:
    """One batch in the hands of a script, from when it is drawn to the step that is taken on it.

    Attributes:
        rows: how many the batch has.
        watch: of the run.
        on_backward: called with the loss and the gradient of `backward`.
        tape: what was computed from the batch.
        is_open: whether more is noted.
        loss: what `backward` was called of, once it was.
    """

    rows: int
    watch: Watch
    on_backward: Callable[[Turn, Recorded, Any], None]
    tape: list[Entry] = field(default_factory=list)
    is_open: bool = True
    loss: Any = None

    def note(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        """Note an operation; its outputs, recorded."""
        values, structure = tree_flatten((args, kwargs))
        values = [self._encode(value) for value in values]
        if (
            getattr(function, "__name__", "") in _SIZED
            and type(values[1]) is int
            and values[1] == self.rows
        ):
            values[1] = Mark.ROWS
        self.tape.append(Entry(function, values, structure, self.watch.was_read))
        number, (leaves, nest) = len(self.tape) - 1, tree_flatten(out)
        return tree_unflatten(
            [
                Recorded.of(leaf, self, Ref(number, place)) if isinstance(leaf, Tensor) else leaf
                for place, leaf in enumerate(leaves)
            ],
            nest,
        )

    def _encode(self, value: Any) -> Any:
        # a constant is kept as it is now: it may be written into later
        if not isinstance(value, Recorded):
            return value.clone() if isinstance(value, Tensor) and not value.requires_grad else value
        if value.turn is not self:
            return Mark.STALE
        return value.ref if plain(value)._version == value.version else Mark.CHANGED

    def close(self) -> None:
        """A step was taken: nothing is noted from here on."""
        self.is_open = False
        self.tape.clear()


@final
class Recorded(Tensor):
    """A tensor of a batch, or computed from one, whose operations are noted. Its values are
    private.
    """

    turn: Turn
    ref: Ref
    version: int

    @staticmethod
    def of(values: Tensor, turn: Turn, ref: Ref) -> Recorded:
        """These values, as an output of an entry."""
        recorded: Recorded = Tensor._make_subclass(Recorded, plain(values).detach())
        recorded.turn, recorded.ref, recorded.version = turn, ref, plain(recorded)._version
        return recorded

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute, and note it."""
        kwargs = kwargs or {}
        if func is Tensor.backward:
            return _backward(*args, **kwargs)
        if func is torch.autograd.grad:
            raise BadInput(
                "torch.autograd.grad was called of a batch: expected loss.backward(), whose "
                "gradients are clipped for each example. Gradients of inputs belong into a loss of "
                "pv.make_private"
            )
        return computed(func, args, kwargs, func)


def computed(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], noted: Any
) -> Any:
    """What a function gives for recorded tensors, noted under another name; for other tensors
    simply what it gives.
    """
    recorded = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Recorded)]
    turn = next((tensor.turn for tensor in recorded if tensor.turn.is_open), None)
    recording = turn is not None and torch.is_grad_enabled()
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad() if recording else nullcontext():
        try:
            out = func(*tree_map(plain, args), **tree_map(plain, kwargs))
        except (RuntimeError, ValueError, IndexError):
            if turn is None or turn.rows:
                raise
            out = _of_no_rows(func, *tree_map(plain, (args, kwargs)))
    if not recorded:
        return out
    name, writes_out = getattr(noted, "__name__", ""), kwargs.get("out") is not None
    tensors = any(isinstance(leaf, Tensor) for leaf in tree_leaves(out))
    if name in _WRITES or (name.endswith("_") and not name.endswith("__")) or writes_out:
        if not isinstance(args[0], Recorded) or writes_out:
            recorded[0].turn.watch.was_read = True
            note(PLAIN, silent=True)
        return out if writes_out else args[0]
    if turn is not None and recording and tensors:
        return turn.note(noted, args, kwargs, out)
    if tensors or name not in _PUBLIC:  # from here on the script may hold numbers of the batch
        recorded[0].turn.watch.was_read = True
        return _private(out, name)
    return out


def _private(out: Any, name: str) -> Any:
    """What leaves the tape: numbers as private figures. Tensors are not followed, which is
    noted.
    """
    leaves = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
    if not leaves:
        return as_figures(out, name)
    if any(leaf.dtype is torch.bool and leaf.numel() == 1 for leaf in leaves):
        note(COMPARED)  # `if loss < best`
    else:
        note(PLAIN, silent=True)
    return out


def _of_no_rows(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What comes of an empty batch where the function can't compute one: no rows of what comes of a
    made-up one.
    """
    if getattr(func, "__name__", "") in _SIZED and args[1] == 0:
        args = (args[0], 1, *args[2:])
    args, kwargs = tree_map(
        lambda leaf: (
            leaf.new_zeros([size or 1 for size in leaf.shape]) if isinstance(leaf, Tensor) else leaf
        ),
        (args, kwargs),
    )
    return tree_map(
        lambda leaf: leaf[:0] if isinstance(leaf, Tensor) and leaf.dim() else leaf,
        func(*args, **kwargs),
    )


def plain(value: Any) -> Any:
    """The values of a recorded tensor; anything else as it is."""
    if isinstance(value, Recorded):
        with torch._C.DisableTorchFunctionSubclass():
            return value.as_subclass(Tensor)
    return value


def _backward(loss: Recorded, gradient: Any = None, *args: Any, **kwargs: Any) -> None:
    loss.turn.on_backward(loss.turn, loss, gradient)
