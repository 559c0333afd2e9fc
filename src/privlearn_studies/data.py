"""Rows that studies share: the tasks of Yu et al. 2019, section V-B, images of USPS, and plain
training on rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.sampling import Sample
from privlearn.core.streams import Streams
from privlearn.data.named import load
from privlearn.runs.callbacks import Callback, TrainingProgress
from privlearn.transforms.modules import Project, Scale
from privlearn.transforms.pca import PrivatePCA
from privlearn_studies import vgg16

#: How features are scaled before training: see `features`.
SCALES = ("raw", "unit", "whitened")
#: How many images of USPS are private, public with their targets, public without, and tested on:
#: see `images`.
PRIVATE, PUBLIC, POOL, TEST = 8000, 1000, 1000, 1000
_AT_ONCE = 5000
_PIXELS = 255.0
#: What features of VGG16 are divided by: a round number, fixed in advance.
_VGG16_SCALE = 100.0
_MISSING = 5.5  # what the reader of the Wisconsin data puts for a missing value


@final
@dataclass(frozen=True)
class Rows:
    """Rows to train on, rows declared public to validate on (empty if none are held back), and rows
    to test on.
    """

    x: Tensor
    y: Tensor
    x_valid: Tensor
    y_valid: Tensor
    x_test: Tensor
    y_test: Tensor


@final
@dataclass(frozen=True)
class Task:
    """A task with the paper's settings.

    Attributes:
        name: of the task and its data.
        examples: training rows, if none are held back.
        hidden: widths of the hidden layers.
        classes: outputs.
        batch_size: examples in a batch; None: all of them.
        rho: the paper's budget.
        clip_norm: per layer or for the whole gradient, as a setting says.
        learning_rate: constant unless a setting says otherwise.
        pca: the private projection in front, if there is one.
        rows: from a seed and whether validation rows are held back from training to the rows.
    """

    name: str
    examples: int
    hidden: tuple[int, ...]
    classes: int
    batch_size: int | None
    rho: float
    clip_norm: float
    learning_rate: float
    pca: PrivatePCA | None
    rows: Callable[[int, bool], Rows]


def _mnist(seed: int, validate: bool) -> Rows:
    """60,000 training images with pixels from 0 to 1; the last 5,000 are held back to validate
    on.
    """
    x, y, x_test, y_test = _flat("mnist")
    train = len(x) - 5000 if validate else len(x)
    return Rows(x[:train], y[:train], x[train:], y[train:], x_test, y_test)


def _cancer(seed: int, validate: bool) -> Rows:
    """The 683 complete biopsies, features from 0.1 to 1, split 560 to 123 afresh for each seed; 60
    are held back.
    """
    data = load("wisconsin")
    x = np.concatenate([data.x, data.x_test]).astype(np.float32)
    y = np.concatenate([data.y, data.y_test])
    complete = ~(x == _MISSING).any(axis=1)
    x, y = x[complete] / 10, y[complete]
    order = np.random.default_rng([seed, 560]).permutation(len(x))
    train, valid, test = np.split(order, [500 if validate else 560, 560])
    parts = [
        torch.from_numpy(part[at])
        for at in (train, valid, test)
        for part in (x, y.astype(np.int64))
    ]
    return Rows(*parts)


def _cifar10(seed: int, validate: bool) -> Rows:
    """Public features of 40,000 training images, each from 0 to 1; 10,000 more to validate on."""
    x, y, x_test, y_test = _flat("cifar10-features")
    return Rows(x[:40000], y[:40000], x[40000:], y[40000:], x_test, y_test)


def _cifar10_vgg16(seed: int, validate: bool) -> Rows:
    """The same images as 512 features by VGG16, divided by a fixed number that brings most below
    1.
    """
    x, y, x_test, y_test = vgg16.features()
    x, x_test = x / _VGG16_SCALE, x_test / _VGG16_SCALE
    return Rows(x[:40000], y[:40000], x[40000:], y[40000:], x_test, y_test)


@lru_cache(maxsize=1)
def _flat(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A named data set with each example's features in one row, scaled by their declared range to
    [0, 1].
    """
    data = load(name)
    scale = Scale(*data.bounds())
    x, x_test = (
        scale(torch.from_numpy(np.array(part))).flatten(1) for part in (data.x, data.x_test)
    )
    y, y_test = (torch.from_numpy(np.array(part, dtype=np.int64)) for part in (data.y, data.y_test))
    return x, y, x_test, y_test


TASKS = {
    task.name: task
    for task in (
        Task("mnist", 60_000, (1000,), 10, 600, 0.78125, 4.0, 0.05, PrivatePCA(60, 16.0), _mnist),
        Task("cancer", 560, (10, 20, 10), 2, None, 0.4, 4.0, 0.1, None, _cancer),
        Task("cifar10", 40_000, (1000,), 10, 200, 1.5625, 4.0, 0.05, None, _cifar10),
        Task("cifar10-vgg16", 40_000, (1000,), 10, 200, 1.5625, 4.0, 0.05, None, _cifar10_vgg16),
    )
}


