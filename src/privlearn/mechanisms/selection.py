"""Private selection: the exponential mechanism, by Gumbel noise."""

from __future__ import annotations

import torch
from torch import Tensor

from privlearn.accounting.events import Repeated, Selection
from privlearn.accounting.ledger import Account
from privlearn.accounting.selection import gumbel_scale
from privlearn.clipping.predictions import Scores
from privlearn.rng import NoiseStream


def select(scores: Scores, *, epsilon: float, ledger: Account, stream: NoiseStream) -> int:
    """Draw one candidate, the sooner the lower its score.

    Guarantee: `Selection(epsilon)`, for the adjacency of the scores, which is charged first; if the ledger refuses, nothing is
    drawn. Each candidate's probability is proportional to exp(-epsilon score / (2 sensitivity)), or, where all scores move in
    one direction, to exp(-epsilon score / sensitivity): either way the log of a ratio of probabilities has a range of at most
    epsilon (Dong, Durfee and Rogers 2020). Only an index leaves: there are no low bits in it to attack.

    Raises:
        BudgetExceeded, AdjacencyMismatch, UnsupportedEvent: by the ledger.
    """
    ledger.charge(Selection(epsilon), scores.adjacency)
    scale = gumbel_scale(scores.sensitivity, epsilon) / (2 if scores.one_way else 1)
    return int((scale * gumbel(len(scores.values), stream) - scores.values).argmax())


def select_top(scores: Scores, keep: int, *, epsilon: float, ledger: Account, stream: NoiseStream) -> Tensor:
    """Draw `keep` different candidates at once, in order, the sooner the lower their scores.

    Guarantee: `keep` times `Selection(epsilon)`, charged first. Adding Gumbel noise once and taking the best is the same as
    drawing them one after the other, each among those that are left (Durfee and Rogers 2019): the order is covered, too.

    Returns:
        Their places, shape (keep,), the first drawn first.

    Raises:
        BudgetExceeded, AdjacencyMismatch, UnsupportedEvent: by the ledger.
    """
    ledger.charge(Repeated(Selection(epsilon), keep), scores.adjacency)
    scale = gumbel_scale(scores.sensitivity, epsilon) / (2 if scores.one_way else 1)
    return (scale * gumbel(len(scores.values), stream) - scores.values).topk(keep).indices


def gumbel(count: int, stream: NoiseStream) -> Tensor:
    """`count` independent draws of the standard Gumbel law, from 64 bits each; float64.

    -ln E for an exponential variable E = -ln(1 - u): small E, which decide, come from u near 0, where numbers are finest.
    """
    uniform = torch.from_numpy(stream.words(count)).double().mul_(2.0**-64)
    uniform = torch.where(uniform < 0, uniform + 1, uniform).add_(2.0**-65)
    return -(-torch.log1p(-uniform.clamp_(max=1 - 2.0**-53))).log()
