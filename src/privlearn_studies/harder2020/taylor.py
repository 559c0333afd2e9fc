"""Harder et al. 2019, Figure 4: one weight's objective, its expansions, and what noise makes of
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from privlearn.methods.dpmac import analytic
from privlearn.methods.dpmac.expansion import BINARY, Surrogate, hidden_first, hidden_second
from privlearn.methods.dpmac.network import SOFTPLUS
from privlearn_studies.charts import (
    BLUE,
    GREY,
    ORANGE,
    RED,
    SKY,
    Across,
    Band,
    Curve,
    Figure,
    Mark,
    Panel,
)
from privlearn_studies.report import Findings, Row, page
from privlearn_studies.runs import Runs

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
        whole = np.array([float(self.loss(self.inputs * w, self.targets)) for w in at])
        return (whole - float(self.loss(self.inputs * 0, self.targets))) / (2 * len(self.inputs))

    def sums(self) -> tuple[float, float]:
        """The sums of first derivatives and of halved second ones, at weight 0."""
        u, second = (
            self.inputs * 0,
            self.inputs.square() * self.second(self.inputs * 0, self.targets),
        )
        return float((self.first(u, self.targets) * self.inputs).sum()), float(second.sum())


def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Both layers' objectives around weight 0."""
    grid = np.linspace(-_REACH, _REACH, 61 if quick else 301)
    rows, panels = zip(*(_expanded(objective, grid) for objective in _objectives()), strict=True)
    figure = Figure("Objectives of one weight, expanded at 0", panels, 11, 4.6, 2, 4)
    notes = page("dpmac-taylor", examples=_EXAMPLES, noise=_NOISE, factor=math.sqrt(2 * _LAYERS))
    return Findings(tuple(row for objective_rows in rows for row in objective_rows), figure, notes)


def _objectives() -> tuple[_Objective, _Objective]:
    x = torch.linspace(-1, 1, _EXAMPLES, dtype=torch.float64)
    still = torch.zeros(1, 1, dtype=torch.float64)
    return (
        _Objective(
            "input layer: softplus, squared error",
            -0.7,
            x,
            F.softplus(-0.7 * x),
            lambda u, z: (z - F.softplus(u)).square().sum(),
            lambda u, z: hidden_first(SOFTPLUS, u, z),
            lambda u, z: hidden_second(SOFTPLUS, u, z),
            analytic.hidden(still, SOFTPLUS, 1.0, _OUTPUTS),
        ),
        _Objective(
            "output layer: binary cross-entropy",
            0.7,
            x,
            torch.sigmoid(0.7 * x),
            lambda u, y: BINARY.losses(u[:, None], y[:, None]).sum(),
            BINARY.first,
            lambda u, y: torch.sigmoid(u) * torch.sigmoid(-u) / 2,
            analytic.binary(still, 1.0),
        ),
    )


def _expanded(objective: _Objective, grid: NDArray[np.float64]) -> tuple[list[Row], Panel]:
    """One objective's figures, and its panel."""
    linear, curvature = objective.sums()
    exact, scale = objective.exact(grid), 2 * len(objective.inputs)
    line, parabola = linear * grid / scale, _curve(linear, curvature, grid) / scale
    deviations = [
        _NOISE * math.sqrt(2 * _LAYERS) * s
        for s in (objective.bounds.linear, objective.bounds.curvature)
    ]
    drawn = np.random.default_rng(0).standard_normal((_DRAWS, 2)) * deviations + (linear, curvature)
    noisy = (drawn[:, :1] * grid + drawn[:, 1:] * grid**2) / scale
    some = np.arange(0, len(grid), len(grid) // 30)
    low, high = np.percentile(noisy, [5, 95], axis=0)
    marks: list[Mark] = [
        Band(grid, low, high, "with noise, 90%", SKY),
        Curve(grid[some], noisy[some, some], "with noise, draws", BLUE, "x", size=5),
        Curve(grid, exact, "exact", "black", width=2),
        Curve(grid, parabola, "second order", RED),
        Curve(grid, line, "first order", ORANGE, "--"),
        Across(objective.truth, "the weight of the targets", GREY, ":", down=True, width=0.8),
    ]
    least, wide = float(exact.min()), float(exact.max() - exact.min())
    panel = Panel(
        marks,
        "weight",
        "mean objective, less its value at 0",
        objective.name,
        ylim=(least - 0.6 * wide, float(exact.max()) + 0.4 * wide),
    )
    minima = -drawn[:, 0] / (2 * drawn[:, 1])
    return [
        Row(
            objective.name,
            "weight with the least objective, exact",
            float(grid[exact.argmin()]),
            objective.truth,
        ),
        Row(objective.name, "the same by the second order", -linear / (2 * curvature)),
        Row(
            objective.name,
            "spread of the same under noise (half of 16th to 84th percentile)",
            float(np.diff(np.percentile(minima, [16, 84]))[0]) / 2,
        ),
        Row(
            objective.name,
            "share of draws whose curvature is not positive",
            float((drawn[:, 1] <= 0).mean()),
        ),
        Row(
            objective.name,
            "largest error of the second order within 0.7 of 0",
            float(np.abs(parabola - exact)[np.abs(grid) <= 0.7].max()),
        ),
    ], panel


def _curve(linear: float, curvature: float, grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """The released polynomial at each weight."""
    surrogate = Surrogate.around(
        torch.zeros(1, 1, dtype=torch.float64),
        torch.tensor([[linear]], dtype=torch.float64),
        torch.tensor([[[curvature]]], dtype=torch.float64),
    )
    assert surrogate.curvature is not None
    polynomial: NDArray[np.float64] = (
        float(surrogate.linear) * grid + float(surrogate.curvature) * grid**2
    )
    return polynomial
