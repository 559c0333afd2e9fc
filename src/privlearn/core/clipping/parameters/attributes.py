"""A pass over rows leaves no numbers for later passes in what modules keep in plain attributes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import repeat
from operator import is_
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

#: Bytes up to which a tensor is copied anew whenever attributes are taken down.
SMALL = 1 << 20
#: Attributes of every module: what they hold is restored, or compared, elsewhere.
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_NUMBERS = (Tensor, float, complex, np.ndarray, np.generic)
_CONTAINERS = (list, dict, set, deque)
_MISSING = object()


class _Module(NamedTuple):
    """The attributes of a module, and those that are not PyTorch's as they were."""

    attributes: dict[str, Any]
    before: dict[str, Any]
    length: int

    def is_same(self) -> bool:
        """Whether each attribute is still the same object, and there is no other one."""
        now = map(self.attributes.get, self.before, repeat(_MISSING))
        return len(self.attributes) == self.length and all(map(is_, now, self.before.values()))

    def restore(self) -> None:
        """Bring back all, if one that changed may hold numbers."""
        now = {
            name: value for name, value in self.attributes.items() if name not in _OF_EVERY_MODULE
        }
        names = [
            name for name in {**now, **self.before} if now.get(name) is not self.before.get(name)
        ]
        if any(
            _holds_numbers(now.get(name)) or _holds_numbers(self.before.get(name)) for name in names
        ):
            for name in now:
                del self.attributes[name]
            self.attributes.update(self.before)


class _Container(NamedTuple):
    """A list, dictionary, set or queue, and what was in it."""

    container: Any
    before: Any


class _Value(NamedTuple):
    """A tensor, and what it was."""

    tensor: Tensor
    copy: Tensor
    version: int


@final
class PlainAttributes:
    """Attributes of modules that are no parameters, buffers or modules.

    Tensors, floats and NumPy's numbers, and containers that hold some, may hold something of the
    rows of a pass. Where a pass changes one, its module gets back all that it had, so that a cache
    and the length that it was made for still go together. Whole numbers, texts and flags of other
    modules last, as counters of steps do.

    Args:
        owners: their modules are held.
        trained: what optimizers change; nothing that shares its memory is written into.
    """

    def __init__(self, owners: Iterable[nn.Module], trained: Iterable[Tensor]) -> None:
        self._owned = list(
            {id(module): module for owner in owners for module in owner.modules()}.values()
        )
        self._trained = list(trained)
        self._values: dict[int, _Value] = {}
        self.take()

    def take(self) -> None:
        """What there is now is what `restore` brings back. Between passes it is the caller's to
        change.
        """
        self._modules: list[_Module] = []
        self._containers: list[_Container] = []
        values, self._values = self._values, {}
        memory = set(map(_memory, self._trained))
        met = set[int]()
        for module in self._owned:
            attributes = vars(module)
            before = {
                name: value for name, value in attributes.items() if name not in _OF_EVERY_MODULE
            }
            self._modules.append(_Module(attributes, before, len(attributes)))
            for value in before.values():
                self._take_value(value, values, memory, met)

    def _take_value(
        self, value: Any, values: dict[int, _Value], memory: set[int | None], met: set[int]
    ) -> None:
        if isinstance(value, Tensor):
            same = values.get(id(value))
            if (place := _memory(value)) is None or place in memory:
                return
            if same is not None and same.version == value._version and value.nbytes > SMALL:
                self._values[id(value)] = same
            else:
                self._values[id(value)] = _Value(value, value.detach().clone(), value._version)
        elif isinstance(value, (*_CONTAINERS, tuple)) and id(value) not in met:
            met.add(id(value))
            if not isinstance(value, tuple):
                self._containers.append(_Container(value, value.copy()))
            for item in _items(value):
                if isinstance(item, (Tensor, *_CONTAINERS, tuple)):
                    self._take_value(item, values, memory, met)

    def restore(self) -> None:
        """Undo what was changed since attributes were taken down."""
        for module in self._modules:
            if not module.is_same():
                module.restore()
        for container, before in self._containers:
            if len(container) == len(before) and all(map(is_, _items(container), _items(before))):
                continue
            if _holds_numbers(container) or _holds_numbers(before):
                container.clear()
                (container.update if isinstance(container, dict | set) else container.extend)(
                    before
                )
        for key, (tensor, copy, version) in self._values.items():
            if tensor._version != version or (
                tensor.nbytes <= SMALL and not torch.equal(tensor, copy)
            ):
                with torch.no_grad():
                    tensor.copy_(copy)
                self._values[key] = _Value(tensor, copy, tensor._version)


def _memory(tensor: Tensor) -> int | None:
    """Where the numbers of a tensor lie; None for one that can't be copied and compared.

    That is one which a finished `vmap` left, one of another layout, one without numbers yet, or one
    in several parts.
    """
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or tensor.device.type == "meta":
        return None
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (RuntimeError, ValueError, NotImplementedError):
        return None


def _items(container: Any) -> Iterator[Any]:
    return iter(container.values() if isinstance(container, dict) else container)


def _holds_numbers(value: Any, depth: int = 4) -> bool:
    """Whether a value may hold numbers that were computed with rows."""
    if isinstance(value, _NUMBERS):
        return True
    inner = isinstance(value, (*_CONTAINERS, tuple)) and depth > 0
    return inner and any(_holds_numbers(item, depth - 1) for item in _items(value))
