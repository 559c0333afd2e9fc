"""`PrivateStrategy`, `PrivateDDPStrategy`: the steps of Lightning's Trainer are those of a private
run.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, final

import torch
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from torch import Tensor, nn
from torch.utils.data import DataLoader

from privlearn._figures import plain
from privlearn.core.clipping.sharded.models import is_sharded
from privlearn.core.devices import usual_device
from privlearn.core.processes import require_one_process
from privlearn.data.torch_rows import share_rows
from privlearn.errors import BadInput, first_line
from privlearn.lightning.frozen_weights import FrozenWeights
from privlearn.lightning.progress import TrainerProgress
from privlearn.lightning.step_loss import StepLoss, TrainingLogs
from privlearn.loop import make_private
from privlearn.publishing.publish import name_call, publish
from privlearn.runs.compute import ComputeConfig
from privlearn.runs.given import device_of
from privlearn.runs.result import Result
from privlearn.runs.transcript import Transcript
from privlearn.training.epoch_loader import DrawnBatch, EpochLoader, drawn_batch
from privlearn.training.noted_weights import NotedWeights
from privlearn.training.privacy_config import PrivacyConfig
from privlearn.training.run import Run

#: What the training loss is called in logs.
_PRIVATE_LOSS = "private_loss"
#: What the price of the steps so far is called there.
_SPENT = "epsilon_spent"
_AVERAGE = (
    "give PrivateStrategy(average=0.5), which publishes the mean of the weights over the last half "
    "of the steps"
)
#: Settings of a Trainer that a private run can't follow: what it has to be, and what to do.
_EXPECTED: dict[str, tuple[Any, str]] = {
    "gradient_clip_val": (
        None,
        "leave it out, and give PrivateStrategy(max_grad_norm=C), which clips each example's "
        "gradient",
    ),
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
#: What to do in place of callbacks that train, or that change the weights or the steps. Without
#: them such runs could not be published; this says so before anything is spent.
_INSTEAD = {
    "StochasticWeightAveraging": _AVERAGE,
    "WeightAveraging": _AVERAGE,
    "GradientAccumulationScheduler": "give Trainer(accumulate_grad_batches=K) one number",
    "LearningRateFinder": (
        "it would choose by the loss of private rows. Set the rate yourself, or find it by a plain "
        "Trainer on public rows"
    ),
    "BatchSizeFinder": (
        "it would train on private rows. Set batch_size, and give PrivateStrategy(microbatch=B), "
        "the examples that fit into memory at once"
    ),
}


@final
class _TrainerEpochs:
    """The epochs of a run as the Trainer's loader. The run may be made later, once there is an
    optimizer; its steps are known.

    Args:
        steps: in an epoch.
        between: called before each batch is asked for, and not after the last one.
    """

    def __init__(self, steps: int, between: Callable[[], None]) -> None:
        self._steps, self._between = steps, between
        self.epochs: EpochLoader | None = None

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[DrawnBatch]:
        self._between()
        assert self.epochs is not None
        for batch in self.epochs:
            yield batch
            self._between()


class _PrivateSteps(Strategy):
    """What both strategies do in place of Lightning's own steps."""

    def _take(
        self,
        loss: Callable[..., Tensor] | None,
        *,
        made_up: Callable[[Any], Any] | None,
        log_private_loss: bool,
        prog_bar: bool,
        settings: dict[str, Any],
    ) -> None:
        """Keep the arguments."""
        self._require_checkpoint(settings.get("checkpoint"))
        self._loss, self._logs_loss, self._settings = loss, log_private_loss, settings
        self._prog_bar = prog_bar
        self._logged = 0  # steps, when the price was logged last
        self._made_up = made_up
        self.private: Run | None = None
        self._epochs: _TrainerEpochs | None = None
        self._loader: Any = None  # of training, where the run is made later
        self._accumulated = 1
        self._trained_on: Any = None
        self._trainer: Any = None
        self._result: Result | None = None
        self._logs: TrainingLogs | None = None
        self._noted: NotedWeights | None = None
        self._progress: TrainerProgress | None = None
        self._frozen: FrozenWeights | None = None
        self._unclaimed = ""  # why nothing could be claimed when the run began
        self._validated: list[Any] = []  # the data sets of validation loaders

    def setup(self, trainer: Any) -> None:
        """Refuse settings of the trainer that can't be private; then as every strategy."""
        self._trainer = trainer
        if trainer.state.fn != "fit":
            super().setup(trainer)
            return
        if self.private is not None:
            raise BadInput(
                "this strategy has trained: make another one, with the same ledger if the data are "
                "the same"
            )
        self._require_settings(trainer)
        # of one step all examples are drawn at once
        self._accumulated, trainer.accumulate_grad_batches = trainer.accumulate_grad_batches, 1
        super().setup(trainer)
        module = self.lightning_module
        if len(self.optimizers) != 1:
            raise self._several_optimizers()
        if not module.automatic_optimization:
            raise BadInput(
                f"{type(module).__name__} steps by itself: expected automatic_optimization = True, "
                "and a training_step that returns the loss. For other loops there is "
                "pv.make_private"
            )

    def setup_optimizers(self, trainer: Any) -> None:
        """As every strategy; of several optimizers Lightning would say to step them by hand."""
        try:
            super().setup_optimizers(trainer)
        except RuntimeError as error:
            if "multiple optimizers" not in str(error):
                raise
            raise self._several_optimizers() from error

    def _several_optimizers(self) -> BadInput:
        """What is said of a module that has not one optimizer."""
        return BadInput(
            f"configure_optimizers of {type(self.lightning_module).__name__} does not give one "
            "optimizer: expected one with parameter groups, such as Adam([{'params': a, 'lr': r}, "
            "...]), automatic_optimization = True, and one loss. For losses that take turns, as a "
            "GAN's, train what sees rows by pv.make_private"
        )

    @staticmethod
    def _require_settings(trainer: Any) -> None:
        """Refuse settings and callbacks of a trainer, by name."""
        for name, (expected, instead) in _EXPECTED.items():
            value = getattr(trainer, name, expected)
            if name == "limit_train_batches" and trainer.fast_dev_run:
                continue  # which ends after so many steps, too
            if value != expected or type(value) is not type(expected):
                raise BadInput(f"Trainer({name}={value!r}) can't be used: {instead}", name=name)
        for callback in trainer.callbacks:
            for kind in type(callback).__mro__:
                if kind.__name__ in _INSTEAD:
                    raise BadInput(
                        f"the callback {type(callback).__name__} can't be used: "
                        f"{_INSTEAD[kind.__name__]}"
                    )
        if trainer.max_epochs is None or trainer.max_epochs < 1:
            raise BadInput(
                f"Trainer(max_epochs={trainer.max_epochs}) has no end, which the noise follows "
                "from: give the number of epochs, max_epochs=K. With max_steps=N the run may end "
                "before"
            )
        if trainer.precision not in ("32-true", "bf16-mixed"):
            raise BadInput(
                f"Trainer(precision={trainer.precision!r}) can't be used: expected 32-true or "
                "bf16-mixed"
            )

    def process_dataloader(self, dataloader: object) -> object:
        """The run's batches for the training loader, the first after the sanity check; other
        loaders unchanged.

        A `configure_optimizers` that asks for `trainer.estimated_stepping_batches` has the training
        loader processed before there is an optimizer: the run is then made when training begins.
        """
        trainer = self._trainer
        if trainer.state.fn != "fit" or trainer.sanity_checking or self._epochs is not None:
            self._validated.append(getattr(dataloader, "dataset", None))
            self._require_public_validation()
            return super().process_dataloader(dataloader)
        self._require_processes()
        self._trained_on = getattr(dataloader, "dataset", None)
        self._require_public_validation()
        if self._accumulated > 1:
            dataloader = _with_larger_batches(dataloader, self._accumulated)
        if self.optimizers:
            epochs = self._make_run(dataloader)
            self._epochs = _TrainerEpochs(len(epochs), self._between_steps)
            self._epochs.epochs = epochs
        else:
            self._loader = dataloader
            self._epochs = _TrainerEpochs(self._count_steps(dataloader), self._between_steps)
        return self._epochs

    def _between_steps(self) -> None:
        """The Trainer asks for the next batch."""
        assert self._progress is not None
        assert self._frozen is not None
        self._progress.skip_steps()
        self._frozen.require_same()

    def _arguments(self, dataloader: Any) -> dict[str, Any]:
        """The arguments of `make_private` beside the model, the optimizer and the loader."""
        settings = {"epochs": self._trainer.max_epochs, **self._settings}
        privacy = settings.get("privacy")
        if isinstance(privacy, PrivacyConfig):
            epochs = settings.pop("epochs")
            if privacy.epochs not in (None, epochs):
                raise BadInput(
                    f"privacy has epochs={privacy.epochs}, and the Trainer max_epochs={epochs}: "
                    "leave epochs out of privacy, or give both the same number"
                )
            settings["privacy"] = replace(privacy, epochs=epochs)
        computed: dict[str, Any] = {}
        if self._trainer.precision == "bf16-mixed":
            computed["precision"] = "bf16"
        config = settings.get("config")
        microbatch = settings.get("microbatch") or (config and config.microbatch)
        if self._accumulated > 1 and microbatch is None:
            computed["microbatch"] = max(1, dataloader.batch_size // self._accumulated)
        return settings | (computed if config is None else {"config": replace(config, **computed)})

    def _count_steps(self, dataloader: Any) -> int:
        """The steps in an epoch: of a run that is made to count them, and never begins."""
        module = self.lightning_module
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        arguments = {
            name: value
            for name, value in self._arguments(dataloader).items()
            if name not in ("ledger", "streams", "loss", "checkpoint")
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the run that is made later warns
            planned = make_private(module, torch.optim.Adam(trained), dataloader, **arguments)
        return planned.steps_per_epoch

    def _make_run(self, dataloader: Any) -> EpochLoader:
        """Make the run, try its step on made-up rows, and begin it."""
        module = self.lightning_module
        self._logs = TrainingLogs(module, self._trainer)
        step_loss = StepLoss(self._logs.metrics)
        loss: Any = self._loss or step_loss
        try:
            private = make_private(
                module,
                self.optimizers[0],
                dataloader,
                **{**self._arguments(dataloader), "loss": loss, "made_up": self._made_up},
            )
            private.require_gradients()
            step_loss.warn_of_other_loss()
            self._logs.require_public_monitors(_PRIVATE_LOSS)
        except BaseException:
            self._logs.close()
            raise
        self._logs.metrics.warn()
        self._logs.hidden = False
        self.private, self._noted = private, NotedWeights(private)
        self._progress = TrainerProgress(self._trainer)
        private.keep(trainer=self._progress, weights=self._noted)
        private.begin()
        self._unclaimed = private.unclaimed
        self._frozen = FrozenWeights(module)
        self._progress.resume(private)
        if private.state == "over":  # all of it was released before an interruption
            self._end_run()
        return EpochLoader(private)

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

    def _require_checkpoint(self, checkpoint: Any) -> None:
        """Refuse a checkpoint that a run of this strategy can't go on from."""
        if isinstance(checkpoint, Transcript):
            raise BadInput(
                "a transcript records the weights of the last step, and the Trainer may publish "
                "those of another: give checkpoint=FILE, or record a run of pv.make_private"
            )

    def _require_processes(self) -> None:
        """Refuse processes that would not train together."""

    def on_train_start(self) -> None:
        """Refuse several training loaders; make the run, if it could not be made before."""
        super().on_train_start()
        if self._trainer.train_dataloader is not self._epochs:
            raise BadInput(
                "there are several training loaders: give one, whose rows the batches are drawn "
                "from"
            )
        if self._epochs.epochs is None:
            self._epochs.epochs = self._make_run(self._loader)
            if len(self._epochs.epochs) != len(self._epochs):
                raise BadInput(
                    f"the plan has {len(self._epochs.epochs)} steps in an epoch, and "
                    f"{len(self._epochs)} were expected before there was an optimizer: give "
                    "sampling= in place of 'best', or the scheduler a number of steps"
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
        assert self._frozen is not None
        with self._logs.in_a_step():
            seen = self.private.step(drawn_batch(args[0]))
        self._frozen.note()
        self._require_claimable()
        steps, usual = self.private.steps_done, self._trainer.log_every_n_steps
        regular = steps % max(1, usual) == 0
        if regular or steps % self.private.steps_per_epoch == 0 or steps == self._trainer.max_steps:
            self._log_spent(regular=regular)
            if self._logs_loss:
                self._logs.to_loggers(_PRIVATE_LOSS, plain(seen["loss"]), steps)
        return torch.tensor(math.nan, device=self.root_device)

    def _require_claimable(self) -> None:
        """End a run for which nothing can be claimed any more, rather than at its publication."""
        assert self.private is not None
        unclaimed = self.private.unclaimed
        if unclaimed and not self._unclaimed:
            raise BadInput(f"training ends here, because nothing could be claimed: {unclaimed}")

    def _log_spent(self, *, regular: bool) -> None:
        """Log the price of the steps so far; at the end of an epoch also where the Trainer itself
        logs nothing.
        """
        assert self.private is not None
        assert self._logs is not None
        epsilon = self.private.spent(self._delta).epsilon
        self._logs.publicly(_SPENT, epsilon, prog_bar=self._prog_bar)
        if not regular:
            self._logs.to_loggers(_SPENT, epsilon, self.private.steps_done - 1)
        self._logged = self.private.steps_done

    def _log_last_spent(self) -> None:
        """Log the price of all steps, where the last of them did not."""
        if self.private is None or self._logs is None or self._logged == self.private.steps_done:
            return
        epsilon = self.private.spent(self._delta).epsilon
        self._trainer.callback_metrics[_SPENT] = torch.tensor(epsilon, device="cpu")
        self._logs.to_loggers(_SPENT, epsilon, self.private.steps_done - 1)

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
                "ckpt_path can't be used with fit: a private run goes on from its own checkpoint "
                "alone, where noise is drawn again as it was. Give PrivateStrategy(checkpoint="
                "'run.private') from the beginning on, and call fit without ckpt_path to go on"
            )
        loaded: dict[str, Any] = super().load_checkpoint(checkpoint_path, weights_only=weights_only)
        return loaded

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """As every strategy; weights that are saved between two steps may be published."""
        in_a_step = self._logs is not None and self._logs.hidden
        if self._noted is not None and self._result is None and not in_a_step:
            self._noted.note()
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def on_train_end(self) -> None:
        """The run is over: what was not charged is given back."""
        super().on_train_end()
        self._log_last_spent()
        self._trainer.accumulate_grad_batches = self._accumulated
        if self._logs is not None:
            self._logs.close()
        if self._result is None:
            self._end_run()

    def _end_run(self) -> None:
        """Take the run's result."""
        assert self.private is not None
        assert self._noted is not None
        result = self.private.result()
        schedulers = [
            type(config.scheduler).__name__ for config in self._trainer.lr_scheduler_configs
        ]
        rates = {"learning_rate_schedule": ", ".join(schedulers)} if schedulers else {}
        self._result = replace(result, facts=result.facts | rates)
        self._noted.end()

    def on_exception(self, exception: BaseException) -> None:
        """The same."""
        super().on_exception(exception)
        if self._trainer is not None:
            self._trainer.accumulate_grad_batches = self._accumulated
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

    def publish(
        self, folder: str | Path, *, ckpt_path: str | Path | None = None, **arguments: Any
    ) -> Path:
        """Write the module's weights with a certificate: `pv.publish`, with its named arguments.

        Guarantee: that of `plan`, whichever step's weights they are, if public rows chose the step.

        Args:
            folder: to be made.
            ckpt_path: "best", or a file that ModelCheckpoint or `trainer.save_checkpoint` wrote
                during fit: its weights are published, and the module has them then. The
                certificate says which step they are of, and claims all steps. By default the
                weights that the module has.
            arguments: of `pv.publish`.

        Raises:
            BadInput: nothing was trained; the weights are not those that the run had after a step;
                or as `pv.publish`.
        """
        result, noted = self.result, self._noted
        assert noted is not None
        if ckpt_path is not None:
            self._load_weights(self._checkpoint_of(ckpt_path), noted)
        with name_call("strategy.publish("):
            return publish(noted.recognise(result), folder, **arguments)

    def _checkpoint_of(self, ckpt_path: str | Path) -> str | Path:
        """The path of a checkpoint; "best" is that of the Trainer's first ModelCheckpoint."""
        if ckpt_path != "best":
            return ckpt_path
        path: str = getattr(self._trainer.checkpoint_callback, "best_model_path", "")
        if not path:
            raise BadInput(
                "ckpt_path is 'best', and no ModelCheckpoint of the Trainer has saved any: give "
                "Trainer(callbacks=[ModelCheckpoint(monitor=..., mode=...)]), or leave it out"
            )
        return path

    def _load_weights(self, path: str | Path, noted: NotedWeights) -> None:
        """Let the module have a checkpoint's trained weights, if the run had them."""
        try:
            loaded = self.checkpoint_io.load_checkpoint(path, weights_only=True)
            weights = loaded["state_dict"]
        except (OSError, KeyError, RuntimeError, UnpicklingError) as error:
            raise BadInput(
                f"{path} can't be read as weights: {first_line(error)[:80]}. If you trust the "
                "file, call module.load_state_dict(torch.load(path, weights_only=False)"
                "['state_dict']), and publish without ckpt_path"
            ) from error
        noted.require_known(weights)
        with torch.no_grad():
            for name, weight in self.private.model.named_parameters():  # type: ignore[union-attr]
                if name in noted.names:
                    weight.copy_(weights[name])


def _with_larger_batches(dataloader: Any, times: int) -> Any:
    """A loader like this one, whose batches are so many times as large; one of batches that have no
    size is left as it is, and refused later.
    """
    if type(dataloader) is not DataLoader or dataloader.batch_size is None:
        return dataloader
    return DataLoader(
        dataloader.dataset,
        batch_size=times * dataloader.batch_size,
        sampler=dataloader.sampler,
        collate_fn=dataloader.collate_fn,
        num_workers=dataloader.num_workers,
        worker_init_fn=dataloader.worker_init_fn,
        drop_last=dataloader.drop_last,
    )


class PrivateStrategy(_PrivateSteps, SingleDeviceStrategy):
    """A Lightning strategy with differential privacy:
    `Trainer(strategy=PrivateStrategy(epsilon=3, delta=1e-5, ...))`.

    Guarantee: that of `plan`, for the module after the last step and after each. The module, its
    `training_step`, `configure_optimizers`, callbacks and loggers stay as they are. The training
    loader is read for its rows, and batches are drawn from them (`pv.make_private`);
    `training_step` is called with one example at a time (`StepLoss`), unless `loss` is given.
    `epsilon_spent` is logged every `log_every_n_steps` steps and at each epoch's end. What
    `training_step` logs is private, and goes nowhere, and what is logged between steps goes to
    loggers alone. Validation and test loaders are used as they are: their metrics are not covered,
    and the rows are to be public.

    Args:
        device: where to compute; by default the first GPU, if there is one. Or that of `config`.
        loss: a function of (module, batch) to one value for each example, shape (batch,), in place
            of `training_step`: faster.
        made_up: a function that changes a batch of made-up rows, on which steps are tried, into one
            that the module accepts. It never gets rows of the data.
        log_private_loss: whether loggers get the training loss as `private_loss`, which no
            guarantee covers. Callbacks and schedulers do not: one that monitors it is refused.
        prog_bar: whether the progress bar shows `epsilon_spent`, too.
        settings: the arguments of `pv.make_private` but for the model, the optimizer, the loader
            and the epochs: epsilon, delta, max_grad_norm, examples, microbatch, ... With
            `checkpoint=FILE` an interrupted run goes on when fit is called again, without
            ckpt_path, and ends bit for bit where it would have ended.

    Raises:
        NotPerExample: the module or the loss couples examples; when training begins, before
            anything is spent.
        BadInput: what can't be private, by name; or a launcher started several processes.
    """

    strategy_name = "private"

    def __init__(
        self,
        device: str | int | torch.device | None = None,
        loss: Callable[..., Tensor] | None = None,
        *,
        made_up: Callable[[Any], Any] | None = None,
        log_private_loss: bool = False,
        prog_bar: bool = False,
        **settings: Any,
    ) -> None:
        config = settings.get("config")
        if config is not None:
            device = ComputeConfig.of(
                {"config": config, **({} if device is None else {"device": device})}
            ).device
            settings |= {"config": replace(config, device=None)}
        super().__init__(device_of(usual_device() if device is None else device, nn.Module()))
        self._take(
            loss,
            made_up=made_up,
            log_private_loss=log_private_loss,
            prog_bar=prog_bar,
            settings=settings,
        )

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
        loss, made_up, log_private_loss, prog_bar, settings: as of `PrivateStrategy`.

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
        made_up: Callable[[Any], Any] | None = None,
        log_private_loss: bool = False,
        prog_bar: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__()
        self._take(
            loss,
            made_up=made_up,
            log_private_loss=log_private_loss,
            prog_bar=prog_bar,
            settings=settings,
        )

    def _require_checkpoint(self, checkpoint: Any) -> None:
        if checkpoint is not None:
            raise BadInput(
                "checkpoint= is for one process: give it to PrivateStrategy, or train by "
                "pv.make_private, whose runs go on in several processes, too"
            )

    def teardown(self) -> None:
        """As DDPStrategy does; but a module under FSDP2 stays where it is."""
        if self.lightning_module is None or not is_sharded(self.lightning_module):
            super().teardown()
            return
        self.precision_plugin.teardown()
        assert self.accelerator is not None
        self.accelerator.teardown()
        self.checkpoint_io.teardown()

    def configure_ddp(self) -> None:
        """Nothing: the run shares out the batches and adds up what was clipped, and copies the
        first weights.
        """
