"""Callbacks that show a run or log it elsewhere: epsilon, noise and learning rate, which are
public; nothing else.
"""

from __future__ import annotations

import sys
import time
from importlib import import_module
from typing import Any, TextIO, final

from privlearn.errors import BadInput
from privlearn.runs.callbacks import Callback, TrainingProgress

#: Seconds between two lines of a bar.
_OFTEN = 0.2


def public_figures(progress: TrainingProgress) -> dict[str, float]:
    """What is logged of a run: epsilon so far (where the plan has a delta), noise multiplier,
    learning rate.
    """
    known = {
        "epsilon": progress.epsilon,
        "noise_multiplier": progress.noise_multiplier,
        "learning_rate": progress.learning_rate,
    }
    return {name: value for name, value in known.items() if value is not None}


@final
class ProgressBar(Callback):
    """A line on the screen: steps, the time that is left, and what was spent by the last epoch; in
    a notebook, too.

    Where output goes to a file there is a line for each epoch.

    Args:
        file: where to write; by default standard error, and in a notebook standard output.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._file, self._written, self._began = file, 0.0, (0.0, 0)
        self._spent, self._length = "", 0

    def on_step(self, progress: TrainingProgress) -> None:
        """Write the line anew, a few times a second."""
        now = time.monotonic()
        if self._began == (0.0, 0):
            self._began = (now, progress.step)
        if self._overwrites and now - self._written >= _OFTEN:
            began, first = self._began
            left = (now - began) / max(1, progress.step - first) * (progress.steps - progress.step)
            self._write(
                progress, f", about {_duration(left)} left" if progress.step > first else ""
            )
            self._written = now

    def on_epoch(self, progress: TrainingProgress) -> None:
        """Say what was spent so far."""
        self._spent = "" if progress.epsilon is None else f", epsilon {progress.epsilon:.3g} spent"
        self._write(progress, "")

    def on_end(self, progress: TrainingProgress) -> None:
        """End the line."""
        self._spent = "" if progress.epsilon is None else f", epsilon {progress.epsilon:.3g} spent"
        self._write(progress, f", {_duration(progress.seconds)}")
        self._out.write("\n" if self._overwrites else "")

    @property
    def _out(self) -> TextIO:
        return self._file or (sys.stdout if _in_notebook(sys.stdout) else sys.stderr)

    @property
    def _overwrites(self) -> bool:
        """Whether a line can be written over: a terminal's, or a notebook's."""
        return self._out.isatty() or _in_notebook(self._out)

    def _write(self, progress: TrainingProgress, more: str) -> None:
        share = (
            f"epoch {progress.epoch + 1}/{progress.epochs}, step {progress.step}/{progress.steps}"
        )
        text = f"{share}{self._spent}{more}"
        self._out.write(f"\r{text.ljust(self._length)}" if self._overwrites else f"{text}\n")
        self._out.flush()
        self._length = len(text)


@final
class TensorBoard(Callback):
    """Logs a run for TensorBoard, at each epoch's last step (`pip install tensorboard`).

    Args:
        folder: where to; by default runs/ with the date.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._writer: Any = _module("torch.utils.tensorboard", "tensorboard").SummaryWriter(folder)

    def on_epoch(self, progress: TrainingProgress) -> None:
        """Log the epoch."""
        for name, value in public_figures(progress).items():
            self._writer.add_scalar(f"privacy/{name}", value, progress.step)

    def on_end(self, progress: TrainingProgress) -> None:
        """Write what is left."""
        self._writer.close()


@final
class WandB(Callback):
    """Logs a run to Weights & Biases, at each epoch's last step (`pip install wandb`).

    Args:
        settings: of `wandb.init`, such as project="..."; a run that is under way is used, and left
            open.
    """

    def __init__(self, **settings: Any) -> None:
        wandb = _module("wandb")
        self._began_run = wandb.run is None
        self._run: Any = wandb.init(**settings) if self._began_run else wandb.run

    def on_epoch(self, progress: TrainingProgress) -> None:
        """Log the epoch."""
        self._run.log(public_figures(progress), step=progress.step)

    def on_end(self, progress: TrainingProgress) -> None:
        """End the run, if it was begun here."""
        if self._began_run:
            self._run.finish()


@final
class MLflow(Callback):
    """Logs a run to MLflow, at each epoch's last step, into the active run or a new one
    (`pip install mlflow`).
    """

    def __init__(self) -> None:
        self._mlflow = _module("mlflow")
        self._began_run = self._mlflow.active_run() is None
        if self._began_run:
            self._mlflow.start_run()

    def on_epoch(self, progress: TrainingProgress) -> None:
        """Log the epoch."""
        self._mlflow.log_metrics(public_figures(progress), step=progress.step)

    def on_end(self, progress: TrainingProgress) -> None:
        """End the run, if it was begun here."""
        if self._began_run:
            self._mlflow.end_run()


def _in_notebook(file: TextIO) -> bool:
    return type(file).__module__.startswith("ipykernel")


def _module(name: str, package: str | None = None) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        package = package or name
        raise BadInput(
            f"{package} is not installed, and runs are logged by it: pip install {package}"
        ) from error


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
