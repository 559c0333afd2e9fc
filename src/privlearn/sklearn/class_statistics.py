"""Feature selection and Fisher's classifier from released class statistics, as estimators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, final

import numpy as np
from sklearn.feature_selection import SelectorMixin
from sklearn.utils.validation import check_is_fitted

from privlearn.core.accounting.ledger import Ledger
from privlearn.core.plan import AbstractPlan
from privlearn.data.dataset import Dataset
from privlearn.methods.statistics.classifiers import fisher
from privlearn.methods.statistics.features import select_features
from privlearn.methods.statistics.plan import ChoosingPlan, FisherPlan, SelectionPlan
from privlearn.sklearn.estimator import ADJACENCY, Array, PrivateClassifier, PrivateEstimator, Train
from privlearn.sklearn.spending import require_plan
from privlearn.training.rules import SCALED_NORM

_Plan = TypeVar("_Plan", bound=ChoosingPlan)


@final
class DPFeatureSelector(SelectorMixin, PrivateEstimator):  # type: ignore[misc]
    """Keeps the features that `pv.statistics.select_features` chooses, in the order that
    they had.

    Guarantee: of each fit as that of `select_features`; of several, see `privacy_`.

    Args:
        epsilon, delta: the target of one fit; not looked at with a plan.
        keep: how many features; None: half of them.
        classes: the labels that there may be, public. None: those of the plan, 0 .. classes - 1;
            without one they are read off the labels, and nothing is claimed.
        bounds: (low, high) of the numbers in rows, public, or arrays of one for each feature. None:
            with a plan rows are taken as they are, and clipped to its bounds; without one each
            number x becomes x / (1 + |x|).
        plan: a settled `SelectionPlan`, in place of epsilon, delta and keep.
        ledger: what fits are charged to; None: one that the estimator shares with its clones,
            without a limit.
        random_state: None for noise from the operating system, or `pv.Streams`. With a seed nothing
            is claimed.
        preprocessing: "public", or None: as of every estimator here (`PrivateEstimator`).

    Attributes:
        indices_: the kept features' places, the best first.
        scores_: what each of them was ranked by, as released; None where Gumbel noise chose, which
            releases no scores.
        result_: what was released.
        privacy_, n_features_in_, feature_names_in_: as of every estimator here.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        keep: int | None = None,
        classes: Any = None,
        bounds: Any = None,
        plan: SelectionPlan | None = None,
        ledger: Ledger | None = None,
        random_state: Any = None,
        preprocessing: str | None = None,
    ) -> None:
        self.epsilon, self.delta, self.keep, self.classes, self.bounds = (
            epsilon,
            delta,
            keep,
            classes,
            bounds,
        )
        self.plan, self.ledger, self.random_state = plan, ledger, random_state
        self.preprocessing = preprocessing

    def fit(self, X: Any, y: Any, then: AbstractPlan | None = None) -> DPFeatureSelector:
        """Choose features, by rows of numbers, shape (rows, features), and their labels, (rows,).

        Args:
            then: the plan of the estimator that comes next on the same ledger: where there is no
                room for both, nothing is charged. In a pipeline
                `fit(X, y, dpfeatureselector__then=plan)`.

        Raises:
            BudgetExceeded: the ledger has no room; before anything is drawn.
            BadInput: as `select_features`; before anything is spent.
        """
        X, labels, reasons = self._labelled(X, y)
        keep = -(-self.n_features_in_ // 2) if self.keep is None else self.keep
        plan = _plan_of(self, SelectionPlan, keep)
        if then is not None and self.ledger is not None:
            require_plan(then)
            self.ledger.require_room(plan.event(), plan.neighbours, plan.unit, then=then.event())
        data = self._dataset(X, labels)
        selected = self._release(
            plan,
            reasons,
            lambda ledger, streams: select_features(plan, data, ledger=ledger, streams=streams),
        )
        self.indices_ = selected.indices.numpy()
        self.scores_ = None if selected.scores is None else selected.scores.numpy()
        return self

    def transform(self, X: Any) -> Array:
        """The kept features of `X`, shape (rows, keep)."""
        check_is_fitted(self, "indices_")
        return np.asarray(self._validated(X, reset=False)[:, self.get_support(indices=True)])

    def _get_support_mask(self) -> Array:
        check_is_fitted(self, "indices_")
        return np.isin(np.arange(self.n_features_in_), self.indices_)

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn's checks know of it: it needs labels."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


@final
class DPFisherClassifier(PrivateClassifier):
    """Fisher's classifier from released statistics, as `pv.statistics.fisher`.

    Guarantee: of each fit as that of `fisher`; of several, see `privacy_`.

    Args:
        options: other fields of `pv.statistics.FisherPlan`, where no plan is given:
            `{"keep": 10}`.
        plan: a settled `FisherPlan`, in place of epsilon, delta and options.
        epsilon, delta, classes, bounds, ledger, random_state, preprocessing: as of
            `DPFeatureSelector`.

    Attributes:
        classes_: the declared classes, sorted.
        module_: the classifier, behind what rows come through.
        result_: what `privlearn.publish` takes; its model's outputs are in the order of `classes_`.
        privacy_, n_features_in_, feature_names_in_: as of every estimator here.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        classes: Any = None,
        bounds: Any = None,
        options: Mapping[str, Any] | None = None,
        plan: FisherPlan | None = None,
        ledger: Ledger | None = None,
        random_state: Any = None,
        preprocessing: str | None = None,
    ) -> None:
        self.epsilon, self.delta, self.classes, self.bounds, self.options = (
            epsilon,
            delta,
            classes,
            bounds,
            options,
        )
        self.plan, self.ledger, self.random_state = plan, ledger, random_state
        self.preprocessing = preprocessing

    def fit(self, X: Any, y: Any) -> DPFisherClassifier:
        """Release statistics of rows, shape (rows, features), and their labels, (rows,), and make
        the classifier.

        Raises:
            BudgetExceeded: the ledger has no room; before anything is drawn.
            BadInput: as `fisher`; before anything is spent.
        """
        self._learn(X, y)
        return self

    def _planned(
        self, data: Dataset, weights: Array | None = None, usual: Mapping[str, Any] | None = None
    ) -> tuple[AbstractPlan, Dataset, Train]:
        options = self._options(FisherPlan)
        plan = _plan_of(self, FisherPlan, options.pop("keep", self.n_features_in_), **options)
        return (
            plan,
            data,
            lambda plan, rows, ledger, streams: fisher(plan, rows, ledger=ledger, streams=streams),
        )


def _plan_of(estimator: Any, kind: type[_Plan], keep: int, **options: Any) -> _Plan:
    """The plan that was given, or one by the declared bounds: numbers within [-1, 1], behind
    them.
    """
    if estimator.plan is not None:
        require_plan(estimator.plan, kind)
        return estimator.plan  # type: ignore[no-any-return]
    features = estimator.n_features_in_
    fields = {
        "row_norm": SCALED_NORM * features**0.5,
        "coordinate_bound": 1.0,
        "adjacency": ADJACENCY,
    } | options
    plan = kind(len(estimator.classes_), features, keep, **fields)
    return plan.calibrate(epsilon=estimator.epsilon, delta=estimator.delta)
