"""`boost` makes rounds of boosting, each of them one release; the shapes of what was learned are
here, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset

from privlearn._checks import checked
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.mechanisms.release import release
from privlearn.core.processes import require_one_process
from privlearn.core.sampling import FullBatch
from privlearn.core.streams import NoiseStream, Streams
from privlearn.core.tensors import as_tensor
from privlearn.data.dataset import Dataset, most_rows, require_groups
from privlearn.data.sparse_matrix import SparseMatrix, describe_dense
from privlearn.data.torch_rows import rows_of
from privlearn.errors import BadInput
from privlearn.methods.boosting.plan import Block, BoostingPlan, Interval
from privlearn.methods.boosting.shrinkage import ShapeFilter
from privlearn.methods.boosting.sums import CURVATURE_WEIGHT, gradient_histogram
from privlearn.methods.boosting.targets import Counts, Labels, Values
from privlearn.models.boosted import Boosted
from privlearn.runs.given import require_rows_once
from privlearn.runs.result import PrivateDiagnostics, Result
from privlearn.runs.session import Session

Array = NDArray[np.float64]
#: Bytes of the bins of sparse rows, at most: each column has one for each row.
_MOST_BINS = 1 << 30


@checked
def boost(
    plan: BoostingPlan,
    dataset: Dataset | tuple[Any, Any] | TorchDataset[Any],
    *,
    weights: Any = None,
    ledger: Ledger | None = None,
    streams: Streams | None = None,
) -> Result:
    """Boost an additive model, with random trees if the plan has some.

    Guarantee: the returned model is `plan.guarantee(delta)`-DP for the plan's adjacency and unit,
    and the ledger is charged exactly `plan.event()`: one Gaussian release for each histogram. Bins
    and splits follow from the plan alone, the base rate is in the histograms, and what is made of
    them is post-processing. Targets and shapes are looked at once, for the data's curator, before
    anything is spent. From then on a row without any finite number, or without a usable target,
    counts as none, and nothing is said about it.

    Args:
        plan: what will be spent, and how; `pv.boosting.plan_for(dataset).calibrate(...)`.
        dataset: a `Dataset`, a pair (inputs, targets) or a map-style PyTorch data set; the rows as
            they are, not scaled.
        weights: of the rows, shape (rows,); None: 1 each. A row's clipped derivatives are
            multiplied by its weight; weights beyond [0, 1] count as 0 or 1, so that none moves a
            sum by more than the sensitivity. A row's weight has to follow from that row, or from
            public numbers: never from other rows, as weights by class counts do.
        ledger: what to charge; by default a new one with the plan's budget.
        streams: the random streams; by default new ones, seeded by the operating system.

    Returns:
        A result to publish. Its model takes rows of the plan's numbers, shape (rows, features), and
        gives scores of classes (their softmax are probabilities), values or expected counts, shape
        (rows, outputs).

    Raises:
        BudgetExceeded: the plan does not fit the ledger's budget; before any data is touched.
        BadInput: targets that are not what the plan says, or rows of another length; before
            anything is spent.
    """
    require_one_process("boosting")
    if not isinstance(plan, BoostingPlan):
        raise BadInput(
            f"plan is {repr(plan)[:60]}: expected "
            "pv.boosting.plan_for(dataset).calibrate(epsilon=, delta=)"
        )
    session = Session(plan, ledger, streams)
    data = rows_of(dataset) if isinstance(dataset, TorchDataset) else Dataset.of(dataset)
    require_rows_once(plan, dataset, data)
    network = _empty(plan)
    bins, y = _require_rows(plan, network, data)
    row_weights = _require_weights(weights, len(y))
    session.count_examples(len(y), data)
    with session.charging():
        scores = _rounds(plan, network, bins, y, row_weights, session.ledger, session.streams.noise)
    _fill(plan, network, scores)
    return Result(
        model=nn.Sequential(network).eval(),
        ledger=session.ledger,
        plan=plan,
        method="boosting",
        facts={"noise": "on a grid" if session.streams.noise.discrete else "floating point"},
        architecture={"input_shape": [plan.features], "network_input_shape": [plan.features]}
        | data.origin(),
        seeded=session.streams.seeded,
        private_diagnostics=PrivateDiagnostics({}),
        model_spec=network.spec,
        classes=network.scores.shape[2],
    )


def _rounds(
    plan: BoostingPlan,
    network: Boosted,
    bins: Tensor,
    y: Array,
    weights: Array | None,
    ledger: Ledger,
    stream: NoiseStream,
) -> list[Array]:
    """The scores of all blocks, each of shape (outputs, cells)."""
    target, outputs, adjacency = plan.target, plan.target.outputs, plan.neighbours
    filters = [
        ShapeFilter(block.cells, outputs, plan.variance, ordered=block.ordered)
        for block in plan.blocks
    ]
    scores = np.full((len(bins), outputs), target.start)
    for _ in range(plan.passes):
        for number, (block, shapes) in enumerate(zip(plan.blocks, filters, strict=True)):
            cells = network.cells(bins, number).numpy()
            gradients, curvatures = target.derivatives(scores, y)
            (sample,) = FullBatch().draw(len(bins))
            sums = gradient_histogram(
                cells,
                gradients,
                curvatures,
                sample,
                adjacency,
                size=block.cells,
                norm=plan.norm,
                weights=weights,
            )
            ((first, second),) = release(
                sums, noise_multiplier=plan.release_noise, ledger=ledger, stream=stream
            )
            # Back from units of the norm, and from the weight of curvatures.
            unit, wide = plan.norm, plan.norm * target.widening / CURVATURE_WEIGHT
            noise = plan.release_noise * sums.sensitivity
            change = shapes.update(
                unit * first.numpy(),
                wide * second.numpy(),
                (unit * noise, wide * noise),
                target.row_variance,
            )
            scores += change.T[cells]
    return [shapes.scores for shapes in filters]


def _empty(plan: BoostingPlan) -> Boosted:
    """The network with the plan's bins and splits, and scores of 0."""
    sizes = [column.bins(plan.bins) for column in plan.columns]
    depth = max(len(block.columns) for block in plan.blocks)
    cells = max(block.cells for block in plan.blocks)
    outputs = plan.target.classes if isinstance(plan.target, Labels) else 1
    network = Boosted(
        len(sizes),
        max(sizes),
        len(plan.blocks),
        depth,
        cells,
        outputs,
        logarithm=isinstance(plan.target, Counts),
    )
    first = 0
    for place, column in enumerate(plan.columns):
        network.places[place] = torch.tensor(
            [first, column.width, not isinstance(column, Interval)], device="cpu"
        )
        first += column.width
        if isinstance(column, Interval):
            network.edges[place, : plan.bins - 1] = torch.from_numpy(column.edges(plan.bins))
    for number, block in enumerate(plan.blocks):
        for at, (member, groups, stride) in enumerate(_members(block)):
            network.members[number, at], network.strides[number, at] = member, stride
            network.groups[number, at, : len(groups)] = torch.from_numpy(groups)
    return network


