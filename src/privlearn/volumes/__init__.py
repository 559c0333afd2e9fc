"""Segmentation of volumes: networks that learn maps of classes, and what PATE needs around them.

Nothing here protects anything by itself: teachers are networks on their own records, students learn from what was released.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privlearn._lazy import lazy

if TYPE_CHECKING:
    from privlearn.volumes.start import Corrections as Corrections
    from privlearn.volumes.start import MapStudent as MapStudent
    from privlearn.volumes.start import Seen as Seen
    from privlearn.volumes.start import Start as Start
    from privlearn.volumes.training import Pairs as Pairs
    from privlearn.volumes.training import Training as Training
    from privlearn.volumes.training import Warp as Warp
    from privlearn.volumes.training import dice as dice
    from privlearn.volumes.training import map_losses as map_losses
    from privlearn.volumes.training import maps_of as maps_of
    from privlearn.volumes.training import probabilities as probabilities

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "Corrections": "start",
        "MapStudent": "start",
        "Pairs": "training",
        "Seen": "start",
        "Start": "start",
        "Training": "training",
        "Warp": "training",
        "dice": "training",
        "map_losses": "training",
        "maps_of": "training",
        "probabilities": "training",
    },
)
