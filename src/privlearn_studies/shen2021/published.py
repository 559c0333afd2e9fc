"""The published feature release, as printed, for reproduction only: it is not differentially
private.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from privlearn._checks import count, positive
from privlearn._checks import delta as valid_delta
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.mechanisms import NonPrivate
from privlearn.core.mechanisms.noise import add_gaussian
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from privlearn.methods.statistics.features import ReleasedRows
from privlearn.methods.statistics.opening import LabelledRows, Origin
from privlearn.methods.statistics.plan import RowsPlan
from privlearn.transforms.modules import Scale
from privlearn.transforms.select import require_classes


def literal_release(
    dataset: LabelledRows,
    *,
    classes: int,
    keep: int,
    epsilon: float,
    delta: float,
    unsquared: bool = False,
    ledger: Ledger | None = None,
    streams: Streams | None = None,
) -> ReleasedRows:
    """Algorithm 1 of Shen et al. (2021): class means, largest distances, the best `keep` features,
    their noisy rows.

    Guarantee: none. It is charged as `NonPrivate`, which `publish` refuses, because

    1. the largest norm among the rows sets the scale of all noise, and is itself private: a row
       that leaves is seen by it;
    2. which features are kept is decided without noise: one row can flip it with certainty;
    3. labels and the number of rows are released as they are;
    4. a row that is exchanged for another moves by twice its norm, and noise is for once;
    5. ln(1/delta) is too small a constant from epsilon 7 to 8 on (6.98 at delta 1e-3, 7.97 at
       1e-5);
    6. the variance as printed, 2 N ln(1/delta) / epsilon (`unsquared`), has the unit of a length:
       it lacks the squares.

    The norm is the sum of absolute values (valid as a bound on the L2 norm, up to sqrt(keep) times
    too large).

    Args:
        dataset: as for `release_features`.
        classes: the number of classes.
        keep: how many features.
        epsilon: what the noise is scaled by; not a guarantee.
        delta: likewise.
        unsquared: take the printed variance, not 2 N^2 ln(1/delta) / epsilon^2.
        ledger: what is charged with `NonPrivate`.
        streams: the random streams.

    Raises:
        BadInput: labels outside the classes, or more features to keep than there are.
    """
    positive("epsilon", epsilon)
    valid_delta(delta)
    count("keep", keep)
    data = Dataset.of(dataset)  # type: ignore[arg-type]
    require_classes(data.y, classes)
    x, _ = data.tensors()
    scale = None if data.low is None else Scale(*data.bounds())
    rows = (x if scale is None else scale(x)).flatten(1).double()
    if keep > rows.shape[1]:
        raise BadInput(
            f"{keep} features are to be kept of {rows.shape[1]}: choose at most {rows.shape[1]}"
        )
    streams = streams or Streams.new()
    ledger = Ledger() if ledger is None else ledger
    ledger.charge(
        NonPrivate("the published feature release is not differentially private"),
        Adjacency.REPLACE_ONE,
    )
    labels = torch.from_numpy(np.asarray(data.y).astype(np.int64))
    means = torch.stack([rows[labels == one].mean(0) for one in range(classes)])
    best = (means.amax(0) - means.amin(0)).topk(keep).indices
    chosen_columns = rows[:, best]
    longest = float(chosen_columns.abs().sum(1).max())
    constant = 2 * -math.log(delta)
    std = (
        math.sqrt(constant * longest / epsilon)
        if unsquared
        else longest * math.sqrt(constant) / epsilon
    )
    noisy = chosen_columns.float().contiguous()
    add_gaussian([noisy], std, streams.noise)
    plan = RowsPlan(
        classes,
        rows.shape[1],
        keep,
        longest,
        kept_norm=longest,  # nothing was clipped, and no row to be classified is
        adjacency=Adjacency.REPLACE_ONE,
        noise_multiplier=std / longest,
    )
    origin = Origin(
        () if scale is None else (scale,),
        tuple(x.shape[1:]),
        data.schema,
        streams.seeded,
        streams.noise.discrete,
    )
    return ReleasedRows(noisy, labels, best, std, plan, ledger, origin)
