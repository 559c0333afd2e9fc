"""Each function of scipy is imported when it is first called, because scipy takes longer to import
than all of privlearn.

Commands that price nothing do without it, and those that do without what they do not call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def _later(module: str, name: str) -> Callable[..., Any]:
    @cache
    def function() -> Callable[..., Any]:
        return getattr(import_module(module), name)  # type: ignore[no-any-return]

    return lambda *values, **options: function()(*values, **options)


irfft = _later("scipy.fft", "irfft")
next_fast_len = _later("scipy.fft", "next_fast_len")
rfft = _later("scipy.fft", "rfft")
betaincinv = _later("scipy.special", "betaincinv")
gammaln = _later("scipy.special", "gammaln")
log_ndtr = _later("scipy.special", "log_ndtr")
logsumexp = _later("scipy.special", "logsumexp")
ndtr = _later("scipy.special", "ndtr")
ndtri = _later("scipy.special", "ndtri")
