"""Public encoders that packages ship, on CIFAR-10 and on slices of the hippocampus, beside the same
defaults with other features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from privlearn._storage import cache
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.data.named import load
from privlearn.runs.front import Front
from privlearn.training.train import train as train_by_default
from privlearn.transforms import feature_cache, read_features, usual
from privlearn.transforms.packaged import PREFIX, SHIPPED, Packaged
from privlearn_segmentation.hippocampus import LABELLED, POOL
from privlearn_studies.charts import CYCLE, Across, Curve, Figure, Mark, Panel
from privlearn_studies.report import Findings, each, mean, mean_row, page, spread, table
from privlearn_studies.runs import Call, Outcome, Runs, cached

EPSILONS = (0.5, 1.0, 3.0, 8.0)
CIFAR, SLICES = "cifar10", "hippocampus slices"
#: A chance that the guarantee allows, of 50,000 images and of 180 patients.
DELTAS = {CIFAR: 1e-5, SLICES: 1e-3}
#: Features that are usual for such rows, without public data.
USUAL = "usual"
ENCODERS = (f"{PREFIX}mobilenet-v2", f"{PREFIX}vgg16")
_SEEDS, _QUICK_SEEDS = 10, 1
#: A slice with fewer voxels of the hippocampus shows none of it.
_LEAST = 5
_NONE, _PARTS = 0, 2
_TEST = "test accuracy"


#: So many training images of CIFAR-10, the last: all of them would take an hour to be seen.
IMAGES = 20_000


@lru_cache(maxsize=2)
def rows_of(data: str, number: int | None = None) -> Dataset:
    """The rows of a data set, or the last so many, or the slices of the last so many patients.

    Slices are coronal, of 20 x 20 voxels of 2 mm; their class is the part of the hippocampus that
    most of the labelled voxels are of: none, anterior or posterior. Each patient has 28.
    """
    if data != SLICES:
        whole = load(data)
        last = slice(None if number is None else -number, None)
        return replace(whole, x=whole.x[last], y=whole.y[last])
    volumes = load("hippocampus")
    assert volumes.x_test is not None
    tested = slice(LABELLED + POOL, None)
    last = slice(None if number is None else -number, None)
    x, y = _slices(np.asarray(volumes.x)[last], np.asarray(volumes.y)[last])
    x_test, y_test = _slices(np.asarray(volumes.x_test)[tested], np.asarray(volumes.y_test)[tested])
    persons = np.arange(len(x)) // volumes.x.shape[3]
    return Dataset(x, y, x_test, y_test, classes=3, low=0.0, high=1.0, name=SLICES, groups=persons)


def _slices(x: NDArray[Any], masks: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Coronal slices of volumes (volumes, 1, width, length, height), in the volumes' order."""
    voxels = np.stack([(masks == 1 + part).sum((1, 3)) for part in range(_PARTS)], -1)
    labels = np.where(voxels.sum(-1) < _LEAST, _NONE, 1 + voxels.argmax(-1))
    slices = np.moveaxis(x[:, 0], 2, 1)
    return np.ascontiguousarray(slices.reshape(-1, *slices.shape[2:])), labels.reshape(-1)


@cached("public-encoders")
def train(
    seed: int, *, data: str, epsilon: float, features: str = USUAL, number: int | None = None
) -> dict[str, Any]:
    """One linear model by the library's defaults behind some public features.

    Args:
        seed: of batches, noise and the start.
        data: `CIFAR` or `SLICES`, of which an example is a patient with all slices.
        epsilon: the target.
        features: their spec, or `USUAL`.
        number: how many training images, or patients, the last; None: all.

    Returns:
        accuracy: on the test rows.
        epsilon: what the ledger says was spent.
        majority: accuracy of the class that most training rows are of.
    """
    rows = rows_of(data, number)
    spec = features
    if features == USUAL:
        shape = np.shape(rows.x)[1:]
        spec = usual(shape, rows.low, rows.examples * epsilon) or "raw"
    options: dict[str, Any] = {} if rows.groups is None else {"rows_per_person": _most_rows(rows)}
    chain, _ = read_features(spec, rows)
    with feature_cache(cache() / "features"):
        front = Front(chain, rows, rows.test_tensors()[0])
        result = train_by_default(
            rows,
            epsilon=epsilon,
            delta=DELTAS[data],
            examples=rows.examples,
            features=spec,
            streams=Streams.new(seed),
            **options,
        )
    behind = nn.Sequential(*list(result.model.children())[len(front.modules) :])
    with torch.no_grad():
        said = torch.cat([behind(part).argmax(1) for part in front.rows.split(2048)])  # type: ignore[no-untyped-call]
    y, y_test = (np.asarray(part).astype(np.int64) for part in (rows.y, rows.y_test))
    return {
        "accuracy": float(np.mean(said.numpy() == y_test)),
        "epsilon": result.ledger.guarantee(DELTAS[data]).epsilon,
        "majority": float(np.mean(y_test == np.bincount(y).argmax())),
    }


