"""What a ledger in a database costs: a charge, opening it, and several processes at once.

    python bench/ledgers.py [--charges 1000000] [--processes 8] [--at postgresql://...]

Each charge is on the disk before the next begins. Charges of ten kinds are put into the ledger
first, many in one row, and then measured one by one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import Composed, Repeated, tally
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.mechanisms import Gaussian, PoissonSampled
from privlearn.errors import BudgetExceeded

ADD = Adjacency.ADD_REMOVE
_SECONDS = 5.0


def measure(address: str, charges: int, processes: int) -> None:
    """Print the figures of one ledger."""
    kinds = [PoissonSampled(0.01, Gaussian(100.0 + n)) for n in range(10)]
    ledger = Ledger.open(address, create=True)
    ledger.charge(kinds[0], ADD)
    ledger.charge(Composed(tuple(Repeated(kind, charges // 10) for kind in kinds)), ADD)
    print(f"charges in the ledger: {sum(tally(ledger.event).values()):,}")
    print(f"a charge: {_times(lambda: ledger.charge(kinds[3], ADD), 200)}")
    print(f"opening and reading: {_times(lambda: Ledger.open(address).adaptive, 30)}")
    with get_context("spawn").Pool(processes) as pool:
        started = time.perf_counter()
        counts = pool.map(_charge_for_a_while, [address] * processes, chunksize=1)
        seconds = time.perf_counter() - started
    before = charges + 1 + 200
    charged = sum(tally(Ledger.open(address).event).values())
    print(
        f"{processes} processes for {seconds:.1f} s: {sum(counts) / seconds:.0f} charges a second"
    )
    print(f"made {sum(counts)}, in the ledger {charged - before}, fewest of one {min(counts)}")


def _charge_for_a_while(address: str) -> int:
    ledger, count = Ledger.open(address), 0
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        ledger.charge(PoissonSampled(0.01, Gaussian(100.0 + count % 10)), ADD)
        count += 1
    return count


def overdraw(address: str, processes: int) -> None:
    """Let processes charge until a budget is gone: together no more than one alone could."""
    budget = Budget(rho=200 * 0.5 / 50**2)
    Ledger.open(address, budget, data_set="limited")
    with get_context("spawn").Pool(processes) as pool:
        counts = pool.map(_charge_all, [address] * processes, chunksize=1)
    print(f"a budget for 200 charges: {processes} processes made {sum(counts)}")


def _charge_all(address: str) -> int:
    ledger, count = Ledger.open(address, data_set="limited"), 0
    try:
        while True:
            ledger.charge(Gaussian(50.0), ADD)
            count += 1
    except BudgetExceeded:
        return count


def _times(action: Callable[[], object], repeats: int) -> str:
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        seconds.append(1000 * (time.perf_counter() - started))
    low, middle, high = statistics.quantiles(seconds, n=4)
    return f"{middle:.2f} ms (quartiles {low:.2f} and {high:.2f}, most {max(seconds):.1f})"


def main() -> None:
    """Measure by the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--charges", type=int, default=10**6)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--at", help="the address of an empty database (default: a file)")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} processors")
    with tempfile.TemporaryDirectory() as folder:
        address = arguments.at or str(Path(folder, "ledger.db"))
        measure(address, arguments.charges, arguments.processes)
        overdraw(address, arguments.processes)


if __name__ == "__main__":
    main()
