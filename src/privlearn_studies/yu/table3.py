"""Yu et al. 2019, Table III: the decay rates k that make a budget of rho = 0.78125 last a given number of epochs."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from privlearn.accounting.budget import Budget
from privlearn.plan import Plan
from privlearn.sampling import Shuffle
from privlearn.schedules import Exponential, Polynomial, Schedule, Step, Time
from privlearn_studies import plots
from privlearn_studies.findings import Findings, Row
from privlearn_studies.writer import number, table

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
    """How many whole epochs of reshuffled batches the budget lasts under `schedule`, whose first epoch is t = 0."""
    return Plan(Shuffle(600), schedule=schedule).within(_BUDGET).epochs


def valid(kind: type[Schedule], epochs: int) -> tuple[float, float]:
    """The ends of the interval of k with which the budget lasts exactly `epochs` epochs, each to 1e-7 and inside it."""
    # Noise rises with k in a step schedule and falls with it in the others, and so does the number of epochs.
    most, rises = _MOST[kind], kind is Step

    def crossing(target: int) -> int:
        """The last point of a fine grid before `target` epochs begin to fit, or cease to."""
        low, high = 0, round(most / _FINE)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if _lasts(kind, middle * _FINE, target) is rises else (middle, high)
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


def run(quick: bool, seeds: int | None) -> Findings:
    """All 32 entries: the epochs that the paper's k gives, our own k, and the interval of k that would do."""
    rows: list[Row] = []
    lines: list[tuple[str, ...]] = []
    curves: dict[str, list[tuple[float, float, float]]] = {}
    for kind, papers in PAPER.items():
        name = kind.__name__.lower()
        for epochs, k in zip(EPOCHS, papers, strict=True):
            low, high = valid(kind, epochs)
            ours, found = least_on_grid(low), epochs_of(kind(k=k))  # type: ignore[call-arg]
            label = f"{name}, {epochs} epochs"
            rows.append(Row(label, "k, the least on the grid of 0.0001", ours, k))
            rows.append(Row(label, "epochs with the paper's k", found, epochs))
            rows += [Row(label, "k, the least of all", low), Row(label, "k, the greatest of all", high)]
            lines.append((name, str(epochs), number(k), str(found), number(ours), f"{low:.7f}", f"{high:.7f}"))
            curves.setdefault(name, []).append((k, ours, (k - low) / (high - low)))
    right = sum(line[1] == line[3] for line in lines)
    apart = [abs(k - ours) for curve in curves.values() for k, ours, _ in curve if k != ours]
    notes = (
        f"The paper's k gives exactly its number of epochs in {right} of {len(lines)} entries. The first epoch has t = 0 and "
        "noise scale 10, the step schedule has period 10, the polynomial one ends at 2 after 100 epochs. Epochs are "
        "reshuffled: each costs 1 / (2 sigma^2), and the last one still fits as a whole.",
        "Our k is the least one on the paper's grid of 0.0001 that does; every k in the interval does as well. "
        f"{len(lines) - len(apart)} entries agree, and {len(apart)} of the paper's lie above ours, by at most "
        f"{max(apart, default=0):.4f}: most of them were given to three digits.",
        table(("decay", "epochs", "paper's k", "epochs it gives", "our k", "from", "to"), lines),
    )
    return Findings(tuple(rows), _draw(curves), notes)


def _draw(curves: dict[str, list[tuple[float, float, float]]]) -> Figure:
    """Both k's over the epochs, and where the paper's lies between the least and the greatest that do."""
    figure, (left, right) = plots.panels("Decay rates that spend ρ = 0.78125 in a given time", 10.5, 5, 1, 2)
    for (name, curve), colour in zip(
        curves.items(), (plots.BLUE, plots.ORANGE, plots.GREEN, plots.PURPLE), strict=True
    ):
        papers, ours, places = zip(*curve, strict=True)
        left.plot(EPOCHS, ours, color=colour, label=f"{name}: ours")
        left.plot(EPOCHS, papers, "o", color=colour, markerfacecolor="none", markersize=7, label=f"{name}: the paper's")
        right.plot(EPOCHS, 100 * np.array(places), "o-", color=colour, markersize=5, linewidth=1)
    left.set_yscale("log")
    right.axhspan(0, 100, color="#f0f0f0", zorder=0)
    right.set_ylim(-5, 105)
    plots.name_axes(left, "epochs", "decay rate k", "our k: the least on a grid of 0.0001")
    plots.name_axes(
        right, "epochs", "0: the least valid k, 100: the greatest (%)", "the paper's k among the valid ones"
    )
    plots.legend(figure, left, 4)
    return figure
