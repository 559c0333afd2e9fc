"""A site's share of the noise: charged to the site's own ledger, and given once for each question.

A server that nobody trusts may ask as often as it likes. The site computes the price from the
public plan in the request and from what its own operator declared, and has no answer once its
ledger has no room. What it said to a question is kept beside the ledger, so that a server that was
killed gets the same answer again, without another charge and without other noise.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from filelock import FileLock
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from privlearn._checks import count
from privlearn._public import from_json
from privlearn._storage import canonical, loads, write_durably
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.mechanisms.noise_shares import release_share
from privlearn.core.streams import Streams
from privlearn.errors import BadInput
from privlearn.flower.messages import unpack_inputs
from privlearn.methods.pate.plan import PatePlan, Votes

_log = logging.getLogger(__name__)

_INPUTS, _TERMS, _PLAN, _NUMBERS, _QUESTION = "inputs", "terms", "plan", "numbers", "question"
_MOST_NUMBERS = 10**9
#: Seconds that a request waits for another one of the same site.
_PATIENCE = 600.0


@final
@dataclass(frozen=True, eq=False)
class NoiseQuestion:
    """What a server asks sites that add the noise themselves; public.

    Attributes:
        plan: with `site_noise`: the price, the grid and the noise follow from it.
        inputs: a row for each query.
        numbers: how many integers a site sends for each query: classes, or numbers in a code.
        name: tells it from other questions about the same.
    """

    plan: PatePlan
    inputs: NDArray[Any]
    numbers: int
    name: str

    def pack(self) -> RecordDict:
        """The question as a message's content."""
        written = canonical(self.plan.to_json()).decode()
        terms = ConfigRecord({_PLAN: written, _NUMBERS: self.numbers, _QUESTION: self.name})
        return RecordDict({_INPUTS: ArrayRecord([self.inputs]), _TERMS: terms})

    @classmethod
    def unpack(cls, content: RecordDict) -> NoiseQuestion:
        """The question of a message.

        Raises:
            Exception: it holds none. A server may send anything.
        """
        terms: dict[str, Any] = {**content.config_records[_TERMS]}
        plan, inputs = from_json(loads(str(terms[_PLAN]).encode())), unpack_inputs(content)
        if not isinstance(plan, PatePlan) or len(inputs) != plan.queries:
            raise BadInput(
                f"a server asks {len(inputs)} inputs by a {type(plan).__name__}: expected a "
                "PatePlan, and an input for each of its queries. Nothing was charged or sent"
            )
        numbers = count("numbers", terms[_NUMBERS], most=_MOST_NUMBERS)
        return cls(plan, inputs, numbers, str(terms[_QUESTION]))

    def digest(self, circle: bytes = b"") -> str:
        """The digest of everything in it, and of who else takes part.

        Args:
            circle: names those whose integers this answer is going to be added to, where the sum
                alone is seen: two sums of the same answers over different sites tell apart what is
                in one of them only, with few shares of noise. Empty where each answer is seen by
                itself anyway.
        """
        shape = [str(self.inputs.dtype), *self.inputs.shape]
        header = [self.plan.to_json(), self.numbers, self.name, shape, circle.hex()]
        whole = hashlib.sha256(canonical(header))
        whole.update(np.ascontiguousarray(self.inputs).tobytes())
        return whole.hexdigest()


