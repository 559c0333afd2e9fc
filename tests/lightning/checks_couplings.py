"""Named checks of models and losses that couple examples, through `PrivateStrategy`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import privlearn as pv
from tests.support.checks import check
from tests.support.couplings import ExampleLosses, Row, require_apart


def by_strategy(
    network: nn.Module,
    data: list[Row],
    plan: pv.Plan,
    losses: ExampleLosses,
    move: Callable[[nn.Module], None],
    *,
    at_once: bool,
) -> str | None:
    """A LightningModule around the network; its `training_step`, or `at_once` the argument `loss`,
    has the loss.
    """
    pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = network

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return each(self, batch).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Moves(pl.Callback):  # type: ignore[misc]
        def on_train_batch_start(self, *given: Any) -> None:
            move(network)

    def each(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return losses(
            module.net(**{name: leaf for name, leaf in batch.items() if name != "labels"}),
            batch["labels"],
        )

    private = pv.lightning.PrivateStrategy(
        "cpu",
        each if at_once else None,
        noise_multiplier=1.0,
        max_grad_norm=plan.clip.clip_norm,
        sampling="full",
        adjacency=plan.adjacency,
        examples=plan.examples,
        streams=pv.Streams.new(0),
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            strategy=private,
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            default_root_dir=folder,
            callbacks=[Moves()],
        )
        trainer.fit(Module(), DataLoader(data, batch_size=len(data)))
    return private.private.task.gradients.way


@check
def check_examples_that_a_training_step_couples_stay_apart() -> None:
    """What users wrote, and what a program draws: one row moves the sum before noise by at most the
    sensitivity.
    """
    require_apart(partial(by_strategy, at_once=False), at_once=False)


@check
def check_examples_that_are_coupled_stay_apart_in_the_strategy() -> None:
    """The same where the strategy is given a loss of (module, batch), which is computed for many
    examples at once.
    """
    require_apart(partial(by_strategy, at_once=True))
