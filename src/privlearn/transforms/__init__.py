"""What stands between rows and a network: public features, and releases that are paid for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privlearn._lazy import lazy

if TYPE_CHECKING:
    from privlearn.transforms.chain import Encoder as Encoder
    from privlearn.transforms.chain import Encoding as Encoding
    from privlearn.transforms.chain import encoder as encoder
    from privlearn.transforms.chain import row_norm as row_norm
    from privlearn.transforms.chain import usual as usual
    from privlearn.transforms.chain import with_features as with_features
    from privlearn.transforms.external import External as External
    from privlearn.transforms.moments import Moments as Moments
    from privlearn.transforms.normalised import Normalised as Normalised
    from privlearn.transforms.pca import PrivatePCA as PrivatePCA
    from privlearn.transforms.precomputed import FeatureFolder as FeatureFolder
    from privlearn.transforms.precomputed import Precomputed as Precomputed
    from privlearn.transforms.precomputed import save_features as save_features
    from privlearn.transforms.random_units import RandomUnits as RandomUnits
    from privlearn.transforms.scattering import Scattering as Scattering
    from privlearn.transforms.select import SelectFeatures as SelectFeatures

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "Encoder": "chain",
        "Encoding": "chain",
        "External": "external",
        "FeatureFolder": "precomputed",
        "Moments": "moments",
        "Normalised": "normalised",
        "Precomputed": "precomputed",
        "PrivatePCA": "pca",
        "RandomUnits": "random_units",
        "Scattering": "scattering",
        "SelectFeatures": "select",
        "encoder": "chain",
        "row_norm": "chain",
        "save_features": "precomputed",
        "usual": "chain",
        "with_features": "chain",
    },
)
