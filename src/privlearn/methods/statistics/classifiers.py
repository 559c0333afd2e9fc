"""Linear classifiers from released statistics: post-processing, for any number of classes.

Fisher's independence classifier, `fisher`.

The score of class c is sum_j (x_j m_cj - m_cj^2 / 2) / S_j^2 + ln pi_c, with class means m, pooled
variances S^2 and shares pi: linear in x, the log-posterior (up to what all classes share) of normal
features, independent within a class.

Private least squares: a linear classifier from X'Y and X'X with noise, in one release; what follows
is post-processing.

The weights are (X'X + ridge I)^-1 X'Y, with a column of 0 and 1 for each class in Y. The ridge
follows from public numbers: a part of the spectral norm of the noise in X'X. Negative eigenvalues
of X'X count as 0, so that nothing is divided by less than the ridge. (Dwork et al. 2014, "Analyze
Gauss", for X'X; Wang 2018 for ridges that follow noise.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from privlearn.core.accounting.account import Account
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping.row_sums import Prepare, least_squares_sums, symmetric
from privlearn.core.mechanisms.release import release
from privlearn.core.sampling import FullBatch
from privlearn.core.streams import NoiseStream, Streams
from privlearn.methods.statistics.opening import LabelledRows, Opened, Origin, linear_result, opened
from privlearn.methods.statistics.plan import FisherPlan, LeastSquaresPlan, RowsPlan
from privlearn.runs.result import Result
from privlearn.transforms.modules import ClipRows, Keep
from privlearn.transforms.select import Statistics, choice_json, ranked, release_statistics, scored


@final
@dataclass(frozen=True, repr=False)
class Squares:
    """Released sums of products: free to use. Rows are followed by a constant.

    Attributes:
        products: X'Y, with a column of 0 and 1 for each class in Y, shape (features + 1, classes).
        gram: X'X, symmetric, shape (features + 1, features + 1).
        product_std: standard deviation of the noise in a number of X'Y.
        gram_std: of that in a number of X'X's diagonal; in the others it is less by sqrt(2).
    """

    products: Tensor
    gram: Tensor
    product_std: float
    gram_std: float

    @property
    def loudest(self) -> float:
        """The spectral norm of the noise in X'X, nearly: 2 sqrt(n) times the deviation off the
        diagonal (Wigner).
        """
        return math.sqrt(2 * len(self.gram)) * self.gram_std


def release_squares(
    plan: LeastSquaresPlan,
    x: Any,
    y: Any,
    ledger: Account,
    stream: NoiseStream,
    prepare: Prepare | None = None,
) -> Squares:
    """Release X'Y and X'X of all rows jointly, as one `Gaussian(plan.noise)`.

    Args:
        plan: classes, bounds, neighbours, noise, and how rho is split.
        x: rows.
        y: their classes.
        ledger: what is charged.
        stream: the run's noise stream.
        prepare: a public transform of a few rows, each by itself.

    Raises:
        BudgetExceeded, AdjacencyMismatch, UnsupportedEvent: by the ledger.
    """
    whole = math.fsum(plan.split)
    shares = [math.sqrt(part / whole) for part in plan.split]
    (sample,) = FullBatch().draw(len(x))
    bounded = least_squares_sums(
        x,
        y,
        sample,
        plan.neighbours,
        classes=plan.classes,
        norm=plan.row_norm,
        constant=plan.constant,
        prepare=prepare,
    )
    (products,), (gram,) = release(
        *bounded, noise_multiplier=plan.noise, ledger=ledger, stream=stream, shares=shares
    )
    stds = [
        plan.noise * part.sensitivity / share for part, share in zip(bounded, shares, strict=True)
    ]
    return Squares(products, symmetric(gram, len(products)), *stds)


def fisher(
    plan: FisherPlan,
    dataset: LabelledRows,
    *,
    ledger: Ledger | None = None,
    streams: Streams | None = None,
) -> Result:
    """Release statistics of the classes, and make a classifier of them.

    Guarantee: as for `select_features`; the returned model is made from released numbers alone.

    Args:
        plan: what will be spent, and how.
        dataset: as for `select_features`.
        ledger: what to charge; by default a new one with the plan's budget.
        streams: the random streams; by default new ones.

    Returns:
        A result to publish with `model_spec="linear"` and the number of classes. Its model clips
        rows as the statistics' rows were clipped, keeps the chosen features, and gives a score for
        each class.

    Raises:
        BudgetExceeded, BadInput: as `select_features`.
    """
    with opened(plan, FisherPlan, dataset, ledger, streams) as rows:
        transforms, statistics = _release(plan, rows)
    return classifier(plan, rows.origin, transforms, statistics, rows.ledger)


def classifier(
    plan: FisherPlan | RowsPlan,
    origin: Origin,
    transforms: Sequence[nn.Module],
    statistics: Statistics,
    ledger: Ledger,
) -> Result:
    """The classifier from released statistics of the kept features, behind the transforms that
    these come through.
    """
    weight, bias = fisher_weights(statistics, plan)
    chosen = _describe_choice(plan, origin, transforms, statistics)
    return linear_result(plan, origin, transforms, weight, bias, ledger, chosen)


def _describe_choice(
    plan: FisherPlan | RowsPlan,
    origin: Origin,
    transforms: Sequence[nn.Module],
    statistics: Statistics,
) -> dict[str, Any]:
    """Which features were chosen, for the facts: released, so free to tell. Where rows are
    released, scores are not.
    """
    selections = [
        module.get_buffer("indices").tolist() for module in transforms if isinstance(module, Keep)
    ]
    if not plan.selects or not selections:
        return {}
    if isinstance(plan, RowsPlan):
        return {"chosen": [choice_json(selections[0], origin.names)]}
    scores, noise = scored(statistics, plan.criterion, plan.least_count)
    return {"chosen": [choice_json(selections[0], origin.names, scores.tolist(), noise.tolist())]}


def _release(plan: FisherPlan, rows: Opened) -> tuple[list[nn.Module], Statistics]:
    """The transforms in front of the classifier, and the statistics of the features that it
    sees.
    """
    stream = rows.stream
    if plan.in_one_release:
        whole = release_statistics(
            rows.x,
            rows.y,
            classes=plan.classes,
            norm=plan.row_norm,
            adjacency=plan.neighbours,
            noise_multiplier=plan.noise,
            ledger=rows.ledger,
            stream=stream,
            split=plan.split,
            prepare=rows.prepare,
            by_class=plan.selects and plan.criterion == "welch",
        )
        clip = ClipRows(torch.tensor(float(plan.row_norm), device="cpu"))
        if not plan.selects:
            return [clip], whole
        best = ranked(whole, plan.keep, plan.criterion, plan.least_count)
        return [clip, Keep(best)], whole.of(best)
    best, counts = plan.selection.chosen(
        rows.x, rows.y, plan.neighbours, rows.ledger, stream, prepare=rows.prepare
    )
    assert isinstance(counts, Tensor)
    statistics = release_statistics(
        rows.x,
        rows.y,
        classes=plan.classes,
        norm=plan.rest_norm,
        adjacency=plan.neighbours,
        noise_multiplier=plan.rest_noise,
        ledger=rows.ledger,
        stream=stream,
        split=plan.split,
        counts=counts,
        columns=best,
        prepare=rows.prepare,
    )
    return [Keep(best), ClipRows(torch.tensor(plan.rest_norm, device="cpu"))], statistics


def fisher_weights(statistics: Statistics, plan: FisherPlan | RowsPlan) -> tuple[Tensor, Tensor]:
    """The classifier's weights, shape (classes, features), and biases, shape (classes,)."""
    counts = statistics.counts.clamp(min=plan.least_count)
    floor = plan.least_variance * plan.row_norm**2 / plan.features
    variances = statistics.variances(plan.least_count, floor)
    bias = (counts / counts.sum()).log() - (statistics.squares(plan.least_count) / variances).sum(
        1
    ) / 2
    return statistics.means(plan.least_count) / variances, bias


