from privlearn.opacus.batch_memory_manager import BatchMemoryManager as BatchMemoryManager
from privlearn.opacus.distributed import (
    DifferentiallyPrivateDistributedDataParallel as DifferentiallyPrivateDistributedDataParallel,
)
from privlearn.opacus.module_validator import ModuleValidator as ModuleValidator
from privlearn.opacus.privacy_engine import PrivacyEngine as PrivacyEngine
from privlearn.opacus.schedulers import ExponentialGradClip as ExponentialGradClip
from privlearn.opacus.schedulers import ExponentialNoise as ExponentialNoise
from privlearn.opacus.schedulers import LambdaGradClip as LambdaGradClip
from privlearn.opacus.schedulers import LambdaNoise as LambdaNoise
from privlearn.opacus.schedulers import StepGradClip as StepGradClip
from privlearn.opacus.schedulers import StepNoise as StepNoise
