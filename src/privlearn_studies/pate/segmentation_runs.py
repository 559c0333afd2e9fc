"""One run of `pate-segmentation`: an ensemble of U-Nets, its noisy answers by several ways, and students."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from privlearn.data.hippocampus import CLASSES
from privlearn.models.unets import volume_decoder, volume_encoder
from privlearn.streams import Streams
from privlearn.teachers import Autoencoder, PublicPCA, Reducer
from privlearn.teachers.answers import Answers
from privlearn.teachers.pate import pate
from privlearn.teachers.plan import Ball, PatePlan
from privlearn.volumes import MapStudent, Seen, Start, Training, probabilities
from privlearn.volumes.corrections import as_probabilities
from privlearn.volumes.start import public_maps
from privlearn_studies.pate.kept import Kept
from privlearn_studies.pate.scans import Public, Settings, fresh, logits_of, parts, pool_truth, public_side, scores

DELTA = 1e-3
#: What is released: Fay et al.'s two ways, the same with logits as they print it, and corrections of a public prediction.
WAYS = ("autoencoder", "PCA", "PCA of logits", "corrections")
#: Where students are taught: (epsilon, queried volumes); by the first three ways in the first three only. Answers of all but
#: the autoencoder, which is fitted anew for each noise, are looked at everywhere.
CELLS = ((8.0, 10), (8.0, 80), (1.0, 10), (8.0, 20), (8.0, 40), (2.0, 10), (4.0, 10))
_FEW = 3
EPSILONS, QUERIES = (1.0, 2.0, 4.0, 8.0), (10, 20, 40, 80)
_CODE = 8  # numbers in the autoencoder's code


@final
@dataclass(frozen=True)
class SegmentationSetting:
    """What distinguishes one ensemble from another.

    Attributes:
        teachers: how many share the 180 private volumes.
        labelled: public volumes with masks, which the public U-Net and all reducers are fitted on.
        cells: where students are taught, as pairs of epsilon (at delta 1e-3) and queried volumes.
        first: how many private volumes there are; None: all.
        settings: how long networks learn.
    """

    teachers: int
    labelled: int = 2
    cells: tuple[tuple[float, int], ...] = CELLS
    first: int | None = None
    settings: Settings = Settings()  # noqa: RUF009 - a frozen value

    def key(self, seed: int) -> dict[str, Any]:
        """The run's settings as plain values; what is at its default is left out."""
        usual = {field.name: field.default for field in fields(self)}
        found = {n: v for n, v in vars(self).items() if v != usual[n]}
        if "cells" in found:
            found["cells"] = [list(cell) for cell in self.cells]
        if "settings" in found:
            found["settings"] = asdict(self.settings)
        return found | {"study": "pate-segmentation", "seed": seed}

    def run(self, seed: int) -> SegmentationOutcome:
        """Train teachers and students with `seed`; see `train`."""
        return train(self, seed)

    def outcome(self, kept: dict[str, Any]) -> SegmentationOutcome:
        """What a run reached, from its fields."""
        cells = tuple(Cell(**_tuples(cell)) for cell in kept["cells"])
        slices = tuple(tuple(each) for each in kept["slices"])
        return SegmentationOutcome(**_tuples(kept) | {"cells": cells, "slices": slices})


def _tuples(kept: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}


@final
@dataclass(frozen=True)
class Cell:
    """One release of an ensemble's answers, priced by itself.

    Attributes:
        way: which of `WAYS`.
        epsilon: the target; `spent` is what its ledger says.
        queries: volumes that were asked about.
        spent: epsilon by the ledger.
        noise: standard deviation on each number of a code, over the radius that codes are clipped to.
        size: numbers in a code.
        answers: Dice of each class of the recovered answers, against the masks of the queried volumes.
        student: Dice of each class on the test volumes, of a student that began as the public U-Net; None: not taught.
        alone: the same of one that began from nothing and has no public masks either, as in the paper; None: not taught.
    """

    way: str
    epsilon: float
    queries: int
    spent: float
    noise: float
    size: int
    answers: tuple[float, ...]
    student: tuple[float, ...] | None = None
    alone: tuple[float, ...] | None = None


