"""A call that works for every public name, for the law of hostile values."""

from __future__ import annotations

import types
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pyarrow
import torch
from torch import nn

import privlearn as pv
from privlearn import flower
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.data.schema import Number, Schema
from privlearn.loop import LoopSettings
from privlearn.runs import compute
from privlearn.runs.given import RunArguments
from privlearn.training.choices import TrainRequest
from privlearn.training.privacy_config import NAMES
from tests.laws.hostile_calls import (
    BOOST,
    CLASSES,
    ONE_EPOCH,
    TARGET,
    Call,
    Made,
    X,
    Y,
    answered,
    boosted,
    boosting,
    candidates,
    columns,
    data,
    doubles,
    estimator,
    file_of,
    fit_nothing,
    in_a_loop,
    kept_features,
    linear,
    loaded_by_a_script,
    mac_net,
    opened_batches,
    plan,
    positional,
    public,
    pupil,
    recipe,
    released,
    saved_by_a_script,
    scheduler_named,
    script_file,
    sgd,
    statistics,
    stopping,
    table,
    taught,
    train_candidate,
    trained,
    volumes,
    votes,
)
from tests.support.nets import bounded, cross_entropy, small_net


def calls(folder: Path) -> dict[str, Call]:
    """A call of every public name, and of the methods in front of users."""
    return {
        **front(folder),
        **accounting(),
        **descent(folder),
        **doors(folder),
        **parts(),
        **released_statistics(folder),
        **pate(folder),
        **features(folder),
    }


def front(folder: Path) -> dict[str, Call]:
    result, tn = Made(trained), pv.tuning
    return {
        "Dataset": Call(pv.Dataset, x=X, y=Y, x_test=X, y_test=Y, classes=3, low=0.0, high=1.0),
        "Dataset.of": Call(pv.Dataset.of, data=(X, Y)),
        "audit": Call(
            pv.audit,
            more=list(RunArguments.__annotations__),
            plan=Made(plan),
            delta=1e-5,
            trials=20,
            confidence=0.9,
        ),
        "evaluate": Call(pv.evaluate, model=Made(linear), data=X, targets=Y, paid=None),
        "runs.declare_public": Call(pv.runs.declare_public, value=0.5, because="of public rows"),
        "evaluate, paid": Call(
            pv.evaluate,
            model=Made(linear),
            data=X,
            targets=Y,
            paid=Made(lambda: pv.statistics.MetricsPlan(3).calibrate(**TARGET)),
        ),
        "load": Call(
            pv.load, name=Made(lambda: file_of(folder, x=X, y=Y)), classes=3, value_range=(0.0, 1.0)
        ),
        "load, a name": Call(pv.load, name="digits", data_dir=None),
        "load_model": Call(pv.load_model, where=Made(released, folder), model=Made(small_net)),
        "publish": Call(pv.publish, result=result, out=folder / "out", delta=1e-5),
        "verify": Call(pv.verify, folder=Made(released, folder)),
        "tune": Call(pv.tune, plan=Made(stopping), train=train_candidate, dataset=Made(data)),
        "tuning.Blocks": Call(tn.Blocks, candidates=Made(candidates)),
        "tuning.Candidate": Call(tn.Candidate, name="a", plan=Made(plan), settings={"rate": 0.1}),
        "tuning.RandomStopping": Call(tn.RandomStopping, candidates=Made(candidates), mean=4.0),
    }


