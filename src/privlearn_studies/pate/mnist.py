"""PATE with votes on MNIST, data-independent: what a student makes of many noisy answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from privlearn_studies import plots
from privlearn_studies.findings import Findings
from privlearn_studies.pate.vote_runs import DELTA, WAYS, VoteOutcome, VoteSetting
from privlearn_studies.seeds import interval, mean_row, signed
from privlearn_studies.sweep import Sweep
from privlearn_studies.writer import table

_SEEDS, _QUICK_SEEDS = 3, 1
_COLOURS = (plots.GREY, plots.SKY, plots.RED)
#: Papernot et al. 2018, Table 1: Confident-GNMax on MNIST, epsilon 1.97 at delta 1e-5 by data-dependent accounting.
_PAPER = 0.985
_PLAIN = "test accuracy"
TRIED = (
    "These settings were chosen with labels of public and test images in view, so the figures are a little kind. How many "
    "were tried is not on record; no column was tuned by itself, and what was chosen, the network, its training and how "
    "labels are spread, may suit the columns with spreading best."
)


def run(name: str, quick: bool, seeds: int | None, sweep: Sweep) -> Findings:
    """Students of one ensemble by the number of queries, and by what they learn from."""
    numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
    setting = quick_setting() if quick else VoteSetting()
    runs: list[VoteOutcome] = sweep([setting], numbers)[setting]
    on = f"{setting.teachers} teachers"
    rows = [
        mean_row(on, "accuracy of one teacher on the queries (private)", [run.teacher for run in runs]),
        mean_row(on, "accuracy of their plurality on the queries, without noise (private)",
                 [run.plurality for run in runs]),
    ]  # fmt: skip
    lines = []
    for place, queries in enumerate(setting.queries):
        label = f"{queries} queries"
        rows += [
            mean_row(label, "noise on each count", [run.noise[place] for run in runs]),
            mean_row(label, f"epsilon spent, at delta {DELTA:g}", [run.epsilons[place] for run in runs]),
            mean_row(label, "accuracy of the noisy winners on the queries", [run.answers[place] for run in runs]),
            mean_row(label, "accuracy on the pool of labels spread from noisy counts", [run.seen[place] for run in runs]),
        ]  # fmt: skip
        cells = [str(queries), f"{runs[0].noise[place]:.1f}", _spread([run.answers[place] for run in runs])]
        for which, way in enumerate(WAYS):
            reached = [run.test[place][which] for run in runs]
            rows.append(mean_row(f"{label}, {way}", _PLAIN, reached, _PAPER if way == WAYS[-1] else None))
            cells.append(_spread(reached))
        apart = interval([run.test[place][2] for run in runs], [run.test[place][0] for run in runs])
        lines.append((*cells, signed(*apart)))
    figure, axes = plots.panels("PATE on MNIST, epsilon 2", 11, 4.6, 1, 2)
    _bars(axes[0], setting, runs)
    _labels(axes[1], setting, runs)
    plots.legend(figure, axes[0], 4)
    notes = (
        _about(setting, len(numbers)),
        table(("queries", "noise on a count", "noisy winners right", *WAYS, "counts less no spreading"), lines),
        "*Paper* is Confident-GNMax of Papernot et al. 2018 at epsilon 1.97, a figure of accounting that looks at the votes, "
        "and so is private itself; its teachers and its student, a generative adversarial network, are stronger. The bound "
        "here depends on nothing private.",
        TRIED,
    )  # fmt: skip
    return Findings(tuple(rows), figure, notes)


def quick_setting() -> VoteSetting:
    """A quarter of the records, one number of queries, shorter training; as many teachers, which the noise follows from."""
    return VoteSetting(queries=(400,), epochs=2, first=15_000)


def _about(setting: VoteSetting, seeds: int) -> str:
    records = "60,000" if setting.first is None else f"{setting.first:,}"
    return (
        f"{setting.teachers} teachers share {records} training images; each spreads the labels of its own over the public "
        f"inputs. Epsilon {setting.epsilon:g} at delta {DELTA:g} for all queries together, by exact composition of Gaussians. "
        "The first 9,000 test images are the public pool, of which the first ones are asked about; the last 1,000 are tested "
        f"on, so that one run's accuracy is known to about 0.007. Students take as many steps whatever they learn from. Seeds "
        f"({seeds}) share data and nothing else; teachers and noise are the same for all columns of a seed, each "
        "priced as if it were the only one."
    )


def _spread(values: Sequence[float]) -> str:
    return f"{np.mean(values):.4f}" + (f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else "")


def _bars(ax: Axes, setting: VoteSetting, runs: Sequence[VoteOutcome]) -> None:
    """Test accuracy by queries and way to learn; dots are seeds."""
    for which, (way, colour) in enumerate(zip(WAYS, _COLOURS, strict=True)):
        for place in range(len(setting.queries)):
            reached = [run.test[place][which] for run in runs]
            at = place + (which - 1) * 0.25
            ax.bar(at, np.mean(reached), 0.22, color=colour, alpha=0.7, label=way if place == 0 else None)
            ax.plot([at] * len(reached), reached, "o", color="black", markersize=3)
    ax.set_ylim(0.7, 1.0)
    ax.set_xticks(range(len(setting.queries)), [str(number) for number in setting.queries])
    plots.name_axes(ax, "queries", _PLAIN, "students")


def _labels(ax: Axes, setting: VoteSetting, runs: Sequence[VoteOutcome]) -> None:
    """How right what the student learns from is."""
    names = (
        "one teacher",
        "plurality",
        *(f"{kind}\n{q} queries" for q in setting.queries for kind in ("winners", "spread")),
    )
    values = [[run.teacher for run in runs], [run.plurality for run in runs]]
    for place in range(len(setting.queries)):
        values += [[run.answers[place] for run in runs], [run.seen[place] for run in runs]]
    ax.bar(range(len(names)), [np.mean(each) for each in values], 0.6, color=plots.BLUE, alpha=0.7)
    for at, each in enumerate(values):
        ax.plot([at] * len(each), each, "o", color="black", markersize=3)
    ax.set_ylim(0.7, 1.0)
    ax.set_xticks(range(len(names)), names, fontsize=8)
    plots.name_axes(ax, "", "accuracy on public images", "what they learn from")
