"""Yu et al. 2019, section V-B: the runs behind each table and figure, and the paper's numbers where its text gives them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

from privlearn.accounting.budget import Budget
from privlearn.plan import Plan
from privlearn.sampling import Shuffle
from privlearn.schedules import Exponential, parse, spec
from privlearn_studies.tasks import TASKS
from privlearn_studies.yu.runs import Setting
from privlearn_studies.yu.table3 import EPOCHS, PAPER

RHO = TASKS["mnist"].rho
#: Table II's columns: the schedule, and its epochs, training and test accuracy in the paper, then those of plain
#: training and of uniform noise in as many epochs.
TABLE_2 = {
    "uniform": ("constant:start=8", 100, (0.918, 0.919), (0.978, 0.970), None),
    "time": ("time:k=0.05", 38, (0.934, 0.931), (0.959, 0.957), (0.922, 0.925)),
    "step": ("step:k=0.6,period=10", 31, (0.928, 0.929), (0.955, 0.954), (0.921, 0.925)),
    "exponential": ("exp:k=0.01", 71, (0.934, 0.929), (0.971, 0.965), (0.922, 0.925)),
    "polynomial": ("poly:k=3,end=2,period=100", 44, (0.930, 0.932), (0.963, 0.959), (0.925, 0.929)),
    "validation": ("validation:k=0.7,m=5,threshold=0.01,period=10", 64, (0.930, 0.930), (0.97, 0.964), (0.924, 0.926)),
}
#: Appendix D: training and test accuracy by hidden layers.
LAYERS = {1: (0.9315, 0.931), 2: (0.9228, 0.921), 3: (0.902, 0.898)}
#: Table V, and plain training's (training, test) accuracy where the text gives it.
SMALL_TASKS = {
    "cancer": {
        "uniform": "constant:start=25",
        "exponential": "exp:k=0.001,start=30",
        "validation": "validation:k=0.99,m=1,threshold=0.01,period=50,start=35",
    },
    "cifar10": {
        "uniform": "constant:start=8",
        "exponential": "exp:k=0.001,start=6",
        "validation": "validation:k=0.99,m=5,threshold=0.05,period=10,start=6",
    },
}
PLAIN = {"cancer": (800, (0.96, 0.96)), "cifar10": (200, (0.64, 0.58))}
_SIXTY = "exp:k=0.0138"
_QUICK = 6_000


#: What a random partition does with the epsilon of rho = 0.78125 at delta 1e-5, which is 6.78: settings found on the 5,000
#: training images that the validation schedule looks at.
PARTITION = Setting(
    "mnist",
    "constant",
    epochs=60,
    clip="flat",
    clip_norm=0.1,
    epsilon=6.78,
    sampling="partition",
    batch_size=4000,
    scale="whitened",
    learning_rate=260.0,
    learning_rates="poly:k=1,end=0,period=60",
)


def mnist(schedule: str | None, quick: bool = False, **others: object) -> Setting:
    """A run of the MNIST task; a quick one has a tenth of the rows."""
    return replace(Setting("mnist", schedule, first=_QUICK if quick else None), **others)  # type: ignore[arg-type]


def uniform(epochs: int) -> str:
    """The constant noise with which the budget lasts `epochs` epochs: sigma = sqrt(epochs / (2 rho))."""
    return f"constant:start={math.sqrt(epochs / (2 * RHO))!r}"


def with_noise(schedule: str, factor: float) -> str:
    """The spec of `schedule` at `factor` times the noise."""
    return schedule if factor == 1 else spec(parse(schedule).scaled(factor))


@final
@dataclass(frozen=True)
class Point:
    """One run of a sweep: the curve that it belongs to, and where on it."""

    curve: str
    at: float
    setting: Setting


def fig6(quick: bool) -> list[Point]:
    """Every decay function at each training time, by Table III's rates, and uniform noise."""
    names = {kind: kind.__name__.lower() for kind in PAPER}
    times = (30, 60, 100) if quick else EPOCHS
    decays = [
        Point(names[kind], epochs, mnist(spec(kind(k=k)), quick))  # type: ignore[call-arg]
        for kind, rates in PAPER.items()
        for epochs, k in zip(EPOCHS, rates, strict=True)
        if epochs in times and (not quick or names[kind] == "exponential")
    ]
    return [Point("uniform", epochs, mnist(uniform(epochs), quick)) for epochs in times] + decays


def fig7_8(quick: bool) -> list[Point]:
    """Decay rates of the exponential and of the validation schedule."""
    rates = (0.01, 0.2, 0.5) if quick else (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
    factors = (0.5, 0.9) if quick else (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    rule = "validation:k={:g},m=5,threshold=0.01,period=10"
    return [
        *(Point("exponential", k, mnist(f"exp:k={k:g}", quick)) for k in rates),
        *(Point("validation", k, mnist(rule.format(k), quick)) for k in factors),
    ]


def fig9(quick: bool) -> list[Point]:
    """Learning rates that fall from 0.1 to an end within ten epochs."""
    ends = (0.01, 0.05) if quick else (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07)
    rates = "poly:k=1,end={:g},period=10,start=0.1"
    return [
        Point("exponential", end, mnist(_SIXTY, quick, learning_rate=0.1, learning_rates=rates.format(end)))
        for end in ends
    ]


def fig10(quick: bool) -> list[Point]:
    """Hidden units."""
    widths = (200, 1000) if quick else (200, 400, 600, 800, 1000, 1200, 1400, 1600)
    return [Point("exponential", width, mnist(_SIXTY, quick, hidden=(width,))) for width in widths]


def fig11(quick: bool) -> list[Point]:
    """Initial noise, at a fixed training time of 60 epochs and at a fixed decay rate."""
    starts = (7.0, 20.0) if quick else (7.0, 8.0, 10.0, 12.0, 14.0, 16.0, 18.0, 20.0)
    fixed_rate = [Point("decay rate 0.015", start, mnist(f"exp:k=0.015,start={start:g}", quick)) for start in starts]
    return [Point("60 epochs", start, mnist(_in_sixty(start), quick)) for start in starts] + fixed_rate


def layers(quick: bool) -> list[Point]:
    """Hidden layers of 1000 units."""
    deep = (1, 2) if quick else tuple(LAYERS)
    return [Point("exponential", count, mnist(_SIXTY, quick, hidden=(1000,) * count)) for count in deep]


def _in_sixty(start: float) -> str:
    """The exponential schedule from `start` that spends the budget in 60 epochs."""
    plan = Plan(Shuffle(600), epochs=60, schedule=Exponential(k=0.01, start=start))
    return spec(plan.with_rate(Budget(rho=RHO)).schedule)
