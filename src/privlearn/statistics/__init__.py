"""Class statistics: classifiers, features and rows from one noisy release (Shen et al. 2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privlearn._lazy import lazy

if TYPE_CHECKING:
    from privlearn.statistics.advice import advised as advised
    from privlearn.statistics.classifiers import fisher as fisher
    from privlearn.statistics.classifiers import least_squares as least_squares
    from privlearn.statistics.features import release_features as release_features
    from privlearn.statistics.features import select_features as select_features
    from privlearn.statistics.plan import FisherPlan as FisherPlan
    from privlearn.statistics.plan import LeastSquaresPlan as LeastSquaresPlan
    from privlearn.statistics.plan import RowsPlan as RowsPlan
    from privlearn.statistics.plan import SelectionPlan as SelectionPlan

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "FisherPlan": "plan",
        "LeastSquaresPlan": "plan",
        "RowsPlan": "plan",
        "SelectionPlan": "plan",
        "advised": "advice",
        "fisher": "classifiers",
        "least_squares": "classifiers",
        "release_features": "features",
        "select_features": "features",
    },
)
