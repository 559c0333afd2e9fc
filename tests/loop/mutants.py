"""Planted bugs in loops that somebody else writes: a named check must catch each."""

from __future__ import annotations

from privlearn import _figures, loop
from privlearn.core import sampling
from privlearn.core.clipping import gradients
from privlearn.core.clipping import model_check as check
from privlearn.data import dataset_rows, torch_rows
from privlearn.publishing import publish
from privlearn.runs import optimizers, result, session
from privlearn.training import base_run, loop_losses, planning, task
from privlearn.training import run as dpsgd
from tests.support.mutant import Mutant, suite_of

SAME, MICRO = (
    "check_the_ways_to_write_a_loop_are_one",
    "check_micro_batches_are_clipped_and_counted_once",
)
EMPTY, FRESH = (
    "check_empty_batches_take_a_noisy_step",
    "check_rows_change_from_step_to_step_and_with_no_other_row",
)
COMPANY, OPTIMIZER = (
    "check_a_row_does_not_depend_on_its_company",
    "check_the_callers_optimizer_is_used_as_it_is",
)
OTHER, CLOSURE = (
    "check_another_loss_is_checked_like_the_first",
    "check_a_factor_in_a_closure_makes_another_loss",
)
SPENT = "check_a_resumed_loop_knows_what_it_spent"
HOOKS = "check_hooks_that_are_put_in_on_the_way_are_looked_at"
OF_TRAINING = "check_figures_of_training_rows_are_not_published"

