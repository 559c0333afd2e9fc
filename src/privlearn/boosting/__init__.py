"""Boosted additive models and trees from noisy histograms of gradients, with public splits.

Cyclic boosting over histograms as in Nori et al. 2021 (DP-EBM), sums of gradients and curvatures in the leaves as in
Maddock et al. 2022 (DP-XGBoost), and totally random trees as in Kirsche et al. 2023 (S-GBDT).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privlearn._lazy import lazy

if TYPE_CHECKING:
    from privlearn.boosting.plan import BoostingPlan as BoostingPlan
    from privlearn.boosting.plan import Interval as Interval
    from privlearn.boosting.plan import Levels as Levels
    from privlearn.boosting.plan import columns_of as columns_of
    from privlearn.boosting.plan import plan_for as plan_for
    from privlearn.boosting.rounds import FeatureShape as FeatureShape
    from privlearn.boosting.rounds import boost as boost
    from privlearn.boosting.rounds import shape as shape
    from privlearn.boosting.targets import Counts as Counts
    from privlearn.boosting.targets import Labels as Labels
    from privlearn.boosting.targets import Values as Values

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "BoostingPlan": "plan",
        "Counts": "targets",
        "FeatureShape": "rounds",
        "Interval": "plan",
        "Labels": "targets",
        "Levels": "plan",
        "Values": "targets",
        "boost": "rounds",
        "columns_of": "plan",
        "plan_for": "plan",
        "shape": "rounds",
    },
)
