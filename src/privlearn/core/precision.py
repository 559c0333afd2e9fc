"""Products of numbers in single precision are computed in it, not in TF32 or bfloat16, whatever the
caller has set.

Those keep 10 or 7 bits of each factor. A norm and a sum that are computed from one gradient would
then differ by more than the room that clips leave for rounding, and the sensitivity would be
exceeded.

What the model hands on, forward and backward, may be computed as the caller has set it on an
accelerator: norms and sums follow from one copy of that (`callers_precision`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Any, final

import torch

from privlearn.core.devices import on_processor, precision_settings

#: PyTorch's name of full precision.
_FULL = "ieee"


@final
class _Level:
    """What products are computed in, in a block of `single_precision`.

    Args:
        settings: PyTorch's, and what the caller has set each to.
        stays: whether it is full precision whatever the caller has set.
    """

    def __init__(self, settings: list[tuple[Any, str]], *, stays: bool) -> None:
        self._settings, self.stays = settings, stays
        self.is_full = False

    def turn(self, *, full: bool) -> None:
        """Full precision from here on, or what the caller has set."""
        for setting, before in self._settings:
            setting.fp32_precision = _FULL if full else before
        self.is_full = full


#: Those of the blocks around, the innermost last.
_levels: list[_Level] = []


@contextmanager
def single_precision(device: torch.device) -> Iterator[None]:
    """For the block, products on `device` are in full precision; the caller's settings are put
    back.
    """
    held = [(setting, setting.fp32_precision) for setting in _settings(device.type)]
    level = _Level(held, stays=on_processor(device))
    _levels.append(level)
    try:
        level.turn(full=True)
        yield
    finally:
        _levels.pop()
        level.turn(full=False)


def callers_precision() -> AbstractContextManager[None]:
    """A block in a block of `single_precision` in which products are in the precision that the
    caller has set; on a processor in full precision.
    """
    return _set_precision(full=False)


def full_precision() -> AbstractContextManager[None]:
    """A block in a block of `callers_precision` in which products are in full precision."""
    return _set_precision(full=True)


@contextmanager
def _set_precision(*, full: bool) -> Iterator[None]:
    level = _levels[-1] if _levels else None
    if level is None or level.stays or level.is_full == full:
        yield
        return
    level.turn(full=full)
    try:
        yield
    finally:
        level.turn(full=not full)


@lru_cache
def _settings(kind: str) -> list[Any]:
    return precision_settings(kind)