def accounting() -> dict[str, Call]:
    spent, sched = Made(lambda: trained().ledger), pv.schedules
    costs = {"event": plan().event(), "adjacency": Adjacency.ADD_REMOVE}
    beside = pv.statistics.MetricsPlan(3, Adjacency.ADD_REMOVE, 30.0)
    loud = Made(lambda: pv.Plan(pv.Poisson(0.4), examples=24, schedule=sched.Constant(20.0)))
    return {
        "Budget": Call(pv.Budget, **TARGET),
        "ComputeConfig": Call(
            pv.ComputeConfig,
            microbatch=8,
            device="cpu",
            precision="float32",
            post_processing={"average": 0.5},
        ),
        "PrivacyConfig": Call(
            pv.PrivacyConfig,
            more=list(NAMES),
            epsilon=1.0,
            epochs=2,
            clip_norm=1.0,
        ),
        "PrivacyConfig.plan": Call(pv.PrivacyConfig(epsilon=1.0, epochs=2).plan, examples=24),
        "Guarantee": Call(
            pv.Guarantee,
            epsilon=1.0,
            delta=1e-5,
            adjacency=Adjacency.ADD_REMOVE,
            method="pld",
            kind="bound",
        ),
        "Ledger": Call(pv.Ledger, budget=pv.Budget(**TARGET)),
        "Ledger.approve": Call(
            lambda plan: pv.Ledger(pv.Budget(**TARGET)).approve(plan), plan=Made(plan)
        ),
        "Ledger.charge": Call(pv.Ledger.charge, on=Made(pv.Ledger), **costs),
        "Ledger.begin": Call(pv.Ledger.begin, on=Made(pv.Ledger), **costs),
        "Ledger.resume": Call(pv.Ledger.resume, on=Made(pv.Ledger), run=None, **costs),
        "Ledger.require_room": Call(pv.Ledger.require_room, on=Made(pv.Ledger), **costs),
        "Ledger.spent": Call(pv.Ledger.spent, on=spent, delta=1e-5),
        "Ledger.guarantee": Call(pv.Ledger.guarantee, on=spent, delta=1e-5),
        "Ledger.open": Call(
            pv.Ledger.open, path="new.json", budget=pv.Budget(**TARGET), create=True
        ),
        "Plan": Call(pv.Plan, sampling=pv.Poisson(0.4), epochs=1, examples=24),
        "Plan.calibrate": Call(pv.Plan.calibrate, on=Made(plan), **TARGET),
        "Plan.guarantee": Call(pv.Plan.guarantee, on=Made(plan), delta=1e-5),
        "Plan.guarantees": Call(pv.Plan.guarantees, on=Made(plan), delta=1e-5),
        "Plan.scaled": Call(pv.Plan.scaled, on=Made(plan), factor=2.0),
        "Plan.epoch_event": Call(pv.Plan.epoch_event, on=Made(plan), noise_multiplier=2.0),
        "Plan.with_room_for": Call(lambda other: plan().with_room_for(other), other=beside),
        "Plan.within": Call(pv.Plan.within, on=loud, budget=pv.Budget(**TARGET)),
        "Poisson": Call(pv.Poisson, sampling_rate=0.4),
        "Partition": Call(pv.Partition, batches=10),
        "Shuffle": Call(pv.Shuffle, batch_size=8),
        "Streams.new": Call(pv.Streams.new, seed=1),
        "Result.stated_delta": Call(pv.Result.stated_delta, on=Made(trained), delta=1e-5),
        "accounting.PrivacyUnit": Call(
            pv.accounting.PrivacyUnit, group_size=1, rows_per_person=None
        ),
        "accounting.Adjacency": Call(lambda value: Adjacency(value), value="add_remove"),
        "accounting.Adjacency.parse": Call(Adjacency.parse, name="add_remove"),
        "schedules.Constant": Call(sched.Constant, start=10.0),
        "schedules.Time": Call(sched.Time, start=10.0, k=0.05),
        "schedules.Exponential": Call(sched.Exponential, start=10.0, k=0.05),
        "schedules.Step": Call(sched.Step, start=10.0, k=0.5, period=3),
        "schedules.Polynomial": Call(sched.Polynomial, start=10.0, k=3.0, end=2.0, period=100),
        "schedules.PerEpoch": Call(sched.PerEpoch, values=(1.0, 2.0)),
        "schedules.Validation": Call(
            sched.Validation, start=10.0, k=0.7, m=5, threshold=0.01, period=10
        ),
        "schedules.parse": Call(sched.parse, text="exp:k=0.1"),
        "schedules.parse_rates": Call(sched.parse_rates, text="exp:k=0.1"),
        "schedules.Exponential()": Call(
            sched.Exponential.__call__, on=Made(sched.Exponential, 1.0, 0.1), epoch=3
        ),
    }


