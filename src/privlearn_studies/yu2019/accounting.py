"""Yu et al. 2019, Figures 1, 2, 3 and 16: what training costs, by every way of accounting."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from privlearn._checks import count
from privlearn._checks import delta as valid_delta
from privlearn.core.accounting import comparisons, pld, rdp, zcdp
from privlearn.core.accounting.comparisons import LEAST_SIGMA, highest_order
from privlearn.core.accounting.events import Repeated
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import FixedBatches, Gaussian, Partitioned, PoissonSampled
from privlearn.errors import BadInput
from privlearn_studies.charts import (
    BLUE,
    CYCLE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    Across,
    Curve,
    Figure,
    Heat,
    Mark,
    Panel,
    Text,
)
from privlearn_studies.report import Findings, Row, page
from privlearn_studies.runs import Runs

Array = NDArray[np.float64]
_DELTA, _RATE, _SIGMA = 1e-5, 0.01, 6.0


def fig1(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Sampling lowers the Renyi divergence at q = 0.01 and sigma = 4 up to some order, and not
    beyond.
    """
    sigma, papers = 4.0, 147
    rho = 1 / (2 * sigma**2)
    whole = np.arange(2, 301)
    curve = rdp.divergence(_RATE, sigma, whole)
    change, straight = (
        int(whole[1:-1][np.diff(each, 2).argmax()]) for each in (np.log(curve), curve)
    )
    at = {order: float(rdp.divergence(_RATE, sigma, order)) for order in (100, papers, 200, 300)}
    rows = (
        Row(
            "changing point: where the logarithm of the divergence bends most",
            "order",
            change,
            papers,
        ),
        Row("where the divergence itself bends most", "order", straight),
        Row("where eq. 12's lower bound becomes positive", "order", 1 - math.log(_RATE) / rho),
        *(
            Row(f"with sampling, order {order}", "Renyi divergence", value)
            for order, value in at.items()
        ),
        *(Row(f"without sampling, order {order}", "Renyi divergence", order * rho) for order in at),
    )
    orders = np.linspace(1.5, 300, 100 if quick else 600)
    marks = (
        Curve(orders, orders * rho, "without sampling: α / (2σ²)", GREY),
        Curve(orders, rdp.divergence(_RATE, sigma, orders), "with sampling, exact", BLUE, width=2),
        Across(papers, "the paper's changing point, 147", RED, "--", down=True),
    )
    panels = [
        Panel(marks, "order α", "Rényi divergence (nats)", title, log)
        for title, log in (("as in the paper", ""), ("logarithmic", "y"))
    ]
    title = f"Rényi divergence under sampling, q = {_RATE:g}, σ = {sigma:g}"
    return Findings(
        rows, Figure(title, panels, 10, 4.6, 2, 3), page("yu-fig1", rate=_RATE, sigma=sigma)
    )


@final
@dataclass(frozen=True)
class _Way:
    """One way of accounting: epsilon after some epochs, what kind of figure it is, and the paper's
    after 400.
    """

    label: str
    kind: str
    epsilon: Callable[[int], float]
    colour: str
    line: str = "-"
    paper: float | None = None


def _ways(batches: int) -> tuple[_Way, ...]:
    bound, rho, gaussian = "epsilon", 0.5 / _SIGMA**2, Gaussian(_SIGMA)

    def shuffled(epochs: int) -> Repeated:
        return Repeated(FixedBatches(gaussian), epochs)

    def sampled(epochs: int) -> Repeated:
        return Repeated(PoissonSampled(_RATE, gaussian), batches * epochs)

    def partitioned(epochs: int) -> Repeated:
        return Repeated(Partitioned(batches, gaussian), epochs)

    return (
        _Way(
            "random sampling: strong composition",
            bound,
            lambda e: strong_composition(_SIGMA, _RATE, batches * e, _DELTA),
            GREY,
            "-",
        ),
        _Way(
            "random sampling: strong composition, delta in equal parts",
            bound,
            lambda e: evenly_composed(_SIGMA, _RATE, batches * e, _DELTA),
            GREY,
            "--",
            34.3,
        ),
        _Way(
            "random reshuffling: zCDP, the paper's RF",
            bound,
            lambda e: zcdp.epsilon_bun_steinke(e * rho, _DELTA),
            RED,
            "-",
            21.5,
        ),
        _Way(
            "random reshuffling: zCDP, tight conversion",
            bound,
            lambda e: zcdp.epsilon_of_rho(e * rho, _DELTA),
            ORANGE,
            "--",
        ),
        _Way(
            "random reshuffling: exact Gaussian",
            bound,
            lambda e: zcdp.gaussian_epsilon(math.sqrt(e) / _SIGMA, _DELTA),
            ORANGE,
        ),
        _Way(
            "random reshuffling: attack of Chua et al.",
            "epsilon, lower bound",
            lambda e: comparisons.lower_bound(shuffled(e), batches, Adjacency.ZERO_OUT, _DELTA),
            ORANGE,
            ":",
        ),
        _Way(
            "random sampling: zCDP, the paper's RS",
            "epsilon, estimate",
            lambda e: comparisons.epsilon(sampled(e), _DELTA),
            PURPLE,
            "--",
            2.37,
        ),
        _Way(
            "random sampling: moments accountant",
            bound,
            lambda e: rdp.epsilon_by_moments(sampled(e), _DELTA),
            GREEN,
            "--",
            1.67,
        ),
        _Way("random sampling: RDP", bound, lambda e: rdp.epsilon(sampled(e), _DELTA), SKY),
        _Way("random sampling: PLD", bound, lambda e: pld.epsilon(sampled(e), _DELTA), BLUE),
        _Way(
            "random partition: PLD",
            bound,
            lambda e: pld.epsilon(partitioned(e), _DELTA),
            "black",
            ":",
        ),
    )


