from privlearn.clipping.augmentation import Augmentation as Augmentation
from privlearn.clipping.clips import Automatic as Automatic
from privlearn.clipping.clips import Flat as Flat
from privlearn.clipping.clips import PerLayer as PerLayer
from privlearn.clipping.clips import Quantile as Quantile