def descent(folder: Path) -> dict[str, Call]:
    rates = pv.schedules.Constant(0.1)
    own = {"plan": Made(plan), "model": Made(small_net), "loss": cross_entropy}
    given = {"optimizer": sgd, "learning_rate_schedule": rates}
    return {
        "dpsgd": Call(pv.dpsgd, dataset=Made(doubles), **own, **given),
        "Run": Call(pv.Run, data=Made(doubles), delta=1e-5, **own, **given),
        "make_private": Call(
            lambda **given: pv.make_private(**in_a_loop(("model", "loader"), **given)),
            more=["model", "optimizer", "loader", *get_type_hints(LoopSettings)],
            epochs=1,
            max_grad_norm=1.0,
            **TARGET,
        ),
        "train": Call(
            pv.train,
            more=[*(field.name for field in fields(TrainRequest)), *compute.names()],
            dataset=Made(data),
            **TARGET,
            examples=24,
            epochs=1,
            batch_size=8,
        ),
        "dpmac": Call(
            pv.dpmac,
            plan=Made(lambda: plan(clip=pv.mac.Derivatives(0.3))),
            model=Made(mac_net),
            loss="cross_entropy",
            dataset=Made(data),
            coordinates=pv.mac.Coordinates(),
            mu=100.0,
            **given,
        ),
        "runs.ProgressBar": Call(pv.runs.ProgressBar),
        "runs.Checkpoint": Call(pv.runs.Checkpoint, path=folder / "kept.pt", every=60.0),
        "release": Call(
            lambda part, **more: pv.release(part, **more),
            more=["shares"],
            part=Made(lambda: bounded(torch.ones(3))),
            noise_multiplier=2.0,
            ledger=Made(pv.Ledger),
            stream=Made(lambda: pv.Streams.new(1).noise),
        ),
    }


def site_ledger(folder: Path) -> Path:
    """A ledger with a budget, of a site."""
    path = folder / "site.ledger"
    if not path.exists():
        pv.Ledger.open(path, pv.Budget(rho=1.0))
    return path


