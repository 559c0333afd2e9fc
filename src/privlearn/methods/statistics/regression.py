"""Ridge regression from released sums of products: its plan, which knows nothing of torch, and the
release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

from privlearn._checks import between, checked, count
from privlearn._public import registered
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import Composed, compose
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.streams import Streams
from privlearn.core.transform import PublicTransform
from privlearn.errors import BadInput
from privlearn.methods.statistics.plan import StatisticsPlan
from privlearn.transforms.select import PARTS_OF_SPLIT, SIZES, SPLIT

if TYPE_CHECKING:
    from privlearn.methods.neighbouring_runs import Rows
    from privlearn.methods.statistics.opening import LabelledRows
    from privlearn.runs.result import Result

#: What follows each row, as a part of row_norm; and numbers in a row, at most: X'X has their
#: square.
_CONSTANT, _MOST_FEATURES = 0.25, 10_000


@checked
@final
@registered
@dataclass(frozen=True, repr=False)
class RidgePlan(StatisticsPlan):
    """Ridge regression of a bounded number, from one release of the sums of products of rows.

    Attributes:
        features: the number of numbers in a row.
        row_norm: L2 norm that rows are clipped to. Public: it may not be read off the data.
        low: the declared lower bound of targets; those below count as it. Public.
        high: the declared upper bound, likewise.
        adjacency: the kind of neighbour.
        split: rho in proportion for X'y and X'X.
        noise_multiplier: that of the release; None: `calibrate` solves for it.
        budget: what the plan was calibrated to; the limit of the ledger.
        group_size: the declared, public number of examples that one person has at most.
        front: public transforms of rows; `features` counts what they make.

    Raises:
        BadInput: a number out of range.
    """

    features: int
    row_norm: float
    low: float
    high: float
    adjacency: Adjacency | None = None
    split: tuple[float, float] = SPLIT[1:]
    noise_multiplier: float | None = None
    budget: Budget | None = None
    group_size: int = 1
    front: tuple[PublicTransform, ...] = ()
    kind: ClassVar[str] = "ridge"
    classes: ClassVar[int] = 0  # type: ignore[misc]  # targets are numbers

    def __post_init__(self) -> None:
        self._settle()
        count("the features of ridge regression", self.features, most=_MOST_FEATURES)
        between("row_norm", self.row_norm, *SIZES)
        for name in ("low", "high"):
            between(f"{name} of the targets", getattr(self, name), -1e30, 1e30)
        if not self.low < self.high:
            raise BadInput(
                f"targets lie in [{self.low:g}, {self.high:g}]: expected the smaller bound first"
            )
        if not isinstance(self.split, tuple) or len(self.split) != 2:
            raise BadInput(
                f"split is {self.split!r}: expected two numbers, for X'y and X'X, such as "
                f"{SPLIT[1:]}"
            )
        for part in self.split:
            between("a part of the split", part, *PARTS_OF_SPLIT)

    def run_on(self, rows: Rows, ledger: Ledger, streams: Streams) -> object:
        """`ridge`."""
        return ridge(self, rows, ledger=ledger, streams=streams)

    @property
    def keep(self) -> int:
        """All features."""
        return self.features

    @property
    def constant(self) -> float:
        """What follows each row."""
        return _CONSTANT * self.row_norm

    def event(self) -> Composed:
        """The one release."""
        return compose([Gaussian(self.noise)])

    @property
    def summary(self) -> str:
        """What a card says of how it was made."""
        kind = "A linear model of a number by ridge regression, with a ridge that follows the noise"
        return f"{kind}, computed from released numbers alone."

    def rows(self) -> list[tuple[str, str]]:
        """What a card says of what was released."""
        released = "sums of products of each row with its target and with itself"
        bounds = f"rows to norm {self.row_norm:g}, targets to [{self.low:g}, {self.high:g}]"
        return self._rows(released, f"{self.features} of {self.features}", bounds)


def ridge(
    plan: RidgePlan,
    dataset: LabelledRows,
    *,
    weights: Any = None,
    ledger: Ledger | None = None,
    streams: Streams | None = None,
) -> Result:
    """Release sums of products of rows and targets, and make a linear model of them.

    Guarantee: the returned model is `plan.guarantee(delta)`-DP for the plan's adjacency and unit,
    and the ledger is charged exactly `plan.event()`: one Gaussian release. Shapes are looked at
    once, for the data's curator, before anything is spent; then a row that is not finite, or whose
    target is not, counts as none.

    Args:
        plan: what will be spent, and how.
        dataset: a `Dataset` or a pair (inputs, targets), one number for each row. Declared bounds
            scale its rows first.
        weights: of the rows, shape (rows,), private like these; None: 1 each. Weights beyond [0, 1]
            count as 0 or 1. A row's weight may follow from that row, or from public numbers: never
            from other rows.
        ledger: what to charge; by default a new one with the plan's budget.
        streams: the random streams; by default new ones.

    Returns:
        A result to publish. Its model clips rows likewise, and gives one number for each, in units
        of the target.

    Raises:
        BudgetExceeded: the plan does not fit the ledger's budget; before any data is touched.
        BadInput: rows or targets that do not fit the plan; before anything is spent.
    """
    import torch

    from privlearn.core.clipping.row_sums import symmetric
    from privlearn.core.mechanisms.release import release
    from privlearn.core.sampling import FullBatch
    from privlearn.core.tensors import as_tensor
    from privlearn.methods.statistics.classifiers import RIDGE, Squares, solved
    from privlearn.methods.statistics.opening import linear_result, opened
    from privlearn.methods.statistics.sums import ridge_sums
    from privlearn.transforms.modules import ClipRows

    with opened(plan, RidgePlan, dataset, ledger, streams) as rows:
        if weights is not None and tuple(as_tensor(weights, "weights").shape) != (len(rows.x),):
            raise BadInput(
                f"weights have another shape than ({len(rows.x)},): expected one for each row"
            )
        middle, half = (plan.low + plan.high) / 2, (plan.high - plan.low) / 2
        shares = [math.sqrt(part / math.fsum(plan.split)) for part in plan.split]
        (sample,) = FullBatch().draw(len(rows.x))
        targets = (torch.as_tensor(rows.y, device="cpu").double() - middle) / half
        bounded = ridge_sums(
            rows.x,
            targets,
            sample,
            plan.neighbours,
            norm=plan.row_norm,
            constant=plan.constant,
            prepare=rows.prepare,
            weights=weights,
        )
        (products,), (gram,) = release(
            *bounded,
            noise_multiplier=plan.noise,
            ledger=rows.ledger,
            stream=rows.stream,
            shares=shares,
        )
    stds = [
        plan.noise * part.sensitivity / share for part, share in zip(bounded, shares, strict=True)
    ]
    both = torch.cat([products, -products], 1)  # of mean 0, which solving takes off
    squares = Squares(both, symmetric(gram, len(products)), *stds)
    penalty = RIDGE * squares.loudest
    weights = half * solved(squares, penalty)[:, :1]
    clip = ClipRows(torch.tensor(float(plan.row_norm), device="cpu"))
    bias = plan.constant * weights[-1] + middle
    return linear_result(
        plan, rows.origin, [clip], weights[:-1].T, bias, rows.ledger, {"ridge": penalty}
    )
