"""Lost allowances of the accounting, each of which a named check must catch: most move no figure by
a visible digit.
"""

from __future__ import annotations

from privlearn.core.accounting import accountant, pld, searches, zcdp
from privlearn.core.accounting import rdp as accounting_rdp
from privlearn.core.accounting.pld import doubling, fourier, pairs, partition
from privlearn_studies.yu2019.accounting import strong_composition
from tests.support.mutant import Mutant, suite_of

READ, ADDS = "check_mass_at_infinity_is_never_read_as_less", "check_mass_at_infinity_adds_up"
WINDOW = "check_what_lies_outside_of_the_window_is_paid_for"
COARSE, PARTS = (
    "check_coarse_pairs_are_never_below_fine_ones",
    "check_a_partitions_allowances_are_there",
)
SOLVED, STEPS = (
    "check_conversions_end_on_the_safe_side",
    "check_groups_in_steps_end_on_the_safe_side",
)
LIMITS, STRONG = (
    "check_limits_are_lowered_until_they_fit",
    "check_strong_composition_is_the_theorems",
)
BOTH = "check_renyi_curves_bound_both_directions"
MUTANTS = [
    Mutant(
        "mass at infinity is not looked at on the grid",
        pld._epsilon,
        "at = infinite + above",
        "at = above",
        READ,
    ),
    Mutant(
        "mass at infinity is lost between grid points",
        pld._epsilon,
        "need = infinite + above",
        "need = above",
        READ,
    ),
    Mutant("any mass at infinity is met", pld._above, "return math.inf", "return epsilon", READ),
    Mutant(
        "delta without the mass at infinity",
        pld.Composition.deltas,
        "self.p_inf, epsilon",
        "0.0, epsilon",
        READ,
    ),
    Mutant("one of many tells everything", pld._ever, "n * math.log1p", "math.log1p", ADDS),
    Mutant(
        "what P never does counts for nothing",
        pld.compose,
        "min(pair.q0, 0.9)",
        "min(0 * pair.q0, 0.9)",
        ADDS,
    ),
    Mutant(
        "what Q never does counts for nothing",
        pld.compose,
        "min(pair.p_inf, 0.9)",
        "min(0 * pair.p_inf, 0.9)",
        ADDS,
    ),
    Mutant("a window's upper tail is free", pld.compose, "p_inf + above", "p_inf", WINDOW),
    Mutant("a window's lower tail is free", pld.compose, "q_inf + below", "q_inf", WINDOW),
    Mutant(
        "rounding is free",
        fourier.Spectra.inverse,
        "0.0) + error",
        "0.0)",
        "check_no_cell_of_a_composition_is_below_its_exact_mass",
    ),
    Mutant(
        "a likelihood ratio below the grid is dropped",
        pairs._with_sides,
        "((1 - rate) * q_below + rate * p_below) / least",
        "0.0",
        COARSE,
    ),
    Mutant(
        "mass below the grid has no infinite loss",
        pairs._with_sides,
        "rate * below",
        "0 * below",
        COARSE,
    ),
    Mutant(
        "mass above the grid has no infinite loss",
        pairs._with_sides,
        "rate * above",
        "0 * above",
        COARSE,
    ),
    Mutant(
        "folded mass has no infinite loss",
        doubling.trim,
        "laws.p_inf + np.maximum(0.0, mean - x[high - 1] * mass)",
        "laws.p_inf",
        COARSE,
    ),
    Mutant(
        "folded mass is never at 0",
        doubling.trim,
        "laws.q0 + np.maximum(0.0, mass - mean)",
        "laws.q0",
        COARSE,
    ),
    Mutant(
        "doubling forgets the mass at infinity",
        doubling.double,
        "q0, laws.p_inf + LOST)",
        "q0, 0.0 * q0)",
        COARSE,
    ),
    Mutant(
        "doubling forgets the mass at 0",
        doubling.double,
        "q0, laws.p_inf + LOST)",
        "0.0 * q0, laws.p_inf)",
        COARSE,
    ),
    Mutant(
        "a mean forgets the mass at infinity",
        doubling.weighted,
        "math.exp(a) * first.p_inf + math.exp(b) * second.p_inf",
        "0.0 * first.p_inf",
        COARSE,
    ),
    Mutant(
        "windows of sums are free, remove",
        partition._by_fourier,
        "beyond + allowance",
        "beyond",
        PARTS,
    ),
    Mutant(
        "windows of sums are free, add", partition._by_fourier, "zero + allowance", "zero", PARTS
    ),
    Mutant(
        "the tail of one ratio is free",
        partition._by_fourier,
        "beyond + allowance",
        "allowance",
        PARTS,
    ),
    Mutant(
        "the mean beyond the last point is lost",
        partition._log_normal,
        "above + 2 *",
        "0 * above + 2 *",
        PARTS,
    ),
    Mutant("mu rounded up", zcdp.gaussian_mu_for, "(1 - 16 * _UNIT)", "(1 + 1e-10)", SOLVED),
    Mutant(
        "rho rounded up",
        zcdp.rho_for,
        "rho, _ =",
        "_, rho =",
        SOLVED,
    ),
    Mutant(
        "epsilon rounded down",
        zcdp.gaussian_epsilon,
        "return epsilon",
        "return epsilon * (1 - 1e-10)",
        SOLVED,
    ),
    Mutant("the bracket's low end", accountant._least, "1e-6)[1]", "1e-6)[0]", STEPS),
    Mutant(
        "a step's delta does not grow", accountant.pld_in_steps, "log_growth(one, k)", "0.0", STEPS
    ),
    Mutant(
        "a step's delta does not grow, in Renyi",
        accountant.rdp_in_steps,
        "log_growth(one, k)",
        "0.0",
        STEPS,
    ),
    Mutant(
        "a limit just above its budget",
        searches.to_safe_side,
        "while not safe(value):",
        "while False:",
        LIMITS,
    ),
    Mutant(
        "a limit is searched for without end",
        searches.to_safe_side,
        "if abs(step) > 0.5:",
        "if False:",
        LIMITS,
    ),
    Mutant(
        "delta is not split",
        strong_composition,
        "slack = delta * (1 - share)",
        "slack = delta",
        STRONG,
    ),
    Mutant("no split is tried", strong_composition, "np.geomspace(1e-4, 0.9999, 60)", "()", STRONG),
    Mutant(
        "sampling by the releases' epsilon alone",
        strong_composition,
        "math.log1p(rate * math.expm1(alone))",
        "rate * alone",
        STRONG,
    ),
    Mutant(
        "groups in the remove direction only",
        accounting_rdp.sampled_group,
        "np.maximum(remove, add)",
        "remove",
        BOTH,
    ),
    Mutant(
        "groups in the add direction only",
        accounting_rdp.sampled_group,
        "np.maximum(remove, add)",
        "add",
        BOTH,
    ),
    Mutant(
        "groups by their mean number of rows",
        accounting_rdp.sampled_group,
        "j**2",
        "(k * rate) * j",
        BOTH,
    ),
    Mutant(
        "one direction of a step",
        accountant.pld_in_steps,
        "max(composed.deltas(one))",
        "min(composed.deltas(one))",
        STEPS,
    ),
    Mutant(
        "a coarse composition in the cheaper direction",
        pld.Composition.epsilons,
        "self.q_inf, self.h",
        "0.0, self.h",
        READ,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
