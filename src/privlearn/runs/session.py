"""A training session keeps what is charged, what is drawn, and where it stopped.

Everything that training changes is a *part* with a name, a `state_dict` and a `load_state_dict`, as
in PyTorch. A checkpoint is the state of all parts at one step. A session that is resumed charges
again what was released before, and draws the same noise for the rest: it ends bit for bit where it
would have ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, final

import torch
from torch import Tensor

from privlearn._storage import canonical
from privlearn.core.accounting.account import Account
from privlearn.core.accounting.events import Event, compose
from privlearn.core.accounting.guarantee import Adjacency, hollow
from privlearn.core.accounting.ledger import Ledger, Releases
from privlearn.core.accounting.mechanisms import Gaussian, NonPrivate
from privlearn.core.clipping.kernels import Kernels, kernels
from privlearn.core.clipping.sharded.models import is_shard
from privlearn.core.devices import (
    PROCESSOR,
    all_generator_states,
    on_processor,
    set_all_generators,
)
from privlearn.core.plan import AbstractPlan, Plan
from privlearn.core.processes import World
from privlearn.core.row_transform import RowTransform
from privlearn.core.rows import AllRows
from privlearn.core.sampling import Sample
from privlearn.core.sampling.draws import Draws
from privlearn.core.streams import NoiseStream, Places, Streams
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput, UnsoundExtension
from privlearn.errors import warn as warn_caller
from privlearn.runs.checkpoint import (
    Checkpoint,
    Saved,
    delete_shards,
    digest_of,
    flattened,
    require_same_run,
    run_of,
    whole,
)

#: Parts that say how sums are computed, or what the curator sees: sums do not follow from them.
_HOW = ("gradients", "diagnostics")
#: Steps after which processes that train together compare their parameters.
COMPARED = 20


class Part(Protocol):
    """Something that training changes."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values, nested in dictionaries and lists."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Go on from a state."""


class Notes(Protocol):
    """What a run's noise was drawn for (`runs.repeats.Repeats`)."""

    def forget(self) -> None:
        """A run begins, with keys that no other has."""

    def recall(self, *, ended: bool = False) -> None:
        """A run goes on: what was noted counts, and is all that there is where it has ended."""

    def take(self, settings: str) -> None:
        """What follows is a step with these settings of the optimizer; "": no step."""

    def see(self, stream: NoiseStream, values: Sequence[Tensor], places: Places | None) -> None:
        """Note what noise is about to be drawn for."""


def warn_of_target(
    plan: AbstractPlan | Releases, ledger: Ledger, present: int | None, declared: int | None = None
) -> None:
    """Warn of a target that promises next to nothing to an example: the plan's, or the ledger's if
    it has none.

    Args:
        plan: what will be spent.
        ledger: what is charged.
        present: how many examples there are; None: that is not known. It is not looked at where
            their number is declared, or where neighbours differ in it.
        declared: that number; None: as the plan says, if it does.
    """
    budget, declared = plan.budget or ledger.budget, declared or getattr(plan, "examples", None)
    public = None if plan.neighbours is Adjacency.ADD_REMOVE else present
    if budget is not None:
        for warning in hollow(budget.epsilon, budget.delta, declared or public):
            warn_caller(warning)


