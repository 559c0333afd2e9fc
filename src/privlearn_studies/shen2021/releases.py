"""The runs of `dfs-cifar10` and `dfs-mnist`: features released at one epsilon, by the number kept,
and DP-SGD.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast, final

import numpy as np
import torch
from torch import Tensor, nn

from privlearn._checks import one_of
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.data.named import load
from privlearn.methods.statistics.classifiers import fisher
from privlearn.methods.statistics.features import release_features, select_features
from privlearn.methods.statistics.plan import FisherPlan, RowsPlan, SelectionPlan
from privlearn.training.train import train
from privlearn.transforms.modules import Keep, Scale
from privlearn.transforms.select import SPLIT
from privlearn_studies.runs import cached
from privlearn_studies.shen2021.published import literal_release

DELTA = 1e-5
#: Declared norms of rows and bounds on their numbers, after a look at public rows.
BOUNDS = {"cifar10-features": (6.7, 0.8), "mnist": (10.0, 1.0)}
RELEASES = ("rows", "literal", "statistics")
CHOSEN = ("privately", "without privacy", "without privacy, equal noise")
#: Rows that numbers of features and learning rates are chosen on.
_HELD = 5000
_WITHOUT = 1e-6  # a noise multiplier that is none
_CLIP = 1.0


@final
@dataclass(frozen=True)
class ReleaseSetting:
    """What distinguishes a release, but for the number of features, of which one run tries several.

    Attributes:
        data: the name of the data set.
        release: noisy rows, those of the published algorithm, or statistics; a Fisher classifier is
            made of each.
        epsilon: at delta 1e-5, for the selection and all else; None: hardly any noise.
        keeps: numbers of features to keep; each is a release of its own, priced by itself.
        criterion: what features are chosen by.
        chosen: privately, as a part of the release, or without privacy: then all of epsilon is for
            what is released, or the noise is that beside a private choice, so that nothing but the
            features differs.
        per_class: private rows of each class, drawn by the seed; None: all training rows.
        way: of selection.
        share: the part of rho for selection, where it is a release of its own.
        split: of rho in parts for counts, class sums and squares.
    """

    data: str
    release: str
    epsilon: float | None
    keeps: tuple[int, ...]
    criterion: str = "distance"
    chosen: str = CHOSEN[0]
    per_class: int | None = None
    way: str = "auto"
    share: float = 0.1
    split: tuple[float, float, float] = SPLIT


@final
@dataclass(frozen=True, eq=False)
class Parts:
    """Private rows, and others.

    Attributes:
        private: as they are in the data, with declared bounds.
        held: rows to choose by, scaled: training rows that are not private here, or, where all are,
            some of them.
        held_labels: their classes.
        test: rows to report on, scaled.
        test_labels: their classes.
    """

    private: Dataset
    held: Tensor
    held_labels: Tensor
    test: Tensor
    test_labels: Tensor

    def accuracies(self, model: nn.Module) -> tuple[float, float]:
        """On test rows and on rows to choose by, of a model of scaled rows."""
        with torch.no_grad():
            test, held = (model(x).argmax(1) for x in (self.test, self.held))
        right = (test == self.test_labels), (held == self.held_labels)
        return float(right[0].double().mean()), float(right[1].double().mean())


@lru_cache(maxsize=2)
def parts(data: str, per_class: int | None, seed: int) -> Parts:
    """The private rows of a run, and the others: the same for equal seeds."""
    whole = _whole(data)
    y = np.asarray(whole.y).astype(np.int64)
    order = np.random.default_rng([seed, len(y)]).permutation(len(y))
    private_places = held = order[:_HELD]
    if per_class is not None:
        mine = np.concatenate(
            [order[y[order] == one][:per_class] for one in range(int(y.max()) + 1)]
        )
        private_places, held = mine, np.setdiff1d(order, mine, assume_unique=True)[:_HELD]
    private = (
        whole
        if per_class is None
        else replace(
            whole, x=np.asarray(whole.x)[private_places], y=np.asarray(whole.y)[private_places]
        )
    )
    scale = Scale(*whole.bounds())
    x, x_test = (
        scale(torch.from_numpy(np.array(rows))).flatten(1)
        for rows in (np.asarray(whole.x)[held], whole.x_test)
    )
    return Parts(
        private,
        x,
        torch.from_numpy(y[held]),
        x_test,
        torch.from_numpy(np.array(whole.y_test, dtype=np.int64)),
    )


@lru_cache(maxsize=1)
def _whole(data: str) -> Dataset:
    whole = load(data)
    return replace(whole, x=np.array(whole.x))  # torch warns of arrays that can't be written


@lru_cache(maxsize=256)
def plan_of(setting: ReleaseSetting, keep: int) -> FisherPlan | RowsPlan:
    """What is released privately of `keep` features, chosen privately or given."""
    whole = _whole(setting.data)
    norm, bound = BOUNDS[setting.data]
    assert whole.classes is not None
    kind: type[FisherPlan | RowsPlan] = RowsPlan if setting.release == "rows" else FisherPlan
    plan = kind(
        whole.classes,
        math.prod(whole.x.shape[1:]),
        keep,
        norm,
        bound,
        criterion=setting.criterion,
        way=setting.way,
        selection_share=setting.share,
        split=setting.split,
    )
    if setting.epsilon is None:
        return replace(plan, noise_multiplier=_WITHOUT)
    if setting.chosen == CHOSEN[0] or not plan.selects:
        return plan.calibrate(epsilon=setting.epsilon, delta=DELTA)
    without_choice = replace(plan, features=keep, row_norm=plan.rest_norm, kept_norm=plan.rest_norm)
    if setting.chosen == CHOSEN[2]:
        return replace(
            without_choice,
            noise_multiplier=plan.calibrate(epsilon=setting.epsilon, delta=DELTA).rest_noise,
        )
    return without_choice.calibrate(epsilon=setting.epsilon, delta=DELTA)


def best_features(setting: ReleaseSetting, seed: int, keep: int) -> Tensor:
    """The features that the private rows themselves tell: no privacy."""
    return _order(
        setting.data, setting.criterion, setting.per_class, seed if setting.per_class else 0
    )[:keep]


@lru_cache(maxsize=8)
def _order(data: str, criterion: str, per_class: int | None, seed: int) -> Tensor:
    """All features, the best first."""
    setting = ReleaseSetting(data, "rows", None, ())
    whole = plan_of(setting, math.prod(_whole(data).x.shape[1:]))
    plan = SelectionPlan(
        whole.classes,
        whole.features,
        whole.keep,
        whole.row_norm,
        criterion=criterion,
        way="means",
        adjacency=whole.adjacency,
        split=whole.split,
        noise_multiplier=whole.noise,
    )
    return select_features(
        plan, parts(data, per_class, seed).private, streams=Streams.new(seed)
    ).indices


@cached("dfs-release")
def release(seed: int, setting: ReleaseSetting) -> dict[str, Any]:
    """Release and classify with `seed`, which fixes who is private, and the noise.

    Returns:
        Each for each number of features:
        test: test accuracy.
        held: accuracy on rows to choose by: see `Parts`.
        noise: standard deviation of the noise on each released number; of statistics, the plan's
        noise multiplier.
        epsilons: what the ledger says was spent; 0 where what was done is not private.
    """
    one_of("the release", setting.release, RELEASES)
    one_of("how features are chosen", setting.chosen, CHOSEN)
    data = parts(setting.data, setting.per_class, seed)
    columns = zip(*(_one(setting, keep, data, seed) for keep in setting.keeps), strict=True)
    return dict(zip(("test", "held", "noise", "epsilons"), columns, strict=True))


def _one(
    setting: ReleaseSetting, keep: int, data: Parts, seed: int
) -> tuple[float, float, float, float]:
    streams = Streams.new(seed)
    if setting.release == RELEASES[1]:
        return _literal(setting, keep, data, seed)
    plan = plan_of(setting, keep)
    private, front = data.private, None
    if plan.features < data.test.shape[1]:
        front = best_features(setting, seed, keep)
        private = _columns(private, front)
    if isinstance(plan, RowsPlan):
        out = release_features(plan, private, streams=streams)
        result, noise = out.classifier(), out.noise_std
    else:
        result, noise = fisher(plan, private, streams=streams), plan.noise
    # Without privacy in the choice, or without noise, what the ledger holds is no guarantee.
    spent = (
        0.0
        if front is not None or setting.epsilon is None
        else result.ledger.guarantee(DELTA).epsilon
    )
    return (*data.accuracies(_scaled(result.model, front)), noise, spent)


def _literal(
    setting: ReleaseSetting, keep: int, data: Parts, seed: int
) -> tuple[float, float, float, float]:
    """The published algorithm: distances are its own; by t statistics of either kind features are
    given to it.
    """
    assert setting.epsilon is not None
    best = best_features(setting, seed, keep) if setting.criterion != "distance" else None
    private = data.private if best is None else _columns(data.private, best)
    out = literal_release(
        private,
        classes=plan_of(setting, keep).classes,
        keep=keep,
        epsilon=setting.epsilon,
        delta=DELTA,
        streams=Streams.new(seed),
    )
    return (*data.accuracies(_scaled(out.classifier().model, best)), out.noise_std, 0.0)


def _columns(private: Dataset, best: Tensor) -> Dataset:
    """The same rows with some features alone."""
    rows = np.asarray(private.x).reshape(len(private.x), -1)
    return replace(private, x=np.ascontiguousarray(rows[:, best.numpy()]), x_test=None, y_test=None)


def _scaled(model: nn.Module, front: Tensor | None) -> nn.Module:
    """The part of a model that sees scaled rows, behind a choice of features made for it."""
    after = cast(nn.Sequential, model)[1:]
    return after if front is None else nn.Sequential(Keep(front), after)


@cached("dfs-head")
def head(seed: int, *, data: str, epsilon: float, per_class: int | None = None) -> dict[str, Any]:
    """A linear model of the features, by DP-SGD with the library's default settings.

    Args:
        seed: fixes who is private, batches and noise.
        data: the name of the data set.
        epsilon: at delta 1e-5.
        per_class: as in `ReleaseSetting`.

    Returns:
        test: accuracy on test rows.
        epsilon: what was spent.
    """
    rows = parts(data, per_class, seed)
    result = train(
        rows.private, epsilon=epsilon, delta=DELTA, features="raw", streams=Streams.new(seed)
    )
    test, _ = rows.accuracies(_scaled(result.model, None))
    return {"test": test, "epsilon": result.ledger.guarantee(DELTA).epsilon}
