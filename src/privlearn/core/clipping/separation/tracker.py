"""`AxisTracker` follows the axis of the examples through every operation of a forward pass, and
denies by default.

It sees operations below autograd, where all of PyTorch has come down to functions with schemas. The
memory of each tensor carries a mark: it holds nothing of the batch, or its bytes belong to examples
by a period, or examples met in it. Views need no rule: where a tensor's examples are follows from
its strides and the mark of its memory. Everything that computes needs one (`axis_rules`). What has
met may lie around; to read it, or to use it in the loss, is denied.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache
from itertools import count
from numbers import Number
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from privlearn.core.clipping.layout import Layout, NotLayerwise
from privlearn.core.clipping.randomness import draws_numbers
from privlearn.core.clipping.row_norms import Assumed
from privlearn.core.clipping.separation.axis_rules import (
    RULES,
    Argument,
    AxisLabels,
    Denied,
    ExampleAxis,
    Label,
    pointwise,
)
from privlearn.core.clipping.separation.program import (
    METADATA,
    Constants,
    asks_for_all,
    asks_for_any,
    counts_all,
)
from privlearn.core.devices import on_processor


class Coupled(NotLayerwise):
    """Examples meet, or it is not known whether they do."""


class ReadsBatch(Coupled):
    """Python would know values of the batch.

    Attributes:
        where: in which operation, and at which line.
    """

    def __init__(self, where: str, instead: str = "") -> None:
        super().__init__(where + instead)
        self.where = where


class CoupledElsewhere(Coupled):
    """They do in another process, and all processes give the pass up."""


class MemoryMark(NamedTuple):
    """What a memory holds.

    Attributes:
        number: the pass in which it was computed.
        period: byte b belongs to example b // period % examples; 0: it holds nothing of the batch.
        met: in which operation examples met; empty if they did not.
        lasts: whether what is written there is there in later passes.
        before: whether it was there, as it is, when the pass began.
        of_weights: whether it was computed in this pass from what was there before.
    """

    number: int
    period: int = 0
    met: str = ""
    lasts: bool = False
    before: bool = False
    of_weights: bool = False


class MemoryPlace(NamedTuple):
    """Where, in an example's part of a memory or in a constant, an operation reads or writes."""

    parts: tuple[Any, ...]


class ConstantValues(NamedTuple):
    """What an operation reads of a constant that its pass made, for one example.

    Attributes:
        values: of any shape.
        of_weights: whether they follow from what was there before the pass.
    """

    values: Tensor
    of_weights: bool


def _split(names: str) -> frozenset[str]:
    return frozenset(names.split())


_numbers = count(1)
#: Give what they are given, as it lies there, without a schema that says so.
_SAME_MEMORY = _split(
    "_unsafe_view _reshape_alias lift alias detach_ unsafe_split unsafe_split_with_sizes "
    "unsafe_chunk"
)
#: Write into a tensor whatever was there.
_OVERWRITES = _split(
    "copy fill zero bernoulli uniform normal random exponential log_normal cauchy geometric"
)
#: Make a tensor by the shape and type of another, without any of its numbers.
_SHAPED_LIKE = _split(
    "zeros_like ones_like full_like empty_like rand_like randn_like new_zeros new_ones new_full "
    "new_empty new_empty_strided"
)
#: Arguments that say how many rows there are. What they change is seen where a result is read.
_SIZES = {"size", "repeats", "N"}
#: Make a tensor that holds whatever was in its memory: zeros while examples are followed, so that a
#: part that is not written is the same for all of them.
_UNWRITTEN = _split("empty empty_like empty_strided new_empty new_empty_strided")


def _storage(tensor: Tensor) -> Any:
    # one Python object as long as the memory lives, which takes attributes
    return tensor.untyped_storage()