def doors(folder: Path) -> dict[str, Call]:
    hf, torch_lightning, op = pv.huggingface, pv.lightning, pv.opacus
    values = {"y": X[:, 0], "target_bounds": (0.0, 1.0)}
    linear_classifier = pv.sklearn.DPClassifier(bounds=(0, 1), classes=CLASSES, options=ONE_EPOCH)
    return {
        "huggingface.ExampleLoss": Call(
            hf.ExampleLoss, model=Made(small_net), tokens=3.0, smoothing=0.0
        ),
        "huggingface.group_experts": Call(hf.group_experts, model=Made(small_net)),
        "huggingface.load_pretrained": Call(
            hf.load_pretrained, where=folder, model=Made(small_net)
        ),
        "huggingface.publish_pretrained": Call(
            hf.publish_pretrained, result=Made(trained), out=folder / "h"
        ),
        "huggingface.PrivateTrainer": Call(hf.PrivateTrainer, model=Made(small_net), args=None),
        "huggingface.PrivateSFTTrainer": Call(
            hf.PrivateSFTTrainer, model=Made(small_net), args=None
        ),
        "huggingface.PrivateDPOTrainer": Call(
            hf.PrivateDPOTrainer, model=Made(small_net), args=None
        ),
        "huggingface.PrivateSeq2SeqTrainer": Call(
            hf.PrivateSeq2SeqTrainer, model=Made(small_net), args=None
        ),
        "flower.FlowerTeachers": Call(flower.FlowerTeachers, grid=None, count=3, timeout=60.0),
        "flower.InTheClear": Call(flower.InTheClear),
        "flower.SecureSum": Call(flower.SecureSum, threshold=2 / 3, neighbours=4),
        "flower.SiteShares": Call(
            flower.SiteShares, ledger=Made(lambda: site_ledger(folder)), teachers=3, absent=1
        ),
        "flower.teacher_app": Call(flower.teacher_app, load=Made(lambda: len)),
        "flower.training_app": Call(
            flower.training_app, build_model=Made(lambda: small_net), train=Made(lambda: len)
        ),
        "flower.train_federated": Call(
            flower.train_federated,
            grid=Made(grid_of_clients),
            model=Made(small_net),
            plan=Made(clients),
            input_shape=(4,),
            timeout=60.0,
        ),
        "lightning.PrivateStrategy": Call(
            torch_lightning.PrivateStrategy, device="cpu", epsilon=1.0
        ),
        "lightning.PrivateDDPStrategy": Call(torch_lightning.PrivateDDPStrategy, epsilon=1.0),
        "opacus.PrivacyEngine": Call(op.PrivacyEngine, accountant="prv", secure_mode=False),
        "opacus.PrivacyEngine.make_private": Call(
            lambda **given: op.PrivacyEngine().make_private(**in_a_loop(**given)),
            more=[
                "module",
                "optimizer",
                "data_loader",
                "epochs",
                "clipping",
                "noise_generator",
                "batch_first",
            ],
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=True,
        ),
        "opacus.PrivacyEngine.make_private_with_epsilon": Call(
            lambda **given: op.PrivacyEngine().make_private_with_epsilon(**in_a_loop(**given)),
            more=["module", "optimizer", "data_loader"],
            target_epsilon=2.0,
            target_delta=1e-5,
            epochs=1,
            max_grad_norm=1.0,
        ),
        "opacus.PrivacyEngine.save_checkpoint": Call(
            saved_by_a_script,
            more=["module", "optimizer", "checkpoint_dict"],
            path=folder / "script.pt",
        ),
        "opacus.PrivacyEngine.load_checkpoint": Call(
            loaded_by_a_script,
            more=["module", "optimizer"],
            path=Made(lambda: script_file(folder / "of a script.pt")),
        ),
        "opacus.DifferentiallyPrivateDistributedDataParallel": Call(
            op.DifferentiallyPrivateDistributedDataParallel, model=Made(small_net)
        ),
        "opacus.ModuleValidator.validate": Call(
            op.ModuleValidator.validate, module=Made(small_net)
        ),
        "opacus.ModuleValidator.fix": Call(op.ModuleValidator.fix, module=Made(small_net)),
        **{
            f"opacus.{name}": Call(scheduler_named(name), more=["optimizer"], **own)
            for name, own in SCHEDULERS.items()
        },
        "opacus.BatchMemoryManager": Call(
            opened_batches, more=["data_loader", "optimizer"], max_physical_batch_size=4
        ),
        "sklearn.DPAutoencoder": estimator("DPAutoencoder", n_components=2, options=ONE_EPOCH),
        "sklearn.DPBoostingClassifier": estimator(
            "DPBoostingClassifier", classes=CLASSES, options=BOOST
        ),
        "sklearn.DPBoostingRegressor": estimator("DPBoostingRegressor", options=BOOST, **values),
        "sklearn.DPClassifier": estimator(
            "DPClassifier", classes=CLASSES, options=ONE_EPOCH, class_weight=None
        ),
        "sklearn.DPFeatureSelector": estimator(
            "DPFeatureSelector", classes=CLASSES, keep=2, plan=None
        ),
        "sklearn.DPFisherClassifier": estimator(
            "DPFisherClassifier", classes=CLASSES, options=None, plan=None
        ),
        "sklearn.DPLogisticRegression": estimator(
            "DPLogisticRegression", classes=CLASSES, options=ONE_EPOCH
        ),
        "sklearn.DPPCA": estimator("DPPCA", n_components=2),
        "sklearn.DPRegressor": estimator(
            "DPRegressor", model="linear", options=ONE_EPOCH, loss="squared_error", **values
        ),
        "sklearn.DPRidge": estimator("DPRidge", options=None, **values),
        "sklearn.DPSearchCV": estimator(
            "DPSearchCV",
            bounds=...,
            estimator=linear_classifier,
            param_grid={"model": ["linear", "mlp:2"]},
            way="random-stopping",
            metric=None,
        ),
        "sklearn.DPStandardScaler": estimator("DPStandardScaler"),
        "sklearn.DPTableEncoder": Call(
            lambda schema, X: pv.sklearn.DPTableEncoder(schema).fit_transform(X),
            schema=Schema("y", ("a", "b"), tuple(Number(name, 0, 1) for name in "abcde")),
            X=X,
        ),
        "sklearn.PATEClassifier": estimator(
            "PATEClassifier", estimator=None, classes=CLASSES, options={"teachers": 4, "queries": 3}
        ),
        "sklearn.budget_for": positional(
            pv.sklearn.budget_for, plan=Made(plan), fits=2, delta=1e-5
        ),
        "sklearn.expected_failed_checks": Call(
            pv.sklearn.expected_failed_checks, estimator=pv.sklearn.DPPCA()
        ),
    }


