"""What a process holds at most while it trains: the whole model in each, and a model under FSDP2,
on gloo, here.

`python bench/sharded.py [--layers N] [--width N] [--json]`. A perceptron of equal layers, batches
of 64 rows in all, Adam. Figures are the highest resident memory of any process, less what it was
before the model was made, in MiB; a small model was trained before.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import privlearn as pv

ROWS, BATCH, STEPS = 1024, 64, 2
#: Large pieces of memory are given back when they are freed.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}


def network(layers: int, width: int, *, shard: bool) -> nn.Module:
    """Each layer is made, and sharded, before the next one is made."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.Tanh()]
        if shard:
            fully_shard(parts[-2])
    model = nn.Sequential(*parts, nn.Linear(width, 10))
    return fully_shard(model) if shard else model


def peak() -> float:
    """The highest resident memory so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def inside(layers: int, width: int, *, shard: bool) -> None:
    """One of the processes that torchrun started: the first prints the largest figure."""
    dist.init_process_group("gloo")
    train(1, 8, shard=shard)  # what is imported and begun once
    before = peak()
    prepared = train(layers, width, shard=shard)
    every: list[tuple[float, float]] = [(0.0, 0.0)] * dist.get_world_size()
    dist.all_gather_object(every, (prepared - before, peak() - before))
    if dist.get_rank() == 0:
        print(json.dumps([max(figures[place] for figures in every) for place in range(2)]))
    dist.barrier()
    dist.destroy_process_group()


def train(layers: int, width: int, *, shard: bool) -> float:
    """A few steps; the highest memory before the first of them."""
    made_up = torch.Generator().manual_seed(0)
    rows = (
        torch.randn(ROWS, width, generator=made_up),
        torch.randint(10, (ROWS,), generator=made_up),
    )
    model = network(layers, width, shard=shard)
    plan = pv.Plan(
        pv.Poisson(BATCH / ROWS), epochs=1, schedule=pv.schedules.Constant(1.0), clip=pv.Flat(1.0)
    )
    loss = nn.CrossEntropyLoss(reduction="none")
    with pv.Run(
        plan,
        model,
        loss,
        rows,
        microbatch=8,
        optimizer=lambda weights: torch.optim.Adam(weights, lr=1e-3),
    ) as run:
        prepared = peak()
        for number, batch in enumerate(next(iter(run))):
            if number == STEPS:
                break
            run.step(batch)
    return prepared


def measured(size: int, layers: int, width: int, *, shard: bool) -> list[float]:
    """The figures of so many processes: before the first step, and in all."""
    agent = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    words = [
        "--layers",
        str(layers),
        "--width",
        str(width),
        "--inside",
        *(["--shard"] if shard else []),
    ]
    done = subprocess.run(
        [sys.executable, *agent, str(Path(__file__)), *words],
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT},
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    figures: list[float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--shard", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return inside(options.layers, options.width, shard=options.shard)
    sizes = {
        f"{'FSDP2' if shard else 'whole'} on {size}": measured(
            size, options.layers, options.width, shard=shard
        )
        for shard in (False, True)
        for size in (1, 2, 4)
    }
    if options.json:
        return print(json.dumps(sizes, indent=1))
    print("| model | before the first step, MiB | in all, MiB |\n| --- | ---: | ---: |")
    for name, (prepared, most) in sizes.items():
        print(f"| {name} | {prepared:,.0f} | {most:,.0f} |")
    return None


if __name__ == "__main__":
    main()
