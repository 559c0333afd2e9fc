"""Ledgers in a database, with processes that are killed, and several that charge at once."""

from __future__ import annotations

import mmap
import os
import random
import signal
import time
from pathlib import Path

from privlearn.core.accounting.events import compose, tally
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.core.accounting.mechanisms import Gaussian

ADD = Adjacency.ADD_REMOVE


def _charging(path: Path, done: mmap.mmap, place: int) -> None:
    """Charge until killed; note each charge once it is allowed, as noise would be drawn then."""
    ledger = Ledger.open(path)
    while True:
        ledger.charge(Gaussian(100.0 + place), ADD)
        count = int.from_bytes(done[8 * place : 8 * place + 8], "little") + 1
        done[8 * place : 8 * place + 8] = count.to_bytes(8, "little")


def test_killed_processes_leave_no_charge_behind(tmp_path: Path) -> None:
    path, made_up = tmp_path / "ledger", random.Random(3)
    Ledger.open(path, create=True).charge(compose(Gaussian(9.0 + n) for n in range(40)), ADD)
    total = [0, 0]
    for _ in range(12):
        done = mmap.mmap(-1, 16)
        children = []
        for place in range(2):
            child = os.fork()
            if child == 0:
                try:
                    _charging(path, done, place)
                finally:
                    os._exit(1)
            children.append(child)
        wanted = made_up.randrange(1, 8)
        while sum(int.from_bytes(done[at : at + 8], "little") for at in (0, 8)) < wanted:
            assert all(
                os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
                for child in children
            )
            time.sleep(0.001)
        time.sleep(made_up.uniform(0.0, 0.02))  # at any moment of the next charge
        for child in children:
            os.kill(child, signal.SIGKILL)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        counts = tally(LedgerFile(path).read().event)
        for place in range(2):
            total[place] += int.from_bytes(done[8 * place : 8 * place + 8], "little")
            charged = counts.get(Gaussian(100.0 + place), 0)
            # A charge that was on the disk when its process was killed was never drawn for, and
            # counts.
            assert total[place] <= charged <= total[place] + 1
            total[place] = charged
    assert sum(total) > 12
