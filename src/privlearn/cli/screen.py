"""What a person or a script sees: answers on standard output, progress, notes and warnings on
standard error.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
import warnings as python_warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, final

from rich import table as rich_table
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from privlearn._texts import for_terminal
from privlearn.cli.outlets import forget_reader, perhaps_unread
from privlearn.core import sampling, schedules
from privlearn.core.accounting import accountant, comparisons
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import Event, compose, to_json
from privlearn.core.accounting.filters import Limit, fits
from privlearn.core.accounting.guarantee import Adjacency, Guarantee, hollow, readable
from privlearn.core.accounting.tradeoff import describe, tradeoff
from privlearn.core.plan import AbstractPlan, Plan
from privlearn.core.solving import noise_in_weights
from privlearn.errors import UnsupportedEvent
from privlearn.methods.statistics.metric_figures import Metrics
from privlearn.publishing.accuracy import (
    compare_with_one_answer,
    compute_error_of_mean,
    of_one_answer,
)
from privlearn.runs.callbacks import Callback, TrainingProgress
from privlearn.training.rules import Setting

#: Examples times epsilon at which next to nothing was learned, and half of what is learned without
#: privacy.
NOTHING, HALF = 100, 500
#: Columns of a table that is not for a terminal.
_WIDE = 20_000
#: What `--metric` calls the figures, and what tables do.
METRICS = {
    "accuracy": ("accuracy", "accuracy"),
    "log-loss": ("log_loss", "log loss"),
    "auc": ("auc", "AUC"),
    "calibration-error": ("expected_calibration_error", "calibration error"),
    "balanced-accuracy": ("balanced_accuracy", "balanced accuracy"),
    "rmse": ("rmse", "RMSE"),
    "mae": ("mae", "mean absolute error"),
    "r2": ("r2", "R2"),
    "f1": ("f1", "F1"),
    "deviance": ("deviance", "Poisson deviance"),
    "subset-accuracy": ("subset_accuracy", "subset accuracy"),
}

#: What begins a style or a line of our own: drawn anew for each process, so that no text from
#: outside has one.
_OWN = f"\ue000{secrets.token_hex(8)}:"
_MARKS = re.compile(f"{_OWN}([a-z ]*);")


def style(name: str) -> str:
    """What begins a style, such as "bold" or "red bold", in a line that is printed; `END` ends
    it.
    """
    return f"{_OWN}{name};"


BOLD, DIM, END, BREAK = style("bold"), style("dim"), style(""), style("break")


def line(text: object) -> Text:
    """A text for the terminal, in which styles and breaks are our own.

    All else is spelled out, on one line: there is no markup, and no control character passes.
    """
    escaped, current = Text(), ""
    for place, part in enumerate(_MARKS.split(str(text))):
        if place % 2 == 0:
            escaped.append(for_terminal(part), current)
        elif part == "break":
            escaped.append("\n")
        else:
            current = part
    return escaped


class Screen(Console):
    """A console to which nothing is written but lines (`line`) and tables of them."""

    def print(self, *parts: Any, **options: Any) -> None:
        """Print texts, each a line, and tables. Line breaks at a text's ends stay; others are
        spelled out.
        """
        Console.print(self, *map(_as_line, parts), **options)

    def on_broken_pipe(self) -> None:
        """Go on without a reader: what the command does is worth its exit code."""
        forget_reader(self.file)


def _as_line(part: Any) -> Any:
    if not isinstance(part, str):
        return part
    body = part.strip("\n")
    before = part[: len(part) - len(part.lstrip("\n"))] if body else part
    return Text.assemble(before, line(body), part[len(before) + len(body) :])


class Table(rich_table.Table):
    """A table without borders, whose cells are lines."""

    def __init__(self, *, show_header: bool = True, room: int = 2) -> None:
        super().__init__(box=None, padding=(0, room), header_style="bold", show_header=show_header)

    def add_column(self, header: Any = "", *more: Any, **options: Any) -> None:
        """Add a column with a title."""
        rich_table.Table.add_column(self, line(header), *more, **options)

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row of texts."""
        rich_table.Table.add_row(self, *map(line, cells), **options)


