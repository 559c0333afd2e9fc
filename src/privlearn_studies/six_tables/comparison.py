"""Our defaults on six tables beside other packages: accuracy, AUC, log loss, calibration; of values
RMSE and R2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from privlearn_studies.charts import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    Curve,
    Figure,
    Panel,
)
from privlearn_studies.report import Findings, Row, each, mean, mean_row, page, table
from privlearn_studies.runs import Outcome, Runs, cached
from privlearn_studies.six_tables import elsewhere, ways
from privlearn_studies.six_tables.rows import TABLES
from privlearn_studies.six_tables.rows import table as split_of
from privlearn_studies.six_tables.ways import BASE, BOOSTING, DEFAULT, LINEAR, OPACUS, OURS, PLAIN

EPSILONS, MORE = (0.1, 0.5, 1.0, 3.0), {"adult": (0.07,)}
_SEEDS, _QUICK_SEEDS, _QUICK_ROWS, _QUICK_EPSILONS = 10, 1, 300, (1.0,)
#: Where the default is not logistic regression on the rows as they are.
OTHERWISE = ("categories", "values")
#: S-GBDT's error on Adult at epsilon 0.07 (Kirsche et al. 2023), as published.
PUBLISHED = ("adult", 0.07, 0.187)
_EBM, _LOGISTIC, _FOREST = (name for models in elsewhere.PEERS.values() for name in models)
OTHERS = (OPACUS, _EBM, _LOGISTIC, _FOREST)
#: Figures by their name in a run, with the name on the page and whether more is better.
FIGURES = {
    "accuracy": ("test accuracy", True),
    "auc": ("AUC", True),
    "log_loss": ("log loss", False),
    "expected_calibration_error": ("calibration error", False),
    "r2": ("R2", True),
    "rmse": ("RMSE", False),
}
_COLOURS = dict(
    zip((*OURS, *OTHERS), (BLUE, SKY, GREEN, PURPLE, ORANGE, RED, GREY, "#000000"), strict=True)
)
#: Figures of each seed by table, epsilon and way.
Reached = dict[tuple[str, float, str], list[Outcome]]


@cached("six-tables, second version")
def predict(
    seed: int, *, name: str, way: str, epsilon: float = 0.0, first: int | None = None
) -> dict[str, Any]:
    """Test figures of one model of a table (`six_tables.ways.HERE`), of the first so many training
    rows.
    """
    split = split_of(name, first)
    return ways.measured(split, ways.HERE[way](split, epsilon, seed))


@cached("six-tables, elsewhere")
def predict_elsewhere(
    seed: int, *, name: str, package: str, epsilons: tuple[float, ...], first: int | None = None
) -> dict[str, Any]:
    """Test figures of the models of a package in another environment, by their names, one for each
    epsilon.
    """
    split = split_of(name, first)
    predicted = ways.predicted_elsewhere(package, split, epsilons, seed)
    return {
        model: [ways.measured(split, scores) for scores in each]
        for model, each in predicted.items()
    }


def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Every table at every epsilon by every way; packages for which no environment is named are
    left out.
    """
    most, first = seeds or (_QUICK_SEEDS if quick else _SEEDS), _QUICK_ROWS if quick else None
    every: Reached = {}
    for name in TABLES:
        epsilons = _QUICK_EPSILONS if quick else (*MORE.get(name, ()), *EPSILONS)
        every |= _of_table(name, epsilons, range(most), first, runs)
    panels = [_panel(name, every) for name in TABLES]
    figure = Figure("six tables: log loss, or RMSE of values", panels, 11, 8, 3)
    return Findings(tuple(_rows(every)), figure, notes_of(every))


