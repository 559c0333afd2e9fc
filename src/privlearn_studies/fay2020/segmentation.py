"""Private segmentation of MRI volumes after Fay et al. 2020, beside the baselines that the paper
leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from privlearn_studies.charts import (
    BLUE,
    CYCLE,
    GREY,
    ORANGE,
    RED,
    SKY,
    Across,
    Curve,
    Figure,
    Image,
    Mark,
    Panel,
    Text,
)
from privlearn_studies.fay2020.scans import Settings
from privlearn_studies.fay2020.segmenting import CELLS, DELTA, WAYS, train, train_by_gradients
from privlearn_studies.report import (
    Findings,
    Row,
    each,
    interval,
    mean,
    mean_row,
    page,
    spread,
    table,
)
from privlearn_studies.runs import Call, Outcome, Runs

_SEEDS, _QUICK_SEEDS = 3, 1
_TEACHERS = (8, 16, 32)
#: More teachers, with the first seed only.
_MANY = 64
#: Other numbers of public volumes with masks, and where students are taught there, by `_FEW`
#: teachers; the first seed only.
_LABELLED, _FEW, _FEWER_CELLS = (4, 8), 32, ((8.0, 10), (8.0, 40))
_MOVED_ALONE = "DP-SGD from nothing, moved volumes"
_MOVED = "DP-SGD from the public U-Net, moved volumes"
_PAPERS = "DP-SGD from nothing, the paper's clip and noise"
#: Epochs of the paper's noise that cost epsilon 8 where layers are not counted, or are.
_EPOCHS = (118, 6)
_DICE = "Dice on the test volumes, mean of both classes"
_QUICK = Settings(public=200, teacher=25, alone=60, epochs=3)
SIZE = (28, 20)
_TITLES = (
    "scan",
    "truth",
    "public U-Net",
    "teachers' mean",
    *(f"noisy answer:\n{way}" for way in WAYS),
    "student of\ncorrections",
)
_COLOURS = (GREY, ORANGE, RED, BLUE)
Outcomes = dict[int, list[Outcome]]
Descents = dict[str, list[Outcome]]
_Cell = tuple[float, int]


def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Every ensemble by every way, and all that they are compared with."""
    numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
    ensembles, others, gradients = _calls(quick)
    by_teachers: Outcomes = runs.named(ensembles, numbers)
    descents: Descents = runs.named(gradients, numbers)
    few: Outcomes = {}
    if not quick:
        by_teachers |= runs.named({_MANY: train.at(teachers=_MANY)}, numbers[:1])
        few = runs.named(others, numbers[:1])
    rows = [
        *_baseline_rows(by_teachers, descents),
        *[row for count, mine in by_teachers.items() for row in _rows(count, mine)],
    ]
    rows += [
        row
        for labelled, mine in few.items()
        for row in _rows(_FEW, mine, f"{labelled} public masks, ")
    ]
    notes = page(
        "pate-segmentation",
        private="60 of 180" if quick else "180",
        seeds=len(numbers),
        delta=DELTA,
        baselines=_baselines(by_teachers, descents),
        tried=page("pate-segmentation-tried"),
        teachers=_teachers(by_teachers),
        students=_students(by_teachers),
        ways=_ways(by_teachers),
        alone=_alone(by_teachers),
        labelled=_labelled(few, by_teachers) if few else "",
        meaning=_meaning(by_teachers, descents),
    )
    return Findings(tuple(rows), _figure(by_teachers, descents), notes)


def _calls(quick: bool) -> tuple[dict[int, Call], dict[int, Call], dict[str, Call]]:
    """Ensembles by their number of teachers, those with other public volumes, and what is trained
    by descent.
    """
    descend = train_by_gradients.at
    nothing, public = "DP-SGD from nothing, epsilon 8", "DP-SGD from the public U-Net, epsilon "
    if quick:
        gradients = {
            nothing: descend(epsilon=8.0, epochs=4, learning_rate=1e-2),
            f"{public}8": descend(epsilon=8.0, start="public", epochs=4),
            f"{_MOVED}, epsilon 8": descend(epsilon=8.0, start="public", epochs=2, copies=1),
            f"{_PAPERS}, 2 epochs": descend(epsilon=None, epochs=2, papers=True),
            "no privacy": descend(epsilon=None, epochs=40, learning_rate=1e-2),
        }
        short = {label: call.but(first=60, settings=_QUICK) for label, call in gradients.items()}
        return (
            {count: train.at(teachers=count, first=60, settings=_QUICK) for count in (4, 16)},
            {},
            short,
        )
    gradients = {nothing: descend(epsilon=8.0, epochs=80, learning_rate=1e-2)}
    moved = {f"{_MOVED_ALONE}, epsilon 8": gradients[nothing].but(copies=1)}
    for epsilon in (8.0, 4.0, 2.0, 1.0):
        call = gradients[f"{public}{epsilon:g}"] = descend(
            epsilon=epsilon, start="public", learning_rate=1e-3
        )
        moved[f"{_MOVED}, epsilon {epsilon:g}"] = call.but(copies=1)
    gradients |= moved
    for epochs in _EPOCHS:
        gradients[f"{_PAPERS}, {epochs} epochs"] = descend(
            epsilon=None, epochs=epochs, learning_rate=1e-2, papers=True
        )
    gradients["no privacy"] = descend(epsilon=None, epochs=400, learning_rate=1e-2)
    others = {
        labelled: train.at(teachers=_FEW, labelled=labelled, cells=_FEWER_CELLS)
        for labelled in _LABELLED
    }
    return {count: train.at(teachers=count) for count in _TEACHERS}, others, gradients


