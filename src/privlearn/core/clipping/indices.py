"""Indices out of range are seen on an accelerator before a kernel meets them.

The processor answers a label or a token out of range with an error, so that its example adds
nothing. CUDA ends for the whole process instead, at some later wait, which tells of the row. So on
an accelerator indices are looked at in every operation that takes some: those out of range are
overwritten, and a flag that stays on the device says that there were any. It is read where code
waits for the device anyway, and that code raises what the processor would have raised.

Overwritten means in their own memory: so the backward pass, for which autograd keeps them, meets
none either. Rows are copies, and what is computed with a flag is thrown away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from privlearn.core.devices import on_processor

#: What is wrong; the same words whatever the index is, and whichever operation took it.
OUT_OF_RANGE = "an index or a target is out of range"
#: A tensor, and the same with numbers in range.
Checked = tuple[Tensor, Tensor]


def _within(values: Tensor, low: float, high: float) -> Checked:
    """Numbers from `low` to `high`, inclusive.

    Raises:
        IndexError: there are none.
    """
    if high < low and values.numel():
        raise IndexError(OUT_OF_RANGE)
    return values, values.clamp(low, high)


def _along(arguments: dict[str, Any], wraps: bool = False) -> Iterator[Checked]:
    """An index along one dimension; if it `wraps`, numbers below zero count from the end."""
    source, index = arguments["self"], arguments["index"]
    size = source.shape[arguments["dim"]] if source.dim() else 1
    yield _within(index, -size if wraps else 0, size - 1)


def _of_all(arguments: dict[str, Any]) -> Iterator[Checked]:
    size = arguments["self"].numel()
    yield _within(arguments["index"], -size, size - 1)


def _of_axes(arguments: dict[str, Any]) -> Iterator[Checked]:
    """Indices of several dimensions, in their order; a mask takes as many as it has itself."""
    source, axis = arguments["self"], 0
    for index in arguments["indices"]:
        if index is None:
            axis += 1
        elif index.dtype in (torch.bool, torch.uint8):
            axis += index.dim()
        else:
            yield _within(index, -source.shape[axis], source.shape[axis] - 1)
            axis += 1


def _of_table(arguments: dict[str, Any]) -> Iterator[Checked]:
    table = arguments["weight"] if "weight" in arguments else arguments.get("self")
    size = arguments["num_weights"] if table is None else len(table)
    yield _within(arguments["indices"], 0, size - 1)


def _of_bags(arguments: dict[str, Any]) -> Iterator[Checked]:
    yield from _of_table(arguments)
    offsets = arguments["offsets"]
    yield _within(offsets, 0, len(arguments["indices"]))


def _of_classes(arguments: dict[str, Any]) -> Iterator[Checked]:
    scores, target = arguments["self"], arguments["target"]
    _, within = _within(target, 0, scores.shape[1 if scores.dim() > 1 else 0] - 1)
    if "ignore_index" in arguments:
        within = within.where(target != arguments["ignore_index"], target)
    yield target, within


def _of_several_classes(arguments: dict[str, Any]) -> Iterator[Checked]:
    """-1 ends an example's list."""
    yield _within(arguments["target"], -1, arguments["self"].shape[-1] - 1)


def _of_chances(arguments: dict[str, Any]) -> Iterator[Checked]:
    """Probabilities; NaN is none."""
    for name in ("self", "target", "p"):
        if isinstance(values := arguments.get(name), Tensor):
            yield values, values.clamp(0, 1).nan_to_num()


def _of_weights(arguments: dict[str, Any]) -> Iterator[Checked]:
    """What is drawn from: finite, none below zero, and some above it."""
    weights = arguments["self"]
    fits = weights.isfinite() & (weights >= 0)
    fits = fits & (weights.where(fits, 1).sum(-1, keepdim=True) > 0)
    yield weights, weights.where(fits, 1)


def _of_pooled(arguments: dict[str, Any]) -> Iterator[Checked]:
    yield _within(arguments["indices"], 0, math.prod(arguments["output_size"]) - 1)


def _along_wrapped(arguments: dict[str, Any]) -> Iterator[Checked]:
    yield from _along(arguments, wraps=True)


#: By the name of an operation of `torch.ops.aten`, without the underscore of those in place: what
#: it takes that has a range.
RANGES: dict[str, Callable[[dict[str, Any]], Iterator[Checked]]] = {
    **dict.fromkeys(
        (
            "gather",
            "scatter",
            "scatter_add",
            "scatter_reduce",
            "index_select",
            "index_add",
            "index_copy",
            "index_reduce",
        ),
        _along,
    ),
    "index_fill": _along_wrapped,
    **dict.fromkeys(("take", "put"), _of_all),
    **dict.fromkeys(
        ("index", "_unsafe_index", "index_put", "_unsafe_index_put", "_index_put_impl"), _of_axes
    ),
    **dict.fromkeys(("embedding", "embedding_dense_backward", "embedding_renorm"), _of_table),
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), _of_bags),
    **dict.fromkeys(
        (
            "nll_loss_forward",
            "nll_loss_backward",
            "nll_loss2d_forward",
            "nll_loss2d_backward",
            "multi_margin_loss",
            "multi_margin_loss_backward",
        ),
        _of_classes,
    ),
    "multilabel_margin_loss_forward": _of_several_classes,
    **dict.fromkeys(("max_unpool2d", "max_unpool3d"), _of_pooled),
    **dict.fromkeys(("binary_cross_entropy", "bernoulli"), _of_chances),
    "multinomial": _of_weights,
}
#: Those whose arguments may all be floats.
_OF_FLOATS = frozenset(("binary_cross_entropy", "bernoulli", "bernoulli_", "multinomial"))


@final
class Indices:
    """Which looks at the indices of one model's passes are taken, and what they saw.

    Args:
        device: where the model is. On the processor nothing is looked at: it does so itself.

    Attributes:
        flag: whether an index was out of range, on the device; None if none was looked at.
    """

    def __init__(self, device: torch.device) -> None:
        self.looks = not on_processor(device) and device.type != "meta"
        self.flag: Tensor | None = None
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
        return _Looking(self) if self.looks else nullcontext()

    def at_call(self, func: Any, tensors: list[Tensor]) -> AbstractContextManager[object]:
        """The same for one call of a function with these tensors: only if it can take indices."""
        if not self.looks:
            return nullcontext()
        if getattr(func, "__name__", "") in _OF_FLOATS or any(map(_is_whole, tensors)):
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
    return Indices(device).looking()


def _is_whole(tensor: Tensor) -> bool:
    kind = tensor.dtype
    return not (kind.is_floating_point or kind.is_complex or kind is torch.bool)


@final
class _Looking(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is active, each operation's indices are looked at first."""

    def __init__(self, indices: Indices) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._indices = indices

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        check = RANGES.get(func.overloadpacket.__name__.removesuffix("_"))
        if check is not None:
            for values, within in check(_arguments(func, args, kwargs)):
                if not on_processor(values):
                    self._indices.see((within != values).any())
                    overwrite(values, within)
            return func(*args, **kwargs)
        if func._can_decompose() and _is_composite(func):  # in inference mode
            with self:
                return func.decompose(*args, **kwargs)
        return func(*args, **kwargs)


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
