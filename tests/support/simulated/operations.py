"""Operations of the simulated device: they compute on the host, in the same memory, and refuse
what a GPU refuses.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from tests.support.simulated import composites
from tests.support.simulated.counts import note_bytes, note_launch, note_wait
from tests.support.simulated.memory import (
    NAME,
    allocate,
    allocate_strided,
    as_device_storage,
    as_device_tensor,
    device,
    is_pinned,
    is_simulated,
    mirror,
    place_in,
    poisoned,
    set_empty,
    set_storage,
    set_storage_at,
    set_tensor,
)

_aten = torch.ops.aten
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

#: Operations for whose result the host has to wait: its shape, or a number.
_WAITING = {
    "_local_scalar_dense",
    "nonzero",
    "equal",
    "masked_select",
    "_unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "unique_dim_consecutive",
    "bincount",
}
_INDEXING = {
    "index",
    "index_put",
    "index_put_",
    "_index_put_impl_",
    "_unsafe_index",
    "_unsafe_index_put",
}
#: Operations that take numbers of the host beside tensors of the device, though PyTorch does not
#: call them pointwise.
_TAKING_NUMBERS = {
    "masked_fill",
    "masked_fill_",
    "index_put",
    "index_put_",
    "_index_put_impl_",
    "index_fill",
    "index_fill_",
    "fill_",
    "fill",
    "where",
    "clamp",
    "clamp_",
    "normal",
    "bernoulli_",
    "lerp",
    "lerp_",
    "result_type",
}
#: Arguments that the host reads, wherever they are.
_READ_BY_HOST = {"input_lengths", "target_lengths"}
#: Operations for which the processor's are no guide, or that only look at what a tensor is.
_OTHERS = {"resize_as_sparse_", "_pin_memory", "_nested_tensor_from_mask", "_fused_sdp_choice"}
_OUT_OF_RANGE = re.compile("out of (bounds|range)|Target .* is out of bounds", re.IGNORECASE)
_lock = threading.RLock()

#: The device's generator of random numbers.
generator = torch._C.Generator()
#: The identities of the generators that say they are the device's.
generators: set[int] = set()


class DeviceError(RuntimeError):
    """The device is dead: a kernel met an index out of range, some time ago."""


class Health:
    """Whether a kernel has failed, and whether the host has heard of it.

    Attributes:
        fault: what failed; "" if nothing has.
        is_known: whether the host has waited since: then nothing more can be launched.
    """

    fault = ""
    is_known = False

    @classmethod
    def reset(cls) -> None:
        """Let the device work again, as in a new process."""
        cls.fault = ""
        cls.is_known = False

    @classmethod
    def raise_fault(cls) -> None:
        """The host hears of what failed."""
        cls.is_known = True
        raise DeviceError(f"CUDA error: device-side assert triggered (simulated: {cls.fault})")


def launch(name: str) -> None:
    """Launch a kernel."""
    if Health.is_known:
        Health.raise_fault()
    note_launch(name)


def wait(reason: str) -> None:
    """Let the host wait for the device."""
    note_wait(reason)
    if Health.fault:
        Health.raise_fault()


def copy_into(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """`Tensor.copy_`, within the device or to or from it."""
    if not target.numel():
        return target
    with _lock:
        to_device, from_device = is_simulated(target), is_simulated(source)
        if to_device and from_device:
            launch("copy_")
        else:
            note_bytes(source.nbytes, to_device=to_device)
            host = source if to_device else target
            if not (non_blocking and is_pinned(host)):
                wait("copy to the device" if to_device else "copy to the host")
        _aten.copy_.default(
            mirror(target) if to_device else target,
            mirror(source) if from_device else source,
        )
    return target


class Operation:
    """What the schema of an operation says of it."""

    def __init__(self, function: Any) -> None:
        schema = function._schema
        self.function = function
        self.name = schema.name.split("::")[1]
        self.arguments = [argument.name for argument in schema.arguments]
        self.written = {
            argument.name
            for argument in schema.arguments
            if argument.alias_info and argument.alias_info.is_write
        }
        tensors = [
            place
            for place, argument in enumerate(schema.arguments)
            if str(argument.type) == "Tensor"
        ]
        #: Places of tensors that may come as numbers: all but the first.
        self.perhaps_numbers = tensors[1:]
        aliases = [result.alias_info for result in schema.returns]
        self.is_view = bool(aliases) and all(alias and not alias.is_write for alias in aliases)
        self.draws = torch.Tag.nondeterministic_seeded in function.tags
        self.has_generator = "generator" in self.arguments
        by_repeats = self.name == "repeat_interleave" and "repeats" in self.arguments
        self.waits = self.name in _WAITING or by_repeats
        pointwise = torch.Tag.pointwise in function.tags
        foreach = self.name.startswith("_foreach")
        self.takes_numbers = pointwise or foreach or self.name in _TAKING_NUMBERS

    def require_one_device(self, hosts: list[tuple[str, Tensor]]) -> None:
        """Refuse tensors of the host beside those of the device, as a GPU does."""
        for argument, tensor in hosts:
            if tensor.dim() == 0 and argument not in self.written and self.takes_numbers:
                continue
            if argument in _READ_BY_HOST:
                continue
            if self.name in _INDEXING and argument == "indices":
                note_bytes(tensor.nbytes, to_device=True)
                wait("copy of indices")
                continue
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{device()} and cpu! (argument {argument} of {self.name})"
            )


class _Call:
    """One call of an operation: tensors of the device go down as mirrors, and come up again."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        #: Mirrors by identity, each with its tensor and the name of the argument.
        self.mirrors: dict[int, tuple[Tensor, Tensor, str]] = {}
        self.hosts: list[tuple[str, Tensor]] = []
        self._storages: dict[int, torch.UntypedStorage] = {}

    def lower(self, value: Any, argument: str) -> Any:
        """An argument as the processor's kernel takes it."""
        if isinstance(value, Tensor):
            return self._lower_tensor(value, argument)
        if isinstance(value, list | tuple):
            return [self.lower(item, argument) for item in value]
        if isinstance(value, torch.device):
            return torch.device("cpu")
        return value

    def _lower_tensor(self, tensor: Tensor, argument: str) -> Tensor:
        if not is_simulated(tensor):
            self.hosts.append((argument, tensor))
            return tensor
        on_host = mirror(tensor)
        storage = tensor.untyped_storage()
        self.mirrors[id(on_host)] = (on_host, tensor, argument)
        self._storages[storage.raw._cdata] = storage
        return on_host

    def lift(self, value: Any) -> Any:
        """A result as the caller gets it."""
        if isinstance(value, list | tuple):
            return type(value)(map(self.lift, value))
        if not isinstance(value, Tensor):
            return value
        if id(value) in self.mirrors:
            return self.mirrors[id(value)][1]
        raw = value.untyped_storage()
        storage = self._storages.get(raw._cdata)
        return as_device_tensor(as_device_storage(raw) if storage is None else storage, value)

    def written(self) -> list[tuple[Tensor, Tensor, Any]]:
        """Mirrors that the operation writes into, their tensors, and their places in memory."""
        return [
            (on_host, tensor, _place(on_host))
            for on_host, tensor, argument in self.mirrors.values()
            if argument in self._operation.written
        ]


