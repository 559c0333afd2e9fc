"""The study of private fine-tuning begins at the library's encoder, and trains what it says."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import privlearn as pv
from privlearn.transforms import drawn_encoder
from tests.transforms import made_up_package

BENCH = Path(__file__).parents[2] / "bench"
KEPT, FIXED = 5, 3


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("fine_tuning")


def encoder() -> drawn_encoder.DrawnEncoder:
    made = torch.Generator().manual_seed(0)
    mean, components = torch.randn(4096, generator=made), torch.randn(4096, KEPT, generator=made)
    return drawn_encoder.DrawnEncoder(False, drawn_encoder._weights(), mean, components)


def test_it_begins_as_the_encoder_is(study: Any) -> None:
    images, fixed, own = torch.rand(6, 3, 32, 32), torch.rand(6, FIXED), encoder()
    network = study.Tuned(own, FIXED)
    torch.nn.init.normal_(network.head.weight)
    rows = torch.cat([fixed, study.before(own, images)], 1)
    expected = network.head(torch.cat([fixed, own(images)], 1))
    torch.testing.assert_close(network(rows), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_it_tunes_the_convolution_where_it_has_a_rate(study: Any, rate: float) -> None:
    x = np.random.default_rng(0).random((60, FIXED + 4096)).astype(np.float32)
    y = np.arange(60) % 10
    data = pv.Dataset(x[:45], y[:45], x[45:], y[45:], classes=10)
    network = study.Tuned(encoder(), FIXED)
    before = network.convolution.weight.detach().clone()
    assert 0 <= study.privately(network, data, 8.0, 1, rate) <= 1
    assert torch.equal(before, network.convolution.weight) == (rate == 0)
    assert not torch.equal(network.head.weight, torch.zeros_like(network.head.weight))


def test_each_way_trains_its_part_of_a_packaged_encoder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    tuning: Any = importlib.import_module("encoder_tuning")
    drawn = np.random.default_rng(0)
    images = pv.Dataset(
        drawn.integers(0, 256, (100, 3, 32, 32), dtype=np.uint8), np.arange(100) % 10, classes=10
    )
    monkeypatch.setattr(pv, "load", lambda name: images)
    monkeypatch.setattr(tuning, "JUDGED", 20)
    monkeypatch.setattr(tuning, "read_network", lambda packaged: layers())
    monkeypatch.setattr(tuning, "FEATURES", 6)
    with made_up_package.installed():
        found = {way: tuning.rows_of(way, 32, 60) for way in tuning.WAYS}
    numbers = {
        way: sum(value.numel() for value in network.parameters() if value.requires_grad)
        for way, (network, _, _) in found.items()
    }
    head, last, first = 10 * 6 + 10, 4 * 6 + 6, 3 * 4 * 9 + 4
    assert numbers == {
        "head": head,
        "block": head + last,
        "whole": head + last + first,
        "lora": head + tuning.RANK * (4 + 6),
    }
    images_before = torch.rand(5, 3, 32, 32)
    scores = {way: network.encoder for way, (network, _, _) in found.items()}
    # Adapters begin at nothing.
    torch.testing.assert_close(scores["lora"](images_before), scores["whole"](images_before))
    for network, chooses, judges in found.values():
        assert not np.array_equal(chooses.x_test, judges.x_test)
        assert np.array_equal(chooses.x, judges.x)
        run = tuning.train(network, chooses, epsilon=8.0, epochs=1, rate=0.1, part=0.1)
        assert run(0) == run(0)


def layers() -> torch.nn.Sequential:
    """An encoder of two convolutions, of which the last three layers are the last block."""
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, 8, 1),
        torch.nn.ReLU(),
        torch.nn.Identity(),
        torch.nn.Conv2d(4, 6, 1),
        torch.nn.ReLU(),
    )
