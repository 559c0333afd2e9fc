"""Private selection among several trained models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privlearn._lazy import lazy

if TYPE_CHECKING:
    from privlearn.tuning.blocks import Blocks as Blocks
    from privlearn.tuning.stopping import Candidate as Candidate
    from privlearn.tuning.stopping import RandomStopping as RandomStopping

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "Blocks": "blocks",
        "Candidate": "stopping",
        "RandomStopping": "stopping",
    },
)
