"""Private segmentation with four classes and four channels, on tumours that a program draws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from privlearn_studies.charts import CYCLE, GREY, Across, Curve, Figure, Image, Mark, Panel
from privlearn_studies.fay2020.scans import TUMOURS, Settings
from privlearn_studies.fay2020.segmentation import dice, taught
from privlearn_studies.fay2020.segmenting import DELTA, WAYS, train, train_by_gradients
from privlearn_studies.fay2020.tumours import SIZE
from privlearn_studies.report import Findings, Row, each, mean, mean_row, page, spread, table
from privlearn_studies.runs import Call, Outcome, Runs

_SEEDS, _TEACHERS = 2, 16
#: With the first seed only.
_NOTHING = "DP-SGD from nothing, epsilon 8"
#: Where students are taught: (epsilon, queried volumes).
_CELLS = ((8.0, 10), (8.0, 80), (1.0, 10))
_DICE, _CLASSES = (
    "Dice on the test volumes, mean of three classes",
    ("core", "swelling", "enhancing part"),
)
_QUICK = Settings(public=200, teacher=25, alone=60, epochs=3)
_TITLES = (
    "scan",
    "truth",
    "public U-Net",
    "teachers' mean",
    *(f"noisy answer:\n{way}" for way in WAYS),
    "student of\ncorrections",
)
Descents = dict[str, list[Outcome]]


def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """One ensemble by every way, and what it is compared with."""
    numbers = range(seeds or (1 if quick else _SEEDS))
    ensemble, gradients = _calls(quick)
    (mine,) = runs.named({_TEACHERS: ensemble}, numbers).values()
    nothing = {_NOTHING: gradients.pop(_NOTHING)}
    descents: Descents = runs.named(gradients, numbers) | runs.named(nothing, numbers[:1])
    notes = page(
        "pate-tumours",
        private="60 of 180" if quick else "180",
        seeds=len(numbers),
        delta=DELTA,
        teachers=_TEACHERS,
        baselines=_baselines(mine, descents),
        students=_students(mine),
        meaning=_meaning(mine, descents),
    )
    return Findings(tuple(_rows(mine, descents)), _figure(mine, descents), notes)


def _calls(quick: bool) -> tuple[Call, dict[str, Call]]:
    """The ensemble, and what is trained by descent; the settings are those of the study on
    hippocampus volumes.
    """
    ensemble, descend = (
        train.at(teachers=_TEACHERS, cells=_CELLS, data=TUMOURS),
        train_by_gradients.at,
    )
    descents = {
        _NOTHING: descend(epsilon=8.0, epochs=80, learning_rate=1e-2, data=TUMOURS),
        "DP-SGD from the public U-Net, epsilon 8": descend(
            epsilon=8.0, start="public", learning_rate=1e-3, data=TUMOURS
        ),
        "DP-SGD from the public U-Net, epsilon 1": descend(
            epsilon=1.0, start="public", learning_rate=1e-3, data=TUMOURS
        ),
        "no privacy": descend(epsilon=None, epochs=400, learning_rate=1e-2, data=TUMOURS),
    }
    if quick:
        short = {
            label: call.but(first=60, epochs=4, settings=_QUICK) for label, call in descents.items()
        }
        return ensemble.but(first=60, settings=_QUICK), short
    return ensemble, descents


def _known(mine: Sequence[Outcome], descents: Descents) -> dict[str, Sequence[Sequence[float]]]:
    """Dice of each seed and class without a release: by label."""
    return {
        "mean of the public masks, for every volume": each(mine, "mean"),
        "U-Net on the public masks alone": each(mine, "public"),
        "the same, taught by its own predictions for 40 volumes": each(mine, "itself"),
        **{label: each(outcomes, "test") for label, outcomes in descents.items()},
        "one teacher (private)": each(mine, "teacher"),
        "the teachers' mean (private)": each(mine, "ensemble"),
        "student of that mean, of 40 volumes (private)": each(mine, "taught"),
    }


def _by_class(values: Sequence[Sequence[float]]) -> list[str]:
    return [f"{mean(one[at] for one in values):.3f}" for at in range(len(_CLASSES))]


def _baselines(mine: Sequence[Outcome], descents: Descents) -> str:
    lines = [
        (label, spread([mean(one) for one in values], 3), *_by_class(values))
        for label, values in _known(mine, descents).items()
    ]
    return table(("what", "Dice", *_CLASSES), lines)


def _students(mine: Sequence[Outcome]) -> str:
    lines = []
    for way in WAYS:
        for cell in _CELLS:
            cell_outcomes = [
                one
                for run in mine
                for one in run.cells
                if (one.way, one.epsilon, one.queries) == (way, *cell)
            ]
            lines.append(
                (
                    way,
                    f"{cell[0]:g}",
                    str(cell[1]),
                    f"{cell_outcomes[0].noise:.3f}",
                    spread(dice(cell_outcomes, "answers"), 3),
                    spread(taught(mine, way, cell), 3),
                    *_by_class(each(cell_outcomes, "student")),
                )
            )
    return table(
        ("what is released", "epsilon", "N", "noise", "answers", "student", *_CLASSES), lines
    )


def _meaning(mine: Sequence[Outcome], descents: Descents) -> str:
    """Which students are above all that is public in every seed, and which way is best at each
    epsilon.
    """
    public = [
        max(several)
        for several in zip(*(dice(mine, name) for name in ("public", "itself")), strict=True)
    ]
    above = [
        f"{way} at ({epsilon:g}, {queries})"
        for way in WAYS
        for epsilon, queries in _CELLS
        if all(np.greater(taught(mine, way, (epsilon, queries)), public))
    ]
    best = []
    for epsilon in dict.fromkeys(cell[0] for cell in _CELLS):
        reached = {
            way: max(mean(taught(mine, way, cell)) for cell in _CELLS if cell[0] == epsilon)
            for way in WAYS
        }
        reached |= {
            label: mean(dice(outcomes, "test"))
            for label, outcomes in descents.items()
            if label.endswith(f"epsilon {epsilon:g}")
        }
        first = max(reached, key=lambda label: reached[label])
        best.append(
            f"{first.removesuffix(f', epsilon {epsilon:g}')} at epsilon {epsilon:g} "
            f"({reached[first]:.3f})"
        )
    return (
        "Students that are above both public U-Nets in every seed, as (epsilon, N): "
        f"{', '.join(above) or 'none'}. Best: {'; '.join(best)}."
    )


def _rows(mine: Sequence[Outcome], descents: Descents) -> list[Row]:
    rows = [
        mean_row(label, _DICE, [mean(one) for one in values])
        for label, values in _known(mine, descents).items()
    ]
    for label, outcomes in descents.items():
        if outcomes[0].spent is not None:
            rows.append(
                mean_row(label, f"epsilon spent, at delta {DELTA:g}", each(outcomes, "spent"))
            )
    for cells in zip(*each(mine, "cells"), strict=True):
        first = cells[0]
        label = f"{first.way}, epsilon {first.epsilon:g}, N {first.queries}"
        rows.append(
            mean_row(label, "Dice of the answers on the queried volumes", dice(cells, "answers"))
        )
        if first.student is not None:
            rows.append(mean_row(label, _DICE, dice(cells, "student")))
    return rows


def _figure(mine: Sequence[Outcome], descents: Descents) -> Figure:
    """Answers over their noise, students beside what is public, and a row of slices."""
    marks: list[Mark] = []
    for way, colour in zip(WAYS, CYCLE, strict=False):
        cells = [cell for one in mine for cell in one.cells if cell.way == way]
        marks.append(
            Curve(each(cells, "noise"), dice(cells, "answers"), way, colour, "o", size=2.5)
        )
    marks.append(Across(mean(dice(mine, "public_pool")), "public U-Net", line="--"))
    answers = Panel(
        marks,
        "noise on each number, over the radius",
        "Dice of the noisy answers",
        "answers, before any student",
        "x",
        legend="center right",
    )
    student_marks: list[Mark] = []
    places = list(range(len(_CELLS)))
    for way, colour in zip(WAYS, CYCLE, strict=False):
        student_marks.append(
            Curve(
                places, [taught(mine, way, cell) for cell in _CELLS], way, colour, "o-", "deviation"
            )
        )
    student_marks.append(Across(mean(dice(mine, "public")), "public U-Net", line="--"))
    for label, line in (("DP-SGD from the public U-Net, epsilon 8", "-"), ("no privacy", ":")):
        student_marks.append(Across(mean(dice(descents[label], "test")), label, GREY, line=line))
    ticks: dict[float, str] = {
        place: f"{epsilon:g}, {queries}" for place, (epsilon, queries) in enumerate(_CELLS)
    }
    students = Panel(
        student_marks,
        "epsilon, volumes asked about",
        "Dice of the student on test volumes",
        "students",
        xticks=ticks,
        legend="lower left",
    )
    return Figure(
        "Private segmentation of drawn tumours, delta 0.001",
        [answers, students, _slices(mine[0])],
        12,
        8,
        2,
        heights=(2.4, 1),
    )


def _slices(run: Outcome) -> Panel:
    """The middle slice of the first volume that was asked about."""
    size = SIZE[1:]
    scan, *classes = (np.reshape(values, size).T for values in run.slices)
    image = Image(
        np.hstack([scan] * len(run.slices)), classes=np.hstack([np.zeros_like(scan), *classes])
    )
    ticks = {
        size[0] * (place + 0.5): title
        for place, (title, _) in enumerate(zip(_TITLES, run.slices, strict=False))
    }
    title = f"The first volume asked about, middle slice: K = {_TEACHERS}, epsilon 8, 10 volumes"
    return Panel([image], title=title, xticks=ticks, wide=True)
