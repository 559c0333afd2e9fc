"""Named checks of `PrivateStrategy`; planted bugs must make them fail. They skip where lightning is
not installed.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

import privlearn as pv
from privlearn.errors import BadInput, NotPerExample
from tests.support.checks import check, must_raise


def _parts() -> Any:
    pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    from tests.lightning import test_lightning

    return test_lightning


@check
def check_a_training_step_sees_one_example() -> None:
    """A loss that weighs classes by how often the batch has them is, for one example at a time,
    that example's own.
    """
    parts = _parts()
    from privlearn.lightning.step_loss import StepLoss

    module = parts.Mixing()
    x, y = (leaf[:6] for leaf in parts.rows().tensors)
    own = StepLoss()(module, (x, y))
    assert torch.allclose(own, F.cross_entropy(module.net(x), y, reduction="none"), atol=1e-6)


@check
def check_nothing_private_is_logged_by_the_strategy() -> None:
    parts = _parts()
    kept = parts.Kept()
    with tempfile.TemporaryDirectory() as folder:
        trainer, _, _ = parts.fitted(Path(folder), logger=kept, log_every_n_steps=1, max_epochs=1)
    assert "epsilon_spent" in set().union(*kept.metrics)
    assert not {"train_loss", "private_loss"} & (
        set().union(*kept.metrics) | set(trainer.callback_metrics)
    )


@check
def check_the_training_loss_goes_to_loggers_alone() -> None:
    """Nothing that callbacks and schedulers read has it."""
    parts = _parts()
    kept = parts.Kept()
    with tempfile.TemporaryDirectory() as folder:
        trainer, _, private = parts.fitted(
            Path(folder),
            private=parts.strategy(log_private_loss=True),
            logger=kept,
            log_every_n_steps=1,
        )
    losses = [metrics["private_loss"] for metrics in kept.metrics if "private_loss" in metrics]
    assert len(losses) == 10
    assert abs(sum(losses) / 10 - sum(private.result.private_diagnostics["loss"]) / 2) < 0.2
    for read in (trainer.callback_metrics, trainer.logged_metrics, trainer.progress_bar_metrics):
        assert "private_loss" not in read
    assert {"right", "epsilon_spent"} <= set(trainer.callback_metrics)


@check
def check_monitors_of_private_figures_are_refused() -> None:
    """Of the training loss, and of what the step logs; by name, before anything is spent. Others
    are as they were.
    """
    parts = _parts()
    callbacks: Any = pytest.importorskip(
        "lightning.pytorch.callbacks", reason="lightning is not installed"
    )

    class Plateau(parts.Classifier):  # type: ignore[misc,name-defined]
        monitor = "private_loss"

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, patience=0, threshold=9.0, mode="max"
            )
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": scheduler, "monitor": self.monitor},
            }

    class Public(Plateau):
        monitor = "right"

    def refused(module: Any = None, own: Any = None) -> str:
        ledger = pv.Ledger(pv.Budget(4.0, 1e-3))
        with tempfile.TemporaryDirectory() as folder:
            private = parts.strategy(log_private_loss=True, ledger=ledger)
            said = must_raise(
                pv.errors.BadInput,
                lambda: parts.fitted(
                    Path(folder),
                    module,
                    private,
                    callbacks=[own] if own else [],
                    enable_checkpointing=True,
                ),
            )
        assert ledger.event == pv.Ledger().event
        assert "validation_step" in str(said)
        return str(said)

    assert "EarlyStopping monitors 'private_loss'" in refused(
        own=callbacks.EarlyStopping("private_loss")
    )
    assert "EarlyStopping monitors 'train_loss'" in refused(
        own=callbacks.EarlyStopping("train_loss")
    )
    with tempfile.TemporaryDirectory() as folder:
        kept = callbacks.ModelCheckpoint(folder, monitor="train_loss_epoch")
        assert "ModelCheckpoint" in refused(own=kept)
    assert "ReduceLROnPlateau monitors 'private_loss'" in refused(Plateau())
    with tempfile.TemporaryDirectory() as folder:
        stopping = callbacks.EarlyStopping("right", mode="max", patience=9)
        trainer, _, private = parts.fitted(Path(folder), Public(), callbacks=[stopping])
        assert trainer.optimizers[0].param_groups[0]["lr"] < 0.1
        assert pv.verify(private.publish(Path(folder) / "model")).ok


@check
def check_what_is_kept_from_a_step_steers_nothing() -> None:
    """A step that keeps its loss in an attribute, and a hook that logs it: loggers get it,
    callbacks do not.
    """
    parts = _parts()

    class Keeping(parts.Classifier):  # type: ignore[misc,name-defined]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.last = loss.shape
            return loss

        def on_train_epoch_end(self) -> None:
            self.log_dict({"kept": torch.tensor(0.25 + len(self.last)), "more": 0.5})

    kept = parts.Kept()
    with tempfile.TemporaryDirectory() as folder:
        trainer, module, _ = parts.fitted(Path(folder), Keeping(), logger=kept, log_every_n_steps=1)
    assert {"kept", "more"} <= set().union(*kept.metrics)
    assert not {"kept", "more", "train_loss"} & set(trainer.callback_metrics)
    assert "log" not in vars(module)


@check
def check_validation_rows_are_not_those_of_training() -> None:
    """Nor some of them, in any form that can be recognised; other parts of one data set are
    fine.
    """
    parts = _parts()
    from torch.utils.data import ConcatDataset, Subset, TensorDataset

    whole = parts.rows()
    train, others = Subset(whole, range(30)), Subset(whole, range(30, 40))
    tensors = TensorDataset(*(own[25:30] for own in whole.tensors))

    def fitted(validation: Any, sanity: int) -> Any:
        trainer = parts.pl.Trainer(
            strategy=parts.strategy(),
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            num_sanity_val_steps=sanity,
        )
        trainer.fit(
            parts.Classifier(),
            DataLoader(train, batch_size=8),
            DataLoader(validation, batch_size=8),
        )
        return trainer

    for sanity in (0, 2):
        for validation in (
            train,
            whole,
            Subset(whole, [29]),
            ConcatDataset([others, Subset(train, [0])]),
            tensors,
        ):
            said = must_raise(pv.errors.BadInput, partial(fitted, validation, sanity))
            assert "has training rows" in str(said)
        assert "right" in fitted(others, sanity).callback_metrics


@check
def check_an_empty_batch_is_a_step_of_the_strategy() -> None:
    """Of one example a batch on average, every third is empty."""
    parts = _parts()
    with tempfile.TemporaryDirectory() as folder:
        trainer, _, private = parts.fitted(
            Path(folder),
            train=DataLoader(parts.rows(), batch_size=1),
            max_epochs=1,
            log_every_n_steps=100,
        )
    assert trainer.global_step == 40
    assert private.result.ledger.event == private.plan.event()
    assert not private.result.facts.get("left_early")


@check
def check_metrics_of_a_step_hold_nothing_of_a_row() -> None:
    """Those that a step calls or updates, in a list, in a collection or by themselves; between
    steps they give no figure. Validation's figures are what they are.
    """
    parts = _parts()
    metrics = pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")

    def accuracy(top_k: int = 1) -> Any:
        return metrics.Accuracy("multiclass", num_classes=3, top_k=top_k)

    class Counting(parts.Classifier):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.both, self.called, self.areas = accuracy(), accuracy(), metrics.CatMetric()
            self.listed = [metrics.MeanMetric()]
            self.pair = metrics.MetricCollection({"two": accuracy(2), "all": accuracy(3)})
            self.between: list[Any] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            out = self.net(batch[0])
            loss = F.cross_entropy(out, batch[1])
            self.log("called", self.called(out, batch[1]))
            self.pair.update(out, batch[1])
            self.both.update(out, batch[1])
            self.listed[0].update(loss)
            self.areas.update(loss)
            return loss

        def on_train_epoch_end(self) -> None:
            alone = (self.called, self.areas, self.listed[0])
            self.between += [metric.compute() for metric in alone]

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            out = self.net(batch[0])
            self.both.update(out, batch[1])
            self.pair.update(out, batch[1])

        def on_validation_epoch_end(self) -> None:
            self.log("both", self.both.compute())
            self.log_dict(self.pair.compute())

    with tempfile.TemporaryDirectory() as folder, pytest.warns(UserWarning, match="stays as it"):
        trainer, module, private = parts.fitted(
            Path(folder), Counting(), max_epochs=1, num_sanity_val_steps=0
        )
    assert len(module.between) == 3
    assert all(figure.isnan().all() and figure.numel() == 1 for figure in module.between)
    for metric in (module.called, module.listed[0], module.areas):
        assert not metric._update_count, metric
        for name, default in metric._defaults.items():
            held = getattr(metric, name)
            assert held == default if isinstance(default, list) else torch.equal(held, default)
    x, y = parts.rows(1).tensors
    scores = module.net(x).topk(3).indices == y[:, None]
    right = [float(scores[:, :k].any(1).float().mean()) for k in (1, 2, 3)]
    validated = [float(trainer.callback_metrics[name]) for name in ("both", "two", "all")]
    assert torch.allclose(torch.tensor(validated), torch.tensor(right))
    assert "called" not in trainer.callback_metrics
    assert private.private.task.gradients.way == "vmap"


@check
def check_a_loss_that_follows_from_a_metric_is_refused() -> None:
    parts = _parts()
    metrics = pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")

    class Collected(parts.Classifier):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.error = metrics.MeanSquaredError()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.error(self.net(batch[0]), F.one_hot(batch[1], 3).float())

    class Computed(Collected):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            mean_squared_error = metrics.functional.mean_squared_error
            return mean_squared_error(self.net(batch[0]), F.one_hot(batch[1], 3).float())

    with tempfile.TemporaryDirectory() as folder:
        error = must_raise(NotPerExample, lambda: parts.fitted(Path(folder), Collected()))
        assert "'error'" in str(error)
        parts.fitted(Path(folder), Computed(), max_epochs=1)


@check
def check_a_scheduler_may_ask_for_the_steps_first() -> None:
    """Before there is an optimizer; the run is then as any other."""
    parts = _parts()

    def fitted(**changes: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            return parts.fitted(Path(folder), parts.OneCycle(), max_epochs=2, **changes)

    for sanity in (0, 2):
        trainer, module, private = fitted(num_sanity_val_steps=sanity)
        assert (module.steps, trainer.global_step) == (10, 10)
        assert private.result.ledger.event == private.plan.event()
        assert not private.result.facts.get("unclaimed")
        assert trainer.optimizers[0].param_groups[0]["lr"] < 0.01
        assert "right" in trainer.callback_metrics
    same = DataLoader(parts.rows(), batch_size=8)
    for sanity in (0, 2):
        trainer = parts.pl.Trainer(
            strategy=parts.strategy(),
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
            num_sanity_val_steps=sanity,
        )
        error = must_raise(BadInput, partial(trainer.fit, parts.OneCycle(), same, same))
        assert "has training rows" in str(error)


@check
def check_accumulated_batches_are_one_batch() -> None:
    """Of so many loaders' batches, with the price of its rate."""
    parts = _parts()
    with tempfile.TemporaryDirectory() as folder:
        trainer, module, private = parts.fitted(
            Path(folder), parts.OneCycle(), max_epochs=3, accumulate_grad_batches=2
        )
    assert private.plan.sampling == pv.Poisson(0.4)
    assert private.result.ledger.event == private.plan.event()
    assert (module.steps, trainer.global_step) == (9, 9)
    assert private.private.config.microbatch == 8
    assert trainer.accumulate_grad_batches == 2


