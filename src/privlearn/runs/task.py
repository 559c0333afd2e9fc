"""What `dpsgd` and `dpmac` refuse, and the one message that they may end with.

All but `require_finite` run before anything is spent. `require_usable` looks at the data: for whoever holds them, outside the
guarantee.

What may be given as a data set, whether a loader's batches are the plan's, and the transforms in front of a network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from privlearn.clipping.augmentation import Augmentation, FlipAndShift
from privlearn.clipping.clips import Clip
from privlearn.clipping.derivative_bounds import Analytic, Derivatives
from privlearn.clipping.losses import Loss
from privlearn.data import catalogue
from privlearn.data.dataset import Dataset
from privlearn.data.torch_rows import rows_of, shuffled_batch_size
from privlearn.errors import BadInput, first_line
from privlearn.plan import Plan
from privlearn.sampling import Sampler, Shuffle
from privlearn.schedules import Schedule
from privlearn.streams import Streams
from privlearn.transforms.base import PublicTransform, shape_after
from privlearn.transforms.chain import Encoding
from privlearn.transforms.external import ExternalModule
from privlearn.transforms.modules import RowTransform, Scale
from privlearn.transforms.select import SelectFeatures, require_classes
from privlearn.transforms.specs import Rescale

#: A factory of optimizers: parameters to a torch.optim optimizer.
OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def require_kinds(
    plan: Any, model: Any, loss: Any, rates: Any, ledger: Any, streams: Any, copies: Any, call: Any
) -> None:
    """Refuse, before anything is done, arguments that are something else altogether.

    Raises:
        BadInput: with the name of the argument.
    """
    makes = callable(model) and not isinstance(model, type)
    account = all(callable(getattr(ledger, name, None)) for name in ("require_room", "begin", "charge", "settle"))
    for name, value, fits, expected in (
        ("plan", plan, isinstance(plan, Plan), "a privlearn Plan, for example pv.Plan(pv.Poisson(0.01))"),
        ("model", model, makes, "a torch.nn.Module, or a function from the shape of one example to one"),
        ("loss", loss, callable(loss), "a function of outputs and targets, such as CrossEntropyLoss(reduction='none')"),
        ("learning_rate_schedule", rates, callable(rates), "a schedule, such as pv.schedules.Exponential(k=0.1)"),
        ("ledger", ledger, ledger is None or account, "a privlearn Ledger, or None for a new one"),
        ("streams", streams, streams is None or isinstance(streams, Streams), "Streams.new(), or None for new ones"),
        (
            "augmentation",
            copies,
            copies is None or isinstance(copies, Augmentation),
            "a pv.clipping.Augmentation, or None",
        ),
        ("progress", call, call is None or callable(call), "a function of (steps done, steps in all), or None"),
    ):
        if not fits:
            raise BadInput(f"{name} is {repr(value)[:60]}: expected {expected}", name=name)


def gradient_clip(plan: Plan) -> Clip:
    """How the plan clips gradients.

    Raises:
        BadInput: it is a plan for DP-MAC.
    """
    if isinstance(plan.clip, Derivatives | Analytic):
        raise BadInput(
            f"the plan's clip is {plan.clip!r}, for dpmac: dpsgd clips gradients, with pv.Flat, "
            f"pv.clipping.PerLayer, pv.clipping.Automatic or "
            "pv.clipping.Quantile"
        )
    return plan.clip


def network_from(make: Callable[[tuple[int, ...]], nn.Module], shape: tuple[int, ...]) -> nn.Module:
    """The network that a factory makes.

    Raises:
        BadInput: it makes something else.
    """
    made = make(shape)
    if not isinstance(made, nn.Module):
        raise BadInput(f"model made a {type(made).__name__} of the shape {shape}: expected a torch.nn.Module")
    return made


def require_public_numbers(examples: int, rates: Schedule) -> None:
    """Refuse numbers that would fail in the middle of the run.

    Raises:
        BadInput: no examples to divide by, or a learning rate that starts at 0.
    """
    if not examples:
        raise BadInput("the data have 0 rows: expected at least one, or a declared number, Plan(examples=N)")
    start = rates(0)
    if not 0 < start < math.inf:
        raise BadInput(
            f"the learning rate schedule is {start:g} at epoch 0: expected a finite number above 0, which later ones are "
            "relative to"
        )


def require_labels_to_select(plan: Plan, y: Tensor) -> None:
    """Refuse targets that are not the classes by which features are to be selected: for whoever holds the data.

    Raises:
        BadInput: they are no classes, or others than declared.
    """
    for earlier in plan.front:
        if isinstance(earlier, SelectFeatures):
            require_classes(y, earlier.classes)


def require_usable(network: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> None:
    """Run the model and the loss on the smallest and the largest whole numbers there are in each column.

    This looks at the data: it is for whoever holds them, before anything is spent, and outside the guarantee. From there on,
    an example that can't be computed adds nothing, and nothing is said about it.

    Raises:
        BadInput: they fail, for example on a label beyond the last class.
    """
    where = device_of(None, network)
    try:
        with torch.no_grad(), torch.random.fork_rng():
            loss(network(_ends(x).to(where)), _ends(y).to(where))
    except Exception as error:
        raise BadInput(
            "the model or the loss fails on rows of the data's type, of the smallest and the largest whole numbers in it: "
            f"{type(error).__name__}: {first_line(error)}. Expected inputs of the type of the parameters, labels below the "
            "number of outputs, and tokens below the size of the embedding"
        ) from error


def _ends(values: Tensor) -> Tensor:
    """Two rows: each column's smallest and largest number if they are whole numbers, zeros otherwise."""
    if values.is_floating_point() or values.is_complex() or not len(values):
        return values.new_zeros(2, *values.shape[1:])
    return torch.stack([values.amin(0), values.amax(0)])


