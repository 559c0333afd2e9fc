"""Planted leaks, each of which a named check must catch."""

from __future__ import annotations

from privlearn.cli import jobs
from privlearn.cli.commands import train
from privlearn.core.clipping import backends, gradients
from privlearn.core.mechanisms import release
from privlearn.publishing import publish
from privlearn.runs import given, optimizers, session
from privlearn.training import run as dpsgd
from privlearn.training import task
from privlearn.training import train as descent
from tests.support.mutant import Mutant, suite_of

ALIKE = "check_neighbouring_runs_look_the_same"
COMMANDS = "check_neighbouring_commands_look_the_same"
STEP, EPOCH = " " * 8 + "clipped = task.gradients(", "self.watch.end_epoch()"
MUTANTS = [
    Mutant(
        "the realised batch size as divisor",
        dpsgd.Run.step,
        "divisor)), task.divisor)",
        "divisor)), max(1, len(batch.sample)))",
        ALIKE,
    ),
    Mutant(
        "rows that are left out leave the divisor",
        dpsgd.Run.step,
        "divisor)), task.divisor)",
        "divisor)), task.divisor * max(1, task.watch._rows) / max(1, task.watch._drawn))",
        ALIKE,
    ),
    Mutant(
        "empty batches are skipped",
        dpsgd.Run.step,
        STEP,
        " " * 8 + "if not len(batch.sample): session.steps_done += 1; return\n" + STEP,
        ALIKE,
    ),
    Mutant(
        "the training loss is printed",
        task.Task.end_epoch,
        EPOCH,
        EPOCH + '; print(self.watch.figures["loss"][-1:])',
        ALIKE,
    ),
    Mutant(
        "a warning counts what was left out",
        task.Task.end_epoch,
        EPOCH,
        EPOCH
        + (
            '; __import__("warnings").warn(f"left out: {self.watch.figures[\'left_out\']}", '
            "stacklevel=2)"
        ),
        ALIKE,
    ),
    Mutant(
        "a log line counts clipped gradients",
        task.Task.end_epoch,
        EPOCH,
        (
            'import logging; logging.getLogger("privlearn").warning("%s clipped", '
            "self.watch._clipped); "
        )
        + EPOCH,
        ALIKE,
    ),
    Mutant(
        "private diagnostics stand in the card",
        publish.publish,
        "data or {},",
        '{"loss": str(list(result.private_diagnostics["loss"]))},',
        ALIKE,
    ),
    Mutant(
        "a file tells the number of rows by its size",
        task.Task.architecture,
        '"network_input_shape": list(network_shape)',
        '"network_input_shape": list(network_shape), "pad": "x" * len(self.rows)',
        ALIKE,
    ),
    Mutant(
        "a release of nothing draws no noise",
        release.release,
        "[_add_noise(part,",
        "[part.values if not any(value.any() for value in part.values) else _add_noise(part,",
        "check_charges_come_first_and_every_release_draws",
    ),
    Mutant(
        "the charge comes after the noise",
        release.release,
        "    sample.spend(mechanism, adjacency, ledger)",
        "    [_add_noise(part, noise_multiplier, stream) for part in parts]\n    "
        "sample.spend(mechanism, adjacency, ledger)",
        "check_charges_come_first_and_every_release_draws",
    ),
    Mutant(
        "what can't be noised is charged",
        release.release,
        "require_noisable([value for part in parts for value in part.values])",
        "pass",
        "check_what_noise_cannot_be_added_to_is_not_charged",
    ),
    Mutant(
        "what a model wrote stays for the next batch",
        backends.Problem.computing,
        "self.fixed.restore()",
        "pass",
        "check_what_a_model_does_on_some_rows_only_is_not_seen",
    ),
    Mutant(
        "a row that can't be computed ends the run",
        gradients.ClippedGradients._add_clipped,
        "except Exception as error:",
        "except ZeroDivisionError as error:",
        "check_what_a_model_does_on_some_rows_only_is_not_seen",
    ),
    Mutant(
        "the rows beside one that can't be computed are lost",
        gradients.ClippedGradients._add_clipped,
        "rows.tensor_split(2)",
        "()",
        "check_what_a_loss_does_on_some_targets_only_is_not_seen",
    ),
    Mutant(
        "sums without noise are left behind",
        optimizers.Descent.step,
        "parameter.grad = None",
        "pass",
        "check_no_sum_without_noise_is_left_behind",
    ),
    Mutant(
        "PyTorch's generator is left where the last batch put it",
        session.TrainingSession.generators,
        "_set_generators(held)",
        "pass",
        "check_generators_do_not_tell_batch_sizes",
    ),
    Mutant(
        "rows that are not finite are not spoken of",
        given.warn_of_absent,
        "if not all(",
        "if False and not all(",
        "check_rows_that_are_not_finite_are_warned_of_before_anything_is_spent",
    ),
    Mutant(
        "targets that are not finite are not spoken of",
        given.warn_of_absent,
        "for part in rows if",
        "for part in rows[:1] if",
        "check_rows_that_are_not_finite_are_warned_of_before_anything_is_spent",
    ),
    Mutant(
        "a warning counts rows that are not finite",
        given.warn_of_absent,
        "warnings.warn(ABSENT,",
        "warnings.warn(f'{int((~rows[0].isfinite()).any(1).sum())} of ' + ABSENT,",
        ALIKE,
    ),
    Mutant(
        "weights that are no numbers are handed out",
        given.require_finite,
        "if not _are_finite(",
        "if False and not _are_finite(",
        "check_steps_that_are_too_long_end_with_a_message",
    ),
    Mutant(
        "the real number of rows is printed",
        train.descent_job,
        "examples if plan.neighbours is Adjacency.ADD_REMOVE else data.examples",
        "data.examples",
        COMMANDS,
    ),
    Mutant(
        "the learning rate follows from the real number of rows",
        descent.facts_of,
        "declared or data.examples",
        "data.examples",
        COMMANDS,
    ),
    Mutant(
        "methods print how many rows there are",
        train.method_job,
        '{"plan": plan.to_json()}',
        '{"plan": plan.to_json(), "rows": len(data.x)}',
        "check_neighbouring_commands_of_other_methods_look_the_same",
    ),
    Mutant(
        "the model is tested on its training rows",
        jobs.test_metrics,
        "data.test_tensors()",
        "data.tensors()",
        COMMANDS,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
