"""Planted bugs in runs driven by hand, nested batches, rows by index and worlds: a named check must
catch each.
"""

from __future__ import annotations

from privlearn.core import rows
from privlearn.core.clipping import gradients, losses
from privlearn.data import dataset_rows
from privlearn.runs import optimizers, session
from privlearn.training import base_run, task
from privlearn.training import dpsgd as whole_run
from privlearn.training import run as dpsgd
from tests.runs.checks_resuming import Stopped
from tests.support.mutant import Mutant, suite_of

LEFT, LOOP = (
    "check_a_run_left_early_gives_back_what_it_did_not_spend",
    "check_an_exception_in_the_callers_loop_settles_the_ledger",
)
AGAIN, ALONE = (
    "check_runs_by_hand_go_on_after_interruptions",
    "check_steps_leave_the_callers_generators_alone",
)
AHEAD, MEMORY = (
    "check_workers_make_no_difference_after_interruptions",
    "check_rows_by_index_are_rows_in_memory",
)
ABSENT, RANDOM = (
    "check_rows_that_fail_count_as_absent",
    "check_random_transforms_of_a_row_do_not_depend_on_others",
)
NEST, WORLD = "check_nested_batches_are_the_plain_ones", "check_parts_of_a_world_add_up"

MUTANTS = [
    # Runs that are driven by hand
    Mutant(
        "steps go on after the end",
        session.TrainingSession.require_open,
        "if not self._open:",
        "if False:",
        LEFT,
    ),
    Mutant(
        "a run that was left says all of its steps",
        session.TrainingSession.facts_of_leaving,
        "unclaimed if self.complete else",
        "unclaimed if True else",
        LEFT,
    ),
    Mutant(
        "a run that was left keeps what it did not spend",
        base_run.BaseRun.result,
        "self.session.stop(self._epochs)",
        "pass",
        LEFT,
    ),
    Mutant(
        "a run that was left is one that was interrupted",
        session.TrainingSession.stop,
        "self._stopped = True",
        "pass",
        LEFT,
    ),
    Mutant(
        "an interrupted run gives up what it needs to go on",
        session.TrainingSession.charging,
        "(self.file is None or self._stopped) and ",
        "",
        AGAIN,
    ),
    Mutant(
        "an interrupted run without a checkpoint keeps everything",
        session.TrainingSession.charging,
        "(self.file is None or self._stopped) and ",
        "self._stopped and ",
        LOOP,
    ),
    Mutant(
        "the end of a block settles nothing",
        base_run.BaseRun.__exit__,
        "self.session.close(self._epochs, error[1] if error else None)",
        "pass",
        LOOP,
    ),
    Mutant(
        "batches may be left out",
        task.Epoch._draw,
        "if session.steps_done != number + 1:",
        "if False:",
        "check_batches_are_stepped_on_one_after_the_other",
    ),
    Mutant(
        "epochs may be left in the middle",
        task.Epoch.require_done,
        "if not self.done:",
        "if False:",
        "check_an_epoch_left_in_the_middle_is_refused",
    ),
    Mutant(
        "a sum is released outside the batch's sample",
        dpsgd.Run.step,
        "self._descent.at(",
        "clipped.sample._used = False; self._descent.at(",
        "check_a_batch_is_good_for_one_step",
    ),
    Mutant(
        "the caller's generator is drawn from",
        session.TrainingSession.generators,
        "_set_generators(held)",
        "pass",
        ALONE,
    ),
    Mutant(
        "every step draws the same numbers",
        session.TrainingSession.generators,
        "self._generators = _generators()",
        "self._generators = self._generators or held",
        ALONE,
    ),
    Mutant(
        "sums stay in the gradients of a run by hand",
        optimizers.Descent.step,
        "parameter.grad = None",
        "pass",
        ALONE,
    ),
    Mutant(
        "dpsgd is not what a run by hand is",
        whole_run.dpsgd,
        "run.step(batch)",
        "run.step(batch); run.optimizer.zero_grad(); run.task.parameters[0].data.mul_(0.99)",
        "check_a_run_by_hand_is_dpsgd",
    ),
    # Nested batches
    Mutant(
        "targets are taken from among the inputs",
        losses.losses_of,
        "inputs, targets = batch",
        "inputs, targets = batch[0], batch[1].roll(1)",
        NEST,
    ),
    Mutant(
        "nested rows name themselves by their first tensor",
        rows.TensorRows.identities,
        "digests(*self.fetch(rows))",
        "digests(self.fetch(rows)[0])",
        NEST,
    ),
    Mutant(
        "a nest of tensors of any lengths",
        rows.TensorRows.__init__,
        "if not leaves or",
        "if False and",
        "check_rows_that_do_not_belong_together_are_refused",
    ),
    Mutant(
        "nested batches are put together otherwise",
        rows.nested,
        "list(leaves)",
        "list(leaves)[::-1]",
        "check_clipped_sums_of_nested_batches_are_the_loops",
    ),
    # Rows by index
    Mutant(
        "checkpoints run ahead of the steps",
        task.Epoch._draw,
        "drawn = session.drawn(self.number, self.noise_multiplier, task.present)\n"
        "    for step, sample, rows in _with_rows(drawn, task, self.number, session):\n"
        "        session.keep(step)\n",
        "drawn = session.batches(self.number, self.noise_multiplier, task.present)\n"
        "    for step, sample, rows in _with_rows(drawn, task, self.number, session):\n",
        AHEAD,
    ),
    Mutant(
        "workers draw from the caller",
        dataset_rows.DatasetRows.ahead,
        "generator=torch.Generator()",
        "generator=None",
        "check_workers_draw_nothing_from_the_caller",
    ),
    Mutant(
        "rows by index are not scaled",
        rows.TransformedRows.fetch,
        "self._through(x)",
        "x.float()",
        MEMORY,
    ),
    Mutant(
        "rows are collated together",
        dataset_rows.DatasetRows.fetch,
        "_join([self._maker.row(number, self._key) for number in rows.tolist()])",
        "tuple(self._maker._collate([self._maker._dataset[number] for number in rows.tolist()]))",
        "check_a_row_does_not_change_how_others_are_collated",
    ),
    Mutant(
        "rows of other shapes are made to fit",
        dataset_rows._RowMaker._like_others,
        "raise ValueError(",
        "str(",
        ABSENT,
    ),
    Mutant(
        "a failing row ends the workers",
        dataset_rows._RowMaker.quietly,
        "except Exception:",
        "except ZeroDivisionError:",
        ABSENT,
    ),
    Mutant(
        "a batch with a row that fails is lost",
        dataset_rows.DatasetRows.ahead,
        "yield _Batch(self._at(keys.popleft()), collated)",
        "yield _Batch(self._at(keys.popleft()), collated if None not in collated[1] else "
        "dict.fromkeys(collated[0], self.like))",
        ABSENT,
    ),
    Mutant(
        "a failing row ends the run before it begins",
        task._pick_rows,
        "suppress(Exception)",
        "suppress(ZeroDivisionError)",
        ABSENT,
    ),
    Mutant(
        "random transforms go on from row to row",
        dataset_rows._RowMaker.row,
        "with _fix_seeds(_SEED, watched=key is not None) as drew:",
        "drew = bool\n    if True:",
        RANDOM,
    ),
    Mutant(
        "rows move the caller's generators",
        dataset_rows._fix_seeds,
        "torch.set_rng_state(held)",
        "pass",
        RANDOM,
    ),
    Mutant(
        "rows move the caller's numpy",
        dataset_rows._fix_seeds,
        "np.random.set_state(legacy)",
        "pass",
        RANDOM,
    ),
    Mutant(
        "rows move the caller's Python",
        dataset_rows._fix_seeds,
        "random.setstate(plain)",
        "pass",
        RANDOM,
    ),
    Mutant(
        "rows fetched ahead are others",
        dataset_rows._Batch.fetch,
        "for number in rows.tolist()",
        "for number in list(self._leaves)[: len(rows)]",
        RANDOM,
    ),
    # Worlds
    Mutant(
        "every process computes everything",
        gradients.ClippedGradients._pieces,
        "self._chunks(rows, examples)",
        "self._chunks(rows, sample.indices)",
        WORLD,
    ),
    Mutant(
        "every process draws noise",
        session.TrainingSession.noise,
        "self.world.noise(self.streams.noise)",
        "self.streams.noise",
        WORLD,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[Stopped, OSError, RuntimeError]
)
