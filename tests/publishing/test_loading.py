"""Published models are loaded and used: custom networks, rows in any form, one row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn.errors import BadInput

X = torch.rand(40, 2, 3, generator=torch.Generator().manual_seed(0)) * 8
Y = (X[:, 0, 0] > 4).long()


class Own(nn.Module):
    """A network that no spec names."""

    def __init__(self, shape: tuple[int, ...] = (2, 3), outputs: int = 2) -> None:
        super().__init__()
        self.layer = nn.Linear(shape[0] * shape[1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1))


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pv.Result]:
    """A scaled model of a custom network."""
    plan = pv.Plan(pv.Poisson(0.5), epochs=30, examples=40).calibrate(epsilon=50.0, delta=1e-5)
    torch.manual_seed(0)
    data = pv.Dataset(X, Y, classes=2, low=0.0, high=8.0)
    result = pv.dpsgd(
        plan, Own(), nn.CrossEntropyLoss(reduction="none"), data, streams=pv.Streams.new(1)
    )
    return pv.publish(result, tmp_path_factory.mktemp("published") / "own", classes=2), result


@pytest.mark.parametrize(
    "network", [Own(), Own, f"{__name__}:made"], ids=["module", "factory", "name"]
)
def test_a_network_of_ones_own_is_given_again(
    published: tuple[Path, pv.Result], network: Any
) -> None:
    out, result = published
    before = network.layer.weight.clone() if isinstance(network, nn.Module) else None
    model = pv.load_model(out, model=network)
    assert torch.equal(model(X), result.model(X))
    assert model.classes == 2
    assert before is None or torch.equal(network.layer.weight, before)  # a copy of it is filled


def made(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Own(input_shape, classes)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (None, r"model=.*in Python also the network itself"),
        (
            Own(outputs=3),
            r"does not fit the model that was given: '1.layer.(bias|weight)' has shape .*model=",
        ),
        (lambda shape: 3, "model made a int of the shape \\(2, 3\\): expected a torch.nn.Module"),
        (3, "model is 3: expected a text, a torch.nn.Module, a function or None"),
    ],
    ids=["none", "another", "no network", "no function"],
)
def test_other_networks_are_refused(
    published: tuple[Path, pv.Result], network: Any, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        pv.load_model(published[0], model=network)


def test_without_classes_it_can_be_loaded_all_the_same(
    published: tuple[Path, pv.Result], tmp_path: Path
) -> None:
    out = pv.publish(published[1], tmp_path / "model")
    model = pv.load_model(out, model=Own())
    assert model.classes is None
    assert torch.equal(model(X), published[1].model(X))
    with pytest.raises(BadInput, match="classes is 0"):
        pv.publish(published[1], tmp_path / "none", classes=0)


@pytest.mark.parametrize(
    "form",
    [
        lambda x: x,
        lambda x: x.numpy(),
        lambda x: x.double(),
        lambda x: x.double().numpy(),
        lambda x: x.tolist(),
    ],
    ids=["tensor", "array", "double tensor", "double array", "lists"],
)
def test_rows_are_predicted_in_every_form(published: tuple[Path, pv.Result], form: Any) -> None:
    out, result = published
    model = pv.load_model(out, model=Own())
    classes = result.model(X).argmax(1)
    assert len(classes.unique()) == 2
    assert torch.equal(model.predict(form(X)), classes)
    for row in range(3):
        one = model.predict(form(X[row]))
        assert one.shape == ()
        assert int(one) == int(classes[row])


def test_whole_numbers_are_scaled_or_stay_whole(
    tmp_path: Path, published: tuple[Path, pv.Result]
) -> None:
    model = pv.load_model(published[0], model=Own())
    whole = X.round().long()
    assert torch.equal(model.predict(whole), model.predict(whole.float()))
    assert torch.equal(model.predict(whole.numpy().astype(np.uint8)), model.predict(whole.float()))
    tokens = torch.arange(20).reshape(10, 2) % 5
    net = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))
    plan = pv.Plan(pv.Poisson(0.5), epochs=1, examples=10, schedule=pv.schedules.Constant(1.0))
    result = pv.dpsgd(plan, net, nn.CrossEntropyLoss(reduction="none"), (tokens, tokens[:, 0] % 2))
    embedding = pv.load_model(pv.publish(result, tmp_path / "tokens", delta=1e-5), model=net)
    assert torch.equal(embedding.predict(tokens.tolist()), result.model(tokens).argmax(1))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (X[:, 0], r"the rows have shape \(3,\): this model takes \(2, 3\)"),
        ([[1.0], [2.0, 3.0]], "the rows can't be read"),
        ([["a", "b"]], "the rows hold <U1 values"),
        (None, "the rows"),
    ],
)
def test_other_rows_are_refused(published: tuple[Path, pv.Result], rows: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        pv.load_model(published[0], model=Own()).predict(rows)
