"""Named check of models and losses that couple examples, through `PrivateTrainer`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils.data import default_collate

import privlearn as pv
from tests.support import texts as made
from tests.support.checks import check
from tests.support.couplings import ExampleLosses, Row, require_apart


def by_trainer(
    network: nn.Module,
    data: list[Row],
    plan: pv.Plan,
    losses: ExampleLosses,
    move: Callable[[nn.Module], None],
) -> str | None:
    """A model of transformers around the network; the loss is given as `compute_loss_func`."""
    transformers = made.require_transformers()

    class CoupledForSequenceClassification(transformers.PreTrainedModel):  # type: ignore[misc]
        config_class = transformers.PretrainedConfig

        def __init__(self) -> None:
            super().__init__(transformers.PretrainedConfig(num_labels=4))
            self.net = network

        def forward(self, labels: Tensor | None = None, **columns: Tensor) -> Any:
            return transformers.modeling_outputs.SequenceClassifierOutput(
                logits=self.net(**columns)
            )

    class Moves(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            move(network)

    def compute_loss_func(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return losses(outputs.logits, labels)

    with tempfile.TemporaryDirectory() as folder:
        trainer = pv.huggingface.PrivateTrainer(
            CoupledForSequenceClassification(),
            made.arguments(folder, num_train_epochs=1, remove_unused_columns=False),
            train_dataset=data,
            data_collator=default_collate,
            plan=plan,
            callbacks=[Moves()],
            compute_loss_func=compute_loss_func,
            streams=pv.Streams.new(0),
        )
        trainer.train()
    return trainer.private.task.gradients.way


@check
def check_examples_that_are_coupled_stay_apart_in_the_trainer() -> None:
    """What users wrote, and what a program draws: one row moves the sum before noise by at most the
    sensitivity.
    """
    require_apart(by_trainer)