def parts() -> dict[str, Call]:
    boost, clip, mech, vol, maps = (
        pv.boosting,
        pv.clipping,
        pv.mechanisms,
        pv.volumes,
        Made(lambda: volumes()[1]),
    )
    scans = Made(lambda: torch.rand(2, 1, 4, 4, 4))
    network = Made(lambda: nn.Conv3d(1, 3, 1))
    return {
        "Flat": Call(pv.Flat, clip_norm=0.1),
        "clipping.Augmentation": Call(clip.Augmentation, copies=2, transform="flip"),
        "clipping.Automatic": Call(clip.Automatic, clip_norm=0.1, stability=0.01),
        "clipping.PerLayer": Call(clip.PerLayer, clip_norm=0.1),
        "clipping.Quantile": Call(clip.Quantile, clip_norm=0.1, quantile=0.5, rate=0.2, share=0.1),
        "mechanisms.Banded": Call(mech.Banded, bands=4, momentum=0.5),
        "mechanisms.Banded.coefficients": Call(
            mech.Banded.coefficients, on=Made(mech.Banded, 4), steps=20
        ),
        "mechanisms.Banded.deviation": Call(
            mech.Banded.deviation, on=Made(mech.Banded, 4), steps=20
        ),
        "mechanisms.BISR": Call(mech.BISR, bands=4, momentum=0.5),
        "mechanisms.BISR.coefficients": Call(
            mech.BISR.coefficients, on=Made(mech.BISR, 4), steps=20, separation=5
        ),
        "mechanisms.BISR.inverse": Call(
            mech.BISR.inverse, on=Made(mech.BISR, 4), steps=20, separation=5
        ),
        "mechanisms.BLT": Call(mech.BLT, buffers=2, momentum=0.5),
        "mechanisms.BLT.coefficients": Call(
            mech.BLT.coefficients, on=Made(mech.BLT, 2), steps=20, separation=5
        ),
        "mechanisms.BLT.deviation": Call(
            mech.BLT.deviation, on=Made(mech.BLT, 2), steps=20, separation=5
        ),
        "mac.Analytic": Call(pv.mac.Analytic, z_norm=1.0, x_norm=1.0, y_norm=1.0, order=1),
        "mac.Coordinates": Call(pv.mac.Coordinates, steps=1, rate=1.0, optimizer="sweep"),
        "mac.Derivatives": Call(pv.mac.Derivatives, first=0.3),
        "mac.Histogram": Call(
            pv.mac.Histogram, noise_multiplier=5.0, after=1, quantile=0.5, bins=10
        ),
        "models.build": Call(
            pv.models.build,
            spec="mlp:4",
            input_shape=(5,),
            classes=3,
            rng=Made(np.random.default_rng, 0),
        ),
        "models.DrawnInputs": Call(
            pv.models.DrawnInputs, kind="white", number=9, low=0.0, high=1.0, seed=1
        ),
        "models.DrawnInputs.draw": Call(
            pv.models.DrawnInputs.draw, on=Made(pv.models.DrawnInputs, "white", 9), shape=(5,)
        ),
        "models.fold": Call(
            pv.models.fold,
            trained=Made(
                lambda: pv.models.precondition(linear(), pv.models.DrawnInputs("white", 9), (5,))
            ),
        ),
        "models.precondition": Call(
            pv.models.precondition,
            model=Made(linear),
            inputs=Made(pv.models.DrawnInputs, "white", 9),
            shape=(5,),
            private=None,
            power=0.5,
            damping=1.0,
            seed=1,
        ),
        "models.wide_resnet": Call(
            pv.models.wide_resnet,
            input_shape=(8, 8),
            classes=3,
            depth=10,
            width=1,
            channels=4,
            groups=2,
            standardised=True,
            scale_norm=False,
        ),
        "models.replace_batch_norm": Call(
            pv.models.replace_batch_norm, model=Made(nn.BatchNorm1d, 4), frozen=False, groups=2
        ),
        "models.require_per_example": Call(
            lambda model, inputs, **own: pv.models.require_per_example(model, inputs, **own),
            model=Made(linear),
            inputs=torch.rand(4, 5),
            fixed=False,
            what="it",
        ),
        "models.volume_decoder": Call(
            pv.models.volume_decoder, shape=(2, 4, 4, 4), size=2, width=2, middle=None
        ),
        "models.volume_encoder": Call(
            pv.models.volume_encoder, shape=(2, 4, 4, 4), size=2, width=2
        ),
        "boosting.BoostingPlan": Call(
            boost.BoostingPlan, columns=columns(), target=boost.Labels(3), trees=1, depth=2
        ),
        "boosting.BoostingPlan.calibrate": Call(
            boost.BoostingPlan.calibrate, on=Made(boosting), **TARGET
        ),
        "boosting.Counts": Call(boost.Counts, high=5.0),
        "boosting.FeatureShape": Call(
            boost.FeatureShape, name="a", edges=np.zeros(2), scores=np.zeros(3), missing=np.zeros(1)
        ),
        "boosting.Interval": Call(boost.Interval, low=0.0, high=1.0, name="a"),
        "boosting.Labels": Call(boost.Labels, classes=3, weights=()),
        "boosting.Levels": Call(boost.Levels, width=3, name="a"),
        "boosting.Values": Call(boost.Values, low=0.0, high=1.0),
        "boosting.boost": Call(boost.boost, plan=Made(boosting), dataset=Made(data)),
        "boosting.columns_of": Call(boost.columns_of, dataset=Made(data)),
        "boosting.plan_for": Call(boost.plan_for, dataset=Made(data), bins=4, passes=1, depth=2),
        "boosting.shape": Call(boost.shape, result=Made(boosted), column=0),
        "volumes.Corrections": Call(
            vol.Corrections, reference=torch.rand(3, 8, 16).softmax(1), order=3
        ),
        "volumes.MapStudent": Call(vol.MapStudent, start=network, training=vol.Training()),
        "volumes.Pairs": Call(vol.Pairs, classes=3),
        "volumes.Seen": Call(vol.Seen, teachers=Made(taught), through=torch.sigmoid, what="it"),
        "volumes.Training": Call(
            vol.Training, steps=3, batch_size=2, learning_rate=0.01, warp=vol.Warp()
        ),
        "volumes.Warp": Call(vol.Warp, angle=0.25, stretch=0.1, shift=0.1, mirror=0.5, patch=None),
        "volumes.dice": Call(vol.dice, predicted=maps, truth=maps, classes=3),
        "volumes.map_losses": Call(vol.map_losses, scores=volumes()[0], maps=maps),
        "volumes.maps_of": Call(vol.maps_of, labels=maps, classes=3),
        "volumes.public_network": Call(
            vol.public_network,
            labelled=Made(lambda: pv.Dataset(scans.make(), volumes()[1], classes=3, public=True)),
            network=network,
            learning=vol.Training(steps=1, batch_size=2),
            seed=0,
        ),
        "volumes.probabilities": Call(vol.probabilities, network=network, volumes=scans),
    }


