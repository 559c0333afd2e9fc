"""What strangers may send, kept: each file in `hostile/` is refused in privlearn's own words, at
once.

Nothing runs. There is a folder for each reader. What mutations make of the files is refused
likewise, or read as what it then says.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privlearn as pv
from privlearn._storage import loads
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.data.packed import load_packed
from privlearn.data.schema import read_schema
from privlearn.errors import BadInput, PrivlearnError
from privlearn.publishing import certificate
from privlearn.runs.checkpoint import Checkpoint, run_of
from privlearn.runs.transcript import Recording
from tests.data.checks import declared
from tests.publishing.checks import published
from tests.publishing.test_fuzz_published import Watch, answered
from tests.support import fuzz

HOSTILE = Path(__file__).parent / "hostile"
SECONDS = 5.0
NIGHTLY = pytest.mark.nightly


def config(path: Path) -> None:
    refused_on_screen("budget", "--config", str(path))


def plan(path: Path) -> None:
    try:
        value = loads(path.read_bytes())
    except ValueError as error:
        raise BadInput(str(error)) from error
    certificate.read_plan(value)


def rows(path: Path) -> None:
    pv.load(str(path), classes=2, value_range=(0.0, 1.0))


def table(path: Path) -> None:
    pv.load(str(path), schema=declared())


def packed(path: Path) -> None:
    """The file as x.npy, or as what is declared of a sound one."""
    folder = path.with_suffix("")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    np.save(folder / "x.npy", np.zeros((2, 3), np.float32))
    np.save(folder / "y.npy", np.zeros(2, np.int64))
    shutil.copy(path, folder / ("data.json" if path.suffix == ".json" else "x.npy"))
    load_packed(folder, *((2, (0.0, 1.0)) if path.suffix == ".npy" else ()))


def checkpoint(path: Path) -> None:
    run_of(Checkpoint(path))


def transcript(path: Path) -> None:
    """The lines of a recorded run, with a commitment and its secret."""
    for name in ("commitment.json", "secret.json"):
        if path.name != name:
            shutil.copy(HOSTILE / "transcript" / name, path.parent)
    if path.suffix == ".jsonl":
        shutil.copy(path, path.parent / "transcript.jsonl")
    Recording(path.parent).streams()


def options(path: Path) -> None:
    """The options of a recorded run, as an auditor gets them."""
    folder = path.with_suffix("")
    folder.mkdir(exist_ok=True)
    shutil.copy(path, folder / "options.json")
    refused_on_screen("replay", str(folder))


def refused_on_screen(*command: str) -> None:
    if answered(*command)[0] == 2:
        raise BadInput("refused")


READERS: dict[str, Callable[[Path], Any]] = {
    "config": config,
    "plan": plan,
    "certificate": lambda path: certificate.parse(path.read_bytes()),
    "ledger": lambda path: LedgerFile(path).read(),
    "schema": read_schema,
    "table": table,
    "rows": rows,
    "packed": packed,
    "checkpoint": checkpoint,
    "transcript": transcript,
    "options": options,
}
#: What others in its folder are read beside.
SOUND = ("commitment.json", "secret.json")
FILES = [path for path in sorted(HOSTILE.glob("*/*")) if path.name not in SOUND]


@pytest.fixture(scope="module")
def watch() -> Watch:
    return Watch()


def test_the_corpus_is_small_and_of_all_readers() -> None:
    assert {path.parent.name for path in FILES} == set(READERS)
    assert sum(path.stat().st_size for path in HOSTILE.glob("*/*")) < 200_000


def read(path: Path) -> bool:
    """Whether a file is read; if it is not, it was refused properly."""
    began = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            READERS[path.parent.name](path)
        return True
    except PrivlearnError as error:
        said = str(error)
    finally:
        assert time.process_time() - began < SECONDS
    assert 0 < len(said) < 2000
    return False


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_each_is_refused(path: Path, watch: Watch, tmp_path: Path) -> None:
    (tmp_path / path.parent.name).mkdir()
    with watch.nothing_runs():
        assert not read(Path(shutil.copy(path, tmp_path / path.parent.name)))


@pytest.mark.parametrize("total", [3, pytest.param(500, marks=NIGHTLY)])
@pytest.mark.parametrize("kind", READERS)
def test_what_mutations_make_of_them(kind: str, total: int, watch: Watch, tmp_path: Path) -> None:
    (tmp_path / kind).mkdir()
    own = [path for path in HOSTILE.glob(f"{kind}/*") if total > 3 or path.stat().st_size < 4000]
    with watch.nothing_runs():
        for number, path in enumerate(sorted(own)):
            for text in fuzz.mutations(path.read_bytes(), seed=number, count=total):
                copy = tmp_path / kind / path.name
                copy.write_bytes(text)
                try:
                    read(copy)
                except Exception as error:
                    raise AssertionError(f"{kind}/{path.name}: {text[:2000]!r}") from error


def leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place below `value` that holds no further ones."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        if isinstance(inner, dict | list) and inner:
            yield from leaves(inner)
        else:
            yield value, key


@pytest.mark.parametrize("some", [4, pytest.param(1, marks=NIGHTLY)])
def test_an_altered_certificate_is_never_valid(some: int, tmp_path: Path) -> None:
    """Each value of it in turn, or every fourth: doubled, another word, another truth."""
    out = published(tmp_path)
    body = json.loads((out / "privacy.json").read_text())
    places = list(leaves(body))
    assert len(places) > 40
    for where, key in places[::some]:
        kept = where[key]
        where[key] = (
            kept * 2 or 2
            if type(kept) in (int, float)
            else not kept
            if type(kept) is bool
            else f"{kept}x"
        )
        (out / "privacy.json").write_text(json.dumps(body))
        with contextlib.suppress(PrivlearnError):
            assert not pv.verify(out).ok, (key, kept)
        where[key] = kept
    (out / "privacy.json").write_text(json.dumps(body))
    assert pv.verify(out).ok
