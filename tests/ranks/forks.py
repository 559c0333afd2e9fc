"""Processes on gloo that are forked from this one: what planted bugs change, changes in them,
too.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from privlearn.errors import PrivlearnError

#: How long processes wait for each other: a busy machine may let one of them stand.
_PATIENCE = timedelta(seconds=300)


def forked(
    size: int,
    work: Callable[[], Any],
    *,
    patience: timedelta = _PATIENCE,
    meanwhile: Callable[[list[int]], Any] = len,
) -> list[Any]:
    """What `work` returns, or the error of privlearn's or the assertion that it raises, in each of
    so many processes.

    All are in one group, and wait for `patience` for an answer. What is returned has to be
    picklable. `meanwhile` gets their numbers, of which none is another process's before it returns.
    """
    with tempfile.TemporaryDirectory() as there:
        pids = []
        for rank in range(size):
            pid = os.fork()
            if not pid:
                _run(rank, size, Path(there), work, patience)
            pids.append(pid)
        meanwhile(pids)
        for pid in pids:
            os.waitpid(pid, 0)
        return [_read(Path(there) / str(rank)) for rank in range(size)]


def _run(rank: int, size: int, there: Path, work: Callable[[], Any], patience: timedelta) -> None:
    """In the new process, which ends here."""
    try:
        torch.set_num_threads(1)
        # as torchrun does: sums are added up by shards on one process, too
        os.environ["TORCHELASTIC_RUN_ID"] = "none"
        dist.init_process_group(
            "gloo", f"file://{there}/group", timeout=patience, rank=rank, world_size=size
        )
        outcome = work()
    except (PrivlearnError, AssertionError, RuntimeError) as error:
        outcome = error
    except BaseException:
        outcome = RuntimeError(traceback.format_exc())
    try:
        (there / f"{rank}.draft").write_bytes(pickle.dumps(outcome))
        (there / f"{rank}.draft").rename(there / str(rank))
    finally:
        os._exit(0)


def _read(path: Path) -> Any:
    return (
        pickle.loads(path.read_bytes())
        if path.exists()
        else RuntimeError("a process ended without an answer")
    )


def sharing(size: int, work: Callable[[], Any]) -> list[Any]:
    """As `forked`, but the first error is raised."""
    outcomes = forked(size, work)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return outcomes
