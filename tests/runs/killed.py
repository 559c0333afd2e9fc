"""Trains in forked processes that are killed at random moments and gone on with, until one ends;
prints what was seen.

Run by test_killed.py in a process of its own, which has used no threads:
`killed.py FOLDER KILLS [--seed SEED]`.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from privlearn import cli
from privlearn.cli import dry_run
from privlearn.core.accounting.events import Event, walk
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.core.mechanisms import release

TRAIN = [
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
    "--checkpoint-every",
    "0.03",
]

#: Epochs for each kill, and the most seconds between two: a fast machine must not be done before it
#: was killed often enough.
_EPOCHS, _PATIENCE = 15, 0.5
#: To see whether a process has ended, and leave its status where it is.
_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT


def train(drawn: mmap.mmap, *options: str) -> int:
    """One run by the command line, which counts the releases whose noise is about to be drawn in
    shared memory.
    """
    # steps on made-up rows, on a ledger of their own, would be counted, too
    dry_run._MANY_STEPS = 1 << 60
    noised, charge = release._add_noise, Ledger.charge
    spent = [0]

    def counted_charge(self: Ledger, event: Event, adjacency: Adjacency) -> None:
        charge(self, event, adjacency)
        spent[0] += sum(times for _, times in walk(event))

    def counted(*args: object) -> object:
        drawn[:8] = max(spent[0], int.from_bytes(drawn[:8], "little")).to_bytes(8, "little")
        return noised(*args)  # type: ignore[arg-type]

    release._add_noise, Ledger.charge = counted, counted_charge  # type: ignore[assignment, method-assign]
    return cli.main([*TRAIN, *options])


def quietly(folder: Path, train: Callable[[], int]) -> int:
    """Run with what is printed in a file."""
    with (
        (folder / "output").open("w") as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        return train()


def content(path: Path) -> bytes:
    """What is in a file; nothing if it isn't there."""
    return path.read_bytes() if path.exists() else b""


def main(folder: Path, most: int, options: list[str]) -> None:
    """Kill until the run ends or `most` times, then let it end; run it again, or on from its
    beginning, undisturbed.
    """
    made_up = random.Random(most)
    quietly(
        folder, lambda: cli.main([*TRAIN, "--epochs", "1", "--out", str(folder / "warm")])
    )  # forks then begin faster
    shutil.rmtree(folder / "warm")
    ledger, model, checkpoint = (folder / name for name in ("ledger", "model", "model.checkpoint"))
    ledger_of_whole, checkpoint_of_whole = folder / "ledger-whole", folder / "whole.checkpoint"
    epochs = ["--epochs", str(_EPOCHS * most), *options]
    own = [*epochs, "--ledger", str(ledger), "--out", str(model)]
    drawn = mmap.mmap(-1, 8)
    kills = behind = 0
    status = None
    while status in (None, -signal.SIGKILL):
        if model.exists() and not checkpoint.exists():
            status = 0  # killed after the last thing that it does
            break
        child = os.fork()
        if child == 0:
            code = 70
            try:
                code = quietly(
                    folder, lambda: train(drawn, *own, *["--resume"] * checkpoint.exists())
                )
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        if kills < most:
            time.sleep(made_up.uniform(0.0, _PATIENCE))
            while (
                kills == most - 1
                and not checkpoint.exists()
                and os.waitid(os.P_PID, child, _LOOK) is None
            ):
                time.sleep(0.01)  # or there is nothing that an undisturbed run could go on from
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        kills += status == -signal.SIGKILL
        if ledger.exists():
            entries = LedgerFile(ledger).read().entries
            paper = max(
                (sum(times for _, times in walk(entry.spent)) for entry in entries), default=0
            )
            behind += paper < int.from_bytes(drawn[:8], "little")
        if (
            "--seed" in options
            and ledger.exists()
            and not checkpoint.exists()
            and not model.exists()
        ):
            # what was killed before its first checkpoint stays on the ledger
            shutil.copy(ledger, ledger_of_whole)
        if checkpoint.exists() and not checkpoint_of_whole.exists() and "--seed" not in options:
            shutil.copy(checkpoint, checkpoint_of_whole)
            shutil.copy(ledger, ledger_of_whole)
    said = (folder / "output").read_text()[-2000:]
    whole = [*epochs, "--ledger", str(ledger_of_whole), "--out", str(folder / "whole")]
    whole += ["--resume"] if checkpoint_of_whole.exists() else []
    code = quietly(folder, lambda: cli.main([*TRAIN, *whole]))
    names = ["model.safetensors", "privacy.json", "config.json", "README.md"]
    print(
        json.dumps(
            {
                "kills": kills,
                "behind": behind,
                "codes": [status, code],
                "said": said,
                "drawn": int.from_bytes(drawn[:8], "little"),
                "steps": _EPOCHS * most * 23,
                "differ": [
                    name
                    for name in names
                    if content(model / name) != content(folder / "whole" / name)
                ],
                "files": sorted(path.name for path in folder.iterdir()),
            }
        )
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
