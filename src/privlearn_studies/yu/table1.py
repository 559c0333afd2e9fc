"""Yu et al. 2019, Table I: what is called random batches, and what is drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from privlearn.accounting.mechanisms import Gaussian
from privlearn.sampling import Partition, Poisson, Sampler, Shuffle
from privlearn.streams import Streams
from privlearn_studies import plots
from privlearn_studies.findings import Findings, Row
from privlearn_studies.writer import table

_ITEMS = 10
Epoch = list[list[int]]


def loader(seed: int) -> Epoch:
    """One epoch of PyTorch's `DataLoader(shuffle=True)` over ten items, in batches of one."""
    import torch
    from torch.utils.data import DataLoader

    order = torch.Generator().manual_seed(seed)
    batches: DataLoader[int] = DataLoader(range(_ITEMS), batch_size=1, shuffle=True, generator=order)  # type: ignore[arg-type]
    return [batch.tolist() for batch in batches]


def drawn(sampler: Sampler) -> Callable[[int], Epoch]:
    """One epoch of `sampler` over ten items, as a function of the seed."""
    return lambda seed: [s.indices.tolist() for s in sampler.draw(_ITEMS, Streams.new(seed).sampling)]


#: Name, what draws an epoch, how it is charged, and the paper's example where it shows a method of this kind.
METHODS: tuple[tuple[str, Callable[[int], Epoch], str, Epoch | None], ...] = (
    ("torch DataLoader, shuffled", loader, "as that of Shuffle", [[2], [6], [8], [0], [5], [7], [1], [4], [9], [3]]),
    ("Shuffle", drawn(Shuffle(1)), repr(Shuffle(1).event(Gaussian(1.0))), None),
    ("Poisson", drawn(Poisson(0.1)), repr(Poisson(0.1).event(Gaussian(1.0))),
     [[2], [1, 7], [], [4, 5], [], [7], [5, 7, 9], [], [1], [1, 3, 7]]),
    ("Partition", drawn(Partition(10)), repr(Partition(10).event(Gaussian(1.0))), None),
)  # fmt: skip


def tally(epoch: Epoch) -> dict[str, int]:
    """How often items and batches turn up in an epoch."""
    seen = Counter(item for batch in epoch for item in batch)
    return {
        "batches": len(epoch),
        "empty batches": sum(not batch for batch in epoch),
        "largest batch": max(map(len, epoch)),
        "items drawn exactly once": sum(times == 1 for times in seen.values()),
        "items never drawn": _ITEMS - len(seen),
    }


def run(quick: bool, seeds: int | None) -> Findings:
    """Ten items in batches of about one: an example of each method, and means over seeds."""
    seeds = seeds or (20 if quick else 400)
    rows, lines = [], []
    figure, axes = plots.panels("One epoch over ten items, ten batches", 10.5, 3.6, 1, len(METHODS))
    for (name, draw, event, example), ax in zip(METHODS, axes, strict=True):
        epochs = [draw(seed) for seed in range(seeds)]
        tallies, papers = [tally(epoch) for epoch in epochs], tally(example) if example else {}
        for metric in tallies[0]:
            values = [found[metric] for found in tallies]
            rows.append(Row(name, metric, float(np.mean(values)), papers.get(metric), float(np.std(values)), seeds))
        first = epochs[0]
        lines.append((name, " ".join(str(batch) for batch in first), f"`{event}`" if "(" in event else event))
        times = [t for t, batch in enumerate(first, 1) for _ in batch]
        ax.scatter(times, [item for batch in first for item in batch], s=50, color=plots.BLUE, zorder=3)
        for t, batch in enumerate(first, 1):
            if not batch:
                ax.axvspan(t - 0.5, t + 0.5, color=plots.ORANGE, alpha=0.35, linewidth=0)
        ax.set(xlim=(0.5, _ITEMS + 0.5), ylim=(-0.5, _ITEMS - 0.5), xticks=range(1, 11), yticks=range(10))
        plots.name_axes(ax, "batch (shaded: empty)", "item" if ax is axes[0] else "", name)
    notes = (
        "Batches of one epoch with seed 0, and what a release through each is charged as (at noise multiplier 1):",
        table(("method", "batches", "charged as"), lines),
        "The paper's numbers are those of the one epoch that it prints; for the loader it is tf.train.shuffle_batch. A "
        "shuffled loader draws every item exactly once, in batches of one size, so the figures of random sampling, where "
        "items are missed or drawn again and batches are empty, do not describe it. A partition draws every item exactly "
        "once as well, but each item falls into its batch independently.",
    )
    return Findings(tuple(rows), figure, notes)
