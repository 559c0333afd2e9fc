"""A run of PATE by options: teachers are trained, vote on public inputs, and teach a student."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from privlearn.methods.pate.pate import pate
from privlearn.methods.pate.plan import PatePlan
from privlearn.methods.pate.recipes import Estimator, Recipe, Spreading, network_recipe
from privlearn.methods.pate.student import Spread, Student
from privlearn.methods.pate.trained import KeptFolder, Trained
from privlearn.models import networks
from privlearn.models.network_spec import text_of
from privlearn.runs.result import Result
from privlearn.training.train import network


def train_by_votes(
    plan: PatePlan, data: Dataset, options: Any, *, run_folder: KeptFolder | None, **shared: Any
) -> Result:
    """Train a student of votes; arguments as of `answering.train_by_answers`, and its errors."""
    pool, classes = options.public, data.classes
    require_public(pool)
    assert classes is not None  # or the plan could not be settled
    jobs = 1 if options.jobs is None else options.jobs
    folder = None if run_folder is None else run_folder.folder
    recipe = recipe_of(options.teacher or "spreading", data, pool, classes)
    teachers = Trained(data, recipe, plan.teachers, folder=folder, jobs=jobs)
    # Built beforehand: what is wrong with it must show before anything is spent.
    built = network(options.model, tuple(data.tensors()[0].shape[1:]), classes, shared["streams"])
    result = pate(
        plan,
        teachers,
        None,
        pool,
        _student(options, built),
        keep=None if run_folder is None else run_folder.answers,
        **shared,
    )
    return replace(result, model_spec=text_of(options.model), classes=classes)


def require_public(pool: Any) -> None:
    """Refuse inputs to ask teachers about that were not declared public.

    Raises:
        BadInput: there are none, or they were not.
    """
    if not isinstance(pool, Dataset) or not pool.public:
        raise BadInput(
            "teachers answer about public inputs, which get no protection: give "
            "public=pv.Dataset(x, public=True), rows of the form of the data, or of a table "
            "public=pv.load(path, schema=..., public=True)"
        )


def recipe_of(teacher: str, data: Dataset, pool: Dataset, classes: int) -> Recipe:
    """How one teacher is trained: by spreading labels, by scikit-learn, or as a network by Adam.

    Args:
        teacher: its name.
        data: the rows.
        pool: the public inputs.
        classes: how many there are.

    Raises:
        BadInput: an unknown name.
    """
    if teacher == "spreading":
        return Spreading(pool, classes)
    if teacher == "logistic":
        from sklearn.linear_model import LogisticRegression

        return Estimator(lambda: LogisticRegression(max_iter=200))
    if teacher == "forest":
        from sklearn.ensemble import ExtraTreesClassifier

        return Estimator(lambda: ExtraTreesClassifier(100))
    if not networks.is_built_in(teacher):
        raise BadInput(
            f"teacher is {str(teacher)[:60]!r}: expected spreading, logistic, forest, linear, "
            "mlp:100 or cnn"
        )
    return network_recipe(teacher, tuple(data.tensors()[0].shape[1:]), classes, _train_by_adam)


def _train_by_adam(teacher: nn.Module, x: Tensor, y: Tensor) -> None:
    descent = torch.optim.Adam(teacher.parameters(), lr=1e-3, weight_decay=1e-3)
    for _ in range(50):
        for rows in torch.randperm(len(x), device="cpu").split(32):  # type: ignore[no-untyped-call]
            descent.zero_grad()
            nn.functional.cross_entropy(teacher(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
            descent.step()


def _student(options: Any, built: nn.Module) -> Student:
    """The student: with its own number of epochs and learning rate where none are given."""
    chosen = {"epochs": options.epochs, "learning_rate": options.learning_rate}
    return Student(
        lambda shape: built,
        spread=Spread(),
        **{name: value for name, value in chosen.items() if value is not None},
    )
