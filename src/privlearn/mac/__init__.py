"""DP-MAC: networks trained layer by layer, from noisy expansions of their objectives (Harder et al. 2018)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privlearn._lazy import lazy

if TYPE_CHECKING:
    from privlearn.clipping.derivative_bounds import Analytic as Analytic
    from privlearn.clipping.derivative_bounds import Derivatives as Derivatives
    from privlearn.clipping.derivative_bounds import Histogram as Histogram
    from privlearn.mac.coordinates import Coordinates as Coordinates

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "Analytic": "privlearn.clipping.derivative_bounds",
        "Coordinates": "coordinates",
        "Derivatives": "privlearn.clipping.derivative_bounds",
        "Histogram": "privlearn.clipping.derivative_bounds",
    },
)
