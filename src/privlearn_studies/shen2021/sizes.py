"""Shen et al. 2021, Figure 1 and appendix A.1: is the larger network worse under DP-SGD? Each size
at several rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import nn

from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping.clips import Flat
from privlearn.core.plan import Plan
from privlearn.core.sampling import Poisson
from privlearn.core.streams import Streams
from privlearn.models.networks import build
from privlearn.training.dpsgd import dpsgd
from privlearn_studies.charts import BLUE, CYCLE, RED, Curve, Figure, Mark, Panel
from privlearn_studies.data import TASKS, accuracy
from privlearn_studies.report import (
    Findings,
    Row,
    each,
    interval,
    judged,
    mean,
    mean_row,
    page,
    signed,
    spread,
    table,
    verdict,
)
from privlearn_studies.runs import Outcome, Runs, cached

DELTA = 1e-5
_CLIP, _SIDE = 0.1, 28
_SEEDS, _QUICK_SEEDS = 3, 1
_SMALL, _LARGE = "cnn:16,32,32", "cnn:23,46,45"
#: The last is there to tell what noise does from what training does: it leaves a noise multiplier
#: of 0.19.
_EPSILONS = (0.5, 2.0, 200.0)
_CNN_EPSILONS = (2.0,)
_RATES, _CNN_RATES = (10.0, 20.0, 40.0, 80.0), (10.0, 20.0, 40.0)
_WIDTHS, _DEPTHS = (10, 32, 100, 320, 1000), (1, 2, 3, 4, 6)
_DEEP = 100  # hidden units in each of the layers
_EPOCHS, _QUICK_EPOCHS = 5, 2
_ROWS, _CNN_ROWS, _QUICK_ROWS = 20_000, 10_000, 3000
_TEST = "test accuracy"


@cached("dfs-size")
def train(
    seed: int,
    *,
    model: str,
    epsilon: float,
    rate: float,
    epochs: int = _EPOCHS,
    sampling_rate: float = 0.04,
    first: int | None = None,
) -> dict[str, Any]:
    """One network on MNIST, with `seed`, which fixes weights, batches and noise.

    Args:
        seed: of everything.
        model: its spec: see `network`.
        epsilon: at delta 1e-5.
        rate: of learning; constant.
        epochs: how many.
        sampling_rate: of each batch.
        first: private rows; None: 55,000.

    Returns:
        test: accuracy on the test images.
        held: on 5,000 training images that are held back, which learning rates are chosen by.
        epsilon: what the ledger says was spent.
        parameters: the network's.
    """
    rows = TASKS["mnist"].rows(0, True)
    x, y = rows.x[:first], rows.y[:first]
    plan = Plan(
        Poisson(sampling_rate=sampling_rate), epochs=epochs, clip=Flat(_CLIP), examples=len(x)
    )
    plan = plan.calibrate(epsilon=epsilon, delta=DELTA)
    streams, ledger = Streams.new(seed), Ledger(plan.budget)
    net = network(model, streams.initialisation)
    dpsgd(
        plan,
        net,
        nn.CrossEntropyLoss(reduction="none"),
        (x, y),
        ledger=ledger,
        streams=streams,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate),
    )
    return {
        "test": accuracy(net, rows.x_test, rows.y_test),
        "held": accuracy(net, rows.x_valid, rows.y_valid),
        "epsilon": ledger.guarantee(DELTA).epsilon,
        "parameters": sum(weights.numel() for weights in net.parameters()),
    }


def network(model: str, rng: np.random.Generator) -> nn.Module:
    """The network of a spec for flat rows, weights by `rng`; `cnn:16,32,32` is `cnn` of these
    channels and units.
    """
    name, _, sizes = model.partition(":")
    if name != "cnn":
        return build(model, (_SIDE**2,), 10, rng)
    first, second, hidden = (int(size) for size in sizes.split(","))
    with torch.random.fork_rng():
        torch.manual_seed(int(rng.integers(2**63)))
        # As `models.build("cnn")`, of any width: 5 x 5 places are left, less one for the last
        # pooling.
        return nn.Sequential(
            nn.Unflatten(1, (1, _SIDE, _SIDE)),
            nn.Conv2d(1, first, 8, stride=2, padding=3),
            nn.Tanh(),
            nn.MaxPool2d(2, 1),
            nn.Conv2d(first, second, 4, stride=2),
            nn.Tanh(),
            nn.MaxPool2d(2, 1),
            nn.Flatten(),
            nn.Linear(16 * second, hidden),
            nn.Tanh(),
            nn.Linear(hidden, 10),
        )


@final
@dataclass(frozen=True)
class Size:
    """A network at one epsilon, at every rate.

    Attributes:
        model: its spec.
        at: what it is called by its size: parameters in thousands, hidden units or layers.
        epsilon: at delta 1e-5.
        runs: outcomes for each seed, by learning rate.
    """

    model: str
    at: float
    epsilon: float
    runs: dict[float, list[Outcome]]

    @property
    def best(self) -> float:
        """The learning rate of the best mean accuracy on images that are held back from
        training.
        """
        return max(self.runs, key=lambda rate: mean(each(self.runs[rate], "held")))

    def test(self, rate: float | None = None) -> list[float]:
        """Test accuracies for each seed, at a rate, or at the best."""
        return each(self.runs[self.best if rate is None else rate], "test")

    @property
    def parameters(self) -> int:
        """The network's."""
        return int(self.runs[self.best][0].parameters)


