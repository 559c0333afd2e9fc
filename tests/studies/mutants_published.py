"""Planted bugs in what is said beside others' figures, each of which a named check must catch."""

from __future__ import annotations

from privlearn_studies import others
from tests.support.mutant import Mutant, suite_of

ORDER, BEHIND = (
    "check_more_privacy_counts_for_less_and_nothing_else_does",
    "check_the_page_says_where_we_are_behind",
)
MUTANTS = [
    Mutant(
        "a figure at less privacy counts for more",
        others.best_known,
        "each.epsilon <= epsilon",
        "each.epsilon >= epsilon",
        ORDER,
    ),
    Mutant(
        "the figure at that very epsilon alone",
        others.best_known,
        "each.epsilon <= epsilon",
        "each.epsilon < epsilon",
        ORDER,
    ),
    Mutant("the worst published for the best", others.best_known, "max(known", "min(known", ORDER),
    Mutant("figures of other data", others.best_known, "each.data == data and", "", ORDER),
    Mutant("behind is called ahead", others.compared, "< each.accuracy", "> each.accuracy", BEHIND),
    Mutant(
        "a claim without a figure is passed over",
        others._cell,
        "more_is_claimed(data, epsilon)",
        "False",
        BEHIND,
    ),
    Mutant(
        "a claim reaches to other data", others.more_is_claimed, "data == _CLAIMED and", "", BEHIND
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
