"""The parts of a run that goes on get the states that its checkpoint has for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privlearn.errors import BadInput
from privlearn.runs.checkpoint import BEGIN_ANEW, Saved, whole
from privlearn.runs.session import Part, TrainingSession


def state_in(saved: Saved, name: str) -> Any:
    """The state of a part in a checkpoint.

    Raises:
        BadInput: the checkpoint holds no such part.
    """
    if name not in saved.plain["parts"]:
        raise BadInput(
            f"the checkpoint holds no {name!r}: it was written by a run that did not keep it. Keep "
            f"what that run kept, in the same order. {BEGIN_ANEW}"
        )
    return saved.plain["parts"][name]


def restore_late(parts: Mapping[str, Part], session: TrainingSession, *, stepped: bool) -> None:
    """Let parts that are added to a run that goes on have the state of its checkpoint.

    Args:
        parts: by name.
        session: of the run.
        stepped: whether steps were taken since.

    Raises:
        BadInput: they were, or the checkpoint holds no such part.
    """
    saved = session.saved
    if saved is None or not parts:
        return
    if stepped:
        raise BadInput(
            f"{next(iter(parts))!r} was kept after a step of a run that goes on: its state in the "
            "checkpoint is older. Call keep before the first batch"
        )
    # A scheduler that was just made may have set the rates.
    rates = set() if saved.plain.get("shards") else {"optimizer"} & session.parts.keys()
    for name, part in [*parts.items(), *((name, session.parts[name]) for name in rates)]:
        part.load_state_dict(whole(state_in(saved, name), saved.tensors))
