"""The claim against the events, and the events against the plan's."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, fields
from typing import Any

from privlearn_verify.claimed_figures import check_budget, check_figures, check_fit
from privlearn_verify.event_trees import (
    Mechanism,
    Tree,
    check_neighbours,
    count_mechanisms,
    flatten,
)
from privlearn_verify.fact_agreement import check_facts
from privlearn_verify.folder_files import name_unit
from privlearn_verify.plan_events import compose, list_events, make_gaussian
from privlearn_verify.plan_neighbours import check_candidates, check_plan_neighbours
from privlearn_verify.plan_ranges import read_plan
from privlearn_verify.verdicts import CLOCK, Findings, demand

FIXED, LIMIT, ALONE = (
    "for all runs together, which were fixed before the first release",
    "for all runs together, which may have been chosen after earlier results: the ledger's limit",
    "for this run alone: other runs, which may have been chosen after earlier results, "
    "are not limited",
)


def are_close(x: Any, y: Any) -> bool:
    """Return whether two mechanisms, or what they consist of, agree to a relative 1e-12."""
    if isinstance(x, Mechanism) and isinstance(y, Mechanism):
        names = [item.name for item in fields(Mechanism)]
        return x.kind == y.kind and all(are_close(getattr(x, n), getattr(y, n)) for n in names)
    if isinstance(x, tuple) and isinstance(y, tuple):
        return len(x) == len(y) and all(map(are_close, x, y))
    if isinstance(x, float) and isinstance(y, float | int):
        return math.isclose(x, y, rel_tol=1e-12)
    return x == y


def match_counts(claimed: Tree, planned: Tree) -> tuple[Counter[Mechanism], Counter[Mechanism]]:
    """Return both trees' counts, with the plan's mechanisms in place of those close to them."""
    reference: Counter[Mechanism] = Counter()
    matched: Counter[Mechanism] = Counter()
    for source, counts in ((planned, reference), (claimed, matched)):
        for m, count in count_mechanisms(source).items():
            CLOCK.check()
            if m not in reference:
                alike = [other for other in reference if other.kind == m.kind]
                m = next((other for other in alike if are_close(m, other)), m)
            counts[m] += count
    return matched, reference


def check_events(claim: Any, facts: Any, claimed: Tree, planned: Tree) -> None:
    """Compare the certificate's events with the plan's, by what the claim says of other runs."""
    runs = claim.get("ledger", {}).get("runs")
    if "paid_metrics" in facts:
        demand(runs in (FIXED, LIMIT), "metrics were paid for by no other run")
        planned = (*planned, *flatten(make_gaussian(facts["paid_metrics"])))
    if runs == LIMIT:
        whole = len(claimed) == 1 and claimed[0][1] == 1
        demand(whole and claimed[0][0].kind.endswith("filter"), "the events are not one filter")
        limit = asdict(claimed[0][0])
        check_fit(limit, planned)
        return
    claimed_counts, planned_counts = match_counts(claimed, planned)
    if runs == FIXED:
        enough = all(claimed_counts[m] >= n for m, n in planned_counts.items())
        demand(enough, "events of the plan are missing")
    else:
        demand(claimed_counts == planned_counts, "the events are not those of the plan")


def check_claim(certificate: Any, findings: Findings) -> None:
    """Compare the claim with the events and with the plan."""
    claim, facts = certificate["claim"], certificate["facts"]
    delta, k, adjacency = claim["delta"], claim.get("group_size", 1), claim["adjacency"]
    figures = claim["epsilon"], claim["method"], claim["rho"]
    tree, ledger = flatten(certificate["events"]), claim.get("ledger")
    findings.attempt(check_neighbours, tree, adjacency)
    findings.attempt(check_figures, "the claim", figures, tree, delta, k)
    demand(claim["unit"] == name_unit(claim), "the unit is in other words")
    demand(k == 1 or claim.get("rows_per_person") is None, "both a group and rows of a person")
    if delta * facts.get("examples", 0) >= 1:
        findings.warnings.append("delta is not below one over the number of examples")
    plan = read_plan(certificate["plan"])
    first = plan
    while "candidates" in first:
        demand(len(first["candidates"]) > 0, "a choice among no candidates")
        first = first["candidates"][0]["plan"]
    rows = "all" if first.get("persons") else first.get("rows_per_person")
    if first["adjacency"] is None:
        findings.unchecked.append("the plan has no adjacency")
    else:
        demand(first["adjacency"] == adjacency, "the plan has another adjacency")
    same = (first["group_size"], rows) == (k, claim.get("rows_per_person"))
    demand(same, "the plan has another unit")
    check_candidates(plan)
    findings.attempt(check_plan_neighbours, plan, adjacency)
    findings.attempt(check_facts, plan, facts)
    planned = flatten(compose(list_events(plan)))
    findings.attempt(check_neighbours, planned, adjacency)
    if ledger:
        run = ledger["run_epsilon"], ledger["run_method"], ledger["run_rho"]
        findings.attempt(check_figures, "the run", run, planned, delta, k)
        if ledger["runs"] == ALONE:
            findings.warnings.append("other runs on these data are not limited")
    if plan["budget"]:
        findings.attempt(check_budget, plan["budget"], planned)
    findings.attempt(check_events, claim, facts, tree, planned)
