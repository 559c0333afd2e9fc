"""Membership inference as people think of it: a model, examples, and who of them it was trained on.

The likelihood-ratio attack, offline (LiRA; Carlini et al. 2022): how confident is the model in an
example's label, beside models that were trained without that example? Any training can be attacked
so that returns a model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.special import log_ndtr
from scipy.stats import beta
from torch import Tensor, nn

from privlearn._checks import between, count
from privlearn.auditing.bounds import Floats, Rates
from privlearn.auditing.canaries import fair_coins, with_guesses
from privlearn.auditing.distinguishing import Claim
from privlearn.auditing.one_run import Bools, OneRun
from privlearn.auditing.report import Audit, Detected
from privlearn.auditing.steps import warn_of_rows
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.tradeoff import TradeOff
from privlearn.core.devices import place_of
from privlearn.core.plan import AbstractPlan
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput

#: The false-positive rates at which true positives are counted.
_RATES = (0.01, 0.001)
#: From so many models without an example on, its spread is its own; else that of all examples
#: together.
_OWN_SPREAD = 16

#: Examples that a model is asked about at once.
_ROWS = 1_000
_ASSUMES = "the trade-off curve has the claimed form"

#: A model and examples with their targets; one number for each: larger where the model knows the
#: example better.
Signal = Callable[[Any, Tensor, Tensor], Tensor]


def infer_membership(
    train: Callable[[Dataset], Any],
    data: Dataset,
    plan: AbstractPlan,
    *,
    shadows: int = 8,
    delta: float = 1e-5,
    confidence: float = 0.99,
    streams: Streams | None = None,
    signal: Signal | None = None,
) -> Audit:
    """Train on a random half of `data`, and tell which half it was from the model alone, as LiRA
    does.

    Each example takes part by a fair coin of its own. Shadow models, on halves of their own, show
    how confident a model is in an example that it has not seen. `report.detected` holds the true
    positives at 1 % and .1 % false positives with their bounds, beside the most that the plan's
    trade-off curve allows. Those bounds take the examples for independent trials. Whether the claim
    is refuted is judged without that, by guesses about one run (`OneRun`).

    Args:
        train: makes a model of some of the rows, each time with fresh noise; what else it trains
            on, it adds.
        data: the examples that take part or not, made up or public: no ledger is charged for them.
        plan: what `train` claims: its neighbours are data sets with one example more or less.
        shadows: models that are trained besides the one that is attacked. 0: the attack compares
            confidences alone.
        delta: where epsilon is stated.
        confidence: of all that is said.
        streams: of the coins; by default fresh and secret ones.
        signal: by default for classes, given a module: the log odds of an example's class.

    Raises:
        BadInput: replace_one neighbours; too few examples; a model or a target that the signal is
            not made for.
    """
    shadows = count("shadows", shadows, least=0)
    if plan.neighbours is Adjacency.REPLACE_ONE:
        raise BadInput(
            "the plan is for replace_one neighbours: expected add_remove or zero_out, of which one "
            "is empty"
        )
    warn_of_rows(data)
    x, y = data.tensors()
    streams = streams or Streams.new()
    coins = fair_coins(len(x), streams)
    without = np.array(
        [streams.views.permutation(shadows) < (shadows + 1) // 2 for _ in range(len(x))]
    ).T
    known = signal or log_odds

    def signals(members: Bools) -> Floats:
        rows = torch.from_numpy(np.flatnonzero(members))
        model = train(replace(data, x=x[rows], y=y[rows], x_test=None, y_test=None, groups=None))
        with torch.no_grad():
            return known(model, x, y).double().cpu().numpy()

    target = signals(coins)
    scores = (
        likelihood_ratios(target, np.array([signals(~out) for out in without]), without)
        if shadows
        else target
    )
    claim = Claim(lambda factor: plan.scaled(factor).event(), plan.neighbours, 1.0, delta, _ASSUMES)
    by = f"{shadows} shadow models (LiRA)" if shadows else "its confidence"
    each = 1 - (1 - confidence) / (2 + len(_RATES))  # so that all that is said holds together
    report = claim.judged(
        scores[~coins], scores[coins], each, f"membership of {len(x):,} examples by {by}, black box"
    )
    report = with_guesses(
        replace(report, ok=True, epsilon_lower=0.0), claim, OneRun.of(scores, coins, each)
    )
    spotted = tuple(detected(scores, coins, rate, report.curve, each) for rate in _RATES)
    return replace(report, detected=spotted, confidence=confidence, public=data.public)


def log_odds(model: Any, x: Tensor, y: Tensor) -> Tensor:
    """The log odds of each example's class: of logits of all classes, or of one logit for two.

    Raises:
        BadInput: the model is no module, or its outputs are no logits of whole numbers' classes.
    """
    if not isinstance(model, nn.Module) or y.is_floating_point() or y.ndim != 1:
        raise BadInput(
            "membership is told from logits of classes by default: give signal=, of a model, "
            "inputs, targets"
        )
    model.eval()
    logits = torch.cat(
        [model(part.to(place_of(model))).detach().cpu().double() for part in torch.split(x, _ROWS)]
    )
    if logits.ndim == 1 or logits.shape[1] == 1:
        return logits.reshape(-1) * (2 * y - 1)
    label_logits = logits.gather(1, y[:, None])
    others = logits.scatter(1, y[:, None], -torch.inf)
    return label_logits[:, 0] - others.logsumexp(1)


def likelihood_ratios(target: Floats, shadows: Floats, without: Bools) -> Floats:
    """How much larger each signal is than those of models that have not seen the example: the
    offline attack.

    Args:
        target: of the attacked model, one for each example.
        shadows: of shadow models, shape (models, examples).
        without: which of them were trained without which example, of that shape; each example has
            one at least.

    Returns:
        How unlikely so large a signal is without the example, as minus the logarithm of the normal
        tail beyond it: by the mean of each example, and by its spread, or that of all together
        where there are few models.
    """
    among = np.maximum(without.sum(0), 1)
    means = np.where(without, shadows, 0.0).sum(0) / among
    squares = np.where(without, np.square(shadows - means), 0.0).sum(0)
    pooled = squares.sum() / max(1, (among - 1).sum())
    variances = np.where(among >= _OWN_SPREAD, squares / np.maximum(among - 1, 1), pooled)
    return np.asarray(-log_ndtr(-(target - means) / np.sqrt(np.maximum(variances, 1e-12))))


def detected(
    scores: Floats, coins: Bools, rate: float, curve: TradeOff, confidence: float
) -> Detected:
    """The true positives where at most a share of `rate` of those who did not take part are taken
    for members.

    Args:
        scores: one for each example; larger ones mean that it took part.
        coins: which did.
        rate: of false positives.
        curve: the claimed limit of every attack.
        confidence: of all bounds together, which take the examples for independent trials.
    """
    others, members = np.sort(scores[~coins])[::-1], scores[coins]
    alarms = int(between("rate", rate, 0.0, 1.0) * len(others))
    hits = int((members > others[alarms]).sum()) if alarms < len(others) else len(members)
    error = (1 - confidence) / 3  # for each of three bounds
    rates = Rates.of(alarms, len(others), hits, len(members), 1 - 2 * error)
    high = (
        1.0 if hits == len(members) else float(beta.ppf(1 - error, hits + 1, len(members) - hits))
    )
    return Detected(
        rate,
        rates.false_positive,
        hits / len(members),
        rates.true_positive,
        high,
        curve.true_positive_rate(rate),
    )