MUTANTS = [
    Mutant(
        "parts that are put in on the way are not looked at",
        gradients.ClippedGradients.__call__,
        "self._structure.now(self._model, alone=self._world.size == 1)",
        "self._structure",
        "check_parts_that_are_put_in_on_the_way_are_refused",
    ),
    Mutant(
        "buffers that are put in on the way are not looked at",
        check.Structure.now,
        "current._names != self._names or ",
        "",
        "check_parts_that_are_put_in_on_the_way_are_refused",
    ),
    Mutant(
        "hooks that are put in on the way are not looked at",
        check.Structure.now,
        "current._hooks == self._hooks and ",
        "",
        HOOKS,
    ),
    Mutant(
        "a forward that is put in on the way is not looked at",
        check.Structure.now,
        " and _same_objects(current._forwards, self._forwards)",
        "",
        HOOKS,
    ),
    Mutant(
        "nothing is said of hooks that slow a run down",
        gradients.ClippedGradients._begin,
        "warn_of_slowness(self._way.name, self.reason, self._loss)",
        "pass",
        HOOKS,
    ),
    Mutant(
        "a micro-batch is not clipped",
        gradients.ClippedGradients._weights,
        "return weighed.weights if",
        "weighed = weighed if len(losses) > 4 else weighed._replace(weights=weighed.weights * 0 + "
        "1); return weighed.weights if",
        MICRO,
    ),
    Mutant(
        "accumulated sums count twice",
        gradients.ClippedGradients._add_up,
        "total.add_(block)",
        "total.add_(block, alpha=2)",
        MICRO,
    ),
    Mutant(
        "the last micro-batch is left out",
        gradients.ClippedGradients._chunks,
        "range(0, len(group), size)",
        "range(0, len(group) - min(size, len(group)) + 1, size)",
        MICRO,
    ),
    Mutant(
        "the door skips empty batches",
        base_run.BaseRun.batches,
        "return chain.from_iterable(self)",
        "for batch in chain.from_iterable(self):\n"
        "            if len(batch.sample): yield batch\n"
        "            else: self.session.steps_done += 1",
        EMPTY,
    ),
    Mutant(
        "the door takes no step on empty batches",
        dpsgd.Run.step,
        "require_batch(batch)",
        "if not len(batch.sample): session.steps_done += 1; return None\n    require_batch(batch)",
        EMPTY,
    ),
    Mutant(
        "batches are drawn from PyTorch's own seed",
        sampling.Poisson.draw,
        "taken(examples, self.sampling_rate, rng)",
        "np.flatnonzero(__import__('torch').rand(examples).numpy() < self.sampling_rate)",
        "check_batches_follow_from_the_streams_alone",
    ),
    Mutant(
        "the mean is divided twice",
        dpsgd.Run.step,
        "task.divisor)), task.divisor)",
        "task.divisor)), task.divisor ** 2)",
        MICRO,
    ),
    Mutant(
        "any function is the first one",
        loop_losses.same_loss,
        "one.__code__ is other.__code__ and all(",
        "True or all(",
        OTHER,
    ),
    Mutant(
        "values in a closure are not looked at", loop_losses._values_in, "[*cells,", "[", CLOSURE
    ),
    Mutant("a refused loss stays", task.Task.use, "vars(self).update(before)", "pass", OTHER),
    Mutant(
        "rates are put back after every step",
        optimizers.RateSchedule.at,
        "if isinstance(self._schedule, Constant):",
        "if False:",
        OPTIMIZER,
    ),
    Mutant(
        "every parameter is trained",
        loop.make_private,
        "model = _unwrap(model)",
        "model = _unwrap(model).requires_grad_(True)",
        OPTIMIZER,
    ),
    Mutant(
        "rows of a batch draw the same",
        dataset_rows._RowMaker.row,
        "digests(*leaves).tobytes()",
        "b''",
        FRESH,
    ),
    Mutant(
        "rows draw by their place",
        dataset_rows._RowMaker.row,
        "digests(*leaves).tobytes()",
        "str(number).encode()",
        FRESH,
    ),
    Mutant(
        "rows draw from the caller's generators",
        dataset_rows._RowMaker.row,
        'return self._like_others(self.batch(number, seed=int.from_bytes(digest, "little") >> 1))',
        "return self._like_others(self._collate([self._dataset[number]]))",
        FRESH,
    ),
    Mutant(
        "every batch has the same key",
        task.Task.row_key,
        'f"{epoch} {step}".encode()',
        "b''",
        "check_batches_have_keys_of_their_own",
    ),
    Mutant(
        "a resumed run has another key",
        task.Task.__init__,
        'if "rows" not in session.origin:',
        "if True:",
        "check_workers_and_interruptions_change_no_row",
    ),
    Mutant(
        "workers are given no key",
        dataset_rows.DatasetRows.ahead,
        "[(row, batch_key) for row",
        "[(row, None) for row",
        "check_workers_and_interruptions_change_no_row",
    ),
    Mutant(
        "collate functions are not tried",
        torch_rows.resampled,
        "rows.try_collate()",
        "pass",
        COMPANY,
    ),
    Mutant(
        "a random share excuses mixing",
        dataset_rows.DatasetRows.try_collate,
        "drawn=drawn",
        "drawn=True",
        COMPANY,
    ),
    Mutant(
        "a step can be left out",
        task.Epoch._draw,
        "if session.steps_done != number + 1:",
        "if False:",
        "check_no_batch_is_left_out_or_used_twice",
    ),
    Mutant(
        "a loop left early is a whole one",
        session.TrainingSession.facts_of_leaving,
        "if self.complete",
        "if True",
        "check_a_loop_left_early_claims_its_limit",
    ),
    Mutant(
        "the figures of a batch are shown",
        result.PrivateDiagnostics._summary,
        "map(repr, self._figures)",
        "map(repr, self._figures.items())",
        "check_what_a_step_returns_is_kept_from_sight",
    ),
    Mutant(
        "figures of the batch before",
        result.Diagnostics.batch,
        "zip(now, self._before, strict=True)",
        "zip(now, (0, 0, 0.0, 0), strict=True)",
        "check_figures_are_those_of_the_batch",
    ),
    Mutant(
        "the mechanism is left out",
        planning.solve,
        "with_least_noise(plan, mechanisms,",
        "with_least_noise(plan, [None],",
        "check_a_loop_may_correlate_its_noise",
    ),
    Mutant(
        "the steps before an interruption cost nothing",
        base_run.BaseRun.spent,
        "*self._to_charge_again()",
        "",
        SPENT,
    ),
    Mutant(
        "epochs before an interruption count twice",
        base_run.BaseRun._to_charge_again,
        "if done < self._steps_saved and session.first != (0, 0):",
        "if False:",
        SPENT,
    ),
    Mutant(
        "the epoch under way costs nothing",
        base_run.BaseRun._events_of,
        "first(event, after - before)",
        "first(event, 0)",
        SPENT,
    ),
    Mutant(
        "steps after the last checkpoint cost nothing",
        base_run.BaseRun.__init__,
        "min(self._steps_saved + since, self.steps)",
        "self._steps_saved",
        "check_steps_after_the_last_checkpoint_are_spent",
    ),
    Mutant(
        "what is spent is for other neighbours",
        base_run.BaseRun.spent,
        "plan.neighbours",
        "type(plan.neighbours).ADD_REMOVE",
        SPENT,
    ),
    Mutant(
        "a figure of a step is published",
        publish._require_no_diagnostics,
        "isinstance(value, PrivateFigure)",
        "False",
        OF_TRAINING,
    ),
    Mutant(
        "a figure of training rows is published by its name",
        publish._figure,
        'str(name).lower().startswith(("train", "private"))',
        "False",
        OF_TRAINING,
    ),
    Mutant(
        "private counts are plain",
        result.private_figures,
        "isinstance(values, int | float)",
        "isinstance(values, float)",
        OF_TRAINING,
    ),
    Mutant(
        "what arithmetic makes of a private figure is plain",
        _figures.as_figures,
        "private_figures(result)",
        "result",
        OF_TRAINING,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
