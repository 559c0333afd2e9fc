"""Indices out of range are seen on an accelerator before a kernel meets them.

The processor answers a label or a token out of range with an error, so that its example adds
nothing. CUDA ends for the whole process instead, at some later wait, which tells of the row. So on
an accelerator indices are looked at in every operation that takes some: those out of range are
overwritten, and a flag that stays on the device says that there were any. It is read where code
waits for the device anyway, and that code raises what the processor would have raised. Indices that
lie on the processor raise at once: an operation on the device takes them too.

Overwritten means in their own memory: so the backward pass, for which autograd keeps them, meets
none either. Rows are copies, and what is computed with a flag is thrown away.

`ctc_loss` is looked at on the processor, too: its kernel there reads, and writes, beside the memory
of its tensors, where other examples may be.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from privlearn.core.devices import on_processor

#: What is wrong; the same words whatever the index is, and whichever operation took it.
OUT_OF_RANGE = "an index or a target is out of range"
#: Those whose arguments may all be floats.
_OF_FLOATS = frozenset(("binary_cross_entropy", "bernoulli", "bernoulli_", "multinomial"))
#: Functions whose indices no kernel looks at, not even the processor's.
_UNCHECKED = "ctc_loss"


@final
class Indices:
    """Which looks at the indices of one model's passes are taken, and what they saw.

    Args:
        device: where the model is. The processor looks itself, but for `ctc_loss`.

    Attributes:
        flag: whether an index was out of range, on the device; None if none was looked at.
        unchecked: whether `ctc_loss` is called; None: that is not known before made-up rows ran.
    """

    def __init__(self, device: torch.device) -> None:
        self.looks = not on_processor(device) and device.type != "meta"
        self.flag: Tensor | None = None
        self.unchecked: bool | None = None
        self._waits = True

    @contextmanager
    def defer(self) -> Iterator[None]:
        """A block in which nothing is raised: `flag` says afterwards what was seen."""
        self.flag, self._waits = None, False
        try:
            yield
        finally:
            self._waits = True

    def looking(self) -> AbstractContextManager[object]:
        """A block in which all indices are looked at, also in a backward pass.

        Raises:
            IndexError: one is out of range; within `defer` the flag says so instead.
        """
        if self.looks:
            return _Looking(self)
        return nullcontext() if self.unchecked is False else _LookingAtCalls(self)

    def at_call(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AbstractContextManager[object]:
        """The same for one call of a function: only if it can take indices."""
        name = getattr(func, "__name__", "")
        if name == _UNCHECKED:
            self.unchecked = True
            return _Looking(self)
        if self.looks and (name in _OF_FLOATS or _may_index(args, 0) or _may_index(kwargs, 0)):
            return _Looking(self)
        return nullcontext()

    def see(self, outside: Tensor) -> None:
        """Note whether something is out of range."""
        if self._waits:
            if outside.item():
                raise IndexError(OUT_OF_RANGE)
            return
        self.flag = outside if self.flag is None else self.flag | outside


def looking_at(device: torch.device) -> AbstractContextManager[object]:
    """A block in which indices out of range raise what they raise on the processor, wherever the
    model is.

    Raises:
        IndexError: one is out of range.
    """
    indices = Indices(device)
    return indices.looking() if indices.looks else nullcontext()


def _may_index(value: Any, depth: int) -> bool:
    """Whether whole numbers in an argument may be an index: a tensor, or what becomes one between
    brackets, as in `x[[0, 7]]`.

    A number that is not so deep inside is a size or one place (`x[0, 7]`): PyTorch looks at it.
    """
    if isinstance(value, Tensor):
        kind = value.dtype
        return not (kind.is_floating_point or kind.is_complex or kind is torch.bool)
    if isinstance(value, list | tuple | dict):
        parts = value.values() if isinstance(value, dict) else value
        return any(_may_index(part, 3 if type(value) is list else depth + 1) for part in parts)
    if isinstance(value, int):
        return depth > 2
    return hasattr(value, "__len__") and not isinstance(value, str)  # an array, a range


@final
class _LookingAtCalls(TorchFunctionMode):
    """While it is active, the indices of each function that can take some are looked at first."""

    def __init__(self, indices: Indices) -> None:
        super().__init__()
        self._indices = indices

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        with self._indices.at_call(func, args, kwargs):
            return func(*args, **kwargs)


@final
class _Looking(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is active, each operation's indices are looked at first."""

    def __init__(self, indices: Indices) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # where indices are looked at alone
        from privlearn.core.clipping.index_ranges import RANGES

        self._indices, self._ranges = indices, RANGES

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        check = self._ranges.get(func.overloadpacket.__name__.removesuffix("_"))
        if check is not None:
            with _disable_current_modes():  # the look is no part of the model
                for values, within in check(_arguments(func, args, kwargs)):
                    self._settle(values, within)
            return func(*args, **kwargs)
        if func._can_decompose() and _is_composite(func):  # in inference mode
            with self:
                return func.decompose(*args, **kwargs)
        return func(*args, **kwargs)

    def _settle(self, values: Tensor, within: Tensor) -> None:
        outside = (within != values).any()
        if not on_processor(values):
            self._indices.see(outside)
            overwrite(values, within)
        elif outside:
            raise IndexError(OUT_OF_RANGE)


def _is_composite(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def _arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = (argument.name for argument in func._schema.arguments)
    return {**dict(zip(names, args, strict=False)), **kwargs}


def overwrite(values: Tensor, by: Tensor) -> None:
    """Put numbers into the memory of a tensor, of which several places may be one in memory."""
    if values.is_contiguous():
        values.copy_(by)
        return
    if not values.numel():
        return
    strides = zip(values.shape, values.stride(), strict=True)
    extent = 1 + sum((size - 1) * stride for size, stride in strides)
    memory = values.as_strided((extent,), (1,))
    places = torch.arange(extent, device=values.device)
    places = places.as_strided(values.shape, values.stride(), 0)
    memory.scatter_(0, places.reshape(-1), by.reshape(-1))
