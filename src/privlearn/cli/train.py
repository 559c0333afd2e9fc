"""`privlearn train`: plan, train, publish."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import nn

from privlearn import defaults, models, schedules
from privlearn._validate import positive
from privlearn.accounting.adjacency import Adjacency
from privlearn.accounting.ledger import Ledger
from privlearn.cli import screen
from privlearn.cli.planning import figures, make_plan, warnings
from privlearn.data import NAMES, Dataset, load
from privlearn.data.schema import read_schema
from privlearn.errors import BadInput
from privlearn.methods.checkpoint import Checkpoint, Saved
from privlearn.methods.dpsgd import dpsgd
from privlearn.methods.refusals import require_same_examples
from privlearn.methods.result import Result
from privlearn.plan import Plan
from privlearn.publishing.bundle import publish
from privlearn.publishing.folder import require_free
from privlearn.publishing.keys import read_private
from privlearn.publishing.verification import verify
from privlearn.rng import Streams

_ROWS_AT_ONCE = 4096


def run(options: argparse.Namespace) -> int:
    """Train and publish; print where, and what it is worth."""
    if options.tune is not None:
        return import_module("privlearn.cli.tuned").run(options)  # type: ignore[no-any-return]
    started = time.perf_counter()
    checkpoint = Checkpoint(f"{options.out}.checkpoint", every=options.checkpoint_every)
    if options.resume and _published_already(options.out, checkpoint):
        return 0
    out = require_free(options.out)
    key = None if options.sign is None else read_private(options.sign)
    saved = _saved(checkpoint, options.resume)
    ledger = None if options.ledger is None else _ledger(options.ledger, f"{options.data} to {options.out}")
    models.require_known(options.model)
    kind = _optimizer_kind(options.optimizer or "SGD")
    data = load(
        options.data,
        options.data_dir,
        classes=options.classes,
        value_range=options.range,
        schema=options.schema,
        test=options.test_data,
    )
    for aside in data.asides:
        screen.asides.print(aside, markup=False)
    public = None if options.public is None else _public(options, data)
    examples = options.examples or data.examples
    plan = make_plan(options, examples)
    require_same_examples(plan, data)
    # Where neighbours differ in the number of rows, what is printed follows from the declared one.
    answer = figures(plan, options.delta, examples if plan.neighbours is Adjacency.ADD_REMOVE else data.examples)
    for warning in (*warnings(plan, options, examples), *_curators_warnings(plan, options, data.examples),
                    *(key.warnings if key else ())):  # fmt: skip
        screen.asides.print(f"[yellow]warning[/]: {screen.plain(warning)}")
    screen.asides.print(
        f"plan: {screen.at_most(plan)}{plan.epochs} epochs, noise multiplier {screen.noise_text(plan)}, epsilon "
        f"{answer['epsilon']:.4f} at delta {options.delta:g} ({answer['adjacency']})"
    )
    if options.epochs is not None and plan.epochs < options.epochs:
        screen.asides.print(f"the budget ends after {plan.epochs} of {options.epochs} epochs at this noise")
    try:
        result = _train(options, plan, data, public, kind, ledger, checkpoint, saved)
    except KeyboardInterrupt:
        screen.asides.print(f"progress is in {checkpoint.path} (as secret as the data): go on with --resume")
        raise
    if plan.filter:
        answer |= {name: result.settings[name] for name in ("epochs", "steps", "noise_multipliers", "validation")}
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
        sign=key,
    )
    if ledger is not None:
        together = ledger.guarantee(options.delta)
        answer["ledger"] = {"file": options.ledger, "epsilon": together.epsilon, "method": together.method}
    answer |= {"test_metrics": metrics, "test_accuracy": metrics.get("accuracy"), "out": str(out),
               "seconds": time.perf_counter() - started}  # fmt: skip
    if options.json:
        screen.print_json(answer)
    else:
        _show(answer, plan, options)
    return 0


def _published_already(out: str, checkpoint: Checkpoint) -> bool:
    """Whether the run ended between publishing and deleting its checkpoint; deletes it then."""
    if not checkpoint.path.exists() or not Path(out).is_dir() or not verify(out).ok:
        return False
    checkpoint.delete()
    screen.asides.print(f"{out} was published already; what was left of the run's checkpoint is deleted")
    return True


def _saved(checkpoint: Checkpoint, resume: bool) -> Saved | None:
    """The run to go on with, if there is one and that is wanted."""
    saved = checkpoint.read()
    if saved is not None and not resume:
        raise BadInput(
            f"there is an interrupted run in {checkpoint.path}: go on with --resume, or delete that file to give it up "
            "(what it was charged stays charged)"
        )
    if saved is None and resume:
        raise BadInput(
            f"there is no interrupted run to resume: {checkpoint.path} is not there. Check --out; to begin a run, leave out "
            "--resume"
        )
    return saved


def _ledger(path: str, what: str) -> Ledger:
    new = not Path(path).exists()
    ledger = Ledger.open(path, what=what)
    if new:
        screen.asides.print(
            f"began the ledger {path}, which only records: one with a budget is begun by `privlearn ledger {path} --epsilon E`"
        )
    return ledger


def _train(
    options: argparse.Namespace,
    plan: Plan,
    data: Dataset,
    public: Dataset | None,
    kind: type[torch.optim.Optimizer],
    ledger: Ledger | None,
    checkpoint: Checkpoint,
    saved: Saved | None,
) -> Result:
    # Of a saved run only for the initial weights, which tell the learning rate.
    streams = Streams.at(saved.plain["streams"]) if saved else Streams.new(options.seed, discrete=options.discrete)
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
            learning_rate_schedule=rates if options.lr_schedule is None else schedules.parse_rates(options.lr_schedule),
            streams=streams,
            microbatch=options.microbatch,
            device=options.device,
            precision=options.precision,
            progress=progress,
            ledger=ledger,
            checkpoint=checkpoint,
            validation=public,
        )


def _public(options: argparse.Namespace, data: Dataset) -> Dataset:
    """Rows that are declared public, read as the training rows are, whose bounds and classes they get."""
    if options.public in NAMES:
        return replace(load(options.public, options.data_dir), public=True)
    if options.schema is not None and Path(options.public).suffix != ".npz":
        schema = replace(read_schema(options.schema), person=None)  # whose rows they are does not matter
        return replace(load(options.public, schema=schema), public=True)
    low, high = data.bounds()
    return replace(
        load(options.public, classes=data.classes, value_range=(float(low.min()), float(high.max()))), public=True
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


def _show(answer: dict[str, Any], plan: Plan, options: argparse.Namespace) -> None:
    table = Table(box=None, padding=(0, 2), show_header=False)
    accuracy = answer["test_accuracy"]
    rows = {
        "guarantee": f"[bold]epsilon {answer['epsilon']:.4f}[/] at delta {answer['delta']:g} ({answer['adjacency']}, by "
        f"{answer['method']})",
        **(
            {
                "on the ledger": f"epsilon {answer['ledger']['epsilon']:.4f} at delta {answer['delta']:g}, with "
                f"everything in {screen.plain(answer['ledger']['file'])}: this is certified"
            }
            if "ledger" in answer
            else {}
        ),
        "test accuracy": "no test data in the file" if accuracy is None else f"[bold]{accuracy:.4f}[/]",
        "training": f"{answer['epochs']} epochs, {answer['steps']} steps, noise multiplier "
        f"{screen.noise_text(plan, answer['noise_multipliers'])}",
        "seconds": f"{answer['seconds']:.1f}",
        "published in": f"[bold]{screen.plain(answer['out'])}[/]",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    screen.answers.print(table)
    stated = answer["ledger"]["epsilon"] if "ledger" in answer else answer["epsilon"]
    screen.answers.print(f"\n{screen.meaning({**answer, 'epsilon': stated})}")
    screen.answers.print(f"Anyone can check it, without the data:  privlearn verify {screen.plain(answer['out'])}")