def strong_composition(sigma: float, rate: float, steps: int, delta: float) -> float:
    """epsilon at `delta` of `steps` sampled Gaussian releases by strong composition (Dwork et al.
    2010, Thm 3.20).

    Sound, and far from tight: the papers of 2016 to 2019 compare against it. Each release is (e,
    d)-DP by the exact Gaussian curve, amplified by sampling to (ln(1 + q (e^e - 1)), q d); delta is
    split between the releases and the composition in the best of many ways.
    """
    count("steps", steps)
    valid_delta(delta)
    best = math.inf
    for share in np.geomspace(1e-4, 0.9999, 60):
        each = share * delta / steps
        alone = zcdp.gaussian_epsilon(1 / sigma, each / rate)
        amplified = math.log1p(rate * math.expm1(alone))
        slack = delta * (1 - share)
        total = amplified * math.sqrt(
            2 * steps * math.log(1 / slack)
        ) + steps * amplified * math.expm1(amplified)
        best = min(best, total, steps * amplified)
    return best


def evenly_composed(sigma: float, rate: float, steps: int, delta: float) -> float:
    """The same as it was computed by hand: `delta` in equal parts for the composition and each
    release, whose epsilon is by the classical formula sqrt(2 ln(1.25 / d)) / sigma.

    Raises:
        BadInput: the classical formula doesn't hold, since a release's epsilon exceeds 1.
    """
    count("steps", steps)
    valid_delta(delta)
    part = delta / (steps + 1)
    alone = math.sqrt(2 * math.log(1.25 * rate / part)) / sigma
    if alone > 1:
        raise BadInput(
            f"the classical formula gives epsilon {alone:.3g} for one release: expected at most 1, "
            "where it holds. Use `strong_composition`"
        )
    amplified = math.log1p(rate * math.expm1(alone))
    spread = amplified * math.sqrt(2 * steps * math.log(1 / part))
    return spread + steps * amplified * math.expm1(amplified)


