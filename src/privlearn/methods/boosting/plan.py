"""A `BoostingPlan` says in public numbers what boosting does: columns, splits, rounds and noise are
fixed before any data are touched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import numpy as np
from numpy.typing import NDArray

from privlearn._checks import between, checked, count, with_plain_numbers
from privlearn._public import registered
from privlearn.core.accounting.budget import Budget, require_budget
from privlearn.core.accounting.calibration import solve_gaussian
from privlearn.core.accounting.events import Composed, Repeated, compose
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.plan import AbstractPlan
from privlearn.core.transform import check_choices
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from privlearn.methods.boosting.targets import Labels, Target, Values

if TYPE_CHECKING:
    from privlearn.methods.neighbouring_runs import NeighbouringRuns

#: Histograms that a run releases at most, and numbers in one of them.
_MOST_RELEASES, _MOST_CELLS = 100_000, 1 << 16


@final
@registered
@dataclass(frozen=True)
class Interval:
    """A column of numbers with declared bounds, in bins of equal width. Numbers beyond a bound are
    in the last bin.

    Attributes:
        low: the declared lower bound; public.
        high: the declared upper bound; public.
        name: what it is called.
    """

    low: float
    high: float
    name: str = ""
    kind: ClassVar[str] = "interval"

    def __post_init__(self) -> None:
        _require_text(self.name)
        for bound in (self.low, self.high):
            between("a bound of a column", bound, -1e30, 1e30)
        if not np.float32(self.low) < np.float32(self.high):
            raise BadInput(
                f"a column has the bounds {self.low:g}, {self.high:g}: expected the smaller one "
                "first"
            )

    @property
    def width(self) -> int:
        """Numbers of a row that it takes."""
        return 1

    def bins(self, most: int) -> int:
        """Its bins; bin 0 is for missing values."""
        return most + 1

    def edges(self, most: int) -> NDArray[np.float32]:
        """What separates its bins, ascending."""
        parts = np.arange(1, most) / most
        return (self.low + (self.high - self.low) * parts).astype(np.float32)


@final
@registered
@dataclass(frozen=True)
class Levels:
    """A column of declared categories, which rows hold as one number each: 1 where it has it, else
    0.

    Attributes:
        width: how many categories there are; public.
        name: what it is called.
    """

    width: int
    name: str = ""
    kind: ClassVar[str] = "levels"

    def __post_init__(self) -> None:
        _require_text(self.name)
        count("the categories of a column", self.width, most=_MOST_CELLS - 1)

    def bins(self, most: int) -> int:
        """Its bins; bin 0 is for values that are none of the categories."""
        return self.width + 1


Column = Interval | Levels


def _require_text(name: str) -> None:
    """Raise `BadInput` unless the name of a column is a text, as a file may hold any value."""
    if not isinstance(name, str):
        raise BadInput(f"the name of a column is {str(name)[:40]}: expected a text")


@final
@dataclass(frozen=True, eq=False, repr=False)
class Block:
    """One histogram: public columns, and for each the group of each of its bins. A cell is a group
    of each column.

    Attributes:
        columns: their places in the plan.
        groups: for each of these the group of each bin, and how many groups there are.
        ordered: whether cells 1, 2, ... are neighbouring intervals.
    """

    columns: tuple[int, ...]
    groups: tuple[tuple[NDArray[np.int64], int], ...]
    ordered: bool

    @property
    def cells(self) -> int:
        """How many there are."""
        return math.prod(number for _, number in self.groups)


@checked
@final
@registered
@dataclass(frozen=True)
class BoostingPlan(AbstractPlan):
    """Boosting over histograms: in each round one block's sums of gradients and curvatures are
    released.

    There is a block for each column, and `trees` more: totally random ones, each of `depth` splits
    of public, random columns at public, random places. Every pass goes through all blocks. All
    releases have the same noise, and all of them together are one Gaussian of noise multiplier
    `noise_multiplier`: rho = 1 / (2 noise_multiplier^2).

    Attributes:
        columns: what the numbers of a row are, in their order: bounds and categories are declared,
            and give the bins.
        target: what is predicted.
        bins: of a column of numbers, beside that for missing values.
        passes: how often all blocks are gone through.
        trees: random trees beside the columns' histograms. 0: the model is additive.
        depth: splits of a tree.
        split_seed: what the trees' columns and splits follow from; public.
        clip_norm: what gradients and curvatures of a row are clipped to, jointly; None: the
            target's.
        prior_variance: that of the sum of all shapes; None: the target's.
        adjacency: the kind of neighbour.
        noise_multiplier: that of all releases together; None: `calibrate` solves for it.
        budget: what the plan was calibrated to; the limit of the ledger.
        group_size: the declared, public number of examples that one person has at most.

    Raises:
        BadInput: a number out of range.
    """

    columns: tuple[Column, ...]
    target: Target
    bins: int = 16
    passes: int = 4
    trees: int = 0
    depth: int = 3
    split_seed: int = 0
    clip_norm: float | None = None
    prior_variance: float | None = None
    adjacency: Adjacency | None = None
    noise_multiplier: float | None = None
    budget: Budget | None = None
    group_size: int = 1
    kind: ClassVar[str] = "boosting"

    def __post_init__(self) -> None:
        if not isinstance(self.columns, tuple) or not all(
            isinstance(column, Column) for column in self.columns
        ):
            raise BadInput(
                f"columns is {str(self.columns)[:60]}: expected a tuple of "
                "pv.boosting.Interval(low, high) and pv.boosting.Levels(categories), as "
                "pv.boosting.columns_of(dataset) gives them"
            )
        count("columns", len(self.columns), most=10**5)
        if not isinstance(self.target, Target):
            raise BadInput(
                f"target is {str(self.target)[:60]}: expected pv.boosting.Labels(classes), "
                "Values(low, high) or Counts(high)"
            )
        count("bins", self.bins, least=2, most=1024)
        count("passes", self.passes, most=_MOST_RELEASES)
        count("trees", self.trees, least=0, most=_MOST_RELEASES)
        count("depth", self.depth, most=12)
        count("split_seed", self.split_seed, least=0)
        for name in ("clip_norm", "prior_variance"):
            if getattr(self, name) is not None:
                between(name, getattr(self, name), 1e-6, 1e6)
        count("the releases of all passes", self.releases, most=_MOST_RELEASES)
        if self.noise_multiplier is not None:
            between("noise_multiplier", self.noise_multiplier, 1e-6, 1e9)
        PrivacyUnit(self.group_size)
        require_budget(self.budget)
        usual = Adjacency.ADD_REMOVE if self.adjacency is None else self.adjacency
        object.__setattr__(self, "adjacency", Adjacency.parse(str(usual)))

    @property
    def features(self) -> int:
        """Numbers in a row."""
        return sum(column.width for column in self.columns)

    @property
    def releases(self) -> int:
        """Histograms that are released, in all passes."""
        return self.passes * (len(self.columns) + self.trees)

    @property
    def noise(self) -> float:
        """The noise multiplier of all releases together.

        Raises:
            BadInput: it was not solved for yet.
        """
        if self.noise_multiplier is None:
            raise BadInput(
                "the plan has no noise yet: settle it with plan.calibrate(epsilon=, delta=), or "
                "noise_multiplier="
            )
        return self.noise_multiplier

    @property
    def release_noise(self) -> float:
        """The noise multiplier of each release."""
        return self.noise * math.sqrt(self.releases)

    @property
    def norm(self) -> float:
        """What the derivatives of a row are clipped to."""
        return self.target.clip_norm if self.clip_norm is None else float(self.clip_norm)

    @property
    def variance(self) -> float:
        """The prior variance of one block's shape."""
        whole = self.target.prior_variance if self.prior_variance is None else self.prior_variance
        return whole / (len(self.columns) + self.trees)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """All histograms: those of the columns, then the trees. They follow from the plan alone."""
        sizes = [column.bins(self.bins) for column in self.columns]
        histograms = [
            Block((place,), ((np.arange(size), size),), isinstance(column, Interval))
            for place, (column, size) in enumerate(zip(self.columns, sizes, strict=True))
        ]
        draw = np.random.default_rng(self.split_seed)
        depth = min(self.depth, len(self.columns))
        for _ in range(self.trees):
            places = draw.choice(len(self.columns), depth, replace=False)
            groups = tuple((self._split(self.columns[place], draw), 2) for place in places)
            histograms.append(Block(tuple(int(place) for place in places), groups, False))
        return tuple(histograms)

    def _split(self, column: Column, draw: np.random.Generator) -> NDArray[np.int64]:
        """A side, 0 or 1, for each bin of a column: at a random edge, or of each category by
        itself.
        """
        if isinstance(column, Levels):
            return draw.integers(2, size=column.bins(self.bins))
        sides = (np.arange(self.bins) >= draw.integers(1, self.bins)).astype(np.int64)
        return np.concatenate([draw.integers(2, size=1), sides])

    def neighbouring_runs(self) -> NeighbouringRuns:
        """Its run on made-up rows, for audits: all but the example have the opposite target."""
        from privlearn.methods.boosting.made_up_columns import runs_of

        return runs_of(self)

    def event(self) -> Composed:
        """The histograms of all passes."""
        return compose([Repeated(Gaussian(self.release_noise), self.releases)])

    @with_plain_numbers
    def scaled(self, factor: float) -> Self:
        """The plan with `factor` times the noise."""
        return replace(self, noise_multiplier=self.noise * factor)

    def _by_factor(self, budget: Budget) -> tuple[Callable[[float], Self], float]:
        return replace(self, noise_multiplier=1.0).scaled, 1.0

    def _solved(self, budget: Budget, spent: Callable[[float], float], start: float) -> float:
        return solve_gaussian(budget, spent)

    @property
    def summary(self) -> str:
        """What a card says of how it was made."""
        what = (
            "An additive model"
            if not self.trees
            else f"An additive model and {self.trees} random trees"
        )
        return (
            f"{what}, boosted from noisy histograms; bins and splits follow from public "
            "numbers alone."
        )

    def rows(self) -> list[tuple[str, str]]:
        """What a card says of what was released."""
        trees = (
            f", and {self.trees} trees of depth {min(self.depth, len(self.columns))}"
            if self.trees
            else ""
        )
        return [
            ("target", self.target.text()),
            (
                "histograms",
                f"one of each of {len(self.columns)} columns{trees}, {self.passes} times",
            ),
            ("released", "sums of gradients and curvatures in each cell"),
            ("clipping", f"norm {self.norm:g}, gradient and curvature of a row jointly"),
            (
                "noise multiplier",
                f"{self.noise:.4g} for all together, {self.release_noise:.4g} for each",
            ),
        ]

    def follows(self, facts: Mapping[str, Any]) -> list[str]:
        """Nothing, if no features were chosen."""
        check_choices(facts, [])
        return []


