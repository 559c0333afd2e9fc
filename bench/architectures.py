"""Architectures of transformers, timm, torchvision and PEFT: whose per-example gradients are right,
and what they cost.

`python bench/architectures.py [--write PAGE]` sums clipped gradients of every architecture of
`tests/clipping/architectures.py` by privlearn and by both ways of Opacus, and holds each sum
against a loop over single examples in double precision. It prints Markdown tables, or writes them
into a page, between its marks, and all outcomes into `architectures.json` beside the page.

`python bench/architectures.py --steps [--write PAGE] [--quick] [--rounds N]` measures steps of six
of them in place of that: time and peak memory of private steps over plain ones.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import common
import torch
from architecture_tables import Judged, as_json, table, write_json

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from tests.clipping.architectures import ARCHITECTURES, Architecture
from tests.clipping.judge import (
    Verdict,
    by_opacus,
    by_privlearn,
    changed_for_opacus,
    with_group_norms,
)
from tests.support.vision import make_torchvision_importable

_BY_VERDICT = {
    "layers": "right",
    "vmap": "right",
    "loop": "right, loop",
    "fails": "error",
    "wrong": "wrong",
}


def _tried(judge: Callable[[], Verdict]) -> Verdict:
    try:
        return judge()
    except Exception as error:
        return Verdict("fails", f"{type(error).__name__}: {error}".splitlines()[0])


def _twice(first: Callable[[], Verdict], changed: Callable[[], Verdict]) -> tuple[str, str]:
    """The outcome and its reason; what does not work is tried again, changed as its users would
    change it.
    """
    verdict = _tried(first)
    outcome = _BY_VERDICT.get(verdict.outcome, verdict.outcome)
    if outcome in ("refused", "error"):
        again = _tried(changed)
        if again.outcome in ("right", "layers", "vmap", "loop"):
            return "right, changed", verdict.reason
        if again.outcome == "wrong":
            return "wrong", f"changed, {again.reason}"
    return outcome, verdict.reason


def judged(architecture: Architecture) -> Judged:
    """The architecture by all three."""

    def ours() -> Verdict:
        return by_privlearn(with_group_norms(architecture))

    def opacus(ghost: bool) -> tuple[str, str]:
        return _twice(
            lambda: by_opacus(architecture, ghost),
            lambda: by_opacus(changed_for_opacus(architecture), ghost),
        )

    verdicts = [
        _twice(lambda: by_privlearn(architecture), ours),
        opacus(ghost=False),
        opacus(ghost=True),
    ]
    gc.collect()
    outcomes, reasons = zip(*verdicts, strict=True)
    return Judged(architecture.name, architecture.package, outcomes, reasons)


# Markdown


def write(page: Path, mark: str, text: str) -> None:
    """Put `text` between the two comments of the page that name the `mark`.

    Raises:
        ValueError: the page does not have them, once each.
    """
    begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->"
    before, begun, rest = page.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        raise ValueError(f"{page}: expected the lines {begin.strip()} and {end.strip()}")
    page.write_text(f"{before}{begin}\n{text}\n\n{end}{after}", encoding="utf-8")


def main() -> None:
    """The command line."""
    parser = common.parser(
        __file__, "Whose per-example gradients of which architecture are right, and what they cost."
    )
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="write the table into a page, between its marks"
    )
    parser.add_argument(
        "--steps", action="store_true", help="time and memory of six, in place of the table"
    )
    parser.add_argument("--rounds", type=int, default=15, help="how often every step is timed")
    options = parser.parse_args()
    make_torchvision_importable()
    torch.set_num_threads(torch.get_num_threads() if options.steps else 1)
    if options.steps:
        measured(options)
        return
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    rows = []
    for architecture in ARCHITECTURES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows.append(judged(architecture))
        print(*rows[-1].outcomes, architecture.name, sep="\t", file=sys.stderr)
    results = as_json(rows)
    if options.write:
        write(options.write, "table", table(results))
        write_json(options.write, results)
    else:
        print(table(results))


def measured(options: argparse.Namespace) -> None:
    """Steps of six architectures, by `architecture_steps.py`."""
    import architecture_steps

    cases = architecture_steps.cases(quick=options.quick, rounds=options.rounds)
    rows = common.main(__file__, options, cases, at_once=1)
    if options.write and rows:
        write(options.write, "steps", architecture_steps.table(rows))


if __name__ == "__main__":
    main()
