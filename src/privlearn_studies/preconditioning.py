"""Layers in coordinates of public curvature, and norms of residual networks, beside plain DP-SGD at
equal epsilon and equally many tries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privlearn._checks import one_of
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.data.named import load
from privlearn.models.networks import build
from privlearn.models.residual import wide_resnet
from privlearn.training.preconditioning import DrawnInputs, fold, precondition
from privlearn.training.train import train as train_by_rule
from privlearn_studies.charts import CYCLE, Across, Curve, Figure, Panel
from privlearn_studies.report import (
    Findings,
    Row,
    each,
    interval,
    mean,
    mean_row,
    page,
    signed,
    spread,
    table,
    verdict,
)
from privlearn_studies.runs import Call, Outcome, Runs, cached

DELTA, EPOCHS, BLOCKS_EPOCHS = 1e-5, 10, 8
PLAIN, MEANS = "plain", "public rows, means alone"
#: How layers are written: what the factors are estimated on, and their power.
WAYS: dict[str, tuple[str, float] | None] = {
    PLAIN: None,
    "drawn noise": ("drawn", 0.25),
    "public rows": ("public", 0.25),
    MEANS: ("public", 0.0),
}
#: What a residual network has.
BLOCKS: dict[str, dict[str, bool]] = {
    "plain blocks": {"standardised": False},
    "scale norm": {"standardised": False, "scale_norm": True},
    "standardised weights": {},
    "standardised weights, scale norm": {"scale_norm": True},
}


@final
@dataclass(frozen=True)
class Task:
    """Rows and a network.

    Attributes:
        data: the name of the data set.
        model: the network, as of `models.build`; None: a residual one.
        rows: to train on, of the first ones.
        public: the rows behind them that are taken for public ones.
        rates: learning rates; for each way by itself the best on rows held back is taken.
        epsilons: targets.
        ways: that are compared.
    """

    data: str
    model: str | None
    rows: int
    public: int
    rates: tuple[float, ...]
    epsilons: tuple[float, ...] = (0.5, 8.0)
    ways: tuple[str, ...] = tuple(WAYS)[:3]


_IMAGES, _TABLES = (10.0, 30.0, 90.0, 270.0), (20.0, 60.0, 180.0, 540.0)
TASKS = {
    "breast cancer, linear": Task("breast-cancer", "linear", 355, 100, _TABLES),
    "adult, linear": Task("adult", "linear", 4000, 1000, _TABLES),
    "digits, 64-32-10": Task("digits", "mlp:32", 1137, 300, _IMAGES, ways=tuple(WAYS)),
    "MNIST, 784-100-10": Task("mnist", "mlp:100", 2000, 1000, _IMAGES, (8.0,)),
    "digits, WRN-10-1": Task("digits", None, 1137, 0, _IMAGES[:3], (8.0,), tuple(BLOCKS)),
}
_SEEDS, _QUICK_SEEDS, _QUICK_ROWS = 10, 2, 300
_HELD_SHARE = 5
_CHOOSING = 1000  # the seed of runs on held-out rows
_Cell = tuple[str, float, str]
_Reached = dict[_Cell, list[Outcome]]


@final
class _Centred(nn.Module):
    """Numbers in [0, 1], brought to [-1, 1], as training by rule does with tables."""

    def forward(self, x: Tensor) -> Tensor:
        """Of the same shape."""
        return 2 * x - 1


@cached("preconditioning")
def train(
    seed: int,
    *,
    task: str,
    epsilon: float,
    way: str,
    rate: float,
    held: bool = False,
    first: int | None = None,
) -> dict[str, Any]:
    """One model, zero-out neighbours. Equal seeds have the same initial weights.

    Args:
        seed: of everything.
        task: one of `TASKS`.
        epsilon: the target, at delta 1e-5.
        way: one of the task's.
        rate: the learning rate at the start; it falls to 0.
        held: whether the last fifth of the training rows is judged by, and not trained on; else the
            test rows are.
        first: how many training rows at most; None: as many as the task has.

    Returns:
        accuracy: of the folded model, on the rows that are judged by.
        epsilon: what the ledger says was spent.
        noise: the noise multiplier.
        weights: how many are trained.
    """
    chosen = TASKS[one_of("the task", task, TASKS)]
    one_of("the way", way, chosen.ways)
    whole = load(chosen.data)
    number = min(chosen.rows, first or chosen.rows)
    rows = replace(whole, x=whole.x[:number], y=whole.y[:number])
    public = whole.x[chosen.rows : chosen.rows + chosen.public]
    if held:
        cut = number - number // _HELD_SHARE
        rows = replace(
            rows, x=rows.x[:cut], y=rows.y[:cut], x_test=rows.x[cut:], y_test=rows.y[cut:]
        )

    def network(shape: tuple[int, ...]) -> nn.Module:
        return _network(chosen, way, shape, rows, _scaled(public, whole), seed)

    result = train_by_rule(
        rows,
        epsilon=epsilon,
        delta=DELTA,
        model=network,
        features="raw",
        temperature=0.0,
        epochs=EPOCHS if chosen.model else BLOCKS_EPOCHS,
        learning_rate=rate,
        streams=Streams.new(seed),
    )
    if WAYS.get(way):
        result = fold(result)
    x, _ = rows.test_tensors()
    with torch.no_grad():
        answers = torch.cat([result.model(part).argmax(1) for part in torch.split(x, 2000)])
    targets = torch.from_numpy(np.asarray(rows.y_test).astype(np.int64))
    return {
        "accuracy": float((answers == targets).double().mean()),
        "epsilon": result.ledger.guarantee(DELTA).epsilon,
        "noise": result.plan.noise_multipliers()[0],  # type: ignore[attr-defined]
        "weights": sum(weights.numel() for weights in result.model.parameters()),
    }


def _network(
    task: Task,
    way: str,
    shape: tuple[int, ...],
    rows: Dataset,
    public: NDArray[np.float32],
    seed: int,
) -> nn.Module:
    """The network of a way, for rows of this shape with numbers in [0, 1]."""
    if task.model is None:
        sizes = {"depth": 10, "width": 1, "channels": 8, "groups": 4}
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return wide_resnet(shape, 10, **sizes, **BLOCKS[way])  # type: ignore[arg-type]
    plain = build(task.model, shape, rows.classes, np.random.default_rng(seed))
    plain = nn.Sequential(_Centred(), plain) if len(shape) == 1 else plain
    written = WAYS[way]
    if written is None:
        return plain
    kind, power = written
    inputs = (
        DrawnInputs("white" if len(shape) == 1 else "pink")
        if kind == "drawn"
        else Dataset(public, public=True, name="rows behind the training rows")
    )
    return precondition(plain, inputs, shape, private=rows, power=power)


def _scaled(x: Any, data: Dataset) -> NDArray[np.float32]:
    """Numbers in [0, 1], by the declared bounds, as training has them."""
    low, high = (np.asarray(bound, np.float64) for bound in (data.low, data.high))
    return np.clip((np.asarray(x) - low) / (high - low), 0, 1).astype(np.float32)


def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Choose each way's learning rate on held-out rows, and then look at the test rows, by pairs of
    seeds.
    """
    most = seeds or (_QUICK_SEEDS if quick else _SEEDS)
    first = _QUICK_ROWS if quick else None
    cells = [
        (name, epsilon, way)
        for name, task in TASKS.items()
        for epsilon in (task.epsilons[-1:] if quick else task.epsilons)
        for way in task.ways
    ]
    tries = {
        (*cell, rate): _call(cell, rate, first).but(held=True)
        for cell in cells
        for rate in (TASKS[cell[0]].rates[:2] if quick else TASKS[cell[0]].rates)
    }
    judged = runs.named(tries, (_CHOOSING,))
    chosen = {
        cell: max(
            (key for key in judged if key[:3] == cell), key=lambda key: judged[key][0].accuracy
        )[3]
        for cell in cells
    }
    reached: _Reached = {}
    for name in TASKS:
        calls = {cell: _call(cell, chosen[cell], first) for cell in cells if cell[0] == name}
        reached |= runs.named(calls, range(most))
    rows: list[Row] = []
    for cell, outcomes in reached.items():
        label = f"{cell[0]}, epsilon {cell[1]:g}, {cell[2]}"
        rows.append(mean_row(label, "test accuracy", each(outcomes, "accuracy")))
        rows.append(
            mean_row(label, f"epsilon spent, at delta {DELTA:g}", each(outcomes, "epsilon"))
        )
        rows.append(Row(label, "learning rate", chosen[cell]))
    title = "what public curvature brings" + (f", {first:,} rows" if first else "")
    panels = [_panel(name, reached) for name in TASKS]
    figure = Figure(title, panels, 12.0, 8.0, 3, legend=4)
    return Findings(tuple(rows), figure, _notes(reached, chosen))


