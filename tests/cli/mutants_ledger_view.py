"""Planted bugs in the view of a ledger, each of which a named check must catch."""

from __future__ import annotations

from privlearn.cli import ledger_files, ledger_overlap, ledger_page, ledger_view
from privlearn.publishing import page
from tests.support.mutant import Mutant, suite_of

FIGURES = "check_figures_of_a_ledger_follow_from_its_events"
FIXED = "check_figures_of_fixed_runs_follow_from_what_was_approved"
STATES = "check_what_has_become_of_runs_is_said"
PAGE = "check_a_ledgers_page_says_what_the_figures_are"
NAMES = "check_names_on_a_ledgers_page_are_only_text"
CSV = "check_tables_of_runs_hold_no_formulas"
COURSE = "check_long_courses_are_priced_at_some_points"
FILES = "check_files_never_take_the_place_of_others"
OVERLAP = "check_budgets_of_overlapping_data_sets_are_added"

MUTANTS = [
    Mutant(
        "left by the first run alone",
        ledger_view._share_taken,
        "share(state.limit, state.event)",
        "share(state.limit, state.entries[0].spent)",
        FIGURES,
    ),
    Mutant(
        "left without what is set aside",
        ledger_view._share_taken,
        "share(state.limit, state.event)",
        "share(state.limit, compose(entry.spent for entry in state.entries))",
        FIGURES,
    ),
    Mutant(
        "all of a closed run counts",
        ledger_view.compute_spent,
        "entry.counts for",
        "entry.approved if entry.approved.events else entry.spent for",
        FIGURES,
    ),
    Mutant(
        "a run costs what it has spent so far",
        ledger_view._describe_entry,
        "_price_alone(entry.counts,",
        "_price_alone(entry.spent,",
        FIGURES,
    ),
    Mutant(
        "a closed run costs what was approved for it",
        ledger_view._describe_entry,
        "_price_alone(entry.counts,",
        "_price_alone(entry.claimed,",
        FIGURES,
    ),
    Mutant(
        "what expired is still set aside",
        ledger_view.LedgerView.of,
        "stored.current(),",
        "stored,",
        FIGURES,
    ),
    Mutant(
        "groups are priced as one example",
        ledger_view._price_alone,
        "unit.group_size",
        "1",
        FIGURES,
    ),
    Mutant(
        "the course ends before the last run",
        ledger_view.compute_history,
        "compute_spent(state, entries[:end])",
        "compute_spent(state, entries[: end - 1])",
        FIGURES,
    ),
    Mutant(
        "shares are called epsilons",
        ledger_view._name_measure,
        "SHARE if filtered else",
        '"epsilon" if filtered else',
        FIGURES,
    ),
    Mutant(
        "a fixed run that ended early costs less",
        ledger_view.compute_spent,
        "entry.claimed for",
        "entry.counts for",
        FIXED,
    ),
    Mutant(
        "what closed runs did not spend is not mentioned",
        ledger_view._explain_budget,
        "not entry.open and entry.claimed != entry.spent",
        "False",
        FIXED,
    ),
    Mutant(
        "what expired counts as closed",
        ledger_view._describe_entry,
        "if entry.id in expired or _has_expired(entry):",
        "if False:",
        STATES,
    ),
    Mutant(
        "every run was approved beforehand",
        ledger_view._describe_entry,
        '"fixed_beforehand": entry.declared',
        '"fixed_beforehand": True',
        STATES,
    ),
    Mutant(
        "the last run is left out of a long course",
        ledger_view.compute_history,
        "for place in range(1, points + 1)",
        "for place in range(1, points)",
        COURSE,
    ),
    Mutant("the page holds markup", page.text, "for_html(content)", "str(content)", NAMES),
    Mutant(
        "cells of runs are not escaped",
        ledger_page._write_cells,
        "<td>{text(cell)}</td>",
        "<td>{cell}</td>",
        NAMES,
    ),
    Mutant(
        "names of runs are not escaped",
        ledger_page._list_runs,
        '{text(row["id"])}',
        '{row["id"]}',
        NAMES,
    ),
    Mutant("titles are not escaped", ledger_page.write, "<h1>{text(title)}", "<h1>{title}", NAMES),
    Mutant(
        "the owner is not escaped", ledger_page._describe_top, "{text(owner)}", "{owner}", NAMES
    ),
    Mutant(
        "a page loads what it likes", ledger_page.write, "{text(POLICY)}", "default-src *", NAMES
    ),
    Mutant(
        "the picture goes down again",
        ledger_page.trace_course,
        "(seconds, level), (seconds, point",
        "(seconds, 0.0), (seconds, point",
        PAGE,
    ),
    Mutant(
        "the page keeps the digest to itself",
        ledger_page._describe_origin,
        'head["digest"]',
        'head["number"]',
        PAGE,
    ),
    Mutant(
        "a spreadsheet computes names",
        ledger_files._cell,
        "if cell.lstrip().startswith(_FORMULA) else",
        "if False else",
        CSV,
    ),
    Mutant(
        "a spreadsheet computes names after a space",
        ledger_files._cell,
        "cell.lstrip().startswith",
        "cell.startswith",
        CSV,
    ),
    Mutant(
        "any file is written over",
        ledger_files.require_writable,
        "if start != _STARTS[suffix]:",
        "if False:",
        FILES,
    ),
    Mutant(
        "one budget for two data sets",
        ledger_overlap.add_budgets,
        "sum(parts)",
        "max(parts)",
        OVERLAP,
    ),
    Mutant(
        "any neighbours add up",
        ledger_overlap.add_budgets,
        "and here != there",
        "and False",
        OVERLAP,
    ),
    Mutant(
        "no budget adds nothing",
        ledger_overlap.add_budgets,
        "if view.state.budget is None:",
        "if False:",
        OVERLAP,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[AttributeError]
)
