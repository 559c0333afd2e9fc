"""Planted bugs of physical batches: a named check must catch each."""

from __future__ import annotations

from privlearn.opacus import batch_memory_manager, logical_batch, script_loss, script_run
from tests.support.mutant import Mutant, suite_of

ONE = "check_a_logical_batch_is_one_step"
MEAN = "check_the_step_of_physical_batches_is_the_mean_of_clipped_gradients"
ROWS = "check_no_call_of_the_model_has_more_rows_than_a_physical_batch"
GOOD = "check_a_physical_batch_is_good_for_one_step"
LOSS = "check_a_loss_does_not_follow_from_physical_batches"
LEFT = "check_a_batch_that_was_left_between_physical_batches_goes_on"

MUTANTS = [
    Mutant(
        "a logical batch is noised for each physical one",
        script_run.ScriptRun.step,
        "            in_hand.pass_rows()\n",
        "            in_hand.pass_rows()\n        self.run.session.noise.words(4)\n",
        ONE,
    ),
    Mutant(
        "the first physical batch is the whole batch's step",
        logical_batch.LogicalBatch.is_last,
        "self._size == len(self._left)",
        "True",
        ONE,
    ),
    Mutant(
        "an early step is taken",
        script_run.ScriptRun.step,
        "            in_hand.pass_rows()\n",
        "            in_hand.pass_rows()\n        [own.data.mul_(0.9) for own in "
        "self.run.model.parameters()]\n",
        ONE,
    ),
    Mutant(
        "a batch is charged for each physical one",
        script_run.ScriptRun.step,
        "            in_hand.pass_rows()\n",
        "            in_hand.pass_rows()\n        self.run.session.account.charge()\n",
        "check_a_step_is_charged_at_its_last_physical_batch",
    ),
    Mutant(
        "physical batches are as large as the batch",
        batch_memory_manager.PhysicalLoader.__iter__,
        "epoch(self.batch_size)",
        "epoch()",
        ROWS,
    ),
    Mutant(
        "the step computes all rows at once",
        batch_memory_manager.BatchMemoryManager.__enter__,
        "compute_at_once(self._size)",
        "compute_at_once(60)",
        ROWS,
    ),
    Mutant(
        "a physical batch may be left out",
        script_run.ScriptRun.epoch,
        "            raise _without_step()",
        "            pass",
        GOOD,
    ),
    Mutant(
        "tensors of the physical batch before are taken",
        script_run.ScriptRun._end,
        "    turn.close()\n    self._turn, self._loss = None, loss\n",
        "    self._turn, self._loss = None if self._batch is None else turn, loss\n",
        GOOD,
    ),
    Mutant(
        "the loss of later physical batches is not looked at",
        script_run.ScriptRun.step,
        "if self._loss is None or not loss.same_as(self._loss):",
        "if not in_hand.begun and (self._loss is None or not loss.same_as(self._loss)):",
        LOSS,
    ),
    Mutant(
        "an example counts by the size of its physical batch",
        script_loss.ScriptLoss._parts,
        "output.mean(1)",
        "output.mean(1) / rows",
        MEAN,
    ),
    Mutant(
        "the first physical batch has the size that was drawn",
        script_run.ScriptRun._hand_out,
        "if is_first:",
        "if is_first and most is None:",
        "check_the_first_physical_batch_has_a_public_size",
    ),
    Mutant(
        "a physical batch comes again",
        logical_batch.LogicalBatch.pass_rows,
        "self._left[self._size :]",
        "self._left[: -self._size]",
        LEFT,
    ),
]
test_bug_is_caught, test_mutants_name_their_checks = suite_of(
    MUTANTS, errors=(RuntimeError, TypeError)
)
