"""This package has what every method that trains shares: the run, its task, its checkpoints and its
result.
"""

from __future__ import annotations

from privlearn._lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
