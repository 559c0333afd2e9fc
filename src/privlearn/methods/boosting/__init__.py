"""Boosted additive models and trees from noisy histograms of gradients, with public splits.

Cyclic boosting over histograms as in Nori et al. 2021 (DP-EBM), sums of gradients and curvatures in
the leaves as in Maddock et al. 2022 (DP-XGBoost), and totally random trees as in Kirsche et al.
2023 (S-GBDT).
"""

from __future__ import annotations

from privlearn._lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
