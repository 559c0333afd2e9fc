"""PATE with votes on MNIST, data-independent: what a student makes of many noisy answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn._checks import one_of
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.data.named import load
from privlearn.methods.pate import Spreading, Trained
from privlearn.methods.pate.answers import Answers
from privlearn.methods.pate.pate import pate
from privlearn.methods.pate.plan import PatePlan, Votes
from privlearn.methods.pate.student import Spread, Student
from privlearn_studies.charts import BLUE, GREY, RED, SKY, Bars, Figure, Panel
from privlearn_studies.fay2020.kept import Kept
from privlearn_studies.report import Findings, each, interval, mean_row, page, signed, spread, table
from privlearn_studies.runs import Call, Outcome, Runs, cached

DELTA = 1e-5
#: How a student learns: from answered images alone, or from all, to which the winners or the noisy
#: counts are spread.
WAYS = ("no spreading", "spreading from winners", "spreading from noisy counts")
POOL, _TEST = 9_000, 1_000
_CLASSES = 10
_SHIFT = 2
#: A count that outdoes every other: what a winner is held to be, whatever its count was.
_CERTAIN = 1e9
_SEEDS, _QUICK_SEEDS = 3, 1
#: Papernot et al. 2018, Table 1: Confident-GNMax on MNIST, epsilon 1.97 at delta 1e-5 by
#: data-dependent accounting.
_PAPER = 0.985


def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Students of one ensemble by the number of queries, and by what they learn from."""
    numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
    # In short a quarter of the records, one number of queries; as many teachers, which the noise
    # follows from.
    call = train.at(queries=(400,), epochs=2, first=15_000) if quick else train.at()
    mine = runs([call], numbers)[call]
    on, metric = f"{call.teachers} teachers", "test accuracy"
    rows = [
        mean_row(on, "accuracy of one teacher on the queries (private)", each(mine, "teacher")),
        mean_row(
            on,
            "accuracy of their plurality on the queries, without noise (private)",
            each(mine, "plurality"),
        ),
    ]
    lines = []
    for place, queries in enumerate(call.queries):
        label = f"{queries} queries"
        noise, spent, winners, seen = (
            _at(mine, name, place) for name in ("noise", "epsilons", "answers", "seen")
        )
        rows += [
            mean_row(label, "noise on each count", noise),
            mean_row(label, f"epsilon spent, at delta {DELTA:g}", spent),
            mean_row(label, "accuracy of the noisy winners on the queries", winners),
            mean_row(label, "accuracy on the pool of labels spread from noisy counts", seen),
        ]
        tests = np.array(_at(mine, "test", place)).T.tolist()
        for way, reached in zip(WAYS, tests, strict=True):
            rows.append(
                mean_row(f"{label}, {way}", metric, reached, _PAPER if way == WAYS[-1] else None)
            )
        lines.append(
            (
                str(queries),
                f"{noise[0]:.1f}",
                spread(winners),
                *map(spread, tests),
                signed(*interval(tests[2], tests[0])),
            )
        )
    heads = (
        "queries",
        "noise on a count",
        "noisy winners right",
        *WAYS,
        "counts less no spreading",
    )
    notes = page(
        "pate-mnist",
        about=about(call, len(numbers)),
        table=table(heads, lines),
        tried=page("pate-mnist-tried"),
    )
    figure = Figure(
        "PATE on MNIST, epsilon 2", [_students(call, mine), _lessons(call, mine)], 11, 4.6, 2, 4
    )
    return Findings(tuple(rows), figure, notes)


def _at(mine: Sequence[Outcome], name: str, place: int) -> list[Any]:
    return [several[place] for several in each(mine, name)]


def about(call: Call, seeds: int) -> str:
    """What stands at the top of the page."""
    records = "60,000" if call.first is None else f"{call.first:,}"
    return page(
        "pate-mnist-about",
        teachers=call.teachers,
        records=records,
        epsilon=call.epsilon,
        delta=DELTA,
        seeds=seeds,
    )


