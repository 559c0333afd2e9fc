"""Planted bugs of a private `fit` that goes on, each of which a named check must catch."""

from __future__ import annotations

import pytest

from tests.support.mutant import Mutant, suite_of

pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

from privlearn.lightning import progress, strategy
from privlearn.training import noted_weights

ENDS = "check_an_interrupted_fit_ends_where_it_would_have_ended"
MUTANTS = [
    Mutant(
        "a resumed Trainer counts from the beginning",
        strategy._PrivateSteps._make_run,
        "self._progress.resume(private)",
        "pass",
        ENDS,
    ),
    Mutant(
        "a resumed Trainer takes an interrupted epoch for a whole one",
        progress.TrainerProgress.skip_steps,
        "if self._skipped:",
        "if False:",
        ENDS,
    ),
    Mutant(
        "schedulers begin anew",
        progress.TrainerProgress.load_state_dict,
        "config.scheduler.load_state_dict(scheduler_state)",
        "pass",
        ENDS,
    ),
    Mutant(
        "callbacks begin anew",
        progress.TrainerProgress.load_state_dict,
        "callback.load_state_dict(callback_state)",
        "pass",
        ENDS,
    ),
    Mutant(
        "a resumed run forgets the weights that it noted",
        noted_weights.NotedWeights.load_state_dict,
        'self._steps = dict(state["steps"])',
        "pass",
        ENDS,
    ),
    Mutant(
        "a run is resumed from the Trainer's checkpoint",
        strategy.PrivateStrategy.load_checkpoint,
        'if self.lightning_module.trainer.state.fn == "fit":',
        "if False:",
        "check_lightnings_checkpoint_does_not_resume_a_run",
    ),
]
test_bug_is_caught, test_mutants_name_their_checks = suite_of(
    MUTANTS, errors=(TypeError, AttributeError, RuntimeError, KeyError, ValueError)
)
