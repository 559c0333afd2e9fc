"""This file sets the optimizer's learning rates over a run, and lets nothing but the run step."""

from __future__ import annotations

import hashlib
import json
import warnings
import weakref
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.weak import WeakTensorKeyDictionary

from privlearn._figures import COMPARED, FigureUse, PrivateFigure, watch_figures
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping.sharded.models import is_shard
from privlearn.core.clipping.trained_state import versions
from privlearn.core.schedules import Constant, Schedule
from privlearn.errors import BadInput, PrivacyWarning, TrainingWarning, warn
from privlearn.runs.session import TrainingSession
from privlearn.runs.traced_settings import SettingsTrace


@final
class RateSchedule:
    """An optimizer's learning rates as they were, multiplied by a schedule's value over its value
    at epoch 0.

    Attributes:
        first: the rate of its first parameters at epoch 0.
    """

    def __init__(self, descent: torch.optim.Optimizer, schedule: Schedule) -> None:
        self._descent, self._schedule = descent, schedule
        self._rates = [group["lr"] for group in descent.param_groups]
        self.first = self._rates[0]

    def at(self, epoch: float) -> None:
        """Set those of `epoch`, counted from 0, with the part of it that is over.

        A constant schedule leaves them alone: they may be a scheduler's of the caller's.
        """
        if isinstance(self._schedule, Constant):
            return
        factor = self._schedule(epoch) / self._schedule(0)
        for group, rate in zip(self._descent.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor


@final
class Descent:
    """An optimizer under a private run: nothing but its steps may change the parameters.

    A step of the optimizer on gradients from elsewhere is refused until the run is over. A change
    of parameters after a step (in place, but not by `.data`), and parameters that another run
    trained before, are warned of and kept with the session: nothing is claimed for such a model.
    Where the run has a checkpoint, a step that is repeated after an interruption, with the same
    noise, has to have the same settings of the optimizer (`repeats`).

    Private figures must not steer it. Nothing is claimed where one goes into the optimizer, a
    scheduler or a step. Nor is anything claimed where a setting of the optimizer is not known to
    follow from public numbers alone (`traced_settings`), nor for a run that is left early once a
    figure was compared, or became a plain number that is not followed.

    Args:
        optimizer: of the parameters.
        schedule: of its learning rates.
        parameters: what is trained.
        session: of the run.

    Attributes:
        schedule: of its learning rates.
        optimizer: itself, or the one inside one that Accelerate prepared.
        refusal: what is said of any step that is not the run's; empty: of those on gradients.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        parameters: Sequence[nn.Parameter],
        session: TrainingSession,
    ) -> None:
        self._optimizer, self._parameters, self._session = optimizer, list(parameters), session
        self.schedule, self._rates = schedule, RateSchedule(optimizer, schedule)
        self.first = self._rates.first
        self._versions: list[int] | None = None
        self._stepping = False
        self._sums: Sequence[Tensor] = ()  # of the step under way
        self._values: list[Any] = []  # of the settings, when a step began
        self.trace = SettingsTrace(optimizer, lambda: (session.steps_done, session.epoch_steps))
        self._places: set[str] = set()  # of uses that were warned of
        self.refusal = ""
        watch_figures(self)
        self._look_for_earlier_runs()
        self.optimizer: Any = getattr(optimizer, "optimizer", optimizer)
        inner = self.optimizer
        self._aware: Any = inner if hasattr(inner, "before_gradients") else None
        self._tell("require_known_noise", session.plan)
        if isinstance(inner, torch.optim.Optimizer):
            if not hasattr(inner, _RUN):
                inner.register_step_pre_hook(_refuse_foreign_gradients)
            setattr(inner, _RUN, self)

    def _look_for_earlier_runs(self) -> None:
        if self._session.saved or self._session.world.rank:
            return  # the weights are those of the checkpoint
        ledger = self._session.ledger
        earlier = [_TRAINED[parameter] for parameter in self._parameters if parameter in _TRAINED]
        if any(other() is not ledger for other in earlier) or (earlier and ledger.budget is None):
            self._session.claim_nothing(
                "the model was trained on private rows by an earlier run, which this one does not "
                "count: begin from fresh weights, or give both runs one ledger with a limit, "
                "ledger=pv.Ledger(pv.Budget(E, D))"
            )
        elif (
            _LOADED
            and not ledger.event.events
            and any(_of_values(weight) in _LOADED for weight in self._parameters)
        ):
            warnings.warn(
                "the weights are those of a published model, or of an earlier run, and the ledger "
                "holds no earlier run: if that model was trained on these rows, too, the two runs "
                "add up, and neither certificate says so. Give both one ledger, or begin from "
                "fresh weights; if its rows were others, there is nothing to do",
                PrivacyWarning,
                stacklevel=4,
            )

    @contextmanager
    def step(self, sums: Sequence[Tensor]) -> Iterator[None]:
        """A block in which `sums` get their noise, and are the gradients from `hand_over` on: no
        code of the caller's, nor an optimizer's, finds them there before that, or afterwards.
        """
        if self._versions is None:
            remember(self._parameters, self._session.ledger)
        self.look()
        self._look_at_settings()
        self._session.compare(self._parameters)
        self._values = _values(self._optimizer)
        self._session.repeats.take(_settings(self._optimizer))
        self._sums, self._stepping = sums, True
        try:
            self._tell("before_gradients")
            with self.trace.in_a_step():
                yield
        except RuntimeError as error:
            from privlearn.runs.overlong_steps import end_run  # only for an error

            end_run(error, self._session)
            raise
        finally:
            self._sums, self._stepping = (), False
            for parameter in self._parameters:
                parameter.grad = None
            self._session.repeats.take("")  # a release after a step has no settings
            self._tell("after_gradients")
            self.seen()
            if self.trace.denied_in_a_step:
                self._session.claim_nothing(self.trace.denied_in_a_step)

    def hand_over(self, deviation: float) -> None:
        """Let the sums be the gradients: each number has noise of this standard deviation."""
        for parameter, total in zip(self._parameters, self._sums, strict=True):
            parameter.grad = total
        self._tell("expect_noise", deviation)

    def _tell(self, what: str, *values: Any) -> None:
        """Call this method of an optimizer of `privlearn.optim`; others have none."""
        if self._aware is not None:
            getattr(self._aware, what)(*values)

    def at(self, epochs: float) -> None:
        """Set the learning rates for a moment of the run, in the midst of a step."""
        now = _values(self._optimizer)
        if [*map(id, now)] != [*map(id, self._values)]:
            self._session.claim_nothing(
                "the optimizer's settings were changed while a step's gradients were computed, "
                "where private rows are at hand: let a scheduler step between two steps"
            )
        self._rates.at(epochs)

    def seen(self) -> None:
        """The parameters are as the run made them."""
        self._versions = versions(self._parameters)

    def look(self) -> None:
        """Warn, and claim nothing, if something else than the run has changed the parameters since
        it made them.
        """
        if self._versions not in (None, versions(self._parameters)):
            self._session.claim_nothing(
                "weights were changed after a step, by something else than the run. It publishes "
                "those after its last step. For those of an earlier epoch, leave the loop there; "
                "for an average give average=0.5 (keep(ema=ema) saves your own, beside the model)"
            )

    @property
    def under_way(self) -> bool:
        """Whether private figures can steer the run."""
        return self._session.state == "under way"

    def figure_used(self, use: FigureUse, *, warn: bool) -> bool:
        """A private figure was compared, or became a plain number. Each place of a script is warned
        of once.
        """
        session = self._session
        if self._stepping or isinstance(use.by, torch.optim.Optimizer | LRScheduler):
            into = "a step" if self._stepping else type(use.by).__name__
            return session.claim_nothing(f"{use}, in {into}: {_STEERED}", warn=warn)
        if not session.figure_use:
            session.note_figure_use(str(use))
        if use.silent or use.place in self._places:
            return False
        self._places.add(use.place)
        if warn:
            advice = (
                "Compare metrics of public rows"
                if use.what == COMPARED
                else "Print or average it as it is"
            )
            warnings.warn(
                f"{use}, and is not followed from there. Nothing will be claimed if the run is "
                f"left early, or if a scheduler is given a number after it. {advice}",
                PrivacyWarning,
                stacklevel=6,
            )
        return warn

    def _look_at_settings(self) -> None:
        """Claim nothing for settings that are private figures, or are not known to be public."""
        if any(isinstance(value, PrivateFigure) for value in _values(self._optimizer)):
            self._session.claim_nothing(
                f"a setting of the optimizer is a private figure: {_STEERED}"
            )
        use = self._session.figure_use
        if denial := self.trace.denial(clean=not use):
            self._session.claim_nothing(f"{use}, and then {denial}" if use else denial)
        for kind in self.trace.restarted():
            warn(
                f"a {kind} counts from its beginning, though the run goes on at step "
                f"{self._session.steps_done}: its rates are not those that the run would have had. "
                "Give it to the run's keep(...) before the first batch, in the first run, too",
                TrainingWarning,
            )
        self._session.note_declared_rates(self.trace.reasons)

    def state_dict(self) -> dict[str, Any]:
        """That of the optimizer, for a checkpoint."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Let the optimizer go on from a state."""
        self._optimizer.load_state_dict(state)
        self.trace.watch()

    def refuse_foreign_gradients(self) -> None:
        """Raise `BadInput` for a step that is not the run's, on gradients without clipping and
        noise.
        """
        if self._stepping or self._session.state == "over":
            return
        if self.refusal:
            raise BadInput(self.refusal)
        if any(parameter.grad is not None for parameter in self._parameters):
            raise BadInput(
                "optimizer.step() was called beside the private step, on gradients that were not "
                "clipped and have no noise: take steps by what the call that made training private "
                "returned, and leave out backward() and optimizer.step() of your own"
            )


#: What to do where a private figure steers.
_STEERED = (
    "later steps follow from private rows. Give it a metric of public rows, or use "
    "learning_rate_schedule= in its place"
)
#: Of each parameter that a private run trained the ledger that was charged.
_TRAINED: MutableMapping[Tensor, weakref.ref[Ledger]] = WeakTensorKeyDictionary()
#: Digests of the parameters of published models that were loaded here, and of those that runs
#: ended with, by which copies are recognised, too.
_LOADED: set[bytes] = set()
#: Where an optimizer holds the private run that it serves.
_RUN = "_privlearn_run"


def remember(parameters: Iterable[Tensor], ledger: Ledger) -> None:
    """A private run that this ledger was charged for trained these, here or in another process."""
    _TRAINED.update(dict.fromkeys(parameters, weakref.ref(ledger)))


def remember_released(weights: Iterable[Tensor]) -> None:
    """A private run released these: what trains them further, or a copy, is warned of where its
    ledger has no earlier run.
    """
    # Of one value throughout are those of fresh layers, too: norms, biases.
    _LOADED.update(
        _of_values(weight)
        for weight in weights
        if weight.numel() and not is_shard(weight) and bool((weight != weight.reshape(-1)[0]).any())
    )


def _of_values(parameter: Tensor) -> bytes:
    if is_shard(parameter):
        return b""
    values = parameter.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return hashlib.blake2b(values.numpy().tobytes(), digest_size=16).digest()


def _refuse_foreign_gradients(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    getattr(optimizer, _RUN).refuse_foreign_gradients()


def _values(optimizer: torch.optim.Optimizer) -> list[Any]:
    """The settings of an optimizer's groups, one after the other."""
    groups = optimizer.param_groups
    return [value for group in groups for name, value in group.items() if name != "params"]


def _settings(optimizer: torch.optim.Optimizer) -> str:
    """The settings of an optimizer's groups, its learning rates among them, as text to compare."""
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    return json.dumps(
        groups, default=lambda value: float(value) if isinstance(value, Tensor) else str(value)
    )
