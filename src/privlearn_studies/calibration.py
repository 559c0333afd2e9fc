"""Log loss of the defaults on every task, beside that at the best temperature, which an oracle
chooses on the test rows.

Beside them stands what the former rule would have chosen for the same scores with as much noise:
gains clipped to norm 8 with no floor, no account of an example's own steps, and one cubic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from privlearn._storage import cache
from privlearn.core.plan import Plan
from privlearn.core.streams import Streams
from privlearn.core.temperature import GRID
from privlearn.data.dataset import Dataset
from privlearn.runs.front import Front
from privlearn.runs.result import Result
from privlearn.training.train import train
from privlearn.transforms import feature_cache
from privlearn_studies import best
from privlearn_studies.charts import BLUE, GREY, ORANGE, Across, Curve, Figure, Mark, Panel
from privlearn_studies.report import Findings, Row, each, mean, mean_row, page, table
from privlearn_studies.runs import Call, Outcome, Runs, cached
from privlearn_studies.six_tables.rows import MADE
from privlearn_studies.six_tables.rows import table as split_of

DELTA = best.DELTA
#: Tasks of `six-tables` with classes, of `best`, and of `small-data`, each with its epsilons.
TABLES = ("breast-cancer", "wisconsin", "imbalanced", "categories", "adult")
LARGE = ("usps", "cifar10-features", "mnist", "fashion-mnist")
FEW = (("adult", 1000), ("mnist", 1000), ("mnist", 5000), ("fashion-mnist", 1000))
_OF_TABLES, _OF_LARGE, _OF_FEW = (0.1, 0.5, 1.0, 3.0, 8.0), (0.5, 1.0, 3.0, 8.0), (0.1, 1.0, 8.0)
_SEEDS, _QUICK_SEEDS, _QUICK_ROWS = 3, 1, 300
#: Probabilities are taken to be this far from 0.
_LEAST = 1e-6
#: Of the rule before: the norm that gains were clipped to, and its usual temperatures.
_NORM, _TWO, _NORMALISED, _WITH_NOISE = 8.0, 2.0, 4.0, 6.0
_NOISE_ORDER = 77
#: Log loss over that of the best temperature should be at most this.
GOAL = 1.05
_NOW, _BEFORE, _ORACLE = "log loss", "log loss by the former rule", "log loss, best temperature"
Floats = NDArray[np.float64]
_Outcomes = dict[Call, list[Outcome]]


@cached("calibration")
def measure(
    seed: int, *, name: str, epsilon: float, first: int | None = None, quick: int | None = None
) -> dict[str, Any]:
    """One default model, with `seed`.

    Args:
        seed: of everything.
        name: of the task.
        epsilon: the target, at delta 1e-5.
        first: how many training rows, in an order of the seed's own; None: all.
        quick: how many of the first training rows; None: all of them.

    Returns:
        log_loss: on the test rows.
        best: at the temperature that is best on the test rows.
        before: at that of the former rule, with noise of its own.
        temperature, best_temperature, before_temperature: these.
    """
    few = first or quick
    data = split_of(name, few).data if name in MADE else best.rows_of(name, few, first and seed)
    with feature_cache(cache() / "features"):
        trained = train(
            data, epsilon=epsilon, delta=DELTA, examples=data.examples, streams=Streams.new(seed)
        )
        scores, test = _scores(trained, data, train=True), _scores(trained, data, train=False)
    value = trained.facts["fitted_temperature"]
    labels = np.asarray(data.y_test).astype(np.int64)
    former = former_temperature(
        scores * value, np.asarray(data.y).astype(np.int64), trained, _noise(seed)
    )
    oracle, least = best_temperature(test * value, labels)
    return {
        "log_loss": log_loss(test, labels),
        "best": least,
        "before": log_loss(test * value / former, labels),
        "temperature": value,
        "best_temperature": oracle,
        "before_temperature": former,
    }


def _noise(seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, _NOISE_ORDER])


def _scores(trained: Result, data: Dataset, *, train: bool) -> Floats:
    """Scores of the training or test rows, whose features are read from the cache."""
    x = (data.tensors() if train else data.test_tensors())[0]
    assert isinstance(trained.plan, Plan)
    front = Front(trained.plan.front, data, x)
    network = torch.nn.Sequential(*list(trained.model.children())[len(front.modules) :])
    with torch.no_grad():
        parts = [network(part) for part in front.rows.split(2048)]  # type: ignore[no-untyped-call]
    return np.asarray(torch.cat(parts).double())


def log_loss(scores: Floats, labels: NDArray[np.int64], temperature: float = 1.0) -> float:
    """The mean log loss of scores that are divided by a temperature."""
    scaled = scores / temperature
    scaled = scaled - scaled.max(1, keepdims=True)
    logs = scaled[np.arange(len(scaled)), labels] - np.log(np.exp(scaled).sum(1))
    return float(-np.maximum(logs, math.log(_LEAST)).mean())


def best_temperature(scores: Floats, labels: NDArray[np.int64]) -> tuple[float, float]:
    """The temperature with the least log loss on these rows, and that loss: an oracle."""
    tries = np.geomspace(0.05, 200, 60)
    losses = [log_loss(scores, labels, temperature) for temperature in tries]
    at = int(np.argmin(losses))
    fine = np.geomspace(tries[max(at - 1, 0)], tries[min(at + 1, len(tries) - 1)], 30)
    losses = [log_loss(scores, labels, temperature) for temperature in fine]
    return float(fine[int(np.argmin(losses))]), float(min(losses))


def former_temperature(
    scores: Floats, labels: NDArray[np.int64], trained: Result, draw: np.random.Generator
) -> float:
    """What the rule before chose of the training rows' scores, with the noise of the plan."""
    plan, classes, examples = trained.plan, scores.shape[1], len(scores)
    assert isinstance(plan, Plan)
    assert plan.temperature is not None
    scaled = scores[:, None] / GRID[:, None]
    scaled = scaled - scaled.max(2, keepdims=True)
    at = np.take_along_axis(scaled, np.repeat(labels[:, None], len(GRID), 1)[:, :, None], 2)[
        :, :, 0
    ]
    gains = math.log(classes) + at - np.log(np.exp(scaled).sum(2))
    gains /= np.maximum(np.linalg.norm(gains, axis=1, keepdims=True) / _NORM, 1)
    noise = _NORM * plan.temperature.noise_multiplier / examples
    losses = -gains.mean(0) + noise * draw.normal(size=len(GRID))
    normalised = bool(plan.front) and plan.front[-1].normalises
    usual = max((_NORMALISED if normalised else _TWO) if classes == 2 else 1.0, _WITH_NOISE * noise)
    usual = min(float(GRID[-1]), usual) if plan.clip.clip_norm < 1 else 1.0
    fine = np.linspace(math.log(GRID[0]), math.log(GRID[-1]), 200)
    fitted = np.polyval(np.polyfit(np.log(GRID), losses, 3), fine)
    return float(np.exp(fine[np.argmin(fitted + noise * (fine - math.log(usual)) ** 2)]))


