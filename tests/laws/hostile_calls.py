"""A call that works for every public name, for the law of hostile values: a function and its named arguments, fresh."""

from __future__ import annotations

import tempfile
import types
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import privlearn as pv
from privlearn.accounting.guarantee import Adjacency
from tests.support.nets import bounded, cross_entropy, small_net

Call = tuple[Callable[..., Any], dict[str, Any]]
X = np.random.default_rng(0).random((24, 5)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 3, 24)
TARGET = {"epsilon": 2.0, "delta": 1e-5}
ADD = Adjacency.ADD_REMOVE


def data(**more: Any) -> pv.Dataset:
    return pv.Dataset(X, Y, X[::-1] / 2, Y, **{"classes": 3, "low": 0.0, "high": 1.0, **more})


def doubles() -> tuple[Any, Any]:
    return torch.from_numpy(X).double(), torch.from_numpy(Y)


def plan(**more: Any) -> pv.Plan:
    return pv.Plan(pv.Poisson(0.4), **{"epochs": 1, "examples": 24, **more}).calibrate(**TARGET)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def trained() -> pv.Result:
    return pv.dpsgd(plan(), small_net(), cross_entropy, doubles(), streams=pv.Streams.new(1))


def with_loop() -> dict[str, Any]:
    model = nn.Linear(5, 3)
    loader = DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), batch_size=8, shuffle=True)
    return {"model": model, "optimizer": sgd(model.parameters()), "loader": loader}


def columns() -> tuple[Any, ...]:
    return tuple(pv.boosting.Interval(0.0, 1.0, f"c{n}") for n in range(5))


def boosting(**more: Any) -> Any:
    given = {"bins": 4, "passes": 1, "trees": 1, "depth": 2, "noise_multiplier": 5.0, **more}
    return pv.boosting.BoostingPlan(columns(), pv.boosting.Labels(3), **given)


def candidates() -> tuple[Any, ...]:
    return tuple(pv.tuning.Candidate(name, plan(), settings={"rate": 0.1}) for name in ("small", "large"))


def train_candidate(candidate: Any, rows: Any, ledger: Any, streams: Any) -> pv.Result:
    return pv.dpsgd(candidate.plan, nn.Linear(5, 3), cross_entropy, rows, ledger=ledger, streams=streams)


def votes(**more: Any) -> Any:
    return pv.teachers.PatePlan(**{"queries": 3, "teachers": 4, "aggregate": pv.teachers.Votes(3), **more}).calibrate(
        epsilon=50.0, delta=1e-5
    )


def network(shape: Sequence[int]) -> nn.Module:
    return nn.Linear(5, 3)


def fit_nothing(model: nn.Module, x: Any, y: Any) -> nn.Module:
    return model


def taught() -> Any:
    recipe = pv.teachers.Network(partial(nn.Linear, 5, 3), fit_nothing)
    return pv.teachers.Trained(data(), recipe, 4)


def public() -> pv.Dataset:
    return pv.Dataset(X[:6], Y[:6], public=True, classes=3, low=0.0, high=1.0)


def pupil(**more: Any) -> Any:
    return pv.teachers.Student(network, **{"epochs": 1, "batch_size": 4, **more})


def answered() -> Any:
    return pv.teachers.ask_teachers(votes(), taught(), None, public())


def statistics(kind: str, **more: Any) -> Any:
    given = {"classes": 3, "features": 5, "keep": 2, "row_norm": 1.0, **more}
    return getattr(pv.statistics, kind)(**given)


def estimator(kind: str, *, targets: Any = Y, **more: Any) -> Callable[[], Call]:
    """An estimator made and fitted: scikit-learn wants its arguments kept as they are until then."""

    def fitted(*, X: Any, y: Any, **given: Any) -> Any:
        return getattr(pv.sklearn, kind)(**given).fit(X, y)

    usual = {
        "X": X,
        "y": targets,
        "epsilon": 5.0,
        "delta": 1e-5,
        "bounds": (0.0, 1.0),
        "ledger": None,
        "random_state": 0,
    }
    return lambda: (fitted, {name: value for name, value in (usual | more).items() if value is not ...})


def method(make: Callable[[], Any], name: str, **given: Any) -> Callable[[], Call]:
    return lambda: (getattr(make(), name), dict(given))


def call(function: Callable[..., Any], **given: Any) -> Callable[[], Call]:
    """A call whose arguments are values, or made anew where they are functions of the name `make`."""
    return lambda: (function, {k: v() if isinstance(v, Made) else v for k, v in given.items()})