class Session:
    """The ledger and the random streams of one run of a plan of any kind.

    Args:
        plan: what will be spent, and how.
        ledger: what to charge; by default a new one with the plan's budget.
        streams: the random streams; by default new ones, seeded by the operating system.
        charged: whether releases have noise, and the plan is charged. Else `charging` marks the
            ledger as not private, by a charge that has no price: only sessions of training take
            that.
        world: the processes that share the run. The first one's ledger is charged and its streams
            are drawn from; the others have its streams, and ledgers of their own that allow nothing
            but the plan.

    Raises:
        BudgetExceeded: the plan does not fit the ledger; before any data is touched.
    """

    def __init__(
        self,
        plan: AbstractPlan | Releases,
        ledger: Ledger | None,
        streams: Streams | None,
        *,
        charged: bool = True,
        world: World = World(),  # noqa: B008 - a frozen value
    ) -> None:
        self.plan, self.charged, self._counted = plan, charged, False
        if world.rank:
            ledger = (
                Ledger.allowing(plan.event(), plan.neighbours, plan.unit) if charged else Ledger()
            )
        self.ledger = Ledger(plan.budget if charged else None) if ledger is None else ledger
        if charged:
            world.once(self._require_room, "room in the ledger")
        self.streams = streams or Streams.new()
        self._require_own_streams()
        world.align(self.streams)
        self.world = world.exact() if self.streams.noise.discrete else world

    def _require_own_streams(self) -> None:
        """Raise where the streams are of a secret that outlives the call, and this does not bind
        them.
        """
        self.streams.noise.require_bound()

    def _require_room(self) -> None:
        """Raise unless the ledger has room for the plan."""
        from privlearn.runs.given import require_neighbours  # which imports checkpoints, as this

        require_neighbours(self.plan, self.ledger)
        self.ledger.require_room(self.plan.event(), self.plan.neighbours, self.plan.unit)

    def count_examples(
        self,
        present: int | None,
        rows: AllRows | Dataset | Sequence[Any] | None,
        declared: int | None = None,
    ) -> None:
        """Say what the examples are, before anything is charged.

        Args:
            present, declared: how many there are: see `warn_of_target`.
            rows: the rows by index, or tensors and arrays with one row for each; None: they are not
                compared with those of the ledger's earlier runs.

        Raises:
            BadInput: the ledger is for other rows.
        """
        self._counted = True
        if self.charged and self.world.rank == 0:
            warn_of_target(self.plan, self.ledger, present, declared)
        if self.charged:
            self.world.once(lambda: self._require_data(rows), "the rows of the ledger")

    def _require_data(self, rows: AllRows | Dataset | Sequence[Any] | None) -> None:
        if self.ledger.path:
            from privlearn.runs.row_digests import require_rows  # for ledgers that outlive the run

            require_rows(self.ledger, rows)

    def _require_counted(self) -> None:
        assert self._counted, "a method has to call count_examples before it charges anything"

    @contextmanager
    def charging(self) -> Iterator[None]:
        """A block in which the plan may be charged. When it ends, what was not charged is given
        back.
        """
        self._require_counted()
        self.ledger.begin(self.plan.event(), self.plan.neighbours, self.plan.unit)
        try:
            yield
        finally:
            self.ledger.settle()


def charge_again(ledger: Ledger, event: Event, adjacency: Adjacency) -> None:
    """Charge a resumed run for what it released before its interruption; a ledger in a file charges
    nothing twice.
    """
    ledger.charge(event, adjacency)
    ledger.settle()


