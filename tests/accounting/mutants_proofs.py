"""Lost terms of docs/decisions/proofs-of-prices.md that a named check must catch: most move no
figure at all.
"""

from __future__ import annotations

from privlearn.core.accounting import accountant, pld
from privlearn.core.accounting.pld import composing, fourier
from tests.support.mutant import Mutant, suite_of

SHORT, FACTORS = "check_transforms_err_less_than_is_allowed", "check_products_pay_for_their_factors"
CELLS, TILTS = (
    "check_no_cell_of_a_composition_is_below_its_exact_mass",
    "check_each_tilt_is_an_upper_bound",
)
READ, TAILS = (
    "check_what_is_read_is_never_less_than_there_is",
    "check_tails_outside_of_a_window_are_bounded",
)
STEPS = "check_pure_sums_and_groups_in_steps_are_not_below_the_exact_ones"
MUTANTS = [
    Mutant(
        "transforms err by half a unit in all",
        fourier.transform_error,
        "_PER_DOUBLING * (math.log2(size) + 1) * UNIT",
        "UNIT / 2",
        SHORT,
    ),
    Mutant(
        "transforms of any length",
        fourier.length,
        "next_fast_len(cells, real=True)",
        "cells",
        "check_lengths_have_small_factors",
    ),
    Mutant(
        "what is not known of a factor is free",
        fourier.Spectra.multiply,
        "transform_error(self.size) + factor.error",
        "transform_error(self.size)",
        FACTORS,
    ),
    Mutant(
        "what is not known of a factor counts once",
        fourier.Spectra.multiply,
        "self._errors + factor.times * error / bound",
        "self._errors + error / bound",
        FACTORS,
    ),
    Mutant(
        "frequencies that are left out are free",
        fourier.Spectra._trim,
        "self._left_out + 2 *",
        "self._left_out + 0 *",
        FACTORS,
    ),
    Mutant(
        "cells are as they come out of the transform",
        fourier.Spectra.inverse,
        "0.0) + error",
        "0.0)",
        CELLS,
    ),
    Mutant(
        "cells are as they come out, in each tilt",
        fourier.Spectra.inverse,
        "0.0) + error",
        "0.0)",
        TILTS,
    ),
    Mutant(
        "what a tilt divides by is forgotten",
        composing.Tilted.on,
        "self.shift + slack",
        "slack",
        TILTS,
    ),
    Mutant(
        "tilted by twice as much as is taken back",
        composing._tilt,
        "exponents = tilt * losses",
        "exponents = 2 * tilt * losses",
        TILTS,
    ),
    Mutant(
        "epsilon as it was solved for",
        pld._epsilon,
        "return _above(guess, losses, mass, infinite, delta)",
        "return guess",
        READ,
    ),
    Mutant("delta as it was added up", pld._spent, "slack - np.expm1", "-np.expm1", READ),
    Mutant(
        "a curve as it was added up", pld._deltas, "UNIT * units * 2 * above[first]", "0.0", READ
    ),
    Mutant("a window's tail for one step", composing._beyond, "n * moment)", "moment)", TAILS),
    Mutant(
        "a window's tail by the other law",
        composing._beyond,
        "pair.q, tilt + order",
        "pair.q, order",
        TAILS,
    ),
    Mutant(
        "sums of epsilons to nearest",
        accountant.float_up,
        "near if near >= exact",
        "near if True",
        STEPS,
    ),
    Mutant(
        "epsilons are added up in floats",
        accountant.pure_epsilon,
        "[Fraction(part) for",
        "[float(part) for",
        STEPS,
    ),
    Mutant(
        "groups in steps as they are computed",
        accountant._within,
        "growth + slack",
        "growth",
        STEPS,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
