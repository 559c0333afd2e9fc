import privlearn_segmentation as _segmentation
from privlearn import errors as errors
from privlearn import huggingface as huggingface
from privlearn import lightning as lightning
from privlearn import models as models
from privlearn import opacus as opacus
from privlearn import runs as runs
from privlearn import sklearn as sklearn
from privlearn import transforms as transforms
from privlearn.auditing.steps import audit as audit
from privlearn.core import accounting as accounting
from privlearn.core import clipping as clipping
from privlearn.core import mechanisms as mechanisms
from privlearn.core import sampling as sampling
from privlearn.core import schedules as schedules
from privlearn.core.accounting.budget import Budget as Budget
from privlearn.core.accounting.guarantee import Guarantee as Guarantee
from privlearn.core.accounting.ledger import Ledger as Ledger
from privlearn.core.clipping.clips import Flat as Flat
from privlearn.core.mechanisms.release import release as release
from privlearn.core.plan import Plan as Plan
from privlearn.core.sampling import Partition as Partition
from privlearn.core.sampling import Poisson as Poisson
from privlearn.core.sampling import Shuffle as Shuffle
from privlearn.core.streams import Streams as Streams
from privlearn.data import Dataset as Dataset
from privlearn.data import load as load
from privlearn.loop import make_private as make_private
from privlearn.methods import boosting as boosting
from privlearn.methods import dpmac as _dpmac
from privlearn.methods import pate as _pate
from privlearn.methods import statistics as statistics
from privlearn.methods import tuning as tuning
from privlearn.methods.dispatch import train as train
from privlearn.methods.dpmac.dpmac import dpmac as dpmac
from privlearn.methods.pate.pate import pate as pate
from privlearn.methods.tuning.tune import tune as tune
from privlearn.metrics import evaluate as evaluate
from privlearn.publishing.model import load_model as load_model
from privlearn.publishing.publish import publish as publish
from privlearn.publishing.verify import verify as verify
from privlearn.runs.compute import ComputeConfig as ComputeConfig
from privlearn.runs.result import Result as Result
from privlearn.training.dpsgd import dpsgd as dpsgd
from privlearn.training.privacy_config import PrivacyConfig as PrivacyConfig
from privlearn.training.run import Run as Run

mac = _dpmac
teachers = _pate
volumes = _segmentation

__version__: str
