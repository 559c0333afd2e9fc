"""Harder et al. 2019, Table 1 (b) and Figure 1: the autoencoder on USPS, and its vanishing
updates.
"""

from __future__ import annotations

import math

import numpy as np

from privlearn_studies.charts import BLUE, GREEN, GREY, RED, SKY, Across, Curve, Figure, Mark, Panel
from privlearn_studies.harder2020.mnist import calibrated
from privlearn_studies.harder2020.training import Setting, falling, linearly, train
from privlearn_studies.report import (
    Findings,
    Row,
    each,
    ends,
    interval,
    mean_row,
    page,
    spread,
    table,
)
from privlearn_studies.runs import Call, Outcome, Runs

#: Table 1 (b): by epsilon (infinite: no noise), the error of DP-SGD and of DP-MAC.
PAPER = {
    1.0: (11.8, 12.7),
    2.0: (9.6, 10.9),
    4.0: (7.9, 9.6),
    8.0: (6.4, 8.4),
    math.inf: (3.6, 4.4),
}
#: Table 2: noise multipliers of DP-MAC and of DP-SGD, and the batch size of both.
_PAPERS_NOISE = {
    1.0: (7.8, 11.0, 250),
    2.0: (4.1, 5.7, 250),
    4.0: (3.1, 4.3, 500),
    8.0: (1.8, 2.4, 500),
}
#: DP-SGD in the README of the released code: by epsilon, the learning rate and what multiplies it
#: after each epoch. The paper's Table 2 has the first numbers in the row of the decay.
_PAPERS_RATES = {1.0: (30.0, 0.96), 2.0: (50.0, 0.96), 4.0: (100.0, 0.99), 8.0: (100.0, 0.99)}
#: Where the searches begin, for each epsilon: epochs, learning rate and weight decay.
_OWN = {
    1.0: (40, 0.07, 0.012),
    2.0: (80, 0.07, 0.008),
    4.0: (80, 0.1, 0.004),
    8.0: (160, 0.1, 0.002),
}
#: Settings that each method is tried with on the images held back, at each epsilon.
TRIES, _QUICK_TRIES = 8, 2
_SEEDS, _QUICK_SEEDS = 10, 1
#: Seeds of the slow runs.
_FEW = 2
_SAME, _OURS = "DP-MAC, the paper's settings", "DP-MAC, sweeps"
_DPSGD_HALF, _DPSGD_SAME = "DP-SGD, half the paper's noise", "DP-SGD, the paper's noise"
_DPSGD = "DP-SGD, tuned"
_COLOURS = {_SAME: GREY, _OURS: RED, _DPSGD_HALF: SKY, _DPSGD_SAME: BLUE, _DPSGD: GREEN}
_ERROR = "test error: half the squared error of an image, summed over pixels"
_HELD = "error on the 1,000 images in neither set"
_LAYERS = ("256-300", "300-100", "100-20", "20-100", "100-300", "300-256")
_Outcomes = dict[tuple[float, str], list[Outcome]]


def autoencoder(epsilon: float, quick: bool = False) -> Call:
    """The paper's autoencoder with its noise, or without any."""
    noise, _, size = _PAPERS_NOISE.get(epsilon, (None, None, 500))
    epochs, threshold = (6 if quick else 50), 0.001 if noise else 1e6
    return train.at(
        Setting(
            "usps",
            epochs,
            size,
            0.003,
            falling(0.97),
            threshold,
            noise=noise,
            z_rate=0.001,
            gain=1.0,
        )
    )


