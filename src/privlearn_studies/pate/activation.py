"""Fay et al. 2020, Figures 1 and 2: the bottleneck's activation fills the unit ball, almost evenly."""

from __future__ import annotations

import math

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from numpy.typing import NDArray
from scipy import optimize, stats

from privlearn.teachers import unit_ball
from privlearn_studies import plots
from privlearn_studies.findings import Findings, Row
from privlearn_studies.seeds import mean_row

_SIZES = (1, 2, 8, 64)
_DRAWS, _QUICK_DRAWS = 200_000, 20_000
_SEEDS, _QUICK_SEEDS = 5, 1
_SLOPE = math.sqrt(8 / math.pi)
#: Where the formula as it is printed fails in single precision, and in how many dimensions it is shown.
_FAR, _WIDE = -60.0, 64
_HOT = LinearSegmentedColormap.from_list("counts", ["white", plots.BLUE])


def run(quick: bool, seeds: int | None) -> Findings:
    """The radius against a uniform one, the direction against the sphere, and the far ends of single precision."""
    numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
    draws = _QUICK_DRAWS if quick else _DRAWS
    where, distance = sup_distance()
    rows = [
        Row("logistic(x sqrt(8 / pi)) against the normal distribution", "largest distance", distance),
        Row("the same", "x of the largest distance, from below", where),
    ]
    for size in _SIZES:
        found = [_ball(size, draws, seed) for seed in numbers]
        label = f"l = {size}, {draws} standard normal inputs"
        rows += [
            mean_row(label, "radius^l against uniform: largest distance of distributions", [f[0] for f in found]),
            mean_row(label, "direction's first number against the sphere's: the same", [f[1] for f in found]),
            Row(label, "largest norm", max(f[2] for f in found)),
        ]
    rows += [
        Row(
            "inputs of 1e-15 to 1e15 and zeros, all l, single precision",
            "largest norm, less 1",
            max(map(_excess, _SIZES)),
        ),
        Row(f"l = {_WIDE}, first input {_FAR:g}, single precision", "radius, as printed", float(printed(_FAR, _WIDE))),
        Row(f"l = {_WIDE}, first input {_FAR:g}, single precision", "radius, stable form", _stable(_FAR, _WIDE)),
        Row(f"l = {_WIDE}, first input {_FAR:g}, exactly", "radius", math.exp(_SLOPE * _FAR / _WIDE)),
    ]
    notes = (
        "The activation is logistic(o_0 sqrt(8 / pi))^(1 / l) times the direction of the other l inputs. The paper shows both "
        "figures and gives no numbers. For standard normal inputs the direction is uniform on the sphere, exactly; the radius "
        f"to the power l would be uniform, too, if the logistic function were the normal distribution's: they differ by "
        f"{distance:.4f} at most. So tests of uniformity reject it with enough draws, whatever the code.",
        f"Distances of distributions are of {draws} draws, which by chance alone gives about {0.87 / math.sqrt(draws):.4f}. "
        "No norm is above 1 but for the last digit of single precision: the activation ends with a hard clip. The sensitivity "
        "rests on none of this, since the aggregator clips codes once more, in double precision.",
        "As printed, the formula takes exp(-o_0 sqrt(8 / pi)), which is infinite in single precision below o_0 = -55.6, and "
        "the radius then 0. privlearn takes exp(-softplus(-o_0 sqrt(8 / pi)) / l).",
    )
    figure, axes = plots.panels("The activation of the bottleneck", 12, 7.6, 2, 3)
    _curves(axes[0])
    plots.legend(figure, axes[0], 2)
    _radii(axes[1], draws)
    _far_ends(axes[2])
    _disks(axes[3:], draws)
    return Findings(tuple(rows), figure, notes)


