"""What progress shows on a screen, and what is logged elsewhere: public figures, at each epoch."""

from __future__ import annotations

import io
import sys
import types
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import privlearn as pv
from privlearn.errors import BadInput
from tests.runs.checks_callbacks import At, plan, trained

FIGURES = {"epsilon", "noise_multiplier", "learning_rate"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def expected() -> list[dict[str, float]]:
    """The figures of each epoch."""
    seen, epsilons = At(), []

    class Priced:
        def on_epoch(self, progress: pv.runs.TrainingProgress) -> None:
            epsilons.append(progress.epsilon)

    trained(plan(), [seen, Priced()])
    ends = [progress for name, _, progress in seen.given if name == "on_epoch"]
    return [
        {
            "epsilon": epsilon,
            "noise_multiplier": end.noise_multiplier,
            "learning_rate": end.learning_rate,
        }
        for epsilon, end in zip(epsilons, ends, strict=True)
    ]


def test_a_bar_is_written_over_on_a_screen_and_a_line_an_epoch_in_a_file() -> None:
    screen, file = Terminal(), io.StringIO()
    with mock.patch("privlearn.runs.loggers._OFTEN", 0.0):
        trained(plan(), [pv.runs.ProgressBar(screen), pv.runs.ProgressBar(file)])
    *_, last = screen.getvalue().split("\r")
    assert last.startswith("epoch 2/2, step 8/8, epsilon 3 spent, 0:0")
    assert last.endswith("\n")
    assert "left" in screen.getvalue()
    lines = file.getvalue().splitlines()
    assert [line.split(",")[1] for line in lines] == [" step 4/8", " step 8/8", " step 8/8"]
    assert all("spent" in line and "left" not in line for line in lines)


def test_in_a_notebook_a_bar_is_no_error() -> None:
    notebook = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})
    out, err = notebook(), notebook()
    with mock.patch.object(sys, "stdout", out), mock.patch.object(sys, "stderr", err):
        trained(plan(), pv.runs.ProgressBar())
    assert "\repoch 2/2, step 8/8" in out.getvalue()
    assert not err.getvalue()


def test_a_bar_of_a_plan_without_a_delta_says_no_epsilon() -> None:
    file = io.StringIO()
    trained(pv.Plan(pv.Poisson(0.25), 1, pv.schedules.Constant(2.0)), pv.runs.ProgressBar(file))
    assert "spent" not in file.getvalue()


def test_weights_and_biases_is_given_public_figures() -> None:
    logged: list[Any] = []
    run = types.SimpleNamespace(
        log=lambda figures, step: logged.append((step, figures)),
        finish=lambda: logged.append("finished"),
    )
    for under_way in (False, True):
        logged.clear()
        fake = types.SimpleNamespace(
            run=run if under_way else None, init=lambda **own: logged.append(own) or run
        )
        with mock.patch.dict(sys.modules, {"wandb": fake}):
            trained(plan(), pv.runs.WandB() if under_way else pv.runs.WandB(project="p"))
        kept = list(zip((4, 8), expected(), strict=True))
        assert logged == (kept if under_way else [{"project": "p"}, *kept, "finished"])


def test_mlflow_is_given_public_figures() -> None:
    logged: list[Any] = []
    for active in (None, object()):
        logged.clear()
        fake = types.SimpleNamespace(
            active_run=lambda active=active: active,
            start_run=lambda: logged.append("started"),
            log_metrics=lambda figures, step: logged.append((step, figures)),
            end_run=lambda: logged.append("ended"),
        )
        with mock.patch.dict(sys.modules, {"mlflow": fake}):
            trained(plan(), pv.runs.MLflow())
        kept = list(zip((4, 8), expected(), strict=True))
        assert logged == (kept if active else ["started", *kept, "ended"])


def test_tensorboard_is_given_public_figures() -> None:
    logged: list[Any] = []

    class SummaryWriter:
        def __init__(self, folder: str | None) -> None:
            logged.append(folder)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            logged.append((name, value, step))

        def close(self) -> None:
            logged.append("closed")

    fake = types.SimpleNamespace(SummaryWriter=SummaryWriter)
    with mock.patch.dict(sys.modules, {"torch.utils.tensorboard": fake}):
        trained(plan(), pv.runs.TensorBoard("logs"))
    kept = [
        (f"privacy/{name}", figures[name], step)
        for step, figures in zip((4, 8), expected(), strict=True)
        for name in ("epsilon", "noise_multiplier", "learning_rate")
    ]
    assert logged == ["logs", *kept, "closed"]


def test_a_real_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    trained(plan(), pv.runs.TensorBoard(str(tmp_path)))
    read = accumulators.EventAccumulator(str(tmp_path))
    read.Reload()
    assert {name.removeprefix("privacy/") for name in read.Tags()["scalars"]} == FIGURES
    epsilons = [(event.step, event.value) for event in read.Scalars("privacy/epsilon")]
    assert epsilons == [
        (step, pytest.approx(own["epsilon"])) for step, own in zip((4, 8), expected(), strict=True)
    ]


def test_a_logger_that_is_not_installed_is_named() -> None:
    for name, make in {
        "wandb": pv.runs.WandB,
        "mlflow": pv.runs.MLflow,
        "tensorboard": pv.runs.TensorBoard,
    }.items():
        missing = dict.fromkeys((name, f"torch.utils.{name}"))
        with (
            mock.patch.dict(sys.modules, missing),
            pytest.raises(BadInput, match=f"pip install {name}"),
        ):
            make()
