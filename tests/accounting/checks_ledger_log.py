"""Named checks of large ledger files, which are appended to: nothing that was promised is lost,
whatever cuts in.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from unittest import mock

from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import (
    Composed,
    Repeated,
    added,
    appended,
    compose,
    tally,
    walk,
)
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger, Releases
from privlearn.core.accounting.ledgers import ledger_file, ledger_log, ledger_run, ledger_state
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.core.accounting.ledgers.ledger_state import LedgerState, RunEntry
from privlearn.core.accounting.mechanisms import Gaussian, Laplace, PoissonSampled
from privlearn.errors import BadInput
from tests.support.checks import check, must_raise

ADD = Adjacency.ADD_REMOVE


@contextmanager
def large(document: int = 0) -> Iterator[Path]:
    """A path where a ledger counts as large from so many bytes on."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(ledger_file, "_LARGE", document),
    ):
        yield Path(folder, "ledger")


def charged(path: Path, charges: int = 4) -> Ledger:
    """A ledger with charges in lines."""
    ledger = Ledger.open(path, create=True)
    ledger.charge(Composed(tuple(Gaussian(90.0 + n) for n in range(30))), ADD)
    for n in range(charges):
        ledger.charge(Gaussian(5.0 + n), ADD)
    assert ledger_log.is_begun(path.read_bytes())
    return ledger


def read(path: Path, content: bytes) -> LedgerState | None:
    """What a file of this content holds; None if it is refused."""
    path.write_bytes(content)
    try:
        return LedgerFile(path).read()
    except BadInput:
        return None


@check
def check_what_is_appended_reads_as_what_was_done() -> None:
    """After each of many random edits of every kind, whoever reads the file anew finds what the
    writer knows.
    """
    drawn = random.Random(1)
    with large() as path, mock.patch.object(ledger_run, "_AHEAD", 0.0):
        Ledger.open(path, Budget(rho=1e6), measure="zcdp")
        ledgers = [Ledger.open(path, what=f"writer {n}") for n in range(3)]
        ledgers[0].approve(*(Releases(Gaussian(20.0 + n), ADD) for n in range(20)))
        lengths = []
        for _ in range(150):
            ledger, event = drawn.choice(ledgers), Repeated(Gaussian(30.0 + drawn.randrange(5)), 3)
            match drawn.randrange(5):
                case 0:
                    ledger.begin(compose([event, Laplace(50.0)]), ADD)
                case 1 if ledger._approved:
                    ledger.charge(ledger._approved[-1][0], ADD)
                case 2:
                    ledger.settle()
                case 3 if drawn.random() < 0.3:
                    ledger.approve(Releases(event, ADD))
                case _:
                    ledger.charge(event.event, ADD)
            known = ledger._run.store.read()
            assert known == LedgerFile(path).read() == ledgers[0]._run.store.read()
            lengths.append(path.stat().st_size)
        assert any(now < before for before, now in pairwise(lengths)), "never written as a whole"
        assert sum(now > before for before, now in pairwise(lengths)) > 50


@check
def check_very_many_entries_of_a_large_ledger_are_summed_up() -> None:
    """The file is written as a whole then, and holds what the writer knows."""
    with large() as path, mock.patch.object(ledger_state, "LISTED", 5):
        Ledger.open(path, create=True).charge(Gaussian(30.0), ADD)
        for n in range(30):
            ledger = Ledger.open(path)
            ledger.charge(Gaussian(40.0 + n % 3), ADD)
            assert ledger._run.store.read() == LedgerFile(path).read()
            assert sum(tally(ledger.event).values()) == n + 2
        assert len(LedgerFile(path).read().entries) < 12


@check
def check_large_ledgers_that_were_edited_or_cut_are_refused() -> None:
    """No byte can be changed, and no line lost, moved or told twice, without being noticed: or
    nothing is missing.
    """
    with large() as path:
        charged(path)
        whole, after = path.read_bytes(), LedgerFile(path).read()
        for place in range(0, len(whole), 3):
            changed = bytearray(whole)
            changed[place] ^= 1 << place % 7
            assert read(path, bytes(changed)) in (None, after), place
        for cut in range(0, len(whole), 3):
            assert read(path, whole[:cut]) is None, cut
        start = whole.index(b'\n{"digest": ') + 1
        lines = whole[start:].splitlines(keepends=True)
        assert len(lines) == 4
        head = whole[:start]
        for other in (
            [lines[1], lines[0], *lines[2:]],
            [*lines[:2], lines[3], lines[2]],
            lines[1:],
            [*lines[:2], lines[3]],
            [lines[0], *lines],
            lines[:3],
        ):
            assert read(path, head + b"".join(other)) is None
        for added_text in (b"garbage", lines[3], b"\n\n", b"0" * 5000):
            assert read(path, whole + added_text) == after


@check
def check_a_crash_at_any_byte_loses_nothing_promised() -> None:
    """Cut off while a line or a mark is written, the file holds all that was promised before, and
    goes on.
    """
    with large() as path:
        ledger = charged(path)
        old, before = path.read_bytes(), LedgerFile(path).read()
        ledger.charge(Laplace(7.0), ADD)
        new, after = path.read_bytes(), LedgerFile(path).read()
        head = ledger_log.HEAD
        crashed = [(old + new[len(old) : cut], before) for cut in range(len(old), len(new), 7)]
        crashed += [(old + b"\0" * 300, before), (old[:head] + new[head:], after)]
        crashed += [(new[:cut] + old[cut:head] + new[head:], after) for cut in range(0, head, 7)]
        half = head // 3
        lost = b"\0" * half
        crashed += [
            (new[:half] + lost + new[2 * half :], after),
            (new[: 2 * half] + lost + new[head:], after),
        ]
        for content, expected in crashed:
            assert read(path, content) == expected
            Ledger.open(path).charge(Gaussian(66.0), ADD)
            assert LedgerFile(path).read().event == compose([expected.event, Gaussian(66.0)])


