"""Fay et al. 2020, the experiment as the paper does it: teachers and students that begin from
nothing, an autoencoder fitted on the masks of the student's volumes, and DP-SGD beside them.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.methods.pate import Autoencoder, Network, Trained
from privlearn.methods.pate.answers import Answers
from privlearn.methods.pate.pate import pate
from privlearn.methods.pate.plan import Ball, PatePlan
from privlearn.training.dpsgd import dpsgd
from privlearn_segmentation import MapStudent, Training, map_losses, maps_of, probabilities
from privlearn_segmentation.codes import fit_autoencoder
from privlearn_segmentation.start import as_probabilities
from privlearn_studies.charts import BLUE, GREY, RED, SKY, Curve, Figure, Mark, Panel
from privlearn_studies.fay2020.kept import Kept
from privlearn_studies.fay2020.scans import HIPPOCAMPUS, classes_of, fresh, scores, volumes
from privlearn_studies.fay2020.segmenting import layers_of, plan_of
from privlearn_studies.report import Findings, Row, interval, mean, mean_row, page, spread, table
from privlearn_studies.runs import Runs, cached

DELTA = 1e-3
#: Of the 260 volumes, how many are the student's and how many are tested on; the teachers share
#: the others. The paper has 80 and 84 of 484.
STUDENTS, TEST = 80, 32
_TEACHERS, _EPSILON = 8, 8.0
_SEEDS, _QUICK_SEEDS = 3, 1
_STUDENT, _TEACHER, _ENSEMBLE = "student of the autoencoder", "one teacher", "teachers' mean"
_ANSWERS, _CLEAN = "the noisy answers", "student of the answers without noise"
_MEAN, _MEAN_STUDENT = "the mean mask", "student of the mean mask"
_PAPERS_CALLED = "DP-SGD, the paper's clip and noise, 118 epochs"
_PAPERS_SPENT = "DP-SGD, the paper's clip and noise, 6 epochs"
_OURS = "DP-SGD, our clip and noise"
#: Dice in the paper, on brain tumours.
PAPER = {_STUDENT: 0.561, _TEACHER: 0.547, _PAPERS_CALLED: 0.53}
_DICE = "Dice on the test volumes, mean of both classes"


@final
@dataclass(frozen=True)
class Split:
    """The volumes in three parts.

    Attributes:
        private: the teachers', with masks.
        students: the student's, with masks that the autoencoder is fitted on.
        test: for the figures.
    """

    private: Dataset
    students: Dataset
    test: Dataset


def split(data: str, first: int | None = None) -> Split:
    """All volumes of `data` in three parts; `first` of the teachers' and of the student's."""
    whole = volumes(data)
    x = np.concatenate([whole.x, whole.x_test])
    y = np.concatenate([whole.y, whole.y_test])
    shared = len(x) - STUDENTS - TEST

    def part(start: int, end: int, public: bool) -> Dataset:
        end = end if first is None else min(end, start + first)
        return replace(
            whole, x=x[start:end], y=y[start:end], x_test=None, y_test=None, public=public
        )

    return Split(
        part(0, shared, public=False),
        part(shared, shared + STUDENTS, public=True),
        part(shared + STUDENTS, len(x), public=False),
    )


@cached("pate-segmentation, from nothing")
def train(
    seed: int,
    *,
    teachers: int = _TEACHERS,
    epsilon: float = _EPSILON,
    steps: int = 800,
    epochs: int = 16,
    first: int | None = None,
    data: str = HIPPOCAMPUS,
) -> dict[str, Any]:
    """Train teachers from nothing, release codes of their answers, and teach a student.

    Args:
        seed: of initial weights, who learns from what, and noise.
        teachers: how many share the private volumes.
        epsilon: what the answers may cost at delta 1e-3.
        steps: of each teacher and of the student.
        epochs: of the autoencoder, over 16 moved copies of the masks.
        first: how many volumes the teachers share, and how many are the student's; None: all.
        data: which volumes.

    Returns:
        Dice of each class; all but that of the student looks at private answers: this is a study.
        teacher: the mean over teachers, on the test volumes.
        ensemble: of their mean probabilities there.
        answers: of the released maps, on the student's volumes.
        student: of the student, on the test volumes.
        clean: of a student of the same codes without noise.
        spent: epsilon by the ledger.
        noise: the noise's standard deviation on each number of a code, in the unit ball.
    """
    parts, training = split(data, first), Training(steps=steps)
    classes = classes_of(parts.private)

    def fit(network: nn.Module, x: Tensor, y: Tensor) -> None:
        training(network, x, maps_of(y, classes))

    asked, test = (each.tensors()[0] for each in (parts.students, parts.test))
    ensemble = Trained(parts.private, Network(lambda: fresh(data, seed), fit), teachers)
    said = Kept.of(ensemble, torch.cat([asked, test]), Streams.new(seed))
    maps = [logits.softmax(1) for logits in said.known]
    plan = PatePlan(len(asked), teachers, Ball(1.0)).calibrate(epsilon=epsilon, delta=DELTA)
    reducer = _autoencoder(parts.students, plan.noise_std, epochs, seed)
    student = MapStudent(fresh(data, seed), training, None, as_probabilities, seed)
    released: list[Tensor] = []

    def teach(answers: Answers) -> nn.Module:
        released.append(answers.targets)
        return student(answers)

    result = pate(
        plan,
        Kept([each[: len(asked)] for each in maps]),
        reducer,
        asked,
        teach,
        streams=Streams.new(seed),
    )
    codes = torch.stack([reducer.encode(each[: len(asked)]) for each in maps]).mean(0)
    everyone = torch.ones(len(asked), dtype=torch.bool)
    clean = student(Answers(asked, reducer.decode(codes), everyone))
    on_test = [each[len(asked) :] for each in maps]
    return {
        "teacher": torch.tensor([scores(each, parts.test) for each in on_test]).mean(0).tolist(),
        "ensemble": scores(torch.stack(on_test).mean(0), parts.test),
        "answers": scores(released[0], parts.students),
        "student": scores(probabilities(result.model, test), parts.test),
        "clean": scores(probabilities(clean, test), parts.test),
        "spent": result.ledger.guarantee(DELTA).epsilon,
        "noise": plan.noise_std,
    }


@cached("pate-segmentation, mean mask")
def teach_mean(
    seed: int, *, steps: int = 800, first: int | None = None, data: str = HIPPOCAMPUS
) -> dict[str, Any]:
    """Teach the same student the mean of its volumes' masks for every volume: no teacher is asked.

    Args:
        seed: of initial weights and moved volumes.
        steps: of the student.
        first: how many volumes are the student's; None: all.
        data: which volumes.

    Returns:
        Dice of each class.
        answers: of the mean mask, on the student's volumes.
        student: of the student, on the test volumes.
    """
    parts = split(data, first)
    asked, masks = parts.students.tensors()
    mean_mask = maps_of(masks, classes_of(parts.students)).mean(0)
    maps = mean_mask.expand(len(asked), *mean_mask.shape)
    teach = MapStudent(fresh(data, seed), Training(steps=steps), None, as_probabilities, seed)
    student = teach(Answers(asked, maps, torch.ones(len(asked), dtype=torch.bool)))
    return {
        "answers": scores(maps, parts.students),
        "student": scores(probabilities(student, parts.test.tensors()[0]), parts.test),
    }


def _autoencoder(labelled: Dataset, noise_std: float, epochs: int, seed: int) -> Autoencoder:
    """The paper's autoencoder, fitted with noise on the masks of the student's volumes."""
    maps = maps_of(labelled.tensors()[1], classes_of(labelled))
    rows = Dataset(maps, maps, public=True)
    return fit_autoencoder(rows, noise_std, epochs=16 * epochs, seed=seed)


@cached("pate-segmentation, gradients from nothing")
def train_by_gradients(
    seed: int,
    *,
    epsilon: float | None,
    epochs: int,
    first: int | None = None,
    data: str = HIPPOCAMPUS,
) -> dict[str, Any]:
    """DP-SGD from nothing on the teachers' and the student's volumes, as the paper compares it.

    Args:
        seed: of everything.
        epsilon: what it may cost at delta 1e-3, with our clip; None: the paper's clip and noise.
        epochs: of about five batches each.
        first: how many volumes of each part; None: all.
        data: which volumes.

    Returns:
        test: Dice of each class on the test volumes.
        spent: epsilon by the ledger.
    """
    parts, network = split(data, first), fresh(data, seed)
    x = np.concatenate([parts.private.x, parts.students.x])
    y = np.concatenate([parts.private.y, parts.students.y])
    rows = replace(parts.private, x=x, y=y)
    result = dpsgd(
        plan_of(epsilon, epochs, layers_of(network), len(x)),
        network,
        map_losses,
        rows,
        optimizer=lambda parameters: torch.optim.Adam(parameters, 1e-2),
        streams=Streams.new(seed),
    )
    test = probabilities(network, parts.test.tensors()[0])
    return {
        "test": scores(test, parts.test),
        "spent": result.ledger.guarantee(DELTA).epsilon,
    }


def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Teachers, student and DP-SGD, all from nothing."""
    numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
    gradients = {
        label: train_by_gradients.at(epsilon=epsilon, epochs=epochs)
        for label, epsilon, epochs in (
            (_PAPERS_CALLED, None, 118),
            (_PAPERS_SPENT, None, 6),
            (_OURS, _EPSILON, 80),
        )
    }
    ensemble, alone = train.at(), teach_mean.at()
    if quick:
        ensemble = train.at(teachers=4, steps=25, epochs=1, first=16)
        alone = teach_mean.at(steps=25, first=16)
        gradients = {name: call.but(epochs=2, first=16) for name, call in gradients.items()}
    by_ensemble, by_mean = runs.named({"ensemble": ensemble, "mean": alone}, numbers).values()
    descents = runs.named(gradients, numbers)
    dice = {
        label: [mean(getattr(one, name)) for one in by_ensemble]
        for label, name in (
            (_TEACHER, "teacher"),
            (_ENSEMBLE, "ensemble"),
            (_ANSWERS, "answers"),
            (_STUDENT, "student"),
            (_CLEAN, "clean"),
        )
    }
    dice |= {
        _MEAN: [mean(one.answers) for one in by_mean],
        _MEAN_STUDENT: [mean(one.student) for one in by_mean],
    }
    dice |= {label: [mean(one.test) for one in mine] for label, mine in descents.items()}
    spent = {_STUDENT: by_ensemble[0].spent, _ANSWERS: by_ensemble[0].spent}
    spent |= {label: mine[0].spent for label, mine in descents.items()}
    rows, lines = [], []
    for label, values in dice.items():
        rows.append(mean_row(label, _DICE, values, PAPER.get(label)))
        if label in spent:
            rows.append(Row(label, f"epsilon spent, at delta {DELTA:g}", spent[label]))
        paper = f"{PAPER[label]:.3f}" if label in PAPER else "–"
        epsilon = f"{spent[label]:.3g}" if label in spent else "–"
        lines.append((label, epsilon, paper, spread(values, 3)))
    notes = page(
        "pate-from-nothing",
        seeds=len(numbers),
        teachers=ensemble.teachers,
        private=260 - STUDENTS - TEST,
        students=STUDENTS,
        test=TEST,
        steps=ensemble.steps,
        noise=f"{by_ensemble[0].noise:.3f}",
        table=table(("what", "epsilon spent", "paper, brain tumours", "Dice here"), lines),
        above=_difference(dice[_STUDENT], dice[_TEACHER]),
        beside=_difference(dice[_STUDENT], dice[_OURS]),
    )
    return Findings(tuple(rows), _figure(dice), notes)


def _difference(values: list[float], others: list[float]) -> str:
    middle, half = interval(values, others)
    wide = f" ± {half:.3f}" if np.isfinite(half) else ""
    return f"{middle:+.3f}{wide}"


def _figure(dice: dict[str, list[float]]) -> Figure:
    """Each seed's Dice, by what it is of, and the paper's."""
    marks: list[Mark] = []
    for place, (label, values) in enumerate(dice.items()):
        colour = SKY if label.startswith("DP-SGD") else RED if label == _STUDENT else BLUE
        marks.append(Curve([place] * len(values), values, "", colour, "o"))
        if label in PAPER:
            name = "the paper's, on brain tumours" if label == _TEACHER else ""
            marks.append(Curve([place], [PAPER[label]], name, GREY, "x"))
    ticks = {float(place): textwrap.fill(label, 16) for place, label in enumerate(dice)}
    panel = Panel(marks, "", "Dice on test volumes", "each seed", xticks=ticks, legend="best")
    return Figure("Segmentation from nothing, epsilon 8, delta 0.001", [panel], 13, 5, 1, 1)
