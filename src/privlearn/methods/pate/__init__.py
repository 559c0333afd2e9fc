"""PATE: teachers that are trained on disjoint parts of the private records, their noisy answers,
and a student.

A teacher is trained by a *recipe*, a function `recipe(x, y) -> predict` where `predict(inputs)`
gives a row for each input: labels, scores or targets of any shape. `Estimator` and `Network` make
recipes of scikit-learn's estimators and of torch modules. Reducers are public maps from
high-dimensional targets to the short codes that are averaged and released.
"""

from __future__ import annotations

from privlearn._lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
