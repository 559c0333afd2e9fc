"""What `dfs-cifar10` and `dfs-mnist` try, and what of it is best by rows that are not tested on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from privlearn.methods.statistics.advice import advised
from privlearn.methods.statistics.plan import FisherPlan
from privlearn.transforms.select import CRITERIA
from privlearn_studies.report import each, mean
from privlearn_studies.runs import Call, Outcome, Runs
from privlearn_studies.shen2021.releases import BOUNDS, CHOSEN, DELTA, ReleaseSetting, head, release

#: More of rho for the counts: where noise is large, a class's count moves its whole mean.
EVEN = (0.5, 0.35, 0.15)
#: Seeds that statistics are released with, and those that the published algorithm is tried with.
SOME, FEW = 5, 3
#: Epsilons at which the part of rho for choosing features is varied.
SHARED = (2.0, 5.0)


@final
@dataclass(frozen=True)
class Grid:
    """What is tried on one data set.

    Attributes:
        data: its name.
        features: of a row.
        classes: of the rows.
        rows: private rows where all are.
        epsilons: at delta 1e-5.
        keeps: numbers of features; all of them last.
        sizes: numbers of private rows of a class; None, all, last.
        seeds: how many.
        heads: those of the sizes that DP-SGD is tried with.
        literal: numbers of features for the published algorithm.
        criteria: what features are chosen by.
    """

    data: str
    features: int
    classes: int
    rows: int
    epsilons: tuple[float, ...]
    keeps: tuple[int, ...]
    sizes: tuple[int | None, ...]
    seeds: int
    heads: tuple[int | None, ...]
    literal: tuple[int, ...]
    criteria: tuple[str, ...] = CRITERIA[:2]

    def _release(
        self, kind: str, epsilon: float | None, keeps: tuple[int, ...], **others: Any
    ) -> Call:
        return release.at(ReleaseSetting(self.data, kind, epsilon, keeps, **others))

    def row(self, epsilon: float, criterion: str = "distance", chosen: str = CHOSEN[0]) -> Call:
        """Noisy rows of all numbers of features."""
        keeps = self.keeps if chosen == CHOSEN[0] else self.keeps[:-1]
        return self._release("rows", epsilon, keeps, criterion=criterion, chosen=chosen)

    def means(self, epsilon: float) -> Call:
        """Noisy rows of features chosen by means, for numbers of them where Gumbel noise is the
        usual way.
        """
        return self._release("rows", epsilon, self.keeps[:-1][:4], way="means")

    def given(self, private: Call) -> Call:
        """The same rows of features chosen without privacy, under equal noise."""
        keeps = tuple(keep for keep in private.keeps if keep < self.features)
        return private.but(keeps=keeps, chosen=CHOSEN[2])

    def published(self, epsilon: float, criterion: str) -> Call:
        """The published algorithm."""
        return self._release(
            "literal", epsilon, self.literal, criterion=criterion, chosen=CHOSEN[1]
        )

    def statistics(self, epsilon: float | None, size: int | None) -> tuple[Call, ...]:
        """Statistics of all numbers of features, by every way; the first of them with all features,
        too.
        """
        one = self._release("statistics", epsilon, self.keeps, per_class=size, way="means")
        if epsilon is None:
            return (one,)
        few = one.but(way="gumbel", keeps=self.keeps[:-1])
        return one, few, few.but(split=EVEN)

    def rule(self, epsilon: float, size: int | None) -> Call:
        """Statistics as `advised` would have them."""
        norm, bound = BOUNDS[self.data]
        whole = FisherPlan(self.classes, self.features, self.features, norm, bound)
        plan = advised(whole.calibrate(epsilon=epsilon, delta=DELTA), self._examples(size)).plan
        if not plan.selects:
            return self.statistics(epsilon, size)[0]
        return self._release(
            "statistics",
            epsilon,
            (plan.keep,),
            per_class=size,
            way=plan.way,
            share=plan.selection_share,
            split=plan.split,
        )

    def shares(self, epsilon: float) -> tuple[Call, ...]:
        """Rows of some features, by the part of rho that choosing them takes."""
        some = tuple(keep for keep in self.keeps if 20 <= keep <= 50)
        return tuple(
            self.row(epsilon).but(keeps=some, share=share) for share in (0.05, 0.1, 0.2, 0.4)
        )

    def head(self, epsilon: float, size: int | None) -> Call:
        """DP-SGD."""
        return head.at(data=self.data, epsilon=epsilon, per_class=size)

    def loudness(self, epsilon: float, size: int | None) -> float:
        """The noise in a class mean over what a number of a row may be, with all features: public
        numbers alone.

        z k sqrt(p) / n, with the noise multiplier z of one Gaussian release.
        """
        plan = FisherPlan(self.classes, self.features, self.features, BOUNDS[self.data][0])
        noise = plan.calibrate(epsilon=epsilon, delta=DELTA).noise
        return float(noise * self.classes * np.sqrt(self.features) / self._examples(size))

    def _examples(self, size: int | None) -> int:
        return self.rows if size is None else size * self.classes


_HEADS = (None, 500, 50)
GRIDS = {
    "dfs-cifar10": Grid(
        "cifar10-features",
        1024,
        10,
        50_000,
        (0.5, 1.0, 2.0, 5.0, 10.0),
        (5, 10, 20, 50, 100, 200, 400, 1024),
        (50, 150, 500, 1500, None),
        10,
        _HEADS,
        (5, 20, 100),
        CRITERIA,
    ),
    "dfs-mnist": Grid(
        "mnist",
        784,
        10,
        60_000,
        (0.5, 2.0, 10.0),
        (5, 10, 20, 50, 100, 200, 400, 784),
        (50, 500, None),
        3,
        _HEADS,
        (5, 20, 100),
    ),
}


def quick(grid: Grid) -> Grid:
    """The same with little of each."""
    keeps = (10, 50, grid.features)
    return replace(
        grid,
        epsilons=(2.0, 10.0),
        keeps=keeps,
        sizes=(500, None),
        seeds=1,
        heads=(500,),
        literal=(10,),
    )


@final
@dataclass(frozen=True)
class Best:
    """The number of features, and the setting, that are best by rows that are not tested on, with
    what it reached.

    Attributes:
        setting: the one.
        keep: how many features.
        test: test accuracy for each seed.
    """

    setting: Call
    keep: int
    test: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over seeds."""
        return mean(self.test)


