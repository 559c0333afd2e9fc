"""`--method pate` on maps of classes: teachers segment public volumes; a student is published."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from privlearn.cli import methods, screen
from privlearn.cli.jobs import Job, Opened, public_rows, seed_warning
from privlearn.cli.pate import kept_and_paid, warned_before
from privlearn.cli.request import Request
from privlearn.core.accounting.guarantee import hollow, readable
from privlearn.data import Dataset
from privlearn.errors import BadInput
from privlearn.methods.pate.plan import Ball, PatePlan
from privlearn.runs.result import Result
from privlearn.training.train import facts_of
from privlearn_segmentation import hippocampus
from privlearn_segmentation.codes import MapCodes
from privlearn_segmentation.correcting import correct, learn_start, spec_of
from privlearn_segmentation.pages import starting
from privlearn_segmentation.pages.costs import VOLUMES
from privlearn_segmentation.plan import settle_corrections
from privlearn_segmentation.start import Start


def corrections_job(request: Request, data: Dataset) -> Job:
    """Learn from what is public, which takes long; then ask teachers."""
    _require_no_votes(request)
    data, labelled, pool = _volumes_apart(request, data)
    public = replace(labelled, x_test=pool.x)
    options = methods.named_options(request, public=public)
    plan = settle_corrections(options, facts_of(data, request.examples))
    answer: dict[str, Any] = screen.priced(plan, request.delta)
    spec = spec_of(request.model)

    def run(opened: Opened) -> Result:
        folder = kept_and_paid(opened, answer)
        screen.notes.print(
            f"a public network is trained first, on {starting.volumes(len(labelled.x))} with masks"
        )
        start = learn_start(spec, data, labelled, pool)
        codes = MapCodes.choose(request.codes, plan, start)
        settled = codes.plan
        answer["plan"] = settled.to_json() | settled.noise_figures()
        screen.notes.print(
            f"plan: {settled.queries} volumes to {settled.teachers} teachers, noise of "
            f"{_noise_in_radii(settled):.4g} radii on each of {codes.reducer.size} numbers, "
            f"epsilon {readable(answer['epsilon'])} at delta {request.delta:g} "
            f"({answer['adjacency']})"
        )
        with warned_before(), screen.progress_bar("training", "teachers") as progress:
            result = correct(
                codes,
                data,
                pool,
                start,
                ledger=opened.ledger,
                streams=opened.streams(),
                run_folder=folder,
                progress=progress,
            )
        answer["answered"] = settled.queries
        return _with_start(result, data, start, answer)

    examples = methods.public_examples(request, plan, data)
    cautions = (
        *hollow(request.epsilon, request.delta, examples),
        *seed_warning(request),
        *methods.votes_warnings(plan, examples, least=VOLUMES),
    )
    return Job(
        data, answer, None, cautions, spec, run, lambda result: _maps_rows(result, data, answer)
    )


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
    all_facts = result.facts | {"public_start": facts}
    return replace(result, facts=all_facts, architecture=result.architecture | data.origin())


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
        parts = hippocampus.split(data)
        return replace(data, x_test=parts.test.x, y_test=parts.test.y), parts.labelled, parts.pool
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