answers = Screen(highlight=False, soft_wrap=True)
notes = Screen(stderr=True, highlight=False, soft_wrap=True)

METHODS_IN_WORDS = {
    "gaussian": "exact, for Gaussian releases",
    "pld": "privacy loss distributions",
    "rdp": "Renyi DP",
    "pure": "the sum of pure epsilons",
    "zcdp": "zero-concentrated DP",
    "zcdp-2016": "zCDP, conversion of 2016",
    "moments-2016": "moments accountant of 2016",
}


def be_quiet() -> None:
    """Show nothing: another process shows the same."""
    answers.quiet = notes.quiet = True
    python_warnings.simplefilter("ignore")


def plain(text: object) -> str:
    """`text` as it stands, on one line: names and files may hold control characters, and marks of
    our own.
    """
    return for_terminal(text)


def warn(*warnings: str) -> None:
    """Print warnings, on standard error."""
    for warning in warnings:
        notes.print(f"{style('yellow')}warning{END}: {plain(warning)}")


def print_lines(lines: Iterable[str]) -> None:
    """Print a text of several lines on standard output, such as a file's."""
    for line in lines:
        answers.print(line)


def print_for_scripts(text: str) -> None:
    """Print a text of several lines as it is, for a script; on a terminal as lines."""
    if sys.stdout.isatty():
        print_lines(text.splitlines())
    else:
        with perhaps_unread():
            sys.stdout.write(text)


def print_json(figures: dict[str, Any]) -> None:
    """Print one JSON object, and nothing else, on standard output."""
    with perhaps_unread():
        sys.stdout.write(json.dumps(figures, indent=2) + "\n")


def print_table(table: Table) -> None:
    """Print a table on standard output: on a terminal as wide as that is, else each row on one
    line.
    """
    out = answers
    if not out.is_terminal:
        # a console prints nothing wider than itself
        out = Screen(file=out.file, quiet=out.quiet, highlight=False, soft_wrap=True, width=_WIDE)
    out.print(table)


def guarantee_table(figures: dict[str, Any]) -> Table:
    """One row for each sound method, the tightest marked; estimates and lower bounds set apart."""
    table = Table()
    table.add_column("method")
    table.add_column("epsilon", justify="right")
    table.add_column("")
    bounds = [row for row in figures["guarantees"] if row["kind"] == "bound"]
    for row in bounds:
        best = row is bounds[0]
        mark = (
            f"{BOLD}<- the tightest sound bound: the guarantee{END}"
            if best
            else f"{DIM}{METHODS_IN_WORDS[row['method']]}{END}"
        )
        table.add_row(
            f"{BOLD}{row['method']}{END}" if best else row["method"],
            f"{readable(row['epsilon'])}",
            mark,
        )
    for row in figures["guarantees"]:
        if row["kind"] != "bound":
            what = (
                "an estimate, no guarantee"
                if row["kind"] == "estimate"
                else "a lower bound: the truth is above"
            )
            table.add_row(
                f"{DIM}{row['method']}{END}",
                f"{DIM}{readable(row['epsilon'])}{END}",
                f"{DIM}{what}{END}",
            )
    return table


def meaning(figures: dict[str, Any]) -> str:
    """What the numbers mean, in a sentence each."""
    unit = {name: figures[name] for name in ("group_size", "rows_per_person") if name in figures}
    guarantee = Guarantee(
        figures["epsilon"],
        figures["delta"],
        Adjacency(figures["adjacency"]),
        figures["method"],
        **unit,
    )
    attack = f"\n{describe(figures['attack'], guarantee.unit)}" if figures.get("attack") else ""
    return BREAK.join([*f"{guarantee.meaning}{attack}".splitlines(), *room_lines(figures)])