def depth(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Networks of growing depth."""
    numbers, what = range(seeds or (_QUICK_SEEDS if quick else _SEEDS)), f"hidden layers of {_DEEP}"
    models = {"mlp:" + ",".join([str(_DEEP)] * layers): float(layers) for layers in _DEPTHS}
    sizes = _sizes(models, quick, numbers, runs)
    notes = page(
        "dfs-sizes",
        about=about(quick, len(numbers), cnns=False),
        cnns="",
        table=_compared(sizes, what),
    )
    figure = Figure("DP-SGD on MNIST by depth", _by_size(sizes, what), 15, 4.6, 3, 5)
    return Findings(tuple(row for one in sizes for row in _rows(one)), figure, notes)


def width(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Networks of growing width, the paper's CNNs among them."""
    numbers, what = range(seeds or (_QUICK_SEEDS if quick else _SEEDS)), "hidden units"
    sizes = _sizes({f"mlp:{units}": float(units) for units in _WIDTHS}, quick, numbers, runs)
    cnns = _sizes({_SMALL: 26.0, _LARGE: 52.0}, quick, numbers, runs, cnns=True)
    notes = page(
        "dfs-sizes",
        about=about(quick, len(numbers), cnns=True),
        cnns=_cnns(cnns),
        table=_compared(sizes, what),
    )
    figure = Figure(
        "DP-SGD on MNIST by width", [*_by_size(sizes, what), _by_rate(cnns)], 12, 8.4, 2, 5
    )
    return Findings(tuple(row for one in (*cnns, *sizes) for row in _rows(one)), figure, notes)


def _sizes(
    models: dict[str, float], quick: bool, numbers: Sequence[int], runs: Runs, cnns: bool = False
) -> list[Size]:
    """Every network at every epsilon and rate."""
    epsilons, first = (_CNN_EPSILONS, _CNN_ROWS) if cnns else (_EPSILONS, _ROWS)
    rates: tuple[float, ...] = _CNN_RATES if cnns else _RATES
    rates = rates[1:3] if quick else rates
    short = {"first": _QUICK_ROWS, "epochs": _QUICK_EPOCHS} if quick else {"first": first}
    calls = {
        (model, epsilon, rate): train.at(model=model, epsilon=epsilon, rate=rate, **short)
        for epsilon in epsilons
        for model in models
        for rate in rates
    }
    outcomes = runs.named(calls, numbers)
    return [
        Size(model, at, epsilon, {rate: outcomes[model, epsilon, rate] for rate in rates})
        for epsilon in epsilons
        for model, at in models.items()
    ]


def _rows(size: Size) -> list[Row]:
    label = f"{size.model}, epsilon {size.epsilon:g}"
    return [
        Row(label, "parameters", size.parameters),
        Row(label, "learning rate chosen on held-back training images", size.best),
        mean_row(label, f"{_TEST} at that rate", size.test()),
        mean_row(
            label, f"epsilon spent, at delta {DELTA:g}", each(size.runs[size.best], "epsilon")
        ),
        *(mean_row(f"{label}, rate {rate:g}", _TEST, size.test(rate)) for rate in size.runs),
    ]


def about(quick: bool, seeds: int, cnns: bool) -> str:
    """What stands at the top of the page."""
    rows, fewer, epochs = (
        (_QUICK_ROWS, _QUICK_ROWS, _QUICK_EPOCHS) if quick else (_ROWS, _CNN_ROWS, _EPOCHS)
    )
    return page(
        "dfs-sizes-about",
        rows=rows,
        beside=f" (CNNs: on {fewer:,})" if cnns else "",
        epochs=epochs,
        seeds=seeds,
        rates=len(_RATES),
        others=f" and {len(_CNN_RATES)} for every CNN" if cnns else "",
        last=_RATES[-1],
    )


def _cnns(cnns: Sequence[Size]) -> str:
    """The paper's own comparison."""
    small, large = cnns
    lines = []
    for rate in [*small.runs, None]:
        difference = interval(large.test(rate), small.test(rate))
        name = f"each its best ({small.best:g}, {large.best:g})" if rate is None else f"{rate:g}"
        lines.append(
            (
                name,
                spread(small.test(rate), 3, error=True),
                spread(large.test(rate), 3, error=True),
                signed(*difference),
                verdict(*difference),
            )
        )
    heads = (
        "learning rate",
        f"{small.parameters:,} parameters",
        f"{large.parameters:,}",
        "difference",
        "the larger is",
    )
    said = (
        "**The CNN of 52 thousand parameters beside that of 26 thousand**, at epsilon "
        f"{small.epsilon:g}."
    )
    return f"{said}\n\n{table(heads, lines)}"


def _compared(sizes: Sequence[Size], what: str) -> str:
    """Each size at its best rate and at one for all."""
    lines = []
    for epsilon in _EPSILONS:
        first, *_ = mine = [one for one in sizes if one.epsilon == epsilon]
        for one in mine:
            lines.append(
                (
                    f"{epsilon:g}",
                    f"{one.at:g}",
                    f"{one.parameters:,}",
                    f"{one.best:g}",
                    spread(one.test(), 3, error=True),
                    "–" if one is first else judged(one.test(), first.test()),
                    spread(one.test(first.best), 3, error=True),
                )
            )
    heads = (
        "epsilon",
        what,
        "parameters",
        "best rate",
        f"{_TEST} at it",
        "against the smallest",
        "at the smallest network's rate",
    )
    return table(heads, lines)


def _by_size(sizes: Sequence[Size], what: str) -> list[Panel]:
    """For each epsilon every rate's curve, and the best of each size."""
    panels = []
    for epsilon in _EPSILONS:
        mine = [one for one in sizes if one.epsilon == epsilon]
        places = [one.at for one in mine]
        marks: list[Mark] = [
            Curve(places, [one.test(rate) for one in mine], f"rate {rate:g}", colour, "--", width=1)
            for rate, colour in zip(mine[0].runs, CYCLE, strict=False)
        ]
        marks.append(
            Curve(
                places,
                [one.test() for one in mine],
                "each at its best rate",
                "black",
                "o-",
                "error",
            )
        )
        log, title = "x" if "units" in what else "", f"fully connected, epsilon {epsilon:g}"
        panels.append(Panel(marks, what, _TEST, title, log, xticks=places))
    return panels


def _by_rate(cnns: Sequence[Size]) -> Panel:
    rates = list(cnns[0].runs)
    marks = [
        Curve(
            rates,
            [one.test(rate) for rate in rates],
            f"{one.parameters:,} parameters",
            colour,
            "o-",
            "error",
        )
        for one, colour in zip(cnns, (BLUE, RED), strict=True)
    ]
    return Panel(
        marks,
        "learning rate",
        _TEST,
        f"CNNs, epsilon {cnns[0].epsilon:g}",
        "x",
        xticks=rates,
        legend="best",
    )
