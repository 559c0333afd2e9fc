"""Yu et al. 2019, Tables I and III: what samplers draw, and the decay rates that make a budget
last.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.plan import Plan
from privlearn.core.sampling import Partition, Poisson, Sampler, Shuffle
from privlearn.core.schedules import Exponential, Polynomial, Schedule, Step, Time
from privlearn.core.streams import Streams
from privlearn_studies.charts import BLUE, GREEN, ORANGE, PURPLE, Across, Curve, Figure, Mark, Panel
from privlearn_studies.report import Findings, Row, number, page, table
from privlearn_studies.runs import Runs

_ITEMS = 10
Epoch = list[list[int]]


def loader(seed: int) -> Epoch:
    """One epoch of PyTorch's `DataLoader(shuffle=True)` over ten items, in batches of one."""
    import torch
    from torch.utils.data import DataLoader

    order = torch.Generator().manual_seed(seed)
    items: Any = range(_ITEMS)
    batches: DataLoader[int] = DataLoader(items, batch_size=1, shuffle=True, generator=order)
    return [batch.tolist() for batch in batches]


def drawn(sampler: Sampler) -> Callable[[int], Epoch]:
    """One epoch of `sampler` over ten items, as a function of the seed."""
    return lambda seed: [
        s.indices.tolist() for s in sampler.draw(_ITEMS, Streams.new(seed).sampling)
    ]


#: Name, what draws an epoch, how it is charged, and the paper's example where it shows a method of
#: this kind.
METHODS: tuple[tuple[str, Callable[[int], Epoch], str, Epoch | None], ...] = (
    (
        "torch DataLoader, shuffled",
        loader,
        "as that of Shuffle",
        [[2], [6], [8], [0], [5], [7], [1], [4], [9], [3]],
    ),
    ("Shuffle", drawn(Shuffle(1)), repr(Shuffle(1).event(Gaussian(1.0))), None),
    (
        "Poisson",
        drawn(Poisson(0.1)),
        repr(Poisson(0.1).event(Gaussian(1.0))),
        [[2], [1, 7], [], [4, 5], [], [7], [5, 7, 9], [], [1], [1, 3, 7]],
    ),
    ("Partition", drawn(Partition(10)), repr(Partition(10).event(Gaussian(1.0))), None),
)


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


