"""`--explain`: what was chosen for whoever did not choose, and by which rule. All rules look at public numbers alone."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from rich.table import Table

from privlearn.cli import screen, training
from privlearn.data import Dataset
from privlearn.descent import rules
from privlearn.plan import Plan
from privlearn.schedules import spec
from privlearn.streams import Streams
from privlearn.transforms.base import shape_after
from privlearn.transforms.moments import Moments


def explain(options: argparse.Namespace, plan: Plan, data: Dataset, kind: type[torch.optim.Optimizer]) -> None:
    """Print every setting of a DP-SGD run, whether it was given, and else why it is what it is."""
    table = Table(box=None, padding=(0, 2), show_header=False)
    for name, value, given, why in _settings(options, plan, data, kind):
        table.add_row(name, f"[bold]{screen.plain(value)}[/]", "as given" if given else why)
    screen.asides.print("Chosen from public numbers alone (docs/defaults.md):")
    screen.asides.print(table)


def _settings(
    options: argparse.Namespace, plan: Plan, data: Dataset, kind: type[torch.optim.Optimizer]
) -> Iterator[tuple[str, str, bool, str]]:
    examples = options.examples or data.examples
    encoder = "raw" if data.features is None else data.features.encoder.spec
    yield "features", encoder, options.features is not None, _why_features(encoder)
    yield (
        "model",
        options.model,
        options.model != "linear",
        "noise grows with the number of weights: begin with the least",
    )
    moments = [release for release in plan.releases if isinstance(release, Moments)]
    if moments or options.normalise is not None:
        why = f"examples x epsilon is at least {rules.WORTH_MOMENTS:,}: they cost less than they bring"
        yield "normalisation", "noisy moments" if moments else "none", options.normalise is not None, why
    sampling = plan.sampling.kind
    yield "batches", sampling, options.sampling != "poisson", "drawn at random, so that sampling amplifies privacy"
    size = f"{plan.sampling.expected_batch_size(examples):.0f}"
    why = f"a fifteenth of {examples} examples, and at least 256; accuracy is flat around it"
    yield "batch size", size, options.batch_size is not None, why
    yield (
        "epochs",
        str(plan.epochs),
        options.epochs is not None,
        "60 above epsilon 4, with little noise",
    )
    why = "so small that nearly every gradient is clipped: the learning rate then fits any loss"
    yield "clipping", f"{plan.clip.kind}, norm {plan.clip.clip_norm:g}", options.clip_norm is not None, why
    yield "noise multiplier", screen.noise_text(plan), options.noise_multiplier is not None, "what meets the target"
    yield "noise schedule", spec(plan.schedule).partition(":")[0], options.schedule != "constant", "no decay is needed"
    yield (
        "optimizer",
        kind.__name__,
        options.optimizer is not None,
        "its noise is that of its steps, and is known beforehand",
    )
    why = (
        f"noise then gathers to {rules.GATHERED_IN_SCORES:g} in a score over the run"
        if encoder != "raw"
        else "by the noise"
    )
    yield "learning rate", f"{_rate(options, plan, data, kind):.4g}", options.learning_rate is not None, why
    rates = spec(training.rates(options, plan)).partition(":")[0]
    yield (
        "its schedule",
        rates,
        options.lr_schedule is not None,
        "falls to 0, so that the last steps' noise hardly counts",
    )
    average = (
        "of the last step" if options.average is None else f"a mean, about the last {options.average:g} of the steps"
    )
    yield "weights", average, options.average is not None, "where the rate falls to 0, a mean gains nothing"
    smoothing = f"{options.label_smoothing or 0:g}"
    yield "label smoothing", smoothing, options.label_smoothing is not None, "loses, where gradients are clipped short"
    copies = "none" if options.views is None else f"{options.views}, by {options.augment}"
    yield (
        "copies of examples",
        copies,
        options.views is not None,
        "whether rows may be moved is for you to say; they take a multiple of the time",
    )


def _why_features(spec: str) -> str:
    """Why these features are usual."""
    if spec == "raw":
        return "nothing stands in front of the network"
    if spec.startswith("norm:"):
        return "rows of many non-negative numbers: their roots, then each row by itself to one norm"
    fewer = "; of fewer directions where examples x epsilon is below 3,000" if "kept=" in spec else ""
    return f"images: a linear model learns best from them{fewer}"


def _rate(options: argparse.Namespace, plan: Plan, data: Dataset, kind: type[torch.optim.Optimizer]) -> float:
    """The learning rate that the run will begin with; initial weights are made up."""
    row = torch.zeros(1, *data.x.shape[1:])
    row = row if data.features is None else data.features.encoder(row)
    shape = shape_after(plan.front, tuple(row.shape[1:]))
    network = training.network(options.model, shape, data.classes or 0, Streams.new(0), tuple(data.y.shape[1:]))
    made = training.optimizer(options, kind, plan, options.examples or data.examples, data)(network.parameters())
    return float(made.param_groups[0]["lr"])
