"""Planted bugs in paid metrics of numbers, and in training and metrics at one target: each caught
by a named check.
"""

from __future__ import annotations

from privlearn import metrics
from privlearn.cli import methods
from privlearn.core import solving
from privlearn.methods.statistics import sums
from privlearn.training import train
from tests.support.mutant import Mutant, suite_of

MOVED = "check_a_test_row_moves_paid_metrics_of_numbers_by_the_sensitivity_at_most"
NOISE = "check_paid_metrics_of_numbers_have_the_noise_of_their_plan"
EXACT = "check_nothing_exact_is_said_beside_paid_metrics_of_numbers"
TOGETHER = "check_training_and_metrics_meet_one_target_together"

MUTANTS = [
    Mutant(
        "four figures of a row count as one",
        sums.error_sums,
        "Adjacency.ZERO_OUT: 4.0",
        "Adjacency.ZERO_OUT: 1.0",
        MOVED,
    ),
    Mutant(
        "the row that counts itself is not counted",
        sums.error_sums,
        "ADD_REMOVE: 5.0",
        "ADD_REMOVE: 4.0",
        MOVED,
    ),
    Mutant(
        "a replaced row of numbers counts as a removed one",
        sums.error_sums,
        "REPLACE_ONE: 6.0",
        "REPLACE_ONE: 4.0",
        MOVED,
    ),
    Mutant(
        "errors have no bound", sums.error_sums, "most_error)).clamp(0, 1)", "most_error))", MOVED
    ),
    Mutant(
        "predictions and targets have no bound",
        sums.error_sums,
        "/ half - 1).clamp(-1, 1)",
        "/ half - 1)",
        MOVED,
    ),
    Mutant(
        "rows of no finite numbers count",
        sums.error_sums,
        "(there > 0) & targets.isfinite()",
        "there > -1",
        MOVED,
    ),
    Mutant(
        "errors have the noise of a sum of one part",
        sums.error_sums,
        "math.sqrt(moved)",
        "1.0",
        NOISE,
    ),
    Mutant(
        "paid metrics of numbers are not paid",
        metrics._release,
        "ledger=session.ledger",
        "ledger=Ledger()",
        NOISE,
    ),
    Mutant(
        "the number of test rows of numbers is public",
        metrics._release,
        "is not Adjacency.ADD_REMOVE",
        "is not None",
        EXACT,
    ),
    Mutant(
        "training makes no room for the metrics",
        solving.factor_beside,
        "compose([plan.scaled(factor).event(), beside])",
        "plan.scaled(factor).event()",
        TOGETHER,
    ),
    Mutant(
        "metrics of other neighbours are made room for",
        solving.factor_beside,
        'require_same(plan.neighbours, other.neighbours, "what is released beside the plan")',
        "pass",
        TOGETHER,
    ),
    Mutant(
        "metrics of single rows stand beside a plan for persons",
        solving.factor_beside,
        "if other.unit != plan.unit:",
        "if False:",
        TOGETHER,
    ),
    Mutant(
        "train gives the metrics away",
        train.train,
        "ledger.approve(settled.plan, beside)",
        "ledger.approve(settled.plan)",
        "check_train_leaves_room_for_what_is_released_beside_it",
    ),
    Mutant(
        "a share of the target is spent on top of it",
        methods.sharing,
        "plan.with_room_for(paid)",
        "plan",
        "check_the_command_line_trains_and_tests_at_one_epsilon",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
