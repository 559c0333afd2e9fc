"""Runs of the studies of segmentation: ensembles of U-Nets with noisy answers and students, and
DP-SGD beside them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor, nn

from privlearn._checks import one_of
from privlearn.core.clipping.clips import PerLayer
from privlearn.core.plan import Plan
from privlearn.core.sampling import Poisson
from privlearn.core.schedules import Constant
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.methods.pate import PublicPCA, Reducer
from privlearn.methods.pate.answers import Answers
from privlearn.methods.pate.pate import pate
from privlearn.methods.pate.plan import Ball, PatePlan
from privlearn.training.dpsgd import dpsgd
from privlearn_segmentation import (
    MapStudent,
    Pairs,
    Seen,
    Start,
    Training,
    Warp,
    map_losses,
    maps_of,
    probabilities,
)
from privlearn_segmentation.codes import fit_autoencoder
from privlearn_segmentation.start import as_probabilities, public_maps
from privlearn_studies.fay2020.kept import Kept
from privlearn_studies.fay2020.scans import (
    HIPPOCAMPUS,
    Public,
    Settings,
    classes_of,
    fresh,
    logits_of,
    parts,
    pool_truth,
    public_side,
    scores,
)
from privlearn_studies.runs import cached

DELTA = 1e-3
#: What is released: Fay et al.'s two ways, the same with logits as they print it, corrections of a
#: public prediction.
WAYS = ("autoencoder", "PCA", "PCA of logits", "corrections")
#: Where students are taught: (epsilon, queried volumes); by the first three ways in the first three
#: only. Answers of all but the autoencoder, which is fitted anew for each noise, are looked at
#: everywhere.
CELLS = ((8.0, 10), (8.0, 80), (1.0, 10), (8.0, 20), (8.0, 40), (2.0, 10), (4.0, 10))
_FEW = 3
EPSILONS, QUERIES = (1.0, 2.0, 4.0, 8.0), (10, 20, 40, 80)
#: Of DP-SGD: how much of the volumes is in a batch, the clip of each layer, and the paper's clip
#: and noise over it.
_RATE, _CLIP, _PAPERS_CLIP, _PAPERS_NOISE = 0.2, 0.1, 4.0, math.sqrt(6.0)


@cached("pate-segmentation")
def train(
    seed: int,
    *,
    teachers: int,
    labelled: int = 2,
    cells: tuple[tuple[float, int], ...] = CELLS,
    first: int | None = None,
    data: str = HIPPOCAMPUS,
    settings: Settings = Settings(),  # noqa: B008 - a frozen value
) -> dict[str, Any]:
    """An ensemble, with `seed`, which fixes the public volumes, who learns from what, initial
    weights and noise.

    Args:
        seed: of everything.
        teachers: how many share the 180 private volumes.
        labelled: public volumes with masks, which the public U-Net and all reducers are fitted on.
        cells: where students are taught, as pairs of epsilon (at delta 1e-3) and queried volumes.
        first: how many private volumes there are; None: all.
        data: which volumes.
        settings: how long networks learn.

    Returns:
        Dice of each class; that of teachers and of answers looks at private ones: this is a study.
        teacher: the mean over teachers, on the test volumes.
        ensemble: of the teachers' mean probabilities there, without noise.
        ensemble_pool: the same on the pool.
        taught: of a student that learned from the teachers' mean of 40 volumes, without noise.
        public: of the public U-Net.
        public_pool: the same on the pool.
        itself: of the public U-Net after it learned from its own predictions for 40 volumes, which
        costs nothing.
        mean: of the mean of the public masks, for every volume.
        cells: all releases, as `_released` has them.
        slices: the middle slice of the first query, each flattened: the image's first channel in
        256 steps of grey, and
            classes: truth, the public U-Net's, the teachers' mean, the noisy answers of `cells` at
            (8, 10) in the order of `WAYS`, and what the last of those students says.
    """
    public = public_side(labelled, seed, settings, data)
    start, truth = public.start, pool_truth(data)
    said = ask(teachers, first, start, seed, data)
    asked, test = len(start.inputs), parts(data).test
    pool = asked // 2
    probable = [each.float() for each in said.known]
    mean = torch.stack([each[:asked] for each in probable]).mean(0)
    on_test = [each[asked:] for each in probable]
    learn = _Learning(public, settings, cells, seed)
    slices: list[Tensor] = [
        (255 * start.inputs[0, 0]).round(),
        truth[0],
        start.reference[0].argmax(0),
        mean[0].argmax(0),
    ]
    released = [
        _released(way, (epsilon, queries), said, learn, slices)
        for way in WAYS
        for epsilon in EPSILONS
        for queries in QUERIES
        if way != WAYS[0] or (epsilon, queries) in cells[:_FEW]
    ]
    tests = test.tensors()[0]
    middle = public_maps(start.labelled, mean.shape[1])[1].mean(0, keepdim=True)
    return {
        "teacher": torch.tensor([scores(each, test) for each in on_test]).mean(0).tolist(),
        "ensemble": scores(torch.stack(on_test).mean(0), test),
        "ensemble_pool": scores(mean[:pool], truth[:pool]),
        "taught": scores(probabilities(learn.from_maps(mean[:pool]), tests), test),
        "public": scores(probabilities(start.network, tests), test),
        "public_pool": scores(start.reference[:pool], truth[:pool]),
        "itself": scores(probabilities(learn.from_maps(start.reference[:pool]), tests), test),
        "mean": scores(middle.expand(len(tests), *[-1] * (middle.dim() - 1)), test),
        "cells": released,
        "slices": [
            [int(v) for v in each[each.shape[0] // 2].flatten().tolist()] for each in slices
        ],
    }


def ask(teachers: int, first: int | None, start: Start, seed: int, data: str = HIPPOCAMPUS) -> Kept:
    """Train all teachers, and keep what they say of the volumes that can be asked about and of
    those to test on.
    """
    asked = torch.cat([start.inputs, parts(data).test.tensors()[0]])
    return Kept.of(start.teachers(_private(first, data), teachers), asked, Streams.new(seed))


def _private(first: int | None, data: str) -> Dataset:
    private = parts(data).private
    return replace(private, x=private.x[:first], y=private.y[:first])


@final
class _Learning:
    """Students of a run: all learn alike, and start from the public U-Net."""

    def __init__(
        self, public: Public, settings: Settings, cells: tuple[tuple[float, int], ...], seed: int
    ) -> None:
        self.public, self.settings, self.cells, self.seed = public, settings, cells, seed

    def student(self, recover: Callable[[Tensor], Tensor]) -> MapStudent:
        """One that learns from answers, and from public masks beside them."""
        start = self.public.start
        return MapStudent(start.network, start.tuning, start.labelled, recover, self.seed)

    def alone(self, recover: Callable[[Tensor], Tensor]) -> MapStudent:
        """One that learns from answers only, from nothing."""
        training = Training(steps=self.settings.alone)
        return MapStudent(fresh(self.public.data, self.seed), training, None, recover, self.seed)

    def from_maps(self, maps: Tensor) -> nn.Module:
        """One that learns from these maps as if they were answers for the first volumes."""
        answers = Answers(self.public.start.inputs, maps, torch.ones(len(maps), dtype=torch.bool))
        return self.student(as_probabilities)(answers)


def release_of(
    way: str, plan: Callable[[Ball], PatePlan], public: Public, settings: Settings, seed: int
) -> tuple[PatePlan, Reducer, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """A way's plan and reducer; how a teacher's probabilities are seen; how a student makes maps of
    what was released.

    Everything follows from what is public and from the noise.
    """
    if way == "corrections":
        planned, start = plan(Ball(public.start.radius)), public.start
        return planned, start.reducer, start.corrections.encode, start.student(planned).recover
    if way == "autoencoder":
        planned = plan(Ball(1.0))
        return (
            planned,
            fit_autoencoder(public.maps, planned.noise_std, epochs=settings.epochs, seed=seed),
            Tensor.float,
            as_probabilities,
        )
    if way == "PCA of logits":
        planned = plan(Ball(public.logits_radius))
        return (
            planned,
            _above(public.logits, planned.noise_std),
            logits_of,
            lambda released: released.softmax(1),
        )
    planned = plan(Ball(public.pca_radius))
    return planned, _above(public.pca, planned.noise_std), Tensor.float, as_probabilities


def _above(every: PublicPCA, noise_std: float) -> PublicPCA:
    """The components above the noise, by the paper's rule, and one where there is none."""
    return every.kept(max(1, min(every.best(noise_std), every.size)))


