"""What became of each architecture, as JSON, and the tables of
docs/measured/architectures.md that are written from it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The libraries that are compared: the columns of the tables.
LIBRARIES = ("privlearn", "Opacus, hooks", "Opacus, ghost")
#: The outcomes of an architecture, and how the summary describes them.
OUTCOMES = {
    "right": "right, all examples at once",
    "right, loop": "right, one example after another",
    "right, changed": "right once the model or the batch is changed",
    "refused": "refused by name",
    "error": "another error",
    "wrong": "wrong, without an error",
}


@dataclass(frozen=True)
class Judged:
    """The outcome of an architecture with each library (a key of `OUTCOMES`), and the message or
    the deviation.
    """

    name: str
    package: str
    outcomes: tuple[str, ...]
    reasons: tuple[str, ...]


def as_json(rows: Sequence[Judged]) -> dict[str, Any]:
    """Each row's outcomes; how often each kind of message appeared; which sums were wrong, and by
    how much.
    """
    counts: dict[str, Counter[int]] = {}
    wrong = []
    for row in rows:
        for number, (outcome, reason) in enumerate(zip(row.outcomes, row.reasons, strict=True)):
            if outcome in ("refused", "error", "right, changed"):
                counts.setdefault(_kind(reason), Counter())[number] += 1
            elif outcome == "wrong":
                wrong.append([row.name, LIBRARIES[number], reason])
    by_frequency = sorted(counts.items(), key=lambda item: -item[1].total())
    return {
        "libraries": list(LIBRARIES),
        "architectures": [[row.name, row.package, *row.outcomes] for row in rows],
        "messages": {
            kind: [count[number] for number in range(len(LIBRARIES))]
            for kind, count in by_frequency
        },
        "wrong": wrong,
    }


def table(results: dict[str, Any]) -> str:
    """How many architectures have each outcome, then their names by privlearn's outcome and by
    package.
    """
    rows = results["architectures"]
    lines = [
        "| | " + " | ".join(results["libraries"]) + " |",
        "| --- |" + " ---: |" * len(results["libraries"]),
    ]
    for outcome, description in OUTCOMES.items():
        counts = [
            sum(row[2 + number] == outcome for row in rows)
            for number in range(len(results["libraries"]))
        ]
        lines.append(f"| {description} | " + " | ".join(map(str, counts)) + " |")
    lines += ["", "| privlearn | package | architectures |", "| --- | --- | --- |"]
    for outcome in OUTCOMES:
        for package in dict.fromkeys(row[1] for row in rows):
            names = [
                row[0].removesuffix(f" ({package})")
                for row in rows
                if row[1:3] == [package, outcome]
            ]
            if names:
                lines.append(f"| {outcome} | {package} | " + "; ".join(names) + " |")
    return "\n".join(lines)


def write_json(page: Path, results: dict[str, Any]) -> None:
    """Write the results beside the page, an architecture a line."""
    lists = {key: value for key, value in results.items() if key in ("architectures", "wrong")}
    text = json.dumps({**results, **dict.fromkeys(lists, 0)}, indent=1)
    for key, value in lists.items():
        lines = ",\n  ".join(map(json.dumps, value))
        text = text.replace(f'"{key}": 0', f'"{key}": [\n  {lines}\n ]')
    page.with_name("architectures.json").write_text(text + "\n", encoding="utf-8")


#: Marks of messages, and what they come under in the JSON.
_KINDS = {
    "moves when other examples": "the loss of one example depends on other examples",
    "BatchNorm": "batch norm",
    "with buffers": "a trainable layer with buffers",
    "Parameter tying": "tied parameters",
    "MultiheadAttention": "nn.MultiheadAttention",
    "being modified inplace": "an operation in place",
    "stack expects each": (
        "tensors of unequal size (a layer whose input has no batch dimension, or one for all)"
    ),
    "not initialized": "a parameter without a per-example gradient (used outside of its layer)",
    "_norm_sample": "a parameter without a per-example norm (used outside of its layer)",
    "has no attribute 'detach'": "a layer called with something other than tensors",
    "has no attribute 'requires_grad'": "a layer called with something other than tensors",
    "missing": "a layer called with arguments by name",
    "NoneType": "a layer called with arguments by name",
    "integer tensors of a single element": "a layer called with something other than tensors",
    "view size": "a layer whose gradient is not contiguous",
}


def _kind(reason: str) -> str:
    return next((kind for mark, kind in _KINDS.items() if mark in reason), "other")