def dice(mine: Sequence[Outcome], name: str) -> list[float]:
    """The mean over classes of each seed's Dice."""
    return [mean(classes) for classes in each(mine, name)]


def taught(mine: Sequence[Outcome], way: str, cell: _Cell) -> list[float]:
    """The Dice of each seed's student in a cell; empty where none was taught."""
    return [mean(one.student) for one in _cells(mine, way, cell) if one.student is not None]


def _cells(mine: Sequence[Outcome], way: str, cell: _Cell) -> list[Outcome]:
    return [
        one
        for run in mine
        for one in run.cells
        if (one.way, one.epsilon, one.queries) == (way, *cell)
    ]


def _baseline_rows(by_teachers: Outcomes, descents: Descents) -> list[Row]:
    mine = next(iter(by_teachers.values()))
    known = {f"{_PAPERS}, {_EPOCHS[0]} epochs": 0.53}
    rows = [
        mean_row("mean of the public masks", _DICE, dice(mine, "mean")),
        mean_row("public U-Net", _DICE, dice(mine, "public")),
        mean_row("public U-Net, taught by itself", _DICE, dice(mine, "itself")),
    ]
    for label, outcomes in descents.items():
        # The paper's number is for brain tumours.
        rows.append(mean_row(label, _DICE, dice(outcomes, "test"), known.get(label)))
        spent = [one.spent for one in outcomes if one.spent is not None]
        if spent:
            rows.append(mean_row(label, f"epsilon spent, at delta {DELTA:g}", spent))
    return rows


def _rows(count: int, mine: Sequence[Outcome], more: str = "") -> list[Row]:
    """All numbers of one ensemble."""
    label, papers = f"{more}K {count}", (0.547, 0.561) if count == 8 and not more else (None, None)
    rows = [
        mean_row(
            label,
            "Dice of one teacher on the test volumes (private)",
            dice(mine, "teacher"),
            papers[0],
        ),
        mean_row(label, "Dice of the teachers' mean there (private)", dice(mine, "ensemble")),
        mean_row(
            label, "Dice of a student of that mean, of 40 volumes (private)", dice(mine, "taught")
        ),
    ]
    for cells in zip(*each(mine, "cells"), strict=True):
        first = cells[0]
        cell_label = f"{label}, {first.way}, epsilon {first.epsilon:g}, N {first.queries}"
        rows.append(
            mean_row(
                cell_label, "Dice of the answers on the queried volumes", dice(cells, "answers")
            )
        )
        if first.student is not None:
            rows.append(mean_row(cell_label, _DICE, dice(cells, "student")))
            for number, values in enumerate(zip(*each(cells, "student"), strict=True), 1):
                rows.append(
                    mean_row(cell_label, f"Dice of class {number} on the test volumes", values)
                )
        if first.alone is not None:
            rows.append(
                mean_row(
                    f"{cell_label}, student from nothing", _DICE, dice(cells, "alone"), papers[1]
                )
            )
    return rows


def _baselines(by_teachers: Outcomes, descents: Descents) -> str:
    mine = next(iter(by_teachers.values()))
    several = [
        ("mean of the public masks, for every volume", each(mine, "mean"), "–"),
        ("U-Net on the public masks alone", each(mine, "public"), "–"),
        ("the same, taught by its own predictions for 40 volumes", each(mine, "itself"), "–"),
    ]
    for label, outcomes in descents.items():
        several.append(
            (
                label,
                each(outcomes, "test"),
                "–" if outcomes[0].spent is None else f"{outcomes[0].spent:.3g}",
            )
        )
    lines = [
        (
            label,
            spent,
            spread([mean(one) for one in values], 3),
            *(f"{mean(one[at] for one in values):.3f}" for at in (0, 1)),
        )
        for label, values, spent in several
    ]
    return table(("what", "epsilon spent", "Dice", "anterior", "posterior"), lines)