def released_statistics(folder: Path) -> dict[str, Call]:
    st = pv.statistics
    own = {"classes": 3, "features": 5, "row_norm": 1.0}
    numbers = {"features": 5, "row_norm": 1.0, "low": 0.0, "high": 1.0}
    squares = Made(lambda: st.LeastSquaresPlan(3, 5, 1.0).calibrate(**TARGET))
    ridge = Made(lambda: st.RidgePlan(**numbers).calibrate(**TARGET))
    fisher, rows = Made(statistics, "FisherPlan"), Made(data)
    return {
        "statistics.Chunks": Call(st.Chunks, begin=lambda: iter([X]), rows=24),
        "statistics.FisherPlan": Call(st.FisherPlan, **own, keep=2),
        "statistics.RowsPlan": Call(st.RowsPlan, **own, keep=2),
        "statistics.SelectionPlan": Call(st.SelectionPlan, **own, keep=2),
        "statistics.LeastSquaresPlan": Call(st.LeastSquaresPlan, **own),
        "statistics.RidgePlan": Call(st.RidgePlan, **numbers),
        "statistics.MetricsPlan": Call(st.MetricsPlan, classes=3, noise_multiplier=3.0),
        "statistics.ValueMetricsPlan": Call(
            st.ValueMetricsPlan, low=0.0, high=1.0, noise_multiplier=3.0
        ),
        "statistics.FisherPlan.calibrate": Call(st.FisherPlan.calibrate, on=fisher, **TARGET),
        "statistics.MetricsPlan.calibrate": Call(
            st.MetricsPlan.calibrate, on=Made(st.MetricsPlan, 3), **TARGET
        ),
        "statistics.advised": Call(st.advised, plan=fisher, examples=100),
        "statistics.draft_public_schema": Call(
            st.draft_public_schema,
            source=Made(pyarrow.table, {"age": [20], "kind": ["a"]}),
            public=Made(table, folder),
            target="kind",
        ),
        "statistics.draft_schema": Call(
            st.draft_schema,
            source=Made(table, folder),
            target="kind",
            budget=pv.Budget(**TARGET),
            numbers=("age",),
            categories=("kind",),
        ),
        "statistics.fisher": Call(st.fisher, plan=fisher, dataset=rows),
        "statistics.least_squares": Call(st.least_squares, plan=squares, dataset=rows),
        "statistics.release_features": Call(
            st.release_features, plan=Made(statistics, "RowsPlan"), dataset=rows
        ),
        "statistics.ridge": Call(st.ridge, plan=ridge, dataset=(X, X[:, 0])),
        "statistics.select_features": Call(
            st.select_features, plan=Made(statistics, "SelectionPlan"), dataset=rows
        ),
    }