def tuned_autoencoder(epsilon: float, quick: bool = False) -> Call:
    """Sweeps, and the rest as chosen on the images that are in neither set: see the page."""
    alike = {"z_steps": 1, "z_rate": 1.0, "z_optimizer": "sweep"}
    if math.isinf(epsilon):
        epochs = 6 if quick else 80
        plain = Setting(
            "usps", epochs, 100, 0.001, linearly(epochs), 1e6, gain=1.0, middle=1.0, mu=1000.0
        )
        return train.at(plain).but(**alike)
    epochs, rate, decay = _OWN[epsilon]
    epochs = 20 if quick else epochs
    tuned = Setting(
        "usps",
        epochs,
        1000,
        rate,
        linearly(epochs),
        (1.0, 1.2, 3.0, 3.0, 1.2, 1.0),
        epsilon=epsilon,
        optimizer="sgd",
        momentum=0.9,
        weight_decay=decay,
        gain=0.7,
        middle=0.5,
        shares=(2.5, 2.0, 1.0, 1.0, 2.0, 2.5),
        mu=100.0,
    )
    return train.at(tuned).but(**alike)


def autoencoder_by_dpsgd(epsilon: float, quick: bool = False, halved: bool = False) -> Call:
    """DP-SGD as the paper compares it, with the noise multiplier that it states, or with half of
    it, as in the released code.
    """
    epochs = 20 if quick else 100
    if math.isinf(epsilon):
        size, rate, rates, noise = 500, 0.03, "constant:start=1", None
    else:
        _, noise, size = _PAPERS_NOISE[epsilon]
        rate, decay = _PAPERS_RATES[epsilon]
        noise, rates = (noise / 2 if halved else noise), falling(decay)
    return train.at(
        Setting("usps", epochs, size, rate, rates, 0.01, "dpsgd", noise, optimizer="sgd", gain=1.0)
    )


def tuned_autoencoder_by_dpsgd(epsilon: float, quick: bool = False) -> Call:
    """DP-SGD from our setting's weights with its batches, epochs and weight decay; clip norm and
    rate of its own.
    """
    tuned = tuned_autoencoder(epsilon, quick)
    rate = tuned.rate if math.isinf(epsilon) else 0.05
    setting = Setting(
        "usps",
        tuned.epochs,
        tuned.batch_size,
        rate,
        tuned.learning_rates,
        3.0,
        "dpsgd",
        epsilon=tuned.epsilon,
        optimizer=tuned.optimizer,
        momentum=tuned.momentum,
        weight_decay=tuned.weight_decay,
        gain=tuned.gain,
        middle=tuned.middle,
    )
    return train.at(setting)


def tries(epsilon: float, quick: bool = False) -> dict[str, list[Call]]:
    """Both methods' settings that are tried on the images held back: what each started from, and
    draws from a box around it, as many for one as for the other.
    """
    starts = {
        _OURS: tuned_autoencoder(epsilon, quick),
        _DPSGD: tuned_autoencoder_by_dpsgd(epsilon, quick),
    }
    return {
        column: [call, *_draws(call, (_QUICK_TRIES if quick else TRIES) - 1, quick)]
        for column, call in starts.items()
    }


def _draws(start: Call, count: int, quick: bool) -> list[Call]:
    """Settings drawn at random around `start`: epochs, batches, learning rates, weight decay,
    thresholds, and of DP-MAC the weight of hidden layers.
    """
    rng = np.random.default_rng([int(start.epsilon), start.method == "dpmac"])

    def between(least: float, most: float) -> float:
        return float(f"{math.exp(rng.uniform(math.log(least), math.log(most))):.2g}")

    drawn = []
    for _ in range(count):
        epochs = 20 if quick else int(rng.choice([40, 80, 160]))
        alike = {
            "epochs": epochs,
            "learning_rates": linearly(epochs),
            "batch_size": int(rng.choice([500, 1000])),
            "weight_decay": float(rng.choice([0.0, 0.002, 0.004, 0.008, 0.012])),
        }
        if start.method == "dpsgd":
            clip = between(0.3, 10.0)
            # The clip norm times the learning rate is how far one batch goes.
            rate = float(f"{between(0.05, 0.5) / clip:.2g}")
            drawn.append(start.but(threshold=clip, rate=rate, **alike))
        else:
            scale = between(0.5, 2.0)
            thresholds = tuple(float(f"{scale * each:.2g}") for each in start.threshold)
            rate, mu = between(0.03, 0.3), float(rng.choice([10.0, 100.0, 1000.0]))
            drawn.append(start.but(threshold=thresholds, rate=rate, mu=mu, **alike))
    return drawn


