"""Yu et al. 2019, Table II and Figures 4, 5, 12 and 13: one set of runs on MNIST under a budget of rho = 0.78125."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from matplotlib.figure import Figure

from privlearn.reproduce import plots
from privlearn.reproduce.findings import Findings, Row
from privlearn.reproduce.runs import Outcome, Setting
from privlearn.reproduce.seeds import gap_closed, interval, mean_row, percent, signed, verdict
from privlearn.reproduce.sweep import Sweep
from privlearn.reproduce.writer import table
from privlearn.reproduce.yu_settings import PARTITION, RHO, TABLE_2, mnist, uniform

_SEEDS, _QUICK_SEEDS = 10, 1
_COLOURS = dict(zip(TABLE_2, (plots.GREY, plots.ORANGE, plots.GREEN, plots.BLUE, plots.PURPLE, plots.RED), strict=True))


@final
@dataclass(frozen=True)
class _Runs:
    """The runs of Table II, by column; each a list over seeds."""

    written: dict[str, list[Outcome]]
    sound: dict[str, list[Outcome]]
    same_epochs: dict[str, list[Outcome]]
    plain: list[Outcome]
    partition: list[Outcome]


def run(name: str, quick: bool, seeds: int | None, sweep: Sweep) -> Findings:
    """The study called `name`."""
    numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
    studies: dict[str, Callable[[bool, Sequence[int], Sweep], Findings]] = {
        "yu-table2": _table2,
        "yu-fig4": _fig4,
        "yu-fig5": _fig5,
        "yu-fig12-13": _fig12_13,
    }
    return studies[name](quick, numbers, sweep)


def _written(quick: bool) -> dict[str, Setting]:
    return {name: mnist(column[0], quick) for name, column in TABLE_2.items()}


def _run_all(quick: bool, seeds: Sequence[int], sweep: Sweep) -> _Runs:
    written = _written(quick)
    sound = {name: mnist(column[0], quick, clip="layer") for name, column in TABLE_2.items()}
    same = {name: mnist(uniform(column[1]), quick) for name, column in TABLE_2.items() if name != "uniform"}
    plain = mnist(None, quick, epochs=100)
    partition = replace(PARTITION, first=written["uniform"].first)
    found = sweep([*written.values(), *same.values(), *sound.values(), plain, partition], seeds)
    return _Runs(
        {name: found[setting] for name, setting in written.items()},
        {name: found[setting] for name, setting in sound.items()},
        {name: found[setting] for name, setting in same.items()},
        found[plain],
        found[partition],
    )


def _end(runs: Sequence[Outcome]) -> list[float]:
    return [run.test[-1] for run in runs]


def _train_end(runs: Sequence[Outcome]) -> list[float]:
    return [run.train_end for run in runs]


def _table2(quick: bool, seeds: Sequence[int], sweep: Sweep) -> Findings:
    """Every row of Table II, the sound reading beside it, and what a partition buys for the same epsilon."""
    runs = _run_all(quick, seeds, sweep)
    rows: list[Row] = []
    lines, decay = [], []
    base = _end(runs.written["uniform"])
    for name, (spec, epochs, private, plain, same) in TABLE_2.items():
        ours = runs.written[name]
        at = min(epochs, len(runs.plain[0].test))
        plain_ours = [run.test[at - 1] for run in runs.plain]
        label = f"{name} ({spec})"
        rows += [
            mean_row(label, "epochs", [run.epochs for run in ours], epochs),
            mean_row(label, "training accuracy (private)", _train_end(ours), private[0]),
            mean_row(label, "test accuracy", _end(ours), private[1]),
            mean_row(f"{name}, noise for per-layer clipping", "test accuracy", _end(runs.sound[name])),
            mean_row(f"{name}: plain training, as many epochs", "test accuracy", plain_ours, plain[1]),
            mean_row(f"{name}: plain training, as many epochs", "training accuracy of the first 10,000 rows",
                     [run.train[at - 1] for run in runs.plain], plain[0]),
        ]  # fmt: skip
        cells = [
            name,
            f"{np.mean([run.epochs for run in ours]):.4g}",
            f"{private[1]:.3f}",
            f"{np.mean(_end(ours)):.4f}",
        ]
        if name == "uniform" or same is None:
            lines.append((*cells, "–", "–", "–", f"{np.mean(_end(runs.sound[name])):.4f}"))
            continue
        others = runs.same_epochs[name]
        rows += [
            mean_row(f"uniform, {epochs} epochs", "training accuracy (private)", _train_end(others), same[0]),
            mean_row(f"uniform, {epochs} epochs", "test accuracy", _end(others), same[1]),
        ]
        over, against = interval(_end(ours), base), interval(_end(ours), _end(others))
        rows += [
            _paired(f"{name} minus uniform, 100 epochs", _end(ours), base, private[1] - 0.919),
            _paired(f"{name} minus uniform, {epochs} epochs", _end(ours), _end(others), private[1] - same[1]),
        ]
        share = gap_closed(_end(ours), base, [run.test[-1] for run in runs.plain])
        if np.isfinite(share):
            rows.append(Row(label, "share of the gap to plain training closed", share, seeds=len(seeds)))
        lines.append(
            (*cells, signed(*over), signed(*against), percent(share), f"{np.mean(_end(runs.sound[name])):.4f}")
        )
        decay.append(f"{name} {verdict(*against)} ({signed(*against)})")
    rows += _partition_rows(runs)
    heads = ("schedule", "epochs", "paper", "ours", "over uniform, 100 epochs", "over uniform, as many epochs",
             "gap closed", "with noise for per-layer clipping")  # fmt: skip
    best = max(np.mean(_end(runs.written[name])) for name in TABLE_2)
    notes = (
        table(heads, lines),
        f"Test accuracies, means of {len(seeds)} seeds; equal seeds share initial weights, batches and the projection. "
        "Differences are means of pairs with Student's 95% interval. Training accuracies are private figures: they are "
        "shown because the data are public, and no published model carries them.",
        f"**Clipping as written.** Every layer is clipped to norm 4 and gets noise of the scale times 4. Two layers "
        f"together have norm up to 4 √2, so the noise is worth a noise multiplier 1/√2 of the scale that is stated, and "
        f"rho {2 * RHO:g} where the paper counts {RHO:g} (epsilon {_epsilon(runs.written):.2f} in truth, projection "
        f"included, where that count gives {_epsilon(runs.sound):.2f}, at delta 1e-5 for zero-out neighbours). The last "
        "column has the noise that keeps the promise.",
        "**What decay itself does**, noise that falls against constant noise in as many epochs at the same cost: "
        + "; ".join(decay) + ". The other part of what the schedules gain over 100 epochs of uniform noise is fewer "
        "epochs with less noise in each.",
        "**The scale of the features** decides the order of the columns: features here are pixels from 0 to 1 projected onto "
        "the private directions, of norm 8 on average. With rows brought to norm 1, gradients are shorter, 31 to 100 epochs "
        "do not suffice for training at this learning rate, and longer schedules win.",
        f"**Partition.** At epsilon {np.mean([run.epsilon for run in runs.partition]):.4g} in all, the same network reaches "
        f"{np.mean(_end(runs.partition)):.4f} when each epoch's batches are a fresh random partition, with "
        f"noise calibrated to it ({PARTITION.schedule}, {PARTITION.epochs} epochs), against {best:.4f} "
        "under reshuffling as written: reshuffled batches have no amplification to count on.",
    )  # fmt: skip
    return Findings(tuple(rows), _draw_table2(runs), notes)


def _paired(label: str, ours: Sequence[float], others: Sequence[float], paper: float | None) -> Row:
    differences = np.subtract(ours, others).tolist()
    return mean_row(label, "paired difference of test accuracies", differences, paper)


def _epsilon(runs: dict[str, list[Outcome]]) -> float:
    """The epsilon of the uniform schedule, which spends the budget to the end."""
    found = runs["uniform"][0].epsilon
    assert found is not None
    return found


def _partition_rows(runs: _Runs) -> list[Row]:
    label = f"partition ({PARTITION.schedule}, calibrated)"
    return [
        mean_row(label, "test accuracy at the same epsilon", _end(runs.partition), 0.932),
        Row(label, "epsilon at delta 1e-5, projection included", runs.partition[0].epsilon or 0.0),
        Row(label, "noise multiplier of the first epoch", runs.partition[0].noise[0]),
    ]


def _draw_table2(runs: _Runs) -> Figure:
    """Each column's accuracies side by side."""
    figure, (ax,) = plots.panels("Test accuracy at ρ = 0.78125 as the paper counts it (MNIST)", 9, 5)
    names = list(TABLE_2)
    places = np.arange(len(names), dtype=float)

    def marks(values: list[list[float] | None], shift: float, label: str, colour: str, marker: str) -> None:
        there = [(place + shift, value) for place, value in zip(places, values, strict=True) if value]
        middles = [np.mean(value) for _, value in there]
        ranges = [[m - min(v) for (_, v), m in zip(there, middles, strict=True)],
                  [max(v) - m for (_, v), m in zip(there, middles, strict=True)]]  # fmt: skip
        ax.errorbar([p for p, _ in there], middles, yerr=ranges, fmt=marker, color=colour, label=label, capsize=3,
                    markersize=6)  # fmt: skip

    ax.plot(places - 0.24, [TABLE_2[n][2][1] for n in names], "D", color=plots.GREY, label="paper", markersize=6,
            markerfacecolor="none")  # fmt: skip
    marks([_end(runs.written[n]) for n in names], -0.08, "ours, clipping as written", plots.RED, "o")
    marks([_end(runs.same_epochs[n]) if n in runs.same_epochs else None for n in names], 0.08,
          "ours, uniform noise in as many epochs", plots.ORANGE, "s")  # fmt: skip
    marks([_end(runs.sound[n]) for n in names], 0.24, "ours, noise for per-layer clipping", plots.BLUE, "^")
    ax.axhline(float(np.mean(_end(runs.partition))), color=plots.GREEN, linestyle="--",
               label="ours, partition at the same epsilon")  # fmt: skip
    ax.set_xticks(places, [f"{n}\n{TABLE_2[n][1]} epochs" for n in names])
    plots.name_axes(ax, "", "test accuracy")
    plots.legend(figure, ax, 3)
    return figure


