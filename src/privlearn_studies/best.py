"""Accuracy against epsilon, with the library's defaults, beside the papers and what others have
published.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from privlearn._checks import one_of
from privlearn._storage import cache
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.clips import Flat
from privlearn.core.plan import Plan
from privlearn.core.sampling import Poisson
from privlearn.core.streams import Streams
from privlearn.core.transform import shape_after
from privlearn.data.dataset import Dataset
from privlearn.data.named import load
from privlearn.methods.statistics.classifiers import fisher
from privlearn.methods.statistics.plan import FisherPlan
from privlearn.models import networks
from privlearn.runs.front import Front
from privlearn.runs.result import Result
from privlearn.training.dpsgd import dpsgd
from privlearn.training.train import train as train_by_default
from privlearn.transforms import PublicTransform, feature_cache, read_features, usual
from privlearn_studies.charts import BLUE, GREEN, GREY, RED, SKY, Curve, Figure, Mark, Panel
from privlearn_studies.fay2020 import votes
from privlearn_studies.harder2020.mnist import tuned_classifier
from privlearn_studies.others import PUBLISHED, Published, best_known, compared, marks
from privlearn_studies.report import Findings, each, ends, mean, mean_row, page, spread, table
from privlearn_studies.runs import Call, Outcome, Runs, cached
from privlearn_studies.yu2019.training import mnist

DELTA = 1e-5
DEFAULTS, EXAMPLE, STATISTICS = "defaults", "opacus's example", "class statistics"
#: Of the MNIST example of Opacus (examples/mnist.py): its network is `cnn`, of 26 thousand weights.
_BATCH, _EPOCHS, _RATE, _NORM = 64, 10, 0.1, 1.0
_SEEDS, _QUICK_SEEDS = 3, 1
_QUICK_ROWS = 6000
_ORDER = 1000  # of the streams that shuffle rows
_EPSILONS = (0.5, 1.0, 2.0, 3.0, 4.0, 8.0)
_DATA = ("mnist", "fashion-mnist", "cifar10", "cifar10-features", "usps", "adult")
#: What the methods of the papers reach on MNIST, in their own settings or better ones.
_YU, _MAC, _PATE = "Yu et al., decaying noise", "DP-MAC", "PATE, votes"
PAPERS = (_YU, _MAC, _PATE)
_Outcomes = dict[Call, list[Outcome]]
_Reached = dict[tuple[str, float], list[float]]


@cached("best, tables centred")
def train(
    seed: int,
    *,
    data: str,
    epsilon: float,
    way: str = DEFAULTS,
    first: int | None = None,
    shuffled: bool = False,
) -> dict[str, Any]:
    """One model, with `seed`, which fixes batches and noise.

    Args:
        seed: of everything.
        data: the data set's name.
        epsilon: the target, at delta 1e-5.
        way: the library's defaults; the settings of Opacus's MNIST example with noise for the
            target; or Fisher's classifier from noisy statistics of the classes, behind the same
            public features.
        first: how many training examples; None: all.
        shuffled: whether these are the first in an order of the seed's own, not in the data's.

    Returns:
        accuracy: on the test rows.
        epsilon: what its ledger says was spent.
        seconds: of training, one thread, features not counted.
        weights: how many the network has.
    """
    rows = rows_of(data, first, seed if shuffled else None)
    chain: tuple[PublicTransform, ...] = ()
    if one_of("the way", way, (DEFAULTS, EXAMPLE, STATISTICS)) != EXAMPLE:
        chain, _ = read_features(
            usual(rows.x.shape[1:], rows.low, rows.examples * epsilon) or "raw", rows
        )
    with feature_cache(cache() / "features"):
        front = Front(chain, rows, rows.test_tensors()[0])
        Front(chain, rows, rows.tensors()[0])  # features are kept before time is taken
        started = time.perf_counter()
        result = _trained(rows, epsilon, way, chain, Streams.new(seed))
        seconds = time.perf_counter() - started
    # behind what was released
    network = nn.Sequential(*list(result.model.children())[len(front.modules) :])
    with torch.no_grad():
        said = torch.cat([network(part).argmax(1) for part in front.rows.split(2048)])  # type: ignore[no-untyped-call]
    right = float(
        (said == torch.from_numpy(np.asarray(rows.y_test).astype(np.int64))).double().mean()
    )
    weights = sum(value.numel() for value in network.parameters())
    return {
        "accuracy": right,
        "epsilon": result.ledger.guarantee(DELTA).epsilon,
        "seconds": seconds,
        "weights": weights,
    }


def rows_of(data: str, first: int | None, seed: int | None = None) -> Dataset:
    """Named data with the first of their training rows (None: all), in an order of `seed` if there
    is one.
    """
    whole = load(data)
    if first is None or seed is None:
        return replace(whole, x=whole.x[:first], y=whole.y[:first])
    at = np.random.default_rng([seed, _ORDER]).permutation(whole.examples)[:first]
    return replace(whole, x=np.asarray(whole.x)[at], y=np.asarray(whole.y)[at])


def _trained(
    data: Dataset, epsilon: float, way: str, front: tuple[PublicTransform, ...], streams: Streams
) -> Result:
    if way == STATISTICS:
        return _statistics(data, epsilon, front, streams)
    if way == DEFAULTS:
        features = front[0].spec if front else "raw"
        return train_by_default(
            data,
            epsilon=epsilon,
            delta=DELTA,
            examples=data.examples,
            streams=streams,
            features=features,
        )
    plan = Plan(
        Poisson(_BATCH / data.examples), epochs=_EPOCHS, clip=Flat(_NORM), examples=data.examples
    )
    return dpsgd(
        plan.calibrate(epsilon=epsilon, delta=DELTA),
        lambda shape: networks.build("cnn", shape, data.classes or 0, streams.initialisation),
        nn.CrossEntropyLoss(reduction="none"),
        data,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=_RATE),
        streams=streams,
    )


def _statistics(
    data: Dataset, epsilon: float, front: tuple[PublicTransform, ...], streams: Streams
) -> Result:
    """Shen et al.'s way to a classifier, without selection."""
    numbers = math.prod(shape_after(front, np.shape(data.x)[1:]))
    plan = FisherPlan(
        classes=data.classes or 0,
        features=numbers,
        keep=numbers,
        # of numbers in [0, 1], as on the command line
        row_norm=math.sqrt(numbers) / (1 if front else 2),
        adjacency=Adjacency.ADD_REMOVE,
        front=front,
    )
    return fisher(plan.calibrate(epsilon=epsilon, delta=DELTA), data, streams=streams)


