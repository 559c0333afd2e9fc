"""What stands in front of a network: public transforms of rows, and transforms made by a release on the private rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privlearn._lazy import lazy

if TYPE_CHECKING:
    from privlearn.transforms.base import PrivateTransform as PrivateTransform
    from privlearn.transforms.base import PublicTransform as PublicTransform
    from privlearn.transforms.base import Transform as Transform
    from privlearn.transforms.chain import feature_cache as feature_cache
    from privlearn.transforms.chain import read_features as read_features
    from privlearn.transforms.modules import Normalised as Normalised
    from privlearn.transforms.moments import Moments as Moments
    from privlearn.transforms.pca import PrivatePCA as PrivatePCA
    from privlearn.transforms.precomputed import FeatureFolder as FeatureFolder
    from privlearn.transforms.precomputed import save_features as save_features
    from privlearn.transforms.scattering import RandomUnits as RandomUnits
    from privlearn.transforms.scattering import Scattering as Scattering
    from privlearn.transforms.select import SelectFeatures as SelectFeatures
    from privlearn.transforms.sources import External as External
    from privlearn.transforms.sources import Precomputed as Precomputed
    from privlearn.transforms.specs import ClipToNorm as ClipToNorm
    from privlearn.transforms.specs import Rescale as Rescale
    from privlearn.transforms.specs import RowNorm as RowNorm
    from privlearn.transforms.specs import Scatter as Scatter
    from privlearn.transforms.specs import ScatterRandom as ScatterRandom
    from privlearn.transforms.specs import parse as parse
    from privlearn.transforms.specs import usual as usual

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "ClipToNorm": "specs",
        "External": "sources",
        "FeatureFolder": "precomputed",
        "Moments": "moments",
        "Normalised": "modules",
        "Precomputed": "sources",
        "PrivatePCA": "pca",
        "PrivateTransform": "base",
        "PublicTransform": "base",
        "RandomUnits": "scattering",
        "Rescale": "specs",
        "RowNorm": "specs",
        "Scatter": "specs",
        "ScatterRandom": "specs",
        "Scattering": "scattering",
        "SelectFeatures": "select",
        "Transform": "base",
        "feature_cache": "chain",
        "parse": "specs",
        "read_features": "chain",
        "save_features": "precomputed",
        "usual": "specs",
    },
)
