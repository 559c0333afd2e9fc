"""This file checks what a run is given: rows, in memory or fetched by index, and how the run is to
compute.

What is refused before anything is spent, and the one message that a run may end with.
`require_usable` looks at the data: for the data's curator, outside the guarantee.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from privlearn._checks import fits, quoted, require_public
from privlearn._display import shortened
from privlearn._public import kinds
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping.augmentation import Augmentation
from privlearn.core.clipping.clips import Clip
from privlearn.core.clipping.indices import looking_at
from privlearn.core.clipping.losses import Loss
from privlearn.core.devices import expected_devices, place_of
from privlearn.core.plan import AbstractPlan, Plan
from privlearn.core.processes import World, may_be_several
from privlearn.core.rows import AllRows, Rows, TensorRows
from privlearn.core.sampling import Sampler
from privlearn.core.schedules import Schedule
from privlearn.core.streams import Streams
from privlearn.core.transform import PublicTransform, shape_after
from privlearn.data.dataset import Dataset
from privlearn.data.origins import require_once
from privlearn.errors import (
    AdjacencyMismatch,
    BadInput,
    NotPerExample,
    UnsupportedEvent,
    first_line,
)
from privlearn.runs.checkpoint import Checkpoint
from privlearn.runs.compute import ComputeConfig
from privlearn.runs.post_processing import PostProcessed

#: A factory of optimizers: parameters to a torch.optim optimizer.
OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
#: A number of examples that a plan could declare.
_MANY = 10**6


def require_kinds(
    plan: Any,
    model: Any,
    loss: Any,
    rates: Any,
    ledger: Any,
    streams: Any,
    arguments: Mapping[str, Any],
    delta: Any = None,
) -> ComputeConfig:
    """Refuse, before anything is done, arguments that are something else altogether.

    Returns:
        How the run computes, by the other arguments.

    Raises:
        BadInput: with the name of the argument.
        TypeError: there is no such argument.
    """
    others = [
        name
        for name in RunArguments.__annotations__
        if name not in ComputeArguments.__annotations__
    ]
    config = ComputeConfig.of(arguments, others)
    makes = callable(model) and not isinstance(model, type | torch.export.ExportedProgram)
    account = all(
        callable(getattr(ledger, name, None))
        for name in ("require_room", "begin", "charge", "settle")
    )
    for name, value, is_fit, expected in (
        (
            "plan",
            plan,
            isinstance(plan, Plan),
            "a privlearn Plan, for example pv.Plan(pv.Poisson(0.01))",
        ),
        (
            "model",
            model,
            makes,
            "a torch.nn.Module, or a function from the shape of one example to one",
        ),
        (
            "loss",
            loss,
            loss is None or callable(loss),
            "a function of outputs and targets, such as CrossEntropyLoss(reduction='none')",
        ),
        (
            "learning_rate_schedule",
            rates,
            callable(rates),
            "a schedule, such as pv.schedules.Exponential(k=0.1)",
        ),
        ("ledger", ledger, ledger is None or account, "a pv.Ledger (Ledger.open(path)), or None"),
        (
            "streams",
            streams,
            streams is None or isinstance(streams, Streams),
            "Streams.new(), or None for new ones",
        ),
        (
            "delta",
            delta,
            delta is None or (fits(delta, float) and 0 < delta < 1),
            "a number in (0, 1), or None for the plan's",
        ),
        (
            "world",
            config.world,
            config.world is None or hasattr(config.world, "once"),
            "a World of processes: leave it out",
        ),
        (
            "augmentation",
            config.augmentation,
            isinstance(config.augmentation, Augmentation | None),
            "a pv.clipping.Augmentation, or None",
        ),
    ):
        require_public(name, value)
        if not is_fit:
            raise BadInput(
                f"{name} is {shortened(repr(value), 60)}: expected {expected}", name=name
            )
    return config


def world_of(config: ComputeConfig) -> World:
    """The processes that train together: those that were given, or those that a launcher started.

    Raises:
        BadInput: a launcher started several, and not as torchrun does.
    """
    if config.world is not None:
        return config.world
    joined = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not joined and not may_be_several():
        return World()
    from privlearn.runs.ranks import launched  # several processes train together

    return launched()


def require_loss(loss: Any) -> None:
    """Raise `BadInput` where the whole run has no loss."""
    if loss is None:
        raise BadInput(
            "the run was given no loss: give a function of (outputs, targets) or of (model, batch) "
            "that returns one value for each example (reduction='none')"
        )


def gradient_clip(plan: Plan) -> Clip:
    """How the plan clips gradients.

    Raises:
        BadInput: it is a plan for DP-MAC.
    """
    if isinstance(plan.clip, Clip):
        return plan.clip
    raise BadInput(
        f"the plan's clip is {plan.clip!r}, for dpmac: dpsgd clips gradients, with one of "
        f"{', '.join(cls.__name__ for cls in kinds(Clip).values())}, such as pv.Flat(0.1)"
    )


def network_from(make: Callable[[tuple[int, ...]], nn.Module], shape: tuple[int, ...]) -> nn.Module:
    """The network that a factory makes.

    Raises:
        BadInput: it makes something else.
    """
    network = make(shape)
    if not isinstance(network, nn.Module):
        raise BadInput(
            f"model made a {type(network).__name__} of the shape {shape}: expected a "
            "torch.nn.Module"
        )
    return network


def require_public_numbers(examples: int, rates: Schedule) -> None:
    """Refuse numbers that would fail in the middle of the run.

    Raises:
        BadInput: no examples to divide by, or a learning rate that starts at 0.
    """
    if not examples:
        raise BadInput(
            "the data have 0 rows: expected at least one, or a declared number, Plan(examples=N)"
        )
    start = rates(0)
    if not 0 < start < math.inf:
        raise BadInput(
            f"the learning rate schedule is {start:g} at epoch 0: expected a finite number above "
            "0, which later ones are relative to"
        )


def require_usable(network: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> None:
    """Run the model and the loss on the smallest and the largest whole numbers there are in each
    column.

    This looks at the data: it is for the data's curator, before anything is spent, and outside the
    guarantee. From there on, an example that can't be computed adds nothing, and nothing is said
    about it.

    Raises:
        BadInput: they fail, for example on a label beyond the last class.
    """
    where = device_of(None, network)
    try:
        with torch.no_grad(), torch.random.fork_rng(), looking_at(where):
            loss(network(_ends(x).to(where)), _ends(y).to(where))
    except Exception as error:
        # the words of a refusal
        from privlearn.data.target_forms import advice_on

        advice = advice_on(y)
        raise BadInput(
            "the model or the loss fails on rows of the data's type: "
            f"{type(error).__name__}: {first_line(error)[:80]}. {advice}"
            if advice
            else "the model or the loss fails on rows of the data's type, of the smallest and the "
            f"largest whole numbers in it: {type(error).__name__}: {first_line(error)}. Expected "
            "inputs of the type of the parameters, labels below the number of outputs, and tokens "
            "below the size of the embedding"
        ) from error


@contextmanager
def advising(y: Tensor) -> Iterator[None]:
    """A block in which a refused loss is given advice by the targets' shape and type, if these say
    what is wrong.
    """
    try:
        yield
    except NotPerExample:
        raise
    except BadInput as error:
        # the words of a refusal
        from privlearn.data.target_forms import advice_on

        if not (advice := advice_on(y)):
            raise
        problem = shorten(str(error).partition(". ")[0], 150, placeholder=" ...")
        also = ". Or give made_up=" if "made_up" in str(error) else ""
        raise BadInput(f"{problem.removesuffix('.')}. {advice}{also}") from error


#: What `warn_of_absent` says: nothing of how many rows there are, or which.
ABSENT = (
    "there are rows with NaN or infinity in them: an example whose gradient is not finite counts "
    "as absent, and from here on nothing is said about it. Fill or drop such rows by a rule that "
    "looks at no other row; privlearn.data.torch_rows.check_rows names them. This warning follows "
    "from private rows, and is for their curator"
)


def warn_of_absent(*rows: Tensor) -> None:
    """Warn if numbers in memory are not finite: a look at the data for their curator, as that of
    `require_usable` is.

    Such rows are not refused: they are what an example that was taken out leaves among zero-out
    neighbours.
    """
    numbers = [part for part in rows if part.is_floating_point() and part.numel()]
    if not all(bool(end.isfinite()) for part in numbers for end in part.aminmax()):
        warnings.warn(ABSENT, stacklevel=2)


def _ends(values: Tensor) -> Tensor:
    """Two rows: each column's smallest and largest number if they are whole numbers, zeros
    otherwise.
    """
    if values.is_floating_point() or values.is_complex() or not len(values):
        return values.new_zeros(2, *values.shape[1:])
    return torch.stack([values.amin(0), values.amax(0)])


def optimizer_from(
    optimizer: OptimizerFactory, parameters: list[nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimizer, if it can step on noisy gradients as they are.

    Raises:
        BadInput: it is none, or needs a closure or sparse gradients.
    """
    try:
        built = optimizer(parameters) if callable(optimizer) else optimizer
    except BadInput:
        raise
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"optimizer can't be made: {type(error).__name__}: {first_line(error)}. Expected a "
            "function of parameters alone, for example lambda parameters: "
            "torch.optim.SGD(parameters, lr=0.1)"
        ) from error
    unfit = (torch.optim.LBFGS, torch.optim.SparseAdam)
    if (
        not callable(optimizer)
        or not isinstance(built, torch.optim.Optimizer)
        or isinstance(built, unfit)
    ):
        what = (
            f"made a {type(built).__name__}"
            if callable(optimizer)
            else f"is a {type(built).__name__}"
        )
        raise BadInput(
            f"optimizer {what}: expected a function from parameters to an optimizer of torch.optim "
            "that steps on dense gradients, for example lambda parameters: "
            "torch.optim.SGD(parameters, lr=0.1)"
        )
    return built


