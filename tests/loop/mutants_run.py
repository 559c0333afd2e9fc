"""Planted bugs in what loops use of a run: a named check must catch each."""

from __future__ import annotations

from privlearn import loop
from privlearn.runs import given
from privlearn.training import base_run, epoch_loader, gradient_check, task
from privlearn.training import run as dpsgd
from tests.support.mutant import Mutant, suite_of

COUNTS, LACKS = (
    "check_a_loop_that_counts_its_batches_is_complete",
    "check_a_run_that_lacks_steps_is_left_early",
)
OPTIMIZER, FUNCTIONS = (
    "check_an_optimizer_is_one_of_the_model",
    "check_functions_in_a_loop_are_losses_of_the_model",
)
DELTA, SAVED = (
    "check_epsilon_is_stated_at_the_runs_delta",
    "check_a_checkpoint_is_written_when_it_is_asked_for",
)
AT_ONCE = "check_how_many_are_computed_at_once_is_said_before_the_loss"

PLANS = "check_a_loop_of_a_plan_is_the_plans"

MUTANTS = [
    Mutant(
        "a plan and a target are both taken",
        loop._require_planned,
        "require_only_plan(",
        "list(",
        PLANS,
    ),
    Mutant(
        "a loop of a plan says other epochs",
        loop._require_planned,
        "epochs != plan.epochs",
        "False",
        PLANS,
    ),
    Mutant(
        "transforms in front are left out of a loop",
        loop._require_planned,
        "if plan.front:",
        "if False:",
        PLANS,
    ),
    Mutant(
        "an epoch is over when a batch after the last is asked for",
        base_run.BaseRun._next_epoch,
        "epoch is not None and self._is_over(epoch)",
        "False",
        COUNTS,
    ),
    Mutant(
        "the last epoch is left before its end",
        base_run.BaseRun.result,
        "self._complete()",
        "pass",
        COUNTS,
    ),
    Mutant(
        "a result is another one each time",
        base_run.BaseRun.result,
        "if self._result is None:",
        "if True:",
        COUNTS,
    ),
    Mutant(
        "a loader takes what another loop made",
        epoch_loader.drawn_batch,
        "if not isinstance(value, DrawnBatch):",
        "if False:",
        COUNTS,
    ),
    Mutant(
        "a run that was left takes the steps that it lacks",
        base_run.BaseRun._complete,
        "self.steps_done == self.steps",
        "True",
        LACKS,
    ),
    Mutant(
        "the optimizer may be another model's",
        task.Task.optimizer,
        "require_optimizer_of(optimizer, self.network)",
        "pass",
        OPTIMIZER,
    ),
    Mutant(
        "an optimizer may need a closure",
        given.optimizer_from,
        "or isinstance(built, unfit)",
        "",
        OPTIMIZER,
    ),
    Mutant(
        "rates that a script may change are stated as constant",
        dpsgd.Run.__init__,
        "if self.optimizer is optimizer and",
        "if False and",
        OPTIMIZER,
    ),
    Mutant(
        "rates that the run sets are stated as the script's",
        dpsgd.Run.__init__,
        " and isinstance(learning_rate_schedule, Constant)",
        "",
        OPTIMIZER,
    ),
    Mutant(
        "functions are losses of outputs by their names",
        loop.make_private,
        "run.task.losses_take_model = True",
        "pass",
        FUNCTIONS,
    ),
    Mutant(
        "epsilon is stated at the plan's delta alone",
        base_run.BaseRun.spent,
        "delta or self._delta or",
        "delta or",
        DELTA,
    ),
    Mutant(
        "another delta is published",
        base_run.BaseRun.publish,
        '"delta": self._delta',
        '"delta": 1e-3',
        DELTA,
    ),
    Mutant(
        "a delta may be any number",
        given.require_kinds,
        "delta is None or (fits(delta, float) and 0 < delta < 1)",
        "True",
        DELTA,
    ),
    Mutant(
        "a checkpoint that is asked for says another step",
        base_run.BaseRun.save_checkpoint,
        "self.steps_done - epoch.number",
        "1 + self.steps_done - epoch.number",
        SAVED,
    ),
    Mutant(
        "an epoch whose steps were all taken is gone through again",
        base_run.BaseRun._next_epoch,
        "if self._is_over(epoch):",
        "if False:",
        "check_a_script_that_counts_epochs_goes_on_after_a_whole_one",
    ),
    Mutant(
        "a checkpoint is written only when it is time",
        base_run.BaseRun.save_checkpoint,
        "now=True",
        "now=False",
        SAVED,
    ),
    Mutant(
        "steps in a checkpoint are not counted before the first batch",
        base_run.BaseRun.steps_done,
        "max(self.session.steps_done, self._steps_saved)",
        "self.session.steps_done",
        SAVED,
    ),
    Mutant(
        "what a run keeps may be put in place of its own parts",
        base_run.BaseRun.keep,
        "if both := sorted(parts.keys() & others.keys()):",
        "if both := []:",
        SAVED,
    ),
    Mutant(
        "a run begins with its first batch alone",
        base_run.BaseRun.begin,
        "if self._epoch is None:",
        "if False:",
        SAVED,
    ),
    Mutant(
        "how many are computed at once may change",
        base_run.BaseRun.set_microbatch,
        "self.task.loss is not None and config != self.config",
        "False",
        AT_ONCE,
    ),
    Mutant(
        "how many are computed at once stays",
        base_run.BaseRun.set_microbatch,
        "self.task.compute = config",
        "pass",
        AT_ONCE,
    ),
    Mutant(
        "gradients are not compared",
        base_run.BaseRun.require_gradients,
        "require_gradients(self.model, self.task.loss, self.task.rows)",
        "pass",
        "check_a_run_compares_its_gradients_when_it_is_asked_to",
    ),
    Mutant(
        "gradients of losses that draw are compared with others",
        gradient_check.require_gradients,
        "view_seeds=np.random.default_rng(_SEED)",
        "view_seeds=None",
        "check_gradients_of_losses_that_draw_are_compared",
    ),
    Mutant(
        "what a loop keeps in a module is lost with the epoch",
        task.Task.end_epoch,
        "self.gradients.fixed.attributes.take()",
        "pass",
        "check_what_a_loop_keeps_between_steps_stays",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=(AttributeError,)
)