class Made:
    """A value that is made anew for each call."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __call__(self) -> Any:
        return self.make()


def of(function: Callable[..., Any], **own: Any) -> Callable[[Any], Any]:
    """A function of positional values only, called by names."""
    return lambda **given: function(*given.values(), **own)  # type: ignore[return-value]


def saved(folder: Path) -> Path:
    np.savez(folder / "rows.npz", x=X, y=Y)
    return folder / "rows.npz"


def predictions(folder: Path) -> Path:
    np.savez(folder / "answers.npz", predictions=np.zeros((4, 6, 3), np.float32))
    return folder / "answers.npz"


def volumes() -> tuple[Any, Any]:
    return torch.rand(2, 3, 4, 4, 4), torch.randint(0, 3, (2, 4, 4, 4))


def scans(**more: Any) -> pv.Dataset:
    x = np.random.default_rng(2).random((2, 1, 4, 4, 4)).astype(np.float32)
    return pv.Dataset(x, np.zeros((2, 4, 4, 4), np.int64), **{"classes": 3, "low": 0.0, "high": 1.0, **more})


def convolution() -> nn.Module:
    return nn.Conv3d(1, 3, 1)


def metrics_plan() -> Any:
    return pv.statistics.MetricsPlan(3).calibrate(**TARGET)


def released(folder: Path) -> Path:
    return pv.publish(trained(), Path(tempfile.mkdtemp(dir=folder)) / "model", delta=1e-5)


def table(folder: Path) -> Path:
    path = folder / "rows.csv"
    path.write_text("age,kind\n" + "".join(f"{age},{'ab'[age % 2]}\n" for age in range(20, 40)))
    return path


def calls(folder: Path) -> dict[str, Callable[[], Call]]:
    """A call of every public name, and of the methods in front of users."""
    boost, clip, tf, tn = pv.boosting, pv.clipping, pv.transforms, pv.tuning
    t, st, vol = pv.teachers, pv.statistics, pv.volumes
    result, rows = Made(trained), Made(doubles)
    classes = {"classes": 3, "features": 5, "keep": 2, "row_norm": 1.0, "coordinate_bound": 1.0, "criterion": "t",
               "way": "auto", "adjacency": None, "split": (0.05, 0.65, 0.3), "least_count": 10.0,
               "noise_multiplier": 3.0, "budget": None, "group_size": 1}  # fmt: skip
    budget = {**TARGET, "rho": None}
    sched = pv.schedules
    return {
        "Budget": call(pv.Budget, **TARGET, rho=None, group_size=1),
        "Dataset": call(
            pv.Dataset,
            x=X,
            y=Y,
            x_test=X,
            y_test=Y,
            classes=3,
            low=0.0,
            high=1.0,
            name="d",
            note="",
            schema=None,
            remarks=(),
            groups=None,
            public=False,
            feature_names=(),
            target_bounds=None,
            labels=(),
        ),
        "Dataset.of": call(pv.Dataset.of, data=(X, Y)),
        "Flat": call(pv.Flat, clip_norm=0.1),
        "Guarantee": call(
            pv.Guarantee,
            epsilon=1.0,
            delta=1e-5,
            adjacency=ADD,
            method="pld",
            kind="bound",
            rho=None,
            group_size=1,
            rows_per_person=None,
        ),
        "Ledger": call(pv.Ledger, budget=Made(lambda: pv.Budget(**TARGET)), unit=None, measure=None),
        "Ledger.approve": lambda: (lambda plan: pv.Ledger(pv.Budget(**TARGET)).approve(plan), {"plan": plan()}),
        "Ledger.charge": method(pv.Ledger, "charge", event=plan().event(), adjacency=ADD),
        "Ledger.begin": method(pv.Ledger, "begin", event=plan().event(), adjacency=ADD, unit=plan().unit),
        "Ledger.spent": method(lambda: trained().ledger, "spent", delta=1e-5),
        "Ledger.guarantee": method(lambda: trained().ledger, "guarantee", delta=1e-5),
        "Ledger.open": lambda: (
            pv.Ledger.open,
            {"path": folder / "new.json", "budget": pv.Budget(**TARGET), "create": True},
        ),
        "Partition": call(pv.Partition, batches=10),
        "Plan": call(
            pv.Plan,
            sampling=pv.Poisson(0.4),
            epochs=1,
            schedule=sched.Constant(),
            clip=pv.Flat(0.1),
            adjacency=None,
            examples=24,
            front=(),
            budget=None,
            group_size=1,
            rows_per_person=None,
            filter=None,
            temperature=None,
        ),
        "Plan.calibrate": method(plan, "calibrate", **budget),
        "Plan.guarantee": method(plan, "guarantee", delta=1e-5),
        "Plan.guarantees": method(plan, "guarantees", delta=1e-5),
        "Plan.scaled": method(plan, "scaled", factor=2.0),
        "Plan.epoch_event": method(plan, "epoch_event", noise_multiplier=2.0),
        "Plan.with_room_for": lambda: (
            lambda other: plan().with_room_for(other),
            {"other": pv.statistics.MetricsPlan(3, ADD, 30.0)},
        ),
        "Plan.within": method(
            lambda: pv.Plan(pv.Poisson(0.4), examples=24, schedule=sched.Constant(20.0)),
            "within",
            budget=pv.Budget(**TARGET),
        ),
        "Poisson": call(pv.Poisson, sampling_rate=0.4),
        "Result.stated_delta": method(trained, "stated_delta", delta=1e-5),
        "Run": call(
            pv.Run,
            plan=Made(plan),
            model=Made(small_net),
            loss=cross_entropy,
            data=rows,
            optimizer=sgd,
            learning_rate_schedule=sched.Constant(0.1),
            validation=None,
            ledger=None,
            streams=None,
            checkpoint=None,
            microbatch=None,
            device=None,
            precision="float32",
            augmentation=None,
        ),
        "Shuffle": call(pv.Shuffle, batch_size=8),
        "Streams.new": call(pv.Streams.new, seed=1, rank=0, discrete=False),
        "accounting.PrivacyUnit": call(pv.accounting.PrivacyUnit, group_size=1, rows_per_person=None),
        "accounting.Adjacency": lambda: (of(Adjacency), {"value": "add_remove"}),
        "accounting.Adjacency.parse": call(Adjacency.parse, name="add_remove"),
        "audit": call(
            pv.audit,
            plan=Made(plan),
            model=None,
            loss=None,
            data=None,
            canary=None,
            delta=1e-5,
            trials=20,
            confidence=0.9,
            streams=None,
            progress=None,
        ),
        "boosting.BoostingPlan": call(
            boost.BoostingPlan,
            columns=columns(),
            target=boost.Labels(3),
            bins=4,
            passes=1,
            trees=1,
            depth=2,
            split_seed=0,
            clip_norm=None,
            prior_variance=None,
            adjacency=None,
            noise_multiplier=5.0,
            budget=None,
            group_size=1,
        ),
        "boosting.BoostingPlan.calibrate": method(boosting, "calibrate", **budget),
        "boosting.Counts": call(boost.Counts, high=5.0),
        "boosting.FeatureShape": call(
            boost.FeatureShape, name="a", edges=np.zeros(2), scores=np.zeros(3), missing=np.zeros(1)
        ),
        "boosting.Interval": call(boost.Interval, low=0.0, high=1.0, name="a"),
        "boosting.Labels": call(boost.Labels, classes=3, weights=()),
        "boosting.Levels": call(boost.Levels, width=3, name="a"),
        "boosting.Values": call(boost.Values, low=0.0, high=1.0),
        "boosting.boost": call(
            boost.boost, plan=Made(boosting), dataset=Made(data), weights=None, ledger=None, streams=None
        ),
        "boosting.columns_of": call(boost.columns_of, dataset=Made(data)),
        "boosting.plan_for": call(boost.plan_for, dataset=Made(data), target=None, bins=4, passes=1, depth=2),
        "boosting.shape": call(boost.shape, result=Made(lambda: boost.boost(boosting(), data())), column=0),
        "clipping.Augmentation": call(clip.Augmentation, copies=2, transform="flip"),
        "clipping.Automatic": call(clip.Automatic, clip_norm=0.1, stability=0.01),
        "clipping.PerLayer": call(clip.PerLayer, clip_norm=0.1),
        "clipping.Quantile": call(clip.Quantile, clip_norm=0.1, quantile=0.5, rate=0.2, share=0.1),
        "dpmac": call(
            pv.dpmac,
            plan=Made(lambda: plan(clip=pv.mac.Derivatives(0.3))),
            model=Made(mac_net),
            loss="cross_entropy",
            dataset=Made(data),
            optimizer=sgd,
            learning_rate_schedule=sched.Constant(0.1),
            coordinates=pv.mac.Coordinates(),
            mu=100.0,
            ledger=None,
            streams=None,
            callbacks=(),
            checkpoint=None,
        ),
        "dpsgd": call(
            pv.dpsgd,
            plan=Made(plan),
            model=Made(small_net),
            loss=cross_entropy,
            dataset=rows,
            callbacks=(),
            optimizer=sgd,
            learning_rate_schedule=sched.Constant(0.1),
            validation=None,
            ledger=None,
            streams=None,
            checkpoint=None,
            microbatch=None,
            device=None,
            precision="float32",
            augmentation=None,
            average=None,
        ),
        "evaluate": call(
            pv.evaluate, model=Made(lambda: nn.Linear(5, 3)), data=X, targets=Y, paid=None, ledger=None, streams=None
        ),
        "evaluate, paid": call(
            pv.evaluate,
            model=Made(lambda: nn.Linear(5, 3)),
            data=X,
            targets=Y,
            paid=Made(metrics_plan),
            ledger=None,
            streams=None,
        ),
        "huggingface.ExampleLoss": call(pv.huggingface.ExampleLoss, model=Made(small_net), tokens=3.0, smoothing=0.0),
        "huggingface.load_pretrained": call(pv.huggingface.load_pretrained, where=folder, model=Made(small_net)),
        "huggingface.publish_pretrained": call(pv.huggingface.publish_pretrained, result=result, out=folder / "h"),
        "huggingface.PrivateTrainer": call(pv.huggingface.PrivateTrainer, model=Made(small_net), args=None),
        "lightning.PrivateStrategy": call(
            pv.lightning.PrivateStrategy, device="cpu", loss=None, log_private_loss=False, epsilon=1.0
        ),
        "lightning.PrivateDDPStrategy": call(
            pv.lightning.PrivateDDPStrategy, loss=None, log_private_loss=False, epsilon=1.0
        ),
        "load": call(
            pv.load,
            name=Made(lambda: saved(folder)),
            data_dir=None,
            classes=3,
            value_range=(0.0, 1.0),
            schema=None,
            test=None,
            public=False,
            target_bounds=None,
            targets=(),
        ),
        "load, a name": call(pv.load, name="digits", data_dir=None),
        "load_model": call(
            pv.load_model, where=Made(lambda: released(folder)), model=Made(small_net), trusted=None, features=None
        ),
        "mac.Analytic": call(pv.mac.Analytic, z_norm=1.0, x_norm=1.0, y_norm=1.0, order=1, shares=()),
        "mac.Coordinates": call(pv.mac.Coordinates, steps=1, rate=1.0, optimizer="sweep", stored=False),
        "mac.Derivatives": call(pv.mac.Derivatives, first=0.3, second=None, shares=(), learned=None),
        "mac.Histogram": call(
            pv.mac.Histogram, noise_multiplier=5.0, after=1, quantile=0.5, low=1e-6, high=1e3, bins=10
        ),
        "make_private": lambda: (
            pv.make_private,
            {
                **with_loop(),
                "epochs": 1,
                **TARGET,
                "max_grad_norm": 1.0,
                "noise_multiplier": None,
                "examples": 24,
                "streams": None,
                "ledger": None,
                "checkpoint": None,
                "group_size": 1,
                "sampling": None,
                "schedule": None,
                "clip": None,
            },
        ),
        "models.build": call(pv.models.build, spec="mlp:4", input_shape=(5,), classes=3, rng=np.random.default_rng(0)),
        "models.replace_batch_norm": call(
            pv.models.replace_batch_norm, model=Made(lambda: nn.BatchNorm1d(4)), frozen=False, groups=2
        ),
        "models.require_per_example": lambda: (
            lambda model, inputs, fixed, what: pv.models.require_per_example(model, inputs, fixed=fixed, what=what),
            {"model": nn.Linear(5, 3), "inputs": torch.rand(4, 5), "fixed": False, "what": "it"},
        ),
        "opacus.PrivacyEngine": call(pv.opacus.PrivacyEngine, accountant="prv", secure_mode=False),
        "opacus.PrivacyEngine.make_private": lambda: (
            pv.opacus.PrivacyEngine().make_private,
            {
                **{{"model": "module", "loader": "data_loader"}.get(k, k): v for k, v in with_loop().items()},
                "noise_multiplier": 1.0,
                "max_grad_norm": 1.0,
                "poisson_sampling": True,
            },
        ),
        "opacus.PrivacyEngine.make_private_with_epsilon": lambda: (
            pv.opacus.PrivacyEngine().make_private_with_epsilon,
            {
                **{{"model": "module", "loader": "data_loader"}.get(k, k): v for k, v in with_loop().items()},
                "target_epsilon": 2.0,
                "target_delta": 1e-5,
                "epochs": 1,
                "max_grad_norm": 1.0,
            },
        ),
        "opacus.ModuleValidator.validate": call(pv.opacus.ModuleValidator.validate, module=Made(small_net)),
        "opacus.ModuleValidator.fix": call(pv.opacus.ModuleValidator.fix, module=Made(small_net)),
        "opacus.BatchMemoryManager": opacus_batches,
        "pate": call(
            pv.pate,
            plan=Made(votes),
            teachers=Made(taught),
            reducer=None,
            public_inputs=Made(public),
            student=Made(pupil),
            ledger=None,
            streams=None,
            progress=None,
            keep=None,
        ),
        "publish": call(
            pv.publish,
            result=result,
            out=folder / "out",
            delta=1e-5,
            test_metrics=None,
            test_rows=None,
            data=None,
            model_spec=None,
            classes=None,
            sign=None,
            weights=None,
            audit=None,
        ),
        "release": lambda: (
            lambda part, **more: pv.release(part, **more),
            {
                "part": bounded(torch.ones(3)),
                "noise_multiplier": 2.0,
                "ledger": pv.Ledger(),
                "stream": pv.Streams.new(1).noise,
                "shares": None,
            },
        ),
        "runs.ProgressBar": call(pv.runs.ProgressBar, file=None),
        "runs.Checkpoint": call(pv.runs.Checkpoint, path=folder / "kept.pt", every=60.0),
        "schedules.Constant": call(sched.Constant, start=10.0),
        "schedules.Time": call(sched.Time, start=10.0, k=0.05),
        "schedules.Exponential": call(sched.Exponential, start=10.0, k=0.05),
        "schedules.Step": call(sched.Step, start=10.0, k=0.5, period=3),
        "schedules.Polynomial": call(sched.Polynomial, start=10.0, k=3.0, end=2.0, period=100),
        "schedules.PerEpoch": call(sched.PerEpoch, values=(1.0, 2.0)),
        "schedules.Validation": call(sched.Validation, start=10.0, k=0.7, m=5, threshold=0.01, period=10),
        "schedules.parse": call(sched.parse, text="exp:k=0.1"),
        "schedules.parse_rates": call(sched.parse_rates, text="exp:k=0.1"),
        "schedules.Exponential()": lambda: (of(sched.Exponential(k=0.1)), {"epoch": 3}),
        "sklearn.DPAutoencoder": estimator("DPAutoencoder", n_components=2, options={"epochs": 1}),
        "sklearn.DPBoostingClassifier": estimator("DPBoostingClassifier", classes=[0, 1, 2], options=BOOST),
        "sklearn.DPBoostingRegressor": estimator(
            "DPBoostingRegressor", targets=X[:, 0], target_bounds=(0.0, 1.0), options=BOOST
        ),
        "sklearn.DPClassifier": estimator(
            "DPClassifier", classes=[0, 1, 2], model="linear", options={"epochs": 1}, class_weight=None
        ),
        "sklearn.DPFeatureSelector": estimator("DPFeatureSelector", classes=[0, 1, 2], keep=2, plan=None),
        "sklearn.DPFisherClassifier": estimator("DPFisherClassifier", classes=[0, 1, 2], options=None, plan=None),
        "sklearn.DPLogisticRegression": estimator(
            "DPLogisticRegression", classes=[0, 1, 2], options={"epochs": 1}, class_weight=None
        ),
        "sklearn.DPPCA": estimator("DPPCA", n_components=2),
        "sklearn.DPRegressor": estimator(
            "DPRegressor",
            targets=X[:, 0],
            target_bounds=(0.0, 1.0),
            model="linear",
            options={"epochs": 1},
            loss="squared_error",
        ),
        "sklearn.DPRidge": estimator("DPRidge", targets=X[:, 0], target_bounds=(0.0, 1.0), options=None),
        "sklearn.DPSearchCV": estimator(
            "DPSearchCV",
            bounds=...,
            estimator=pv.sklearn.DPClassifier(bounds=(0, 1), classes=[0, 1, 2], options={"epochs": 1}),
            param_grid={"model": ["linear", "mlp:2"]},
            way="random-stopping",
            metric=None,
        ),
        "sklearn.DPStandardScaler": estimator("DPStandardScaler"),
        "sklearn.PATEClassifier": estimator(
            "PATEClassifier", estimator=None, classes=[0, 1, 2], options={"teachers": 4, "queries": 3}
        ),
        "sklearn.budget_for": lambda: (
            lambda plan, fits, delta: pv.sklearn.budget_for(plan, fits=fits, delta=delta),
            {"plan": plan(), "fits": 2, "delta": 1e-5},
        ),
        "sklearn.expected_failed_checks": call(pv.sklearn.expected_failed_checks, estimator=pv.sklearn.DPPCA()),
        "statistics.Chunks": call(st.Chunks, begin=lambda: iter([X]), rows=24),
        **{
            f"statistics.{kind}": call(getattr(st, kind), **classes, front=())
            for kind in ("FisherPlan", "RowsPlan", "SelectionPlan")
        },
        "statistics.LeastSquaresPlan": call(
            st.LeastSquaresPlan,
            classes=3,
            features=5,
            row_norm=1.0,
            adjacency=None,
            split=(0.65, 0.3),
            noise_multiplier=3.0,
            budget=None,
            group_size=1,
            front=(),
        ),
        "statistics.RidgePlan": call(
            st.RidgePlan,
            features=5,
            row_norm=1.0,
            low=0.0,
            high=1.0,
            adjacency=None,
            split=(0.65, 0.3),
            noise_multiplier=3.0,
            budget=None,
            group_size=1,
            front=(),
        ),
        "statistics.MetricsPlan": call(
            st.MetricsPlan,
            classes=3,
            adjacency=None,
            noise_multiplier=3.0,
            bins=10,
            most_loss=4.0,
            budget=None,
            group_size=1,
        ),
        "statistics.ValueMetricsPlan": call(
            st.ValueMetricsPlan,
            low=0.0,
            high=1.0,
            adjacency=None,
            noise_multiplier=3.0,
            most_error=0.25,
            budget=None,
            group_size=1,
        ),
        "statistics.FisherPlan.calibrate": method(lambda: statistics("FisherPlan"), "calibrate", **budget),
        "statistics.MetricsPlan.calibrate": method(lambda: st.MetricsPlan(3), "calibrate", **budget),
        "statistics.advised": call(
            st.advised, plan=Made(lambda: statistics("FisherPlan").calibrate(**TARGET)), examples=100
        ),
        "statistics.draft_schema": call(
            st.draft_schema,
            source=Made(lambda: table(folder)),
            target="kind",
            budget=pv.Budget(**TARGET),
            numbers=("age",),
            categories=("kind",),
            ledger=None,
            streams=None,
        ),
        "statistics.fisher": call(
            st.fisher,
            plan=Made(lambda: statistics("FisherPlan").calibrate(**TARGET)),
            dataset=Made(data),
            ledger=None,
            streams=None,
        ),
        "statistics.least_squares": call(
            st.least_squares,
            plan=Made(lambda: st.LeastSquaresPlan(3, 5, 1.0).calibrate(**TARGET)),
            dataset=Made(data),
            ledger=None,
            streams=None,
        ),
        "statistics.release_features": call(
            st.release_features,
            plan=Made(lambda: statistics("RowsPlan").calibrate(**TARGET)),
            dataset=Made(data),
            ledger=None,
            streams=None,
        ),
        "statistics.ridge": call(
            st.ridge,
            plan=Made(lambda: st.RidgePlan(5, 1.0, 0.0, 1.0).calibrate(**TARGET)),
            dataset=Made(lambda: (X, X[:, 0])),
            weights=None,
            ledger=None,
            streams=None,
        ),
        "statistics.select_features": call(
            st.select_features,
            plan=Made(lambda: statistics("SelectionPlan").calibrate(**TARGET)),
            dataset=Made(data),
            ledger=None,
            streams=None,
        ),
        "teachers.Answers": call(
            t.Answers,
            inputs=torch.from_numpy(X),
            targets=torch.from_numpy(Y),
            answered=torch.ones(24, dtype=torch.bool),
            scores=None,
            expected=1.0,
        ),
        "teachers.Autoencoder": call(
            t.Autoencoder,
            encoder=Made(lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 2))),
            decoder=Made(lambda: nn.Sequential(nn.Linear(2, 6), nn.Unflatten(1, (2, 3)))),
            loss="mse",
            centre=torch.zeros(2, 3),
        ),
        "teachers.Ball": call(t.Ball, radius=1.0),
        "teachers.Box": call(t.Box, dimensions=3),
        "teachers.ConfidentVotes": call(t.ConfidentVotes, classes=3, threshold=2.0, answers=2, share=0.3),
        "teachers.Estimator": call(t.Estimator, make=dict, classes=3),
        "teachers.Given": call(t.Given, files=Made(lambda: predictions(folder))),
        "teachers.Identity": call(t.Identity, target_shape=(2, 3), origin=0.0),
        "teachers.KeptFolder": call(t.KeptFolder, folder=folder),
        "teachers.Neighbourhood": call(t.Neighbourhood, inputs=torch.from_numpy(X), components=3, neighbours=3),
        "teachers.Network": call(t.Network, make=small_net, fit=fit_nothing),
        "teachers.PatePlan": call(
            t.PatePlan,
            queries=3,
            teachers=4,
            aggregate=t.Votes(3),
            noise_multiplier=3.0,
            adjacency=ADD,
            group_size=1,
            budget=None,
            persons=False,
        ),
        "teachers.PatePlan.calibrate": method(votes, "calibrate", **budget),
        "teachers.PublicPCA": call(
            t.PublicPCA, target_shape=(6,), mean=torch.zeros(6), components=torch.eye(6)[:2], eigenvalues=torch.ones(2)
        ),
        "teachers.PublicPCA.fit": lambda: (of(t.PublicPCA.fit), {"data": targets(), "codes": 2}),
        "teachers.RandomProjection": call(t.RandomProjection, target_shape=(2, 3), codes=4, seed=0),
        "teachers.Spread": call(t.Spread, components=3, neighbours=3, alpha=0.95, agreement=0.8),
        "teachers.Spreading": call(t.Spreading, public=Made(public), classes=3, alpha=0.95, components=3, neighbours=3),
        "teachers.Student": call(
            t.Student,
            make=network,
            loss=None,
            epochs=1,
            batch_size=4,
            learning_rate=0.01,
            spread=None,
            augment=None,
            seed=0,
        ),
        "teachers.Trained": call(
            t.Trained,
            data=Made(data),
            recipe=t.Network(partial(nn.Linear, 5, 3), fit_nothing),
            teachers=4,
            sites=None,
            shards=None,
            folder=None,
            jobs=1,
        ),
        "teachers.Votes": call(t.Votes, classes=3),
        "teachers.ask_teachers": call(
            t.ask_teachers,
            plan=Made(votes),
            teachers=Made(taught),
            reducer=None,
            public_inputs=Made(public),
            ledger=None,
            streams=None,
            progress=None,
            keep=None,
        ),
        "teachers.teach_student": call(t.teach_student, answers=Made(answered), student=Made(pupil)),
        "teachers.unit_ball": call(t.unit_ball, o=torch.ones(2, 3)),
        "train": call(
            pv.train,
            dataset=Made(data),
            **TARGET,
            model="linear",
            examples=24,
            ledger=None,
            streams=None,
            callbacks=(),
            checkpoint=None,
            validation=None,
            beside=None,
            epochs=1,
            batch_size=8,
            sampling="poisson",
            schedule="constant",
            clip="flat",
            clip_norm=1.0,
            group_size=1,
            features="raw",
            optimizer="SGD",
            learning_rate=0.1,
            task=None,
            class_weights=None,
            label_smoothing=0.0,
            device=None,
            precision="float32",
            microbatch=None,
            normalise=None,
            pca=None,
            select=None,
            adjacency=None,
            rho=None,
            noise_multiplier=None,
            momentum=None,
            augmentation=None,
        ),
        "transforms.Centre": call(tf.Centre, columns=(0, 1)),
        "transforms.ClipToNorm": call(tf.ClipToNorm, norm=1.0),
        "transforms.External": call(tf.External, name="a:b"),
        "transforms.FeatureFolder": call(
            tf.FeatureFolder, path=folder, encoder=tf.Precomputed("a"), shape=(5,), rows={}
        ),
        "transforms.Moments": call(tf.Moments, features=5, noise_multiplier=3.0, row_norm=1.0),
        "transforms.Normalised": call(tf.Normalised, power=0.5),
        "transforms.Precomputed": call(tf.Precomputed, name="a", digest="", normalisation="of each example"),
        "transforms.PrivatePCA": call(tf.PrivatePCA, components=2, noise_multiplier=3.0),
        "transforms.RandomUnits": call(
            tf.RandomUnits,
            scale=2,
            mirrored=False,
            local_mean=torch.zeros(4),
            whitening=torch.eye(4),
            units=torch.eye(4),
            mean=torch.zeros(4),
            components=torch.eye(4),
        ),
        "transforms.Rescale": call(tf.Rescale, low=0.0, high=1.0),
        "transforms.RowNorm": call(tf.RowNorm, power=0.5),
        "transforms.Scatter": call(tf.Scatter, J=2, kept=0),
        "transforms.ScatterRandom": call(tf.ScatterRandom, J=2, units=400, mirror=1, kept=2000),
        "transforms.Scattering": call(tf.Scattering, scale=2, mean=None, components=None),
        "transforms.SelectFeatures": call(
            tf.SelectFeatures,
            keep=2,
            noise_multiplier=3.0,
            classes=3,
            row_norm=1.0,
            coordinate_bound=1.0,
            criterion="t",
            way="auto",
            split=(0.05, 0.65, 0.3),
            least_count=10.0,
        ),
        "transforms.feature_cache": lambda: (entered(tf.feature_cache), {"folder": folder, "progress": None}),
        "transforms.parse": call(tf.parse, spec="norm:power=0.5"),
        "transforms.read_features": call(tf.read_features, features="raw", dataset=Made(data)),
        "transforms.save_features": call(
            tf.save_features,
            folder=folder / "saved",
            train=X,
            test=None,
            encoder="a",
            sha256="",
            normalise=True,
            of=None,
        ),
        "transforms.usual": call(tf.usual, shape=(5,), low=0.0, signal=3.0),
        "tune": call(
            pv.tune,
            plan=Made(lambda: tn.RandomStopping(candidates(), 1.0).calibrate(epsilon=8.0, delta=1e-5)),
            train=train_candidate,
            dataset=Made(lambda: data()),
            ledger=None,
            streams=None,
            progress=None,
            jobs=1,
        ),
        "tuning.Blocks": call(
            tn.Blocks,
            candidates=candidates(),
            selection_epsilon=None,
            retrain=False,
            share=0.5,
            budget=None,
            metric="accuracy",
        ),
        "tuning.Candidate": call(tn.Candidate, name="a", plan=plan(), again=None, settings={"rate": 0.1}),
        "tuning.RandomStopping": call(
            tn.RandomStopping,
            candidates=candidates(),
            mean=4.0,
            shape=1.0,
            score_noise=None,
            budget=None,
            metric="accuracy",
        ),
        "verify": call(pv.verify, folder=Made(lambda: released(folder)), key=None),
        "volumes.Corrections": call(vol.Corrections, reference=torch.rand(3, 8, 16).softmax(1), order=3),
        "volumes.MapStudent": call(
            vol.MapStudent, start=Made(convolution), training=vol.Training(), labelled=None, seed=0
        ),
        "volumes.Pairs": call(vol.Pairs, classes=3),
        "volumes.Seen": call(vol.Seen, teachers=Made(taught), through=torch.sigmoid, what="it"),
        "volumes.Training": call(vol.Training, steps=3, batch_size=2, learning_rate=0.01, warp=vol.Warp()),
        "volumes.Warp": call(vol.Warp, angle=0.25, stretch=0.1, shift=0.1, mirror=0.5, patch=None),
        "volumes.dice": call(vol.dice, predicted=volumes()[1], truth=volumes()[1], classes=3),
        "volumes.map_losses": call(vol.map_losses, scores=volumes()[0], maps=volumes()[0].softmax(1)),
        "volumes.maps_of": call(vol.maps_of, labels=volumes()[1], classes=3),
        "volumes.probabilities": call(vol.probabilities, network=Made(convolution), volumes=scans().x),
    }


BOOST = {"bins": 4, "passes": 1, "trees": 0}


def mac_net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def targets() -> pv.Dataset:
    return pv.Dataset(X, X, public=True)


def entered(manager: Callable[..., Any]) -> Callable[..., None]:
    def enter(**given: Any) -> None:
        with manager(**given):
            pass

    return enter


def opacus_batches() -> Call:
    given = with_loop()
    _, optimizer, loader = pv.opacus.PrivacyEngine().make_private(
        module=given["model"],
        optimizer=given["optimizer"],
        data_loader=given["loader"],
        noise_multiplier=1.0,
        epochs=1,
        max_grad_norm=1.0,
    )
    return entered(pv.opacus.BatchMemoryManager), {
        "data_loader": loader, "max_physical_batch_size": 4, "optimizer": optimizer,
    }  # fmt: skip


#: Protocols, abstract classes, what only the library makes, and names that stand in front twice.
ELSEWHERE = {
    "Result": "made by methods alone", "Streams": "made by Streams.new", "teachers.Predictor": "a type",
    "teachers.Recipe": "a type", "teachers.Reducer": "abstract", "teachers.Teachers": "abstract",
    "transforms.Transform": "abstract", "transforms.PublicTransform": "abstract",
    "transforms.PrivateTransform": "abstract", "opacus.ModuleValidator": "by its functions",
    "volumes.Start": "made by Start.learn", "runs.Callback": "an interface",
    "runs.TrainingProgress": "made by runs alone", "runs.TensorBoard": "by tensorboard", "runs.WandB": "by wandb",
    "runs.MLflow": "by mlflow",
    "accounting.Budget": "Budget", "accounting.Guarantee": "Guarantee", "accounting.Ledger": "Ledger",
    "clipping.Flat": "Flat",
}  # fmt: skip


def public_names() -> set[str]:
    """The functions and classes in front, and those of the public modules."""
    front = {name for name in pv.__all__ if not isinstance(getattr(pv, name), types.ModuleType)}
    modules = {name: getattr(pv, name) for name in pv.__all__ if name not in front}
    return front | {f"{name}.{own}" for name, module in modules.items() for own in getattr(module, "__all__", ())}
