"""Damaged files are read as what they say, or refused in privlearn's own words: no other error,
nothing is executed.
"""

from __future__ import annotations

import io
import json
import sqlite3
import tempfile
import warnings
from collections.abc import Callable
from contextlib import closing
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch

import privlearn as pv
from privlearn.core.accounting import accountant
from privlearn.core.accounting.events import Repeated
from privlearn.core.accounting.ledgers import ledger_database, ledger_rows
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.core.accounting.mechanisms import Gaussian, PoissonSampled
from privlearn.data.schema import Number, Schema, read_schema
from privlearn.errors import DataWarning, PrivlearnError
from privlearn.runs.checkpoint import Checkpoint
from tests.data.checks import CSV, SCHEMA, declared
from tests.support import fuzz

QUICK, NIGHTLY = 300, 10_000


def npz(**arrays: object) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


ROWS = {"x": np.linspace(0, 1, 24, dtype=np.float32).reshape(8, 3), "y": np.arange(8) % 2}


def compressed() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **ROWS)
    return file.getvalue()


def parquet() -> bytes:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pyarrow.parquet as files

    columns = {
        "age": [30, 16, None, 120],
        "hours": [40.0, -1e300, 98.5, 0.0],
        "work": ["private", "state", "?", "x"],
    }
    file = io.BytesIO()
    files.write_table(
        pyarrow.table(columns | {"income": ["<=50K", ">50K", ">50K", "<=50K"]}),
        file,
        write_page_checksum=True,
    )
    return file.getvalue()


def load_npz(path: Path) -> None:
    data = pv.load(str(path), classes=2, value_range=(0.0, 1.0))
    # Zip files hold a checksum of each array: what is read at all is what was written.
    assert np.array_equal(data.x, ROWS["x"])
    assert np.array_equal(data.y, ROWS["y"])


def load_table(path: Path) -> None:
    data = pv.load(str(path), schema=declared())
    assert len(data.x) == len(data.y) > 0
    assert (data.x >= data.low).all()
    assert (data.x <= data.high).all()
    assert set(np.unique(data.y)) <= {0, 1}


def load_parquet(path: Path) -> None:
    # Its pages have checksums too. What comes before them says which columns there are, and of what
    # type.
    data = pv.load(str(path), schema=declared())
    assert data.x.tolist() == [[30, 1, 0, 40], [17, 0, 1, -1.5], [40, 0, 0, 98.5], [90, 0, 0, 0]]
    assert data.y.tolist() == [0, 1, 1, 0]


def load_schema(path: Path) -> None:
    found: Schema = read_schema(path)
    low, high = found.bounds()
    assert np.isfinite(low).all()
    assert np.isfinite(high).all()
    assert (low < high).all()
    assert len(set(found.classes)) == len(found.classes) >= 2
    assert all(
        c.missing is None or c.low <= c.missing <= c.high
        for c in found.features
        if isinstance(c, Number)
    )


@lru_cache
def ledger() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        opened = pv.Ledger.open(
            Path(folder, "ledger"), pv.Budget(3.0, 1e-5), what="a study", measure="renyi"
        )
        opened.charge(Gaussian(5.0), pv.accounting.Adjacency.ADD_REMOVE)
        opened.begin(
            Repeated(PoissonSampled(0.1, Gaussian(2.0)), 10), pv.accounting.Adjacency.ADD_REMOVE
        )
        opened.charge(PoissonSampled(0.1, Gaussian(2.0)), pv.accounting.Adjacency.ADD_REMOVE)
        return Path(folder, "ledger").read_bytes()


def load_ledger(path: Path) -> None:
    # Its digest covers all that it says: what is read at all is what was written.
    pages = LedgerFile(path).read()
    path.write_bytes(ledger())
    assert pages == LedgerFile(path).read()


