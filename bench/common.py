"""What every benchmark shares: variants timed in turns with a baseline, answers held together,
memory apart.

Times are compared within one run only: the baseline runs right before each variant, in every round,
and a ratio is taken from that pair. Peak memory is the growth of the resident set (on a GPU: of
what torch has allocated) over what the imports and the variant's preparations hold, in a process
that runs the variant once.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
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
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

#: What is quick is done several times in a row, as in use: a single run finds the caches as another
#: variant left them.
_BURST, _MOST = 0.03, 32  # seconds, and times

#: Does a case once. Returns the answer, or a function that works it out when the clock has stopped.
Run = Callable[[], "float | Callable[[], float]"]


@dataclass(frozen=True)
class Variant:
    """One way of doing a case.

    Attributes:
        name: what the table calls it.
        run: does it once; with `prepared`, makes what does it, and neither time nor memory counts
            that.
        needs: modules that it imports; without them the variant is left out.
        within: the relative difference from the baseline's answer beyond which the benchmark fails;
            None: another answer is expected.
        slack: a known error bar on top of the answer, taken off before answers are compared.
        slow: whether it takes long enough to go without a first, untimed run.
        limit: the largest answer that it may give in the first, untimed run.
        prepared: whether `run` makes a `Run` rather than being one.
        peer: whether it may fail or miss its `limit`: it is then left out, and the reason is
            printed.
        device: `cpu`, or `cuda`, where work is waited for and memory is torch's.
    """

    name: str
    run: Callable[[], Any]
    needs: tuple[str, ...] = ()
    within: float | None = None
    slack: float = 0.0
    slow: bool = False
    limit: float | None = None
    prepared: bool = False
    peer: bool = False
    device: str = "cpu"

    def ready(self) -> Run:
        """What is to be timed, its modules imported."""
        for name in self.needs:
            importlib.import_module(name)
        run: Run = self.run() if self.prepared else self.run
        if self.device != "cuda":
            return run

        import torch

        def waited() -> float | Callable[[], float]:
            answer = run()
            torch.cuda.synchronize()
            return answer

        return waited

    def missing(self) -> list[str]:
        """The modules that are not installed."""
        return [
            name for name in self.needs if importlib.util.find_spec(name.partition(".")[0]) is None
        ]


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
    """The figures of one variant: `ratio` is its time over the baseline's, with quartiles `low` and
    `high`.
    """

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
        RuntimeError: an answer departs from the baseline's, or is above its limit.
    """
    _settle()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = {variant.name: _tried(case, variant) for variant in case.variants}
        runs = {name: run for name, run in prepared.items() if run}
        variants = [variant for variant in case.variants if variant.name in runs]
        baseline = variants[0]
        times: dict[str, list[float]] = {name: [] for name in runs}
        pairs: dict[str, list[float]] = {name: [] for name in runs}
        last: dict[str, float | Callable[[], float]] = {}

        def timed(name: str) -> float:
            start = time.perf_counter()
            for _ in range(bursts[name]):
                last[name] = runs[name]()
            times[name].append((time.perf_counter() - start) / bursts[name])
            return times[name][-1]

        bursts = dict.fromkeys(runs, 1)
        for variant in variants:
            bursts[variant.name] = (
                1 if variant.slow else min(_MOST, math.ceil(_BURST / timed(variant.name)))
            )
        times = {name: [] for name in runs}

        for _ in range(case.rounds):
            for variant in variants[1:] or variants:
                before = timed(baseline.name)
                pairs[variant.name].append(timed(variant.name) / before)
        answers = {name: _value(answer) for name, answer in last.items()}
    pairs[baseline.name] = [1.0]
    for variant in variants:
        _hold(case, variant, answers[variant.name], answers[baseline.name])
    rows = []
    for variant in variants:
        low, ratio, high = (
            float(value) for value in np.percentile(pairs[variant.name], [25, 50, 75])
        )
        seconds = float(np.median(times[variant.name]))
        rows.append(
            Row(case.name, variant.name, ratio, low, high, seconds, math.nan, answers[variant.name])
        )
    return rows


def _settle() -> None:
    """Bring the allocator where it is in a program that has loaded its data.

    The GNU C library keeps freed memory only once a large block was freed; until then the same
    program gives each step's memory back to the system or keeps it, as chance has it, and a ratio
    of two steps measures that.
    """
    bytearray((1 << 25) - (1 << 16))