def _most_rows(rows: Dataset) -> int:
    return int(np.bincount(np.asarray(rows.groups)).max())


def are_installed(encoders: Sequence[str]) -> list[str]:
    """Those of the specs whose package is installed with the weights that are known."""
    from privlearn.errors import BadInput

    installed = []
    for spec in encoders:
        try:
            Packaged.parse(spec).shipped.read()
        except BadInput:
            continue
        installed.append(spec)
    return installed


def grid(quick: bool = False) -> list[Call]:
    """Encoders on CIFAR-10, and on slices with the features that are usual beside them. In short,
    those on slices whose package is installed.
    """
    if quick:
        specs = (USUAL, *are_installed(ENCODERS[:1]))
        return [train.at(data=SLICES, epsilon=8.0, features=spec, number=60) for spec in specs]
    cells = [(CIFAR, spec) for spec in ENCODERS]
    cells += [(SLICES, spec) for spec in (USUAL, *ENCODERS)]
    return [
        train.at(
            data=data,
            epsilon=epsilon,
            features=spec,
            number=None if data == SLICES else IMAGES,
        )
        for data, spec in cells
        for epsilon in EPSILONS
    ]


def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Every encoder at every target."""
    numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
    calls = grid(quick)
    outcomes = runs(calls, numbers)
    rows = [mean_row(_label(call), _TEST, each(outcomes[call], "accuracy")) for call in calls]
    rows += [
        mean_row(
            _label(call),
            f"epsilon spent, at delta {DELTAS[call.data]:g}",
            each(outcomes[call], "epsilon"),
        )
        for call in calls
    ]
    panels = [_panel(name, outcomes) for name in dict.fromkeys(_task(call) for call in calls)]
    figure = Figure("linear models by default behind public features", panels, 11, 5, 2, legend=3)
    notes = page(
        "public-encoders",
        seeds=f"{len(numbers)} seed{'s' if len(numbers) > 1 else ''}",
        table=_table(outcomes),
        encoders=_shipped(),
        images="" if quick else page("public-encoders-parts:images", number=f"{IMAGES:,}"),
        read="" if quick else page("public-encoders-parts:read"),
    )
    return Findings(tuple(rows), figure, notes)


def _task(call: Call) -> str:
    return str(call.data)


def _way(call: Call) -> str:
    return "usual, no public data" if call.features == USUAL else str(call.features)


def _label(call: Call) -> str:
    return f"{_task(call)}, epsilon {call.epsilon:g}, {_way(call)}"


def _table(by_call: dict[Call, list[Outcome]]) -> str:
    epsilons = sorted({call.epsilon for call in by_call})
    heads = ("data", "features", *(f"epsilon {epsilon:g}" for epsilon in epsilons))
    lines = []
    for task, way in dict.fromkeys((_task(call), _way(call)) for call in by_call):
        reached = {
            call.epsilon: spread(each(outcomes, "accuracy"), 3)
            for call, outcomes in by_call.items()
            if (_task(call), _way(call)) == (task, way)
        }
        lines.append((task, way, *(reached.get(epsilon, "–") for epsilon in epsilons)))
    return table(heads, lines)


def _shipped() -> str:
    """The encoders that are known, as a table."""
    lines = [
        (name, f"{one.package} {one.version}", f"{one.features:,}", one.licence, one.trained_on)
        for name, one in SHIPPED.items()
    ]
    return table(("encoder", "package", "features", "licence", "trained on"), lines)


def _panel(task: str, by_call: dict[Call, list[Outcome]]) -> Panel:
    drawn: list[Mark] = []
    mine = {call: outcomes for call, outcomes in by_call.items() if _task(call) == task}
    for colour, way in zip(CYCLE, dict.fromkeys(map(_way, mine)), strict=False):
        points = {
            call.epsilon: each(outcomes, "accuracy")
            for call, outcomes in mine.items()
            if _way(call) == way
        }
        places = sorted(points)
        drawn.append(Curve(places, [points[at] for at in places], way, colour, "o-", "range"))
    majority = mean(each(next(iter(mine.values())), "majority"))
    drawn.append(Across(majority, "majority class", line=":", width=1.5))
    return Panel(drawn, "epsilon", _TEST, task, "x2", xticks=EPSILONS, legend="below")
