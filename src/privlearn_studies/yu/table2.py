"""Yu et al. 2019, Table II: schedules on MNIST under a budget of rho = 0.78125, and what random partitions make of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from matplotlib.figure import Figure

from privlearn.plan import Plan
from privlearn.sampling import Partition, Shuffle
from privlearn.schedules import parse
from privlearn.transforms.pca import PrivatePCA
from privlearn_studies import plots
from privlearn_studies.findings import Findings, Row
from privlearn_studies.seeds import UNPROTECTED, gap_closed, interval, mean_row, percent, signed, verdict
from privlearn_studies.sweep import Sweep
from privlearn_studies.writer import table
from privlearn_studies.yu.runs import Outcome, Setting
from privlearn_studies.yu.settings import PARTITION, RHO, TABLE_2, mnist, uniform

SEEDS, QUICK_SEEDS = 10, 1
#: The schedule whose accuracy is also measured under a random partition, with the same noise.
_MOVED = "polynomial"
#: The schedules that are also run on features of norm 1, and on how many seeds.
_SHORT, _SHORT_SEEDS = ("uniform", "step", "exponential"), 3
_DELTA = 1e-5


@final
@dataclass(frozen=True)
class _Runs:
    """The runs of Table II, by column; each a list over seeds.

    Attributes:
        written: clipping as written.
        sound: with the noise that per-layer clipping takes.
        same_epochs: uniform noise in as many epochs.
        plain: without privacy.
        partition: a random partition, calibrated to the epsilon of the budget.
        moved: a random partition with the very noise of `_MOVED` as written.
        short: features brought to norm 1, some seeds.
    """

    written: dict[str, list[Outcome]]
    sound: dict[str, list[Outcome]]
    same_epochs: dict[str, list[Outcome]]
    plain: list[Outcome]
    partition: list[Outcome]
    moved: list[Outcome]
    short: dict[str, list[Outcome]]


def run(name: str, quick: bool, seeds: int | None, sweep: Sweep) -> Findings:
    """Every row of Table II, the sound reading beside it, and what random partitions cost and buy."""
    numbers = range(seeds or (QUICK_SEEDS if quick else SEEDS))
    runs = _run_all(quick, numbers, sweep)
    rows = [row for column in TABLE_2 for row in _column(column, runs)]
    rows += [
        mean_row(f"{_MOVED} as written, in a random partition", "test accuracy", end(runs.moved)),
        mean_row("partition, calibrated", "test accuracy at the same epsilon", end(runs.partition), 0.932),
        Row("partition, calibrated", "epsilon at delta 1e-5, projection included", runs.partition[0].epsilon or 0.0),
        Row("partition, calibrated", "noise multiplier", runs.partition[0].noise[0]),
    ]
    rows += [mean_row(f"{name}, features of norm 1", "test accuracy", end(own)) for name, own in runs.short.items()]
    return Findings(tuple(rows), _draw(runs), _notes(runs, len(numbers)))


def written(quick: bool) -> dict[str, Setting]:
    """The settings of Table II's columns, clipping as written."""
    return {name: mnist(column[0], quick) for name, column in TABLE_2.items()}


def end(runs: Sequence[Outcome]) -> list[float]:
    """Test accuracies at the end, by seed."""
    return [run.test[-1] for run in runs]


def train_end(runs: Sequence[Outcome]) -> list[float]:
    """Training accuracies at the end, by seed: private figures."""
    return [run.train_end for run in runs]


def _run_all(quick: bool, seeds: Sequence[int], sweep: Sweep) -> _Runs:
    columns = written(quick)
    sound = {name: replace(setting, clip="layer") for name, setting in columns.items()}
    same = {name: mnist(uniform(column[1]), quick) for name, column in TABLE_2.items() if name != "uniform"}
    plain = mnist(None, quick, epochs=100)
    partition = replace(PARTITION, first=plain.first)
    moved = replace(columns[_MOVED], sampling="partition")
    short = {name: replace(columns[name], scale="unit") for name in _SHORT}
    found = sweep([*columns.values(), *same.values(), *sound.values(), plain, partition, moved], seeds)
    found |= sweep(short.values(), seeds[:_SHORT_SEEDS])

    def of(settings: dict[str, Setting]) -> dict[str, list[Outcome]]:
        return {name: found[setting] for name, setting in settings.items()}

    return _Runs(of(columns), of(sound), of(same), found[plain], found[partition], found[moved], of(short))


