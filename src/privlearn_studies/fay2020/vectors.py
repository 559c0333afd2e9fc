"""Images as targets of 256 numbers, after Fay et al. 2020: no reduction, principal components and
an autoencoder.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.methods.pate import Autoencoder, Identity, PublicPCA, Reducer, Trained
from privlearn.methods.pate.answers import Answers
from privlearn.methods.pate.pate import pate
from privlearn.methods.pate.plan import Ball, PatePlan
from privlearn_studies.charts import BLUE, CYCLE, GREY, RED, Across, Curve, Figure, Mark, Panel
from privlearn_studies.data import PRIVATE, Images, covered, images
from privlearn_studies.fay2020.kept import Kept
from privlearn_studies.report import Findings, Row, each, mean, mean_row, page, spread, table
from privlearn_studies.runs import Outcome, Runs, cached

DELTA = 1e-5
WAYS = ("no reduction", "PCA", "autoencoder")
#: Numbers of components that the rule's is compared with.
LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 256)
_PENALTY = 3.0  # of a teacher: the best of 3, 10 and 30 in a trial on these images
_PENALTIES = tuple(3.0 * 4.0**step for step in range(10))
_SEEDS, _QUICK_SEEDS = 3, 1
_TEACHERS, _EPSILONS = (50, 100, 250), (1.0, 2.0, 4.0, 8.0)
_TEST = "test error of the student: squared error of an image, summed over pixels"
_ANSWERS = "squared error of the answers, against the teachers' mean (private)"
_Outcomes = dict[tuple[int, float], list[Outcome]]


@cached("pate-vectors")
def train(
    seed: int,
    *,
    teachers: int,
    epsilon: float,
    queries: int = 100,
    private: int = PRIVATE,
    size: int | None = None,
    epochs: int = 50,
    share: float = 0.5,
) -> dict[str, Any]:
    """Teachers and students, with `seed`, which fixes images, who learns from what, noise and
    autoencoder.

    Args:
        seed: of everything.
        teachers: how many share the private images.
        epsilon: what the answers to all queries may cost, at delta 1e-5.
        queries: public inputs that are asked about.
        private: images that the teachers share.
        size: numbers in the autoencoder's code; None: twice as many as the rule has principal
            components, eight at least.
        epochs: of the autoencoder.
        share: of the public teachers' answers that lie within the radius that codes are clipped to.

    Returns:
        Errors are squared errors of an image, summed over pixels; those of answers look at private
        ones.
        noise: the noise's standard deviation on each number of a code; with the autoencoder
        `autoencoder_noise`.
        autoencoder_noise: in the unit ball.
        rule: how many components the rule keeps.
        size: numbers in the autoencoder's code.
        teacher: the mean error of one teacher on the queries' images.
        ensemble: the error of the teachers' mean there, without noise.
        answers: for each way the error of what is recovered, against the teachers' mean.
        students: for each way the student's error on test images.
        public: the same of a student of the public images' own targets, without any teacher.
        mean: the same of the public mean image.
        epsilons: for each way what its ledger says was spent.
        by_length: the error of what is recovered for each of `LENGTHS` components, then for the
        rule's own.
        expected: the closed form for each of `LENGTHS`.
    """
    data = images(seed, private)
    inputs = covered(data.pool)
    said = Kept.of(
        Trained((covered(data.private), data.private), completes, teachers),
        inputs[:queries],
        Streams.new(seed),
    )
    mean = torch.stack(said.known).mean(0)
    proxies = public_teachers(data, teachers, private)
    public = Dataset(inputs, torch.stack(proxies).mean(0), public=True)
    single = Dataset(inputs.repeat(len(proxies), 1), torch.cat(proxies), public=True)
    # What is encoded are answers, and what they should become are targets: the autoencoder is
    # fitted on both.
    both = Dataset(
        torch.cat([inputs, covered(data.public)]), torch.cat([public.y, data.public]), public=True
    )
    every = PublicPCA.fit(public)
    plan = plan_of(queries, teachers, Ball(every.radius(single, share)), epsilon)
    in_ball = plan_of(queries, teachers, Ball(1.0), epsilon)
    rule = every.best(plan.noise_std)
    size = size or max(8, 2 * rule)
    ways: list[tuple[PatePlan, Reducer]] = [
        (plan, Identity((data.test.shape[1],), every.centre)),
        (plan, every.kept(max(1, rule))),
        (in_ball, Autoencoder.fit(both, size, in_ball.noise_std, epochs=epochs, seed=seed)),
    ]
    released = [_released(way_plan, said, reducer, data, mean, seed) for way_plan, reducer in ways]
    answers, students, spent = zip(*released, strict=True)
    curve = [
        _released(plan, said, every.kept(min(length, every.size)), data, mean, seed, teach=False)[0]
        for length in LENGTHS
    ]
    truth = data.pool[:queries]
    alone = chosen(covered(data.public), data.public, data)
    return {
        "noise": plan.noise_std,
        "autoencoder_noise": in_ball.noise_std,
        "rule": rule,
        "size": size,
        "teacher": float(torch.stack([error(one, truth) for one in said.known]).mean()),
        "ensemble": float(error(mean, truth)),
        "answers": answers,
        "students": students,
        "epsilons": spent,
        "public": float(error(alone(covered(data.test)), data.test)),
        "mean": float(error(data.public.mean(0), data.test)),
        "by_length": [*curve, answers[1]],
        "expected": [every.loss(plan.noise_std, length) for length in LENGTHS],
    }


def plan_of(queries: int, teachers: int, aggregate: Ball, epsilon: float) -> PatePlan:
    """The queries with the noise that `epsilon` asks for."""
    return PatePlan(queries, teachers, aggregate).calibrate(epsilon=epsilon, delta=DELTA)


def completes(x: Tensor, y: Tensor, penalty: float = _PENALTY) -> Callable[[Tensor], Tensor]:
    """A teacher: ridge regression from inputs to targets, shape (rows, 256) each."""
    middle, level = x.mean(0), y.mean(0)
    centred = x - middle
    small = len(x) < x.shape[1]
    gram = centred @ centred.T if small else centred.T @ centred
    inverse = gram + penalty * torch.eye(len(gram))
    weights = (
        centred.T @ torch.linalg.solve(inverse, y - level)
        if small
        else torch.linalg.solve(inverse, centred.T @ (y - level))
    )
    return lambda asked: (asked - middle) @ weights + level


def public_teachers(data: Images, teachers: int, private: int) -> list[Tensor]:
    """What teachers say to the pool that learn from public images, as many each as a private one
    has: public.
    """
    rows = max(1, private // teachers)
    shards = [shard for shard in data.public.split(rows) if len(shard) == rows]  # type: ignore[no-untyped-call]
    return [completes(covered(shard), shard)(covered(data.pool)) for shard in shards]


def error(outputs: Tensor, truth: Tensor) -> Tensor:
    """The mean over images of the squared error, summed over pixels."""
    return (outputs - truth).square().sum(1).mean()


def chosen(x: Tensor, y: Tensor, data: Images) -> Callable[[Tensor], Tensor]:
    """The ridge regression on x and y whose penalty is best for public images and their targets."""
    tried = [completes(x, y, penalty) for penalty in _PENALTIES]
    return min(tried, key=lambda one: float(error(one(covered(data.public)), data.public)))


def _released(
    plan: PatePlan,
    said: Kept,
    reducer: Reducer,
    data: Images,
    mean: Tensor,
    seed: int,
    teach: bool = True,
) -> tuple[float, float, float]:
    """Errors of what is recovered, against the teachers' mean, and of the student; and what the
    ledger says was spent.

    Each release is priced by itself, and has the same stream of noise as the others.
    """
    heard: list[Tensor] = []

    def learn(answers: Answers) -> nn.Module:
        x, y = answers.learnable()
        heard.append(y)
        return _Student(chosen(x, y, data)) if teach else nn.Identity()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of components below the noise: that is what is looked at
        result = pate(plan, said, reducer, covered(data.pool), learn, streams=Streams.new(seed))
    reached = float(error(result.model(covered(data.test)), data.test))
    return float(error(heard[0], mean)), reached, result.ledger.guarantee(DELTA).epsilon


@final
class _Student(nn.Module):
    """A regression as a module."""

    def __init__(self, predict: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._predict = predict

    def forward(self, x: Tensor) -> Tensor:
        """Its predictions."""
        return self._predict(x)


def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Every number of teachers and every epsilon, by each reducer."""
    numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
    teachers, epsilons = ((50, 250), (2.0, 8.0)) if quick else (_TEACHERS, _EPSILONS)
    calls = {
        (count, epsilon): train.at(teachers=count, epsilon=epsilon)
        for count in teachers
        for epsilon in epsilons
    }
    by_cell: _Outcomes = runs.named(calls, numbers)
    rows = [
        row for (count, epsilon), mine in by_cell.items() for row in _rows(count, epsilon, mine)
    ]
    first = by_cell[teachers[0], epsilons[0]]
    rows += [
        mean_row(
            "1,000 public images with their targets, no teachers", _TEST, each(first, "public")
        ),
        mean_row("the public mean image", _TEST, each(first, "mean")),
    ]
    panels = [_by_epsilon(count, epsilons, by_cell) for count in teachers]
    panels += [_by_length(count, epsilons, by_cell) for count in teachers]
    title = "Images as targets: the lower half is to be completed"
    return Findings(
        tuple(rows), Figure(title, panels, 13, 8, len(teachers), 5), _notes(by_cell, len(numbers))
    )