def _teachers(by_teachers: Outcomes) -> str:
    lines = [
        (str(count), *(spread(dice(mine, name), 3) for name in ("teacher", "ensemble", "taught")))
        for count, mine in by_teachers.items()
    ]
    return table(("K", "one teacher", "teachers' mean", "student of the mean of 40 volumes"), lines)


def _students(by_teachers: Outcomes) -> str:
    lines = []
    for count, mine in by_teachers.items():
        for epsilon, queries in sorted(CELLS):
            students = taught(mine, WAYS[-1], (epsilon, queries))
            if students:
                noise = _cells(mine, WAYS[-1], (epsilon, queries))[0].noise
                lines.append(
                    (
                        str(count),
                        f"{epsilon:g}",
                        str(queries),
                        f"{noise:.3f}",
                        spread(students, 3),
                        _against(students, dice(mine, "public")),
                        _against(students, dice(mine, "itself")),
                    )
                )
    return table(
        (
            "K",
            "epsilon",
            "N",
            "noise",
            "Dice",
            "above the public U-Net",
            "above the one taught by itself",
        ),
        lines,
    )


def _against(values: Sequence[float], others: Sequence[float]) -> str:
    """The mean difference of pairs, its interval, and in how many of them `values` are above."""
    middle, half = interval(values, others)
    wide = "" if math.isinf(half) else f" ± {half:.3f}"
    return f"{middle:+.3f}{wide}, {sum(np.greater(values, others))} of {len(values)} above"


def _ways(by_teachers: Outcomes) -> str:
    lines = []
    for count, mine in by_teachers.items():
        for epsilon, queries in CELLS[:3]:
            cells = [
                spread(students, 3) if (students := taught(mine, way, (epsilon, queries))) else "–"
                for way in WAYS
            ]
            if any(cell != "–" for cell in cells):
                lines.append((str(count), f"{epsilon:g}", str(queries), *cells))
    return table(("K", "epsilon", "N", *WAYS), lines)


def _alone(by_teachers: Outcomes) -> str:
    alone = [
        f"{spread(students, 3)} at K = {count}"
        for count, mine in by_teachers.items()
        if (
            students := [
                mean(one.alone) for run in mine for one in run.cells if one.alone is not None
            ]
        )
    ]
    if not alone:
        return ""
    return (
        "Students of the autoencoder's answers that begin from nothing, N = 80, epsilon 8: "
        f"{'; '.join(alone)}."
    )


def _labelled(few: Outcomes, by_teachers: Outcomes) -> str:
    lines = []
    for labelled, mine in sorted({**few, 2: by_teachers[_FEW][:1]}.items()):
        public = dice(mine, "public")
        for epsilon, queries in _FEWER_CELLS:
            students = taught(mine, WAYS[-1], (epsilon, queries))
            lines.append(
                (
                    str(labelled),
                    f"{epsilon:g}",
                    str(queries),
                    spread(public, 3),
                    spread(students, 3),
                    _against(students, public),
                    _against(students, dice(mine, "itself")),
                )
            )
    heads = (
        "public masks",
        "epsilon",
        "N",
        "public U-Net",
        "student of corrections",
        "above it",
        "above the one taught by itself",
    )
    return f"**More public masks, less to gain**, at K = {_FEW}.\n\n{table(heads, lines)}"


def _meaning(by_teachers: Outcomes, descents: Descents) -> str:
    """Where students of corrections are above all that is public, in every seed, and what descent
    reaches.
    """
    above: dict[int, list[str]] = {}
    below: dict[int, list[str]] = {}
    best = (0.0, "")
    for count, mine in by_teachers.items():
        public = [
            max(several)
            for several in zip(*(dice(mine, n) for n in ("public", "itself", "mean")), strict=True)
        ]
        for epsilon, queries in sorted(CELLS):
            students = taught(mine, WAYS[-1], (epsilon, queries))
            where = above if students and all(np.greater(students, public)) else below
            where.setdefault(count, []).append(f"({epsilon:g}, {queries})")
            best = max(
                best, (mean(students or [0.0]), f"K = {count}, epsilon {epsilon:g}, N = {queries}")
            )
    descent = "; ".join(
        f"{label} {mean(dice(outcomes, 'test')):.3f}" for label, outcomes in descents.items()
    )
    return (
        f"Above all three public baselines in every seed: {_listed(above)}; not so: "
        f"{_listed(below)}. The best, {best[0]:.3f}, is at {best[1]}. Beside it: {descent}."
    )


