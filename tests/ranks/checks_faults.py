"""Named checks of processes that are killed while they train a sharded model; planted bugs must
make them fail.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemWriter

import privlearn as pv
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.core.mechanisms import release
from privlearn.errors import ProcessLost
from privlearn.publishing.verify import verify
from privlearn.runs import session, shards
from privlearn.runs.ranks import Ranks
from tests.ranks import checks, checks_sharded
from tests.ranks.forks import forked, sharing
from tests.runs.checks_resuming import number
from tests.support.checks import check

#: Where a process is killed: before or after a call of a function.
PLACES: dict[str, tuple[Any, str, bool]] = {
    "before a charge": (Ledger, "charge", True),
    "charged": (Ledger, "charge", False),
    "before its sum is sent": (Ranks, "_exchanged", True),
    "before its noise": (release, "_add_noise", True),
    "after its noise": (release, "_add_noise", False),
    "before a checkpoint": (shards, "save_shards", True),
    "before its shards are written": (FileSystemWriter, "write_data", True),
    "after its shards were written": (FileSystemWriter, "write_data", False),
    "after all shards were written": (shards, "save_shards", False),
}
#: The same; only the first process is there.
OF_THE_FIRST: dict[str, tuple[Any, str, bool]] = {
    "before the shards have a manifest": (FileSystemWriter, "finish", True),
    "before the checkpoint names its shards": (pv.runs.Checkpoint, "write", True),
    "before older shards are deleted": (session, "delete_shards", True),
}


def at(place: str, times: int, action: Callable[[], Any]) -> Any:
    """A block in which something is done at a place, when it is reached for the so-manieth time."""
    owner, name, before = (PLACES | OF_THE_FIRST)[place]
    called, counted = getattr(owner, name), [0]

    @functools.wraps(called)
    def wrapped(*given: Any, **options: Any) -> Any:
        counted[0] += 1
        if before and counted[0] == times:
            action()
        value = called(*given, **options)
        if not before and counted[0] == times:
            action()
        return value

    return mock.patch.object(owner, name, wrapped)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def writing_down(folder: Path) -> Iterator[None]:
    """A block that keeps, for the time after a kill, how many releases were charged when noise was
    drawn last.
    """
    noised, charge, charged = release._add_noise, Ledger.charge, [0]
    file = os.open(folder / f"drawn by {dist.get_rank()}", os.O_CREAT | os.O_WRONLY)

    def counted_charge(self: Ledger, event: Any, adjacency: Any) -> None:
        charge(self, event, adjacency)
        charged[0] += number(event)

    def counted(*given: Any) -> Any:
        os.pwrite(file, charged[0].to_bytes(8, "little"), 0)
        return noised(*given)

    with (
        mock.patch.object(release, "_add_noise", counted),
        mock.patch.object(Ledger, "charge", counted_charge),
    ):
        yield


def sharded(folder: Path, epochs: int, disturbed: Any = None, by: int = -1) -> bytes:
    """The weights of a run of a model under FSDP2 with a checkpoint after every step, which one
    process disturbs.
    """
    plan = checks.plan(epochs=epochs).calibrate(epsilon=4.0, delta=1e-3)
    with writing_down(folder), disturbed if dist.get_rank() == by else nullcontext():
        book = Ledger.open(folder / "book", Budget(epsilon=8.0, delta=1e-3))
        file = pv.runs.Checkpoint(folder / "run", every=1e-9)
        result = checks_sharded.trained(own=plan, ledger=book, checkpoint=file)
        pv.publish(result, folder / "model", delta=1e-3)
        return checks_sharded.weights(result)


def require_charged(folder: Path) -> int:
    """No noise was drawn that is not on paper; charges are written ahead, or are there. Of how many
    releases it was.
    """
    drawn = [int.from_bytes(own.read_bytes(), "little") for own in folder.glob("drawn by *")]
    paper = (
        [number(own.spent) for own in LedgerFile(folder / "book").read().entries]
        if any(drawn)
        else []
    )
    assert max(paper, default=0) >= max(drawn, default=0), (paper, drawn)
    return max(drawn, default=0)


def published(folder: Path) -> dict[str, Any]:
    """The certificate, but for the number of processes; and nothing is left but it and the
    ledger.
    """
    assert verify(folder / "model").ok
    certificate: dict[str, Any] = json.loads((folder / "model" / "privacy.json").read_text())
    del certificate["facts"]["processes"], certificate["files"], certificate["digests"]
    del certificate["facts"]["ledger_head"]  # of one ledger or the other
    names = {path.name for path in folder.iterdir() if not path.name.startswith("drawn")}
    assert names == {"book", "book.key", "book.lock", "model"}, names
    return certificate


def require_same(killed: Path, whole: Path) -> None:
    assert published(killed) == published(whole)
    events = [LedgerFile(folder / "book").read().event for folder in (killed, whole)]
    assert events[0] == events[1]


def require_one_message(outcomes: list[Any], dead: int) -> None:
    """All but the one that is dead say that another process ended."""
    for rank, outcome in enumerate(outcomes):
        if rank != dead:
            assert isinstance(outcome, ProcessLost), outcome
            assert "another process" in str(outcome), outcome


@check
def check_a_killed_process_of_a_sharded_model_leaves_what_goes_on() -> None:
    """Killed in a step, or while a checkpoint is written: on 1 and on 2 the bits of a run on 1,
    charged once.
    """
    with tempfile.TemporaryDirectory() as there:
        whole = Path(there) / "whole"
        whole.mkdir()
        (expected,) = sharing(1, lambda: sharded(whole, 1))
        for by, place, size in (
            (1, "before its noise", 1),
            (0, "before the shards have a manifest", 2),
            (0, "before the checkpoint names its shards", 1),
        ):
            killed = Path(there) / place
            killed.mkdir()
            require_one_message(forked(2, lambda: sharded(killed, 1, at(place, 3, die), by)), by)  # noqa: B023
            require_charged(killed)
            assert (killed / "run").exists()
            assert sharing(size, lambda: sharded(killed, 1)) == [expected] * size  # noqa: B023
            require_same(killed, whole)
