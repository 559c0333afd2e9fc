"""One run of `pate-vectors`: teachers that complete images, their noisy answers by several reducers, and students."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, final

import torch
from torch import Tensor, nn

from privlearn.data.dataset import Dataset
from privlearn.streams import Streams
from privlearn.teachers import Autoencoder, Identity, PublicPCA, Reducer, Trained
from privlearn.teachers.answers import Answers
from privlearn.teachers.pate import pate
from privlearn.teachers.plan import Ball, PatePlan
from privlearn_studies.pate.images import PRIVATE, SIDE, Images, covered, images
from privlearn_studies.pate.kept import Kept

DELTA = 1e-5
WAYS = ("no reduction", "PCA", "autoencoder")
#: Numbers of components that the rule's is compared with.
LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 256)
_PENALTY = 3.0  # of a teacher: the best of 3, 10 and 30 in a trial on these images
_PENALTIES = tuple(3.0 * 4.0**step for step in range(10))
_NUMBERS = SIDE**2


@final
@dataclass(frozen=True)
class VectorSetting:
    """What distinguishes one ensemble and its releases from another.

    Attributes:
        teachers: how many share the private images.
        epsilon: what the answers to all queries may cost, at delta 1e-5.
        queries: public inputs that are asked about.
        private: images that the teachers share.
        size: numbers in the autoencoder's code; None: twice as many as the rule has principal components, eight at least.
        epochs: of the autoencoder.
        share: of the public teachers' answers that lie within the radius that codes are clipped to.
    """

    teachers: int
    epsilon: float
    queries: int = 100
    private: int = PRIVATE
    size: int | None = None
    epochs: int = 50
    share: float = 0.5

    def key(self, seed: int) -> dict[str, Any]:
        """The run's settings as plain values; what is at its default is left out."""
        usual = {field.name: field.default for field in fields(self)}
        return {n: v for n, v in vars(self).items() if v != usual[n]} | {"study": "pate-vectors", "seed": seed}

    def run(self, seed: int) -> VectorOutcome:
        """Train teachers and students with `seed`; see `train`."""
        return train(self, seed)

    def outcome(self, kept: dict[str, Any]) -> VectorOutcome:
        """What a run reached, from its fields."""
        lists = ("answers", "students", "epsilons", "by_length", "expected")
        return VectorOutcome(**kept | {name: tuple(kept[name]) for name in lists})


@final
@dataclass(frozen=True)
class VectorOutcome:
    """What a run reached; errors are squared errors of an image, summed over pixels. Those of answers look at private ones.

    Attributes:
        noise: the noise's standard deviation on each number of a code; with the autoencoder `autoencoder_noise`.
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
        by_length: the error of what is recovered for each of `LENGTHS` components, then for the rule's own.
        expected: the closed form for each of `LENGTHS`.
    """

    noise: float
    autoencoder_noise: float
    rule: int
    size: int
    teacher: float
    ensemble: float
    answers: tuple[float, ...]
    students: tuple[float, ...]
    public: float
    mean: float
    epsilons: tuple[float, ...]
    by_length: tuple[float, ...]
    expected: tuple[float, ...]


def train(setting: VectorSetting, seed: int) -> VectorOutcome:
    """Run `setting` with `seed`, which fixes images, who learns from what, noise and autoencoder."""
    data = images(seed, setting.private)
    inputs = covered(data.pool)
    said = Kept.of(Trained((covered(data.private), data.private), completes, setting.teachers),
                   inputs[: setting.queries], Streams.new(seed))  # fmt: skip
    mean = torch.stack(said.known).mean(0)
    proxies = public_teachers(data, setting)
    shown = Dataset(inputs, torch.stack(proxies).mean(0), public=True)
    single = Dataset(inputs.repeat(len(proxies), 1), torch.cat(proxies), public=True)
    # What is encoded are answers, and what they should become are targets: the autoencoder is fitted on both.
    both = Dataset(torch.cat([inputs, covered(data.public)]), torch.cat([shown.y, data.public]), public=True)
    every = PublicPCA.fit(shown)
    plan = plan_of(setting, Ball(every.radius(single, setting.share)))
    in_ball = plan_of(setting, Ball(1.0))
    size = setting.size or max(8, 2 * every.best(plan.noise_std))
    ways: list[tuple[PatePlan, Reducer]] = [
        (plan, Identity((_NUMBERS,), every.centre)),
        (plan, every.kept(max(1, every.best(plan.noise_std)))),
        (in_ball, Autoencoder.fit(both, size, in_ball.noise_std, epochs=setting.epochs, seed=seed)),
    ]
    found = [_released(own, said, reducer, data, mean, seed) for own, reducer in ways]
    curve = [
        _released(plan, said, every.kept(min(length, every.size)), data, mean, seed, teach=False)[0]
        for length in LENGTHS
    ]
    truth = data.pool[: setting.queries]
    public = chosen(covered(data.public), data.public, data)
    return VectorOutcome(
        plan.noise_std, in_ball.noise_std, every.best(plan.noise_std), size,
        float(torch.stack([error(each, truth) for each in said.known]).mean()), float(error(mean, truth)),
        tuple(each[0] for each in found), tuple(each[1] for each in found),
        float(error(public(covered(data.test)), data.test)), float(error(data.public.mean(0), data.test)),
        tuple(each[2] for each in found), (*curve, found[1][0]),
        tuple(every.loss(plan.noise_std, length) for length in LENGTHS),
    )  # fmt: skip


def plan_of(setting: VectorSetting, aggregate: Ball) -> PatePlan:
    """The queries with the noise that the setting's epsilon asks for."""
    return PatePlan(setting.queries, setting.teachers, aggregate).calibrate(epsilon=setting.epsilon, delta=DELTA)


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


def public_teachers(data: Images, setting: VectorSetting) -> list[Tensor]:
    """What teachers say to the pool that learn from public images, as many each as a private one has: public."""
    each = max(1, setting.private // setting.teachers)
    shards = [shard for shard in data.public.split(each) if len(shard) == each]  # type: ignore[no-untyped-call]
    return [completes(covered(shard), shard)(covered(data.pool)) for shard in shards]


def error(found: Tensor, truth: Tensor) -> Tensor:
    """The mean over images of the squared error, summed over pixels."""
    return (found - truth).square().sum(1).mean()


def chosen(x: Tensor, y: Tensor, data: Images) -> Callable[[Tensor], Tensor]:
    """The ridge regression on x and y whose penalty is best for public images and their targets."""
    tried = [completes(x, y, penalty) for penalty in _PENALTIES]
    return min(tried, key=lambda one: float(error(one(covered(data.public)), data.public)))


def _released(
    plan: PatePlan, said: Kept, reducer: Reducer, data: Images, mean: Tensor, seed: int, teach: bool = True
) -> tuple[float, float, float]:
    """Errors of what is recovered, against the teachers' mean, and of the student; and what the ledger says was spent.

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
