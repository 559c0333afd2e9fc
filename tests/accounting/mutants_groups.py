"""Planted bugs in groups and persons, each of which a named check must catch."""

from __future__ import annotations

from privlearn.core.accounting import budget, guarantee, ledger, mechanisms, trees
from privlearn.core.accounting.ledgers import ledger_run, ledger_state
from privlearn.core.accounting.pld import pairs, rounding
from privlearn.core.clipping import backends, gradients, row_sums
from privlearn.data import dataset
from privlearn.publishing import certificate, verify
from privlearn.runs import session
from tests.support.mutant import Mutant, suite_of

EXACT = "check_one_release_for_a_group_is_exact"
MUTANTS = [
    Mutant(
        "the group counts as one example",
        pairs.components,
        "return np.arange(low, high, dtype=np.float64)",
        "return np.arange(low, high, dtype=np.float64).clip(max=1)",
        EXACT,
    ),
    Mutant("a draw too few", pairs.components, "(k - up)", "(k - up - 0.1)", EXACT),
    Mutant("odds for the rate", pairs.components, "odds = rate / (1 - rate)", "odds = rate", EXACT),
    Mutant(
        "rare numbers are left out for free",
        pairs.group_pair,
        "p_inf + dropped",
        "p_inf",
        "check_rare_numbers_of_rows_are_paid_for",
    ),
    Mutant("the ratio of another law", pairs._density, "counts**2 / 2", "counts / 2", EXACT),
    Mutant(
        "the mass without the group",
        pairs._laws,
        "np.subtract.outer(part, counts)",
        "np.subtract.outer(part, counts * 0)",
        "check_a_groups_masses_are_kept",
    ),
    Mutant(
        "the wrong side of a cell",
        rounding.onto_grid,
        "np.bincount(place + 1, upper",
        "np.bincount(place, upper",
        "check_a_groups_masses_are_kept",
    ),
    Mutant(
        "noise does not shrink with the group",
        mechanisms.Gaussian.grouped,
        "self.noise_multiplier / k",
        "self.noise_multiplier",
        "check_every_mechanism_scales_with_the_group",
    ),
    Mutant(
        "a person's rows are drawn as one",
        mechanisms.PoissonSampled.grouped,
        "self.sampling_rate, k, ",
        "self.sampling_rate, 1, ",
        "check_example_level_sampling_has_a_users_price",
    ),
    Mutant(
        "a person's rows are drawn all or none",
        mechanisms.PoissonSampled.grouped,
        "GroupSampled(self.sampling_rate, k, self.event)",
        "PoissonSampled(self.sampling_rate, self.event.grouped(k))",
        "check_example_level_sampling_has_a_users_price",
    ),
    Mutant(
        "groups add rho linearly",
        mechanisms.ZCDP.grouped,
        "k**2",
        "k",
        "check_every_mechanism_scales_with_the_group",
    ),
    Mutant(
        "shuffled noise shrinks by the root of the group",
        mechanisms.FixedBatches.grouped,
        "self.event.grouped(k)",
        "self.event.grouped(k**0.5)",
        "check_every_mechanism_scales_with_the_group",
    ),
    Mutant(
        "groups add a Gaussian filter's rho linearly",
        trees.GaussianFilter.grouped,
        "k**2",
        "k",
        "check_every_mechanism_scales_with_the_group",
    ),
    Mutant(
        "groups add a filter's rho linearly",
        trees.Filter.grouped,
        "k**2",
        "k",
        "check_every_mechanism_scales_with_the_group",
    ),
    Mutant(
        "one report for all of a person's examples",
        mechanisms.RandomisedResponse.grouped,
        "Repeated(self, k)",
        "self",
        "check_every_mechanism_scales_with_the_group",
    ),
    Mutant(
        "counts are lost on the way to the group",
        trees.for_group,
        "Repeated(group, times)",
        "group",
        "check_every_mechanism_scales_with_the_group",
    ),
    Mutant(
        "a budget for one example",
        budget.Budget.spent,
        "self.delta, self.group_size)",
        "self.delta)",
        "check_targets_are_met_for_the_group",
    ),
    Mutant(
        "a rho for one example",
        budget.Budget.spent,
        "self.group_size**2 * ",
        "",
        "check_targets_are_met_for_the_group",
    ),
    Mutant(
        "the plan's group forgets its budget",
        budget.Budget.for_group,
        "replace(self, group_size=group_size)",
        "self",
        "check_targets_are_met_for_the_group",
    ),
    Mutant(
        "a ledger states one example's price",
        ledger.Ledger._price,
        "delta, unit.group_size)",
        "delta)",
        "check_ledgers_price_the_group",
    ),
    Mutant(
        "one example is told as a group",
        guarantee.PrivacyUnit.change,
        "self.group_size > 1",
        "self.group_size >= 1",
        "check_units_are_called_by_what_they_are",
    ),
    Mutant(
        "ledgers take any unit",
        ledger_state.LedgerState.require_unit,
        "self.unit in (None, unit)",
        "True",
        "check_units_never_mix",
    ),
    Mutant(
        "a charge leaves the unit open",
        ledger_run.LedgerRun.charge,
        "state.adjacency, state.unit = adjacency, state.protects",
        "state.adjacency = adjacency",
        "check_units_never_mix",
    ),
    Mutant(
        "the certificate leaves the group out",
        certificate.make,
        "**guarantee.unit.figures(),",
        "",
        "check_certificates_state_the_unit",
    ),
    Mutant(
        "a claim is recomputed for one example",
        verify._recompute,
        "delta, unit.group_size)",
        "delta)",
        "check_certificates_state_the_unit",
    ),
    Mutant(
        "training approves another unit than the plan's",
        session.TrainingSession._begin,
        "plan.neighbours, plan.unit)",
        "plan.neighbours)",
        "check_certificates_state_the_unit",
    ),
    Mutant(
        "rows are clipped, not persons",
        gradients.ClippedGradients.__init__,
        "1 if rows is None else rows.shape[1]",
        "1",
        "check_a_person_moves_the_sum_by_at_most_the_sensitivity",
    ),
    Mutant(
        "the sum of a person's rows",
        backends.Problem.losses,
        ".mean(1)",
        ".sum(1)",
        "check_a_persons_gradient_is_the_mean_of_their_rows",
    ),
    Mutant(
        "a choice by place, not by person",
        dataset.rows_of_persons,
        "_choice(ids[person]",
        "_choice(np.int64(person)",
        "check_nobody_elses_rows_move",
    ),
    Mutant(
        "a choice that anybody can repeat",
        dataset._choice,
        "key=key, ",
        "",
        "check_nobody_elses_rows_move",
    ),
    Mutant(
        "rows of whoever comes next",
        dataset.rows_of_persons,
        " % sizes[:, None]",
        "",
        "check_a_person_has_only_their_own_rows",
    ),
    Mutant(
        "rows in the order of the file",
        dataset.rows_of_persons,
        "order[turns]",
        "turns",
        "check_a_person_has_only_their_own_rows",
    ),
    Mutant(
        "a person's second moment is a sum",
        row_sums.second_moment,
        " / math.sqrt(copies)",
        "",
        "check_a_person_moves_the_second_moment_by_at_most_its_sensitivity",
    ),
    Mutant(
        "rows of several persons are averaged",
        gradients.ClippedGradients._take,
        "[rows].flatten()",
        "[rows].T.flatten()",
        "check_a_persons_gradient_is_the_mean_of_their_rows",
    ),
    Mutant(
        "persons who are not finite silence others",
        gradients.ClippedGradients._finite,
        "counts = examples if counts is None else counts & examples",
        "counts = finite & finite.roll(1)",
        "check_a_row_that_is_not_finite_silences_its_person_only",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