#: The ridge over the spectral norm of the noise in X'X: accuracy is flat from 0.2 to 0.6
#: (docs/settings.md).
RIDGE = 0.35


def least_squares(
    plan: LeastSquaresPlan,
    dataset: LabelledRows,
    *,
    ledger: Ledger | None = None,
    streams: Streams | None = None,
) -> Result:
    """Release sums of products of the rows, and make a linear classifier of them by least squares.

    Guarantee: as for `select_features`; the returned model is made from released numbers alone.

    Args:
        plan: what will be spent, and how.
        dataset: as for `select_features`.
        ledger: what to charge; by default a new one with the plan's budget.
        streams: the random streams; by default new ones.

    Returns:
        A result to publish with `model_spec="linear"` and the number of classes. Its model clips
        rows as they were clipped, and gives a score for each class.

    Raises:
        BudgetExceeded, BadInput: as `select_features`.
    """
    squares, rows = open_squares(plan, dataset, ledger, streams)
    ridge = RIDGE * squares.loudest
    weights = solved(squares, ridge)
    clip = ClipRows(torch.tensor(float(plan.row_norm), device="cpu"))
    bias = plan.constant * weights[-1]
    return linear_result(
        plan, rows.origin, [clip], weights[:-1].T, bias, rows.ledger, {"ridge": ridge}
    )


def open_squares(
    plan: LeastSquaresPlan, dataset: LabelledRows, ledger: Ledger | None, streams: Streams | None
) -> tuple[Squares, Opened]:
    """Release the sums of products that `least_squares` makes its classifier of; arguments and
    errors as there.
    """
    with opened(plan, LeastSquaresPlan, dataset, ledger, streams) as rows:
        squares = release_squares(plan, rows.x, rows.y, rows.ledger, rows.stream, rows.prepare)
    return squares, rows


def solved(squares: Squares, ridge: float) -> Tensor:
    """Weights from released sums, shape (features + 1, classes), that of the constant last.

    Classes' targets are taken less their mean over the classes, which moves all scores of a row
    alike.
    """
    values, vectors = torch.linalg.eigh(squares.gram)
    products = squares.products - squares.products.mean(1, keepdim=True)
    weights: Tensor = vectors @ ((vectors.T @ products) / (values.clamp(min=0) + ridge)[:, None])
    return weights
