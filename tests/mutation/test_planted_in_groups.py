"""Planted bugs in groups and persons, each of which a named check must catch."""

from __future__ import annotations

import sys
from pathlib import Path

import group_checks  # noqa: F401 - registers its checks

sys.path.insert(0, str(Path(__file__).parent))
from mutant import Mutant, suite_of

from privlearn.accounting import group_pairs

A, P = "privlearn.accounting.", "privlearn."
GOLDEN, EXACT = "check_groups_under_sampling_have_their_golden_prices", "check_one_release_for_a_group_is_exact"
MUTANTS = [
    Mutant("the group counts as one example", A + "group_pairs:components", "return np.arange(low, high, dtype=np.float64)",
           "return np.arange(low, high, dtype=np.float64).clip(max=1)", EXACT),
    Mutant("a draw too few", A + "group_pairs:components", "(k - up)", "(k - up - 0.1)", EXACT),
    Mutant("odds for the rate", A + "group_pairs:components", "odds = rate / (1 - rate)", "odds = rate", EXACT),
    Mutant("rare numbers are left out for free", A + "group_pairs:group_pair", "p_inf + dropped", "p_inf",
           "check_rare_numbers_of_rows_are_paid_for"),
    Mutant("the ratio of another law", A + "group_pairs:_log_ratio", "counts**2 / 2", "counts / 2", EXACT),
    Mutant("the mass without the group", A + "group_pairs:_masses", "np.subtract.outer(part, counts)",
           "np.subtract.outer(part, counts * 0)", "check_a_groups_masses_are_kept"),
    Mutant("the wrong side of a cell", A + "pairs:spread_onto", "q * (1 - shares), size) + np.bincount(cells - low + 1,",
           "q * (1 - shares), size) + np.bincount(cells - low,", "check_a_groups_masses_are_kept"),
    Mutant("noise does not shrink with the group", A + "group_events:_leaf", "return Gaussian(sigma / k)",
           "return Gaussian(sigma)", "check_every_mechanism_scales_with_the_group"),
    Mutant("groups add rho linearly", A + "group_events:_leaf", "ZCDP(k**2 * rho)", "ZCDP(k * rho)",
           "check_every_mechanism_scales_with_the_group"),
    Mutant("shuffled noise shrinks by the root of the group", A + "group_events:_leaf", "FixedBatches(Gaussian(sigma / k))",
           "FixedBatches(Gaussian(sigma / k**0.5))", "check_every_mechanism_scales_with_the_group"),
    Mutant("groups add a Gaussian filter's rho linearly", A + "group_events:_leaf", "GaussianFilter(k**2 * rho)",
           "GaussianFilter(k * rho)", "check_every_mechanism_scales_with_the_group"),
    Mutant("groups add a filter's rho linearly", A + "group_events:_leaf", "return Filter(k**2 * rho)",
           "return Filter(k * rho)", "check_every_mechanism_scales_with_the_group"),
    Mutant("one report for all of a person's examples", A + "group_events:_leaf", "Repeated(leaf, k)", "leaf",
           "check_every_mechanism_scales_with_the_group"),
    Mutant("counts are lost on the way to the group", A + "group_events:as_one", "Repeated(group, times)", "group",
           "check_every_mechanism_scales_with_the_group"),
    Mutant("a budget for one example", A + "budget:Budget.spent", "self.delta, self.group_size)", "self.delta)",
           "check_targets_are_met_for_the_group"),
    Mutant("a rho for one example", A + "budget:Budget.spent", "self.group_size**2 * ", "",
           "check_targets_are_met_for_the_group"),
    Mutant("the plan's group forgets its budget", P + "plan:Plan._for_the_unit",
           "replace(budget, group_size=self.group_size)", "budget", "check_targets_are_met_for_the_group"),
    Mutant("a ledger states one example's price", A + "ledger:Ledger._priced", "delta, unit.group_size)", "delta)",
           "check_ledgers_price_the_group"),
    Mutant("one example is told as a group", A + "unit:Unit.change", "self.group_size > 1", "self.group_size >= 1",
           "check_units_are_called_by_what_they_are"),
    Mutant("ledgers take any unit", A + "pages:Pages.require_unit", "self.unit in (None, unit)", "True",
           "check_units_never_mix"),
    Mutant("a charge leaves the unit open", A + "ledger_run:Run.charge",
           "pages.adjacency, pages.unit = adjacency, pages.protects", "pages.adjacency = adjacency",
           "check_units_never_mix"),
    Mutant("the certificate leaves the group out", P + "publishing.certificate:make", "**guarantee.unit.figures(),", "",
           "check_certificates_state_the_unit"),
    Mutant("a claim is recomputed for one example", P + "publishing.verification:_recompute", "delta, unit.group_size)",
           "delta)", "check_certificates_state_the_unit"),
    Mutant("training approves another unit than the plan's", P + "methods.dpsgd:dpsgd", "plan.neighbours, plan.unit)",
           "plan.neighbours)", "check_certificates_state_the_unit"),
    Mutant("rows are clipped, not persons", P + "clipping.gradients:ClippedGradients.__init__",
           "1 if rows is None else rows.shape[1]", "1", "check_a_person_moves_the_sum_by_at_most_the_sensitivity"),
    Mutant("the sum of a person's rows", P + "clipping.ways:Problem.losses", ".mean(1)", ".sum(1)",
           "check_a_persons_gradient_is_the_mean_of_their_rows"),
    Mutant("a choice by place, not by person", P + "data.persons:rows_of_persons", "_choice(ids[person]",
           "_choice(np.int64(person)", "check_nobody_elses_rows_move"),
    Mutant("a choice that anybody can repeat", P + "data.persons:_choice", "key=key, ", "", "check_nobody_elses_rows_move"),
    Mutant("rows of whoever comes next", P + "data.persons:rows_of_persons", " % sizes[:, None]", "",
           "check_a_person_has_only_their_own_rows"),
    Mutant("rows in the order of the file", P + "data.persons:rows_of_persons", "order[turns]", "turns",
           "check_a_person_has_only_their_own_rows"),
    Mutant("a person's second moment is a sum", P + "clipping.rows:second_moment", " / math.sqrt(copies)", "",
           "check_a_person_moves_the_second_moment_by_at_most_its_sensitivity"),
    Mutant("rows of several persons are averaged", P + "clipping.gradients:ClippedGradients._taken",
           "[rows].flatten()", "[rows].T.flatten()", "check_a_persons_gradient_is_the_mean_of_their_rows"),
    Mutant("persons who are not finite silence others", P + "clipping.gradients:ClippedGradients._finite",
           "counts = finite if counts is None else counts & finite", "counts = finite & finite.roll(1)",
           "check_a_row_that_is_not_finite_silences_its_person_only"),
]  # fmt: skip

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, caches=[group_pairs.sketch]
)
