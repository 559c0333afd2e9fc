from privlearn.opacus.batch_memory_manager import BatchMemoryManager as BatchMemoryManager
from privlearn.opacus.distributed import (
    DifferentiallyPrivateDistributedDataParallel as DifferentiallyPrivateDistributedDataParallel,
)
from privlearn.opacus.module_validator import ModuleValidator as ModuleValidator
from privlearn.opacus.privacy_engine import PrivacyEngine as PrivacyEngine
