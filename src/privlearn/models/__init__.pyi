from privlearn.core.clipping.model_check import require_per_example as require_per_example
from privlearn.models.networks import build as build
from privlearn.models.norms import replace_batch_norm as replace_batch_norm
