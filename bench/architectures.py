"""Architectures of transformers, timm, torchvision and PEFT: whose per-example gradients are right, and what they cost.

`python bench/architectures.py [--write PAGE]` sums clipped gradients of every architecture of
`tests/clipping/architectures.py` by privlearn and by both ways of Opacus, and holds each sum against a loop over single
examples in double precision. It prints a Markdown table, or writes it into a page, between its marks.

`python bench/architectures.py --steps [--write PAGE] [--quick] [--rounds N]` measures steps of six of them in place of
that: time and peak memory of private steps over plain ones.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import common
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from tests.clipping.architectures import ARCHITECTURES, Architecture
from tests.clipping.judge import Verdict, by_opacus, by_privlearn, changed_for_opacus, with_group_norms
from tests.support.vision import make_torchvision_importable

#: Who is compared, as the table's columns are called.
LIBRARIES = ("privlearn", "Opacus, hooks", "Opacus, ghost")
#: What a cell says, and what the summary says of it.
OUTCOMES = {
    "right": "right, all examples at once",
    "right, loop": "right, one example after another",
    "right, changed": "right once the model or the batch is changed",
    "refused": "refused by name",
    "error": "another error",
    "**wrong**": "wrong, without an error",
}
_BY_VERDICT = {"layers": "right", "vmap": "right", "loop": "right, loop", "fails": "error", "wrong": "**wrong**"}


@dataclass(frozen=True)
class Judged:
    """What became of an architecture: for each library a key of `OUTCOMES`, and what was said."""

    name: str
    package: str
    outcomes: tuple[str, ...]
    reasons: tuple[str, ...]


def _tried(judge: Callable[[], Verdict]) -> Verdict:
    try:
        return judge()
    except Exception as error:
        return Verdict("fails", f"{type(error).__name__}: {error}".splitlines()[0])


def _twice(first: Callable[[], Verdict], changed: Callable[[], Verdict]) -> tuple[str, str]:
    """The outcome and its reason; what does not work is tried again, changed as its users would change it."""
    verdict = _tried(first)
    outcome = _BY_VERDICT.get(verdict.outcome, verdict.outcome)
    if outcome in ("refused", "error"):
        again = _tried(changed)
        if again.outcome in ("right", "layers", "vmap", "loop"):
            return "right, changed", verdict.reason
        if again.outcome == "wrong":
            return "**wrong**", f"changed, {again.reason}"
    return outcome, verdict.reason


def judged(architecture: Architecture) -> Judged:
    """The architecture by all three."""

    def ours() -> Verdict:
        return by_privlearn(with_group_norms(architecture))

    def opacus(ghost: bool) -> tuple[str, str]:
        return _twice(
            lambda: by_opacus(architecture, ghost), lambda: by_opacus(changed_for_opacus(architecture), ghost)
        )

    found = [_twice(lambda: by_privlearn(architecture), ours), opacus(ghost=False), opacus(ghost=True)]
    gc.collect()
    outcomes, reasons = zip(*found, strict=True)
    return Judged(architecture.name, architecture.package, outcomes, reasons)


# Markdown


def table(rows: Sequence[Judged]) -> str:
    """How many of each outcome, then every architecture, then what was said."""
    lines = ["| | " + " | ".join(LIBRARIES) + " |", "| --- |" + " ---: |" * len(LIBRARIES)]
    for outcome, about in OUTCOMES.items():
        counts = [sum(row.outcomes[number] == outcome for row in rows) for number in range(len(LIBRARIES))]
        lines.append(f"| {about} | " + " | ".join(map(str, counts)) + " |")
    lines += ["", "| architecture | package | " + " | ".join(LIBRARIES) + " |", "| --- " * 5 + "|"]
    lines += [f"| {row.name} | {row.package} | " + " | ".join(row.outcomes) + " |" for row in rows]
    return "\n".join([*lines, "", *said(rows)])


def said(rows: Sequence[Judged]) -> list[str]:
    """What was said of models as they are that was not computed, with how many it was said of; and what was wrong."""
    counts: dict[str, Counter[int]] = {}
    wrong = []
    for row in rows:
        for number, (outcome, reason) in enumerate(zip(row.outcomes, row.reasons, strict=True)):
            if outcome in ("refused", "error", "right, changed"):
                counts.setdefault(_kind(reason), Counter())[number] += 1
            elif outcome == "**wrong**":
                wrong.append(f"| {row.name} | {LIBRARIES[number]} | {reason} |")
    lines = ["| what is said of models as they are | " + " | ".join(LIBRARIES) + " |"]
    lines.append("| --- |" + " ---: |" * len(LIBRARIES))
    for reason, own in sorted(counts.items(), key=lambda item: -item[1].total()):
        lines.append(f"| {reason} | " + " | ".join(str(own[n] or "") for n in range(len(LIBRARIES))) + " |")
    return [
        *lines,
        "",
        "| wrong without an error | by | first parameter, and how far its sum is off |",
        "| --- " * 3 + "|",
        *wrong,
    ]


#: Marks of messages, and what they come under in the table.
_KINDS = {
    "moves when other examples": "the loss of one example depends on other examples",
    "BatchNorm": "batch norm",
    "with buffers": "a trainable layer with buffers",
    "Parameter tying": "tied parameters",
    "MultiheadAttention": "nn.MultiheadAttention",
    "being modified inplace": "an operation in place",
    "stack expects each": "tensors of unequal size (a layer whose input has no batch dimension, or one for all)",
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


def write(page: Path, mark: str, text: str) -> None:
    """Put `text` between the two comments of the page that name the `mark`.

    Raises:
        ValueError: the page does not have them, once each.
    """
    begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"{page}: expected the lines {begin.strip()} and {end.strip()}")
    page.write_text(f"{before}{begin}\n{text}\n\n{end}{after}", encoding="utf-8")


def main() -> None:
    """The command line."""
    parser = common.parser(__file__, "Whose per-example gradients of which architecture are right, and what they cost.")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the table into a page, between its marks")
    parser.add_argument("--steps", action="store_true", help="time and memory of six, in place of the table")
    parser.add_argument("--rounds", type=int, default=15, help="how often every step is timed")
    given = parser.parse_args()
    make_torchvision_importable()
    torch.set_num_threads(torch.get_num_threads() if given.steps else 1)
    if given.steps:
        measured(given)
        return
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    rows = []
    for architecture in ARCHITECTURES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows.append(judged(architecture))
        print(*rows[-1].outcomes, architecture.name, sep="\t", file=sys.stderr)
    text = table(rows)
    if given.write:
        write(given.write, "table", text)
    else:
        print(text)


def measured(given: argparse.Namespace) -> None:
    """Steps of six architectures, by `architecture_steps.py`."""
    import architecture_steps

    cases = architecture_steps.cases(quick=given.quick, rounds=given.rounds)
    rows = common.main(__file__, given, cases, at_once=1)
    if given.write and rows:
        write(given.write, "steps", architecture_steps.table(rows))


if __name__ == "__main__":
    main()
