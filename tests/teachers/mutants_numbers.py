"""Planted bugs in PATE for numbers, each of which a named check must catch."""

from __future__ import annotations

from privlearn.methods.pate import answering
from privlearn.models import heads
from tests.support.mutant import Mutant, suite_of

PUBLIC = "check_codes_of_numbers_follow_from_public_rows_alone"
UNITS = "check_students_of_numbers_predict_in_the_units_of_the_targets"
BOUNDS = "check_numbers_of_teachers_are_within_their_bounds"

MUTANTS = [
    Mutant(
        "principal components of the private targets",
        answering._train_by_codes,
        "reducer, _ = reducer_of(pool, head)",
        "reducer, _ = reducer_of(pool.y is not None and replace(data, public=True), head)",
        PUBLIC,
    ),
    Mutant(
        "teachers learn targets as they are",
        answering._scale_targets,
        "head.prepared(data.y)",
        "data.y",
        BOUNDS,
    ),
    Mutant(
        "numbers beyond their bounds count as they are",
        heads.BoundedHead.prepared,
        ".clip(self.low, self.high)",
        "",
        BOUNDS,
    ),
    Mutant(
        "students give scaled numbers",
        heads.NumbersHead.published,
        "rescale(network,",
        "0 and rescale(network,",
        UNITS,
    ),
    Mutant(
        "predictions of several numbers leave their bounds",
        heads.NumbersHead.predicted,
        "outputs.clamp(low, high)",
        "outputs.clamp(low / 100, high / 100)",
        UNITS,
    ),
    Mutant(
        "a threshold of votes is passed over",
        answering.settle_answers,
        "options.threshold is not None",
        "False",
        "check_numbers_refuse_what_votes_alone_have",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
