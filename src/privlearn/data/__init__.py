"""Data: what a data set is, the named ones, and readers."""

from privlearn.data.dataset import Dataset
from privlearn.data.named import NAMES, load
from privlearn.data.packed import pack

__all__ = ["NAMES", "Dataset", "load", "pack"]
