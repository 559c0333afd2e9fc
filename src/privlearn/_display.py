"""This file shows a plan, a guarantee or a result in a console and in a notebook, as a few short
lines or a small table.

Nothing is computed for it but what is known already: no price, no row, no private figure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from privlearn._texts import for_html, for_terminal
from privlearn.errors import BadInput, first_line

#: Rows below the title, and characters of each part and of all.
_MOST_ROWS, _LONGEST_TITLE, _LONGEST_TEXT, _LONGEST = 5, 100, 125, 600
#: Rows of a plan's card that are looked at: a choice among a thousand candidates has one for each.
_MOST_OF_A_CARD = 12


class Summary(NamedTuple):
    """A title, and rows of a label and a text each."""

    title: str
    rows: Sequence[tuple[str, str]]


class Described:
    """Gives a class its repr and its table in notebooks; a dataclass says `repr=False`.

    Both are short, quote no private value, and do not raise.
    """

    def _summary(self) -> Summary:
        """What there is to say: public, and known without any computation that takes long."""
        raise NotImplementedError

    def __repr__(self) -> str:
        title, rows = self._fit_to_screen()
        return "\n".join([title, *(f"  {label}: {text}" for label, text in rows)])

    def _fit_to_screen(self) -> Summary:
        """The summary, each part on a line and all of it within a screen."""
        title, rows = self._summary()
        title, rows = shortened(title, _LONGEST_TITLE), rows[:_MOST_ROWS]
        labels = [shortened(label, _LONGEST_TITLE // 3) for label, _ in rows]
        room = (_LONGEST - len(title) - sum(len(label) + 5 for label in labels)) // max(
            1, len(rows)
        )
        texts = (shortened(_round_numbers(text), min(room, _LONGEST_TEXT)) for _, text in rows)
        return Summary(title, list(zip(labels, texts, strict=True)))

    def _repr_html_(self) -> str:
        """A table for notebooks, its texts escaped."""
        title, rows = self._fit_to_screen()
        left = 'style="text-align: left"'
        cells = (
            f"<tr><th {left}>{for_html(label)}</th><td {left}>{for_html(text)}</td></tr>"
            for label, text in rows
        )
        head = f'<th colspan="2" {left}>{for_html(title)}</th>'
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(cells)}</tbody></table>"


def _round_numbers(text: str) -> str:
    """Numbers of many digits to six of them: what is shown is no certificate."""
    return re.sub(r"(?<![\w.])\d+\.\d{7,}(?![\w.])", lambda number: f"{float(number[0]):.6g}", text)


def shortened(text: object, most: int) -> str:
    """`text` on one line, without control characters, and not longer than `most` characters."""
    line = for_terminal(" ".join(str(text).split()))
    return line if len(line) <= most else f"{line[: most - 3]}..."


def first_clause(documentation: str | None) -> str:
    """The beginning of a docstring, up to the first stop: what a class is, in a few words."""
    text = " ".join((documentation or "").split())
    ends = [place for stop in (". ", "; ", ": ") if (place := f"{text} ".find(stop)) > 0]
    return text[: min(ends)] if ends else text


def joined(rows: Iterable[tuple[str, str]], most: int) -> list[tuple[str, str]]:
    """Rows of a label and a text, neighbours put into one row until there are at most `most`."""
    left = list(rows)
    while len(left) > most:
        lengths = [len("".join(one + other)) for one, other in pairwise(left)]
        at = lengths.index(min(lengths))
        (label, text), (other, more) = left[at : at + 2]
        left[at : at + 2] = [(label, f"{text}; {other} {more}")]
    return left


def plan_summary(plan: Any) -> Summary:
    """Of a plan of any kind: what its card would say, whom it protects, and what it was calibrated
    to.
    """
    cost = (
        "plan.guarantee(delta=1e-5) computes it"
        if plan.budget is None
        else f"at most {plan.budget}, for the whole run"
    )
    try:
        rows = plan.rows()
    except BadInput as error:
        rows, cost = [("noise", first_line(error))], "not known before the noise is"
    if len(rows) > _MOST_OF_A_CARD:
        rows = [*rows[: _MOST_OF_A_CARD - 1], ("and", f"{len(rows) - _MOST_OF_A_CARD + 1} more")]
    about = first_clause(type(plan).__doc__)
    return Summary(
        f"{type(plan).__name__}{': ' if about else ''}{about[:1].lower()}{about[1:]}",
        [
            *joined(rows, _MOST_ROWS - 2),
            ("protects", f"{plan.unit}; {plan.neighbours} neighbours"),
            ("cost", cost),
        ],
    )