def axis_of(tensor: Tensor, period: int, examples: int) -> ExampleAxis | None:
    """Where the examples are in `tensor`, whose memory has this period; None: it is empty.

    Raises:
        Denied: no one dimension holds all examples, in their order.
    """
    if tensor.numel() == 0:
        return None
    size = tensor.element_size()
    begin = tensor.storage_offset() * size
    within = begin % period + size  # how far into an example's bytes entries reach
    axis: ExampleAxis | None = None
    for dim, (length, entries) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        stride = entries * size
        if length == 1 or stride % (period * examples) == 0:
            continue
        if stride < period and stride * length <= period:
            within += stride * (length - 1)
            continue
        inner = period // stride if stride < period else 1
        if stride * inner != period or length % (examples * inner) or axis:
            raise Denied(
                f"taking apart the batch: no one dimension of shape {tuple(tensor.shape)} holds "
                "all examples"
            )
        within += stride * (inner - 1)
        axis = ExampleAxis(dim, length // (examples * inner), inner)
    if within > period or axis is None or begin // period % examples:
        raise Denied(f"picking or reordering examples, in shape {tuple(tensor.shape)}")
    return axis


@final
class _Operation:
    """What is known of an operation before it is called.

    Attributes:
        name: as PyTorch writes it.
        plain: the same, without the underscore of one in place.
        arguments: their names, in their order.
        defaults: of those that have one.
        writes: names of arguments that it writes into.
        rule: where the examples are in its results; None: it has no rule.
        is_view: whether it only gives views, or only changes how its tensor lies.
        tells: whether Python knows values of what it is given: by a number, or by a shape.
    """

    def __init__(self, func: Any) -> None:
        schema = func._schema
        namespace, _, self.name = schema.name.partition("::")
        in_place = self.name.endswith("_") and not self.name.endswith("__")
        self.plain = self.name[:-1] if in_place else self.name
        self.arguments = [argument.name for argument in schema.arguments]
        self.defaults = {
            argument.name: argument.default_value
            for argument in schema.arguments
            if argument.has_default_value()
        }
        self.writes = {
            argument.name
            for argument in schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        }
        self.tells = (
            torch.Tag.data_dependent_output in func.tags
            or torch.Tag.dynamic_output_shape in func.tags
        )
        gives_views = any(
            result.alias_info is not None and not result.alias_info.is_write
            for result in schema.returns
        )
        in_native = namespace == "aten"
        self.is_view = in_native and (
            gives_views or self.name in _SAME_MEMORY or torch.Tag.inplace_view in func.tags
        )
        is_known = in_native or (namespace, self.plain) == ("mkldnn", "_linear_pointwise")
        self.rule = RULES.get(self.plain) if is_known else None
        if self.rule is None and in_native:
            packet = getattr(torch.ops.aten, self.plain, None)
            names = packet.overloads() if packet is not None else []
            overloads = (func, *(getattr(packet, name) for name in names))
            if any(torch.Tag.pointwise in overload.tags for overload in overloads):
                self.rule = pointwise


_operation = cache(_Operation)


@final
class _Call:
    """One call of an operation: its arguments by name, and where its tensors have their
    examples.
    """

    def __init__(
        self, tracker: AxisTracker, func: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        operation = _operation(func)
        self.operation, self.name, self.plain = operation, operation.name, operation.plain
        self.func = func
        self.passed = dict(zip(operation.arguments, args, strict=False)) | kwargs
        self._values = operation.defaults | self.passed
        self.written = [
            tensor for name in operation.writes for _, tensor in _tensors(self._values.get(name))
        ]
        #: Tensors that are written, in memory whose other parts are not the same for all examples.
        self.beside: list[Tensor] = []
        self.tensors: dict[Argument, Tensor] = {}
        self.axes: dict[Argument, ExampleAxis] = {}
        #: Constants, and where they have a part for each example.
        self.constants: dict[Argument, ExampleAxis | None] = {}
        self.met, self.of_batch, self.draws, self.dims = "", False, False, 0
        self.of_weights = False
        for name in operation.arguments:
            for at, tensor in _tensors(self._values.get(name)):
                self.dims = max(self.dims, tensor.dim() if name != "out" else 0)
                if name in operation.writes and (self.plain in _OVERWRITES or name != "self"):
                    continue  # what was there does not matter
                self._read(tracker, (name, at), tensor)

    def _read(self, tracker: AxisTracker, name: Argument, tensor: Tensor) -> None:
        mark = tracker.mark_of(tensor)
        self.tensors[name] = tensor
        self.of_batch |= bool(mark.period or mark.met)
        self.of_weights |= mark.before or mark.of_weights
        if not (mark.period or mark.met):
            self.constants[name] = None
        self.met = self.met or mark.met
        if mark.period and tracker.examples > 1:
            try:
                axis = axis_of(tensor, mark.period, tracker.examples)
            except Denied as error:
                self.met = self.met or f"{error}{_line_of_user()}"
            else:
                if axis is not None:
                    self.axes[name] = axis

    def __getitem__(self, name: str) -> Any:
        return self._values.get(name)

    def axis(self, name: str, at: int = 0) -> ExampleAxis | None:
        """Where an argument has its examples."""
        return self.axes.get((name, at))


def _tensors(value: Any) -> Iterator[tuple[int, Tensor]]:
    if isinstance(value, Tensor):
        yield 0, value
    elif isinstance(value, list | tuple):
        yield from ((at, item) for at, item in enumerate(value) if isinstance(item, Tensor))


@final
class AxisTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is active, the examples of a batch are followed through every operation.

    Args:
        constants: what may come from outside of the pass.
        leaves: the tensors of the batch, of memory of their own.
        examples: how many there are.
        drawn: where the examples are in what each call that draws random numbers draws.
        assumed: if it is there, constants are assumed to be the same for all examples: what was
            followed holds if a device then answers so.

    Attributes:
        noted: how operations on the batch were called: their arguments, what they read of
            constants, and where in an example's part of a memory they read and wrote. None of it
            may depend on how many examples there are.
    """

    def __init__(
        self,
        constants: Constants,
        leaves: Sequence[Tensor],
        examples: int,
        drawn: Sequence[Layout] = (),
        assumed: Assumed | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.examples, self._drawn, self._draws = examples, drawn, 0
        self._assumed = assumed
        self.noted: list[Any] = []
        self._number, self._calls = next(_numbers), 0
        self._from_python = self._is_asking = False
        self._constants = constants
        for tensor in constants:
            self.enter(tensor)
        for leaf in leaves:
            if leaf.numel():
                rows = len(leaf) // examples
                _storage(leaf).mark = MemoryMark(
                    self._number, leaf.stride(0) * leaf.element_size() * rows
                )

    def enter(self, tensor: Tensor) -> None:
        """`tensor` holds nothing of the batch."""
        if tensor.layout is torch.strided and self._known(tensor) is None:
            lasts = tensor in self._constants and not self._constants.are_restored(tensor)
            before = not self._from_python
            _storage(tensor).mark = MemoryMark(self._number, lasts=lasts, before=before)

    def _known(self, tensor: Tensor) -> MemoryMark | None:
        mark: MemoryMark | None = getattr(_storage(tensor), "mark", None)
        return mark if mark is not None and mark.number == self._number else None

    def mark_of(self, tensor: Tensor) -> MemoryMark:
        """The mark of a tensor's memory.

        Raises:
            Coupled: it has none of this pass.
        """
        if tensor.layout is not torch.strided:
            raise Coupled(f"a tensor with the layout {tensor.layout} is not followed")
        if tensor.numel() == 0:
            return MemoryMark(self._number)
        mark = self._known(tensor)
        if mark is None and self._from_python:
            mark = _storage(tensor).mark = MemoryMark(self._number)
        if mark is None:
            raise Coupled(
                f"a tensor of shape {tuple(tensor.shape)} comes from where no operation was seen"
                f"{_line_of_user()}: it may hold something of other examples"
            )
        return mark

    # -- at the level of Python's functions (`Capture` calls this)

    def function(self, func: Any, args: Any, kwargs: Any, run: Callable[..., Any]) -> Any:
        """`run(func, args, kwargs)`, in which nothing may lead out of PyTorch without an operation.

        Raises:
            Coupled: something of the batch is read, or a hook is put on it.
        """
        name, before = getattr(func, "__name__", ""), self._calls
        for value in (*args, *kwargs.values()):
            for _, tensor in _tensors(value):
                if tensor in self._constants:  # its memory may be another than when the pass began
                    self.enter(tensor)
        outer = self._from_python, self._is_asking
        self._from_python = name in _OF_PYTHON_NUMBERS
        self._is_asking = name in ("eq", "__eq__") and counts_all(args)
        try:
            out = run(func, args, kwargs)
            if self._from_python:
                for _, tensor in _tensors(out):
                    self.enter(tensor)
        finally:
            self._from_python, self._is_asking = outer
        asks = asks_for_all(name, args) or asks_for_any(name, args)
        if self._calls == before and not asks and not _tells_nothing(func, name):
            tensors = [
                tensor for value in (*args, *kwargs.values()) for _, tensor in _tensors(value)
            ]
            if not any(out is tensor for tensor in tensors):
                for tensor in tensors:
                    mark = self.mark_of(tensor)
                    if (mark.period or mark.met) and self.examples > 1:
                        raise ReadsBatch(
                            f"{name} reads, or hooks, a tensor of the batch{_line_of_user()}"
                        )
        return out

    # -- at the level of operations

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run `func`, and mark what it gives."""
        kwargs = kwargs or {}
        self._calls += 1
        if _operation(func).is_view:
            return func(*args, **kwargs)
        call = _Call(self, func, args, kwargs)
        answer = self._answer(call)
        self._note(call)
        first = answer[0] if isinstance(answer, list) else answer
        if isinstance(first, ExampleAxis) and self.examples > 1:
            call.beside = [tensor for tensor in call.written if not self._may_hold(tensor, first)]
        out = func(*args, **kwargs)
        results = list(_results(out))
        if call.plain in _UNWRITTEN:
            for tensor in results:
                tensor.zero_()
        for at, tensor in enumerate(results):
            self._mark(
                call,
                tensor,
                answer[min(at, len(answer) - 1)] if isinstance(answer, list) else answer,
            )
        for tensor in call.written if call.of_batch else ():
            if not any(tensor is result for result in results):
                self._mark(
                    call, tensor, f"{_plain_name(call.plain)} over the batch{_line_of_user()}"
                )
        return out

    def _answer(self, call: _Call) -> list[ExampleAxis | str | None] | str | None:
        """Where the examples are in each result: a text where they met, None in what holds nothing
        of them.

        Raises:
            Coupled: Python would know values of the batch.
        """
        call.draws = draws_numbers(call.func, call._values)
        drawn = self._follow_draw(call) if call.draws else None
        if not call.of_batch or call.plain in _SHAPED_LIKE:
            return [self._require_even_draw(call, drawn)] if drawn else None
        if self.examples == 1:
            return [ExampleAxis(0)]
        if _tells(call):
            if call.met:
                raise ReadsBatch(call.met)
            where = f"{_plain_name(call.plain)} reads values of the batch{_line_of_user()}"
            raise ReadsBatch(where, f": {_INSTEAD['read']}")
        if call.met:
            return call.met
        try:
            if call.operation.rule is None:
                raise Denied(f"{call.plain} has no rule that keeps examples apart")
            axes = self._settle(call, call.operation.rule(call))
        except Denied as error:
            return f"{error}{_line_of_user()}"
        if drawn and axes[0] != drawn:
            return f"{call.plain} draws numbers for examples in other places{_line_of_user()}"
        return axes

    def _follow_draw(self, call: _Call) -> ExampleAxis | None:
        """Where the examples are in what a call draws."""
        number, shape = self._draws, _shape_of_draw(call)
        self._draws += 1
        if self.examples == 1:
            return ExampleAxis(0)
        if number >= len(self._drawn):
            raise Coupled("the model draws random numbers that it did not draw on made-up rows")
        dim = self._drawn[number].axis
        if dim >= len(shape) or shape[dim] % self.examples:
            raise Coupled(f"random numbers of shape {tuple(shape)} are not drawn for each example")
        return ExampleAxis(dim, 1, shape[dim] // self.examples)

    def _require_even_draw(self, call: _Call, drawn: ExampleAxis) -> ExampleAxis | str:
        """`drawn`, if what the call draws by is the same for all examples; else where it is not."""
        if call.of_batch or self.examples == 1:
            return drawn
        dims = len(_shape_of_draw(call))
        for name in call.constants:
            tensor = call.tensors[name]
            dim = drawn.dim - dims + tensor.dim()
            if dim >= 0:
                call.constants[name] = drawn._replace(dim=dim)
                if not self.is_even(tensor, drawn._replace(dim=dim)):
                    return f"{call.plain} by a constant that differs along the batch"
        return drawn

    def _settle(
        self, call: _Call, answer: AxisLabels | list[ExampleAxis | None]
    ) -> list[ExampleAxis | str | None]:
        """Where each result has its examples, by a rule's labels.

        Raises:
            Denied: examples meet.
        """
        if isinstance(answer, list):
            return list(answer)
        label: Label | None = None
        shape: ExampleAxis | None = None
        for name, axis in call.axes.items():
            if name not in answer.inputs:
                raise Denied(
                    f"{_plain_name(call.plain)} with the batch in its argument {name[0]!r}"
                )
            dim_label = answer.inputs[name][axis.dim]
            if dim_label in answer.along:
                raise Denied(f"{_plain_name(call.plain)} over the batch")
            if shape is not None and (dim_label, axis[1:]) != (label, shape[1:]):
                raise Denied(f"{_plain_name(call.plain)} puts examples beside others")
            label, shape = dim_label, axis
        if shape is None or label is None:
            return [None]
        for name in answer.numbering:
            call.constants.pop(name, None)
        for name, tensor in call.tensors.items():
            labels = answer.inputs.get(name, ())
            if name not in call.axes and label in labels:
                axis = call.constants[name] = shape._replace(dim=list(labels).index(label))
                self._require_even(call, tensor, axis)
        answers: list[ExampleAxis | str | None] = []
        for result in answer.results:
            if result is None:
                answers.append(None)
            elif label in result:
                answers.append(shape._replace(dim=list(result).index(label)))
            else:
                answers.append(f"{_plain_name(call.plain)} over the batch{_line_of_user()}")
        return answers

    def _require_even(self, call: _Call, tensor: Tensor, axis: ExampleAxis) -> None:
        if not self.is_even(tensor, axis):
            raise Denied(
                f"{_plain_name(call.plain)} with a constant that differs from one place in the "
                "batch to the next"
            )

    def is_even(self, tensor: Tensor, axis: ExampleAxis) -> bool:
        """Whether a constant is the same for all examples."""
        dim, length = axis.dim, axis.outer * self.examples * axis.inner
        if tensor.numel() == 0 or tensor.shape[dim] == 1 or tensor.stride(dim) == 0:
            return True
        if tensor.shape[dim] != length:
            return False
        parts = (
            *tensor.shape[:dim],
            axis.outer,
            self.examples,
            axis.inner,
            *tensor.shape[dim + 1 :],
        )
        apart = tensor.detach().reshape(parts)
        first = apart.narrow(dim + 1, 0, 1).expand_as(apart)
        return self._are_equal(apart, first)

    def _are_equal(self, one: Tensor, other: Tensor) -> bool:
        """Whether two constants are equal, NaN to NaN."""
        if self._assumed is not None and not on_processor(one):
            equal = one == other
            if one.is_floating_point():
                equal |= (one != one) & (other != other)
            self._assumed.note(equal.all(), lambda: None)
            return True
        if not one.is_floating_point():
            return torch.equal(one, other)
        return torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)

    def note_operation(self, operation: object) -> None:
        """Note the numbers and words of one of ours: PyTorch's may not show them all."""
        for value in vars(operation).values():
            if isinstance(value, Number | str | None):
                self.noted += _plain_values(value)

    def note_result(self, losses: Tensor) -> None:
        """Note where the losses, one for each example, are in their memory."""
        period = self.mark_of(losses).period
        if period and self.examples > 1:
            self._note_place(losses, ExampleAxis(0), period)

    def _note(self, call: _Call) -> None:
        """Note how an operation on the batch, or on weights, is called."""
        of_batch = call.of_batch and not call.met
        followed = (of_batch or call.of_weights) and call.plain not in _SHAPED_LIKE
        if self.examples == 1 or self._is_asking or not (followed or call.draws):
            return
        if call.plain != "clone":  # whether one is needed depends on how a tensor lies
            self.noted.append(call.func)
            for argument, value in call.passed.items():
                if argument not in _SIZES:
                    self.noted += _plain_values(value)
        for name, tensor in call.tensors.items():
            if name in call.axes and of_batch:
                self._note_place(tensor, call.axes[name], self.mark_of(tensor).period)
            elif name in call.constants and (of_batch or call.draws or tensor.numel() == 1):
                self._note_constant(tensor, call.constants[name])

    def _note_place(self, tensor: Tensor, axis: ExampleAxis, period: int) -> None:
        """Note where in an example's part of its memory `tensor` is."""
        size, whole = tensor.element_size(), period * self.examples
        begin = tensor.storage_offset() * size
        others = (
            (dim, length, *divmod(entries * size, whole))
            for dim, (length, entries) in enumerate(zip(tensor.shape, tensor.stride(), strict=True))
            if dim != axis.dim and length > 1
        )
        place = (tensor.dtype, axis, begin // whole, begin % period, *others)
        self.noted.append(MemoryPlace(place))

    def _note_constant(self, tensor: Tensor, axis: ExampleAxis | None) -> None:
        """Note what a constant has for one example: its place if it was there before the pass, else
        its numbers.
        """
        part = tensor.detach()
        if axis is not None and part.shape[axis.dim] > 1:
            part = part.unflatten(  # type: ignore[no-untyped-call]
                axis.dim, (axis.outer, self.examples, axis.inner)
            )
            part = part.select(axis.dim + 1, 0)
        mark = self.mark_of(tensor)
        if mark.before:
            steps = [by for by, n in zip(part.stride(), part.shape, strict=True) if n > 1]
            place = (_storage(part)._cdata, part.dtype, part.storage_offset(), part.shape, *steps)
            self.noted.append(MemoryPlace(place))
        else:
            self.noted.append(ConstantValues(part.clone(), mark.of_weights))

    def _mark(self, call: _Call, tensor: Tensor, answer: ExampleAxis | str | None) -> None:
        """MemoryMark the memory of a result.

        Raises:
            Coupled: the batch is written into memory that was there before.
        """
        if not tensor.numel() or tensor.layout is not torch.strided:
            return
        is_written = any(_storage(tensor) is _storage(written) for written in call.written)
        held = self._known(tensor) if is_written else None
        whole = tensor.numel() * tensor.element_size() == _storage(tensor).nbytes()
        if is_written and answer is not None and (held is None or held.lasts):
            raise Coupled(
                f"{call.name} writes the batch into a tensor that was there before{_line_of_user()}"
            )
        if answer is None:
            if held is None or not (held.period or held.met):
                lasts = held is not None and held.lasts
                of_weights = call.of_weights or (held is not None and held.of_weights)
                _storage(tensor).mark = MemoryMark(self._number, lasts=lasts, of_weights=of_weights)
            elif held.period and self.examples > 1 and not self._is_even_in(tensor, held.period):
                self._meet(
                    tensor,
                    f"{call.name} writes a constant that differs along the batch{_line_of_user()}",
                )
            elif held.period and self.examples > 1:
                axis = axis_of(tensor, held.period, self.examples)
                self._note_place(tensor, axis or ExampleAxis(-1), held.period)
                self._note_constant(tensor, axis)
            return
        if isinstance(answer, str):
            self._meet(tensor, answer)
            return
        if self.examples == 1:
            _storage(tensor).mark = MemoryMark(self._number, 1)
            return
        if held is not None and held.met and not whole:
            return
        if any(tensor is other or _storage(tensor) is _storage(other) for other in call.beside):
            self._meet(tensor, f"{call.name} writes examples beside constants{_line_of_user()}")
            return
        period = held.period if held is not None and held.period and not whole else 0
        period = period or tensor.stride(answer.dim) * answer.inner * tensor.element_size()
        try:
            same = axis_of(tensor, period, self.examples) == answer
        except Denied:
            same = False
        if same:
            _storage(tensor).mark = MemoryMark(self._number, period)
            if is_written:
                self._note_place(tensor, answer, period)
        else:
            self._meet(tensor, f"{call.name} gives examples in another order{_line_of_user()}")

    def _may_hold(self, tensor: Tensor, axis: ExampleAxis) -> bool:
        """Whether what is beside `tensor` in its memory is the same for all examples, if these are
        along `axis`.
        """
        mark, memory = self._known(tensor), _storage(tensor)
        whole = tensor.numel() * tensor.element_size() == memory.nbytes()
        if mark is None or mark.period or mark.met or whole or not tensor.numel():
            return True  # looked at elsewhere
        period = tensor.stride(axis.dim) * axis.inner * tensor.element_size()
        if not period or memory.nbytes() % (period * self.examples):
            return False
        parts = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(memory)
        parts = parts.view(-1, self.examples, period)
        self.noted.append(ConstantValues(parts[:, 0].clone(), of_weights=False))
        return self._are_equal(parts, parts[:, :1].expand_as(parts))

    def _meet(self, tensor: Tensor, where: str) -> None:
        _storage(tensor).mark = MemoryMark(self._number, met=where)

    def _is_even_in(self, tensor: Tensor, period: int) -> bool:
        try:
            axis = axis_of(tensor, period, self.examples)
        except Denied:
            return False
        return axis is None or self.is_even(tensor, axis)

    def require_at(self, tensor: Tensor, axis: ExampleAxis, what: str) -> None:
        """Raise `Coupled` unless `tensor` has its examples along `axis`, or is the same for all of
        them.
        """
        mark = self.mark_of(tensor)
        if mark.met:
            raise Coupled(mark.met)
        if self.examples == 1:
            return
        try:
            if not mark.period:
                same = axis.dim < tensor.dim() and self.is_even(tensor, axis)
            else:
                same = axis_of(tensor, mark.period, self.examples) in (axis, None)
        except Denied as error:
            raise Coupled(f"{error}{_line_of_user()}") from None
        if not same:
            raise Coupled(
                f"{what} has the rows of an example in other places than one after the "
                f"other{_line_of_user()}"
            )


def _results(out: Any) -> Iterator[Tensor]:
    for value in out if isinstance(out, list | tuple) else [out]:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list):
            yield from (item for item in value if isinstance(item, Tensor))


def _plain_values(value: Any) -> Iterator[Any]:
    """All in an argument that is no tensor."""
    if isinstance(value, complex):
        yield from (value.real, value.imag)
    elif isinstance(value, list | tuple):
        # a length for each example, as of a loss over sequences
        alike = len(value) > 1 and all(type(item) is int and item == value[0] for item in value)
        for item in value[:1] if alike else value:
            yield from _plain_values(item)
    elif not isinstance(value, Tensor):
        yield value


def _shape_of_draw(call: _Call) -> Sequence[int]:
    """The shape of what a call draws."""
    for name in ("self", "input"):
        if isinstance(call[name], Tensor):
            return tuple(call[name].shape)
    return tuple(call["size"] or ())


def _tells(call: _Call) -> bool:
    """Whether Python would know values of what is given: by a number, or by a shape."""
    if call.plain == "index":
        masks = [
            index
            for _, index in _tensors(call["indices"])
            if index.dtype in (torch.bool, torch.uint8)
        ]
        examples_meet = bool(call.met) or any(name[0] == "indices" for name in call.axes)
        return bool(masks) and examples_meet
    if call.plain == "_ctc_loss":
        return any(name[0].endswith("lengths") for name in call.axes)
    return call.operation.tells


#: Functions that make tensors of Python's numbers.
_OF_PYTHON_NUMBERS = _split("tensor as_tensor asarray __setitem__ __getitem__ scalar_tensor")
#: Functions that tell nothing of a tensor's values, or give them as tensors.
_TELL_NOTHING = _split(
    "nelement get_device storage_offset ndimension element_size requires_grad_ is_same_size "
    "type __hash__ __set__ is_tensor retain_grad is_signed is_inference is_conj is_neg "
    "result_type can_cast promote_types broadcast_tensors is_coalesced has_names "
    "set_grad_enabled is_distributed is_complex is_set_to"
)
#: Attributes that tell nothing of a tensor's values, beside those whose names begin with "is_".
_ATTRIBUTES = _split("names itemsize nbytes retains_grad output_nr _version name shape")


def _tells_nothing(func: Any, name: str) -> bool:
    if name == "__get__":
        attribute = getattr(getattr(func, "__self__", None), "__name__", "")
        return attribute.startswith("is_") or attribute in _ATTRIBUTES or func in METADATA
    return func in METADATA or name.startswith("is_") or name in _TELL_NOTHING


def _plain_name(name: str) -> str:
    return name.strip("_")


#: What to write instead.
_INSTEAD = {
    "read": "leave such numbers out, use a constant, or pad rows where they are collated",
}

_SKIPPED = tuple(
    str(Path(module.__file__ or "").parent) for module in (torch, sys.modules["privlearn"])
)


def _line_of_user() -> str:
    """Where in the caller's code the operation at hand is, in words."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((*_SKIPPED, "<")):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return ""
    return (
        f" ({Path(frame.f_code.co_filename).name}, line {frame.f_lineno}, in "
        f"{frame.f_code.co_name})"
    )


def unfollowed() -> AbstractContextManager[object]:
    """A block in which operations are not followed: what it gives has to be an alias of what it was
    given.
    """
    return _disable_current_modes()