def _place(tensor: Tensor) -> Any:
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def run(operation: Operation, *positional: Any, **named: Any) -> Any:
    """Run an operation on the host, in the memory of its tensors."""
    call = _Call(operation)
    with _lock:
        arguments = [
            call.lower(value, name)
            for value, name in zip(positional, operation.arguments, strict=False)
        ]
        options = {name: call.lower(value, name) for name, value in named.items()}
        if call.hosts and call.mirrors:
            operation.require_one_device(call.hosts)
        if not operation.is_view:
            launch(operation.name)
        if operation.waits:
            wait(operation.name)
        elif operation.name in _INDEXING:
            _wait_for_masks(operation, arguments)
        if any(argument in _READ_BY_HOST for _, _, argument in call.mirrors.values()):
            wait("read by the host")
        written = call.written()
        try:
            if "ctc_loss" in operation.name:
                _require_targets(dict(zip(operation.arguments, arguments, strict=False)))
            results = _compute(operation, arguments, options)
        except (IndexError, RuntimeError) as error:
            if not _OUT_OF_RANGE.search(str(error)):
                raise
            Health.fault = Health.fault or f"{operation.name}: {error}"
            results = _anything(operation, arguments, options)
        for on_host, tensor, before in written:
            if _place(on_host) != before:
                _follow(tensor, on_host)
        return call.lift(results)


