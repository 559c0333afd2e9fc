"""Segmentation of volumes: networks that learn maps of classes, moved and mirrored, and what PATE needs around them.

Nothing here protects anything by itself: teachers are networks on their own records, students learn from what was released.
"""

from privlearn.segmentation.dice import dice
from privlearn.segmentation.pairs import Pairs
from privlearn.segmentation.references import Corrections, Seen
from privlearn.segmentation.starts import Start
from privlearn.segmentation.students import MapStudent
from privlearn.segmentation.training import Training, map_losses, maps_of, probabilities
from privlearn.segmentation.warps import Warp

__all__ = [
    "Corrections",
    "MapStudent",
    "Pairs",
    "Seen",
    "Start",
    "Training",
    "Warp",
    "dice",
    "map_losses",
    "maps_of",
    "probabilities",
]
