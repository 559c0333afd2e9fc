"""Small runs by every method on made-up rows: weights, settings and what was charged."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import plain
import torch
from names import (
    PCA,
    Adjacency,
    Analytic,
    Augmentation,
    Automatic,
    Ball,
    Blocks,
    BoostingPlan,
    Box,
    Budget,
    Candidate,
    Checkpoint,
    ConfidentVotes,
    Coordinates,
    Counts,
    Dataset,
    Derivatives,
    DPFeatureSelector,
    DPFisherClassifier,
    FisherPlan,
    FixedOrder,
    Flat,
    FullBatch,
    Histogram,
    Interval,
    Labels,
    LeastSquaresPlan,
    Ledger,
    Levels,
    Moments,
    Partition,
    PatePlan,
    PerLayer,
    Plan,
    Poisson,
    Quantile,
    RandomStopping,
    Result,
    RowNorm,
    RowsPlan,
    Scatter,
    Select,
    SelectionPlan,
    Shuffle,
    Spread,
    Streams,
    Student,
    Values,
    Votes,
    boost,
    dpmac,
    dpsgd,
    fisher,
    least_squares,
    models,
    pate,
    reducers,
    release_features,
    save_features,
    schedules,
    segmentation,
    select_features,
    teachers,
    train,
    tune,
)
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from tests.support.steps import EachStep

S = schedules
CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")
FALLING = S.Exponential(k=0.1, start=1.5)
TARGET = {"epsilon": 3.0, "delta": 1e-5}
WIDTH, CLASSES = 6, 3


class Stopped(Exception):
    """The process is gone."""


# Made-up data and networks


def rows(
    number: int = 60, shape: tuple[int, ...] = (WIDTH,), seed: int = 0
) -> tuple[Tensor, Tensor]:
    made_up = np.random.default_rng(seed)
    y = made_up.integers(CLASSES, size=number)
    centres = np.random.default_rng(99).normal(size=(CLASSES, *shape))
    x = 0.5 * made_up.normal(size=(number, *shape)) + centres[y]
    return torch.from_numpy(x).float(), torch.from_numpy(y)


def dataset(
    number: int = 60, shape: tuple[int, ...] = (WIDTH,), seed: int = 0, **more: Any
) -> Dataset:
    x, y = rows(number, shape, seed)
    return Dataset(x, y, **{"classes": CLASSES, "low": -4.0, "high": 4.0} | more)


def persons(number: int = 60) -> Dataset:
    return dataset(number, groups=np.random.default_rng(7).integers(20, size=number))


def network(shape: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(0)
    size = int(np.prod(shape))
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def dropout(shape: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(*shape, 8), nn.LayerNorm(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, CLASSES)
    ).double()


def built(spec: str) -> Callable[[tuple[int, ...]], nn.Module]:
    return lambda shape: models.build(spec, shape, CLASSES, np.random.default_rng(0))


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.5)


def in_pieces(run: Callable[..., Any], stop: int) -> Any:
    """A run that is stopped after so many steps, again and again, and resumed until it ends."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "checkpoint"
        for _ in range(50):
            done = [0]

            def progress(*_: int, done: list[int] = done) -> None:
                done[0] += 1
                if done[0] == stop:
                    raise Stopped

            try:
                return run(checkpoint=Checkpoint(path, every=1e-9), callbacks=EachStep(progress))
            except Stopped:
                continue
    raise AssertionError("the run never ends")


# DP-SGD


def sgd(sampling: Any = None, data: Any = None, model: Any = network, **options: Any) -> Result:
    names = (
        "epochs",
        "schedule",
        "clip",
        "adjacency",
        "examples",
        "front",
        "group_size",
        "rows_per_person",
    )
    settings = {name: options.pop(name) for name in names if name in options}
    target = options.pop("target", None)
    plan = Plan(sampling or Poisson(0.3), **{"epochs": 3, "schedule": FALLING} | settings)
    plan = plan.calibrate(**target) if target else plan
    streams = Streams.new(options.pop("seed", 5), discrete=options.pop("discrete", False))
    data = dataset() if data is None else data
    given = {"optimizer": momentum, "loss": CROSS_ENTROPY} | options
    return dpsgd(plan, model, given.pop("loss"), data, streams=streams, **given)


