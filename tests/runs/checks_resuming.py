"""Named checks of checkpoints and of ledgers in files; mutations must make them fail."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn.core import sampling
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import Event, Repeated, compose, walk
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.ledgers import ledger_database
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.core.accounting.mechanisms import Gaussian, PoissonSampled
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.streams import NoiseStream, Streams
from privlearn.errors import AdjacencyMismatch, BadInput, BudgetExceeded, PrivlearnError
from privlearn.runs.checkpoint import Checkpoint
from tests.support.checks import check, must_raise
from tests.support.nets import small_data
from tests.support.steps import EachStep

ADD_REMOVE = Adjacency.ADD_REMOVE
STEP = PoissonSampled(0.1, Gaussian(2.0))
POISSON, FLAT, FALLING = (
    sampling.Poisson(0.3),
    pv.Flat(0.1),
    pv.schedules.Exponential(k=0.1, start=1.5),
)


class Stopped(Exception):
    """The process is gone."""


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def number(event: Event) -> int:
    return sum(times for _, times in walk(event))


# Runs that are stopped and continued


@dataclass
class Run:
    """A small run; one of its kind is the same each time."""

    sampling: sampling.Sampler = POISSON
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda p: torch.optim.SGD(
        p, lr=1.0, momentum=0.5
    )
    clip: Any = FLAT
    front: tuple[pv.transforms.PrivatePCA | pv.transforms.SelectFeatures, ...] = ()
    schedule: Any = FALLING
    discrete: bool = False
    epochs: int = 3

    def plan(self) -> pv.Plan:
        return pv.Plan(
            self.sampling,
            epochs=self.epochs,
            schedule=self.schedule,
            clip=self.clip,
            front=self.front,
        )

    def go(
        self,
        path: Path | None = None,
        *,
        seed: int | None = 5,
        stop: int | None = None,
        ledger: Ledger | None = None,
        data: tuple[Tensor, Tensor] | None = None,
        every: float = 1e-9,
        **options: Any,
    ) -> pv.Result:
        """Train; with `stop`, until so many steps of this process are done."""
        done = [0]

        def progress(steps: int, of: int) -> None:
            done[0] += 1
            if done[0] == stop:
                raise Stopped

        def model(shape: tuple[int, ...]) -> nn.Module:
            torch.manual_seed(0)
            return nn.Sequential(
                nn.Flatten(),
                nn.Linear(math.prod(shape), 6),
                nn.Dropout(0.3),
                nn.Tanh(),
                nn.Linear(6, 3),
            ).double()

        return pv.dpsgd(
            self.plan(),
            model,
            nn.CrossEntropyLoss(reduction="none"),
            data or small_data(),
            optimizer=self.optimizer,
            streams=Streams.new(seed, discrete=self.discrete),
            callbacks=EachStep(progress),
            checkpoint=None if path is None else Checkpoint(path, every=every),
            ledger=ledger,
            **options,
        )

    def by_pieces(self, path: Path, *, stop: int = 2, **options: Any) -> pv.Result:
        for _ in range(100):
            try:
                return self.go(path, stop=stop, **options)
            except Stopped:
                pass
        raise AssertionError("the run does not get on")


def weights(result: pv.Result) -> Tensor:
    return torch.cat([value.flatten().double() for value in result.model.state_dict().values()])


SELECT = pv.transforms.SelectFeatures(3, 4.0, 3, 1.0, 0.2, way="gumbel")
RUNS = [
    Run(),
    Run(optimizer=lambda p: torch.optim.Adam(p, lr=0.01), sampling=sampling.Partition(4)),
    Run(
        optimizer=lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
        sampling=sampling.Shuffle(5),
    ),
    Run(clip=pv.clipping.Quantile(0.1), front=(pv.transforms.PrivatePCA(3, 4.0),)),
    Run(
        optimizer=lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9),
        discrete=True,
        front=(SELECT,),
    ),
    Run(sampling=sampling.FullBatch(), clip=pv.clipping.PerLayer(0.1)),
]


@check
def check_a_run_in_pieces_ends_where_the_whole_one_does() -> None:
    """Stopped after every other step, or every few, and continued: bit for bit the same weights and
    charges.
    """
    for run in RUNS:
        whole = run.go()
        for stop in (2, 4):
            with folder() as here:
                pieces = run.by_pieces(here / "run", stop=stop)
                assert torch.equal(weights(pieces), weights(whole)), (run, stop)
                assert pieces.ledger.event == whole.ledger.event == run.plan().event()
                assert dict(pieces.private_diagnostics) == dict(whole.private_diagnostics)


@check
def check_an_interruption_between_epochs_gives_nothing_up() -> None:
    """Where weights are looked at, what was spent is kept: the run ends as the whole one, for the
    price of one.
    """
    run = RUNS[0]
    with folder() as here:
        for name in ("whole", "stopped"):
            Ledger.open(here / name, create=True)
        with mock.patch("privlearn.training.task.require_finite", side_effect=KeyboardInterrupt):
            must_raise(
                KeyboardInterrupt,
                lambda: run.go(here / "run", ledger=Ledger.open(here / "stopped")),
            )  # type: ignore[arg-type]
        assert (here / "run").exists()
        whole = run.go(ledger=Ledger.open(here / "whole"))
        again = run.go(here / "run", ledger=Ledger.open(here / "stopped"))
        assert torch.equal(weights(whole), weights(again))
        assert Ledger.open(here / "stopped").event == Ledger.open(here / "whole").event


@check
def check_unseeded_runs_go_on_too() -> None:
    """One beginning, gone on with whole and in pieces."""
    with folder() as here:
        run = RUNS[0]
        try:
            run.go(here / "begun", seed=None, stop=1)
        except Stopped:
            content = (here / "begun").read_bytes()
        (here / "pieces").write_bytes(content)
        whole, pieces = run.go(here / "begun", seed=None), run.by_pieces(here / "pieces", seed=None)
        assert torch.equal(weights(whole), weights(pieces))
        assert not pieces.seeded
        assert not torch.equal(weights(whole), weights(run.go(seed=None)))


@check
def check_no_noise_goes_to_two_sums() -> None:
    """What is drawn again after an interruption, at the same place of the same stream, goes to the
    same sum.
    """
    run, uses, sums = RUNS[0], dict[Any, set[Any]](), list[Any]()
    draw, clipped = NoiseStream.words, ClippedGradients.__call__

    def summed(self: Any, *args: Any, **options: Any) -> Any:
        bounded = clipped(self, *args, **options)
        sums.append(tuple(float(value.sum()) for value in bounded.values))
        return bounded

    def drawn(self: NoiseStream, size: int) -> Any:
        uses.setdefault((self.key, self.position), set()).add(sums[-1])
        return draw(self, size)

    with (
        folder() as here,
        mock.patch.object(NoiseStream, "words", drawn),
        mock.patch.object(ClippedGradients, "__call__", summed),
    ):
        run.by_pieces(here / "run", stop=2)
    assert len(uses) == number(run.plan().event())
    assert len(sums) > len(uses), "nothing was drawn again"
    assert all(len(found) == 1 for found in uses.values()), "the same noise on another sum"


@check
def check_an_older_copy_is_not_gone_on_from_once_the_run_has_ended() -> None:
    """With another loss the same noise would go to other sums, and nothing is charged any more. Of
    the run itself the steps since its last checkpoint are noted, and taken again.
    """
    run = RUNS[0]
    with folder() as here:
        (here / "first").mkdir()
        begun = lambda: Ledger.open(here / "ledger", create=True)  # noqa: E731
        go_on = lambda name, **more: run.go(here / name / "run", ledger=begun(), **more)  # noqa: E731
        must_raise(Stopped, lambda: go_on("first", stop=3))
        shutil.copytree(here / "first", here / "copy")
        content = (here / "first" / "run").read_bytes()
        whole = go_on("first")
        refused = must_raise(BadInput, lambda: go_on("copy"))
        assert "older copy" in str(refused)
        (here / "first" / "run").write_bytes(content)  # beside the notes of all steps
        assert torch.equal(weights(go_on("first")), weights(whole))


@check
def check_a_checkpoint_stands_before_anything_is_drawn() -> None:
    """And after releases that come before training: a PCA is not made twice."""
    run = RUNS[3]
    with folder() as here:
        path = here / "run"

        def drawn(self: NoiseStream, size: int) -> Any:
            raise Stopped

        with mock.patch.object(NoiseStream, "words", drawn):
            must_raise(Stopped, lambda: run.go(path, every=1e9))
        assert path.exists()
        must_raise(Stopped, lambda: run.go(path, stop=1, every=1e9))
        with mock.patch.object(
            pv.transforms.PrivatePCA, "fit", side_effect=AssertionError("the PCA is made anew")
        ):
            result = run.go(path)
        assert torch.equal(weights(result), weights(run.go()))


@check
def check_checkpoints_are_for_their_owner_only() -> None:
    if os.name != "posix":
        return
    with folder() as here:
        run, modes = RUNS[0], set()
        replace = Path.replace

        def watched(draft: Path, path: Path) -> None:
            modes.add(stat.S_IMODE(draft.stat().st_mode))
            replace(draft, path)

        with mock.patch.object(Path, "replace", watched):
            run.by_pieces(here / "run")
        assert modes == {0o600}


@check
def check_publishing_deletes_the_checkpoint() -> None:
    with folder() as here:
        result = RUNS[0].go(here / "run")
        assert (here / "run").exists()
        pv.publish(result, here / "model", delta=1e-5)
        assert [path.name for path in here.iterdir()] == ["model"]


@check
def check_one_process_at_a_time_goes_on_with_a_run() -> None:
    with folder() as here:
        refused = []

        def progress_of_another(path: Path) -> None:
            refused.append(must_raise(BadInput, lambda: RUNS[0].go(path)))

        def drawn(self: NoiseStream, size: int) -> Any:
            if not refused:
                progress_of_another(here / "run")
            return draw(self, size)

        draw = NoiseStream.words
        with mock.patch.object(NoiseStream, "words", drawn):
            RUNS[0].go(here / "run")
        assert "another process" in str(refused[0])


@check
def check_a_checkpoint_of_another_run_is_refused() -> None:
    x, y = small_data()
    changed = x.clone()
    changed[-1, 0] += 1e-9
    ways: dict[str, Callable[[Path], object]] = {
        "data": lambda path: RUNS[0].go(path, data=(changed, y)),
        "labels": lambda path: RUNS[0].go(path, data=(x, y.flip(0))),
        "a row less": lambda path: RUNS[0].go(path, data=(x[:-1], y[:-1])),
        "more epochs": lambda path: Run(epochs=4).go(path),
        "another schedule": lambda path: Run(
            schedule=pv.schedules.Exponential(k=0.1, start=1.6)
        ).go(path),
        "another clip": lambda path: Run(clip=pv.Flat(0.2)).go(path),
        "another clip in the last digits": lambda path: Run(clip=pv.Flat(0.1 + 1e-12)).go(path),
        "another optimizer": lambda path: Run(
            optimizer=lambda p: torch.optim.SGD(p, lr=1.1, momentum=0.5)
        ).go(path),
        "another sampler": lambda path: Run(sampling=sampling.Poisson(0.29)).go(path),
        "micro-batches": lambda path: RUNS[0].go(path, microbatch=2),
        "bfloat16": lambda path: RUNS[0].go(path, precision="bf16"),
        "another learning rate schedule": lambda path: RUNS[0].go(
            path, learning_rate_schedule=pv.schedules.Exponential(k=0.1)
        ),
    }
    with folder() as here:
        path = here / "run"
        must_raise(Stopped, lambda: RUNS[0].go(path, stop=2))
        before = path.read_bytes()
        for what, way in ways.items():
            error = must_raise(BadInput, lambda way=way: way(path))
            assert "checkpoint is of another run" in str(error), what
            assert path.read_bytes() == before, what


@check
def check_damaged_checkpoints_are_refused() -> None:
    with folder() as here:
        path = here / "run"
        must_raise(Stopped, lambda: RUNS[0].go(path, stop=2))
        content = path.read_bytes()
        for place in range(0, len(content), 97):
            damaged = bytearray(content)
            damaged[place] ^= 1
            path.write_bytes(damaged)
            must_raise(BadInput, lambda: Checkpoint(path).read())
        for size in (0, 1, 50, 100, len(content) - 1):
            path.write_bytes(content[:size])
            must_raise(BadInput, lambda: Checkpoint(path).read())


# Ledgers in files


@check
def check_a_ledger_file_is_never_behind() -> None:
    """At every draw the file holds at least what was charged; whole runs stand in it before they
    begin.
    """
    with folder() as here:
        run, seen = RUNS[0], [0]
        draw = NoiseStream.words

        def drawn(self: NoiseStream, size: int) -> Any:
            seen[0] += 1
            [entry] = LedgerFile(here / "ledger").read().entries
            assert number(entry.spent) >= seen[0], "noise was drawn before the charge was on paper"
            assert entry.approved == run.plan().event()
            return draw(self, size)

        with mock.patch.object(NoiseStream, "words", drawn):
            result = run.go(ledger=Ledger.open(here / "ledger", create=True))
        assert seen[0] == number(run.plan().event())
        assert result.ledger.event == run.plan().event()
        [entry] = LedgerFile(here / "ledger").read().entries
        assert (entry.open, entry.spent) == (False, run.plan().event())


@check
def check_a_run_gone_on_with_is_paid_for_once() -> None:
    with folder() as here:
        run = RUNS[3]
        book, other = (Ledger.open(here / name, create=True) for name in ("ledger", "other"))
        result = run.by_pieces(here / "run", ledger=book, stop=2)
        assert result.ledger.event == run.plan().event()
        assert len(LedgerFile(here / "ledger").read().entries) == 1
        # Interrupted between its end and its publishing: the same again, and nothing more is
        # charged.
        again = run.go(here / "run", ledger=Ledger.open(here / "ledger"))
        assert torch.equal(weights(again), weights(result))
        assert again.ledger.event == run.plan().event()
        must_raise(
            Stopped, lambda: run.go(here / "again", stop=1, ledger=Ledger.open(here / "ledger"))
        )
        for wrong in (None, other):
            must_raise(BadInput, lambda wrong=wrong: run.go(here / "again", ledger=wrong))


@check
def check_a_run_that_takes_the_whole_budget_is_gone_on_with() -> None:
    """What was set aside for it when it began is still there; and there is no room for another
    one.
    """
    rows, classes = small_data(12)
    data = pv.Dataset(rows.float(), classes, classes=3)
    plan = pv.Plan(pv.Partition(3), 2, examples=12).calibrate(epsilon=3.0, delta=1e-5)

    def train(ledger: Path, checkpoint: Path, last: int) -> pv.Result:
        def stop(done: int, steps: int) -> None:
            if done == last:
                raise Stopped

        torch.manual_seed(0)
        return pv.dpsgd(
            plan,
            nn.Linear(5, 3),
            nn.CrossEntropyLoss(reduction="none"),
            data,
            ledger=Ledger.open(ledger),
            checkpoint=checkpoint,
            callbacks=EachStep(stop),
        )

    with folder() as place:
        Ledger.open(place / "ledger", budget=Budget(3.0, 1e-5), create=True)
        must_raise(Stopped, lambda: train(place / "ledger", place / "run", 4))
        assert train(place / "ledger", place / "run", 0).ledger.spent(1e-5).epsilon <= 3.0
        must_raise(BudgetExceeded, lambda: train(place / "ledger", place / "other", 0))


@check
def check_two_runs_are_not_promised_the_same_budget() -> None:
    with folder() as here:
        promise_two_runs(here / "ledger")


def promise_two_runs(address: Path | str) -> None:
    """Begin a run that leaves no room for another, and one that has room when it has ended."""
    whole = compose([Repeated(STEP, 100)])
    budget = Budget(
        epsilon=1.5 * Budget(epsilon=9.0, delta=1e-5).spent(whole, ADD_REMOVE), delta=1e-5
    )
    first = Ledger.open(address, budget)
    first.begin(whole, ADD_REMOVE)
    second = Ledger.open(address)
    for refused in (second.begin, second.charge):
        must_raise(BudgetExceeded, lambda refused=refused: refused(Repeated(STEP, 200), ADD_REMOVE))
    for _ in range(10):
        first.charge(STEP, ADD_REMOVE)
    first.settle()  # gives back what it has not spent
    assert second.event == compose([Repeated(STEP, 10)])
    second.begin(whole, ADD_REMOVE)
    must_raise(AdjacencyMismatch, lambda: second.charge(Gaussian(9.0), Adjacency.ZERO_OUT))


@check
def check_charges_on_paper_run_ahead_and_are_settled() -> None:
    """Blocks grow, and at the end the paper has what was charged, also if an earlier process may
    have drawn more.
    """
    with folder() as here:
        whole = compose([Repeated(STEP, 100)])
        ledger = Ledger.open(here / "ledger", create=True)
        ledger.begin(whole, ADD_REMOVE)
        writes = 0
        for _ in range(60):
            before = LedgerFile(here / "ledger").read().entries[0].spent
            ledger.charge(STEP, ADD_REMOVE)
            writes += before != LedgerFile(here / "ledger").read().entries[0].spent
        assert writes < 10
        paper = number(LedgerFile(here / "ledger").read().entries[0].spent)
        assert 60 <= paper <= 100
        again = Ledger.open(here / "ledger")
        again.resume(ledger.run, whole, ADD_REMOVE)
        for _ in range(7):
            again.charge(STEP, ADD_REMOVE)
        assert number(LedgerFile(here / "ledger").read().entries[0].spent) == paper
        again.settle()
        assert number(again.event) == paper
        must_raise(BadInput, lambda: again.resume(ledger.run, whole, ADD_REMOVE))
        must_raise(PrivlearnError, lambda: [ledger.charge(STEP, ADD_REMOVE) for _ in range(40)])
        assert number(again.event) == paper


@check
def check_spending_in_files_is_never_forked() -> None:
    """Copies are the ledger; pickled and forked ones charge the same file."""
    with folder() as here:
        ledger = Ledger.open(here / "ledger", Budget(rho=1.0))
        assert copy.deepcopy(ledger) is ledger
        pickle.loads(pickle.dumps(ledger)).charge(Gaussian(2.0), ADD_REMOVE)
        assert ledger.event == compose([Gaussian(2.0)])
        ledger.begin(Repeated(Gaussian(3.0), 3), ADD_REMOVE)
        ledger.charge(Gaussian(3.0), ADD_REMOVE)
        in_a_child(lambda: ledger.charge(Gaussian(3.0), ADD_REMOVE))
        ledger.settle()
        assert ledger.event == compose([Gaussian(2.0), Repeated(Gaussian(3.0), 2)])
    kept = Ledger()
    assert in_a_child(lambda: kept.charge(Gaussian(3.0), ADD_REMOVE)) != 0, (
        "a forked copy of a ledger in memory was charged"
    )


def in_a_child(work: Callable[[], object]) -> int:
    """The exit status of a forked process that did `work`."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except PrivlearnError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@check