def _fig4(quick: bool, seeds: Sequence[int], sweep: Sweep) -> Findings:
    """The noise of each epoch under each schedule."""
    settings = _written(quick)
    found = sweep(settings.values(), seeds[:1])
    figure, (ax,) = plots.panels("Noise scale over training", 7.5, 4.5)
    rows = []
    for name, setting in settings.items():
        noise = found[setting][0].noise
        ax.step(range(1, len(noise) + 1), noise, where="mid", color=_COLOURS[name], label=name)
        rows.append(Row(name, "epochs", len(noise), TABLE_2[name][1]))
        rows.append(Row(name, "noise scale of the last epoch", noise[-1]))
    held = _held(found[settings["validation"]][0].noise)
    for (sigma, epochs), paper in zip(held, (29, 20, 10, 5), strict=False):
        rows.append(Row(f"validation, noise scale {sigma:.3g}", "epochs at this noise", epochs, paper))
    plots.name_axes(ax, "epoch", "noise scale σ")
    plots.legend(figure, ax, 3)
    notes = (
        "The schedules that are fixed beforehand end exactly where the paper's do. The validation schedule follows the "
        f"validation accuracy of one run (seed {seeds[0]}): here it holds its noise for "
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
    settings = _written(quick)
    found = sweep(settings.values(), seeds)
    figure, (ax,) = plots.panels(f"Accuracy of each schedule, mean and range of {len(seeds)} seeds", 8, 4.5)
    rows = []
    kinds = (("training (private)", _train_end, -0.1, plots.BLUE, 0), ("test", _end, 0.1, plots.RED, 1))
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
        n for n, s in settings.items() if n != "uniform" and min(_end(found[s])) > max(_end(found[settings["uniform"]]))
    ]
    notes = (
        "Clipping as written, as in Table II. "
        + (f"The worst seed of {', '.join(above)} is better than the best one of uniform noise." if above
           else "The ranges of all schedules overlap that of uniform noise."),
    )  # fmt: skip
    return Findings(tuple(rows), figure, notes)


def _fig12_13(quick: bool, seeds: Sequence[int], sweep: Sweep) -> Findings:
    """Accuracy, and what was spent, epoch by epoch."""
    settings = {n: s for n, s in _written(quick).items() if n in ("uniform", "exponential", "validation", "step")}
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
    ends = {n: float(np.mean(_end(found[s]))) for n, s in settings.items()}
    gap = float(test[-1]) - ends["uniform"]
    rows.append(Row("plain training minus uniform, at the end", "test accuracy", gap, 0.05))
    notes = (
        f"Means of {len(seeds)} seeds, up to the epoch that every seed reaches. The budget ends each curve. At the end plain "
        f"training is {gap:.3f} above uniform noise (the paper: 0.05).",
    )
    return Findings(tuple(rows), figure, notes)


def _spent(run: Outcome) -> float:
    return float(np.sum(0.5 / np.square(run.noise)))
