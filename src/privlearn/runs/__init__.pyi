from privlearn.runs.callbacks import Callback as Callback
from privlearn.runs.callbacks import TrainingProgress as TrainingProgress
from privlearn.runs.checkpoint import Checkpoint as Checkpoint
from privlearn.runs.loggers import MLflow as MLflow
from privlearn.runs.loggers import ProgressBar as ProgressBar
from privlearn.runs.loggers import TensorBoard as TensorBoard
from privlearn.runs.loggers import WandB as WandB
from privlearn.runs.public_numbers import declare_public as declare_public
