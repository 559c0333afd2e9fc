from privlearn.core.clipping.model_check import require_per_example as require_per_example
from privlearn.models.networks import build as build
from privlearn.models.networks import volume_decoder as volume_decoder
from privlearn.models.networks import volume_encoder as volume_encoder
from privlearn.models.norms import replace_batch_norm as replace_batch_norm
