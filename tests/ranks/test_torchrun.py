"""Real processes on gloo: the command line under torchrun, and processes that are killed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import load

from privlearn import cli
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.publishing.verify import verify
from tests.ranks.processes import (
    free_port,
    here,
    kill_until_done,
    started,
    told,
    torchrun,
    wait_for,
)

TRAIN = (
    "train",
    "--data",
    "digits",
    "--examples",
    "1437",
    "--epsilon",
    "4",
    "--model",
    "mlp:8",
    "--optimizer",
    "Adam",
    "--batch-size",
    "64",
    "--seed",
    "3",
    "--epochs",
    "6",
    "--discrete",
    "--microbatch",
    "10",
)


def options(folder: Path, name: str, *more: str) -> tuple[str, ...]:
    return (*TRAIN, "--ledger", str(folder / f"{name}.json"), "--out", str(folder / name), *more)


def published(folder: Path) -> tuple[bytes, dict[str, object]]:
    """The weights, and the certificate but for the number of processes."""
    assert verify(folder).ok
    certificate = json.loads((folder / "privacy.json").read_text())
    assert certificate["facts"].pop("processes") in (1, 2, 4)
    for name in ("files", "digests"):
        del certificate[name]
    return (folder / "model.safetensors").read_bytes(), certificate


def test_the_command_line_under_torchrun_trains_what_one_process_does(tmp_path: Path) -> None:
    """The same weights and certificate on 2 and on 1; a process that is killed ends both, and the
    run goes on.
    """
    done = torchrun(2, "-m", "privlearn", *options(tmp_path, "two", "--json"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["out"] == str(tmp_path / "two")
    assert here(*options(tmp_path, "one")) == 0
    assert published(tmp_path / "two") == published(tmp_path / "one")
    assert cli.main(options(tmp_path, "plain")) == 0
    assert (tmp_path / "plain/model.safetensors").read_bytes() == published(tmp_path / "one")[0]
    killed = options(tmp_path, "killed", "--checkpoint-every", "0.01")
    with started(2, tmp_path, "-m", "privlearn", *killed) as run:
        # the first step; before, nothing is kept
        wait_for(tmp_path / "killed.checkpoint.steps", run.processes[0])
        run.kill(1)
        codes, said = run.end()
    assert codes == [2, -9], said
    assert said[0].count("another process of this run ended") == 1, said
    assert here(*killed, "--resume") == 0
    assert published(tmp_path / "killed") == published(tmp_path / "one")
    books = [LedgerFile(tmp_path / f"{name}.json").read() for name in ("one", "two", "killed")]
    assert books[0].event == books[1].event == books[2].event


def test_what_can_not_train_together_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """3 processes, and DP-MAC, are refused in all of them; the first one says so, and nothing is
    begun.
    """
    for size, more in ((2, ("--method", "dpmac")), (3, ())):
        for rank in range(size):
            with mock.patch.dict(os.environ, told(rank, size, free_port())):
                assert cli.main(options(tmp_path, "model", *more)) == 2
            said = capsys.readouterr().err
            assert said.count("privlearn:") == (rank == 0), said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(8))
def test_killed_processes_end_where_undisturbed_ones_do(seed: int, tmp_path: Path) -> None:
    """On a grid, 40 kills in all: one of 1, 2 or 4 processes is killed, 5 times, and others go on:
    the same files.
    """
    words = ("--checkpoint-every", "0.05", "--epochs", "100")
    assert here(*options(tmp_path, "whole", *words)) == 0
    whole = LedgerFile(tmp_path / "whole.json").read().event
    killed = kill_until_done(
        options(tmp_path, "killed", *words), tmp_path / "killed", 5, 100 * 23, seed
    )
    print("killed after steps", killed)
    assert len(killed) == 5, killed
    assert published(tmp_path / "killed") == published(tmp_path / "whole")
    assert LedgerFile(tmp_path / "killed.json").read().event == whole


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2))
def test_in_floating_point_killed_processes_end_close_to_undisturbed_ones(
    seed: int, tmp_path: Path
) -> None:
    """The same events and certificate; weights that differ by the rounding of sums, which depends
    on who adds up.

    So steps are repeated on as many processes: on another number their sums have other bits, and
    are refused.
    """
    words = ("--checkpoint-every", "0.05", "--epochs", "30")
    given = [
        [word for word in options(tmp_path, name, *words) if word != "--discrete"]
        for name in ("whole", "killed")
    ]
    assert here(*given[0]) == 0
    killed = kill_until_done(given[1], tmp_path / "killed", 4, 30 * 23, seed, sizes=[2])
    print("killed after steps", killed)
    assert len(killed) == 4, killed
    (one, certificate), (other, of_killed) = (
        published(tmp_path / name) for name in ("whole", "killed")
    )
    assert of_killed == certificate
    whole, weights = load(one), load(other)
    print(
        "largest difference",
        max(float((whole[name] - own).abs().max()) for name, own in weights.items()),
    )
    for name, own in weights.items():
        torch.testing.assert_close(own, whole[name], rtol=1e-4, atol=1e-5, msg=name)
    books = [LedgerFile(tmp_path / f"{name}.json").read() for name in ("whole", "killed")]
    assert books[0].event == books[1].event