def grid(quick: bool = False) -> list[Call]:
    """All tasks at all epsilons; in short, two tables at one."""
    if quick:
        return [measure.at(name=name, epsilon=1.0, quick=_QUICK_ROWS) for name in TABLES[:2]]
    calls = [measure.at(name=name, epsilon=e) for name in TABLES for e in _OF_TABLES]
    calls += [measure.at(name=name, epsilon=e) for name in LARGE for e in _OF_LARGE]
    calls += [
        measure.at(name=name, epsilon=epsilon, first=first)
        for name, first in FEW
        for epsilon in _OF_FEW
    ]
    return calls


def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Every task at every epsilon."""
    calls = grid(quick)
    small = [call for call in calls if call.name in TABLES[:4]]
    most = {True: small, False: [call for call in calls if call not in small]}
    usual = {True: _QUICK_SEEDS if quick else _SEEDS, False: 1}
    by_call: _Outcomes = {}
    for few, some in most.items():
        by_call |= runs(some, range(seeds or usual[few]))
    rows: list[Row] = []
    for call, outcomes in by_call.items():
        for metric, field in ((_NOW, "log_loss"), (_BEFORE, "before"), (_ORACLE, "best")):
            rows.append(mean_row(_label(call), metric, each(outcomes, field)))
        rows.append(mean_row(_label(call), "temperature", each(outcomes, "temperature")))
    return Findings(tuple(rows), _figure(by_call), _notes(by_call))


def _task(call: Call) -> str:
    return call.name if call.first is None else f"{call.name}, {call.first:,} rows"


def _label(call: Call) -> str:
    return f"{_task(call)}, epsilon {call.epsilon:g}"


def _ratio(outcomes: Sequence[Outcome], field: str) -> float:
    """Mean log loss over the mean at the best temperature."""
    return mean(each(outcomes, field)) / mean(each(outcomes, "best"))


def _notes(by_call: _Outcomes) -> str:
    epsilons = sorted({call.epsilon for call in by_call})
    lines, above, former, cells = [], [], 0, 0
    for task in dict.fromkeys(map(_task, by_call)):
        by_epsilon = {
            call.epsilon: outcomes for call, outcomes in by_call.items() if _task(call) == task
        }
        cell = {
            e: (_ratio(by_epsilon[e], "before"), _ratio(by_epsilon[e], "log_loss"))
            for e in by_epsilon
        }
        texts = [f"{cell[e][0]:.3f} / {cell[e][1]:.3f}" if e in cell else "–" for e in epsilons]
        lines.append((task, *texts))
        cells += len(cell)
        former += sum(before > GOAL for before, _ in cell.values())
        above += [f"{task} at {e:g} ({now:.3f})" for e, (_, now) in cell.items() if now > GOAL]
    return page(
        "calibration",
        table=table(("task", *(f"epsilon {epsilon:g}" for epsilon in epsilons)), lines),
        above="; ".join(above) or "nowhere",
        cells=cells,
        former=former,
        delta=DELTA,
        seeds=max(map(len, by_call.values())),
    )


def _figure(by_call: _Outcomes) -> Figure:
    """The ratio against epsilon, a panel for each task."""
    panels = []
    for task in dict.fromkeys(map(_task, by_call)):
        by_epsilon = {
            call.epsilon: outcomes for call, outcomes in by_call.items() if _task(call) == task
        }
        marks: list[Mark] = [
            Curve(
                list(by_epsilon),
                [_ratio(o, "before") for o in by_epsilon.values()],
                "before",
                ORANGE,
                "s--",
            ),
            Curve(
                list(by_epsilon),
                [_ratio(o, "log_loss") for o in by_epsilon.values()],
                "now",
                BLUE,
                "o-",
            ),
            Across(GOAL, "5 %", GREY, ":"),
        ]
        panels.append(
            Panel(marks, "epsilon", "log loss / best", task, "x2", xticks=list(by_epsilon))
        )
    title = "log loss of the defaults over that at the best temperature"
    return Figure(
        title, panels, 13, 3.2 * math.ceil(len(panels) / 4), min(4, len(panels)), legend=3
    )
