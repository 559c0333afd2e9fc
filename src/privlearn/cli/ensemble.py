"""`privlearn train --method pate`: teachers vote on public inputs, and what learned from their votes is published."""

from __future__ import annotations

import argparse
import math
import shutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn

from privlearn.cli import screen, training, voting
from privlearn.cli.planning import delta_warning
from privlearn.cli.publication import Publication
from privlearn.data import NAMES, Dataset
from privlearn.errors import BadInput
from privlearn.models import networks
from privlearn.publishing.verify import verify
from privlearn.runs.checkpoint import Checkpoint, Saved
from privlearn.streams import Streams
from privlearn.teachers import Estimator, Network, Recipe, Spreading, Trained
from privlearn.teachers.pate import pate
from privlearn.teachers.student import Spread, Student

ANSWERS = "answers"
_TEACHERS_FILE = "teachers.json"  # there from the moment on that records are given to teachers
#: Of Adam, that a student takes at least.
_STEPS = 1000


def _student(options: argparse.Namespace, network: nn.Module, inputs: int) -> Student:
    """The student: by default enough steps for a small pool, and not more than 20 epochs of a large one."""
    made = Student(lambda shape: network, spread=Spread())
    usual = max(20, math.ceil(_STEPS / math.ceil(inputs / made.batch_size)))
    rate = made.learning_rate if options.learning_rate is None else options.learning_rate
    return replace(made, epochs=usual if options.epochs is None else options.epochs, learning_rate=rate)


def run(options: argparse.Namespace) -> int:
    """Train teachers, ask them, teach a student and publish it."""
    if options.public is None and options.data not in NAMES:
        raise BadInput(
            "teachers answer about public inputs, which get no protection: give --public PATH, rows of the form of --data "
            "which you declare public (for maps of classes with x_test, the volumes to ask about). Test rows take their place "
            "for named data sets alone"
        )
    folder = Path(f"{options.out}.teachers")
    if options.resume and _published_already(options.out, folder):
        return 0
    _require_state(options, folder)
    publication = Publication.begin(options)
    networks.require_known(options.model)
    data = training.data_of(options)
    if training.has_maps(data):
        return import_module("privlearn.cli.maps").run(options, data, publication, folder)  # type: ignore[no-any-return]
    data, pool = _apart(options, data)
    plan = voting.make_plan(options, data.classes or 0, len(pool.x), persons=data.groups is not None)
    answer = voting.figures(plan, options.delta)
    publication.warn(
        *delta_warning(options, options.examples or data.examples),
        *training.seed_warning(options),
        *voting.warnings(plan, options.examples),
    )
    if options.queries is None:
        screen.asides.print(f"--queries: {plan.queries} of the {len(pool.x)} public inputs are asked about")
    screen.asides.print(
        f"plan: {plan.queries} queries to {plan.teachers} teachers, noise of {plan.noise_std:.4g} votes, epsilon "
        f"{answer['epsilon']:.4f} at delta {options.delta:g} ({answer['adjacency']})"
        f"{', for a person with all their rows' if plan.persons else ''}"
    )
    teachers = Trained(data, _recipe(options, data, pool), plan.teachers, folder=folder)
    try:
        streams = streams_of(options, folder)
        # Made beforehand: what is wrong with it must show before anything is spent.
        network = training.network(options.model, tuple(data.tensors()[0].shape[1:]), data.classes or 0, streams)
        with screen.progress_bar("training", "teachers") as progress:
            result = pate(
                plan,
                teachers,
                None,
                pool,
                _student(options, network, len(pool.x)),
                ledger=publication.ledger,
                streams=streams,
                progress=progress,
                keep=folder / ANSWERS,
            )
        answer["answered"] = result.facts["answered"]
        rows = {"teachers": f"{plan.teachers}, asked {plan.queries} queries, {answer['answered']} answered"}
        publication.end(result, data, answer, rows, options.model)
    except BaseException as error:
        say_what_is_left(folder, None if options.resume else answer["epsilon"], error)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def streams_of(options: argparse.Namespace, folder: Path) -> Streams:
    """The random streams, from their beginning: those of the interrupted run, if there is one, or new ones, kept for it.

    So initial weights, too, are what they would have been. The folder is as secret as the records.
    """
    file = Checkpoint(folder / "streams")
    saved = file.read()
    if saved is not None:
        return Streams.at(saved.plain["streams"])
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    streams = Streams.new(options.seed, discrete=options.discrete)
    file.write(Saved({}, {"streams": streams.state()}))
    return streams