VALIDATING = S.Validation(k=0.7, m=1, threshold=0.05, period=1, start=4.0)
IMAGES = (1, 8, 8)

DPSGD: dict[str, Callable[[], Result]] = {
    "flat, poisson": lambda: sgd(target=TARGET),
    "flat, declared examples, adam": lambda: sgd(
        examples=60, optimizer=lambda p: torch.optim.Adam(p, lr=0.05), microbatch=7
    ),
    "per layer, partition": lambda: sgd(Partition(4), clip=PerLayer(0.3), model=built("mlp:7")),
    "automatic, shuffle, polynomial rate": lambda: sgd(
        Shuffle(16),
        clip=Automatic(0.5),
        learning_rate_schedule=S.Polynomial(k=1, end=0.0, period=3.0),
    ),
    "quantile, fixed order, step rate": lambda: sgd(
        FixedOrder(16), clip=Quantile(0.2), learning_rate_schedule=S.Step(k=0.5, period=1.0)
    ),
    "full batch, replace-one": lambda: sgd(FullBatch(), adjacency=Adjacency.REPLACE_ONE, epochs=6),
    "dropout, in double": lambda: sgd(data=(rows()[0].double(), rows()[1]), model=dropout),
    "dropout, in pieces": lambda: in_pieces(
        lambda **more: sgd(
            data=(rows()[0].double(), rows()[1]), model=dropout, average=0.5, **more
        ),
        3,
    ),
    "quantile and pca, in pieces": lambda: in_pieces(
        lambda **more: sgd(Shuffle(16), clip=Quantile(0.2), front=(PCA(4, 12.0),), **more), 2
    ),
    "pca": lambda: sgd(front=(PCA(4, 8.0),), target=TARGET),
    "moments": lambda: sgd(front=(Moments(WIDTH, 8.0, 2.0),), model=built("linear")),
    "select": lambda: sgd(
        front=(Select(4, 8.0, CLASSES, 2.0),), model=built("linear"), target=TARGET
    ),
    "select by gumbel, then pca": lambda: sgd(
        Partition(3), front=(Select(4, 8.0, CLASSES, 2.0, 1.0, way="gumbel"), PCA(2, 8.0))
    ),
    "copies of images": lambda: sgd(
        data=dataset(40, IMAGES),
        model=built("linear"),
        augmentation=Augmentation(3, "flip,shift:1"),
    ),
    "copies by a function, cnn": lambda: sgd(
        data=dataset(24, (1, 28, 28)),
        model=built("cnn"),
        epochs=1,
        augmentation=Augmentation(
            2, lambda x, generator: x + 0.1 * torch.randn(x.shape, generator=generator)
        ),
    ),
    "public features": lambda: sgd(
        data=dataset(40, IMAGES), front=(RowNorm(0.5),), model=built("linear")
    ),
    "persons": lambda: sgd(data=persons(), rows_per_person=2, target=TARGET),
    "persons, pca, in pieces": lambda: in_pieces(
        lambda **more: sgd(
            Partition(3), data=persons(), rows_per_person=2, front=(PCA(4, 12.0),), **more
        ),
        2,
    ),
    "groups": lambda: sgd(group_size=2, target=TARGET),
    "public validations": lambda: sgd(
        schedule=VALIDATING, epochs=4, target=TARGET, validation=dataset(30, seed=3, public=True)
    ),
    "paid validations": lambda: sgd(
        schedule=replace(VALIDATING, noise=15.0), epochs=4, target=TARGET
    ),
    "paid validations, in pieces": lambda: in_pieces(
        lambda **more: sgd(
            Shuffle(20), schedule=replace(VALIDATING, noise=15.0), epochs=4, target=TARGET, **more
        ),
        2,
    ),
    "mean weights, label smoothing": lambda: sgd(
        average=0.5, loss=nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1), epochs=5
    ),
    "noise on a grid": lambda: sgd(
        discrete=True,
        data=(rows()[0].double(), rows()[1]),
        model=lambda shape: network(shape).double(),
    ),
    "bfloat16": lambda: sgd(precision="bf16"),
    "by rule": lambda: train(dataset(80), epsilon=4.0, examples=80, streams=Streams.new(3)),
    "by rule, network": lambda: train(
        dataset(80),
        epsilon=4.0,
        model="mlp:6",
        normalise="moments",
        average=0.4,
        label_smoothing=0.05,
        streams=Streams.new(3),
    ),
    "by rule, images": lambda: train(dataset(80, (1, 16, 16)), epsilon=4.0, streams=Streams.new(3)),
    "by rule, pca": lambda: train(
        dataset(80), epsilon=4.0, features="pca:3", streams=Streams.new(4)
    ),
    "a ledger of two runs": lambda: _two_on_a_ledger(),
}


