"""Planted bugs of the door to transformers, each of which a named check must catch."""

from __future__ import annotations

import pytest

from tests.support import texts as made
from tests.support.mutant import Mutant, suite_of

made.require_transformers()
pytest.importorskip("peft", reason="peft is not installed")

from privlearn.core.clipping import gradients  # noqa: E402
from privlearn.huggingface import example_losses, fixed_length, trainer, unsupported  # noqa: E402
from privlearn.runs import public_numbers  # noqa: E402
from privlearn.training import gradient_check  # noqa: E402

STEP = "    seen = self._take_step(inputs)\n"
EMPTY, ADAPTER = (
    "check_an_empty_batch_is_a_step_of_the_trainer",
    "check_an_adapters_example_moves_the_sum_by_at_most_the_norm",
)
LOGS = "check_what_a_loss_logs_stays_in_the_step"
ONE_BY_ONE = "check_a_loss_of_a_batch_is_computed_of_one_example_at_a_time"
RATES = "check_a_trainers_schedulers_follow_counts_and_public_metrics"
MUTANTS = [
    Mutant(
        "the trainer skips an empty batch",
        trainer.PrivateTrainer.training_step,
        STEP,
        (
            "    if not len(inputs.batch.sample): self.private.session.steps_done += 1; return "
            "torch.tensor(0.0)\n"
        )
        + STEP,
        EMPTY,
    ),
    Mutant(
        "the trainer steps without a release",
        trainer.PrivateTrainer.training_step,
        STEP,
        '    self.private.session.steps_done += 1; seen = {"loss": 0.0}\n',
        EMPTY,
    ),
    Mutant(
        "batches and noise follow from the seed of PyTorch",
        trainer.PrivateTrainer._make_run,
        'streams=privacy.get("streams")',
        'streams=privacy.get("streams") or Streams.new(torch.initial_seed() % 2**32)',
        "check_two_trainers_of_one_seed_draw_apart",
    ),
    Mutant(
        "the training loss is logged",
        trainer.PrivateTrainer._is_logged,
        "self._is_public(name) or",
        "True or",
        "check_nothing_private_is_logged_by_the_trainer",
    ),
    Mutant(
        "the number of operations is logged",
        trainer.PrivateTrainer._is_logged,
        "self._is_public(name) or",
        'name == "total_flos" or self._is_public(name) or',
        "check_nothing_private_is_logged_by_the_trainer",
    ),
    Mutant(
        "the training loss is logged as a plain number",
        trainer.PrivateTrainer._filter_logs,
        "value if self._is_public(name) else private_figures(value)",
        "value",
        "check_a_callback_that_follows_the_training_loss_claims_nothing",
    ),
    Mutant(
        "what a loss logs is logged with the rest",
        trainer.PrivateTrainer._is_public,
        "name in _PUBLIC or",
        "name not in _USUAL or",
        LOGS,
    ),
    Mutant(
        "how often a loss logs shows in the log",
        trainer.PrivateTrainer.log,
        "self._in_step and not self._logs_loss",
        "False",
        LOGS,
    ),
    Mutant(
        "what is logged after a step of the data counts as logged within none",
        trainer.PrivateTrainer._take_step,
        "self._in_step = True",
        "self._in_step = False",
        LOGS,
    ),
    Mutant(
        "the tokens that were drawn are counted",
        trainer.PrivateTrainer.training_step,
        "self.state.num_input_tokens_seen += self._tokens_per_step",
        "self.state.num_input_tokens_seen += 12 * len(inputs.batch.sample)",
        "check_tokens_that_are_counted_are_those_expected",
    ),
    Mutant(
        "a mean over the batch is the loss of each of its examples",
        example_losses._OneEach.__call__,
        "self._of_one = True",
        "return losses.expand(rows)",
        ONE_BY_ONE,
    ),
    Mutant(
        "the first example's loss stands for all",
        example_losses._OneEach.__call__,
        "leaf[n : n + 1]",
        "leaf[0 : 1]",
        ONE_BY_ONE,
    ),
    Mutant(
        "a trainer is evaluated on training rows",
        unsupported.require_public,
        "any(share_rows(dataset, each) for each in several)",
        "False",
        "check_a_trainer_is_evaluated_on_public_rows",
    ),
    Mutant(
        "some of the training rows are taken for others",
        unsupported.require_public,
        "share_rows(dataset, each)",
        "each is dataset",
        "check_a_trainer_is_evaluated_on_public_rows",
    ),
    Mutant(
        "the loss is divided by the batch, too",
        example_losses.ExampleLoss.__call__,
        "each.sum(1) / self._tokens",
        "each.sum(1) / self._tokens / len(each)",
        "check_an_examples_loss_is_its_own",
    ),
    Mutant(
        "tokens are averaged over those of the batch",
        example_losses.ExampleLoss.__call__,
        "each.sum(1) / self._tokens",
        "each.sum(1) / (targets[0] != -100).sum()",
        "check_an_examples_loss_is_its_own",
    ),
    Mutant(
        "a class's loss is centred over the batch",
        example_losses.ExampleLoss._of_classes,
        "return F.cross_entropy(scores, labels",
        "return F.cross_entropy(scores - scores.mean(0), labels",
        "check_an_examples_loss_is_its_own",
    ),
    Mutant(
        "padding is taken for text",
        fixed_length.Padded._fill,
        "not value.is_floating_point() else 0",
        "not value.is_floating_point() else 1",
        "check_masks_leave_padding_out",
    ),
    Mutant(
        "an adapter's weight is left out of the clipping",
        gradients.ClippedGradients._squares,
        "in gradients.items()",
        "in gradients.items() if 'lora_A' not in name",
        ADAPTER,
    ),
    Mutant(
        "an adapter's weight is left out of the sum",
        gradients.ClippedGradients._add_clipped,
        "if name in gradients:",
        "if name in gradients and 'lora_A' not in name:",
        "check_the_clipped_sum_is_autograds_for_every_weight",
    ),
    Mutant(
        "weights without a gradient pass",
        gradient_check._by_autograd,
        "if gradient is None]",
        "if False]",
        "check_the_clipped_sum_is_autograds_for_every_weight",
    ),
    Mutant(
        "an author's rows are examples of their own",
        trainer.PrivateTrainer._make_run,
        "rows.groups = self._groups",
        "rows.groups = None",
        "check_an_authors_texts_are_one_example",
    ),
    Mutant(
        "metrics of evaluation rows are not declared public",
        public_numbers.declare_metrics,
        "type(value) in (int, float)",
        "False",
        RATES,
    ),
]
test_bug_is_caught, test_mutants_name_their_checks = suite_of(
    MUTANTS, errors=(TypeError, AttributeError)
)
