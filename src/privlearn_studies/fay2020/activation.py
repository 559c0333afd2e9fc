"""Fay et al. 2020, Figures 1 and 2: the bottleneck's activation fills the unit ball, almost
evenly.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, stats

from privlearn.methods.pate import unit_ball
from privlearn_studies.charts import BLUE, CYCLE, ORANGE, RED, Curve, Figure, Heat, Mark, Panel
from privlearn_studies.report import Findings, Row, mean_row, page
from privlearn_studies.runs import Runs

_SIZES = (1, 2, 8, 64)
_DRAWS, _QUICK_DRAWS = 200_000, 20_000
_SEEDS, _QUICK_SEEDS = 5, 1
_SLOPE = math.sqrt(8 / math.pi)
#: Where the formula as it is printed fails in single precision, and in how many dimensions it is
#: tried.
_FAR, _WIDE = -60.0, 64


def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """The radius against a uniform one, the direction against the sphere, and the far ends of
    single precision.
    """
    numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
    draws = _QUICK_DRAWS if quick else _DRAWS
    where, distance = sup_distance()
    rows = [
        Row(
            "logistic(x sqrt(8 / pi)) against the normal distribution", "largest distance", distance
        ),
        Row("the same", "x of the largest distance, from below", where),
    ]
    for size in _SIZES:
        balls = [_ball(size, draws, seed) for seed in numbers]
        label = f"l = {size}, {draws} standard normal inputs"
        rows += [
            mean_row(
                label,
                "radius^l against uniform: largest distance of distributions",
                [ball[0] for ball in balls],
            ),
            mean_row(
                label,
                "direction's first number against the sphere's: the same",
                [ball[1] for ball in balls],
            ),
            Row(label, "largest norm", max(ball[2] for ball in balls)),
        ]
    rows += [
        Row(
            "inputs of 1e-15 to 1e15 and zeros, all l, single precision",
            "largest norm, less 1",
            max(map(_excess, _SIZES)),
        ),
        Row(
            f"l = {_WIDE}, first input {_FAR:g}, single precision",
            "radius, as printed",
            float(printed(_FAR, _WIDE)),
        ),
        Row(
            f"l = {_WIDE}, first input {_FAR:g}, single precision",
            "radius, stable form",
            _stable(_FAR, _WIDE),
        ),
        Row(
            f"l = {_WIDE}, first input {_FAR:g}, exactly", "radius", math.exp(_SLOPE * _FAR / _WIDE)
        ),
    ]
    notes = page("pate-activation", distance=distance, draws=draws, chance=0.87 / math.sqrt(draws))
    panels = [_curves(), _radii(draws), _far_ends(), *_disks(draws)]
    return Findings(
        tuple(rows), Figure("The activation of the bottleneck", panels, 12, 7.6, 3, 2), notes
    )


def sup_distance() -> tuple[float, float]:
    """Where logistic(x sqrt(8 / pi)) is farthest from the normal distribution function, on the
    left, and how far.
    """
    least = optimize.minimize_scalar(
        lambda x: -abs(_logistic(x) - stats.norm.cdf(x)),
        bounds=(-3, -0.5),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return float(least.x), -float(least.fun)


def printed(first: float, size: int) -> NDArray[np.float32]:
    """The radius as the paper writes it, in single precision."""
    with np.errstate(over="ignore"):
        root = (np.exp(np.float32(-first * _SLOPE)) + np.float32(1)) ** np.float32(1 / size)
    return np.asarray(np.float32(1) / root)


def _stable(first: float, size: int) -> float:
    """The radius by `unit_ball`, in single precision."""
    return float(unit_ball(torch.tensor([[first, *[1.0] * size]])).norm())


def _logistic(x: float | NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-_SLOPE * np.asarray(x))))


def _drawn(size: int, draws: int, seed: int) -> NDArray[np.float64]:
    """Activations of standard normal inputs, shape (draws, size)."""
    inputs = np.random.default_rng([seed, size]).standard_normal((draws, size + 1))
    return unit_ball(torch.from_numpy(inputs.astype(np.float32))).double().numpy()


def _ball(size: int, draws: int, seed: int) -> tuple[float, float, float]:
    """How far radius and direction are from what is uniform, and the largest norm."""
    points = _drawn(size, draws, seed)
    radius = np.linalg.norm(points, axis=1)
    first = points[:, 0] / radius
    # Of a uniform direction (1 + first number) / 2 has a beta distribution; in one dimension it is
    # a fair coin.
    if size == 1:
        apart = abs(float((first > 0).mean()) - 0.5)
    else:
        apart = float(
            stats.kstest((1 + first) / 2, stats.beta((size - 1) / 2, (size - 1) / 2).cdf).statistic
        )
    return float(stats.kstest(radius**size, "uniform").statistic), apart, float(radius.max())


def _excess(size: int) -> float:
    """By how much the norm of an activation is above 1, at most, for inputs of very different
    sizes, some of them 0.
    """
    rng = np.random.default_rng(size)
    inputs = rng.standard_normal((20_000, size + 1)) * 10.0 ** rng.integers(
        -15, 16, (20_000, size + 1)
    )
    inputs[:100, 1:] = 0
    return (
        float(unit_ball(torch.from_numpy(inputs.astype(np.float32))).double().norm(dim=1).max()) - 1
    )


def _curves() -> Panel:
    """Figure 1."""
    x = np.linspace(-4, 4, 400)
    marks = (
        Curve(x, stats.norm.cdf(x), "normal distribution", "black", width=2),
        Curve(x, _logistic(x), "logistic(x sqrt(8 / π))", RED, "--"),
    )
    return Panel(marks, "x", "distribution function", "Figure 1: logistic and normal")


def _radii(draws: int) -> Panel:
    """How far the distribution of radius^l is from the diagonal."""
    grid, x = np.linspace(0, 1, 400), np.linspace(-8, 8, 800)
    marks: list[Mark] = []
    for size, colour in zip(_SIZES, CYCLE, strict=False):
        powers = np.sort(np.linalg.norm(_drawn(size, draws, 0), axis=1) ** size)
        marks.append(
            Curve(
                grid, np.searchsorted(powers, grid) / draws - grid, f"l = {size}", colour, width=1
            )
        )
    marks.append(
        Curve(_logistic(x), stats.norm.cdf(x) - _logistic(x), "expected", "black", width=0.8)
    )
    return Panel(
        marks, "radius to the power l", "distribution less uniform", "the radius", legend="best"
    )


def _far_ends() -> Panel:
    """The radius far from 0, as printed and in the stable form."""
    x = np.linspace(-100, 0, 401)
    marks = (
        Curve(x, [_stable(place, _WIDE) for place in x], "stable form", BLUE, width=2),
        Curve(x, [float(printed(place, _WIDE)) for place in x], "as printed", ORANGE, "--"),
    )
    return Panel(marks, "first input", "radius", f"single precision, l = {_WIDE}", legend="best")


def _disks(draws: int) -> list[Panel]:
    """Figure 2: counts on a grid over the disk."""
    edges = np.linspace(-1, 1, 26 if draws <= _QUICK_DRAWS else 41)
    normal = np.random.default_rng(1).standard_normal((draws, 2))
    radius = np.sqrt(np.random.default_rng(2).random(draws))
    uniform = normal / np.linalg.norm(normal, axis=1, keepdims=True) * radius[:, None]
    per_cell = draws * (edges[1] - edges[0]) ** 2 / math.pi
    ours, other = (
        np.histogram2d(points[:, 0], points[:, 1], bins=[edges, edges])[0] / per_cell
        for points in (_drawn(2, draws, 0), uniform)
    )
    panels: list[Panel] = []
    for counts, title in (
        (ours, "Figure 2: activations, l = 2"),
        (other, "uniform"),
        (np.abs(ours - other), "absolute difference"),
    ):
        bar = "density over uniform" if len(panels) == 2 else ""
        panels.append(
            Panel(
                [Heat(edges, edges, counts.T, ("white", BLUE), 0, 1.5, bar=bar)],
                title=title,
                square=True,
            )
        )
    return panels