@check
def check_weights_that_the_step_does_not_use_are_named() -> None:
    parts = _parts()
    with tempfile.TemporaryDirectory() as folder:
        said = must_raise(pv.errors.BadInput, lambda: parts.fitted(Path(folder), parts.Unused()))
    assert "more.weight" in str(said)
    assert isinstance(parts.Unused().more, nn.Linear)


@check
def check_the_strategy_for_one_process_takes_one() -> None:
    parts = _parts()
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict("os.environ", {"WORLD_SIZE": "2"}),
    ):
        said = must_raise(pv.errors.BadInput, lambda: parts.fitted(Path(folder)))
    assert "PrivateDDPStrategy" in str(said)


@check
def check_repeated_rows_and_tables_that_rescale_are_refused_by_the_strategy() -> None:
    parts = _parts()

    class Texts(parts.Classifier):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.EmbeddingBag(20, 4, max_norm=1.0), nn.Linear(4, 3))

    texts = TensorDataset(
        torch.randint(20, (40, 5), generator=torch.Generator().manual_seed(0)),
        parts.rows().tensors[1],
    )
    joined = ConcatDataset([parts.rows()] * 2)

    def fitted(**given: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            return parts.fitted(Path(folder), max_epochs=1, limit_val_batches=0, **given)

    error = must_raise(BadInput, lambda: fitted(train=DataLoader(joined, batch_size=8)))
    assert "one row stands 2 times in the data" in str(error), error
    *_, private = fitted(
        train=DataLoader(joined, batch_size=8), private=parts.strategy(group_size=2)
    )
    assert private.plan.unit.group_size == 2
    error = must_raise(
        NotPerExample, lambda: fitted(module=Texts(), train=DataLoader(texts, batch_size=8))
    )
    assert "EmbeddingBag at 'net.0' has max_norm=1.0" in str(error), error


@check
def check_a_trainers_rates_follow_counts_and_public_metrics() -> None:
    """Nothing that a module keeps of its steps, and hands to a scheduler or to the optimizer."""
    parts = _parts()
    schedulers = torch.optim.lr_scheduler

    class Keeping(parts.Classifier):  # type: ignore[misc,name-defined]
        last = 1.0

        def settings(self) -> dict[str, Any]:
            return {"interval": "step"}

        def scheduler(self, optimizer: Any) -> Any:
            return schedulers.StepLR(optimizer, 3)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            scheduler = {"scheduler": self.scheduler(optimizer), **self.settings()}
            return {"optimizer": optimizer, "lr_scheduler": scheduler}

        def on_train_batch_end(self, *_: Any) -> None:
            self.last *= 0.9  # stands for what it kept of a step

    class Sets(Keeping):
        def on_train_batch_end(self, *_: Any) -> None:
            self.trainer.optimizers[0].param_groups[0]["lr"] *= 0.9

    class Reads(Keeping):
        def scheduler(self, optimizer: Any) -> Any:
            return schedulers.LambdaLR(optimizer, lambda step: self.last)

    class Seldom(Keeping):
        def settings(self) -> dict[str, Any]:
            return {"interval": "epoch", "frequency": 2}

    class Gives(Keeping):
        def settings(self) -> dict[str, Any]:
            return {"monitor": "right"}

        def scheduler(self, optimizer: Any) -> Any:
            return schedulers.ReduceLROnPlateau(optimizer, patience=0)

        def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
            scheduler.step(self.last)

    class Passes(Gives):
        def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
            scheduler.step(metric)

    for module, said in (
        (Keeping(), ""),
        (Seldom(), ""),
        (Passes(), ""),
        (Sets(), "changed by hand"),
        (Reads(), "a scheduler or its function reads"),
        (Gives(), "a scheduler was given a number"),
    ):
        private = parts.strategy()
        with tempfile.TemporaryDirectory() as folder:
            fit = partial(parts.fitted, Path(folder), module, private, max_epochs=5)
            if said:
                assert said in str(must_raise(BadInput, fit)), module
            else:
                fit()
        unclaimed = private.private.session.unclaimed
        assert said in unclaimed, module
        assert bool(said) == bool(unclaimed), module
