"""Planted bugs in what candidates are judged by, each of which a named check must catch."""

from __future__ import annotations

from privlearn.cli import tune as options
from privlearn.methods.tuning import stopping, sums, tune
from tests.support.mutant import Mutant, suite_of

MOVED = "check_an_example_moves_a_candidates_score_by_at_most_one"
JUDGED = "check_candidates_are_judged_by_the_metric"
RULES = "check_candidates_train_by_the_rules_of_a_run"
MUTANTS = [
    Mutant(
        "losses have no bound",
        sums._RowLosses._answered,
        ".nan_to_num(1.0).clamp(0, 1)",
        ".nan_to_num(1.0)",
        MOVED,
    ),
    Mutant(
        "a released score counts half",
        sums.total_gain,
        "1.0, adjacency, sample",
        "0.5, adjacency, sample",
        MOVED,
    ),
    Mutant(
        "a loss counts half",
        sums.total_losses,
        'device="cpu"), 1.0,',
        'device="cpu"), 0.5,',
        MOVED,
    ),
    Mutant(
        "scores of replaced examples move one way",
        sums.total_losses,
        "adjacency is not Adjacency.REPLACE_ONE",
        "True",
        MOVED,
    ),
    Mutant(
        "blocks are judged by accuracy",
        tune._on_blocks,
        "plan.neighbours, plan.metric)",
        "plan.neighbours)",
        JUDGED,
    ),
    Mutant(
        "runs are judged by accuracy",
        tune._score,
        "plan.neighbours, plan.metric)",
        "plan.neighbours)",
        JUDGED,
    ),
    Mutant(
        "candidates may be judged by an AUC",
        stopping.require_metric,
        "if not isinstance(metric, str) or metric not in _LOSSES:",
        "if False:",
        "check_metrics_that_are_no_sums_are_refused",
    ),
    Mutant(
        "candidates are settled by other rules",
        options._settle,
        "rules.settle(methods.training_request(request), facts).plan",
        "rules.draft(methods.training_request(request), facts.examples)",
        RULES,
    ),
    Mutant(
        "the temperature of a candidate has too little noise",
        stopping.louder,
        "noise_multiplier=after.noise_multiplier * factor",
        "noise_multiplier=after.noise_multiplier",
        RULES,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