def _rows(count: int, epsilon: float, mine: Sequence[Outcome]) -> list[Row]:
    """All numbers of one ensemble and epsilon."""
    label = f"K {count}, epsilon {epsilon:g}"
    rows = [
        mean_row(label, "noise on each number of a code", each(mine, "noise")),
        mean_row(
            label, "the same in the unit ball, for the autoencoder", each(mine, "autoencoder_noise")
        ),
        mean_row(label, "components by the rule", each(mine, "rule")),
        Row(label, "components of the least error, on the grid", _best(mine)),
        Row(label, "error of the answers by the rule, over the least on the grid", _ratio(mine)),
        mean_row(label, "squared error of one teacher (private)", each(mine, "teacher")),
        mean_row(label, "squared error of the teachers' mean (private)", each(mine, "ensemble")),
    ]
    for at, way in enumerate(WAYS):
        rows += [
            mean_row(
                f"{label}, {way}", f"epsilon spent, at delta {DELTA:g}", _at(mine, "epsilons", at)
            ),
            mean_row(f"{label}, {way}", _ANSWERS, _at(mine, "answers", at)),
            mean_row(f"{label}, {way}", _TEST, _at(mine, "students", at)),
        ]
    return rows


def _at(mine: Sequence[Outcome], name: str, place: int) -> list[float]:
    return [several[place] for several in each(mine, name)]


