"""`privlearn train --tune F.toml`: choose privately among candidates, and publish the one that was chosen."""

from __future__ import annotations

import argparse
from contextlib import nullcontext

import torch

from privlearn.accounting.ledger import Ledger
from privlearn.cli import screen, training, tuning
from privlearn.cli.planning import warnings
from privlearn.cli.publication import Publication
from privlearn.cli.tuning import Choice
from privlearn.data import Dataset
from privlearn.descent.dpsgd import dpsgd
from privlearn.errors import BadInput
from privlearn.models import networks
from privlearn.models.check import require_per_example
from privlearn.publishing.folder import require_free
from privlearn.runs.checkpoint import Checkpoint
from privlearn.runs.optimizers import MeanWeights
from privlearn.runs.result import Result
from privlearn.runs.task import require_changeable, require_same_examples
from privlearn.streams import Streams
from privlearn.transforms.base import shape_after
from privlearn.tuning.blocks import Blocks
from privlearn.tuning.stopping import Candidate
from privlearn.tuning.tune import tune


def run(options: argparse.Namespace) -> int:
    """Choose, train and publish; print where, and what it is worth."""
    if options.features is not None or options.explain:
        raise BadInput(
            "--tune goes without --features and --explain: candidates learn from the rows as they are. Leave them out"
        )
    require_free(options.out)
    # Another run's checkpoint is refused: --resume would take this run for that one.
    training.interrupted(Checkpoint(f"{options.out}.checkpoint"), resume=False)
    publication = Publication.begin(options, ", tuned")
    data = training.data_of(options)
    examples = options.examples or data.examples
    choice = tuning.make_choice(options, examples)
    plan, first = choice.plan, choice.plan.candidates[0].plan
    require_same_examples(first, data)
    _rehearse(choice, data)
    answer = tuning.figures(plan, options.delta)
    publication.warn(*warnings(first, options, examples), *training.seed_warning(options))
    screen.asides.print(
        f"plan: {tuning.headline(plan)}, epsilon {answer['epsilon']:.4f} at delta {options.delta:g} ({answer['adjacency']})"
    )
    result = _tune(options, choice, data, publication.ledger)
    chosen = result.facts["tuning"]["chosen"]
    answer["chosen"] = plan.candidates[chosen].name
    publication.end(
        result,
        data,
        answer,
        {"chosen": f"[bold]{screen.plain(answer['chosen'])}[/], from {tuning.headline(plan)}; choosing is paid for"},
        choice.options[chosen].model,
        # With random stopping the time would tell how many runs there were.
        timed=isinstance(plan, Blocks),
    )
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
            training.loss_of(data, own.label_smoothing),
            rows,
            optimizer=training.optimizer(own, training.optimizer_kind(own.optimizer or "SGD"), plan, examples, data),
            learning_rate_schedule=training.rates(own, plan),
            streams=streams,
            microbatch=own.microbatch,
            augmentation=training.copies_of(own),
            average=own.average,
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
    x, y = data.tensors()
    shape = tuple(x.shape[1:])
    for candidate, own in zip(choice.plan.candidates, choice.options, strict=True):
        plan = candidate.plan
        own_shape = shape_after(plan.front, shape)
        networks.require_known(own.model)
        network = training.network(own.model, own_shape, data.classes or 0, Streams.new(0))
        require_per_example(network, torch.zeros(1, *own_shape))
        kind = training.optimizer_kind(own.optimizer or "SGD")
        training.optimizer(own, kind, plan, plan.examples or data.examples, data)(network.parameters())
        training.rates(own, plan)
        training.loss_of(data, own.label_smoothing)
        require_changeable(training.copies_of(own), plan, data, x, y)
        if own.average is not None:
            MeanWeights(list(network.parameters()), own.average)
