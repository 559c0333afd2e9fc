"""What other steps on the same noisy gradients bring, at equal epsilon and with equal tries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from privlearn._checks import one_of
from privlearn._storage import cache
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.data.named import load
from privlearn.metrics import of_classes, of_values
from privlearn.runs.front import Front
from privlearn.training.rules import Settled, learning_rate
from privlearn.training.train import fit, optimizer_kind, settle_for
from privlearn.transforms import feature_cache, read_features
from privlearn_studies.charts import CYCLE, Across, Curve, Figure, Panel
from privlearn_studies.report import (
    Findings,
    Row,
    each,
    interval,
    mean_row,
    page,
    signed,
    table,
    verdict,
)
from privlearn_studies.runs import Call, Outcome, Runs, cached
from privlearn_studies.six_tables.rows import TABLES
from privlearn_studies.six_tables.rows import table as split_of

DELTA, EPSILONS, EPOCHS, ROWS = 1e-5, (0.5, 1.0, 2.0, 4.0, 8.0), 30, 4000
#: A batch is this share of the rows.
SHARE = 5
IMAGES = {"mnist": "scatter:J=2,kept=300", "fashion-mnist": "scatter:J=2,kept=300"}
CIFAR, SEQUENCES = "cifar10-features", "sequences"
DATA = (*TABLES, *IMAGES, CIFAR, SEQUENCES)
#: Of the slower network fewer targets.
_FEWER: dict[str, tuple[float, ...]] = {SEQUENCES: (2.0, 8.0)}
_SEEDS, _QUICK_SEEDS, _QUICK_ROWS = 10, 2, 300
_TESTS, _CHOOSING = 5000, 1000
_SYMBOLS, _LENGTH, _KINDS, _WIDTH = 12, 24, 4, 16


@final
@dataclass(frozen=True)
class Way:
    """A way to descend.

    Attributes:
        options: of `train`.
        tries: optimizers with their numbers, and learning rates over the rule's.
    """

    options: Mapping[str, Any]
    tries: tuple[tuple[str, float], ...]


DEFAULT = "SGD"
WAYS = {
    DEFAULT: Way({}, tuple(("SGD", rate) for rate in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0))),
    "bands, momentum": Way(
        {"sampling": "cyclic-poisson", "mechanism": "banded:momentum=0.9", "momentum": 0.9},
        tuple(("SGD", rate) for rate in (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)),
    ),
    "DiSK": Way(
        {}, tuple((f"disk:kappa={k}", rate) for k in (0.5, 0.1) for rate in (0.7, 2.0, 6.0))
    ),
    "Adam": Way({}, tuple(("Adam", rate) for rate in (1 / 3, 1.0, 3.0, 10.0, 30.0, 100.0))),
    "DP-AdamBC": Way({}, tuple(("adambc", rate) for rate in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0))),
}
_Cell = tuple[str, float, str]
_Reached = dict[_Cell, list[Outcome]]


@final
class Encoder(nn.Module):
    """A transformer of one layer, with the mean over places behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(_SYMBOLS, _WIDTH)
        self.places = nn.Parameter(0.1 * torch.randn(_LENGTH, _WIDTH, device="cpu"))
        self.layer = nn.TransformerEncoderLayer(
            _WIDTH, 2, 2 * _WIDTH, dropout=0.0, batch_first=True
        )
        self.scores = nn.Linear(_WIDTH, _KINDS)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of rows of symbols."""
        inner = self.layer(self.symbols(x.long()) + self.places)
        scores: Tensor = self.scores(inner.mean(1))
        return scores


def encoder(shape: tuple[int, ...]) -> nn.Module:
    """The transformer, with initial weights that are the same for all runs."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return Encoder()


