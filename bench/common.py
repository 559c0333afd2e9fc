"""What every benchmark shares: variants timed in turns with a baseline, answers held together, memory apart.

Times are compared within one run only: the baseline runs right before each variant, in every round, and a ratio is taken
from that pair. Peak memory is the growth of the resident set over what the imports hold, in a process that runs the
variant once.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Variant:
    """One way of doing a case.

    Attributes:
        name: what the table calls it.
        run: does it once and returns the answer.
        needs: modules that it imports; without them the variant is left out.
        within: the relative difference from the baseline's answer beyond which the benchmark fails; None: another
            answer is expected.
        slack: a known error bar on top of the answer, taken off before answers are compared.
        slow: whether it takes long enough to go without a first, untimed run.
    """

    name: str
    run: Callable[[], float]
    needs: tuple[str, ...] = ()
    within: float | None = None
    slack: float = 0.0
    slow: bool = False

    def missing(self) -> list[str]:
        """The modules that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name.partition(".")[0]) is None]


@dataclass(frozen=True)
class Case:
    """One thing to do, and the ways of doing it: the first variant is the baseline.

    Attributes:
        name: what the table calls it.
        answer: the name of the answer.
        variants: the ways, the baseline first.
        rounds: how often each variant is timed.
    """

    name: str
    answer: str
    variants: tuple[Variant, ...]
    rounds: int


@dataclass(frozen=True)
class Row:
    """The figures of one variant: `ratio` is its time over the baseline's, with quartiles `low` and `high`."""

    case: str
    variant: str
    ratio: float
    low: float
    high: float
    seconds: float
    peak_mib: float
    answer: float

    def plain(self) -> dict[str, str | float]:
        """The row as the JSON output has it."""
        return {name: value for name, value in vars(self).items() if name != "answer"}


def measure(case: Case) -> list[Row]:
    """Time the variants of `case` that can run, in turns with the baseline; memory is left open.

    Raises:
        RuntimeError: an answer departs from the baseline's.
    """
    variants = [variant for variant in case.variants if not variant.missing()]
    baseline = variants[0]
    times: dict[str, list[float]] = {variant.name: [] for variant in variants}
    pairs: dict[str, list[float]] = {variant.name: [] for variant in variants}
    answers: dict[str, float] = {}

    def timed(variant: Variant) -> float:
        start = time.perf_counter()
        answers[variant.name] = variant.run()
        times[variant.name].append(time.perf_counter() - start)
        return times[variant.name][-1]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for variant in variants:
            _import(variant)
            if not variant.slow:
                variant.run()
        for _ in range(case.rounds):
            for variant in variants[1:] or variants:
                before = timed(baseline)
                pairs[variant.name].append(timed(variant) / before)
    pairs[baseline.name] = [1.0]
    for variant in variants:
        _hold(case, variant, answers[variant.name], answers[baseline.name])
    rows = []
    for variant in variants:
        low, ratio, high = (float(value) for value in np.percentile(pairs[variant.name], [25, 50, 75]))
        seconds = float(np.median(times[variant.name]))
        rows.append(Row(case.name, variant.name, ratio, low, high, seconds, math.nan, answers[variant.name]))
    return rows


def _hold(case: Case, variant: Variant, answer: float, expected: float) -> None:
    centre = answer - variant.slack
    if variant.within is not None and not abs(centre - expected) <= variant.within * abs(expected):
        raise RuntimeError(
            f"{case.name}: {variant.name} says {case.answer} {centre:.6g}, and the baseline {expected:.6g}: more than "
            f"{variant.within:.0%} apart"
        )


def _import(variant: Variant) -> None:
    for name in variant.needs:
        importlib.import_module(name)


def peak_growth(variant: Variant) -> float:
    """MiB by which the resident set of this process peaks above its imports while `variant` runs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _import(variant)
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # resets the mark
        before = _high_water()
        variant.run()
        return _high_water() - before


def _high_water() -> float:
    """The high-water mark of the resident set in MiB."""
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    if found:
        return int(found.group(1)) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def show(rows: Sequence[Row], cases: Sequence[Case]) -> None:
    """Print a table for each case."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    for case in cases:
        table = Table(
            title=f"{case.name}: times over {case.variants[0].name}, {case.rounds} rounds", title_justify="left"
        )
        table.add_column("variant")
        for heading in (case.answer, "ratio", "quartiles", "seconds", "peak MiB"):
            table.add_column(heading, justify="right")
        for row in rows:
            if row.case == case.name:
                table.add_row(
                    row.variant, f"{row.answer:.5g}", f"{row.ratio:.3g}", f"{row.low:.3g} to {row.high:.3g}",
                    f"{row.seconds:.3g}", f"{row.peak_mib:.3g}",
                )  # fmt: skip
        console.print(table)


def main(script: str, about: str, build: Callable[[bool], Sequence[Case]], argv: Sequence[str] | None = None) -> None:
    """The command line of the benchmark in the file `script`, whose cases `build(quick)` makes."""
    parser = argparse.ArgumentParser(prog=Path(script).name, description=about)
    parser.add_argument("--quick", action="store_true", help="smaller cases, under two minutes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    cases = build(given.quick)
    if given.peak:
        [variant] = [v for case in cases for v in case.variants if [case.name, v.name] == given.peak]
        print(peak_growth(variant))
        return

    def with_peak(row: Row) -> Row:
        """The row with the peak of a process of its own."""
        command = [sys.executable, script, *(["--quick"] if given.quick else []), "--peak", row.case, row.variant]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        return replace(row, peak_mib=float(out))

    rows = []
    for case in cases:
        for variant in case.variants:
            if lacking := variant.missing():
                print(f"{case.name}: {variant.name} left out, without {', '.join(lacking)}", file=sys.stderr)
        rows += measure(case)
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # memory, unlike time, can be measured side by side
        rows = list(pool.map(with_peak, rows))
    if given.json:
        print(json.dumps({"rows": [row.plain() for row in rows]}, indent=2))
    else:
        show(rows, cases)
