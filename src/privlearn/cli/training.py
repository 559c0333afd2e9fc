"""What the ways to train from the command line have in common: networks, optimizers, learning rates, test figures."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from privlearn import schedules
from privlearn._checks import between, count, positive
from privlearn.accounting.guarantee import Adjacency
from privlearn.accounting.ledger import Ledger
from privlearn.cli import screen
from privlearn.clipping.augmentation import Augmentation, FlipAndShift
from privlearn.data import NAMES, Dataset, hippocampus, load
from privlearn.data.overlap import are_training_rows
from privlearn.data.schema import read_schema
from privlearn.descent.train import MOST_SMOOTHING, usual_rate
from privlearn.errors import BadInput
from privlearn.models import networks
from privlearn.plan import UNDECLARED, Plan
from privlearn.runs.checkpoint import Checkpoint, Saved
from privlearn.runs.front import front
from privlearn.runs.optimizers import require_share
from privlearn.streams import Streams
from privlearn.volumes.training import dice, map_losses

_ROWS_AT_ONCE = 4096
_VOLUMES_AT_ONCE = 16


def data_of(options: argparse.Namespace) -> Dataset:
    """The data that the options name, after telling whoever holds them what is to be told."""
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
    if has_maps(data) and (options.method not in ("pate", "dpsgd") or options.tune or options.pca):
        raise BadInput("the targets are maps of classes: train by --method pate or dpsgd, without --tune and --pca")
    if data.name == "hippocampus" and options.method == "dpsgd":  # pate has use for the public volumes, too
        tested = hippocampus.split(data).test
        data = replace(data, x_test=tested.x, y_test=tested.y)
    return data


def has_maps(data: Dataset) -> bool:
    """Whether targets are maps of classes, not classes."""
    return data.y is not None and len(np.shape(data.y)) > 1


def loss_of(data: Dataset, smoothing: float | None) -> Callable[[Tensor, Tensor], Tensor]:
    """One value for each example: cross-entropy, and for maps of classes soft Dice with it.

    Args:
        data: says which.
        smoothing: the share of a label that is spread over all classes; None: nothing is.
    """
    share = 0.0 if smoothing is None else between("--label-smoothing", smoothing, 0.0, MOST_SMOOTHING)
    if not has_maps(data):
        return nn.CrossEntropyLoss(reduction="none", label_smoothing=share)
    if smoothing is not None:
        raise BadInput("--label-smoothing is for classes, and the targets are maps of them: leave it out")
    return map_losses


def copies_of(options: argparse.Namespace) -> Augmentation | None:
    """The changed copies of each example that are asked for.

    Raises:
        BadInput: a number of them without a change, or the other way round.
    """
    if options.views is None and options.augment is None:
        return None
    if options.augment is None:
        raise BadInput(
            f"--views {options.views} asks for copies of each example that are changed: say how, --augment shift:2"
        )
    if options.views is None:
        raise BadInput(f"--augment {options.augment} changes copies of each example: say how many there are, --views 4")
    return Augmentation(count("--views", options.views), options.augment)


def require_in_range(options: argparse.Namespace) -> None:
    """Refuse what training would, before a ledger is begun or features are made, which takes long.

    Raises:
        BadInput: with the name of the option.
    """
    copies_of(options)
    if options.average is not None:
        require_share(options.average, "--average")
    if options.label_smoothing is not None:
        between("--label-smoothing", options.label_smoothing, 0.0, MOST_SMOOTHING)
    given = None if options.adjacency is None else Adjacency.parse(options.adjacency)
    counts = options.method in ("dpsgd", "dpmac")  # the others' noise and steps don't depend on how many rows there are
    if counts and given is Adjacency.ADD_REMOVE and options.examples is None:
        raise BadInput(UNDECLARED)


def require_movable(options: argparse.Namespace, shape: tuple[int, ...]) -> None:
    """Refuse moves that rows of this shape can't make, where these are what the network is given."""
    if options.augment is None or options.pca is not None or options.select is not None:
        return
    try:
        FlipAndShift.parse(options.augment).require_images(shape)
    except BadInput as error:
        raise BadInput(f"--augment {options.augment}: {error}") from error


def public_rows(options: argparse.Namespace, data: Dataset) -> Dataset:
    """The rows of `--public`, declared so, read as the training rows are, whose bounds and classes they get.

    Raises:
        BadInput: they can't be read, or are the training rows.
    """
    found = _read_public(options, data)
    asked = (found.x, found.x_test) if options.method == "pate" else ()  # dpsgd looks itself
    for part in asked:
        if part is not None and are_training_rows(part, data.x):
            raise BadInput(
                f"the rows of --public {options.public} are among the training rows, all or most of them: those are private, "
                "and public rows get no protection. Give rows of others"
            )
    return found