def _call(cell: _Cell, rate: float, first: int | None) -> Call:
    task, epsilon, way = cell
    return train.at(task=task, epsilon=epsilon, way=way, rate=rate, first=first)


def _panel(name: str, reached: _Reached) -> Panel:
    """Differences from the plain way, pair by pair, in percentage points, over epsilon."""
    base, *others = TASKS[name].ways
    epsilons = [epsilon for task, epsilon, way in reached if (task, way) == (name, base)]
    curves = [
        Curve(
            [epsilon * 1.04**at for epsilon in epsilons],
            [
                100
                * np.subtract(
                    each(reached[name, epsilon, way], "accuracy"),
                    each(reached[name, epsilon, base], "accuracy"),
                )
                for epsilon in epsilons
            ],
            way,
            CYCLE[at],
            "o",
            spread="error",
            size=6,
        )
        for at, way in enumerate(others)
    ]
    return Panel([Across(0.0), *curves], x="epsilon", y="points over plain", title=name)


def _notes(reached: _Reached, chosen: dict[_Cell, float]) -> str:
    lines: dict[bool, list[tuple[str, ...]]] = {True: [], False: []}
    verdicts: dict[str, list[str]] = {}
    for (name, epsilon, way), outcomes in reached.items():
        task = TASKS[name]
        base = each(reached[name, epsilon, task.ways[0]], "accuracy")
        accuracies = each(outcomes, "accuracy")
        middle, half = interval(accuracies, base)
        word = "–" if way == task.ways[0] else verdict(middle, half)
        lines[task.model is None].append(
            (
                name,
                f"{epsilon:g}",
                way,
                spread(accuracies),
                str(len(accuracies)),
                "–" if way == task.ways[0] else f"{signed(middle, half)}, {word}",
                f"{chosen[name, epsilon, way]:g}",
            )
        )
        if way != task.ways[0]:
            verdicts.setdefault(way, []).append(word)
    heads = (
        "rows, network",
        "epsilon",
        "way",
        "test accuracy",
        "seeds",
        "pairs, less plain",
        "learning rate",
    )
    counts = "; ".join(
        f"*{way}* is ahead by more than its error in {words.count('better')} of {len(words)} "
        f"cells, and behind in {words.count('worse')}"
        for way, words in verdicts.items()
    )
    weights = mean(
        each(next(value for cell, value in reached.items() if cell[2] in BLOCKS), "weights")
    )
    return page(
        "preconditioning",
        table=table(heads, lines[False]),
        blocks=table(heads, lines[True]),
        counts=counts,
        delta=DELTA,
        epochs=EPOCHS,
        blocks_epochs=BLOCKS_EPOCHS,
        weights=f"{weights:,.0f}",
    )
