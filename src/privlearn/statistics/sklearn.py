"""Feature selection and the Fisher classifier for scikit-learn: they stand in a `Pipeline`, and share a ledger.

Every `fit` is a release of its own, charged to the ledger that the estimator was given. It must be given one: with a fresh
ledger in every fit, a grid search would spend its budget as often as it fits and book it nowhere. `clone`, `Pipeline` and grid
searches hand on the ledger itself, never a copy; in another process (`n_jobs`) a ledger in memory refuses, and one in a file
(`Ledger.open`) is charged there. Only a ledger in a file can be pickled, and fitted estimators with it.

An estimator does not know how many fits a search will make. `budget_for` says what they cost: a ledger of that budget allows
all of them, and not for one more. On a smaller one the first fits are charged and the others refused; scikit-learn turns
refusals into scores of NaN unless `error_score="raise"` is set, and what was spent stays spent.

Not covered: scores on held-out private rows, and whatever else looks at private rows. A scaler that is fitted to them, in
front, is a release that is not charged: only transforms that are fixed beforehand may stand there.
"""

from __future__ import annotations

from typing import Any, TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from privlearn._checks import count
from privlearn._display import shortened
from privlearn.accounting.budget import Budget
from privlearn.accounting.events import Repeated, compose
from privlearn.accounting.filters import least_budget
from privlearn.accounting.guarantee import require_same
from privlearn.accounting.ledger import Ledger
from privlearn.data.dataset import Dataset, require_finite
from privlearn.errors import BadInput
from privlearn.statistics.classifiers import fisher
from privlearn.statistics.features import select_features
from privlearn.statistics.plan import ChoosingPlan, FisherPlan, SelectionPlan, StatisticsPlan
from privlearn.streams import Streams

_Plan = TypeVar("_Plan", bound=StatisticsPlan)


def budget_for(*plans: StatisticsPlan, fits: int = 1, delta: float | None = None) -> Budget:
    """What so many fits of a pipeline with these plans cost together: the least budget of a ledger that allows all of them.

    Fits come one after another and may depend on earlier ones, so they are counted by the ledger's filter.

    A search of c candidates by k folds fits c k times, and once more unless `refit=False`; cross-validation k times.

    Args:
        plans: settled, of each of the estimators that share the ledger.
        fits: how many.
        delta: for a budget of epsilon at this delta; None for one of rho.

    Raises:
        BadInput: plans that are none, are not settled, or protect different groups; or numbers out of range.
        AdjacencyMismatch: different kinds of neighbour.

    >>> plan = FisherPlan(2, 30, 5, row_norm=2.7).calibrate(rho=0.02)
    >>> print(budget_for(plan, fits=16), "or", budget_for(plan, fits=16, delta=1e-5))
    rho 0.32 or epsilon 3.38693 at delta 1e-05
    """
    for plan in plans:
        _require_plan(plan)
        require_same(plans[0].neighbours, plan.neighbours, "a plan")
    if not plans or len({plan.group_size for plan in plans}) > 1:
        raise BadInput(f"there are {len(plans)} plans: expected one or more, all of one group_size")
    event = Repeated(compose(plan.event() for plan in plans), count("fits", fits))
    group = plans[0].group_size
    any_limit = Budget(rho=1.0, group_size=group) if delta is None else Budget(1.0, delta, group_size=group)
    spent = any_limit.spent(event, plans[0].neighbours)
    if delta is None:
        return Budget(rho=spent, group_size=group)
    fixed = Budget(spent, delta, group_size=group)
    if fits == 1 and len(plans) == 1:
        return fixed
    return least_budget(fixed, plans[0].event(), event, plans[0].neighbours)


