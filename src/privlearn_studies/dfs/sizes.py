"""`dfs-width` and `dfs-depth`: is the larger network worse under DP-SGD? Each size at several learning rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from matplotlib.axes import Axes

from privlearn_studies import plots
from privlearn_studies.dfs.size_runs import DELTA, SizeOutcome, SizeSetting
from privlearn_studies.findings import Findings, Row
from privlearn_studies.seeds import interval, mean_row, signed, verdict
from privlearn_studies.sweep import Sweep
from privlearn_studies.writer import table

_SEEDS, _QUICK_SEEDS = 3, 1
_SMALL, _LARGE = "cnn:16,32,32", "cnn:23,46,45"
#: The last is there to tell what noise does from what training does: it leaves a noise multiplier of 0.19.
_EPSILONS = (0.5, 2.0, 200.0)
_CNN_EPSILONS = (2.0,)
_RATES, _CNN_RATES = (10.0, 20.0, 40.0, 80.0), (10.0, 20.0, 40.0)
_WIDTHS, _DEPTHS = (10, 32, 100, 320, 1000), (1, 2, 3, 4, 6)
_DEEP = 100  # hidden units in each of the layers
_ROWS, _CNN_ROWS, _QUICK_ROWS = 20_000, 10_000, 3000
_TEST = "test accuracy"


@final
@dataclass(frozen=True)
class Size:
    """A network at one epsilon, at every rate.

    Attributes:
        model: its spec.
        at: what it is called by its size: parameters in thousands, hidden units or layers.
        epsilon: at delta 1e-5.
        runs: outcomes for each seed, by learning rate.
    """

    model: str
    at: float
    epsilon: float
    runs: dict[float, list[SizeOutcome]]

    @property
    def best(self) -> float:
        """The learning rate of the best mean accuracy on images that are held back from training."""
        return max(self.runs, key=lambda rate: float(np.mean([one.held for one in self.runs[rate]])))

    def test(self, rate: float | None = None) -> list[float]:
        """Test accuracies for each seed, at a rate, or at the best."""
        return [one.test for one in self.runs[self.best if rate is None else rate]]

    @property
    def parameters(self) -> int:
        """The network's."""
        return self.runs[self.best][0].parameters


def run(name: str, quick: bool, seeds: int | None, sweep: Sweep) -> Findings:
    """Networks of growing width, the paper's CNNs among them, or of growing depth."""
    numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
    if name == "dfs-depth":
        sizes = _sizes([("mlp:" + ",".join([str(_DEEP)] * depth), depth) for depth in _DEPTHS], quick, numbers, sweep)
        figure, axes = plots.panels("DP-SGD on MNIST by depth", 15, 4.6, 1, 3)
        what = f"hidden layers of {_DEEP}"
        notes = [_about(quick, len(numbers), cnns=False), _compared(sizes, what)]
    else:
        sizes = _sizes([(f"mlp:{width}", width) for width in _WIDTHS], quick, numbers, sweep)
        cnns = _sizes([(_SMALL, 26), (_LARGE, 52)], quick, numbers, sweep, _CNN_EPSILONS, _CNN_RATES, _CNN_ROWS)
        figure, axes = plots.panels("DP-SGD on MNIST by width", 12, 8.4, 2, 2)
        what = "hidden units"
        notes = [_about(quick, len(numbers), cnns=True), _cnns(cnns), _compared(sizes, what)]
        _by_rate(axes.pop(), cnns)
        sizes = [*cnns, *sizes]
    for ax, epsilon in zip(axes, _EPSILONS, strict=True):
        _by_size(ax, [one for one in sizes if one.epsilon == epsilon and one.model.startswith("mlp")], what)
    plots.legend(figure, axes[0], 5)
    return Findings(tuple(row for one in sizes for row in _rows(one)), figure, tuple(notes))


def _sizes(
    models: Sequence[tuple[str, float]], quick: bool, seeds: Sequence[int], sweep: Sweep,
    epsilons: Sequence[float] = _EPSILONS, rates: Sequence[float] = _RATES, rows: int = _ROWS,
) -> list[Size]:  # fmt: skip
    """Every network at every epsilon and rate."""
    wanted = {
        (model, at, epsilon): {rate: SizeSetting(model, epsilon, rate, first=rows) for rate in rates}
        for epsilon in epsilons
        for model, at in models
    }
    if quick:
        wanted = {
            key: {rate: replace(setting, first=_QUICK_ROWS, epochs=2) for rate, setting in list(mine.items())[1:3]}
            for key, mine in wanted.items()
        }
    found = sweep([setting for mine in wanted.values() for setting in mine.values()], seeds)
    return [Size(*key, {rate: found[setting] for rate, setting in mine.items()}) for key, mine in wanted.items()]


def _rows(size: Size) -> list[Row]:
    label = f"{size.model}, epsilon {size.epsilon:g}"
    return [
        Row(label, "parameters", size.parameters),
        Row(label, "learning rate chosen on held-back training images", size.best),
        mean_row(label, f"{_TEST} at that rate", size.test()),
        mean_row(label, f"epsilon spent, at delta {DELTA:g}", [one.epsilon for one in size.runs[size.best]]),
        *(mean_row(f"{label}, rate {rate:g}", _TEST, size.test(rate)) for rate in size.runs),
    ]


