"""Harder et al. 2019, Figure 4: one weight's objective, its expansions, and what noise makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from privlearn.mac import analytic
from privlearn.mac.activations import SOFTPLUS
from privlearn.mac.expansion import BINARY, Surrogate, hidden_first, hidden_second
from privlearn_studies import plots
from privlearn_studies.findings import Findings, Row

_EXAMPLES, _NOISE, _LAYERS = 1000, 8.0, 2
_REACH = 1.5
_DRAWS = 10_000
_OUTPUTS = 1.25  # softplus(0.7) is 1.10


@final
@dataclass(frozen=True)
class _Objective:
    """A layer with one weight.

    Attributes:
        name: of the panel.
        truth: the weight that the targets were made with.
        inputs: of the examples, in [-1, 1].
        targets: what the layer should give.
        loss: (u, targets) to the sum of the examples' objectives.
        first: (u, targets) to d of each example.
        second: (u, targets) to c.
        bounds: the analytic sensitivities at weight 0.
    """

    name: str
    truth: float
    inputs: Tensor
    targets: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]
    first: Callable[[Tensor, Tensor], Tensor]
    second: Callable[[Tensor, Tensor], Tensor]
    bounds: analytic.Sensitivities

    def exact(self, at: NDArray[np.float64]) -> NDArray[np.float64]:
        """The mean objective at weights `at`, less that at 0."""
        found = np.array([float(self.loss(self.inputs * w, self.targets)) for w in at])
        return (found - float(self.loss(self.inputs * 0, self.targets))) / (2 * len(self.inputs))

    def sums(self) -> tuple[float, float]:
        """The sums of first derivatives and of halved second ones, at weight 0."""
        u, second = self.inputs * 0, self.inputs.square() * self.second(self.inputs * 0, self.targets)
        return float((self.first(u, self.targets) * self.inputs).sum()), float(second.sum())


def run(quick: bool, seeds: int | None) -> Findings:
    """Both layers' objectives around weight 0."""
    grid = np.linspace(-_REACH, _REACH, 61 if quick else 301)
    figure, axes = plots.panels("Objectives of one weight, expanded at 0", 11, 4.6, 1, 2)
    rows: list[Row] = []
    for ax, objective in zip(axes, _objectives(), strict=True):
        rows += _panel(ax, objective, grid)
    plots.legend(figure, axes[0], 4)
    notes = (
        f"{_EXAMPLES} examples with inputs evenly between -1 and 1. The hidden layer has softplus and targets made with the "
        "weight -0.7 (the paper's); the output layer has binary cross-entropy, and for targets the probabilities of the "
        "weight 0.7. Objectives are means, halved as in eq. 5, less their value at 0, which no step depends on.",
        f"Noise: noise multiplier {_NOISE:g} on the sums of b and C, each at sqrt(M K) = {math.sqrt(2 * _LAYERS):g} times its "
        "analytic sensitivity (the corrected ones). Crosses are draws, one for each weight; the band holds 90% of them. "
        "8 is the paper's noise for epsilon 0.5; it does not say which its figure has.",
        "The expansion of first order is a line: it has no minimum, and only its slope at 0 is right. That of second order "
        "has one near the truth, and noise moves it.",
    )
    return Findings(tuple(rows), figure, notes)


def _objectives() -> tuple[_Objective, _Objective]:
    x = torch.linspace(-1, 1, _EXAMPLES, dtype=torch.float64)
    still = torch.zeros(1, 1, dtype=torch.float64)
    return (
        _Objective(
            "input layer: softplus, squared error", -0.7, x, F.softplus(-0.7 * x),
            lambda u, z: (z - F.softplus(u)).square().sum(),
            lambda u, z: hidden_first(SOFTPLUS, u, z), lambda u, z: hidden_second(SOFTPLUS, u, z),
            analytic.hidden(still, SOFTPLUS, 1.0, _OUTPUTS),
        ),
        _Objective(
            "output layer: binary cross-entropy", 0.7, x, torch.sigmoid(0.7 * x),
            lambda u, y: BINARY.losses(u[:, None], y[:, None]).sum(), BINARY.first,
            lambda u, y: torch.sigmoid(u) * torch.sigmoid(-u) / 2, analytic.binary(still, 1.0),
        ),
    )  # fmt: skip


def _panel(ax: Axes, objective: _Objective, grid: NDArray[np.float64]) -> list[Row]:
    """Draw one objective; its figures."""
    linear, curvature = objective.sums()
    exact, scale = objective.exact(grid), 2 * len(objective.inputs)
    line, parabola = linear * grid / scale, _curve(linear, curvature, grid) / scale
    deviations = [_NOISE * math.sqrt(2 * _LAYERS) * s for s in (objective.bounds.linear, objective.bounds.curvature)]
    drawn = np.random.default_rng(0).standard_normal((_DRAWS, 2)) * deviations + (linear, curvature)
    noisy = (drawn[:, :1] * grid + drawn[:, 1:] * grid**2) / scale
    low, high = np.percentile(noisy, [5, 95], axis=0)
    ax.fill_between(grid, low, high, color=plots.SKY, alpha=0.25, linewidth=0, label="with noise, 90%")
    some = np.arange(0, len(grid), len(grid) // 30)
    ax.plot(grid[some], noisy[some, some], "x", color=plots.BLUE, markersize=5, label="with noise, draws")
    ax.plot(grid, exact, color="black", linewidth=2, label="exact")
    ax.plot(grid, parabola, color=plots.RED, label="second order")
    ax.plot(grid, line, color=plots.ORANGE, linestyle="--", label="first order")
    ax.axvline(objective.truth, color=plots.GREY, linewidth=0.8, linestyle=":", label="the weight of the targets")
    spread = float(exact.max() - exact.min())
    ax.set_ylim(float(exact.min()) - 0.6 * spread, float(exact.max()) + 0.4 * spread)
    plots.name_axes(ax, "weight", "mean objective, less its value at 0", objective.name)
    minima = -drawn[:, 0] / (2 * drawn[:, 1])
    return [
        Row(objective.name, "weight with the least objective, exact", float(grid[exact.argmin()]), objective.truth),
        Row(objective.name, "the same by the second order", -linear / (2 * curvature)),
        Row(objective.name, "spread of the same under noise (half of 16th to 84th percentile)",
            float(np.diff(np.percentile(minima, [16, 84]))[0]) / 2),
        Row(objective.name, "share of draws whose curvature is not positive", float((drawn[:, 1] <= 0).mean())),
        Row(objective.name, "largest error of the second order within 0.7 of 0",
            float(np.abs(parabola - exact)[np.abs(grid) <= 0.7].max())),
    ]  # fmt: skip


def _curve(linear: float, curvature: float, grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """The released polynomial at each weight."""
    surrogate = Surrogate.around(
        torch.zeros(1, 1, dtype=torch.float64),
        torch.tensor([[linear]], dtype=torch.float64),
        torch.tensor([[[curvature]]], dtype=torch.float64),
    )
    assert surrogate.curvature is not None
    found: NDArray[np.float64] = float(surrogate.linear) * grid + float(surrogate.curvature) * grid**2
    return found
