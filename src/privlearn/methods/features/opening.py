"""What selection, release and classifier have in common: what they refuse before anything is spent, and the charge."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from privlearn.accounting.ledger import Ledger
from privlearn.data.dataset import Dataset
from privlearn.data.persons import most_rows, require_groups
from privlearn.data.torch_rows import rows_of
from privlearn.errors import BadInput
from privlearn.mechanisms.features import require_classes
from privlearn.methods.features.plan import FeaturesPlan
from privlearn.models import Scale
from privlearn.rng import NoiseStream, Streams

#: Rows with classes, in any of the ways in which they may be given.
LabelledRows = Dataset | tuple[Any, Any] | TorchDataset[Any]


@final
@dataclass(frozen=True)
class Origin:
    """What is public of where rows come from.

    Attributes:
        scale: the transform by declared bounds, if there are any.
        input_shape: of one example.
        schema: digest of the schema of the table that the rows come from; empty if they come from none.
        seeded: whether somebody may know the seed of the noise.
        discrete: whether noise goes on a grid.
        names: of the numbers in a row, where the data name them.
    """

    scale: Scale | None
    input_shape: tuple[int, ...]
    schema: str
    seeded: bool
    discrete: bool
    names: tuple[str, ...] = ()


@final
@dataclass(frozen=True, repr=False, eq=False)
class Opened:
    """Rows that were looked at once, and a ledger with room for the plan.

    Attributes:
        x: inputs, an array or a tensor.
        y: their classes.
        origin: what is public of them.
        ledger: what is charged.
        stream: the run's noise stream.
    """

    x: Any
    y: Any
    origin: Origin
    ledger: Ledger
    stream: NoiseStream

    @property
    def prepare(self) -> Callable[[Tensor], Tensor] | None:
        """The transform of a few rows."""
        return self.origin.scale


@contextmanager
def opened(
    plan: FeaturesPlan, purpose: str, dataset: LabelledRows, ledger: Ledger | None, streams: Streams | None
) -> Iterator[Opened]:
    """A block in which the plan's event may be charged; what was not, is given back at its end.

    Raises:
        BudgetExceeded: the plan does not fit the ledger's budget; before any data is touched.
        BadInput: a plan for something else, or data that do not fit it; before anything is spent.
    """
    if not isinstance(plan, FeaturesPlan) or plan.purpose != purpose:
        given = f"a plan for {plan.purpose!r}" if isinstance(plan, FeaturesPlan) else repr(plan)[:60]
        raise BadInput(f"plan is {given}: expected pv.FeaturesPlan(..., purpose={purpose!r})")
    ledger = Ledger(plan.budget) if ledger is None else ledger
    event = plan.event()
    ledger.require_room(event, plan.neighbours, plan.unit)
    data = rows_of(dataset) if isinstance(dataset, TorchDataset) else Dataset.of(dataset)
    _require_fit(plan, data)
    streams = streams or Streams.new()
    scale = None if data.low is None else Scale(*data.bounds())
    origin = Origin(
        scale, tuple(data.x.shape[1:]), data.schema, streams.seeded, streams.noise.discrete, data.feature_names
    )
    found = Opened(data.x, data.y, origin, ledger, streams.noise)
    ledger.approve(event, plan.neighbours, plan.unit)
    try:
        yield found
    finally:
        ledger.settle()


def _require_fit(plan: FeaturesPlan, data: Dataset) -> None:
    """Look at the data once, for whoever holds them: outside the guarantee, and before anything is spent."""
    if data.y is None:
        raise BadInput(
            "the data have no targets: features are chosen by classes; give a class for each row, Dataset(x, y)"
        )
    if data.groups is not None:
        groups = np.asarray(data.groups)
        require_groups(data.name, groups, len(data.x))
        if most_rows(groups) > plan.group_size:
            raise BadInput(
                "the data carry person ids (groups), by which somebody has more rows than the plan protects together "
                f"({plan.group_size}): declare a public bound with FeaturesPlan(group_size=K) (--group-size K). To protect "
                "single rows only, give data without person ids (an .npz without groups, a schema without person)"
            )
    kind = np.asarray(data.x[:0]).dtype.kind
    features = math.prod(data.x.shape[1:])
    if kind not in "fiub" or features != plan.features:
        raise BadInput(
            f"rows have {features} features (shape {tuple(data.x.shape[1:])}, type {data.x.dtype}), and the plan says "
            f"{plan.features}: expected numbers, and as many as the plan has"
        )
    if data.classes is not None and data.classes != plan.classes:
        raise BadInput(f"the data have {data.classes} classes and the plan {plan.classes}: give both the same")
    if not len(data.x):
        raise BadInput("the data have 0 rows: expected at least one")
    require_classes(data.y, plan.classes)
