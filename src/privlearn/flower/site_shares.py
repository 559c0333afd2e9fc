"""A site's share of the noise: charged to the site's own ledger, and given once for each question.

A server that is not trusted may ask as often as it likes. The site computes the price from the
public plan in the request, holds that to what its own operator declared, and has no answer once its
ledger has no room. What it said to a question is kept beside the ledger, so that a server that was
killed gets the same answer again, without another charge and without other noise.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Callable
from pathlib import Path
from typing import final

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from torch import Tensor

from privlearn._checks import checked, count, quoted
from privlearn._storage import write_durably
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.mechanisms.noise_shares import release_share
from privlearn.core.streams import Streams
from privlearn.errors import BadInput
from privlearn.flower.share_questions import ShareQuestion
from privlearn.flower.summation import Circle
from privlearn.methods.pate.plan import PatePlan

_log = logging.getLogger(__name__)

#: Seconds that a request waits for another one of the same site.
_PATIENCE = 600.0


@final
class SiteShares:
    """A site's own ledger, what its operator declared, and what it has answered: its side of noise
    by the sites.

    Guarantee: everything that the site ever answers is within its ledger's budget, towards all who
    see sums alone, if at most `absent` sites drop out, add no noise or give theirs away. Each
    answer is charged before its share is drawn, and is kept before it is sent.

    Args:
        ledger: the site's own ledger, a file with a budget, which its operator began.
        teachers: how many sites there are, as the operator knows.
        absent: how many of them may add no noise, as the operator declares.

    Raises:
        BadInput: a number out of range, or no ledger in a file with a budget.
    """

    @checked
    def __init__(self, ledger: str | Path, *, teachers: int, absent: int = 0) -> None:
        self._teachers = count("teachers", teachers)
        self._absent = count("absent", absent, least=0, most=self._teachers - 1)
        if Ledger.open(ledger).budget is None:
            raise BadInput(
                f"{quoted(str(ledger))} has no budget, and a server may ask again and again: "
                "expected a site's ledger with one. Begin it with pv.Ledger.open(path, budget)"
            )
        self._path = Path(ledger)
        self._folder = self._path.with_name(f"{self._path.name}.answers")

    def answer(
        self, question: ShareQuestion, compute: Callable[[], Tensor | None], circle: Circle
    ) -> NDArray[np.int64] | None:
        """The site's answer with its share of the noise: the same for the same question.

        A teacher that fails counts as one without an answer, and the site still sends its share:
        whether there is noise must not follow from records.

        Args:
            question: from the server.
            compute: the teacher's bounded answers (`IntegerAnswers.of`). Where it fails, or they
                are beyond the bound, the site's log says so, and zeros take their place.
            circle: whose integers this answer is added to, where the sum alone is seen. In another
                circle the same question gets other noise, and is charged again: two sums of the
                same answers over different sites would tell apart what is in one of them only, with
                few shares of noise.

        Returns:
            Integers in steps of the grid, shape (queries x numbers,); None where the share is too
            large to be sent.

        Raises:
            BadInput: another plan than the operator declared, sums of too few sites, or what was
                kept cannot be read; nothing is charged.
            BudgetExceeded, AdjacencyMismatch: the ledger has no room; nothing is drawn.
        """
        self._require_declared(question.plan)
        self._require_enough(circle)
        # two sites that share a folder by mistake must not send the same share
        asked = f"{question.digest} {circle.node} ".encode() + circle.name
        name = hashlib.sha256(asked).hexdigest()
        with FileLock(f"{self._path}.answering.lock", timeout=_PATIENCE):
            answer_file = self._folder / f"{name}.npy"
            if answer_file.exists():
                return _read(answer_file)
            noisy = self._release(question, _try_to_compute(question, compute))
            if noisy is not None:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                write_durably(answer_file, _spell(noisy), mode=0o600)
            return noisy

    def _release(
        self, question: ShareQuestion, integers: NDArray[np.int64]
    ) -> NDArray[np.int64] | None:
        """Charge the site's ledger, then draw its share."""
        plan, grid = question.plan, question.grid
        ledger = Ledger.open(self._path, what="a share of the noise of PATE")
        ledger.begin(plan.event(), plan.adjacency, plan.unit)
        try:
            return release_share(
                integers,
                sigma=grid.sigma,
                reach=grid.reach,
                event=plan.event(),
                adjacency=plan.adjacency,
                ledger=ledger,
                stream=Streams.new().noise,
            )
        finally:
            ledger.settle()

    def _require_declared(self, plan: PatePlan) -> None:
        shares = plan.site_noise
        if shares is None:
            raise BadInput(
                "a server asks for answers without noise, and this site adds its share to each: "
                "expected a plan with site_noise. Nothing was charged or sent"
            )
        if plan.adjacency is Adjacency.REPLACE_ONE:
            raise BadInput(
                "a record that is replaced by one of another site changes two answers, and the "
                "plan counts one: expected add_remove or zero_out. Nothing was charged or sent"
            )
        if (plan.teachers, shares.absent) != (self._teachers, self._absent):
            raise BadInput(
                f"a server's plan is for {plan.teachers} teachers of which {shares.absent} may be "
                f"absent: expected {self._teachers} and {self._absent}, as this site's operator "
                "declared. Nothing was charged or sent"
            )

    def _require_enough(self, circle: Circle) -> None:
        """Refuse sums that would be seen with fewer shares of noise than are claimed."""
        enough = self._teachers - self._absent
        if circle.name and circle.least < enough:
            raise BadInput(
                f"a sum of {circle.least} sites may be seen, and the noise is enough in one of "
                f"{enough}: expected a secure sum of more sites. Use SecureSum(threshold={enough}) "
                "at all sites and the server. Nothing was charged or sent"
            )