@final
class TrainingSession(Session):
    """The session of a run in many steps, which may be kept in a checkpoint.

    Args:
        plan, ledger, streams, charged, world: as of `Session`.
        checkpoint: a file to keep progress in, about once a minute. If it is there, the run in it
            is continued, and ends bit for bit where it would have ended. It is as secret as the
            data; `publish` deletes it. The first process alone reads and writes it.

    Attributes:
        saved: what the checkpoint holds of an interrupted run; None if there is none.
        origin: what was drawn from before the run began: initial weights, and which rows stand for
            whom.
        parts: all that training changes, by name, to be filled in before anything is charged.
        device: where the trained weights are; a stream whose cipher is not chosen draws for it.
        facts: what a resumed run must have in common with its checkpoint.
        code: of functions that the sums follow from, digests by name: keys that outlive the call
            follow from them, too.
        account: what releases are charged to: the ledger, or the filter of a plan that reacts.
        first: the epoch and the step that a checkpoint goes on with.
        steps_done: how many steps were released.
        complete: whether nothing is left to release.
        restored: whether the parts have the state of the checkpoint.
        left: whether a recorded run, which is taken again, was left at the state that this one is
            at.
        unclaimed: why nothing can be claimed for the model; empty if something can.
        figure_use: where a private figure first became a plain value that is not followed; empty
            where none did.
        declared_rates: why the numbers that learning rates follow are public, as a script declared
            it.

    Raises:
        BudgetExceeded: the plan does not fit the ledger; before any data is touched.
    """

    plan: Plan

    def __init__(
        self,
        plan: Plan,
        ledger: Ledger | None,
        streams: Streams | None,
        checkpoint: Checkpoint | str | Path | None,
        *,
        charged: bool = True,
        world: World = World(),  # noqa: B008 - a frozen value
    ) -> None:
        self.file = file = Checkpoint.of(checkpoint)
        self.saved = world.once(lambda: run_of(file), "the checkpoint") if file else None
        bound = file.streams() if file and not world.rank else None
        super().__init__(plan, ledger, streams or bound, charged=charged, world=world)
        if self.saved:
            self.streams = Streams.at(self.saved.plain["streams"])
        self.origin: dict[str, Any] = (
            self.saved.plain["origin"] if self.saved else self._draw_origin()
        )
        self.account: Account = self.ledger
        self.parts: dict[str, Part] = {}
        self.device = PROCESSOR
        self.facts: dict[str, str] = {}
        self.code: dict[str, str] = {}
        self._fitted: list[RowTransform] = []
        # transforms that were fitted before an interruption
        self._released: list[tuple[dict[str, Any], Any]] = []
        self.first, self._epoch, self._drawn_from = (0, 0), 0, None
        self._steps = 0  # of an epoch, once one was begun
        self._generators: list[Tensor] | None = None
        self.steps_done, self.complete, self.unclaimed, self.figure_use = 0, False, "", ""
        self.declared_rates: list[str] = []
        self.repeats, self.restored = self._notes_of(file), False
        self._open = self._stopped = self.left = False
        self._held = ExitStack()  # what is held while the run is under way
        self._draws: Draws | None = None

    def _notes_of(self, file: Checkpoint | None) -> Notes:
        """What keeps what noise was drawn for."""
        if file is None:
            return _NoNotes()
        from privlearn.runs.repeats import Repeats  # for runs that can be interrupted alone

        return Repeats(file if self.keeps else None, self.world)

    def _require_own_streams(self) -> None:
        """Streams of a secret that outlives the call are bound when the run begins, by its
        checkpoint.
        """
        if self.file is None:
            Session._require_own_streams(self)

    def _draw_origin(self) -> dict[str, Any]:
        persons = self.streams.sampling.bytes(32) if self.plan.rows_per_person else b""
        return {"initialisation": self.streams.state()["initialisation"], "persons": persons.hex()}

    def _require_room(self) -> None:
        """Raise unless the ledger has room for the plan; one in a file set it aside when an
        interrupted run began.
        """
        if not (self.saved and self.ledger.path):
            Session._require_room(self)

    @contextmanager
    def charging(self) -> Iterator[None]:
        """A block in which the plan may be charged. When it ends, what was not charged is given
        back.

        A run that is interrupted keeps its checkpoint, and what was approved for it.
        """
        self._require_counted()
        with ExitStack() as held:
            self._held = held
            if file := self.file:
                self.world.once(
                    lambda: held.enter_context(file.alone()), "the lock of the checkpoint"
                )
            if self.charged:
                self._begin()
            else:
                self.ledger.charge(
                    NonPrivate("the model was trained without noise"), self.plan.neighbours
                )
            self._open = True
            try:
                yield
            except BaseException as error:
                if (self.file is None or self._stopped) and self.charged:
                    self.ledger.settle()
                self.leave(error)
                raise
            finally:
                self._open = False
            if self.charged:
                self.ledger.settle()

    def keep_in(self, file: Checkpoint) -> None:
        """Keep a run that has begun in a file from here on: what later noise is drawn for is noted
        beside it. Nothing is written before `keep` or `keep_epochs`.

        Raises:
            BadInput: the run has not begun, or was left; another one is in the file; it has a file
                already, or several processes; or its keys outlive it.
        """
        if not self.complete:
            self.require_open()
        if self.file or self.world.size > 1 or self.streams.noise.secret is not None:
            raise BadInput(
                "a run that is under way is kept in one file, in one process, and with streams of "
                "its own: give checkpoint= when the run is made, or leave the other ones out"
            )
        if self.complete:  # nothing follows that could be noted
            with file.alone():
                self.file = file
            return
        self._held.enter_context(file.alone())
        file.path.unlink(missing_ok=True)  # of another run, whose notes go next
        self.file, self.repeats = file, self._notes_of(file)
        self.repeats.forget()
        self._watch()

    def _begin(self) -> None:
        plan, event = self.plan, self.plan.event()
        self.world.require_same(self.facts)
        if self.saved is None:
            self.streams.noise.choose("aes" if on_processor(self.device) else "chacha20")
            bound = self.world.once(self._bind, "what the keys follow from")
            if bound:
                self.world.align(self.streams)
            try:
                self.world.in_turn(
                    lambda: self.ledger.begin(event, plan.neighbours, plan.unit),
                    "the run's beginning",
                )
                if bound:  # the same keys may have been used
                    self.repeats.recall()
                else:
                    self._forget_notes()
                self._watch()
                if self._writes_shards:
                    self._save(0)
                else:
                    self.world.once(lambda: self._save(0), "the first checkpoint")
            except BaseException:
                self.abandon()
                raise
        else:
            require_same_run(self.saved, self.facts)
            run = self.saved.plain["run"] if self.world.rank == 0 else None
            self.world.in_turn(
                lambda: self.ledger.resume(run, event, plan.neighbours, plan.unit),
                "the run's resuming",
            )
            self.repeats.recall(ended=self.ledger.has_ended)
            self._restore(self.saved)
            self._watch()

    def _forget_notes(self) -> None:
        """Delete what an earlier run noted beside the checkpoint that this one begins."""
        steps = self.file.steps_noted if self.file and self.keeps else 0
        if self.file and steps and not self.ledger.path:
            warn_caller(
                f"the checkpoint {self.file.path} of an earlier run was deleted, and no ledger in "
                f"a file counts the {steps} step{'s' * (steps > 1)} that it released: this run's "
                "guarantee leaves them out. If the rows are the same, give both runs one ledger, "
                "pv.Ledger.open(path, budget)"
            )
        self.repeats.forget()

    def _bind(self) -> bool:
        """Let keys of a secret that outlives the call follow from the run, before anything is
        spent; whether it has.
        """
        lasting = self.streams.noise.secret is not None
        if lasting and self.file:
            self.file.bind(self.streams, self._collect_inputs())
        return lasting

    def _collect_inputs(self) -> dict[str, str]:
        """All that the run's sums follow from, by name: its facts, code, and the state that
        training begins with.
        """
        tensors: dict[str, Tensor] = {}
        parts = {name: part for name, part in self.parts.items() if name not in _HOW}
        plain = {name: flattened(part.state_dict(), name, tensors) for name, part in parts.items()}
        if any(map(is_shard, tensors.values())):
            raise BadInput(
                "the keys of this run outlive it, so they have to follow from its first weights, "
                "and a model under fully_shard is in no process whole: leave out the transcript, "
                "or train the whole model"
            )
        digest = hashlib.sha256(canonical([plain, list(tensors)]))
        digest.update(digest_of(*tensors.values()).encode())
        said = self.streams.describe_cipher()
        return {**self.facts, **self.code, **said, "initial state": digest.hexdigest()}

    def _watch(self) -> None:
        """From here on what noise is drawn for is noted before."""
        if self.file:
            self.streams.noise.watch = self.repeats.see

    @cached_property
    def _writes_shards(self) -> bool:
        """Whether every process writes a part of the checkpoint, that of the model which it
        keeps.
        """
        return (
            any(map(is_shard, self.parts["network"].state_dict().values()))
            if "network" in self.parts
            else False
        )

    @property
    def keeps(self) -> bool:
        """Whether this process writes the checkpoint, if there is one."""
        return self.world.rank == 0

    @property
    def epoch_steps(self) -> int:
        """How many steps an epoch has; 0 before the first one was begun."""
        return self._steps

    def claim_nothing(self, reason: str, *, warn: bool = True) -> bool:
        """Nothing can be claimed for the model, nor after an interruption. Of several reasons the
        first one is kept. Returns whether a `PrivacyWarning` was given, which `warn` allows.
        """
        if self.unclaimed:
            return False
        self.unclaimed = reason
        self._mark()
        if warn:
            warn_caller(f"nothing will be claimed: {reason}")
        return warn

    def note_figure_use(self, use: str) -> None:
        """A private figure became a plain value. A run that is left early after it claims nothing,
        nor when resumed.
        """
        if not self.figure_use:
            self.figure_use = use
            self._mark()

    def note_declared_rates(self, reasons: Sequence[str]) -> None:
        """Numbers that were declared public steer learning rates: the run states why."""
        if new := [reason for reason in reasons if reason not in self.declared_rates]:
            self.declared_rates += new
            self._mark()

    def _mark(self) -> None:
        """Write down at once what must not be forgotten: the next checkpoint may never come."""
        if self.file and self.keeps and self._open:
            self.file.mark(self._marks())

    def _marks(self) -> dict[str, str]:
        """What must not be forgotten, as texts."""
        return {
            "unclaimed": self.unclaimed,
            "figure_use": self.figure_use,
            "declared_rates": "\n".join(self.declared_rates),
        }

    def leave(self, error: object) -> None:
        """A process whose run ends by an error of its own is not waited for by the others."""
        if isinstance(error, BaseException) and not isinstance(error, GeneratorExit):
            self.world.leave(error)

    def close(self, epochs: Generator[Any], error: object) -> None:
        """A block around the run ends, by an error or not: what was not charged is given back."""
        if error is None:
            self.keep_end()
        epochs.close()
        self.leave(error)

    def abandon(self) -> None:
        """There is no point in going on: nothing is kept, and what was not spent is given back."""
        self.ledger.settle()
        if self.file and self.keeps:
            self.file.delete()

    @contextmanager
    def or_abandon(self) -> Iterator[None]:
        """A block whose failure ends the run for good; an interruption does not, or what was spent
        would be lost.
        """
        try:
            yield
        except Exception:
            self.abandon()
            raise

    @contextmanager
    def generators(self) -> Iterator[None]:
        """A block in which PyTorch's own generators are the run's; then they are where they were.

        What an optimizer or functions of the caller's draw in the block follows from where the
        initialisation stream began, also in a run that is resumed before its first step. Dropout
        and augmentations do not draw from them (`clipping.randomness`).
        """
        held = _generators()
        if self._generators is None:
            began = hashlib.sha256(canonical(self.origin["initialisation"])).digest()
            torch.manual_seed(int.from_bytes(began[:8], "big"))
        else:
            _set_generators(self._generators)
        try:
            yield
        finally:
            self._generators = _generators()
            _set_generators(held)

    def fitted(
        self, release: Any, x: Tensor, y: Tensor | None, persons: Tensor | None
    ) -> RowTransform:
        """The transform that a release before training makes of all rows, or made before an
        interruption.
        """
        if self._released:
            self.agreed.charge(release.event(), self.plan.neighbours)
            config, state = self._released.pop(0)
            transform: RowTransform = release.empty(config)
            transform.load_state_dict(state, assign=True)  # in the type that they were released in
            self._fitted.append(transform)
        else:
            charges = _Charges(self.agreed)
            noise, before = self.noise, (self.noise.key, self.noise.position)
            transform = release.fit(x, self.plan.neighbours, charges, noise, persons, y)
            charges.require(release, drawn=(noise.key, noise.position) != before)
            # Laid out as a checkpoint brings them back: products with another layout are rounded
            # otherwise.
            transform.load_state_dict(
                {n: v.contiguous() for n, v in transform.state_dict().items()}, assign=True
            )
            self.world.copy(transform.state_dict())
            self._fitted.append(transform)
            self._save(0)
        return transform

    def epochs(self, noise: Any) -> Iterator[tuple[int, float]]:
        """The epochs still to run, each with its noise multiplier. Those that were released are
        charged here.
        """
        for epoch, noise_multiplier in noise:
            if self.left and epoch >= self.first[0]:
                return
            if not self.released(epoch, noise_multiplier):
                yield epoch, noise_multiplier

    def released(self, epoch: int, noise_multiplier: float) -> bool:
        """Whether all of an epoch was released before an interruption: then it is charged here."""
        before = epoch < self.first[0]
        if before:
            self.account.charge(self.plan.epoch_event(noise_multiplier), self.plan.neighbours)
        return before

    def charge_again(self, event: Event) -> None:
        """Charge what was released before an interruption; a ledger in a file charges nothing
        twice.
        """
        self.agreed.charge(event, self.plan.neighbours)
        self.ledger.settle()

    def draws(self, present: int) -> Draws:
        """What draws the run's batches, and compares them with their price."""
        if self._draws is None:
            self._draws = Draws(self.plan.sampling, present, self.plan.batches_event)
        return self._draws

    def drawn(
        self, epoch: int, noise_multiplier: float, present: int
    ) -> Iterator[tuple[int, Sample]]:
        """The batches of an epoch still to be released, each with its number. Those that were are
        charged here.

        They may be drawn ahead of their use; `keep` is to be called before each is used.
        """
        self._epoch, self._drawn_from = epoch, self.streams.state()["sampling"]
        self._steps = self.plan.sampling.steps(present)
        self.steps_done = epoch * self._steps
        for step, sample in enumerate(self.draws(present).epoch(self.streams.sampling)):
            if (epoch, step) < self.first:
                sample.spend(Gaussian(noise_multiplier), self.plan.neighbours, self.account)
                self.steps_done += 1
                continue
            yield step, sample

    def keep(self, step: int, *, now: bool = False) -> None:
        """Write a checkpoint if it is time, or `now`: all before this batch of the epoch was
        released, it was not.
        """
        if (file := self.file) is None:
            return
        if now or (
            self.world.once(lambda: file.due, "the time of a checkpoint")
            if self._writes_shards
            else file.due
        ):
            self._save(step)

    def keep_epochs(self, epochs: int) -> None:
        """Write a checkpoint between two epochs: all of so many were released, nothing after."""
        self._epoch, self._drawn_from = epochs, self.streams.state()["sampling"]
        self._save(0)

    def compare(self, parameters: Sequence[Tensor], *, now: bool = False) -> None:
        """Where several processes train: end all if one has other parameters; every `COMPARED`
        steps, or `now`.
        """
        if self.world.size > 1 and (now or self.steps_done % COMPARED == 0):
            here = [
                parameter.detach().cpu().contiguous().view(-1)
                for parameter in parameters
                if not is_shard(parameter)
            ]
            bits = (values.view(torch.uint8).numpy().tobytes() for values in here)
            self.world.require_alike(
                f"the parameters after {self.steps_done} steps", b"".join(bits)
            )

    def batches(
        self, epoch: int, noise_multiplier: float, present: int
    ) -> Iterator[tuple[int, Sample]]:
        """The batches of an epoch that are still to be released, one after the other, with
        checkpoints between them.
        """
        for step, sample in self.drawn(epoch, noise_multiplier, present):
            self.keep(step)
            yield step, sample
        self.end_batches()

    def end_batches(self) -> None:
        """All batches of an epoch were released. A recorded run that is taken again may have been
        left here.
        """
        if self.file and self.file.left_at == self.steps_done:
            self.keep_end()

    def keep_end(self) -> None:
        """The run is left here. Of a recorded one the state is kept: what is published of it is
        compared with that.
        """
        if self._open and not self.complete and self.file and self.file.keeps_ends:
            step = self.first[1] if self.left else self.steps_done - self._epoch * self._steps
            self._save(step, left=True)

    def record(self, sample: Sample, released: Sequence[Tensor]) -> None:
        """A step was taken."""
        if self.file and self.keeps:
            self.file.record(sample.indices, released)
        self.steps_done += 1

    @property
    def state(self) -> str:
        """How far the run is, in words."""
        if self._open:
            return "under way"
        if self.complete or self._stopped:
            return "over"
        return "interrupted" if self.saved else "not begun"

    def require_open(self) -> None:
        """Raise `BadInput` unless the run is under way: what is released after its end is not part
        of its plan.
        """
        if not self._open:
            raise BadInput(
                "the run is over, and what it had not spent was given back: nothing can follow. "
                "Begin another run"
            )

    def facts_of_leaving(self) -> dict[str, Any]:
        """Of a run that was left before its end: the steps that it took. Of one with a transcript:
        its digest.
        """
        if self.figure_use and not self.complete:
            self.claim_nothing(
                f"{self.figure_use}, and the run was left early: when may follow from private "
                "rows. Take all steps, or let a metric of public rows decide"
            )
        unclaimed: dict[str, Any] = {"unclaimed": self.unclaimed} if self.unclaimed else {}
        unclaimed |= self.file.facts() if self.file and self.keeps else {}
        if self.declared_rates:
            unclaimed |= {"rates_declared_public": self.declared_rates}
        return (
            unclaimed
            if self.complete
            else {"steps": self.steps_done, "left_early": True, **unclaimed}
        )

    def stop(self, epochs: Generator[Any]) -> None:
        """End a run whose `epochs` may still be under way: what was not charged is given back, and
        no more can be.

        Raises:
            ProcessLost: another process took more or fewer steps, or has other parameters.
        """
        compared = self.steps_done % COMPARED == 0
        self.world.require_same_steps(self.steps_done, compared=compared)
        if network := self.parts.get("network"):
            self.compare(list(network.state_dict().values()), now=True)
        self.keep_end()
        self._stopped = True
        epochs.close()

    @property
    def fast_kernels(self) -> bool | None:
        """Whether fast products are used: as in a saved run, or in the first process; None: where
        they are faster.
        """
        began = self.saved or (self.file.like if self.file else None)
        if began:
            return bool(dict(began.plain["parts"]["gradients"]["items"])["fast_kernels"])
        return (
            self.world.once(lambda: type(kernels()) is not Kernels, "products")
            if self.world.size > 1
            else None
        )

    @property
    def agreed(self) -> Account:
        """The ledger, charged in the first process before any other goes on."""
        return self.world.agreed(self.ledger)

    @property
    def noise(self) -> NoiseStream:
        """What this process draws noise from."""
        return self.world.noise(self.streams.noise)

    def end(self, epochs: int) -> None:
        """Nothing is left to release: the last checkpoint is written."""
        self.complete = True
        self.keep_epochs(epochs)

    def _save(self, step: int, *, left: bool = False) -> None:
        if self.file is None or not (self.keeps or self._writes_shards):
            return
        tensors: dict[str, Tensor] = {}
        now = self.streams.state()
        drawn = {
            "sampling": self._drawn_from or now["sampling"],
            "initialisation": self.origin["initialisation"],
        }
        plain = {
            "facts": self.facts,
            "run": self.ledger.run,
            **self._marks(),
            "epoch": self._epoch,
            "step": step,
            "noted": self.file.steps_noted,
            "streams": now | drawn,
            "origin": self.origin,
            "parts": {
                name: flattened(part.state_dict(), name, tensors)
                for name, part in self.parts.items()
            },
            "fitted": [
                [t.config(), flattened(t.state_dict(), f"fitted.{n}", tensors)]
                for n, t in enumerate(self._fitted)
            ],
            "generators": flattened(self._generators, "generators", tensors),
            **({"left": True} if left else {}),
        }
        shards = None
        if self._writes_shards:
            # several processes keep parts of the model
            from privlearn.runs.shards import save_shards

            shards = save_shards(self.file.path, tensors, self.world)
        if self.keeps:
            here = {name: tensor for name, tensor in tensors.items() if not is_shard(tensor)}
            self.file.write(Saved(here, plain | ({"shards": shards} if shards else {})))
            delete_shards(self.file.path, keep=shards["folder"] if shards else "")

    def _restore(self, saved: Saved) -> None:
        assert self.file is not None
        like = self.parts["network"].state_dict().values()
        tensors = {**saved.tensors}
        if saved.plain.get("shards"):
            # several processes keep parts of the model
            from privlearn.runs.shards import load_shards

            tensors |= {**load_shards(self.file.path, saved.plain["shards"], iter(like))}
        from privlearn.runs.saved_parts import state_in

        for name, part in self.parts.items():
            part.load_state_dict(whole(state_in(saved, name), tensors))
        self.restored = True
        self._released = [
            (config, whole(state, saved.tensors)) for config, state in saved.plain["fitted"]
        ]
        self.first = (saved.plain["epoch"], saved.plain["step"])
        marks = {**saved.plain, **(self.file.marks() if self.keeps else {})}
        self.unclaimed = marks.get("unclaimed", "")
        self.figure_use = marks.get("figure_use", "")
        self.declared_rates = marks.get("declared_rates", "").splitlines()
        self._generators = whole(saved.plain["generators"], saved.tensors)
        if (end := self.file.left_at) is not None and saved.plain.get("left"):
            self.left, self.steps_done, self._epoch = True, end, self.first[0]