def grid(quick: bool = False) -> list[Call]:
    """Six data sets at six targets by descent and by statistics, and the example's settings on
    MNIST at three.

    In short, small data sets, and a tenth of MNIST.
    """
    names, epsilons, first = (
        (("mnist", "usps", "adult"), (1.0, 3.0), _QUICK_ROWS) if quick else (_DATA, _EPSILONS, None)
    )
    ours = [
        train.at(data=data, epsilon=epsilon, way=way, first=first)
        for data in names
        for way in (DEFAULTS, STATISTICS)
        for epsilon in epsilons
    ]
    return ours + [
        train.at(data="mnist", epsilon=e, way=EXAMPLE) for e in (() if quick else (1.0, 3.0, 8.0))
    ]


def reached_by_papers(runs: Runs, numbers: Sequence[int]) -> _Reached:
    """Test accuracies of each seed by the paper and epsilon; runs that other studies made are not
    made again.
    """
    epsilons, decay = (0.5, 2.0, 8.0), "exp:k=0.0138"
    calls = {
        (_YU, e): mnist(decay, epochs=60, clip="flat", epsilon=e, sampling="partition")
        for e in epsilons
    }
    calls |= {(_MAC, e): tuned_classifier(e) for e in epsilons}
    reached = {name: ends(mine) for name, mine in runs.named(calls, numbers).items()}
    by_votes = votes.train.at()
    # With 1,000 queries, from labels that spread from the winners: see `pate-mnist`.
    return reached | {
        (_PATE, by_votes.epsilon): [one.test[1][1] for one in runs([by_votes], numbers)[by_votes]]
    }


