"""Public features: functions of one example, chosen without looking at private rows, that stand in front of a network."""

from privlearn.encoders.encoding import Encoding, with_features
from privlearn.encoders.external import External
from privlearn.encoders.normalised import Normalised
from privlearn.encoders.random_units import RandomUnits
from privlearn.encoders.scattering import Scattering
from privlearn.encoders.specs import Encoder, encoder, usual

__all__ = [
    "Encoder",
    "Encoding",
    "External",
    "Normalised",
    "RandomUnits",
    "Scattering",
    "encoder",
    "usual",
    "with_features",
]
