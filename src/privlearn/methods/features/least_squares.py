"""Private least squares: a linear classifier from X'Y and X'X with noise, in one release; what follows is post-processing.

The weights are (X'X + ridge I)^-1 X'Y, with a column of 0 and 1 for each class in Y. The ridge follows from public numbers: it
is a part of the spectral norm of the noise in X'X. Negative eigenvalues of that count as 0, so that nothing is divided by less
than the ridge. (Dwork et al. 2014, "Analyze Gauss", for X'X; Wang 2018 for a ridge that follows the noise.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from privlearn.accounting.ledger import Ledger
from privlearn.mechanisms.squares import Squares, release_squares
from privlearn.methods.features.opening import LabelledRows, linear_result, opened
from privlearn.methods.features.plan import FeaturesPlan
from privlearn.methods.result import Result
from privlearn.models import ClipRows
from privlearn.rng import Streams

#: The ridge over the spectral norm of the noise in X'X: accuracy is flat from 0.2 to 0.6 (docs/defaults.md).
_RIDGE = 0.35


def least_squares(
    plan: FeaturesPlan,
    dataset: LabelledRows,
    *,
    ledger: Ledger | None = None,
    streams: Streams | None = None,
) -> Result:
    """Release sums of products of the rows, and make a linear classifier of them by least squares.

    Guarantee: as for `select_features`; the returned model is made from released numbers alone.

    Args:
        plan: for the purpose `least-squares`.
        dataset: as for `select_features`.
        ledger: what to charge; by default a new one with the plan's budget.
        streams: the random streams; by default new ones.

    Returns:
        A result to publish with `model_spec="linear"` and the number of classes. Its model clips rows as they were clipped,
        and gives a score for each class.

    Raises:
        BudgetExceeded, BadInput: as `select_features`.
    """
    with opened(plan, "least-squares", dataset, ledger, streams) as rows:
        squares = release_squares(
            rows.x, rows.y, classes=plan.classes, norm=plan.row_norm, constant=plan.constant, adjacency=plan.neighbours,
            noise_multiplier=plan.noise, ledger=rows.ledger, stream=rows.stream, split=plan.split[1:], prepare=rows.prepare,
        )  # fmt: skip
    ridge = _RIDGE * squares.loudest
    weights = solved(squares, ridge)
    clip = ClipRows(torch.tensor(float(plan.row_norm)))
    told = {"ridge": ridge}
    return linear_result(plan, rows.origin, [clip], weights[:-1].T, plan.constant * weights[-1], rows.ledger, told)


def solved(squares: Squares, ridge: float) -> Tensor:
    """Weights from released sums, shape (features + 1, classes), that of the constant last.

    Classes' targets are taken less their mean over the classes, which moves all scores of a row alike.
    """
    values, vectors = torch.linalg.eigh(squares.gram)
    products = squares.products - squares.products.mean(1, keepdim=True)
    found: Tensor = vectors @ ((vectors.T @ products) / (values.clamp(min=0) + ridge)[:, None])
    return found
