from privlearn.data.dataset import Dataset as Dataset
from privlearn.data.named import NAMES as NAMES
from privlearn.data.named import load as load
from privlearn.data.packed import pack as pack
