"""Lost terms of lemmas 8 to 15 in docs/decisions/proofs-of-prices.md, each of which a named check
must catch.
"""

from __future__ import annotations

from privlearn.core.accounting import zcdp
from privlearn.core.accounting.pld import doubling, pairs, partition, rounding
from tests.support.mutant import Mutant, suite_of

SAMPLED, ATOMS = (
    "check_no_curve_of_a_sampled_release_is_below_the_exact_one",
    "check_no_curve_of_atoms_is_below_the_exact_one",
)
SPLITS = "check_splits_know_their_errors"
TAILS, LAPLACE = (
    "check_tails_know_their_errors",
    "check_no_curve_of_a_laplace_release_is_below_the_exact_one",
)
GROUPS, MEANS = (
    "check_mixtures_of_groups_know_their_errors",
    "check_means_of_ratios_are_not_below_the_exact_ones",
)
LINEAR = "check_linear_grids_of_log_normal_ratios_are_not_below_the_exact_ones"
RATIOS = "check_many_ratios_on_the_grid_are_not_below_the_exact_ones"
TOGETHER = "check_epochs_that_are_priced_together_are_not_below_each_alone"
GAUSSIAN = "check_gaussian_figures_are_not_below_the_exact_ones"
MUTANTS = [
    Mutant(
        "the normal law as it is computed", rounding.tails, "_NORMAL + 2 * depth**2", "0.25", TAILS
    ),
    Mutant("far tails as exact as near ones", rounding.tails, "2 * depth**2", "0.0", TAILS),
    Mutant("points never move", rounding.tails, "moved * (1 + depth)", "0.0", TAILS),
    Mutant(
        "tails change by no more than their density",
        rounding.tails,
        "moved * (1 + depth)",
        "moved * 0.4",
        TAILS,
    ),
    Mutant(
        "shares of cells as they are computed",
        rounding.split,
        "right + off, most",
        "right, most",
        SPLITS,
    ),
    Mutant(
        "what is left of a cell as it is computed",
        rounding.split,
        "dq - right + off, most",
        "dq - right, most",
        SPLITS,
    ),
    Mutant(
        "what lies beyond as it is computed",
        rounding.split,
        "max(0.0, value) + loss + 4 *",
        "max(0.0, value) + 0 *",
        SPLITS,
    ),
    Mutant(
        "atoms where they were meant to be",
        rounding.onto_grid,
        "slack[part] = mass * off",
        "slack[part] = 0 * mass",
        ATOMS,
    ),
    Mutant(
        "an atom never belongs to the cell below",
        rounding.onto_grid,
        "shares <= off",
        "shares < 0",
        ATOMS,
    ),
    Mutant(
        "an atom never belongs to the cell above",
        rounding.onto_grid,
        "shares >= 1 - off",
        "shares > 1",
        ATOMS,
    ),
    Mutant(
        "the sampled law at other points",
        pairs.poisson_pair,
        "u = (logs - centre) / sd",
        "u = (logs - centre) / sd + 1e-3",
        SAMPLED,
    ),
    Mutant(
        "Laplace cells cut in halves",
        pairs.laplace_pair,
        "scale * 4 * np.sinh(widths / 4) ** 2 / np.expm1(widths)",
        "scale * -np.expm1(-widths / 2) / 2",
        LAPLACE,
    ),
    Mutant(
        "densities of groups as they are computed",
        pairs._density,
        "UNIT * (8 * top",
        "0 * (8 * top",
        GROUPS,
    ),
    Mutant(
        "masses of groups as they are computed",
        pairs._laws,
        "1.01 * below_error + off * below",
        "0 * below",
        GROUPS,
    ),
    Mutant(
        "weights of groups as they are computed", pairs._weight_error, "16 * k + 64", "0.1", GROUPS
    ),
    Mutant(
        "halves of doubled ratios as they are computed",
        doubling._parts,
        "1 - share + off, share + off",
        "1 - share, share",
        MEANS,
    ),
    Mutant(
        "many ratios as they are computed",
        rounding.ratios_onto_grid,
        "slack = mass * share_error(",
        "slack = 0 * mass * share_error(",
        RATIOS,
    ),
    Mutant(
        "ratios beside a side never belong to the next cell",
        rounding.ratios_onto_grid,
        "right + slack, slack)",
        "right + slack)",
        RATIOS,
    ),
    Mutant(
        "many ratios at their upper ends",
        rounding.ratios_onto_grid,
        "mean - sides[:-1] * mass",
        "mean",
        RATIOS,
    ),
    Mutant(
        "epochs in the order of their noise",
        partition._nearby,
        "groups[-1].append(place)",
        "groups[-1].append(sum(map(len, groups)))",
        TOGETHER,
    ),
    Mutant(
        "more noise than asked for, together",
        partition._together_by_doubling,
        "for sigma in sigmas]",
        "for sigma in [largest] * len(sigmas)]",
        TOGETHER,
    ),
    Mutant("folded masses at one end only", doubling.trim, "inner[-1] + mass", "inner[-1]", MEANS),
    Mutant(
        "windows of sums without room for rounding",
        partition._sum_window,
        "math.log(2) - math.log(tail)",
        "-math.log(tail)",
        LINEAR,
    ),
    Mutant(
        "the Gaussian curve as it is computed",
        zcdp.gaussian_epsilon,
        "gaussian_delta_bound(mu, epsilon) <= delta",
        "ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)) "
        "<= delta",
        GAUSSIAN,
    ),
    Mutant(
        "sums of squares as they are computed", zcdp.gaussian_mu, " * (1 + 6 * _UNIT)", "", GAUSSIAN
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