@final
@dataclass(frozen=True)
class SegmentationOutcome:
    """What a run reached: Dice of each class. Those of teachers and of answers look at private ones: this is a study.

    Attributes:
        teacher: the mean over teachers, on the test volumes.
        ensemble: of the teachers' mean probabilities there, without noise.
        ensemble_pool: the same on the pool.
        taught: of a student that learned from the teachers' mean of 40 volumes, without noise.
        public: of the public U-Net.
        public_pool: the same on the pool.
        itself: of the public U-Net after it learned from its own predictions for 40 volumes, which costs nothing.
        mean: of the mean of the public masks, for every volume.
        cells: all releases.
        slices: the middle slice of the first query, 28 x 20 numbers each: the image in 256 steps of grey, and classes: truth,
            the public U-Net's, the teachers' mean, the noisy answers of `cells` at (8, 10) in the order of `WAYS`, and what
            the last of those students says.
    """

    teacher: tuple[float, ...]
    ensemble: tuple[float, ...]
    ensemble_pool: tuple[float, ...]
    taught: tuple[float, ...]
    public: tuple[float, ...]
    public_pool: tuple[float, ...]
    itself: tuple[float, ...]
    mean: tuple[float, ...]
    cells: tuple[Cell, ...]
    slices: tuple[tuple[int, ...], ...]


