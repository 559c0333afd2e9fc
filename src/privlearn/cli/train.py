"""`privlearn train`: plan, train, publish."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

import torch

from privlearn.accounting.guarantee import Adjacency
from privlearn.accounting.ledger import Ledger
from privlearn.cli import ensemble, features, mac, paid, screen, training, voting
from privlearn.cli.encoding import encoded
from privlearn.cli.explaining import explain
from privlearn.cli.planning import figures, make_plan, warnings
from privlearn.cli.publication import Publication
from privlearn.cli.reacting import how_it_ended, noisy_validations
from privlearn.data import Dataset
from privlearn.descent.dpsgd import dpsgd
from privlearn.models import networks
from privlearn.plan import Plan
from privlearn.publishing.folder import require_free
from privlearn.publishing.verify import verify
from privlearn.runs.checkpoint import Checkpoint, Saved
from privlearn.runs.result import Result
from privlearn.runs.task import require_same_examples
from privlearn.streams import Streams
from privlearn.world import require_one_process


def run(options: argparse.Namespace) -> int:
    """Train and publish; print where, and what it is worth."""
    require_one_process()
    options = paid.with_pca(options)
    mac.require_combinable(options)
    voting.require_combinable(options)
    features.require_combinable(options)
    training.require_in_range(options)  # before a ledger is begun
    if options.method == "pate":
        return ensemble.run(options)
    if options.method == "features":
        return features.run(options)
    if options.tune is not None:
        return import_module("privlearn.cli.tuned").run(options)  # type: ignore[no-any-return]
    checkpoint = Checkpoint(f"{options.out}.checkpoint", every=options.checkpoint_every)
    if options.resume and _published_already(options.out, checkpoint):
        return 0
    require_free(options.out)  # before a checkpoint beside it is looked for
    saved = training.interrupted(checkpoint, options.resume)
    publication = Publication.begin(options)
    networks.require_known(options.model)
    kind = training.optimizer_kind(options.optimizer or ("Adam" if options.method == "dpmac" else "SGD"))
    with encoded(options, training.data_of(options)) as data:
        return _on_data(options, data, kind, publication, checkpoint, saved)


def _on_data(
    options: argparse.Namespace,
    data: Dataset,
    kind: type[torch.optim.Optimizer],
    publication: Publication,
    checkpoint: Checkpoint,
    saved: Saved | None,
) -> int:
    """Plan, train and publish."""
    public = None if options.public is None else training.public_rows(options, data)
    examples = options.examples or data.examples
    plan = (
        mac.mac_plan(options, examples)
        if options.method == "dpmac"
        else make_plan(options, examples, (*paid.normalisation(options, data), *features.selection(options, data)))
    )
    require_same_examples(plan, data)
    # Where neighbours differ in the number of rows, what is printed follows from the declared one.
    answer = figures(plan, options.delta, examples if plan.neighbours is Adjacency.ADD_REMOVE else data.examples)
    publication.warn(*warnings(plan, options, examples), *training.seed_warning(options))
    screen.asides.print(
        f"plan: {screen.at_most(plan)}{plan.epochs} epochs, noise multiplier {screen.noise_text(plan)}, epsilon "
        f"{answer['epsilon']:.4f} at delta {options.delta:g} ({answer['adjacency']})"
    )
    if options.explain:
        explain(options, plan, data, kind)
    if told := noisy_validations(plan, examples):
        screen.asides.print(told)
    if options.epochs is not None and plan.epochs < options.epochs:
        screen.asides.print(f"the budget ends after {plan.epochs} of {options.epochs} epochs at this noise")
    try:
        result = _train(options, plan, data, public, kind, publication.ledger, checkpoint, saved)
    except KeyboardInterrupt:
        screen.asides.print(_what_is_left(checkpoint))
        raise
    if plan.filter:
        screen.asides.print(how_it_ended(plan, result.facts))
        answer |= {name: result.facts[name] for name in ("epochs", "steps", "noise_multipliers", "validation")}
    chosen, listed = features.chosen(result.facts, f"{options.select} chosen")
    publication.end(
        result,
        data,
        answer | chosen,
        {
            "training": f"{answer['epochs']} epochs, {answer['steps']} steps, noise multiplier "
            f"{screen.noise_text(plan, answer['noise_multipliers'])}",
            **listed,
        },
        options.model,
    )
    return 0


def _what_is_left(checkpoint: Checkpoint) -> str:
    """What an interrupted run leaves: its checkpoint, which is there before anything is drawn, or nothing."""
    if checkpoint.path.exists():
        return f"progress is in {screen.plain(checkpoint.path)} (as secret as the data): go on with --resume"
    return "the first step was not reached: nothing is kept, and nothing is spent. Begin again, without --resume"


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
            lambda shape: training.network(options.model, shape, classes, streams, tuple(data.y.shape[1:])),
            training.loss_of(data, options.label_smoothing),
            data,
            optimizer=training.optimizer(options, kind, plan, options.examples or data.examples, data),
            learning_rate_schedule=training.rates(options, plan),
            streams=streams,
            microbatch=options.microbatch,
            augmentation=training.copies_of(options),
            average=options.average,
            device=options.device,
            precision=options.precision,
            progress=progress,
            ledger=ledger,
            checkpoint=checkpoint,
            validation=public,
        )