@final
@dataclass(frozen=True)
class Tried:
    """All runs of a study.

    Attributes:
        grid: what was tried.
        releases: outcomes of each setting, one for each seed.
        heads: DP-SGD's.
        seeds: how many there are.
    """

    grid: Grid
    releases: dict[Call, list[Outcome]]
    heads: dict[Call, list[Outcome]]
    seeds: int

    def test(self, setting: Call, keep: int) -> tuple[float, ...]:
        """Test accuracies for each seed."""
        at = setting.keeps.index(keep)
        return tuple(one.test[at] for one in self.releases[setting])

    def best(self, settings: Iterable[Call], keeps: Sequence[int] | None = None) -> Best:
        """The best of several settings and numbers of features, by the mean accuracy on rows that
        are not tested on.
        """
        tried = [
            (mean(one.held[at] for one in self.releases[setting]), -place, setting, keep)
            for place, setting in enumerate(settings)
            for at, keep in enumerate(setting.keeps)
            if keeps is None or keep in keeps
        ]
        _, _, setting, keep = max(tried, key=lambda one: one[:2])
        return Best(setting, keep, self.test(setting, keep))

    def selected(self, epsilon: float, size: int | None) -> Best:
        """Statistics of fewer than all features, at their best."""
        return self.best(self.grid.statistics(epsilon, size), self.grid.keeps[:-1])

    def ruled(self, epsilon: float, size: int | None) -> Best:
        """Statistics as the rule from public numbers has them."""
        setting = self.grid.rule(epsilon, size)
        keep = setting.keeps[-1]
        return Best(setting, keep, self.test(setting, keep))

    def everything(self, epsilon: float | None, size: int | None) -> tuple[float, ...]:
        """Statistics of all features."""
        return self.test(self.grid.statistics(epsilon, size)[0], self.grid.keeps[-1])

    def head(self, epsilon: float, size: int | None) -> list[float]:
        """DP-SGD's test accuracies for each seed."""
        return each(self.heads[self.grid.head(epsilon, size)], "test")


def make(grid: Grid, seeds: int, runs: Runs) -> Tried:
    """Make the runs."""
    every, some, few = range(seeds), range(min(seeds, SOME)), range(min(seeds, FEW))
    rows, published = [], []
    for epsilon in grid.epsilons:
        rows += [grid.row(epsilon, criterion) for criterion in CRITERIA[:2]]
        rows += [grid.row(epsilon, chosen=CHOSEN[1]), grid.means(epsilon)]
        rows += [grid.given(grid.row(epsilon)), grid.given(grid.means(epsilon))]
        published += [grid.published(epsilon, criterion) for criterion in grid.criteria]
    welch = [grid.row(epsilon, "welch") for epsilon in grid.epsilons if "welch" in grid.criteria]
    sums = [
        one
        for epsilon in (*grid.epsilons, None)
        for size in grid.sizes
        for one in grid.statistics(epsilon, size)
    ]
    ruled = [grid.rule(epsilon, size) for epsilon in grid.epsilons for size in grid.sizes]
    shares = [one for epsilon in grid.epsilons if epsilon in SHARED for one in grid.shares(epsilon)]
    releases = (
        runs(rows, every)
        | runs(welch, few)
        | runs([*sums, *ruled, *shares], some)
        | runs(published, few)
    )
    heads = runs(
        [grid.head(epsilon, size) for epsilon in grid.epsilons for size in grid.heads], some
    )
    return Tried(grid, releases, heads, seeds)
