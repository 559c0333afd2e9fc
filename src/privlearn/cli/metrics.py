"""Test metrics of a run, exact or released with noise on its ledger (`--paid-metrics`), and the rows of its table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from privlearn._checks import positive
from privlearn.accounting.guarantee import PrivacyUnit
from privlearn.accounting.ledger import Ledger
from privlearn.data import Dataset
from privlearn.errors import BadInput
from privlearn.metrics import evaluate
from privlearn.statistics.metric_figures import Metrics, MetricsPlan
from privlearn.streams import Streams

if TYPE_CHECKING:
    from privlearn.cli.jobs import Job, Opened

#: What `--metric` calls the figures, and what tables do.
NAMES = {
    "accuracy": ("accuracy", "accuracy"),
    "log-loss": ("log_loss", "log loss"),
    "auc": ("auc", "AUC"),
    "calibration-error": ("expected_calibration_error", "calibration error"),
    "balanced-accuracy": ("balanced_accuracy", "balanced accuracy"),
}


def approved(job: Job, opened: Opened) -> tuple[Opened, MetricsPlan | None]:
    """The ledger with both plans approved, that of the run and that of its metrics, where these are released.

    Raises:
        BadInput: metrics can't be released in this run; before anything is spent.
        BudgetExceeded: the ledger has no room for both.
    """
    request, data = opened.request, job.data
    if request.paid_metrics is None:
        return opened, None
    if job.plan is None or data.classes is None or (data.y is not None and data.y.ndim > 1):
        raise BadInput(
            f"--paid-metrics is for classifiers whose plan is known beforehand: leave it out of --method "
            f"{request.method} on {data.name}"
        )
    if data.x_test is None:
        raise BadInput("--paid-metrics needs test rows: give --test-data PATH, or leave it out")
    if job.plan.unit != PrivacyUnit(job.plan.unit.group_size):
        raise BadInput(
            "--paid-metrics protects rows, and the plan persons: leave out --rows-per-person, or --paid-metrics"
        )
    positive("--paid-metrics", request.paid_metrics)
    plan = MetricsPlan(data.classes, job.plan.neighbours, group_size=job.plan.unit.group_size)
    plan = plan.calibrate(epsilon=request.paid_metrics, delta=request.delta)
    ledger = Ledger() if opened.ledger is None else opened.ledger
    if not (request.resume and ledger.path):  # where both were approved before the interruption
        ledger.approve(job.plan, plan)
    return replace(opened, ledger=ledger), plan


def released(model: nn.Module, data: Dataset, plan: MetricsPlan, opened: Opened) -> Metrics:
    """Metrics of the test rows, released and charged."""
    # Never the run's own noise again: with a seed other streams of it, else new ones.
    streams = Streams.new(opened.request.seed, rank=1, discrete=opened.request.discrete)
    return evaluate(model, *data.test_tensors(), paid=plan, ledger=opened.ledger, streams=streams)


def metric_rows(metrics: Metrics | None, first: str) -> dict[str, str]:
    """What a table says of the metrics, the one that `--metric` names first."""
    if metrics is None:
        return {"test accuracy": "no test data"}
    how = "" if metrics.plan is None else ", released with noise"
    if "dice" in metrics.figures:
        return {"test Dice": f"[bold]{metrics.text('dice')}[/] on {metrics.rows} volumes"}
    there = {title: metrics.text(name) for name, title in NAMES.values() if name in metrics.figures}
    title = NAMES[first][1]
    if title != "accuracy":
        there = {title: there.pop(title, "not defined"), **there}
    (title, best), *others = there.items()
    listed = {name: text for name, text in others if title != "accuracy" or name != "balanced accuracy"}
    (name, text), *more = listed.items()
    said = ", ".join([text, *(f"{other} {figure}" for other, figure in more)])
    return {f"test {title}": f"[bold]{best}[/] on {metrics.rows} rows{how}", f"test {name}": said}