def train(setting: SegmentationSetting, seed: int) -> SegmentationOutcome:
    """Run `setting` with `seed`, which fixes the public volumes, who learns from what, initial weights and noise."""
    public = public_side(setting.labelled, seed, setting.settings)
    start = public.start
    said = ask(setting, start, seed)
    asked, test = len(start.inputs), parts().test
    pool = asked // 2
    probable = [each.float() for each in said.known]
    mean = torch.stack([each[:asked] for each in probable]).mean(0)
    on_test = [each[asked:] for each in probable]
    learn = _Learning(public, setting, seed)
    slices: list[Tensor] = [
        (255 * start.inputs[0, 0]).round(), pool_truth()[0], start.reference[0].argmax(0), mean[0].argmax(0),
    ]  # fmt: skip
    cells = [
        cell
        for way in WAYS
        for epsilon in EPSILONS
        for queries in QUERIES
        if way != WAYS[0] or (epsilon, queries) in setting.cells[:_FEW]
        for cell in [_released(way, (epsilon, queries), said, learn, slices)]
    ]
    tests = test.tensors()[0]
    middle = public_maps(start.labelled, CLASSES)[1].mean(0, keepdim=True)
    return SegmentationOutcome(
        tuple(torch.tensor([scores(each, test) for each in on_test]).mean(0).tolist()),
        scores(torch.stack(on_test).mean(0), test),
        scores(mean[:pool], pool_truth()[:pool]),
        scores(probabilities(learn.from_maps(mean[:pool]), tests), test),
        scores(probabilities(start.network, tests), test),
        scores(start.reference[:pool], pool_truth()[:pool]),
        scores(probabilities(learn.from_maps(start.reference[:pool]), tests), test),
        scores(middle.expand(len(tests), *[-1] * (middle.dim() - 1)), test),
        tuple(cells),
        tuple(tuple(int(v) for v in each[each.shape[0] // 2].flatten().tolist()) for each in slices),
    )


def ask(setting: SegmentationSetting, start: Start, seed: int) -> Kept:
    """Train all teachers, and keep what they say of the volumes that can be asked about and of those to test on."""
    private = parts().private
    private = replace(private, x=private.x[: setting.first], y=private.y[: setting.first])
    asked = torch.cat([start.inputs, parts().test.tensors()[0]])
    return Kept.of(start.teachers(private, setting.teachers), asked, Streams.new(seed))


@final
class _Learning:
    """Students of a run: all learn alike, and start from the public U-Net."""

    def __init__(self, public: Public, setting: SegmentationSetting, seed: int) -> None:
        self.public, self.setting, self.seed = public, setting, seed

    def student(self, recover: Callable[[Tensor], Tensor]) -> MapStudent:
        """One that learns from answers, and from public masks beside them."""
        start = self.public.start
        return MapStudent(start.network, start.tuning, start.labelled, recover, self.seed)

    def alone(self, recover: Callable[[Tensor], Tensor]) -> MapStudent:
        """One that learns from answers only, from nothing."""
        training = Training(steps=self.setting.settings.alone)
        return MapStudent(fresh(self.public.start.inputs.shape[1:], self.seed), training, None, recover, self.seed)

    def from_maps(self, maps: Tensor) -> nn.Module:
        """One that learns from these maps as if they were answers for the first volumes."""
        answers = Answers(self.public.start.inputs, maps, torch.ones(len(maps), dtype=torch.bool))
        return self.student(as_probabilities)(answers)


def release_of(
    way: str, plan: Callable[[Ball], PatePlan], public: Public, settings: Settings, seed: int
) -> tuple[PatePlan, Reducer, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """A way's plan and reducer; how a teacher's probabilities are seen; and how a student makes maps of what was released.

    Everything follows from what is public and from the noise.
    """
    if way == "corrections":
        own, start = plan(Ball(public.start.radius)), public.start
        return own, start.reducer, start.corrections.encode, start.student(own).recover
    if way == "autoencoder":
        own = plan(Ball(1.0))
        return own, autoencoder(public, own.noise_std, settings.epochs, seed), Tensor.float, as_probabilities
    if way == "PCA of logits":
        own = plan(Ball(public.logits_radius))
        return own, _above(public.logits, own.noise_std), logits_of, lambda released: released.softmax(1)
    own = plan(Ball(public.pca_radius))
    return own, _above(public.pca, own.noise_std), Tensor.float, as_probabilities


def autoencoder(public: Public, noise_std: float, epochs: int, seed: int) -> Reducer:
    """The paper's autoencoder, trained with noise on public maps; `seed` fixes its initial weights, too."""
    shape = tuple(public.maps.y.shape[1:])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder = volume_encoder(shape, _CODE)
        decoder = volume_decoder(shape, _CODE, middle=public.maps.y.mean(0))
    return Autoencoder.fit(
        public.maps, _CODE, noise_std, encoder=encoder, decoder=decoder, loss="cross_entropy", epochs=epochs, batch_size=16,
        learning_rate=5e-3, seed=seed,
    )  # fmt: skip


def _above(every: PublicPCA, noise_std: float) -> PublicPCA:
    """The components above the noise, by the paper's rule, and one where there is none."""
    return every.kept(max(1, min(every.best(noise_std), every.size)))


def _released(way: str, cell: tuple[float, int], said: Kept, learn: _Learning, slices: list[Tensor]) -> Cell:
    """Release the answers to one cell's queries by one way, and teach students where that is wanted."""
    (epsilon, queries), public, test = cell, learn.public, parts().test

    def plan_of(ball: Ball) -> PatePlan:
        return PatePlan(queries, said.count, ball).calibrate(epsilon=epsilon, delta=DELTA)

    plan, reducer, seen, recover = release_of(way, plan_of, public, learn.setting.settings, learn.seed)
    taught = cell in (learn.setting.cells if way == WAYS[-1] else learn.setting.cells[:_FEW])
    heard: list[Answers] = []

    def student(answers: Answers) -> nn.Module:
        heard.append(answers)
        return learn.student(recover)(answers) if taught else public.start.network

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the one component that is left lies below the noise, as the tables show
        result = pate(plan, Seen(said, seen), reducer, public.start.inputs, student, streams=Streams.new(learn.seed))
    maps = recover(heard[0].targets)
    if cell == (8.0, 10):
        slices.append(maps[0].argmax(0))
        if way == WAYS[-1]:
            slices.append(probabilities(result.model, public.start.inputs[:1])[0].argmax(0))
    tests = test.tensors()[0]
    alone = None
    if taught and way == WAYS[0] and cell == (8.0, 80):  # the paper's own setting, but for K
        alone = scores(probabilities(learn.alone(recover)(heard[0]), tests), test)
    assert isinstance(plan.aggregate, Ball)
    return Cell(
        way, epsilon, queries, result.ledger.guarantee(DELTA).epsilon, plan.noise_std / plan.aggregate.radius,
        reducer.size, scores(maps, pool_truth()[:queries]),
        scores(probabilities(result.model, tests), test) if taught else None, alone,
    )  # fmt: skip
