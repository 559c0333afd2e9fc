"""Planted bugs in the studies of feature selection, each of which a named check must catch."""

from __future__ import annotations

from privlearn.methods.statistics import advice
from privlearn_studies.shen2021 import grids, published, recovery, releases, sizes, toy
from tests.studies import checks_shen2021 as dfs_study_checks
from tests.support.mutant import Mutant, suite_of

MUTANTS = [
    Mutant(
        "noise of rows to be classified is forgotten",
        toy.Sparse.error,
        "math.sqrt(1 + variance)",
        "1.0",
        "check_errors_of_the_toy_are_shares_of_rows",
    ),
    Mutant(
        "half of Psi is lost",
        toy.Sparse.bayes,
        "math.sqrt(self._apart(number, variance)) / 2",
        "math.sqrt(self._apart(number, variance))",
        "check_errors_of_the_toy_are_shares_of_rows",
    ),
    Mutant(
        "rows of one class count for all",
        toy.Sparse.learned,
        "(2 * self.rows)",
        "self.rows",
        "check_learned_means_cost_what_the_closed_form_says",
    ),
    Mutant(
        "rows of the toy are clipped to their number",
        toy.plan_of,
        "_NORM * math.sqrt(number)",
        "_NORM * number",
        "check_rows_of_the_toy_are_released_at_the_epsilon",
    ),
    Mutant(
        "one feature with signal is enough",
        recovery.Scores.recovery,
        "** signals",
        "** 1",
        "check_recovery_is_how_often_all_signals_lead",
    ),
    Mutant(
        "features without signal are not counted in the bound",
        recovery.Scores.bound,
        "(features - signals) *",
        "",
        "check_recovery_is_how_often_all_signals_lead",
    ),
    Mutant(
        "theory without the noise of the second class",
        recovery.scores_of,
        "8 * (noise / rows) ** 2",
        "4 * (noise / rows) ** 2",
        "check_theory_has_the_noise_of_the_release",
    ),
    Mutant(
        "selection at twice the epsilon",
        recovery.plan_of,
        "epsilon=_EPSILON",
        "epsilon=2 * _EPSILON",
        "check_theory_has_the_noise_of_the_release",
    ),
    Mutant(
        "twice the epsilon",
        releases.plan_of,
        "epsilon=setting.epsilon",
        "epsilon=2 * setting.epsilon",
        "check_releases_cost_what_is_stated",
    ),
    Mutant(
        "a free choice passes for private",
        releases._one,
        "front is not None or setting.epsilon is None",
        "setting.epsilon is None",
        "check_releases_cost_what_is_stated",
    ),
    Mutant(
        "private rows are chosen by",
        releases.parts,
        "np.setdiff1d(order, mine, assume_unique=True)[:_HELD]",
        "order[:_HELD]",
        "check_private_rows_are_not_chosen_by",
    ),
    Mutant(
        "one subset for every seed",
        releases.parts,
        "[seed, len(y)]",
        "[len(y)]",
        "check_private_rows_are_not_chosen_by",
    ),
    Mutant(
        "features of all rows",
        releases.best_features,
        "setting.per_class, seed",
        "None, seed",
        "check_features_without_privacy_are_those_of_the_private_rows",
    ),
    Mutant(
        "a free choice is charged",
        releases.plan_of,
        "without_choice = replace(plan, features=keep,",
        "without_choice = replace(plan,",
        "check_a_choice_without_privacy_leaves_all_for_the_rows",
    ),
    Mutant(
        "by t the published algorithm chooses itself",
        releases._literal,
        'if setting.criterion != "distance"',
        "if False",
        "check_the_published_noise_is_the_published_noise",
    ),
    Mutant(
        "rows to classify are cut short",
        published.literal_release,
        "kept_norm=longest,",
        "",
        "check_the_published_noise_is_the_published_noise",
    ),
    Mutant(
        "the best is so on test rows",
        grids.Tried.best,
        "one.held[at]",
        "one.test[at]",
        "check_what_is_best_is_so_on_rows_that_are_not_tested_on",
    ),
    Mutant(
        "the number of classes is forgotten",
        grids.Grid.loudness,
        "noise * self.classes",
        "noise",
        "check_the_noise_in_a_mean_is_a_public_number",
    ),
    Mutant(
        "advice forgets the classes",
        advice.advised,
        "by_statistics, by_rows = z * k *",
        "by_statistics, by_rows = z *",
        "check_advice_goes_by_public_numbers_and_keeps_the_target",
    ),
    Mutant(
        "advice keeps noise that was solved for another plan",
        advice._settle,
        "if (budget := plan.budget) is not None:",
        "if False:",
        "check_advice_goes_by_public_numbers_and_keeps_the_target",
    ),
    Mutant(
        "advised rows have public labels",
        advice._rows_plan,
        '"labels": "randomised"',
        '"labels": "public"',
        "check_advice_goes_by_public_numbers_and_keeps_the_target",
    ),
    Mutant(
        "sizes are compared on test images",
        sizes.Size.best,
        '"held"',
        '"test"',
        "check_rates_are_chosen_on_held_back_images",
    ),
    Mutant(
        "every network has the same weights",
        sizes.network,
        "int(rng.integers(2**63))",
        "0",
        "check_networks_have_the_papers_sizes",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, caches=dfs_study_checks.CACHED
)
