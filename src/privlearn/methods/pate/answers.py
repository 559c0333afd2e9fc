"""What a student learns from: public inputs, and the answers to some of them that were released.

The teachers are asked what the plan says, one release for each query, charged before its noise is
drawn. Answers that are kept: what was charged is neither lost nor charged twice when a run is
interrupted.

The file has two states. Before anything is drawn it holds the teachers' sums and the random
streams: a run that is killed from there on draws the same noise for the same sums again, and is as
secret as the records until then. Afterwards it holds what was released and nothing else.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from privlearn._checks import with_plain_numbers
from privlearn.core.accounting.account import Account
from privlearn.core.accounting.filters import PrivacyFilter
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping.bounded import Bounded
from privlearn.core.mechanisms.noise_shares import NoisySum, SharedSum
from privlearn.core.mechanisms.release import release
from privlearn.core.sampling import FullBatch, Sample
from privlearn.core.streams import Streams
from privlearn.core.tensors import as_tensor
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from privlearn.methods.pate.ensemble import Teachers
from privlearn.methods.pate.integers import integers_for
from privlearn.methods.pate.plan import Ball, Box, ConfidentVotes, PatePlan, Votes
from privlearn.methods.pate.reducers import Reducer
from privlearn.methods.pate.sums import CodeSums, VoteCounts
from privlearn.runs.checkpoint import Checkpoint, Saved, require_same_run
from privlearn.runs.result import PrivateDiagnostics
from privlearn.runs.session import charge_again
from privlearn.transforms.modules import Scale


@with_plain_numbers
@final
@dataclass(frozen=True, eq=False, repr=False)
class Answers:
    """What a student learns from: public inputs, and what was released for some; charged once, for
    all students.

    Attributes:
        inputs: all public inputs as the student gets them (scaled, where bounds are declared),
            shape (pool, ...); the first ones were asked about.
        targets: what was recovered for each query, in order: targets of shape (queries, *shape) in
            float32, or classes (queries,) in int64.
        answered: which queries have an answer, bool, shape (queries,); the targets of the others
            mean nothing.
        scores: for votes the noisy counts that were released, float64, shape (queries, classes), 0
            where there is no answer; None for other targets.
        expected: for votes the number of teachers over the noise's variance: what tells how far
            counts can be believed.
        plan: what was asked.
        pool: the public inputs as they were given.
        ledger: what was charged; None for answers that were made up.
        facts: public values of the asking, for certificates.
        seeded: whether anyone may know the seed of the noise.
        discrete: whether the noise was on a grid.
        private_diagnostics: not covered by the guarantee.
    """

    inputs: Tensor
    targets: Tensor
    answered: Tensor
    scores: Tensor | None = None
    expected: float = 1.0
    plan: PatePlan | None = None
    pool: Pool | None = None
    ledger: Ledger | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    seeded: bool = False
    discrete: bool = False
    private_diagnostics: PrivateDiagnostics = field(default_factory=lambda: PrivateDiagnostics({}))

    @classmethod
    def made_up(
        cls,
        plan: PatePlan,
        reducer: Reducer | None,
        inputs: Tensor,
        *,
        queries: int | None = None,
        seed: int = 0,
    ) -> Answers:
        """Answers as the plan's will look, of noise alone: for trying a student before anything is
        spent.

        Args:
            plan: what is asked, with its noise.
            reducer: from codes to targets; None for votes.
            inputs: public inputs as the student gets them, shape (pool, ...).
            queries: how many have answers; by default the plan's.
            seed: of what is made up.
        """
        number = min(plan.queries if queries is None else queries, len(inputs))
        made_up = torch.Generator().manual_seed(seed)
        answered = torch.ones(number, dtype=torch.bool, device="cpu")
        if not isinstance(plan.aggregate, Votes | ConfidentVotes):
            if reducer is None:
                raise BadInput("codes need a reducer: give the one that answers are decoded by")
            codes = plan.noise_std * torch.randn(
                number, reducer.size, generator=made_up, device="cpu"
            )
            return cls(inputs, reducer.decode(codes + reducer.code_centre), answered)
        classes = plan.aggregate.classes
        # The last class first: few rows, too, have a label that only a student for all classes has
        # room for.
        scores = plan.noise_std * torch.randn(
            number, classes, generator=made_up, dtype=torch.float64, device="cpu"
        )
        targets = (classes - 1 - torch.arange(number, device="cpu")) % classes
        scores[torch.arange(number, device="cpu"), targets] = scores.amax(1) + 1
        return cls(inputs, targets, answered, scores, plan.teachers / plan.noise_std**2)

    @property
    def classes(self) -> int | None:
        """How many there are, for votes; None for other targets."""
        return None if self.scores is None else self.scores.shape[1]

    def learnable(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the queries that have an answer."""
        return self.inputs[: len(self.targets)][self.answered], self.targets[self.answered]

    def beliefs(self, agreement: float) -> Tensor:
        """The probability of each class, shape (queries, classes), if that share of teachers vote
        for the right one.

        By Bayes' rule from the noisy counts, the other votes being spread evenly; 0 where there is
        no answer.

        Raises:
            BadInput: answers that are no classes.
        """
        if self.scores is None:
            raise BadInput("these answers are not classes: there are no counts to believe in")
        others = self.scores.shape[1] - 1
        # the right class's share less that of any other
        apart = agreement - (1 - agreement) / others
        believed = (self.scores * (self.expected * apart)).softmax(1)
        return believed * self.answered[:, None]

    def __repr__(self) -> str:
        """Shapes only."""
        kind = "targets" if self.scores is None else f"one of {self.classes} classes"
        return (
            f"Answers({int(self.answered.sum())} of {len(self.targets)} queries, {kind} of shape "
            f"{tuple(self.targets.shape[1:])}, {len(self.inputs)} public inputs of shape "
            f"{tuple(self.inputs.shape[1:])})"
        )


