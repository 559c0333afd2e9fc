"""The trainer's own progress as a part of a private run's checkpoint: its state and its logs, its
scheduler of learning rates, and what callbacks remember.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_callback import ExportableState

from privlearn.errors import warn
from privlearn.runs.checkpoint import whole


class TrainerState:
    """The progress of a trainer, which a resumed run goes on from.

    A callback is kept that is an `ExportableState` of transformers, as `EarlyStoppingCallback` is,
    or has `state_dict` and `load_state_dict`.

    Args:
        trainer: whose.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._saved: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, str]:
        """Texts: what they hold may be no plain JSON."""
        trainer = self._trainer
        scheduler = trainer.lr_scheduler.state_dict() if trainer.lr_scheduler is not None else None
        callbacks = {name: _state_of(callback) for name, callback in self._list_stateful()}
        return {
            "state": json.dumps({**vars(trainer.state)}),
            "scheduler": _as_text(scheduler),
            "callbacks": _as_text(callbacks),
        }

    def load_state_dict(self, state: dict[str, str]) -> None:
        """Let callbacks go on, and remember the rest for `written`."""
        callbacks = whole(json.loads(state["callbacks"]), {})
        for name, callback in self._list_stateful():
            if name in callbacks:
                _restore(callback, callbacks[name])
        self._saved = {
            "state": json.loads(state["state"]),
            "scheduler": whole(json.loads(state["scheduler"]), {}),
        }

    def written(self, folder: str) -> str | None:
        """A checkpoint in this folder in the form that `Trainer` resumes from; None if there is
        nothing to resume.
        """
        if self._saved is None or not self._saved["state"]["global_step"]:
            return None
        path, trainer = Path(folder), self._trainer
        (path / "trainer_state.json").write_text(json.dumps(self._saved["state"]))
        torch.save(trainer.optimizer.state_dict(), path / "optimizer.pt")
        torch.save(self._saved["scheduler"], path / "scheduler.pt")
        return folder

    def warn_of_unkept(self) -> None:
        """Say which callback of the script has attributes that no checkpoint holds."""
        stateful = {id(callback) for _, callback in self._list_stateful()}
        for callback in self._trainer.callback_handler.callbacks:
            library = type(callback).__module__.partition(".")[0] in ("transformers", "privlearn")
            if vars(callback) and id(callback) not in stateful and not library:
                warn(
                    f"{type(callback).__name__} is not in the checkpoint: what it counted or "
                    "remembered before the interruption is lost. Give it state_dict() and "
                    "load_state_dict(state), and a checkpoint holds it"
                )

    def _list_stateful(self) -> Iterator[tuple[str, Any]]:
        for number, callback in enumerate(self._trainer.callback_handler.callbacks):
            named = all(hasattr(callback, name) for name in ("state_dict", "load_state_dict"))
            if named or isinstance(callback, ExportableState):
                yield f"{number} {type(callback).__name__}", callback


def _state_of(callback: Any) -> Any:
    if hasattr(callback, "state_dict"):
        return callback.state_dict()
    return callback.state()["attributes"]


def _restore(callback: Any, state: Any) -> None:
    if hasattr(callback, "load_state_dict"):
        callback.load_state_dict(state)
        return
    for name, value in state.items():
        setattr(callback, name, value)


def _as_text(state: Any) -> str:
    """JSON that keeps the kinds of keys: those of milestones are whole numbers."""
    return json.dumps(_itemised(state))


def _itemised(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {"items": [[key, _itemised(part)] for key, part in value.items()]}
    return [_itemised(part) for part in value] if isinstance(value, list | tuple) else value
