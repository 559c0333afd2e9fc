"""`--method pate`: teachers vote on public inputs, or correct public maps; their student is
published.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, final

import numpy as np
import torch
from torch import Tensor, nn

from privlearn.cli import methods, screen, starting
from privlearn.cli.jobs import Job, Opened, has_maps, public_rows, seed_warning
from privlearn.cli.request import Request
from privlearn.core.accounting.guarantee import hollow, readable
from privlearn.core.streams import Streams
from privlearn.data import NAMES, Dataset, hippocampus
from privlearn.descent.train import network
from privlearn.errors import BadInput
from privlearn.models import networks
from privlearn.publishing.verify import verify
from privlearn.runs.result import Result
from privlearn.teachers import Estimator, KeptFolder, Network, Recipe, Spreading, Trained
from privlearn.teachers.pate import pate
from privlearn.teachers.plan import Ball, PatePlan
from privlearn.teachers.student import Spread, Student
from privlearn.volumes import Start

#: Of Adam, that a student takes at least.
_STEPS = 1000


def require_public(request: Request) -> None:
    """Refuse to ask teachers about rows that were not declared public."""
    if request.public is None and request.data not in NAMES:
        raise BadInput(
            "teachers answer about public inputs, which get no protection: give --public PATH, "
            "rows of the form of --data which you declare public (for maps of classes with x_test, "
            "the volumes to ask about). Test rows take their place for named data sets alone"
        )


# What is kept of an interrupted run


@final
@dataclass
class KeptTeachers:
    """The folder of a run beside the published one, and what is said of it.

    Attributes:
        kept: the folder.
        resumed: whether the run is one that goes on.
        epsilon: what this run's answers cost; None until that is known, and where they were charged
            before.
    """

    kept: KeptFolder
    resumed: bool
    epsilon: float | None = None

    def published(self, out: str) -> bool:
        """Whether the run ended between publishing and deleting its folder; deletes it then."""
        if not self.kept.folder.exists() or not Path(out).is_dir() or not verify(out).ok:
            return False
        self.kept.delete()
        screen.notes.print(f"{out} was published already; what was left of the run is deleted")
        return True

    def require_state(self, resume: bool) -> None:
        """Refuse to begin where there is an interrupted run, and to go on where there is none."""
        folder = self.kept.folder
        if folder.exists() is not resume:
            raise BadInput(
                (
                    f"there are teachers of an interrupted run in {folder}: go on with --resume, "
                    "or delete that folder"
                )
                if folder.exists()
                else f"there is no interrupted run to resume: {folder} is not there. A run that "
                "ends before its first teacher is trained keeps nothing, and has spent "
                "nothing: leave out --resume to begin again. Else check --out"
            )
        if resume and not (self.kept.answers.exists() or self.kept.teachers.exists()):
            screen.notes.print(
                f"{screen.plain(folder)} keeps no teachers and no answers yet: the run begins from "
                "the beginning"
            )

    def streams(self, request: Request) -> Streams:
        """The random streams from their beginning, kept: initial weights, too, are what they would
        have been.
        """
        return self.kept.streams(request.seed, discrete=request.discrete)

    def interrupted(self, error: BaseException) -> None:
        """Say what was spent, what is kept, and how to go on. Nothing is kept of nothing."""
        folder = screen.plain(self.kept.folder)
        if self.kept.answers.exists():
            spent = (
                "and charged"
                if self.epsilon is None
                else f"so epsilon {readable(self.epsilon)} is spent"
            )
            screen.notes.print(
                f"the teachers were asked, {spent}. Their noisy answers are kept in {folder}, "
                "which is as secret as the data: go on with --resume, which does not pay again"
            )
        elif self.kept.teachers.exists():
            screen.notes.print(
                f"nothing is spent yet. What teachers said so far is kept in {folder}, which is as "
                "secret as the data: go on with --resume"
            )
        else:
            self.kept.delete()
            if isinstance(error, KeyboardInterrupt):
                screen.notes.print(
                    "no teacher was trained yet: nothing is kept, and nothing is spent. Begin "
                    "again, without --resume"
                )

    def done(self) -> None:
        """The model is published: nothing is left to go on from."""
        self.kept.delete()


def kept_of(request: Request) -> KeptTeachers:
    """What an interrupted run goes on from."""
    return KeptTeachers(KeptFolder(f"{request.out}.teachers"), request.resume)


def _paid(opened: Opened, answer: dict[str, Any]) -> KeptFolder:
    """Where the run is kept; what is said of it when it is interrupted knows what its answers cost,
    if they do.
    """
    own = cast(KeptTeachers, opened.kept)
    own.epsilon = None if own.resumed else answer["epsilon"]
    return own.kept


@contextmanager
def _warned_before() -> Iterator[None]:
    """A block that does not repeat the warnings that were printed before the run."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the (noise|threshold) o")
        yield


