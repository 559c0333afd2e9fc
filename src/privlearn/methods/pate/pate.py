"""PATE: teachers on disjoint records answer public queries, noisily; a student learns from the
answers.

For targets of many numbers as Fay et al. (2020) do it, with codes that are clipped; for labels by
the Gaussian noisy max (Papernot et al. 2018), accounted for without a look at the votes. Asking is
what costs; teaching is free, and may be done as often as one likes.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from privlearn._checks import checked, require_fit
from privlearn._display import shortened
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.processes import require_one_process
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from privlearn.methods.pate.answers import (
    Answers,
    Noisy,
    Pool,
    empty,
    keep_answers,
    keep_received,
    new_question,
    of_pool,
    receive_answers,
    release_answers,
    require_count,
    sum_answers,
)
from privlearn.methods.pate.chances import drowned
from privlearn.methods.pate.ensemble import Teachers
from privlearn.methods.pate.plan import PatePlan
from privlearn.methods.pate.reducers import PublicPCA, Reducer
from privlearn.methods.pate.student import Student, StudentRecipe
from privlearn.methods.pate.sums import CodeSums, VoteCounts
from privlearn.methods.pate.trained import fingerprint
from privlearn.runs.checkpoint import Checkpoint, whole_text
from privlearn.runs.result import PrivateDiagnostics, Result
from privlearn.runs.row_digests import require_rows
from privlearn.runs.session import Session, warn_of_target

_REHEARSED = 12  # made-up answers that a student is tried on


def pate(
    plan: PatePlan,
    teachers: Teachers,
    reducer: Reducer | None,
    public_inputs: Dataset | Any,
    student: StudentRecipe,
    *,
    ledger: Ledger | None = None,
    streams: Streams | None = None,
    progress: Callable[[int, int], None] | None = None,
    keep: str | Path | None = None,
) -> Result:
    """Ask the teachers about public inputs, release their answers with noise, and train a student
    on them.

    It is `ask_teachers`, with its guarantee, and then `teach_student`. A `pv.teachers.Student` is
    first tried on a few made-up answers, so that most of its mistakes show before anything is
    spent.

    Args:
        plan, teachers, reducer, public_inputs, ledger, streams, progress, keep: as of
        `ask_teachers`.
        student: `pv.teachers.Student(...)`, or any function from `pv.teachers.Answers` to a trained
            module. A function is not tried beforehand: use `pv.teachers.Answers.made_up` for that,
            and `keep`, so that it can fail without loss.

    Raises:
        BudgetExceeded, BadInput: as `ask_teachers`; a student that fails on made-up answers, before
            anything is charged. Or a student that is none.
    """
    require_one_process("PATE")
    _require_kinds(plan, teachers, ledger, streams, progress)
    _require_student(student)
    if isinstance(student, Student):
        pool, _ = Pool.of(public_inputs, plan.queries), empty(plan, reducer)
        student = student.rehearsed(
            Answers.made_up(plan, reducer, pool.inputs[:_REHEARSED], queries=_REHEARSED)
        )
    answers = ask_teachers(
        plan,
        teachers,
        reducer,
        public_inputs,
        ledger=ledger,
        streams=streams,
        progress=progress,
        keep=keep,
    )
    return teach_student(answers, student)


def ask_teachers(
    plan: PatePlan,
    teachers: Teachers,
    reducer: Reducer | None,
    public_inputs: Dataset | Any,
    *,
    ledger: Ledger | None = None,
    streams: Streams | None = None,
    progress: Callable[[int, int], None] | None = None,
    keep: str | Path | None = None,
) -> Answers:
    """Ask the teachers about public inputs, and release their answers with noise.

    Guarantee: the answers, and so all that is made of them, are `plan.guarantee(delta)`-DP for the
    plan's adjacency and `plan.unit`, if each record is with one teacher. The ledger is charged
    exactly `plan.event()`: one Gaussian release for each query, before its noise is drawn (for
    `pv.teachers.ConfidentVotes` the limit that was fixed beforehand). Public inputs, and what
    reducer and student learn from them, are not protected. Teachers are trained before anything is
    charged; one without a usable answer counts as the reducer's `code_centre` (for votes: as none).

    Args:
        plan: how many queries, of how many teachers, and what noise.
        teachers: `pv.teachers.Trained(...)` or `pv.teachers.Given(...)`.
        reducer: from `pv.teachers`, fitted on public data; None for votes.
        public_inputs: inputs that are public, a row for each, or a `Dataset(..., public=True)`, of
            which the targets are not looked at. The first `plan.queries` are asked about; a student
            may learn from all.
        ledger: what to charge; by default a new one with the plan's budget.
        streams: the random streams; by default new ones, seeded by the operating system.
        progress: called with (teachers done, teachers in all).
        keep: a file in which answers are kept, in a folder that is there. If it holds some of the
            same plan, pool, teachers and reducer, no teacher is asked and no noise is drawn. A
            ledger in a file that was charged for them is not charged again; one in memory is, so it
            has to be a new one. While the teachers are asked the file is as secret as the records;
            when it has the answers it holds what was released, and nothing else.

    Raises:
        BudgetExceeded: the plan does not fit the ledger's budget; before any teacher is asked.
        BadInput: a threshold that no count of votes reaches, data that are not declared public, or
            are the teachers' own records; fewer inputs than queries, teachers that are not the
            plan's, a recipe that fails on made-up rows; before anything is charged. Or a file of
            another run.
    """
    require_one_process("PATE")
    _require_kinds(plan, teachers, ledger, streams, progress)
    require_fit("reducer", reducer, Reducer | None)
    pool = Pool.of(public_inputs, plan.reachable().queries)
    if plan.site_noise is not None:
        _require_sites(plan, teachers)
    teachers.require_others(pool.raw)
    _warn_of_noise(plan, reducer)
    ledger, streams = Ledger(plan.budget) if ledger is None else ledger, streams or Streams.new()
    queries, silent = pool.raw[: plan.queries], dict[str, int]()
    same = _facts(plan, teachers, reducer, pool)
    if streams.noise.secret is not None:
        streams.bind({**same, **teachers.determined(queries)})

    def receive(question: str) -> Noisy:
        noisy, silent["teachers_without_answers"] = receive_answers(
            plan, teachers, reducer, queries, ledger, question, progress
        )
        return noisy

    def sums() -> CodeSums | VoteCounts:
        total, silent["teachers_without_answers"] = sum_answers(
            plan, teachers, reducer, queries, streams, progress
        )
        return total

    if keep is None:
        session = Session(plan, ledger, streams)
        session.count_examples(teachers.examples, teachers.records)
        totals = sums() if plan.site_noise is None else None
        with session.charging():
            noisy = (
                receive(new_question())
                if totals is None
                else release_answers(plan, totals, reducer, ledger, streams)
            )
        answers = of_pool(plan, pool, ledger, noisy, streams)
    else:
        teachers.require_same(queries)
        warn_of_target(plan, ledger, teachers.examples)
        require_rows(ledger, teachers.records)
        file = Checkpoint(keep)
        answers = (
            keep_answers(plan, pool, sums, reducer, ledger, streams, file, same)
            if plan.site_noise is None
            else keep_received(plan, pool, receive, ledger, streams, file, same)
        )
    facts = _describe_asking(plan, teachers, reducer, pool, answers)
    return replace(answers, facts=facts, private_diagnostics=PrivateDiagnostics(silent))


def _describe_asking(
    plan: PatePlan, teachers: Teachers, reducer: Reducer | None, pool: Pool, answers: Answers
) -> dict[str, Any]:
    """Public values of the asking, for certificates."""
    return {
        **plan.noise_figures(),
        "answered": int(answers.answered.sum()),
        "public_inputs": len(pool.raw),
        "teacher": teachers.describe(),
        "reducer": None if reducer is None else reducer.describe(),
        "noise": "on a grid" if answers.discrete else "floating point",
    }


@checked
def teach_student(answers: Answers, student: StudentRecipe) -> Result:
    """Train a student on answers that were released: post-processing, which costs nothing, however
    often it is done.

    Args:
        answers: what `ask_teachers` returned.
        student: `pv.teachers.Student(...)`, or any function from `pv.teachers.Answers` to a trained
            module.

    Raises:
        BadInput: a student that is none, or that can't learn from such answers. They are not lost.
    """
    if (
        not isinstance(answers, Answers)
        or answers.plan is None
        or answers.pool is None
        or answers.ledger is None
    ):
        raise BadInput(
            f"answers is {shortened(repr(answers), 60)}: expected what pv.teachers.ask_teachers "
            "returned"
        )
    _require_student(student)
    if isinstance(student, Student):
        student = student.settled(answers)
    network = student(answers)
    if not isinstance(network, nn.Module):
        raise BadInput(
            f"the student is a {type(network).__name__}: expected a trained torch.nn.Module"
        )
    plan, pool = answers.plan, answers.pool
    shapes = {
        "input_shape": list(pool.raw.shape[1:]),
        "network_input_shape": list(pool.inputs.shape[1:]),
    }
    return Result(
        model=nn.Sequential(*pool.transforms, network).eval(),
        ledger=answers.ledger,
        plan=plan,
        method="pate",
        facts={
            **answers.facts,
            "student": student.describe() if isinstance(student, Student) else None,
        },
        architecture=shapes,
        seeded=answers.seeded,
        private_diagnostics=answers.private_diagnostics,
    )


def _require_sites(plan: PatePlan, teachers: Teachers) -> None:
    """Refuse a plan of noise by the sites for teachers that are at none, too few or others."""
    require_count(plan, teachers)
    teachers.require_sites(plan.grid().needed)


def _warn_of_noise(plan: PatePlan, reducer: Reducer | None) -> None:
    """Say where noise drowns what the teachers answer, or components lie below it: from public
    numbers.
    """
    for text in drowned(plan):
        warnings.warn(text, stacklevel=3)
    if isinstance(reducer, PublicPCA) and reducer.best(plan.noise_std) < reducer.size:
        warnings.warn(
            f"{reducer.size - reducer.best(plan.noise_std)} of the {reducer.size} components have "
            "a variance below that of the noise, and bring more error than they take away: "
            f"pca.for_noise({plan.noise_std:.4g}), which is pca.for_noise(plan.noise_std), leaves "
            "them out",
            stacklevel=3,
        )


def _facts(
    plan: PatePlan, teachers: Teachers, reducer: Reducer | None, pool: Pool
) -> dict[str, str]:
    """What a run must have in common with answers that were kept: all of it public."""
    known = "none"
    if reducer is not None:
        origin = reducer.code_centre[None]
        known = (
            f"{reducer.describe()} "
            f"{fingerprint(reducer.centre, origin, reducer.decode(origin + 1))}"
        )
    return {
        "plan": whole_text(plan),
        "public inputs": fingerprint(pool.raw, pool.inputs),
        "teachers": json.dumps(teachers.describe()),
        "reducer": known,
    }


def _require_student(student: Any) -> None:
    if not callable(student):
        raise BadInput(
            f"student is {shortened(repr(student), 60)}: expected a pv.teachers.Student(...), or a "
            "function from pv.teachers.Answers to a trained module",
            name="student",
        )


def _require_kinds(plan: Any, teachers: Any, ledger: Any, streams: Any, progress: Any) -> None:
    """Refuse, before anything is done, arguments that are something else altogether."""
    account = all(
        callable(getattr(ledger, name, None))
        for name in ("require_room", "begin", "charge", "settle")
    )
    for name, value, fits, expected in (
        (
            "plan",
            plan,
            isinstance(plan, PatePlan),
            "a pv.teachers.PatePlan(queries, teachers, aggregate)",
        ),
        (
            "teachers",
            teachers,
            isinstance(teachers, Teachers),
            "pv.teachers.Trained(...) or pv.teachers.Given(...)",
        ),
        ("ledger", ledger, ledger is None or account, "a privlearn Ledger, or None for a new one"),
        (
            "streams",
            streams,
            streams is None or isinstance(streams, Streams),
            "Streams.new(), or None for new ones",
        ),
        (
            "progress",
            progress,
            progress is None or callable(progress),
            "a function of (done, all), or None",
        ),
    ):
        if not fits:
            raise BadInput(
                f"{name} is {shortened(repr(value), 60)}: expected {expected}", name=name
            )