def features(
    task: Task,
    seed: int,
    validate: bool,
    first: int | None,
    scale: str,
    ledger: Ledger,
    adjacency: Adjacency,
) -> Rows:
    """The rows of `task` as its network sees them, projected where the task has a private
    projection.

    Every ledger that trains on them is charged for the projection, which is drawn once for a seed.

    Args:
        task: which.
        seed: of the split, and of the projection's noise.
        validate: whether rows to validate on are held back from training.
        first: how many training rows to use; None: all.
        scale: "raw" keeps each row's own length, "unit" divides by it; "whitened" divides by the
            spread of each projected feature, and brings rows to one length.
        ledger: charged for the projection.
        adjacency: the kind of neighbour; the projection's noise is the same for all that it is used
            with.
    """
    rows = task.rows(seed, validate)
    rows = Rows(
        rows.x[:first], rows.y[:first], rows.x_valid, rows.y_valid, rows.x_test, rows.y_test
    )
    if task.pca is None:
        return rows
    ledger.charge(task.pca.event(), adjacency)
    return _projected(task, seed, validate, first, scale)


@lru_cache(maxsize=1)
def _projected(task: Task, seed: int, validate: bool, first: int | None, scale: str) -> Rows:
    rows = task.rows(seed, validate)
    project = projection(task, seed, rows.x[:first])

    def through(x: Tensor) -> Tensor:
        return _scaled(project, x, scale)

    return Rows(
        through(rows.x[:first]),
        rows.y[:first],
        through(rows.x_valid),
        rows.y_valid,
        through(rows.x_test),
        rows.y_test,
    )


def projection(task: Task, seed: int, x: Tensor) -> Project:
    """The task's private projection of training rows `x`, charged by the caller."""
    assert task.pca is not None
    project = task.pca.fit(x, Adjacency.ZERO_OUT, Ledger(), Streams.new(seed, rank=1).noise)
    assert isinstance(project, Project)
    return project


def _scaled(project: Project, x: Tensor, scale: str) -> Tensor:
    """`x` through the released directions: each row by itself, so whatever its scale, nothing more
    is released.
    """
    if scale == "whitened":
        with torch.no_grad():
            projected: Tensor = project(x)
        return projected
    columns = project.get_buffer("components")
    directions = columns / columns.norm(dim=0)
    if scale == "unit":
        x = x / x.norm(dim=1, keepdim=True).clamp(min=math.ulp(1.0))
    return cast(Tensor, x @ directions)


def accuracy(network: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of rows that `network` classifies rightly, as it is."""
    with torch.no_grad():
        parts = [slice(start, start + _AT_ONCE) for start in range(0, len(x), _AT_ONCE)]
        right = sum(int((network(x[part]).argmax(1) == y[part]).sum()) for part in parts)
    return right / len(y)


def descend(
    network: nn.Module,
    rows: Rows,
    loss: Callable[[Tensor, Tensor], Tensor],
    descent: torch.optim.Optimizer,
    rate: Callable[[int], float],
    batches: Iterable[Sample],
    watch: Callable[[int, int], None],
) -> None:
    """Plain descent on the loss of each batch: no clipping, no noise, no privacy. `rate` is that of
    a step.
    """
    for step, sample in enumerate(batches):
        at = torch.from_numpy(sample.indices)
        descent.zero_grad()
        loss(network(rows.x[at]), rows.y[at]).backward()  # type: ignore[no-untyped-call]
        descent.param_groups[0]["lr"] = rate(step)
        descent.step()
        watch(step + 1, 0)


@final
class Watch(Callback):
    """Calls what `descend` calls after each step of a private run, too, with (steps done, steps in
    all).
    """

    def __init__(self, function: Callable[[int, int], None]) -> None:
        self._function = function

    def on_step(self, progress: TrainingProgress) -> None:
        """A step was taken."""
        self._function(progress.step, progress.steps)


@lru_cache(maxsize=1)
def usps() -> tuple[Tensor, NDArray[np.int64]]:
    """The 11,000 images of USPS as rows of 256 pixels from 0 to 1, and their digits."""
    data = load("usps-all")
    x = np.concatenate([data.x, data.x_test]).reshape(-1, 256).astype(np.float32)
    return torch.from_numpy(x / np.float32(_PIXELS)), np.concatenate([data.y, data.y_test])


@final
@dataclass(frozen=True)
class Images:
    """Disjoint sets of images of USPS, each of shape (rows, 256) with pixels from 0 to 1.

    Attributes:
        private: what teachers learn from.
        public: public ones, whose targets are looked at.
        pool: public ones again; only their inputs are looked at.
        test: for the figures.
    """

    private: Tensor
    public: Tensor
    pool: Tensor
    test: Tensor


def images(seed: int, private: int = PRIVATE) -> Images:
    """The 11,000 images of USPS in an order of the seed's own, split; of the private ones only the
    first `private`.
    """
    everything, _ = usps()
    order = torch.from_numpy(np.random.default_rng([seed, PRIVATE]).permutation(len(everything)))
    parts = everything[order].split([PRIVATE, PUBLIC, POOL, TEST])  # type: ignore[no-untyped-call]
    return Images(parts[0][:private], *parts[1:])


def covered(whole: Tensor) -> Tensor:
    """The same images with the lower half black: what teachers and students see of them."""
    seen = whole.clone().view(-1, 16, 16)
    seen[:, 8:] = 0
    return seen.view(len(whole), -1)
