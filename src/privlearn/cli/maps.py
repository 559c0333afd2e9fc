"""`privlearn train --method pate` on maps of classes: teachers correct a public U-Net, and a student is published."""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from privlearn.cli import screen, training, voting
from privlearn.cli.ensemble import ANSWERS, say_what_is_left, streams_of
from privlearn.cli.planning import delta_warning, guaranteed
from privlearn.cli.publication import Publication
from privlearn.data import Dataset, volumes
from privlearn.errors import BadInput
from privlearn.methods.ensemble.plan import PatePlan
from privlearn.methods.pate import pate
from privlearn.models import Scale
from privlearn.rng import Streams
from privlearn.segmentation import Start

#: How many teachers share the private volumes; and how many public volumes they are asked about.
_TEACHERS, _QUERIES = 32, 20


def run(options: argparse.Namespace, data: Dataset, publication: Publication, folder: Path) -> int:
    """Learn from what is public, train teachers, ask them, teach a student and publish it.

    Args:
        options: what was given.
        data: the private volumes, and those to test on.
        publication: where it goes.
        folder: what an interrupted run goes on from.
    """
    _require_no_votes(options)
    data, labelled, pool = _parts(options, data)
    shape, classes = tuple(np.shape(data.x)[1:]), data.classes or 0
    spec = "unet" if options.model == "linear" else str(options.model)
    # Everything public is made by one public seed: a run that is resumed begins with the same network.
    network = training.network(spec, shape, classes, Streams.new(0), tuple(np.shape(data.y)[1:]))
    screen.asides.print(f"{len(labelled.x)} public volumes with masks teach a network that all begins with")
    start = Start.learn(labelled, pool, network)
    plan = start.plan(
        min(_QUERIES, len(pool.x)) if options.queries is None else options.queries,
        _TEACHERS if options.teachers is None else options.teachers,
    )
    plan = voting.settled(options, plan, persons=data.groups is not None)
    answer = guaranteed(plan.guarantees(options.delta)) | {"plan": plan.describe() | {"noise_std": plan.noise_std}}
    publication.warn(*delta_warning(options, options.examples or data.examples), *training.seed_warning(options))
    screen.asides.print(
        f"plan: {plan.queries} volumes to {plan.teachers} teachers, noise of {plan.noise_std / start.radius:.4g} radii on "
        f"each of {start.corrections.size} numbers, epsilon {answer['epsilon']:.4f} at delta {options.delta:g} "
        f"({answer['adjacency']})"
    )
    try:
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
        rows = _beside(data, start, plan, answer)
        publication.end(result, data, answer, rows, spec)
    except BaseException:
        say_what_is_left(folder, None if options.resume else answer["epsilon"])
        raise
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _beside(data: Dataset, start: Start, plan: PatePlan, answer: dict[str, Any]) -> dict[str, str]:
    """What is said beside the student's figures; the public network's own go into the answer, too."""
    answer["answered"] = plan.queries
    rows = {"teachers": f"{plan.teachers}, asked about {plan.queries} volumes"}
    if data.x_test is not None:
        alone = training.test_metrics(nn.Sequential(Scale(*data.bounds()), start.network), data)
        answer["public_only"] = alone
        rows["public volumes alone"] = f"a Dice of {alone['dice']:.4f}: what no private volume was needed for"
    return rows


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
                "masks, and x_test and y_test, those to ask about (their masks are not looked at)"
            )
        own = volumes.split(data)
        return replace(data, x_test=own.test.x, y_test=own.test.y), own.labelled, own.pool
    public = training.public_rows(options, data)
    if public.x_test is None:
        raise BadInput(f"{options.public} has no x_test: expected the public volumes that teachers are asked about")
    pool = replace(public, x=public.x_test, y=public.y_test, x_test=None, y_test=None)
    return data, replace(public, x_test=None, y_test=None), pool