def fig2(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """epsilon at delta 1e-5 for q = 0.01 and sigma = 6, after 400 epochs and on the way there."""
    last, ways = 400, _ways(100)
    rows = tuple(
        Row(way.label, f"{way.kind} after {last} epochs", way.epsilon(last), way.paper)
        for way in ways
    )
    epochs = sorted({round(e) for e in np.geomspace(1, last, 8 if quick else 24)})
    said = {
        "epsilon": "",
        "epsilon, estimate": " (estimate)",
        "epsilon, lower bound": " (lower bound)",
    }
    marks: list[Mark] = [
        Curve(
            epochs,
            [way.epsilon(e) for e in epochs],
            way.label + said[way.kind],
            way.colour,
            way.line,
            width=1.8,
        )
        for way in ways
    ]
    papers = [(way.paper, way.label.split(": ")[1]) for way in ways if way.paper]
    label = "the paper's figures after 400 epochs"
    marks.append(
        Curve(
            [last] * len(papers),
            [paper for paper, _ in papers],
            label,
            "black",
            "o",
            size=7,
            hollow=True,
        )
    )
    marks += [Text(last, paper, f"{paper:g} {name}", right=True) for paper, name in papers]
    panel = Panel(
        marks, "epochs", "ε at δ = 10⁻⁵", "", "xy", (0.9, 1700), (0.02, 50), (1, 10, 100, last)
    )
    figure = Figure(
        f"Privacy loss of DP-SGD, q = {_RATE:g}, σ = {_SIGMA:g}, δ = 10⁻⁵",
        [panel],
        9,
        6.4,
        legend=2,
    )
    return Findings(rows, figure, page("yu-fig2", rate=_RATE, sigma=_SIGMA, delta=_DELTA))


_EPOCHS = 200


def estimated(rate: float, sigma: float) -> float:
    """The paper's zCDP(RS), also where its own condition q <= 1 / (16 sigma) fails."""
    rho, top = _EPOCHS * round(1 / rate) * (rate / sigma) ** 2, highest_order(rate, sigma)
    return comparisons.theorem_three(rho, top, _DELTA)


def sampled(rate: float, sigma: float) -> float:
    """Poisson sampling, by its privacy loss distribution."""
    return pld.epsilon(
        Repeated(PoissonSampled(rate, Gaussian(sigma)), _EPOCHS * round(1 / rate)), _DELTA
    )


def partitioned(rate: float, sigma: float) -> float:
    """A random partition into 1/q batches, by its privacy loss distribution."""
    return pld.epsilon(Repeated(Partitioned(round(1 / rate), Gaussian(sigma)), _EPOCHS), _DELTA)


_OF_RATE_AND_SIGMA = (
    # The batch size does not matter to the first, the paper's own.
    (
        "zCDP(RF)",
        "epsilon",
        lambda rate, sigma: zcdp.epsilon_bun_steinke(_EPOCHS / (2 * sigma**2), _DELTA),
        RED,
        "-",
    ),
    ("zCDP(RS)", "epsilon, estimate", estimated, PURPLE, "--"),
    ("sampling, PLD", "epsilon", sampled, BLUE, "-"),
    ("partition, PLD", "epsilon", partitioned, "black", ":"),
)


def fig3(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """epsilon at delta 1e-5 after 200 epochs: sigma = 6 with q varied, and q = 0.01 with sigma
    varied.
    """
    places = [(f"3a, q {rate:g}", rate, _SIGMA) for rate in (0.002, 0.005, 0.01)]
    places += [(f"3b, sigma {sigma:g}", _RATE, sigma) for sigma in (5.0, 6.0, 8.0, 10.0, 14.0)]
    ways = _OF_RATE_AND_SIGMA
    rows = [
        Row(f"{where}: {name}", kind, way(q, s))
        for where, q, s in places
        for name, kind, way, *_ in ways
    ]
    for name, _, way, *_ in ways:
        rows.append(
            Row(
                f"3b: {name}",
                "epsilon at sigma 5 over that at 14",
                way(_RATE, 5.0) / way(_RATE, 14.0),
            )
        )
    number = 9 if quick else 30
    rates = 1 / np.unique(np.geomspace(50, 1000, number).round().astype(int))[::-1]
    sigmas = np.linspace(5, 14, number)
    panels = []
    for x, pairs, limit, name, title in (
        (
            rates,
            [(float(q), _SIGMA) for q in rates],
            1 / (16 * _SIGMA),
            "sampling ratio q",
            f"(a) σ = {_SIGMA:g}",
        ),
        (
            sigmas,
            [(_RATE, float(s)) for s in sigmas],
            1 / (16 * _RATE),
            "noise scale σ",
            f"(b) q = {_RATE:g}",
        ),
    ):
        marks = []
        for label, _, way, colour, line in ways:
            curve, inside = np.array([way(*pair) for pair in pairs]), np.full(len(x), True)
            if way is estimated:
                label += " (estimate; thin beyond its own condition)"
                marks.append(Curve(x, curve, colour=colour, fmt=line, width=0.9))
                inside = x <= limit
            marks.append(Curve(x[inside], curve[inside], label, colour, line, width=2))
        panels.append(
            Panel(
                marks,
                name,
                "ε at δ = 10⁻⁵",
                title,
                "y",
                ylim=(0.2, 25),
                yticks=(0.2, 0.5, 1, 2, 5, 10, 20),
            )
        )
    figure = Figure(f"Privacy loss after {_EPOCHS} epochs", panels, 10.5, 5, 2, 4)
    return Findings(
        tuple(rows), figure, page("yu-fig3", epochs=_EPOCHS, delta=_DELTA, sigma=_SIGMA, rate=_RATE)
    )


_SHOWN = 0.06, 1.0


def ratio(rate: float, sigma: float, orders: Array) -> Array:
    """The exact divergence over the conjectured bound, a q^2 / sigma^2 at order a; above 1 the
    bound is false.
    """
    return np.asarray(
        rdp.divergence(rate, sigma, orders) / (orders * (rate / sigma) ** 2), dtype=np.float64
    )


def orders_up_to_top(rate: float, sigma: float, number: int = 60) -> Array:
    """Orders from just above 1 to U, the last one for which the paper states its bound."""
    return np.asarray(
        1 + np.linspace(1e-3, 1, number) * (highest_order(rate, sigma) - 1), dtype=np.float64
    )


def worst(rate: float, sigma: float) -> float:
    """The largest ratio over the orders up to U."""
    return float(ratio(rate, sigma, orders_up_to_top(rate, sigma)).max())


def thresholds() -> tuple[float, float]:
    """The sigmas below which the bound fails: at every order for small q, and at some order for q =
    1 / (16 sigma).

    For small q the divergence is (a/2) q^2 (e^{1/sigma^2} - 1), so the first one solves sigma^2
    (e^{1/sigma^2} - 1) = 2.
    """
    every = brentq(lambda s: s**2 * math.expm1(s**-2) - 2, 0.5, 2.0)
    some = brentq(lambda s: worst(1 / (16 * s), s) - 1, 1.0, 1.3)
    return float(every), float(some)


def violations() -> tuple[int, int]:
    """The paper's own test at sigma = 1, q in steps of 0.001, orders in steps of 0.01: failures,
    and points tested.
    """
    failed = tested = 0
    for rate in np.arange(1, 63) / 1000:
        orders = 1 + np.arange(1, math.floor(100 * (highest_order(float(rate), 1.0) - 1)) + 1) / 100
        failed += int((ratio(float(rate), 1.0, orders) > 1).sum())
        tested += len(orders)
    return failed, tested


def fig16(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Where the bound of appendix G holds and where it breaks: a counterexample, both thresholds,
    and a map.
    """
    failed, tested = violations()
    every, some = thresholds()
    rate, sigma = _SHOWN
    rows = [
        Row("sigma 1, the paper's grid of q and orders", "points where the bound fails", failed, 0)
    ]
    for order in (2.0, 3.0, 3.7, 3.81):
        label = f"q {rate:g}, sigma {sigma:g}, order {order:g}"
        rows.append(Row(label, "exact divergence", float(rdp.divergence(rate, sigma, order))))
        rows.append(Row(label, "the conjectured bound", order * (rate / sigma) ** 2))
    rows.append(Row("below it every order breaks the bound, at every small q", "sigma", every))
    rows.append(Row("below it some order breaks the bound, at q = 1/(16 sigma)", "sigma", some))
    for sigma in (1.0, LEAST_SIGMA, 2.0, 6.0, 30.0):
        largest = max(worst(share / (16 * sigma), sigma) for share in np.geomspace(0.01, 1, 12))
        rows.append(
            Row(f"sigma {sigma:g}, all q and orders", "largest divergence over the bound", largest)
        )
    figure = Figure(
        "Exact Rényi divergence over the conjectured bound α q²/σ²",
        [_map(24 if quick else 70), _by_order(some)],
        11,
        4.9,
        2,
    )
    return Findings(
        tuple(rows), figure, page("yu-fig16", failed=failed, tested=tested, least=LEAST_SIGMA)
    )


def _map(cells: int) -> Panel:
    sigmas, shares = np.geomspace(0.8, 10, cells), np.geomspace(0.01, 1, cells)
    ratios = np.array(
        [[worst(float(share / (16 * s)), float(s)) for s in sigmas] for share in shares]
    )
    heat = Heat(
        sigmas,
        shares,
        ratios,
        "RdBu_r",
        0.5,
        1.5,
        1.0,
        1.0,
        "largest ratio over orders up to U",
        over=True,
    )
    return Panel(
        [heat],
        "noise scale σ",
        "q as a share of 1/(16σ)",
        "red: the bound is false (black line: ratio 1)",
        "xy",
        xticks=(0.8, 1, 1.5, 2, 3, 5, 10),
    )


def _by_order(some: float) -> Panel:
    marks: list[Mark] = []
    for sigma, colour in zip((1.0, some, LEAST_SIGMA, 2.0, 6.0), CYCLE, strict=False):
        orders = orders_up_to_top(1 / (16 * sigma), sigma, 200)
        heights = ratio(1 / (16 * sigma), sigma, orders)
        marks.append(Curve((orders - 1) / (orders[-1] - 1), heights, f"σ = {sigma:.4g}", colour))
    place = (3.7 - 1) / (highest_order(*_SHOWN) - 1)
    point = Curve(
        [place], ratio(*_SHOWN, np.array([3.7])), "q = 0.06, σ = 1, α = 3.7", "black", "o", size=6
    )
    return Panel(
        [*marks, Across(1), point],
        "(α − 1) / (U − 1)",
        "ratio",
        "at q = 1/(16σ), over the orders",
        legend="upper left",
        columns=2,
    )
