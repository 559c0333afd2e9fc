"""The file of `PrivacyEngine.save_checkpoint`: the checkpoint of a run, with the script's loss and
with what the script puts there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from torch.utils._pytree import tree_leaves

from privlearn._figures import PLAIN, PrivateFigure, note
from privlearn.errors import BadInput
from privlearn.opacus.saved_loss import flattened_loss, whole_loss
from privlearn.opacus.script_loss import ScriptLoss
from privlearn.runs.checkpoint import Checkpoint, Saved, flattened, run_of, whole

_SCRIPT = "script"


@final
class ScriptCheckpoint(Checkpoint):
    """A run's checkpoint. It is written when the script says so, and from then on at no other time:
    what it loads is what it saved. What noise is drawn for is noted at any time.

    Args:
        path: the file.
        by_itself: whether the run writes it, about once a minute, until the script says so.

    Attributes:
        loss: the script's, by which all steps are taken.
        values: of the script, by name: tensors and plain values, nested in dictionaries and lists.
        microbatch: how many examples are computed at once.
        asked: whether the script says so.
    """

    asked = False

    def __init__(self, path: str | Path, *, by_itself: bool = False) -> None:
        super().__init__(path)
        self.by_itself = by_itself
        self.loss: ScriptLoss | None = None
        self.values: Mapping[str, Any] = {}
        self.microbatch: int | None = None

    @property
    def due(self) -> bool:
        """Whether the script says so, or it is time for the next."""
        return self.asked or (self.by_itself and super().due)

    @classmethod
    def load(cls, path: str | Path) -> ScriptCheckpoint:
        """What is in a file.

        Raises:
            BadInput: there is none, or it is no checkpoint of a script.
        """
        file = cls(path)
        saved = run_of(file)
        if saved is None or _SCRIPT not in saved.plain:
            raise BadInput(
                f"{path} is {'no file' if saved is None else 'a checkpoint of another run'}: "
                "expected one that save_checkpoint of this engine wrote. One that Opacus wrote "
                "holds weights: module.load_state_dict(torch.load(FILE)['module_state_dict'])"
            )
        script = saved.plain[_SCRIPT]
        file.loss = whole_loss(script["loss"], saved.tensors)
        file.values = whole(script["values"], saved.tensors)
        file.microbatch = script["microbatch"]
        file.by_itself = script.get("by_itself", False)
        return file

    def resumed(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What the run that goes on is made with, beside its settings."""
        config = settings.get("config")
        computed = (
            {"microbatch": self.microbatch}
            if config is None
            else {"config": replace(config, microbatch=self.microbatch)}
        )
        return {"checkpoint": self, "loss": self.loss, **computed}

    def write(self, saved: Saved) -> None:
        """Replace what was saved before, if the script says so; a crash leaves one of the two,
        whole.

        Raises:
            BadInput: it can't be written, or the loss or a value of the script can't be saved; what
                was saved before is still there.
        """
        if not (self.asked or self.by_itself):
            return
        assert self.loss is not None, "a run is kept once its loss is known"
        tensors = dict(saved.tensors)
        if any(isinstance(value, PrivateFigure) for value in tree_leaves(self.values)):
            note(PLAIN, silent=True)  # a file doesn't say that it is private
        script = {
            "loss": flattened_loss(self.loss, tensors),
            "values": flattened(self.values, "checkpoint_dict", tensors),
            "microbatch": self.microbatch,
            "by_itself": self.by_itself,
        }
        super().write(Saved(tensors, {**saved.plain, _SCRIPT: script}))
