"""`privlearn train`: plan, train, publish."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import nn

from privlearn import models
from privlearn.accounting.adjacency import Adjacency
from privlearn.accounting.ledger import Ledger
from privlearn.cli import ensemble, features, mac, screen, training
from privlearn.cli.planning import figures, make_plan, warnings
from privlearn.cli.reacting import how_it_ended, noisy_validations
from privlearn.data import NAMES, Dataset, load
from privlearn.data.schema import read_schema
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


def run(options: argparse.Namespace) -> int:
    """Train and publish; print where, and what it is worth."""
    mac.require_combinable(options)
    ensemble.require_combinable(options)
    features.require_combinable(options)
    if options.method == "pate":
        return ensemble.run(options)
    if options.method == "features":
        return features.run(options)
    if options.tune is not None:
        return import_module("privlearn.cli.tuned").run(options)  # type: ignore[no-any-return]
    started = time.perf_counter()
    checkpoint = Checkpoint(f"{options.out}.checkpoint", every=options.checkpoint_every)
    if options.resume and _published_already(options.out, checkpoint):
        return 0
    out = require_free(options.out)
    key = None if options.sign is None else read_private(options.sign)
    saved = training.interrupted(checkpoint, options.resume)
    ledger = (
        None if options.ledger is None else training.open_ledger(options.ledger, f"{options.data} to {options.out}")
    )
    models.require_known(options.model)
    kind = training.optimizer_kind(options.optimizer or ("Adam" if options.method == "dpmac" else "SGD"))
    data = training.data_of(options)
    public = None if options.public is None else _public(options, data)
    examples = options.examples or data.examples
    plan = (
        mac.mac_plan(options, examples)
        if options.method == "dpmac"
        else make_plan(options, examples, features.selection(options, data))
    )
    require_same_examples(plan, data)
    # Where neighbours differ in the number of rows, what is printed follows from the declared one.
    answer = figures(plan, options.delta, examples if plan.neighbours is Adjacency.ADD_REMOVE else data.examples)
    for warning in (*warnings(plan, options, examples), *training.curators_warnings(plan, options, data.examples),
                    *(key.warnings if key else ())):  # fmt: skip
        screen.asides.print(f"[yellow]warning[/]: {screen.plain(warning)}")
    screen.asides.print(
        f"plan: {screen.at_most(plan)}{plan.epochs} epochs, noise multiplier {screen.noise_text(plan)}, epsilon "
        f"{answer['epsilon']:.4f} at delta {options.delta:g} ({answer['adjacency']})"
    )
    if told := noisy_validations(plan, examples):
        screen.asides.print(told)
    if options.epochs is not None and plan.epochs < options.epochs:
        screen.asides.print(f"the budget ends after {plan.epochs} of {options.epochs} epochs at this noise")
    try:
        result = _train(options, plan, data, public, kind, ledger, checkpoint, saved)
    except KeyboardInterrupt:
        screen.asides.print(f"progress is in {checkpoint.path} (as secret as the data): go on with --resume")
        raise
    if plan.filter:
        screen.asides.print(how_it_ended(result.settings))
        answer |= {name: result.settings[name] for name in ("epochs", "steps", "noise_multipliers", "validation")}
    metrics = training.test_metrics(result.model, data)
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
    if options.method == "dpmac":
        return mac.train(options, plan, data, kind, streams, ledger, checkpoint)
    classes = data.classes
    assert classes is not None
    with screen.progress_bar("training") as progress:
        return dpsgd(
            plan,
            lambda shape: training.network(options.model, shape, classes, streams),
            nn.CrossEntropyLoss(reduction="none"),
            data,
            optimizer=training.optimizer(options, kind, plan, options.examples or data.examples),
            learning_rate_schedule=training.rates(options, plan),
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
