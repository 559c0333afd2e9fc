"""Planted bugs in what is said of a declared number of examples."""

from __future__ import annotations

from privlearn.cli import jobs
from tests.support.mutant import Mutant, suite_of

SAID = "check_a_slip_of_the_declared_number_is_said"
MUTANTS = [
    Mutant(
        "ten times too many pass in silence",
        jobs.warn_of_number,
        "declared / 2 <= present",
        "declared / 1000 <= present",
        SAID,
    ),
    Mutant(
        "too few pass in silence",
        jobs.warn_of_number,
        "present <= 2 * declared",
        "present <= 20 * declared",
        SAID,
    ),
    Mutant(
        "a number that may be right is warned of",
        jobs.warn_of_number,
        "declared / 2 <= present <= 2 * declared",
        "declared / 2 < present < 2 * declared",
        SAID,
    ),
    Mutant(
        "a declared number becomes that of the data",
        jobs.data_of,
        "warn_of_number(request.examples, data.examples)",
        "data = replace(data, note=f'{data.examples} examples')",
        "check_a_slip_changes_nothing_that_is_released",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
