"""Products of numbers in single precision are computed in it, not in TF32 or bfloat16, whatever the
caller has set.

Those keep 10 or 7 bits of each factor. A norm and a sum that are computed from one gradient would
then differ by more than the room that clips leave for rounding, and the sensitivity would be
exceeded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch

from privlearn.core.devices import precision_settings

#: PyTorch's name of full precision.
_FULL = "ieee"


@contextmanager
def single_precision(device: torch.device) -> Iterator[None]:
    """For the block, products on `device` are in full precision; the caller's settings are put
    back.
    """
    held = [(setting, setting.fp32_precision) for setting in _settings(device.type)]
    reduced = [(setting, before) for setting, before in held if before != _FULL]
    for setting, _ in reduced:
        setting.fp32_precision = _FULL
    try:
        yield
    finally:
        for setting, before in reduced:
            setting.fp32_precision = before


@lru_cache
def _settings(kind: str) -> list[Any]:
    return precision_settings(kind)
