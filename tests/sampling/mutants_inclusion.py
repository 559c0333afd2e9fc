"""Planted bugs in which rows a Poisson sample takes, each of which a named check must catch."""

from __future__ import annotations

from privlearn.core import inclusion
from tests.support.mutant import Mutant, suite_of

SETS, EDGES = (
    "check_every_set_of_rows_has_its_probability",
    "check_undecided_digits_are_followed_by_further_ones",
)
PRICED, LARGE = (
    "check_no_row_is_taken_more_often_than_is_priced",
    "check_samples_of_large_tables_are_rows",
)

MUTANTS = [
    Mutant(
        "rows are taken a little too often",
        inclusion.thresholds,
        "- chance\n",
        "- chance - (chance >> 9)\n",
        "check_bounds_hold_the_distribution_function",
    ),
    Mutant(
        "rows are taken a little too often in large tables",
        inclusion.by_blocks,
        "_counts(blocks, chance,",
        "_counts(blocks, chance + (chance >> 3),",
        "check_rows_of_large_tables_are_taken_at_their_rate",
    ),
    Mutant(
        "the first row is never drawn",
        inclusion.by_blocks,
        "drawn < rows]",
        "(drawn < rows) & (drawn > 0)]",
        SETS,
    ),
    Mutant(
        "the last row is never drawn",
        inclusion.by_blocks,
        "drawn < rows]",
        "drawn < rows - 1]",
        SETS,
    ),
    Mutant(
        "rows of the last block are never drawn",
        inclusion.by_blocks,
        "((rows - 1) >> size) + 1",
        "max(1, rows >> size)",
        SETS,
    ),
    Mutant(
        "every other row is never drawn",
        inclusion._places,
        "(1 << size) - 1",
        "(1 << size) - 2",
        SETS,
    ),
    Mutant("rows are drawn twice", inclusion.by_blocks, ".any():", ".sum() < 0:", LARGE),
    Mutant(
        "of two equal places one is drawn again",
        inclusion.by_blocks,
        "np.isin(drawn >> size, drawn[1:][twice] >> size)",
        "np.append(False, twice)",
        SETS,
    ),
    Mutant(
        "rows beyond the last are drawn", inclusion.by_blocks, "drawn[drawn < rows]", "drawn", SETS
    ),
    Mutant("rates are rounded up", inclusion.chance_of, "math.floor", "math.ceil", PRICED),
    Mutant(
        "numbers at the chance are taken, too", inclusion.one_by_one, "< limit", "<= limit", PRICED
    ),
    Mutant(
        "undecided numbers of rows are the smaller ones",
        inclusion._counts,
        "_decide(int(words[block]), chance, size, rng)",
        "counts[block]",
        EDGES,
    ),
    Mutant(
        "further digits are all zero",
        inclusion._decide,
        "| int(_words(1, rng)[0])",
        "| 0 * len(_words(1, rng))",
        EDGES,
    ),
    Mutant(
        "bounds are rounded to one side",
        inclusion.thresholds,
        "min(sums[0] >> spare, (1 << digits) - 1)",
        "min(-(-sums[1] >> spare), (1 << digits) - 1)",
        "check_bounds_hold_the_distribution_function",
    ),
    Mutant(
        "chunks of rows are all the first one",
        inclusion.one_by_one,
        "+ start for",
        "for",
        "check_few_rows_are_drawn_as_ever",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[IndexError]
)
