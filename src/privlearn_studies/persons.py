"""Persons with 1 to 64 rows: rows drawn and persons protected, or persons drawn (Charles et al.
2024).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from privlearn._checks import one_of
from privlearn._storage import cache
from privlearn.core.clipping import Flat
from privlearn.core.plan import Plan
from privlearn.core.sampling import Poisson
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.data.named import load
from privlearn.runs.front import Front
from privlearn.training.planning import CLIP_NORM, batch_size
from privlearn.training.rules import learning_rate
from privlearn.training.train import train as train_by_rule
from privlearn.transforms import feature_cache, read_features, usual
from privlearn_studies.charts import CYCLE, Curve, Figure, Mark, Panel
from privlearn_studies.report import Findings, Row, each, mean, mean_row, page, spread, table
from privlearn_studies.runs import Call, Outcome, Runs, cached

DELTA, EPSILONS, LIMITS = 1e-5, (1.0, 8.0), (1, 4, 16, 64)
#: How rows are dealt to persons.
ANY, TWO = "of all digits", "of two digits each"
#: What is drawn for a batch.
ROWS, PERSONS = "rows", "persons"
#: Multiples of the rule's learning rate, of which each way takes the best on held-out rows.
RATES = (0.5, 1.0, 2.0)
_MOST, _EPOCHS, _SEEDS, _CHOOSING, _HELD = 64, 30, 3, 1000, 10_000
_Cell = tuple[str, float, str, int]
_Reached = dict[_Cell, list[Outcome]]


@lru_cache(maxsize=1)
def _features() -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """MNIST behind the public features that are usual: training rows and labels, test rows and
    labels.
    """
    rows = load("mnist")
    chain, rows = read_features(usual(np.shape(rows.x)[1:], rows.low) or "raw", rows)
    with feature_cache(cache() / "features"):
        x, x_test = (
            Front(chain, rows, images).rows.flatten(1).numpy()
            for images in (rows.tensors()[0], rows.test_tensors()[0])
        )
    return x, np.asarray(rows.y).astype(np.int64), x_test, np.asarray(rows.y_test).astype(np.int64)


def dealt(labels: NDArray[np.int64], how: str, seed: int) -> NDArray[np.int64]:
    """A person for each row. How many rows persons have is uniform in its logarithm, from 1 to 64;
    some have fewer.

    Args:
        labels: the rows' digits.
        how: `ANY`: rows are dealt at random; `TWO`: at random among those of two digits that the
            person has.
        seed: of who gets what.
    """
    rng = np.random.default_rng([seed, 64])
    left = [list(rng.permutation(np.flatnonzero(labels == digit))) for digit in range(10)]
    together = list(rng.permutation(len(labels)))
    owners, person = np.full(len(labels), -1), 0
    while (owners < 0).any():
        wanted = int(np.exp(rng.uniform(0, np.log(_MOST + 1))))
        if how == ANY:
            taken, together = together[:wanted], together[wanted:]
        else:
            have = [digit for digit in range(10) if left[digit]]
            digits = rng.choice(have, min(2, len(have)), replace=False)
            taken = [left[digit].pop() for digit in rng.choice(digits, wanted) if left[digit]]
        owners[taken] = person
        person += 1
    return owners


def first_rows(owners: NDArray[np.int64], limit: int) -> NDArray[np.bool_]:
    """Which rows are among the first `limit` of their person."""
    order = np.argsort(owners, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(owners[order]) > 0])
    place = np.arange(len(owners)) - np.repeat(starts, np.diff(np.r_[starts, len(owners)]))
    among = np.empty(len(owners), bool)
    among[order] = place < limit
    return among


@cached("persons")
def train(
    seed: int,
    *,
    how: str,
    epsilon: float,
    drawn: str,
    limit: int,
    rate: float = 1.0,
    held: bool = False,
    first: int | None = None,
    epochs: int = _EPOCHS,
) -> dict[str, Any]:
    """A linear model on the default features of MNIST, with epsilon for a whole person
    (add/remove).

    Args:
        seed: of batches and noise, and of who has which rows.
        how: rows are dealt to persons.
        epsilon: the target for a person, at delta 1e-5.
        drawn: `ROWS`: Poisson batches of rows, priced for `limit` of them together; `PERSONS`:
            Poisson batches of persons, whose gradients are means of up to `limit` rows.
        limit: rows of a person that take part at most.
        rate: the learning rate, over that of the rule.
        held: whether the last training rows are judged by, and not trained on; else the test rows
            are.
        first: how many training rows; None: all.
        epochs: of training.

    Returns:
        accuracy: on the rows that are judged by.
        epsilon: what the ledger says was spent.
        noise: standard deviation in the mean of a batch's gradients, over the clipping norm.
        examples: how many examples there are: rows that take part, or persons.
    """
    x, y, x_test, y_test = _features()
    x, y = x[:first], y[:first]
    if held:
        cut = len(x) - min(_HELD, len(x) // 5)
        x, y, x_test, y_test = x[:cut], y[:cut], x[cut:], y[cut:]
    owners = dealt(y, one_of("how", how, (ANY, TWO)), seed)
    options: dict[str, Any] = {"rows_per_person": limit}
    if one_of("drawn", drawn, (ROWS, PERSONS)) == ROWS:
        taking_part = first_rows(owners, limit)
        options, data = {"group_size": limit}, Dataset(x[taking_part], y[taking_part], classes=10)
    else:
        data = Dataset(x, y, groups=owners, classes=10)
    number = data.examples
    sampling, norm = Poisson(batch_size(number) / number), float(np.linalg.norm(x[0]))
    plan = Plan(
        sampling,
        epochs,
        clip=Flat(CLIP_NORM),
        examples=number,
        group_size=options.get("group_size", 1),
    )
    plan = plan.calibrate(epsilon=epsilon, delta=DELTA)
    result = train_by_rule(
        data,
        epsilon=epsilon,
        delta=DELTA,
        examples=number,
        features="raw",
        clip_norm=CLIP_NORM,
        epochs=epochs,
        batch_size=batch_size(number),
        learning_rate=rate * learning_rate("SGD", plan, number, "linear", 0.0, norm),
        streams=Streams.new(seed),
        **options,
    )
    with torch.no_grad():
        said = result.model(torch.from_numpy(x_test)).argmax(1).numpy()
    return {
        "accuracy": float(np.mean(said == y_test)),
        "epsilon": result.ledger.guarantee(DELTA).epsilon,
        "noise": plan.noise_multipliers()[0] / batch_size(number),
        "examples": number,
    }


def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Choose each way's learning rate on held-out rows, and then look at the test rows."""
    numbers = range(seeds or (1 if quick else _SEEDS))
    ways = [
        (drawn, limit) for drawn in (ROWS, PERSONS) for limit in (LIMITS[:2] if quick else LIMITS)
    ]
    cells = [
        (how, epsilon, drawn, limit)
        for how in (ANY, TWO)
        for epsilon in (EPSILONS[1:] if quick else EPSILONS)
        for drawn, limit in ways
        if drawn == PERSONS or limit < _MOST  # 64 rows together need far more noise still
    ]
    calls = {cell: _call(cell, 3000 if quick else None) for cell in cells}
    tries = {
        (*cell, rate): call.but(held=True, rate=rate)
        for cell, call in calls.items()
        for rate in RATES
    }
    judged = runs.named(tries, (_CHOOSING,))
    chosen = {
        cell: max(RATES, key=lambda rate, cell=cell: judged[*cell, rate][0].accuracy)  # type: ignore[misc]
        for cell in cells
    }
    reached: _Reached = runs.named(
        {cell: call.but(rate=chosen[cell]) for cell, call in calls.items()}, numbers
    )
    notes = page(
        "persons",
        seeds=len(numbers),
        table=_table(reached),
        rates=", ".join(f"{rate:g}" for rate in RATES),
    )
    return Findings(tuple(_rows(reached, chosen)), _figure(reached), notes)


