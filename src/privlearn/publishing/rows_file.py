"""The file of released rows, `rows.csv`: a line of names, and then a line for each row, its numbers
and its label.

It is read line by line, without torch.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Any, BinaryIO, final

#: Classes, at most.
_MOST_CLASSES = 10**6


@final
@dataclass(frozen=True)
class RowsFile:
    """What a file of rows looks like.

    Attributes:
        columns: names of the numbers, in their order.
        label: the name of the last column.
        rows: how many there are.
        labels: the different texts in the last column.
    """

    columns: tuple[str, ...]
    label: str
    rows: int
    labels: frozenset[str]


def look_at(file: BinaryIO) -> tuple[RowsFile | None, str]:
    """Read all rows of a file, which stays open, and keep none.

    Returns:
        What it looks like; or None, and what is wrong with it in a few words.
    """
    text = TextIOWrapper(file, encoding="utf-8", newline="")
    try:
        return _look_at(csv.reader(text, strict=True)), ""
    except csv.Error as error:
        return None, f"it cannot be read as CSV: {error}"
    except UnicodeDecodeError:
        return None, "it is not in UTF-8"
    except ValueError as error:
        return None, str(error)
    finally:
        text.detach()


def _look_at(lines: Iterator[list[str]]) -> RowsFile:
    *columns, label = next(lines, [""])
    if not columns:
        raise ValueError("its first line does not name columns and a label")
    rows = 0
    labels: set[str] = set()
    for cells in lines:
        rows += 1
        *numbers, text = cells or [""]
        if len(numbers) != len(columns):
            raise ValueError(f"row {rows} has {len(numbers)} numbers and not {len(columns)}")
        if not all(map(_is_finite, numbers)):
            raise ValueError(f"row {rows} holds something else than finite numbers")
        labels.add(text)
        if len(labels) > _MOST_CLASSES:
            raise ValueError("it has too many different labels")
    return RowsFile(tuple(columns), label, rows, frozenset(labels))


def _is_finite(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def contradictions(file: RowsFile | None, facts: Mapping[str, Any]) -> list[str]:
    """What is wrong with what a certificate says of released rows, beside the file's digest.

    Args:
        file: that of the folder; None: there is none that could be read.
        facts: of the certificate, by anyone; their kinds are checked elsewhere.
    """
    claims = facts.get("released_rows")
    if file is None:
        return ["the certificate states released rows, and the folder has none"]
    if not isinstance(claims, dict):
        return ["the folder has released rows, and the certificate states none"]
    problems = []
    if [*file.columns, file.label] != [*claims.get("columns", ()), claims.get("label")]:
        problems.append("the released rows have other columns than the certificate states")
    if file.rows != facts.get("examples"):
        problems.append(f"there are {file.rows} released rows: the certificate states otherwise")
    if not file.labels <= set(claims.get("classes", ())):
        problems.append("the released rows have labels that the certificate does not state")
    return problems
