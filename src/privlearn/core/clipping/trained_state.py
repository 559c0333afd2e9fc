"""While rows are computed, what a pass writes into trained parameters is undone before the next one
begins.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from privlearn.core.devices import on_processor

#: Numbers from which on numpy compares faster than PyTorch, which starts faster.
_LARGE = 1 << 13

#: How many writes that PyTorch counted were undone, by parameter.
_UNDONE: MutableMapping[Tensor, int] = WeakTensorKeyDictionary()


def versions(parameters: Sequence[Tensor]) -> list[int]:
    """How often each parameter was written into in place, without what was undone.

    Whether a pass over private rows writes may depend on the rows: so it must not show here.
    """
    if not _UNDONE:
        return [parameter._version for parameter in parameters]
    return [parameter._version - _UNDONE.get(parameter, 0) for parameter in parameters]


@final
class TrainedState:
    """The trained parameters of a model, which nothing but a step of the optimizer may change.

    Whether a pass writes into them may depend on private rows, as for an embedding that rescales
    the rows it looks up (`max_norm`). A refusal would tell of these rows, and what was written
    would be published without noise: so it is undone, and nothing is said. Compared are versions,
    and values bit by bit, since PyTorch counts no writes through `.data`.

    On a device other than the processor, to compare is to wait: there what was is put back without
    a look, and whether that changed anything is answered when it is asked for.

    Of a model under FSDP2 nothing is held: its modules have whole parameters only while they run,
    gathered from shards before a pass and freed after it, with what was written into them.

    Args:
        model: its parameters that require gradients are held, each under the name and in the memory
            that it has.

    """

    def __init__(self, model: nn.Module) -> None:
        self._written, self._held = "", False
        #: On a device: the place of the first byte that differed, among all bytes; below 0: none.
        self._place: Tensor | None = None
        modules = dict(model.named_modules())
        sharded = any(hasattr(module, "set_reshard_after_backward") for module in modules.values())
        trained = (
            []
            if sharded
            else [
                (name, parameter)
                for name, parameter in model.named_parameters()
                if parameter.requires_grad
            ]
        )
        self._entries = [_Entry(name, parameter) for name, parameter in trained]
        self._on_processor = all(on_processor(parameter) for _, parameter in trained)
        self._places = [
            (
                name,
                module._parameters,
                [*map(id, module._parameters.values())],
                dict(module._parameters),
            )
            for name, module in modules.items()
            if module._parameters and not sharded
        ]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those that are held."""
        return [entry.parameter for entry in self._entries]

    @property
    def written(self) -> str:
        """The name of a parameter that was restored since this was last set to ""; else empty."""
        if not self._written and self._place is not None:
            place, self._place = int(self._place), None
            for entry in self._entries if place >= 0 else ():
                self._written = self._written or (entry.name if place < entry.memory.nbytes else "")
                place -= entry.memory.nbytes
        return self._written

    @written.setter
    def written(self, name: str) -> None:
        self._written, self._place = name, None

    def untouched(self) -> Tensor | None:
        """Whether nothing was restored since then, as a device answers it; None: `written` knows
        without a wait.
        """
        return None if self._written or self._place is None else self._place < 0

    @contextmanager
    def holding(self) -> Iterator[TrainedState]:
        """A block in which `restore` makes the parameters what they are at its beginning; elsewhere
        it does nothing.
        """
        if self._held:
            yield self
            return
        for entry in self._entries:
            entry.follow()
        if self._entries:
            torch._foreach_copy_(
                [entry.copy for entry in self._entries], [entry.memory for entry in self._entries]
            )
        self._held = True
        try:
            yield self
        finally:
            self._held = False

    def restore(self) -> None:
        """Undo what was written since the block began."""
        if not self._held:
            return
        for name, parameters, identities, before in self._places:
            if [*map(id, parameters.values())] != identities:
                self._written = ".".join(filter(None, (name, next(iter(before)))))
                parameters.clear()
                parameters.update(before)
        for entry in self._entries:
            if entry.is_moved() or (self._on_processor and not entry.is_same()):
                entry.put_back()
                self._written = entry.name
        if self._entries and not self._on_processor:
            place, known = _first_difference(self._entries), self._place
            self._place = place if known is None else known.where(known >= 0, place)
            torch._foreach_copy_(
                [entry.memory for entry in self._entries], [entry.copy for entry in self._entries]
            )


class _Entry:
    """One parameter, and what it was."""

    def __init__(self, name: str, parameter: nn.Parameter) -> None:
        self.name, self.parameter = name, parameter
        self._layout: Any = None

    def follow(self) -> None:
        """Take note of the parameter's memory, which an optimizer may replace between steps."""
        parameter = self.parameter
        self._version = parameter._version
        if self._layout is not None and self._layout == self._layout_now():
            return
        self._layout = self._layout_now()
        self.memory: Tensor = parameter.data
        self.copy = torch.empty_like(self.memory)
        self.bits, self._bits_before = _bits(self.memory), _bits(self.copy)
        large = on_processor(self.memory) and self.bits.numel() > _LARGE
        self._arrays = (self.bits.numpy(), self._bits_before.numpy()) if large else None

    def _layout_now(self) -> Any:
        parameter = self.parameter
        return parameter.data_ptr(), parameter.shape, parameter.stride(), parameter.dtype

    def is_moved(self) -> bool:
        """Whether the parameter has other memory, was written into as far as PyTorch counts, or is
        not trained now.
        """
        parameter = self.parameter
        return (
            parameter._version != self._version
            or not parameter.requires_grad
            or self._layout != self._layout_now()
        )

    def is_same(self) -> bool:
        """Whether its memory holds the same bits."""
        if self._arrays is not None:
            return np.array_equal(*self._arrays)
        return torch.equal(self.bits, self._bits_before)

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        """Its bits now and before, as bytes in one row."""
        return self.bits.reshape(-1).view(torch.uint8), self._bits_before.reshape(-1).view(
            torch.uint8
        )

    def put_back(self) -> None:
        """Make it what it was; writes that are undone don't count in `versions`."""
        parameter = self.parameter
        if self._layout != self._layout_now():
            parameter.data = self.memory
        parameter.requires_grad_()
        self.memory.copy_(self.copy)
        if (writes := parameter._version - self._version) > 0:
            _UNDONE[parameter] = _UNDONE.get(parameter, 0) + writes
            self._version = parameter._version


def _bits(values: Tensor) -> Tensor:
    """The same memory as whole numbers, of 8 bytes where that fits: floats that differ in a bit may
    be equal.
    """
    if values.is_complex():
        values = torch.view_as_real(values)
    if values.is_contiguous():
        flat = values.view(-1)
        places = (flat.nbytes, flat.data_ptr(), flat.storage_offset() * flat.element_size())
        wide = all(place % 8 == 0 for place in places)
        return flat.view(torch.int64 if wide else _WHOLE[flat.element_size()])
    return values.view(_WHOLE[values.element_size()])


_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _first_difference(entries: Sequence[_Entry]) -> Tensor:
    """The place of the first byte that differs, among the bytes of all parameters; -1 if none
    does. Nothing is waited for.
    """
    now, before = zip(*(entry.pair for entry in entries), strict=True)
    differs = torch.cat(now) != torch.cat(before)
    return differs.view(torch.uint8).argmax().where(differs.any(), -1)
