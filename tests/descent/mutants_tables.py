"""Planted bugs of the rules for tables, each of which a named check must catch."""

from __future__ import annotations

from privlearn.training import centring, fitted_temperature
from tests.support.mutant import Mutant, suite_of

ROWS = "check_rows_have_no_part_in_how_tables_are_prepared"
BASE = "check_small_tables_are_learned_better_than_their_base_rate"
ASKED = "check_what_was_asked_for_is_left_as_it_is"
MUTANTS = [
    Mutant("categories are centred", centring.centred, "& ~((low == 0) & (high == 1))", "", ROWS),
    Mutant("numbers around 0 are centred", centring.centred, "(low >= 0) & ", "", ROWS),
    Mutant(
        "numbers are not centred", centring.centred, "if columns else ()", "if False else ()", BASE
    ),
    Mutant(
        "scores are divided by what noise says",
        fitted_temperature.FittedTemperature.fit,
        '"sure": sure',
        '"sure": True',
        BASE,
    ),
    Mutant(
        "gradients of networks are clipped like those of tables",
        centring.clip_norm,
        "is_table(request, facts) and ",
        "",
        ASKED,
    ),
    Mutant(
        "rows are centred in spite of what was asked",
        centring.is_table,
        "plain and request.normalise is None",
        "plain",
        ASKED,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
