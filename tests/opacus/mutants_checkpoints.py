"""Planted bugs of runs that a script saves: a named check must catch each."""

from __future__ import annotations

from privlearn.opacus import privacy_engine, saved_loss, script_checkpoint, script_run
from privlearn.runs import saved_parts, session
from privlearn.training import base_run
from tests.support.mutant import Mutant, suite_of

ENDS = "check_a_saved_run_ends_where_it_would_have_ended"
ONCE = "check_the_steps_of_a_saved_run_are_taken_once"
ALONE = "check_a_saved_run_is_in_one_file_and_in_one_process"
KEPT = "check_a_kept_scheduler_goes_on_with_a_saved_run"
BY_ITSELF = "check_a_run_with_a_file_is_kept_in_it"
UNDER_WAY = "check_a_step_under_way_is_not_saved"

MUTANTS = [
    Mutant(
        "what noise is drawn for is not noted from then on",
        session.TrainingSession.keep_in,
        "    self._watch()\n",
        "",
        ONCE,
    ),
    Mutant(
        "between two epochs the batches are those of the epoch before",
        session.TrainingSession.keep_epochs,
        'self.streams.state()["sampling"]',
        "self._drawn_from",
        ENDS,
    ),
    Mutant(
        "what was released is not charged again",
        session.TrainingSession.keep_epochs,
        "self._epoch, self",
        "_, self",
        ENDS,
    ),
    Mutant(
        "other settings and rows are not looked at",
        base_run.BaseRun.keep_in,
        "    self.task.note_facts(self.session)\n",
        "    self.session.facts = {}\n",
        ENDS,
    ),
    Mutant(
        "two processes go on with one run",
        session.TrainingSession.keep_in,
        "    self._held.enter_context(file.alone())\n",
        "",
        ALONE,
    ),
    Mutant(
        "a run is saved in two files",
        script_run.ScriptRun.save,
        "if file.path != path:",
        "if False:",
        ALONE,
    ),
    Mutant(
        "a run that has begun goes on with another",
        script_run.ScriptRun.load,
        'if self.run.state != "not begun":',
        "if False:",
        ALONE,
    ),
    Mutant(
        "a gradient is forgotten in the file",
        script_run.ScriptRun.save,
        "self._loss is None or self._batch_is_begun()",
        "self._loss is None",
        UNDER_WAY,
    ),
    Mutant(
        "the loss may be another one when a run goes on",
        script_run.ScriptRun.go_on,
        "self._loss, self._file, self._goes_on = file.loss, file, True",
        "self._file, self._goes_on = file, True",
        ONCE,
    ),
    Mutant(
        "the end of a run replaces what was saved",
        script_checkpoint.ScriptCheckpoint.write,
        "if not (self.asked or self.by_itself):",
        "if False:",
        ENDS,
    ),
    Mutant(
        "what a script kept is lost when the run is made anew",
        privacy_engine.PrivacyEngine._make,
        "            run.keep(**before.kept)\n",
        "",
        "check_a_kept_scheduler_outlives_what_is_set_later",
    ),
    Mutant(
        "what is kept late begins anew",
        base_run.BaseRun.keep,
        "if self.session.restored:",
        "if False:",
        KEPT,
    ),
    Mutant(
        "what is kept late leaves its rates",
        saved_parts.restore_late,
        'else {"optimizer"} & session.parts.keys()',
        "else set()",
        KEPT,
    ),
    Mutant(
        "a second scheduler takes the place of the first",
        base_run.BaseRun.keep,
        "start=first",
        "start=0",
        KEPT,
    ),
    Mutant(
        "an old state replaces that of later steps",
        saved_parts.restore_late,
        "if stepped:",
        "if False:",
        KEPT,
    ),
    Mutant(
        "a run is kept in no file",
        script_run.ScriptRun.step,
        "if kept_in is not None:\n        self._write",
        "if False:\n        self._write",
        BY_ITSELF,
    ),
    Mutant(
        "the run writes over what the script saved",
        script_run.ScriptRun.save,
        "values, False",
        "values, file.by_itself",
        BY_ITSELF,
    ),
    Mutant(
        "a step is taken that no file can hold",
        script_run.ScriptRun.step,
        "flattened_loss(loss, {})",
        "pass",
        "check_a_loss_that_cannot_be_saved_is_refused_before_a_step",
    ),
    Mutant(
        "how many are computed at once is not saved",
        script_checkpoint.ScriptCheckpoint.resumed,
        "microbatch=self.microbatch",
        "microbatch=None",
        "check_physical_batches_of_a_saved_run_are_as_large",
    ),
    Mutant(
        "the constants of a loss are not saved",
        saved_loss._plain,
        'return {"float": value.hex()}',
        'return {"float": (1.0).hex()}',
        "check_losses_are_saved_by_name",
    ),
]
test_bug_is_caught, test_mutants_name_their_checks = suite_of(
    MUTANTS, errors=(RuntimeError, TypeError)
)
