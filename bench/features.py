"""Class statistics in one pass over blocks, only one of which is held, beside plain numpy means of
each class.

`python bench/features.py [--quick] [--json] [--threads N]`. Rows are clipped, and counts, class
sums and second moments are found in float64; numpy finds the means alone, in float32, which over
100,000 rows rounds distances by about 1e-3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import common
import numpy as np
import torch
from common import Case, Variant

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.row_sums import box_sums, class_statistics
from privlearn.core.sampling import FullBatch

CLASSES = 10
#: Rows that are made at once.
_BLOCK = 10_000


@dataclass(frozen=True)
class Size:
    """How large the case is: rows, features, and how often each variant is timed."""

    rows: int
    features: int
    rounds: int


FULL, QUICK, SMOKE = Size(1_000_000, 1_000, 3), Size(100_000, 1_000, 5), Size(300, 7, 1)


@cache
def made_up(size: Size) -> tuple[np.ndarray, np.ndarray]:
    """Rows of numbers in [0, 1), single precision, and their classes."""
    rng = np.random.default_rng(0)
    x = np.empty((size.rows, size.features), np.float32)
    for start in range(0, size.rows, _BLOCK):
        rng.random(out=x[start : start + _BLOCK], dtype=np.float32)
    return x, rng.integers(CLASSES, size=size.rows)


def one_pass(size: Size) -> Case:
    """Statistics of all rows; the answer is the largest distance between two class means, of
    unclipped rows.
    """
    norm = 10.0 * size.features

    def by_numpy() -> common.Run:
        x, y = made_up(size)

        def run() -> float:
            means = np.stack([x[y == one].mean(0) for one in range(CLASSES)])
            return float((means.max(0) - means.min(0)).max())

        return run

    def by_privlearn(
        find: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    ) -> Callable[[], common.Run]:
        def prepared() -> common.Run:
            x, y = made_up(size)

            def run() -> float:
                (sample,) = FullBatch().draw(len(x))
                counts, sums = find(x, y, sample, Adjacency.ADD_REMOVE)
                means = sums / counts[:, None]
                return float((means.amax(0) - means.amin(0)).max())

            return run

        return prepared

    def clipped(*rows: object, parts: tuple[str, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        counts, sums, *_ = class_statistics(*rows, classes=CLASSES, norm=norm, parts=parts)  # type: ignore[arg-type]
        return counts.values[0], sums.values[0]

    def boxed(*rows: object) -> tuple[torch.Tensor, torch.Tensor]:
        statistics = box_sums(*rows, classes=CLASSES, bound=2.0)  # type: ignore[arg-type]
        return statistics.counts.values[0], statistics.sums

    ways = (
        Variant("numpy means", by_numpy, prepared=True, slow=True),
        Variant(
            "counts and sums",
            by_privlearn(lambda *r: clipped(*r, parts=("counts", "sums"))),
            within=1e-2,
            prepared=True,
            slow=True,
        ),
        Variant(
            "counts, sums and second moments",
            by_privlearn(lambda *r: clipped(*r, parts=("counts", "sums", "moments"))),
            within=1e-2,
            prepared=True,
            slow=True,
        ),
        Variant(
            "sums of bounded numbers, for Gumbel noise",
            by_privlearn(boxed),
            within=1e-2,
            prepared=True,
            slow=True,
        ),
    )
    return Case(
        f"class statistics of {size.rows:,} x {size.features:,}", "distance", ways, size.rounds
    )


def main() -> None:
    """The command line."""
    parser = common.parser(__file__, "Class statistics in one pass over blocks.")
    parser.add_argument("--threads", type=int, help="threads of torch; by default its own choice")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    common.main(__file__, options, [one_pass(QUICK if options.quick else FULL)], 1)


if __name__ == "__main__":
    main()
