"""Pictures of plans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from privlearn.cli.screen import earliest_end
from privlearn.errors import BadInput
from privlearn.plan import Plan
from privlearn.schedules import ReactingSchedule

_POINTS = 24


def draw_plan(plan: Plan, delta: float, path: str) -> None:
    """Draw the noise of each epoch, and the epsilon spent by then, one line for each accountant.

    Raises:
        BadInput: the file cannot be written, or matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise BadInput('plots are drawn by matplotlib: pip install "privlearn[plots]"') from error

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (noise, spending) = plt.subplots(1, 2, figsize=(10, 3.8), dpi=130, layout="constrained")
    epochs = range(1, plan.epochs + 1)
    if isinstance(plan.schedule, ReactingSchedule):
        noise.step(epochs, [plan.schedule.start] * plan.epochs, where="mid", color="tab:blue", linestyle="--",
                   label="never lowered")  # fmt: skip
        fastest = [plan.schedule.after([0.0] * epoch) for epoch in range(earliest_end(plan))]
        noise.step(range(1, len(fastest) + 1), fastest, where="mid", color="tab:orange", linestyle="--",
                   label="lowered at every check")  # fmt: skip
        noise.legend(frameon=False)
        title = "Noise: between these, as validations have it"
    else:
        noise.step(epochs, plan.noise_multipliers(), where="mid", color="tab:blue")
        title = "Noise"
    noise.set(xlabel="epoch", ylabel="noise multiplier", title=title)
    noise.set_ylim(bottom=0)
    for method, points in _spending(plan, delta).items():
        spending.plot(*zip(*points, strict=True), label=method, marker="." if len(points) < 3 else None)
    spending.set(
        xlabel="epoch",
        ylabel=f"epsilon at delta {delta:g}",
        title="Claimed as a whole" if plan.filter else "Spent by the end of the epoch",
    )
    spending.set_ylim(bottom=0)
    if plan.budget is not None and plan.budget.epsilon is not None:
        spending.axhline(plan.budget.epsilon, color="grey", linestyle=":", label="target")
    spending.legend(frameon=False, loc="best")
    for axes in (noise, spending):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    try:
        figure.savefig(Path(path))
    except (OSError, ValueError) as error:
        raise BadInput(f"the plot cannot be written to {path}: {error}. Give a file that ends in .png") from error
    finally:
        plt.close(figure)


def _spending(plan: Plan, delta: float) -> dict[str, list[tuple[int, float]]]:
    """For each accountant (epoch, epsilon) at up to two dozen epochs; under a filter its limit, from the start."""
    stops = sorted({max(1, round(plan.epochs * i / _POINTS)) for i in range(1, _POINTS + 1)})
    lines: dict[str, list[tuple[int, float]]] = {}
    for epochs in stops:
        for guarantee in replace(plan, epochs=epochs).guarantees(delta):
            lines.setdefault(guarantee.method, []).append((epochs, guarantee.epsilon))
    return lines