def _two_on_a_ledger() -> Result:
    ledger = Ledger(Budget(30.0, 1e-5))
    sgd(ledger=ledger)
    return sgd(Shuffle(16), ledger=ledger, seed=6)


# DP-MAC


def softplus(*widths: int, kind: type[nn.Module] = nn.Softplus) -> nn.Sequential:
    torch.manual_seed(0)
    parts = [
        part for before, after in pairwise(widths) for part in (nn.Linear(before, after), kind())
    ]
    return nn.Sequential(*parts[:-1]).double()


def mac(
    clip: Any = None, sampling: Any = None, loss: str = "binary_cross_entropy", **options: Any
) -> Result:
    names = ("epochs", "schedule", "adjacency", "examples", "front", "group_size")
    settings = {name: options.pop(name) for name in names if name in options}
    target = options.pop("target", None)
    plan = Plan(
        sampling or Poisson(0.3),
        clip=clip or Derivatives(0.3),
        **{"epochs": 3, "schedule": FALLING} | settings,
    )
    plan = plan.calibrate(**target) if target else plan
    x, y = rows()
    model = options.pop("model", softplus(WIDTH, 5, CLASSES))
    data = options.pop("data", (x.double(), y))
    return dpmac(plan, model, loss, data, streams=Streams.new(5), **options)


ADAM = Coordinates(5, 0.05, "adam")

DPMAC: dict[str, Callable[[], Result]] = {
    "first order": lambda: mac(target=TARGET),
    "second order": lambda: mac(Derivatives((0.3, 0.1), 2.0)),
    "shares": lambda: mac(Derivatives(0.3, shares=(1.0, 3.0)), Partition(4)),
    "learned thresholds": lambda: mac(Derivatives(0.3, learned=Histogram(8.0, after=1))),
    "learned first, second order": lambda: mac(
        Derivatives(0.3, 1.0, learned=Histogram(8.0, after=0)), Shuffle(16)
    ),
    "analytic": lambda: mac(Analytic(z_norm=2.0, x_norm=2.0), coordinates=ADAM),
    "analytic, second order": lambda: mac(Analytic(z_norm=2.0, order=2), FullBatch()),
    "softmax": lambda: mac(loss="cross_entropy", coordinates=ADAM, mu=1.0),
    "squared error": lambda: mac(
        loss="mse",
        data=(rows()[0].double(), torch.nn.functional.one_hot(rows()[1], CLASSES).double()),
    ),
    "relu, falling mu and rate": lambda: mac(
        model=softplus(WIDTH, 5, 4, CLASSES, kind=nn.ReLU),
        mu=S.Exponential(k=0.2, start=50.0),
        learning_rate_schedule=S.Time(k=0.5),
    ),
    "stored coordinates, sgd": lambda: mac(coordinates=Coordinates(3, 0.01, "sgd", stored=True)),
    "newton": lambda: mac(
        Derivatives(0.3, 2.0),
        newton=0.1,
        weight_steps=2,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    ),
    "pca": lambda: mac(front=(PCA(4, 8.0),), model=lambda shape: softplus(*shape, 5, CLASSES)),
    "groups, fixed order": lambda: mac(sampling=FixedOrder(20), group_size=2),
    "in pieces": lambda: in_pieces(
        lambda **more: mac(
            Derivatives(0.3, 1.0, learned=Histogram(8.0, after=1)),
            front=(PCA(4, 8.0),),
            model=lambda shape: softplus(*shape, 5, CLASSES),
            **more,
        ),
        3,
    ),
}