def _column(name: str, runs: _Runs) -> list[Row]:
    """The rows of one of the table's columns."""
    spec, epochs, private, plain, same = TABLE_2[name]
    ours, label, plainly = runs.written[name], f"{name} ({spec})", f"{name}: plain training, as many epochs"
    rows = [
        mean_row(label, "epochs", [run.epochs for run in ours], epochs),
        mean_row(label, UNPROTECTED, train_end(ours), private[0]),
        mean_row(label, "test accuracy", end(ours), private[1]),
        mean_row(f"{name}, noise for per-layer clipping", "test accuracy", end(runs.sound[name])),
        mean_row(plainly, "test accuracy", [run.test[epochs - 1] for run in runs.plain], plain[1]),
        mean_row(plainly, "training accuracy of the first 10,000 rows", [run.train[epochs - 1] for run in runs.plain],
                 plain[0]),
    ]  # fmt: skip
    if same is None:
        return rows
    others, base = runs.same_epochs[name], runs.written["uniform"]
    rows += [
        mean_row(f"uniform, {epochs} epochs", UNPROTECTED, train_end(others), same[0]),
        mean_row(f"uniform, {epochs} epochs", "test accuracy", end(others), same[1]),
        _paired(f"{name} minus uniform, 100 epochs", ours, base, private[1] - TABLE_2["uniform"][2][1]),
        _paired(f"{name} minus uniform, {epochs} epochs", ours, others, private[1] - same[1]),
    ]
    share = gap_closed(end(ours), end(base), end(runs.plain))
    if np.isfinite(share):
        rows.append(Row(label, "share of the gap to plain training closed", share, seeds=len(ours)))
    return rows


def _paired(label: str, ours: Sequence[Outcome], others: Sequence[Outcome], paper: float) -> Row:
    differences = np.subtract(end(ours), end(others)).tolist()
    return mean_row(label, "paired difference of test accuracies", differences, paper)


def _notes(runs: _Runs, seeds: int) -> tuple[str, ...]:
    """What the numbers say."""
    decay = []
    for name, same in runs.same_epochs.items():
        against = interval(end(runs.written[name]), end(same))
        decay.append(f"{name} {verdict(*against)} ({signed(*against)})")
    epsilons = [runs_of["uniform"][0].epsilon for runs_of in (runs.written, runs.sound)]
    best = max(_mean(own) for own in runs.written.values())
    moved = interval(end(runs.moved), end(runs.written[_MOVED]))
    return (
        _summary(runs),
        f"Test accuracies, means of {seeds} seeds; equal seeds share initial weights, batches and the projection. Differences "
        "are means of pairs with Student's 95% interval. Training accuracies are private figures: they are shown because the "
        "data are public, and no published model carries them.",
        "**Clipping as written.** Every layer is clipped to norm 4 and gets noise of the scale times 4. Two layers together "
        f"have norm up to 4 √2, so the noise is worth 1/√2 of the scale that is stated, and rho {2 * RHO:g} where the "
        f"paper counts {RHO:g}: epsilon {epsilons[0]:.2f} in truth, projection included, where that count gives "
        f"{epsilons[1]:.2f} (delta 1e-5, zero-out neighbours). The last column has the noise that keeps the promise.",
        "**What decay itself does**, against constant noise in as many epochs at the same cost: " + "; ".join(decay)
        + ". The rest of what the schedules gain over 100 epochs of uniform noise comes from fewer epochs with less noise in "
        "each.",
        "**The scale of the features** decides. Here they are pixels from 0 to 1 projected onto the private directions, of "
        "norm 8 on average. With rows brought to norm 1, at the same learning rate, "
        + ", ".join(f"{name} reaches {_mean(own):.4f}" for name, own in runs.short.items())
        + f" ({len(runs.short['uniform'])} seeds).",
        "**What the same accuracy costs under balls-in-bins**: batches that are a fresh random partition in each epoch "
        "(add/remove neighbours), with the very same noise. Reshuffled batches of fixed size have no amplification to count "
        "on. Epsilon at delta 1e-5, projection included:\n\n" + _prices(),
        f"The accuracy stays: {_MOVED} as written, in a random partition, reaches {_mean(runs.moved):.4f}, reshuffled "
        f"{_mean(runs.written[_MOVED]):.4f} (difference {signed(*moved)}).",
        f"**What accuracy the same epsilon buys**: calibrated to epsilon {PARTITION.epsilon:g}, which is rho {RHO:g} by "
        f"the paper's conversion, projection included, the same network reaches **{_mean(runs.partition):.4f}** in a "
        f"random partition, against {best:.4f} as written at epsilon {epsilons[0]:.2f} ({PARTITION.schedule} noise, "
        f"{PARTITION.epochs} epochs, batches of {PARTITION.batch_size}, whitened features, flat clipping, a learning rate "
        "that falls to 0; the best of six settings on training images held back). No schedule above is tuned: decay rates and "
        "the learning rate are the paper's.",
    )  # fmt: skip


