"""What a step of DP-SGD takes as models and processes grow: memory, traffic and time, computed; and
what is measured.

`python bench/scale.py [--measure] [--json]` prints tables of docs/performance.md. Rates are the
assumptions in `Rates`, but for that of noise, which `--measure` measures here, with the time to
draw from 10^10 rows and to price 10^6 steps. Every term follows from what the code does: each
process holds the model; sums go to the process that adds up these numbers and adds their noise, in
double precision if one process has many examples, and back in single (`runs.ranks`).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

PARAMETERS = {"1M": 10**6, "100M": 10**8, "1B": 10**9, "7B": 7 * 10**9}
#: The size on the page: of the others all but norms is in proportion.
ON_THE_PAGE = ("1B",)
RANKS = (1, 8, 64)
#: Bytes of a number in a model, in a sum on its way, and of a norm.
SINGLE, DOUBLE = 4, 8
#: Expected examples of a process whose sums are in single precision.
MOST = 512


@dataclass(frozen=True)
class Rates:
    """What a process can do in a second, and how large batches are.

    Attributes:
        flops: operations, of which a step takes 6 for each parameter and token (assumed: a third of
            a GPU's peak).
        slower: a private backward pass over a plain one (docs/performance.md: 1.2 to 1.5 on most
            networks).
        bytes: that a process sends, or receives (assumed: links of 200 Gbit/s).
        draws: normal numbers (measured: one thread, AES in counter mode).
        disk: bytes that are written (assumed).
        examples: the expected batch.
        tokens: of an example.
    """

    flops: float = 3e14
    slower: float = 1.3
    bytes: float = 25e9
    draws: float = 1e8
    disk: float = 2e9
    examples: int = 1024
    tokens: int = 512


def step(parameters: int, ranks: int, rates: Rates) -> dict[str, Any]:
    """Bytes and seconds of one step, of one process; Adam's two moments are in the optimizer's
    state.
    """
    summed = DOUBLE if rates.examples / ranks > MOST else SINGLE  # by one process
    # to be added up, and to be handed out
    travels = (summed + SINGLE) * parameters * (ranks - 1) / ranks
    sums = SINGLE + (DOUBLE if summed == DOUBLE else 0)
    # what it sends, what it receives, and its slice
    sums += 2 * summed + DOUBLE / ranks if ranks > 1 else 0
    seconds = {
        "compute": 6
        * parameters
        * rates.examples
        * rates.tokens
        * rates.slower
        / ranks
        / rates.flops,
        "sending": travels / rates.bytes,
        "noise": parameters / ranks / rates.draws,
    }
    return {
        "weights and optimizer": 3 * SINGLE * parameters,
        "sums": sums * parameters,
        "norms": math.ceil(rates.examples / ranks) * SINGLE,
        "traffic": travels,
        "checkpoint": 3 * SINGLE * parameters,
        "seconds": seconds,
        "largest": max(seconds, key=seconds.__getitem__),
        "checkpoint seconds": 3 * SINGLE * parameters / rates.disk,
    }


def table(rates: Rates, sizes: Collection[str] = tuple(PARAMETERS)) -> Iterator[str]:
    """The table of steps of models of these sizes, in Markdown."""
    heads = (
        "parameters",
        "processes",
        "weights and Adam",
        "sums",
        "norms",
        "sent a step",
        "compute",
        "sending",
        "noise",
        "largest",
        "checkpoint",
    )
    yield f"| {' | '.join(heads)} |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: |"
    for name in sizes:
        for ranks in RANKS:
            costs = step(PARAMETERS[name], ranks, rates)
            memory = [
                size(costs[part]) for part in ("weights and optimizer", "sums", "norms", "traffic")
            ]
            times = [seconds(costs["seconds"][part]) for part in ("compute", "sending", "noise")]
            checkpoint = f"{size(costs['checkpoint'])}, {seconds(costs['checkpoint seconds'])}"
            cells = [name, ranks, *memory, *times, costs["largest"], checkpoint]
            yield f"| {' | '.join(map(str, cells))} |"


def size(number: float) -> str:
    """Bytes, in words."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


def seconds(number: float) -> str:
    """A time, in words."""
    unit, number = ("s", number) if number >= 1 or not number else ("ms", 1000 * number)
    return f"{number:.0f} {unit}" if number >= 10 or not number else f"{number:.2g} {unit}"


def timed(action: Callable[[], Any], times: int) -> float:
    """The median time of an action in milliseconds, after a first one."""
    action()
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        action()
        taken.append(time.perf_counter() - start)
    return 1000 * median(taken)


def measured() -> dict[str, Any]:
    """What is measured here: noise, drawing, pricing, charging."""
    import torch

    from privlearn.core import inclusion
    from privlearn.core.accounting import pld, rdp
    from privlearn.core.accounting.events import Repeated
    from privlearn.core.accounting.guarantee import Adjacency
    from privlearn.core.accounting.ledger import Ledger
    from privlearn.core.accounting.mechanisms import Gaussian, PoissonSampled
    from privlearn.core.mechanisms.noise import add_gaussian
    from privlearn.core.streams import Streams

    torch.set_num_threads(1)
    streams, values = Streams.new(), torch.zeros(10**7)
    figures: dict[str, Any] = {
        "noise, draws a second": 1e10 / timed(lambda: add_gaussian([values], 1.0, streams.noise), 5)
    }
    for rows, rate in ((10**8, 1e-5), (10**10, 1e-7), (10**10, 1e-6), (10**10, 1e-5)):
        figures[f"drawing at rate {rate:g} of {rows:.0e} rows, ms"] = timed(
            lambda rows=rows, rate=rate: inclusion.taken(rows, rate, streams.sampling), 30
        )  # type: ignore[misc]
    for rate, sigma in ((1e-7, 1.0), (1e-5, 1.0), (1e-5, 0.6), (1e-4, 1.0)):
        event = Repeated(PoissonSampled(rate, Gaussian(sigma)), 10**6)
        for delta in (1e-6, 1e-11):
            for name, compute in (("pld", pld.epsilon), ("rdp", rdp.epsilon)):
                start = time.perf_counter()
                epsilon = compute(event, delta)
                figures[
                    f"10^6 steps at rate {rate:g}, sigma {sigma:g}, delta {delta:g}, {name}"
                ] = {"epsilon": epsilon, "ms": 1000 * (time.perf_counter() - start)}
    ledger, event = Ledger(), PoissonSampled(1e-7, Gaussian(1.0))
    figures["a charge, ms"] = timed(lambda: ledger.charge(event, Adjacency.ADD_REMOVE), 10_000)
    return figures


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Print the table, and what is measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rates = Rates()
    steps = {
        name: {ranks: step(number, ranks, rates) for ranks in RANKS}
        for name, number in PARAMETERS.items()
    }
    answer: dict[str, Any] = {"rates": asdict(rates), "steps": steps}
    if options.measure:
        answer["measured"] = measured()
    if options.json:
        print(json.dumps(answer))
        return answer
    print("\n".join(table(rates)))
    for name, figure in answer.get("measured", {}).items():
        print(f"{name}: {figure}")
    return answer


if __name__ == "__main__":
    main()
