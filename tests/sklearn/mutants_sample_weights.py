"""Planted bugs in weights of rows, each of which a named check must catch."""

from __future__ import annotations

from privlearn.methods.statistics import sums
from privlearn.sklearn import estimator
from privlearn.training import weighted
from tests.support.mutant import Mutant, suite_of

SUMS = "check_a_weighted_row_moves_sums_of_products_by_the_sensitivity_at_most"
STEP = "check_a_weighted_row_moves_a_step_by_the_clipping_norm_at_most"
ZERO = "check_rows_of_weight_zero_change_nothing"
MUTANTS = [
    Mutant(
        "weights of rows have no bound", sums.ridge_sums, ".nan_to_num(0.0).clamp(0, 1)", "", SUMS
    ),
    Mutant(
        "weights may be negative",
        sums.ridge_sums,
        ".nan_to_num(0.0).clamp(0, 1)",
        ".nan_to_num(0.0).clamp(-1, 1)",
        SUMS,
    ),
    Mutant(
        "rows are weighted, and X'X is not",
        sums.ridge_sums,
        "longer.T @ (longer * member)",
        "longer.T @ longer",
        ZERO,
    ),
    Mutant(
        "weights are those of other rows",
        sums.ridge_sums,
        "torch.from_numpy(sample.indices[first : first + len(rows)])]\n            member",
        "torch.from_numpy(sample.indices[first : first + len(rows)]).flip(0)]\n            member",
        ZERO,
    ),
    Mutant(
        "clipped gradients are multiplied: heavy rows are repeated",
        weighted.weighted,
        "return replace(data, y=both, classes=None)",
        "times = torch.as_tensor(np.asarray(weights)).clamp(1, 9).long()\n"
        "    x = torch.as_tensor(np.asarray(data.x)).repeat_interleave(times, 0)\n"
        "    return replace(data, x=x, y=both.repeat_interleave(times, 0), classes=None)",
        STEP,
    ),
    Mutant(
        "the weight of a loss has no bound",
        weighted.WeightedLoss.__call__,
        "targets[:, 1].clamp(0, 1)",
        "targets[:, 1]",
        STEP,
    ),
    Mutant(
        "weights are left out",
        weighted.WeightedLoss.__call__,
        "self._loss(outputs, plain_targets) * weights",
        "self._loss(outputs, plain_targets)",
        ZERO,
    ),
    Mutant(
        "weights are divided by the largest",
        estimator.PrivateEstimator._weights,
        "values.clip(0, 1)",
        "(values / values.max()).clip(0, 1)",
        "check_a_rows_weight_follows_from_that_row",
    ),
    Mutant(
        "the mean loss of a batch is weighted",
        weighted.WeightedLoss.__call__,
        "losses: Tensor = ",
        "weights = weights / weights.mean()\n    losses: Tensor = ",
        ZERO,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