def _about(quick: bool, seeds: int, cnns: bool) -> str:
    rows, fewer, epochs = _QUICK_ROWS, _QUICK_ROWS, 2
    if not quick:
        rows, fewer, epochs = _ROWS, _CNN_ROWS, SizeSetting(_SMALL, 2.0, 1.0).epochs
    beside = f" (CNNs: on {fewer:,})" if cnns else ""
    return (
        f"DP-SGD on the first {rows:,} training images of MNIST{beside}, {epochs} epochs of Poisson batches "
        "(rate 0.04), gradients clipped to 0.1, plain SGD at a constant learning rate, noise calibrated to the epsilon at "
        "delta 1e-5 for add/remove "
        f"neighbours, {seeds} seeds; the noise on each weight is the same for every size. A learning rate is chosen for each "
        f"size on 5,000 training images that are held back, from {len(_RATES)} for every fully connected network"
        + (f" and {len(_CNN_RATES)} for every CNN" if cnns else "")
        + f" (up to {_RATES[-1]:g}: where that is best, a larger one may be better still); test accuracy only reports. "
        "Choosing it is not paid for. The paper gives one figure for CNNs (52 thousand parameters 0.05 below 26 thousand), "
        "and no settings. Weights begin as PyTorch's do. Epsilon 200 (noise multiplier 0.19) tells what training in so few "
        "steps does without much noise."
    )


def _cnns(cnns: Sequence[Size]) -> str:
    """The paper's own comparison."""
    small, large = cnns
    lines = []
    for rate in [*small.runs, None]:
        middle, half = interval(large.test(rate), small.test(rate))
        name = f"each its best ({small.best:g}, {large.best:g})" if rate is None else f"{rate:g}"
        lines.append(
            (name, _spread(small.test(rate)), _spread(large.test(rate)), signed(middle, half), verdict(middle, half))
        )
    heads = (
        "learning rate", f"{small.parameters:,} parameters", f"{large.parameters:,}", "difference", "the larger is"
    )  # fmt: skip
    return (
        f"**The CNN of 52 thousand parameters beside that of 26 thousand**, at epsilon {small.epsilon:g}.\n\n"
        + table(heads, lines)
    )


def _compared(sizes: Sequence[Size], what: str) -> str:
    """Each size at its best rate and at one for all."""
    lines = []
    for epsilon in _EPSILONS:
        mine = [one for one in sizes if one.epsilon == epsilon]
        common, reached = mine[0].best, [one.test() for one in mine]
        first = reached[0]
        for one, values in zip(mine, reached, strict=True):
            middle, half = interval(values, first)
            apart = "–" if one is mine[0] else f"{signed(middle, half)}, {verdict(middle, half)}"
            lines.append((f"{epsilon:g}", f"{one.at:g}", f"{one.parameters:,}", f"{one.best:g}", _spread(values), apart,
                          _spread(one.test(common))))  # fmt: skip
    heads = (
        "epsilon", what, "parameters", "best rate", f"{_TEST} at it", "against the smallest",
        "at the smallest network's rate",
    )  # fmt: skip
    return "**Fully connected networks.** Intervals are Student's, at 95 %, of paired seeds.\n\n" + table(heads, lines)


def _spread(values: Sequence[float]) -> str:
    return f"{np.mean(values):.3f}" + (
        f" ± {np.std(values, ddof=1) / np.sqrt(len(values)):.3f}" if len(values) > 1 else ""
    )


def _by_size(ax: Axes, sizes: Sequence[Size], what: str) -> None:
    """Every rate's curve, and the best of each size."""
    places = [one.at for one in sizes]
    for rate, colour in zip(sizes[0].runs, plots.CYCLE, strict=False):
        ax.plot(places, [float(np.mean(one.test(rate))) for one in sizes], "--", color=colour, linewidth=1,
                label=f"rate {rate:g}")  # fmt: skip
    means, errors = (
        [float(f(one.test())) for one in sizes] for f in (np.mean, lambda v: np.std(v) / max(1, len(v) - 1) ** 0.5)
    )
    ax.errorbar(places, means, errors, fmt="o-", color="black", markersize=4, label="each at its best rate")
    if "units" in what:
        ax.set_xscale("log")
        ax.set_xticks(places)
        plots.plain_ticks(ax.xaxis)
    else:
        ax.set_xticks(places)
    plots.name_axes(ax, what, _TEST, f"fully connected, epsilon {sizes[0].epsilon:g}")


def _by_rate(ax: Axes, cnns: Sequence[Size]) -> None:
    for one, colour in zip(cnns, (plots.BLUE, plots.RED), strict=True):
        rates = list(one.runs)
        values = np.array([one.test(rate) for rate in rates])
        spread = values.std(1) / max(1, values.shape[1] - 1) ** 0.5
        ax.errorbar(
            rates, values.mean(1), spread, fmt="o-", markersize=4, color=colour, label=f"{one.parameters:,} parameters"
        )
    ax.set_xscale("log")
    ax.set_xticks(rates)
    plots.plain_ticks(ax.xaxis)
    ax.legend(frameon=False, fontsize=9)
    plots.name_axes(ax, "learning rate", _TEST, f"CNNs, epsilon {cnns[0].epsilon:g}")
