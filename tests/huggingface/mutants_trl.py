"""Planted bugs of the private trainers of TRL, each of which a named check must catch."""

from __future__ import annotations

from tests.support import chats as made
from tests.support.mutant import Mutant, suite_of

made.require_trl()

from privlearn.huggingface import preference_pairs, trl  # noqa: E402

PAIR, FROZEN = "check_a_pair_is_one_example", "check_the_reference_model_is_frozen"
SETTINGS = "check_settings_that_join_rows_are_refused_by_name"
MUTANTS = [
    Mutant(
        "both answers of a pair are examples of their own",
        preference_pairs.PaddedPairs.__call__,
        "self._pad_or_cut(fill, batch[name])[None]",
        "self._pad_or_cut(fill, batch[name])",
        PAIR,
    ),
    Mutant(
        "the loss of a pair leaves its rejected answer out",
        preference_pairs.PairLoss.__call__,
        'rejected = logs[:, 1] - batch["ref_rejected_logps"]',
        'rejected = logs[:, 1].detach() - batch["ref_rejected_logps"]; chosen = 2 * chosen',
        PAIR,
    ),
    Mutant(
        "pairs are centred over the batch",
        preference_pairs.PairLoss.__call__,
        "logs, tokens = by_token.sum(-1), answered.sum(-1)",
        "logs, tokens = by_token.sum(-1) - by_token.sum(-1).mean(0), answered.sum(-1)",
        PAIR,
    ),
    Mutant(
        "a pair has no reference",
        preference_pairs.PairLoss.__call__,
        'chosen = logs[:, 0] - batch["ref_chosen_logps"]',
        "chosen = logs[:, 0]",
        PAIR,
    ),
    Mutant(
        "the reference sees several pairs at once",
        trl._with_reference,
        "args.precompute_ref_log_probs, args.precompute_ref_batch_size = True, 1",
        "args.precompute_ref_log_probs = True",
        FROZEN,
    ),
    Mutant(
        "the reference draws dropout",
        trl._without_dropout,
        "model.eval()",
        "model.train()",
        FROZEN,
    ),
    Mutant(
        "the reference's adapter is trained",
        trl._freeze_reference,
        "parameter.requires_grad_(False)",
        "parameter.requires_grad_(True)",
        FROZEN,
    ),
    Mutant(
        "settings that nobody knows are ignored",
        trl._PrivateTRL._copy_settings,
        "and value != usual",
        "and False",
        SETTINGS,
    ),
    Mutant(
        "packing is taken for a setting that can be followed",
        trl._PrivateTRL._copy_settings,
        "general | set(self._settings)",
        'general | set(self._settings) | {"packing"}',
        SETTINGS,
    ),
    Mutant(
        "losses that sort the pairs of a batch pass",
        preference_pairs.PairSettings.__post_init__,
        "if name not in LOSSES",
        'if name not in LOSSES and "aot" not in name',
        SETTINGS,
    ),
    Mutant(
        "what TRL measures on training rows is logged",
        trl._PrivateTRL._drop_metrics,
        'self._metrics["train"].clear()',
        "pass",
        "check_what_trl_measures_on_training_rows_is_not_logged",
    ),
    Mutant(
        "copies of a model run the weights of the original",
        trl._without_scores,
        'vars(base_of(model)).pop("forward", None)',
        'vars(base_of(model)).get("forward", None)',
        "check_a_copy_of_a_model_of_trl_runs_its_own_weights",
    ),
    Mutant(
        "persons stay where TRL took rows away",
        trl._persons_in,
        "list(dataset[_PERSON])",
        "list(groups)[:len(dataset)]",
        "check_persons_stay_with_their_rows",
    ),
    Mutant(
        "TRL evaluates on the training rows as they were given",
        trl._PrivateTRL._require_public,
        "(self._rows_before, self.train_dataset)",
        "(self.train_dataset,)",
        "check_trl_evaluates_on_public_rows",
    ),
    Mutant(
        "a loss over the batch is added by the configuration",
        trl._require_no_balancing,
        'getattr(config, "router_aux_loss_coef", 0.0) if weight is None else weight',
        "weight",
        "check_losses_that_balance_experts_are_refused",
    ),
]
test_bug_is_caught, test_mutants_name_their_checks = suite_of(
    MUTANTS, errors=(TypeError, AttributeError, KeyError)
)
