"""Questions to sites that add the noise themselves: how a site answers, and how the server asks.

Both go through a `Summation`, so that the server sees what that lets it see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from numpy.typing import NDArray

from privlearn.flower.requests import Progress
from privlearn.flower.site_shares import NoiseQuestion, SiteShares
from privlearn.flower.summation import Summation, Total

#: What sites are asked for.
SHARES = "noisy_shares"

#: Computes a teacher's answers in steps of the plan's grid, as of `SiteShares.answer`.
ComputeAnswers = Callable[[NoiseQuestion, Context], NDArray[np.int64]]


def serve_shares(
    app: ClientApp,
    summation: Summation,
    open_shares: Callable[[Context], SiteShares],
    compute: ComputeAnswers,
) -> None:
    """Answer questions at a site, each with its share of the noise.

    Args:
        app: the site's app.
        summation: how integers are added up.
        open_shares: the site's ledger and terms, from Flower's `context`.
        compute: the teacher's bounded answers.
    """

    def answer(content: RecordDict, context: Context) -> NDArray[np.int64] | None:
        question = NoiseQuestion.unpack(content)
        return open_shares(context).answer(question, lambda: compute(question, context))

    summation.serve(app, SHARES, answer)


def ask_for_shares(
    grid: Grid,
    nodes: Sequence[int],
    summation: Summation,
    question: NoiseQuestion,
    *,
    timeout: float,
    progress: Progress | None = None,
) -> Total:
    """The sum of the sites' answers with their shares, at the server, which was charged before
    (`NoisySum.receive`).

    Args:
        grid: what Flower gives to the server app.
        nodes: the sites.
        summation: how integers are added up.
        question: what is asked.
        timeout: seconds to wait for each round of replies.
        progress: called as replies arrive.
    """
    plan = question.plan
    steps = plan.grid
    assert steps is not None
    return summation.add_up(
        grid,
        nodes,
        SHARES,
        question.pack(),
        size=plan.queries * question.numbers,
        bound=math.ceil(plan.aggregate.sensitivity / steps.step) + steps.reach,
        timeout=timeout,
        progress=progress,
    )
