"""Private parameter selection: train several candidates, publish one, and drop the others.

The whole is charged before the first candidate sees a row. Each candidate then runs on a ledger of its own that takes
exactly what was charged for it. Scores, error counts, losing models and the number of runs are kept in local variables
only.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

import torch
from torch import UntypedStorage, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from privlearn import sampling
from privlearn._display import shortened
from privlearn.accounting.events import Composed
from privlearn.accounting.ledger import Ledger
from privlearn.accounting.mechanisms import Gaussian
from privlearn.data.dataset import Dataset
from privlearn.data.torch_rows import rows_of
from privlearn.errors import AdjacencyMismatch, BadInput, BudgetExceeded, PrivlearnError, SampleReused, UnsupportedEvent
from privlearn.mechanisms import selection as selection_module
from privlearn.mechanisms.release import release
from privlearn.mechanisms.selection import select
from privlearn.runs.given import require_same_examples
from privlearn.runs.result import Result
from privlearn.runs.session import Session
from privlearn.streams import Streams
from privlearn.tuning.blocks import Blocks
from privlearn.tuning.stopping import Candidate, RandomStopping
from privlearn.tuning.sums import require_targets, total_gain, total_losses
from privlearn.world import require_one_process

#: Trains one candidate by its `plan` on the rows that it is given, on the ledger and the random streams that it is
#: given.
Train = Callable[[Candidate, Dataset, Ledger, Streams], Result]

#: What says that a training callable departs from its plan, not that a training went badly.
_DEPARTURES = (BudgetExceeded, AdjacencyMismatch, UnsupportedEvent, SampleReused)


def tune(
    plan: Blocks | RandomStopping,
    train: Train,
    dataset: Dataset | tuple[Any, Any] | TorchDataset[Any],
    *,
    ledger: Ledger | None = None,
    streams: Streams | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Choose one of the plan's candidates, and return it trained.

    Guarantee: which candidate was chosen and its model are together `plan.guarantee(delta)`-DP, for the plan's
    adjacency and unit, if each call of `train` is what its candidate's plan says: private training that charges each
    release to the ledger that it is given. The caller's ledger is charged exactly `plan.event()`. How long it took is
    not covered: with random stopping that tells how many runs there were, which must stay secret.

    A candidate that raises after it has spent something counts as the worst there is, silently: that its training
    failed (its weights became infinite, say) is covered by what was charged, as long as it follows from what was
    released. What it raises before it spends anything is raised to the data's curator, as in `dpsgd`. The whole stays
    charged either way.

    Args:
        plan: the candidates, and how to choose.
        train: called as train(candidate, dataset, ledger, streams); returns a `Result` on that ledger, of a new model.
            What it does must follow from its arguments alone, never from earlier calls. `candidate.plan` is the plan to
            train by, its noise and its number of examples settled. A model, module or trained parameter of an earlier
            call is refused. What can't be seen is the callable's own word: copies of earlier weights, an optimizer's
            state, models of calls that failed or that were trained beside the one that is returned.
        dataset: as for `dpsgd`, with classes as targets, or numbers with `target_bounds`; no loaders.
        ledger: what to charge; by default a new one with the plan's budget.
        streams: the random streams; by default new ones, seeded by the operating system.
        progress: called with (candidates trained, candidates in all) for `Blocks`; never for `RandomStopping`.

    Returns:
        The chosen candidate's result on `ledger`, with this plan. `facts["tuning"]["chosen"]` is the candidate's place
        in the list.

    Raises:
        BudgetExceeded: the plan does not fit the ledger's budget; before any data is touched.
        BadInput: data that can't be used; or the chosen run failed, or there was none: then nothing is left to publish,
            and what was charged stays charged.
        PrivlearnError: a training callable that departs from its plan or its ledger.
    """
    require_one_process("a choice among candidates")
    if not isinstance(plan, Blocks | RandomStopping):
        raise BadInput(
            f"plan is {shortened(repr(plan), 60)}: expected pv.tuning.Blocks(...) or pv.tuning.RandomStopping(...)"
        )
    session = Session(plan, ledger, streams)
    data = _rows(dataset)
    require_same_examples(plan.candidates[0].plan, data)
    require_targets(data, plan.metric)
    trainer = _Trainer(train, session.streams)
    with session.charging():
        if isinstance(plan, Blocks):
            result, chosen = _on_blocks(plan, trainer, data, session, progress)
        else:
            result, chosen = _by_random_stopping(plan, trainer, data, session)
    stated = {**result.facts, "tuning": _tuning(plan, chosen, data)}
    return replace(result, ledger=session.ledger, plan=plan, facts=stated, seeded=session.streams.seeded)


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
    *own, held_out = data.blocks(sampling.assign(data.examples, blocks, streams.sampling), blocks)
    results: list[Result | None] = []
    for candidate, rows in zip(plan.candidates, own, strict=True):
        results.append(trainer.attempt(plan.for_block(candidate, data.examples), rows))
        if progress:
            progress(len(results), len(own))
    scores = total_losses([result and result.model for result in results], held_out, plan.neighbours, plan.metric)
    selection = plan.selection()
    paid = Ledger.allowing(selection, plan.neighbours, plan.unit)
    chosen = select(scores, epsilon=selection.epsilon, ledger=paid, stream=streams.noise)
    if not plan.retrain:
        return _finished(results[chosen]), chosen
    del results, scores
    ledger.charge(plan.again(), plan.neighbours)
    return trainer.run(plan.for_all(plan.candidates[chosen], data.examples), data), chosen