@final
@dataclass(frozen=True, eq=False, repr=False)
class Pool:
    """Public inputs.

    Attributes:
        raw: as they were given, shape (pool, ...).
        inputs: as a student gets them: scaled, where bounds are declared.
        transforms: those in front of the student for that.
    """

    raw: Tensor
    inputs: Tensor
    transforms: tuple[nn.Module, ...]

    @classmethod
    def of(cls, inputs: Dataset | Any, queries: int) -> Pool:
        """The pool of an array, a tensor or a data set that is declared public, of which the
        targets are not looked at.

        Raises:
            BadInput: a data set that is not declared public, inputs that are not finite, or fewer
                than `queries`.
        """
        if isinstance(inputs, Dataset) and not inputs.public:
            raise BadInput(
                "the inputs that teachers are asked about are not protected: give public ones, "
                "pv.Dataset(x, y, public=True), or an array of them"
            )
        bounded = isinstance(inputs, Dataset) and inputs.low is not None
        raw = (
            as_tensor(inputs.x, whole_is_float=bounded)
            if isinstance(inputs, Dataset)
            else as_tensor(inputs)
        )
        if raw.dim() < 2 or (raw.is_floating_point() and not bool(raw.isfinite().all())):
            raise BadInput(
                f"public inputs of shape {tuple(raw.shape)} can't be asked about: expected finite "
                "rows of numbers"
            )
        if len(raw) < queries:
            raise BadInput(
                f"there are {len(raw)} public inputs, and the plan asks {queries} queries: "
                "expected an input for each. Nothing was charged; use a plan of fewer queries"
            )
        if not bounded:
            return cls(raw, raw, ())
        scale = Scale(*inputs.bounds())
        with torch.no_grad():
            return cls(raw, scale(raw), (scale,))


