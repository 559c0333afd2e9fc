"""Training from a table that does not fit into memory, beside training on the same rows in memory.

`python bench/big_table.py --folder DIR [--rows N] [--columns N] [--steps N] [--memory GIB]
[--json]`.
A Parquet file of made-up float32 numbers is written (10^7 rows of 100 columns take 4 GB, and twice
that with the packed folder), packed, and trained on, each in a process of its own. Packing and
training from disk run with at most `--memory` GiB of private writable memory (RLIMIT_DATA), beyond
which an allocation fails: that counts all that is not backed by a file, also what is reserved and
not used, so that the allocators of glibc and Arrow are asked to reserve little. Pages of files are
the system's cache, which it takes back when it needs to; they do count in the resident set, so the
peak of anonymous memory (RssAnon) is printed, read every 10 ms. The time of a step is the median;
weights are compared bit by bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

CHUNK, BATCH = 1 << 16, 1024
#: Allocators that reserve little, and one thread.
LITTLE = {"MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}
TARGET, CLASSES = "label", ("no", "yes")


def names(columns: int) -> list[str]:
    """The columns of numbers."""
    return [f"c{number}" for number in range(columns)]


def write(file: Path, rows: int, columns: int) -> None:
    """The made-up table, some rows at a time."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    rng, writer = np.random.default_rng(0), None
    for start in range(0, rows, CHUNK):
        x = rng.random((min(CHUNK, rows - start), columns), dtype=np.float32)
        labels = np.where(x[:, 0] + x[:, 1] + 0.2 * rng.random(len(x)) > 1.1, *reversed(CLASSES))
        parts = dict(zip(names(columns), x.T.copy(), strict=True))
        table = pa.table({**parts, TARGET: pa.array(labels)})
        writer = writer or ParquetWriter(
            file, table.schema, compression="none", use_dictionary=[TARGET]
        )
        writer.write_table(table, row_group_size=CHUNK)
    assert writer is not None
    writer.close()


def pack(file: Path, out: Path, columns: int) -> None:
    """As `privlearn data pack`."""
    from privlearn.data import pack
    from privlearn.data.schema import Number, Schema

    pack(
        file,
        out,
        schema=Schema(TARGET, CLASSES, tuple(Number(name, 0, 1) for name in names(columns))),
    )


def train(folder: Path, steps: int, *, in_memory: bool) -> dict[str, Any]:
    """Some steps of DP-SGD: seconds until the first, of a step, and a digest of the weights."""
    from dataclasses import replace

    import torch

    import privlearn as pv

    torch.set_num_threads(1)
    start = time.perf_counter()
    data = pv.load(folder)
    if in_memory:
        data = replace(data, x=np.array(data.x), y=np.array(data.y))
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(data.x.shape[1], 256), torch.nn.ReLU(), torch.nn.Linear(256, 2)
    )
    plan = pv.Plan(
        pv.Poisson(BATCH / len(data.x)),
        epochs=1,
        schedule=pv.schedules.Constant(1.0),
        clip=pv.Flat(1.0),
    )
    run = pv.Run(
        plan,
        model,
        torch.nn.CrossEntropyLoss(reduction="none"),
        data,
        streams=pv.Streams.new(0),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
    )
    seconds: list[float] = []
    with run:
        for epoch in run:
            began = time.perf_counter()
            for number, batch in enumerate(epoch):
                run.step(batch)
                ended = time.perf_counter()
                seconds.append(ended - began)
                began = ended
                if number + 1 == steps:
                    break
            break
        weights = b"".join(
            weight.detach().numpy().tobytes() for weight in run.result().model.parameters()
        )
    return {
        "seconds_to_the_first_step": time.perf_counter() - start - sum(seconds),
        "seconds_a_step": statistics.median(seconds),
        "weights": hashlib.sha256(weights).hexdigest(),
    }


class Peak(threading.Thread):
    """The peak of this process's anonymous memory, read while it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes = 0

    def run(self) -> None:
        """Read it until the process ends."""
        while True:
            line = next(
                row
                for row in Path("/proc/self/status").read_text().splitlines()
                if row.startswith("RssAnon")
            )
            self.bytes = max(self.bytes, int(line.split()[1]) * 1024)
            time.sleep(0.01)


def child(task: str, folder: Path, columns: int, steps: int) -> dict[str, Any]:
    """Do one part in this process, and say what it took."""
    peak = Peak()
    peak.start()
    start, answer = time.perf_counter(), dict[str, Any]()
    if task == "pack":
        pack(folder / "table.parquet", folder / "packed", columns)
    else:
        answer = train(folder / "packed", steps, in_memory=task == "memory")
    return {
        **answer,
        "seconds": time.perf_counter() - start,
        "peak_anonymous_mib": peak.bytes / 2**20,
    }


def part(task: str, options: argparse.Namespace, gib: float | None) -> dict[str, Any]:
    """One part in a process of its own, with so much memory."""
    limit = None if gib is None else int(gib * 2**30)
    command = [
        sys.executable,
        __file__,
        "--task",
        task,
        "--folder",
        str(options.folder),
        "--columns",
        str(options.columns),
        "--steps",
        str(options.steps),
    ]
    done = subprocess.run(
        command,
        check=True,
        stdout=subprocess.PIPE,
        env={**os.environ, **LITTLE},
        preexec_fn=lambda: limit and resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Write, pack, train from disk, train in memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--memory", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.task:
        print(json.dumps(child(options.task, options.folder, options.columns, options.steps)))
        return {}
    options.folder.mkdir(parents=True, exist_ok=True)
    needed, free = 3 * 4 * options.rows * options.columns, shutil.disk_usage(options.folder).free
    if needed > free:
        parser.error(
            f"{needed / 1e9:.0f} GB are needed, and {free / 1e9:.0f} GB are free in "
            f"{options.folder}"
        )
    file, start = options.folder / "table.parquet", time.perf_counter()
    write(file, options.rows, options.columns)
    figures: dict[str, Any] = {
        "rows": options.rows,
        "columns": options.columns,
        "gigabytes": file.stat().st_size / 1e9,
        "write": {"seconds": time.perf_counter() - start},
    }
    figures |= {task: part(task, options, options.memory) for task in ("pack", "disk")}
    figures["memory"] = part("memory", options, None)
    figures["same_weights"] = figures["disk"]["weights"] == figures["memory"]["weights"]
    figures["ratio_of_a_step"] = (
        figures["disk"]["seconds_a_step"] / figures["memory"]["seconds_a_step"]
    )
    print(json.dumps(figures) if options.json else json.dumps(figures, indent=1))
    return figures


if __name__ == "__main__":
    main()
