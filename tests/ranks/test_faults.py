"""Processes that are killed, are slow, or hang: the others end with one message, or end as an
undisturbed run does.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import time
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from privlearn.errors import BadInput
from tests.ranks import checks, checks_sharded
from tests.ranks.checks_faults import (
    OF_THE_FIRST,
    PLACES,
    at,
    die,
    require_charged,
    require_one_message,
    require_same,
    sharded,
)
from tests.ranks.forks import forked, sharing

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")


@pytest.mark.nightly
@pytest.mark.parametrize("place", [*PLACES, *OF_THE_FIRST])
def test_processes_of_a_sharded_model_are_killed_everywhere(place: str, tmp_path: Path) -> None:
    """Each of 2 processes at each place, early and late; then on 1, 2 or 4 the same bits,
    certificate and ledger.
    """
    whole = tmp_path / "whole"
    whole.mkdir()
    (expected,) = sharing(1, lambda: sharded(whole, 3))
    for by in range(2 if place in PLACES else 1):
        for times in (1, 2, 7):
            size, killed = (1, 2, 4)[(by + times) % 3], tmp_path / f"{by} {times}"
            killed.mkdir()
            require_one_message(
                forked(2, lambda: sharded(killed, 3, at(place, times, die), by)),  # noqa: B023
                by,
            )
            drawn, kept = require_charged(killed), (killed / "run").exists()
            assert sharing(size, lambda: sharded(killed, 3)) == [expected] * size  # noqa: B023
            if kept:
                require_same(killed, whole)
            else:  # it began anew, and the entry of before stays on the ledger
                assert not drawn


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(8))
def test_processes_of_a_sharded_model_are_killed_at_any_time(seed: int, tmp_path: Path) -> None:
    """One of 1, 2 or 4 is killed at random, 5 times, and others go on: the bits of an undisturbed
    run.
    """
    chance, whole, killed, outcomes = (
        random.Random(seed),
        tmp_path / "whole",
        tmp_path / "killed",
        list[Any](),
    )
    whole.mkdir(), killed.mkdir()
    began = time.monotonic()
    (expected,) = sharing(1, lambda: sharded(whole, 8))
    took, kills = time.monotonic() - began, 0
    while kills < 5:
        size = chance.choice([1, 2, 2, 4])
        by, after = chance.randrange(size), chance.uniform(0.0, 0.3) * took

        def kill(pids: list[int], by: int = by, after: float = after) -> None:
            until = time.monotonic() + 60.0
            while not (killed / "run").exists() and time.monotonic() < until:
                time.sleep(0.01)  # before, nothing is kept, and it would begin anew
            time.sleep(after)
            os.kill(pids[by], signal.SIGKILL)

        outcomes = forked(size, lambda: sharded(killed, 8), meanwhile=kill)
        if isinstance(outcomes[by], bytes):
            break
        require_one_message(outcomes, by)
        require_charged(killed)
        kills += 1
    print("killed", kills, "times")
    if kills == 5:
        outcomes = sharing(chance.choice([1, 2, 4]), lambda: sharded(killed, 8))
    assert set(outcomes) == {expected}
    require_same(killed, whole)
    assert kills >= 3


def whole_model(disturbed: Any = None, by: int = -1) -> bytes:
    """The weights of a run whose model is whole in every process."""
    with disturbed if dist.get_rank() == by else nullcontext():
        return checks.bits(checks.trained())


def of_shards(disturbed: Any = None, by: int = -1) -> bytes:
    with disturbed if dist.get_rank() == by else nullcontext():
        return checks_sharded.weights(checks_sharded.trained())


@pytest.mark.parametrize("train", [whole_model, of_shards])
@pytest.mark.parametrize("by", [pytest.param(0, marks=pytest.mark.nightly), 1])
def test_a_slow_process_is_waited_for_and_one_that_hangs_is_not(train: Any, by: int) -> None:
    """A second is waited for, and nothing differs; beyond the group's timeout all end, the slow one
    too, and say so.
    """
    expected = sharing(2, train)
    assert (
        sharing(2, lambda: train(at("before its noise", 3, lambda: time.sleep(1.0)), by))
        == expected
    )
    gave_up = mmap.mmap(-1, 1)

    def hang() -> None:
        while gave_up[:] == b"\0":
            time.sleep(0.01)

    def work() -> bytes:
        rank = dist.get_rank()
        try:
            return bytes(train(at("before its noise", 3, hang), by))
        finally:
            if rank != by:
                gave_up[:] = b"1"

    outcomes = forked(2, work, patience=timedelta(seconds=3))
    require_one_message(outcomes, -1)
    assert all("did not answer in time" in str(outcome) for outcome in outcomes), outcomes


def test_shards_that_cannot_be_written_or_read_are_said(tmp_path: Path) -> None:
    """By all processes alike: which one failed, and at which folder."""

    def fail() -> None:
        raise OSError("no space left on device")

    for outcome in forked(
        2, lambda: sharded(tmp_path, 1, at("before its shards are written", 2, fail), 1)
    ):
        assert isinstance(outcome, BadInput), outcome
        assert "process 1 failed with OSError: no space left on device" in str(outcome)
    (shards,) = tmp_path.glob("run.shards.*/.metadata")
    shards.unlink()
    for outcome in forked(2, lambda: sharded(tmp_path, 1)):
        assert isinstance(outcome, BadInput), outcome
        assert "cannot be read" in str(outcome)
