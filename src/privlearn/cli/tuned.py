"""`privlearn train --tune F.toml`: choose privately among candidates, and publish the one that was chosen."""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from typing import Any

import torch
from rich.table import Table
from torch import nn

from privlearn import models
from privlearn.accounting.ledger import Ledger
from privlearn.cli import screen, training, tuning
from privlearn.cli.planning import warnings
from privlearn.cli.tuning import Choice
from privlearn.data import Dataset
from privlearn.methods.blocks import Blocks
from privlearn.methods.candidates import Candidate
from privlearn.methods.checkpoint import Checkpoint
from privlearn.methods.dpsgd import dpsgd
from privlearn.methods.refusals import require_same_examples
from privlearn.methods.result import Result
from privlearn.methods.tune import tune
from privlearn.publishing.bundle import publish
from privlearn.publishing.folder import require_free
from privlearn.publishing.keys import read_private
from privlearn.rng import Streams


def run(options: argparse.Namespace) -> int:
    """Choose, train and publish; print where, and what it is worth."""
    started = time.perf_counter()
    out = require_free(options.out)
    key = None if options.sign is None else read_private(options.sign)
    # Another run's checkpoint is refused: --resume would take this run for that one.
    training.interrupted(Checkpoint(f"{options.out}.checkpoint"), resume=False)
    ledger = (
        None
        if options.ledger is None
        else training.open_ledger(options.ledger, f"{options.data} to {options.out}, tuned")
    )
    data = training.data_of(options)
    examples = options.examples or data.examples
    choice = tuning.make_choice(options, examples)
    plan, first = choice.plan, choice.plan.candidates[0].plan
    require_same_examples(first, data)
    _rehearse(choice, data)
    answer = tuning.figures(plan, options.delta)
    for warning in (*warnings(first, options, examples), *training.curators_warnings(first, options, data.examples),
                    *(key.warnings if key else ())):  # fmt: skip
        screen.asides.print(f"[yellow]warning[/]: {screen.plain(warning)}")
    screen.asides.print(
        f"plan: {tuning.headline(plan)}, epsilon {answer['epsilon']:.4f} at delta {options.delta:g} ({answer['adjacency']})"
    )
    result = _tune(options, choice, data, ledger)
    chosen = result.settings["tuning"]["chosen"]
    metrics = training.test_metrics(result.model, data)
    publish(
        result,
        out,
        delta=options.delta,
        test_metrics=metrics,
        data={"data": data.name, **({"what is known of it": data.note} if data.note else {})},
        model_spec=choice.options[chosen].model,
        classes=data.classes,
        sign=key,
    )
    if ledger is not None:
        together = ledger.guarantee(options.delta)
        answer["ledger"] = {"file": options.ledger, "epsilon": together.epsilon, "method": together.method}
    # With random stopping the time would tell how many runs there were.
    seconds = time.perf_counter() - started if isinstance(plan, Blocks) else None
    answer |= {"chosen": plan.candidates[chosen].name, "test_metrics": metrics, "test_accuracy": metrics.get("accuracy"),
               "out": str(out), "seconds": seconds}  # fmt: skip
    if options.json:
        screen.print_json(answer)
    else:
        _show(answer, choice)
    return 0


def _tune(options: argparse.Namespace, choice: Choice, data: Dataset, ledger: Ledger | None) -> Result:
    streams = Streams.new(options.seed, discrete=options.discrete)
    own_options = {each.name: own for each, own in zip(choice.plan.candidates, choice.options, strict=True)}
    classes = data.classes
    assert classes is not None

    def trained(candidate: Candidate, rows: Dataset, ledger: Ledger, streams: Streams) -> Result:
        own, plan = own_options[candidate.name], candidate.plan
        examples = plan.examples or data.examples
        return dpsgd(
            plan,
            lambda shape: training.network(own.model, shape, classes, streams),
            nn.CrossEntropyLoss(reduction="none"),
            rows,
            optimizer=training.optimizer(own, training.optimizer_kind(own.optimizer or "SGD"), plan, examples),
            learning_rate_schedule=training.rates(own, plan),
            streams=streams,
            microbatch=own.microbatch,
            device=own.device,
            precision=own.precision,
            ledger=ledger,
        )

    on_blocks = isinstance(choice.plan, Blocks)
    if not on_blocks:
        screen.asides.print("training; how often is decided at random and not shown")
    with screen.progress_bar("training candidates") if on_blocks else nullcontext() as progress:
        return tune(choice.plan, trained, data, ledger=ledger, streams=streams, progress=progress)


def _rehearse(choice: Choice, data: Dataset) -> None:
    """Make every candidate's network and optimizer once, so that what can't be made is refused before anything is charged.

    Raises:
        BadInput, NotPerExample: one that can't be made.
    """
    shape = tuple(data.tensors()[0].shape[1:])
    for candidate, own in zip(choice.plan.candidates, choice.options, strict=True):
        plan, own_shape = candidate.plan, shape
        for earlier in plan.before:
            earlier.require_fit(int(torch.Size(own_shape).numel()))
            own_shape = earlier.output_shape
        models.require_known(own.model)
        network = training.network(own.model, own_shape, data.classes or 0, Streams.new(0))
        models.require_per_example(network, torch.zeros(1, *own_shape))
        kind = training.optimizer_kind(own.optimizer or "SGD")
        training.optimizer(own, kind, plan, plan.examples or data.examples)(network.parameters())
        training.rates(own, plan)


def _show(answer: dict[str, Any], choice: Choice) -> None:
    table = Table(box=None, padding=(0, 2), show_header=False)
    accuracy = answer["test_accuracy"]
    rows = {
        "guarantee": f"[bold]epsilon {answer['epsilon']:.4f}[/] at delta {answer['delta']:g} ({answer['adjacency']}, by "
        f"{answer['method']}), choosing included",
        "chosen": f"[bold]{screen.plain(answer['chosen'])}[/], from {tuning.headline(choice.plan)}",
        "test accuracy": "no test data in the file" if accuracy is None else f"[bold]{accuracy:.4f}[/]",
        "seconds": "not shown: they would tell how many runs there were"
        if answer["seconds"] is None
        else f"{answer['seconds']:.1f}",
        "published in": f"[bold]{screen.plain(answer['out'])}[/]",
    }
    if "ledger" in answer:
        rows["on the ledger"] = (
            f"epsilon {answer['ledger']['epsilon']:.4f} at delta {answer['delta']:g}, with everything in "
            f"{screen.plain(answer['ledger']['file'])}: this is certified"
        )
    for name, value in rows.items():
        table.add_row(name, value)
    screen.answers.print(table)
    stated = answer["ledger"]["epsilon"] if "ledger" in answer else answer["epsilon"]
    screen.answers.print(f"\n{screen.meaning({**answer, 'epsilon': stated})}")
    screen.answers.print(f"Anyone can check it, without the data:  privlearn verify {screen.plain(answer['out'])}")
