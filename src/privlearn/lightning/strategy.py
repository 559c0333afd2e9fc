"""`PrivateStrategy`, `PrivateDDPStrategy`: the steps of Lightning's Trainer are those of a private
run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from torch import Tensor, nn

from privlearn._figures import plain
from privlearn.core.processes import require_one_process
from privlearn.data.torch_rows import share_rows
from privlearn.errors import BadInput
from privlearn.lightning.step_loss import StepLoss, TrainingLogs, no_metrics_in
from privlearn.loop import make_private
from privlearn.publishing.publish import publish
from privlearn.runs.compute import ComputeConfig
from privlearn.runs.given import device_of
from privlearn.runs.result import Result
from privlearn.training.epoch_loader import EpochLoader, drawn_batch
from privlearn.training.run import Run

#: What the training loss is called in logs.
_PRIVATE_LOSS = "private_loss"
#: Settings of a Trainer that a private run can't follow: what it has to be, and what to do.
_EXPECTED: dict[str, tuple[Any, str]] = {
    "accumulate_grad_batches": (
        1,
        "make the loader's batches larger, with microbatch= for what fits into memory",
    ),
    "gradient_clip_val": (None, "max_grad_norm= of PrivateStrategy clips each example's gradient"),
    "limit_train_batches": (
        1.0,
        "an epoch has as many batches as the plan says: set max_epochs or max_steps",
    ),
    "overfit_batches": (0.0, "batches are drawn anew for each step: leave it out"),
    "reload_dataloaders_every_n_epochs": (
        0,
        "the rows of a private run stay what they are: leave it out",
    ),
}


class _PrivateSteps(Strategy):
    """What both strategies do in place of Lightning's own steps."""

    def _take(
        self,
        loss: Callable[..., Tensor] | None,
        *,
        log_private_loss: bool,
        settings: dict[str, Any],
    ) -> None:
        """Keep the arguments."""
        if settings.get("checkpoint") is not None:
            raise BadInput(
                "checkpoint= is not for Lightning's Trainer, which could not go on from it: use "
                "pv.make_private"
            )
        self._loss, self._logs_loss, self._settings = loss, log_private_loss, settings
        self.private: Run | None = None
        self._epochs: EpochLoader | None = None
        self._trained_on: Any = None
        self._trainer: Any = None
        self._result: Result | None = None
        self._logs: TrainingLogs | None = None
        self._validated: list[Any] = []  # the data sets of validation loaders

    def setup(self, trainer: Any) -> None:
        """Refuse settings of the trainer that can't be private; then as every strategy."""
        super().setup(trainer)
        self._trainer = trainer
        if trainer.state.fn != "fit":
            return
        if self.private is not None:
            raise BadInput(
                "this strategy has trained: make another one, with the same ledger if the data are "
                "the same"
            )
        for name, (expected, instead) in _EXPECTED.items():
            value = getattr(trainer, name, expected)
            if value != expected:
                raise BadInput(f"Trainer({name}={value!r}) can't be used: {instead}", name=name)
        if trainer.max_epochs is None or trainer.max_epochs < 1:
            raise BadInput(
                f"Trainer(max_epochs={trainer.max_epochs}) has no end: give a number, which the "
                "noise follows from"
            )
        if trainer.precision not in ("32-true", "bf16-mixed"):
            raise BadInput(
                f"Trainer(precision={trainer.precision!r}) can't be used: expected 32-true or "
                "bf16-mixed"
            )
        module = self.lightning_module
        if not module.automatic_optimization or len(self.optimizers) != 1:
            raise BadInput(
                f"{type(module).__name__} has {len(self.optimizers)} optimizers, or steps by "
                "itself: expected one, and automatic optimization; several parameter groups are "
                "fine. For other loops there is pv.make_private"
            )

    def process_dataloader(self, dataloader: object) -> object:
        """The run's batches for the training loader, the first after the sanity check; other
        loaders unchanged.
        """
        trainer = self._trainer
        if trainer.state.fn != "fit" or trainer.sanity_checking or self.private is not None:
            self._validated.append(getattr(dataloader, "dataset", None))
            self._require_public_validation()
            return super().process_dataloader(dataloader)
        self._require_processes()
        module = self.lightning_module
        settings = {**self._settings, "loss": self._loss or StepLoss()}
        if trainer.precision == "bf16-mixed":
            config = settings.get("config")
            settings |= (
                {"precision": "bf16"}
                if config is None
                else {"config": replace(config, precision="bf16")}
            )
        self._trained_on = getattr(dataloader, "dataset", None)
        self._require_public_validation()
        self._logs = TrainingLogs(module, trainer)
        try:
            with no_metrics_in(module):
                private = make_private(
                    module, self.optimizers[0], dataloader, epochs=trainer.max_epochs, **settings
                )
                private.require_gradients()
            self._logs.require_public_monitors(_PRIVATE_LOSS)
        except BaseException:
            self._logs.close()
            raise
        self._logs.hidden = False
        self.private, self._epochs = private, EpochLoader(private)
        private.begin()
        return self._epochs

    def _require_public_validation(self) -> None:
        """Refuse validation on training rows, whose metrics callbacks would follow."""
        if self._trainer.state.fn == "fit" and any(
            map(partial(share_rows, self._trained_on), self._validated)
        ):
            raise BadInput(
                "a validation loader has training rows: its metrics would be of private rows, "
                "without noise, and callbacks follow them. Validate on public rows, or leave the "
                "loader out"
            )

    def _require_processes(self) -> None:
        """Refuse processes that would not train together."""

    def on_train_start(self) -> None:
        """Refuse several training loaders."""
        super().on_train_start()
        if self._trainer.train_dataloader is not self._epochs:
            raise BadInput(
                "there are several training loaders: give one, whose rows the batches are drawn "
                "from"
            )

    def batch_to_device(self, batch: Any, device: Any = None, dataloader_idx: int = 0) -> Any:
        """The run brings its rows to the device itself."""
        return (
            batch
            if self._trainer.training
            else super().batch_to_device(batch, device, dataloader_idx)
        )

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """A private step, the optimizer's included. What is returned has nothing to be
        differentiated.
        """
        assert self.private is not None
        assert self._logs is not None
        with self._logs.in_a_step():
            seen = self.private.step(drawn_batch(args[0]))
        steps, every = self.private.steps_done, self._trainer.log_every_n_steps
        if steps % max(1, every) == 0 or steps % self.private.steps_per_epoch == 0:
            self._logs.publicly("epsilon_spent", self.private.spent(self._delta).epsilon)
            if self._logs_loss:
                self._logs.to_loggers(_PRIVATE_LOSS, plain(seen["loss"]), steps)
        return torch.tensor(math.nan, device=self.root_device)

    def backward(self, closure_loss: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Nothing: the step was taken."""
        return closure_loss

    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any
    ) -> Any:
        """Nothing but the closure, in which the step is taken."""
        return closure()

    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """A checkpoint, not for resuming training: noise would be drawn anew for steps that were
        taken before.
        """
        if self.lightning_module.trainer.state.fn == "fit":
            raise BadInput(
                "ckpt_path can't be used with fit: a private run can't go on from Lightning's "
                "checkpoint. Load its weights into the module, and begin another run with the same "
                "ledger"
            )
        loaded: dict[str, Any] = super().load_checkpoint(checkpoint_path, weights_only=weights_only)
        return loaded

    def on_train_end(self) -> None:
        """The run is over: what was not charged is given back."""
        super().on_train_end()
        if self._logs is not None:
            self._logs.close()
        if self.private is not None and self._result is None:
            result = self.private.result()
            schedulers = [
                type(config.scheduler).__name__ for config in self._trainer.lr_scheduler_configs
            ]
            rates = {"learning_rate_schedule": ", ".join(schedulers)} if schedulers else {}
            self._result = replace(result, facts=result.facts | rates)

    def on_exception(self, exception: BaseException) -> None:
        """The same."""
        super().on_exception(exception)
        if self._logs is not None:
            self._logs.close()
        if self.private is not None:
            self.private.close(exception)

    @property
    def _delta(self) -> float:
        delta = self._settings.get("delta")
        return 1e-5 if delta is None else float(delta)

    @property
    def plan(self) -> Any:
        """What is spent, and how; once training has begun."""
        return self.result.plan

    @property
    def result(self) -> Result:
        """What was trained, with its ledger, plan and private diagnostics.

        Raises:
            BadInput: nothing was trained yet.
        """
        if self._result is None:
            raise BadInput(
                "nothing was trained yet: call fit of the Trainer that has this strategy"
            )
        return self._result

    def publish(self, folder: str | Path, **arguments: Any) -> Path:
        """Write the module's weights with a certificate: `pv.publish`, with its named arguments."""
        return publish(self.result, folder, **arguments)


class PrivateStrategy(_PrivateSteps, SingleDeviceStrategy):
    """A Lightning strategy with differential privacy:
    `Trainer(strategy=PrivateStrategy(epsilon=3, delta=1e-5, ...))`.

    Guarantee: that of `plan`, for the module after the last step and after each. The module, its
    `training_step`, `configure_optimizers`, callbacks and loggers stay as they are. The training
    loader is read for its rows, and batches are drawn from them (`pv.make_private`);
    `training_step` is called with one example at a time (`StepLoss`), unless `loss` is given.
    `epsilon_spent` is logged; what `training_step` logs is private, and goes nowhere, and what is
    logged between steps goes to loggers alone. Validation and test loaders are used as they are:
    their metrics are not covered, and the rows are to be public.

    Args:
        device: where to compute; by default the first GPU, if there is one. Or that of `config`.
        loss: a function of (module, batch) to one value for each example, shape (batch,), in place
            of `training_step`: faster.
        log_private_loss: whether loggers get the training loss as `private_loss`, which no
            guarantee covers. Callbacks and schedulers do not: one that monitors it is refused.
        settings: the arguments of `pv.make_private` but for the model, the optimizer, the loader
            and the epochs: epsilon, delta, max_grad_norm, examples, microbatch, ...

    Raises:
        NotPerExample: the module or the loss couples examples; when training begins, before
            anything is spent.
        BadInput: what can't be private, by name; or a launcher started several processes.
    """

    strategy_name = "private"

    def __init__(
        self,
        device: str | torch.device | None = None,
        loss: Callable[..., Tensor] | None = None,
        *,
        log_private_loss: bool = False,
        **settings: Any,
    ) -> None:
        config = settings.get("config")
        if config is not None:
            device = ComputeConfig.of(
                {"config": config, **({} if device is None else {"device": device})}
            ).device
            settings |= {"config": replace(config, device=None)}
        usual = "cuda:0" if torch.cuda.is_available() else "cpu"
        super().__init__(device_of(usual if device is None else device, nn.Module()))
        self._take(loss, log_private_loss=log_private_loss, settings=settings)

    def _require_processes(self) -> None:
        require_one_process("PrivateStrategy", "give the Trainer strategy=PrivateDDPStrategy(...)")


class PrivateDDPStrategy(_PrivateSteps, DDPStrategy):
    """`PrivateStrategy` in several processes, which share every batch:
    `Trainer(strategy=..., devices=2)`.

    Processes are started as for Lightning's DDPStrategy, by its own launcher or by torchrun. The
    guarantee, the samples, the noise and the certificate are those of one process, whose batches
    have the loader's batch size: all processes share a batch of that size, and the module is not
    wrapped in DistributedDataParallel. See docs/distributed.md.

    Args:
        loss, log_private_loss, settings: as of `PrivateStrategy`.

    Raises:
        NotPerExample, BadInput: as `PrivateStrategy`; or there are not 1, 2, 4, 8 or a higher power
            of two of them.
        ProcessLost: another process ended, or did something else.
    """

    strategy_name = "private_ddp"

    def __init__(
        self,
        loss: Callable[..., Tensor] | None = None,
        *,
        log_private_loss: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__()
        self._take(loss, log_private_loss=log_private_loss, settings=settings)

    def configure_ddp(self) -> None:
        """Nothing: the run shares out the batches and adds up what was clipped, and copies the
        first weights.
        """