def _of_table(
    name: str, epsilons: tuple[float, ...], seeds: Sequence[int], first: int | None, runs: Runs
) -> Reached:
    """Everything of one table; at epsilon 0 what is not private, which chance plays no part in."""
    ways_here = [way for way in (*OURS, OPACUS) if way != LINEAR or name in OTHERWISE]
    here = {
        (name, epsilon, way): predict.at(name=name, way=way, epsilon=epsilon, first=first)
        for epsilon in epsilons
        for way in ways_here
    }
    reached = runs.named(here, seeds)
    packages = [package for package in elsewhere.PEERS if ways.interpreter(package)]
    away = {
        package: predict_elsewhere.at(name=name, package=package, epsilons=epsilons, first=first)
        for package in packages
    }
    for outcomes in runs.named(away, seeds).values():
        for model in vars(outcomes[0]):
            for at, epsilon in enumerate(epsilons):
                reached[name, epsilon, model] = [
                    getattr(outcome, model)[at] for outcome in outcomes
                ]
    free = {(name, 0.0, way): predict.at(name=name, way=way, first=first) for way in (PLAIN, BASE)}
    return reached | runs.named(free, range(1))


def _rows(every: Reached) -> Iterable[Row]:
    name, at, error = PUBLISHED
    for cell, outcomes in every.items():
        label = f"{cell[0]}, epsilon {cell[1]:g}, {cell[2]}" if cell[1] else f"{cell[0]}, {cell[2]}"
        for figure, (metric, _) in FIGURES.items():
            if hasattr(outcomes[0], figure):
                published = (
                    1 - error if (*cell, figure) == (name, at, BOOSTING, "accuracy") else None
                )
                yield mean_row(label, metric, each(outcomes, figure), published)


def notes_of(every: Reached) -> str:
    """The text of the page, from the figures."""
    present = [way for way in (*OURS, *OTHERS) if any(cell[2] == way for cell in every)]
    seeds = {name: max(len(every[cell]) for cell in every if cell[0] == name) for name, *_ in every}
    most = max(seeds.values())
    few = "".join(f" ({name}: {number})" for name, number in seeds.items() if number < most)
    return page(
        "six-tables",
        seeds=f"{most} seed{'s' if most > 1 else ''}{few}",
        delta=ways.DELTA,
        pairs=_grid(every, present, ("auc", "log_loss"), ("r2", "rmse"), TABLES),
        more=_grid(every, present, ("accuracy", "expected_calibration_error"), (), TABLES[:-1]),
        won=_won(every, present),
        base=_against_base(every),
        adult=_adult(every, present),
        missing="" if len(present) == len((*OURS, *OTHERS)) else page("six-tables-parts:missing"),
    )


def _at(every: Reached, cell: tuple[str, float, str], figure: str) -> float | None:
    """The mean over seeds; None where that way was not run, or has no such figure."""
    outcomes = every.get(cell, [])
    return mean(each(outcomes, figure)) if outcomes and hasattr(outcomes[0], figure) else None


def _best(
    every: Reached, name: str, epsilon: float, present: Sequence[str], figure: str
) -> list[str]:
    """The ways with the best mean of a figure, to three digits."""
    means = {way: _at(every, (name, epsilon, way), figure) for way in present}
    known = {way: round(value, 3) for way, value in means.items() if value is not None}
    least = (max if FIGURES[figure][1] else min)(known.values())
    return [way for way, value in known.items() if value == least]


def _grid(
    every: Reached,
    present: Sequence[str],
    figures: tuple[str, ...],
    others: tuple[str, ...],
    names: Sequence[str],
) -> str:
    """A row for each table and epsilon, a column for each way; the best private figures are
    bold.
    """
    lines = []
    for name, epsilon in dict.fromkeys(
        (cell[0], cell[1]) for cell in every if cell[1] and cell[0] in names
    ):
        table_figures = (
            others if _at(every, (name, epsilon, DEFAULT), figures[0]) is None else figures
        )
        best = {figure: _best(every, name, epsilon, present, figure) for figure in table_figures}
        cells = [_cell(every, (name, epsilon, way), best) for way in present]
        plain = [
            _cell(every, (name, 0.0, way), {figure: [] for figure in table_figures})
            for way in (PLAIN, BASE)
        ]
        lines.append((_title(name, table_figures, figures), f"{epsilon:g}", *cells, *plain))
    return table(("table", "epsilon", *present, PLAIN, BASE), lines)


def _title(name: str, table_figures: Sequence[str], figures: Sequence[str]) -> str:
    return (
        name
        if table_figures == figures
        else f"{name} ({' / '.join(FIGURES[figure][0] for figure in table_figures)})"
    )


