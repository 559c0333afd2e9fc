"""Class statistics: classifiers, features and rows from one noisy release (Shen et al. 2021)."""

from __future__ import annotations

from privlearn._lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
