"""Callbacks for tests: one that calls a function after each step, and one that notes all that it is
given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from privlearn.runs.callbacks import Callback, TrainingProgress


@final
class EachStep(Callback):
    """Calls a function with (steps done, steps in all)."""

    def __init__(self, function: Callable[[int, int], object]) -> None:
        self._function = function

    def on_step(self, progress: TrainingProgress) -> None:
        self._function(progress.step, progress.steps)


@final
class Noted(Callback):
    """Notes all of what callbacks are given but for the seconds, and at the ends of epochs the
    price so far.
    """

    def __init__(self, seen: list[Any]) -> None:
        self._seen = seen

    def _note(self, name: str, progress: TrainingProgress) -> None:
        held = {
            key: value for key, value in vars(progress).items() if key not in ("_ledger", "seconds")
        }
        self._seen.append((name, repr(progress), sorted(held.items())))

    def on_step(self, progress: TrainingProgress) -> None:
        self._note("on_step", progress)

    def on_epoch(self, progress: TrainingProgress) -> None:
        self._note("on_epoch", progress)
        self._seen.append(("spent", progress.spent(1e-5)))

    def on_end(self, progress: TrainingProgress) -> None:
        self._note("on_end", progress)
        self._seen.append(("spent", progress.spent(1e-5)))