def _listed(places: dict[int, list[str]]) -> str:
    return (
        ", ".join(f"K = {count} at {' '.join(cells)}" for count, cells in places.items())
        or "nowhere"
    )


def _figure(by_teachers: Outcomes, descents: Descents) -> Figure:
    """Three panels of students, one of answers, and a row of slices."""
    largest = max(by_teachers)
    panels = [
        _by_teachers(by_teachers, descents),
        _over(
            by_teachers,
            "epsilon, N = 10",
            {epsilon: (epsilon, 10) for epsilon in (1.0, 2.0, 4.0, 8.0)},
        ),
        _over(
            by_teachers, "N, epsilon = 8", {queries: (8.0, queries) for queries in (10, 20, 40, 80)}
        ),
        _answers(by_teachers),
        _slices(by_teachers[largest][0], largest),
    ]
    return Figure(
        "Private segmentation of the hippocampus, delta 0.001", panels, 14, 7, 4, heights=(2.4, 1)
    )


def _public(mine: Sequence[Outcome]) -> list[Mark]:
    """What is public, as lines across."""
    return [
        Across(mean(dice(mine, "public")), "public U-Net", line="--"),
        Across(mean(dice(mine, "itself")), "public U-Net, taught by itself", line=":"),
    ]


def _by_teachers(by_teachers: Outcomes, descents: Descents) -> Panel:
    """Each way's students over the number of teachers, beside descent."""
    counts = sorted(by_teachers)
    marks: list[Mark] = []
    for way, colour in zip(WAYS, _COLOURS, strict=True):
        means = {
            count: mean(values)
            for count in counts
            if (values := taught(by_teachers[count], way, (8.0, 10)))
        }
        if means:
            marks.append(Curve(list(means), list(means.values()), way, colour, "o-"))
    for label, outcomes in descents.items():
        if "epsilon 8" in label or label == "no privacy":
            height = mean(dice(outcomes, "test"))
            marks += [Across(height, colour=SKY), Text(counts[0], height, label)]
    return Panel(
        [*marks, *_public(by_teachers[counts[0]])],
        "teachers K",
        "Dice of the student on test volumes",
        "epsilon 8, 10 volumes asked about",
        "x2",
        ylim=(0.6, None),
        xticks=counts,
        legend="lower right",
    )


def _over(by_teachers: Outcomes, name: str, cells: dict[float, _Cell]) -> Panel:
    """Students of corrections over epsilon or over the number of queries, one line for each number
    of teachers.
    """
    marks: list[Mark] = []
    for count, colour in zip(sorted(by_teachers), CYCLE, strict=False):
        students = {
            place: values
            for place, cell in cells.items()
            if (values := taught(by_teachers[count], WAYS[-1], cell))
        }
        if students:
            marks.append(
                Curve(
                    list(students),
                    list(students.values()),
                    f"K = {count}",
                    colour,
                    "o-",
                    "deviation",
                )
            )
    return Panel(
        [*marks, *_public(by_teachers[min(by_teachers)])],
        name.split(",")[0],
        "Dice of the student of corrections",
        f"over {name}",
        "x2",
        xticks=list(cells),
        legend="best",
    )


def _answers(by_teachers: Outcomes) -> Panel:
    """Answers' Dice over the noise, all cells, each way."""
    marks: list[Mark] = []
    for way, colour in zip(WAYS, _COLOURS, strict=True):
        cells = [
            cell
            for mine in by_teachers.values()
            for run in mine
            for cell in run.cells
            if cell.way == way
        ]
        marks.append(
            Curve(each(cells, "noise"), dice(cells, "answers"), way, colour, "o", size=2.5)
        )
    marks.append(Across(mean(dice(next(iter(by_teachers.values())), "public_pool")), line="--"))
    return Panel(
        marks,
        "noise on each number, over the radius",
        "Dice of the noisy answers",
        "answers, before any student",
        "x",
        legend="lower left",
    )


def _slices(run: Outcome, teachers: int) -> Panel:
    """The middle slice of the first volume that was asked about."""
    scan, *classes = (np.reshape(values, SIZE).T for values in run.slices)
    image = Image(
        np.hstack([scan] * len(run.slices)), classes=np.hstack([np.zeros_like(scan), *classes])
    )
    ticks = {
        SIZE[0] * (place + 0.5): title
        for place, (title, _) in enumerate(zip(_TITLES, run.slices, strict=False))
    }
    title = f"The first volume asked about, middle slice: K = {teachers}, epsilon 8, 10 volumes"
    return Panel([image], title=title, xticks=ticks, wide=True)
