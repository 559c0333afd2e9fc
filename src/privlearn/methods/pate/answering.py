"""PATE by options, whatever the targets are: votes on classes, or codes of numbers (Fay et al.
2020).

Numbers are clipped to their declared bounds and scaled to [-1, 1]. A public reducer makes codes of
them: principal components of public targets, where the public rows have some, else none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privlearn.core.accounting.ledger import Ledger
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from privlearn.methods.pate.pate import pate
from privlearn.methods.pate.plan import Ball, PatePlan
from privlearn.methods.pate.recipes import Estimator, Recipe, network_recipe
from privlearn.methods.pate.reducers import Identity, PublicPCA, Reducer
from privlearn.methods.pate.student import Student
from privlearn.methods.pate.trained import KeptFolder, Trained
from privlearn.methods.pate.votes import count_queries, settle_votes, with_noise
from privlearn.methods.pate.voting import require_public, train_by_votes
from privlearn.models import networks
from privlearn.models.heads import Head, NumbersHead, ValueHead, head_of
from privlearn.models.network_spec import kind_of
from privlearn.runs.result import Result
from privlearn.training.choices import Facts
from privlearn.training.train import network, state_task

#: Teachers and questions, where targets are numbers, and the share of the public targets that the
#: ball covers.
TEACHERS, QUERIES, SHARE = 250, 200, 0.9
#: Adam's learning rate for a linear student: at that of networks it ends before it has learned.
_LINEAR_RATE = 0.01


def settle_answers(options: Any, facts: Facts) -> PatePlan:
    """The plan of teachers' votes, or of the codes of their numbers, with its noise.

    Args:
        options: by name; `public` are the public inputs to ask about, with public targets for the
            reducer or without.
        facts: what is public of the rows.

    Raises:
        BadInput: as `settle_votes`; options of votes for numbers; or noise above the variance of
            every principal component.
    """
    if not (facts.target_bounds or facts.target_ranges):
        return settle_votes(options, facts)
    if options.threshold is not None:
        raise BadInput(
            "threshold= and answers= are for votes on classes, and the targets are numbers: leave "
            "them out"
        )
    head = _head(options, facts)
    reducer, radius = reducer_of(options.public, head)
    queries = count_queries(options, QUERIES)
    teachers = TEACHERS if options.teachers is None else options.teachers
    plan = with_noise(
        PatePlan(queries, teachers, Ball(radius)), options, persons=facts.persons
    ).reachable()
    _for_noise(reducer, plan)
    return plan


def train_by_answers(
    plan: PatePlan,
    data: Dataset,
    options: Any,
    *,
    ledger: Ledger | None,
    streams: Streams,
    run_folder: KeptFolder | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Train teachers on parts of the data, release their answers about public inputs, and train a
    student on these.

    Args:
        plan: with its noise.
        data: the rows, with declared classes, or bounds of the numbers to learn.
        options: by name, those that `plan` was settled by.
        ledger: what to charge; None: a new one.
        streams: the random streams, which the student's initial weights are drawn from, too.
        run_folder: the folder to keep teachers and their answers in.
        progress: called with how many teachers are trained, and how many there are.

    Raises:
        BadInput: no public inputs, a teacher or student that is unknown, or anything that `pv.pate`
            refuses.
    """
    shared: dict[str, Any] = {"ledger": ledger, "streams": streams, "progress": progress}
    train = _train_by_codes if isinstance(plan.aggregate, Ball) else train_by_votes
    result = train(plan, data, options, run_folder=run_folder, **shared)
    return replace(result, architecture=result.architecture | data.origin())


def _train_by_codes(
    plan: PatePlan, data: Dataset, options: Any, *, run_folder: KeptFolder | None, **shared: Any
) -> Result:
    """Train a student of numbers; arguments as of `train_by_answers`."""
    pool, head = options.public, _head(options, data)
    require_public(pool)
    reducer, _ = reducer_of(pool, head)
    shape = tuple(data.tensors()[0].shape[1:])
    folder = None if run_folder is None else run_folder.folder
    teachers = Trained(
        _scale_targets(data, head),
        number_recipe(options.teacher or "ridge", shape, head.outputs),
        plan.teachers,
        folder=folder,
        jobs=1 if options.jobs is None else options.jobs,
    )
    # Built beforehand: what is wrong with it must show before anything is spent.
    built = head.complete(network(options.model, shape, head.outputs, shared["streams"]))
    usual = _LINEAR_RATE if kind_of(options.model) == "linear" else None
    chosen = {"epochs": options.epochs, "learning_rate": options.learning_rate or usual}
    student = Student(
        lambda shape: built,
        "mse",
        **{name: value for name, value in chosen.items() if value is not None},
    )
    result = pate(
        plan,
        teachers,
        _for_noise(reducer, plan),
        replace(pool, y=None, y_test=None, target_bounds=None, target_ranges=()),
        student,
        keep=None if run_folder is None else run_folder.answers,
        **shared,
    )
    return state_task(result, head, data.target_bounds, options.model)