def _cell(every: Reached, cell: tuple[str, float, str], best: Mapping[str, Sequence[str]]) -> str:
    parts = []
    for figure, winners in best.items():
        value = _at(every, cell, figure)
        text = "–" if value is None else f"{value:.3f}" if abs(value) < 1000 else f"{value:.0e}"
        parts.append(f"**{text}**" if cell[2] in winners else text)
    return " / ".join(parts) if any(part != "–" for part in parts) else "–"


def _won(every: Reached, present: Sequence[str]) -> str:
    """On how many tables whose mean is best among the private ones; of values R2 and RMSE count."""
    sides = {"any of ours": tuple(OURS), **{way: (way,) for way in present}}
    epsilons = [epsilon for epsilon in EPSILONS if any(cell[1] == epsilon for cell in every)]
    lines = []
    for side, members in sides.items():
        counts = []
        for epsilon in epsilons:
            for pair in (("auc", "r2"), ("log_loss", "rmse")):
                won = 0
                for name in dict.fromkeys(cell[0] for cell in every if cell[1] == epsilon):
                    figure = next(
                        name_of_figure
                        for name_of_figure in pair
                        if _at(every, (name, epsilon, BOOSTING), name_of_figure) is not None
                    )
                    won += any(
                        way in members for way in _best(every, name, epsilon, present, figure)
                    )
                counts.append(str(won))
        lines.append((side, *counts))
    heads = [f"{figure}, {epsilon:g}" for epsilon in epsilons for figure in ("AUC", "log loss")]
    return table(("best on so many tables", *heads), lines)


def _against_base(every: Reached) -> str:
    """Where a way's mean log loss, or RMSE, is above that of the base rate."""
    said = []
    for way in dict.fromkeys(cell[2] for cell in every if cell[1]):
        worse: dict[str, list[str]] = {}
        for name, epsilon, cell_way in every:
            figure = "log_loss" if _at(every, (name, 0.0, BASE), "rmse") is None else "rmse"
            base, value = (
                _at(every, (name, 0.0, BASE), figure),
                _at(every, (name, epsilon, cell_way), figure),
            )
            if (
                cell_way == way
                and epsilon
                and base is not None
                and value is not None
                and value > base
            ):
                worse.setdefault(name, []).append(f"{epsilon:g}")
        tables = "; ".join(
            f"{name} at epsilon {', '.join(epsilons)}" for name, epsilons in worse.items()
        )
        said.append(f"- {way}: {tables or 'nowhere'}")
    return "\n".join(said)


def _adult(every: Reached, present: Sequence[str]) -> str:
    """Errors on Adult, by epsilon."""
    name, at, error = PUBLISHED
    epsilons = [cell[1] for cell in every if cell[0] == name and cell[2] == DEFAULT]
    lines = []
    for way in (way for way in present if (name, at, way) in every):
        accuracies = [_at(every, (name, epsilon, way), "accuracy") for epsilon in epsilons]
        lines.append((way, *("–" if value is None else f"{1 - value:.4f}" for value in accuracies)))
    lines.append(
        ("S-GBDT, as published", *(f"{error:g}" if epsilon == at else "–" for epsilon in epsilons))
    )
    return table(("error", *(f"epsilon {epsilon:g}" for epsilon in epsilons)), lines)


def _panel(name: str, every: Reached) -> Panel:
    """Log loss, or RMSE, against epsilon."""
    (base,) = every[name, 0.0, BASE]
    reached = {cell: outcomes for cell, outcomes in every.items() if cell[1]}
    figure = "log_loss" if hasattr(base, "log_loss") else "rmse"
    drawn = []
    most = 1.5 * getattr(base, figure)
    for way, colour in _COLOURS.items():
        means = {
            cell[1]: mean(each(runs, figure))
            for cell, runs in reached.items()
            if (cell[0], cell[2]) == (name, way)
        }
        means = {epsilon: value for epsilon, value in means.items() if value < most}
        if means:
            drawn.append(
                Curve(
                    list(means), list(means.values()), way, colour, "o-" if way in OURS else "s--"
                )
            )
    drawn.append(Curve(EPSILONS, [getattr(base, figure)] * len(EPSILONS), BASE, GREY, ":"))
    return Panel(drawn, "epsilon", FIGURES[figure][0], name, "x2", xticks=EPSILONS, legend="below")
