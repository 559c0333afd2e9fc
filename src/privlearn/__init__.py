"""privlearn: train deep models under differential privacy, and publish them with a certificate anyone can check.

Every touch of private data is one release, charged to one ledger before its noise is drawn.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from privlearn._lazy import lazy

if TYPE_CHECKING:
    from privlearn import accounting as accounting
    from privlearn import boosting as boosting
    from privlearn import clipping as clipping
    from privlearn import errors as errors
    from privlearn import mac as mac
    from privlearn import models as models
    from privlearn import runs as runs
    from privlearn import sampling as sampling
    from privlearn import schedules as schedules
    from privlearn import statistics as statistics
    from privlearn import teachers as teachers
    from privlearn import transforms as transforms
    from privlearn import tuning as tuning
    from privlearn import volumes as volumes
    from privlearn.accounting.budget import Budget as Budget
    from privlearn.accounting.guarantee import Guarantee as Guarantee
    from privlearn.accounting.ledger import Ledger as Ledger
    from privlearn.clipping.clips import Flat as Flat
    from privlearn.data import Dataset as Dataset
    from privlearn.data import load as load
    from privlearn.descent.dpsgd import Run as Run
    from privlearn.descent.dpsgd import dpsgd as dpsgd
    from privlearn.descent.train import train as train
    from privlearn.loop import make_private as make_private
    from privlearn.mac.dpmac import dpmac as dpmac
    from privlearn.mechanisms.release import release as release
    from privlearn.plan import Plan as Plan
    from privlearn.publishing.model import load_model as load_model
    from privlearn.publishing.publish import publish as publish
    from privlearn.publishing.verify import verify as verify
    from privlearn.runs.result import Result as Result
    from privlearn.sampling import Partition as Partition
    from privlearn.sampling import Poisson as Poisson
    from privlearn.sampling import Shuffle as Shuffle
    from privlearn.streams import Streams as Streams
    from privlearn.teachers.pate import pate as pate
    from privlearn.tuning.tune import tune as tune

__version__ = version("privlearn")

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "Budget": "accounting.budget",
        "Dataset": "data",
        "Flat": "clipping.clips",
        "Guarantee": "accounting.accountant",
        "Ledger": "accounting.ledger",
        "Partition": "sampling",
        "Plan": "plan",
        "Poisson": "sampling",
        "Result": "runs.result",
        "Run": "descent.dpsgd",
        "Shuffle": "sampling",
        "Streams": "streams",
        "dpmac": "mac.dpmac",
        "dpsgd": "descent.dpsgd",
        "load": "data",
        "load_model": "publishing.model",
        "make_private": "loop",
        "pate": "teachers.pate",
        "publish": "publishing.publish",
        "release": "mechanisms.release",
        "train": "descent.train",
        "tune": "tuning.tune",
        "verify": "publishing.verify",
        **dict.fromkeys(
            (
                "accounting",
                "boosting",
                "clipping",
                "errors",
                "mac",
                "models",
                "runs",
                "sampling",
                "schedules",
                "statistics",
                "teachers",
                "transforms",
                "tuning",
                "volumes",
            ),
            "",
        ),
    },
)