# Votes on classes


@contextmanager
def pate_job(request: Request, data: Dataset) -> Iterator[Job]:
    """Teachers who vote on classes, or correct maps of them."""
    yield _maps_job(request, data) if has_maps(data) else _votes_job(request, data)


def _votes_job(request: Request, data: Dataset) -> Job:
    data, pool = _apart(request, data)
    plan = methods.votes_plan(
        request, data.classes or 0, len(pool.x), persons=data.groups is not None
    )
    answer = methods.votes_figures(plan, request.delta)
    cautions = (
        *hollow(request.epsilon, request.delta, request.examples or data.examples),
        *seed_warning(request),
        *methods.votes_warnings(plan, request.examples),
    )

    def run(opened: Opened) -> Result:
        kept = _paid(opened, answer)
        recipe, jobs = _recipe(request, data, pool), 1 if request.jobs is None else request.jobs
        teachers = Trained(data, recipe, plan.teachers, folder=kept.folder, jobs=jobs)
        streams = opened.streams()
        # Made beforehand: what is wrong with it must show before anything is spent.
        built = network(
            request.model, tuple(data.tensors()[0].shape[1:]), data.classes or 0, streams
        )
        student = _student(request, built, len(pool.x))
        with _warned_before(), screen.progress_bar("training", "teachers") as progress:
            return pate(
                plan,
                teachers,
                None,
                pool,
                student,
                ledger=opened.ledger,
                streams=streams,
                progress=progress,
                keep=kept.answers,
            )

    def rows(result: Result) -> dict[str, str]:
        answer["answered"] = result.facts["answered"]
        return {
            "teachers": (
                f"{plan.teachers}, asked {plan.queries} queries, {answer['answered']} answered"
            )
        }

    if request.queries is None:
        screen.notes.print(
            f"--queries: {plan.queries} of the {len(pool.x)} public inputs are asked about"
        )
    return Job(
        data,
        answer,
        f"{plan.queries} queries to {plan.teachers} teachers, noise of {plan.noise_std:.4g} votes, "
        f"epsilon {readable(answer['epsilon'])} at delta {request.delta:g} "
        f"({answer['adjacency']}){', for a person with all their rows' if plan.persons else ''}",
        cautions,
        request.model,
        run,
        rows,
    )


def _apart(request: Request, data: Dataset) -> tuple[Dataset, Dataset]:
    """The data with rows to test on, and the public inputs: of --public, or nine tenths of named
    data's test rows.
    """
    if data.classes is None:
        raise BadInput(
            "teachers vote for classes, and these data have other targets: declare them with "
            "--classes"
        )
    if request.public is not None:
        return data, public_rows(request, data)
    assert data.x_test is not None  # a named data set has some
    cut = len(data.x_test) * 9 // 10
    taken = (
        f"the first {cut} of {len(data.x_test)} test rows are public inputs, without labels; "
        "the others are tested on"
    )
    screen.notes.print(taken)
    data = replace(data, note="; ".join([*filter(None, [data.note]), taken]))
    pool = replace(
        data,
        x=data.x_test[:cut],
        y=data.y_test[:cut],
        x_test=None,
        y_test=None,
        groups=None,
        public=True,
    )
    return replace(data, x_test=data.x_test[cut:], y_test=data.y_test[cut:]), pool


def _student(request: Request, built: nn.Module, inputs: int) -> Student:
    """The student: by default enough steps for a small pool, and not more than 20 epochs of a large
    one.
    """
    student = Student(lambda shape: built, spread=Spread())
    usual = max(20, math.ceil(_STEPS / math.ceil(inputs / student.batch_size)))
    rate = student.learning_rate if request.learning_rate is None else request.learning_rate
    return replace(
        student, epochs=usual if request.epochs is None else request.epochs, learning_rate=rate
    )


def _recipe(request: Request, data: Dataset, pool: Dataset) -> Recipe:
    """How one teacher is trained: by spreading labels, by scikit-learn, or as a network by Adam."""
    spec, classes = request.teacher or "spreading", data.classes
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
        raise BadInput(
            f"--teacher is {spec!r}: expected spreading, logistic, forest, linear, mlp:100 or cnn"
        )
    shape, streams = tuple(data.tensors()[0].shape[1:]), Streams.new(0)
    return Network(lambda: networks.build(spec, shape, classes, streams.initialisation), _by_adam)