def _tried(case: Case, variant: Variant) -> Run | None:
    """What is to be timed, run once unless it is slow; None, with the reason printed, if it is to
    be left out.
    """
    if lacking := variant.missing():
        _leave_out(case, variant, f"without {', '.join(lacking)}")
        return None
    try:
        run = variant.ready()
        answer = math.nan if variant.slow else _value(run())
    except Exception as error:
        if not variant.peer:
            raise
        _leave_out(case, variant, f"{type(error).__name__}: {error}".splitlines()[0])
        return None
    if variant.limit is not None and not answer <= variant.limit:
        said = f"its {case.answer} is {answer:.3g}, and {variant.limit:.3g} is the limit"
        if not variant.peer:
            raise RuntimeError(f"{case.name}: {variant.name}: {said}")
        _leave_out(case, variant, said)
        return None
    return run


def _leave_out(case: Case, variant: Variant, reason: str) -> None:
    print(f"{case.name}: {variant.name} left out, {reason}", file=sys.stderr)


def _value(answer: float | Callable[[], float]) -> float:
    return answer() if callable(answer) else answer


def _hold(case: Case, variant: Variant, answer: float, expected: float) -> None:
    centre = answer - variant.slack
    if variant.within is not None and not abs(centre - expected) <= variant.within * abs(expected):
        raise RuntimeError(
            f"{case.name}: {variant.name} says {case.answer} {centre:.6g}, and the baseline "
            f"{expected:.6g}: more than {variant.within:.0%} apart"
        )


def peak_growth(variant: Variant) -> float:
    """MiB by which memory peaks while `variant` runs, above what it holds when all is prepared."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = variant.ready()
        gc.collect()
        if variant.device == "cuda":
            return _peak_on_gpu(run)
        with suppress(OSError, AttributeError):
            # or freed memory would be used again, and growth go unseen
            ctypes.CDLL(None).malloc_trim(0)
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # resets the mark
        before = _high_water()
        run()
        return _high_water() - before


def _peak_on_gpu(run: Run) -> float:
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    return (torch.cuda.max_memory_allocated() - before) / (1 << 20)


def _high_water() -> float:
    """The high-water mark of the resident set in MiB."""
    status = Path("/proc/self/status")
    match = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    if match:
        return int(match.group(1)) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        1 << 20 if sys.platform == "darwin" else 1 << 10
    )


def show(rows: Sequence[Row], cases: Sequence[Case]) -> None:
    """Print a table for each case."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    for case in cases:
        table = Table(
            title=f"{case.name}: times over {case.variants[0].name}, {case.rounds} rounds",
            title_justify="left",
        )
        table.add_column("variant")
        for heading in (case.answer, "ratio", "quartiles", "seconds", "peak MiB"):
            table.add_column(heading, justify="right")
        for row in rows:
            if row.case == case.name:
                table.add_row(
                    row.variant,
                    f"{row.answer:.5g}",
                    f"{row.ratio:.3g}",
                    f"{row.low:.3g} to {row.high:.3g}",
                    f"{row.seconds:.3g}",
                    f"{row.peak_mib:.3g}",
                )
        console.print(table)


def parser(script: str, about: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    options = argparse.ArgumentParser(prog=Path(script).name, description=about)
    options.add_argument("--quick", action="store_true", help="smaller cases, under two minutes")
    options.add_argument("--json", action="store_true", help="print one JSON object")
    options.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    return options


def main(
    script: str, options: argparse.Namespace, cases: Sequence[Case], at_once: int | None = None
) -> list[Row]:
    """Run the benchmark in the file `script` with the `options`, print it and return its
    rows.

    Args:
        script: the file, which is run again with the same options for the memory of each variant.
        options: what the `parser` read.
        cases: what to do.
        at_once: processes whose memory is measured side by side; None: one for each core.
    """
    if options.peak:
        [variant] = [
            v for case in cases for v in case.variants if [case.name, v.name] == options.peak
        ]
        print(peak_growth(variant))
        return []

    def with_peak(row: Row) -> Row:
        """The row with the peak of a process of its own."""
        command = [sys.executable, script, *sys.argv[1:], "--peak", row.case, row.variant]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        return replace(row, peak_mib=float(out))

    rows = []
    for case in cases:
        print(case.name, file=sys.stderr)
        rows += measure(case)
    # memory, unlike time, can be measured side by side
    with ThreadPoolExecutor(at_once or os.cpu_count()) as pool:
        rows = list(pool.map(with_peak, rows))
    if options.json:
        print(json.dumps({"rows": [row.plain() for row in rows]}, indent=2))
    else:
        show(rows, cases)
    return rows
