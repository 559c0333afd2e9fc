"""Named checks of `PrivateStrategy`; planted bugs must make them fail. They skip where lightning is not installed."""

from __future__ import annotations

import tempfile
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
    """A loss that weighs classes by how often the batch has them is, for one example at a time, that example's own."""
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
    assert not {"train_loss", "private_loss"} & (set().union(*kept.metrics) | set(trainer.callback_metrics))


@check
def check_an_empty_batch_is_a_step_of_the_strategy() -> None:
    """Of one example a batch on average, every third is empty."""
    parts = _parts()
    with tempfile.TemporaryDirectory() as folder:
        trainer, _, private = parts.fitted(
            Path(folder), train=DataLoader(parts.rows(), batch_size=1), max_epochs=1, log_every_n_steps=100
        )
    assert trainer.global_step == 40
    assert private.result.ledger.event == private.plan.event()
    assert not private.result.facts.get("left_early")


@check
def check_metrics_that_the_step_updates_are_refused() -> None:
    parts = _parts()
    metrics = pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")

    class Counting(parts.Classifier):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.right = metrics.MeanMetric()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.right.update(batch[0].detach().sum())
            return F.cross_entropy(self.net(batch[0]), batch[1])

    with tempfile.TemporaryDirectory() as folder:
        must_raise(pv.errors.PrivlearnError, lambda: parts.fitted(Path(folder), Counting()))


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
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict("os.environ", {"WORLD_SIZE": "2"}):
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
        torch.randint(20, (40, 5), generator=torch.Generator().manual_seed(0)), parts.rows().tensors[1]
    )
    joined = ConcatDataset([parts.rows()] * 2)

    def fitted(**given: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            return parts.fitted(Path(folder), max_epochs=1, limit_val_batches=0, **given)

    error = must_raise(BadInput, lambda: fitted(train=DataLoader(joined, batch_size=8)))
    assert "one row stands 2 times in the data" in str(error), error
    *_, private = fitted(train=DataLoader(joined, batch_size=8), private=parts.strategy(group_size=2))
    assert private.plan.unit.group_size == 2
    error = must_raise(NotPerExample, lambda: fitted(module=Texts(), train=DataLoader(texts, batch_size=8)))
    assert "EmbeddingBag at 'net.0' has max_norm=1.0" in str(error), error