def _released(
    way: str, cell: tuple[float, int], said: Kept, learn: _Learning, slices: list[Tensor]
) -> dict[str, Any]:
    """Release the answers to one cell's queries by one way, priced by itself, and teach students
    where that is wanted.

    Returns:
        way: which of `WAYS`.
        epsilon: the target; `spent` is what its ledger says.
        queries: volumes that were asked about.
        spent: epsilon by the ledger.
        noise: standard deviation on each number of a code, over the radius that codes are clipped
        to.
        size: numbers in a code.
        answers: Dice of each class of the recovered answers, against the masks of the queried
        volumes.
        student: Dice of each class on the test volumes, of a student that began as the public
        U-Net; None: not taught.
        alone: the same of one that began from nothing, without public masks, as in the paper; None:
        not taught.
    """
    (epsilon, queries), public, test = cell, learn.public, parts(learn.public.data).test

    def plan_of(ball: Ball) -> PatePlan:
        return PatePlan(queries, said.count, ball).calibrate(epsilon=epsilon, delta=DELTA)

    plan, reducer, seen, recover = release_of(way, plan_of, public, learn.settings, learn.seed)
    taught = cell in (learn.cells if way == WAYS[-1] else learn.cells[:_FEW])
    heard: list[Answers] = []

    def student(answers: Answers) -> nn.Module:
        heard.append(answers)
        return learn.student(recover)(answers) if taught else public.start.network

    with warnings.catch_warnings():
        # that the one component that is left lies below the noise, as the tables show
        warnings.simplefilter("ignore")
        result = pate(
            plan,
            Seen(said, seen),
            reducer,
            public.start.inputs,
            student,
            streams=Streams.new(learn.seed),
        )
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
    return {
        "way": way,
        "epsilon": epsilon,
        "queries": queries,
        "spent": result.ledger.guarantee(DELTA).epsilon,
        "noise": plan.noise_std / plan.aggregate.radius,
        "size": reducer.size,
        "answers": scores(maps, pool_truth(public.data)[:queries]),
        "student": scores(probabilities(result.model, tests), test) if taught else None,
        "alone": alone,
    }


