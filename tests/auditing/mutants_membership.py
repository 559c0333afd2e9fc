"""Planted bugs in membership inference: a named check must catch each."""

from __future__ import annotations

from privlearn.auditing import canaries, membership
from tests.support.mutant import Mutant, suite_of

FOUND, NONE = (
    "check_shadow_models_find_whom_a_model_remembers",
    "check_models_that_remember_nothing_are_not_accused",
)
SELDOM = "check_members_found_at_low_rates_are_bounded_as_seldom_wrong_as_is_said"
UNSEEN = "check_shadow_models_count_only_for_what_they_have_not_seen"

MUTANTS = [
    Mutant(
        "models that have seen an example speak of those that have not",
        membership.likelihood_ratios,
        "np.where(without, shadows, 0.0).sum(0) / among",
        "shadows.mean(0)",
        UNSEEN,
    ),
    Mutant(
        "the spread is that of models that have seen the example, too",
        membership.likelihood_ratios,
        "np.where(without, np.square(shadows - means), 0.0)",
        "np.square(shadows - means)",
        UNSEEN,
    ),
    Mutant(
        "a share of members that were found, in place of its bound",
        membership.detected,
        "rates.true_positive, high",
        "hits / len(members), high",
        SELDOM,
    ),
    Mutant(
        "the false positives that were wanted, in place of their bound",
        membership.detected,
        "rate, rates.false_positive",
        "rate, rate",
        SELDOM,
    ),
    Mutant(
        "more false positives than are said",
        membership.detected,
        "* len(others))\n",
        "* len(others)) + 9\n",
        SELDOM,
    ),
    Mutant(
        "all examples take part",
        membership.infer_membership,
        "signals(coins)",
        "signals(coins | True)",
        FOUND,
    ),
    Mutant(
        "the shadows do not count",
        membership.infer_membership,
        "if shadows else target",
        "if False else target",
        FOUND,
    ),
    Mutant(
        "every claim stands",
        canaries.with_guesses,
        "free <= report.epsilon_claimed and not run.refute(report.curve)",
        "True",
        FOUND,
    ),
    Mutant("three bounds at the price of two", membership.detected, "/ 3", "/ 1.2", SELDOM),
    Mutant(
        "examples of one model as independent trials",
        membership.infer_membership,
        "replace(report, ok=True, epsilon_lower=0.0)",
        "replace(report, ok=False)",
        NONE,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
