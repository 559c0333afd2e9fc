"""Yu et al. 2019, Figures 4, 5, 12 and 13: the runs of Table II, looked at over epochs and seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from privlearn.accounting.budget import Budget
from privlearn.plan import Plan
from privlearn.sampling import Shuffle
from privlearn.schedules import parse
from privlearn_studies import plots
from privlearn_studies.findings import Findings, Row
from privlearn_studies.seeds import mean_row
from privlearn_studies.sweep import Sweep
from privlearn_studies.yu.runs import Outcome
from privlearn_studies.yu.settings import RHO, TABLE_2, mnist
from privlearn_studies.yu.table2 import QUICK_SEEDS, SEEDS, end, train_end, written

#: Epochs for which the paper's validation schedule held each of its noise scales.
_PAPER_HELD = (29, 20, 10, 5)
_COLOURS = dict(zip(TABLE_2, (plots.GREY, plots.ORANGE, plots.GREEN, plots.BLUE, plots.PURPLE, plots.RED), strict=True))


def run(name: str, quick: bool, seeds: int | None, sweep: Sweep) -> Findings:
    """The study called `name`."""
    numbers = range(seeds or (QUICK_SEEDS if quick else SEEDS))
    studies: dict[str, Callable[[bool, Sequence[int], Sweep], Findings]] = {
        "yu-fig4": _fig4,
        "yu-fig5": _fig5,
        "yu-fig12-13": _fig12_13,
    }
    return studies[name](quick, numbers, sweep)


def _fig4(quick: bool, seeds: Sequence[int], sweep: Sweep) -> Findings:
    """The noise of each epoch under each schedule."""
    reacting = written(quick)["validation"]
    (watched,) = sweep([reacting], seeds[:1])[reacting]
    figure, (ax,) = plots.panels("Noise scale over training", 7.5, 4.5)
    rows = []
    for name, (schedule, *_) in TABLE_2.items():
        if name == "validation":
            noise = watched.noise
        else:
            noise = Plan(Shuffle(600), schedule=parse(schedule)).within(Budget(rho=RHO)).noise_multipliers()
        ax.step(range(1, len(noise) + 1), noise, where="mid", color=_COLOURS[name], label=name)
        rows.append(Row(name, "epochs", len(noise), TABLE_2[name][1]))
        rows.append(Row(name, "noise scale of the last epoch", noise[-1]))
    held = _held(watched.noise)
    theirs = [sigma for sigma, epochs in zip((10, 7, 4.9, 3.43), _PAPER_HELD, strict=True) for _ in range(epochs)]
    ax.step(range(1, len(theirs) + 1), theirs, where="mid", color=_COLOURS["validation"], linestyle=":",
            label="validation, the paper's")  # fmt: skip
    for (sigma, epochs), paper in zip(held, _PAPER_HELD, strict=False):
        rows.append(Row(f"validation, noise scale {sigma:.3g}", "epochs at this noise", epochs, paper))
    plots.name_axes(ax, "epoch", "noise scale σ")
    plots.legend(figure, ax, 3)
    notes = (
        f"MNIST, a budget of rho {RHO:g} as the paper counts it: an epoch at noise scale sigma takes 1 / (2 sigma^2), and the "
        "budget ends each curve. Uniform noise is 8, the others start at 10. The schedules that are fixed beforehand need "
        "no training, and end exactly where the paper's do. The validation schedule follows the accuracy on 5,000 images "
        f"that are declared public, in one run (seed {seeds[0]}): here it holds its noise for "
        + ", ".join(f"{epochs} epochs at {sigma:.3g}" for sigma, epochs in held)
        + "; in the paper for 29 epochs at 10, 20 at 7, 10 at 4.9 and 5 at 3.43.",
    )
    return Findings(tuple(rows), figure, notes)


def _held(noise: Sequence[float]) -> list[tuple[float, int]]:
    """How many epochs in a row each noise scale was held."""
    levels: list[tuple[float, int]] = []
    for sigma in noise:
        if levels and abs(levels[-1][0] - sigma) < 1e-9:
            levels[-1] = (levels[-1][0], levels[-1][1] + 1)
        else:
            levels.append((sigma, 1))
    return levels


def _fig5(quick: bool, seeds: Sequence[int], sweep: Sweep) -> Findings:
    """Means with ranges over seeds, training and test."""
    settings = written(quick)
    found = sweep(settings.values(), seeds)
    figure, (ax,) = plots.panels(f"Accuracy of each schedule, mean and range of {len(seeds)} seeds", 8, 4.5)
    rows = []
    kinds = (("training, not protected", train_end, -0.1, plots.BLUE, 0), ("test", end, 0.1, plots.RED, 1))
    for label, values_of, shift, colour, which in kinds:
        values = [values_of(found[setting]) for setting in settings.values()]
        middles = [float(np.mean(v)) for v in values]
        ranges = [[m - min(v) for m, v in zip(middles, values, strict=True)],
                  [max(v) - m for m, v in zip(middles, values, strict=True)]]  # fmt: skip
        ax.errorbar(np.arange(len(values)) + shift, middles, yerr=ranges, fmt="o", color=colour, capsize=4, label=label)
        for name, v in zip(settings, values, strict=True):
            rows += [
                mean_row(name, f"{label} accuracy", v, TABLE_2[name][2][which]),
                Row(name, f"{label} accuracy, least", min(v), seeds=len(v)),
                Row(name, f"{label} accuracy, greatest", max(v), seeds=len(v)),
            ]
    ax.set_xticks(range(len(settings)), list(settings))
    plots.name_axes(ax, "", "accuracy")
    plots.legend(figure, ax, 2)
    above = [
        n for n, s in settings.items() if n != "uniform" and min(end(found[s])) > max(end(found[settings["uniform"]]))
    ]
    notes = (
        "Clipping as written, as in Table II. "
        + (f"The worst seed of {', '.join(above)} is better than the best one of uniform noise." if above
           else "The ranges of all schedules overlap that of uniform noise."),
    )  # fmt: skip
    return Findings(tuple(rows), figure, notes)


def _fig12_13(quick: bool, seeds: Sequence[int], sweep: Sweep) -> Findings:
    """Accuracy, and what was spent, epoch by epoch."""
    settings = {n: s for n, s in written(quick).items() if n in ("uniform", "exponential", "validation", "step")}
    plain = mnist(None, quick, epochs=100)
    found = sweep([*settings.values(), plain], seeds)
    figure, (left, right) = plots.panels("Accuracy and privacy in training", 11, 4.8, 1, 2)
    rows = []
    for name, setting in settings.items():
        runs = found[setting]
        shortest = min(run.epochs for run in runs)
        test = np.mean([run.test[:shortest] for run in runs], axis=0)
        left.plot(range(1, shortest + 1), test, color=_COLOURS[name], label=name)
        spent = np.cumsum(0.5 / np.square(runs[0].noise))
        right.plot(range(1, len(spent) + 1), spent, color=_COLOURS[name], label=name)
        rows.append(mean_row(name, "rho spent, as the paper counts it", [_spent(run) for run in runs]))
        rows += [mean_row(name, f"test accuracy after {e} epochs", [r.test[e - 1] for r in runs])
                 for e in (10, 20, 30) if e <= shortest]  # fmt: skip
    test = np.mean([run.test for run in found[plain]], axis=0)
    left.plot(range(1, len(test) + 1), test, color="black", linestyle=":", label="plain training")
    right.axhline(RHO, color="black", linewidth=0.8, linestyle="--")
    plots.name_axes(left, "epoch", "test accuracy", "Figure 12")
    plots.name_axes(right, "epoch", "ρ spent, as the paper counts it", "Figure 13")
    plots.legend(figure, left, 5)
    ends = {n: float(np.mean(end(found[s]))) for n, s in settings.items()}
    gap = float(test[-1]) - ends["uniform"]
    rows.append(Row("plain training minus uniform, at the end", "test accuracy", gap, 0.05))
    notes = (
        f"Means of {len(seeds)} seeds, up to the epoch that every seed reaches. The budget ends each curve. At the end plain "
        f"training is {gap:.3f} above uniform noise (the paper: 0.05).",
    )
    return Findings(tuple(rows), figure, notes)


def _spent(run: Outcome) -> float:
    return float(np.sum(0.5 / np.square(run.noise)))
