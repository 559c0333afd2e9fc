"""Planted bugs in ridge regression, each of which a named check must catch."""

from __future__ import annotations

from privlearn.methods.statistics import regression, sums
from tests.support.mutant import Mutant, suite_of

MOVES = "check_one_row_moves_ridge_sums_by_at_most_the_sensitivity"
RIGHT = "check_ridge_sums_are_those_of_clipped_rows_and_targets"
COSTS = "check_ridge_regression_costs_what_it_says_and_is_right"

MUTANTS = [
    Mutant(
        "the constant is not in ridge's bound",
        sums.ridge_sums,
        'math.hypot(positive("norm", norm), positive("constant", constant))',
        "norm",
        MOVES,
    ),
    Mutant("targets are not clipped", sums.ridge_sums, ".clamp(-1, 1)", "", MOVES),
    Mutant("rows of ridge are not clipped", sums.ridge_sums, ".clamp_(min=limit)", "", MOVES),
    Mutant(
        "an exchanged target moves X'y by one row",
        sums.ridge_sums,
        "adjacency.sum_sensitivity(length)",
        "length",
        MOVES,
    ),
    Mutant(
        "an exchanged row moves ridge's X'X by one square",
        sums.ridge_sums,
        "length**2 * (math.sqrt(2) if replaced else 1.0)",
        "length**2",
        MOVES,
    ),
    Mutant(
        "rows without a target are counted",
        sums.ridge_sums,
        "torch.where(targets.isfinite(), 0, -1)",
        "torch.zeros(len(targets), dtype=torch.int64)",
        RIGHT,
    ),
    Mutant(
        "targets of the first block are those of all",
        sums.ridge_sums,
        "number * rows_in_a_block(x)",
        "0",
        RIGHT,
    ),
    Mutant(
        "ridge is for free",
        regression.RidgePlan.event,
        "compose([Gaussian(self.noise)])",
        "compose([])",
        COSTS,
    ),
    Mutant(
        "ridge has half the noise",
        regression.ridge,
        "noise_multiplier=plan.noise,",
        "noise_multiplier=plan.noise / 2,",
        COSTS,
    ),
    Mutant(
        "ridge predicts in units of its bounds",
        regression.ridge,
        "half * solved(",
        "solved(",
        COSTS,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[ValueError, RuntimeError]
)