def _members(block: Block) -> Iterator[tuple[int, NDArray[np.int64], int]]:
    """The columns of a block, each with its bins' groups and what a group adds to the number of a
    cell.
    """
    stride = 1
    for column, (groups, number) in zip(block.columns, block.groups, strict=True):
        yield column, groups, stride
        stride *= number


def _fill(plan: BoostingPlan, network: Boosted, scores: list[Array]) -> None:
    """Write the scores into the network, in the units of what it predicts."""
    target, scale = plan.target, 1.0
    if isinstance(target, Values):
        scale, middle = (target.high - target.low) / 2, (target.high + target.low) / 2
        network.base.fill_(middle)
        network.limits.copy_(torch.tensor([target.low, target.high], device="cpu"))
    if isinstance(target, Counts):
        network.base.fill_(target.start)
        network.limits.copy_(torch.tensor([-target.top - 10, target.top], device="cpu"))
    for number, block_scores in enumerate(scores):
        table = torch.from_numpy(scale * block_scores.T).float()
        if isinstance(target, Labels) and target.classes == 2:
            table = torch.cat([-table / 2, table / 2], 1)
        network.scores[number, : len(table)] = table


def _require_rows(plan: BoostingPlan, network: Boosted, data: Dataset) -> tuple[Tensor, Array]:
    """Look at the data once, for the data's curator: outside the guarantee, and before anything is
    spent.

    Returns:
        The bins of rows, and targets as numbers of the loss: NaN where a row counts as none.
    """
    if data.y is None:
        raise BadInput("the data have no targets: give one for each row, Dataset(x, y)")
    if data.groups is not None:
        groups = np.asarray(data.groups)
        require_groups(data.name, groups, len(data.x))
        if most_rows(groups) > plan.group_size:
            raise BadInput(
                f"the data carry person ids, and a person has more rows than the {plan.group_size} "
                "that are protected together: declare a public bound with group_size=K, or give "
                "data without person ids"
            )
    if isinstance(data.x, SparseMatrix):
        x: SparseMatrix | Tensor = data.x
    else:
        x = as_tensor(data.x, f"the data in x of {data.name}", whole_is_float=True).float()
    if x.ndim != 2 or x.shape[1] != plan.features:
        raise BadInput(
            f"rows have the shape {tuple(x.shape[1:])}: expected the plan's {plan.features} numbers"
        )
    if not len(x):
        raise BadInput("the data have 0 rows: expected at least one")
    targets = data.y.detach().cpu().numpy() if isinstance(data.y, Tensor) else np.asarray(data.y)
    y = plan.target.checked(targets)
    bins, usable = _binned(plan, network, x)
    return bins, np.where(usable.numpy(), y, math.nan)


