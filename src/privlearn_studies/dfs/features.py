"""`dfs-cifar10` and `dfs-mnist`: released rows, statistics and DP-SGD by the number of features, epsilon and rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from privlearn_studies import plots
from privlearn_studies.dfs.feature_plots import draw
from privlearn_studies.dfs.grids import FEW, GRIDS, SHARED, SOME, Best, Found, Grid, make, quick
from privlearn_studies.dfs.release_runs import BOUNDS, CHOSEN, DELTA, ReleaseSetting, plan_of
from privlearn_studies.findings import Findings, Row
from privlearn_studies.seeds import interval, mean_row, signed, verdict
from privlearn_studies.sweep import Sweep
from privlearn_studies.writer import table

_TEST = "test accuracy"
#: The criteria in words.
_CRITERIA = {"distance": "distance", "t": "pooled t", "welch": "Welch's t"}
COSTS = (
    "**What choosing privately costs**: by distance, each at its own best number of features (in brackets), rows again. "
    "Without privacy in the choice all of epsilon goes to the rows; at equal noise, with as much noise in the rows as "
    "beside the private choice, only the features differ. Differences with Student's intervals at 95 %.\n\n"
)
_TITLE = {"dfs-cifar10": "Features of CIFAR-10, released privately", "dfs-mnist": "MNIST, released privately"}


def run(name: str, quick_: bool, seeds: int | None, sweep: Sweep) -> Findings:
    """Everything on one data set."""
    grid = quick(GRIDS[name]) if quick_ else GRIDS[name]
    found = make(grid, seeds or grid.seeds, sweep)
    parts = (_about, _rows_note, _chosen, _by_criterion, _compared, _by_size, _shares)
    notes = tuple(part(found) for part in parts)
    figure, axes = plots.panels(_TITLE[name], 15, 9, 2, 3)
    draw(axes, found)
    return Findings(tuple(_rows(found)), figure, notes)


def _rows(found: Found) -> list[Row]:
    """Every mean."""
    rows = []
    spent: dict[str, float] = {}
    for setting, runs in found.releases.items():
        for at, keep in enumerate(setting.keeps):
            rows.append(mean_row(f"{_name(setting)}, {keep} features", _TEST, [one.test[at] for one in runs]))
        if setting.epsilon is not None and setting.chosen == CHOSEN[0]:
            what = f"{setting.release}, epsilon {setting.epsilon:g}"
            spent[what] = max(spent.get(what, 0.0), *(epsilon for one in runs for epsilon in one.epsilons))
    rows += [Row(what, f"largest epsilon spent, at delta {DELTA:g}", epsilon) for what, epsilon in spent.items()]
    for head, outcomes in found.heads.items():
        size = "" if head.per_class is None else f", {head.per_class} a class"
        label = f"DP-SGD, linear{size}, epsilon {head.epsilon:g}"
        rows.append(mean_row(label, _TEST, [one.test for one in outcomes]))
    return rows


def _name(setting: ReleaseSetting) -> str:
    """A setting in words."""
    parts = [
        setting.release if setting.release != "literal" else "the published algorithm",
        "" if setting.per_class is None else f"{setting.per_class} a class",
        "no noise" if setting.epsilon is None else f"epsilon {setting.epsilon:g}",
        f"by {_CRITERIA[setting.criterion]}",
        setting.chosen if setting.release == "rows" else "",
        f"way {setting.way}" if setting.way != "auto" else "",
        f"share {setting.share:g}" if setting.share != 0.1 else "",
        "more for counts" if setting.release == "statistics" and setting.split[0] > 0.1 else "",
    ]
    return ", ".join(part for part in parts if part)


def _about(found: Found) -> str:
    grid = found.grid
    norm, bound = BOUNDS[grid.data]
    return (
        f"{grid.rows:,} training rows of {grid.features:,} numbers scaled to [0, 1] by declared bounds, {grid.classes} "
        f"classes; `row_norm={norm}`, `coordinate_bound={bound}` (declared after a look at public rows), delta 1e-5. A Fisher "
        f"classifier is made of whatever is released. Seeds: {found.seeds} for rows, {min(SOME, found.seeds)} for statistics "
        f"and DP-SGD, {min(FEW, found.seeds)} for the published algorithm; figures are test accuracies "
        "with standard errors of the mean. Numbers of features and ways called best are so on training rows "
        "(those that were not released, where there are any; else 5,000 of them all), and that choice is not paid for. Rows "
        "are priced for zero-out neighbours with public labels, statistics and DP-SGD for add/remove ones."
    )


def _rows_note(found: Found) -> str:
    grid = found.grid
    lines = [
        (f"{epsilon:g}", *(_spread(found.test(grid.row(epsilon), keep)) for keep in grid.keeps))
        for epsilon in grid.epsilons
    ]
    best = [found.best([grid.row(epsilon)]) for epsilon in grid.epsilons]
    said = ", ".join(f"{one.keep} at epsilon {epsilon:g}" for one, epsilon in zip(best, grid.epsilons, strict=True))
    return (
        "**Noisy rows, by the number of features.** Chosen privately by distance, a tenth of rho for choosing. Best number, "
        f"of {grid.features:,}: {said}.\n\n"
    ) + table(("epsilon", *(str(keep) for keep in grid.keeps)), lines)


def _chosen(found: Found) -> str:
    """What privacy of the choice costs."""
    grid, lines = found.grid, []
    for epsilon in grid.epsilons:
        ours = found.best([grid.row(epsilon), grid.means(epsilon)], grid.keeps[:-1])
        gumbel = plan_of(ours.setting, ours.keep).selection.by_gumbel
        free = found.best([grid.row(epsilon, chosen=CHOSEN[1])])
        equal = found.test(grid.given(ours.setting), ours.keep)
        lines.append((f"{epsilon:g}", f"{_best(ours)} {'Gumbel' if gumbel else 'means'}", _best(free),
                      _apart(ours.test, free.test), _apart(ours.test, equal)))  # fmt: skip
    heads = ("epsilon", "distance, privately", "without privacy", "difference", "difference at equal noise")
    return COSTS + table(heads, lines)


def _by_criterion(found: Found) -> str:
    """What the criterion is worth."""
    grid, lines = found.grid, []
    for epsilon in grid.epsilons:
        ours = found.best([grid.row(epsilon), grid.means(epsilon)], grid.keeps[:-1])
        others = [found.best([grid.row(epsilon, criterion)], grid.keeps[:-1]) for criterion in grid.criteria[1:]]
        published = [_best(found.best([grid.published(epsilon, criterion)])) for criterion in grid.criteria]
        against = [cell for one in others for cell in (_best(one), _apart(ours.test, one.test))]
        lines.append((f"{epsilon:g}", _best(ours), *against, *published))
    return criteria_note(grid, found.seeds) + table(criteria_heads(grid), lines)


def criteria_heads(grid: Grid) -> tuple[str, ...]:
    """Of the table of criteria."""
    named = [_CRITERIA[criterion] for criterion in grid.criteria]
    against = [head for name in named[1:] for head in (f"{name}, privately", f"distance less {name}")]
    return ("epsilon", "distance, privately", *against, *(f"as published (not private), by {name}" for name in named))


def criteria_note(grid: Grid, seeds: int) -> str:
    """What stands above it."""
    welch = (
        "*Welch's t* by those with each class's own, as in the t test that the paper compares with; these variances have "
        f"more noise in them ({min(FEW, seeds)} seeds, also in differences from it). "
    )
    return (
        "**By which criterion**: noisy rows of features chosen by each, at its own best number of features. *Pooled t* "
        "divides distances by standard errors with one variance for all classes"
        + (f", {welch}" if "welch" in grid.criteria else ". ")
        + "*As published* has the paper's noise, which guarantees nothing: there epsilon is a name. Tries on held-back rows: "
        f"of distance {len(grid.keeps) - 1} numbers of features, the {len(grid.means(1.0).keeps)} smallest of them by two "
        f"ways of choosing; of t statistics the {len(grid.keeps) - 1}; as published, {len(grid.literal)}.\n\n"
    )


def _compared(found: Found) -> str:
    """Rows, statistics and DP-SGD at one epsilon."""
    grid, lines = found.grid, []
    for epsilon in grid.epsilons:
        rows = found.best([grid.row(epsilon), grid.means(epsilon)])
        cells = [
            f"{epsilon:g}",
            _best(rows),
            _spread(found.everything(epsilon, None)),
            _best(found.selected(epsilon, None)),
        ]
        cells.append(_spread(found.head(epsilon, None)) if None in grid.heads else "–")
        lines.append(tuple(cells))
    plain = np.mean(found.everything(None, None))
    heads = ("epsilon", "rows", "statistics, all features", "statistics, selected", "DP-SGD, linear")
    return (
        "**For whoever wants a classifier.** The same budget for rows, for statistics and for DP-SGD on a linear model (the "
        "defaults of `pv.train`, without normalising features); "
        f"statistics without noise have {plain:.3f}.{_tries(grid)}\n\n"
    ) + table(heads, lines)


def _tries(grid: Grid) -> str:
    """How many settings each way was tried with."""
    fewer = len(grid.keeps) - 1
    return (
        f" Tries on held-back rows, at each epsilon: rows {fewer + 1 + len(grid.means(1.0).keeps)}, statistics of all "
        f"features one, of selected ones {3 * fewer}; DP-SGD is not tuned."
    )


def _by_size(found: Found) -> str:
    """Where selection starts to help statistics."""
    grid, lines = found.grid, []
    cells = sorted(
        ((grid.loudness(e, size), e, size) for e in grid.epsilons for size in grid.sizes), key=lambda one: one[0]
    )
    for loudness, epsilon, size in cells:
        everything, best = found.everything(epsilon, size), found.selected(epsilon, size)
        way = (
            "means"
            if best.setting.way == "means"
            else "Gumbel" + (", more for counts" if best.setting.split[0] > 0.1 else "")
        )
        lines.append((str(grid.rows // grid.classes if size is None else size), f"{epsilon:g}", f"{loudness:.3f}",
                      _spread(everything), f"{_best(best)} {way}", _apart(best.test, everything),
                      _best(found.ruled(epsilon, size)),
                      _spread(found.head(epsilon, size)) if size in grid.heads else "–"))  # fmt: skip
    heads = (
        "rows a class", "epsilon", "z k √p / n", "all features", "selected (features) way", "selected less all",
        "by the rule (features)",
        "DP-SGD, linear",
    )  # fmt: skip
    return (
        "**Where selection starts to help statistics.** From little to much noise: z k √p / n is the noise in a class mean, "
        "for the noise multiplier z, over the size of a row's numbers; a public number. Selected ones are the best of all "
        "ways and numbers of features, on held-back rows. The rule (`advised`, `--mode auto`) goes by public numbers alone; "
        "it was made with these test figures in view, those of the other study and of scikit-learn's two data sets.\n\n"
    ) + table(heads, lines)


def _shares(found: Found) -> str:
    """What part of rho choosing features is worth."""
    lines = []
    for epsilon in (epsilon for epsilon in found.grid.epsilons if epsilon in SHARED):
        settings = found.grid.shares(epsilon)
        for keep in settings[0].keeps:
            lines.append((f"{epsilon:g}", str(keep), *(_spread(found.test(one, keep)) for one in settings)))
    heads = ("epsilon", "features", *(f"{one.share:g}" for one in found.grid.shares(2.0)))
    return "**The part of rho for choosing**, rows by distance.\n\n" + table(heads, lines)


def _best(best: Best) -> str:
    return f"{_spread(best.test)} ({best.keep})"


def _apart(ours: Sequence[float], others: Sequence[float]) -> str:
    pairs = min(len(ours), len(others))
    middle, half = interval(ours[:pairs], others[:pairs])
    return f"{signed(middle, half)}, {verdict(middle, half)}"


def _spread(values: Sequence[float]) -> str:
    error = f" ± {np.std(values, ddof=1) / np.sqrt(len(values)):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{error}"
