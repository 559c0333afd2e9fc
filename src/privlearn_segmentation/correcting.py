"""A run of segmentation by options: teachers segment public volumes, and a public network goes on
as their student.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from privlearn.core.accounting.ledger import Ledger
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from privlearn.methods.pate import KeptFolder
from privlearn.methods.pate.pate import pate
from privlearn.methods.pate.plan import PatePlan
from privlearn.runs.result import Result
from privlearn.training.train import network
from privlearn_segmentation.codes import MapCodes
from privlearn_segmentation.start import Start


def train_by_corrections(
    plan: PatePlan, data: Dataset, options: Any, *, ledger: Ledger | None, streams: Streams
) -> Result:
    """Learn from public volumes with masks first; then teachers segment others, their maps are
    released as codes, and the public network goes on as their student.

    Args:
        plan: with its noise, but for the radius.
        data: the volumes, with maps of classes.
        options: by name; `public` are public volumes with masks, and in `x_test` those to ask
            about.
        ledger: what to charge; None: a new one.
        streams: the random streams.

    Raises:
        BadInput: no such public volumes, or anything that `pv.pate` refuses.
    """
    labelled, pool = public_parts(options.public)
    spec = spec_of(options.model)
    start = learn_start(spec, data, labelled, pool)
    codes = MapCodes.choose(options.codes, plan, start)
    result = correct(codes, data, pool, start, ledger=ledger, streams=streams)
    facts = {"volumes_with_masks": len(labelled.x), "student_began_as_it": True}
    return replace(
        result,
        facts=result.facts | {"public_start": facts},
        architecture=result.architecture | data.origin(),
        model_spec=spec,
        classes=data.classes,
    )


def public_parts(public: Any) -> tuple[Dataset, Dataset]:
    """The public volumes with masks, and those to ask about.

    Raises:
        BadInput: they are missing, or were not declared public.
    """
    if not isinstance(public, Dataset) or not public.public or public.x_test is None:
        raise BadInput(
            "teachers correct a public network on public volumes: give public=pv.Dataset(x, y, "
            "x_test, public=True), volumes with masks, and in x_test those to ask about"
        )
    if public.y is None:
        raise BadInput(
            "the public volumes have no masks, which the public network learns from: give y, too"
        )
    pool = replace(public, x=public.x_test, y=None, x_test=None, y_test=None)
    return replace(public, x_test=None, y_test=None), pool


def spec_of(model: str) -> str:
    """The network: a U-Net, where none is chosen."""
    return "unet" if model == "linear" else str(model)


def learn_start(spec: str, data: Dataset, labelled: Dataset, pool: Dataset) -> Start:
    """What is learned from public volumes, by one public seed: a run that is resumed begins with
    the same network.
    """
    size = tuple(np.shape(data.y)[1:])
    built = network(spec, tuple(np.shape(data.x)[1:]), data.classes or 0, Streams.new(0), size)
    return Start.learn(labelled, pool, built)


def correct(
    codes: MapCodes,
    data: Dataset,
    pool: Dataset,
    start: Start,
    *,
    ledger: Ledger | None,
    streams: Streams,
    run_folder: KeptFolder | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Ask teachers for maps, release these as codes, and train the student on them.

    Args:
        codes: of maps, with the plan.
        data: the volumes, with maps of classes.
        pool: the public volumes to ask about.
        start: what was learned from public volumes.
        ledger: what to charge; None: a new one.
        streams: the random streams.
        run_folder: the folder to keep teachers and their answers in.
        progress: called with how many teachers are trained, and how many there are.
    """
    folder = None if run_folder is None else run_folder.folder
    return pate(
        codes.plan,
        codes.answering(start.teachers(data, codes.plan.teachers, folder=folder)),
        codes.reducer,
        pool,
        codes.student(),
        ledger=ledger,
        streams=streams,
        progress=progress,
        keep=None if run_folder is None else run_folder.answers,
    )
