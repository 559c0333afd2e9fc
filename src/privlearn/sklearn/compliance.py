"""What of scikit-learn's own checks of estimators does not hold, and why."""

from __future__ import annotations

from typing import Any

from privlearn.errors import BadInput
from privlearn.sklearn.estimator import PrivateEstimator
from privlearn.sklearn.table_encoder import DPTableEncoder

_ON_SPARSE = "check_sample_weight_equivalence_on_sparse_data"
_WEIGHTS = dict.fromkeys(
    ("check_sample_weight_equivalence_on_dense_data", _ON_SPARSE),
    "weights are bounded: a row of weight 2 counts as one of weight 1, and not as two rows",
)
#: By class: the check, and why it fails.
_EXPECTED: dict[str, dict[str, str]] = dict.fromkeys(
    (
        "DPBoostingClassifier",
        "DPBoostingRegressor",
        "DPClassifier",
        "DPLogisticRegression",
        "DPRegressor",
        "DPRidge",
    ),
    _WEIGHTS,
)


def expected_failed_checks(estimator: Any) -> dict[str, str]:
    """The checks of `sklearn.utils.estimator_checks` that fail for an estimator, with reasons, for
    `check_estimator`.

    At most five for each; an empty dictionary where all pass.

    Raises:
        BadInput: it is none of the estimators here.

    >>> import privlearn as pv
    >>> expected_failed_checks(pv.sklearn.DPFisherClassifier())
    {}
    """
    if not isinstance(estimator, PrivateEstimator | DPTableEncoder):
        raise BadInput(
            f"estimator is a {type(estimator).__name__}: expected one of privlearn.sklearn"
        )
    expected = dict(_EXPECTED.get(type(estimator).__name__, {}))
    if not estimator.__sklearn_tags__().input_tags.sparse:
        expected.pop(_ON_SPARSE, None)
    return expected
