"""What a sum over a federation costs, in bytes and seconds.

    python bench/federation.py [--summation module:Class] [--clients 3,10,100,1000] [--engine 3]

Clients are called in this process, one after another, so that a second is one of work and not of
waiting; with `--engine` some run in Flower's simulation engine, too. Each client sends whole
numbers that are drawn at random; the sum is compared with theirs. Bytes are those of the messages'
contents, without Flower's envelopes and TLS. A summation is a class without arguments, such as
`privlearn.flower.summation:InTheClear`.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from privlearn.flower.summation import Circle, Summation
from privlearn.flower.traffic import CountedGrid
from tests.support.local_grid import LocalGrid

#: What is answered, and how many whole numbers that is.
ANSWERS = {"64 numbers": 64, "votes: 10 classes x 100 queries": 1000, "4096 numbers": 4096}
QUESTION, BOUND = "cost", 1000
#: Public numbers in the request: 100 inputs of 64.
_INPUTS = np.zeros((100, 64), np.float32)


@dataclass(frozen=True)
class Row:
    """What one sum cost.

    Attributes:
        answer: what was answered.
        clients: how many there were.
        messages: to and from a client.
        down: bytes to a client.
        up: bytes from a client.
        client_seconds: of one client.
        server_seconds: of the server, for all clients.
    """

    answer: str
    clients: int
    messages: float
    down: float
    up: float
    client_seconds: float
    server_seconds: float


class TimedGrid(LocalGrid):
    """A grid in this process that takes the clients' time."""

    seconds = 0.0

    def _answer(self, message: Message) -> list[Message]:
        started = time.perf_counter()
        replies = super()._answer(message)
        self.seconds += time.perf_counter() - started
        return replies


def numbers(size: int, place: int) -> NDArray[np.int64]:
    """What the client at a place sends."""
    return np.random.default_rng((size, place)).integers(0, BOUND + 1, size)


def make_app(summation: Summation, size: int) -> ClientApp:
    """The app of a client that sends so many numbers."""
    app = ClientApp()

    def compute(content: RecordDict, context: Context, circle: Circle) -> NDArray[np.int64]:
        # by its place, which the engine knows as the partition's number
        place = int(context.node_config["partition-id"])
        return numbers(size, place)

    summation.serve(app, QUESTION, compute)
    return app


def add_up(summation: Summation, grid: Grid, nodes: Sequence[int], size: int) -> NDArray[np.int64]:
    """One sum."""
    content = RecordDict({"inputs": ArrayRecord([_INPUTS])})
    total = summation.add_up(grid, nodes, QUESTION, content, size=size, bound=BOUND, timeout=3600.0)
    assert len(total.nodes) == len(nodes)
    return total.values


def measure(summation: Summation, answer: str, clients: int, rounds: int = 3) -> Row:
    """The cost of one sum, with the median of the times of some rounds."""
    size, rows = ANSWERS[answer], []
    expected = sum(numbers(size, place) for place in range(clients))
    for _ in range(rounds):
        configs = [{"partition-id": place} for place in range(clients)]
        local = TimedGrid(make_app(summation, size), configs)
        grid = CountedGrid(local)
        started = time.perf_counter()
        values = add_up(summation, grid, list(grid.get_node_ids()), size)
        seconds = time.perf_counter() - started
        assert np.array_equal(values, expected)
        passed = list(grid.traffic.values())
        rows.append(
            Row(
                answer,
                clients,
                sum(each.requests + each.replies for each in passed) / clients,
                sum(each.request_bytes for each in passed) / clients,
                sum(each.reply_bytes for each in passed) / clients,
                local.seconds / clients,
                seconds - local.seconds,
            )
        )
    return sorted(rows, key=lambda row: row.server_seconds)[rounds // 2]


def growth(rows: Sequence[Row], field: str) -> float:
    """The exponent of the clients in a figure: the slope of a line through logarithms."""
    many = [row for row in rows if row.clients >= 10]
    x = [math.log(row.clients) for row in many]
    y = [math.log(max(getattr(row, field), 1e-9)) for row in many]
    return statistics.linear_regression(x, y).slope if len(many) > 1 else math.nan


def run_engine(summation: Summation, answer: str, clients: int) -> float:
    """Seconds of one sum in Flower's simulation engine, from the first request on."""
    from flwr.simulation import run_simulation

    from privlearn.flower.requests import await_nodes

    size, seconds = ANSWERS[answer], []
    app, server_app = make_app(summation, size), ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        nodes = await_nodes(grid, clients, 120.0)
        add_up(summation, grid, nodes, size)  # processes of the engine start
        started = time.perf_counter()
        add_up(summation, grid, nodes, size)
        seconds.append(time.perf_counter() - started)

    run_simulation(server_app, app, num_supernodes=clients)
    [taken] = seconds
    return taken


def table(rows: Sequence[Row]) -> str:
    """Rows as a table in Markdown."""
    head = ("answer", "clients", "messages", "down (kB)", "up (kB)", "client (ms)", "server (s)")
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    lines += [
        f"| {row.answer} | {row.clients:,} | {row.messages:.0f} | {row.down / 1e3:.1f} | "
        f"{row.up / 1e3:.1f} | {row.client_seconds * 1e3:.2f} | {row.server_seconds:.3f} |"
        for row in rows
    ]
    return "\n".join(lines)


def find_summation(name: str) -> Summation:
    """The summation that `module:Class` names."""
    module, _, kind = name.partition(":")
    summation: Any = getattr(import_module(module), kind)()
    return summation


def main() -> None:
    """Print tables and exponents."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--summation", default="privlearn.flower.summation:InTheClear")
    parser.add_argument("--clients", default="3,10,100,1000")
    parser.add_argument("--engine", default="", help="numbers of clients in the simulation engine")
    options = parser.parse_args()
    summation = find_summation(options.summation)
    counts = [int(each) for each in options.clients.split(",")]
    rows = [measure(summation, answer, count) for answer in ANSWERS for count in counts]
    print(f"{options.summation}\n\n{table(rows)}\n")
    for answer in ANSWERS:
        mine = [row for row in rows if row.answer == answer]
        parts = {name: growth(mine, name) for name in ("up", "client_seconds", "server_seconds")}
        print(f"{answer}: exponents {', '.join(f'{k} {v:.2f}' for k, v in parts.items())}")
    for count in filter(None, options.engine.split(",")):
        for answer in ANSWERS:
            seconds = run_engine(summation, answer, int(count))
            print(f"simulation engine, {count} clients, {answer}: {seconds:.2f} s")


if __name__ == "__main__":
    main()
