"""Everything that the frozen figures need of privlearn: the only place that imports it."""

from __future__ import annotations

import privlearn_segmentation as segmentation
from privlearn import (
    Budget,
    Dataset,
    Flat,
    Ledger,
    Partition,
    Plan,
    Poisson,
    Result,
    Shuffle,
    Streams,
    dpmac,
    dpsgd,
    errors,
    pate,
    publish,
    teachers,
    train,
    tune,
    verify,
)
from privlearn.cli import main, screen
from privlearn.core import schedules
from privlearn.core.accounting import Adjacency
from privlearn.core.accounting.accountant import guarantees
from privlearn.core.accounting.events import from_json, to_json
from privlearn.core.clipping import Augmentation, Automatic, PerLayer, Quantile
from privlearn.core.sampling import FixedOrder, FullBatch
from privlearn.methods import pate as reducers
from privlearn.methods.boosting import BoostingPlan, Counts, Interval, Labels, Levels, Values, boost
from privlearn.methods.dpmac import Analytic, Coordinates, Derivatives, Histogram
from privlearn.methods.pate import Ball, Box, ConfidentVotes, PatePlan, Spread, Student, Votes
from privlearn.methods.statistics import (
    FisherPlan,
    LeastSquaresPlan,
    RowsPlan,
    SelectionPlan,
    advised,
    fisher,
    least_squares,
    release_features,
    select_features,
)
from privlearn.methods.tuning import Blocks, Candidate, RandomStopping
from privlearn.models import networks as models
from privlearn.runs.checkpoint import Checkpoint
from privlearn.sklearn import DPFeatureSelector, DPFisherClassifier
from privlearn.transforms import Moments, RowNorm, Scatter, save_features
from privlearn.transforms import PrivatePCA as PCA  # noqa: N814
from privlearn.transforms import SelectFeatures as Select

__all__ = [
    "PCA",
    "Adjacency",
    "Analytic",
    "Augmentation",
    "Automatic",
    "Ball",
    "Blocks",
    "BoostingPlan",
    "Box",
    "Budget",
    "Candidate",
    "Checkpoint",
    "ConfidentVotes",
    "Coordinates",
    "Counts",
    "DPFeatureSelector",
    "DPFisherClassifier",
    "Dataset",
    "Derivatives",
    "FisherPlan",
    "FixedOrder",
    "Flat",
    "FullBatch",
    "Histogram",
    "Interval",
    "Labels",
    "LeastSquaresPlan",
    "Ledger",
    "Levels",
    "Moments",
    "Partition",
    "PatePlan",
    "PerLayer",
    "Plan",
    "Poisson",
    "Quantile",
    "RandomStopping",
    "Result",
    "RowNorm",
    "RowsPlan",
    "Scatter",
    "Select",
    "SelectionPlan",
    "Shuffle",
    "Spread",
    "Streams",
    "Student",
    "Values",
    "Votes",
    "advised",
    "boost",
    "dpmac",
    "dpsgd",
    "errors",
    "fisher",
    "from_json",
    "guarantees",
    "least_squares",
    "main",
    "models",
    "pate",
    "publish",
    "reducers",
    "release_features",
    "save_features",
    "schedules",
    "screen",
    "segmentation",
    "select_features",
    "teachers",
    "to_json",
    "train",
    "tune",
    "verify",
]
