"""What a study reports: rows, means and intervals over seeds, tables, pages, and the three files
that keep them.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy import stats

from privlearn.errors import BadInput

if TYPE_CHECKING:
    from privlearn_studies.charts import Figure
    from privlearn_studies.registry import Study

#: So many rows stand on the page of a study that does not choose any.
_SHOWN = 10
#: What training accuracies are called: exact figures on private rows, outside every guarantee.
UNPROTECTED = "training accuracy (exact, of private rows: not protected)"


@final
@dataclass(frozen=True)
class Row:
    """One number of a paper beside ours.

    Attributes:
        label: which line, point or entry of the table or figure.
        metric: what is measured, with its unit.
        ours: our number, or the mean over seeds.
        paper: the paper's number; None where it gives none.
        ours_std: the standard deviation over seeds; None where chance plays no part.
        seeds: how many seeds.
    """

    label: str
    metric: str
    ours: float
    paper: float | None = None
    ours_std: float | None = None
    seeds: int = 1


@final
@dataclass(frozen=True)
class Findings:
    """All that a study computed: rows, a figure, and notes in Markdown, which say how, with tables
    made of the rows.
    """

    rows: tuple[Row, ...]
    figure: Figure
    notes: str


def mean_row(label: str, metric: str, values: Sequence[float], paper: float | None = None) -> Row:
    """The mean over seeds, with its standard deviation where there are several."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Row(label, metric, mean(values), paper, deviation, len(values))


def mean(values: Iterable[float]) -> float:
    """The mean."""
    return float(np.mean(list(values)))


def each(runs: Iterable[Any], name: str) -> list[Any]:
    """One number of several runs."""
    return [getattr(run, name) for run in runs]


def ends(runs: Iterable[Any], name: str = "test") -> list[float]:
    """The last of a number of each epoch, by seed."""
    return [getattr(run, name)[-1] for run in runs]


def spread(values: Sequence[float], digits: int = 4, error: bool = False) -> str:
    """The mean for reading, with the deviation (or the standard error) of several seeds."""
    wide = (
        np.std(values, ddof=1) / (np.sqrt(len(values)) if error else 1) if len(values) > 1 else None
    )
    return f"{np.mean(values):.{digits}f}" + ("" if wide is None else f" ± {wide:.{digits}f}")


def interval(
    values: Sequence[float], others: Sequence[float], level: float = 0.95
) -> tuple[float, float]:
    """Student's interval for the mean difference of pairs: its middle and its half-width (infinite
    for one pair).
    """
    differences = np.subtract(values, others)
    if len(differences) < 2:
        return float(differences.mean()), math.inf
    error = float(np.std(differences, ddof=1)) / math.sqrt(len(differences))
    return float(differences.mean()), float(
        stats.t.ppf(0.5 + level / 2, len(differences) - 1)
    ) * error


def apart(one: Row, other: Row, level: float = 0.95) -> tuple[float, float]:
    """Welch's interval for the difference of two means of independent seeds: middle, half-width
    (inf for one seed).
    """
    if one.ours_std is None or other.ours_std is None:
        return one.ours - other.ours, math.inf
    parts = [row.ours_std**2 / row.seeds for row in (one, other) if row.ours_std is not None]
    if not any(parts):
        return one.ours - other.ours, 0.0
    freedom = sum(parts) ** 2 / sum(
        p**2 / (row.seeds - 1) for p, row in zip(parts, (one, other), strict=True)
    )
    return one.ours - other.ours, math.sqrt(sum(parts)) * float(
        stats.t.ppf(0.5 + level / 2, freedom)
    )


def verdict(middle: float, half_width: float) -> str:
    """In words, what an interval of differences says."""
    if math.isinf(half_width):
        return "one seed says nothing"
    if middle - half_width > 0:
        return "better"
    return "worse" if middle + half_width < 0 else "within noise"


def signed(middle: float, half_width: float) -> str:
    """An interval for reading, in percent: `+0.42 ± 0.13 %`."""
    wide = "?" if math.isinf(half_width) else f"{100 * half_width:.2f}"
    return f"{100 * middle:+.2f} ± {wide} %"


def judged(values: Sequence[float], others: Sequence[float]) -> str:
    """The difference of pairs for reading, and what it says."""
    difference = interval(values, others)
    return f"{signed(*difference)}, {verdict(*difference)}"