# PATE

MAP = (2, 3)


def maps(number: int = 30, seed: int = 0, **more: Any) -> Dataset:
    x, _ = rows(number, (4,), seed)
    mixing = torch.linspace(-1.0, 1.0, 4 * 6).view(4, 6)
    return Dataset(x, torch.tanh(x @ mixing).view(-1, *MAP), **more)


def votes(
    plan: PatePlan | None = None, said: Any = None, reducer: Any = None, **options: Any
) -> Result:
    plan = plan or PatePlan(30, 6, Votes(CLASSES), noise_multiplier=2.0)
    said = said or teachers.Trained(
        dataset(120), teachers.Estimator(LogisticRegression), plan.teachers
    )
    student = options.pop("student", Student(built("linear"), epochs=3))
    inputs = options.pop("inputs", rows(40, seed=9)[0])
    return pate(
        plan, said, reducer, inputs, student, streams=Streams.new(options.pop("seed", 5)), **options
    )


def coded(aggregate: Any, reducer: Any, **options: Any) -> Result:
    plan = PatePlan(30, 6, aggregate, noise_multiplier=0.5)
    said = teachers.Trained(maps(120, seed=4), teachers.Network(_map_network, _fit), 6)
    student = Student(lambda shape: _map_network(), epochs=3)
    return votes(plan, said, reducer, inputs=maps(40, seed=9).x, student=student, **options)


def _map_network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, MAP))


def _fit(module: nn.Module, x: Tensor, y: Tensor) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3)
    for _ in range(5):
        optimizer.zero_grad()
        if len(x):
            nn.functional.mse_loss(module(x.float()), y.float()).backward()
            optimizer.step()


def _given() -> Result:
    inputs = rows(40, seed=9)[0]
    with tempfile.TemporaryDirectory() as name:
        for teacher in range(6):
            said = np.random.default_rng(teacher).integers(CLASSES, size=30)
            np.savez(Path(name) / f"{teacher}.npz", predictions=said)
        return votes(said=teachers.Given(name), inputs=inputs)