def _call(cell: _Cell, first: int | None) -> Call:
    how, epsilon, drawn, limit = cell
    return train.at(how=how, epsilon=epsilon, drawn=drawn, limit=limit, first=first)


def _label(cell: _Cell) -> str:
    how, epsilon, drawn, limit = cell
    return f"persons {how}, epsilon {epsilon:g}, {drawn} are drawn, at most {limit}"


def _table(reached: _Reached) -> str:
    """A line for each way and limit, with a column for each deal and epsilon; the best of a column
    stands out.
    """
    columns = list(dict.fromkeys(cell[:2] for cell in reached))
    ways = list(dict.fromkeys(cell[2:] for cell in reached))
    best = {
        column: max(
            mean(each(outcomes, "accuracy"))
            for cell, outcomes in reached.items()
            if cell[:2] == column
        )
        for column in columns
    }
    lines = []
    for way in ways:
        by_column = {column: reached[*column, *way] for column in columns}
        texts = []
        for column, outcomes in by_column.items():
            values = each(outcomes, "accuracy")
            text = spread(values)
            texts.append(f"**{text}**" if mean(values) == best[column] else text)
        first = next(iter(by_column.values()))
        lines.append((way[0], str(way[1]), f"{mean(each(first, 'examples')):,.0f}", *texts))
    heads = [f"{how}, {epsilon:g}" for how, epsilon in columns]
    return table(("drawn", "rows of a person", "examples", *heads), lines)


def _rows(reached: _Reached, chosen: dict[_Cell, float]) -> list[Row]:
    rows = []
    for cell, outcomes in reached.items():
        rows += [
            mean_row(_label(cell), "test accuracy", each(outcomes, "accuracy")),
            mean_row(_label(cell), f"epsilon spent, at delta {DELTA:g}", each(outcomes, "epsilon")),
            mean_row(
                _label(cell), "noise in the mean of a batch, over the clip", each(outcomes, "noise")
            ),
            Row(_label(cell), "learning rate, over the rule's", chosen[cell]),
        ]
    return rows


def _figure(reached: _Reached) -> Figure:
    """Accuracy over the rows of a person that take part, a panel for each deal."""
    panels = []
    for how in dict.fromkeys(cell[0] for cell in reached):
        marks: list[Mark] = []
        epsilons = list(dict.fromkeys(cell[1] for cell in reached))
        for epsilon, colour in zip(epsilons, CYCLE, strict=False):
            for drawn, line in ((ROWS, "o--"), (PERSONS, "o-")):
                accuracies = {
                    cell[3]: each(values, "accuracy")
                    for cell, values in reached.items()
                    if cell[:3] == (how, epsilon, drawn)
                }
                label = f"epsilon {epsilon:g}, {drawn}"
                marks.append(
                    Curve(
                        list(accuracies),
                        list(accuracies.values()),
                        label,
                        colour,
                        line,
                        "deviation",
                    )
                )
        panels.append(
            Panel(
                marks,
                "rows of a person, at most",
                "test accuracy",
                f"persons have rows {how}",
                "x2",
                xticks=list(LIMITS),
                legend="lower right",
            )
        )
    return Figure("MNIST, persons with 1 to 64 rows", panels, 12, 5, 2)
