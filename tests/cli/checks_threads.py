"""Named checks of how many threads the command line computes with."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from privlearn.cli import threads
from privlearn.cli.commands.train import settled_job
from privlearn.cli.jobs import data_of
from privlearn.cli.request import parse
from tests.support.checks import check


@contextlib.contextmanager
def usual_threads(number: int, **chosen: str) -> Iterator[None]:
    """A process that computes with so many threads, whose user chose them by no variable but
    these.
    """
    before = torch.get_num_threads()
    others = {name: text for name, text in os.environ.items() if name not in threads._CHOSEN}
    torch.set_num_threads(number)
    try:
        with mock.patch.dict(os.environ, {**others, **chosen}, clear=True):
            yield
    finally:
        torch.set_num_threads(before)


def write(path: Path, rows: int) -> Path:
    made_up = np.random.default_rng(0)
    np.savez(path, x=made_up.random((rows, 20), np.float32), y=np.arange(rows) % 2)
    return path


def computed_with(rows: int, *more: str) -> int:
    """The threads of a run on so many rows."""
    with tempfile.TemporaryDirectory() as folder:
        data = ["--data", str(write(Path(folder) / "rows.npz", rows)), "--classes", "2"]
        options = ["--range", "0,1", "--epsilon", "3", "--epochs", "1", "--out", "nowhere"]
        request = parse(["train", *data, *options, *more])
        before = torch.get_num_threads()
        with settled_job(request, data_of(request)):
            number = torch.get_num_threads()
        assert torch.get_num_threads() == before
        return number


@check
def check_threads_follow_from_public_numbers() -> None:
    """The same number for any private rows; it grows with the declared number, the network and the
    batch.
    """
    network = ("--model", "mlp:50", "--features", "raw")
    declared = (*network, "--batch-size", "100", "--examples")
    # of 20, 50 and 2 units: 2 x 1,100 operations a row
    with usual_threads(16), mock.patch.object(threads, "_WORTH", 2_200 * 20):
        assert {computed_with(rows, *declared, "1000") for rows in (40, 900, 1000)} == {5}
        assert computed_with(200, *network, "--sampling", "full", "--examples", "200") == 10
        assert computed_with(200, *network, "--sampling", "full", "--examples", "400") == 16
    with usual_threads(16):
        assert computed_with(200, *declared, "1000") == 1


@check
def check_users_choose_threads_themselves() -> None:
    options = ("--model", "linear", "--features", "raw", "--examples", "200")
    for name in threads._CHOSEN:
        with usual_threads(3, **{name: "3"}):
            assert computed_with(200, *options) == 3
    with usual_threads(3):
        assert computed_with(200, *options) == 1