def _students(call: Call, mine: Sequence[Outcome]) -> Panel:
    """Test accuracy by queries and way to learn; dots are seeds."""
    tests = np.array(each(mine, "test"))  # seeds, queries, ways
    marks = [
        Bars(
            np.arange(len(call.queries)) + (which - 1) * 0.25,
            tests[:, :, which].T,
            way,
            colour,
            0.22,
            0.7,
        )
        for which, (way, colour) in enumerate(zip(WAYS, (GREY, SKY, RED), strict=True))
    ]
    ticks = {float(place): str(number) for place, number in enumerate(call.queries)}
    return Panel(marks, "queries", "test accuracy", "students", ylim=(0.7, 1.0), xticks=ticks)


def _lessons(call: Call, mine: Sequence[Outcome]) -> Panel:
    """How right what the student learns from is."""
    values = {"one teacher": each(mine, "teacher"), "plurality": each(mine, "plurality")}
    for place, queries in enumerate(call.queries):
        values[f"winners\n{queries} queries"] = _at(mine, "answers", place)
        values[f"spread\n{queries} queries"] = _at(mine, "seen", place)
    bars = Bars(range(len(values)), list(values.values()), colour=BLUE, width=0.6, alpha=0.7)
    ticks = {float(place): name for place, name in enumerate(values)}
    return Panel(
        [bars],
        "",
        "accuracy on public images",
        "what they learn from",
        ylim=(0.7, 1.0),
        xticks=ticks,
    )


@final
@dataclass(frozen=True)
class Parts:
    """MNIST in three: private records, a public pool without labels, and what is tested on."""

    records: Dataset
    pool: Dataset
    pool_labels: Tensor
    test: Tensor
    test_labels: Tensor


def parts(first: int | None = None) -> Parts:
    """The training images are private, the first 9,000 test images public and the last 1,000 for
    the figures.
    """
    data = load("mnist")
    assert data.x_test is not None
    assert data.y_test is not None
    pool, test = np.asarray(data.x_test[:POOL]), np.asarray(data.x_test[-_TEST:])
    labels = torch.from_numpy(np.asarray(data.y_test).astype(np.int64))
    return Parts(
        Dataset(
            data.x[:first],
            np.asarray(data.y[:first]).astype(np.int64),
            low=data.low,
            high=data.high,
        ),
        Dataset(
            pool, np.zeros(len(pool), dtype=np.int64), low=data.low, high=data.high, public=True
        ),
        labels[:POOL],
        torch.from_numpy(test.copy()),
        labels[-_TEST:],
    )


@cached("pate-mnist")
def train(
    seed: int,
    *,
    teachers: int = 250,
    queries: tuple[int, ...] = (400, 1000),
    epsilon: float = 2.0,
    epochs: int = 8,
    first: int | None = None,
) -> dict[str, Any]:
    """An ensemble and its students, with `seed`, which fixes who learns from what, the noise and
    the students.

    Args:
        seed: of everything.
        teachers: how many.
        queries: public images that are asked about; each number is an ensemble of releases by
            itself.
        epsilon: what all queries together may cost at delta 1e-5, by data-independent accounting.
        epochs: of the students, over all public images.
        first: how many records the teachers share; None: all 60,000.

    Returns:
        Exact figures of private votes but for `test`: printed in a study of public data.
        teacher: the mean accuracy of one teacher on the images that were asked about.
        plurality: the accuracy of the teachers' plurality there, without noise.
        answers: for each number of queries the accuracy of the noisy winners.
        noise: for each number of queries the noise's standard deviation on a count.
        epsilons: for each number of queries what its ledger says was spent.
        test: for each number of queries the test accuracy of each way to learn.
        seen: for each number of queries the accuracy on the public images of the labels spread from
        noisy counts.
    """
    data = parts(first)
    asked = torch.from_numpy(np.array(data.pool.x[: max(queries)]))
    votes = Kept.of(
        Trained(data.records, Spreading(data.pool, _CLASSES), teachers), asked, Streams.new(seed)
    )
    reached: dict[str, Any] = {
        name: [] for name in ("answers", "noise", "epsilons", "test", "seen")
    }
    for number in queries:
        plan = plan_of(number, teachers, epsilon)
        tests: list[float] = []
        for way in WAYS:
            heard: list[Answers] = []

            def learn(answers: Answers, way: str = way, heard: list[Answers] = heard) -> nn.Module:
                heard += [answers, learnable(way, answers)]
                return student(epochs, seed)(heard[-1])

            # The same noise for all ways to learn: they are looked at side by side, and priced each
            # by itself.
            result = pate(plan, votes, None, data.pool, learn, streams=Streams.new(seed))
            tests.append(_right(_labels(result.model, data.test), data.test_labels))
        answers, labelled = heard
        reached["test"].append(tests)
        reached["epsilons"].append(result.ledger.guarantee(DELTA).epsilon)
        reached["noise"].append(plan.noise_std)
        reached["answers"].append(_right(answers.targets, data.pool_labels[:number]))
        reached["seen"].append(_right(labelled.targets, data.pool_labels))
    teacher, plurality = _without_noise(votes.known, data.pool_labels[: len(asked)])
    return {"teacher": teacher, "plurality": plurality, **reached}