def check_a_slip_in_a_ledgers_name_is_no_new_ledger() -> None:
    """Without a budget a file must be there, also for a copy sent to another process; nothing is
    made of a slip.
    """
    with folder() as here:
        for name in ("slip", "slip.json"):
            error = must_raise(BadInput, lambda name=name: Ledger.open(here / name))  # type: ignore[misc]
            assert "create=True" in str(error)
            assert not list(here.iterdir())
        assert Ledger.open(here / "records", create=True).budget is None
        assert Ledger.open(here / "limits", Budget(rho=1.0)).budget == Budget(rho=1.0)
        sent = pickle.dumps(Ledger.open(here / "limits"))
        (here / "limits").unlink()
        must_raise(BadInput, lambda: pickle.loads(sent))


@check
def check_a_ledger_shows_what_is_in_it() -> None:
    """In a file also what others charged and set aside; a file that is gone is no reason to
    raise.
    """
    with folder() as here:
        Ledger.open(here / "ledger", Budget(epsilon=9.0, delta=1e-5)).charge(
            Repeated(STEP, 5), ADD_REMOVE
        )
        Ledger.open(here / "ledger").begin(Repeated(STEP, 7), ADD_REMOVE)
        text = repr(Ledger.open(here / "ledger"))
        assert "2 runs, 1 of them open, 12 events\n" in text, text
        assert "budget: epsilon 9 at delta 1e-05, " in text, text
        assert "add_remove neighbours" in text, text
        ledger = Ledger.open(here / "new", create=True)
        assert "new: no charges yet\n  budget: none" in repr(ledger)
        (here / "new").unlink()
        assert "gone or damaged" in repr(ledger)
    kept = Ledger(Budget(epsilon=9.0, delta=1e-5))
    assert repr(kept).startswith("Ledger: no charges yet\n  budget: epsilon 9 at delta 1e-05")
    kept.charge(Repeated(STEP, 5), ADD_REMOVE)
    assert repr(kept).startswith("Ledger: 5 events\n  budget: epsilon 9 at delta 1e-05")