@final
class SiteShares:
    """The site's side of noise by the sites: its ledger, what its operator declared, and what it
    has answered.

    Guarantee: everything that the site ever answers is within its ledger's budget, if at most
    `absent` other sites drop out, add no noise or give theirs away, and only the sum is seen. Each
    answer is charged before its share is drawn and is kept before it is sent.

    Args:
        ledger: the site's own ledger, a file with a budget that the operator began.
        teachers: how many sites there are, as the operator knows.
        absent: how many of them may add no noise, as the operator declares.

    Raises:
        BadInput: a number out of range, or no ledger in a file with a budget.
    """

    def __init__(self, ledger: str | Path, *, teachers: int, absent: int = 0) -> None:
        self._path = Path(ledger)
        self._teachers = count("teachers", teachers)
        self._absent = count("absent", absent, least=0)
        if Ledger.open(self._path).budget is None:
            raise BadInput(
                f"{self._path} has no budget, and a server may ask again and again: expected a "
                "site's ledger with one. Begin it with privlearn.Ledger.open(path, budget)"
            )
        self._folder = self._path.with_name(f"{self._path.name}.answers")

    def answer(
        self, question: NoiseQuestion, compute: Callable[[], NDArray[np.int64]], circle: bytes = b""
    ) -> NDArray[np.int64] | None:
        """The site's answer with its share of the noise: the same for the same question.

        A teacher that fails counts as one without an answer, and the site still sends its share:
        whether there is noise must not follow from records.

        Args:
            question: from the server.
            compute: the teacher's bounded answers in steps of the plan's grid, int64, shape
                (queries x numbers,), rounded towards 0. Where it fails, or they are beyond the
                bound, the site's log says so, and zeros take their place.
            circle: as of `NoiseQuestion.digest`.

        Returns:
            Integers to be sent; None where the share is too large to be sent.

        Raises:
            BadInput: another plan than the operator declared, or what was kept cannot be read;
                nothing is charged.
            BudgetExceeded, AdjacencyMismatch: the ledger has no room; nothing is drawn.
        """
        self._require_declared(question.plan)
        digest = question.digest(circle)
        with FileLock(f"{self._path}.answering.lock", timeout=_PATIENCE):
            kept = self._folder / f"{digest}.npy"
            if kept.exists():
                return _read(kept)
            noisy = self._release(question.plan, _try_to_compute(question, compute))
            if noisy is not None:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                write_durably(kept, _spell(noisy), mode=0o600)
            return noisy

    def _release(self, plan: PatePlan, integers: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Charge the site's ledger, then draw its share."""
        grid = plan.grid
        assert grid is not None  # as declared
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
                "expected a plan with site_noise. Nothing was sent"
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


def _try_to_compute(
    question: NoiseQuestion, compute: Callable[[], NDArray[np.int64]]
) -> NDArray[np.int64]:
    """The teacher's answers; zeros where it fails, so that the site's noise is there all the
    same.
    """
    try:
        integers = compute()
        require_bounded(question, integers)
    except Exception:
        _log.exception("the teacher has no usable answer, and the site sends noise alone")
        return np.zeros(question.plan.queries * question.numbers, np.int64)
    return integers


def require_bounded(question: NoiseQuestion, integers: NDArray[np.int64]) -> None:
    """Refuse answers by which one teacher could move the sum by more than the plan's sensitivity.

    Args:
        question: what was asked.
        integers: in steps of its plan's grid, int64, shape (queries x numbers,).

    Raises:
        BadInput: they are more, or of another shape.
    """
    plan, numbers = question.plan, question.numbers
    grid, asked = plan.grid, plan.aggregate
    assert grid is not None
    if integers.dtype != np.int64 or integers.shape != (plan.queries * numbers,):
        raise BadInput(
            f"a teacher's answers are {integers.dtype} of shape {integers.shape}: expected int64 "
            f"of shape {(plan.queries * numbers,)}"
        )
    rows = integers.reshape(plan.queries, numbers)
    if isinstance(asked, Votes):
        vote = round(1 / grid.step)
        bounded = numbers == asked.classes and bool(
            ((rows == 0) | (rows == vote)).all() and (rows.sum(1) <= vote).all()
        )
    else:
        norms = np.linalg.norm(rows.astype(np.float64), axis=1)
        bounded = bool((norms <= asked.sensitivity / 2 / grid.step).all())
    if not bounded:
        raise BadInput(
            "a teacher's answers are beyond what the plan allows: expected at most one vote for "
            "each query, or codes within the ball, rounded towards 0. Mend how answers are bounded"
        )


def _spell(integers: NDArray[np.int64]) -> bytes:
    file = io.BytesIO()
    np.save(file, integers, allow_pickle=False)
    return file.getvalue()


def _read(kept: Path) -> NDArray[np.int64]:
    """What was answered before."""
    try:
        return np.asarray(np.load(io.BytesIO(kept.read_bytes()), allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise BadInput(
            f"{kept} cannot be read, and the same question gets no other noise: expected what this "
            "site wrote. Restore it from a backup, or have the server ask anew"
        ) from error
