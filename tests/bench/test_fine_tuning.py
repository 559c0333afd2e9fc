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
