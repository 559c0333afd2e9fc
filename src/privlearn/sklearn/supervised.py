"""Classifiers and regressors: DP-SGD with the settings of `privlearn.train`, and boosting over
histograms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, final

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import column_or_1d

from privlearn._checks import one_of
from privlearn._display import shortened
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.plan import AbstractPlan, Plan
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.data.target_forms import target_numbers
from privlearn.errors import BadInput
from privlearn.methods import boosting
from privlearn.methods.boosting.plan import BoostingPlan
from privlearn.methods.statistics.regression import RidgePlan, ridge
from privlearn.runs.result import Result
from privlearn.sklearn.estimator import (
    ADJACENCY,
    NO_TARGET_BOUNDS,
    Array,
    NetworkEstimator,
    PrivateClassifier,
    Train,
    pair,
)
from privlearn.training.train import fit as fit_by_descent
from privlearn.training.train import require_task, settle_for

#: What is learned by which loss, as scikit-learn calls them.
_TASKS = {"squared_error": "regression", "poisson": "counts"}
#: The norm that rows of numbers in [-1, 1] are clipped to for sums of products, over the root of
#: their length: few rows are longer, and those that are bias the slopes.
_ROW_NORM = 0.7


class DPClassifier(PrivateClassifier):
    """A classifier trained by DP-SGD with the settings that `privlearn.train` chooses.

    Guarantee: of each fit as that of `privlearn.train`; of several, see `privacy_`.

    Args:
        epsilon: the target of one fit.
        delta: its other half; below one over the number of examples.
        classes: the labels that there may be, public. None: they are read off the labels, and
            nothing is claimed.
        bounds: (low, high) of the numbers in rows, public, or arrays of one for each feature. None:
            each number x becomes x / (1 + |x|), a fixed map into (-1, 1).
        model: `linear`, `mlp:100`, or `package.module:function`.
        options: anything else that `privlearn.train` takes, by name:
            `{"epochs": 30, "examples": 1000}`.
        ledger: what fits are charged to; None: one that the estimator shares with its clones,
            without a limit.
        random_state: None for noise from the operating system, or `pv.Streams`. With a seed nothing
            is claimed.
        preprocessing: "public", or None: as of every estimator here (`PrivateEstimator`).
        class_weight: what an example of each class weighs in the loss, {label: weight}, 1 where a
            label is left out: public numbers, not counted in the rows. `predict_proba` is then of a
            population in which classes come as often as they weigh, as in scikit-learn.

    Attributes:
        classes_: the classes, sorted.
        module_: the network, behind the transforms in front of it.
        result_: what `privlearn.publish` takes.
        privacy_, n_features_in_, feature_names_in_: as of every estimator here.
    """

    _takes_sparse: ClassVar[bool] = True

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        classes: Any = None,
        bounds: Any = None,
        model: str = "linear",
        options: Mapping[str, Any] | None = None,
        ledger: Ledger | None = None,
        random_state: Any = None,
        class_weight: Any = None,
        preprocessing: str | None = None,
    ) -> None:
        self.epsilon, self.delta, self.classes, self.bounds = epsilon, delta, classes, bounds
        self.model, self.options, self.ledger, self.random_state = (
            model,
            options,
            ledger,
            random_state,
        )
        self.class_weight = class_weight
        self.preprocessing = preprocessing

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> DPClassifier:
        """Train on rows of numbers, shape (rows, features), and their labels, (rows,).

        Args:
            sample_weight: of each row, from 0 to 1, private like the rows; larger ones count as 1,
                so divide by a public maximum. The loss is multiplied by it before the gradient is
                clipped. A row's weight may not follow from other rows. With weights no temperature
                is fitted, and the clipping norm is 1 where none is given.
            groups: whose row each is, whole numbers or texts, private. With
                `options={"rows_per_person": K}` a person is then one example, and the guarantee is
                for all rows of one.

        Raises:
            BudgetExceeded: the ledger has no room; before anything is drawn.
            BadInput: what `privlearn.train` refuses; before anything is spent.
        """
        self._learn(X, y, sample_weight, groups)
        return self

    def _planned(
        self, data: Dataset, weights: Array | None = None, usual: Mapping[str, Any] | None = None
    ) -> tuple[AbstractPlan, Dataset, Train]:
        chosen = {
            "discrete": self._discrete,
            **(usual or {}),
            **self._choices(),
            **self._class_weights(),
        }
        chosen |= self._options()
        return _by_descent(
            data, weights, epsilon=self.epsilon, delta=self.delta, model=self._spec, **chosen
        )

    @property
    def _spec(self) -> str:
        return self.model

    def _choices(self) -> dict[str, Any]:
        """Settings that follow from the kind of estimator."""
        return {}

    def _class_weights(self) -> dict[str, Any]:
        """The weights in the order of the classes, as `train` takes them.

        Raises:
            BadInput: no mapping from labels to numbers; shares of classes would be counted in
                private rows.
        """
        weights, labels = self.class_weight, self.classes_.tolist()
        if weights is None:
            return {}
        if not isinstance(weights, Mapping) or not {*weights} <= {*labels}:
            raise BadInput(
                f"class_weight is {shortened(repr(weights), 60)}: expected a public number for "
                "each label, {label: weight}. 'balanced' would count private rows: give one over "
                "the publicly known share of each"
            )
        return {"class_weights": tuple(weights.get(label, 1.0) for label in labels)}


@final
class DPLogisticRegression(DPClassifier):
    """Logistic regression by DP-SGD: a linear model of rows as they are. Arguments as of
    `DPClassifier`.

    Attributes:
        coef_: what a number in a row adds to the scores, shape (classes, features), or (1,
            features) for two classes. Where no bounds are declared, of numbers x / (1 + |x|).
        intercept_: the scores of a row of zeros.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        classes: Any = None,
        bounds: Any = None,
        options: Mapping[str, Any] | None = None,
        ledger: Ledger | None = None,
        random_state: Any = None,
        class_weight: Any = None,
        preprocessing: str | None = None,
    ) -> None:
        self.epsilon, self.delta, self.classes, self.bounds = epsilon, delta, classes, bounds
        self.options, self.ledger, self.random_state = options, ledger, random_state
        self.class_weight = class_weight
        self.preprocessing = preprocessing

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None
    ) -> DPLogisticRegression:
        """As `DPClassifier.fit`."""
        self._learn(X, y, sample_weight, groups)
        return self

    def _keep(self, module: Any) -> None:
        NetworkEstimator._keep(self, module)
        slopes, intercepts = self._linear(self._bounds())
        if len(self.classes_) == 2:
            slopes, intercepts = slopes[1:] - slopes[:1], intercepts[1:] - intercepts[:1]
        self.coef_, self.intercept_ = slopes, intercepts

    @property
    def _spec(self) -> str:
        return "linear"

    def _choices(self) -> dict[str, Any]:
        return {"features": "raw"}


