"""Planted bugs of ledgers: what later runs are let through by, what is claimed, and what a file
holds.
"""

from __future__ import annotations

from privlearn.core.accounting import filters, ledger
from privlearn.core.accounting.ledgers import former_files, ledger_run, ledger_state
from privlearn.publishing import certificate, verify
from tests.publishing import checks_shared_ledgers as shared_ledger_checks
from tests.support.mutant import Mutant, suite_of

CHOSEN = "check_runs_chosen_after_results_stay_within_a_ledgers_claim"
MEASURE = "check_a_ledgers_measure_is_fixed_by_its_first_run"
STOPS = "check_what_an_early_stop_gives_back_is_spent_under_the_filter"
PLANS = "check_plans_that_were_approved_beforehand_are_fixed"
SAID = "check_what_is_said_of_other_runs_is_compared"
AS_FIXED = """self.released:
        require_covered(self.budget, self.event, event, adjacency)
        return
    if self.released:"""
MUTANTS = [
    Mutant(
        "later runs are priced as if fixed",
        ledger_state.LedgerState.require_room,
        "self.released:",
        AS_FIXED,
        CHOSEN,
    ),
    Mutant(
        "a file's later runs are priced as if fixed",
        ledger_state.LedgerState.require_room,
        "self.released:",
        AS_FIXED,
        "check_runs_chosen_after_results_stay_within_a_file_ledgers_claim",
    ),
    Mutant(
        "what is given back is priced as if fixed",
        ledger_state.LedgerState.require_room,
        "self.released:",
        AS_FIXED,
        STOPS,
    ),
    Mutant(
        "the best Renyi order afterwards",
        ledger_state.LedgerState.limit,
        "declared = compose(entry.claimed for entry in self.entries if entry.declared)",
        "declared = compose(entry.counts for entry in self.entries)",
        MEASURE,
    ),
    Mutant(
        "what was spent is claimed of an early stop",
        ledger_state.RunEntry.claimed,
        "self.spent if self.approved == NOTHING else self.approved",
        "self.spent",
        STOPS,
    ),
    Mutant(
        "the claim of chosen runs is what was spent",
        ledger_state.LedgerState.claim,
        "if not self.adaptive:",
        "if True:\n        return self.event\n    if not self.adaptive:",
        "check_other_runs_after_approved_plans_are_adaptive",
    ),
    Mutant(
        "an estimate that calls itself a bound",
        ledger.Ledger.spent,
        'kind="estimate"',
        'kind="bound"',
        STOPS,
    ),
    Mutant(
        "records guarantee something",
        ledger_state.LedgerState.claim,
        "if self.budget is None:",
        "if self.budget is None:\n        return self.event\n    if self.budget is None:",
        "check_a_ledger_that_only_records_claims_nothing_for_runs_together",
    ),
    Mutant(
        "every run is declared",
        ledger_state.LedgerState.add,
        "declared=not self.released",
        "declared=True",
        "check_other_runs_after_approved_plans_are_adaptive",
    ),
    Mutant(
        "plans that were not run are given back",
        ledger_state.LedgerState.waiting,
        "entry.waiting and",
        "True or",
        PLANS,
    ),
    Mutant(
        "approving takes no room",
        ledger.Ledger.approve,
        "state.require_room(event, plan.neighbours, plan.unit)",
        "pass",
        PLANS,
    ),
    Mutant(
        "a Gaussian ledger takes anything",
        filters.share,
        "not is_gaussian(event)",
        "False",
        "check_a_gaussian_ledger_is_exact_and_takes_gaussians_alone",
    ),
    Mutant(
        "a Gaussian limit of twice the mu",
        filters._widest_gaussian,
        "** 2 / 2",
        "** 2 * 2",
        "check_groups_are_let_through_as_groups",
    ),
    Mutant(
        "groups cost what their members do",
        filters._widest_gaussian,
        "budget.group_size**2",
        "1",
        "check_groups_are_let_through_as_groups",
    ),
    Mutant(
        "an order that was asked for is ignored",
        filters.of_ledger,
        "isinstance(measure, float)",
        "False",
        MEASURE,
    ),
    Mutant(
        "one release too many",
        ledger.Ledger._after,
        "left[-1][1] < times",
        "left[-1][1] + 1 < times",
        "check_a_release_beyond_the_approved_number_is_checked",
    ),
    Mutant(
        "approval is for ever",
        ledger.Ledger._after,
        "(leaf, there - times)",
        "(leaf, there)",
        "check_a_release_beyond_the_approved_number_is_checked",
    ),
    Mutant(
        "a guard for any neighbours",
        ledger.Ledger._require_allowed,
        "adjacency is not self.adjacency or",
        "",
        "check_a_guard_is_for_one_kind_of_neighbour",
    ),
    Mutant(
        "entries are forgotten when they are summed up",
        ledger_state.LedgerState._sum_up,
        "compose(entry.spent for entry in old)",
        "compose(entry.spent for entry in old[1:])",
        "check_very_many_entries_are_summed_up",
    ),
    Mutant(
        "summing up forgets how often",
        ledger_state._count_mechanisms,
        "Repeated(leaf, times)",
        "leaf",
        "check_very_many_entries_are_summed_up",
    ),
    Mutant(
        "old ledgers pass for fixed",
        former_files._of_version_1,
        "place == 0",
        "True",
        "check_ledgers_of_the_first_version_are_read_as_adaptive",
    ),
    Mutant(
        "a run that departed goes on",
        ledger_run.LedgerRun.charge,
        "self._close(state)",
        "pass",
        "check_a_run_that_departs_from_its_plan_ends",
    ),
    Mutant(
        "the first charges grow with later ones",
        ledger_run.LedgerRun.charge,
        "None if entry.declared else entry.id",
        "entry.id",
        "check_single_charges_after_the_first_are_adaptive",
    ),
    Mutant(
        "an approved charge comes on top",
        ledger_run.LedgerRun.charge,
        "if ahead is not None and state.adjacency is adjacency:",
        "if False:",
        "check_a_charge_takes_up_its_approval",
    ),
    Mutant(
        "chosen runs claim their own price",
        certificate.stated,
        "if ledger.adaptive and ledger.budget is None:",
        "if ledger.adaptive:",
        "check_a_run_that_was_chosen_later_claims_the_limit",
    ),
    Mutant(
        "chosen runs pass for fixed",
        certificate.stated,
        "ADAPTIVE if ledger.adaptive else FIXED",
        "FIXED",
        "check_a_run_that_was_chosen_later_claims_the_limit",
    ),
    Mutant(
        "other runs are not spoken of",
        certificate.contradictions,
        "if tally(event) == tally(described):",
        "if True:",
        SAID,
    ),
    Mutant(
        "a run's own price is not compared",
        certificate.contradictions,
        "[] if same else",
        "[] if True else",
        SAID,
    ),
    Mutant(
        "a limit lets any run through",
        certificate.contradictions,
        "and fits(limit, described)",
        "",
        SAID,
    ),
    Mutant(
        "a run that was not charged is published",
        certificate.stated,
        "not _among(described, ledger.event if ledger.adaptive else ledger.claim)",
        "False",
        "check_only_what_was_charged_is_published",
    ),
    Mutant(
        "records are not warned of",
        verify._warnings,
        '.get("runs") == ALONE',
        '.get("runs") == ""',
        "check_a_run_on_a_record_claims_itself_alone",
    ),
    *(
        Mutant(
            f"threads don't take turns: {function.__qualname__}",
            function,
            "with self._one_at_a_time:",
            "if True:",
            "check_charges_of_two_threads_are_both_counted",
        )
        for function in (ledger.Ledger.charge, ledger.Ledger.begin, filters.PrivacyFilter.charge)
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, caches=[shared_ledger_checks.results]
)
