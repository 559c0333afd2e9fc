"""`PrivateStrategy`: a LightningModule stays as it is, and its run is the one that `pv.dpsgd`
makes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import privlearn as pv

pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")


class Classifier(pl.LightningModule):
    """As people write it."""

    def __init__(self, rate: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        self.rate = rate

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("right", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.rate, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def rows(seed: int = 0, number: int = 40) -> TensorDataset:
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (number,), generator=rng)
    return TensorDataset(torch.randn(number, 4, generator=rng) + F.one_hot(y, 4), y)


def loader(**changes: Any) -> DataLoader[Any]:
    return DataLoader(rows(), **{"batch_size": 8, "shuffle": True, **changes})


def strategy(**changes: Any) -> Any:
    given = {
        "epsilon": 4.0,
        "delta": 1e-3,
        "max_grad_norm": 0.5,
        "streams": pv.Streams.new(5),
        **changes,
    }
    return pv.lightning.PrivateStrategy(**given)


def fitted(
    folder: Path, module: Any = None, private: Any = None, train: Any = None, **changes: Any
) -> tuple[Any, Any, Any]:
    private = private or strategy()
    given = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "default_root_dir": folder,
        **changes,
    }
    trainer, module = pl.Trainer(strategy=private, **given), module or Classifier()
    trainer.fit(module, loader() if train is None else train, DataLoader(rows(1), batch_size=16))
    return trainer, module, private


def test_the_weights_and_events_are_those_of_a_run_by_hand(tmp_path: Path) -> None:
    trainer, module, private = fitted(tmp_path)
    twin = Classifier()
    (optimizer,), (scheduler,) = twin.configure_optimizers()
    plan = pv.Plan(pv.Poisson(0.2), epochs=2, clip=pv.Flat(0.5)).calibrate(epsilon=4.0, delta=1e-3)
    data, loss = rows().tensors, nn.CrossEntropyLoss(reduction="none")
    with pv.Run(
        plan, twin.net, loss, data, optimizer=lambda _: optimizer, streams=pv.Streams.new(5)
    ) as run:
        for epoch in run:
            for batch in epoch:
                run.step(batch)
            scheduler.step()
        result = run.result()
    assert private.plan == plan
    assert private.result.ledger.event == result.ledger.event
    assert trainer.global_step == 10
    for own, theirs in zip(module.net.parameters(), twin.net.parameters(), strict=True):
        assert torch.allclose(own, theirs, atol=1e-6)


def test_a_loss_of_examples_gives_the_same_bits_as_dpsgd(tmp_path: Path) -> None:
    class Constant(Classifier):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def loss(module: Any, batch: Any) -> Tensor:
        return F.cross_entropy(module.net(batch[0]), batch[1], reduction="none")

    _, module, private = fitted(tmp_path, Constant(), strategy(loss=loss))
    twin = Constant()

    def optimizer(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.1)

    plan, streams = private.plan, pv.Streams.new(5)
    pv.dpsgd(
        plan,
        twin.net,
        nn.CrossEntropyLoss(reduction="none"),
        rows().tensors,
        optimizer=optimizer,
        streams=streams,
    )
    assert all(
        torch.equal(own, its)
        for own, its in zip(module.net.parameters(), twin.net.parameters(), strict=True)
    )


class Kept(pl.loggers.logger.Logger):
    """A logger that keeps what it is given."""

    name, version = "kept", 0

    def __init__(self) -> None:
        super().__init__()
        self.metrics: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.metrics.append(metrics)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass


def test_loggers_get_epsilon_and_nothing_private(tmp_path: Path) -> None:
    kept = Kept()
    trainer, _, private = fitted(tmp_path, logger=kept, log_every_n_steps=2)
    names = set().union(*kept.metrics)
    assert "train_loss" not in names
    assert {"epsilon_spent", "right"} <= names
    spent = [metrics["epsilon_spent"] for metrics in kept.metrics if "epsilon_spent" in metrics]
    assert spent == sorted(spent)
    assert abs(spent[-1] - private.plan.guarantee(1e-3).epsilon) < 1e-5
    assert "train_loss" not in trainer.callback_metrics
    kept = Kept()
    fitted(tmp_path, private=strategy(log_private_loss=True), logger=kept, log_every_n_steps=2)
    assert "private_loss" in set().union(*kept.metrics)


def test_tensorboard_gets_epsilon(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = pl.loggers.TensorBoardLogger(tmp_path)
    fitted(tmp_path, logger=logger, log_every_n_steps=2)
    read = EventAccumulator(logger.log_dir)
    read.Reload()
    assert "epsilon_spent" in read.Tags()["scalars"]
    assert "train_loss" not in read.Tags()["scalars"]


def test_a_module_is_published(tmp_path: Path) -> None:
    *_, private = fitted(tmp_path)
    folder = private.publish(tmp_path / "model")
    assert pv.verify(folder).ok
    with pytest.raises(pv.errors.BadInput, match="nothing was trained"):
        strategy().result  # noqa: B018


class Mixing(Classifier):
    """Its loss is one of the batch; of one example at a time it is that example's own."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        weights = F.one_hot(y, 3).sum(0).to(x.dtype) + 1
        return {"loss": F.cross_entropy(self.net(x), y, weight=1 / weights)}