def device_of(requested: str | int | torch.device | None, network: nn.Module) -> torch.device:
    """Where to compute.

    Raises:
        BadInput: there is no such device here.
    """
    if requested is None:
        device = place_of(network)
        if device.type == "meta":
            raise BadInput(
                "the network is on the device meta, which holds no weights: load them, or call "
                "network.to_empty(device=...) and initialise them, before it is trained"
            )
        return device
    try:
        device = torch.device(requested)
        float(torch.zeros(1, device=device))
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError) as error:
        raise BadInput(
            f"device {quoted(requested)} can't be used: {first_line(error)}. Expected "
            f"{expected_devices()}"
        ) from error
    return device


def _are_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all numbers are finite, with one wait for a device."""
    answers = []
    for tensor in tensors:
        if type(tensor.data) is not Tensor:  # a part of what several processes share
            if not tensor.isfinite().all():
                return False
        elif tensor.numel():  # its largest number: nothing of its size is formed
            answers.append(torch.linalg.vector_norm(tensor, math.inf).isfinite())
    together = [answer.to(answers[0].device) for answer in answers]
    return not together or bool(torch.stack(together).all())


def require_finite(parameters: Iterable[Tensor], rate: float, when: str) -> None:
    """Stop where steps were too long. The weights follow from what was released, so that this tells
    nothing more.
    """
    if not _are_finite(parameters):
        raise BadInput(
            f"the weights are no longer finite numbers after {when}: the steps were too long. "
            f"Expected a smaller learning rate than {rate:g}. What was released up to there is "
            "spent: another run on the same data adds to it",
            learning_rate=rate,
        )


def require_changeable(augmentation: Augmentation | None, plan: Plan, x: Tensor, y: Tensor) -> None:
    """Refuse copies of rows that are not what an augmentation is for: before features are made,
    which takes long.

    Raises:
        BadInput: there are public features in front of the network, or flips and shifts would have
            to move targets, too, or are of no images.
    """
    if augmentation is None:
        return
    public = [
        transform.spec
        for transform in plan.front
        if isinstance(transform, PublicTransform) and not transform.keeps_places
    ]
    require_no_features(augmentation, public[0] if public else None)
    if isinstance(augmentation.transform, str):
        augmentation.require_images(shape_after(plan.front, tuple(x.shape[1:])))
        if y.dim() > 2:
            raise BadInput(
                f"augmentation {augmentation.transform!r} would move images and not their targets, "
                f"which have shape {tuple(y.shape[1:])} each: expected classes or numbers. Leave "
                "it out"
            )


def require_no_features(augmentation: Augmentation | None, spec: str | None) -> None:
    """Refuse copies of rows in front of which public features stand, those of `spec`.

    Raises:
        BadInput: both are there.
    """
    if augmentation is not None and spec is not None:
        raise BadInput(
            "copies of examples (augmentation=) are made of what the network is given, the public "
            f"features {spec}, and those of a moved image are others. Give the rows as they are "
            "(features='raw') and a network for them (model='cnn'), or leave the copies out"
        )


def require_same_examples(plan: AbstractPlan, data: Dataset, *, by_index: bool = False) -> None:
    """Raise `BadInput` unless the plan and the data agree on whether an example is a row or a
    person. Rows that come `by_index` from a data set have their ids beside it.
    """
    of_rows = plan.unit.rows_per_person is None
    if of_rows is not (data.groups is None) or (isinstance(plan, Plan) and plan.persons):
        from privlearn.runs.unlike_examples import describe_unlike  # for refusals alone

        raise BadInput(describe_unlike(plan, by_index=by_index))


def require_neighbours(plan: Any, ledger: Ledger) -> None:
    """Refuse a ledger whose kind of neighbour the plan can't have, with advice that works.

    The plan is asked, by making it anew. A ledger of a kind that it can have is refused by the
    ledger itself, which names that kind.

    Raises:
        AdjacencyMismatch: it is one.
    """
    theirs = ledger.adjacency
    names = {field.name for field in fields(plan)} if is_dataclass(plan) else set()
    if theirs in (None, plan.neighbours) or "adjacency" not in names:
        return
    changed: dict[str, Any] = {"adjacency": theirs}
    if "examples" in names and plan.examples is None:
        changed["examples"] = _MANY
    try:
        replace(plan, **changed)
    except (BadInput, UnsupportedEvent) as error:
        raise AdjacencyMismatch(
            f"the ledger is for {theirs} neighbours, and this run has no guarantee for them as it "
            f"is planned (its own are {plan.neighbours}): it can't be charged there. Give another "
            "ledger, or a new one. On ledgers apart, nothing is claimed for both together",
            expected=theirs,
            given=plan.neighbours,
        ) from error


def require_rows_once(
    plan: AbstractPlan, source: Given, data: Dataset, indexed: Rows | None = None
) -> None:
    """Refuse data that repeat a row more often than the plan protects together: a look at them for
    their curator.

    Args:
        plan: the plan.
        source: what was given, which may say where rows come from.
        data: what is known of the rows in memory.
        indexed: the rows that are fetched by index, if they are.

    Raises:
        BadInput: they do, by their indices or in memory (`data.origins`).
    """
    structured = isinstance(source, TorchDataset | DataLoader)
    require_once(
        indexed if indexed is not None else source if structured else data, plan.unit, data.groups
    )


#: Rows to learn from: a `Dataset`, a pair (inputs, targets) or any nest of arrays or tensors with
#: one row for each example; or a map-style `torch.utils.data.Dataset`, whose rows are fetched by
#: index (`data.rows`). Of a `DataLoader` only the rows are used; it must shuffle, and the plan's
#: sampling be `pv.Shuffle` with its batch size.
Given = Dataset | Rows | tuple[Any, Any] | TorchDataset[Any] | DataLoader[Any]


class ComputeArguments(PostProcessed, total=False):
    """The fields of `ComputeConfig` as keywords, for type checkers, which can't read them off a
    dataclass.
    """

    config: ComputeConfig | None
    microbatch: int | None
    device: str | int | torch.device | None
    precision: str
    augmentation: Augmentation | None
    world: World | None


class RunArguments(ComputeArguments, total=False):
    """The named arguments of `pv.Run`."""

    optimizer: OptimizerFactory | torch.optim.Optimizer | None
    learning_rate_schedule: Schedule
    validation: Dataset | None
    ledger: Ledger | None
    streams: Streams | None
    checkpoint: Checkpoint | str | Path | None


def rows(source: Given, sampling: Sampler) -> Dataset:
    """Read what was given into memory.

    Raises:
        BadInput: no data set, or a loader that draws other batches than the plan.
    """
    if isinstance(source, TorchDataset | DataLoader):
        # one kind of data: what PyTorch has for it
        from privlearn.runs.structured import rows_in_memory

        return rows_in_memory(source, sampling)
    return Dataset.of(source)  # type: ignore[arg-type]


def by_index(source: Given, plan: Plan) -> tuple[Dataset | None, AllRows | None]:
    """What was given, as rows in memory or as rows that are fetched by index: one of the two.

    Memory-mapped arrays, sparse matrices and map-style data sets are fetched by index, but where a
    release before training or a validation that is charged computes on all rows.
    """
    whole = bool(plan.releases) or plan.reacts
    if isinstance(source, TorchDataset | DataLoader) or hasattr(source, "with_format"):
        # one kind of data: what PyTorch and Hugging Face have for it
        from privlearn.runs.structured import read

        source = read(source, plan.sampling, whole=whole)
    if isinstance(source, dict) or (
        isinstance(source, tuple) and any(isinstance(part, dict | tuple) for part in source)
    ):
        source = TensorRows(source)
    if isinstance(source, AllRows):
        if whole:
            raise BadInput(
                "a release before training, or a validation schedule, computes on all rows, and "
                "these are fetched by index: give a privlearn Dataset or a pair of arrays, or "
                "leave it out"
            )
        return None, source
    data = rows(source, plan.sampling)
    if data.is_sparse and not whole:
        return data, TensorRows((data.x, data.target_tensor()))
    if any(isinstance(part, np.memmap) for part in (data.x, data.y)) and not whole:
        return data, TensorRows((data.x, data.y))
    return data, None