@check
def check_what_others_append_is_seen() -> None:
    """By each of several ledgers of one file, also when another has written it as a whole, or put
    back a copy.
    """
    with large() as path:
        first = charged(path)
        copied, then = path.read_bytes(), first.event
        second = Ledger.open(path)
        for n in range(60):
            (first, second)[n % 2].charge(PoissonSampled(0.1, Gaussian(3.0 + n)), ADD)
            assert first.event == second.event == LedgerFile(path).read().event
        assert len(tally(first.event)) == 94
        path.write_bytes(copied)
        assert first.event == second.event == then


@check
def check_a_large_ledgers_charge_is_on_the_disk_first() -> None:
    """Line, then mark: a charge that fails at either is refused; it may count, and what was there
    before is kept.
    """
    with large() as path:
        ledger = charged(path)
        fsync = os.fsync
        for fails_at in (1, 2, 1, 2, 2):
            before, calls = tally(ledger.event), [0]

            def failing(handle: int, calls: list[int] = calls, last: int = fails_at) -> None:
                calls[0] += 1
                if calls[0] == last:
                    raise OSError(28, "No space left on device")
                fsync(handle)

            with mock.patch.object(os, "fsync", failing):
                must_raise(BadInput, lambda: ledger.charge(Gaussian(7.0), ADD))
            counts = tally(LedgerFile(path).read().event)
            assert tally(ledger.event) == counts
            assert all(counts[leaf] >= times for leaf, times in before.items())
            assert counts[Gaussian(7.0)] == before[Gaussian(7.0)] + fails_at - 1
            calls[0] = 10
            with mock.patch.object(os, "fsync", failing):
                ledger.charge(Gaussian(7.0), ADD)
            assert calls[0] == 12, "both are brought to the disk"


@check
def check_large_files_stay_small_enough_to_be_read() -> None:
    """Lines are never longer than what is read, nor much longer than what they change."""
    with large() as path:
        ledger = charged(path)
        with mock.patch.object(ledger_file, "_LARGEST", path.stat().st_size + 500):
            for _ in range(60):
                ledger.charge(Gaussian(7.0), ADD)
            before = path.read_bytes()
            many = compose(Gaussian(5.0 + n / 1000) for n in range(900))
            must_raise(BadInput, lambda: ledger.begin(many, ADD))
            assert path.read_bytes() == before
        document = len(path.read_bytes())
        for _ in range(300):
            ledger.charge(Gaussian(7.0), ADD)
            assert path.stat().st_size < 4 * document


@check
def check_ledgers_of_one_document_are_gone_on_with() -> None:
    """Files that grew before they were appended to are read, and written in the new form by the
    next charge.
    """
    with large(1 << 20) as path:
        ledger = Ledger.open(path, Budget(rho=9.0))
        ledger.charge(compose(Gaussian(200.0 + n) for n in range(300)), ADD)
        before = ledger.event
        assert not ledger_log.is_begun(path.read_bytes())
        with mock.patch.object(ledger_file, "_LARGE", 1 << 12):
            assert Ledger.open(path).event == before
            ledger.charge(Gaussian(7.0), ADD)
            assert ledger_log.is_begun(path.read_bytes())
            ledger.charge(Gaussian(8.0), ADD)
        assert Ledger.open(path).event == compose([before, Gaussian(7.0), Gaussian(8.0)])
        assert Ledger.open(path).budget == Budget(rho=9.0)


@check
def check_charges_one_by_one_add_up_to_all_of_them() -> None:
    """Composing and counting event by event gives what composing and counting all of them gives."""
    drawn = random.Random(2)
    kinds = [Gaussian(2.0 + n) for n in range(12)]
    events = [
        Composed(
            tuple(
                Repeated(drawn.choice(kinds), drawn.randrange(3)) for _ in range(drawn.randrange(4))
            )
        )
        for _ in range(300)
    ]
    one_by_one, counted, places = compose([]), compose([]), {}
    for n, event in enumerate(events, 1):
        one_by_one, counted = appended(one_by_one, event), added(counted, places, event)
        assert one_by_one == compose(events[:n])
        assert list(walk(counted)) == list(tally(Composed(tuple(events[:n]))).items())
    state = LedgerState()
    entries = [state.add(RunEntry.new("one of two")).id for _ in range(2)]
    for n in range(2400):
        own, new = entries[n // 100 % 2], Gaussian(20.0 + n // 200 * 100 + n % 100)
        given_up = state.draft()
        given_up.charge(given_up.entry(own), Gaussian(new.noise_multiplier + 1))
        state = state.draft()
        state.charge(state.entry(own), new)
    assert all(
        list(walk(entry.spent)) == [(Gaussian(20.0 + n), 1) for n in range(1200)]
        for entry in state.entries
    )
    ledger = Ledger()
    ledger.charge(Gaussian(9000.0), ADD)
    for n in range(1300):
        ledger.charge(Gaussian(20.0 + (n * 7) % 1150), ADD)
    counts = tally(ledger.event)
    assert counts == {
        Gaussian(9000.0): 1,
        **{Gaussian(20.0 + (n * 7) % 1150): 1 + (n < 150) for n in range(1150)},
    }
