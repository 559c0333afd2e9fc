"""Yu et al. 2019, Figure 16 and appendix G: the conjecture that the divergence of order a is at most a q^2 / sigma^2."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.optimize import brentq

from privlearn.accounting import rdp
from privlearn.accounting.comparisons import LEAST_SIGMA, highest_order
from privlearn_studies import plots
from privlearn_studies.findings import Findings, Row

Array = NDArray[np.float64]
_RATE, _SIGMA = 0.06, 1.0


def ratio(rate: float, sigma: float, orders: Array) -> Array:
    """The exact divergence over the conjectured bound; above 1 the bound is false."""
    return np.asarray(rdp.divergence(rate, sigma, orders) / (orders * (rate / sigma) ** 2), dtype=np.float64)


def orders_up_to_top(rate: float, sigma: float, count: int = 60) -> Array:
    """Orders from just above 1 to U, the last one for which the paper states its bound."""
    return np.asarray(1 + np.linspace(1e-3, 1, count) * (highest_order(rate, sigma) - 1), dtype=np.float64)


def worst(rate: float, sigma: float) -> float:
    """The largest ratio over the orders up to U."""
    return float(ratio(rate, sigma, orders_up_to_top(rate, sigma)).max())


def thresholds() -> tuple[float, float]:
    """The sigmas below which the bound fails: at every order for small q, and at some order for q = 1 / (16 sigma).

    For small q the divergence is (a/2) q^2 (e^{1/sigma^2} - 1), so the first one solves sigma^2 (e^{1/sigma^2} - 1) = 2.
    """
    every = brentq(lambda s: s**2 * math.expm1(s**-2) - 2, 0.5, 2.0)
    some = brentq(lambda s: worst(1 / (16 * s), s) - 1, 1.0, 1.3)
    return float(every), float(some)


def violations() -> tuple[int, int]:
    """The paper's own test at sigma = 1, q in steps of 0.001 and orders in steps of 0.01: failures, and points tested."""
    failed = tested = 0
    for rate in np.arange(1, 63) / 1000:
        orders = 1 + np.arange(1, math.floor(100 * (highest_order(float(rate), 1.0) - 1)) + 1) / 100
        failed += int((ratio(float(rate), 1.0, orders) > 1).sum())
        tested += len(orders)
    return failed, tested


def run(quick: bool, seeds: int | None) -> Findings:
    """Where the bound holds and where it breaks: a counterexample, both thresholds, and a map."""
    failed, tested = violations()
    every, some = thresholds()
    rows = [Row("sigma 1, the paper's grid of q and orders", "points where the bound fails", failed, 0)]
    for order in (2.0, 3.0, 3.7, 3.81):
        label = f"q {_RATE:g}, sigma {_SIGMA:g}, order {order:g}"
        rows.append(Row(label, "exact divergence", float(rdp.divergence(_RATE, _SIGMA, order))))
        rows.append(Row(label, "the conjectured bound", order * (_RATE / _SIGMA) ** 2))
    rows.append(Row("below it every order breaks the bound, at every small q", "sigma", every))
    rows.append(Row("below it some order breaks the bound, at q = 1/(16 sigma)", "sigma", some))
    for sigma in (1.0, LEAST_SIGMA, 2.0, 6.0, 30.0):
        largest = max(worst(share / (16 * sigma), sigma) for share in np.geomspace(0.01, 1, 12))
        rows.append(Row(f"sigma {sigma:g}, all q and orders", "largest divergence over the bound", largest))
    notes = (
        "The conjecture is for q <= 1/(16 sigma) and orders from 1 to U = sigma^2 ln(1/(q sigma)) + 1. The paper found it to "
        f"hold on its grid, which starts at sigma = 1. Computed stably, it fails at {failed:,} of {tested:,} points of that "
        "grid with sigma = 1 alone.",
        f"No failure was found from sigma = {LEAST_SIGMA} up, which is no proof: `privlearn` gives the closed form that rests "
        "on it as an estimate only, and not below that sigma.",
    )
    return Findings(tuple(rows), _draw(every, some, 24 if quick else 70), notes)


def _draw(every: float, some: float, cells: int) -> Figure:
    figure, (left, right) = plots.panels("Exact Rényi divergence over the conjectured bound α q²/σ²", 11, 4.9, 1, 2)
    sigmas, shares = np.geomspace(0.8, 10, cells), np.geomspace(0.01, 1, cells)
    found = np.array([[worst(float(share / (16 * s)), float(s)) for s in sigmas] for share in shares])
    norm = TwoSlopeNorm(1.0, 0.5, 1.5)
    mesh = left.pcolormesh(sigmas, shares, found, cmap="RdBu_r", norm=norm, shading="gouraud", rasterized=True)
    left.contour(sigmas, shares, found, levels=[1.0], colors="black", linewidths=1.5)
    left.set(xscale="log", yscale="log")
    ticks = (0.8, 1, 1.5, 2, 3, 5, 10)
    left.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    left.minorticks_off()
    plots.plain_ticks(left.yaxis)
    figure.colorbar(mesh, ax=left, extend="max", label="largest ratio over orders up to U")
    plots.name_axes(left, "noise scale σ", "q as a share of 1/(16σ)", "red: the bound is false (black line: ratio 1)")
    for sigma, colour in zip((1.0, some, LEAST_SIGMA, 2.0, 6.0), plots.CYCLE, strict=False):
        orders = orders_up_to_top(1 / (16 * sigma), sigma, 200)
        share = (orders - 1) / (orders[-1] - 1)
        right.plot(share, ratio(1 / (16 * sigma), sigma, orders), color=colour, label=f"σ = {sigma:.4g}")
    right.axhline(1, color="black", linewidth=1)
    place = (3.7 - 1) / (highest_order(_RATE, _SIGMA) - 1)
    height = float(ratio(_RATE, _SIGMA, np.array([3.7]))[0])
    right.plot(place, height, "o", color="black", label="q = 0.06, σ = 1, α = 3.7")
    right.legend(fontsize=9, frameon=False, loc="upper left", ncols=2)
    plots.name_axes(right, "(α − 1) / (U − 1)", "ratio", "at q = 1/(16σ), over the orders")
    return figure
