"""What Lightning's Trainer keeps of a run's progress is kept in the run's own checkpoint."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from privlearn.errors import BadInput
from privlearn.training.run import Run

_COUNTERS = ("ready", "started", "processed", "completed")


@final
class TrainerProgress:
    """The state of a Trainer's callbacks and schedulers, and its metrics of validation, as a part
    of a run. Its counts of epochs and steps follow from the run's.

    Args:
        trainer: whose they are.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._skipped = 0  # steps of the first epoch that were taken before an interruption

    def state_dict(self) -> dict[str, str]:
        """A text, which may hold numbers that are not finite.

        Raises:
            BadInput: a callback or a scheduler keeps what can't be saved without pickling.
        """
        state = {
            "callbacks": {each.state_key: each.state_dict() for each in self._trainer.callbacks},
            "schedulers": [
                config.scheduler.state_dict() for config in self._trainer.lr_scheduler_configs
            ],
            "metrics": dict(self._trainer.callback_metrics),
        }
        return {"state": json.dumps(_spelled(state))}

    def load_state_dict(self, state: dict[str, str], /) -> None:
        """Let callbacks and schedulers go on from a state."""
        saved = _read(json.loads(state["state"]))
        for callback in self._trainer.callbacks:
            if callback_state := saved["callbacks"].get(callback.state_key):
                callback.load_state_dict(callback_state)
        for config, scheduler_state in zip(
            self._trainer.lr_scheduler_configs, saved["schedulers"], strict=True
        ):
            config.scheduler.load_state_dict(scheduler_state)
        self._trainer.callback_metrics.update(saved["metrics"])

    def resume(self, run: Run) -> None:
        """Let the Trainer count from the run's step on."""
        loop, steps = self._trainer.fit_loop, run.steps_done
        whole, self._skipped = divmod(steps, run.steps_per_epoch)
        for counted in (loop.epoch_progress.total, loop.epoch_progress.current):
            _set(counted, whole)
        _set(loop.epoch_loop.batch_progress.total, steps)
        _set(loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total, steps)
        loop.epoch_loop._batches_that_stepped = steps

    def skip_steps(self) -> None:
        """Let the Trainer count from the first batch on within the epoch that was interrupted."""
        if self._skipped:
            loop = self._trainer.fit_loop
            _set(loop.epoch_loop.batch_progress.current, self._skipped)
            loop._data_fetcher.fetched += self._skipped
        self._skipped = 0


def _set(progress: Any, count: int) -> None:
    for name in _COUNTERS:
        if hasattr(progress, name):
            setattr(progress, name, count)


def _spelled(value: Any) -> Any:
    """A state in plain JSON values."""
    if isinstance(value, Tensor):
        return {"tensor": _spelled(value.tolist()), "type": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, Mapping):
        return {"items": [[_spelled(key), _spelled(part)] for key, part in value.items()]}
    if isinstance(value, list | tuple):
        return [_spelled(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": repr(float(value))}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise BadInput(
        f"a callback or a scheduler keeps a {type(value).__name__} in its state_dict, which can't "
        "be saved without pickling: let it keep numbers, texts and tensors, or leave checkpoint= "
        "out"
    )


def _read(value: Any) -> Any:
    """Undo `_spelled`; tuples come back as lists."""
    if isinstance(value, list):
        return [_read(part) for part in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return torch.tensor(
            _read(value["tensor"]), dtype=getattr(torch, value["type"]), device="cpu"
        )
    if "number" in value:
        return float(value["number"])
    return {_read(key): _read(part) for key, part in value["items"]}
