"""What a secure sum costs: CPU seconds and bytes, by nodes, neighbours and size, in one process.

    python bench/secure_sum.py [--nodes 3 10 100 300] [--sizes 100 10000 1000000] [--neighbours 20]
    python bench/secure_sum.py --groups

Each row is one round without drop-outs. A node's seconds are the mean over nodes. Rounds with more
than `--most` integers of masks in all are left out. `--groups` prints how many neighbours a sparse
graph needs, by the bounds of docs/secure-sums.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from scipy.stats import hypergeom

from privlearn.flower import InTheClear, SecureSum
from privlearn.flower.summation import Summation
from tests.support.local_grid import LocalGrid

_BOUND = 1000
_COLUMNS = ("nodes", "masks", "size", "s/node", "s server", "kB sent", "kB got", "x size")


class MeasuredGrid(LocalGrid):
    """Counts seconds in nodes and bytes of messages, and keeps none."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seconds, self.sent, self.got = 0.0, 0, 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let each client answer now."""
        messages = list(messages)
        self.got += sum(_bytes_of(message) for message in messages)
        begin = time.process_time()
        ids = super().push_messages(messages)
        self.seconds += time.process_time() - begin
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """What has arrived in reply to these messages."""
        arrived = list(super().pull_messages(message_ids))
        self.received.clear()
        self.sent += sum(_bytes_of(message) for message in arrived)
        return arrived


def measure(nodes: int, size: int, summation: Summation, masks: int) -> None:
    """Print one row."""
    app = ClientApp()
    integers = np.random.default_rng(0).integers(-_BOUND, _BOUND, size)
    summation.serve(app, "sum", lambda content, context: integers)
    grid = MeasuredGrid(app, [{}] * nodes)
    begin = time.process_time()
    total = summation.add_up(
        grid,
        list(grid.get_node_ids()),
        "sum",
        RecordDict(),
        size=size,
        bound=_BOUND,
        timeout=3600.0,
    )
    server = time.process_time() - begin - grid.seconds
    assert np.array_equal(total.values, integers * nodes)
    cells = (
        f"{nodes}",
        f"{masks}",
        f"{size}",
        f"{grid.seconds / nodes:.4f}",
        f"{server:.3f}",
        f"{grid.sent / nodes / 1000:.1f}",
        f"{grid.got / nodes / 1000:.1f}",
        f"{grid.sent / nodes / 8 / size:.2f}",
    )
    print("".join(cell.rjust(10) for cell in cells), flush=True)


def _bytes_of(message: Message) -> int:
    return sum(record.count_bytes() for record in message.content.values())


def print_groups(colluding: float, dropping: float) -> None:
    """How many neighbours are needed for several numbers of nodes."""
    print("nodes  neighbours: masks taken off or parts untied < 2^-40, round fails < 2^-20")
    for nodes in (100, 300, 1_000, 10_000, 10**6):
        for neighbours in range(4, nodes - 1, 2):
            private, works = _bounds(nodes, neighbours, colluding, dropping)
            if private < 2**-40 and works < 2**-20:
                print(f"{nodes:7d}  {neighbours}")
                break
        else:
            print(f"{nodes:7d}  all")


def _bounds(nodes: int, neighbours: int, colluding: float, dropping: float) -> tuple[float, float]:
    """Bounds by the union over nodes of what goes wrong with privacy, and with the round."""
    group = neighbours + 1
    least = SecureSum(neighbours=neighbours)._terms.least(nodes)
    taken = partial(hypergeom.sf, M=nodes - 1, N=neighbours)
    unmasked = nodes * float(taken(least - 1, n=round(colluding * nodes)))
    # a part is untied only where as many nodes in a row are gone as there are neighbours on a side
    gone = round((colluding + dropping) * nodes)
    untied = nodes * float(
        np.prod([max(gone - at, 0) / (nodes - at) for at in range(neighbours // 2)])
    )
    fails = nodes * float(taken(group - least, n=round(dropping * nodes)))
    return unmasked + untied, fails


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 10, 100, 300])
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 10_000, 1_000_000])
    parser.add_argument("--neighbours", type=int, default=20)
    parser.add_argument("--most", type=float, default=1.1e9)
    parser.add_argument("--groups", action="store_true")
    parser.add_argument("--colluding", type=float, default=0.1)
    parser.add_argument("--dropping", type=float, default=0.1)
    options = parser.parse_args()
    if options.groups:
        print_groups(options.colluding, options.dropping)
        return
    print("".join(column.rjust(10) for column in _COLUMNS))
    for size in options.sizes:
        for nodes in options.nodes:
            ways: list[tuple[Summation, int]] = [(InTheClear(), 0), (SecureSum(), nodes)]
            if options.neighbours < nodes - 1:
                sparse = SecureSum(neighbours=options.neighbours)
                ways.append((sparse, options.neighbours + 1))
            for summation, masks in ways:
                if nodes * max(masks, 1) * size <= options.most:
                    measure(nodes, size, summation, masks)


if __name__ == "__main__":
    main()
