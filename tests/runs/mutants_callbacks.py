"""Planted bugs in callbacks, each of which a named check must catch."""

from __future__ import annotations

from privlearn.methods.dpmac import dpmac
from privlearn.runs import callbacks
from tests.support.mutant import Mutant, suite_of

GIVEN = "check_callbacks_are_given_public_numbers_and_the_ledger_alone"
ORDER = "check_callbacks_are_called_in_order_with_what_the_plan_says"
SPENT = "check_callbacks_hear_what_was_spent_so_far"
STOPPED = "check_a_stopped_run_is_one_that_was_left_by_hand"
ALIKE = "check_neighbouring_runs_look_the_same"
PROGRESS = "self._last = progress = self._progress(epoch, number, noise_multiplier)"
MUTANTS = [
    Mutant(
        "callbacks are given the training loss",
        callbacks.Callbacks._call,
        PROGRESS,
        PROGRESS + '; progress.loss = self._session.parts["diagnostics"].state_dict()["epoch"][2]',
        GIVEN,
    ),
    Mutant(
        "the training loss hides in a figure",
        callbacks.Callbacks._call,
        PROGRESS,
        PROGRESS
        + (
            "; progress.learning_rate += 1e-6 * "
            'self._session.parts["diagnostics"].state_dict()["epoch"][2]'
        ),
        ALIKE,
    ),
    Mutant(
        "callbacks are given the share of clipped gradients",
        callbacks.Callbacks._call,
        PROGRESS,
        PROGRESS
        + '; progress.clipped = self._session.parts["diagnostics"].state_dict()["epoch"][3]',
        ALIKE,
    ),
    Mutant(
        "callbacks are given the size of a batch",
        callbacks.Callbacks.around,
        "batch.step, ",
        "batch.step + len(batch.sample), ",
        ALIKE,
    ),
    Mutant(
        "callbacks of DP-MAC are given private diagnostics",
        callbacks.Callbacks._call,
        PROGRESS,
        PROGRESS + '; progress.norms = self._session.parts["diagnostics"].state_dict()',
        "check_neighbouring_mac_runs_look_the_same",
    ),
    Mutant(
        "callbacks reach the session, and through it the rows",
        callbacks.Callbacks._progress,
        "return ",
        "self._session.ledger._session = self._session; return ",
        GIVEN,
    ),
    Mutant(
        "epochs are told one step late",
        callbacks.Callbacks.stepped,
        "last = step + 1 == self._steps",
        "last = step == 0 and epoch > 0",
        ORDER,
    ),
    Mutant(
        "what was approved is told as what was spent",
        callbacks.TrainingProgress.spent,
        "self._ledger.spent(effective_delta)",
        "self._ledger.guarantee(effective_delta)",
        SPENT,
    ),
    Mutant(
        "epsilon is told at another delta",
        callbacks.TrainingProgress.spent,
        "self._delta if delta is None else",
        "1e-3 if delta is None else",
        SPENT,
    ),
    Mutant(
        "a stop is not heard",
        callbacks.Callbacks.stepped,
        "return stop and",
        "return False and",
        STOPPED,
    ),
    Mutant(
        "a stop of DP-MAC counts as the end of the plan",
        dpmac.MacTask.train,
        "return\n",
        "session.end(plan.epochs); return\n",
        STOPPED,
    ),
    Mutant(
        "a stop after the last step leaves the plan unfinished",
        callbacks.Callbacks.stepped,
        "return stop and number < session.plan.epochs * self._steps",
        "return stop",
        STOPPED,
    ),
    Mutant(
        "an error of a callback ends the run quietly",
        callbacks.Callbacks._call,
        "getattr(callback, name, _do_nothing)(progress)",
        "\n                try: getattr(callback, name, _do_nothing)(progress)\n"
        "                except Exception: progress.stop()",
        "check_errors_of_callbacks_lose_nothing",
    ),
    Mutant(
        "an error at the end takes the result along",
        callbacks.Callbacks.ended,
        "except Exception as error:",
        "except ZeroDivisionError as error:",
        "check_an_error_at_the_end_leaves_the_result",
    ),
    Mutant(
        "every process calls its callbacks",
        callbacks.Callbacks.stepped,
        "session.world.once(lambda: ",
        "(lambda f, _: f())(lambda: ",
        "check_callbacks_of_the_first_process_alone_are_called",
    ),
    Mutant(
        "processes do not agree on whether there are callbacks",
        callbacks.Callbacks.begin,
        'session.world.once(lambda: bool(self._all), "callbacks")',
        "bool(self._all)",
        "check_callbacks_of_the_first_process_alone_are_called",
    ),
    Mutant(
        "what is no callback is taken",
        callbacks.Callbacks.__init__,
        "isinstance(callback, type) or not any(",
        "False and not any(",
        "check_what_is_no_callback_is_refused_before_anything_is_spent",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
