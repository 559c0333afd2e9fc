"""This package computes what a run costs from its event tree, with numpy alone and never with
torch.
"""

from __future__ import annotations

from privlearn._lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
