"""`privlearn train --method pate`: teachers vote on public inputs, and what learned from their votes is published."""

from __future__ import annotations

import argparse
import math
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

from privlearn import models
from privlearn.accounting.adjacency import Adjacency
from privlearn.accounting.budget import Budget
from privlearn.cli import screen, training
from privlearn.clipping.ensembles import ConfidentVotes, Votes
from privlearn.data import NAMES, Dataset, load
from privlearn.errors import BadInput
from privlearn.methods.ensemble.plan import PatePlan
from privlearn.methods.ensemble.student import Spread, Student
from privlearn.methods.pate import pate
from privlearn.publishing.bundle import publish
from privlearn.publishing.folder import require_free
from privlearn.publishing.keys import read_private
from privlearn.rng import Streams
from privlearn.teachers import Estimator, Network, Recipe, Spreading, Trained

_TEACHERS, _QUERIES = 250, 1000
#: Of Adam, that a student takes at least.
_STEPS = 1000
#: What only other methods take, with the value that says that it was not given.
_ALIEN: dict[str, object] = {
    "tune": None, "pca": None, "pca_noise": None, "schedule": "constant", "sampling": "poisson", "batch_size": None,
    "epochs": None, "clip": "flat", "clip_norm": None, "solve": None, "rows_per_person": None,
    "optimizer": None, "learning_rate": None,
    "momentum": None, "lr_schedule": None, "z_steps": None, "z_rate": None, "microbatch": None, "device": None,
    "precision": "float32",
}  # fmt: skip
_OWN = ("teachers", "queries", "teacher", "threshold", "answers")


def require_combinable(options: argparse.Namespace) -> None:
    """Refuse options that only other methods have, and the other way round.

    Raises:
        BadInput: naming the first of them.
    """
    given = vars(options)
    if options.method == "pate":
        alien = next((name for name, usual in _ALIEN.items() if given[name] != usual), None)
        if alien:
            raise BadInput(f"--{alien.replace('_', '-')} is for training on batches: leave it out, or train by dpsgd")
        return
    alien = next((name for name in _OWN if given[name] is not None), None)
    if alien:
        raise BadInput(f"--{alien} is for --method pate: leave it out, or add --method pate")


def _student(network: nn.Module, inputs: int) -> Student:
    """The student: enough steps for a small pool, and not more than 20 epochs of a large one."""
    made = Student(lambda shape: network, spread=Spread())
    return replace(made, epochs=max(20, math.ceil(_STEPS / math.ceil(inputs / made.batch_size))))


def run(options: argparse.Namespace) -> int:
    """Train teachers, ask them, teach a student and publish it."""
    started = time.perf_counter()
    out = require_free(options.out)
    key = None if options.sign is None else read_private(options.sign)
    folder = _folder(options)
    ledger = (
        None if options.ledger is None else training.open_ledger(options.ledger, f"{options.data} to {options.out}")
    )
    models.require_known(options.model)
    data = training.data_of(options)
    data, pool = _apart(options, data)
    plan = _plan(options, len(pool.x), pool.classes or 0)
    answer = _figures(plan, options.delta)
    for warning in (*_warnings(options, data.examples), *(key.warnings if key else ())):
        screen.asides.print(f"[yellow]warning[/]: {screen.plain(warning)}")
    screen.asides.print(
        f"plan: {plan.queries} queries to {plan.teachers} teachers, noise of {plan.noise_std:.4g} votes, epsilon "
        f"{answer['epsilon']:.4f} at delta {options.delta:g} ({answer['adjacency']})"
    )
    streams = Streams.new(options.seed, discrete=options.discrete)
    classes = data.classes
    assert classes is not None
    teachers = Trained(data, _recipe(options, data, pool), plan.teachers, folder=folder)
    # Made beforehand: what is wrong with it must show before anything is spent.
    network = training.network(options.model, tuple(data.tensors()[0].shape[1:]), classes, streams)
    with screen.progress_bar("training", "teachers") as progress:
        result = pate(
            plan,
            teachers,
            None,
            pool,
            _student(network, len(pool.x)),
            ledger=ledger,
            streams=streams,
            progress=progress,
        )
    metrics = training.test_metrics(result.model, data)
    facts = {"data": data.name, **({"what is known of it": data.note} if data.note else {})}
    publish(
        result,
        out,
        delta=options.delta,
        test_metrics=metrics,
        data=facts,
        model_spec=options.model,
        classes=classes,
        sign=key,
    )
    shutil.rmtree(folder, ignore_errors=True)
    if ledger is not None:
        together = ledger.guarantee(options.delta)
        answer["ledger"] = {"file": options.ledger, "epsilon": together.epsilon, "method": together.method}
    answer |= {"answered": result.settings["answered"], "test_metrics": metrics, "test_accuracy": metrics.get("accuracy"),
               "out": str(out), "seconds": time.perf_counter() - started}  # fmt: skip
    if options.json:
        screen.print_json(answer)
    else:
        _show(answer, plan)
    return 0


def _folder(options: argparse.Namespace) -> Path:
    """Where the teachers' answers are kept until the student is published: as secret as the records."""
    folder = Path(f"{options.out}.teachers")
    if folder.exists() is not options.resume:
        raise BadInput(
            f"there are teachers of an interrupted run in {folder}: go on with --resume, or delete that folder"
            if folder.exists()
            else f"there is no interrupted run to resume: {folder} is not there. Check --out, or leave out --resume"
        )
    return folder


