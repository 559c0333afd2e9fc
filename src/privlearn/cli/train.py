"""`privlearn train`: plan, train, publish."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from rich.table import Table
from torch import nn

from privlearn import defaults, models, schedules
from privlearn._validate import positive
from privlearn.accounting.adjacency import Adjacency
from privlearn.cli import screen
from privlearn.cli.planning import figures, make_plan, warnings
from privlearn.data import Dataset, load
from privlearn.errors import BadInput
from privlearn.methods.dpsgd import dpsgd, require_same_examples
from privlearn.methods.result import Result
from privlearn.plan import Plan
from privlearn.publishing.bundle import publish, require_free
from privlearn.rng import Streams

_ROWS_AT_ONCE = 4096


def run(options: argparse.Namespace) -> int:
    """Train and publish; print where, and what it is worth."""
    started = time.perf_counter()
    out = require_free(options.out)
    models.require_known(options.model)
    kind = _optimizer_kind(options.optimizer or "SGD")
    data = load(options.data, options.data_dir, classes=options.classes, value_range=options.range)
    examples = options.examples or data.examples
    plan = make_plan(options, examples)
    require_same_examples(plan, data)
    answer = figures(plan, options.delta, data.examples)
    for warning in (*warnings(plan, options, examples), *_curators_warnings(plan, options, data.examples)):
        screen.asides.print(f"[yellow]warning[/]: {warning}")
    screen.asides.print(
        f"plan: {plan.epochs} epochs, noise multiplier {screen.noise_text(plan)}, epsilon {answer['epsilon']:.4f} at delta "
        f"{options.delta:g} ({answer['adjacency']})"
    )
    result = _train(options, plan, data, kind)
    metrics = _test(result.model, data)
    facts = {"data": data.name, **({"what is known of it": data.note} if data.note else {})}
    publish(
        result,
        out,
        delta=options.delta,
        test_metrics=metrics,
        data=facts,
        model_spec=options.model,
        classes=data.classes,
    )
    answer |= {"test_metrics": metrics, "test_accuracy": metrics.get("accuracy"), "out": str(out),
               "seconds": time.perf_counter() - started}  # fmt: skip
    if options.json:
        screen.print_json(answer)
    else:
        _show(answer, plan, options)
    return 0


def _train(options: argparse.Namespace, plan: Plan, data: Dataset, kind: type[torch.optim.Optimizer]) -> Result:
    streams = Streams.new(options.seed)
    classes = data.classes
    assert classes is not None
    rates = schedules.Polynomial(k=1, end=0, period=plan.epochs)
    with screen.progress_bar("training") as progress:
        return dpsgd(
            plan,
            lambda shape: _network(options.model, shape, classes, streams),
            nn.CrossEntropyLoss(reduction="none"),
            data,
            optimizer=_optimizer(options, kind, plan, options.examples or data.examples),
            learning_rate_schedule=rates if options.lr_schedule is None else schedules.parse(options.lr_schedule),
            streams=streams,
            microbatch=options.microbatch,
            device=options.device,
            precision=options.precision,
            progress=progress,
        )


def _curators_warnings(plan: Plan, options: argparse.Namespace, present: int) -> Iterator[str]:
    """What whoever holds the data should know before publishing."""
    counted = "examples" if plan.rows_per_person is None else "persons"
    if options.examples is None and plan.neighbours is Adjacency.ADD_REMOVE:
        yield (
            f"the number of {counted} ({present}) is taken from the file and will stand in the certificate, though add_remove "
            "neighbours differ in it: declare a public figure with --examples N"
        )
    if options.seed is not None:
        yield "with --seed the noise can be taken off by whoever knows the seed: for trying out, not for data that matter"


def _network(spec: str, shape: tuple[int, ...], classes: int, streams: Streams) -> nn.Module:
    """Build the network and see that it has one output for each class."""
    network = models.build(spec, shape, classes, streams.initialisation)
    try:
        with torch.no_grad():
            found = tuple(network(torch.zeros(2, *shape)).shape)
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise BadInput(f"model {spec!r} cannot run on rows of shape {shape}: {str(error).splitlines()[0]}") from error
    if found != (2, classes):
        raise BadInput(
            f"model {spec!r} turns 2 rows into shape {found}: expected (2, {classes}), a score for each class"
        )
    return network


def _optimizer_kind(name: str) -> type[torch.optim.Optimizer]:
    kind = {n.lower(): k for n, k in vars(torch.optim).items() if isinstance(k, type)}.get(name.lower())
    unfit = (torch.optim.Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam)
    if kind is None or not issubclass(kind, torch.optim.Optimizer) or kind in unfit:
        raise BadInput(
            f"optimizer {name!r} cannot be used: expected a class of torch.optim that steps on dense gradients, for "
            "example SGD or Adam"
        )
    return kind


def _optimizer(
    options: argparse.Namespace, kind: type[torch.optim.Optimizer], plan: Plan, examples: int
) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        found = list(parameters)
        norm = math.sqrt(sum(float(p.detach().square().sum()) for p in found))
        rate = defaults.learning_rate(kind.__name__, plan, examples, options.model, norm)
        given = options.learning_rate
        settings: dict[str, Any] = {"lr": rate if given is None else positive("the learning rate", given)}
        if options.momentum is not None:
            settings["momentum"] = options.momentum
        try:
            made: torch.optim.Optimizer = kind(found, **settings)
        except (TypeError, ValueError) as error:
            raise BadInput(f"optimizer {kind.__name__} cannot be made with {settings}: {error}") from error
        return made

    return make


def _test(model: nn.Module, data: Dataset) -> dict[str, float]:
    """Accuracy on the test rows, if there are any; computed exactly, so the test rows are not protected."""
    if data.x_test is None:
        return {}
    x, y = data.test_tensors()
    right = 0
    with torch.no_grad():
        for start in range(0, len(x), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            right += int((model(x[rows]).argmax(1) == y[rows]).sum())
    return {"accuracy": right / len(y)}


def _show(answer: dict[str, object], plan: Plan, options: argparse.Namespace) -> None:
    table = Table(box=None, padding=(0, 2), show_header=False)
    accuracy = answer["test_accuracy"]
    rows = {
        "guarantee": f"[bold]epsilon {answer['epsilon']:.4f}[/] at delta {answer['delta']:g} ({answer['adjacency']}, by "
        f"{answer['method']})",
        "test accuracy": "no test data in the file" if accuracy is None else f"[bold]{accuracy:.4f}[/]",
        "training": f"{answer['epochs']} epochs, {answer['steps']} steps, noise multiplier {screen.noise_text(plan)}",
        "seconds": f"{answer['seconds']:.1f}",
        "published in": f"[bold]{answer['out']}[/]",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    screen.answers.print(table)
    screen.answers.print(f"\n{screen.meaning(answer)}")
    screen.answers.print(f"Anyone can check it, without the data:  privlearn verify {answer['out']}")