@cached("pate-segmentation, gradients")
def train_by_gradients(
    seed: int,
    *,
    epsilon: float | None,
    start: str = "nothing",
    epochs: int = 40,
    learning_rate: float = 3e-3,
    copies: int = 0,
    papers: bool = False,
    first: int | None = None,
    data: str = HIPPOCAMPUS,
    settings: Settings = Settings(),  # noqa: B008 - a frozen value
) -> dict[str, Any]:
    """DP-SGD on the U-Net, each layer clipped by itself and the noise for all layers together.

    Args:
        seed: of everything.
        epsilon: what it may cost at delta 1e-3; None: no privacy, by the training that teachers and
            students have.
        start: "nothing", or "public" for the U-Net that learned from the public volumes.
        epochs: of about five batches each; without privacy of as many steps.
        learning_rate: of Adam.
        copies: of each volume in a batch, moved as teachers' volumes are, their gradients averaged
            before clipping; 0: the volumes as they are.
        papers: in place of `epsilon`, the paper's clip and noise.
        first: how many private volumes there are; None: all.
        data: which volumes.
        settings: how long the public U-Net learns.

    Returns:
        test: Dice of each class on the test volumes.
        spent: epsilon by the ledger; None without privacy.
    """
    private, test = _private(first, data), parts(data).test
    (x, y), classes = private.tensors(), classes_of(private)
    network = fresh(data, seed)
    if one_of("start", start, ("nothing", "public")) == "public":
        network = public_side(2, seed, settings, data).start.network
    if epsilon is None and not papers:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            network = Training(steps=5 * epochs)(network, x, maps_of(y, classes))
        return {"test": scores(probabilities(network, test.tensors()[0]), test), "spent": None}
    pairs = Pairs(classes)
    result = dpsgd(
        plan_of(epsilon, epochs, layers_of(network), len(x)),
        pairs.network(network) if copies else network,
        pairs.losses if copies else map_losses,
        pairs.rows(x, y) if copies else private,
        augmentation=pairs.moved(Warp(), copies) if copies else None,
        optimizer=lambda parameters: torch.optim.Adam(parameters, learning_rate),
        streams=Streams.new(seed),
    )
    spent = result.ledger.guarantee(DELTA).epsilon
    return {"test": scores(probabilities(network, test.tensors()[0]), test), "spent": spent}


def plan_of(epsilon: float | None, epochs: int, layers: int, examples: int) -> Plan:
    """What DP-SGD is to spend, on a network of so many layers and a declared number of examples.

    Without an epsilon, the paper's clip of each layer and the noise multiplier that it states for
    each: with L layers the noise is worth 1 / sqrt(L) of it.
    """
    if epsilon is None:
        plan = Plan(Poisson(_RATE), epochs, clip=PerLayer(_PAPERS_CLIP), examples=examples)
        return replace(plan, schedule=Constant(start=_PAPERS_NOISE / math.sqrt(layers)))
    return Plan(Poisson(_RATE), epochs, clip=PerLayer(_CLIP), examples=examples).calibrate(
        epsilon=epsilon, delta=DELTA
    )


def layers_of(network: nn.Module) -> int:
    """How many layers are clipped, each by itself."""
    return len({name.rpartition(".")[0] for name, _ in network.named_parameters()})
