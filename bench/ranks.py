"""What a private step costs over a plain one, on one process and on several (gloo), on this
machine.

`python bench/ranks.py [--quick] [--processes N] [--json]`. A network with 397,510 parameters,
batches of 1,024 rows in all: each of N processes computes its share. Plain steps are PyTorch's own,
on several processes by `DistributedDataParallel`. Every process has one thread. Figures are medians
of single steps; what other programs do meanwhile moves them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import privlearn as pv

ROWS, BATCH, STEPS = 8192, 1024, 40


def network() -> nn.Module:
    """A small perceptron."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 10))


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Made-up rows and labels."""
    made_up = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, 784, generator=made_up), torch.randint(10, (ROWS,), generator=made_up)


def plain(size: int) -> Iterator[None]:
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


def private() -> Iterator[None]:
    """Private steps, one for each item."""
    rate = BATCH / ROWS
    plan = pv.Plan(
        pv.Poisson(rate), epochs=1000, schedule=pv.schedules.Constant(1.0), clip=pv.Flat(1.0)
    )
    loss = nn.CrossEntropyLoss(reduction="none")
    with pv.Run(
        plan, network(), loss, rows(), optimizer=lambda own: torch.optim.SGD(own, lr=0.1)
    ) as run:
        for epoch in run:
            for batch in epoch:
                run.step(batch)
                yield


def seconds(steps: Callable[[], Iterator[None]], number: int) -> float:
    """The median of single steps, after a few."""
    going, times = steps(), []
    for _ in islice(going, 3):
        pass
    start = time.perf_counter()
    for _ in islice(going, number):
        times.append(time.perf_counter() - start)
        start = time.perf_counter()
    return statistics.median(times)


def inside(number: int) -> None:
    """One of the processes that torchrun started: the first prints the figures. privlearn leaves
    the group at the end.
    """
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    found = {"plain": seconds(lambda: plain(size), number), "private": seconds(private, number)}
    if dist.get_rank() == 0:
        print(json.dumps(found))


def measured(size: int, number: int) -> dict[str, float]:
    """The figures of so many processes; 0: of one that torchrun did not start."""
    agent = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
        if size
        else []
    )
    command = [sys.executable, *agent, str(Path(__file__)), "--inside", str(number)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--inside", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside and "RANK" in os.environ:
        return inside(options.inside)
    if options.inside:
        found = {
            "plain": seconds(lambda: plain(1), options.inside),
            "private": seconds(private, options.inside),
        }
        return print(json.dumps(found))
    number = 5 if options.quick else STEPS
    names = {0: "1, without torchrun", 1: "1", options.processes: str(options.processes)}
    table = {name: measured(size, number) for size, name in names.items()}
    if options.json:
        return print(json.dumps(table, indent=1))
    print(f"{'processes':>20} {'plain ms':>10} {'private ms':>11} {'ratio':>6}")
    for name, own in table.items():
        ratio = own["private"] / own["plain"]
        print(f"{name:>20} {1e3 * own['plain']:>10.1f} {1e3 * own['private']:>11.1f} {ratio:>6.2f}")
    return None


if __name__ == "__main__":
    main()
