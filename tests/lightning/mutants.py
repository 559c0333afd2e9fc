"""Planted bugs of the door to Lightning, each of which a named check must catch."""

from __future__ import annotations

import pytest

from tests.support.mutant import Mutant, suite_of

pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

from privlearn.data import torch_rows
from privlearn.lightning import step_loss, step_metrics, strategy
from privlearn.training import gradient_check

STEP = "    seen = self.private.step(drawn_batch(args[0]))\n"
HOLD_NOTHING = "check_metrics_of_a_step_hold_nothing_of_a_row"
RATES = "check_a_trainers_rates_follow_counts_and_public_metrics"
MUTANTS = [
    Mutant(
        "a training step is given the batch",
        step_loss.StepLoss.__call__,
        "lambda leaf, n=n: leaf[n : n + 1], batch",
        "lambda leaf, n=n: leaf, batch",
        "check_a_training_step_sees_one_example",
    ),
    Mutant(
        "what a training step logs is logged",
        step_loss.TrainingLogs._make_log,
        "if self.hidden:",
        "if False:",
        "check_nothing_private_is_logged_by_the_strategy",
    ),
    Mutant(
        "what is logged between steps reaches callbacks",
        step_loss.TrainingLogs._make_log,
        "elif self._trainer.evaluating or self._trainer.sanity_checking:",
        "elif True:",
        "check_what_is_kept_from_a_step_steers_nothing",
    ),
    Mutant(
        "the training loss reaches callbacks",
        strategy.PrivateStrategy.training_step,
        'self._logs.to_loggers(_PRIVATE_LOSS, plain(seen["loss"]), steps)',
        'self._logs.publicly(_PRIVATE_LOSS, plain(seen["loss"]))',
        "check_the_training_loss_goes_to_loggers_alone",
    ),
    Mutant(
        "private monitors are not looked for",
        step_loss.TrainingLogs.require_public_monitors,
        "in {private, *self.in_steps}:",
        "in ():",
        "check_monitors_of_private_figures_are_refused",
    ),
    Mutant(
        "validation may be on training rows",
        strategy.PrivateStrategy._require_public_validation,
        "any(map(partial(share_rows, self._trained_on), self._validated))",
        "False",
        "check_validation_rows_are_not_those_of_training",
    ),
    Mutant(
        "parts of a data set are taken for others",
        torch_rows._originals,
        "isinstance(dataset, Subset)",
        "False",
        "check_validation_rows_are_not_those_of_training",
    ),
    Mutant(
        "the training loss is logged unasked",
        strategy.PrivateStrategy.training_step,
        "if self._logs_loss:",
        "if True:",
        "check_nothing_private_is_logged_by_the_strategy",
    ),
    Mutant(
        "the strategy skips an empty batch",
        strategy.PrivateStrategy.training_step,
        STEP,
        (
            "    if not len(args[0].batch.sample): self.private.session.steps_done += 1; return "
            "torch.tensor(0.0)\n"
        )
        + STEP,
        "check_an_empty_batch_is_a_step_of_the_strategy",
    ),
    Mutant(
        "the strategy for one process in each of several",
        strategy.PrivateStrategy._require_processes,
        'require_one_process("PrivateStrategy",',
        "str(",
        "check_the_strategy_for_one_process_takes_one",
    ),
    Mutant(
        "weights without a gradient are trained",
        gradient_check._by_autograd,
        "if gradient is None]",
        "if False]",
        "check_weights_that_the_step_does_not_use_are_named",
    ),
    Mutant(
        "what a module hands to a scheduler is public",
        step_loss.TrainingLogs._make_scheduler_step,
        "usual(scheduler, metric)",
        "usual(scheduler, metric); scheduler.optimizer.param_groups[0].unknown.clear()",
        RATES,
    ),
    Mutant(
        "the Trainer's metrics are not declared public",
        step_loss.TrainingLogs._make_scheduler_step,
        'metric = declare_public(metric, because="a metric of the validation rows")',
        "pass",
        RATES,
    ),
    Mutant(
        "schedulers that a Trainer steps seldom are not declared public",
        step_loss.TrainingLogs._declare_frequency,
        "config.frequency > 1",
        "False",
        RATES,
    ),
    Mutant(
        "a step updates metrics",
        step_metrics.StepMetrics._kind_of_metric,
        'if self._in_a_step(): return nothing return vars(metric).get("update"',
        'return vars(metric).get("update"',
        HOLD_NOTHING,
    ),
    Mutant(
        "metrics that a step calls collect its rows",
        step_metrics.StepMetrics._kind_of_metric,
        "return nothing() if self._in_a_step() else",
        "return nothing() if False else",
        HOLD_NOTHING,
    ),
    Mutant(
        "a collection compares metrics that steps left empty",
        step_metrics.StepMetrics._kind_of_collection,
        "if self._in_a_step():",
        "if False:",
        HOLD_NOTHING,
    ),
    Mutant(
        "metrics that steps left empty give figures",
        step_metrics.StepMetrics._kind_of_metric,
        "if name in self.in_steps and not metric._update_count:",
        "if False:",
        HOLD_NOTHING,
    ),
    Mutant(
        "metrics in lists collect rows of steps",
        step_metrics._metrics_of,
        "isinstance(value, list | tuple | dict)",
        "False",
        HOLD_NOTHING,
    ),
    Mutant(
        "a loss may follow from a metric",
        step_loss.StepLoss._require_no_metric,
        "if losses[0].isnan() and not losses[1].isnan():",
        "if False:",
        "check_a_loss_that_follows_from_a_metric_is_refused",
    ),
    Mutant(
        "where the run is made later, validation rows are taken for those of training",
        strategy.PrivateStrategy.process_dataloader,
        "or self._epochs is not None",
        "or self.private is not None",
        "check_a_scheduler_may_ask_for_the_steps_first",
    ),
    Mutant(
        "accumulated batches are small ones",
        strategy._with_larger_batches,
        "times * dataloader.batch_size",
        "dataloader.batch_size",
        "check_accumulated_batches_are_one_batch",
    ),
]
test_bug_is_caught, test_mutants_name_their_checks = suite_of(
    MUTANTS, errors=(TypeError, AttributeError, RuntimeError)
)
