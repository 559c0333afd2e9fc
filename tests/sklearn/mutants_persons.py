"""Planted bugs in estimators of persons, each of which a named check must catch."""

from __future__ import annotations

from privlearn.sklearn import estimator, search, spending
from tests.support.mutant import Mutant, suite_of

PERSONS, TOGETHER = (
    "check_a_fit_with_groups_is_a_run_of_persons",
    "check_groups_and_rows_of_a_person_belong_together",
)
MUTANTS = [
    Mutant(
        "ids are those of other rows",
        estimator.NetworkEstimator._of_persons,
        "groups=ids)",
        "groups=None if ids is None else ids[::-1])",
        PERSONS,
    ),
    Mutant(
        "ids are left out",
        estimator.NetworkEstimator._of_persons,
        "groups=ids)",
        "groups=None)",
        PERSONS,
    ),
    Mutant(
        "ids that nothing is done with are taken",
        estimator.NetworkEstimator._learn,
        "self._of_persons(data, groups)",
        "self._of_persons(data, groups) if self._options() else data",
        TOGETHER,
    ),
    Mutant(
        "a search forgets whom its estimator protects",
        search.DPSearchCV._candidate,
        "{**estimator._options(), **candidate._options()}",
        "candidate._options()",
        TOGETHER,
    ),
    Mutant(
        "a search takes no notice of persons",
        search.DPSearchCV.fit,
        "is not None for variant",
        "and False for variant",
        TOGETHER,
    ),
    Mutant(
        "a fit is said to protect a row",
        spending._price,
        "plan.unit.rows_per_person",
        "None",
        PERSONS,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
