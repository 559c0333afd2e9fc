"""Named checks of the view of a ledger: every figure is recomputed from the events, and what
strangers called something stays text on each output.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import privlearn as pv
from privlearn.cli import ledger_files, ledger_page
from privlearn.cli.ledger_overlap import add_budgets, describe_overlap
from privlearn.cli.ledger_view import LedgerView, compute_history, explain_counting
from privlearn.core.accounting import accountant
from privlearn.core.accounting.events import Composed, Repeated, compose
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.core.accounting.ledgers.ledger_state import RunEntry
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.errors import BadInput
from tests.laws.hostile_texts import TEXTS, require_tame
from tests.publishing.checks_page import HOSTILE, Reader
from tests.support.checks import check, must_raise

A = Adjacency.ADD_REMOVE
BUDGET = pv.Budget(6.0, 1e-5)
START = datetime(2026, 1, 2, tzinfo=UTC)
NOW = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)
#: Of each run of `fill`: noise, releases that were approved, and those that count in a filter.
RUNS = ((4.0, 1, 1), (8.0, 4, 4), (9.0, 4, 1), (12.0, 2, 2), (7.0, 3, 0))
STATES = ["closed", "open", "closed", "waiting", "expired"]


def fill(path: Path, budget: pv.Budget | None, measure: str | None = None) -> LedgerFile:
    """A ledger with a charge, a run that is under way, one that was given up after one release of
    four, an approval that waits, and one that expired; a day apart.
    """
    pv.Ledger.open(path, budget, measure=measure, create=True).charge(Gaussian(4.0), A)
    unit = PrivacyUnit(budget.group_size if budget else 1)
    for noise in (8.0, 9.0):
        ledger = pv.Ledger.open(path, what=f"noise {noise}")
        ledger.begin(Repeated(Gaussian(noise), 4), A, unit)
        ledger.charge(Gaussian(noise), A)
    ledger.settle()
    database = LedgerFile(path)
    with database.editing() as state:
        for noise, times in ((12.0, 2), (7.0, 3)):
            event = compose([Repeated(Gaussian(noise), times)])
            state.add(RunEntry.new("", approved=event, waiting=True, reserved_for="ada"))
        for place, entry in enumerate(state.entries):
            begun = (START + timedelta(days=place)).isoformat(timespec="seconds")
            expires = {3: "2999-01-01T00:00:00+00:00", 4: "2026-01-10T00:00:00+00:00"}.get(place)
            state.put(replace(entry, begun=begun, expires=expires or ""))
    return LedgerFile(path)


@contextmanager
def filled(budget: pv.Budget | None, measure: str | None = None) -> Iterator[LedgerView]:
    with TemporaryDirectory() as place:
        yield LedgerView.of(fill(Path(place) / "study.db", budget, measure), history=True)


def events() -> list[Composed]:
    """What each run of `fill` counts in a filter."""
    return [compose([Repeated(Gaussian(noise), times)] * (times > 0)) for noise, _, times in RUNS]


def epsilon(event: Composed, group: int = 1) -> float:
    """By the accountant, without a ledger."""
    return accountant.guarantee(event, A, 1e-5, group).epsilon if event.events else 0.0


def squares(runs: Sequence[tuple[float, int, int]]) -> float:
    """The sum of 1 / noise^2 over the releases that count."""
    return math.fsum(times / noise**2 for noise, _, times in runs)


@check
def check_figures_of_a_ledger_follow_from_its_events() -> None:
    """What is spent, what is left, each run, and the course over time: recomputed by hand for each
    kind of filter.
    """
    for budget, measure in (
        (BUDGET, None),
        (BUDGET, "renyi"),
        (pv.Budget(rho=0.5), None),
        (pv.Budget(9.0, 1e-5, group_size=2), None),
    ):
        with filled(budget, measure) as view:
            figures, limit = view.figures, view.state.limit
            assert limit is not None
            group = budget.group_size
            if limit.rho is not None:
                shares = [squares(RUNS[: end + 1]) / 2 / limit.rho for end in range(len(RUNS))]
            else:
                (order,), (bound,) = limit.orders, limit.bounds
                shares = [order * squares(RUNS[: end + 1]) / 2 / bound for end in range(len(RUNS))]
            course = [budget.limit * share for share in shares]
            np.testing.assert_allclose([p["spent"] for p in figures["history"]], course, rtol=1e-6)
            assert [p["run"] for p in figures["history"]] == [e["id"] for e in figures["entries"]]
            assert [p["at"] for p in figures["history"]] == [e["begun"] for e in figures["entries"]]
            np.testing.assert_allclose(figures["spent"], course[-1], rtol=1e-6)
            np.testing.assert_allclose(figures["left"], budget.limit - course[-1], rtol=1e-6)
            of_rho = budget.rho is not None
            assert figures["spent_is"] == figures["left_is"]
            assert figures["spent_is"] == ("rho" if of_rho else "share of the limit")
            rows = figures["entries"]
            alone = [epsilon(event, group) for event in events()]
            np.testing.assert_allclose([row["epsilon"] for row in rows], alone, rtol=1e-9)
            drawn = [epsilon(compose([Gaussian(run[0])] * (run[2] > 0)), group) for run in RUNS[:3]]
            np.testing.assert_allclose(
                [row["epsilon_spent"] for row in rows], [*drawn, 0.0, 0.0], rtol=1e-9
            )
            np.testing.assert_allclose(
                figures["epsilon_if_fixed"], epsilon(compose(events()), group), rtol=1e-9
            )
            np.testing.assert_allclose(
                figures["epsilon"], epsilon(compose([limit]), group), rtol=1e-9
            )


@check
def check_figures_of_fixed_runs_follow_from_what_was_approved() -> None:
    """Runs that were approved before the first release are priced as a whole, also one that ended
    early; what is left of the filter is not.
    """
    with TemporaryDirectory() as place:
        path = Path(place) / "study.db"
        pv.Ledger.open(path, BUDGET)
        plans = [
            pv.Plan(
                pv.sampling.FullBatch(),
                epochs,
                pv.schedules.Constant(noise),
                adjacency=A,
                examples=100,
            )
            for noise, epochs in ((8.0, 4), (9.0, 5))
        ]
        ledger = pv.Ledger.open(path)
        ledger.approve(*plans)
        ledger.begin(plans[0].event(), A)
        ledger.charge(Gaussian(8.0), A)
        ledger.settle()
        view = LedgerView.of(LedgerFile(path), history=True)
    figures = view.figures
    both = epsilon(compose([plan.event() for plan in plans]))
    np.testing.assert_allclose(figures["spent"], both, rtol=1e-9)
    np.testing.assert_allclose(figures["epsilon"], both, rtol=1e-9)
    course = [epsilon(plans[0].event()), both]
    np.testing.assert_allclose([point["spent"] for point in figures["history"]], course, rtol=1e-9)
    assert (figures["spent_is"], figures["left_is"]) == ("epsilon", "share of the limit")
    limit = view.state.limit
    assert limit is not None
    assert limit.rho is not None
    share = (1 / 64 + 5 / 81) / 2 / limit.rho  # the first run ended after one release of four
    np.testing.assert_allclose(figures["left"], 6 * (1 - share), rtol=1e-9)
    words = " ".join(explain_counting(view))
    assert f"epsilon {both:.6g} of it is claimed" in words
    assert "also for what closed runs did not spend" in words
    assert "of it is spent or set aside" not in words, "what the closed run left is free"


@check
def check_what_has_become_of_runs_is_said() -> None:
    """Open, waiting, expired or closed; who may take up what waits; what was fixed beforehand."""
    with filled(BUDGET) as view:
        rows = view.figures["entries"]
        assert [row["state"] for row in rows] == STATES
        assert [row["reserved_for"] for row in rows] == [None, None, None, "ada", "ada"]
        assert [row["expires"] is None for row in rows] == [True, True, True, False, False]
        first = [row["fixed_beforehand"] for row in rows]
        assert first == [True, False, False, False, False]
        page = ledger_page.write(view, "study.db", NOW)
        for words in (
            "waiting for ada until 2999-01-01 00:00",
            "expired: approved until 2026-01-10 00:00, never begun",
            "closed (fixed before the first release)",
        ):
            assert words in page
        assert page.count("(fixed before the first release)") == 1
        words_of_waiting = " ".join(explain_counting(view))
        assert "--resume" in words_of_waiting
        assert "What waits was approved ahead" in words_of_waiting


@check
def check_ledgers_without_a_budget_promise_nothing() -> None:
    with filled(None) as view:
        assert view.figures["history"] == []
        assert view.figures["spent_is"] is None
        assert view.figures["epsilon"] is None
        assert "spent" not in view.figures
        page = ledger_page.write(view, "study.db", NOW)
        assert "no guarantee" in page
        assert "There is nothing to draw" in page
        with TemporaryDirectory() as place:
            must_raise(BadInput, lambda: ledger_files.draw_course(view, Path(place) / "plot.png"))


@check
def check_long_courses_are_priced_at_some_points() -> None:
    """As many as are asked for, evenly, with the last one."""
    with TemporaryDirectory() as place:
        path = Path(place) / "study.db"
        for _ in range(23):
            pv.Ledger.open(path, BUDGET).charge(Gaussian(40.0), A)
        state = LedgerFile(path).read()
    every, some = compute_history(state), compute_history(state, most=5)
    assert len(every) == 23
    assert some == [every[place] for place in (3, 8, 12, 17, 22)]
    spent = [point["spent"] for point in every]
    np.testing.assert_allclose(spent, np.arange(1, 24) * spent[0], rtol=1e-9)


def page_with(name: str) -> str:
    """The page of a ledger in which everything is called `name`."""
    with TemporaryDirectory() as place:
        database = fill(Path(place) / "study.db", BUDGET)
        with database.editing() as state:
            for number, entry in enumerate(state.entries):
                changes = {"what": name, "by": name, "id": f"{name}{number}"}
                state.entries[number] = replace(entry, **changes, reserved_for=name)
            state.owner = name
        view = LedgerView.of(LedgerFile(Path(place) / "study.db"), history=True)
    view.figures["data"] = name
    return ledger_page.write(view, name, NOW)


@check
def check_names_on_a_ledgers_page_are_only_text() -> None:
    """The page is whole, loads and runs nothing, and has the same elements whatever things are
    called.
    """
    tame = Reader(page_with("name"))
    for text in (*HOSTILE, *TEXTS.values()):
        name = text.encode(errors="replace").decode()[:900]
        page = page_with(name)
        read = Reader(page)
        assert read.elements == tame.elements, text
        require_tame(page)
    assert "<script" not in page_with("<script>alert(1)</script>")
    [policy] = [n["content"] for _, n in tame.all("meta") if "http-equiv" in n]
    assert policy is not None
    assert policy.startswith("default-src 'none'")


@check
def check_a_ledgers_page_says_what_the_figures_are() -> None:
    """The page holds the figures of the JSON answer, the picture has as many steps as runs, and
    words for those who do not see it.
    """
    with filled(BUDGET) as view:
        page = ledger_page.write(view, "study.db", NOW)
        read = Reader(page)
        figures = view.figures
        percent = f"{100 * figures['spent'] / 6:.1f}&nbsp;% of the limit"
        assert percent in page
        assert f"epsilon {figures['epsilon']:.4f} at delta 1e-05" in page
        assert figures["head"]["digest"] in read.said("td")
        assert str(figures["head"]["number"]) in read.said("td")
        for row in figures["entries"]:
            assert row["id"] in read.said("th")
            assert f"{row['epsilon']:.4f}" in read.said("td")
        assert "as of 2026-03-04 05:06 UTC" in page
        _, course = [named["points"] or "" for _, named in read.all("polyline")]
        # down to each run and up again, and on to now
        assert len(course.split()) == 2 * len(RUNS) + 1
        heights = [float(point.partition(",")[2]) for point in course.split()]
        assert heights == sorted(heights, reverse=True)
        assert read.said("desc")
        ids = [named["id"] for _, named in read.elements if "id" in named]
        assert len(ids) == len(set(ids))
        links = {str(named["href"]) for _, named in read.all("a")}
        assert links <= {f"#{name}" for name in ids}


@check
def check_tables_of_runs_hold_no_formulas() -> None:
    """A row for each run, read back as it was, and no cell that a spreadsheet would compute."""
    with filled(BUDGET) as view:
        rows = view.figures["entries"]
        signs = tuple("=+-@\uff1d")
        names = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", " =1", "\uff1d1", '=HYPERLINK("http://x")']
        for row, name in zip(itertools.cycle(rows), names, strict=False):
            row["what"], row["by"], row["reserved_for"] = name, name, name
        for name in names:
            rows[0]["what"] = rows[0]["id"] = name
            read = list(csv.DictReader(io.StringIO(ledger_files.tabulate_runs([view]))))
            assert len(read) == len(rows)
            for line, row in zip(read, rows, strict=True):
                assert not any(cell.lstrip().startswith(signs) for cell in line.values())
                assert float(line["epsilon"]) == row["epsilon"]
                assert float(line["epsilon_spent"]) == row["epsilon_spent"]
                assert line["state"] == row["state"]
                yes = line["fixed_beforehand"] == "yes"
                assert yes is row["fixed_beforehand"]


@check
def check_files_never_take_the_place_of_others() -> None:
    """A ledger, or what else is there, is never written over; what was written before is."""
    with TemporaryDirectory() as place:
        here = Path(place)
        for suffix in (".html", ".csv", ".png"):
            path = here / f"study{suffix}"
            view = LedgerView.of(fill(path, BUDGET), history=True)
            before = path.read_bytes()
            writers: dict[str, Any] = {
                ".html": lambda to, of=view: ledger_files.write_page(of, "study", to),
                ".csv": lambda to, of=view: ledger_files.write_runs([of], to),
                ".png": lambda to, of=view: ledger_files.draw_course(of, to),
            }
            must_raise(BadInput, lambda write=writers[suffix], to=path: write(to))
            assert path.read_bytes() == before
            other = here / f"other{suffix}"
            for _ in range(2):
                writers[suffix](other)
            ledger_files.require_writable(other, suffix)
            must_raise(
                BadInput, lambda at=suffix: ledger_files.require_writable(here / "a.txt", at)
            )


def begun(place: str, name: str, budget: pv.Budget, *, charged: Any = None) -> LedgerView:
    path = Path(place) / f"{name}.db"
    ledger = pv.Ledger.open(path, budget, data_set=name)
    if charged is not None:
        ledger.charge(Gaussian(9.0), charged)
    return LedgerView.of(LedgerFile(path))


@check
def check_budgets_of_overlapping_data_sets_are_added() -> None:
    """Not what was spent; and only budgets of one kind, for one kind of neighbour and one unit."""
    with TemporaryDirectory() as place:
        one = begun(place, "one", pv.Budget(2.0, 1e-5), charged=A)
        two = begun(place, "two", pv.Budget(3.0, 1e-6))
        of_rho = [begun(place, f"rho {rho}", pv.Budget(rho=rho)) for rho in (0.25, 0.5)]
        for views in ({"one": one, "two": two}, {"two": two, "one": one}):
            total = add_budgets(views)
            assert total["epsilon"] == 5.0
            assert math.isclose(total["delta"], 1.1e-5)
            assert (total["rho"], total["adjacency"]) == (None, "add_remove")
            assert total["without_runs"] == ["two"]
            assert "charged yet to two: this holds if" in describe_overlap(total)
        total = add_budgets(dict(zip("ab", of_rho, strict=True)))
        assert (total["epsilon"], total["delta"], total["rho"]) == (None, None, 0.75)
        others = {
            "kind of budget": of_rho[0],
            "kind of neighbour": begun(place, "three", BUDGET, charged=Adjacency.REPLACE_ONE),
            "group size": begun(place, "four", pv.Budget(2.0, 1e-5, group_size=3), charged=A),
        }
        for what, other in others.items():
            error = must_raise(BadInput, lambda view=other: add_budgets({"one": one, "x": view}))
            assert what in str(error)
        alone = must_raise(BadInput, lambda: add_budgets({"one": one}))
        assert "two or more" in str(alone)
        with filled(None) as recording:
            error = must_raise(BadInput, lambda: add_budgets({"one": one, "x": recording}))
            assert "no budget" in str(error)