def pate(folder: Path) -> dict[str, Call]:
    t, x, y = pv.teachers, torch.from_numpy(X), torch.from_numpy(Y)
    halves = {
        "encoder": Made(lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 2))),
        "decoder": Made(lambda: nn.Sequential(nn.Linear(2, 6), nn.Unflatten(1, (2, 3)))),
    }
    asked = {
        "plan": Made(votes),
        "teachers": Made(taught),
        "reducer": None,
        "public_inputs": Made(public),
    }
    answers = Made(lambda: file_of(folder, predictions=np.zeros((4, 6, 3), np.float32)))
    targets = Made(lambda: pv.Dataset(X, X, public=True))
    pca = {"mean": torch.zeros(6), "components": torch.eye(6)[:2], "eigenvalues": torch.ones(2)}
    return {
        "pate": Call(pv.pate, student=Made(pupil), **asked),
        "teachers.ask_teachers": Call(t.ask_teachers, **asked),
        "teachers.Answers": Call(
            t.Answers,
            inputs=x,
            targets=y,
            answered=torch.ones(24, dtype=torch.bool),
            scores=None,
            expected=1.0,
        ),
        "teachers.Autoencoder": Call(t.Autoencoder, **halves, loss="mse", centre=torch.zeros(2, 3)),
        "teachers.Ball": Call(t.Ball, radius=1.0),
        "teachers.Box": Call(t.Box, dimensions=3),
        "teachers.ConfidentVotes": Call(
            t.ConfidentVotes, classes=3, threshold=2.0, answers=2, share=0.3
        ),
        "teachers.Estimator": Call(t.Estimator, make=dict, classes=3),
        "teachers.Given": Call(t.Given, files=answers),
        "teachers.Identity": Call(t.Identity, target_shape=(2, 3), origin=0.0),
        "teachers.KeptFolder": Call(t.KeptFolder, folder=folder),
        "teachers.Neighbourhood": Call(t.Neighbourhood, inputs=x, components=3, neighbours=3),
        "teachers.Network": Call(t.Network, make=small_net, fit=fit_nothing),
        "teachers.PatePlan": Call(
            t.PatePlan, queries=3, teachers=4, aggregate=t.Votes(3), noise_multiplier=3.0
        ),
        "teachers.PatePlan.calibrate": Call(t.PatePlan.calibrate, on=Made(votes), **TARGET),
        "teachers.PublicPCA": Call(t.PublicPCA, target_shape=(6,), **pca),
        "teachers.PublicPCA.fit": Call(t.PublicPCA.fit, public=targets, components=2),
        "teachers.RandomProjection": Call(t.RandomProjection, target_shape=(2, 3), codes=4, seed=0),
        "teachers.SiteNoise": Call(t.SiteNoise, absent=1),
        "teachers.Spread": Call(t.Spread, components=3, neighbours=3, alpha=0.95, agreement=0.8),
        "teachers.Spreading": Call(
            t.Spreading, public=Made(public), classes=3, components=3, neighbours=3
        ),
        "teachers.Student": Call(t.Student, make=linear, epochs=1, batch_size=4),
        "teachers.Trained": Call(t.Trained, data=Made(data), recipe=Made(recipe), teachers=4),
        "teachers.Votes": Call(t.Votes, classes=3),
        "teachers.teach_student": Call(
            t.teach_student, answers=Made(answered), student=Made(pupil)
        ),
        "teachers.unit_ball": Call(t.unit_ball, o=torch.ones(2, 3)),
    }


