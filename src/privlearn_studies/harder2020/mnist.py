"""Harder et al. 2019, Table 1 (a) and Figures 2 and 3: the classifier on MNIST."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from privlearn.core.accounting import accountant
from privlearn.training.rules import learning_rate
from privlearn_studies.charts import BLUE, GREEN, GREY, RED, Across, Curve, Figure, Mark, Panel
from privlearn_studies.harder2020.training import (
    DELTA,
    Setting,
    examples_of,
    falling,
    linearly,
    plan_of,
    train,
)
from privlearn_studies.report import Findings, Row, apart, each, ends, mean_row, page, signed, table
from privlearn_studies.runs import Call, Outcome, Runs

#: Table 1 (a), by epsilon: test accuracy and epochs of DP-SGD (Abadi et al. 2016), DP-CDBN (Phan et
#: al. 2017), DP-MAC.
PAPER: dict[float, dict[str, tuple[float, int]]] = {
    0.5: {"DP-SGD": (0.90, 16), "DP-CDBN": (0.92, 162), "DP-MAC": (0.90, 10)},
    2.0: {"DP-SGD": (0.95, 120), "DP-CDBN": (0.95, 162), "DP-MAC": (0.95, 30)},
    8.0: {"DP-SGD": (0.97, 700), "DP-MAC": (0.97, 30)},
}
#: Table 2: by epsilon, noise multipliers of training and of the projection.
_PAPERS_NOISE = {0.5: (8.0, 16.0), 2.0: (2.8, 8.0), 8.0: (1.0, 4.0)}
_QUICK = 6_000
#: Settings that DP-MAC was tried with on the images held back, as far as there is a record:
#: coordinates by 30, 10 and 5 steps of Adam, by 5 and by one of SGD, by one sweep; shares of the
#: unit of sensitivity evenly, and twice for the first layer.
MAC_TRIES = 8
OURS = "DP-MAC, our settings"
_SEEDS, _QUICK_SEEDS = 10, 1
_PAPERS, _SAME, _OURS = "the paper's noise", "noise calibrated", "noise calibrated, our settings"
_DPSGD, _TUNED = "DP-SGD here, as many epochs", "DP-SGD here, tuned"
_COLUMNS = (_PAPERS, _SAME, _OURS, _DPSGD, _TUNED)
#: Those in the picture.
_COLOURS = {_PAPERS: GREY, _SAME: BLUE, _OURS: RED, _DPSGD: GREEN}
_TEST, _HELD = "test accuracy", "accuracy on the last 5,000 training images, held back"
_SPENT, _NOISE = "epsilon in truth, at delta 1e-5, projection included", "noise multiplier"
_BY_2016, _EXACTLY = "epsilon in truth, by zCDP as converted in 2016", "epsilon in truth, exactly"
_Known = dict[tuple[str, str], Row]


def classifier(epsilon: float, quick: bool = False) -> Call:
    """The paper's classifier with its noise; a quick one has a tenth of the rows in batches of the
    same share.
    """
    noise, pca = _PAPERS_NOISE[epsilon]
    epochs, rate, decay = (10, 0.03, 0.7) if epsilon == 0.5 else (30, 0.01, 0.95)
    call = train.at(
        Setting("mnist", epochs, 1000, rate, falling(decay), 0.3, noise=noise, pca_noise=pca)
    )
    return call.but(first=_QUICK, batch_size=100, epochs=min(epochs, 10)) if quick else call


def calibrated(call: Call, epsilon: float) -> Call:
    """The same with as little noise as `epsilon` allows, everything counted."""
    return call.but(noise=None, epsilon=epsilon)


def tuned_classifier(epsilon: float, quick: bool = False) -> Call:
    """The best that was reached on the last 5,000 training images."""
    call = calibrated(classifier(epsilon, quick), epsilon)
    return call.but(shares=(2.0, 1.0), mu=100.0, z_steps=1, z_rate=1.0, z_optimizer="sweep")


def classifier_by_dpsgd(epsilon: float, quick: bool = False) -> Call:
    """The same network by DP-SGD with the same batches, epochs and learning rates, the whole
    gradient clipped.
    """
    return calibrated(classifier(epsilon, quick), epsilon).but(method="dpsgd", threshold=0.3)


def classifier_without_noise(quick: bool = False) -> Call:
    """DP-MAC without noise in training, behind the projection of the largest epsilon."""
    return classifier(8.0, quick).but(noise=None)


def tries_of_dpsgd(epsilon: float, quick: bool = False) -> dict[str, Call]:
    """DP-SGD's settings that are tried on the images held back.

    Adam has DP-MAC's learning rates, or less or more than these; plain SGD and SGD with momentum
    have the rate that `pv.train` takes, falling linearly to 0; `pv.train` itself is plain SGD with
    clip norm 0.1 and batches of 4,000.
    """
    usual = classifier_by_dpsgd(epsilon, quick)
    tried = {}
    for clip, larger in ((0.1, 1), (1.0, 1), (0.1, 4)):
        start = usual.but(threshold=clip, batch_size=larger * usual.batch_size)
        where = f"clip {clip:g}, batches of {start.batch_size}"
        tried[f"Adam, DP-MAC's rates, {where}"] = start
        if larger > 1:
            tried[f"Adam, three times these, {where}"] = start.but(rate=usual.rate * 3)
        else:
            tried[f"Adam, a third of these, {where}"] = start.but(rate=usual.rate / 3)
        for momentum in (0.0, 0.9):
            descent = start.but(
                optimizer="sgd", momentum=momentum, learning_rates=linearly(usual.epochs)
            )
            what = f"SGD with momentum {momentum:g}" if momentum else "plain SGD"
            rate = float(f"{(1 - momentum) * ruled_rate(descent.setting):.3g}")
            tried[f"{what}, the rule's rate, {where}"] = descent.but(rate=rate)
    return tried


def tries_of_dpmac(epsilon: float, quick: bool = False) -> dict[str, Call]:
    """DP-MAC's settings that are tried beside them: ours, with larger batches and learning
    rates.
    """
    tuned = tuned_classifier(epsilon, quick)
    tried = {f"{OURS}, batches of {tuned.batch_size}": tuned}
    for larger, more in ((2, 1.5), (4, 1.0), (4, 2.0), (4, 3.0)):
        call = tuned.but(batch_size=larger * tuned.batch_size, rate=more * tuned.rate)
        tried[f"{OURS}, batches of {call.batch_size}, rates x {more:g}"] = call
    return tried


def ruled_rate(setting: Setting) -> float:
    """The learning rate that `pv.train` would take for plain SGD: by public numbers alone."""
    return learning_rate("SGD", plan_of(setting), examples_of(setting), "mlp", 0.0)


def held_back(call: Call) -> Call:
    """The same on all but the last 5,000 training images, judged on these."""
    return call.but(held=True)


def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Every epsilon, at the paper's noise and at that which the epsilon allows."""
    numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
    tried, best = _tried((2.0,) if quick else tuple(PAPER), quick, runs)
    calls = {
        (epsilon, column): call
        for epsilon in PAPER
        for column, call in _lines(epsilon, best, quick)
    }
    outcomes = runs.named({**calls, "plain": classifier_without_noise(quick)}, numbers)
    rows = [mean_row("without noise", _TEST, ends(outcomes.pop("plain")))]
    for (epsilon, column), mine in outcomes.items():
        label, quoted = _label(epsilon, column), PAPER[epsilon]
        rows += [
            mean_row(label, _SPENT, [run.epsilon or 0 for run in mine]),
            mean_row(
                label,
                _TEST,
                ends(mine),
                quoted["DP-SGD" if column.startswith("DP-SGD") else "DP-MAC"][0],
            ),
            Row(label, _NOISE, mine[0].noise or 0.0),
        ]
    rows += [*_fixed_order(), *tried]
    panels = [
        draw_accuracies(
            epsilon,
            {column: outcomes[epsilon, column] for column in _COLOURS},
            _COLOURS,
            PAPER[epsilon],
        )
        for epsilon in PAPER
    ]
    return Findings(
        tuple(rows), Figure("DP-MAC on MNIST", panels, 13, 4.6, 3, 6), notes_of(rows, quick)
    )


