from privlearn.mechanisms.banded import Banded as Banded
from privlearn.mechanisms.bisr import BISR as BISR
from privlearn.mechanisms.blt import BLT as BLT
from privlearn.mechanisms.correlated import Correlation as Correlation