def _wait_for_masks(operation: Operation, arguments: list[Any]) -> None:
    """An index that is a mask is turned into numbers first, whose count the host needs."""
    for index in arguments[operation.arguments.index("indices")]:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            wait("index by a mask")


def _require_targets(arguments: dict[str, Any]) -> None:
    """The processor's kernel of `ctc_loss` reads whatever memory a target points to."""
    targets, classes = arguments["targets"], arguments["log_probs"].shape[-1]
    rows = targets.split(list(arguments["target_lengths"])) if targets.dim() == 1 else targets
    for row, length in zip(rows, arguments["target_lengths"], strict=True):
        read = row[: int(length)]
        if ((read < 0) | (read >= classes)).any():
            raise IndexError("a target is out of range")


def _follow(tensor: Tensor, on_host: Tensor) -> None:
    """Let a tensor be where its mirror is, which was resized or viewed in place."""
    raw = on_host.untyped_storage()
    storage = tensor.untyped_storage()
    if raw._cdata != storage.raw._cdata or raw.nbytes() > storage.nbytes():
        storage = as_device_storage(raw)
    place_in(tensor, storage, on_host)


def _anything(operation: Operation, arguments: list[Any], options: dict[str, Any]) -> Any:
    """What an operation that failed leaves: results of the right shapes, or what was there."""
    if operation.written:
        return arguments[0]
    shaped = tree_map_only(Tensor, lambda tensor: tensor.to("meta"), (arguments, options))
    results = operation.function(*shaped[0], **shaped[1])

    def allocate_like(result: Tensor) -> Tensor:
        return poisoned(torch.empty(result.shape, dtype=result.dtype, device="cpu"))

    return tree_map_only(Tensor, allocate_like, results)


def _compute(operation: Operation, arguments: list[Any], options: dict[str, Any]) -> Any:
    numbers = [
        place
        for place in operation.perhaps_numbers
        if place < len(arguments) and isinstance(arguments[place], int | float | complex)
    ]
    if numbers:
        # A number that stands for a tensor: few overloads take it, the packet does.
        return operation.function.overloadpacket(*arguments, **options)
    if not operation.draws:
        return operation.function(*arguments, **options)
    if operation.has_generator:
        return _draw_from_argument(operation, arguments, options)
    usual = torch.default_generator.get_state()
    torch.default_generator.set_state(generator.get_state())
    try:
        return operation.function(*arguments, **options)
    finally:
        generator.set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(usual)


def _draw_from_argument(operation: Operation, arguments: list[Any], options: dict[str, Any]) -> Any:
    place = operation.arguments.index("generator")
    usual = arguments[place] if place < len(arguments) else None
    source = options.get("generator", usual)
    if source is None:
        options = {**options, "generator": generator}
        arguments = arguments[:place]
    elif source._cdata not in generators:
        # A generator loses its Python class on the way here: so it is known by its identity.
        raise RuntimeError(
            f"Expected a '{NAME}' device type for generator but found '{source.device.type}'"
        )
    return operation.function(*arguments, **options)


_operations: dict[Any, Operation] = {}


def run_function(function: Any, *positional: Any, **named: Any) -> Any:
    """Run an operation by its function."""
    if function not in _operations:
        _operations[function] = Operation(function)
    return run(_operations[function], *positional, **named)


def _convolution(*arguments: Any) -> Tensor:
    return run_function(_aten.convolution.default, *arguments)


def _convolution_backward(gradient: Tensor, x: Tensor, weight: Tensor, *others: Any) -> Any:
    *geometry, wanted = others
    backward = _aten.convolution_backward.default
    return run_function(backward, gradient, x, weight, None, *geometry, wanted)


