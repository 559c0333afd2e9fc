"""Teachers for PATE: models that are trained on disjoint parts of the private records, or what such models said elsewhere.

A teacher is trained by a *recipe*, a function `recipe(x, y) -> predict` where `predict(inputs)` gives a row for each input:
labels, scores or targets of any shape. `Estimator` and `Network` make recipes of scikit-learn's estimators and of torch
modules.
"""

from privlearn.teachers.recipes import Estimator, Network, Predictor, Recipe
from privlearn.teachers.source import Given, Teachers
from privlearn.teachers.spreading import Neighbourhood, Spreading
from privlearn.teachers.trained import Trained

__all__ = ["Estimator", "Given", "Neighbourhood", "Network", "Predictor", "Recipe", "Spreading", "Teachers", "Trained"]