def _summary(runs: _Runs) -> str:
    """The table in the order of the paper's columns."""
    lines = []
    base = runs.written["uniform"]
    for name, (_, _, private, _, _) in TABLE_2.items():
        ours = runs.written[name]
        apart = ["–"] * 3
        if name in runs.same_epochs:
            apart = [
                signed(*interval(end(ours), end(base))),
                signed(*interval(end(ours), end(runs.same_epochs[name]))),
                percent(gap_closed(end(ours), end(base), end(runs.plain))),
            ]
        epochs = float(np.mean([run.epochs for run in ours]))
        lines.append(
            (name, f"{epochs:.4g}", f"{private[1]:.3f}", f"{_mean(ours):.4f}", *apart, f"{_mean(runs.sound[name]):.4f}")
        )
    heads = ("schedule", "epochs", "paper", "ours", "over uniform, 100 epochs", "over uniform, as many epochs",
             "gap closed", "with noise for per-layer clipping")  # fmt: skip
    return table(heads, lines)


def _mean(runs: Sequence[Outcome]) -> float:
    return float(np.mean(end(runs)))


def _prices() -> str:
    """Epsilon of each fixed schedule, reshuffled and in a random partition, as written and with sound noise."""
    lines = []
    for name, (schedule, epochs, *_) in TABLE_2.items():
        if name == "validation":
            continue
        cells = [name]
        for share in (math.sqrt(2.0), 1.0):
            for sampling in (Shuffle(600), Partition(100)):
                shape = parse(schedule).scaled(1 / share)
                plan = Plan(sampling, epochs=epochs, schedule=shape, front=(PrivatePCA(60, 16.0),), examples=60_000)
                cells.append(f"{plan.guarantee(_DELTA).epsilon:.3f}")
        lines.append(tuple(cells))
    heads = ("schedule", "as written, reshuffled", "as written, partition", "sound, reshuffled", "sound, partition")
    return table(heads, lines)


def _draw(runs: _Runs) -> Figure:
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
    marks([end(runs.written[n]) for n in names], -0.08, "ours, clipping as written", plots.RED, "o")
    marks([end(runs.same_epochs[n]) if n in runs.same_epochs else None for n in names], 0.08,
          "ours, uniform noise in as many epochs", plots.ORANGE, "s")  # fmt: skip
    marks([end(runs.sound[n]) for n in names], 0.24, "ours, noise for per-layer clipping", plots.BLUE, "^")
    ax.axhline(float(np.mean(end(runs.partition))), color=plots.GREEN, linestyle="--",
               label="ours, partition at the same epsilon")  # fmt: skip
    ax.set_xticks(places, [f"{n}\n{TABLE_2[n][1]} epochs" for n in names])
    plots.name_axes(ax, "", "test accuracy")
    plots.legend(figure, ax, 3)
    return figure
