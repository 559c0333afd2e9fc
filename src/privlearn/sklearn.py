"""Feature selection and the Fisher classifier for scikit-learn: they stand in a `Pipeline`, and share a ledger.

Every `fit` is a release of its own, charged to the ledger that the estimator was given. It must be given one: with a fresh
ledger in every fit, a grid search would spend its budget as often as it fits and book it nowhere. `clone`, `Pipeline` and grid
searches hand on the ledger itself, never a copy; in another process (`n_jobs`) a ledger in memory refuses, and one in a file
(`Ledger.open`) is charged there. A search over k candidates needs a budget for all its fits, and scores on held-out private
rows are not covered by any of them.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from privlearn.accounting.ledger import Ledger
from privlearn.errors import BadInput
from privlearn.methods.features.fisher import fisher
from privlearn.methods.features.plan import FeaturesPlan
from privlearn.methods.features.select import select_features
from privlearn.rng import Streams


@final
class DPFeatureSelector(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Keeps the features that `privlearn.select_features` chooses, the best first.

    Args:
        plan: a settled `FeaturesPlan` for the purpose `selection`.
        ledger: what each `fit` is charged to; must be given.
        streams: the random streams; by default new ones in each fit.

    Attributes:
        indices_: the kept features' places.
        n_features_in_: how many there were.
    """

    def __init__(
        self, plan: FeaturesPlan | None = None, ledger: Ledger | None = None, streams: Streams | None = None
    ) -> None:
        self.plan, self.ledger, self.streams = plan, ledger, streams

    def fit(self, X: Any, y: Any) -> DPFeatureSelector:
        """Choose features; guarantee and errors as for `select_features`."""
        plan, ledger = _given(self.plan, self.ledger)
        found = select_features(plan, (np.asarray(X), np.asarray(y)), ledger=ledger, streams=self.streams)
        self.indices_ = found.indices.numpy()
        self.n_features_in_ = plan.features
        return self

    def transform(self, X: Any) -> NDArray[Any]:
        """The kept features of `X`, shape (rows, keep)."""
        check_is_fitted(self, "indices_")
        rows = np.asarray(X)
        if rows.ndim != 2 or rows.shape[1] != self.n_features_in_:
            raise BadInput(f"rows have the shape {rows.shape[1:]}: expected {self.n_features_in_} features")
        return np.asarray(rows[:, self.indices_])

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """The kept features' names, `x0`, `x1`, ... unless others are given."""
        check_is_fitted(self, "indices_")
        if input_features is None:
            input_features = [f"x{place}" for place in range(self.n_features_in_)]
        return np.array([input_features[place] for place in self.indices_], dtype=object)


@final
class DPFisherClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Fisher's classifier from released statistics, as `privlearn.fisher`.

    Args:
        plan: a settled `FeaturesPlan` for the purpose `classifier`; its classes are declared, 0 .. classes - 1.
        ledger: what each `fit` is charged to; must be given.
        streams: the random streams; by default new ones in each fit.

    Attributes:
        result_: what `privlearn.publish` takes.
        classes_: the declared classes.
        n_features_in_: features of a row.
    """

    def __init__(
        self, plan: FeaturesPlan | None = None, ledger: Ledger | None = None, streams: Streams | None = None
    ) -> None:
        self.plan, self.ledger, self.streams = plan, ledger, streams

    def fit(self, X: Any, y: Any) -> DPFisherClassifier:
        """Release statistics and make the classifier; guarantee and errors as for `privlearn.fisher`."""
        plan, ledger = _given(self.plan, self.ledger)
        self.result_ = fisher(plan, (np.asarray(X), np.asarray(y)), ledger=ledger, streams=self.streams)
        self.classes_ = np.arange(plan.classes)
        self.n_features_in_ = plan.features
        return self

    def decision_function(self, X: Any) -> NDArray[Any]:
        """The score of each class, shape (rows, classes); of two classes, that of the second less the first's, (rows,)."""
        found = self._scores(X).numpy()
        return np.asarray(found[:, 1] - found[:, 0] if found.shape[1] == 2 else found)

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Probabilities of the classes, as if features were independent within each."""
        return np.asarray(self._scores(X).softmax(1).numpy())

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely class of each row."""
        return np.asarray(self._scores(X).argmax(1).numpy())

    def _scores(self, X: Any) -> torch.Tensor:
        check_is_fitted(self, "result_")
        rows = torch.from_numpy(np.ascontiguousarray(X, dtype=np.float32))
        if rows.dim() != 2 or rows.shape[1] != self.n_features_in_:
            raise BadInput(f"rows have the shape {tuple(rows.shape[1:])}: expected {self.n_features_in_} features")
        with torch.no_grad():
            found: torch.Tensor = self.result_.model(rows)
        return found


def _given(plan: FeaturesPlan | None, ledger: Ledger | None) -> tuple[FeaturesPlan, Ledger]:
    """The plan and the ledger, which have no defaults.

    Raises:
        BadInput: one of them is missing.
    """
    if not isinstance(plan, FeaturesPlan):
        raise BadInput(f"plan is {plan!r}: expected a settled pv.FeaturesPlan(...).calibrate(...)")
    if not isinstance(ledger, Ledger):
        raise BadInput(
            f"ledger is {ledger!r}: expected one that all fits are charged to, for example pv.Ledger(plan.budget). With a "
            "ledger of its own in each fit, a grid search would spend the budget many times over"
        )
    return plan, ledger
