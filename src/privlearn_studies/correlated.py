"""What noise that is correlated over steps brings beside independent and decaying noise, on MNIST
at equal epsilon.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from privlearn._checks import one_of
from privlearn._storage import cache
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.plan import Plan
from privlearn.core.streams import Streams
from privlearn.data.named import load
from privlearn.training.train import train as train_by_rule
from privlearn.transforms import feature_cache
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

DELTA, EPOCHS, BATCH = 1e-5, 10, 600
EPSILONS = (1.0, 8.0)
#: The networks, and what pictures call them.
YU = "yu"
NETWORKS = {"mlp:100": "one hidden layer of 100", YU: "Yu et al.'s network"}
#: The options that make them: that of Yu et al. has 60 private principal components and a hidden
#: layer of 1,000.
_OPTIONS: dict[str, dict[str, Any]] = {
    "mlp:100": {"model": "mlp:100"},
    YU: {"model": "mlp:1000", "pca": 60, "pca_noise": 16.0},
}
#: Every way to spend the budget: how batches are drawn, how noise depends on earlier noise, and how
#: it changes.
INDEPENDENT = "independent, Poisson"
WAYS: dict[str, dict[str, str]] = {
    INDEPENDENT: {},
    "independent, partition": {"sampling": "partition"},
    "decaying, partition": {"sampling": "partition", "schedule": "exp:k=0.07"},
    "bands, cyclic Poisson": {"sampling": "cyclic-poisson", "mechanism": "banded"},
    "bands, cyclic partition": {"sampling": "cyclic-partition", "mechanism": "banded"},
    "bands and decaying, cyclic partition": {
        "sampling": "cyclic-partition",
        "mechanism": "banded",
        "schedule": "exp:k=0.07",
    },
    "bands, fixed order": {"sampling": "fixed", "mechanism": "banded"},
}
#: Learning rates: for each way by itself, the best on held-out training rows is taken.
RATES = {"mlp:100": (20.0, 40.0, 80.0, 160.0), YU: (20.0, 40.0, 80.0, 160.0)}
_SEEDS, _QUICK_SEEDS, _QUICK_ROWS = 10, 2, 3000
_FEWER = 3  # seeds of the slower network
_HELD = 10_000
_CHOOSING = 1000  # the seed of runs on held-out rows
_Reached = dict[tuple[str, float, str], list[Outcome]]


@cached("correlated noise")
def train(
    seed: int,
    *,
    network: str,
    epsilon: float,
    way: str,
    rate: float,
    held: bool = False,
    first: int | None = None,
    epochs: int = EPOCHS,
) -> dict[str, Any]:
    """One model on MNIST, zero-out neighbours. Equal seeds have the same initial weights.

    Args:
        seed: of everything.
        network: one of `NETWORKS`.
        epsilon: the target, at delta 1e-5.
        way: one of `WAYS`.
        rate: the learning rate at the start; it falls to 0.
        held: whether the last training rows are judged by, and not trained on; else the test rows
            are.
        first: how many training rows; None: all.
        epochs: of training.

    Returns:
        accuracy: on the rows that are judged by.
        epsilon: what the ledger says was spent.
        noise: the noise multiplier of the first epoch.
        bands: of the noise.
    """
    whole = load("mnist")
    rows = replace(whole, x=whole.x[:first], y=whole.y[:first])
    number = len(rows.x)
    if held:
        cut = number - min(_HELD, number // 5)
        rows = replace(
            rows, x=rows.x[:cut], y=rows.y[:cut], x_test=rows.x[cut:], y_test=rows.y[cut:]
        )
    options: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": DELTA,
        "epochs": epochs,
        **_OPTIONS[one_of("the network", network, NETWORKS)],
        "batch_size": len(rows.x) * BATCH // 60_000,
        "adjacency": Adjacency.ZERO_OUT.value,
    } | WAYS[one_of("the way", way, WAYS)]
    with feature_cache(cache() / "features"):
        result = train_by_rule(rows, streams=Streams.new(seed), learning_rate=rate, **options)
    plan, (x, _) = result.plan, rows.test_tensors()
    assert isinstance(plan, Plan)
    with torch.no_grad():
        said = torch.cat([result.model(part).argmax(1) for part in torch.split(x, 2000)])
    return {
        "accuracy": float(
            (said == torch.from_numpy(np.asarray(rows.y_test).astype(np.int64))).double().mean()
        ),
        "epsilon": result.ledger.guarantee(DELTA).epsilon,
        "noise": plan.noise_multipliers()[0],
        "bands": getattr(plan.correlation, "bands", 1),
    }


def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Choose each way's learning rate on held-out rows, and then look at the test rows, by pairs of
    seeds.
    """
    numbers, first = (
        range(seeds or (_QUICK_SEEDS if quick else _SEEDS)),
        _QUICK_ROWS if quick else None,
    )
    networks, epsilons = tuple(NETWORKS), EPSILONS[1:] if quick else EPSILONS
    cells = [
        (network, epsilon, way) for network in networks for epsilon in epsilons for way in WAYS
    ]
    tries = {
        (*cell, rate): _call(cell, rate, first).but(held=True)
        for cell in cells
        for rate in (RATES[cell[0]][1:3] if quick else RATES[cell[0]])
    }
    judged = runs.named(tries, (_CHOOSING,))
    chosen = {
        cell: max(
            (key for key in judged if key[:3] == cell), key=lambda key: judged[key][0].accuracy
        )[3]
        for cell in cells
    }
    by_cell: _Reached = {}
    for network in networks:
        final_calls = {
            cell: _call(cell, chosen[cell], first) for cell in cells if cell[0] == network
        }
        by_cell |= runs.named(final_calls, numbers[:_FEWER] if network == YU else numbers)
    rows: list[Row] = []
    for cell, outcomes in by_cell.items():
        label = f"{cell[0]}, epsilon {cell[1]:g}, {cell[2]}"
        rows.append(mean_row(label, "test accuracy", each(outcomes, "accuracy")))
        rows.append(
            mean_row(label, f"epsilon spent, at delta {DELTA:g}", each(outcomes, "epsilon"))
        )
        rows.append(Row(label, "learning rate", chosen[cell]))
    title = "what noise brings at equal epsilon" + (f", {first:,} rows" if first else "")
    panels = [_panel(network, epsilon, by_cell) for network in networks for epsilon in epsilons]
    figure = Figure(
        title, panels, 5.5 * len(epsilons), 4.5 * len(networks), len(epsilons), legend=3
    )
    return Findings(tuple(rows), figure, _notes(by_cell, chosen, first))


