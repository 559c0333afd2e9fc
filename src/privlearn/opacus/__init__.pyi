from privlearn.opacus.module_validator import ModuleValidator as ModuleValidator
from privlearn.opacus.privacy_engine import PrivacyEngine as PrivacyEngine
from privlearn.opacus.script_run import BatchMemoryManager as BatchMemoryManager
