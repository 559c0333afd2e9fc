"""Starts a server and hospitals as processes of this machine, over TLS, and verifies what they
publish: `python start.py FOLDER [SITES]`.

The folder must not be there yet. It gets what each party has (records, keys, certificates), the
logs of all processes, and `student`, the published model.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from make_certificates import make_certificates
from sklearn.datasets import load_breast_cancer

APP = Path(__file__).parent
#: Where Flower's programs are: beside this Python.
PROGRAMS = Path(sys.executable).parent
#: Seconds: for the server to listen, for the run to end, and for processes to stop.
LISTENS, RUNS, STOPS = 60.0, 300.0, 10.0


def deal_records(folder: Path, sites: int) -> None:
    """Deal scikit-learn's breast-cancer data out: a file for each hospital, one of public inputs
    without labels.
    """
    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], y[order]
    public = x[:150]
    x = ((x - public.mean(0)) / public.std(0)).astype(np.float32)
    np.savez(folder / "public.npz", x=x[:150])
    for site in range(sites):
        records = slice(150 + site, None, sites)
        np.savez(folder / f"records-{site}.npz", x=x[records], y=y[records])


def start(folder: Path, sites: int) -> None:
    """Run the whole federation, and verify the student."""
    folder.mkdir(parents=True)
    deal_records(folder, sites)
    make_certificates(folder, sites)
    address = f"127.0.0.1:{free_port()}"
    connect(folder, address)
    environment = {
        **os.environ,
        "FLWR_HOME": str(folder / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        # Flower's programs start each other by their names
        "PATH": f"{PROGRAMS}{os.pathsep}{os.environ.get('PATH', '')}",
    }

    def flower(*words: str) -> None:
        command = [str(PROGRAMS / "flwr"), *words]
        subprocess.run(command, env=environment, check=True, timeout=RUNS)

    link = ["flower-superlink", "--port", address.rpartition(":")[2], "--enable-supernode-auth"]
    link += ["--ssl-ca-certfile", str(folder / "ca.pem")]
    link += ["--ssl-certfile", str(folder / "server.pem")]
    link += ["--ssl-keyfile", str(folder / "server.key")]
    link += ["--disable-runtime-dependency-installation"]
    with running(folder / "server.log", link, environment):
        wait_for(address)
        for site in range(sites):
            flower("supernode", "register", str(folder / f"site-{site}.pub"), "hospitals")
        with hospitals(folder, sites, address, environment):
            names = ("ledger", "ledger.db"), ("answers", "answers.pt"), ("out", "student")
            places = {"inputs": "public.npz", **dict(names)}
            config = [f'{name}="{folder / place}"' for name, place in places.items()]
            config.append(f"sites={sites}")
            flower("run", str(APP), "hospitals", "--stream", "--run-config", " ".join(config))
    verify = [sys.executable, "-m", "privlearn", "verify", str(folder / "student")]
    subprocess.run([*verify, "--ledger", str(folder / "ledger.db")], check=True)


@contextmanager
def hospitals(
    folder: Path, sites: int, address: str, environment: dict[str, str]
) -> Iterator[None]:
    """A SuperNode for each hospital, with its own key and its own records."""
    if sites == 0:
        yield
        return
    site = sites - 1
    node = ["flower-supernode", "--superlink", address, "--port", str(free_port())]
    node += ["--root-certificates", str(folder / "ca.pem")]
    node += ["--auth-supernode-private-key", str(folder / f"site-{site}")]
    node += ["--node-config", f'records="{folder / f"records-{site}.npz"}"']
    log = folder / f"site-{site}.log"
    with (
        running(log, node, environment),
        hospitals(folder, site, address, environment),
    ):
        yield


@contextmanager
def running(log: Path, command: list[str], environment: dict[str, str]) -> Iterator[None]:
    """A process with a log, stopped with its children at the end."""
    words = [str(PROGRAMS / command[0]), *command[1:]]
    with log.open("w") as file:
        process = subprocess.Popen(
            words, env=environment, stdout=file, stderr=file, start_new_session=True
        )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOPS)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def connect(folder: Path, address: str) -> None:
    """Write what `flwr run` reads: where the server is, and whose certificates it believes."""
    (folder / "flower").mkdir()
    lines = ["[superlink]", 'default = "hospitals"', "", "[superlink.hospitals]"]
    lines += [f'address = "{address}"', f'root-certificates = "{folder / "ca.pem"}"']
    (folder / "flower" / "config.toml").write_text("\n".join(lines) + "\n")


def free_port() -> int:
    """A port of the loopback that nothing listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(address: str) -> None:
    """Wait until something listens there."""
    host, _, port = address.rpartition(":")
    until = time.monotonic() + LISTENS
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


if __name__ == "__main__":
    start(Path(sys.argv[1]).absolute(), int(sys.argv[2]) if len(sys.argv) > 2 else 3)