def _binned(
    plan: BoostingPlan, network: Boosted, x: SparseMatrix | Tensor
) -> tuple[Tensor, Tensor]:
    """The bins of all rows, shape (rows, columns), and whether a row has a finite number.

    Raises:
        BadInput: sparse rows of so many columns that the bins take the memory of dense ones.
    """
    if isinstance(x, Tensor):
        return network.bins(x), x.isfinite().any(1)
    size = len(x) * len(plan.columns) * torch.int64.itemsize
    if size > _MOST_BINS:
        raise BadInput(
            f"the bins of sparse rows: {describe_dense((len(x), len(plan.columns)), 8)}. Name the "
            "columns of one category alike (feature_names=['city=Paris', ...], bounds 0 and 1): "
            "they are then one column; or train a linear model by DP-SGD"
        )
    parts = [
        (network.bins(rows), rows.isfinite().any(1)) for rows in map(torch.from_numpy, x.blocks())
    ]
    return torch.cat([bins for bins, _ in parts]), torch.cat([usable for _, usable in parts])


def _require_weights(weights: Any, rows: int) -> Array | None:
    """Weights, shape (rows,); None for none.

    Raises:
        BadInput: something else than a finite number for each row.
    """
    if weights is None:
        return None
    array = np.asarray(weights)
    if array.dtype.kind not in "fiub" or array.shape != (rows,) or not np.isfinite(array).all():
        raise BadInput(
            f"weights are {array.dtype} values of shape {array.shape}: expected a finite number "
            f"for each of the {rows} rows"
        )
    return array.astype(np.float64)


@final
@dataclass(frozen=True, eq=False, repr=False)
class FeatureShape:
    """What one column adds to the scores: free to plot.

    Attributes:
        name: of the column.
        edges: where an interval's bins begin and end, shape (bins + 1,); None for categories.
        scores: of each bin or category, shape (bins, outputs).
        missing: of a value that is missing or not declared, shape (outputs,).
    """

    name: str
    edges: NDArray[np.float64] | None
    scores: NDArray[np.float64]
    missing: NDArray[np.float64]


@checked
def shape(result: Result, column: int | str) -> FeatureShape:
    """The shape function of a column, from released numbers alone; what trees add is not in it.

    Args:
        result: what `boost` returned.
        column: its place in the plan, or its name.

    Raises:
        BadInput: no such result, or no such column.
    """
    plan = result.plan
    if not isinstance(plan, BoostingPlan):
        raise BadInput(
            f"the result is of a {type(plan).__name__}: expected what pv.boosting.boost returned"
        )
    names = [feature.name for feature in plan.columns]
    place = names.index(column) if isinstance(column, str) and column in names else column
    if isinstance(place, str) or not 0 <= place < len(names):
        raise BadInput(
            f"there is no column {str(column)[:40]!r}: expected one of {', '.join(names)[:120]}, "
            "or its place"
        )
    feature = plan.columns[place]
    (network,) = result.model.children()
    table = network.get_buffer("scores")[place, : feature.bins(plan.bins)].double().numpy()
    edges = (
        np.linspace(feature.low, feature.high, plan.bins + 1)
        if isinstance(feature, Interval)
        else None
    )
    return FeatureShape(feature.name, edges, table[1:], table[0])


def train_boosted(
    plan: BoostingPlan, data: Dataset, options: Any, *, ledger: Ledger | None, streams: Streams
) -> Result:
    """Boost on rows, as `train` calls it: the result states the bounds of targets that are numbers.

    Args:
        plan: with its noise.
        data: the rows.
        options: none is read, since the plan has all of them.
        ledger: what to charge; None: a new one.
        streams: the random streams.
    """
    result = boost(plan, data, ledger=ledger, streams=streams)
    bounds = data.target_bounds
    target_facts = {} if bounds is None else {"target_bounds": list(bounds)}
    return replace(
        result, facts=result.facts | target_facts, architecture=result.architecture | target_facts
    )