class PrivateRegressor(RegressorMixin, NetworkEstimator):  # type: ignore[misc]
    """A regressor; targets have declared bounds, and those beyond count as these."""

    target_bounds: Any

    def _targets(self, X: Any, y: Any) -> tuple[Array, Array, tuple[float, float], tuple[str, ...]]:
        """Rows, targets, their bounds, and what was read off the private rows."""
        X, y = self._validated(X, y)
        y = target_numbers(y, "the targets") if np.ndim(y) > 1 else column_or_1d(y)
        y = target_numbers(y, "the targets")
        if self.target_bounds is not None:
            return X, y.astype(np.float64), pair("target_bounds", self.target_bounds), ()
        low, high = float(y.min()), float(y.max())
        return (
            X,
            y.astype(np.float64),
            (low, high if high > low else low + 1.0),
            (NO_TARGET_BOUNDS,),
        )

    def _declared(self, X: Any, y: Any) -> tuple[Dataset, tuple[str, ...]]:
        X, y, self._range, reasons = self._targets(X, y)
        return replace(self._dataset(X, y), target_bounds=self._range), reasons

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn's checks know of it: scores are as poor as noise makes them."""
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags


@final
class DPRegressor(PrivateRegressor):
    """A regressor trained by DP-SGD, on the squared error or the Poisson loss, with the settings of
    `privlearn.train`.

    Guarantee: of each fit as that of `privlearn.dpsgd`; of several, see `privacy_`.

    Args:
        target_bounds: (low, high) of the targets, public. None: they are read off the targets, and
            nothing is claimed.
        model: as of `DPClassifier`; it ends in a linear layer.
        epsilon, delta, bounds, options, ledger, random_state, preprocessing: as of `DPClassifier`.
        loss: `squared_error`, or `poisson` for counts, whole numbers from 0 on, whose expectations
            are predicted.

    Attributes:
        module_: the network; its output is in the units of the target.
        privacy_, result_, n_features_in_, feature_names_in_: as of `DPClassifier`.
    """

    _takes_sparse: ClassVar[bool] = True

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        target_bounds: Any = None,
        bounds: Any = None,
        model: str = "linear",
        options: Mapping[str, Any] | None = None,
        ledger: Ledger | None = None,
        random_state: Any = None,
        loss: str = "squared_error",
        preprocessing: str | None = None,
    ) -> None:
        self.epsilon, self.delta, self.target_bounds, self.bounds = (
            epsilon,
            delta,
            target_bounds,
            bounds,
        )
        self.model, self.options, self.ledger, self.random_state = (
            model,
            options,
            ledger,
            random_state,
        )
        self.loss = loss
        self.preprocessing = preprocessing

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> DPRegressor:
        """Train on rows of numbers, shape (rows, features), and targets, (rows,). Errors as of
        `DPClassifier.fit`.

        Args:
            sample_weight, groups: as for `DPClassifier`.
        """
        self._learn(X, y, sample_weight, groups)
        return self

    def _planned(
        self, data: Dataset, weights: Array | None = None, usual: Mapping[str, Any] | None = None
    ) -> tuple[AbstractPlan, Dataset, Train]:
        task = _TASKS[one_of("loss", self.loss, _TASKS)]
        require_task(task, data)
        chosen = {
            "discrete": self._discrete,
            **(usual or {}),
            **self._options(features="raw", task=task),
        }
        return _by_descent(
            data, weights, epsilon=self.epsilon, delta=self.delta, model=self.model, **chosen
        )

    def predict(self, X: Any) -> Array:
        """Targets within their bounds, shape (rows,)."""
        return np.asarray(self._outputs(X)[:, 0].numpy()).clip(*self._range)


