from privlearn.optim.adam_bc import AdamBC as AdamBC
from privlearn.optim.disk import DiSK as DiSK
from privlearn.optim.noise_aware import NoiseAware as NoiseAware
