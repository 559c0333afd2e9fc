"""Named checks of trainers that go on after an interruption."""

from __future__ import annotations

import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import privlearn as pv
from tests.support import texts as made
from tests.support.checks import check

CHANGES = {"save_strategy": "steps", "save_steps": 2, "logging_steps": 100}


class Interrupted(Exception):
    """Ends training in its midst."""


def interrupts() -> Any:
    """A callback that does, after five steps."""
    from transformers import TrainerCallback

    class Interrupts(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if state.global_step == 5:
                raise Interrupted

    return Interrupts()


def counts(*, kept: bool) -> Any:
    """A callback that counts steps, and may have a state that is kept."""
    from transformers import TrainerCallback

    class Counts(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.steps = 0

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.steps += 1

    class Remembers(Counts):
        def state_dict(self) -> dict[str, int]:
            return {"steps": self.steps}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.steps = state["steps"]

    return Remembers() if kept else Counts()


@check
def check_schedulers_and_callbacks_of_a_trainer_go_on_where_they_were() -> None:
    """Those that have a state; another callback is named in a warning."""
    made.require_transformers()
    from transformers import EarlyStoppingCallback

    def trained(folder: str, *callbacks: Any, resume: bool = False) -> tuple[Any, int]:
        """The trainer, and for how many evaluations it had patience."""
        model = made.still_gpt2()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 6], gamma=0.1)
        patience = EarlyStoppingCallback(100, 1000.0)
        evaluated = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss"}
        trainer = pv.huggingface.PrivateTrainer(
            model,
            made.arguments(folder, **CHANGES, **evaluated),
            train_dataset=made.texts(),
            eval_dataset=made.texts(4, 1),
            data_collator=made.padded,
            optimizers=(optimizer, scheduler),
            callbacks=[patience, *callbacks],
            epsilon=8.0,
            delta=1e-3,
            max_length=made.LENGTH,
            streams=None if resume else pv.Streams.new(5),
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer, patience.early_stopping_patience_counter

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        whole, patience = trained(str(Path(folder) / "whole"), counts(kept=True))
        parts = str(Path(folder) / "parts")
        with suppress(Interrupted):
            trained(parts, counts(kept=True), counts(kept=False), interrupts())
        kept, unkept = counts(kept=True), counts(kept=False)
        resumed, waited = trained(parts, kept, unkept, resume=True)
    theirs = dict(whole.model.named_parameters())
    for name, own in resumed.model.named_parameters():
        assert torch.equal(own, theirs[name]), name
    assert resumed.lr_scheduler.get_last_lr() == whole.lr_scheduler.get_last_lr()
    assert waited == patience
    assert (kept.steps, unkept.steps) == (10, 6)
    said = [str(warning.message) for warning in caught if "remembered" in str(warning.message)]
    assert [text.partition(" ")[0] for text in said] == ["Counts"]
