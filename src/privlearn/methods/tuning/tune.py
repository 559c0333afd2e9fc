"""Private parameter selection: train several candidates, publish one, and drop the others.

The whole is charged before the first candidate sees a row. Each candidate then runs on a ledger of
its own that takes exactly what was charged for it. Scores, error counts, losing models and the
number of runs are kept in local variables only.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, final

import torch
from torch import UntypedStorage, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from privlearn._checks import checked, count
from privlearn._display import shortened
from privlearn.core import sampling
from privlearn.core.accounting.events import Composed
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.mechanisms import selection as selection_module
from privlearn.core.mechanisms.release import release
from privlearn.core.mechanisms.selection import select
from privlearn.core.processes import require_one_process
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.data.torch_rows import rows_of
from privlearn.errors import (
    AdjacencyMismatch,
    BadInput,
    BudgetExceeded,
    PrivlearnError,
    SampleReused,
    UnsupportedEvent,
)
from privlearn.methods.tuning.blocks import Blocks
from privlearn.methods.tuning.stopping import Candidate, RandomStopping
from privlearn.methods.tuning.sums import require_targets, total_gain, total_losses
from privlearn.runs.given import require_rows_once, require_same_examples
from privlearn.runs.optimizers import remember
from privlearn.runs.result import Result
from privlearn.runs.session import Session
from privlearn.runs.workers import at_once, processes

#: Trains one candidate by its `plan` on the rows that it is given, on the ledger and the random
#: streams that it is given.
Train = Callable[[Candidate, Dataset, Ledger, Streams], Result]

_Task = tuple[Candidate, Dataset, Streams]
#: What `_Trainer` has seen in a process that trains candidates for another one.
_SEEN: weakref.WeakSet[nn.Module | UntypedStorage] = weakref.WeakSet()
#: What says that a training callable departs from its plan, not that a training went badly.
_DEPARTURES = (BudgetExceeded, AdjacencyMismatch, UnsupportedEvent, SampleReused)


@checked
def tune(
    plan: Blocks | RandomStopping,
    train: Train,
    dataset: Dataset | tuple[Any, Any] | TorchDataset[Any],
    *,
    ledger: Ledger | None = None,
    streams: Streams | None = None,
    progress: Callable[[int, int], None] | None = None,
    jobs: int | None = 1,
) -> Result:
    """Choose one of the plan's candidates, and return it trained.

    Guarantee: which candidate was chosen and its model are together `plan.guarantee(delta)`-DP, for
    the plan's adjacency and unit, if each call of `train` is what its candidate's plan says:
    private training that charges each release to the ledger that it is given. The caller's ledger
    is charged exactly `plan.event()`. How long it took is not covered: with random stopping that
    tells how many runs there were, which must stay secret.

    A candidate that raises after it has spent something counts as the worst there is, silently:
    that its training failed (its weights became infinite, say) is covered by what was charged, as
    long as it follows from what was released. What it raises before it spends anything is raised to
    the data's curator, as in `dpsgd`. The whole stays charged either way.

    Args:
        plan: the candidates, and how to choose.
        train: called as train(candidate, dataset, ledger, streams); returns a `Result` on that
            ledger, of a new model. What it does must follow from its arguments alone, never from
            earlier calls. `candidate.plan` is the plan to train by, its noise and its number of
            examples settled. A model, module or trained parameter of an earlier call is refused.
            What can't be seen is the callable's own word: copies of earlier weights, an optimizer's
            state, models of calls that failed or that were trained beside the one that is returned.
        dataset: as for `dpsgd`, with classes as targets, or numbers with `target_bounds`; no
            loaders.
        ledger: what to charge; by default a new one with the plan's budget.
        streams: the random streams; by default new ones, seeded by the operating system.
        progress: called with (candidates trained, candidates in all) for `Blocks`; never for
            `RandomStopping`.
        jobs: candidates that are trained at once, in processes of joblib's; -1: one for each
            processor; None: as many as `joblib.parallel_config` says. The result is the same, bit
            for bit, if `train` follows from its arguments. It is then pickled, with what it refers
            to; private rows and models go to other processes.

    Returns:
        The chosen candidate's result on `ledger`, with this plan. `facts["tuning"]["chosen"]` is
        the candidate's place in the list.

    Raises:
        BudgetExceeded: the plan does not fit the ledger's budget; before any data is touched.
        BadInput: data that can't be used; or the chosen run failed, or there was none: then nothing
            is left to publish, and what was charged stays charged.
        PrivlearnError: a training callable that departs from its plan or its ledger.
        ProcessLost: a process that trained a candidate was killed; what was charged stays charged.
    """
    require_one_process("a choice among candidates")
    if not isinstance(plan, Blocks | RandomStopping):
        raise BadInput(
            f"plan is {shortened(repr(plan), 60)}: expected pv.tuning.Blocks(...) or "
            "pv.tuning.RandomStopping(...)"
        )
    if jobs is not None and jobs != -1:
        count("jobs", jobs)
    several = processes(jobs, "candidates")
    session = Session(plan, ledger, streams)
    data = _rows(dataset)
    require_rows_once(plan, dataset, data)
    require_same_examples(plan.candidates[0].plan, data)
    require_targets(data, plan.metric)
    trainer = _Trainer(train, jobs, several)
    declared = getattr(plan.candidates[0].plan, "examples", None)
    session.count_examples(data.examples, data, declared)
    with session.charging():
        if isinstance(plan, Blocks):
            result, chosen = _on_blocks(plan, trainer, data, session, progress)
        else:
            result, chosen = _by_random_stopping(plan, trainer, data, session)
    facts = {**result.facts, "tuning": _describe_choice(plan, chosen, data)}
    return replace(
        result, ledger=session.ledger, plan=plan, facts=facts, seeded=session.streams.seeded
    )


def _on_blocks(
    plan: Blocks,
    trainer: _Trainer,
    data: Dataset,
    session: Session,
    progress: Callable[[int, int], None] | None,
) -> tuple[Result, int]:
    """Train each candidate on its block, and draw one by its errors on the last block."""
    ledger, streams = session.ledger, session.streams
    ledger.charge(plan.choosing(), plan.neighbours)  # the whole, before anything is drawn
    blocks = len(plan.candidates) + 1
    *training_blocks, held_out = data.blocks(
        sampling.assign(data.examples, blocks, streams.sampling), blocks
    )
    results: list[Result | None] = []
    tasks = (
        (plan.for_block(candidate, data.examples), rows, streams.part())
        for candidate, rows in zip(plan.candidates, training_blocks, strict=True)
    )
    for result in trainer.attempts(tasks):
        results.append(result)
        if progress:
            progress(len(results), len(training_blocks))
    scores = total_losses(
        [result and result.model for result in results], held_out, plan.neighbours, plan.metric
    )
    selection = plan.selection()
    paid = Ledger.allowing(selection, plan.neighbours, plan.unit)
    chosen = select(scores, epsilon=selection.epsilon, ledger=paid, stream=streams.noise)
    if not plan.retrain:
        return _require_result(results[chosen]), chosen
    del results, scores
    ledger.charge(plan.again(), plan.neighbours)
    return trainer.run(
        plan.for_all(plan.candidates[chosen], data.examples), data, streams.part()
    ), chosen


def _by_random_stopping(
    plan: RandomStopping, trainer: _Trainer, data: Dataset, session: Session
) -> tuple[Result, int]:
    """Train candidates that are drawn at random, a random number of times, and keep the best."""
    repeated, streams = plan.repeated(), session.streams
    session.ledger.charge(repeated, plan.neighbours)  # the whole, before anything is drawn
    best: tuple[float, Result | None, int] = (-math.inf, None, 0)
    # of each run its candidate, and what its score's noise is drawn from
    drawn: list[tuple[int, Streams]] = []

    def tasks() -> Iterator[_Task]:
        for _ in range(selection_module.draw_repetitions(repeated, streams.noise)):
            which = int(sampling.assign(1, len(plan.candidates), streams.sampling)[0])
            drawn.append((which, streams.part()))
            yield plan.candidates[which], data, streams.part()

    for number, result in enumerate(trainer.attempts(tasks())):
        which, score_streams = drawn[number]
        if result is not None:
            score = _score(plan, result, data, score_streams)
            best = max(best, (score, result, which), key=lambda run: run[0])
    return _require_result(best[1]), best[2]


def _score(plan: RandomStopping, result: Result, data: Dataset, streams: Streams) -> float:
    """How good a run's model is by the plan's metric, released on a ledger that takes that one
    release.
    """
    assert plan.score_noise is not None
    (everybody,) = sampling.FullBatch().draw(data.examples)
    counted = total_gain(result.model, data, everybody, plan.neighbours, plan.metric)
    paid = Ledger.allowing(Gaussian(plan.score_noise), plan.neighbours, plan.unit)
    ((noisy,),) = release(
        counted, noise_multiplier=plan.score_noise, ledger=paid, stream=streams.noise
    )
    return float(noisy)


@final
class _Trainer:
    """Calls a training callable, and holds it to what was charged.

    Args:
        train: what is called.
        jobs: as of `tune`.
        several: how many at once that is.
    """

    def __init__(self, train: Train, jobs: int | None = 1, several: int = 1) -> None:
        self._train, self._jobs, self._several = train, jobs, several
        # Modules, and the memory of parameters that were trained: weakly, so that losing models are
        # dropped.
        self._seen: weakref.WeakSet[nn.Module | UntypedStorage] = weakref.WeakSet()

    def attempts(self, tasks: Iterable[_Task]) -> Iterator[Result | None]:
        """What training makes of each candidate, in their order; no more are held than are trained
        at once.
        """
        left = iter(tasks)
        while some := list(islice(left, self._several)):
            if self._several == 1:
                yield self.attempt(*some[0])
            else:
                known = [
                    (self._train, candidate, rows, streams.state())
                    for candidate, rows, streams in some
                ]
                results = at_once(self._jobs, _attempt_elsewhere, known)
                yield from (
                    result and _take_result(task[0], result)
                    for task, result in zip(some, results, strict=True)
                )

    def attempt(self, candidate: Candidate, rows: Dataset, streams: Streams) -> Result | None:
        """What training makes of `candidate`; None if it failed on the way."""
        ledger = Ledger.allowing(
            candidate.plan.event(), candidate.plan.neighbours, candidate.plan.unit
        )
        try:
            result = self._call(candidate, rows, ledger, streams)
        except _DEPARTURES:
            raise
        except Exception:
            if ledger.event == Composed(()):
                raise  # a refusal, before anything was spent
            return None
        return self._require_plan(candidate, result, ledger)

    def run(self, candidate: Candidate, rows: Dataset, streams: Streams) -> Result:
        """What training makes of the chosen candidate; whatever is raised is raised."""
        ledger = Ledger.allowing(
            candidate.plan.event(), candidate.plan.neighbours, candidate.plan.unit
        )
        return self._require_plan(candidate, self._call(candidate, rows, ledger, streams), ledger)

    def _call(
        self, candidate: Candidate, rows: Dataset, ledger: Ledger, streams: Streams
    ) -> Result:
        """What `train` returns; PyTorch's generator, of which its models may be made, starts at a
        seed of the run's.
        """
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(streams.initialisation.integers(2**63)))
            return self._train(candidate, rows, ledger, streams)

    def _require_plan(self, candidate: Candidate, result: Result, ledger: Ledger) -> Result:
        """`result`, if it was trained on its own ledger, by its plan, and from a model of its
        own.
        """
        if not isinstance(result, Result):
            raise BadInput(
                f"the training callable returned a {type(result).__name__}: expected a Result, as "
                "from dpsgd"
            )
        if result.ledger is not ledger or ledger.event != candidate.plan.event():
            raise PrivlearnError(
                f"the training of candidate {candidate.name!r} did not charge its ledger what its "
                "plan says: expected a result on the ledger that the training callable was given, "
                "charged exactly candidate.plan.event()",
                expected=candidate.plan.event(),
                charged=ledger.event,
            )
        parameters = [
            parameter
            for parameter in result.model.parameters()
            if parameter.layout is torch.strided
        ]
        parts = [
            *result.model.modules(),
            *(parameter.untyped_storage() for parameter in parameters),
        ]
        if any(part in self._seen for part in parts):
            raise PrivlearnError(
                f"the training of candidate {candidate.name!r} went on with a model that was "
                "trained before, or with its parameters: then what is published would depend on "
                "runs that were not chosen. Make a new model in each call of the training "
                "callable"
            )
        self._seen.update(result.model.modules())
        self._seen.update(
            parameter.untyped_storage() for parameter in parameters if parameter.requires_grad
        )
        return result


def _attempt_elsewhere(
    train: Train, candidate: Candidate, rows: Dataset, state: dict[str, Any]
) -> Result | None:
    """`_Trainer.attempt`, in another process, which has no other use for these streams."""
    trainer = _Trainer(train)
    trainer._seen = _SEEN
    result = trainer.attempt(candidate, rows, Streams.at(state))
    gone: Any = None  # a copy of the ledger would spend the same budget again
    return result and replace(result, ledger=gone)


def _take_result(candidate: Candidate, result: Result) -> Result:
    """A result of another process, on a ledger that was charged what it was charged there."""
    plan = candidate.plan
    ledger = Ledger.allowing(plan.event(), plan.neighbours, plan.unit)
    ledger.charge(plan.event(), plan.neighbours)
    remember(
        [parameter for parameter in result.model.parameters() if parameter.requires_grad], ledger
    )
    return replace(result, ledger=ledger)


def _require_result(result: Result | None) -> Result:
    if result is None:
        raise BadInput(
            "no model came out of it: the training that was chosen failed on the way (a learning "
            "rate that is too large, for example), or random stopping made no run at all. What was "
            "charged stays charged. Choose tamer candidates"
        )
    return result


def _rows(dataset: Any) -> Dataset:
    if isinstance(dataset, DataLoader):
        raise BadInput(
            "a DataLoader can't be divided among candidates: give loader.dataset, and a sampling "
            "in each plan"
        )
    return rows_of(dataset) if isinstance(dataset, TorchDataset) else Dataset.of(dataset)


def _describe_choice(plan: Blocks | RandomStopping, chosen: int, data: Dataset) -> dict[str, Any]:
    """What is stated of the choice. On blocks a training's number of examples follows from that of
    all.
    """
    return {"chosen": chosen} | (
        {"examples": plan.examples or data.examples} if isinstance(plan, Blocks) else {}
    )