def _by_adam(teacher: nn.Module, x: Tensor, y: Tensor) -> None:
    descent = torch.optim.Adam(teacher.parameters(), lr=1e-3, weight_decay=1e-3)
    for _ in range(50):
        for rows in torch.randperm(len(x)).split(32):  # type: ignore[no-untyped-call]
            descent.zero_grad()
            nn.functional.cross_entropy(teacher(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
            descent.step()


# Maps of classes


def _maps_job(request: Request, data: Dataset) -> Job:
    """Learn from what is public, which takes long; then teachers correct it."""
    _require_no_votes(request)
    data, labelled, pool = _volumes_apart(request, data)
    plan = methods.maps_plan(request, len(pool.x), persons=data.groups is not None)
    answer: dict[str, Any] = screen.priced(plan, request.delta)
    spec = "unet" if request.model == "linear" else str(request.model)

    def run(opened: Opened) -> Result:
        kept = _paid(opened, answer)
        start = _start(spec, data, labelled, pool)
        settled = replace(plan, aggregate=Ball(start.radius))
        answer["plan"] = settled.to_json() | settled.noise_figures()
        screen.notes.print(
            f"plan: {settled.queries} volumes to {settled.teachers} teachers, noise of "
            f"{_noise_in_radii(settled):.4g} radii on each of {start.corrections.size} numbers, "
            f"epsilon {readable(answer['epsilon'])} at delta {request.delta:g} "
            f"({answer['adjacency']})"
        )
        with _warned_before(), screen.progress_bar("training", "teachers") as progress:
            result = pate(
                settled,
                start.correcting(start.teachers(data, settled.teachers, folder=kept.folder)),
                start.reducer,
                pool,
                start.student(settled),
                ledger=opened.ledger,
                streams=opened.streams(),
                progress=progress,
                keep=kept.answers,
            )
        answer["answered"] = settled.queries
        return _with_start(result, data, start, answer)

    cautions = (
        *hollow(request.epsilon, request.delta, request.examples or data.examples),
        *seed_warning(request),
        *methods.votes_warnings(plan, request.examples),
    )
    return Job(
        data, answer, None, cautions, spec, run, lambda result: _maps_rows(result, data, answer)
    )


def _start(spec: str, data: Dataset, labelled: Dataset, pool: Dataset) -> Start:
    """What is learned from public volumes, by one public seed: a run that is resumed begins with
    the same network.
    """
    size = tuple(np.shape(data.y)[1:])
    built = network(spec, tuple(np.shape(data.x)[1:]), data.classes or 0, Streams.new(0), size)
    screen.notes.print(
        f"a public network is trained first, on {starting.volumes(len(labelled.x))} with masks"
    )
    return Start.learn(labelled, pool, built)


def _noise_in_radii(plan: PatePlan) -> float:
    """The noise on each number of the mean of codes, over the radius that codes are clipped to."""
    assert isinstance(plan.aggregate, Ball)
    return plan.noise_std / plan.aggregate.radius


def _with_start(result: Result, data: Dataset, start: Start, answer: dict[str, Any]) -> Result:
    """The result with what is public of its start, for the certificate; its figures go into the
    answer, too.
    """
    facts = {"volumes_with_masks": len(start.labelled.x), "student_began_as_it": True}
    facts |= starting.figures_of(start.network, data, answer)
    own = result.facts | {"public_start": facts}
    return replace(result, facts=own, architecture=result.architecture | data.origin())


def _maps_rows(result: Result, data: Dataset, answer: dict[str, Any]) -> dict[str, str]:
    """What is said beside the student's figures."""
    rows = starting.beside(result, data, answer, "student's", "answers")
    return rows | {
        "teachers": f"{answer['plan']['teachers']}, asked about {answer['plan']['queries']} volumes"
    }


def _require_no_votes(request: Request) -> None:
    for name in ("teacher", "threshold", "answers", "epochs", "learning_rate"):
        if request.given(name):
            raise BadInput(
                f"--{name.replace('_', '-')} is for votes on classes, and the targets are maps of "
                "them: leave it out"
            )


def _volumes_apart(request: Request, data: Dataset) -> tuple[Dataset, Dataset, Dataset]:
    """The data with the volumes to test on, the public volumes with masks, and those to ask
    about.
    """
    if request.public is None:
        if data.name != "hippocampus":
            raise BadInput(
                "teachers correct a public network on public volumes: give --public PATH, an .npz "
                "with x and y, volumes with masks, and x_test, those to ask about"
            )
        own = hippocampus.split(data)
        return replace(data, x_test=own.test.x, y_test=own.test.y), own.labelled, own.pool
    public = public_rows(request, data)
    if public.x_test is None:
        raise BadInput(
            f"{request.public} has no x_test: expected the public volumes that teachers are asked "
            "about"
        )
    if public.y is None:
        raise BadInput(
            f"{request.public} has no y: expected the masks of x, which the public network learns "
            "from"
        )
    pool = replace(public, x=public.x_test, y=None, x_test=None, y_test=None)
    return data, replace(public, x_test=None, y_test=None), pool
