"""privlearn: train deep models under differential privacy, and publish them with a certificate anyone can check.

Every touch of private data is one release, charged to one ledger before its noise is drawn.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privlearn import errors as errors
    from privlearn import models as models
    from privlearn import reducers as reducers
    from privlearn import schedules as schedules
    from privlearn import segmentation as segmentation
    from privlearn import teachers as teachers
    from privlearn.accounting.accountant import Guarantee as Guarantee
    from privlearn.accounting.adjacency import Adjacency as Adjacency
    from privlearn.accounting.budget import Budget as Budget
    from privlearn.accounting.ledger import Ledger as Ledger
    from privlearn.accounting.unit import Unit as Unit
    from privlearn.clipping.augmentation import Augmentation as Augmentation
    from privlearn.clipping.ensembles import Ball as Ball
    from privlearn.clipping.ensembles import Box as Box
    from privlearn.clipping.ensembles import ConfidentVotes as ConfidentVotes
    from privlearn.clipping.ensembles import Votes as Votes
    from privlearn.clipping.layerwise import Analytic as Analytic
    from privlearn.clipping.layerwise import Derivatives as Derivatives
    from privlearn.clipping.layerwise import Histogram as Histogram
    from privlearn.clipping.styles import Automatic as Automatic
    from privlearn.clipping.styles import Flat as Flat
    from privlearn.clipping.styles import PerLayer as PerLayer
    from privlearn.clipping.styles import Quantile as Quantile
    from privlearn.data import Dataset as Dataset
    from privlearn.data import load as load
    from privlearn.encoders.encoding import with_features as with_features
    from privlearn.encoders.feature_folder import save_features as save_features
    from privlearn.mechanisms.features import Select as Select
    from privlearn.mechanisms.moments import Moments as Moments
    from privlearn.mechanisms.pca import PCA as PCA
    from privlearn.mechanisms.release import release as release
    from privlearn.methods.blocks import Blocks as Blocks
    from privlearn.methods.candidates import Candidate as Candidate
    from privlearn.methods.dpmac import dpmac as dpmac
    from privlearn.methods.dpsgd import dpsgd as dpsgd
    from privlearn.methods.ensemble.answers import Answers as Answers
    from privlearn.methods.ensemble.plan import PatePlan as PatePlan
    from privlearn.methods.ensemble.student import Spread as Spread
    from privlearn.methods.ensemble.student import Student as Student
    from privlearn.methods.features.advice import advised as advised
    from privlearn.methods.features.fisher import fisher as fisher
    from privlearn.methods.features.least_squares import least_squares as least_squares
    from privlearn.methods.features.plan import FeaturesPlan as FeaturesPlan
    from privlearn.methods.features.rows import release_features as release_features
    from privlearn.methods.features.select import select_features as select_features
    from privlearn.methods.mac.coordinates import Coordinates as Coordinates
    from privlearn.methods.pate import ask_teachers as ask_teachers
    from privlearn.methods.pate import pate as pate
    from privlearn.methods.pate import teach_student as teach_student
    from privlearn.methods.result import Result as Result
    from privlearn.methods.stopping import RandomStopping as RandomStopping
    from privlearn.methods.train import train as train
    from privlearn.methods.tune import tune as tune
    from privlearn.plan import Plan as Plan
    from privlearn.publishing.bundle import publish as publish
    from privlearn.publishing.verification import verify as verify
    from privlearn.rng import Streams as Streams
    from privlearn.sampling import FixedOrder as FixedOrder
    from privlearn.sampling import FullBatch as FullBatch
    from privlearn.sampling import Partition as Partition
    from privlearn.sampling import Poisson as Poisson
    from privlearn.sampling import Shuffle as Shuffle

__version__ = version("privlearn")

# Names are imported when they are first used: planning and verifying must not wait for torch.
_HOMES = {
    "Adjacency": "accounting.adjacency",
    "Analytic": "clipping.layerwise",
    "Answers": "methods.ensemble.answers",
    "Augmentation": "clipping.augmentation",
    "Automatic": "clipping.styles",
    "Ball": "clipping.ensembles",
    "Blocks": "methods.blocks",
    "Box": "clipping.ensembles",
    "Budget": "accounting.budget",
    "Candidate": "methods.candidates",
    "ConfidentVotes": "clipping.ensembles",
    "Coordinates": "methods.mac.coordinates",
    "Dataset": "data",
    "Derivatives": "clipping.layerwise",
    "FeaturesPlan": "methods.features.plan",
    "FixedOrder": "sampling",
    "Flat": "clipping.styles",
    "FullBatch": "sampling",
    "Guarantee": "accounting.accountant",
    "Histogram": "clipping.layerwise",
    "Ledger": "accounting.ledger",
    "Moments": "mechanisms.moments",
    "PCA": "mechanisms.pca",
    "Partition": "sampling",
    "PatePlan": "methods.ensemble.plan",
    "PerLayer": "clipping.styles",
    "Plan": "plan",
    "Poisson": "sampling",
    "Quantile": "clipping.styles",
    "RandomStopping": "methods.stopping",
    "Result": "methods.result",
    "Select": "mechanisms.features",
    "Shuffle": "sampling",
    "Spread": "methods.ensemble.student",
    "Streams": "rng",
    "Student": "methods.ensemble.student",
    "Unit": "accounting.unit",
    "Votes": "clipping.ensembles",
    "advised": "methods.features.advice",
    "ask_teachers": "methods.pate",
    "dpmac": "methods.dpmac",
    "dpsgd": "methods.dpsgd",
    "fisher": "methods.features.fisher",
    "least_squares": "methods.features.least_squares",
    "load": "data",
    "pate": "methods.pate",
    "publish": "publishing.bundle",
    "release": "mechanisms.release",
    "release_features": "methods.features.rows",
    "save_features": "encoders.feature_folder",
    "select_features": "methods.features.select",
    "teach_student": "methods.pate",
    "train": "methods.train",
    "tune": "methods.tune",
    "verify": "publishing.verification",
    "with_features": "encoders.encoding",
}
_MODULES = ("errors", "models", "reducers", "schedules", "segmentation", "teachers")

__all__ = [*_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"privlearn.{_HOMES[name]}"), name)
    if name in _MODULES:
        return import_module(f"privlearn.{name}")
    raise AttributeError(f"module 'privlearn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