def table1(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Ten items in batches of about one: an example of each method, and means over seeds."""
    seeds = seeds or (20 if quick else 400)
    rows, lines = [], []
    panels: list[Panel] = []
    for name, draw, event, example in METHODS:
        epochs = [draw(seed) for seed in range(seeds)]
        tallies, papers = [tally(epoch) for epoch in epochs], tally(example) if example else {}
        for metric in tallies[0]:
            values = [each[metric] for each in tallies]
            rows.append(
                Row(
                    name,
                    metric,
                    float(np.mean(values)),
                    papers.get(metric),
                    float(np.std(values)),
                    seeds,
                )
            )
        first = epochs[0]
        lines.append(
            (name, " ".join(str(batch) for batch in first), f"`{event}`" if "(" in event else event)
        )
        times = [t for t, batch in enumerate(first, 1) for _ in batch]
        empty = [t for t, batch in enumerate(first, 1) if not batch]
        marks: list[Mark] = [
            Curve(times, [item for batch in first for item in batch], fmt="o", size=7)
        ]
        marks += [Across(t - 0.5, colour=ORANGE, down=True, to=t + 0.5, alpha=0.35) for t in empty]
        panels.append(
            Panel(
                marks,
                "batch (shaded: empty)",
                "" if panels else "item",
                name,
                xlim=(0.5, _ITEMS + 0.5),
                ylim=(-0.5, _ITEMS - 0.5),
                xticks=range(1, 11),
                yticks=range(10),
            )
        )
    figure = Figure("One epoch over ten items, ten batches", panels, 10.5, 3.6, len(METHODS))
    return Findings(
        tuple(rows),
        figure,
        page("yu-table1", table=table(("method", "batches", "charged as"), lines)),
    )


EPOCHS = (30, 40, 50, 60, 70, 80, 90, 100)
#: The paper's k by decay function, for each of `EPOCHS`.
PAPER: dict[type[Schedule], tuple[float, ...]] = {
    Time: (0.076, 0.0441, 0.0281, 0.019, 0.0132, 0.0093, 0.0067, 0.0048),
    Step: (0.5459, 0.7008, 0.7922, 0.851, 0.891, 0.919, 0.94, 0.956),
    Exponential: (0.0442, 0.0282, 0.0193, 0.0138, 0.0101, 0.0075, 0.0056, 0.0041),
    Polynomial: (6.2077, 3.5277, 2.1948, 1.4317, 0.9549, 0.6382, 0.4167, 0.1626),
}
_NO_NOISE = 1e-3
_BUDGET = Budget(rho=0.78125)
_GRID, _FINE = 1e-4, 1e-7
_MOST: dict[type[Schedule], float] = {Time: 1.0, Step: 1.0, Exponential: 1.0, Polynomial: 10.0}


def epochs_of(schedule: Schedule) -> int:
    """How many whole epochs of reshuffled batches the budget lasts under `schedule`, whose first
    epoch is t = 0.
    """
    return Plan(Shuffle(600), schedule=schedule).within(_BUDGET).epochs


def valid(kind: type[Schedule], epochs: int) -> tuple[float, float]:
    """The ends of the interval of k with which the budget lasts exactly `epochs` epochs, each to
    1e-7 and inside it.
    """
    # Noise rises with k in a step schedule and falls with it in the others, and so does the number
    # of epochs.
    most, rises = _MOST[kind], kind is Step

    def crossing(target: int) -> int:
        """The last point of a fine grid before `target` epochs begin to fit, or cease to."""
        low, high = 0, round(most / _FINE)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (
                (low, middle) if _lasts(kind, middle * _FINE, target) is rises else (middle, high)
            )
        return low

    before, last = sorted((crossing(epochs), crossing(epochs + 1)))
    return round((before + 1) * _FINE, 7), round(last * _FINE, 7)


def least_on_grid(low: float) -> float:
    """The least point of the paper's grid of 1e-4 that is not below `low`."""
    return round(math.ceil(low / _GRID - 1e-6) * _GRID, 4)


def _lasts(kind: type[Schedule], k: float, epochs: int) -> bool:
    schedule = kind(k=k)  # type: ignore[call-arg]
    if schedule(epochs - 1) < _NO_NOISE:
        return False
    plan = Plan(Shuffle(600), epochs=epochs, schedule=schedule)
    return _BUDGET.covers(_BUDGET.spent(plan.event(), plan.neighbours))


def table3(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """All 32 entries: the epochs that the paper's k gives, our own k, and the interval of k that
    would do.
    """
    rows: list[Row] = []
    lines: list[tuple[str, ...]] = []
    curves: dict[str, list[tuple[float, float, float]]] = {}
    for kind, papers in PAPER.items():
        name = kind.__name__.lower()
        for epochs, k in zip(EPOCHS, papers, strict=True):
            low, high = valid(kind, epochs)
            ours, lasts = least_on_grid(low), epochs_of(kind(k=k))  # type: ignore[call-arg]
            label = f"{name}, {epochs} epochs"
            rows.append(Row(label, "k, the least on the grid of 0.0001", ours, k))
            rows.append(Row(label, "epochs with the paper's k", lasts, epochs))
            rows += [
                Row(label, "k, the least of all", low),
                Row(label, "k, the greatest of all", high),
            ]
            lines.append(
                (
                    name,
                    str(epochs),
                    number(k),
                    str(lasts),
                    number(ours),
                    f"{low:.7f}",
                    f"{high:.7f}",
                )
            )
            curves.setdefault(name, []).append((k, ours, (k - low) / (high - low)))
    differ = [abs(k - ours) for curve in curves.values() for k, ours, _ in curve if k != ours]
    notes = page(
        "yu-table3",
        right=sum(line[1] == line[3] for line in lines),
        entries=len(lines),
        agree=len(lines) - len(differ),
        above=len(differ),
        most=max(differ, default=0),
        table=table(
            ("decay", "epochs", "paper's k", "epochs it gives", "our k", "from", "to"), lines
        ),
    )
    left: list[Mark] = []
    right: list[Mark] = [Across(0, colour="#f0f0f0", to=100)]
    for (name, curve), colour in zip(curves.items(), (BLUE, ORANGE, GREEN, PURPLE), strict=True):
        theirs, our_rates, places = zip(*curve, strict=True)
        left.append(Curve(EPOCHS, our_rates, f"{name}: ours", colour))
        left.append(Curve(EPOCHS, theirs, f"{name}: the paper's", colour, "o", size=7, hollow=True))
        right.append(
            Curve(EPOCHS, 100 * np.array(places), colour=colour, fmt="o-", size=5, width=1)
        )
    panels = [
        Panel(left, "epochs", "decay rate k", "our k: the least on a grid of 0.0001", "y"),
        Panel(
            right,
            "epochs",
            "0: the least valid k, 100: the greatest (%)",
            "the paper's k among the valid ones",
            ylim=(-5, 105),
        ),
    ]
    return Findings(
        tuple(rows),
        Figure("Decay rates that spend ρ = 0.78125 in a given time", panels, 10.5, 5, 2, 4),
        notes,
    )
