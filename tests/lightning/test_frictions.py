"""What people meet first in a private `fit`: warnings, logs, messages, and loading."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import privlearn as pv
from tests.lightning.test_lightning import Classifier, Kept, fitted, pl, rows, strategy

pytestmark = pytest.mark.filterwarnings("ignore")


def cross_entropies(module: Any, batch: Any) -> Tensor:
    return F.cross_entropy(module.net(batch[0]), batch[1], reduction="none")


@pytest.mark.parametrize(("loss", "times"), [(None, 1), (cross_entropies, 0)])
def test_slowness_is_said_once_with_its_reason(loss: Any, times: int, tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        fitted(tmp_path, private=strategy(loss=loss), max_epochs=1)
    slow = [str(each.message) for each in heard if "training will be slow" in str(each.message)]
    assert len(slow) == times
    for text in slow:
        assert "because training_step is called with one example at a time" in text
        assert "Faster: PrivateStrategy(loss=...)" in text


def test_a_loop_whose_loss_is_a_mean_says_why_it_is_slow() -> None:
    net = torch.nn.Linear(4, 3)
    private = pv.make_private(
        net,
        torch.optim.SGD(net.parameters(), lr=0.1),
        torch.utils.data.DataLoader(rows(), batch_size=8),
        epochs=1,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )

    def loss(model: Any, batch: Any) -> Tensor:
        return sum(
            map(torch.sum, F.cross_entropy(model(batch[0]), batch[1], reduction="none"))
        ) / len(batch[0])

    with pytest.warns(UserWarning, match="the loss of a batch is computed for one example"):
        private.step(next(private.batches()), loss)


def test_epsilon_is_logged_as_other_figures_are(tmp_path: Path) -> None:
    shown: list[dict[str, float]] = []

    class Shown(pl.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            shown.append(dict(trainer.progress_bar_metrics))

    for every, steps in ((50, [5, 10, 13]), (4, [4, 5, 8, 10, 12, 13])):
        kept = Kept()
        trainer, _, private = fitted(
            tmp_path,
            private=strategy(prog_bar=True),
            logger=kept,
            log_every_n_steps=every,
            max_epochs=3,
            max_steps=13,
            callbacks=[Shown()],
        )
        logged = [each["epsilon_spent"] for each in kept.metrics if "epsilon_spent" in each]
        assert len(logged) == len(steps)
        assert logged == sorted(logged)
        end = private.private.spent(1e-3).epsilon
        assert logged[-1] == pytest.approx(end, rel=1e-5)
        assert float(trainer.callback_metrics["epsilon_spent"]) == pytest.approx(end, rel=1e-5)
    assert shown[-1]["epsilon_spent"] == pytest.approx(end, rel=1e-5)


def test_the_price_is_logged_where_training_is_stopped(tmp_path: Path) -> None:
    class Stops(pl.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop = trainer.global_step == 7

    trainer, _, private = fitted(tmp_path, callbacks=[Stops()])
    assert trainer.global_step == 7
    assert "epsilon_spent" not in trainer.progress_bar_metrics
    end = private.private.spent(1e-3).epsilon
    assert float(trainer.callback_metrics["epsilon_spent"]) == pytest.approx(end, rel=1e-5)


def test_a_loss_that_is_nan_for_one_example_says_that_it_couples(tmp_path: Path) -> None:
    class Varying(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            out = self.net(batch[0])
            return F.cross_entropy(out, batch[1]) + out.var(0).mean()

    with pytest.raises(pv.errors.NotPerExample, match="couples examples, as a variance"):
        fitted(tmp_path, Varying())


def test_one_optimizer_with_groups_is_what_the_message_says(tmp_path: Path) -> None:
    class Groups(Classifier):
        def configure_optimizers(self) -> Any:
            parts = [{"params": self.net[0].parameters(), "lr": 0.1}]
            return torch.optim.Adam([*parts, {"params": self.net[2].parameters(), "lr": 0.2}])

    *_, private = fitted(tmp_path, Groups())
    assert pv.verify(private.publish(tmp_path / "model")).ok


def test_published_weights_load_into_the_modules_network(tmp_path: Path) -> None:
    _, module, private = fitted(tmp_path, max_epochs=1)
    folder = private.publish(tmp_path / "model")
    x = rows(2).tensors[0]
    twin = Classifier()
    before = twin.net[0].weight.clone()
    loaded = pv.load_model(folder, twin.net)
    assert torch.equal(twin.net[0].weight, before)  # what was given stays as it is
    assert torch.equal(loaded(x), module.net(x))
    twin.net.load_state_dict(loaded.network.state_dict())
    assert torch.equal(twin.net(x), module.net(x))
    whole = Classifier()
    whole.load_state_dict(pv.load_model(folder, whole).network.state_dict())
    assert torch.equal(whole.net(x), module.net(x))
    wrong = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    with pytest.raises(pv.errors.BadInput, match="does not fit the model"):
        pv.load_model(folder, wrong)
