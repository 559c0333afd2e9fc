"""One run of `pate-mnist`: an ensemble's votes on MNIST, computed once, and the students that learn from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn._checks import one_of
from privlearn.data.dataset import Dataset
from privlearn.data.named import load
from privlearn.streams import Streams
from privlearn.teachers import Spreading, Trained
from privlearn.teachers.answers import Answers
from privlearn.teachers.pate import pate
from privlearn.teachers.plan import PatePlan, Votes
from privlearn.teachers.student import Spread, Student
from privlearn_studies.pate.kept import Kept

DELTA = 1e-5
#: How a student learns: from answered images alone, or from all, to which the winners or the noisy counts are spread.
WAYS = ("no spreading", "spreading from winners", "spreading from noisy counts")
POOL, _TEST = 9_000, 1_000
_CLASSES = 10
_SHIFT = 2
#: A count that outdoes every other: what a winner is held to be, whatever its count was.
_CERTAIN = 1e9


@final
@dataclass(frozen=True)
class VoteSetting:
    """What distinguishes one ensemble and its students from another.

    Attributes:
        teachers: how many.
        queries: public images that are asked about; each number is an ensemble of releases by itself.
        epsilon: what all queries together may cost at delta 1e-5, by data-independent accounting.
        epochs: of the students, over all public images.
        first: how many records the teachers share; None: all 60,000.
    """

    teachers: int = 250
    queries: tuple[int, ...] = (400, 1000)
    epsilon: float = 2.0
    epochs: int = 8
    first: int | None = None

    def key(self, seed: int) -> dict[str, Any]:
        """The run's settings as plain values; what is at its default is left out."""
        usual = {field.name: field.default for field in fields(self)}
        found = {n: list(v) if isinstance(v, tuple) else v for n, v in vars(self).items() if v != usual[n]}
        return found | {"study": "pate-mnist", "seed": seed}

    def run(self, seed: int) -> VoteOutcome:
        """Train teachers and students with `seed`; see `train`."""
        return train(self, seed)

    def outcome(self, kept: dict[str, Any]) -> VoteOutcome:
        """What a run reached, from its fields."""
        lists = {name: tuple(kept[name]) for name in ("answers", "noise", "epsilons", "seen")}
        return VoteOutcome(**kept | lists | {"test": tuple(tuple(each) for each in kept["test"])})


@final
@dataclass(frozen=True)
class VoteOutcome:
    """What a run reached. All but `test` are exact figures of private votes: shown in a study on public data.

    Attributes:
        teacher: the mean accuracy of one teacher on the images that were asked about.
        plurality: the accuracy of the teachers' plurality there, without noise.
        answers: for each number of queries the accuracy of the noisy winners.
        noise: for each number of queries the noise's standard deviation on a count.
        epsilons: for each number of queries what its ledger says was spent.
        test: for each number of queries the test accuracy of each way to learn.
        seen: for each number of queries the accuracy on the public images of the labels spread from noisy counts.
    """

    teacher: float
    plurality: float
    answers: tuple[float, ...]
    noise: tuple[float, ...]
    epsilons: tuple[float, ...]
    test: tuple[tuple[float, ...], ...]
    seen: tuple[float, ...]


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
    """The training images are private, the first 9,000 test images public and the last 1,000 for the figures."""
    data = load("mnist")
    assert data.x_test is not None
    assert data.y_test is not None
    pool, test = np.asarray(data.x_test[:POOL]), np.asarray(data.x_test[-_TEST:])
    labels = torch.from_numpy(np.asarray(data.y_test).astype(np.int64))
    return Parts(
        Dataset(data.x[:first], np.asarray(data.y[:first]).astype(np.int64), low=data.low, high=data.high),
        Dataset(pool, np.zeros(len(pool), dtype=np.int64), low=data.low, high=data.high, public=True),
        labels[:POOL],
        torch.from_numpy(test.copy()),
        labels[-_TEST:],
    )


