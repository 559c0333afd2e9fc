"""Reducers for PATE: public maps from high-dimensional targets to the short codes that are averaged and released."""

from privlearn.reducers.activation import unit_ball
from privlearn.reducers.autoencoder import Autoencoder
from privlearn.reducers.linear import PCA, Identity, RandomProjection
from privlearn.reducers.reducer import Reducer

__all__ = ["PCA", "Autoencoder", "Identity", "RandomProjection", "Reducer", "unit_ball"]
