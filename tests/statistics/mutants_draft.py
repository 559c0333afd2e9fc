"""Planted bugs in schemas that are drafted from private rows, each of which a named check must
catch.
"""

from __future__ import annotations

from privlearn.methods.statistics import draft, sums
from tests.support.mutant import Mutant, suite_of

CHARGED = "check_a_draft_is_charged_to_its_ledger"
MOVED = "check_a_row_moves_the_counts_of_a_draft_by_the_sensitivity_at_most"
RARE = "check_a_rare_category_is_not_in_a_draft"
NOISE = "check_the_counts_of_a_draft_have_noise"
GRID = "check_bounds_of_a_draft_are_on_the_public_grid"

MUTANTS = [
    Mutant(
        "a row counts once in several columns", sums.cell_counts, "math.sqrt(moved)", "1.0", MOVED
    ),
    Mutant("a row in another's place moves one cell", sums.cell_counts, "2.0 if", "1.0 if", MOVED),
    Mutant("a draft is not paid", draft._release, "ledger=ledger,", "ledger=Ledger(),", CHARGED),
    Mutant(
        "all levels cost what one does",
        draft.draft_schema,
        "Gaussian(noise * math.sqrt(releases))",
        "Gaussian(noise)",
        CHARGED,
    ),
    Mutant("the threshold is off", draft._threshold, "return float(", "return 0.5 * float(", NOISE),
    Mutant(
        "a draft has no noise",
        draft._release,
        "(noisy_counts,) = release(",
        "noisy_counts = [part.clone() for part in counts.values]; release(",
        NOISE,
    ),
    Mutant(
        "categories are those that are there",
        draft._release,
        "np.flatnonzero(column_counts > least)",
        (
            "np.flatnonzero(np.bincount(_behind(texts[name], followed[name], level).clip(0), "
            "minlength=1))"
        ),
        RARE,
    ),
    Mutant(
        "bounds are taken from the rows",
        draft._release,
        "bounds = {name: _bounds_of(column_counts > least) for",
        "bounds = {name: (float(min(filter(None, table.cells(name)), default=0)), "
        "float(max(filter(None, table.cells(name)), default=1))) for",
        GRID,
    ),
    Mutant(
        "the outermost number is a bound",
        draft._release,
        "_bounds_of(column_counts > least)",
        "_bounds_of(np.bincount(_grid(table.columns[name]).clip(0), minlength=_CELLS) > 0)",
        RARE,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[IndexError]
)