def _by_random_stopping(plan: RandomStopping, trainer: _Trainer, data: Dataset, session: Session) -> tuple[Result, int]:
    """Train candidates that are drawn at random, a random number of times, and keep the best."""
    repeated, streams = plan.repeated(), session.streams
    session.ledger.charge(repeated, plan.neighbours)  # the whole, before anything is drawn
    best: tuple[float, Result | None, int] = (-math.inf, None, 0)
    for _ in range(selection_module.draw_repetitions(repeated, streams.noise)):
        which = int(sampling.assign(1, len(plan.candidates), streams.sampling)[0])
        result = trainer.attempt(plan.candidates[which], data)
        if result is not None:
            score = _score(plan, result, data, streams)
            best = max(best, (score, result, which), key=lambda run: run[0])
    return _finished(best[1]), best[2]


def _score(plan: RandomStopping, result: Result, data: Dataset, streams: Streams) -> float:
    """How good a run's model is by the plan's metric, released on a ledger that takes that one release."""
    assert plan.score_noise is not None
    (everybody,) = sampling.FullBatch().draw(data.examples)
    counted = total_gain(result.model, data, everybody, plan.neighbours, plan.metric)
    paid = Ledger.allowing(Gaussian(plan.score_noise), plan.neighbours, plan.unit)
    ((noisy,),) = release(counted, noise_multiplier=plan.score_noise, ledger=paid, stream=streams.noise)
    return float(noisy)


@final
class _Trainer:
    """Calls a training callable, and holds it to what was charged.

    Args:
        train: what is called.
        streams: the run's random streams.
    """

    def __init__(self, train: Train, streams: Streams) -> None:
        self._train, self._streams = train, streams
        # Modules, and the memory of parameters that were trained: weakly, so that losing models are dropped.
        self._seen: weakref.WeakSet[nn.Module | UntypedStorage] = weakref.WeakSet()

    def attempt(self, candidate: Candidate, rows: Dataset) -> Result | None:
        """What training makes of `candidate`; None if it failed on the way."""
        own = Ledger.allowing(candidate.plan.event(), candidate.plan.neighbours, candidate.plan.unit)
        try:
            result = self._train(candidate, rows, own, self._streams)
        except _DEPARTURES:
            raise
        except Exception:
            if own.event == Composed(()):
                raise  # a refusal, before anything was spent
            return None
        return self._held_to_its_plan(candidate, result, own)

    def run(self, candidate: Candidate, rows: Dataset) -> Result:
        """What training makes of the chosen candidate; whatever is raised is raised."""
        own = Ledger.allowing(candidate.plan.event(), candidate.plan.neighbours, candidate.plan.unit)
        return self._held_to_its_plan(candidate, self._train(candidate, rows, own, self._streams), own)

    def _held_to_its_plan(self, candidate: Candidate, result: Result, own: Ledger) -> Result:
        """`result`, if it was trained on its own ledger, by its plan, and from a model of its own."""
        if not isinstance(result, Result):
            raise BadInput(
                f"the training callable returned a {type(result).__name__}: expected a Result, as from dpsgd"
            )
        if result.ledger is not own or own.event != candidate.plan.event():
            raise PrivlearnError(
                f"the training of candidate {candidate.name!r} did not charge its ledger what its plan says: expected "
                "a result on the ledger that the training callable was given, charged exactly candidate.plan.event()",
                expected=candidate.plan.event(),
                charged=own.event,
            )
        parameters = [parameter for parameter in result.model.parameters() if parameter.layout is torch.strided]
        parts = [*result.model.modules(), *(parameter.untyped_storage() for parameter in parameters)]
        if any(part in self._seen for part in parts):
            raise PrivlearnError(
                f"the training of candidate {candidate.name!r} went on with a model that was trained before, or with "
                "its parameters: then what is published would depend on runs that were not chosen. Make a new model in "
                "each call of the training callable"
            )
        self._seen.update(result.model.modules())
        self._seen.update(parameter.untyped_storage() for parameter in parameters if parameter.requires_grad)
        return result


def _finished(result: Result | None) -> Result:
    if result is None:
        raise BadInput(
            "no model came out of it: the training that was chosen failed on the way (a learning rate that is too "
            "large, for example), or random stopping made no run at all. What was charged stays charged. Choose tamer "
            "candidates"
        )
    return result


def _rows(given: Any) -> Dataset:
    if isinstance(given, DataLoader):
        raise BadInput(
            "a DataLoader can't be divided among candidates: give loader.dataset, and a sampling in each plan"
        )
    return rows_of(given) if isinstance(given, TorchDataset) else Dataset.of(given)


def _tuning(plan: Blocks | RandomStopping, chosen: int, data: Dataset) -> dict[str, Any]:
    """What is stated of the choice. On blocks a training's number of examples follows from that of all."""
    return {"chosen": chosen} | ({"examples": plan.examples or data.examples} if isinstance(plan, Blocks) else {})
