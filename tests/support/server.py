"""A PostgreSQL server for tests: in a temporary folder, on a socket there, started when a test asks
for it first.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from functools import cache
from itertools import count
from pathlib import Path

import psycopg
import pytest

#: Whether a server has to be there: `make nightly` says so.
REQUIRED = "PRIVLEARN_REQUIRE_POSTGRESQL"
_numbers = count(1)


@cache
def _start() -> str | None:
    """The folder of the socket of a new server; None if PostgreSQL isn't installed."""
    if shutil.which("initdb") is None or shutil.which("pg_ctl") is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    # servers refuse to run as root
    user = "nobody" if os.geteuid() == 0 else None
    if user is not None:
        shutil.chown(folder, user)
    data = folder / "data"
    options = f"-k {folder} -c listen_addresses= -c max_connections=60"

    def run(*command: str) -> None:
        done = subprocess.run(
            command, user=user, cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    run("initdb", "-D", str(data), "-U", "owner", "-A", "trust", "-E", "UTF8", "--no-sync")
    run("pg_ctl", "-D", str(data), "-l", str(folder / "log"), "-o", options, "-w", "start")
    starter = os.getpid()

    def stop() -> None:
        if os.getpid() == starter:  # and no child that was forked
            run("pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop")
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    return str(folder)


def new_database() -> str:
    """The address of a new, empty database, as its owner.

    Skips the test where no server can be started, unless one is required.
    """
    folder = _start()
    if folder is None:
        reason = "PostgreSQL is not here: neither initdb nor pg_ctl are on the PATH"
        if os.environ.get(REQUIRED):
            pytest.fail(reason)
        pytest.skip(reason)
    name = f"ledger{os.getpid()}_{next(_numbers)}"
    address = f"postgresql://owner@/postgres?host={folder}"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return address.replace("postgres?", f"{name}?")


def address_of(user: str, address: str) -> str:
    """The address of another user in the same database."""
    return address.replace("owner@", f"{user}@")
