"""Products of numbers in single precision are computed in it, not in TF32 or bfloat16, whatever the
caller has set.

Those keep 10 or 7 bits of each factor. A norm and a sum that are computed from one gradient would
then differ by more than the room that clips leave for rounding, and the sensitivity would be
exceeded.

What the model hands on, forward and backward, may be computed as the caller has set it on an
accelerator: norms and sums follow from one copy of that (`callers_precision`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Any

import torch

from privlearn.core.devices import on_processor, precision_settings

#: PyTorch's name of full precision.
_FULL = "ieee"


#: Of each block of `single_precision` around: settings, and what the caller has set.
_lowered: list[list[tuple[Any, str]]] = []


@contextmanager
def single_precision(device: torch.device) -> Iterator[None]:
    """For the block, products on `device` are in full precision; the caller's settings are put
    back.
    """
    held = [(setting, setting.fp32_precision) for setting in _settings(device.type)]
    reduced = [(setting, before) for setting, before in held if before != _FULL]
    _lowered.append([] if on_processor(device) else reduced)
    try:
        with _set((setting, _FULL) for setting, _ in reduced):
            yield
    finally:
        _lowered.pop()


def callers_precision() -> AbstractContextManager[None]:
    """A block in a block of `single_precision` in which products are in the precision that the
    caller has set; on a processor in full precision.
    """
    return _set(_lowered[-1] if _lowered else ())


def full_precision() -> AbstractContextManager[None]:
    """A block in a block of `callers_precision` in which products are in full precision."""
    return _set((setting, _FULL) for setting, _ in (_lowered[-1] if _lowered else ()))


@contextmanager
def _set(values: Iterable[tuple[Any, str]]) -> Iterator[None]:
    """Settings in a block."""
    held = []
    try:
        for setting, value in values:
            held.append((setting, setting.fp32_precision))
            setting.fp32_precision = value
        yield
    finally:
        for setting, before in reversed(held):
            setting.fp32_precision = before


@lru_cache
def _settings(kind: str) -> list[Any]:
    return precision_settings(kind)
