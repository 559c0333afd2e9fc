"""DP-MAC: networks trained layer by layer, from noisy expansions of their objectives (Harder et al.
2018).
"""

from __future__ import annotations

from privlearn._lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
