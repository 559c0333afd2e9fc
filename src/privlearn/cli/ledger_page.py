"""A ledger as one page for people, with a picture; it loads nothing, runs nothing and asks no
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from privlearn.cli.ledger_view import (
    SHARE,
    LedgerView,
    describe_amount,
    describe_guarantee,
    describe_state,
    explain_counting,
    write_moment,
    write_number,
)
from privlearn.publishing.charts import Axis, line_chart, number_axis
from privlearn.publishing.page import POLICY, pairs_table, text

_COLUMNS = ("Run", "Begun (UTC)", "By", "What for", "State", "Epsilon alone", "Spent so far")
#: A table of many columns, which is scrolled on narrow screens.
_STYLE = """.wide { overflow-x: auto; }
.wide:focus-visible { outline: 3px solid var(--mark); outline-offset: 2px; }
@media print { .wide { overflow: visible; } }
"""
#: Seconds of a time axis below which its ticks tell the time of day, and the seconds.
_DAYS, _MINUTES = 2 * 86_400.0, 300.0

#: Points of the course that stand beside the picture in figures.
_LATEST = 8

Points = list[tuple[float, float]]


def write(view: LedgerView, name: str, now: datetime) -> str:
    """The page of a ledger.

    Guarantee: every text that others chose is escaped.

    Args:
        view: with its history.
        name: where the ledger is.
        now: when the page is made, with a zone.
    """
    written_at = f"{now.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    title = f"Privacy ledger of {view.figures['data']}"
    sections = {
        "guarantee": ("What is guaranteed", _describe_guarantee(view)),
        "course": ("What was spent over time", _draw_course(view, now)),
        "runs": ("Runs", _list_runs(view)),
        "origin": ("Where these figures come from", _describe_origin(view, name, written_at)),
    }
    links = "".join(
        f'<li><a href="#{place}">{text(heading)}</a></li>'
        for place, (heading, _) in sections.items()
    )
    body = "".join(
        f'<section aria-labelledby="{place}">\n<h2 id="{place}">{text(heading)}</h2>\n{inner}\n'
        "</section>\n"
        for place, (heading, inner) in sections.items()
    )
    style = resources.files("privlearn.publishing").joinpath("card.css").read_text("utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{text(title)}</title>\n"
        f'<meta http-equiv="Content-Security-Policy" content="{text(POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>\n{style}{_STYLE}</style>\n</head>\n<body>\n<header>\n<h1>{text(title)}</h1>\n"
        f"{_describe_top(view, written_at)}\n</header>\n"
        f'<nav aria-label="On this page">\n<ul>{links}</ul>\n</nav>\n'
        f"<main>\n{body}</main>\n</body>\n</html>\n"
    ).replace(" %", "&nbsp;%")


def _describe_top(view: LedgerView, written_at: str) -> str:
    """The figures that most readers come for."""
    figures, state = view.figures, view.state
    guarantee = describe_guarantee(view) if state.entries else "nothing spent"
    begun = [row for row in figures["entries"] if row["state"] in ("open", "closed")]
    tiles = [
        (
            "All runs together",
            guarantee or "no guarantee",
            _describe_neighbours(figures) if guarantee else "as said below",
        ),
        ("Budget", str(state.budget or "none"), "of everything together; fixed when begun"),
    ]
    if state.budget is not None:
        tiles.append(("Spent or set aside", describe_amount(figures, "spent"), "by all runs"))
        tiles.append(("Left", describe_amount(figures, "left"), "for runs to come"))
    tiles.append(("Runs", str(len(begun)), "begun so far"))
    cells = "".join(
        f'<div><dt>{text(label)}</dt><dd><span class="value">{text(value)}</span><br>{text(words)}'
        "</dd></div>"
        for label, value, words in tiles
    )
    owner = f" Its owner is {figures['owner']}." if figures["owner"] else ""
    return (
        '<p class="lead">Every run on the same data costs privacy, and costs add up. This page '
        "says what was spent on what, by whom and when, as of "
        f"{text(written_at)}.{text(owner)}</p>\n"
        f'<dl class="figures">{cells}</dl>'
    )


def _describe_neighbours(figures: dict[str, Any]) -> str:
    if figures["adjacency"] is None:
        return "The first run decides the kind of neighbours."
    method = f", by {figures['method']}" if figures["method"] else ""
    return f"for {figures['adjacency']} neighbours{method}"


def _describe_guarantee(view: LedgerView) -> str:
    figures = view.figures
    if view.state.entries and figures["epsilon"] is not None:
        first = f"All runs together: {describe_guarantee(view)}, {_describe_neighbours(figures)}."
    else:
        first = ""
    sentences = [*([first] if first else []), *explain_counting(view)]
    return (
        f"<p>Protected: {text(figures['unit'])}.</p>\n"
        f"{''.join(f'<p>{text(sentence)}</p>' for sentence in sentences)}"
    )


def _list_runs(view: LedgerView) -> str:
    rows = view.figures["entries"]
    if not rows:
        return "<p>There are none yet.</p>"
    heads = "".join(f'<th scope="col">{text(column)}</th>' for column in _COLUMNS)
    body = "".join(
        f'<tr><th scope="row">{text(row["id"])}</th>{_write_cells(row)}</tr>' for row in rows
    )
    return (
        f'<div class="wide" role="group" aria-label="Table of runs" tabindex="0">'
        "<table><caption>Runs in the order of their beginning. Epsilon alone is what a run would "
        "cost by itself; these do not add up.</caption>"
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _write_cells(row: dict[str, Any]) -> str:
    first = " (fixed before the first release)" if row["fixed_beforehand"] else ""
    texts = (write_moment(row["begun"]), row["by"], row["what"] or "-", describe_state(row) + first)
    numbers = (write_number(row["epsilon"]), write_number(row["epsilon_spent"]))
    return "".join(f"<td>{text(cell)}</td>" for cell in texts) + "".join(
        f'<td class="number">{text(number)}</td>' for number in numbers
    )


def _describe_origin(view: LedgerView, name: str, written_at: str) -> str:
    head, versions = view.figures["head"], view.figures["versions"]
    rows = [("Ledger", name), ("Data set", view.figures["data"]), ("Made", written_at)]
    if head is not None:
        rows += [("Last row", str(head["number"])), ("Digest of the last row", head["digest"])]
    checked = (
        "The file, of version 0.1, was checked"
        if head is None
        else "All rows were checked, each of which holds the digest of the one before,"
    )
    rows.append(("Versions of the rows that runs were on", str(versions) if versions else "none"))
    return (
        f"<p>{text(checked)} when this page was made. Every figure was computed from the events "
        "in it. The page is a copy: anyone can edit it, and the ledger may have gone on since. Who "
        "began a run is what that user's environment said.</p>\n"
        f"{pairs_table('This copy', rows)}"
    )


# Over time


def trace_course(history: Sequence[dict[str, Any]], now: datetime) -> Points:
    """The steps of what was spent: pairs of seconds and amounts, up to `now`; empty where a moment
    can't be read.
    """
    points: Points = []
    level = 0.0
    for point in history:
        try:
            at = datetime.fromisoformat(point["at"])
        except ValueError:
            return []
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        points += [(seconds, level), (seconds, point["spent"])]
        level = point["spent"]
    if points:
        points.append((max(points[-1][0], now.timestamp()), level))
    return points


def _draw_course(view: LedgerView, now: datetime) -> str:
    figures, budget = view.figures, view.state.budget
    points = trace_course(figures["history"], now)
    if budget is None or not points:
        return "<p>There is nothing to draw: no budget, or no runs yet.</p>"
    up = _amount_axis(figures, max(high for _, high in points))
    low, high = points[0][0], max(points[-1][0], points[0][0] + 1)
    spent = describe_amount(figures, "spent")
    picture = line_chart(
        "spending",
        "Spent over time",
        f"What was spent or set aside after each of {len(figures['history'])} points in time: "
        f"{spent} at the end, of a budget of {budget}.",
        (_time_axis(low, high), up),
        {"guess": [(low, budget.limit), (high, budget.limit)], "curve": points},
    )
    latest = figures["history"][-_LATEST:]
    rows = [(write_moment(point["at"]), _write_spent(figures, point)) for point in latest]
    return (
        f'<div class="pair"><figure>{picture}<figcaption>What was spent or set aside. The dashed '
        f"line is the budget, {text(budget)}.</figcaption></figure>\n"
        f"{pairs_table('The same in figures: the latest', rows, ('When (UTC)', 'Spent'))}</div>"
    )


def _write_spent(figures: dict[str, Any], point: dict[str, Any]) -> str:
    return describe_amount({**figures, "spent": point["spent"]}, "spent")


def _amount_axis(figures: dict[str, Any], most: float) -> Axis:
    """An axis of epsilon, rho or shares of the limit, which reaches a little above the budget."""
    limit = figures["budget"]["epsilon"] or figures["budget"]["rho"]
    high = 1.08 * max(limit, most)
    if figures["spent_is"] != SHARE:
        return number_axis(f"Spent ({figures['spent_is']})", 0.0, high)
    ticks = [(limit * quarter / 4, f"{quarter * 25} %") for quarter in range(5)]
    return Axis("Spent of the limit", 0.0, high, ticks)


def _time_axis(low: float, high: float) -> Axis:
    """An axis of moments in UTC, with ticks that tell the day, or the time where all is on one."""
    length = high - low
    shape = "%Y-%m-%d" if length > _DAYS else "%H:%M" if length > _MINUTES else "%H:%M:%S"
    places = [low + length * share for share in (1 / 6, 1 / 2, 5 / 6)]
    ticks = [(place, f"{datetime.fromtimestamp(place, UTC):{shape}}") for place in places]
    day = f"{datetime.fromtimestamp(low, UTC):%Y-%m-%d}"
    return Axis("When (UTC)" if length > _DAYS else f"When (UTC, from {day})", low, high, ticks)