def _best(epsilon: float, quick: bool, runs: Runs) -> tuple[dict[str, Call], list[Row]]:
    """Each method's best setting on the images held back, one seed; and a row for every try."""
    calls = {
        (column, number): call.but(held=True)
        for column, every in tries(epsilon, quick).items()
        for number, call in enumerate(every)
    }
    reached = runs.named(calls, range(1))
    rows = [
        mean_row(f"epsilon {_name(epsilon)}, {column}, try {number}", _HELD, ends(mine))
        for (column, number), mine in reached.items()
    ]
    best = {}
    for column in (_OURS, _DPSGD):
        errors = {key: ends(mine)[0] for key, mine in reached.items() if key[0] == column}
        best[column] = calls[min(errors, key=errors.__getitem__)].but(held=False)
    return best, rows


def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Every epsilon, by DP-MAC and DP-SGD, with the paper's settings and ours."""
    numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
    epsilons = (8.0, math.inf) if quick else tuple(PAPER)
    tried: list[Row] = []
    calls: dict[tuple[float, str], Call] = {}
    for epsilon in epsilons:
        best: dict[str, Call] = {}
        if math.isfinite(epsilon):
            best, searched = _best(epsilon, quick, runs)
            tried += searched
        for column, call in _lines(epsilon, quick).items():
            calls[epsilon, column] = best.get(column, call)
    few = {key: call for key, call in calls.items() if key[1] == _SAME}
    outcomes: _Outcomes = runs.named(
        {key: call for key, call in calls.items() if key not in few}, numbers
    )
    outcomes |= runs.named(few, numbers[:_FEW])
    rows: list[Row] = []
    lines = []
    for epsilon in epsilons:
        epsilon_rows, line = _of(epsilon, outcomes)
        rows += epsilon_rows
        lines.append(line)
    heads = (
        "epsilon",
        "DP-MAC, paper",
        "its settings here",
        "sweeps",
        "DP-SGD, paper",
        "its settings, half its noise",
        "which spend epsilon",
        "its settings and noise",
        "which spend epsilon",
        "DP-SGD, tuned",
        "sweeps minus DP-SGD, tuned",
    )
    more, vanishing = _vanishing(epsilons, outcomes)
    notes = page(
        "dpmac-usps",
        about=about(len(numbers)),
        table=table(heads, lines),
        vanishing=vanishing,
    )
    panels = [
        _panel(epsilon, {column: outcomes[at, column] for at, column in outcomes if at == epsilon})
        for epsilon in epsilons
    ]
    figure = Figure("Autoencoder on USPS", [*panels, _norms(outcomes)], 13, 4 if quick else 8, 3, 4)
    return Findings((*rows, *more, *tried), figure, notes)


def about(seeds: int) -> str:
    """What stands at the top of the page."""
    return page(
        "dpmac-usps-about",
        error=_ERROR.capitalize(),
        seeds=seeds,
        few=min(seeds, _FEW),
        tries=TRIES,
    )


def _lines(epsilon: float, quick: bool) -> dict[str, Call]:
    """The runs for one epsilon; noise is calibrated to it, except for the paper's DP-SGD."""
    papers = autoencoder(epsilon, quick)
    lines = {
        _SAME: papers if math.isinf(epsilon) else calibrated(papers, epsilon),
        _OURS: tuned_autoencoder(epsilon, quick),
        _DPSGD_HALF: autoencoder_by_dpsgd(epsilon, quick, halved=True),
        _DPSGD_SAME: autoencoder_by_dpsgd(epsilon, quick),
        _DPSGD: tuned_autoencoder_by_dpsgd(epsilon, quick),
    }
    if math.isinf(epsilon):
        # Without noise, half of it is the same run.
        del lines[_DPSGD_HALF]
    return lines


