from privlearn.mechanisms.correlated import Banded as Banded
from privlearn.mechanisms.correlated import Correlation as Correlation