def room_lines(figures: dict[str, Any]) -> list[str]:
    """What is said of the room that a ledger has for a plan; empty where none was named."""
    room = figures.get("room")
    if not room:
        return []
    text, largest = room["text"].rstrip("."), room["largest_epsilon"]
    lines = [f"{text[:1].upper()}{text[1:]}."]
    if largest is not None:
        lines.append(
            "With other noise, the largest such run that has room costs epsilon "
            f"{readable(largest)} by itself."
        )
    return lines


def at_most(plan: Plan) -> str:
    """What stands before the number of epochs."""
    return "at most " if plan.filter else ""


def limit_text(limit: Limit) -> str:
    """The limit of a filter in few words."""
    if limit.rho is not None:
        return f"rho {limit.rho:.6g}"
    return ", ".join(
        f"Renyi divergence {bound:.6g} at order {order:g}"
        for order, bound in zip(limit.orders, limit.bounds, strict=True)
    )


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds" if seconds >= 2 else f"{max(0.1, seconds):.1f} seconds"


def size(count: float) -> str:
    """A number of bytes in the unit that suits it."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{max(1.0, count / 2**20):.0f} MiB"


@contextmanager
def progress_bar(title: str, unit: str = "steps") -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error; yields a function of (done, all)."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    bar = Progress(*columns, console=notes)
    task = bar.add_task(for_terminal(title), total=None)

    def update(done: int, total: int) -> None:
        bar.start()  # not before there is something to show: what is refused has no progress
        bar.update(task, completed=done, total=total)

    try:
        yield update
    finally:
        bar.stop()


@final
class Steps(Callback):
    """Moves a bar of progress with the steps of a run."""

    def __init__(self, update: Callable[[int, int], None]) -> None:
        self._update = update

    def on_step(self, progress: TrainingProgress) -> None:
        """A step was taken."""
        self._update(progress.step, progress.steps)


def guarantee_lines(figures: dict[str, Any]) -> None:
    """Print at which delta, for which neighbours, what each sound method says, and what it
    means.
    """
    rho = "" if figures["rho"] is None else f", rho {figures['rho']:.6g}"
    answers.print(f"delta {figures['delta']:g}, {figures['adjacency']} neighbours{rho}\n")
    answers.print(guarantee_table(figures))


def explanation(settings: Iterable[Setting]) -> None:
    """Print every setting of a run, whether it was given, and else why it is what it is."""
    table = Table(show_header=False)
    for setting in settings:
        table.add_row(setting.name, f"{BOLD}{plain(setting.value)}{END}", setting.why or "as given")
    notes.print("Chosen from public numbers alone (docs/settings.md):")
    notes.print(table)


# What is known of a plan


def figures(plan: Plan, delta: float, examples: int) -> dict[str, Any]:
    """The guarantee of a plan, and what else is known of it, as the JSON object that scripts rely
    on.
    """
    prices = priced(plan, delta, _list_estimates(plan, delta, examples))
    return {
        **prices,
        "epochs": plan.epochs,
        "steps": plan.epochs * plan.sampling.steps(examples),
        "noise_multipliers": None if plan.filter else list(plan.noise_multipliers()),
        "plan": {
            "sampling": {"kind": plan.sampling.kind, **vars(plan.sampling)},
            "expected_batch_size": plan.sampling.expected_batch_size(examples),
            "schedule": schedules.spec(plan.schedule),
            "clip": {"kind": plan.clip.kind, "norm": plan.clip.clip_norm},
            "before": [{"kind": release.kind, **vars(release)} for release in plan.releases],
            **({"filter": to_json(plan.filter)} if plan.filter else {}),
            **({"mechanism": correlated_figures(plan, examples)} if plan.correlation else {}),
        },
        "unspent": unspent(plan, prices),
    }


def correlated_figures(plan: Plan, examples: int) -> dict[str, Any]:
    """The mechanism of a plan with correlated noise, and the noise in its weights.

    `relative_noise` is relative to independent noise at the same guarantee, where a target says
    what that is.
    """
    assert plan.correlation is not None
    figures: dict[str, Any] = {"kind": plan.correlation.kind, **vars(plan.correlation)}
    if plan.budget is not None and plan.budget.epsilon is not None:
        rate = min(1.0, plan.sampling.expected_batch_size(examples) / examples)
        other = replace(
            plan,
            correlation=None,
            sampling=sampling.Poisson(rate),
            budget=None,
            adjacency=plan.adjacency,
        )
        other = other.calibrate(epsilon=plan.budget.epsilon, delta=plan.budget.delta)
        independent = noise_in_weights(other, examples, plan.correlation.momentum)
        figures["relative_noise"] = noise_in_weights(plan, examples) / independent
    return figures


def unspent(plan: Any, prices: dict[str, Any]) -> float | None:
    """The part of its target that a plan leaves unspent; None where it has none.

    Args:
        plan: of any method.
        prices: what `priced` says of it, which is not computed again where it is of the target.
    """
    budget: Budget | None = plan.budget
    if budget is None:
        return None
    target = budget.epsilon and (budget.delta, budget.group_size)
    if target == (prices["delta"], prices["group_size"]):
        return 1 - float(prices["epsilon"]) / budget.limit
    return 1 - budget.spent(plan.event(), plan.neighbours) / budget.limit


def priced(plan: AbstractPlan, delta: float, unclaimed: Iterable[Guarantee] = ()) -> dict[str, Any]:
    """What `guaranteed` says of `plan`, and what a membership attack on all that it releases can
    achieve at most.
    """
    curve = tradeoff(plan.event(), plan.neighbours, plan.unit.group_size)
    return guaranteed(plan.guarantees(delta), unclaimed) | {"attack": curve.figures()}


def guaranteed(bounds: Sequence[Guarantee], unclaimed: Iterable[Guarantee] = ()) -> dict[str, Any]:
    """The part of the JSON object that is the same for every plan; what has no epochs leaves those
    empty.

    Args:
        bounds: sound guarantees, the tightest first.
        unclaimed: what is not claimed.
    """
    best = bounds[0]
    return {
        "adjacency": best.adjacency.value,
        "delta": best.delta,
        "epsilon": best.epsilon,
        "method": best.method,
        "rho": best.rho,
        "epochs": None,
        "steps": None,
        "noise_multipliers": None,
        "guarantees": [
            {"method": each.method, "epsilon": each.epsilon, "kind": each.kind}
            for each in (*bounds, *unclaimed)
        ],
        "group_size": best.group_size,
        **({} if best.rows_per_person is None else {"rows_per_person": best.rows_per_person}),
    }


def warnings(plan: Plan, delta: float, examples: int) -> Iterator[str]:
    """What is allowed, and hardly ever meant."""
    epsilon = plan.budget and plan.budget.epsilon
    yield from hollow(epsilon, delta, examples)
    if epsilon is not None and epsilon * examples < HALF:
        yield (
            f"examples times epsilon are {epsilon * examples:.3g}, which is little. Measured for "
            "linear models with default settings on three data sets: they learned next to nothing "
            f"at {NOTHING}, and half of what they learn without privacy at {HALF} "
            "(docs/results/small-data.md). More rows help as much as a larger epsilon"
        )
    if idle := plan.schedule.idle(plan.epochs):
        yield idle
    if plan.filter and isinstance(plan.sampling, sampling.Partition):
        yield (
            "a schedule that reacts is accounted for without amplification where batches are a "
            "partition: poisson sampling costs far less"
        )
    if isinstance(plan.sampling, sampling.Shuffle) and not comparisons.installed():
        yield comparisons.MISSING


def _list_estimates(plan: Plan, delta: float, examples: int) -> Iterator[Guarantee]:
    """Estimates and lower bounds: never what is claimed."""
    if plan.group_size > 1:
        return
    event = plan.event()
    yield from accountant.estimates(event, plan.neighbours, delta)
    if isinstance(plan.sampling, sampling.Shuffle):
        try:
            least = comparisons.lower_bound(
                event, plan.sampling.steps(examples), plan.neighbours, delta
            )
        except UnsupportedEvent:
            return
        yield Guarantee(least, delta, plan.neighbours, "shuffle-2024", "lower_bound")


# Schedules whose noise follows validations


def noisy_validations(plan: Plan, examples: int) -> str | None:
    """How exact validations on training rows are, which are released with noise."""
    schedule = plan.schedule
    if not isinstance(schedule, schedules.ReactingSchedule) or schedule.noise is None:
        return None
    # Noise x sensitivity of the halved count, over the examples.
    return schedule.exactness(schedule.noise * plan.neighbours.sum_sensitivity(0.5) / examples)


def earliest_end(plan: Plan) -> int:
    """The epochs that a run under a filter has at least: its noise falls as fast as it can."""
    schedule = plan.schedule
    assert isinstance(schedule, schedules.ReactingSchedule)
    assert plan.filter is not None
    spent: list[Event] = []
    for epoch in range(plan.epochs):
        spent.append(plan.epoch_event(schedule.after([0.0] * epoch)))
        if not fits(plan.filter, compose(spent)):
            return epoch
    return plan.epochs


def how_it_ended(plan: Plan, facts: dict[str, Any]) -> str:
    """When a run lowered its noise, and why it ended; all of it follows from what is published."""
    noise, most = facts["noise_multipliers"], plan.epochs
    fell = [epoch for epoch in range(1, len(noise)) if noise[epoch] < noise[epoch - 1]]
    when = (
        f"the noise fell after epochs {', '.join(map(str, fell))}"
        if fell
        else "the noise never fell"
    )
    if len(noise) == most:
        return f"{when}; all {most} epochs ran"
    ended = f"the run ended after {len(noise)} of at most {most} epochs"
    return f"{when}; {ended}, because the next did not fit into the limit"


def metric_rows(metrics: Metrics | None, first: str | None) -> dict[str, str]:
    """What a table says of the metrics, the one that `--metric` names first."""
    if metrics is None:
        return {"test figures": "no test data"}
    how = "" if metrics.plan is None else ", released with noise (± one standard deviation)"
    if "dice" in metrics.figures:
        return {"test Dice": f"{BOLD}{metrics.text('dice')}{END} on {metrics.rows} volumes"}
    there = {
        title: metrics.text(name) for name, title in METRICS.values() if name in metrics.figures
    }
    if first in (None, "accuracy"):
        there.pop("balanced accuracy", None)
    if first is not None:
        title = METRICS[first][1]
        there = {title: there.pop(title, "not defined"), **there}
    constant = of_one_answer(metrics) if "accuracy" in there else None
    baseline = (
        {}
        if constant is None
        else {"baseline accuracy": f"{constant:.4f}, always the most frequent class"}
    )
    error = compute_error_of_mean(metrics)
    if error is not None:
        baseline["baseline RMSE"] = f"{error:.4f}, always the mean of the test rows"
    if "r2_1" in metrics.figures:
        each = (metrics.text(name) for name in metrics.figures if name.startswith("r2_"))
        baseline["R2 of each target"] = ", ".join(each)
    if (useless := compare_with_one_answer(metrics)) is not None:
        warn(f"{useless}. More rows, a larger epsilon or another method may help")
    (title, best), (name, text), *more = there.items()
    said = ", ".join([text, *(f"{other} {figure}" for other, figure in more)])
    return {
        f"test {title}": f"{BOLD}{best}{END} on {metrics.rows} rows{how}",
        f"test {name}": said,
        **baseline,
    }