def _try_to_compute(
    question: ShareQuestion, compute: Callable[[], Tensor | None]
) -> NDArray[np.int64]:
    """The teacher's answers in steps of the grid; zeros where it fails, so that the site's noise is
    there all the same.
    """
    shape = (question.plan.queries, question.asked.integers.size)
    try:
        answers = compute()
        if answers is not None:
            require_bounded(question, answers, shape)
            return np.array(answers.flatten().numpy() * question.factor)
        _log.warning("the teacher has no usable answer, and the site sends noise alone")
    except Exception:
        _log.exception("the teacher has no usable answer, and the site sends noise alone")
    return np.zeros(question.size, np.int64)


def require_bounded(question: ShareQuestion, answers: Tensor, shape: tuple[int, int]) -> None:
    """Refuse answers by which one teacher could move the sum by more than the plan's sensitivity.

    Args:
        question: what was asked.
        answers: in steps of the answers.
        shape: what they must have.

    Raises:
        BadInput: they are more, or of another shape.
    """
    if answers.dtype != torch.int64 or tuple(answers.shape) != shape:
        raise BadInput(
            f"a teacher's answers are {answers.dtype} of shape {tuple(answers.shape)}: expected "
            f"int64 of shape {shape}"
        )
    if not question.asked.integers.fits(answers):
        raise BadInput(
            "a teacher's answers are beyond what the plan allows: expected those of "
            "IntegerAnswers.of. Mend how answers are bounded"
        )


def _spell(integers: NDArray[np.int64]) -> bytes:
    file = io.BytesIO()
    np.save(file, integers, allow_pickle=False)
    return file.getvalue()


def _read(answer_file: Path) -> NDArray[np.int64]:
    """What was answered before."""
    try:
        return np.asarray(np.load(io.BytesIO(answer_file.read_bytes()), allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise BadInput(
            f"{answer_file} cannot be read, and the same question gets no other noise: expected "
            "what this site wrote. Restore it from a backup, or have the server ask anew"
        ) from error
