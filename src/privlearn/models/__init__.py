"""Small networks by name, U-Nets, and the check that a model treats examples one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privlearn._lazy import lazy

if TYPE_CHECKING:
    from privlearn.models.check import require_per_example as require_per_example
    from privlearn.models.networks import build as build
    from privlearn.models.norms import replace_batch_norm as replace_batch_norm

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "build": "networks",
        "replace_batch_norm": "norms",
        "require_per_example": "check",
    },
)
