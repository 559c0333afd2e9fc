"""Randomised response: labels that are mostly true, each by itself (Warner 1965; Kairouz et al.
2016).

Private selection: the exponential mechanism, by Gumbel noise.

How often something is repeated: one draw of the law that `RepeatAndSelect` is priced for.
"""

from __future__ import annotations

import math

import mpmath
import numpy as np
import torch
from torch import Tensor

from privlearn.core.accounting.account import Account
from privlearn.core.accounting.events import Repeated
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import RandomisedResponse, Selection, gumbel_scale
from privlearn.core.accounting.trees import RepeatAndSelect, law_of_runs
from privlearn.core.clipping.evaluation import CandidateScores
from privlearn.core.streams import NoiseStream


def truth(epsilon: float, categories: int) -> float:
    """The probability that a label is reported as it is; each other one has e^-epsilon times
    that.
    """
    return 1 / (1 + (categories - 1) * math.exp(-epsilon))


def randomised(
    labels: Tensor,
    present: Tensor,
    *,
    epsilon: float,
    categories: int,
    adjacency: Adjacency,
    ledger: Account,
    stream: NoiseStream,
) -> Tensor:
    """Report a label for each row.

    Guarantee: `RandomisedResponse(epsilon, categories)`, for neighbours with as many rows; charged
    first. An empty row reports any label with the same probability, which is within e^epsilon of
    every other law. Probabilities are steps of 2^-53.

    Args:
        labels: whole numbers 0 .. categories - 1, shape (rows,).
        present: whether the row holds an example, shape (rows,).
        epsilon: log of the largest ratio of probabilities.
        categories: how many labels there are.
        adjacency: the kind of neighbour.
        ledger: what is charged.
        stream: the run's noise stream.

    Raises:
        BudgetExceeded, AdjacencyMismatch, UnsupportedEvent: by the ledger.
    """
    ledger.charge(RandomisedResponse(epsilon, categories), adjacency)
    with stream.drawing_for((labels, present)):
        speaks_true, which = _uniform(2 * len(labels), stream).view(2, -1)
    others = 1 + (which * (categories - 1)).long()
    reported = (labels + others.where(speaks_true >= truth(epsilon, categories), 0)) % categories
    answers: Tensor = reported.where(present, (which * categories).long())
    return answers


def _uniform(count: int, stream: NoiseStream) -> Tensor:
    """`count` draws of the uniform law on [0, 1), multiples of 2^-53; float64."""
    return (torch.from_numpy(stream.words(count)) >> 11).double().mul_(2.0**-53).add_(0.5)


def select(scores: CandidateScores, *, epsilon: float, ledger: Account, stream: NoiseStream) -> int:
    """Draw one candidate, the sooner the lower its score.

    Guarantee: `Selection(epsilon)`, for the adjacency of the scores, which is charged first; if the
    ledger refuses, nothing is drawn. Each candidate's probability is proportional to exp(-epsilon
    score / (2 sensitivity)), or, where all scores move in one direction, to exp(-epsilon score /
    sensitivity): either way the log of a ratio of probabilities has a range of at most epsilon
    (Dong, Durfee and Rogers 2020). Only an index leaves: there are no low bits in it to attack.

    Raises:
        BudgetExceeded, AdjacencyMismatch, UnsupportedEvent: by the ledger.
    """
    ledger.charge(Selection(epsilon), scores.adjacency)
    scale = gumbel_scale(scores.sensitivity, epsilon) / (2 if scores.one_way else 1)
    with stream.drawing_for((scores.values,)):
        return int((scale * gumbel(len(scores.values), stream) - scores.values).argmax())


def select_top(
    scores: CandidateScores, keep: int, *, epsilon: float, ledger: Account, stream: NoiseStream
) -> Tensor:
    """Draw `keep` different candidates at once, in order, the sooner the lower their scores.

    Guarantee: `keep` times `Selection(epsilon)`, charged first. Adding Gumbel noise once and taking
    the best is the same as drawing them one after the other, each among those that are left (Durfee
    and Rogers 2019): the order is covered, too.

    Returns:
        Their places, shape (keep,), the first drawn first.

    Raises:
        BudgetExceeded, AdjacencyMismatch, UnsupportedEvent: by the ledger.
    """
    ledger.charge(Repeated(Selection(epsilon), keep), scores.adjacency)
    scale = gumbel_scale(scores.sensitivity, epsilon) / (2 if scores.one_way else 1)
    with stream.drawing_for((scores.values,)):
        return (scale * gumbel(len(scores.values), stream) - scores.values).topk(keep).indices


def gumbel(count: int, stream: NoiseStream) -> Tensor:
    """`count` independent draws of the standard Gumbel law, from 64 bits each; float64.

    -ln E for an exponential variable E = -ln(1 - u): small E, which decide, come from u near 0,
    where numbers are finest.
    """
    uniform = torch.from_numpy(stream.words(count)).double().mul_(2.0**-64)
    uniform = torch.where(uniform < 0, uniform + 1, uniform).add_(2.0**-65)
    return -(-torch.log1p(-uniform.clamp_(max=1 - 2.0**-53))).log()


_WORDS = 4  # of 64 bits, in the uniform number


def draw_repetitions(event: RepeatAndSelect, stream: NoiseStream) -> int:
    """The number of runs, from the law of `event`; secret, like noise: the price is for the best
    outcome alone.

    By inversion: the least k up to which the law's probabilities add up to a uniform number of 256
    bits, in numbers of 400. No probability is off by more than 2^-255, and there is no largest k: a
    cap would be another law, which the theorems do not cover.
    """
    with mpmath.workprec(512), stream.drawing_for(()):
        uniform = mpmath.mpf(1) / 2
        for word in stream.words(_WORDS).view(np.uint64):
            uniform = uniform + int(word)
            uniform = mpmath.ldexp(uniform, -64)
        # ... so that the last word's bits are the leading ones.
        passed = mpmath.mpf(0)
    for k, probability in enumerate(law_of_runs(event.mean, event.shape)):
        with mpmath.workprec(512):
            passed += probability
            if passed > uniform:
                return k
    raise AssertionError("the law has no end")
