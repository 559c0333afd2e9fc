"""What a private step costs over a plain one, on one process and on several (gloo), on this
machine.

`python bench/ranks.py [--quick] [--processes N] [--json]`. A network with 397,510 parameters,
batches of 1,024 rows in all: each of N processes computes its share. Plain steps are PyTorch's own,
on several processes by `DistributedDataParallel`. Every process has one thread.

Plain and private steps take turns, ten of each, and the numbers of processes take turns in rounds.
Figures are medians of single steps over all rounds: of the time that passes, and of the first
process's processor time, which other programs disturb less and which has no waiting in it. Steps
before are not counted: the first batch of each size is looked at once (does the model keep its
examples apart?), which takes two passes, and 200 steps meet most sizes. `--first` counts from the
fourth step, as a short run would.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import privlearn as pv

ROWS, BATCH = 8192, 1024
#: Steps that are not counted, turns in a round, steps in a turn, rounds.
BEFORE, TURNS, STEPS, ROUNDS = 200, 6, 10, 3


def network() -> nn.Module:
    """A small perceptron."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 10))


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Made-up rows and labels."""
    made_up = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, 784, generator=made_up), torch.randint(10, (ROWS,), generator=made_up)


def plain(size: int) -> Generator[None]:
    """Steps without privacy, one for each item."""
    x, y = rows()
    model: nn.Module = network()
    if size > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        drawn = torch.randint(ROWS, (BATCH // size,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[drawn]), y[drawn]).backward()
        optimizer.step()
        yield


def private() -> Generator[None]:
    """Private steps, one for each item."""
    rate = BATCH / ROWS
    plan = pv.Plan(
        pv.Poisson(rate), epochs=1000, schedule=pv.schedules.Constant(1.0), clip=pv.Flat(1.0)
    )
    loss = nn.CrossEntropyLoss(reduction="none")
    with pv.Run(
        plan, network(), loss, rows(), optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1)
    ) as run:
        for epoch in run:
            for batch in epoch:
                run.step(batch)
                yield


def seconds(kinds: dict[str, Generator[None]], before: int, turns: int) -> dict[str, list[float]]:
    """The seconds of single steps by kind, and of their processor time; the kinds take turns."""
    by_kind: dict[str, list[float]] = {}
    for steps in kinds.values():
        for _ in islice(steps, before):
            pass
    for _ in range(turns):
        for kind, steps in kinds.items():
            for _ in range(STEPS):
                start, busy = time.perf_counter(), time.process_time()
                next(steps)
                by_kind.setdefault(kind, []).append(time.perf_counter() - start)
                by_kind.setdefault(f"{kind} busy", []).append(time.process_time() - busy)
    return by_kind


def inside(before: int, turns: int) -> None:
    """One of the processes that torchrun started, or one by itself: the first prints the figures.
    privlearn leaves the group at the end.
    """
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    size = dist.get_world_size() if dist.is_initialized() else 1
    kinds = {"plain": plain(size), "private": private()}
    figures = seconds(kinds, before, turns)
    for steps in kinds.values():
        steps.close()
    if size == 1 or dist.get_rank() == 0:
        print(json.dumps(figures))


def measured(size: int, before: int, turns: int) -> dict[str, list[float]]:
    """The figures of so many processes; 0: of one that torchrun did not start."""
    agent = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
        if size
        else []
    )
    words = [str(Path(__file__)), "--inside", str(before), str(turns)]
    done = subprocess.run(
        [sys.executable, *agent, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    figures: dict[str, list[float]] = json.loads(done.stdout)
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--first", action="store_true", help="count from the fourth step")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--inside", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return inside(*options.inside)
    before = 3 if options.first or options.quick else BEFORE
    rounds, turns = (1, 1) if options.quick else (ROUNDS, TURNS)
    names = {0: "1, without torchrun", 1: "1", options.processes: str(options.processes)}
    steps: dict[str, dict[str, list[float]]] = {name: {} for name in names.values()}
    for _ in range(rounds):
        for size, name in names.items():
            for kind, times in measured(size, before, turns).items():
                steps[name].setdefault(kind, []).extend(times)
    table = {
        name: {kind: statistics.median(times) for kind, times in kinds.items()}
        for name, kinds in steps.items()
    }
    if options.json:
        return print(json.dumps(table, indent=1))
    print(f"{'processes':>20} {'plain ms':>9} {'private ms':>11} {'ratio':>6} {'busy':>6}")
    for name, medians in table.items():
        ratio, busy = (
            medians["private"] / medians["plain"],
            medians["private busy"] / medians["plain busy"],
        )
        times = f"{1e3 * medians['plain']:>9.1f} {1e3 * medians['private']:>11.1f}"
        print(f"{name:>20} {times} {ratio:>6.2f} {busy:>6.2f}")
    return None


if __name__ == "__main__":
    main()
