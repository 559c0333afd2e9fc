"""Scans in files (NIfTI), and the grid of voxels that each of them is brought to, by itself."""

from __future__ import annotations

from privlearn._lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
