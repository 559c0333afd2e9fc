"""Small networks by name, U-Nets, and the check that a model treats examples one by one."""

from __future__ import annotations

from privlearn._lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