def _of(epsilon: float, outcomes: _Outcomes) -> tuple[list[Row], tuple[str, ...]]:
    """Rows and a line of the table for one epsilon."""
    dpsgd, dpmac = PAPER[epsilon]
    rows, cells = [], [_name(epsilon), f"{dpmac:g}"]
    for column in _COLOURS:
        if (epsilon, column) not in outcomes:
            cells += ["–", "–"]
            continue
        mine, paper = outcomes[epsilon, column], dpsgd if column.startswith("DP-SGD") else dpmac
        label = f"epsilon {_name(epsilon)}, {column}"
        rows.append(mean_row(label, _ERROR, ends(mine), paper))
        if mine[0].epsilon is not None:
            rows.append(
                mean_row(label, "epsilon in truth, at delta 1e-5", [r.epsilon or 0 for r in mine])
            )
        cells.append(spread(ends(mine), 2))
        if column in (_DPSGD_HALF, _DPSGD_SAME):
            cells.append("–" if mine[0].epsilon is None else f"{mine[0].epsilon:.2f}")
        if column == _OURS:
            cells.append(f"{dpsgd:g}")
    middle, half = interval(ends(outcomes[epsilon, _OURS]), ends(outcomes[epsilon, _DPSGD]))
    return rows, (*cells, f"{middle:+.2f}" + (f" ± {half:.2f}" if math.isfinite(half) else ""))


def _vanishing(epsilons: tuple[float, ...], outcomes: _Outcomes) -> tuple[list[Row], str]:
    """What reaches each layer: mean norms of derivatives, at the start and at the end."""
    rows, lines = [], []
    for epsilon in sorted(epsilons)[-2:]:
        for column in (_SAME, _OURS):
            for when, place in (("first", 0), ("last", -1)):
                norms = np.mean([run.norms[place] for run in outcomes[epsilon, column]], axis=0)
                ratio = float(norms[-1] / norms.min())
                label = f"epsilon {_name(epsilon)}, {column}, {when} epoch"
                rows.append(Row(label, "norm of derivatives, output layer over the least", ratio))
                lines.append(
                    (
                        _name(epsilon),
                        column,
                        when,
                        *(f"{norm:.2g}" for norm in norms),
                        f"{ratio:.0f}",
                    )
                )
    return rows, table(("epsilon", "settings", "epoch", *_LAYERS, "output over least"), lines)


def _name(epsilon: float) -> str:
    return "none" if math.isinf(epsilon) else f"{epsilon:g}"


def _panel(epsilon: float, outcomes: dict[str, list[Outcome]]) -> Panel:
    """Error over epochs at one epsilon: test, and dotted training."""
    marks: list[Mark] = []
    for column, mine in outcomes.items():
        test, seen = np.array(each(mine, "test")).T, np.mean(each(mine, "train"), axis=0)
        epochs = np.arange(1, len(test) + 1)
        marks.append(Curve(epochs, test, column, _COLOURS[column], spread="population", shade=True))
        marks.append(Curve(epochs, seen, "", _COLOURS[column], ":", width=1))
    for error, line, method in zip(PAPER[epsilon], ("--", "-"), ("DP-SGD", "DP-MAC"), strict=True):
        marks.append(Across(error, f"{method}, the paper's", line=line, width=0.7))
    title = "no noise" if math.isinf(epsilon) else f"epsilon {epsilon:g}"
    return Panel(marks, "epoch", "error (training: dotted)", title, ylim=(3, 18))


def _norms(outcomes: _Outcomes) -> Panel:
    """Norms of derivatives by layer, in the first and the last epoch without noise."""
    marks = []
    for column in (_SAME, _OURS):
        for place, line in ((0, "o-"), (-1, "o--")):
            norms = np.mean([run.norms[place] for run in outcomes[math.inf, column]], axis=0)
            marks.append(Curve(range(1, len(norms) + 1), norms, "", _COLOURS[column], line))
    title = "no noise, first and last (dashed) epoch"
    return Panel(marks, "layer (the output is the last)", "mean norm of derivatives", title, "y")