@checked
def columns_of(dataset: Dataset) -> tuple[Column, ...]:
    """The columns of a data set by what was declared of it: bounds, and names such as `colour=red`
    for categories.

    No row is looked at. Neighbouring numbers that are called after one column, with bounds 0 and 1,
    are its categories.

    Raises:
        BadInput: rows that are no vectors, or without declared bounds.
    """
    return _columns(tuple(dataset.x.shape[1:]), dataset.low, dataset.high, dataset.feature_names)


def _columns(
    shape: tuple[int, ...], lows: Any, highs: Any, named: Sequence[str]
) -> tuple[Column, ...]:
    if len(shape) != 1:
        raise BadInput(
            f"rows have the shape {shape}: expected vectors, the numbers of a table's row"
        )
    if lows is None or highs is None:
        raise BadInput(
            "the data have no declared bounds, which give the bins: expected Dataset(x, y, low=, "
            "high=), publicly known"
        )
    low, high = (np.broadcast_to(np.asarray(bound, np.float64), shape) for bound in (lows, highs))
    names = named or [""] * shape[0]

    def column(place: int) -> tuple[str, int]:
        owner, mark, _ = names[place].partition("=")
        return (
            (owner, -1)
            if mark and (low[place], high[place]) == (0.0, 1.0)
            else (names[place], place)
        )

    columns: list[Column] = []
    for (owner, alone), places in groupby(range(shape[0]), column):
        if alone < 0:
            columns.append(Levels(len(list(places)), owner))
        else:
            columns.append(Interval(float(low[alone]), float(high[alone]), owner))
    return tuple(columns)


