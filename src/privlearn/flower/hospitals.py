"""A demonstration: hospitals in Flower's simulation engine, and a student of their noisy votes.

The records are scikit-learn's breast-cancer data, dealt out to hospitals. They are public, so that
everybody can look at what each party sees.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

from privlearn._checks import count as whole_number
from privlearn._checks import positive
from privlearn.errors import BadInput
from privlearn.flower.teacher_client import teacher_app
from privlearn.flower.teachers import FlowerTeachers
from privlearn.flower.traffic import CountedGrid, Traffic
from privlearn.methods.pate.pate import pate
from privlearn.methods.pate.plan import PatePlan, Votes
from privlearn.methods.pate.student import Spread, Student
from privlearn.publishing.new_folder import require_free
from privlearn.publishing.publish import publish

#: Public inputs, how many of them are asked about, rows to test on, and classes.
_PUBLIC, QUERIES, _TEST, _CLASSES = 150, 20, 119, 2
#: More hospitals would have too few patients for a teacher.
MOST_SITES = 20
#: Seconds to wait for hospitals, on a slow machine.
_TIMEOUT = 300.0


@dataclass(frozen=True)
class Demonstration:
    """What came of a demonstration.

    Attributes:
        out: the folder that was published.
        sites: how many hospitals there were.
        patients: records of all hospitals together.
        epsilon: what was spent.
        delta: at which delta.
        noise: standard deviation of the noise on each count of votes.
        accuracy: of the student on rows that no model learned from.
        accuracy_alone: mean accuracy of the hospitals' own models on these rows.
        accuracy_of_one_answer: of the more frequent class.
        traffic: what passed between the server and the hospitals, by the kind of message.
    """

    out: Path
    sites: int
    patients: int
    epsilon: float
    delta: float
    noise: float
    accuracy: float
    accuracy_alone: float
    accuracy_of_one_answer: float
    traffic: dict[str, Traffic]


@dataclass(frozen=True, eq=False, repr=False)
class _Rows:
    """Rows of the demonstration: of hospitals, public ones, and those to test on."""

    x: NDArray[Any]
    y: NDArray[Any]
    public: NDArray[Any]
    test_x: NDArray[Any]
    test_y: NDArray[Any]


def run_hospitals(sites: int, epsilon: float, delta: float, out: str | Path) -> Demonstration:
    """Run hospitals in Flower's simulation engine, and publish the student.

    Guarantee: that of PATE with a teacher at each hospital, at (epsilon, delta). The rows are
    public: this shows how it is done.

    Args:
        sites: how many hospitals there are.
        epsilon: what may be spent.
        delta: at which delta.
        out: the folder to write.

    Raises:
        BadInput: a number out of range, a folder that is there already, or an engine that did not
            come to an end.
    """
    whole_number("sites", sites, least=2, most=MOST_SITES)
    positive("epsilon", epsilon)
    plan = PatePlan(QUERIES, sites, Votes(_CLASSES)).calibrate(epsilon=epsilon, delta=delta)
    folder = require_free(out)
    rows = _deal()
    results, grids = [], []
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        grids.append(CountedGrid(grid))
        teachers = FlowerTeachers(grids[0], sites, timeout=_TIMEOUT)
        student = Student(_make_linear, epochs=200, learning_rate=3e-3, spread=Spread(5))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that few teachers have loud noise is said below
            results.append(pate(plan, teachers, None, rows.public, student))

    _simulate(server_app, sites)
    if not results:
        raise BadInput(
            "Flower's simulation engine ended without a student: expected it to run here. Its log "
            "is above; `ray start --head` shows whether Ray starts on this machine"
        )
    publish(results[0], folder, delta=delta)
    alone = [
        _accuracy(_train(rows, site, sites).predict(rows.test_x), rows) for site in range(sites)
    ]
    with torch.no_grad():
        answers = results[0].model(torch.from_numpy(rows.test_x)).argmax(1).numpy()
    return Demonstration(
        folder,
        sites,
        len(rows.x),
        plan.guarantee(delta=delta).epsilon,
        delta,
        plan.noise_std,
        _accuracy(answers, rows),
        float(np.mean(alone)),
        max(_accuracy(np.full(_TEST, each), rows) for each in range(_CLASSES)),
        grids[0].traffic,
    )


def _simulate(server_app: ServerApp, sites: int) -> None:
    """Run the app in Flower's engine, without its own progress notes."""
    log = logging.getLogger("flwr")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        run_simulation(
            server_app,
            teacher_app(partial(_load, sites)),
            num_supernodes=sites,
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        )
    finally:
        log.setLevel(before)


def _load(sites: int, context: Context) -> LogisticRegression:
    """A hospital's teacher, trained where its records are."""
    return _train(_deal(), int(context.node_config["partition-id"]), sites)


def _train(rows: _Rows, site: int, sites: int) -> LogisticRegression:
    records = slice(site, None, sites)
    return LogisticRegression(C=0.1, max_iter=500).fit(rows.x[records], rows.y[records])


def _deal() -> _Rows:
    """The rows in a public order, scaled by means and deviations of the public ones."""
    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], y[order]
    public = x[:_PUBLIC]
    x = ((x - public.mean(0)) / public.std(0)).astype(np.float32)
    seen = _PUBLIC + _TEST
    return _Rows(x[seen:], y[seen:], x[:_PUBLIC], x[_PUBLIC:seen], y[_PUBLIC:seen])


def _make_linear(shape: tuple[int, ...]) -> torch.nn.Module:
    return torch.nn.Linear(shape[0], _CLASSES)


def _accuracy(answers: NDArray[Any], rows: _Rows) -> float:
    return float((answers == rows.test_y).mean())
