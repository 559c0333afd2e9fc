"""A private grid search: one of several settings, chosen and trained within one budget."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, final

from scipy.sparse import issparse
from sklearn.base import MetaEstimatorMixin, clone
from sklearn.model_selection import ParameterGrid
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from privlearn._checks import one_of
from privlearn._display import shortened
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.data.sparse_matrix import refuse_dense
from privlearn.errors import BadInput, first_line
from privlearn.methods.tuning.blocks import Blocks
from privlearn.methods.tuning.stopping import Candidate, RandomStopping, chosen_candidate
from privlearn.methods.tuning.tune import tune
from privlearn.runs.result import Result
from privlearn.sklearn.class_statistics import DPFisherClassifier
from privlearn.sklearn.estimator import Array, NetworkEstimator, PrivateEstimator
from privlearn.sklearn.supervised import (
    DPBoostingClassifier,
    DPBoostingRegressor,
    DPClassifier,
    DPRegressor,
    DPRidge,
    PrivateRegressor,
)

#: Candidates learn from rows as they are: public features would have to be chosen once for all of
#: them.
_AS_THEY_ARE = {"features": "raw"}
_LONGEST = 60  # characters of a candidate's name
#: What is searched where nothing is given, of an estimator by DP-SGD.
_USUAL = {"options": [{"epochs": 10}, {"epochs": 30}]}
_SEARCHED = (
    DPClassifier,
    DPRegressor,
    DPRidge,
    DPFisherClassifier,
    DPBoostingClassifier,
    DPBoostingRegressor,
)
#: What is the same for all candidates.
_FIXED = {
    "epsilon",
    "delta",
    "classes",
    "bounds",
    "target_bounds",
    "ledger",
    "plan",
    "random_state",
    "preprocessing",
}


def _has(name: str) -> Callable[[Any], bool]:
    """Whether the estimator that is searched has this method."""
    return lambda search: hasattr(
        DPClassifier if search.estimator is None else search.estimator, name
    )


@final
class DPSearchCV(MetaEstimatorMixin, PrivateEstimator):  # type: ignore[misc]
    """Chooses one of several settings of an estimator, and trains it: all of it together at one
    target.

    Guarantee: of each fit as that of `privlearn.tune`, the choice included; of several, see
    `privacy_`. Nothing but the chosen settings and their model is kept. How long it takes is not
    covered.

    Args:
        estimator: for all that is not searched, a `DPClassifier`, `DPLogisticRegression`,
            `DPRegressor`, `DPRidge`, `DPFisherClassifier`, `DPBoostingClassifier` or
            `DPBoostingRegressor`; None: the first. Its epsilon, delta, ledger and random_state are
            not looked at.
        param_grid: values to try by parameter, or a list of such (`GridSearchCV`):
            `{"model": ["linear", "mlp:32"]}`.
        epsilon, delta: the target of everything together.
        way: "random-stopping" trains a random number of candidates on all rows, "blocks" each on a
            block of its own.
        ledger: what fits are charged to; None: one that the search shares with its clones, without
            a limit.
        random_state: None for noise from the operating system, or `pv.Streams`. With a seed nothing
            is claimed.
        preprocessing: "public", or None: as of every estimator here (`PrivateEstimator`).
        metric: what candidates are judged by: `accuracy` or `log_loss`, of numbers `rmse` or `mae`
            (`pv.tuning.RandomStopping`); None: the first.

    Attributes:
        best_estimator_: the chosen one, fitted.
        best_params_: the chosen settings.
        best_index_: their place in the grid.
        classes_, result_, privacy_, n_features_in_, feature_names_in_: as of the estimator.
    """

    def __init__(
        self,
        estimator: Any = None,
        param_grid: Any = None,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        way: str = "random-stopping",
        ledger: Ledger | None = None,
        random_state: Any = None,
        metric: str | None = None,
        preprocessing: str | None = None,
    ) -> None:
        self.estimator, self.param_grid, self.epsilon, self.delta = (
            estimator,
            param_grid,
            epsilon,
            delta,
        )
        self.way, self.ledger, self.random_state, self.metric = way, ledger, random_state, metric
        self.preprocessing = preprocessing

    @property
    def bounds(self) -> Any:
        """Those of the estimator."""
        return getattr(self.estimator, "bounds", None)

    @property
    def classes(self) -> Any:
        """Those of the estimator."""
        return getattr(self.estimator, "classes", None)

    def fit(self, X: Any, y: Any) -> DPSearchCV:
        """Choose and train, on rows of numbers, shape (rows, features), and their labels or
        targets, (rows,).

        Raises:
            BudgetExceeded: the ledger has no room; before anything is drawn.
            BadInput: an estimator that can't be searched, fewer than two candidates, or what
                `privlearn.tune` refuses.
        """
        if issparse(X):
            refuse_dense(X.shape, type(self).__name__)
        estimator = DPClassifier() if self.estimator is None else self.estimator
        if not isinstance(estimator, _SEARCHED) or getattr(estimator, "plan", None) is not None:
            raise BadInput(
                f"estimator is {shortened(repr(estimator), 60)}: expected one of "
                f"{', '.join(_names())}, without a plan. Search others with GridSearchCV and "
                "ledger=pv.Ledger(pv.sklearn.budget_for(plan, fits=N, delta=D))"
            )
        one_of("way", self.way, ("random-stopping", "blocks"))
        try:
            grid = list(ParameterGrid(_USUAL if self.param_grid is None else self.param_grid))
        except (TypeError, ValueError) as error:
            raise BadInput(f"param_grid cannot be used: {first_line(error)}") from error
        if not grid:
            raise BadInput(
                "param_grid is empty: expected settings to choose among, by name, or None for the "
                "usual"
            )
        each = [self._candidate(estimator, settings) for settings in grid]
        if any(
            variant._options().get("rows_per_person") is not None for variant in (estimator, *each)
        ):
            raise BadInput(
                "options has rows_per_person, and a search takes no groups: fit the estimator by "
                "itself, with "
                "fit(X, y, groups=ids). Or leave it out, and declare the most rows of a person "
                "with "
                'options={"group_size": K}'
            )
        data, reasons = each[0]._declared(X, y)
        runs = {}
        for number, (variant, settings) in enumerate(zip(each, grid, strict=True)):
            if number:
                variant._declared(X, y)
            usual = (
                _AS_THEY_ARE | {"discrete": self._discrete}
                if isinstance(variant, _BY_DESCENT)
                else None
            )
            plan, _, train = variant._planned(data, usual=usual)
            runs[_name(number, settings)] = (replace(plan, budget=None), train)
        candidates = tuple(Candidate(name, plan) for name, (plan, _) in runs.items())
        judged = "rmse" if isinstance(estimator, PrivateRegressor) else "accuracy"
        metric = judged if self.metric is None else self.metric
        if self.way == "blocks":
            whole: Blocks | RandomStopping = Blocks(candidates, retrain=True, metric=metric)
        else:
            whole = RandomStopping(candidates, mean=float(len(candidates)), metric=metric)
        whole = whole.calibrate(epsilon=self.epsilon, delta=self.delta)

        def train_one(
            candidate: Candidate, rows: Dataset, ledger: Ledger, streams: Streams
        ) -> Result:
            result: Result = runs[candidate.name][1](candidate.plan, rows, ledger, streams)
            return result

        result = self._release(
            whole,
            reasons,
            lambda ledger, streams: tune(whole, train_one, data, ledger=ledger, streams=streams),
        )
        chosen = chosen_candidate(candidates, result.facts).name
        self.best_index_ = list(runs).index(chosen)
        self.best_params_ = grid[self.best_index_]
        best = each[self.best_index_]
        best._keep(result.model)
        best._fits, best._held, best.privacy_ = self._shared(), self._held, self.privacy_
        self.best_estimator_ = best
        for name in ("classes_", "n_features_in_", "feature_names_in_"):
            if hasattr(best, name):
                setattr(self, name, getattr(best, name))
        return self

    def _candidate(self, estimator: NetworkEstimator, settings: Mapping[str, Any]) -> Any:
        """An estimator with the settings of a candidate, and the target of the search."""
        fixed = sorted({*settings} & _FIXED)
        if fixed:
            raise BadInput(
                f"param_grid has {fixed[0]}, which is the same for all candidates: leave it out"
            )
        common = {"epsilon": self.epsilon, "delta": self.delta, "preprocessing": self.preprocessing}
        candidate = clone(estimator).set_params(**copy.deepcopy(dict(settings)), **common)
        if self.param_grid is None:  # the usual options come beside the estimator's own
            candidate.set_params(options={**estimator._options(), **candidate._options()})
        return candidate

    def predict(self, X: Any) -> Array:
        """What the chosen estimator predicts for each row."""
        return self._best().predict(X)  # type: ignore[no-any-return]

    @available_if(_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes, shape (rows, classes)."""
        return self._best().predict_proba(X)  # type: ignore[no-any-return]

    @available_if(_has("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Array:
        """Scores, as of the chosen estimator."""
        return self._best().decision_function(X)  # type: ignore[no-any-return]

    def score(self, X: Any, y: Any) -> float:
        """Accuracy, or R2 of numbers, on test rows: exact, so these rows are not protected."""
        return float(self._best().score(X, y))

    def _best(self) -> Any:
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn's checks know of it: what they know of the estimator."""
        tags = (DPClassifier() if self.estimator is None else self.estimator).__sklearn_tags__()
        tags.input_tags.sparse = self._takes_sparse
        return tags


_BY_DESCENT = (DPClassifier, DPRegressor)


def _names() -> list[str]:
    """The estimators that can be searched."""
    return [kind.__name__ for kind in _SEARCHED]


def _name(number: int, settings: Mapping[str, Any]) -> str:
    """A candidate's name: its place and its settings, as far as they can be printed."""
    text = "".join(
        letter for letter in f"{number}: {dict(settings)}" if letter.isprintable() and letter != "|"
    )
    return text[:_LONGEST]