def _notes(by_cell: _Outcomes, seeds: int) -> str:
    students, lengths = [], []
    for (count, epsilon), mine in by_cell.items():
        cells = [
            spread(_at(mine, name, at), 2)
            for name in ("answers", "students")
            for at in range(len(WAYS))
        ]
        students.append((str(count), f"{epsilon:g}", f"{mean(each(mine, 'ensemble')):.1f}", *cells))
        lengths.append(
            (
                str(count),
                f"{epsilon:g}",
                f"{mean(each(mine, 'noise')):.3f}",
                f"{mean(each(mine, 'rule')):.1f}",
                str(_best(mine)),
                f"{100 * (_ratio(mine) - 1):+.1f} %",
            )
        )
    pairs = [[one.students[1] - one.students[2] for one in mine] for mine in by_cell.values()]
    means = [mean(several) for several in pairs]
    heads = (
        "K",
        "epsilon",
        "teachers' mean, error",
        *(f"answers, {way}" for way in WAYS),
        *(f"student, {way}" for way in WAYS),
    )
    return page(
        "pate-vectors",
        seeds=seeds,
        delta=DELTA,
        students=table(heads, students),
        least=min(means),
        most=max(means),
        ahead=sum(gain > 0 for several in pairs for gain in several),
        pairs=sum(map(len, pairs)),
        grid=len(LENGTHS),
        lengths=table(
            (
                "K",
                "epsilon",
                "noise",
                "l by the rule",
                "best l on the grid",
                "rule's error above the best",
            ),
            lengths,
        ),
        alone=mean(one.public for mine in by_cell.values() for one in mine),
        best=min(
            mean(_at(mine, "students", at)) for mine in by_cell.values() for at in range(len(WAYS))
        ),
    )


def _curve(mine: Sequence[Outcome]) -> list[float]:
    """The mean error of the answers by the number of components; the last is the rule's own."""
    curve: list[float] = np.mean(each(mine, "by_length"), axis=0).tolist()
    return curve


def _best(mine: Sequence[Outcome]) -> int:
    return LENGTHS[int(np.argmin(_curve(mine)[:-1]))]


def _ratio(mine: Sequence[Outcome]) -> float:
    *grid, by_rule = _curve(mine)
    return by_rule / min(grid)


def _by_epsilon(count: int, epsilons: Sequence[float], outcomes: _Outcomes) -> Panel:
    """Students' errors over epsilon."""
    marks: list[Mark] = [
        Curve(
            epsilons,
            [_at(outcomes[count, e], "students", at) for e in epsilons],
            way,
            colour,
            "o-",
            "deviation",
        )
        for at, (way, colour) in enumerate(zip(WAYS, (GREY, RED, BLUE), strict=True))
    ]
    first = outcomes[count, epsilons[0]]
    marks.append(Across(mean(each(first, "mean")), "the public mean image", line=":"))
    marks.append(Across(mean(each(first, "public")), "public targets alone", line="--"))
    return Panel(
        marks,
        "epsilon",
        "students' test error",
        f"{count} teachers",
        "x",
        ylim=(10, 45),
        xticks=epsilons,
    )


def _by_length(count: int, epsilons: Sequence[float], outcomes: _Outcomes) -> Panel:
    """Errors of the answers over the number of components: dots, the closed form, and the rule's
    number ringed.
    """
    marks: list[Mark] = []
    for epsilon, colour in zip(epsilons, CYCLE, strict=False):
        mine = outcomes[count, epsilon]
        *curve, by_rule = _curve(mine)
        marks += [
            Curve(LENGTHS, curve, f"epsilon {epsilon:g}", colour, "o", size=3),
            Curve(LENGTHS, np.mean(each(mine, "expected"), axis=0), "", colour, width=1),
            Curve(
                [max(1.0, mean(each(mine, "rule")))],
                [by_rule],
                "",
                "black",
                "o",
                size=9,
                hollow=True,
            ),
        ]
    return Panel(
        marks,
        "components (ring: by the rule)",
        "error of answers (line: closed form)",
        f"{count} teachers, PCA",
        "xy",
        legend="best",
    )
