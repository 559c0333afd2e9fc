"""Planted bugs in what the canaries of one run prove: a named check must catch each."""

from __future__ import annotations

from privlearn.auditing import bounds, canaries, one_run
from privlearn.core.accounting.tradeoff import TradeOff
from tests.support.mutant import Mutant, suite_of

SOLVED = "check_the_one_run_bound_is_what_a_linear_program_finds"
EXACT = "check_one_run_bounds_hold_for_exact_distributions"
OFTEN = "check_one_run_bounds_err_as_seldom_as_they_say"
CURVES = "check_one_run_bounds_of_a_curve_err_as_seldom_as_they_say"
INVERSE, COINS = "check_a_curves_rates_are_inverses", "check_canaries_take_part_by_fair_coins"
CHOSEN = "check_a_test_is_chosen_and_counted_on_different_trials"

MUTANTS = [
    Mutant(
        "the confidence is ignored",
        one_run.OneRun.of,
        "(1 - between(",
        "0.5 + 0 * (1 - between(",
        OFTEN,
    ),
    Mutant(
        "the best of several shares, without correction",
        one_run.OneRun.of,
        " / len(outcomes))",
        ")",
        OFTEN,
    ),
    Mutant(
        "a point estimate of the guesses",
        one_run.Guesses.contradict,
        "error: float) -> bool:",
        "error: float) -> bool:\n    error = 0.5",
        EXACT,
    ),
    Mutant(
        "guesses are taken for all canaries",
        one_run.Guesses.too_many,
        "error / self.canaries",
        "error / self.made",
        SOLVED,
    ),
    Mutant(
        "a level is left out",
        one_run.Guesses.too_many,
        "range(self.right, 0, -1)",
        "range(self.right, 1, -1)",
        SOLVED,
    ),
    Mutant(
        "a flipped coin leaves the level",
        one_run.Guesses.too_many,
        "(level - 1) / (self.made - level + 1)",
        "level / (self.made - level + 1)",
        SOLVED,
    ),
    Mutant(
        "wrong guesses are not carried on",
        one_run.Guesses.too_many,
        "max(wrong, inverse(min(right, 1.0)))",
        "wrong + inverse(min(right, 1.0))",
        SOLVED,
    ),
    Mutant(
        "one line of the curve",
        one_run.Guesses.contradict,
        "(rate - delta) / growth",
        "rate / growth",
        EXACT,
    ),
    Mutant(
        "a Gaussian curve's inverse with more noise",
        TradeOff.false_positive_rate,
        "- self.mu)",
        "- self.mu / 2)",
        INVERSE,
    ),
    Mutant(
        "the inverse forgets delta",
        TradeOff.false_positive_rate,
        "(rate - deltas)",
        "rate",
        INVERSE,
    ),
    Mutant("a curve is refuted at any error", one_run.OneRun.refute, "self.error)", "1.0)", CURVES),
    Mutant(
        "biased coins",
        canaries.fair_coins,
        "integers(2, size=canaries).astype(bool)",
        "random(canaries) < 0.53",
        COINS,
    ),
    Mutant(
        "canaries take part by turns",
        canaries.fair_coins,
        "streams.views.integers(2, size=canaries)",
        "(np.arange(canaries) % 2)",
        COINS,
    ),
    Mutant(
        "the same canaries in every run",
        canaries.fair_coins,
        "streams.views.integers",
        "np.random.default_rng(0).integers",
        COINS,
    ),
    Mutant(
        "the threshold is chosen on what is counted",
        bounds.measured,
        "scores[:pilot]",
        "scores",
        CHOSEN,
    ),
    Mutant(
        "trials that chose the threshold are counted",
        bounds.measured,
        "scores[pilot:, kind]",
        "scores[:, kind]",
        CHOSEN,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
