"""A program names what a forward pass runs: the sequence of its calls and of what flows between
them.

Python learns a value of a batch only by reading it out of a tensor. A program that was checked
(`gate`) reads nothing, so a pass with the name of a checked program is that program, whatever its
rows hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from numbers import Integral, Number
from typing import Any, final

import torch
from torch import Tensor, nn

from privlearn.core.clipping.layout import NotLayerwise
from privlearn.core.devices import KIND_FLAGS


@final
class Constants:
    """Tensors that were there before any rows of the data were seen.

    What the model and the loss hold as modules is constant. Others, such as class weights in a
    closure, are entered while `is_open`, as they are met on made-up rows. Any other tensor may hold
    something of an earlier batch.

    Args:
        owners: the model, and the loss if it is a module.

    Attributes:
        is_open: whether tensors that are met are entered.
    """

    def __init__(self, *owners: nn.Module) -> None:
        self.is_open = True
        # Held, so that an identity stays that of its tensor.
        self._known: dict[int, Tensor] = {}
        #: What a pass writes into these is undone after it (`FrozenState`, `TrainedState`).
        self._restored = set[int]()
        for owner in owners:
            for module in owner.modules():
                for value in (*module._parameters.values(), *module._buffers.values()):
                    self._restored.add(id(value))
                    self._enter(value)
                for value in vars(module).values():
                    self._enter(value)

    def _enter(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self._known[id(value)] = value
        elif isinstance(value, list | tuple):
            for item in value:
                self._enter(item)

    def are_restored(self, tensor: Tensor) -> bool:
        """Whether what is written into `tensor` is undone after each pass."""
        return id(tensor) in self._restored and tensor in self

    def __contains__(self, tensor: Tensor) -> bool:
        return self._known.get(id(tensor)) is tensor

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._known.values())

    def name(self, tensor: Tensor) -> int:
        """A number that stands for `tensor` alone.

        Raises:
            NotLayerwise: it is not known.
        """
        if self._known.get(id(tensor)) is not tensor:
            if not self.is_open:
                raise NotLayerwise(
                    f"the model or the loss uses a tensor of shape {tuple(tensor.shape)} that was "
                    "not there when the run began: it may hold something of other examples"
                )
            self._known[id(tensor)] = tensor
        return id(tensor)


#: Passes so far. What a tensor of an earlier pass was named is below what the names of this pass
#: begin with.
_passes = count(1)

_PLAIN = frozenset(
    {bool, str, type(None), type(...), torch.dtype, torch.Size, torch.device, torch.memory_format}
)

_T = torch.Tensor
#: What tells nothing but a tensor's type and shape. The shapes of the batch are part of a program's
#: name.
METADATA: frozenset[Any] = frozenset(
    {
        _T.dim,
        _T.size,
        _T.__len__,
        _T.numel,
        _T.stride,
        _T.is_floating_point,
        _T.is_contiguous,
        *(
            getattr(_T, name).__get__
            for name in (
                "shape",
                "dtype",
                "device",
                "requires_grad",
                "ndim",
                "is_leaf",
                "layout",
                *KIND_FLAGS,
            )
        ),
    }
)


@final
class Program:
    """The name of the program of one pass, as far as it has run.

    Args:
        constants: what may come from outside of the pass.
        leaves: the tensors of the batch.
        followed: whether `flow` is formed.

    Attributes:
        key: the name: of all functions, of which earlier results each takes, and of all numbers.
        flow: the same without whole numbers, which is to be the same for batches of other sizes.
    """

    def __init__(
        self, constants: Constants, leaves: Sequence[Tensor], *, followed: bool = False
    ) -> None:
        self._constants, self._followed, self.flow = constants, followed, 0
        self._base = self._last = next(_passes) << 32
        self.key = hash(tuple((leaf.shape, leaf.dtype) for leaf in leaves))
        for leaf in leaves:
            self.number(leaf)

    def call(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """`func` is called with these."""
        parts = [self.key, func]
        for value in args:
            self._describe(value, parts)
        if kwargs:
            self._describe(kwargs, parts)
        self.key = hash(tuple(parts))
        if self._followed:
            parts = [self.flow, func]
            self._describe_flow((args, kwargs), parts)
            self.flow = hash(tuple(parts))

    def number(self, out: Any) -> None:
        """Name the tensors that a call gave."""
        if isinstance(out, Tensor):
            self._last += 1
            out._result_number = self._last  # type: ignore[attr-defined]
        elif isinstance(out, list | tuple):
            for item in out:
                self.number(item)

    def _describe(self, value: Any, parts: list[Any]) -> None:
        # Whole numbers, results and constants have other remainders by 4, so that none stands for
        # another. None is -2, whose hash is that of -1.
        kind = value.__class__
        if isinstance(value, Tensor):
            number = getattr(value, "_result_number", 0) - self._base
            parts.append(4 * number + 2 if number > 0 else 4 * self._constants.name(value))
        elif kind is int:
            parts.append(4 * value + 3)
        elif kind in _PLAIN:
            parts.append(value)
        elif kind is slice:
            parts.append(slice)
            for item in (value.start, value.stop, value.step):
                self._describe(item, parts)
        elif isinstance(value, list | tuple):
            parts.append(len(value))
            for item in value:
                self._describe(item, parts)
        elif isinstance(value, dict):
            for name, item in value.items():
                parts.append(name)
                self._describe(item, parts)
        elif isinstance(value, Number):  # in a tuple it stands for no whole number; NaN has no hash
            parts.append((kind, value if value == value else None))
        else:
            parts.append(kind)

    def _describe_flow(self, value: Any, parts: list[Any]) -> None:
        """The same without whole numbers, and without how many of them there are."""
        if isinstance(value, Integral | slice | torch.Size) and not isinstance(value, bool):
            return
        if isinstance(value, list | tuple):
            for item in value:
                self._describe_flow(item, parts)
        elif isinstance(value, dict):
            for name, item in value.items():
                parts.append(name)
                self._describe_flow(item, parts)
        else:
            self._describe(value, parts)


def renamed(before: Sequence[Any], after: Sequence[Any]) -> None:
    """Give each tensor of `after` the name of its counterpart in `before`, which it is an alias
    of.
    """
    for one, other in zip(before, after, strict=False):
        if isinstance(one, Tensor) and isinstance(other, Tensor) and hasattr(one, "_result_number"):
            other._result_number = one._result_number  # type: ignore[attr-defined]


def counts_all(args: Sequence[Any]) -> bool:
    """Whether `x == y` compares the number of true entries of a mask with the number of all
    entries.
    """
    return (
        len(args) > 1
        and isinstance(args[1], int)
        and getattr(args[0], "_entries_of_mask", None) == args[1]
    )


def asks_for_all(name: str, args: Sequence[Any]) -> bool:
    """Whether a call is `bool(mask.all())` or `bool(mask.sum() == mask.numel())`.

    Models leave a mask out where nothing is masked, or refuse rows that lack something. That makes
    no difference to an example, but it is a question about all examples of a batch. So the answer
    is False, the general case. To a model that refuses rows of which it is False the answer is
    True, and examples of which it is not are computed apart.
    """
    return name == "__bool__" and getattr(args[0], "_is_of_all", False)


def asks_for_any(name: str, args: Sequence[Any]) -> bool:
    """Whether a call is `bool(mask.any())`: the answer is False, and examples of which it is not
    are computed apart.
    """
    return name == "__bool__" and getattr(args[0], "_is_of_any", False)


def note_question(name: str, args: Sequence[Any], out: Any) -> None:
    """Note that `out` answers whether all entries are true, or any: `mask.all()`,
    `mask.sum() == mask.numel()`.
    """
    if name in ("all", "any", "sum") and out.dim():  # it is about some entries each
        return
    if name == "all" and len(args) == 1:
        out._is_of_all = True
    elif name == "any" and len(args) == 1:
        out._is_of_any = True
    elif name == "sum" and len(args) == 1 and args[0].dtype == torch.bool:
        out._entries_of_mask = args[0].numel()
    elif name in ("eq", "__eq__") and counts_all(args):
        out._is_of_all = True