@final
class DPRidge(PrivateRegressor):
    """Ridge regression from one release of noisy sums of products, with a ridge that follows the
    noise.

    Guarantee: of each fit as that of `pv.statistics.ridge`; of several, see `privacy_`.

    Args:
        target_bounds: as of `DPRegressor`.
        options: other fields of `pv.statistics.RidgePlan`: `{"row_norm": 2.0}`, of rows
            scaled by their bounds.
        epsilon, delta, bounds, ledger, random_state, preprocessing: as of `DPClassifier`.

    Attributes:
        coef_: what a number in a row adds, shape (features,). Where no bounds are declared, of
            numbers x / (1 + |x|).
        intercept_: the prediction of a row of zeros.
        module_: the model.
        privacy_, result_, n_features_in_, feature_names_in_: as of `DPClassifier`.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        target_bounds: Any = None,
        bounds: Any = None,
        options: Mapping[str, Any] | None = None,
        ledger: Ledger | None = None,
        random_state: Any = None,
        preprocessing: str | None = None,
    ) -> None:
        self.epsilon, self.delta, self.target_bounds, self.bounds = (
            epsilon,
            delta,
            target_bounds,
            bounds,
        )
        self.options, self.ledger, self.random_state = options, ledger, random_state
        self.preprocessing = preprocessing

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> DPRidge:
        """Release sums of rows, shape (rows, features), and targets, (rows,). Errors as of
        `DPClassifier.fit`.

        Args:
            sample_weight: of each row, from 0 to 1, private like the rows; larger ones count as 1.
                What a clipped row adds is multiplied by it. A row's weight may not follow from
                other rows.
        """
        self._learn(X, y, sample_weight)
        return self

    def _planned(
        self, data: Dataset, weights: Array | None = None, usual: Mapping[str, Any] | None = None
    ) -> tuple[AbstractPlan, Dataset, Train]:
        features, (low, high) = self.n_features_in_, self._range
        fields = self._options(RidgePlan, row_norm=_ROW_NORM * features**0.5, adjacency=ADJACENCY)
        plan = RidgePlan(features, low=low, high=high, **fields).calibrate(
            epsilon=self.epsilon, delta=self.delta
        )

        def train(plan: RidgePlan, rows: Dataset, ledger: Ledger, streams: Streams) -> Result:
            return ridge(plan, rows, weights=weights, ledger=ledger, streams=streams)

        return plan, data, train

    def _keep(self, module: Any) -> None:
        NetworkEstimator._keep(self, module)
        slopes, intercepts = self._linear(self._bounds())
        self.coef_, self.intercept_ = slopes[0], float(intercepts[0])

    def predict(self, X: Any) -> Array:
        """Targets within their bounds, shape (rows,)."""
        return np.asarray(self._outputs(X)[:, 0].numpy()).clip(*self._range)


@final
class DPBoostingClassifier(PrivateClassifier):
    """Boosting over noisy histograms, with public splits: an additive model, with random trees if
    asked for.

    Guarantee: of each fit as that of `pv.boosting.boost`; of several, see `privacy_`.

    Args:
        options: other fields of `pv.boosting.BoostingPlan`: `{"trees": 100, "bins": 8}`.
        epsilon, delta, classes, bounds, ledger, random_state, preprocessing: as of `DPClassifier`.

    Attributes:
        module_: the model.
        classes_, privacy_, result_, n_features_in_, feature_names_in_: as of `DPClassifier`.
    """

    _takes_sparse: ClassVar[bool] = True

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        classes: Any = None,
        bounds: Any = None,
        options: Mapping[str, Any] | None = None,
        ledger: Ledger | None = None,
        random_state: Any = None,
        preprocessing: str | None = None,
    ) -> None:
        self.epsilon, self.delta, self.classes, self.bounds = epsilon, delta, classes, bounds
        self.options, self.ledger, self.random_state = options, ledger, random_state
        self.preprocessing = preprocessing

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> DPBoostingClassifier:
        """Boost on rows of numbers, shape (rows, features), and their labels, (rows,). Errors as of
        `DPClassifier.fit`.

        Args:
            sample_weight: of each row, from 0 to 1, private like the rows; larger ones count as 1.
                A row's weight may not follow from other rows.
        """
        self._learn(X, y, sample_weight)
        return self

    def _planned(
        self, data: Dataset, weights: Array | None = None, usual: Mapping[str, Any] | None = None
    ) -> tuple[AbstractPlan, Dataset, Train]:
        return _by_boosting(self, data, None, weights)


@final
class DPBoostingRegressor(PrivateRegressor):
    """As `DPBoostingClassifier`, for targets with declared bounds.

    Args:
        target_bounds: as of `DPRegressor`.
        epsilon, delta, bounds, options, ledger, random_state, preprocessing: as of
            `DPBoostingClassifier`.

    Attributes:
        module_: the model.
        privacy_, result_, n_features_in_, feature_names_in_: as of `DPClassifier`.
    """

    _takes_sparse: ClassVar[bool] = True

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        target_bounds: Any = None,
        bounds: Any = None,
        options: Mapping[str, Any] | None = None,
        ledger: Ledger | None = None,
        random_state: Any = None,
        preprocessing: str | None = None,
    ) -> None:
        self.epsilon, self.delta, self.target_bounds, self.bounds = (
            epsilon,
            delta,
            target_bounds,
            bounds,
        )
        self.options, self.ledger, self.random_state = options, ledger, random_state
        self.preprocessing = preprocessing

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> DPBoostingRegressor:
        """Boost on rows of numbers, shape (rows, features), and targets, (rows,). Errors as of
        `DPClassifier.fit`.

        Args:
            sample_weight: as for `DPBoostingClassifier`.
        """
        self._learn(X, y, sample_weight)
        return self

    def _planned(
        self, data: Dataset, weights: Array | None = None, usual: Mapping[str, Any] | None = None
    ) -> tuple[AbstractPlan, Dataset, Train]:
        return _by_boosting(self, data, boosting.Values(*self._range), weights)

    def predict(self, X: Any) -> Array:
        """Targets within their bounds, shape (rows,)."""
        return np.asarray(self._outputs(X)[:, 0].numpy())


def _by_descent(
    data: Dataset, weights: Array | None, **choices: Any
) -> tuple[AbstractPlan, Dataset, Train]:
    """A run of DP-SGD with these choices: its plan, the rows, and what carries it out."""
    # gradients that are all clipped short would be alike, whatever they weigh
    if weights is not None:
        choices = {"temperature": 0.0, "clip_norm": 1.0} | choices
    settled, data = settle_for(data, **choices)

    def train(plan: Plan, rows: Dataset, ledger: Ledger, streams: Streams) -> Result:
        facts = replace(settled.facts, examples=plan.examples or settled.facts.examples)
        weighted_rows = rows if weights is None else (rows, weights)
        return fit_by_descent(
            replace(settled, plan=plan, facts=facts), weighted_rows, streams, ledger=ledger
        )

    return settled.plan, data, train


def _by_boosting(
    estimator: Any, data: Dataset, target: Any, weights: Array | None
) -> tuple[AbstractPlan, Dataset, Train]:
    """Boosting by an estimator's options: its plan, the rows, and what carries it out."""
    plan = boosting.plan_for(data, target, **estimator._options(BoostingPlan, adjacency=ADJACENCY))
    plan = plan.calibrate(epsilon=estimator.epsilon, delta=estimator.delta)

    def train(plan: BoostingPlan, rows: Dataset, ledger: Ledger, streams: Streams) -> Result:
        plain = replace(rows, target_bounds=None)  # they are the plan's
        return boosting.boost(plan, plain, weights=weights, ledger=ledger, streams=streams)

    return plan, data, train
