"""`dfs-means`: class means of the sparse toy model, the distances that are measured, and those that are released."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from matplotlib.axes import Axes

from privlearn.statistics.plan import FeaturesPlan
from privlearn.statistics.release import select_features
from privlearn.streams import Streams
from privlearn_studies import plots
from privlearn_studies.dfs.sparse import Sparse
from privlearn_studies.findings import Findings, Row
from privlearn_studies.seeds import mean_row

_EPSILONS = (0.5, 1.0, 2.0, 5.0)
_DELTA = 1e-5
_SEEDS, _QUICK_SEEDS = 20, 3
_SHOWN = 1.0
_TOY = Sparse(features=100, rows=500)


def run(quick: bool, seeds: int | None) -> Findings:
    """The figure for one seed, and over seeds how many of the true features are chosen."""
    numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
    rows, parts = [], []
    for epsilon in _EPSILONS:
        found = [_chosen(epsilon, seed) for seed in numbers]
        label = f"epsilon {epsilon:g}"
        parts.append(float(np.mean([part for _, _, part in found])))
        rows.append(mean_row(label, "part of the true features among the ten chosen", [part for _, _, part in found]))
        rows.append(Row(label, "noise in a class mean", found[0][1]))
    x, y = _TOY.draw(np.random.default_rng([0, _TOY.features]))
    exact = (x[y == 0].mean(0) - x[y == 1].mean(0)).abs().numpy()
    rows.append(
        Row("measured distances", "largest among features that do not differ", float(exact[_TOY.signals :].max()))
    )
    figure, axes = plots.panels("Figure 2: class means of the toy model are sparse", 13, 4.2, 1, 3)
    places = _places()
    for ax, heights, title, y_name in (
        (axes[0], _TOY.means(), "mean of the first class (the other's is 0)", "mean"),
        (axes[1], exact, "distances of class means, measured", "distance"),
        (axes[2], _chosen(_SHOWN, 0)[0], f"released at epsilon {_SHOWN:g}, the ten chosen in colour", "distance"),
    ):
        _bars(ax, heights, places, title, y_name)
    said = ", ".join(f"{part:.2f} at epsilon {epsilon:g}" for part, epsilon in zip(parts, _EPSILONS, strict=True))
    notes = (
        f"The paper's figure shows class means of its toy model, most of them 0, without numbers; its caption calls them "
        f"distances of classes. Here {_TOY.signals} of {_TOY.features} normal features (deviation 1, {_TOY.rows} rows of each "
        f"class) have a mean of {_TOY.gap:g} in one class, and all else is 0. Distances are released as noisy class sums over "
        "noisy counts (`pv.statistics.select_features`, rows clipped to norm 12), for add/remove neighbours at "
        "delta 1e-5. Of ten chosen "
        f"features as many are true ones, in the mean over {len(numbers)} seeds: {said}.",
    )
    return Findings(tuple(rows), figure, notes)


def plan_of(epsilon: float) -> FeaturesPlan:
    """Ten features by their noisy means."""
    plan = FeaturesPlan(
        2, _TOY.features, _TOY.signals, 1.2 * math.sqrt(_TOY.features), purpose="selection", way="means"
    )
    return replace(plan, split=(0.05, 0.95, 0.3)).calibrate(epsilon=epsilon, delta=_DELTA)


def _chosen(epsilon: float, seed: int) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], float, float]:
    """Released distances, the noise in a mean, and the part of the true features among the chosen."""
    x, y = _TOY.draw(np.random.default_rng([seed, _TOY.features]))
    told = select_features(plan_of(epsilon), (x, y), streams=Streams.new(seed))
    assert told.statistics is not None
    means = told.statistics.means(told.plan.least_count)
    part = float((told.indices < _TOY.signals).double().mean())
    return (means[0] - means[1]).abs().numpy(), told.statistics.sum_std / _TOY.rows, part


def _places() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Where features are shown: in an order of chance, as the paper's."""
    return torch.randperm(_TOY.features, generator=torch.Generator().manual_seed(2)).numpy()


def _bars(
    ax: Axes, heights: np.ndarray[tuple[int], np.dtype[np.float64]], places: np.ndarray[tuple[int], np.dtype[np.int64]],
    title: str, y_name: str,
) -> None:  # fmt: skip
    best = set(np.argsort(-heights)[: _TOY.signals].tolist())
    colours = [plots.RED if feature in best else plots.GREY for feature in range(len(heights))]
    ax.bar(places, heights, width=0.9, color=colours)
    plots.name_axes(ax, "feature", y_name, title)
