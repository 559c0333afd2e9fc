"""Planted bugs of the door to Lightning, each of which a named check must catch."""

from __future__ import annotations

import pytest

from tests.support.mutant import Mutant, suite_of

pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

from privlearn.descent import gradient_check
from privlearn.lightning import step_loss, strategy

STEP = "    seen = self.private.step(args[0])\n"
MUTANTS = [
    Mutant("a training step is given the batch", step_loss.StepLoss.__call__,
           "lambda leaf, n=n: leaf[n : n + 1], batch",
           "lambda leaf, n=n: leaf, batch", "check_a_training_step_sees_one_example"),
    Mutant("what a training step logs is logged", step_loss._quiet, 'for name in ("log", "log_dict")', "for name in ()",
           "check_nothing_private_is_logged_by_the_strategy"),
    Mutant("the training loss is logged unasked", strategy.PrivateStrategy.training_step,
           "if self._logs_loss:", "if True:", "check_nothing_private_is_logged_by_the_strategy"),
    Mutant("the strategy skips an empty batch", strategy.PrivateStrategy.training_step, STEP,
           "    if not len(args[0].batch.sample): self.private._session.taken += 1; return torch.tensor(0.0)\n" + STEP,
           "check_an_empty_batch_is_a_step_of_the_strategy"),
    Mutant("the strategy for one process in each of several", strategy.PrivateStrategy._require_processes,
           'require_one_process("PrivateStrategy",', "str(", "check_the_strategy_for_one_process_takes_one"),
    Mutant("weights without a gradient are trained", gradient_check._by_autograd, "if gradient is None]", "if False]",
           "check_weights_that_the_step_does_not_use_are_named"),
]  # fmt: skip
test_bug_is_caught, test_mutants_name_their_checks = suite_of(MUTANTS, errors=(TypeError, AttributeError, RuntimeError))
