"""An ensemble of teachers at the sites of a Flower federation, as the server sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import numpy as np
import torch
from flwr.serverapp import Grid
from numpy.typing import NDArray
from torch import Tensor

from privlearn._checks import count as whole_number
from privlearn._checks import positive, require_fit
from privlearn.core.streams import Streams
from privlearn.errors import BadInput
from privlearn.flower.requests import await_nodes
from privlearn.flower.share_questions import SHARES, bound_share, pack_share_question
from privlearn.flower.summation import InTheClear, Summation, Total
from privlearn.flower.teacher_question import QUESTION, pack_question
from privlearn.methods.pate.ensemble import PredictedElsewhere, Progress
from privlearn.methods.pate.integers import integers_for
from privlearn.methods.pate.plan import PatePlan
from privlearn.methods.pate.sums import CodeSums, Shapes, VoteCounts


@final
class FlowerTeachers(PredictedElsewhere):
    """The teachers of a Flower federation: one at each site, asked through the server's `grid`.

    Sites bound and round their answers, and the server gets the sum of the integers by `summation`.
    A site that is not connected, fails, answers late or sends what is of no use counts as a teacher
    without an answer: nothing says so but the curator's private diagnostics. Of several replies to
    one request the first counts.

    By a plan with `site_noise` the sites add the noise, and a sum of fewer shares than the plan
    needs is refused. Else there is no noise in the sum, nor in what else the summation shows to the
    server (`summation.server_sees`), so the server has to be trusted with it. Where it can't read
    single answers, that each is bounded rests on the sites' code. That each record is at one site,
    and that each node is another site, is the publisher's word.

    Args:
        grid: what Flower gives to the server app.
        count: how many sites there are; public, and the plan's number of teachers.
        summation: how the sites' answers are added up, the same as the sites'; None:
            `InTheClear()`.
        timeout: seconds to wait for the sites to connect, and again for their answers.

    Raises:
        BadInput: a number out of range, or a summation that is none.
    """

    def __init__(
        self, grid: Grid, count: int, *, summation: Summation | None = None, timeout: float = 600.0
    ) -> None:
        self._grid = grid
        self._count = whole_number("count", count)
        require_fit("summation", summation, Summation | None)
        self._summation = summation or InTheClear()
        self._timeout = positive("timeout", timeout)

    @property
    def count(self) -> int:
        """How many there are."""
        return self._count

    def describe(self) -> dict[str, Any]:
        """That their predictions were given, and what the server saw of them."""
        return {"source": "given", "server_saw": self._summation.server_sees}

    def determined(self, inputs: Tensor) -> dict[str, str]:
        """Refuse kept keys: sites may answer otherwise when they are asked again, and the same
        noise would be added to other answers.

        Raises:
            BadInput: always; it is asked only where keys are kept.
        """
        raise BadInput(
            "the noise has a secret that is kept, and sites may answer otherwise when they are "
            "asked again: expected streams of new keys. Leave streams out"
        )

    def require_sites(self, needed: int) -> None:
        """Wait for the sites, and refuse fewer than needed.

        Raises:
            BadInput: fewer are connected, or more than the federation is said to have.
        """
        if len(await_nodes(self._grid, self._count, self._timeout)) < needed:
            raise BadInput(
                "fewer sites are connected than have to add a share of the noise: expected at "
                f"least {needed}. Nothing was asked or charged. Have more connected, or use a plan "
                "with a larger absent="
            )
        least = self._summation.least(self._count)
        if 1 < least < needed:
            raise BadInput(
                f"a secure sum of {least} sites may be seen, and {needed} have to add a share of "
                f"the noise: expected a threshold of {needed}. Use SecureSum(threshold={needed}) "
                "at all sites and the server. Nothing was asked or charged"
            )

    def ask_for_noisy_sum(
        self,
        plan: PatePlan,
        totals: CodeSums | VoteCounts,
        inputs: Tensor,
        question: str,
        progress: Progress | None = None,
    ) -> Total:
        """The sum of the sites' answers, each with its share of the noise.

        Raises:
            BadInput: more sites are connected than the federation is said to have.
        """
        encoder = totals.encoder if isinstance(totals, CodeSums) else None
        integers = integers_for(totals.aggregate, encoder)
        return self._summation.add_up(
            self._grid,
            await_nodes(self._grid, self._count, self._timeout),
            SHARES,
            pack_share_question(inputs, totals, plan, question),
            size=len(inputs) * integers.size,
            bound=bound_share(plan.grid(integers.step), integers),
            timeout=self._timeout,
            progress=progress,
        )

    def answers(
        self,
        inputs: Tensor,
        streams: Streams,
        progress: Progress | None = None,
        shapes: Shapes | None = None,
    ) -> Iterator[Tensor | None]:
        """Refuse: sites answer for a sum.

        Raises:
            BadInput: always.
        """
        raise BadInput(
            "sites bound their answers and give a sum of them: expected these teachers in pv.pate "
            "or pv.teachers.ask_teachers. Change single answers in teacher_app(load)"
        )

    def add_answers(
        self,
        totals: CodeSums | VoteCounts,
        inputs: Tensor,
        streams: Streams,
        progress: Progress | None = None,
    ) -> int:
        """Add the sum of the sites' bounded answers to `totals`.

        Returns:
            How many sites are not in it: private.

        Raises:
            BadInput: more sites are connected than the federation is said to have, before anything
                is asked; or a sum that bounded answers can't have. Nothing was charged.
        """
        nodes = await_nodes(self._grid, self._count, self._timeout)
        encoder = totals.encoder if isinstance(totals, CodeSums) else None
        integers = integers_for(totals.aggregate, encoder)

        def fits(numbers: NDArray[np.int64]) -> bool:
            return integers.fits(_by_query(numbers, integers.size))

        total = self._summation.requiring(fits).add_up(
            self._grid,
            nodes,
            QUESTION,
            pack_question(inputs, totals),
            size=len(inputs) * integers.size,
            bound=integers.bound,
            timeout=self._timeout,
            progress=progress,
        )
        values, teachers = _by_query(total.values, integers.size), len(total.nodes)
        if isinstance(totals, CodeSums):
            totals.add_sum(values, teachers, integers.step)
        else:
            totals.add_sum(values, teachers)
        return self._count - teachers


def _by_query(numbers: NDArray[np.int64], size: int) -> Tensor:
    return torch.from_numpy(np.array(numbers)).view(-1, size)
