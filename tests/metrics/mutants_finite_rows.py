"""Planted bugs by which figures would be of other rows than is said, each of which a named check
must catch.
"""

from __future__ import annotations

from privlearn import metrics
from privlearn.methods.statistics import sums
from privlearn.methods.tuning import sums as tuning_sums
from privlearn.sklearn import estimator
from tests.support.mutant import Mutant, suite_of

TASKS = "check_exact_figures_of_every_task_refuse_rows_that_are_not_finite"
PAID = "check_paid_figures_count_rows_that_are_not_finite_as_wrong_or_absent"

MUTANTS = [
    Mutant(
        "inputs that are not finite are predicted",
        metrics.evaluate,
        "_require_inputs(network, x)",
        "pass",
        TASKS,
    ),
    Mutant(
        "a row whose model fails is of the first class",
        metrics._require_usable,
        "not bool(usable.all())",
        "'prediction' in what and False",
        TASKS,
    ),
    Mutant(
        "every model takes missing values",
        metrics._require_inputs,
        '"takes_missing", False)',
        '"training", False)',
        "check_nan_is_a_missing_value_where_a_model_says_so",
    ),
    Mutant(
        "infinities are numbers",
        metrics._finite,
        ".isfinite()",
        ".isnan().logical_not()",
        "check_everything_that_makes_figures_looks_at_its_rows_first",
    ),
    Mutant(
        "a row without an answer has no log loss",
        sums.metric_sums,
        "torch.cat([losses, wrong])).sum()",
        "losses).sum()",
        PAID,
    ),
    Mutant(
        "a row without an answer has no error", sums.error_sums, "int((~usable).sum())", "0", PAID
    ),
    Mutant(
        "absent rows have errors", sums.error_sums, "0 if counted else", "0 if False else", PAID
    ),
    Mutant(
        "a row that failed counts as judged well",
        tuning_sums._losses,
        "losses.where(there > 0, 1.0)",
        "losses",
        "check_candidates_are_not_better_by_rows_that_are_not_finite",
    ),
    Mutant(
        "estimators predict the first class where there is no score",
        estimator.NetworkEstimator._outputs,
        "if not bool(outputs.isfinite().all()):",
        "if False:",
        "check_estimators_score_no_row_that_is_not_finite",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[ValueError, RuntimeError, RuntimeWarning]
)