def sup_distance() -> tuple[float, float]:
    """Where logistic(x sqrt(8 / pi)) is farthest from the normal distribution function, on the left, and how far."""
    found = optimize.minimize_scalar(lambda x: -abs(_logistic(x) - stats.norm.cdf(x)), bounds=(-3, -0.5), method="bounded",
                                     options={"xatol": 1e-10})  # fmt: skip
    return float(found.x), -float(found.fun)


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
    found = _drawn(size, draws, seed)
    radius = np.linalg.norm(found, axis=1)
    first = found[:, 0] / radius
    # Of a uniform direction (1 + first number) / 2 has a beta distribution; in one dimension it is a fair coin.
    if size == 1:
        apart = abs(float((first > 0).mean()) - 0.5)
    else:
        apart = float(stats.kstest((1 + first) / 2, stats.beta((size - 1) / 2, (size - 1) / 2).cdf).statistic)
    return float(stats.kstest(radius**size, "uniform").statistic), apart, float(radius.max())


def _excess(size: int) -> float:
    """By how much the norm of an activation is above 1, at most, for inputs of very different sizes, zeros among them."""
    rng = np.random.default_rng(size)
    inputs = rng.standard_normal((20_000, size + 1)) * 10.0 ** rng.integers(-15, 16, (20_000, size + 1))
    inputs[:100, 1:] = 0
    return float(unit_ball(torch.from_numpy(inputs.astype(np.float32))).double().norm(dim=1).max()) - 1


def _curves(ax: Axes) -> None:
    """Figure 1."""
    x = np.linspace(-4, 4, 400)
    ax.plot(x, stats.norm.cdf(x), color="black", linewidth=2, label="normal distribution")
    ax.plot(x, _logistic(x), color=plots.RED, linestyle="--", label="logistic(x sqrt(8 / π))")
    plots.name_axes(ax, "x", "distribution function", "Figure 1: logistic and normal")


def _radii(ax: Axes, draws: int) -> None:
    """How far the distribution of radius^l is from the diagonal."""
    grid = np.linspace(0, 1, 400)
    for size, colour in zip(_SIZES, plots.CYCLE, strict=False):
        powers = np.sort(np.linalg.norm(_drawn(size, draws, 0), axis=1) ** size)
        ax.plot(grid, np.searchsorted(powers, grid) / draws - grid, color=colour, linewidth=1, label=f"l = {size}")
    x = np.linspace(-8, 8, 800)
    ax.plot(_logistic(x), stats.norm.cdf(x) - _logistic(x), color="black", linewidth=0.8, label="expected")
    ax.legend(frameon=False, fontsize=8)
    plots.name_axes(ax, "radius to the power l", "distribution less uniform", "the radius")


def _far_ends(ax: Axes) -> None:
    """The radius far from 0, as printed and in the stable form."""
    x = np.linspace(-100, 0, 401)
    ax.plot(x, [_stable(each, _WIDE) for each in x], color=plots.BLUE, linewidth=2, label="stable form")
    ax.plot(x, [float(printed(each, _WIDE)) for each in x], color=plots.ORANGE, linestyle="--", label="as printed")
    ax.legend(frameon=False, fontsize=8)
    plots.name_axes(ax, "first input", "radius", f"single precision, l = {_WIDE}")


def _disks(axes: list[Axes], draws: int) -> None:
    """Figure 2: counts on a grid over the disk."""
    edges = np.linspace(-1, 1, 26 if draws <= _QUICK_DRAWS else 41)
    ours = _drawn(2, draws, 0)
    normal = np.random.default_rng(1).standard_normal((draws, 2))
    radius = np.sqrt(np.random.default_rng(2).random(draws))
    uniform = normal / np.linalg.norm(normal, axis=1, keepdims=True) * radius[:, None]
    per_cell = draws * (edges[1] - edges[0]) ** 2 / math.pi
    counts = [
        np.histogram2d(points[:, 0], points[:, 1], bins=[edges, edges])[0] / per_cell for points in (ours, uniform)
    ]
    titles = ("Figure 2: activations, l = 2", "uniform", "absolute difference")
    for ax, values, title in zip(axes, (*counts, np.abs(counts[0] - counts[1])), titles, strict=True):
        shown = ax.imshow(values.T, origin="lower", extent=(-1, 1, -1, 1), vmin=0, vmax=1.5, cmap=_HOT)
        ax.grid(False)
        plots.name_axes(ax, "", "", title)
    axes[-1].figure.colorbar(shown, ax=axes[-1], shrink=0.8, label="density over uniform")
