"""Estimators for scikit-learn: each `fit` is a release, and `privacy_` says what it cost.

`DPClassifier(epsilon=1, classes=[0, 1], bounds=(0, 1)).fit(X, y).publish("model")` is all there is
to it.
"""

from __future__ import annotations

from privlearn._lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
