"""Layers in coordinates of public curvature: their checks, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import privlearn as pv
from privlearn.errors import BadInput
from privlearn.training.preconditioning import Preconditioned
from tests.models import checks_preconditioning as checks
from tests.support.checks import CHECKS


@pytest.mark.parametrize(
    "name", [name for name, check in CHECKS.items() if check.__module__ == checks.__name__]
)
def test_named_checks(name: str) -> None:
    CHECKS[name]()


def test_pink_noise_falls_with_the_frequency_and_is_for_images() -> None:
    inputs = pv.models.DrawnInputs(number=500, low=-1.0, high=1.0)
    images = inputs.draw((16, 16))
    assert torch.equal(images, inputs.draw((16, 16)))
    assert float(images.mean()) == pytest.approx(0.0, abs=1e-4)
    assert float(images.std()) == pytest.approx(0.5, rel=0.01)
    amplitude = torch.fft.fft2(images).abs().square().mean(0).sqrt()
    assert float(amplitude[0, 1] / amplitude[0, 4]) == pytest.approx(4.0, rel=0.15)
    with pytest.raises(BadInput, match="kind='white'"):
        inputs.draw((5,))
    for kind, low in (("blue", 0.0), ("pink", 1.0), ("pink", float("nan"))):
        with pytest.raises(BadInput, match="expected"):
            pv.models.DrawnInputs(kind, low=low)  # type: ignore[arg-type]


def test_layers_that_cannot_be_written_anew_stay() -> None:
    shared = nn.Linear(5, 5)
    frozen = nn.Linear(5, 5).requires_grad_(False)
    net = nn.Sequential(shared, shared, frozen, nn.Linear(5, 3))
    drawn = pv.models.DrawnInputs("white", number=50)
    written = pv.models.precondition(net, drawn, (5,))
    kinds = [type(part) for part in written]  # type: ignore[arg-type]
    assert kinds == [nn.Linear, nn.Linear, nn.Linear, Preconditioned]
    with pytest.raises(BadInput, match="no layer"):
        pv.models.precondition(nn.Sequential(shared, shared), drawn, (5,))
    with pytest.raises(BadInput, match="scores"):
        pv.models.precondition(nn.Sequential(nn.Linear(5, 3), nn.Unflatten(1, (1, 3))), drawn, (5,))
    with pytest.raises(BadInput, match="precondition made"):
        pv.models.fold(net)
    rows = pv.Dataset(np.zeros((4, 6), np.float32), public=True)
    with pytest.raises(BadInput, match="expected at least one"):
        pv.models.precondition(net, rows, (5,), private=checks.drawn_data())


def test_a_layer_that_nothing_reaches_keeps_its_coordinates() -> None:
    net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    with torch.no_grad():
        net[0].bias.fill_(-100.0)
    written = pv.models.precondition(net, pv.models.DrawnInputs("white", number=50), (5,))
    x = torch.randn(3, 5)
    assert torch.allclose(written(x), net(x), atol=1e-4)
    assert all(values.isfinite().all() for values in written.state_dict().values())


def test_a_run_by_rule_is_folded_into_the_named_network() -> None:
    data = checks.drawn_data(200)
    drawn = pv.models.DrawnInputs("white", number=200)

    def model(shape: tuple[int, ...]) -> nn.Module:
        plain = pv.models.build("mlp:4", shape, 2, np.random.default_rng(0))
        return pv.models.precondition(plain, drawn, shape)

    result = pv.train(data, epsilon=3.0, delta=1e-3, model=model, epochs=2)
    folded = pv.models.fold(result)
    x = torch.from_numpy(data.x)
    assert torch.allclose(folded.model(x), result.model(x), atol=1e-4)
    assert folded.ledger is result.ledger
    *_, network = folded.model.children()
    twin = pv.models.build("mlp:4", (5,), 2, np.random.default_rng(0))
    assert {n: v.shape for n, v in network.state_dict().items()} == {
        n: v.shape for n, v in twin.state_dict().items()
    }


def factory(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    plain = pv.models.build("mlp:4", input_shape, classes, np.random.default_rng(0))
    return pv.models.precondition(plain, pv.models.DrawnInputs("white", number=200), input_shape)


def test_a_folded_network_of_a_named_factory_is_published_and_loaded(tmp_path: Path) -> None:
    data = checks.drawn_data(200)
    result = pv.train(data, epsilon=3.0, delta=1e-3, model=f"{__name__}:factory", epochs=2)
    folded = pv.models.fold(result)
    folder = pv.publish(folded, tmp_path / "model", model_spec="mlp:4")
    assert not pv.verify(folder).problems
    x = torch.from_numpy(data.x)
    assert torch.allclose(pv.load_model(folder)(x), result.model(x), atol=1e-4)
    pv.publish(folded, tmp_path / "unnamed")