def _kept() -> Result:
    """Answers that are kept, and learned from by another student."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "answers"
        votes(keep=path)
        return votes(keep=path, student=Student(built("mlp:5"), epochs=2, seed=3))


CONFIDENT = PatePlan(30, 6, ConfidentVotes(CLASSES, 4.0, 20)).calibrate(epsilon=20.0, delta=1e-5)
OPEN = maps(30, seed=2, public=True)

PATE: dict[str, Callable[[], Result]] = {
    "votes": lambda: votes(),
    "votes, calibrated": lambda: votes(
        PatePlan(30, 6, Votes(CLASSES)).calibrate(epsilon=8.0, delta=1e-5)
    ),
    "scores": lambda: votes(
        said=teachers.Trained(
            dataset(120), teachers.Estimator(LogisticRegression, classes=CLASSES), 6
        )
    ),
    "confident votes": lambda: votes(CONFIDENT),
    "spread to inputs without answer": lambda: votes(
        student=Student(built("mlp:5"), epochs=3, spread=Spread(components=3, neighbours=5))
    ),
    "spreading teachers": lambda: votes(
        said=teachers.Trained(
            dataset(120),
            teachers.Spreading(dataset(40, seed=9, public=True), CLASSES, components=3),
            6,
        )
    ),
    "sites": lambda: votes(
        said=teachers.Trained(
            dataset(120), teachers.Estimator(LogisticRegression), sites=np.arange(120) % 6
        )
    ),
    "persons": lambda: votes(
        PatePlan(30, 6, Votes(CLASSES), noise_multiplier=2.0, persons=True),
        teachers.Trained(persons(120), teachers.Estimator(LogisticRegression), 6),
    ),
    "groups": lambda: votes(PatePlan(30, 6, Votes(CLASSES), group_size=2).calibrate(rho=2.0)),
    "given answers": lambda: _given(),
    "kept answers": lambda: _kept(),
    "ball, pca": lambda: coded(Ball(1.0), reducers.PublicPCA.fit(OPEN, 3)),
    "ball, projection": lambda: coded(Ball(1.0), reducers.RandomProjection(MAP, 4)),
    "ball, autoencoder": lambda: coded(Ball(1.0), reducers.Autoencoder.fit(OPEN, 3, 0.1, epochs=2)),
    "ball, identity": lambda: coded(Ball(1.0), reducers.Identity(MAP, 0.5)),
    "box, projection": lambda: coded(Box(6), reducers.RandomProjection(MAP, 4)),
}


# Statistics


def statistics(kind: type[Any] = FisherPlan, **more: Any) -> Any:
    keep = {} if kind is LeastSquaresPlan else {"keep": WIDTH}
    plan = kind(**{"classes": CLASSES, "features": WIDTH, "row_norm": 2.0} | keep | more)
    return plan if plan.noise_multiplier else plan.calibrate(epsilon=4.0, delta=1e-5)


def made(by: Callable[..., Any], data: Any = None, **more: Any) -> Any:
    named = Dataset(*rows(200), classes=CLASSES, low=-4.0, high=4.0, feature_names=tuple("abcdef"))
    return by(statistics(**more), data or named, streams=Streams.new(5))


STATISTICS: dict[str, Callable[[], Any]] = {
    "fisher": lambda: made(fisher),
    "fisher of few": lambda: made(fisher, keep=3),
    "fisher by gumbel": lambda: made(fisher, keep=3, coordinate_bound=1.0, way="gumbel"),
    "fisher by welch": lambda: made(fisher, keep=3, criterion="welch"),
    "fisher by t, groups": lambda: made(fisher, keep=3, criterion="t", group_size=2),
    "fisher of public features": lambda: made(
        fisher, dataset(80, IMAGES), features=64, keep=64, row_norm=1.0, front=(RowNorm(0.5),)
    ),
    "least squares": lambda: made(least_squares, kind=LeastSquaresPlan),
    "least squares, replace-one": lambda: made(
        least_squares, kind=LeastSquaresPlan, adjacency=Adjacency.REPLACE_ONE, noise_multiplier=3.0
    ),
    "rows": lambda: made(release_features, kind=RowsPlan),
    "rows of few": lambda: made(release_features, kind=RowsPlan, keep=3, labels="randomised"),
    "rows by gumbel": lambda: made(
        release_features, kind=RowsPlan, keep=2, coordinate_bound=1.0, way="gumbel", kept_norm=1.0
    ),
    "rows, a classifier": lambda: made(
        release_features, kind=RowsPlan, labels="randomised"
    ).classifier(),
    "selection": lambda: made(select_features, kind=SelectionPlan, keep=3),
    "selection by welch": lambda: made(
        select_features, kind=SelectionPlan, keep=3, criterion="welch"
    ),
    "selection by gumbel": lambda: made(
        select_features, kind=SelectionPlan, keep=2, coordinate_bound=1.0, way="gumbel"
    ),
}


# Tuning


def candidates(**more: Any) -> tuple[Candidate, ...]:
    base: dict[str, Any] = {"epochs": 2, "examples": 120, "clip": Flat(0.5)} | more
    return (
        Candidate("slow", Plan(Poisson(0.4), **base), settings={"rate": 0.1}),
        Candidate(
            "fast",
            Plan(Poisson(0.4), schedule=S.Exponential(k=0.1), **base),
            settings={"rate": 1.0},
        ),
        Candidate("batches", Plan(Partition(3), **base), settings={"rate": 0.5}),
    )


def tuned(plan: Any, seed: int = 3, data: Any = None) -> Result:
    def training(candidate: Candidate, given: Dataset, ledger: Ledger, streams: Streams) -> Result:
        return dpsgd(
            candidate.plan,
            network,
            CROSS_ENTROPY,
            given,
            ledger=ledger,
            streams=streams,
            optimizer=lambda p: torch.optim.SGD(p, lr=candidate.settings["rate"]),
        )

    calibrated = plan if plan.budget else plan.calibrate(epsilon=6.0, delta=1e-5)
    return tune(
        calibrated, training, dataset(120) if data is None else data, streams=Streams.new(seed)
    )


def stopping(**more: Any) -> RandomStopping:
    return RandomStopping(candidates(**more), mean=3.0)


TUNING: dict[str, Callable[[], Result]] = {
    "blocks": lambda: tuned(Blocks(candidates())),
    "blocks, another seed": lambda: tuned(Blocks(candidates()), seed=4),
    "blocks, fixed selection": lambda: tuned(Blocks(candidates(), selection_epsilon=1.0)),
    "blocks, again": lambda: tuned(Blocks(candidates(), retrain=True)),
    "blocks, again, mostly": lambda: tuned(Blocks(candidates(), retrain=True, share=0.2), seed=5),
    "blocks with pca": lambda: tuned(Blocks(candidates(front=(PCA(4, 10.0),)))),
    "blocks of groups": lambda: tuned(Blocks(candidates(group_size=2))),
    "random stopping": lambda: tuned(stopping()),
    "random stopping, another seed": lambda: tuned(stopping(), seed=4),
    "logarithmic stopping": lambda: tuned(replace(stopping(), shape=0.0)),
    "Poisson stopping": lambda: tuned(replace(stopping(), shape=float("inf"), mean=5.0), seed=8),
    "noisier scores": lambda: tuned(replace(stopping(), score_noise=20.0)),
    "per layer": lambda: tuned(stopping(clip=PerLayer(0.3)), seed=6),
}

# scikit-learn's way, features from elsewhere, and maps of classes


def _pipeline() -> Result:
    budget = Budget(6.0, 1e-5)
    chosen = statistics(kind=SelectionPlan, keep=3, noise_multiplier=3.0)
    then = statistics(features=3, keep=3, noise_multiplier=4.0)
    ledger, (x, y) = Ledger(budget), rows(200)
    selector = DPFeatureSelector(plan=chosen, ledger=ledger, random_state=Streams.new(1))
    kept = selector.fit(x.numpy(), y.numpy(), then=then).transform(x.numpy())
    result: Result = (
        DPFisherClassifier(plan=then, ledger=ledger, random_state=Streams.new(2))
        .fit(kept, y.numpy())
        .result_
    )
    return result


def _from_a_folder() -> Result:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "features"
        save_features(folder, np.random.default_rng(0).random((80, 9)), encoder="made up")
        return train(dataset(80), features=str(folder), epsilon=4.0, streams=Streams.new(3))


def scans(number: int, seed: int = 0, **more: Any) -> Dataset:
    """Bright blocks in noise, with their maps."""
    made_up = np.random.default_rng(seed)
    y = np.zeros((number, 8, 8, 8), np.uint8)
    for own in y:
        a, b = made_up.integers(1, 4, 2)
        own[a : a + 4, 2:4, b : b + 4], own[a : a + 4, 4:6, b : b + 4] = 1, 2
    x = np.clip(0.4 * (y == 1) + 0.8 * (y == 2) + 0.1 * made_up.random(y.shape), 0, 1).astype(
        np.float32
    )
    return Dataset(x[:, None], y, **{"classes": CLASSES, "low": 0.0, "high": 1.0} | more)


def map_network(shape: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv3d(1, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.ReLU(), nn.Conv3d(8, CLASSES, 1)
    )


def unet(shape: tuple[int, ...]) -> nn.Module:
    return models.build("unet", shape, CLASSES, np.random.default_rng(0))


def _corrected() -> Result:
    """PATE on maps of classes: teachers, queries and student go on from one public start."""
    labelled, pool = scans(2, 1, public=True), scans(5, 2, public=True)
    short = segmentation.Training(steps=6)
    start = segmentation.Start.learn(
        labelled, pool, map_network(()), learning=segmentation.Training(steps=20), tuning=short
    )
    plan = start.plan(4, 3).calibrate(epsilon=2.0, delta=1e-3)
    said = start.correcting(start.teachers(scans(9), 3))
    return pate(plan, said, start.reducer, pool, start.student(plan), streams=Streams.new(0))


OTHERS: dict[str, Callable[[], Result]] = {
    "scikit-learn, a pipeline": lambda: _pipeline(),
    "features in a folder": lambda: _from_a_folder(),
    "scattering": lambda: sgd(
        data=dataset(40, (1, 16, 16)), front=(Scatter(J=2, kept=3),), model=built("linear")
    ),
    "raw, wider": lambda: train(
        dataset(80, IMAGES), epsilon=4.0, features="raw", model="mlp:9", streams=Streams.new(2)
    ),
    "maps, dpsgd": lambda: sgd(data=scans(12), model=map_network, loss=segmentation.map_losses),
    "maps, pate": lambda: _corrected(),
    "maps, unet": lambda: sgd(data=scans(6), model=unet, loss=segmentation.map_losses, epochs=1),
}

# Boosting


def boosted(target: Any, y: Any, **more: Any) -> Result:
    x = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    plan = BoostingPlan((Interval(-2.0, 2.0), Levels(2)), target, bins=6, **more).calibrate(
        epsilon=4.0, delta=1e-5
    )
    result: Result = boost(plan, (x, y(x)), streams=Streams.new(5))
    return result


BOOSTING: dict[str, Callable[[], Result]] = {
    "two classes": lambda: boosted(Labels(2), lambda x: (x[:, 0] > 0).astype(int)),
    "classes, with trees": lambda: boosted(
        Labels(3), lambda x: (x[:, 1] > 0) + (x[:, 2] > 0).astype(int), trees=3, depth=2, passes=2
    ),
    "values, replace-one": lambda: boosted(
        Values(-2.0, 2.0), lambda x: x[:, 0], adjacency=Adjacency.REPLACE_ONE, group_size=2
    ),
    "counts": lambda: boosted(Counts(9.0), lambda x: np.floor(2 * np.exp(x[:, 0] / 2))),
}

METHODS: dict[str, dict[str, Callable[[], Any]]] = {
    "dpsgd": DPSGD,
    "dpmac": DPMAC,
    "pate": PATE,
    "features": STATISTICS,
    "boosting": BOOSTING,
    "tune": TUNING,
    "others": OTHERS,
}
CASES = {
    f"{method}: {name}": case for method, cases in METHODS.items() for name, case in cases.items()
}


def figures(only: str = "") -> dict[str, Any]:
    return plain.each(
        {name: lambda case=case: _figures(case()) for name, case in CASES.items()}, only
    )  # type: ignore[misc]


def _outputs(result: Result) -> Tensor:
    """What the model gives for some inputs."""
    kinds = [part.dtype for part in result.model.parameters() if part.is_floating_point()]
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(5, *result.architecture["input_shape"], generator=generator)
    with torch.no_grad():
        outputs: Tensor = result.model(inputs.to(kinds[-1] if kinds else torch.float32))
    return outputs


def _figures(result: Any) -> dict[str, Any]:
    charged = {
        "charged": plain.event(result.ledger.event),
        "claimed": plain.event(result.ledger.claim),
    }
    if charged["claimed"] == charged["charged"]:
        charged.pop("claimed")
    charged["epsilon"] = result.ledger.guarantee(1e-5).epsilon
    if isinstance(result, Result):
        return {
            "weights": plain.weights(result.model),
            "outputs": plain.array(_outputs(result)),
            "facts": plain.short(result.facts),
            "architecture": plain.short(result.architecture),
            "method": result.method,
            "adjacency": str(result.adjacency),
            "seeded": result.seeded,
            **charged,
        }
    arrays = {name: value for name, value in vars(result).items() if isinstance(value, Tensor)}
    rest = {name: vars(result)[name] for name in ("noise_std", "names") if name in vars(result)}
    return {
        "arrays": {name: plain.array(value) for name, value in arrays.items()},
        "plan": plain.short(result.plan.to_json()),
        **plain.short(rest),
        **charged,
    }