def gap_closed(values: Sequence[float], base: Sequence[float], ceiling: Sequence[float]) -> float:
    """The share of the gap from `base` to `ceiling` that `values` close, in the means; nan if it is
    within noise.
    """
    gap, half_width = interval(ceiling, base)
    open_ = gap > 0 if math.isinf(half_width) else gap > half_width
    return float(np.mean(values) - np.mean(base)) / gap if open_ else math.nan


def percent(share: float) -> str:
    """A share of a gap for reading; in words where there is no gap."""
    return f"{100 * share:.0f} %" if math.isfinite(share) else "no gap"


def number(value: float | None) -> str:
    """A number to six significant digits; a dash where there is none."""
    return "–" if value is None else f"{value:.6g}"


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table; columns of numbers are aligned to the right."""
    rule = [
        "---:" if all(cell[0] in "-–0123456789" for cell in column) else "---"
        for column in zip(*lines, strict=True)
    ]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rule, *lines))


def page(name: str, **places: Any) -> str:
    """The text `notes/NAME.md` with its places filled in.

    `NAME:PART` is the part of it below the line `<!-- PART -->`. The lines of a paragraph are
    joined, except in tables and lists, and a paragraph that is empty once it is filled in is left
    out.
    """
    filled = (paragraph.format(**places) for paragraph in _paragraphs(name))
    return "\n\n".join(paragraph for paragraph in filled if paragraph.strip())


@cache
def _paragraphs(name: str) -> tuple[str, ...]:
    place, _, part = name.partition(":")
    text = files("privlearn_studies").joinpath("notes", f"{place}.md").read_text(encoding="utf-8")
    if part:
        text = text.split(f"<!-- {part} -->\n", 1)[1].split("<!-- ", 1)[0]
    return tuple(
        paragraph if paragraph.startswith(("| ", "- ")) else paragraph.replace("\n", " ")
        for paragraph in text.strip().split("\n\n")
    )


def as_json(study: Study, findings: Findings, *, quick: bool = False) -> dict[str, Any]:
    """The JSON object that scripts rely on, and that the page is made from: all rows, and the notes
    as `blocks`.
    """
    return {
        "name": study.name,
        "source": study.source,
        "what": study.what,
        "quick": quick,
        "rows": [asdict(row) for row in findings.rows],
        "notes": list(blocks(findings.notes)),
    }


def save(study: Study, findings: Findings, folder: Path, quick: bool = False) -> None:
    """Write NAME.json, NAME.md and NAME.png into `folder`, over files of these names; the text says
    if it is `quick`.

    Raises:
        BadInput: the folder cannot be written.
    """
    from privlearn_studies import charts

    try:
        folder.mkdir(parents=True, exist_ok=True)
        saved = as_json(study, findings, quick=quick)
        (folder / f"{study.name}.json").write_text(write_json(saved), encoding="utf-8")
        (folder / f"{study.name}.md").write_text(write_page(saved), encoding="utf-8")
        charts.save(findings.figure, folder / f"{study.name}.png")
    except OSError as error:
        raise BadInput(
            f"{folder} cannot be written: {error.strerror}. Give another folder"
        ) from error


def row_cells(
    rows: Sequence[Row], wide: Callable[[Row], tuple[str, ...]]
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Heads and cells of rows; `wide` says what stands of chance where it plays a part."""
    chance = any(row.ours_std is not None for row in rows)
    return ["what", "metric", "paper", "ours", *(["deviation"] if chance else [])], [
        (row.label, row.metric, number(row.paper), number(row.ours), *(wide(row) if chance else ()))
        for row in rows
    ]


def read_rows(text: str) -> list[Row]:
    """The rows of a study, from the text of the NAME.json that `save` wrote."""
    return [Row(**row) for row in json.loads(text)["rows"]]


def blocks(text: str) -> Iterator[str | dict[str, Any]]:
    """The paragraphs and list items of a Markdown text, each on one line, and its tables as heads
    and lines.
    """
    for paragraph in text.strip().split("\n\n"):
        lines = paragraph.splitlines()
        if paragraph.startswith("|"):
            heads, _, *cells = (
                [cell.strip() for cell in line.strip()[1:-1].split("|")] for line in lines
            )
            yield {"heads": heads, "lines": cells}
        else:
            yield from (
                " ".join(item.split()) for item in re.split(r"\n(?=- )", paragraph) if item.strip()
            )