def reducer_of(public: Dataset | None, head: Head) -> tuple[Reducer, float]:
    """The public map from scaled numbers to codes, and the radius that codes are clipped to.

    Principal components, and the radius that covers `SHARE` of the public targets, where the public
    rows have targets; else the numbers themselves, and the radius of all numbers in [-1, 1].

    Args:
        public: the public rows.
        head: the task.

    Raises:
        BadInput: rows that were not declared public, fewer than two of them, or other targets.
    """
    if public is None or public.y is None:
        return Identity((head.outputs,)), math.sqrt(head.outputs)
    require_public(public)
    numbers = np.asarray(public.y)
    if numbers.size != len(public.x) * head.outputs or numbers.dtype.kind not in "fiub":
        raise BadInput(
            f"the targets of the public rows have shape {numbers.shape}: expected those of the "
            f"data, {head.outputs} for each row, or none (y=None)"
        )
    scaled = _scale_targets(public, head)
    reducer = PublicPCA.fit(scaled)
    return reducer, reducer.radius(scaled, share=SHARE)


def _for_noise(reducer: Reducer, plan: PatePlan) -> Reducer:
    """The components that are above the noise."""
    return reducer.for_noise(plan.noise_std) if isinstance(reducer, PublicPCA) else reducer


def _head(options: Any, declared: Any) -> Head:
    """The task of numbers.

    Raises:
        BadInput: another task.
    """
    kind = head_of(options.task, declared)
    if kind not in (ValueHead, NumbersHead):
        raise BadInput(f"task is {kind.task!r}, and pate does not learn it: leave it out")
    return kind({name: getattr(declared, name) for name in ("target_bounds", "target_ranges")})


def _scale_targets(data: Dataset, head: Head) -> Dataset:
    """The rows with their numbers clipped and scaled, each by itself, in shape (rows, targets)."""
    scaled = head.prepared(data.y).reshape(-1, head.outputs)
    return replace(data, y=scaled, x_test=None, y_test=None, target_bounds=None, target_ranges=())


def number_recipe(teacher: str, shape: tuple[int, ...], outputs: int) -> Recipe:
    """How one teacher of numbers is trained: by scikit-learn, or as a network by Adam.

    Args:
        teacher: its name.
        shape: of a row.
        outputs: how many numbers there are for a row.

    Raises:
        BadInput: an unknown name.
    """
    if teacher == "ridge":
        from sklearn.linear_model import Ridge

        return Estimator(lambda: _in_columns(Ridge(), outputs))
    if teacher == "forest":
        from sklearn.ensemble import ExtraTreesRegressor

        return Estimator(lambda: _in_columns(ExtraTreesRegressor(100), outputs))
    if not networks.is_built_in(teacher):
        raise BadInput(
            f"teacher is {str(teacher)[:60]!r}: expected for numbers ridge, forest, linear, "
            "mlp:100 or cnn"
        )
    return network_recipe(teacher, shape, outputs, _fit_by_adam)


def _in_columns(regressor: Any, outputs: int) -> Any:
    """A regressor whose predictions have shape (rows, outputs), also where there is one output."""
    from sklearn.multioutput import MultiOutputRegressor

    return MultiOutputRegressor(regressor) if outputs == 1 else regressor


def _fit_by_adam(teacher: nn.Module, x: Tensor, y: Tensor) -> None:
    descent = torch.optim.Adam(teacher.parameters(), lr=1e-3, weight_decay=1e-3)
    for _ in range(50):
        for rows in torch.randperm(len(x), device="cpu").split(32):  # type: ignore[no-untyped-call]
            descent.zero_grad()
            nn.functional.mse_loss(teacher(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
            descent.step()