def _read_public(options: argparse.Namespace, data: Dataset) -> Dataset:
    if options.public in NAMES:
        return load(options.public, options.data_dir, public=True)
    if options.schema is not None and Path(options.public).suffix != ".npz":
        schema = replace(read_schema(options.schema), person=None)  # whose rows they are does not matter
        return load(options.public, schema=schema, public=True)
    low, high = data.bounds()
    found = load(options.public, classes=data.classes, value_range=(float(low.min()), float(high.max())), public=True)
    return replace(found, low=data.low, high=data.high)


def interrupted(checkpoint: Checkpoint, resume: bool) -> Saved | None:
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


def open_ledger(path: str, what: str) -> Ledger:
    """The ledger in the file at `path`, begun if it isn't there."""
    new = not Path(path).exists()
    ledger = Ledger.open(path, what=what, create=True)
    if new:
        screen.asides.print(
            f"began the ledger {path}, which only records, so there is no guarantee for several runs together: one with a "
            f"budget is begun by `privlearn ledger {path} --epsilon E`"
        )
    return ledger


def seed_warning(options: argparse.Namespace) -> Iterator[str]:
    """What whoever fixes the noise should know."""
    if options.seed is not None:
        yield "with --seed the noise can be taken off by whoever knows the seed: for trying out, not for data that matter"


def network(spec: str, shape: tuple[int, ...], classes: int, streams: Streams, size: tuple[int, ...] = ()) -> nn.Module:
    """Build the network and see that it has one output for each class, and for each voxel of maps of that size."""
    network = networks.build(spec, shape, classes, streams.initialisation)
    try:
        with torch.no_grad():
            found = tuple(network(torch.zeros(2, *shape)).shape)
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise BadInput(f"model {spec!r} cannot run on rows of shape {shape}: {str(error).splitlines()[0]}") from error
    if found != (2, classes, *size):
        raise BadInput(
            f"model {spec!r} turns 2 rows into shape {found}: expected {(2, classes, *size)}, a score for each class"
            + (" and voxel, as --model unet has" if size else "")
        )
    return network


def optimizer_kind(name: str) -> type[torch.optim.Optimizer]:
    """The class of torch.optim of that name, or `BadInput`."""
    kind = {n.lower(): k for n, k in vars(torch.optim).items() if isinstance(k, type)}.get(name.lower())
    unfit = (torch.optim.Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam)
    if kind is None or not issubclass(kind, torch.optim.Optimizer) or kind in unfit:
        raise BadInput(
            f"optimizer {name!r} cannot be used: expected a class of torch.optim that steps on dense gradients, for "
            "example SGD or Adam"
        )
    return kind


def optimizer(
    options: argparse.Namespace, kind: type[torch.optim.Optimizer], plan: Plan, examples: int, data: Dataset
) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    """Makes the optimizer from parameters, at the learning rate that is given or follows by the rule."""

    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        found = list(parameters)
        rate = usual_rate(kind.__name__, plan, examples, options.model, found, data)
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


def rates(options: argparse.Namespace, plan: Plan) -> schedules.Schedule:
    """The learning rate over the run: as given, or falling linearly to 0, or constant where noise follows validations."""
    # Under a validation schedule nobody knows when the run will end.
    reacts = isinstance(plan.schedule, schedules.Validation)
    usual = schedules.Constant() if reacts else schedules.Polynomial(k=1, end=0, period=plan.epochs)
    return usual if options.lr_schedule is None else schedules.parse_rates(options.lr_schedule)


def test_metrics(model: nn.Module, data: Dataset) -> dict[str, float]:
    """Accuracy on the test rows, if there are any, or Dice; computed exactly, so the test rows are not protected."""
    if data.x_test is None:
        return {}
    x, y = data.test_tensors()
    transforms, x = front(data, x, finite=False)  # what was spent is spent
    rest = cast(nn.Sequential, model)[len(transforms) :]
    maps = has_maps(data)
    with torch.no_grad():
        parts = x.split(_VOLUMES_AT_ONCE if maps else _ROWS_AT_ONCE)  # type: ignore[no-untyped-call]
        found = torch.cat([rest(part).argmax(1) for part in parts])
    if maps:
        each = dice(found, y, data.classes or 0)
        return {"dice": sum(each) / len(each)} | {f"dice_{label}": value for label, value in enumerate(each, 1)}
    return {"accuracy": int((found == y).sum()) / len(y)}
