"""What selection, release and classifier have in common: what they refuse before anything is spent,
and the charge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset

from privlearn._checks import require_fit
from privlearn._display import shortened
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.processes import require_one_process
from privlearn.core.streams import NoiseStream, Streams
from privlearn.data.dataset import Dataset, most_rows, require_groups
from privlearn.data.schema import Schema, of_table
from privlearn.data.torch_rows import rows_of
from privlearn.errors import BadInput
from privlearn.methods.statistics.plan import StatisticsPlan
from privlearn.runs.front import Front
from privlearn.runs.given import require_rows_once
from privlearn.runs.result import PrivateDiagnostics, Result, public_facts
from privlearn.runs.session import Session
from privlearn.transforms.modules import Scale
from privlearn.transforms.select import require_classes

#: Rows with classes, in any of the ways in which they may be given.
LabelledRows = Dataset | tuple[Any, Any] | TorchDataset[Any]


@final
@dataclass(frozen=True)
class Origin:
    """What is public of where rows come from.

    Attributes:
        transforms: those in front: what scales rows by declared bounds, and the plan's public
            transforms.
        input_shape: of one example.
        schema: of the table that the rows come from; None if they come from none.
        seeded: whether anyone may know the seed of the noise.
        discrete: whether noise goes on a grid.
        names: of the numbers in a row, where the data name them.
        public: what the public features are, for certificates.
    """

    transforms: tuple[nn.Module, ...]
    input_shape: tuple[int, ...]
    schema: Schema | None
    seeded: bool
    discrete: bool
    names: tuple[str, ...] = ()
    public: Sequence[dict[str, Any]] = ()


@final
@dataclass(frozen=True, repr=False, eq=False)
class Opened:
    """Rows that were looked at once, and a ledger with room for the plan.

    Attributes:
        x: inputs, or public features of them, an array or a tensor.
        y: their classes.
        origin: what is public of them.
        ledger: what is charged.
        stream: the run's noise stream.
        prepare: what is still to be done to a few rows, each by itself.
    """

    x: Any
    y: Any
    origin: Origin
    ledger: Ledger
    stream: NoiseStream
    prepare: Callable[[Tensor], Tensor] | None


@contextmanager
def opened(
    plan: StatisticsPlan,
    kind: type[StatisticsPlan],
    dataset: LabelledRows,
    ledger: Ledger | None,
    streams: Streams | None,
) -> Iterator[Opened]:
    """A block in which the event of a plan of this kind may be charged; what was not, is given back
    at its end.

    Raises:
        BudgetExceeded: the plan does not fit the ledger's budget; before any data is touched.
        BadInput: a plan of another kind, or data that do not fit it; before anything is spent.
    """
    require_one_process("a release of statistics")
    if not isinstance(plan, kind):
        description = (
            f"a {type(plan).__name__}"
            if isinstance(plan, StatisticsPlan)
            else shortened(repr(plan), 60)
        )
        raise BadInput(
            f"plan is {description}: expected pv.statistics.{kind.__name__}(...).calibrate(...)"
        )
    require_fit("ledger", ledger, Ledger | None)
    require_fit("streams", streams, Streams | None)
    session = Session(plan, ledger, streams)
    data = rows_of(dataset) if isinstance(dataset, TorchDataset) else Dataset.of(dataset)
    _require_rows(plan, data)
    require_rows_once(plan, dataset, data)
    transforms, x, prepare, described = _in_front(plan, data)
    _require_fit(plan, x)
    origin = Origin(
        transforms,
        tuple(data.x.shape[1:]),
        data.schema,
        session.streams.seeded,
        session.streams.noise.discrete,
        () if plan.front else data.feature_names,
        described,
    )
    session.count_examples(len(x), data)
    with session.charging():
        yield Opened(x, data.y, origin, session.ledger, session.streams.noise, prepare)


def _in_front(
    plan: StatisticsPlan, data: Dataset
) -> tuple[tuple[nn.Module, ...], Any, Callable[[Tensor], Tensor] | None, Sequence[dict[str, Any]]]:
    """The transforms in front, the rows behind them, what is still to be done to a few of them, and
    public features.

    Features are made here, for they may be kept; rows are scaled a few at a time.
    """
    if plan.front:
        front = Front(plan.front, data, data.tensors()[0])
        return tuple(front.modules), front.rows, None, front.described()
    if data.low is None:
        return (), data.x, None, ()
    scale = Scale(*data.bounds())
    return (scale,), data.x, scale, ()


def linear_result(
    plan: StatisticsPlan,
    origin: Origin,
    transforms: Sequence[nn.Module],
    weight: Tensor,
    bias: Tensor,
    ledger: Ledger,
    facts: dict[str, Any],
) -> Result:
    """A linear classifier made of released numbers, behind the transforms that its features come
    through.

    Args:
        plan: what was spent.
        origin: of the rows.
        transforms: what was done to them beside that.
        weight: shape (outputs, kept features); an output for each class, or one number.
        bias: shape (outputs,).
        ledger: where it was charged.
        facts: what else was released or is public, for certificates.
    """
    linear = nn.Linear(weight.shape[1], len(bias), device="cpu")
    with torch.no_grad():
        linear.weight.copy_(weight)
        linear.bias.copy_(bias)
    return Result(
        model=nn.Sequential(
            *origin.transforms, *transforms, nn.Sequential(nn.Flatten(), linear)
        ).eval(),  # as models.build("linear")
        ledger=ledger,
        plan=plan,
        method="features",
        facts={"noise": "on a grid" if origin.discrete else "floating point"}
        | public_facts(origin.public)
        | facts,
        architecture={
            "input_shape": list(origin.input_shape),
            "network_input_shape": [weight.shape[1]],
        }
        | of_table(origin.schema),
        seeded=origin.seeded,
        private_diagnostics=PrivateDiagnostics({}),
        model_spec="linear",
        classes=len(bias),
    )


def _require_rows(plan: StatisticsPlan, data: Dataset) -> None:
    """Look at the data once, for the data's curator: outside the guarantee, and before anything is
    spent.
    """
    if data.y is None:
        raise BadInput(
            "the data have no targets: features are chosen by classes; give a class for each row, "
            "Dataset(x, y)"
        )
    if data.groups is not None:
        groups = np.asarray(data.groups)
        require_groups(data.name, groups, len(data.x))
        if most_rows(groups) > plan.group_size:
            raise BadInput(
                "the data carry person ids (groups), by which a person has more rows than the "
                f"plan protects together ({plan.group_size}): declare a public bound with "
                "group_size=K. To protect single rows only, give data without person ids (an .npz "
                "without groups, a schema without person)"
            )
    if data.classes is not None and data.classes != plan.classes:
        raise BadInput(
            f"the data have {data.classes} classes and the plan {plan.classes}: give both the same"
        )
    if not len(data.x):
        raise BadInput("the data have 0 rows: expected at least one")
    if plan.classes:
        require_classes(data.y, plan.classes)
    else:
        _require_numbers(data.y)


def _require_numbers(y: Any) -> None:
    values = np.asarray(y)
    if values.dtype.kind not in "fiub" or values.ndim != 1:
        raise BadInput(
            f"the targets are {values.dtype} values of shape {values.shape}: expected one number "
            "for each row"
        )


def _require_fit(plan: StatisticsPlan, x: Any) -> None:
    """Refuse rows, or features of them, of another length than the plan's."""
    kind = np.asarray(x[:0]).dtype.kind
    features = math.prod(x.shape[1:])
    if kind not in "fiub" or features != plan.features:
        raise BadInput(
            f"rows have {features} features (shape {tuple(x.shape[1:])}, type {x.dtype}), and the "
            f"plan says {plan.features}: expected numbers, and as many as the plan has"
        )