@check
def check_edited_ledgers_are_refused() -> None:
    with folder() as here:
        path = here / "ledger"
        ledger = Ledger.open(path, Budget(epsilon=3.0, delta=1e-5))
        ledger.charge(Repeated(STEP, 5), ADD_REMOVE)
        (plain,) = _contents(path)[-1:]
        for change in (
            lambda data: data["entries"][0]["spent"]["events"][0].__setitem__("count", 4),
            lambda data: data["entries"].clear(),
            lambda data: data.__setitem__("adjacency", "zero_out"),
            lambda data: data.__setitem__("budget", {"epsilon": 30.0}),
        ):
            edited = copy.deepcopy(plain)
            change(edited)
            shutil.copy(path, here / "edited")
            _put(here / "edited", edited)
            before = (here / "edited").read_bytes()
            must_raise(BadInput, lambda: Ledger.open(here / "edited"))
            must_raise(BadInput, lambda: LedgerFile(here / "edited").read())
            assert (here / "edited").read_bytes() == before
        assert Ledger.open(path).event == ledger.event


def _contents(path: Path) -> list[Any]:
    """What the rows of a ledger hold."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT content FROM change ORDER BY number").fetchall()
    return [json.loads(content) for (content,) in rows]


def _put(path: Path, content: Any) -> None:
    """Put other content into the last row of a ledger, as if no trigger were in the way."""
    with closing(sqlite3.connect(path)) as connection:
        asked = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        triggers = connection.execute(asked).fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        last = "number = (SELECT max(number) FROM change)"
        connection.execute(f"UPDATE change SET content = ? WHERE {last}", (json.dumps(content),))
        for _, sql in triggers:
            connection.execute(sql)
        connection.commit()


@check
def check_a_full_disk_stops_before_the_draw() -> None:
    """What can't be written down is not drawn, and what was there before is whole."""
    with folder() as here:
        run, draw, seen = RUNS[0], NoiseStream.words, [0]

        def drawn(self: NoiseStream, size: int) -> Any:
            seen[0] += 1
            return draw(self, size)

        for full_after in range(1, 12):
            seen[0], writes, saved = 0, [0], [False]
            path, book = here / f"run{full_after}", here / f"ledger{full_after}"

            def full(
                *values: Any,
                write: Callable[..., Any],
                error: Exception,
                writes: list[int] = writes,
                saved: list[bool] = saved,
                path: Path = path,
                last: int = full_after,
            ) -> Any:
                writes[0] += 1
                if writes[0] > last:
                    saved[0] = path.exists()
                    raise error
                return write(*values)

            no_space = OSError(28, "No space left on device")
            too_full = sqlite3.OperationalError("database or disk is full")
            next_row = ledger_database.next_row
            with (
                mock.patch.object(os, "fsync", partial(full, write=os.fsync, error=no_space)),
                mock.patch.object(
                    ledger_database, "next_row", partial(full, write=next_row, error=too_full)
                ),
                mock.patch.object(NoiseStream, "words", drawn),
            ):
                error = must_raise(
                    BadInput,
                    lambda path=path, book=book: run.go(
                        path, ledger=Ledger.open(book, create=True)
                    ),
                )
            assert "No space left" in str(error) or "disk is full" in str(error)
            left = {found.name for found in here.glob(".*")}
            assert not left, left
            if full_after == 1:  # the ledger's two files, and nothing else
                assert not list(here.glob("run1*"))
            assert path.exists() or not saved[0]
            if book.exists():
                pages = LedgerFile(book).read()
                assert number(pages.event) >= seen[0]
            if path.exists():
                result = run.go(path, ledger=Ledger.open(book, create=True))
                assert torch.equal(weights(result), weights(run.go()))
                assert result.ledger.event == run.plan().event()
