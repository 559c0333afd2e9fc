"""In this package a bounded value meets its charge and its noise, which may depend on that of
earlier steps.
"""

from __future__ import annotations

from privlearn._lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