def _one_kernel(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """One launch that computes `function`."""

    def compute(*positional: Any, **named: Any) -> Any:
        with _lock:
            launch(name)
            arguments = tree_map_only(Tensor, mirror, (positional, named))
            results = function(*arguments[0], **arguments[1])

        def lift(result: Tensor) -> Tensor:
            return as_device_tensor(as_device_storage(result.untyped_storage()), result)

        return tree_map_only(Tensor, lift, results)

    return compute


def _native_dropout(x: Tensor, share: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is not None and not train:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if share == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    stays = torch.empty_like(x).bernoulli_(1 - share, generator=generator)
    return x * stays / (1 - share), stays.bool()


def _as_strided(*arguments: Any, **options: Any) -> Tensor:
    return _aten.as_strided.default.redispatch(_CPU, *arguments, **options)


def _view(*arguments: Any) -> Tensor:
    return _aten.view.default.redispatch(_CPU, *arguments)


def _reshape_alias(*arguments: Any) -> Tensor:
    return _aten._reshape_alias.default.redispatch(_CPU, *arguments)


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    return copy_into(target, source, non_blocking)


_SPECIAL: dict[str, Callable[..., Any]] = {
    "empty.memory_format": allocate,
    "empty_strided": allocate_strided,
    "copy_": copy_into,
    "_copy_from": _copy_from,
    "_copy_from_and_resize": _copy_from,
    "set_.source_Storage": set_storage,
    "set_.source_Storage_storage_offset": set_storage_at,
    "set_.source_Tensor": set_tensor,
    "set_": set_empty,
    "as_strided": _as_strided,
    "view": _view,
    "_reshape_alias": _reshape_alias,
    "record_stream": lambda tensor, stream: None,
    "is_pinned": lambda tensor, device=None: False,
    "convolution_overrideable": _convolution,
    "convolution_backward_overrideable": _convolution_backward,
    "_thnn_fused_lstm_cell": _one_kernel("lstm_cell", composites.lstm_cell),
    "_thnn_fused_lstm_cell_backward_impl": _one_kernel(
        "lstm_cell_backward", composites.lstm_cell_backward
    ),
    "_thnn_fused_gru_cell": _one_kernel("gru_cell", composites.gru_cell),
    "_thnn_fused_gru_cell_backward": _one_kernel("gru_cell_backward", composites.gru_cell_backward),
    "native_dropout": _one_kernel("native_dropout", _native_dropout),
}


def _kernel(full: str) -> Callable[..., Any] | None:
    """The device's kernel of an operation, by its full name; None: it is composed of others."""
    short = full.removeprefix("aten::")
    name, _, overload = short.partition(".")
    if short in _SPECIAL:
        return _SPECIAL[short]
    on_processor = torch._C._dispatch_has_kernel_for_dispatch_key(full, "CPU")
    if not on_processor and not name.startswith("_foreach"):
        return None
    if name in _OTHERS or "mkldnn" in name:
        return None
    try:
        function = getattr(getattr(_aten, name), overload or "default")
    except (AttributeError, RuntimeError):
        return None
    operation = _operations.setdefault(function, Operation(function))
    return lambda *positional, **named: run(operation, *positional, **named)


def register(library: torch.library.Library) -> None:
    """Register kernels for all operations that the processor has one of."""
    for full in torch._C._dispatch_get_all_op_names():
        if not full.startswith("aten::"):
            continue
        if (kernel := _kernel(full)) is not None:
            library.impl(full.removeprefix("aten::"), kernel, "PrivateUse1", allow_override=True)


#: Operations that autocast computes in few digits.
_IN_FEW_DIGITS = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "addmv",
    "matmul",
    "linear",
    "convolution",
    "conv1d",
    "conv2d",
    "conv3d",
    "_convolution",
    "einsum",
    "scaled_dot_product_attention",
)


def _in_few_digits(function: Any) -> Callable[..., Any]:
    without = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def compute(*positional: Any, **named: Any) -> Any:
        dtype = torch.get_autocast_dtype(NAME)

        def lower(tensor: Tensor) -> Tensor:
            suits = tensor.dtype == torch.float32 and is_simulated(tensor)
            return tensor.to(dtype) if suits else tensor

        arguments = tree_map_only(Tensor, lower, (positional, named))
        with torch._C._ExcludeDispatchKeyGuard(without):
            return function(*arguments[0], **arguments[1])

    return compute


def register_autocast(library: torch.library.Library) -> None:
    """Register what autocast does."""
    for name in _IN_FEW_DIGITS:
        library.impl(name, _in_few_digits(getattr(_aten, name)), "AutocastPrivateUse1")
