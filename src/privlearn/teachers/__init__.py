"""PATE: teachers that are trained on disjoint parts of the private records, their noisy answers, and a student.

A teacher is trained by a *recipe*, a function `recipe(x, y) -> predict` where `predict(inputs)` gives a row for each input:
labels, scores or targets of any shape. `Estimator` and `Network` make recipes of scikit-learn's estimators and of torch
modules. Reducers are public maps from high-dimensional targets to the short codes that are averaged and released.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privlearn._lazy import lazy

if TYPE_CHECKING:
    from privlearn.teachers.answers import Answers as Answers
    from privlearn.teachers.autoencoder import Autoencoder as Autoencoder
    from privlearn.teachers.ensemble import Given as Given
    from privlearn.teachers.ensemble import Teachers as Teachers
    from privlearn.teachers.pate import ask_teachers as ask_teachers
    from privlearn.teachers.pate import teach_student as teach_student
    from privlearn.teachers.plan import Ball as Ball
    from privlearn.teachers.plan import Box as Box
    from privlearn.teachers.plan import ConfidentVotes as ConfidentVotes
    from privlearn.teachers.plan import PatePlan as PatePlan
    from privlearn.teachers.plan import Votes as Votes
    from privlearn.teachers.recipes import Estimator as Estimator
    from privlearn.teachers.recipes import Neighbourhood as Neighbourhood
    from privlearn.teachers.recipes import Network as Network
    from privlearn.teachers.recipes import Predictor as Predictor
    from privlearn.teachers.recipes import Recipe as Recipe
    from privlearn.teachers.recipes import Spreading as Spreading
    from privlearn.teachers.reducers import Identity as Identity
    from privlearn.teachers.reducers import PublicPCA as PublicPCA
    from privlearn.teachers.reducers import RandomProjection as RandomProjection
    from privlearn.teachers.reducers import Reducer as Reducer
    from privlearn.teachers.reducers import unit_ball as unit_ball
    from privlearn.teachers.student import Spread as Spread
    from privlearn.teachers.student import Student as Student
    from privlearn.teachers.trained import KeptFolder as KeptFolder
    from privlearn.teachers.trained import Trained as Trained

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "Answers": "answers",
        "Autoencoder": "autoencoder",
        "Ball": "plan",
        "Box": "plan",
        "ConfidentVotes": "plan",
        "Estimator": "recipes",
        "Given": "ensemble",
        "Identity": "reducers",
        "KeptFolder": "trained",
        "Neighbourhood": "recipes",
        "Network": "recipes",
        "PatePlan": "plan",
        "Predictor": "recipes",
        "PublicPCA": "reducers",
        "RandomProjection": "reducers",
        "Recipe": "recipes",
        "Reducer": "reducers",
        "Spread": "student",
        "Spreading": "recipes",
        "Student": "student",
        "Teachers": "ensemble",
        "Trained": "trained",
        "Votes": "plan",
        "ask_teachers": "pate",
        "teach_student": "pate",
        "unit_ball": "reducers",
    },
)