def write_json(saved: Mapping[str, Any]) -> str:
    """The object of `as_json` as text, with one line a row."""
    parts = []
    for key, value in saved.items():
        if isinstance(value, list):
            items = ",\n".join(json.dumps(item, ensure_ascii=False) for item in value)
            parts.append(f"{json.dumps(key)}: [\n{items}\n]")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def write_page(saved: Mapping[str, Any]) -> str:
    """The page of a study, made of its JSON object and of the text `pages/NAME.md`, which says what
    was found.

    The text belongs to the rows whose digest its first line has. For others, those of a quick run
    among them, the notes and the first rows take its place. Tables of the text have some columns of
    a table of the object, and name some of its lines by the cells that they fill in; the other
    cells are filled in here.
    """
    name, rows = saved["name"], [Row(**row) for row in saved["rows"]]
    text = "" if saved["quick"] else _text_of(name, digest(rows))
    if text:
        tables = [
            _row_table(rows),
            *(block for block in saved["notes"] if not isinstance(block, str)),
        ]
        parts = [
            block if isinstance(block, str) else _filled(block, tables) for block in blocks(text)
        ]
    else:
        first_rows = _row_table(rows[:_SHOWN])
        parts = [block for block in saved["notes"] if isinstance(block, str)]
        parts.append(table(first_rows["heads"], first_rows["lines"]))
    parts.insert(1, f"![{saved['what']}]({name}.png)")
    if saved["quick"]:
        parts.insert(
            0, "*A quick run: fewer seeds, points and training rows. Not the figures to quote.*"
        )
    parts.insert(0, f"# {saved['source']}: {saved['what']}")
    parts.append(
        f"All {len(saved['rows'])} rows, all tables and all settings: [{name}.json]({name}.json)."
    )
    joined = "\n\n".join(part for part in parts if part)
    return wrap(re.sub(r"(?<=\n)(- .*)\n\n(?=- )", r"\1\n", joined)) + "\n"


def digest(rows: Iterable[Row]) -> str:
    """Twelve hexadecimal digits that change with any of the rows, to the six digits that are
    shown.
    """
    lines = [
        (
            row.label,
            row.metric,
            number(row.paper),
            number(row.ours),
            number(row.ours_std),
            row.seeds,
        )
        for row in rows
    ]
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest()[:12]


def _text_of(name: str, rows: str) -> str:
    """What `pages/NAME.md` says of the rows with this digest; empty if it speaks of others, or is
    not there.
    """
    place = files("privlearn_studies").joinpath("pages", f"{name}.md")
    first, _, text = (
        place.read_text(encoding="utf-8").partition("\n") if place.is_file() else ("", "", "")
    )
    return text if first == f"<!-- of the rows {rows} -->" else ""


def _filled(choice: Mapping[str, Any], tables: Iterable[Mapping[str, Any]]) -> str:
    """The chosen columns and lines, as Markdown, of the table that has most of these lines; empty
    if none has any.
    """
    most: list[Sequence[str]] = []
    for each_table in tables:
        places = _places(choice["heads"], each_table["heads"])
        if places is None:
            continue
        short = [[line[place] for place in places] for line in each_table["lines"]]
        chosen = (
            next((line for line in short if _agree(cells, line)), None) for cells in choice["lines"]
        )
        most = max(most, [line for line in chosen if line is not None], key=len)
    return table(choice["heads"], most) if most else ""


def _places(heads: Sequence[str], others: Sequence[str]) -> list[int] | None:
    """Where `heads` stand among `others`, in their order; None if one of them is missing."""
    places: list[int] = []
    for head in heads:
        start = places[-1] + 1 if places else 0
        if head not in others[start:]:
            return None
        places.append(others.index(head, start))
    return places


def _agree(cells: Sequence[str], line: Sequence[str]) -> bool:
    return all(cell in ("", other) for cell, other in zip(cells, line, strict=True))


def _row_table(rows: Sequence[Row]) -> dict[str, Any]:
    heads, lines = row_cells(rows, lambda row: (number(row.ours_std), str(row.seeds)))
    return {"heads": [*heads, "seeds"] if "deviation" in heads else heads, "lines": lines}


def wrap(text: str) -> str:
    """`text` in Markdown with lines of at most 120 characters, but for tables, headings, pictures
    and code.
    """
    out, fenced = [], False
    for line in text.split("\n"):
        fenced ^= line.startswith("```")
        if fenced or len(line) <= 120 or line.startswith(("|", "#", "!", "```")):
            out.append(line)
            continue
        item = re.match(r"\s*([-*] |\d+\. )?", line)
        indent = " " * len(item[0]) if item else ""
        out += textwrap.wrap(
            line, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
    return "\n".join(out)
