"""A `training_step` as a loss of single examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from privlearn._checks import quoted
from privlearn.core.clipping.model_check import without_dropout
from privlearn.errors import BadInput, NotPerExample, warn
from privlearn.lightning.step_metrics import StepMetrics
from privlearn.runs.public_numbers import declare_public
from privlearn.training.batch_losses import ConstantDraws


@final
class StepLoss:
    """`training_step` of a LightningModule, called with batches of one example: a loss of (model,
    batch).

    What it returns for one example is that example's loss, whatever it would do with a batch: a
    mean over one is the example's own. So nothing has to be believed of how it averages. The engine
    computes all examples of a batch at once where `torch.func.vmap` can follow the step, and one
    after the other where it can't.

    Args:
        metrics: of the module: no loss may follow from them.
    """

    #: Why it is slow, and what is faster.
    slowness = (
        "training_step is called with one example at a time, so that its mean is the example's own",
        "PrivateStrategy(loss=...), a function of (module, batch) to one value for each example",
    )

    def __init__(self, metrics: StepMetrics | None = None) -> None:
        self._metrics = metrics
        self._tried = metrics is None or not metrics.names
        self._compared, self._is_mean, self._is_nan_alone = False, True, False

    def __call__(self, model: Any, batch: Any) -> Tensor:
        """Shape (batch,)."""
        rows = len(tree_leaves(batch)[0])
        if not self._tried:  # on made-up rows
            self._require_no_metric(model, tree_map(lambda leaf: leaf[:1], batch))
            self._tried = True
        if not self._compared and rows > 1:  # on made-up rows, too
            self._compared = True
            self._compare(model, batch, rows)
        if self._is_nan_alone:
            raise NotPerExample(
                "training_step gives a loss for a batch, and nan for each of its examples alone: "
                "it couples examples, as a variance over the batch, a correlation or a "
                "normalisation does. Compute the loss from each example alone, and take the mean"
            )
        return torch.stack(
            [
                self._of_one(model, tree_map(lambda leaf, n=n: leaf[n : n + 1], batch))
                for n in range(rows)
            ]
        )

    def _require_no_metric(self, model: Any, row: Any) -> None:
        """Refuse a loss that follows from a metric of the module.

        Raises:
            NotPerExample: naming the metric.
        """
        assert self._metrics is not None
        losses = []
        for figure in (math.nan, 0.5):
            self._metrics.figure = figure
            with torch.random.fork_rng():
                losses.append(self._of_one(model, row))
        self._metrics.figure = math.nan
        if losses[0].isnan() and not losses[1].isnan():
            raise NotPerExample(
                f"the loss of training_step follows from the metric "
                f"{quoted(min(self._metrics.in_steps))}, which collects figures of several "
                "examples. Compute it by the function that torchmetrics.functional has for the "
                "metric, or by one of torch.nn.functional"
            )

    def _compare(self, model: Any, batch: Any, rows: int) -> None:
        """See whether the loss of a batch is the mean of its examples' losses."""
        device = tree_leaves(batch)[0].device
        with suppress(Exception), torch.no_grad(), without_dropout(model), ConstantDraws(device):
            together = self._of_one(model, batch)
            each = [
                self._of_one(model, tree_map(lambda leaf, n=n: leaf[n : n + 1], batch))
                for n in range(rows)
            ]
            mean = torch.stack(each).mean()
            self._is_nan_alone = bool(together.isfinite()) and all(map(torch.isnan, each))
            self._is_mean = torch.allclose(together, mean, rtol=1e-3, atol=1e-3)

    def warn_of_other_loss(self) -> None:
        """Warn where the loss of a made-up batch was another one than the mean of its examples'."""
        if not self._is_mean:
            warn(
                "training_step gives another loss for a batch than the mean of its examples' "
                "losses, as with class weights, pairs of examples or mixup. It is called with one "
                "example at a time, and each example's own loss is trained on. Write a loss that "
                "is the mean over examples, or give PrivateStrategy(loss=...)"
            )

    def _of_one(self, model: Any, row: Any) -> Tensor:
        output = model.training_step(row, 0)
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            description = (
                f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            )
            raise NotPerExample(
                f"training_step gave {description} for a batch of one example: expected its loss, "
                "a tensor of one number, or a dictionary with 'loss'"
            )
        return loss.reshape(())


