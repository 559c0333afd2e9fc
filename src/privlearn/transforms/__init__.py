"""The transforms in front of a network are public transforms of rows, or are made by a release on
private rows.
"""

from __future__ import annotations

from privlearn._lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