@lru_cache(maxsize=1)
def sequences() -> Dataset:
    """Sequences of symbols, drawn from one of four Markov chains each: which one is the class."""
    draw = np.random.default_rng(4)
    chains = np.stack([draw.dirichlet(np.full(_SYMBOLS, 0.3), _SYMBOLS) for _ in range(_KINDS)])
    number = ROWS + _TESTS
    y = draw.integers(_KINDS, size=number)
    x = np.zeros((number, _LENGTH), np.float32)
    x[:, 0] = draw.integers(_SYMBOLS, size=number)
    for place in range(1, _LENGTH):
        further = chains[y, x[:, place - 1].astype(int)].cumsum(1)
        x[:, place] = (draw.random(number)[:, None] > further).sum(1).clip(max=_SYMBOLS - 1)
    return Dataset(x[:ROWS], y[:ROWS], x[ROWS:], y[ROWS:], classes=_KINDS, name=SEQUENCES)


@lru_cache(maxsize=2)
def rows_of(data: str, first: int = ROWS) -> Dataset:
    """The first rows to train and to test on; images behind their public features."""
    if one_of("the data", data, DATA) in TABLES:
        split = split_of(data, first)
        rows = replace(split.data, target_bounds=split.target)
    else:
        rows = sequences() if data == SEQUENCES else load(data)
    parts = (rows.x[:first], rows.y[:first], rows.x_test[:_TESTS], rows.y_test[:_TESTS])
    x, y, x_test, y_test = (np.asarray(part) for part in parts)
    rows = replace(rows, x=x, y=y, x_test=x_test, y_test=y_test)
    if data not in IMAGES:
        return rows
    chain, rows = read_features(IMAGES[data], rows)
    with feature_cache(cache() / "features"):
        x, x_test = (
            Front(chain, rows, images).rows.flatten(1).numpy()
            for images in (rows.tensors()[0], rows.test_tensors()[0])
        )
    return Dataset(x, y, x_test, y_test, classes=rows.classes, name=data)


def _held_back(rows: Dataset) -> Dataset:
    """The last fifth of the training rows to judge by; the test rows are left out."""
    x, y = np.asarray(rows.x), np.asarray(rows.y)
    cut = len(x) - len(x) // 5
    return replace(rows, x=x[:cut], y=y[:cut], x_test=x[cut:], y_test=y[cut:])


@lru_cache(maxsize=8)
def _settled(
    data: str, epsilon: float, way: str, optimizer: str, held: bool, first: int, epochs: int
) -> tuple[Settled, Dataset]:
    rows = rows_of(data, first)
    rows = _held_back(rows) if held else rows
    number = len(np.asarray(rows.x))
    options: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": DELTA,
        "examples": number,
        "adjacency": Adjacency.ZERO_OUT.value,
        "batch_size": number // SHARE,
        "epochs": epochs,
        "temperature": 0.0,
        "optimizer": optimizer,
        **({"model": encoder} if data == SEQUENCES else {}),
        **({"features": "raw"} if data in IMAGES or data == SEQUENCES else {}),
    }
    return settle_for(rows, **options | dict(WAYS[way].options))


@cached("better-steps")
def train(
    seed: int,
    *,
    data: str,
    epsilon: float,
    way: str,
    optimizer: str,
    rate: float,
    held: bool = False,
    first: int = ROWS,
    epochs: int = EPOCHS,
) -> dict[str, Any]:
    """One model, zero-out neighbours.

    Args:
        seed: of batches and noise.
        data: one of `DATA`.
        epsilon: the target, at delta 1e-5.
        way: one of `WAYS`.
        optimizer: its name and numbers.
        rate: the learning rate at the start over that of the rule; it falls to 0.
        held: whether the last training rows are judged by, and not trained on; else the test rows
            are.
        first: how many training rows.
        epochs: of training.

    Returns:
        figure: AUC of two classes, accuracy of more, R2 of values.
        epsilon: what the ledger says was spent.
        noise: the noise multiplier.
    """
    one_of("the way", way, WAYS)
    settled, rows = _settled(data, epsilon, way, optimizer, held, first, epochs)
    length = math.sqrt(sum(float(w.detach().square().sum()) for w in encoder(()).parameters()))
    name, model = optimizer_kind(optimizer).__name__, settled.request.model
    if data in IMAGES:  # which are normalised row by row
        norm = math.sqrt(np.shape(rows.x)[1])
        usual = learning_rate(name, settled.plan, settled.facts.examples, model, length, norm)
    else:
        usual = settled.learning_rate(name, length)
    chosen = replace(settled, request=replace(settled.request, learning_rate=rate * usual))
    result = fit(chosen, rows, Streams.new(seed))
    with torch.no_grad():
        outputs = result.model(rows.test_tensors()[0]).double()
    return {
        "figure": _figure_of(rows, outputs),
        "epsilon": result.ledger.guarantee(DELTA).epsilon,
        "noise": settled.plan.noise_multipliers()[0],
    }