@final
class TrainingLogs:
    """What a module logs while a private run trains it.

    Nothing of a step leaves it. What is logged between steps may follow from what a step kept in an
    attribute, so it goes to loggers alone: no callback, no scheduler and no progress bar can read
    it. What is logged in validation goes where it always does.

    Args:
        module: whose `log` and `lr_scheduler_step` are taken over, until `close`.
        trainer: whose loggers there are.

    Attributes:
        hidden: whether a step is computed, or tried on made-up rows.
        metrics: those of the module.
        in_steps: names that were logged meanwhile.
    """

    def __init__(self, module: nn.Module, trainer: Any) -> None:
        self._module, self._trainer = module, trainer
        self.hidden, self.in_steps = True, set[str]()
        self.metrics = StepMetrics(module, lambda: self.hidden)
        self._before = {name: vars(module).get(name) for name in ("log", "lr_scheduler_step")}
        module.__dict__["log"] = self._make_log()
        module.__dict__["lr_scheduler_step"] = self._make_scheduler_step()

    def _make_log(self) -> Callable[..., None]:
        """What takes the place of the module's `log`: a function, which copies of the module
        share.
        """
        usual: Any = self._module.log

        def log(name: str, value: Any, *args: Any, **options: Any) -> None:
            if self.hidden:
                self.in_steps.add(name)
            elif self._trainer.evaluating or self._trainer.sanity_checking:
                usual(name, value, *args, **options)
            elif isinstance(value, Tensor | int | float):
                self.to_loggers(name, float(value), self._trainer.global_step)

        return log

    def _make_scheduler_step(self) -> Callable[..., None]:
        """What takes the place of the module's `lr_scheduler_step`: metrics that schedulers monitor
        are of public rows, and the Trainer steps schedulers when its settings say so.
        """
        usual: Any = self._module.lr_scheduler_step

        def lr_scheduler_step(scheduler: Any, metric: Any) -> None:
            if metric is not None:
                metric = declare_public(metric, because="a metric of the validation rows")
            usual(scheduler, metric)
            self._declare_frequency(scheduler, usual)

        return lr_scheduler_step

    def _declare_frequency(self, scheduler: Any, method: Any) -> None:
        """Declare the rates of a scheduler that the Trainer steps at every n-th turn alone."""
        (config,) = [
            each for each in self._trainer.lr_scheduler_configs if each.scheduler is scheduler
        ]
        trainers = str(method.__module__).partition(".")[0] in ("lightning", "pytorch_lightning")
        if trainers and config.frequency > 1:
            for group in scheduler.optimizer.param_groups:
                because = (
                    f"the Trainer steps a scheduler every {config.frequency} {config.interval}s"
                )
                group["lr"] = declare_public(group["lr"], because=because)

    def to_loggers(self, name: str, value: float, step: int) -> None:
        """Log where nothing but people can read it."""
        for logger in self._trainer.loggers:
            logger.log_metrics({name: value}, step=step)

    def publicly(self, name: str, value: float, *, prog_bar: bool = False) -> None:
        """Log a public figure, which callbacks may read, too."""
        module: Any = self._module
        options = {"on_step": True, "on_epoch": False, "batch_size": 1, "prog_bar": prog_bar}
        type(module).log(module, name, value, **options)

    @contextmanager
    def in_a_step(self) -> Iterator[None]:
        """A block in which what is logged goes nowhere: it is private, and it may be a tensor
        inside vmap.
        """
        self.hidden = True
        try:
            yield
        finally:
            self.hidden = False

    def require_public_monitors(self, private: str) -> None:
        """Refuse callbacks and schedulers that wait for figures of private rows, before anything is
        spent.

        Args:
            private: the name of another such figure.

        Raises:
            BadInput: naming the metric and who monitors it.
        """
        configs = [
            config for config in self._trainer.lr_scheduler_configs if config.reduce_on_plateau
        ]
        watching = [(callback, callback) for callback in self._trainer.callbacks] + [
            (config, config.scheduler) for config in configs
        ]
        for watcher, whose in watching:
            monitor = str(getattr(watcher, "monitor", None))
            if monitor.removesuffix("_step").removesuffix("_epoch") in {private, *self.in_steps}:
                raise BadInput(
                    f"{type(whose).__name__} monitors {quoted(monitor)}, a figure of the private "
                    "training rows: what it decides would follow from them. Log a metric of "
                    "public rows in validation_step, under another name, and monitor that"
                )

    def close(self) -> None:
        """Give the module's methods back, and those of its metrics."""
        self.metrics.close()
        for name, before in self._before.items():
            self._module.__dict__.pop(name, None)
            if before is not None:
                self._module.__dict__[name] = before
