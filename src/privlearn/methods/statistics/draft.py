"""A schema drafted from private rows, as a release: bounds of numbers on a public grid, categories
by prefixes.

Numbers: each row adds 1 to a cell of a public grid of powers of two, for each column. The bounds
are the edges of the outermost cells whose noisy counts stand out.

Categories: of texts as bytes, the noisy counts of all first two bytes; then, behind each prefix
that stands out, those of all next two; and so on. At every level the cells are all that there could
be, given what was released before, and empty ones get noise as well. So, unlike for a histogram of
the values that are there, no probability of failure has to be added to delta: each level is a
Gaussian release.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from privlearn._checks import checked, require_fit
from privlearn._scipy import ndtri
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.calibration import solve_gaussian
from privlearn.core.accounting.events import Repeated, compose
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger, Releases
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.streams import Streams
from privlearn.data.databases import read_address
from privlearn.data.tables import Table, is_frame, read_table
from privlearn.data.template import column_lines, quote
from privlearn.errors import BadInput
from privlearn.runs.session import Session

#: The powers of two of the grid: cells for [2^e, 2^(e + 1)) and its negative, and one for 0.
_LEAST, _MOST = -30, 60
_POWERS = _MOST - _LEAST + 1
_CELLS = 2 * _POWERS + 1
#: Levels of prefixes of two bytes each, the cells behind a prefix, and prefixes that are followed
#: in a column at most.
_LEVELS, _PAIRS, _FOLLOWED = 16, 1 << 16, 64
#: How often some empty cell stands out by its noise: this is for usefulness, and nothing private
#: rests on it.
_BY_CHANCE = 0.05

Counts = NDArray[np.float64]


@final
@dataclass(frozen=True)
class Draft:
    """What was released of a table's columns; free to use.

    Attributes:
        target: the column to predict.
        bounds: of each column of numbers, (low, high), or None where no cell stood out.
        categories: of each column of categories those that stood out, sorted; perhaps none.
    """

    target: str
    bounds: Mapping[str, tuple[float, float] | None]
    categories: Mapping[str, tuple[str, ...]]

    def to_toml(self) -> str:
        """A schema file, to be looked through: columns of which nothing is known are left out, and
        named.
        """
        columns, remarks, unknown = dict[str, dict[str, Any]](), dict[str, str](), list[str]()
        for name, pair in self.bounds.items():
            if pair is None:
                unknown.append(f"# {quote(name)}: no bounds were found, at this noise")
                continue
            bounds = {"low": pair[0], "high": pair[1]}
            if name == self.target:
                columns[name] = {"kind": "target", **bounds}
            else:
                middle = (pair[0] + pair[1]) / 2
                columns[name] = {"kind": "number", **bounds, "missing": middle}
                remarks[name] = "missing: the middle"
        for name, values in self.categories.items():
            if len(values) < (2 if name == self.target else 1):
                unknown.append(f"# {quote(name)}: too few categories were found, at this noise")
            elif name == self.target:
                columns[name] = {"kind": "target", "classes": list(values)}
            else:
                columns[name] = {"kind": "category", "categories": list(values)}
        lines = [f"target = {quote(self.target)}", "", "[columns]"]
        return "\n".join([*lines, *column_lines(columns, remarks), *unknown, ""])


@checked
def draft_schema(
    source: Any,
    *,
    target: str,
    budget: Budget,
    numbers: Sequence[str] = (),
    categories: Sequence[str] = (),
    ledger: Ledger | None = None,
    streams: Streams | None = None,
) -> Draft:
    """Release bounds and categories of a table's columns.

    Guarantee: `budget`, for the ledger's kind of neighbour (else `zero_out`) and one row. The
    ledger is charged a Gaussian release for the numbers and one for each level of the prefixes of
    categories. Charge the training to the same ledger. What kind of column each is, is declared. A
    cell that is no number, or no text that UTF-8 can say, or a category of more than 31 bytes,
    counts as missing, and adds nothing.

    Args:
        source: a .csv or .parquet file, the address of a table in a database, or a data frame.
        target: the column to predict, one of those below.
        budget: what it may cost, of epsilon and delta, or of rho.
        numbers: columns of numbers.
        categories: columns of categories.
        ledger: what to charge; None: a new one with this budget.
        streams: the random streams; None: new ones.

    Raises:
        BudgetExceeded: the ledger has no room; before any row is looked at.
        BadInput: columns that are not there, or no such table; before anything is spent.
    """
    names, source = (*numbers, *categories), read_address(source)
    if not isinstance(budget, Budget) or target not in names or len(set(names)) < len(names):
        raise BadInput(
            f"target is {str(target)[:60]!r}, of numbers and categories {str(list(names))[:80]}: "
            "expected one of them, each named once, and budget=pv.Budget(epsilon, delta)"
        )
    if not is_frame(source):
        require_fit("source", source, str | Path)
    ledger = Ledger(budget) if ledger is None else ledger
    adjacency = ledger.adjacency or Adjacency.ZERO_OUT
    releases = bool(numbers) + _LEVELS * bool(categories)
    noise = solve_gaussian(
        budget, lambda factor: budget.spent(compose([Gaussian(factor)]), adjacency)
    )
    each = Gaussian(noise * math.sqrt(releases))
    plan = Releases(compose([Repeated(each, releases)]), adjacency, budget=budget)
    session = Session(plan, ledger, streams)
    table = read_table(source, names)
    absent = [name for name in names if name not in table.columns]
    if absent:
        raise BadInput(
            f"{table.name} has no column {absent[0]!r}: expected those that it has",
            column=absent[0],
        )
    # raw columns, which no other run has
    session.count_examples(len(table.columns[names[0]]), None)
    with session.charging():
        return _release(
            table, target, numbers, categories, each, adjacency, ledger, session.streams
        )


def _release(
    table: Table,
    target: str,
    numbers: Sequence[str],
    categories: Sequence[str],
    each: Gaussian,
    adjacency: Adjacency,
    ledger: Ledger,
    streams: Streams,
) -> Draft:
    """Release the numbers' grid, and prefix by prefix the categories."""
    from privlearn.core.mechanisms.release import release
    from privlearn.core.sampling import FullBatch
    from privlearn.methods.statistics.sums import cell_counts

    def noisy(cells: list[NDArray[np.int64]], sizes: list[int]) -> tuple[list[Counts], float]:
        (sample,) = FullBatch().draw(len(cells[0]))
        counts = cell_counts(cells, sizes, sample, adjacency)
        deviation = each.noise_multiplier * counts.sensitivity
        (noisy_counts,) = release(
            counts, noise_multiplier=each.noise_multiplier, ledger=ledger, stream=streams.noise
        )
        return [part.numpy() for part in noisy_counts], deviation

    bounds: dict[str, tuple[float, float] | None] = {}
    if numbers:
        counts, deviation = noisy(
            [_grid(table.cells(name)) for name in numbers], [_CELLS] * len(numbers)
        )
        least = deviation * _threshold(_CELLS * len(numbers))
        bounds = {
            name: _bounds_of(column_counts > least)
            for name, column_counts in zip(numbers, counts, strict=True)
        }
    texts = {name: _encode_texts(table.cells(name)) for name in categories}
    followed: dict[str, list[bytes]] = {name: [b""] for name in categories}
    complete: dict[str, list[bytes]] = {name: [] for name in categories}
    for level in range(_LEVELS * bool(categories)):
        if not any(followed.values()):
            break  # what was not charged is given back
        sizes = [len(followed[name]) * _PAIRS for name in categories]
        counts, deviation = noisy(
            [_behind(texts[name], followed[name], level) for name in categories], sizes
        )
        least = deviation * _threshold(sum(sizes))
        for name, column_counts in zip(categories, counts, strict=True):
            places = np.flatnonzero(column_counts > least)
            places = places[np.argsort(-column_counts[places])][:_FOLLOWED]
            longer = [
                followed[name][at // _PAIRS] + int(at % _PAIRS).to_bytes(2, "big") for at in places
            ]
            complete[name] += [text for text in longer if text.endswith(b"\0")]
            followed[name] = [text for text in longer if not text.endswith(b"\0")]
    return Draft(target, bounds, {name: _names(prefixes) for name, prefixes in complete.items()})


def _threshold(cells: int) -> float:
    """In standard deviations, what some of so many empty cells exceed in a twentieth of all
    cases.
    """
    return float(ndtri(1 - _BY_CHANCE / max(cells, 1)))


def _grid(cells: Sequence[Any]) -> NDArray[np.int64]:
    """The cell of each number on the grid, ascending; -1 for what is none."""
    places = np.full(len(cells), -1, dtype=np.int64)
    for row, cell in enumerate(cells):
        try:
            value = math.nan if cell is None or isinstance(cell, bool) else float(cell)
        except (TypeError, ValueError, OverflowError):
            continue
        if math.isfinite(value):
            power = min(max(math.frexp(value)[1] - 1, _LEAST), _MOST) - _LEAST
            places[row] = _POWERS + (0 if value == 0 else power + 1 if value > 0 else -power - 1)
    return places


def _bounds_of(there: NDArray[np.bool_]) -> tuple[float, float] | None:
    """The outer edges of the outermost cells that stand out."""
    places = np.flatnonzero(there)
    if not len(places):
        return None
    low, high = int(places[0]) - _POWERS, int(places[-1]) - _POWERS
    lower = 2.0 ** (low - 1 + _LEAST) if low > 0 else -(2.0 ** (-low + _LEAST)) if low else 0.0
    upper = 2.0 ** (high + _LEAST) if high > 0 else -(2.0 ** (-high - 1 + _LEAST)) if high else 0.0
    return (lower, upper) if lower < upper else (lower, lower + 1.0)  # nothing but zeros


def _encode_texts(cells: Sequence[Any]) -> list[bytes]:
    """The texts as bytes that end in 0, of even length; empty where there is none."""
    texts = []
    for cell in cells:
        text = "" if cell is None else str(cell)
        if isinstance(cell, bool):
            text = text.lower()  # as a schema has it
        elif isinstance(cell, float) and cell.is_integer():
            text = str(int(cell))
        raw = text.strip().encode("utf-8", "replace")
        usable = raw and b"\0" not in raw and len(raw) < 2 * _LEVELS
        texts.append(raw + b"\0" * (2 - len(raw) % 2) if usable else b"")
    return texts


def _behind(texts: Sequence[bytes], followed: Sequence[bytes], level: int) -> NDArray[np.int64]:
    """The cell of each text: which of the prefixes it begins with, and its next two bytes; -1 for
    none.
    """
    places, start = {prefix: at for at, prefix in enumerate(followed)}, 2 * level
    cells = np.full(len(texts), -1, dtype=np.int64)
    for row, text in enumerate(texts):
        at = places.get(text[:start])
        if at is not None and len(text) >= start + 2:
            cells[row] = at * _PAIRS + int.from_bytes(text[start : start + 2], "big")
    return cells


def _names(complete: Sequence[bytes]) -> tuple[str, ...]:
    """Categories as texts that a schema takes."""
    texts = {text.rstrip(b"\0").decode("utf-8", "replace").strip() for text in complete}
    return tuple(sorted(text for text in texts if text and text.isprintable()))
