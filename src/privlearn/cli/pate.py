"""`--method pate`: teachers vote on public inputs, predict numbers for them, or correct public
maps; their student is published.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, final

from privlearn.cli import methods, screen
from privlearn.cli.jobs import Job, Opened, has_maps, public_rows, seed_warning
from privlearn.cli.request import Request
from privlearn.core.accounting.guarantee import hollow, readable
from privlearn.core.streams import Streams
from privlearn.data import NAMES, Dataset
from privlearn.errors import BadInput
from privlearn.methods.pate import KeptFolder
from privlearn.methods.pate.answering import settle_answers, train_by_answers
from privlearn.methods.pate.plan import PatePlan
from privlearn.publishing.verify import verify
from privlearn.runs.result import Result
from privlearn.training.train import facts_of


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


def kept_and_paid(opened: Opened, answer: dict[str, Any]) -> KeptFolder:
    """Where the run is kept; what is said of it when it is interrupted knows what its answers cost,
    if they do.
    """
    teachers = cast(KeptTeachers, opened.kept)
    teachers.epsilon = None if teachers.resumed else answer["epsilon"]
    return teachers.kept


@contextmanager
def warned_before() -> Iterator[None]:
    """A block that does not repeat the warnings that were printed before the run."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the (noise|threshold) o")
        yield


# Votes on classes, and codes of numbers


@contextmanager
def pate_job(request: Request, data: Dataset) -> Iterator[Job]:
    """Teachers who vote on classes, predict numbers, or correct maps of classes."""
    if has_maps(data):
        yield methods.map_pages().corrections_job(request, data)
    else:
        yield answers_job(request, data)


def answers_job(request: Request, data: Dataset) -> Job:
    """Teachers who vote on classes, or predict numbers."""
    methods.require_no_codes(request)
    data, pool = _apart(request, data)
    options = methods.named_options(request, public=pool)
    plan = settle_answers(options, facts_of(data, request.examples))
    numbers = data.classes is None
    answer = _code_figures(plan, request) if numbers else methods.votes_figures(plan, request.delta)
    examples = methods.public_examples(request, plan, data)
    cautions = (
        *hollow(request.epsilon, request.delta, examples),
        *seed_warning(request),
        *methods.votes_warnings(plan, examples),
    )

    def run(opened: Opened) -> Result:
        folder = kept_and_paid(opened, answer)
        with warned_before(), screen.progress_bar("training", "teachers") as progress:
            return train_by_answers(
                plan,
                data,
                options,
                ledger=opened.ledger,
                streams=opened.streams(),
                run_folder=folder,
                progress=progress,
            )

    def rows(result: Result) -> dict[str, str]:
        answer["answered"] = result.facts["answered"]
        return {
            "teachers": (
                f"{plan.teachers}, asked {plan.queries} queries, {answer['answered']} answered"
            )
        }

    if numbers:
        screen.notes.print(_describe_codes(plan, pool))
    if request.queries is None:
        screen.notes.print(
            f"--queries: {plan.queries} of the {len(pool.x)} public inputs are asked about"
        )
    unit = "on each number of a code" if numbers else "votes"
    return Job(
        data,
        answer,
        f"{plan.queries} queries to {plan.teachers} teachers, noise of {plan.noise_std:.4g} "
        f"{unit}, "
        f"epsilon {readable(answer['epsilon'])} at delta {request.delta:g} "
        f"({answer['adjacency']}){', for a person with all their rows' if plan.persons else ''}",
        cautions,
        request.model,
        run,
        rows,
    )


def _describe_codes(plan: PatePlan, pool: Dataset) -> str:
    """What teachers' numbers are released as, and how good an answer is at best."""
    if pool.y is not None:
        return (
            "answers are codes: principal components of the public rows' targets, those above the "
            "noise"
        )
    return (
        "answers are the numbers themselves, because the public rows have no targets to fit "
        f"principal components to: the noise on each is {plan.noise_std / 2:.1%} of its declared "
        "range. Tighter bounds lower it, and so do public rows with targets"
    )


def _code_figures(plan: PatePlan, request: Request) -> dict[str, Any]:
    """The guarantee of a plan for numbers, as the JSON object that scripts rely on."""
    numbers = plan.to_json() | plan.noise_figures()
    return screen.priced(plan, request.delta) | {"plan": numbers}


def _apart(request: Request, data: Dataset) -> tuple[Dataset, Dataset]:
    """The data with rows to test on, and the public inputs: of --public, or nine tenths of named
    data's test rows.
    """
    if request.public is not None:
        return data, public_rows(request, data)
    require_public(request)
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