def say_what_is_left(folder: Path, epsilon: float | None, error: BaseException) -> None:
    """After an interruption or a failure: what was spent, what is kept, and how to go on. Nothing is kept of nothing.

    Args:
        folder: what is kept.
        epsilon: what this run's answers cost; None: they were paid for before, or are not asked for yet.
        error: what ended the run; a message of its own tells of a failure.
    """
    if (folder / ANSWERS).exists():
        spent = "and paid for" if epsilon is None else f"so epsilon {epsilon:.4f} is spent"
        screen.asides.print(
            f"the teachers were asked, {spent}. Their noisy answers are kept in {screen.plain(folder)}, which is as secret as "
            "the data: go on with --resume, which does not pay again"
        )
    elif (folder / _TEACHERS_FILE).exists():
        screen.asides.print(
            f"nothing is spent yet. What teachers said so far is kept in {screen.plain(folder)}, which is as secret as the "
            "data: go on with --resume"
        )
    else:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, KeyboardInterrupt):
            screen.asides.print(
                "no teacher was trained yet: nothing is kept, and nothing is spent. Begin again, without --resume"
            )


def _published_already(out: str, folder: Path) -> bool:
    """Whether the run ended between publishing and deleting its folder; deletes it then."""
    if not folder.exists() or not Path(out).is_dir() or not verify(out).ok:
        return False
    shutil.rmtree(folder)
    screen.asides.print(f"{out} was published already; what was left of the run is deleted")
    return True


def _require_state(options: argparse.Namespace, folder: Path) -> None:
    """Refuse to begin where there is an interrupted run, and to go on where there is none."""
    if folder.exists() is not options.resume:
        raise BadInput(
            f"there are teachers of an interrupted run in {folder}: go on with --resume, or delete that folder"
            if folder.exists()
            else f"there is no interrupted run to resume: {folder} is not there. A run that ends before its first teacher is "
            "trained keeps nothing, and has spent nothing: leave out --resume to begin again. Else check --out"
        )
    if options.resume and not any((folder / name).exists() for name in (ANSWERS, _TEACHERS_FILE)):
        screen.asides.print(
            f"{screen.plain(folder)} keeps no teachers and no answers yet: the run begins from the beginning"
        )


def _apart(options: argparse.Namespace, data: Dataset) -> tuple[Dataset, Dataset]:
    """The data with rows to test on, and the public inputs: those of --public, or nine tenths of named data's test rows."""
    if data.classes is None:
        raise BadInput("teachers vote for classes, and the targets of these data are none: declare them with --classes")
    if options.public is not None:
        return data, training.public_rows(options, data)
    assert data.x_test is not None  # a named data set has some
    cut = len(data.x_test) * 9 // 10
    taken = (
        f"the first {cut} of {len(data.x_test)} test rows are public inputs, without labels; the others are tested on"
    )
    screen.asides.print(taken)
    data = replace(data, note="; ".join([*filter(None, [data.note]), taken]))
    pool = replace(data, x=data.x_test[:cut], y=data.y_test[:cut], x_test=None, y_test=None, groups=None, public=True)
    return replace(data, x_test=data.x_test[cut:], y_test=data.y_test[cut:]), pool


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
    if not networks.is_built_in(spec):
        raise BadInput(f"--teacher is {spec!r}: expected spreading, logistic, forest, linear, mlp:100 or cnn")
    shape, streams = tuple(data.tensors()[0].shape[1:]), Streams.new(0)
    return Network(lambda: networks.build(spec, shape, classes, streams.initialisation), _by_adam)


def _by_adam(network: nn.Module, x: Tensor, y: Tensor) -> None:
    descent = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=1e-3)
    for _ in range(50):
        for rows in torch.randperm(len(x)).split(32):  # type: ignore[no-untyped-call]
            descent.zero_grad()
            nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
            descent.step()