def forged_ledger() -> bytes:
    """What the rows of a ledger hold."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ledger")
        path.write_bytes(ledger())
        with closing(sqlite3.connect(path)) as connection:
            rows = connection.execute("SELECT whole, content FROM change ORDER BY number")
            return json.dumps(
                [[whole, json.loads(text)] for whole, text in rows], indent=1
            ).encode()


def load_forged_ledger(path: Path) -> None:
    """In rows that follow each other, with their digests, it is a ledger or it is none: but no
    other error comes of it.
    """
    try:
        written = json.loads(path.read_bytes())
        rows = [(int(whole), json.dumps(content)) for whole, content in written]
        path.write_bytes(ledger())
    except (ValueError, TypeError, OverflowError, RecursionError):
        rows = []  # no database, which is refused
    if rows:
        _write_rows(path, rows)
    pages = LedgerFile(path).read()
    accountant.guarantee(pages.event, pages.adjacency or pv.accounting.Adjacency.ADD_REMOVE, 1e-5)


def _write_rows(path: Path, rows: list[tuple[int, str]]) -> None:
    """Put other rows into a ledger, with their digests."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        asked = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        triggers = dict(connection.execute(asked).fetchall())
        undone = "changes_are_never_deleted", "the_head_goes_on"
        for name in undone:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("DELETE FROM change")
        (name,) = connection.execute("SELECT data FROM head").fetchone()
        connection.execute("UPDATE head SET number = 0, digest = ?", (ledger_rows.START,))
        before = ledger_rows.START
        for number, (whole, content) in enumerate(rows, 1):
            row = ledger_rows.Row(name, number, "", int(bool(whole)), content, before, "")
            before = ledger_rows.compute_digest(row)
            connection.execute(ledger_database._INSERT, row._replace(digest=before))
        for name in undone:
            connection.execute(triggers[name])


@lru_cache
def checkpoint() -> bytes:
    x, y = torch.linspace(0, 1, 24).view(8, 3), torch.arange(8) % 2
    plan = pv.Plan(pv.Poisson(0.5), epochs=1, schedule=pv.schedules.Constant(2.0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run")
        loss = torch.nn.CrossEntropyLoss(reduction="none")
        pv.dpsgd(
            plan, torch.nn.Linear(3, 2), loss, (x, y), streams=pv.Streams.new(0), checkpoint=path
        )
        return path.read_bytes()


def load_checkpoint(path: Path) -> None:
    saved = Checkpoint(path).read()
    path.write_bytes(checkpoint())
    whole = Checkpoint(path).read()
    assert saved is not None
    assert whole is not None
    assert saved.plain == whole.plain
    assert all(torch.equal(saved.tensors[name], value) for name, value in whole.tensors.items())


KINDS: dict[str, tuple[Callable[[], bytes], Callable[[Path], None]]] = {
    "rows.npz": (lambda: npz(**ROWS), load_npz),
    "packed.npz": (compressed, load_npz),
    "people.csv": (CSV.encode, load_table),
    "people.parquet": (parquet, load_parquet),
    "people.toml": (SCHEMA.encode, load_schema),
    "study.ledger": (ledger, load_ledger),
    "forged.ledger": (forged_ledger, load_forged_ledger),
    "run.checkpoint": (checkpoint, load_checkpoint),
}


def survive(name: str, folder: Path, count: int, seed: int) -> tuple[int, int]:
    """Read `count` damaged files; how many were read, and how many refused."""
    make, read = KINDS[name]
    content, path = make(), folder / name
    path.write_bytes(content)
    read(path)
    read_at_all = 0
    for number, damaged in enumerate(fuzz.mutations(content, seed, count)):
        path.write_bytes(damaged)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                warnings.simplefilter("ignore", DataWarning)  # of cells, which may be any
                read(path)
            read_at_all += 1
            continue
        except PrivlearnError as error:
            message = str(error)
        except Exception as error:
            raise AssertionError(f"mutation {number} of seed {seed}: {damaged[:3000]!r}") from error
        assert name in message, message
        assert len(message) < 2000, message
    return read_at_all, count - read_at_all


@pytest.mark.parametrize("name", KINDS)
def test_damaged_files(name: str, tmp_path: Path) -> None:
    fine, refused = survive(name, tmp_path, QUICK, seed=0)
    assert refused > QUICK / 4
    if name.endswith((".csv", ".toml")):
        assert fine > QUICK / 30


@pytest.mark.nightly
@pytest.mark.parametrize("name", KINDS)
def test_many_damaged_files(name: str, tmp_path: Path) -> None:
    print(name, survive(name, tmp_path, NIGHTLY, seed=1))