def train(setting: VoteSetting, seed: int) -> VoteOutcome:
    """Run `setting` with `seed`, which fixes who learns from what, the noise and the students."""
    data = parts(setting.first)
    asked = torch.from_numpy(np.array(data.pool.x[: max(setting.queries)]))
    ensemble = Trained(data.records, Spreading(data.pool, _CLASSES), setting.teachers)
    votes = Kept.of(ensemble, asked, Streams.new(seed))
    found: dict[str, list[Any]] = {name: [] for name in ("answers", "noise", "epsilons", "test", "seen")}
    for queries in setting.queries:
        plan = plan_of(setting, queries)
        reached: list[float] = []
        for way in WAYS:
            heard: list[Answers] = []

            def learn(answers: Answers, way: str = way, heard: list[Answers] = heard) -> nn.Module:
                heard += [answers, learnable(way, answers)]
                return student(setting.epochs, seed)(heard[-1])

            # The same noise for all ways to learn: they are looked at side by side, and priced each by itself.
            result = pate(plan, votes, None, data.pool, learn, streams=Streams.new(seed))
            reached.append(_right(_labels(result.model, data.test), data.test_labels))
        answers, spread = heard
        found["test"].append(tuple(reached))
        found["epsilons"].append(result.ledger.guarantee(DELTA).epsilon)
        found["noise"].append(plan.noise_std)
        found["answers"].append(_right(answers.targets, data.pool_labels[:queries]))
        found["seen"].append(_right(spread.targets, data.pool_labels))
    teacher, plurality = _without_noise(votes.known, data.pool_labels[: len(asked)])
    return VoteOutcome(teacher, plurality, **{name: tuple(values) for name, values in found.items()})


def plan_of(setting: VoteSetting, queries: int) -> PatePlan:
    """Votes on the first `queries` public images, with the noise that the setting's epsilon asks for."""
    return PatePlan(queries, setting.teachers, Votes(_CLASSES)).calibrate(epsilon=setting.epsilon, delta=DELTA)


def learnable(way: str, answers: Answers) -> Answers:
    """What a student learns from: the answers as they are, or labels of all public images, spread from them."""
    if one_of("the way to learn", way, WAYS) == WAYS[0]:
        return answers
    assert answers.classes is not None
    if way == WAYS[1]:
        certain = F.one_hot(answers.targets, answers.classes) * _CERTAIN
        answers = replace(answers, scores=certain.double())
    inputs, labels = Spread()(answers)
    return Answers(inputs, labels, torch.ones(len(labels), dtype=torch.bool))


def student(epochs: int, seed: int) -> Callable[[Answers], nn.Module]:
    """A small convolutional network that sees images moved by up to two pixels, in as many steps whatever it learns from."""

    def learn(answers: Answers) -> nn.Module:
        size = Student(_network).batch_size
        steps = epochs * math.ceil(len(answers.inputs) / size)
        own = math.ceil(steps / math.ceil(int(answers.answered.sum()) / size))
        # Labels that were spread come without the counts that would tell that they are classes.
        return Student(lambda shape: _network(shape, seed), "cross_entropy", epochs=own, augment=shifted, seed=seed)(
            answers
        )

    return learn


def shifted(images: Tensor) -> Tensor:
    """Each image moved by up to two pixels down or up and left or right, by chance; black comes in from outside."""
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
            nn.Unflatten(1, (1, shape[0])), nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.5),
            nn.Linear(32 * (shape[0] // 4) * (shape[1] // 4), 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, _CLASSES),
        )  # fmt: skip


def _without_noise(votes: list[Tensor], truth: Tensor) -> tuple[float, float]:
    """How often a teacher is right, in the mean, and how often their plurality is."""
    counts = torch.zeros(len(truth), _CLASSES)
    for said in votes:
        counts[torch.arange(len(truth)), said] += 1
    return float(np.mean([_right(said, truth) for said in votes])), _right(counts.argmax(1), truth)


def _labels(model: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(part).argmax(1) for part in images.float().split(_TEST)])  # type: ignore[no-untyped-call]


def _right(said: Tensor, truth: Tensor) -> float:
    """The share of images of which the class is right."""
    return float((said == truth).double().mean())
