"""What every method that trains shares: the run, its task, its checkpoints and its result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privlearn._lazy import lazy

if TYPE_CHECKING:
    from privlearn.runs.checkpoint import Checkpoint as Checkpoint

__getattr__, __dir__, __all__ = lazy(__name__, {"Checkpoint": "checkpoint"})
