"""Per-example work becomes a sum of bounded sensitivity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privlearn._lazy import lazy

if TYPE_CHECKING:
    from privlearn.clipping.augmentation import Augmentation as Augmentation
    from privlearn.clipping.clips import Automatic as Automatic
    from privlearn.clipping.clips import Flat as Flat
    from privlearn.clipping.clips import PerLayer as PerLayer
    from privlearn.clipping.clips import Quantile as Quantile

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "Augmentation": "augmentation",
        "Automatic": "clips",
        "Flat": "clips",
        "PerLayer": "clips",
        "Quantile": "clips",
    },
)