def optimizer_from(optimizer: OptimizerFactory, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer, if it can step on noisy gradients as they are.

    Raises:
        BadInput: it is none, or needs a closure or sparse gradients.
    """
    try:
        made = optimizer(parameters) if callable(optimizer) else optimizer
    except BadInput:
        raise
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"optimizer can't be made: {type(error).__name__}: {first_line(error)}. Expected a function of parameters alone, "
            "for example lambda parameters: torch.optim.SGD(parameters, lr=0.1)"
        ) from error
    unfit = (torch.optim.LBFGS, torch.optim.SparseAdam)
    if not callable(optimizer) or not isinstance(made, torch.optim.Optimizer) or isinstance(made, unfit):
        what = f"made a {type(made).__name__}" if callable(optimizer) else f"is a {type(made).__name__}"
        raise BadInput(
            f"optimizer {what}: expected a function from parameters to an optimizer of torch.optim that steps on dense "
            "gradients, for example lambda parameters: torch.optim.SGD(parameters, lr=0.1)"
        )
    return made


def device_of(given: str | torch.device | None, network: nn.Module) -> torch.device:
    """Where to compute.

    Raises:
        BadInput: there is no such device here.
    """
    if given is None:
        return next((p.device for p in network.parameters()), torch.device("cpu"))
    try:
        found = torch.device(given)
        float(torch.zeros(1, device=found))
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise BadInput(
            f"device {str(given)!r} can't be used: {str(error).splitlines()[0]}. Expected cpu or cuda"
        ) from error
    return found


def require_finite(parameters: Iterable[Tensor], rate: float, when: str) -> None:
    """Stop where steps were too long. The weights follow from what was released, so that this tells nothing more."""
    if not all(bool(parameter.isfinite().all()) for parameter in parameters):
        raise BadInput(
            f"the weights are no longer finite numbers after {when}: the steps were too long. Expected a smaller learning "
            f"rate than {rate:g}. What was released up to there is spent: another run on the same data adds to it",
            learning_rate=rate,
        )


def require_changeable(augmentation: Augmentation | None, plan: Plan, data: Dataset, x: Tensor, y: Tensor) -> None:
    """Refuse copies of rows that are not what an augmentation is for: before features are made, which takes long.

    Raises:
        BadInput: public features stand in front of the network, or flips and shifts would have to move targets, too, or are
            of no images.
    """
    if augmentation is None:
        return
    public = [own.spec for own in plan.front if isinstance(own, PublicTransform) and not isinstance(own, Rescale)]
    require_no_features(
        augmentation, (public[0] if public else None) if data.features is None else data.features.encoder.spec
    )
    if isinstance(augmentation.transform, str):
        FlipAndShift.parse(augmentation.transform).require_images(shape_after(plan.front, tuple(x.shape[1:])))
        if y.dim() > 2:
            raise BadInput(
                f"augmentation {augmentation.transform!r} would move images and not their targets, which have shape "
                f"{tuple(y.shape[1:])} each: expected classes or numbers. Leave it out"
            )


def require_no_features(augmentation: Augmentation | None, spec: str | None) -> None:
    """Refuse copies of rows in front of which public features stand, those of `spec`.

    Raises:
        BadInput: both are there.
    """
    if augmentation is not None and spec is not None:
        raise BadInput(
            "copies of examples (augmentation=, --views) are made of what the network is given, and that is the public "
            f"features {spec}: features of a moved image are others, and would have to be made anew for each copy. Give the "
            "rows as they are (--features raw) and a network for them (--model cnn), or leave the copies out"
        )


def require_same_examples(plan: Plan, data: Dataset) -> None:
    """Raise `BadInput` unless the plan and the data agree on whether an example is a row or a person."""
    if plan.rows_per_person is None and data.groups is not None:
        raise BadInput(
            "the data carry person ids (groups), and the plan protects single rows: say how many rows of each person are used "
            "with Plan(rows_per_person=K) (--rows-per-person K), or give data without them (an .npz without groups, a schema "
            "without person), with group_size=K (--group-size K) if a person has up to K rows"
        )
    if plan.rows_per_person is not None and data.groups is None:
        raise BadInput(
            f"the plan uses up to {plan.rows_per_person} rows of each person, and the data do not say whose rows they are: "
            "give `person = COLUMN` in a table's schema, groups in an .npz, or Dataset(groups=ids), a person's id for each row"
        )


#: Rows to learn from, in any of the ways in which they may be given.
Rows = Dataset | tuple[Any, Any] | TorchDataset[Any] | DataLoader[Any]


def rows(given: Rows, sampling: Sampler) -> Dataset:
    """Read what was given as a data set.

    The plan's sampler draws the batches, whatever was given. So a loader must be one that `sampling` describes: it shuffles,
    which is `Shuffle` with its batch size, and is not amplified.

    Raises:
        BadInput: no data set, or a loader that draws other batches than the plan.
    """
    if isinstance(given, DataLoader):
        size = shuffled_batch_size(given)
        if sampling != Shuffle(size):
            raise BadInput(
                f"the DataLoader shuffles and cuts batches of {size}, and the plan says {sampling}: expected "
                f"pv.Shuffle(batch_size={size}), whose guarantee has no amplification by sampling. To have one, give "
                "loader.dataset instead, and pv.Poisson or pv.Partition in the plan: privlearn draws the batches itself",
                batch_size=size,
            )
        return rows_of(given.dataset)
    return rows_of(given) if isinstance(given, TorchDataset) else Dataset.of(given)


def front(data: Dataset, x: Tensor, *, finite: bool = True) -> tuple[list[RowTransform], Tensor]:
    """The data's own public transforms, which stand first: what scales rows, and what makes features of them.

    Args:
        data: says which.
        x: rows of it, or of the same form.
        finite: whether features by the user's own code must be finite: before anything is spent, never afterwards.

    Returns:
        the transforms, and what they make of `x`.

    Raises:
        BadInput: features that are not finite, or rows that the encoder does not take.
    """
    transforms: list[RowTransform] = [] if data.low is None else [Scale(*data.bounds())]
    x = through(transforms, x)
    if data.features is None:
        return transforms, x
    return [*transforms, data.features.encoder], encoded([data.features], x, finite=finite)


def encoded(encodings: Iterable[Encoding], x: Tensor, *, finite: bool = True) -> Tensor:
    """Features of all rows, made once; `finite` says whether those by the user's own code must be finite.

    Raises:
        BadInput: features that are not finite, or rows that an encoder does not take.
    """
    for encoding in encodings:
        features = encoding(x)
        if finite and isinstance(encoding.encoder, ExternalModule):
            encoding.encoder.require_finite(features, x)
        x = features
    return x


def public_modules(plan: Plan, shape: tuple[int, ...]) -> tuple[list[RowTransform | None], tuple[int, ...]]:
    """The plan's front before anything is spent: its public modules, with None for each that is made by a release.

    Args:
        plan: with the front.
        shape: of one example before it.

    Returns:
        the modules, and the shape of one example behind them all.

    Raises:
        BadInput, NotPerExample: a transform that does not take such examples, or does not treat each by itself.
    """
    modules: list[RowTransform | None] = []
    for transform in plan.front:
        module = None
        if isinstance(transform, PublicTransform):
            module = transform.module(shape, catalogue.cache() / "directions")
        if isinstance(module, ExternalModule):
            if len(leading(modules)) < len(modules):
                raise BadInput(
                    f"features {module.spec!r} stand behind a release, where what the user's code does could tell of private "
                    "rows after they are paid for: put them in front of it"
                )
            module.require_per_example(torch.zeros(1, *shape))
            with torch.no_grad():
                shape = tuple(module(torch.zeros(1, *shape)).shape[1:])
        else:
            shape = transform.output_shape(shape)
        modules.append(module)
    return modules, shape


def leading(modules: Sequence[RowTransform | None]) -> list[RowTransform]:
    """The public modules with which a plan's front begins: all rows go through them before anything is spent."""
    return [module for module in takewhile(lambda module: module is not None, modules) if module is not None]


def described(features: Iterable[RowTransform | None]) -> list[dict[str, Any]]:
    """What a certificate says of the public features among some transforms: those that have more to say than numbers."""
    return [module.describe() for module in features if module is not None and "spec" in module.config()]


def through(transforms: Iterable[nn.Module], x: Tensor) -> Tensor:
    """Apply public, per-example transforms to all rows."""
    with torch.no_grad():
        for transform in transforms:
            x = transform(x)
    return x
