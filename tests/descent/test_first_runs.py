"""What a first run meets: the optimizer by default, and messages about batches."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import privlearn as pv
from privlearn.errors import BadInput, NotPerExample, SampleReused
from privlearn.runs.result import Diagnostics
from privlearn.training.rules import learning_rate
from tests.support.nets import cross_entropy, small_data, small_net
from tests.support.steps import EachStep


def plan(**more: Any) -> pv.Plan:
    return pv.Plan(
        pv.Poisson(0.3), epochs=2, schedule=pv.schedules.Constant(1.0), examples=12, **more
    )


def run(**more: Any) -> pv.Run:
    return pv.Run(
        plan(), small_net(), cross_entropy, small_data(), streams=pv.Streams.new(1), **more
    )


def test_the_default_optimizer_learns_digits() -> None:
    data = pv.load("digits")
    plan = pv.Plan(pv.Poisson(0.18), epochs=30, examples=1437).calibrate(epsilon=4.0, delta=1e-5)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    result = pv.dpsgd(
        plan, model, nn.CrossEntropyLoss(reduction="none"), data, streams=pv.Streams.new(1)
    )
    x, y = data.test_tensors()
    assert float((result.model(x).argmax(1) == y).double().mean()) > 0.88
    assert result.facts["optimizer"]["name"] == "SGD"


def test_the_default_rate_follows_from_public_numbers() -> None:
    """As the rules give it for a custom network; initial weights as long as PyTorch usually makes
    them.
    """
    made = run().optimizer
    norm = math.sqrt((7 + 3) / 3)
    assert isinstance(made, torch.optim.SGD)
    assert made.defaults["lr"] == learning_rate("SGD", plan(), 12, "package.module:function", norm)
    usual = [
        math.dist(layer.weight.flatten().tolist(), [0] * layer.weight.numel())
        for layer in small_net()
        if isinstance(layer, nn.Linear)
    ]
    assert math.hypot(*usual) == pytest.approx(norm, rel=0.2)
    assert (
        made.defaults["lr"]
        == pv.Run(
            plan(), small_net(seed=9), cross_entropy, (small_data()[0] * 9, small_data()[1])
        ).optimizer.defaults["lr"]
    )


def test_a_run_with_the_default_optimizer_is_resumed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        dpsgd_until(3, tmp_path / "run")
    assert torch.equal(dpsgd_until(None, tmp_path / "run"), dpsgd_until(None, None))


def dpsgd_until(stop: int | None, path: Path | None) -> torch.Tensor:
    def progress(done: int, total: int) -> None:
        if done == stop:
            raise KeyboardInterrupt

    checkpoint = path and pv.runs.Checkpoint(path, every=1e-9)
    result = pv.dpsgd(
        plan(),
        small_net(seed=0 if stop else 5) if path else small_net(),
        cross_entropy,
        small_data(),
        streams=pv.Streams.new(1),
        callbacks=EachStep(progress),
        checkpoint=checkpoint,
    )
    return torch.cat([value.flatten() for value in result.model.state_dict().values()])


def test_a_second_step_on_a_batch_is_refused_as_that() -> None:
    with run() as own:
        batch = next(iter(next(iter(own))))
        own.step(batch)
        with pytest.raises(
            SampleReused, match=r"a step was taken on Batch.* already.*Take the next batch"
        ):
            own.step(batch)
        assert "release()" not in str(batch)


def test_how_many_examples_a_batch_has_is_private() -> None:
    with run() as own:
        batch = next(iter(next(iter(own))))
        assert batch
        with pytest.raises(TypeError, match=r"is private.*expected_batch_size"):
            len(batch)  # type: ignore[arg-type]
        own.step(batch)


def test_a_loss_that_is_one_number_is_refused_as_that() -> None:
    """Where the loss is called with the model and a batch, too, the model is not blamed."""

    def averaged(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    x, y = small_data()
    for loss, data in ((averaged, {"x": x, "y": y}), (nn.CrossEntropyLoss(), (x, y))):
        with pytest.raises(
            NotPerExample, match=r"^the loss .*one number per example.*reduction='none'"
        ):
            pv.Run(plan(), small_net(), loss, data)


def test_an_epoch_without_usable_rows_has_no_mean_loss(tmp_path: Path) -> None:
    """Its place is kept, by NaN, so that all figures have an entry for each epoch; in a checkpoint,
    too.
    """
    x, y = small_data()
    with pytest.warns(UserWarning, match="NaN or infinity"):
        result = pv.dpsgd(
            plan(),
            small_net(),
            cross_entropy,
            (x * math.nan, y),
            checkpoint=pv.runs.Checkpoint(tmp_path / "run", every=1e-9),
        )
    figures = result.private_diagnostics
    assert [math.isnan(value) for name in ("loss", "clipped_share") for value in figures[name]] == [
        True
    ] * 4
    assert len(figures["left_out"]) == 2
    own = Diagnostics()
    own.load_state_dict(json.loads(json.dumps(saved_after_an_empty_epoch(), allow_nan=False)))
    assert math.isnan(own.figures["loss"][0])
    assert own.figures["left_out"] == [3]


def saved_after_an_empty_epoch() -> dict[str, Any]:
    own = Diagnostics()
    own.begin(0.1)
    own.add_drawn(3)
    own.end_epoch()
    return own.state_dict()


@pytest.mark.parametrize("made", [False, True])
def test_train_takes_a_network_or_a_function_that_makes_one(made: bool, tmp_path: Path) -> None:
    x, y = small_data()
    data = pv.Dataset(x.numpy(), y.numpy(), classes=3, low=0.0, high=1.0)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    settings: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-3, "epochs": 2, "features": "raw"}
    result = pv.train(data, model=(lambda shape: net) if made else net, **settings)
    assert next(iter(net.parameters())) is next(iter(result.model[-1].parameters()))
    pv.publish(result, tmp_path / "model")
    loaded = pv.load_model(tmp_path / "model", net)
    assert torch.equal(loaded(x.float()), result.model(x.float()))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (3, "model is 3: expected a text, a torch.nn.Module or a function"),
        (nn.Linear, "model is a class: expected a text"),
        (nn.Linear(5, 2), r"model Linear turns 2 rows into shape \(2, 2\): expected \(2, 3\)"),
        (lambda shape: "net", "returned a str: expected a torch.nn.Module"),
    ],
)
def test_train_refuses_other_networks(model: Any, message: str) -> None:
    x, y = small_data()
    data = pv.Dataset(x.numpy(), y.numpy(), classes=3, low=0.0, high=1.0)
    with pytest.raises(BadInput, match=message):
        pv.train(data, model=model, epsilon=3.0, delta=1e-3, epochs=2, features="raw")


def test_a_run_without_steps_is_not_published(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no step was taken"):
        run().publish(tmp_path / "model")
