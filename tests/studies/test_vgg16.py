"""Features by VGG16: of which network, and what is stored."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from privlearn.transforms import packaged_networks
from privlearn.transforms.packaged import SHIPPED, SMALLEST, Packaged
from privlearn_studies import vgg16

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


def build_network(packaged: object) -> nn.Module:
    """A layer of 512 maps in place of VGG16."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 512, 3, stride=8, padding=1), nn.ReLU())


def _images() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (3, 3, SMALLEST, SMALLEST), dtype=np.uint8)


def test_images_become_512_features_which_are_stored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(packaged_networks, "read_network", build_network)
    monkeypatch.setattr(vgg16._storage, "cache", lambda: tmp_path)
    images = _images()
    features = vgg16.features_of(images)
    assert features.shape == (3, 512)
    assert features.std() > 0
    alone = torch.cat([vgg16.features_of(images[place : place + 1]) for place in range(3)])
    torch.testing.assert_close(alone, features)
    monkeypatch.setattr(
        packaged_networks, "read_network", lambda packaged: pytest.fail("computed again")
    )
    assert torch.equal(vgg16.features_of(images), features)


def test_the_network_sees_red_green_and_blue_less_their_means(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packaged_networks, "read_network", build_network)
    images = torch.from_numpy(_images()).float()
    module = Packaged("vgg16", SMALLEST).module((3, SMALLEST, SMALLEST))
    means = torch.tensor([123.68, 116.779, 103.939]).view(1, 3, 1, 1)
    torch.testing.assert_close(module.prepared(images / 255), images - means, rtol=0, atol=1e-3)


def test_the_package_has_the_weights_of_imagenets_vgg16() -> None:
    packaged = SHIPPED["vgg16"]
    try:
        distribution(packaged.package)
    except PackageNotFoundError:
        pytest.skip(f"{packaged.package} is not installed ({packaged.advice})")
    tensors = dict(packaged_networks.read_onnx_tensors(packaged.read()))
    for (name, place), value in _KNOWN.items():
        part = "convolution/ReadVariableOp:0" if len(place) == 4 else "Squeeze:0"
        assert float(tensors[f"functional_1/{name}_1/{part}"][place]) == pytest.approx(
            value, abs=1e-6
        )