def _figure_of(rows: Dataset, outputs: Tensor) -> float:
    """What is compared: more is better."""
    y = np.asarray(rows.y_test)
    if rows.classes is None:
        return float(of_values(outputs[:, 0].numpy(), y.astype(np.float64)).figures["r2"])
    scores, name = outputs.softmax(1).numpy(), "auc" if rows.classes == 2 else "accuracy"
    return float(of_classes(scores, y.astype(np.int64)).figures[name])


def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Choose each way's optimizer and learning rate on held-out rows, and then look at the test
    rows, by pairs of seeds.
    """
    first, most = _QUICK_ROWS if quick else ROWS, seeds or (_QUICK_SEEDS if quick else _SEEDS)
    names = ("breast-cancer", SEQUENCES) if quick else DATA
    epsilons = {name: EPSILONS[2:3] if quick else _FEWER.get(name, EPSILONS) for name in names}
    cells = [(name, epsilon, way) for name in names for epsilon in epsilons[name] for way in WAYS]
    judged = runs.named(
        {
            (*cell, at): _call(cell, attempt, first).but(held=True)
            for cell in cells
            for at, attempt in enumerate(WAYS[cell[2]].tries)
        },
        (_CHOOSING,),
    )
    chosen = {
        cell: max(
            enumerate(WAYS[cell[2]].tries),
            key=lambda numbered, cell=cell: judged[*cell, numbered[0]][0].figure,  # type: ignore[misc]
        )[1]
        for cell in cells
    }
    outcomes = runs.named({cell: _call(cell, chosen[cell], first) for cell in cells}, range(most))
    panels = [_panel(name, outcomes) for name in names]
    figure = Figure(
        "steps at equal epsilon", panels, 12, 3.2 * math.ceil(len(names) / 4), 4, legend=4
    )
    return Findings(tuple(_rows(outcomes, chosen)), figure, _notes(outcomes, chosen, first))


def _call(cell: _Cell, attempt: tuple[str, float], first: int) -> Call:
    data, epsilon, way = cell
    optimizer, rate = attempt
    return train.at(
        data=data, epsilon=epsilon, way=way, optimizer=optimizer, rate=rate, first=first
    )


def _metric(data: str) -> str:
    """What is compared on these data."""
    if data == "values":
        return "R2"
    return "AUC" if data in TABLES else "test accuracy"


def _rows(by_cell: _Reached, chosen: dict[_Cell, tuple[str, float]]) -> list[Row]:
    rows = []
    for cell, outcomes in by_cell.items():
        label = f"{cell[0]}, epsilon {cell[1]:g}, {cell[2]}"
        rows.append(mean_row(label, _metric(cell[0]), each(outcomes, "figure")))
        rows.append(
            mean_row(label, f"epsilon spent, at delta {DELTA:g}", each(outcomes, "epsilon"))
        )
        rows.append(Row(label, "learning rate, over the rule's", chosen[cell][1]))
    return rows


def _against(outcomes: _Reached, cell: _Cell) -> tuple[float, float]:
    """The interval of a way's figures less those of the default, by pairs of seeds."""
    name, epsilon, _ = cell
    return interval(
        each(outcomes[cell], "figure"), each(outcomes[name, epsilon, DEFAULT], "figure")
    )