def _call(cell: tuple[str, float, str], rate: float, first: int | None) -> Call:
    network, epsilon, way = cell
    return train.at(network=network, epsilon=epsilon, way=way, rate=rate, first=first)


def _panel(network: str, epsilon: float, outcomes: _Reached) -> Panel:
    """Differences from independent noise on Poisson batches, pair by pair, in percentage points."""
    base = each(outcomes[network, epsilon, INDEPENDENT], "accuracy")
    others = [way for way in WAYS if way != INDEPENDENT]
    points = [
        Curve(
            [at],
            [100 * np.subtract(each(outcomes[network, epsilon, way], "accuracy"), base)],
            way,
            CYCLE[at],
            "o",
            spread="error",
            size=6,
        )
        for at, way in enumerate(others)
    ]
    title = f"{NETWORKS[network]}, epsilon {epsilon:g}"
    return Panel([Across(0.0), *points], y="points over independent noise", title=title, xticks=())


def _notes(
    by_cell: _Reached, chosen: dict[tuple[str, float, str], float], first: int | None
) -> str:
    lines = []
    for (network, epsilon, way), outcomes in by_cell.items():
        accuracies, base = (
            each(by_cell[network, epsilon, name], "accuracy") for name in (way, INDEPENDENT)
        )
        middle, half = interval(accuracies, base)
        differs = "–" if way == INDEPENDENT else f"{signed(middle, half)}, {verdict(middle, half)}"
        one = outcomes[0]
        lines.append(
            (
                network,
                f"{epsilon:g}",
                way,
                spread(accuracies),
                str(len(accuracies)),
                differs,
                f"{one.noise:.3g}",
                f"{one.bands}",
                f"{chosen[network, epsilon, way]:g}",
            )
        )
    heads = (
        "network",
        "epsilon",
        "noise, batches",
        "test accuracy",
        "seeds",
        "pairs, less independent",
        "noise multiplier",
        "bands",
        "learning rate",
    )
    gains = []
    for network, epsilon in dict.fromkeys(cell[:2] for cell in by_cell):
        best = max(
            (way for way in WAYS),
            key=lambda way: mean(each(by_cell[network, epsilon, way], "accuracy")),
        )
        gains.append(f"{best} ({NETWORKS[network]}, epsilon {epsilon:g})")
    return page(
        "correlated-noise",
        table=table(heads, lines),
        delta=DELTA,
        epochs=EPOCHS,
        batch=BATCH,
        rows="60,000" if first is None else f"{first:,}",
        best="; ".join(gains),
    )
