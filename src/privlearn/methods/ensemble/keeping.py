"""Answers that are kept: what was paid for is neither lost nor paid twice when a run is interrupted.

The file has two states. Before anything is drawn it holds the teachers' sums and the random streams: a run that is killed
from there on draws the same noise for the same sums again, and is as secret as the records until then. Afterwards it
holds what was released and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from privlearn.accounting.ledger import Ledger
from privlearn.clipping.codes import CodeSums, VoteCounts
from privlearn.methods.checkpoint import Checkpoint, Saved
from privlearn.methods.ensemble.aggregator import ask, empty
from privlearn.methods.ensemble.plan import PatePlan
from privlearn.methods.progress import require_same_run
from privlearn.reducers.reducer import Reducer
from privlearn.rng import Streams

_ASKING, _ANSWERED = "asking", "answered"


@final
@dataclass(frozen=True, eq=False)
class Released:
    """What was released, and charged.

    Attributes:
        targets, answered, scores: as of `Answers`.
        seeded: whether somebody may know the seed of the noise.
        discrete: whether the noise was on a grid.
    """

    targets: Tensor
    answered: Tensor
    scores: Tensor | None
    seeded: bool
    discrete: bool


def release_answers(
    plan: PatePlan,
    sums: Callable[[], CodeSums | VoteCounts],
    reducer: Reducer | None,
    ledger: Ledger,
    streams: Streams,
    file: Checkpoint,
    facts: dict[str, str],
) -> Released:
    """The answers to the plan's queries: released and kept in `file`, or taken from there.

    Guarantee: `ledger` is charged `plan.event()`; a ledger in a file, on which that was charged to the same run before an
    interruption, no second time.

    Args:
        plan: what is asked.
        sums: makes the teachers' sums; called only if they are not kept.
        reducer: from codes to targets; None for votes.
        ledger: what is charged.
        streams: where noise is drawn from; a run that was interrupted while asking goes on with its own.
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
            made = sums()
            with _ending_if_it_fails(ledger, file):
                ledger.begin(plan.event(), plan.adjacency, plan.unit)
                plain = {"state": _ASKING, "facts": facts, "run": ledger.run, "streams": streams.state()}
                file.write(Saved({"sums": _total(made)}, plain))
        else:
            require_same_run(saved, facts)
            ledger.resume(saved.plain["run"], plan.event(), plan.adjacency, plan.unit)
            if saved.plain["state"] == _ANSWERED:
                ledger.charge(plan.event(), plan.adjacency)
                ledger.settle()
                return _taken_up(saved)
            made, streams = empty(plan, reducer), Streams.at(saved.plain["streams"])
            _total(made).copy_(saved.tensors["sums"])
        targets, answered, scores = ask(plan, made, reducer, ledger, streams)
        found = Released(targets, answered, scores, streams.seeded, streams.noise.discrete)
        file.write(_answered(found, facts, ledger.run))
        ledger.settle()
        return found


def _answered(found: Released, facts: dict[str, str], run: str | None) -> Saved:
    """What is kept of answers: what was released, and which run it was."""
    tensors = {"targets": found.targets, "answered": found.answered}
    tensors |= {} if found.scores is None else {"scores": found.scores}
    plain: dict[str, Any] = {"state": _ANSWERED, "facts": facts, "run": run}
    return Saved(tensors, plain | {"seeded": found.seeded, "discrete": found.discrete})


def _taken_up(saved: Saved) -> Released:
    """What `_answered` took down."""
    tensors, plain = saved.tensors, saved.plain
    scores = tensors.get("scores")
    return Released(tensors["targets"], tensors["answered"], scores, plain["seeded"], plain["discrete"])


def _total(sums: CodeSums | VoteCounts) -> Tensor:
    return sums.sums if isinstance(sums, CodeSums) else sums.counts


@contextmanager
def _ending_if_it_fails(ledger: Ledger, file: Checkpoint) -> Iterator[None]:
    """A block before anything is drawn, whose failure gives back what was set aside."""
    try:
        yield
    except BaseException:
        ledger.settle()
        file.delete()
        raise
