"""`privlearn train --method pate` on maps of classes: teachers correct a public U-Net, and a student is published."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from privlearn.cli import screen, training, voting
from privlearn.cli.ensemble import ANSWERS, say_what_is_left, streams_of
from privlearn.cli.planning import delta_warning, guaranteed
from privlearn.cli.publication import Publication
from privlearn.data import Dataset, hippocampus
from privlearn.errors import BadInput
from privlearn.runs.result import Result
from privlearn.streams import Streams
from privlearn.teachers.pate import pate
from privlearn.teachers.plan import Ball, PatePlan
from privlearn.transforms.modules import Scale
from privlearn.volumes import Start

#: How many teachers share the private volumes; and how many public volumes they are asked about.
_TEACHERS, _QUERIES = 32, 20
#: Radii of noise on each number, above which a warning is due.
_DROWNS = 1.0


def run(options: argparse.Namespace, data: Dataset, publication: Publication, folder: Path) -> int:
    """Learn from what is public, train teachers, ask them, teach a student and publish it.

    Args:
        options: what was given.
        data: the private volumes, and those to test on.
        publication: where it goes.
        folder: what an interrupted run goes on from.
    """
    answer: dict[str, Any] = {}
    try:
        _run(options, data, publication, folder, answer)
    except BaseException as error:
        say_what_is_left(folder, None if options.resume else answer.get("epsilon"), error)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _run(
    options: argparse.Namespace, data: Dataset, publication: Publication, folder: Path, answer: dict[str, Any]
) -> None:
    """As `run`, but for what is left; `answer` is completed as figures are known."""
    _require_no_votes(options)
    data, labelled, pool = _parts(options, data)
    plan = _plan(options, len(pool.x), persons=data.groups is not None)
    answer |= guaranteed(plan.guarantees(options.delta))
    publication.warn(
        *delta_warning(options, options.examples or data.examples), *training.seed_warning(options),
        *_warnings(plan, options.examples),
    )  # fmt: skip
    shape, classes = tuple(np.shape(data.x)[1:]), data.classes or 0
    spec = "unet" if options.model == "linear" else str(options.model)
    # Everything public is made by one public seed: a run that is resumed begins with the same network.
    network = training.network(spec, shape, classes, Streams.new(0), tuple(np.shape(data.y)[1:]))
    screen.asides.print(f"a public network is trained first, on {_volumes(len(labelled.x))} with masks")
    start = Start.learn(labelled, pool, network)
    plan = replace(plan, aggregate=Ball(start.radius))
    answer |= {"plan": plan.to_json() | plan.noise_figures()}
    screen.asides.print(
        f"plan: {plan.queries} volumes to {plan.teachers} teachers, noise of {_noise_in_radii(plan):.4g} radii on each of "
        f"{start.corrections.size} numbers, epsilon {answer['epsilon']:.4f} at delta {options.delta:g} ({answer['adjacency']})"
    )
    with screen.progress_bar("training", "teachers") as progress:
        result = pate(
            plan,
            start.correcting(start.teachers(data, plan.teachers, folder=folder)),
            start.reducer,
            pool,
            start.student(plan),
            ledger=publication.ledger,
            streams=streams_of(options, folder),
            progress=progress,
            keep=folder / ANSWERS,
        )
    answer["answered"] = plan.queries
    result, rows = _beside(result, data, start, answer)
    publication.end(result, data, answer, rows, spec)


def _plan(options: argparse.Namespace, pool: int, persons: bool) -> PatePlan:
    """The plan, settled, but for the radius, which the public network will tell: codes are in a ball of radius 1 until then.

    Noise multipliers and costs don't depend on it, so that all that can be refused is refused before anything is trained.
    """
    queries = min(_QUERIES, pool) if options.queries is None else options.queries
    if queries > pool:
        raise BadInput(
            f"--queries is {queries}, and there are {pool} public volumes to ask about: ask about all of them at most, "
            f"--queries {pool}"
        )
    plan = PatePlan(queries, _TEACHERS if options.teachers is None else options.teachers, Ball(1.0))
    return voting.settled(options, plan, persons)


def _noise_in_radii(plan: PatePlan) -> float:
    """The noise on each number of the mean of codes, over the radius that codes are clipped to."""
    assert isinstance(plan.aggregate, Ball)
    return plan.noise_std / plan.aggregate.radius


def _warnings(plan: PatePlan, examples: int | None) -> Iterator[str]:
    """What is allowed, and hardly ever meant; from public numbers alone."""
    if (noise := _noise_in_radii(plan)) > _DROWNS:
        yield (
            f"the noise on each number of an answer, {noise:.2f} radii, is larger than any whole answer may be, and drowns "
            "what teachers say. More teachers help (twice as many, half the noise), fewer queries, or a larger epsilon"
        )
    yield from voting.crowded(plan.teachers, examples)


def _volumes(number: int) -> str:
    return "1 public volume" if number == 1 else f"{number} public volumes"


def _beside(result: Result, data: Dataset, start: Start, answer: dict[str, Any]) -> tuple[Result, dict[str, str]]:
    """The result with what is public of its start, for the certificate, and what is said beside the student's figures.

    The public network's own figures go into the answer, too.
    """
    facts: dict[str, Any] = {"volumes_with_masks": len(start.labelled.x), "student_began_as_it": True}
    rows = {}
    if data.x_test is not None:
        alone = training.test_metrics(nn.Sequential(Scale(*data.bounds()), start.network), data)
        own = training.test_metrics(result.model, data)
        facts |= {"test_metrics": alone, "test_rows": len(data.x_test)}
        answer["public_only"] = alone
        rows["public network alone"] = f"{alone['dice']:.4f}, which no private volume was needed for"
        if own["dice"] <= alone["dice"]:
            screen.warn(
                f"the student's Dice of {own['dice']:.4f} is not above the {alone['dice']:.4f} of the public network alone: "
                "on the test volumes the private answers brought nothing. The public network costs no privacy"
            )
    rows["teachers"] = f"{answer['plan']['teachers']}, asked about {answer['plan']['queries']} volumes"
    return replace(result, facts=result.facts | {"public_start": facts}), rows


def _require_no_votes(options: argparse.Namespace) -> None:
    for name in ("teacher", "threshold", "answers", "epochs", "learning_rate"):
        if getattr(options, name) is not None:
            raise BadInput(
                f"--{name.replace('_', '-')} is for votes on classes, and the targets are maps of them: leave it out"
            )


def _parts(options: argparse.Namespace, data: Dataset) -> tuple[Dataset, Dataset, Dataset]:
    """The data with the volumes to test on, the public volumes with masks, and those to ask about."""
    if options.public is None:
        if data.name != "hippocampus":
            raise BadInput(
                "teachers correct a public network on public volumes: give --public PATH, an .npz with x and y, volumes with "
                "masks, and x_test, those to ask about"
            )
        own = hippocampus.split(data)
        return replace(data, x_test=own.test.x, y_test=own.test.y), own.labelled, own.pool
    public = training.public_rows(options, data)
    if public.x_test is None:
        raise BadInput(f"{options.public} has no x_test: expected the public volumes that teachers are asked about")
    pool = replace(public, x=public.x_test, y=None, x_test=None, y_test=None)
    return data, replace(public, x_test=None, y_test=None), pool
