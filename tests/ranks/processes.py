"""Real processes on gloo, as torchrun starts them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

from privlearn import cli
from privlearn.runs import process_group

#: How many seconds something that has to happen may take on a busy machine.
PATIENCE = 900.0


def free_port() -> str:
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return str(own.getsockname()[1])


def torchrun(size: int, *words: str) -> subprocess.CompletedProcess[str]:
    """A command under torchrun, to its end."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(size),
        "--master-port",
        free_port(),
    ]
    return subprocess.run(
        [*command, *words], capture_output=True, text=True, timeout=PATIENCE, env=environment()
    )


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def told(rank: int, size: int, port: str) -> dict[str, str]:
    """What torchrun tells a process."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": "none",
    }


class Started:
    """Processes of one command, without torchrun's agent, which would end them before they end by
    themselves.
    """

    def __init__(self, size: int, folder: Path, *words: str) -> None:
        port = free_port()
        self._files = [(folder / f"said {rank}").open("w+") for rank in range(size)]
        self.processes = [
            subprocess.Popen(
                [sys.executable, *words],
                env={**environment(), **told(rank, size, port)},
                stdout=subprocess.DEVNULL,
                stderr=file,
            )
            for rank, file in enumerate(self._files)
        ]

    def kill(self, rank: int) -> None:
        self.processes[rank].send_signal(signal.SIGKILL)

    def end(self) -> tuple[list[int], list[str]]:
        """Their exit codes, and what each said on standard error."""
        codes = [process.wait(PATIENCE) for process in self.processes]
        said = []
        for file in self._files:
            file.seek(0)
            said.append(file.read())
            file.close()
        return codes, said

    def close(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()


@contextlib.contextmanager
def started(size: int, folder: Path, *words: str) -> Iterator[Started]:
    own = Started(size, folder, *words)
    try:
        yield own
    finally:
        own.close()


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Until a file is there, or a process has ended."""
    until = time.monotonic() + PATIENCE
    while not path.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """A block in which this process is the only one that torchrun started."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with mock.patch.dict(os.environ, told(0, 1, free_port())):
            yield
    finally:
        torch.set_num_threads(threads)
        process_group.JOINED.clear()
        if dist.is_initialized():
            dist.destroy_process_group()


def here(*words: str) -> int:
    """The command in this process, as the only one that torchrun started."""
    with alone():
        return cli.main(words)


def _started_by(agent: int) -> list[int]:
    """The processes that torchrun's agent started."""
    listed = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(agent)], capture_output=True, text=True
    ).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if "privlearn" in line]


def _taken(out: Path) -> int:
    """How many steps were noted beside the checkpoint: a line for each."""
    with contextlib.suppress(FileNotFoundError):
        return Path(f"{out}.checkpoint.steps").read_bytes().count(b"\n")
    return 0


def kill_until_done(
    words: Sequence[str],
    out: Path,
    kills: int,
    steps: int,
    seed: int,
    sizes: Sequence[int] = (1, 2, 2, 4),
) -> list[int]:
    """Run on 1, 2 or 4 processes, kill one of them, go on with others; after how many steps each
    was killed.

    Four of five are killed at a random step of so many, and then at any moment of it; the others
    while they start.
    """
    chance = random.Random(seed)
    places = sorted(chance.randrange(1, steps - steps // 20) for _ in range(kills))
    killed: list[int] = []
    while not out.exists():
        size, resume = chance.choice(sizes), ["--resume"] * Path(f"{out}.checkpoint").exists()
        agent = [
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(size),
            "--master-port",
            free_port(),
        ]
        with Path(f"{out}.said").open("w") as file:
            command = [sys.executable, *agent, "-m", "privlearn", *words, *resume]
            run = subprocess.Popen(command, stdout=file, stderr=file, env=environment())
            if len(killed) < kills:
                starting = bool(resume) and chance.random() < 0.2
                place = 0 if starting else places[len(killed)]
                until = time.monotonic() + PATIENCE
                while run.poll() is None and time.monotonic() < until:
                    if _taken(out) >= place and _started_by(run.pid):
                        break
                    time.sleep(0.005)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    run.wait(chance.uniform(0.0, 8.0 if starting else 0.2))
                if own := _started_by(run.pid):
                    os.kill(chance.choice(own), signal.SIGKILL)
                    killed.append(_taken(out))
            code = run.wait(PATIENCE)
        assert code != 0 or out.exists(), Path(f"{out}.said").read_text()
    return killed