def _panel(name: str, outcomes: _Reached) -> Panel:
    """Differences from the default against epsilon, in percentage points."""
    drawn = []
    for colour, way in zip(CYCLE, [way for way in WAYS if way != DEFAULT], strict=False):
        epsilons = [cell[1] for cell in outcomes if (cell[0], cell[2]) == (name, way)]
        differences = [
            100
            * np.subtract(
                each(outcomes[name, epsilon, way], "figure"),
                each(outcomes[name, epsilon, DEFAULT], "figure"),
            )
            for epsilon in epsilons
        ]
        drawn.append(Curve(epsilons, differences, way, colour, "o-", spread="error"))
    return Panel(
        [Across(0.0), *drawn], "epsilon", f"points of {_metric(name)}", name, "x2", xticks=EPSILONS
    )


def _counts(outcomes: _Reached) -> str:
    """In how many cells each way is better or worse than the default by more than its error."""
    lines = []
    for way in (way for way in WAYS if way != DEFAULT):
        cells = [cell for cell in outcomes if cell[2] == way]
        said = [verdict(*_against(outcomes, cell)) for cell in cells]
        middle = float(np.mean([_against(outcomes, cell)[0] for cell in cells]))
        better, worse = said.count("better"), said.count("worse")
        numbers = (better, worse, len(cells) - better - worse, len(cells))
        lines.append((way, *map(str, numbers), f"{100 * middle:+.2f}"))
    heads = ("way", "better", "worse", "within its error", "cells", "points on average")
    return table(heads, lines)


def _best(outcomes: _Reached) -> str:
    """The way that is better in most cells, and whether in two thirds of them."""
    cells = len({cell[:2] for cell in outcomes})
    better = {
        way: sum(
            verdict(*_against(outcomes, cell)) == "better" for cell in outcomes if cell[2] == way
        )
        for way in WAYS
        if way != DEFAULT
    }
    way = max(better, key=lambda name: better[name])
    part = "at least" if 3 * better[way] >= 2 * cells else "fewer than"
    return f"{way} is better in {better[way]} of {cells}, {part} two thirds"


def _notes(outcomes: _Reached, chosen: dict[_Cell, tuple[str, float]], first: int) -> str:
    lines = []
    for name, epsilon in dict.fromkeys(cell[:2] for cell in outcomes):
        base = outcomes[name, epsilon, DEFAULT]
        cells = [f"{float(np.mean(each(base, 'figure'))):.4f}"]
        for way in (way for way in WAYS if way != DEFAULT):
            middle, half = _against(outcomes, (name, epsilon, way))
            text = signed(middle, half)
            cells.append(f"**{text}**" if verdict(middle, half) == "better" else text)
        lines.append((name, _metric(name), f"{epsilon:g}", str(len(base)), *cells))
    heads = ("data", "figure", "epsilon", "seeds", *WAYS)
    return page(
        "better-steps",
        counts=_counts(outcomes),
        table=table(heads, lines),
        best=_best(outcomes),
        delta=DELTA,
        epochs=EPOCHS,
        rows=f"{first:,}",
        share=SHARE,
        chosen=_edges(chosen),
    )


def _edges(chosen: dict[_Cell, tuple[str, float]]) -> str:
    """How often each way's largest learning rate was taken."""
    texts = []
    for way, what in WAYS.items():
        largest = max(rate for _, rate in what.tries)
        rates: Sequence[float] = [rate for cell, (_, rate) in chosen.items() if cell[2] == way]
        texts.append(f"{way} {sum(rate == largest for rate in rates)} of {len(rates)}")
    return ", ".join(texts)
