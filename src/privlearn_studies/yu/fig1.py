"""Yu et al. 2019, Figure 1: sampling lowers the Renyi divergence up to some order, and not beyond."""

from __future__ import annotations

import math

import numpy as np

from privlearn.accounting import rdp
from privlearn_studies import plots
from privlearn_studies.findings import Findings, Row

_RATE, _SIGMA = 0.01, 4.0
_PAPERS_CHANGE = 147


def run(quick: bool, seeds: int | None) -> Findings:
    """The divergence at q = 0.01 and sigma = 4, and the order at which sampling stops to help."""
    rho = 1 / (2 * _SIGMA**2)
    whole = np.arange(2, 301)
    sampled = rdp.divergence(_RATE, _SIGMA, whole)
    change, straight = (int(whole[1:-1][np.diff(curve, 2).argmax()]) for curve in (np.log(sampled), sampled))
    at = {order: float(rdp.divergence(_RATE, _SIGMA, order)) for order in (100, _PAPERS_CHANGE, 200, 300)}
    rows = (
        Row("changing point: where the logarithm of the divergence bends most", "order", change, _PAPERS_CHANGE),
        Row("where the divergence itself bends most", "order", straight),
        Row("where eq. 12's lower bound becomes positive", "order", 1 - math.log(_RATE) / rho),
        *(Row(f"with sampling, order {order}", "Renyi divergence", value) for order, value in at.items()),
        *(Row(f"without sampling, order {order}", "Renyi divergence", order * rho) for order in at),
    )
    notes = (
        f"q = {_RATE:g}, sigma = {_SIGMA:g}. Without sampling the divergence is order / (2 sigma^2). With sampling it is "
        "the exact divergence in the larger of both directions. The paper reads its changing point off the curve; here it "
        "is the whole order with the largest second difference.",
        "From there on sampling saves about ln(1/q) in all, a constant: no zCDP bound, which has to hold at every order, "
        "can show the amplification.",
    )
    figure, (left, right) = plots.panels(
        f"Rényi divergence under sampling, q = {_RATE:g}, σ = {_SIGMA:g}", 10, 4.6, 1, 2
    )
    orders = np.linspace(1.5, 300, 100 if quick else 600)
    for ax in (left, right):
        ax.plot(orders, orders * rho, color=plots.GREY, label="without sampling: α / (2σ²)")
        ax.plot(
            orders, rdp.divergence(_RATE, _SIGMA, orders), color=plots.BLUE, linewidth=2, label="with sampling, exact"
        )
        ax.axvline(
            _PAPERS_CHANGE, color=plots.RED, linewidth=1, linestyle="--", label="the paper's changing point, 147"
        )
        plots.name_axes(ax, "order α", "Rényi divergence (nats)")
    left.set_title("as in the paper", fontsize=10, loc="left")
    right.set_title("logarithmic", fontsize=10, loc="left")
    right.set_yscale("log")
    plots.legend(figure, left, 3)
    return Findings(rows, figure, notes)
