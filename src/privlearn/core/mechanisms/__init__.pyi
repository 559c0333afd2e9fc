from privlearn.core.mechanisms.banded import Banded as Banded
from privlearn.core.mechanisms.bisr import BISR as BISR
from privlearn.core.mechanisms.blt import BLT as BLT
from privlearn.core.mechanisms.correlated import Correlation as Correlation
