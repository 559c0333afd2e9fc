from privlearn.core.clipping.augmentation import Augmentation as Augmentation
from privlearn.core.clipping.clips import Automatic as Automatic
from privlearn.core.clipping.clips import Flat as Flat
from privlearn.core.clipping.clips import PerLayer as PerLayer
from privlearn.core.clipping.clips import Quantile as Quantile
