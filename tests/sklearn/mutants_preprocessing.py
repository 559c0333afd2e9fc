"""Planted bugs by which an estimator claims what steps before it gave away: each caught by a named
check.
"""

from __future__ import annotations

from privlearn.data import cells
from privlearn.sklearn import estimator, preprocessing, table_encoder
from tests.support.mutant import Mutant, suite_of

STEPS = "check_steps_that_learned_from_rows_are_seen"
AROUND = "check_estimators_around_that_change_rows_or_targets_are_seen"
NAMES = "check_names_of_columns_tell_of_transforms_before"
ELSEWHERE = "check_private_steps_share_the_ledger_of_what_learns_from_them"
PERSONS = "check_rows_of_persons_are_fitted_by_persons"
EVERY = "check_every_estimator_sees_the_steps_before_it"
FEATURES = "check_an_encoder_of_tables_gives_the_features_of_train"

MUTANTS = [
    Mutant(
        "steps before a fit are not looked at",
        estimator.PrivateEstimator._release,
        "reasons_of(self, PrivateEstimator, declared=declared)",
        "()",
        EVERY,
    ),
    Mutant(
        "nobody's word is needed for what is published",
        estimator.PrivateEstimator._release,
        "declared = self.preprocessing == PUBLIC",
        "declared = True",
        STEPS,
    ),
    Mutant(
        "a private step's release is counted wherever it was charged",
        preprocessing._find_charged_elsewhere,
        "not _is_same(step.ledger, ledger)",
        "False",
        ELSEWHERE,
    ),
    Mutant(
        "a fit behind a private step is certified by itself",
        estimator.PrivateEstimator.publish,
        "self._behind_release and",
        "False and",
        ELSEWHERE,
    ),
    Mutant(
        "private steps within others are not looked at",
        preprocessing._parts,
        "if isinstance(step, Pipeline):",
        "if True:\n        yield step\n        return\n    if isinstance(step, Pipeline):",
        ELSEWHERE,
    ),
    Mutant(
        "columns of a private step may be from anywhere",
        preprocessing._find_charged_elsewhere,
        "if not seen and calls:",
        "if False:",
        NAMES,
    ),
    Mutant(
        "an encoder's persons are forgotten",
        estimator.PrivateEstimator._release,
        "if person and plan.unit.rows_per_person is None:",
        "if False:",
        PERSONS,
    ),
    Mutant(
        "what nothing is claimed of is published from its result",
        estimator.PrivateEstimator._release,
        "if reasons and isinstance(result, Result):",
        "if False:",
        STEPS,
    ),
    Mutant(
        "every step learned nothing",
        preprocessing._learns_nothing,
        "return _alike(_state(step), _state(alone))",
        "return True",
        STEPS,
    ),
    Mutant(
        "a step that can't be tried is public",
        preprocessing._learns_nothing,
        "except Exception:\n        return False",
        "except Exception:\n        return True",
        STEPS,
    ),
    Mutant(
        "of a union one public part is enough",
        preprocessing._learns_nothing,
        "return all(_learns_nothing(part, row",
        "return any(_learns_nothing(part, row",
        STEPS,
    ),
    Mutant(
        "a step's fitted numbers are compared by their shape",
        preprocessing._alike,
        "same and one.tobytes() == other.tobytes()",
        "same",
        STEPS,
    ),
    Mutant(
        "rows that meet in a step are not seen",
        preprocessing._find_learned,
        "alone.shape != together.shape or",
        "False and",
        STEPS,
    ),
    Mutant(
        "a step with a seed is charged like any other",
        preprocessing._learns_nothing,
        "not bool(step.privacy_.undeclared)",
        "True",
        ELSEWHERE,
    ),
    Mutant(
        "estimators around are trusted",
        preprocessing._are_rows_of,
        "    try:",
        "    return True\n    try:",
        AROUND,
    ),
    Mutant(
        "targets are not compared",
        preprocessing._are_rows_of,
        "if inner.y is not None:",
        "if False:",
        AROUND,
    ),
    Mutant(
        "a row may come several times",
        preprocessing._are_rows_of,
        "(used <= had).all()",
        "(had[used > 0] > 0).all()",
        AROUND,
    ),
    Mutant(
        "columns' names tell nothing",
        preprocessing._find_by_names,
        "if prefixed:",
        "if False:",
        NAMES,
    ),
    Mutant(
        "only prefixes tell of a transform",
        preprocessing._find_by_names,
        "elif (names and all(numbered)",
        "elif (False and all(numbered)",
        NAMES,
    ),
    Mutant(
        "the card leaves out what was declared",
        estimator.PrivateEstimator.publish,
        "if self.preprocessing == PUBLIC else {}",
        "if False else {}",
        "check_a_card_repeats_that_the_preprocessing_was_declared_public",
    ),
    Mutant(
        "an encoder fills gaps by what it saw",
        cells._known,
        "        return None\n    if",
        "        return 30.0\n    if",
        FEATURES,
    ),
    Mutant(
        "an encoder takes columns as they come",
        table_encoder.DPTableEncoder._table,
        "if is_frame(X):",
        "X = X.drop(columns=[n for n in X.columns if n not in names]).to_numpy(object) if "
        "is_frame(X) else X\n    if is_frame(X):",
        FEATURES,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[ValueError, TypeError, AttributeError]
)