class Contrasting(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        codes = self.net(batch[0])
        return F.cross_entropy(codes @ codes.T, torch.arange(len(codes)))


class Mixed(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return F.cross_entropy(self.net(x / 2 + x.flip(0) / 2), y)


@pytest.mark.parametrize("module", [Contrasting, Mixed])
def test_a_loss_of_several_examples_is_warned_of(module: Any, tmp_path: Path) -> None:
    with pytest.warns(pv.errors.PrivacyWarning, match="another loss for a batch than the mean"):
        fitted(tmp_path, module())


def test_a_strategy_takes_a_config_of_privacy(tmp_path: Path) -> None:
    usual = {"epsilon": 4.0, "delta": 1e-3, "clip_norm": 0.5}
    *_, private = fitted(
        tmp_path, private=pv.lightning.PrivateStrategy(privacy=pv.PrivacyConfig(**usual))
    )
    assert private.plan == fitted(tmp_path)[-1].plan
    other = pv.lightning.PrivateStrategy(privacy=pv.PrivacyConfig(**usual, epochs=7))
    with pytest.raises(pv.errors.BadInput, match="privacy has epochs=7, and the Trainer"):
        fitted(tmp_path, private=other)


def test_a_step_that_couples_a_batch_is_computed_for_single_examples(tmp_path: Path) -> None:
    with pytest.warns(pv.errors.PrivacyWarning, match="another loss for a batch than the mean"):
        *_, private = fitted(tmp_path, Mixing())
    assert private.result.ledger.event == private.plan.event()


class Normed(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


class Manual(Classifier):
    automatic_optimization = False


class Twofold(Manual):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]


class Both(Classifier):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (self.net[0], self.net[2])]


class Unused(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Linear(2, 2)


class Many(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(rows())


@pytest.mark.parametrize(
    ("module", "train", "changes", "said"),
    [
        (Normed, None, {}, "BatchNorm1d"),
        (Manual, None, {}, "automatic_optimization = True"),
        (Twofold, None, {}, "does not give one optimizer.*parameter groups"),
        (Both, None, {}, "does not give one optimizer.*parameter groups"),
        (Unused, None, {}, "more.weight"),
        (Classifier, lambda: DataLoader(Many(), batch_size=8), {}, "terable"),
        (Classifier, lambda: loader(drop_last=True), {}, "drop_last"),
        (Classifier, lambda: {"a": loader(), "b": loader()}, {}, "several training loaders"),
        (Classifier, None, {"limit_train_batches": 1}, "limit_train_batches"),
        (Classifier, None, {"gradient_clip_val": 1.0}, "max_grad_norm"),
        (Classifier, None, {"limit_train_batches": 2}, "limit_train_batches"),
        (Classifier, None, {"max_epochs": -1}, "no end"),
        (Classifier, None, {"precision": "64-true"}, "precision"),
    ],
)
def test_what_cannot_be_private_is_refused_by_name(
    module: Any, train: Any, changes: Any, said: str, tmp_path: Path
) -> None:
    private = strategy(ledger=(ledger := pv.Ledger(pv.Budget(epsilon=4.0, delta=1e-3))))
    with pytest.raises(pv.errors.PrivlearnError, match=said):
        fitted(tmp_path, module(), private, train and train(), **changes)
    assert ledger.event == pv.Ledger().event  # nothing was spent


class OneCycle(Classifier):
    """As Lightning documents it; with its steps."""

    def configure_optimizers(self) -> Any:
        self.steps = self.trainer.estimated_stepping_batches
        return self.optimizers_for(self.steps)

    def optimizers_for(self, steps: int) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class Metered(OneCycle):
    """With a metric of its training rows, and smooth labels."""

    def __init__(self) -> None:
        super().__init__()
        from torchmetrics import MeanMetric

        self.mean = MeanMetric()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = F.cross_entropy(self.net(batch[0]), batch[1], label_smoothing=0.1)
        self.log("mean", self.mean(loss.detach()))
        return {"loss": loss}


class Autoencoder(OneCycle):
    """A variational one, whose noise is of the rows, so that it can be computed again."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        self.decoder = nn.Linear(2, 4)

    def noise(self, x: Tensor) -> Tensor:
        return x[:, :2]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, _ = batch
        mean, log_variance = self.net(x).chunk(2, dim=-1)
        latent = mean + self.noise(x) * (log_variance / 2).exp()
        divergence = (mean**2 + log_variance.exp() - 1 - log_variance).sum(1) / 2
        return F.mse_loss(self.decoder(latent), x, reduction="sum") / len(x) + divergence.mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("right", -self.training_step(batch, batch_idx))


class Drawing(Autoencoder):
    """The usual one."""

    def noise(self, x: Tensor) -> Tensor:
        return torch.randn_like(x[:, :2])


@pytest.mark.parametrize("module", [OneCycle, Metered, Autoencoder])
def test_weights_are_those_of_clipped_single_examples(module: Any, tmp_path: Path) -> None:
    """Up to next to no noise; of all examples in each step."""
    if module is Metered:
        pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")
    quiet = {"epsilon": None, "noise_multiplier": 1e-4, "max_grad_norm": 0.5, "sampling": "full"}
    _, trained, _ = fitted(
        tmp_path,
        module(),
        strategy(**quiet),
        max_epochs=4,
        train=loader(batch_size=10),
        accumulate_grad_batches=4,
    )
    twin = module()
    twin.log = lambda *_, **__: None
    (optimizer,), (config,) = twin.optimizers_for(4)
    x, y = rows().tensors
    parameters = list(twin.parameters())
    for _ in range(4):
        total = [torch.zeros_like(parameter) for parameter in parameters]
        for row in range(40):
            output = twin.training_step((x[row : row + 1], y[row : row + 1]), 0)
            loss = output["loss"] if isinstance(output, dict) else output
            gradients = torch.autograd.grad(loss, parameters)
            norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
            for part, gradient in zip(total, gradients, strict=True):
                part += gradient * min(1.0, 0.5 / float(norm)) / 40
        for parameter, part in zip(parameters, total, strict=True):
            parameter.grad = part
        optimizer.step()
        config["scheduler"].step()
    for own, its in zip(trained.parameters(), parameters, strict=True):
        assert float((own - its).detach().norm()) < 1e-3 * float(its.detach().norm()) + 1e-5


def test_a_variational_autoencoder_is_published(tmp_path: Path) -> None:
    *_, private = fitted(tmp_path, Drawing())
    assert pv.verify(private.publish(tmp_path / "model")).ok


class Particular(Classifier):
    """As those that find objects: it takes rows of a kind, and has losses in training alone."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        if not self.training or bool((x[:, 0] != 7).any()):
            raise ValueError("rows begin with a 7")
        return F.cross_entropy(self.net(x), y)


def test_rows_of_a_kind_are_made_up_by_the_script(tmp_path: Path) -> None:
    def beginning(batch: Any) -> Any:
        return torch.cat([batch[0][:, :1] * 0 + 7, batch[0][:, 1:]], 1), batch[1]

    data = TensorDataset(*beginning(rows().tensors))
    given = {"train": DataLoader(data, batch_size=8), "max_epochs": 1, "limit_val_batches": 0}
    with pytest.raises(pv.errors.BadInput, match=r"begin with a 7.*made_up"):
        fitted(tmp_path, Particular(), **given)
    *_, private = fitted(tmp_path, Particular(), strategy(made_up=beginning), **given)
    assert private.result.ledger.event == private.plan.event()


def test_other_stages_run_after_training(tmp_path: Path) -> None:
    class Whole(pl.LightningDataModule):
        def train_dataloader(self) -> Any:
            return loader()

        def val_dataloader(self) -> Any:
            return DataLoader(rows(1), batch_size=16)

        test_dataloader = predict_dataloader = val_dataloader

    class Tested(OneCycle):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.validation_step(batch, batch_idx)

        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            return self.net(batch[0])

    from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint

    kept = Kept()
    best = ModelCheckpoint(tmp_path / "checkpoints", monitor="right", mode="max")
    trainer = pl.Trainer(
        strategy=strategy(),
        max_epochs=2,
        accelerator="cpu",
        logger=kept,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[LearningRateMonitor("step"), best],
    )
    module, data = Tested(), Whole()
    trainer.fit(module, datamodule=data)
    rates = [metrics["lr-SGD"] for metrics in kept.metrics if "lr-SGD" in metrics]
    assert len(rates) == 10
    (validated,) = trainer.validate(module, datamodule=data, verbose=False)
    (tested,) = trainer.test(module, datamodule=data, verbose=False)
    assert validated == tested
    assert sum(map(len, trainer.predict(module, datamodule=data))) == 40
    trainer.test(module, datamodule=data, ckpt_path="best", weights_only=False, verbose=False)


@pytest.mark.parametrize(
    ("callback", "arguments", "said"),
    [
        ("StochasticWeightAveraging", (0.1,), "average="),
        ("EMAWeightAveraging", (), "average="),
        ("GradientAccumulationScheduler", ({0: 2},), "accumulate_grad_batches"),
        ("LearningRateFinder", (), "public rows"),
    ],
)
def test_callbacks_that_train_or_change_weights_are_refused(
    callback: str, arguments: Any, said: str, tmp_path: Path
) -> None:
    made = getattr(pl.callbacks, callback)(*arguments)
    with pytest.raises(pv.errors.BadInput, match=f"{callback} can't be used.*{said}"):
        fitted(tmp_path, callbacks=[made])


def test_a_run_is_not_resumed_from_lightnings_checkpoint(tmp_path: Path) -> None:
    trainer, module, _ = fitted(tmp_path, enable_checkpointing=True)
    path = trainer.checkpoint_callback.best_model_path
    again = pl.Trainer(
        strategy=strategy(),
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
    )
    with pytest.raises(pv.errors.BadInput, match="ckpt_path"):
        again.fit(module, loader(), ckpt_path=path, weights_only=False)


@pytest.mark.parametrize(
    "sampling", ["truncated-poisson:maximum=10", pv.sampling.TruncatedPoisson(0.2, 40, 10)], ids=str
)
def test_batches_may_have_a_maximum(sampling: Any, tmp_path: Path) -> None:
    trainer, _, private = fitted(tmp_path, private=strategy(sampling=sampling))
    assert private.result.plan.sampling == pv.sampling.TruncatedPoisson(0.2, 40, 10)
    assert private.result.ledger.event == private.result.plan.event()
    assert trainer.global_step == 10
