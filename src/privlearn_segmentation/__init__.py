"""Segmentation of volumes: networks that learn maps of classes, and what PATE needs around them.

Nothing here protects anything by itself: teachers are networks on their own records, students learn
from what was
    released.
"""

from __future__ import annotations

from privlearn._lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