def _apart(options: argparse.Namespace, data: Dataset) -> tuple[Dataset, Dataset]:
    """The data with rows to test on, and the public inputs: those of --public, or nine tenths of the test rows."""
    if data.classes is None:
        raise BadInput("teachers vote for classes, and the targets of these data are none: declare them with --classes")
    if options.public is not None:
        return data, _public(options, data)
    if data.x_test is None or len(data.x_test) < 10:
        raise BadInput(
            "teachers answer about public inputs: give some with --public PATH; the data have no test rows to take"
        )
    cut = len(data.x_test) * 9 // 10
    screen.asides.print(
        f"the first {cut} of {len(data.x_test)} test rows are taken as public inputs, without labels; the others are tested on"
    )
    pool = replace(data, x=data.x_test[:cut], y=data.y_test[:cut], x_test=None, y_test=None, groups=None, public=True)
    return replace(data, x_test=data.x_test[cut:], y_test=data.y_test[cut:]), pool


def _public(options: argparse.Namespace, data: Dataset) -> Dataset:
    if options.public in NAMES:
        return replace(load(options.public, options.data_dir), public=True)
    low, high = data.bounds()
    found = load(options.public, classes=data.classes, value_range=(float(low.min()), float(high.max())))
    return replace(found, public=True, low=data.low, high=data.high)


def _plan(options: argparse.Namespace, pool: int, classes: int) -> PatePlan:
    """The plan that the options describe, settled."""
    queries = min(_QUERIES, pool) if options.queries is None else options.queries
    teachers = _TEACHERS if options.teachers is None else options.teachers
    if (options.threshold is None) != (options.answers is None):
        raise BadInput("--threshold and --answers go together: give both, or neither")
    votes: Votes | ConfidentVotes = Votes(classes)
    if options.threshold is not None:
        votes = ConfidentVotes(classes, options.threshold, options.answers)
    adjacency = Adjacency.ADD_REMOVE if options.adjacency is None else Adjacency.parse(options.adjacency)
    plan = PatePlan(queries, teachers, votes, options.noise_multiplier, adjacency, options.group_size)
    target = options.epsilon is not None or options.rho is not None
    if target is (options.noise_multiplier is not None):
        raise BadInput(
            "give what may be spent, --epsilon E or --rho R, or the noise, --noise-multiplier S: one of them"
        )
    if not target:
        return plan
    budget = Budget(options.epsilon, options.delta, options.rho, options.group_size)
    return plan.calibrate(epsilon=budget.epsilon, delta=budget.delta, rho=budget.rho)


def _recipe(options: argparse.Namespace, data: Dataset, pool: Dataset) -> Recipe:
    """How one teacher is trained: by spreading labels, by scikit-learn, or as a network by Adam."""
    spec, classes = options.teacher or "spreading", data.classes
    assert classes is not None
    if spec == "spreading":
        return Spreading(pool, classes)
    if spec == "logistic":
        from sklearn.linear_model import LogisticRegression

        return Estimator(lambda: LogisticRegression(max_iter=200))
    if spec == "forest":
        from sklearn.ensemble import ExtraTreesClassifier

        return Estimator(lambda: ExtraTreesClassifier(100))
    if not models.is_built_in(spec):
        raise BadInput(f"--teacher is {spec!r}: expected spreading, logistic, forest, linear, mlp:100 or cnn")
    shape, streams = tuple(data.tensors()[0].shape[1:]), Streams.new(0)
    return Network(lambda: models.build(spec, shape, classes, streams.initialisation), _by_adam)


def _by_adam(network: nn.Module, x: Tensor, y: Tensor) -> None:
    descent = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=1e-3)
    for _ in range(50):
        for rows in torch.randperm(len(x)).split(32):  # type: ignore[no-untyped-call]
            descent.zero_grad()
            nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
            descent.step()


def _figures(plan: PatePlan, delta: float) -> dict[str, Any]:
    """The guarantee of a plan, as the JSON object that scripts rely on."""
    found = plan.guarantees(delta)
    best = found[0]
    return {
        "adjacency": best.adjacency.value,
        "delta": delta,
        "epsilon": best.epsilon,
        "method": best.method,
        "rho": best.rho,
        "epochs": None,
        "steps": None,
        "noise_multipliers": None,
        "guarantees": [{"method": each.method, "epsilon": each.epsilon, "kind": each.kind} for each in found],
        "group_size": plan.group_size,
        "plan": plan.describe() | {"noise_std": plan.noise_std},
    }


def _warnings(options: argparse.Namespace, examples: int) -> list[str]:
    """What whoever holds the data should know before publishing."""
    found = []
    if options.delta * (options.examples or examples) >= 1:
        found.append(f"delta {options.delta:g} is not below one over the number of examples: that may give one away")
    if options.seed is not None:
        found.append("with --seed the noise can be taken off by whoever knows the seed: not for data that matter")
    return found


def _show(answer: dict[str, Any], plan: PatePlan) -> None:
    table = Table(box=None, padding=(0, 2), show_header=False)
    accuracy = answer["test_accuracy"]
    for name, value in {
        "guarantee": f"[bold]epsilon {answer['epsilon']:.4f}[/] at delta {answer['delta']:g} ({answer['adjacency']}, by "
        f"{answer['method']})",
        "test accuracy": "no test data in the file" if accuracy is None else f"[bold]{accuracy:.4f}[/]",
        "teachers": f"{plan.teachers}, asked {plan.queries} queries, {answer['answered']} answered",
        "seconds": f"{answer['seconds']:.1f}",
        "published in": f"[bold]{screen.plain(answer['out'])}[/]",
    }.items():
        table.add_row(name, value)
    screen.answers.print(table)
    stated = answer["ledger"]["epsilon"] if "ledger" in answer else answer["epsilon"]
    screen.answers.print(f"\n{screen.meaning({**answer, 'epsilon': stated})}")
    screen.answers.print(f"Anyone can check it, without the data:  privlearn verify {screen.plain(answer['out'])}")
