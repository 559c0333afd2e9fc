"""Shen et al. 2021, Figures 3 and 4: rows, statistics and DP-SGD by the number of features, epsilon
and rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from privlearn_studies.charts import (
    BLUE,
    CYCLE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    SKY,
    Across,
    Curve,
    Figure,
    Mark,
    Panel,
)
from privlearn_studies.report import (
    Findings,
    Row,
    each,
    judged,
    mean,
    mean_row,
    page,
    spread,
    table,
)
from privlearn_studies.runs import Call, Runs
from privlearn_studies.shen2021.grids import (
    FEW,
    GRIDS,
    SHARED,
    SOME,
    Best,
    Grid,
    Tried,
    make,
    quick,
)
from privlearn_studies.shen2021.releases import BOUNDS, CHOSEN, DELTA, plan_of

_TEST = "test accuracy"
#: The criteria in words.
_CRITERIA = {"distance": "distance", "t": "pooled t", "welch": "Welch's t"}
_TITLES = {
    "dfs-cifar10": "Features of CIFAR-10, released privately",
    "dfs-mnist": "MNIST, released privately",
}
_MARKERS = "osv^Dx"


def on_data(name: str) -> Callable[[bool, int | None, Runs], Findings]:
    """The study called `name`: everything on one data set."""

    def run(quick_: bool, seeds: int | None, runs: Runs) -> Findings:
        grid = quick(GRIDS[name]) if quick_ else GRIDS[name]
        tried = make(grid, seeds or grid.seeds, runs)
        norm, bound = BOUNDS[grid.data]
        notes = page(
            "dfs-features",
            grid=grid,
            norm=norm,
            bound=bound,
            seeds=tried.seeds,
            some=min(SOME, tried.seeds),
            few=min(FEW, tried.seeds),
            best_keeps=_best_keeps(tried),
            rows=_rows_by_number(tried),
            costs=page("dfs-features-parts:costs"),
            chosen=_chosen(tried),
            criteria=criteria_note(grid, tried.seeds),
            by_criterion=_by_criterion(tried),
            plain=mean(tried.everything(None, None)),
            tries=tries(grid),
            compared=_compared(tried),
            sizes=_by_rows(tried),
            shares=_shares(tried),
        )
        return Findings(tuple(_rows(tried)), Figure(_TITLES[name], _panels(tried), 15, 9, 3), notes)

    return run


def _rows(tried: Tried) -> list[Row]:
    """Every mean."""
    rows = []
    spent: dict[str, float] = {}
    for call, outcomes in tried.releases.items():
        for keep, values in zip(call.keeps, zip(*each(outcomes, "test"), strict=True), strict=True):
            rows.append(mean_row(f"{_name(call)}, {keep} features", _TEST, values))
        if call.epsilon is not None and call.chosen == CHOSEN[0]:
            what = f"{call.release}, epsilon {call.epsilon:g}"
            spent[what] = max(
                spent.get(what, 0.0), *(epsilon for one in outcomes for epsilon in one.epsilons)
            )
    rows += [
        Row(what, f"largest epsilon spent, at delta {DELTA:g}", epsilon)
        for what, epsilon in spent.items()
    ]
    for call, outcomes in tried.heads.items():
        size = "" if call.per_class is None else f", {call.per_class} a class"
        rows.append(
            mean_row(
                f"DP-SGD, linear{size}, epsilon {call.epsilon:g}", _TEST, each(outcomes, "test")
            )
        )
    return rows


def _name(call: Call) -> str:
    """A setting in words."""
    parts = [
        call.release if call.release != "literal" else "the published algorithm",
        "" if call.per_class is None else f"{call.per_class} a class",
        "no noise" if call.epsilon is None else f"epsilon {call.epsilon:g}",
        f"by {_CRITERIA[call.criterion]}",
        call.chosen if call.release == "rows" else "",
        f"way {call.way}" if call.way != "auto" else "",
        f"share {call.share:g}" if call.share != 0.1 else "",
        "more for counts" if call.release == "statistics" and call.split[0] > 0.1 else "",
    ]
    return ", ".join(part for part in parts if part)


def _best_keeps(tried: Tried) -> str:
    best = {epsilon: tried.best([tried.grid.row(epsilon)]) for epsilon in tried.grid.epsilons}
    return ", ".join(f"{one.keep} at epsilon {epsilon:g}" for epsilon, one in best.items())


def _rows_by_number(tried: Tried) -> str:
    grid = tried.grid
    lines = [
        (f"{epsilon:g}", *(_spread(tried.test(grid.row(epsilon), keep)) for keep in grid.keeps))
        for epsilon in grid.epsilons
    ]
    return table(("epsilon", *(str(keep) for keep in grid.keeps)), lines)


def _chosen(tried: Tried) -> str:
    """What privacy of the choice costs."""
    grid, lines = tried.grid, []
    for epsilon in grid.epsilons:
        ours = tried.best([grid.row(epsilon), grid.means(epsilon)], grid.keeps[:-1])
        gumbel = plan_of(ours.setting.setting, ours.keep).selection.by_gumbel
        free = tried.best([grid.row(epsilon, chosen=CHOSEN[1])])
        equal = tried.test(grid.given(ours.setting), ours.keep)
        lines.append(
            (
                f"{epsilon:g}",
                f"{_best(ours)} {'Gumbel' if gumbel else 'means'}",
                _best(free),
                _apart(ours.test, free.test),
                _apart(ours.test, equal),
            )
        )
    heads = (
        "epsilon",
        "distance, privately",
        "without privacy",
        "difference",
        "difference at equal noise",
    )
    return table(heads, lines)


def _by_criterion(tried: Tried) -> str:
    """What the criterion is worth."""
    grid, lines = tried.grid, []
    for epsilon in grid.epsilons:
        ours = tried.best([grid.row(epsilon), grid.means(epsilon)], grid.keeps[:-1])
        others = [
            tried.best([grid.row(epsilon, criterion)], grid.keeps[:-1])
            for criterion in grid.criteria[1:]
        ]
        published = [
            _best(tried.best([grid.published(epsilon, criterion)])) for criterion in grid.criteria
        ]
        against = [cell for one in others for cell in (_best(one), _apart(ours.test, one.test))]
        lines.append((f"{epsilon:g}", _best(ours), *against, *published))
    return table(criteria_heads(grid), lines)


def criteria_heads(grid: Grid) -> tuple[str, ...]:
    """Of the table of criteria."""
    named = [_CRITERIA[criterion] for criterion in grid.criteria]
    against = [
        head for name in named[1:] for head in (f"{name}, privately", f"distance less {name}")
    ]
    return (
        "epsilon",
        "distance, privately",
        *against,
        *(f"as published (not private), by {name}" for name in named),
    )


def criteria_note(grid: Grid, seeds: int) -> str:
    """What stands above it."""
    welch = (
        page("dfs-features-parts:welch", few=min(FEW, seeds)) if "welch" in grid.criteria else ""
    )
    return page(
        "dfs-features-parts:criteria",
        welch=f", {welch}" if welch else ".",
        numbers=len(grid.keeps) - 1,
        fewest=len(grid.means(1.0).keeps),
        published=len(grid.literal),
    )


def _compared(tried: Tried) -> str:
    """Rows, statistics and DP-SGD at one epsilon."""
    grid, lines = tried.grid, []
    for epsilon in grid.epsilons:
        rows = tried.best([grid.row(epsilon), grid.means(epsilon)])
        lines.append(
            (
                f"{epsilon:g}",
                _best(rows),
                _spread(tried.everything(epsilon, None)),
                _best(tried.selected(epsilon, None)),
                _spread(tried.head(epsilon, None)) if None in grid.heads else "–",
            )
        )
    return table(
        ("epsilon", "rows", "statistics, all features", "statistics, selected", "DP-SGD, linear"),
        lines,
    )


def tries(grid: Grid) -> str:
    """How many settings each way was tried with."""
    fewer = len(grid.keeps) - 1
    return page(
        "dfs-features-parts:tries", rows=fewer + 1 + len(grid.means(1.0).keeps), selected=3 * fewer
    )


def _by_rows(tried: Tried) -> str:
    """Where selection starts to help statistics."""
    grid, lines = tried.grid, []
    cells = sorted(
        ((grid.loudness(e, size), e, size) for e in grid.epsilons for size in grid.sizes),
        key=lambda c: c[0],
    )
    for loudness, epsilon, size in cells:
        everything, best = tried.everything(epsilon, size), tried.selected(epsilon, size)
        gumbel = "Gumbel" + (", more for counts" if best.setting.split[0] > 0.1 else "")
        lines.append(
            (
                str(_a_class(grid, size)),
                f"{epsilon:g}",
                f"{loudness:.3f}",
                _spread(everything),
                f"{_best(best)} {'means' if best.setting.way == 'means' else gumbel}",
                _apart(best.test, everything),
                _best(tried.ruled(epsilon, size)),
                _spread(tried.head(epsilon, size)) if size in grid.heads else "–",
            )
        )
    heads = (
        "rows a class",
        "epsilon",
        "z k √p / n",
        "all features",
        "selected (features) way",
        "selected less all",
        "by the rule (features)",
        "DP-SGD, linear",
    )
    return table(heads, lines)


def _a_class(grid: Grid, size: int | None) -> int:
    return grid.rows // grid.classes if size is None else size


def _shares(tried: Tried) -> str:
    """What part of rho choosing features is worth."""
    lines = []
    for epsilon in (epsilon for epsilon in tried.grid.epsilons if epsilon in SHARED):
        calls = tried.grid.shares(epsilon)
        for keep in calls[0].keeps:
            lines.append(
                (f"{epsilon:g}", str(keep), *(_spread(tried.test(one, keep)) for one in calls))
            )
    return table(
        ("epsilon", "features", *(f"{one.share:g}" for one in tried.grid.shares(2.0))), lines
    )


def _best(best: Best) -> str:
    return f"{_spread(best.test)} ({best.keep})"


def _apart(ours: Sequence[float], others: Sequence[float]) -> str:
    pairs = min(len(ours), len(others))
    return judged(ours[:pairs], others[:pairs])


def _spread(values: Sequence[float]) -> str:
    return spread(values, 3, error=True)


def _panels(tried: Tried) -> list[Panel]:
    sizes = tried.grid.sizes
    more = [
        _statistics(tried, size) for size in (sizes[-1], sizes[-2] if len(sizes) < 4 else sizes[2])
    ]
    return [_noisy_rows(tried), _criteria(tried), _ways(tried), *more, _gains(tried)]


def _noisy_rows(tried: Tried) -> Panel:
    grid, marks = tried.grid, []
    for epsilon, colour in zip(grid.epsilons, CYCLE, strict=False):
        marks.append(_curve(tried, grid.row(epsilon), colour, f"epsilon {epsilon:g}", "o-"))
        marks.append(_curve(tried, grid.row(epsilon, chosen=CHOSEN[1]), colour, "", "--"))
    return _panel(marks, "chosen without privacy", "--", "noisy rows, by distance")


def _criteria(tried: Tried) -> Panel:
    grid, marks = tried.grid, []
    epsilons = [epsilon for epsilon in grid.epsilons if epsilon in (2.0, 10.0)]
    for epsilon, colours in zip(epsilons, ((RED, ORANGE), (BLUE, SKY)), strict=False):
        for criterion, colour in zip(("distance", "t"), colours, strict=True):
            marks.append(
                _curve(
                    tried,
                    grid.row(epsilon, criterion),
                    colour,
                    f"{criterion}, epsilon {epsilon:g}",
                    "o-",
                )
            )
            marks.append(_curve(tried, grid.published(epsilon, criterion), colour, "", ":"))
    return _panel(marks, "as published (not private)", ":", "noisy rows, by criterion")


def _ways(tried: Tried) -> Panel:
    """Each way to a classifier at its best, over epsilon."""
    grid = tried.grid
    ways: list[tuple[str, str, Callable[[float], float]]] = [
        ("statistics, all features", GREEN, lambda e: mean(tried.everything(e, None))),
        ("statistics, selected", SKY, lambda e: tried.selected(e, None).mean),
        ("rows, by distance", RED, lambda e: tried.best([grid.row(e), grid.means(e)]).mean),
        ("rows, by t", ORANGE, lambda e: tried.best([grid.row(e, "t")]).mean),
        (
            "as published (not private)",
            GREY,
            lambda e: tried.best([grid.published(e, "distance")]).mean,
        ),
    ]
    if None in grid.heads:
        ways.append(("DP-SGD, linear", BLUE, lambda e: mean(tried.head(e, None))))
    marks = [
        Curve(
            grid.epsilons,
            [reached(epsilon) for epsilon in grid.epsilons],
            name,
            colour,
            marker + "-",
        )
        for (name, colour, reached), marker in zip(ways, _MARKERS, strict=False)
    ]
    return Panel(
        marks,
        "epsilon",
        _TEST,
        "each at its best, all rows",
        "x",
        xticks=grid.epsilons,
        legend="best",
    )


def _statistics(tried: Tried, size: int | None) -> Panel:
    """By means as lines, by Gumbel noise with more for the counts as broken ones."""
    grid, marks = tried.grid, []
    for epsilon, colour in zip(grid.epsilons, CYCLE, strict=False):
        means, _, even = grid.statistics(epsilon, size)
        marks.append(_curve(tried, means, colour, f"epsilon {epsilon:g}", "o-"))
        marks.append(_curve(tried, even, colour, "", "--"))
    title = f"statistics, {_a_class(grid, size):,} rows a class"
    return _panel(marks, "by Gumbel noise, more for counts", "--", title)


def _gains(tried: Tried) -> Panel:
    """What the best selection adds to all features, over the noise."""
    grid = tried.grid
    marks: list[Mark] = [Across(0, width=0.8)]
    for size, colour, marker in zip(grid.sizes, CYCLE, _MARKERS, strict=False):
        places = [grid.loudness(epsilon, size) for epsilon in grid.epsilons]
        base = np.array([mean(tried.everything(e, size)) for e in grid.epsilons])
        ruled = [tried.ruled(e, size).mean for e in grid.epsilons] - base
        gains = [tried.selected(e, size).mean for e in grid.epsilons] - base
        marks.append(Curve(places, ruled, "", "black", marker, size=7, hollow=True))
        marks.append(
            Curve(places, gains, f"{_a_class(grid, size):,} rows a class", colour, marker + "-")
        )
    marks.append(Curve([], [], "by the rule", "black", "o", size=7, hollow=True))
    return Panel(
        marks,
        "z k √p / n: noise in a class mean",
        "accuracy, selected less all",
        "what selection adds",
        "x",
        legend="best",
    )


def _curve(tried: Tried, call: Call, colour: str, label: str, line: str) -> Curve:
    values = [tried.test(call, keep) for keep in call.keeps]
    return Curve(
        call.keeps, values, label, colour, line, "error" if "o" in line else "none", width=1.2
    )


def _panel(marks: Sequence[Mark], label: str, line: str, title: str) -> Panel:
    """`label` is of the lines that have none of their own."""
    legend = Curve([], [], label, "black", line)
    return Panel(
        [*marks, legend],
        "features kept",
        _TEST,
        title,
        "x",
        ylim=(0, 0.95),
        legend="upper left",
        columns=2,
    )
