"""Runs that were interrupted, or are finished and not published, are gone on with."""

from __future__ import annotations

from pathlib import Path

import pytest

import privlearn as pv
from tests.support import texts as made

made.require_transformers()

from tests.huggingface.checks_resuming import CHANGES, Interrupted, interrupts  # noqa: E402
from tests.huggingface.test_trainer import same, trainer_of  # noqa: E402


def test_a_finished_run_is_brought_back_and_published(tmp_path: Path) -> None:
    """What the message says of it, followed."""
    runs = tmp_path / "runs"
    first = trainer_of(made.gpt2(), runs, changes=CHANGES)
    first.train()
    with pytest.raises(pv.errors.BadInput, match=r"holds a finished run.*publish it"):
        trainer_of(made.gpt2(), runs, changes=CHANGES).train()
    again = trainer_of(made.gpt2(), runs, changes=CHANGES, streams=None)
    again.train(resume_from_checkpoint=True)
    assert same(again.model, first.model)
    assert again.result.ledger.event == first.result.ledger.event
    assert pv.verify(again.publish(tmp_path / "model")).ok
    trainer_of(made.gpt2(), runs, changes={**CHANGES, "max_steps": 1}).train()


def test_an_interrupted_run_says_how_far_it_is_and_other_rates_are_refused(tmp_path: Path) -> None:
    changes = {**CHANGES, "save_steps": 3}
    with pytest.raises(Interrupted):
        trainer_of(made.gpt2(), tmp_path, changes=changes, callbacks=[interrupts()]).train()
    with pytest.raises(pv.errors.BadInput, match=r"interrupted run, 3 of 10 steps"):
        trainer_of(made.gpt2(), tmp_path, changes=changes).train()
    more = {**changes, "num_train_epochs": 4}
    with pytest.raises(pv.errors.BadInput, match=r"a run of another plan, of 10 steps"):
        trainer_of(made.gpt2(), tmp_path, changes=more).train()
    other = {**changes, "lr_scheduler_type": "constant"}
    with pytest.raises(pv.errors.BadInput, match="in a trainer: the same"):
        trainer_of(made.gpt2(), tmp_path, changes=other, streams=None).train(
            resume_from_checkpoint=True
        )
