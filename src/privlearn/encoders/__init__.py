"""Public features: functions of one example, chosen without looking at private rows, that stand in front of a network."""

from privlearn.encoders.encoding import Encoding, with_features
from privlearn.encoders.external import External
from privlearn.encoders.feature_folder import FeatureFolder, save_features
from privlearn.encoders.normalised import Normalised
from privlearn.encoders.precomputed import Precomputed
from privlearn.encoders.random_units import RandomUnits
from privlearn.encoders.scattering import Scattering
from privlearn.encoders.specs import Encoder, encoder, row_norm, usual

__all__ = [
    "Encoder",
    "Encoding",
    "External",
    "FeatureFolder",
    "Normalised",
    "Precomputed",
    "RandomUnits",
    "Scattering",
    "encoder",
    "row_norm",
    "save_features",
    "usual",
    "with_features",
]