def _lines(epsilon: float, best: tuple[str, str], quick: bool) -> list[tuple[str, Call]]:
    """The runs for one epsilon."""
    papers = classifier(epsilon, quick)
    return [
        (_PAPERS, papers),
        (_SAME, calibrated(papers, epsilon)),
        (_OURS, tries_of_dpmac(epsilon, quick)[best[0]]),
        (_DPSGD, classifier_by_dpsgd(epsilon, quick)),
        (_TUNED, tries_of_dpsgd(epsilon, quick)[best[1]]),
    ]


def _tried(epsilons: Sequence[float], quick: bool, runs: Runs) -> tuple[list[Row], tuple[str, str]]:
    """Settings of both on the images held back, one seed; and the best of each, for all epsilons
    together.
    """
    calls = {
        (epsilon, what): held_back(call)
        for epsilon in epsilons
        for what, call in (tries_of_dpsgd(epsilon, quick) | tries_of_dpmac(epsilon, quick)).items()
    }
    rows = [
        mean_row(f"held back, epsilon {epsilon:g}, {what}", _HELD, ends(mine))
        for (epsilon, what), mine in runs.named(calls, range(1)).items()
    ]
    return rows, _best(_held(rows))


def _held(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Accuracies on the images held back, by setting and epsilon."""
    held: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.metric == _HELD:
            _, epsilon, what = row.label.split(", ", 2)
            held.setdefault(what, {})[epsilon.removeprefix("epsilon ")] = row.ours
    return held


def _best(held: dict[str, dict[str, float]]) -> tuple[str, str]:
    """The best settings of DP-MAC and of DP-SGD."""
    ordered = sorted(held, key=lambda what: -sum(held[what].values()))
    macs = [what for what in ordered if what.startswith(OURS)]
    return macs[0], next(what for what in ordered if what not in macs)


def _label(epsilon: float, column: str) -> str:
    return f"epsilon {epsilon:g}, {column}"


def _fixed_order() -> list[Row]:
    """What the batches of the released code cost."""
    rows = []
    for epsilon in PAPER:
        plan = plan_of(classifier(epsilon).but(sampling="fixed").setting)
        every = accountant.guarantees(plan.event(), plan.neighbours, DELTA)
        by_2016 = next(each.epsilon for each in every if each.method == "zcdp-2016")
        label = _label(epsilon, "batches in fixed order")
        rows += [Row(label, _BY_2016, by_2016), Row(label, _EXACTLY, plan.guarantee(DELTA).epsilon)]
    return rows


def notes_of(rows: Sequence[Row], quick: bool = False) -> str:
    """The page's text, from its numbers."""
    known = {(row.label, row.metric): row for row in rows}
    plain, held = known["without noise", _TEST], _held(rows)
    mac, sgd = _best(held)
    macs = [what for what in held if what.startswith(OURS)]
    tries = [(what, *(f"{by[epsilon]:.4f}" for epsilon in held[mac])) for what, by in held.items()]
    ordered = []
    for epsilon in PAPER:
        by_2016, tight = (
            known[_label(epsilon, "batches in fixed order"), how].ours
            for how in (_BY_2016, _EXACTLY)
        )
        ordered.append(
            f"{by_2016:.3g} where {epsilon:g} is claimed ({tight:.3g} by the exact conversion)"
        )
    return page(
        "dpmac-mnist",
        seeds=plain.seeds,
        table=_table(known, quick),
        plain=_spread(plain),
        papers=_PAPERS,
        dpsgd=_DPSGD,
        tuned=_TUNED,
        mac_tries=MAC_TRIES,
        sgd_tries=len(held) - len(macs),
        more=len(macs) - 1,
        sgd=sgd,
        mac=mac,
        tries=table(
            ("held back: accuracy of", *(f"epsilon {epsilon}" for epsilon in held[mac])), tries
        ),
        ordered=", ".join(ordered),
    )


def _table(known: _Known, quick: bool) -> str:
    lines = []
    for epsilon, quoted in PAPER.items():
        for method, (accuracy, epochs) in quoted.items():
            lines.append(
                (
                    f"{epsilon:g}",
                    f"{method}, quoted",
                    "–",
                    "–",
                    str(epochs),
                    f"{accuracy:.2f}",
                    "–",
                    "–",
                )
            )
        papers, tuned = (known[_label(epsilon, column), _TEST] for column in (_PAPERS, _TUNED))
        for column in _COLUMNS:
            label = _label(epsilon, column)
            mine = known[label, _TEST]
            lines.append(
                (
                    f"{epsilon:g}",
                    column,
                    f"{known[label, _NOISE].ours:.3g}",
                    f"{known[label, _SPENT].ours:.3g}",
                    str(classifier(epsilon, quick).epochs),
                    _spread(mine),
                    "–" if column == _PAPERS else signed(*apart(mine, papers)),
                    "–" if column == _TUNED else signed(*apart(mine, tuned)),
                )
            )
    heads = (
        "claimed epsilon",
        "what",
        "noise multiplier",
        "epsilon in truth",
        "epochs",
        _TEST,
        f"over {_PAPERS}",
        f"over {_TUNED}",
    )
    return table(heads, lines)


def _spread(row: Row) -> str:
    return f"{row.ours:.4f}" + ("" if row.ours_std is None else f" ± {row.ours_std:.4f}")


def draw_accuracies(
    epsilon: float,
    outcomes: dict[str, list[Outcome]],
    colours: Mapping[str, str],
    methods: Iterable[str],
) -> Panel:
    """Accuracy over epochs at one epsilon, and what the paper has for these methods."""
    marks: list[Mark] = []
    for column, runs in outcomes.items():
        test, train = np.array(each(runs, "test")).T, np.mean(each(runs, "train"), axis=0)
        epochs = np.arange(1, len(test) + 1)
        marks.append(Curve(epochs, test, column, colours[column], spread="population", shade=True))
        marks.append(Curve(epochs, train, "", colours[column], ":", width=1))
    for method, line in zip(methods, ("--", "-.", "-"), strict=False):
        quoted, _ = PAPER[epsilon][method]
        marks.append(Across(quoted, f"{method}, quoted", line=line, width=0.7))
    least = min(0.84, PAPER[epsilon]["DP-MAC"][0] - 0.04)
    return Panel(marks, "epoch", "accuracy", f"epsilon {epsilon:g}", ylim=(least, 0.985))