@checked
def plan_for(dataset: Dataset, target: Target | None = None, **choices: Any) -> BoostingPlan:
    """A plan for a data set, by what was declared of it; no row is looked at.

    Args:
        dataset: with declared bounds.
        target: what is predicted; None: the declared classes.
        choices: other fields of the plan.

    Raises:
        BadInput: as `columns_of`, or neither a target nor classes.
    """
    if target is None:
        if dataset.classes is None:
            raise BadInput(
                "the data declare no classes: give target=pv.boosting.Values(low, high), or "
                "Labels(classes)"
            )
        target = Labels(dataset.classes)
    return BoostingPlan(columns_of(dataset), target, **choices)


def settled(options: Any, facts: Any) -> BoostingPlan:
    """The plan that the command line's options describe, with its noise.

    Args:
        options: by name.
        facts: what is public of the rows: shape, bounds, names and classes; without rows, how many
            columns there are.

    Raises:
        BadInput: numbers out of range, no columns, or not exactly one of a target and a noise
            multiplier.
    """
    if (options.epsilon is None and options.rho is None) is (options.noise_multiplier is None):
        raise BadInput(
            "expected one of what may be spent (epsilon=, with delta=, or rho=) and the noise of "
            "all releases together (noise_multiplier=)"
        )
    if facts.shape:
        columns = _columns(facts.shape, facts.low, facts.high, facts.feature_names)
    elif facts.numbers:
        columns = (Interval(0.0, 1.0),) * count("numbers", facts.numbers, most=10**5)
    else:
        raise BadInput(
            "the noise of a histogram follows from how many there are: give the number of columns, "
            "numbers="
        )
    bounds = getattr(facts, "target_bounds", None)
    target: Target = Labels(facts.classes or 2) if bounds is None else Values(*bounds)
    choices = {name: getattr(options, name) for name in ("bins", "passes", "trees", "depth")}
    plan = BoostingPlan(
        columns,
        target,
        noise_multiplier=options.noise_multiplier,
        adjacency=options.adjacency,
        group_size=options.group_size,
        **{name: value for name, value in choices.items() if value is not None},
    )
    if options.noise_multiplier is not None:
        return plan
    return plan.calibrate(
        epsilon=options.epsilon,
        delta=None if options.epsilon is None else options.delta,
        rho=options.rho,
    )
