"""Private feature selection releases class statistics and applies criteria to them, or selects the
best features in one shot.

How a choice of features is stated: as plain values for certificates, and as lines for cards and
screens; never torch.

Only what was released is stated: which features were chosen, in their order, and, where statistics
of them were released, the criterion by these with the standard deviation of the noise in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

from privlearn._checks import between, count, one_of, with_plain_numbers
from privlearn.core.accounting.account import Account
from privlearn.core.accounting.events import Event, Repeated, compose
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian, Selection, draw_epsilon
from privlearn.core.sampling import FullBatch
from privlearn.core.streams import NoiseStream
from privlearn.core.transform import MOST_CHOSEN, PrivateTransform, Shape
from privlearn.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

    from privlearn.core.clipping.row_sums import Prepare
    from privlearn.core.row_transform import RowTransform


#: How rho is divided among counts, class sums and second moments, where all three are released.
SPLIT = (0.05, 0.65, 0.30)
#: Counts below this are taken for it: an empty class has a mean all the same.
LEAST_COUNT = 10.0
#: By how much Gumbel noise must be the better one to be chosen.
_IN_FAVOUR = 1.25
#: Bounds on rows and floors beyond these are none.
SIZES = (1e-12, 1e12)
#: Noise multipliers and parts of a split beyond these mean nothing in practice, and would overflow.
_NOISE, PARTS_OF_SPLIT = (1e-6, 1e12), (1e-6, 1e6)
CRITERIA = ("distance", "t", "welch")
_WAYS = ("auto", "means", "gumbel")


@final
@dataclass(frozen=True, repr=False)
class Statistics:
    """Released class statistics: free to use. Each has the standard deviation of the noise in one
    of its numbers.

    Attributes:
        counts: shape (classes,).
        sums: shape (classes, features).
        moments: sums of squares over all classes, shape (features,), or over each, shape (classes,
            features); None if they were not asked for.
        sum_std: of the noise in a sum.
        moment_std: of the noise in a moment.
    """

    counts: Tensor
    sums: Tensor
    moments: Tensor | None
    sum_std: float
    moment_std: float

    def of(self, features: Tensor) -> Statistics:
        """Those of some features alone."""
        moments = None if self.moments is None else self.moments[..., features]
        return Statistics(
            self.counts, self.sums[:, features], moments, self.sum_std, self.moment_std
        )

    def means(self, least_count: float) -> Tensor:
        """Class means, shape (classes, features)."""
        return self.sums / self.counts.clamp(min=least_count)[:, None]

    def variances(self, least_count: float, least_variance: float = 0.0) -> Tensor:
        """Variances within classes, pooled, shape (features,), never below what the noise alone
        would give.

        The mean of squares less the squares of means; of these, the noise's own variance is taken
        off.
        """
        assert self.moments is not None
        counts = self.counts.clamp(min=least_count)
        everybody = float(counts.sum())
        # of one class after another, or of all
        together = self.moments.reshape(-1, self.moments.shape[-1])
        variances = together.sum(0) / everybody - (counts / everybody) @ self.squares(least_count)
        return variances.clamp(
            min=max(least_variance, math.sqrt(len(together)) * self.moment_std / everybody)
        )

    def class_variances(self, least_count: float) -> Tensor:
        """Variances within each class by itself, shape (classes, features), from moments of each
        class.

        Never below what the noise alone would give. A class has few rows, so this is more noise
        than in `variances`.
        """
        assert self.moments is not None
        assert self.moments.dim() == 2
        counts = self.counts.clamp(min=least_count)[:, None]
        return (self.moments / counts - self.squares(least_count)).maximum(self.moment_std / counts)

    def squares(self, least_count: float) -> Tensor:
        """Squares of class means without the noise's part, shape (classes, features): unbiased,
        maybe below 0.
        """
        noise = (self.sum_std / self.counts.clamp(min=least_count)) ** 2
        return self.means(least_count) ** 2 - noise[:, None]


def release_statistics(
    x: Any,
    y: Any,
    *,
    classes: int,
    norm: float,
    adjacency: Adjacency,
    noise_multiplier: float,
    ledger: Account,
    stream: NoiseStream,
    split: Sequence[float] = SPLIT,
    counts: Tensor | None = None,
    moments: bool = True,
    columns: Tensor | None = None,
    prepare: Prepare | None = None,
    by_class: bool = False,
) -> Statistics:
    """Release class statistics of all rows jointly, as one `Gaussian(noise_multiplier)`.

    Args:
        x: rows.
        y: their classes.
        classes: how many there are, declared.
        norm: L2 norm that rows are clipped to.
        adjacency: the kind of neighbour.
        noise_multiplier: of the whole.
        ledger: what is charged.
        stream: the run's noise stream.
        split: rho in proportion for counts, sums and moments; what is not released gives its part
            to the others.
        counts: counts that were released before; None: they are part of this release.
        moments: whether second moments are wanted.
        columns: the features to look at, public or released; None: all.
        prepare: a public transform of a few rows, each by itself.
        by_class: whether second moments are of each class by itself.

    Raises:
        BudgetExceeded, AdjacencyMismatch, UnsupportedEvent: by the ledger.
    """
    from privlearn.core.clipping.row_sums import PARTS, class_statistics
    from privlearn.core.mechanisms.release import release

    wanted = [counts is None, True, moments]
    parts = [part for part, is_wanted in zip(PARTS, wanted, strict=True) if is_wanted]
    shares = [
        math.sqrt(fraction)
        for fraction in normalised(
            [s for s, is_wanted in zip(split, wanted, strict=True) if is_wanted]
        )
    ]
    (sample,) = FullBatch().draw(len(x))
    bounded = class_statistics(
        x,
        y,
        sample,
        adjacency,
        classes=classes,
        norm=norm,
        parts=parts,
        columns=columns,
        prepare=prepare,
        by_class=by_class,
    )
    noisy = release(
        *bounded, noise_multiplier=noise_multiplier, ledger=ledger, stream=stream, shares=shares
    )
    values = {part: released[0] for part, released in zip(parts, noisy, strict=True)}
    stds = {
        part: noise_multiplier * sums.sensitivity / share
        for part, sums, share in zip(parts, bounded, shares, strict=True)
    }
    counts = values["counts"] if counts is None else counts
    return Statistics(
        counts, values["sums"], values.get("moments"), stds["sums"], stds.get("moments", 0.0)
    )


def normalised(parts: Sequence[float]) -> list[float]:
    """`parts` in proportion, adding up to 1."""
    return [part / math.fsum(parts) for part in parts]


def ranked(
    statistics: Statistics, keep: int, criterion: str, least_count: float = LEAST_COUNT
) -> Tensor:
    """The `keep` best features by released statistics, the best first: free."""
    return scored(statistics, criterion, least_count)[0].topk(keep).indices


def scored(
    statistics: Statistics, criterion: str, least_count: float = LEAST_COUNT
) -> tuple[Tensor, Tensor]:
    """What features are ranked by, and the standard deviation of the noise in it, each of shape
    (features,): free.

    `distance`: the largest distance between two class means. `t`: the largest of |mean - mean'|
    over sqrt(S^2 (1 / n + 1 / n')), with the variance S^2 within classes, pooled. `welch`: the
    largest of |mean - mean'| over sqrt(S^2 / n + S'^2 / n'), with the variance of each class by
    itself (Welch 1947; as in Shen et al. 2021). The noise is that in the sums of the two classes;
    counts and variances are taken as they are. Scores of features that were chosen by them are too
    high by what chose them.
    """
    means = statistics.means(least_count)
    inverse = 1 / statistics.counts.clamp(min=least_count)
    if criterion == "distance":
        top, bottom = means.max(0), means.min(0)
        noise = (
            statistics.sum_std * (inverse[top.indices] ** 2 + inverse[bottom.indices] ** 2).sqrt()
        )
        return top.values - bottom.values, noise
    if criterion == "welch":
        variances = statistics.class_variances(least_count)
    else:
        variances = statistics.variances(least_count).expand_as(means)
    squares = variances.clamp(min=1e-300) * inverse[:, None]  # of the standard errors of means
    best, noise = means.new_zeros(2, means.shape[1])
    for one in range(len(means) - 1):
        error = (squares[one] + squares[one + 1 :]).sqrt()
        apart, other = ((means[one] - means[one + 1 :]).abs() / error).max(0)
        pair = (inverse[one] ** 2 + inverse[one + 1 :] ** 2).sqrt()[:, None] / error
        noise = pair.gather(0, other[None])[0].where(apart > best, noise)
        best = best.maximum(apart)
    return best, statistics.sum_std * noise


@with_plain_numbers
@final
@dataclass(frozen=True)
class SelectFeatures(PrivateTransform):
    """A private choice of features, in a plan's `front`: training then sees these alone.

    All in it is public. Rows are clipped, never scaled by private statistics. It costs rho = 1 / (2
    noise_multiplier^2):

    - by `means`, one Gaussian release of counts and class sums (for `t` also second moments, for
      `welch` those of each class), of which the best features are taken for free;
    - by `gumbel`, a Gaussian release of the counts, and `keep` selections at once by the distances
      of means of numbers clipped to [-coordinate_bound, coordinate_bound], with the released counts
      as denominators. For `distance` alone.

    Attributes:
        keep: how many features.
        noise_multiplier: that of the one Gaussian release that would cost as much.
        classes: the declared number of classes.
        row_norm: L2 norm that rows are clipped to.
        coordinate_bound: bound on single numbers; None: none is declared, and selection goes by
            means.
        criterion: `distance`, `t` or `welch`: see `scored`.
        way: `means`, `gumbel`, or `auto`: gumbel where 1.25 coordinate_bound sqrt(keep) < row_norm,
            else means.
        split: how rho is divided among counts, sums and second moments; Gumbel noise gets all but
            that of the counts.
        least_count: the floor under counts.
    """

    keep: int
    noise_multiplier: float
    classes: int
    row_norm: float
    coordinate_bound: float | None = None
    criterion: str = "distance"
    way: str = "auto"
    split: tuple[float, float, float] = SPLIT
    least_count: float = LEAST_COUNT

    kind: ClassVar[str] = "select"

    def __post_init__(self) -> None:
        count("keep", self.keep, most=10**9)
        count("classes", self.classes, least=2, most=10**6)
        between("the selection's noise_multiplier", self.noise_multiplier, *_NOISE)
        between("row_norm", self.row_norm, *SIZES)
        between("least_count", self.least_count, *SIZES)
        one_of("criterion", self.criterion, CRITERIA)
        one_of("way", self.way, _WAYS)
        if not isinstance(self.split, tuple) or len(self.split) != len(SPLIT):
            raise BadInput(f"split is {self.split!r}: expected three numbers, such as {SPLIT}")
        for part in self.split:
            between("a part of the split", part, *PARTS_OF_SPLIT)
        if self.coordinate_bound is not None:
            between("coordinate_bound", self.coordinate_bound, *SIZES)
        if self.way == "gumbel" and (self.coordinate_bound is None or self.criterion != "distance"):
            raise BadInput(
                "selection by gumbel needs a public coordinate_bound, and criterion='distance': t "
                "statistics are divided by variances, so that nothing bounds them. Give both, or "
                "way='means'"
            )

    @property
    def by_gumbel(self) -> bool:
        """Whether single numbers' bound makes for less noise than the rows' norm; from public
        numbers alone.
        """
        if self.coordinate_bound is None or self.criterion != "distance" or self.way == "means":
            return False
        # At one price the noise in a distance is 0.9 bound sqrt(keep) / norm times that by means;
        # but Gaussian releases alone compose exactly, and with Gumbel noise among them the whole
        # needs about a twelfth more.
        return (
            self.way == "gumbel"
            or _IN_FAVOUR * self.coordinate_bound * math.sqrt(self.keep) < self.row_norm
        )

    @property
    def draw_epsilon(self) -> float:
        """The range of each of the selections by Gumbel noise."""
        return draw_epsilon((1 - self._counts_part) * 0.5 / self.noise_multiplier**2, self.keep)

    @property
    def _counts_part(self) -> float:
        return self.split[0] / math.fsum(self.split)

    @property
    def _counts_noise(self) -> float:
        return self.noise_multiplier / math.sqrt(self._counts_part)

    @property
    def features_chosen(self) -> int:
        """How many features it chooses."""
        return self.keep

    def text(self) -> str:
        """What a card says of it."""
        return f"selection of {self.keep} features (noise multiplier {self.noise_multiplier:.4g})"

    def event(self) -> Event:
        """What it costs."""
        if not self.by_gumbel:
            return Gaussian(self.noise_multiplier)
        return compose(
            [Gaussian(self._counts_noise), Repeated(Selection(self.draw_epsilon), self.keep)]
        )

    def output_shape(self, shape: Shape) -> Shape:
        """The shape of one example with the kept features.

        Raises:
            BadInput: there are fewer features than are to be kept.
        """
        features = math.prod(shape)
        if self.keep > features:
            raise BadInput(
                f"{self.keep} features are to be kept of {features}: choose at most {features}"
            )
        return (self.keep,)

    def chosen(
        self,
        x: Any,
        y: Any,
        adjacency: Adjacency,
        ledger: Account,
        stream: NoiseStream,
        *,
        moments: bool | None = None,
        prepare: Prepare | None = None,
    ) -> tuple[Tensor, Statistics | Tensor]:
        """The chosen features, best first, and what was released beside them: statistics of all
        features, or counts.

        `moments` says whether second moments are released; by default where the criterion needs
        them.
        """
        if self.by_gumbel:
            return self._by_gumbel(x, y, adjacency, ledger, stream, prepare)
        statistics = release_statistics(
            x,
            y,
            classes=self.classes,
            norm=self.row_norm,
            adjacency=adjacency,
            noise_multiplier=self.noise_multiplier,
            ledger=ledger,
            stream=stream,
            split=self.split,
            moments=self.criterion != "distance" if moments is None else moments,
            prepare=prepare,
            by_class=self.criterion == "welch",
        )
        return ranked(statistics, self.keep, self.criterion, self.least_count), statistics

    def _by_gumbel(
        self,
        x: Any,
        y: Any,
        adjacency: Adjacency,
        ledger: Account,
        stream: NoiseStream,
        prepare: Prepare | None,
    ) -> tuple[Tensor, Tensor]:
        from privlearn.core.clipping.row_sums import box_sums
        from privlearn.core.mechanisms.release import release
        from privlearn.core.mechanisms.selection import select_top

        assert self.coordinate_bound is not None
        (sample,) = FullBatch().draw(len(x))
        boxed = box_sums(
            x,
            y,
            sample,
            adjacency,
            classes=self.classes,
            bound=self.coordinate_bound,
            prepare=prepare,
        )
        ((counts,),) = release(
            boxed.counts, noise_multiplier=self._counts_noise, ledger=ledger, stream=stream
        )
        scores = boxed.distances(counts.clamp(min=self.least_count))
        return select_top(
            scores, self.keep, epsilon=self.draw_epsilon, ledger=ledger, stream=stream
        ), counts

    def fit(
        self,
        x: Tensor,
        adjacency: Adjacency,
        ledger: Account,
        stream: NoiseStream,
        examples: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> RowTransform:
        """Choose features of `x`, shape (rows, ...), by the classes in `labels`; returns the
        transform that keeps them.

        Raises:
            BadInput: fewer features than are to be kept; rows of persons, or no labels.
            BudgetExceeded: by the ledger.
        """
        from privlearn.transforms.modules import Keep

        rows = x.flatten(1)
        self.output_shape(tuple(rows.shape[1:]))  # before anything is charged
        if examples is not None or labels is None:
            raise BadInput(
                "features are selected by rows with a class each: expected labels, and rows that "
                "are examples"
            )
        require_classes(labels, self.classes)
        return Keep(self.chosen(rows, labels, adjacency, ledger, stream)[0])

    def require_labels(self, y: Tensor) -> None:
        """Refuse targets that are not the declared classes."""
        require_classes(y, self.classes)

    @classmethod
    def empty(cls, stated: Mapping[str, Any], code: str | None = None) -> RowTransform:
        """A transform with room for the places of the kept features."""
        import torch

        from privlearn.core.devices import building
        from privlearn.transforms.modules import Keep

        return Keep(torch.empty(stated["shape"], dtype=torch.int64, device=building()))


def require_classes(y: Any, classes: int) -> None:
    """Raise `BadInput` unless the targets are declared classes: for the data's curator, before
    anything is spent.
    """
    import numpy as np

    labels = np.asarray(y)
    if labels.dtype.kind not in "iub" or labels.ndim != 1:
        raise BadInput(
            f"the targets are {labels.dtype} values of shape {labels.shape}: expected one whole "
            "number for each row, its class"
        )
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise BadInput(
            f"there are labels from {labels.min()} to {labels.max()}: expected whole numbers from "
            f"0 to {classes - 1}, the {classes} declared classes"
        )


def choice_json(
    indices: Sequence[int],
    names: Sequence[str] = (),
    scores: Sequence[float] | None = None,
    noise: Sequence[float] | None = None,
) -> dict[str, Any]:
    """The chosen features as plain values, the best first.

    Args:
        indices: their places in a flattened row.
        names: of all features, where the data name them.
        scores: what each was ranked by, where that was released.
        noise: the standard deviation of the noise in each score.
    """
    choice: dict[str, Any] = {"indices": [int(index) for index in indices[:MOST_CHOSEN]]}
    if names:
        choice["names"] = [names[index] for index in choice["indices"]]
    if scores is not None and noise is not None:
        choice["scores"] = [float(f"{value:.6g}") for value in scores[:MOST_CHOSEN]]
        choice["noise_std"] = [float(f"{value:.6g}") for value in noise[:MOST_CHOSEN]]
    return choice


def choice_lines(choice: dict[str, Any], most: int = 10) -> list[str]:
    """A line for each of the first `most` features: its number and name, its score and the noise in
    that.
    """
    lines = []
    for place, index in enumerate(choice["indices"][:most]):
        name = f" {choice['names'][place]}" if "names" in choice else ""
        score = (
            f": {choice['scores'][place]:.4g} ± {choice['noise_std'][place]:.2g}"
            if "scores" in choice
            else ""
        )
        lines.append(f"{index}{name}{score}")
    left = len(choice["indices"]) - most
    return [*lines, f"and {left} more"] if left > 0 else lines