def plan_of(queries: int, teachers: int, epsilon: float) -> PatePlan:
    """Votes on the first `queries` public images, with the noise that `epsilon` asks for."""
    return PatePlan(queries, teachers, Votes(_CLASSES)).calibrate(epsilon=epsilon, delta=DELTA)


def learnable(way: str, answers: Answers) -> Answers:
    """What a student learns from: the answers as they are, or labels of all public images, spread
    from them.
    """
    if one_of("the way to learn", way, WAYS) == WAYS[0]:
        return answers
    assert answers.classes is not None
    if way == WAYS[1]:
        certain = F.one_hot(answers.targets, answers.classes) * _CERTAIN
        answers = replace(answers, scores=certain.double())
    inputs, labels = Spread()(answers)
    return Answers(inputs, labels, torch.ones(len(labels), dtype=torch.bool))


def student(epochs: int, seed: int) -> Callable[[Answers], nn.Module]:
    """A small convolutional network; it sees images moved by up to two pixels, in as many steps
    whatever it learns.
    """

    def learn(answers: Answers) -> nn.Module:
        size = Student(_network).batch_size
        steps = epochs * math.ceil(len(answers.inputs) / size)
        student_epochs = math.ceil(steps / math.ceil(int(answers.answered.sum()) / size))
        # Labels that were spread come without the counts that would tell that they are classes.
        return Student(
            lambda shape: _network(shape, seed),
            "cross_entropy",
            epochs=student_epochs,
            augment=shifted,
            seed=seed,
        )(answers)

    return learn


def shifted(images: Tensor) -> Tensor:
    """Each image moved by up to two pixels down or up and left or right, by chance; black comes in
    from outside.
    """
    height, width = images.shape[-2:]
    wide = F.pad(images, (_SHIFT,) * 4)
    down, right = (torch.randint(0, 2 * _SHIFT + 1, (len(images), 1)) for _ in range(2))
    rows, columns = down + torch.arange(height), right + torch.arange(width)
    each = torch.arange(len(images))
    return wide[each[:, None, None], rows[:, :, None], columns[:, None, :]]


def _network(shape: tuple[int, ...], seed: int = 0) -> nn.Module:
    """Two convolutions and a hidden layer, with dropout; initial weights by the seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Unflatten(1, (1, shape[0])),
            nn.Conv2d(1, 16, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Linear(32 * (shape[0] // 4) * (shape[1] // 4), 64),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(64, _CLASSES),
        )


def _without_noise(votes: list[Tensor], truth: Tensor) -> tuple[float, float]:
    """How often a teacher is right, in the mean, and how often their plurality is."""
    counts = torch.zeros(len(truth), _CLASSES)
    for said in votes:
        counts[torch.arange(len(truth)), said] += 1
    return float(np.mean([_right(said, truth) for said in votes])), _right(counts.argmax(1), truth)


def _labels(model: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        several = images.float().split(_TEST)  # type: ignore[no-untyped-call]
        return torch.cat([model(part).argmax(1) for part in several])


def _right(said: Tensor, truth: Tensor) -> float:
    """The share of images of which the class is right."""
    return float((said == truth).double().mean())