@final
class _NoNotes:
    """The notes of a run that keeps no checkpoint, and so repeats no step."""

    def forget(self) -> None:
        """There are none."""

    def recall(self, *, ended: bool = False) -> None:
        """There are none."""

    def take(self, settings: str) -> None:
        """Nothing is compared."""

    def see(self, stream: NoiseStream, values: Sequence[Tensor], places: Places | None) -> None:
        """Nothing is noted."""


@final
class _Charges:
    """An account that remembers what a release before training was charged."""

    def __init__(self, account: Account) -> None:
        self._account, self._events = account, list[Event]()

    def charge(self, event: Event, adjacency: Adjacency) -> None:
        self._account.charge(event, adjacency)
        self._events.append(event)

    def require(self, release: Any, *, drawn: bool) -> None:
        """Raise `UnsoundExtension` unless it was charged what the plan says, and drew noise."""
        if compose(self._events) != compose([release.event()]) or not drawn:
            what = "was not charged its event()" if drawn else "drew no noise from the stream"
            raise UnsoundExtension(
                f"the transform {type(release).__name__} was fitted to private rows and {what}: "
                "nothing of it is used. Release what it needs by pv.release, with the ledger and "
                "the stream that fit is given"
            )


def _generators() -> list[Tensor]:
    return [torch.get_rng_state(), *all_generator_states()]


def _set_generators(states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        set_all_generators(states[1:])