def sum_answers(
    plan: PatePlan,
    teachers: Teachers,
    reducer: Reducer | None,
    inputs: Tensor,
    streams: Streams,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[CodeSums | VoteCounts, int]:
    """Add up what all teachers say to the plan's queries, and count those that said nothing of use;
    both private.

    One teacher is held at a time. Nothing is released or charged here.

    Args:
        plan: how many are asked, and how answers are bounded.
        teachers: the ensemble.
        reducer: from targets to codes; None for votes.
        inputs: the public inputs that are asked about, shape (queries, ...).
        streams: assign records to teachers.
        progress: called with (teachers done, teachers in all).

    Raises:
        BadInput: another number of teachers than the plan's, a reducer where none is needed or none
            where one is; recipes or files that are refused. What teachers say that were trained
            here is never refused: it follows from their records.
    """
    require_count(plan, teachers)
    sums = empty(plan, reducer)
    silent = teachers.add_answers(sums, inputs, streams, progress)
    sums.added.require_kept()
    return sums, silent


def require_count(plan: PatePlan, teachers: Teachers) -> None:
    """Refuse other teachers than the plan's.

    Raises:
        BadInput: another number, or it is known that a unit can change two of them.
    """
    if teachers.count != plan.teachers:
        raise BadInput(
            f"there are {teachers.count} teachers, and the plan is for {plan.teachers}: the noise "
            "follows from that number, so both have to agree. Nothing was charged"
        )
    teachers.require_covered(plan.adjacency, plan.unit)


def release_answers(
    plan: PatePlan,
    sums: CodeSums | VoteCounts,
    reducer: Reducer | None,
    ledger: Account,
    streams: Streams,
) -> Noisy:
    """Release answers to the plan's queries: targets, which queries have one, and for votes the
    noisy counts.

    Guarantee: what is charged to `ledger` is `plan.event()`, each query before its noise is drawn,
    and every number that is returned follows from what was released.
    """
    if plan.site_noise is not None:
        raise BadInput(
            "the sites add the noise by this plan, and these sums have none: expected teachers at "
            "sites, asked by receive_answers. Nothing was charged; or leave site_noise out"
        )
    if isinstance(sums, CodeSums):
        assert reducer is not None
        codes = _codes(plan, sums, ledger, streams)
        return (
            reducer.decode(codes.float()),
            torch.ones(plan.queries, dtype=torch.bool, device="cpu"),
            None,
        )
    if isinstance(plan.aggregate, ConfidentVotes):
        counts, answered = _confident(plan, plan.aggregate, sums, ledger, streams)
        return counts.argmax(1), answered, counts
    counts = torch.zeros_like(sums.counts)
    for query in range(plan.queries):
        counts[query] = _release(
            sums.bounded(query, _sample(plan), plan.adjacency), plan.noise, ledger, streams
        )
    return counts.argmax(1), torch.ones(plan.queries, dtype=torch.bool, device="cpu"), counts


def receive_answers(
    plan: PatePlan,
    teachers: Teachers,
    reducer: Reducer | None,
    inputs: Tensor,
    ledger: Account,
    question: str,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Noisy, int]:
    """Ask sites that add the noise themselves, and read their noisy sum: nothing is added to it.

    Guarantee: what is charged to `ledger` is `plan.event()`, before any site is asked, and every
    number that is returned follows from a sum that holds enough shares of the noise.

    Args:
        plan: with `site_noise`.
        teachers: at the sites.
        reducer: from codes to targets; None for votes.
        inputs: the public inputs that are asked about, shape (queries, ...).
        ledger: what is charged.
        question: names this question (`Teachers.ask_for_noisy_sum`).
        progress: called with (teachers done, teachers in all).

    Returns:
        As `release_answers`; and how many sites are not in the sum, which is private.

    Raises:
        BadInput: fewer shares than the plan claims; the charge stays. Or a sum of another shape.
    """
    sums, silent = empty(plan, reducer), 0
    encoder = sums.encoder if isinstance(sums, CodeSums) else None
    integers = integers_for(plan.aggregate, encoder)
    grid = plan.grid(integers.step)

    def ask() -> SharedSum:
        nonlocal silent
        total = teachers.ask_for_noisy_sum(plan, sums, inputs, question, progress)
        silent = plan.teachers - len(set(total.nodes))
        return total

    received = NoisySum.receive(
        ask, needed=grid.needed, event=plan.event(), adjacency=plan.adjacency, ledger=ledger
    )
    size = plan.queries * integers.size
    if received.values.dtype != np.int64 or received.values.shape != (size,):
        raise BadInput(
            f"the noisy sum has {received.values.dtype} values of shape {received.values.shape}: "
            f"expected int64 ones of shape {(size,)}. It was charged, and nothing released"
        )
    noisy = torch.from_numpy(received.values).double().mul_(grid.step).view(plan.queries, -1)
    answered = torch.ones(plan.queries, dtype=torch.bool, device="cpu")
    if isinstance(sums, CodeSums):
        assert reducer is not None
        codes = sums.encode_sum(noisy) / plan.teachers + sums.origin
        return (reducer.decode(codes.float()), answered, None), silent
    return (noisy.argmax(1), answered, noisy), silent


def _codes(plan: PatePlan, sums: CodeSums, ledger: Account, streams: Streams) -> Tensor:
    """The noisy mean code of each query."""
    means = torch.empty_like(sums.sums)
    for query in range(plan.queries):
        part = sums.bounded(query, _sample(plan), plan.adjacency)
        # Divided by the public number of teachers, however many had an answer.
        means[query] = _release(part, plan.noise, ledger, streams) / plan.teachers
    return means + sums.origin


def _confident(
    plan: PatePlan, aggregate: ConfidentVotes, counts: VoteCounts, ledger: Account, streams: Streams
) -> tuple[Tensor, Tensor]:
    """Noisy counts for the queries on which the teachers agree, until as many were given as the
    plan allows.

    The tests decide how much is spent, so all of it goes through a filter that was charged
    beforehand.
    """
    assert plan.limit is not None
    account = PrivacyFilter(ledger, plan.limit, plan.adjacency)
    noisy, answered = (
        torch.zeros_like(counts.counts),
        torch.zeros(plan.queries, dtype=torch.bool, device="cpu"),
    )
    for query in range(plan.queries):
        if int(answered.sum()) == aggregate.answers:
            break
        test = counts.largest(query, _sample(plan), plan.adjacency)
        if float(_release(test, plan.test_noise, account, streams)) < aggregate.threshold:
            continue
        votes = counts.bounded(query, _sample(plan), plan.adjacency)
        noisy[query] = _release(votes, plan.noise, account, streams)
        answered[query] = True
    return noisy, answered


def _release(part: Bounded, noise: float, account: Account, streams: Streams) -> Tensor:
    [[value]] = release(part, noise_multiplier=noise, ledger=account, stream=streams.noise)
    return value


def _sample(plan: PatePlan) -> Sample:
    """One query meets all the data, unsampled, and is good for one release."""
    [sample] = FullBatch().draw(plan.teachers)
    return sample


def empty(plan: PatePlan, reducer: Reducer | None) -> CodeSums | VoteCounts:
    """Where answers are added up.

    Raises:
        BadInput: a reducer where none is needed, or none, or an unfit one, where one is.
    """
    if isinstance(plan.aggregate, Ball | Box):
        if not isinstance(reducer, Reducer):
            raise BadInput(
                f"reducer is {str(reducer)[:60]}: codes need one, such as "
                "pv.teachers.PublicPCA.fit(public) or pv.teachers.Identity(shape)"
            )
        return CodeSums(plan.aggregate, reducer, plan.queries)
    if reducer is not None:
        raise BadInput(
            "votes are counted as they are: leave the reducer out, or ask for codes with "
            "pv.teachers.Ball(radius)"
        )
    return VoteCounts(plan.aggregate, plan.queries)


_ASKING, _ANSWERED = "asking", "answered"
#: Targets, which queries have one, and for votes the noisy counts.
Noisy = tuple[Tensor, Tensor, Tensor | None]


def keep_answers(
    plan: PatePlan,
    pool: Pool,
    sums: Callable[[], CodeSums | VoteCounts],
    reducer: Reducer | None,
    ledger: Ledger,
    streams: Streams,
    file: Checkpoint,
    facts: dict[str, str],
) -> Answers:
    """The answers to the plan's queries: released and kept in `file`, or taken from there.

    Guarantee: `ledger` is charged `plan.event()`; a ledger in a file, on which that was charged to
    the same run before an interruption, no second time.

    Args:
        plan: what is asked.
        pool: the public inputs.
        sums: makes the teachers' sums; called only if they are not kept.
        reducer: from codes to targets; None for votes.
        ledger: what is charged.
        streams: where noise is drawn from; a run that was interrupted while asking goes on with its
            own.
        file: where answers are kept.
        facts: what a run must have in common with the file to go on from it.

    Raises:
        BadInput: the file is of another run, or its run was charged to another ledger.
        BudgetExceeded: the plan does not fit the ledger's budget.
    """
    with file.alone():
        saved = file.read()
        if saved is None:
            ledger.require_room(plan.event(), plan.adjacency, plan.unit)
            totals = sums()
            with _end_on_failure(ledger, file):
                ledger.begin(plan.event(), plan.adjacency, plan.unit)
                plain = {
                    "state": _ASKING,
                    "facts": facts,
                    "run": ledger.run,
                    "streams": streams.state(),
                }
                file.write(Saved({"sums": _total(totals)}, plain))
        else:
            require_same_run(saved, facts)
            ledger.resume(saved.plain["run"], plan.event(), plan.adjacency, plan.unit)
            if saved.plain["state"] == _ANSWERED:
                charge_again(ledger, plan.event(), plan.neighbours)
                return _unpack_answers(saved, plan, pool, ledger)
            watch = streams.noise.watch
            totals, streams = empty(plan, reducer), Streams.at(saved.plain["streams"])
            streams.noise.watch = watch
            _total(totals).copy_(saved.tensors["sums"])
            totals.added.see(
                torch.zeros(0, device="cpu")
            )  # they were measured before they were kept
        answers = of_pool(
            plan, pool, ledger, release_answers(plan, totals, reducer, ledger, streams), streams
        )
        file.write(_pack_answers(answers, facts, ledger.run))
        ledger.settle()
        return answers


def new_question() -> str:
    """A name that no other question has."""
    return secrets.token_hex(16)


def keep_received(
    plan: PatePlan,
    pool: Pool,
    receive: Callable[[str], Noisy],
    ledger: Ledger,
    streams: Streams,
    file: Checkpoint,
    facts: dict[str, str],
) -> Answers:
    """`keep_answers` for noise by the sites: a run that was interrupted asks the same question
    again, to which sites give the same answers.

    Args:
        plan, pool, ledger, file, facts: as of `keep_answers`.
        receive: asks the question of that name, and charges the plan before (`receive_answers`).
        streams: of the run; nothing is drawn from them.

    Raises:
        BadInput, BudgetExceeded: as `keep_answers`; and as `receive`. Or an older copy of the file
            of a run that has ended.
    """
    with file.alone():
        saved = file.read()
        if saved is None:
            ledger.require_room(plan.event(), plan.adjacency, plan.unit)
            question = new_question()
            with _end_on_failure(ledger, file):
                ledger.begin(plan.event(), plan.adjacency, plan.unit)
                plain = {"state": _ASKING, "facts": facts, "run": ledger.run, "question": question}
                file.write(Saved({}, plain))
        else:
            require_same_run(saved, facts)
            ledger.resume(saved.plain["run"], plan.event(), plan.adjacency, plan.unit)
            if saved.plain["state"] == _ANSWERED:
                charge_again(ledger, plan.event(), plan.neighbours)
                return _unpack_answers(saved, plan, pool, ledger)
            # other sites may answer now, and the two sums differ by few shares of noise
            if ledger.has_ended:
                raise BadInput(
                    f"the run in {file.path} has ended on its ledger, and this file is an older "
                    "copy: sites would be asked for another sum, whose release nothing was "
                    "charged for. Expected the file with its answers; or begin anew, without it"
                )
            question = saved.plain["question"]
        answers = of_pool(plan, pool, ledger, receive(question), streams)
        file.write(_pack_answers(answers, facts, ledger.run))
        ledger.settle()
        return answers


def of_pool(plan: PatePlan, pool: Pool, ledger: Ledger, noisy: Noisy, streams: Streams) -> Answers:
    """What was released of the first inputs of `pool`."""
    targets, answered, scores = noisy
    expected = plan.teachers / plan.noise_std**2
    return Answers(
        pool.inputs,
        targets,
        answered,
        scores,
        expected,
        plan,
        pool,
        ledger,
        seeded=streams.seeded,
        discrete=streams.noise.discrete or plan.site_noise is not None,
    )


def _pack_answers(answers: Answers, facts: dict[str, str], run: str | None) -> Saved:
    """What is kept of answers: what was released, and which run it was."""
    tensors = {"targets": answers.targets, "answered": answers.answered}
    tensors |= {} if answers.scores is None else {"scores": answers.scores}
    plain: dict[str, Any] = {"state": _ANSWERED, "facts": facts, "run": run}
    return Saved(tensors, plain | {"seeded": answers.seeded, "discrete": answers.discrete})


def _unpack_answers(saved: Saved, plan: PatePlan, pool: Pool, ledger: Ledger) -> Answers:
    """What `_pack_answers` took down."""
    tensors, plain, expected = saved.tensors, saved.plain, plan.teachers / plan.noise_std**2
    return Answers(
        pool.inputs,
        tensors["targets"],
        tensors["answered"],
        tensors.get("scores"),
        expected,
        plan,
        pool,
        ledger,
        seeded=plain["seeded"],
        discrete=plain["discrete"],
    )


def _total(sums: CodeSums | VoteCounts) -> Tensor:
    return sums.sums if isinstance(sums, CodeSums) else sums.counts


@contextmanager
def _end_on_failure(ledger: Ledger, file: Checkpoint) -> Iterator[None]:
    """A block before anything is drawn, whose failure gives back what was set aside."""
    try:
        yield
    except BaseException:
        ledger.settle()
        file.delete()
        raise