@final
class DPFeatureSelector(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Keeps the features that `privlearn.select_features` chooses, in the order that they had.

    Args:
        plan: a settled `SelectionPlan`.
        ledger: what each `fit` is charged to; must be given.
        streams: the random streams; by default new ones in each fit.
        classes: the labels that there may be, public, where they are not 0 .. classes - 1: texts, for example.
        then: the plan of the estimator that comes after it on the same ledger: where there is no room for both, nothing is
            charged. Without it a fit of a pipeline can end half charged.

    Attributes:
        indices_: the kept features' places, the best first.
        scores_: what each of them was ranked by, as released; None where Gumbel noise chose, which releases no scores.
        n_features_in_: how many there were.
        feature_names_in_: what they are called, where rows come in a table with names.
    """

    def __init__(
        self,
        plan: SelectionPlan | None = None,
        ledger: Ledger | None = None,
        streams: Streams | None = None,
        classes: Any = None,
        then: FisherPlan | None = None,
    ) -> None:
        self.plan, self.ledger, self.streams, self.classes, self.then = plan, ledger, streams, classes, then

    def fit(self, X: Any, y: Any) -> DPFeatureSelector:
        """Choose features; guarantee and errors as for `select_features`."""
        plan, ledger = _given(self.plan, self.ledger)
        if self.then is not None:
            ledger.require_room(plan.event(), plan.neighbours, plan.unit, then=_require_plan(self.then).event())
        _, labels = _numbered(y, self.classes, plan)
        selected = select_features(plan, _dataset(X, labels), ledger=ledger, streams=self.streams)
        self.indices_ = selected.indices.numpy()
        self.scores_ = None if selected.scores is None else selected.scores.numpy()
        _remember(self, X, plan)
        return self

    def transform(self, X: Any) -> NDArray[Any]:
        """The kept features of `X`, shape (rows, keep)."""
        check_is_fitted(self, "indices_")
        rows = np.asarray(X)
        if rows.ndim != 2 or rows.shape[1] != self.n_features_in_:
            raise BadInput(f"rows have the shape {rows.shape[1:]}: expected {self.n_features_in_} features")
        return np.asarray(rows[:, self.get_support(indices=True)])

    def get_support(self, indices: bool = False) -> NDArray[Any]:
        """Whether each feature is kept, shape (features,); with `indices` the places of those that are, ascending."""
        check_is_fitted(self, "indices_")
        if indices:
            return np.sort(self.indices_)
        return np.isin(np.arange(self.n_features_in_), self.indices_)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """The kept features' names: those given, those of the table that it was fitted to, or `x0`, `x1`, ..."""
        check_is_fitted(self, "indices_")
        if input_features is None:
            usual = [f"x{place}" for place in range(self.n_features_in_)]
            input_features = getattr(self, "feature_names_in_", usual)
        return np.array([input_features[place] for place in self.get_support(indices=True)], dtype=object)


@final
class DPFisherClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Fisher's classifier from released statistics, as `privlearn.fisher`.

    Args:
        plan: a settled `FisherPlan`.
        ledger: what each `fit` is charged to; must be given.
        streams: the random streams; by default new ones in each fit.
        classes: the labels that there may be, public, where they are not 0 .. classes - 1: texts, for example.

    Attributes:
        result_: what `privlearn.publish` takes; its model's outputs are in the order of `classes_`.
        classes_: the declared classes, sorted.
        n_features_in_: features of a row.
        feature_names_in_: what they are called, where rows come in a table with names.
    """

    def __init__(
        self,
        plan: FisherPlan | None = None,
        ledger: Ledger | None = None,
        streams: Streams | None = None,
        classes: Any = None,
    ) -> None:
        self.plan, self.ledger, self.streams, self.classes = plan, ledger, streams, classes

    def fit(self, X: Any, y: Any) -> DPFisherClassifier:
        """Release statistics and make the classifier; guarantee and errors as for `privlearn.fisher`."""
        plan, ledger = _given(self.plan, self.ledger)
        declared, labels = _numbered(y, self.classes, plan)
        self.result_ = fisher(plan, _dataset(X, labels), ledger=ledger, streams=self.streams)
        self.classes_ = declared
        _remember(self, X, plan)
        return self

    def decision_function(self, X: Any) -> NDArray[Any]:
        """The score of each class, shape (rows, classes); of two classes, that of the second less the first's, (rows,)."""
        scores = self._scores(X).numpy()
        return np.asarray(scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores)

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Probabilities of the classes, as if features were independent within each."""
        return np.asarray(self._scores(X).softmax(1).numpy())

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely class of each row."""
        return np.asarray(self.classes_[self._scores(X).argmax(1).numpy()])

    def _scores(self, X: Any) -> torch.Tensor:
        check_is_fitted(self, "result_")
        rows = torch.from_numpy(np.ascontiguousarray(X, dtype=np.float32))
        if rows.dim() != 2 or rows.shape[1] != self.n_features_in_:
            raise BadInput(f"rows have the shape {tuple(rows.shape[1:])}: expected {self.n_features_in_} features")
        require_finite(
            "the rows to predict for", "X", rows.numpy()
        )  # fit takes such rows as none; here they have no class
        with torch.no_grad():
            scores: torch.Tensor = self.result_.model(rows)
        return scores


def _require_plan(plan: _Plan | None) -> _Plan:
    if not isinstance(plan, StatisticsPlan):
        raise BadInput(
            f"plan is {shortened(repr(plan), 60)}: expected a settled pv.statistics.FisherPlan(...).calibrate(...), or a "
            "SelectionPlan"
        )
    return plan


def _given(plan: _Plan | None, ledger: Ledger | None) -> tuple[_Plan, Ledger]:
    """The plan and the ledger, which have no defaults.

    Raises:
        BadInput: one of them is missing.
    """
    plan = _require_plan(plan)
    if not isinstance(ledger, Ledger):
        raise BadInput(
            f"ledger is {shortened(repr(ledger), 60)}: expected one that all fits are charged to, for example "
            "pv.Ledger(plan.budget). With one of its own in each fit, a grid search would spend the budget many times over"
        )
    return plan, ledger


def _numbered(y: Any, classes: Any, plan: ChoosingPlan) -> tuple[NDArray[Any], NDArray[Any]]:
    """The declared classes, sorted as scikit-learn has them, and labels as their numbers.

    Raises:
        BadInput: another number of classes than the plan's, or labels outside them: for the data's curator.
    """
    labels = np.asarray(y)
    if classes is None:
        if labels.dtype.kind not in "iub":
            raise BadInput(
                f"the labels are {labels.dtype} values: declare the {plan.classes} that there may be, classes=[...] (they may "
                "not be read off private rows), or number them from 0"
            )
        return np.arange(plan.classes), labels
    try:
        declared = np.unique(np.asarray(classes))
        numbers = {label: number for number, label in enumerate(declared.tolist())}
        numbered = [numbers.get(label, -1) for label in labels.tolist()] if labels.ndim == 1 else [-1]
    except TypeError as error:
        raise BadInput(
            f"classes or labels are of a kind that can't be compared: {error}. Expected texts or numbers"
        ) from error
    if len(declared) != plan.classes or np.ndim(classes) != 1:
        raise BadInput(
            f"classes has {len(declared)} different labels, and the plan {plan.classes} classes: give both the same"
        )
    if -1 in numbered:
        raise BadInput(
            f"there are labels (of shape {labels.shape}) outside the declared classes: expected {declared.tolist()}"
        )
    return declared, np.array(numbered, dtype=np.int64)


def _dataset(x: Any, labels: NDArray[Any]) -> Dataset:
    """Rows with their names, if they have some."""
    rows = np.asarray(x)
    if len(rows) != len(labels):
        raise BadInput(f"there are {len(rows)} rows and {len(labels)} labels: expected one label for each row")
    return Dataset(rows, labels, feature_names=_names(x))


def _names(x: Any) -> tuple[str, ...]:
    """The names of a table's columns, where all are texts; else none."""
    columns = list(getattr(x, "columns", ()))
    return tuple(columns) if all(isinstance(column, str) for column in columns) else ()


def _remember(estimator: Any, x: Any, plan: ChoosingPlan) -> None:
    """What scikit-learn wants to know of the rows that an estimator was fitted to."""
    estimator.n_features_in_ = plan.features
    vars(estimator).pop("feature_names_in_", None)  # of an earlier fit
    if names := _names(x):
        estimator.feature_names_in_ = np.array(names, dtype=object)