def features(folder: Path) -> dict[str, Call]:
    tf, units = pv.transforms, ("whitening", "units", "components")
    return {
        "transforms.Centre": Call(tf.Centre, columns=(0, 1)),
        "transforms.ClipToNorm": Call(tf.ClipToNorm, norm=1.0),
        "transforms.External": Call(tf.External, name="a:b"),
        "transforms.FeatureFolder": Call(
            tf.FeatureFolder, path=folder, encoder=tf.Precomputed("a"), shape=(5,), rows={}
        ),
        "transforms.Moments": Call(tf.Moments, features=5, noise_multiplier=3.0, row_norm=1.0),
        "transforms.Normalised": Call(tf.Normalised, power=0.5),
        "transforms.Packaged": Call(tf.Packaged, encoder="vgg16", size=0),
        "transforms.Precomputed": Call(tf.Precomputed, name="a"),
        "transforms.PrivatePCA": Call(tf.PrivatePCA, components=2, noise_multiplier=3.0),
        "transforms.RandomUnits": Call(
            tf.RandomUnits,
            scale=2,
            mirrored=False,
            local_mean=torch.zeros(4),
            mean=torch.zeros(4),
            **{name: torch.eye(4) for name in units},
        ),
        "transforms.Rescale": Call(tf.Rescale, low=0.0, high=1.0),
        "transforms.RowNorm": Call(tf.RowNorm, power=0.5),
        "transforms.Scatter": Call(tf.Scatter, J=2, kept=0),
        "transforms.ScatterRandom": Call(
            tf.ScatterRandom, J=2, units=400, mirror=1, kept=2000, encoded=0
        ),
        "transforms.Scattering": Call(tf.Scattering, scale=2),
        "transforms.SelectFeatures": Call(
            tf.SelectFeatures, keep=2, noise_multiplier=3.0, classes=3, row_norm=1.0
        ),
        "transforms.feature_cache": Call(kept_features, more=["progress"], folder=folder),
        "transforms.parse": Call(tf.parse, spec="norm:power=0.5"),
        "transforms.read_features": Call(tf.read_features, features="raw", dataset=Made(data)),
        "transforms.save_features": Call(
            tf.save_features, folder=folder / "saved", train=X, encoder="a"
        ),
        "transforms.usual": Call(tf.usual, shape=(5,), low=0.0, signal=3.0),
    }


#: Opacus's schedulers, and what they are given beside an optimizer.
SCHEDULERS: dict[str, dict[str, Any]] = {
    "ExponentialGradClip": {"gamma": 0.5},
    "ExponentialNoise": {"gamma": 0.5},
    "LambdaGradClip": {"scheduler_function": lambda epoch: 1.0 / (1 + epoch)},
    "LambdaNoise": {"noise_lambda": lambda epoch: 1.0 / (1 + epoch)},
    "StepGradClip": {"step_size": 2, "gamma": 0.5},
    "StepNoise": {"step_size": 2, "gamma": 0.5},
}
#: Protocols, abstract classes, what only the library makes, and names that stand in front twice.
ELSEWHERE = {
    "Result": "made by methods alone",
    "Streams": "made by Streams.new",
    "teachers.Predictor": "a type",
    "teachers.Recipe": "a type",
    "teachers.Reducer": "abstract",
    "teachers.Teachers": "abstract",
    "transforms.Transform": "abstract",
    "transforms.PublicTransform": "abstract",
    "transforms.PrivateTransform": "abstract",
    "mechanisms.Correlation": "abstract",
    "opacus.ModuleValidator": "by its functions",
    "volumes.Start": "made by Start.learn",
    "runs.Callback": "an interface",
    "runs.TrainingProgress": "made by runs alone",
    "runs.TensorBoard": "by its own",
    "runs.WandB": "by wandb",
    "runs.MLflow": "by mlflow",
    "accounting.Budget": "Budget",
    "accounting.Guarantee": "Guarantee",
    "accounting.Ledger": "Ledger",
    "clipping.Flat": "Flat",
    "flower.Summation": "abstract",
    "flower.Total": "made by summations alone",
}


def clients() -> Any:
    return pv.Plan(pv.Poisson(0.5), epochs=1, examples=3, persons=True).calibrate(**TARGET)


def grid_of_clients() -> Any:
    from tests.support.local_grid import LocalGrid  # needs Flower

    app = flower.training_app(small_net, lambda model, context: None)
    return LocalGrid(app, [{"client": client} for client in range(3)])


def public_names() -> set[str]:
    """The functions and classes in front, and those of the public modules."""
    front = {name for name in pv.__all__ if not isinstance(getattr(pv, name), types.ModuleType)}
    modules = {name: getattr(pv, name) for name in pv.__all__ if name not in front}
    modules["flower"] = flower  # a door that is imported by its own name
    return front | {
        f"{name}.{own}"
        for name, module in modules.items()
        for own in getattr(module, "__all__", ())
    }
