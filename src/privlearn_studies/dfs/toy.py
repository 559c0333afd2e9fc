"""`dfs-toy`: the error of Fisher's classifier in the sparse Gaussian model, by dimension and noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray

from privlearn.statistics.plan import FeaturesPlan
from privlearn.statistics.release import release_features
from privlearn.streams import Streams
from privlearn_studies import plots
from privlearn_studies.dfs.sparse import Sparse, fisher_of
from privlearn_studies.findings import Findings, Row
from privlearn_studies.seeds import mean_row
from privlearn_studies.writer import table

_SEEDS, _QUICK_SEEDS = 50, 4
_KEPT = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
#: Standard deviations of noise on every number, rows to be classified included.
_NOISES = (0.0, 1.0, 2.0)
_EPSILON, _DELTA = 10.0, 1e-5
#: Released rows are clipped to this for each root of a feature.
_NORM = 1.5
_ERROR = "error of Fisher's classifier"


@final
@dataclass(frozen=True)
class _Errors:
    """Of one seed, by the number of features kept: in their true order under each noise, and released.

    Attributes:
        ordered: for each of `_NOISES`.
        ranked: the features of the largest distance, without noise.
        ranked_noisy: likewise under the largest of `_NOISES`.
        released: rows released privately, features chosen privately.
        given: rows released privately, features in their true order.
        found: the part of the true features among the ten that are chosen privately.
    """

    ordered: NDArray[np.float64]
    ranked: NDArray[np.float64]
    ranked_noisy: NDArray[np.float64]
    released: NDArray[np.float64]
    given: NDArray[np.float64]
    found: float


def run(quick: bool, seeds: int | None) -> Findings:
    """Errors as measured beside the closed form, in three settings."""
    toy = Sparse()
    errors = [_seed(toy, seed) for seed in range(seeds or (_QUICK_SEEDS if quick else _SEEDS))]
    rows = [
        *(Row(f"ten features apart by 1, noise {noise:g}", f"{_ERROR}: 1 - Phi(Psi)", toy.bayes(10, noise**2))
          for noise in _NOISES),
        mean_row(f"ten of 1,000 chosen privately, epsilon {_EPSILON:g}", "part of the true ten among them",
                 [one.found for one in errors]),
    ]  # fmt: skip
    for at, kept in enumerate(_KEPT):
        for which, noise in enumerate(_NOISES):
            label = f"first {kept}, noise {noise:g}"
            rows += [
                mean_row(label, _ERROR, [float(one.ordered[which, at]) for one in errors]),
                Row(label, f"{_ERROR}: 1 - Phi(Psi), means known", toy.bayes(kept, noise**2)),
                Row(label, f"{_ERROR}: closed form, means learned", toy.learned(kept, noise**2)),
            ]
        rows += [
            mean_row(f"{kept} of the largest distance, noise 0", _ERROR, [float(one.ranked[at]) for one in errors]),
            mean_row(f"{kept} of the largest distance, noise 2", _ERROR, [float(one.ranked_noisy[at]) for one in errors]),
            mean_row(f"{kept} chosen privately, rows released", _ERROR, [float(one.released[at]) for one in errors]),
            mean_row(f"first {kept}, rows released", _ERROR, [float(one.given[at]) for one in errors]),
            Row(f"first {kept}, rows released", "noise on each number", noise_std(kept)),
        ]  # fmt: skip
    figure, axes = plots.panels("Fisher's classifier in the sparse Gaussian model", 13, 5, 1, 3)
    _ordered(axes[0], toy, errors)
    _ranked(axes[1], toy, errors)
    _released(axes[2], toy, errors)
    return Findings(tuple(rows), figure, (_about(toy, len(errors)), _summary(toy, errors)))


def plan_of(kept: int, features: int, selects: bool = True) -> FeaturesPlan:
    """Rows of `kept` of `features` features at epsilon 10; without selection, of features that are given."""
    shown = features if selects else kept
    plan = FeaturesPlan(
        2, shown, kept, _NORM * math.sqrt(shown), 4.0, _NORM * math.sqrt(kept), purpose="rows", selection_share=0.1,
        way="means",
    )  # fmt: skip
    return plan.calibrate(epsilon=_EPSILON, delta=_DELTA)


def noise_std(kept: int) -> float:
    """The noise on each number of released rows of given features: it grows with the norm of rows."""
    plan = plan_of(kept, kept, selects=False)
    return plan.rest_noise * plan.rest_norm


def _seed(toy: Sparse, seed: int) -> _Errors:
    rng = np.random.default_rng([seed, toy.features])
    x, y = toy.draw(rng)
    kept = [(number, np.arange(number)) for number in _KEPT]
    noises = torch.from_numpy(rng.standard_normal(x.shape))
    ordered = [
        [toy.error(*fisher_of((x + noise * noises)[:, at], y), at, noise**2) for _, at in kept] for noise in _NOISES
    ]
    best = (x[y == 0].mean(0) - x[y == 1].mean(0)).abs().argsort(descending=True).numpy()
    loud = x + _NOISES[-1] * noises
    ranked = [toy.error(*fisher_of(x[:, best[:number]], y), best[:number], 0.0) for number in _KEPT]
    noisy = [toy.error(*fisher_of(loud[:, best[:number]], y), best[:number], _NOISES[-1] ** 2) for number in _KEPT]
    chosen, given = [], []
    found = 0.0
    for number, at in kept:
        told = release_features(plan_of(number, toy.features), (x, y), streams=Streams.new(seed))
        indices = told.indices.numpy()
        # What is classified is a row with noise, as the paper has it.
        chosen.append(toy.error(*fisher_of(told.x, told.y), indices, told.noise_std**2))
        if number == toy.signals:
            found = float((indices < toy.signals).mean())
        told = release_features(plan_of(number, number, selects=False), (x[:, at], y), streams=Streams.new(seed))
        given.append(toy.error(*fisher_of(told.x, told.y), at, told.noise_std**2))
    values = [np.array(each) for each in (ordered, ranked, noisy, chosen, given)]
    return _Errors(values[0], values[1], values[2], values[3], values[4], found)


def _mean(errors: Sequence[_Errors], name: str) -> NDArray[np.float64]:
    return np.asarray(np.mean([getattr(one, name) for one in errors], axis=0))


def _about(toy: Sparse, seeds: int) -> str:
    return (
        f"Two classes of {toy.rows} rows with {toy.features:,} normal features of deviation 1, of which {toy.signals} differ "
        f"by {toy.gap:g} between the classes; {seeds} seeds, errors computed exactly from the weights. Noise is on rows to "
        "learn from and on rows to be classified. The paper's own setting is not known.\n\n"
        "With means known the error is 1 - Phi(Psi), Psi = sqrt(sum of gap^2 / (1 + noise^2)) / 2: features without signal "
        "cost nothing. With means learned from n rows, Psi = G / (2 sqrt(G + 4 m / n)), G being that sum: each of m features "
        "adds its part of error (Fan and Fan 2008)."
    )


def _summary(toy: Sparse, errors: Sequence[_Errors]) -> str:
    ordered, released = _mean(errors, "ordered"), _mean(errors, "released")
    lines = [
        (str(kept), *(f"{ordered[which, at]:.3f}" for which in range(len(_NOISES))), f"{noise_std(kept):.2f}",
         f"{toy.bayes(kept, noise_std(kept) ** 2):.3f}", f"{released[at]:.3f}")
        for at, kept in enumerate(_KEPT)
    ]  # fmt: skip
    heads = (
        "features", *(f"noise {noise:g}" for noise in _NOISES), "noise of released rows", "1 - Phi(Psi) for it",
        "released and chosen privately",
    )  # fmt: skip
    whole, ten = ordered[-1, -1], ordered[-1, _KEPT.index(10)]
    return (
        f"**Dimensions cost through what has to be learned, and through noise that grows with them.** Under noise 2, ten "
        f"features have an error of {ten:.3f} and all 1,000 {whole:.3f}, though none of the other 990 hurts one who knows the "
        f"means. Rows that are released at epsilon {_EPSILON:g} (zero-out, delta {_DELTA:g}, clipped to {_NORM:g} times the "
        "root of m) have noise in proportion to the root of m: then even one who knows the means does best with the ten "
        f"features that have signal, and all features together are near chance ({released[-1]:.3f}).\n\n"
    ) + table(heads, lines)


def _ordered(ax: Axes, toy: Sparse, errors: Sequence[_Errors]) -> None:
    measured = _mean(errors, "ordered")
    for which, (noise, colour) in enumerate(zip(_NOISES, plots.CYCLE, strict=False)):
        ax.plot(_KEPT, measured[which], "o", color=colour, markersize=4, label=f"measured, noise {noise:g}")
        ax.plot(_KEPT, [toy.bayes(kept, noise**2) for kept in _KEPT], color=colour, linestyle=":", linewidth=1.2)
        ax.plot(_KEPT, [toy.learned(kept, noise**2) for kept in _KEPT], color=colour, linewidth=1.2)
    ax.plot([], [], color="black", linestyle=":", label="1 − Φ(Ψ), means known")
    ax.plot([], [], color="black", label="closed form, means learned")
    _finish(ax, "features, those with signal first", "equal noise on each")


def _ranked(ax: Axes, toy: Sparse, errors: Sequence[_Errors]) -> None:
    for name, noise, colour in (("ranked", 0.0, plots.CYCLE[0]), ("ranked_noisy", 2.0, plots.CYCLE[2])):
        ax.plot(_KEPT, _mean(errors, name), "o-", color=colour, markersize=4, linewidth=1,
                label=f"measured, noise {noise:g}")  # fmt: skip
        ax.plot(_KEPT, [toy.bayes(kept, noise**2) for kept in _KEPT], color=colour, linestyle=":", linewidth=1.2)
    ax.plot([], [], color="black", linestyle=":", label="1 − Φ(Ψ), true order")
    _finish(ax, "features, by the largest distance", "chosen by distance, without privacy")


def _released(ax: Axes, toy: Sparse, errors: Sequence[_Errors]) -> None:
    ax.plot(
        _KEPT, _mean(errors, "released"), "o-", color=plots.BLUE, markersize=4, linewidth=1, label="chosen privately"
    )
    ax.plot(_KEPT, _mean(errors, "given"), "s", color=plots.ORANGE, markersize=4, label="true order")
    ax.plot(_KEPT, [toy.bayes(kept, noise_std(kept) ** 2) for kept in _KEPT], color="black", linestyle=":",
            label="1 − Φ(Ψ), true order")  # fmt: skip
    _finish(ax, "features released", f"rows released at epsilon {_EPSILON:g}")


def _finish(ax: Axes, x: str, title: str) -> None:
    ax.set_xscale("log")
    plots.plain_ticks(ax.xaxis)
    ax.set_ylim(0, 0.52)
    ax.legend(frameon=False, fontsize=8, loc="upper left" if title.startswith("chosen") else "best")
    plots.name_axes(ax, x, "error", title)