def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Every data set at every target, and MNIST by Opacus's example."""
    numbers, calls = range(seeds or (_QUICK_SEEDS if quick else _SEEDS)), grid(quick)
    known = () if quick else PUBLISHED  # which are of all rows
    by_call = runs(calls, numbers)
    rows = []
    for call in calls:
        label = f"{call.data}, epsilon {call.epsilon:g}, {call.way}"
        best = best_known(call.data, call.epsilon) if known and call.way == DEFAULTS else None
        rows += [
            mean_row(
                label, "test accuracy", each(by_call[call], "accuracy"), best and best.accuracy
            ),
            mean_row(label, f"epsilon spent, at delta {DELTA:g}", each(by_call[call], "epsilon")),
            mean_row(label, "seconds of training, one thread", each(by_call[call], "seconds")),
        ]
    papers = {} if quick else reached_by_papers(runs, numbers)
    for (way, epsilon), accuracies in papers.items():
        rows.append(mean_row(f"mnist, epsilon {epsilon:g}, {way}", "test accuracy", accuracies))
    names = list(dict.fromkeys(call.data for call in calls))
    title = "accuracy with default settings" + (f", {_QUICK_ROWS:,} training rows" if quick else "")
    panels = [
        _panel(name, {c: by_call[c] for c in calls if c.data == name}, papers, known)
        for name in names
    ]
    figure = Figure(title, panels, 13, 10 if len(names) > 3 else 5, 3)
    return Findings(tuple(rows), figure, _notes(by_call, papers, len(numbers), quick))


def _notes(by_call: _Outcomes, papers: _Reached, seeds: int, quick: bool) -> str:
    epsilons = sorted({call.epsilon for call in by_call})
    columns = [f"epsilon {epsilon:g}" for epsilon in epsilons]
    by_way = {(call.data, call.way, call.epsilon): mine for call, mine in by_call.items()}
    lines = []
    for name, way in dict.fromkeys((call.data, call.way) for call in by_call):
        by_epsilon = (by_way.get((name, way, epsilon)) for epsilon in epsilons)
        lines.append(
            (
                name,
                way,
                *("–" if mine is None else spread(each(mine, "accuracy")) for mine in by_epsilon),
            )
        )
    for way in dict.fromkeys(way for way, _ in papers):
        lines.append(
            (
                "mnist",
                way,
                *(spread(papers[way, e]) if (way, e) in papers else "–" for e in epsilons),
            )
        )
    seconds = []
    for name in dict.fromkeys(call.data for call in by_call):
        several = [by_way[name, DEFAULTS, epsilon] for epsilon in epsilons]
        seconds.append(
            (
                name,
                f"{several[0][0].weights:,}",
                *(f"{mean(each(mine, 'seconds')):.0f}" for mine in several),
            )
        )
    ours = {
        (call.data, call.epsilon): mean(each(mine, "accuracy"))
        for call, mine in by_call.items()
        if call.way == DEFAULTS
    }
    return page(
        "best",
        seeds=f"{seeds} seed{'s' if seeds > 1 else ''}",
        delta=DELTA,
        names=", ".join(dict.fromkeys(call.data for call in by_call)),
        quick=" " + page("best-parts:quick", rows=_QUICK_ROWS) if quick else "",
        table=table(("data", "way", *columns), lines),
        seconds=table(("data", "weights", *columns), seconds),
        papers="" if quick else page("best-parts:papers"),
        compared="" if quick else compared(ours),
        ceiling="" if quick else page("best-parts:ceiling"),
    )


def _panel(data: str, by_call: _Outcomes, papers: _Reached, known: Sequence[Published]) -> Panel:
    """Accuracy against epsilon: lines are ours, marks what others published; hollow: the papers'
    methods, run here.
    """
    drawn: list[Mark] = []
    for way, colour in ((DEFAULTS, BLUE), (STATISTICS, SKY), (EXAMPLE, GREY)):
        means = {
            call.epsilon: mean(each(mine, "accuracy"))
            for call, mine in by_call.items()
            if call.way == way
        }
        if means:
            drawn.append(
                Curve(
                    sorted(means), [means[epsilon] for epsilon in sorted(means)], way, colour, "o-"
                )
            )
    for which, (whose, points) in enumerate(marks(data, known).items()):
        x, y = zip(*points, strict=True)
        drawn.append(Curve(x, y, f"published: {whose}", RED, "x^sDvP*"[which % 7], size=6))
    for way, marker in zip(PAPERS, "osD", strict=True) if data == "mnist" else ():
        by_paper = {
            epsilon: mean(values) for (name, epsilon), values in papers.items() if name == way
        }
        if by_paper:
            drawn.append(
                Curve(
                    sorted(by_paper),
                    [by_paper[e] for e in sorted(by_paper)],
                    way,
                    GREEN,
                    marker,
                    size=5,
                    hollow=True,
                )
            )
    return Panel(drawn, "epsilon", "test accuracy", data, "x2", xticks=_EPSILONS, legend="below")
