"""Named checks of rows that stay on disk: packed as they are read, fetched as they are, a few at a
time.
"""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch

import privlearn as pv
from privlearn.core.processes import World
from privlearn.core.rows import FetchedRows, TensorRows
from privlearn.core.sampling import Poisson
from privlearn.data import dataset, pack, table_files
from privlearn.data.dataset_rows import DatasetRows
from privlearn.data.schema import Category, Number, Schema
from privlearn.errors import BadInput
from privlearn.training import pinned_rows, task
from privlearn.training.task import Task
from tests.support.checks import check, must_raise

SCHEMA = Schema(
    "ill",
    ("no", "yes"),
    (
        Number("a", 0, 1),
        Number("b", -5, 5, missing=1, indicator=True),
        Category("sex", ("f", "m")),
        Number("whole", 0, 50),
    ),
    person="who",
)


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def columns(rows: int = 200, who: str = "person") -> dict[str, Any]:
    rng = np.random.default_rng(0)
    b = [None if rng.random() < 0.2 else float(value) for value in rng.normal(0, 5, rows)]
    return {
        "a": rng.normal(0.5, 1, rows).astype(np.float32),
        "b": b,
        "sex": rng.choice(["f", "m", "x"], rows).tolist(),
        "whole": rng.integers(-20, 80, rows),
        "ill": rng.choice(["no", "yes"], rows).tolist(),
        "who": [f"{who} {own}" for own in rng.integers(0, 60, rows)],
        "other": [0] * rows,
    }


def parquet(path: Path, own: dict[str, Any]) -> Path:
    import pyarrow
    from pyarrow.parquet import write_table

    write_table(pyarrow.table(own), path, row_group_size=30)
    return path


def on_disk(path: Path, rows: int = 300) -> tuple[pv.Dataset, pv.Dataset]:
    """The same rows, memory-mapped and in memory."""
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, (rows, 2, 3), dtype=np.uint8)
    y = (x[:, 0, 0] > 128).astype(np.int64)
    np.save(path / "x.npy", x)
    np.save(path / "y.npy", y)
    return (
        pv.load(path, classes=2, value_range=(0, 255)),
        pv.Dataset(x, y, classes=2, low=0.0, high=255.0),
    )


@check
def check_packed_rows_are_the_rows_that_are_read() -> None:
    """From chunks of a Parquet file and from a data frame as from the whole file; persons stay who
    they are.
    """
    import pandas

    with folder() as path, mock.patch.object(table_files, "_CHUNK", 17):
        file = parquet(path / "rows.parquet", columns())
        read = pv.load(
            file, schema=SCHEMA, test=parquet(path / "test.parquet", columns(20, "other"))
        )
        pack(file, path / "packed", schema=SCHEMA, test=path / "test.parquet")
        pack(pandas.DataFrame(columns()), path / "frame", schema=SCHEMA)
        for own in (pv.load(path / "packed"), pv.load(path / "frame")):
            assert isinstance(own.x, np.memmap)
            for name in ("x", "y", "x_test", "y_test"):
                if getattr(own, name) is not None:
                    assert np.array_equal(getattr(own, name), getattr(read, name)), name
            for name in ("low", "high"):
                assert np.array_equal(getattr(own, name), getattr(read, name)), name
            assert (own.classes, own.feature_names) == (read.classes, read.feature_names)
            assert own.schema.digest == read.schema.digest  # type: ignore[union-attr]
            assert own.examples == read.examples == len(set(columns()["who"]))
            one, other = (
                np.unique(part.groups, return_inverse=True)[1].tolist() for part in (own, read)
            )
            assert len(set(zip(one, other, strict=True))) == own.examples
            for row in own.x[:, :2]:
                assert row[0] >= 0, "a bound was left"


@check
def check_what_can_not_be_packed_is_refused_with_its_row() -> None:
    """And nothing is left: neither a folder that looks complete, nor a draft."""
    bad = {"a": float("nan"), "sex": None, "ill": "maybe", "who": ""}
    with folder() as path, mock.patch.object(table_files, "_CHUNK", 17):
        for name, value in bad.items():
            own = columns()
            own[name] = [
                value if row == 100 else cell
                for row, cell in enumerate(np.asarray(own[name]).tolist())
            ]
            out = path / f"packed {name}"
            file = parquet(path / "rows.parquet", own)
            if name == "sex":  # a missing category is none
                pack(file, out, schema=SCHEMA)
                continue
            error = must_raise(BadInput, lambda file=file, out=out: pack(file, out, schema=SCHEMA))
            assert "row 101" in str(error)
            assert not out.exists()
        assert sorted(own.name for own in path.iterdir()) == ["packed sex", "rows.parquet"]
        must_raise(BadInput, lambda: pack(file, path / "packed sex", schema=SCHEMA))


@check
def check_chunks_of_arrays_are_packed_as_declared() -> None:
    x, y = np.random.default_rng(2).normal(size=(50, 3)), np.arange(50) % 3
    given: dict[str, Any] = {"classes": 3, "value_range": (-1, 1)}
    with folder() as path:
        own = pv.load(
            pack(
                ((x[at : at + 8], y[at : at + 8]) for at in range(0, 50, 8)),
                path / "packed",
                **given,
            )
        )
        assert np.array_equal(own.x, x.astype(np.float32))
        assert (own.classes, own.low, own.high, own.y.tolist()) == (3, -1.0, 1.0, y.tolist())
        for number, chunks in enumerate(
            (
                [(x, y + 1)],
                [(x, y[:-1])],
                [(x[:5], y[:5]), (x[:5, :2], y[:5])],
                [(x * np.inf, y)],
                [x],
                [],
                5,
            )
        ):
            must_raise(
                BadInput,
                lambda chunks=chunks, number=number: pack(chunks, path / f"{number}", **given),
            )
        numbers: dict[str, Any] = {"target_bounds": (0, 2), "value_range": (-1, 1)}
        for own in (pv.load(pack([(x, y)], path / "numbers", **numbers)),):
            assert (own.classes, own.target_bounds, own.y.dtype) == (None, (0, 2), np.float32)
        must_raise(BadInput, lambda: pack([(x, np.full(50, np.inf))], path / "infinite", **numbers))
        must_raise(BadInput, lambda: pack([(x, y)], path / "undeclared", classes=3))
        must_raise(BadInput, lambda: pack(path / "packed", path / "again"))


@check
def check_folders_without_rows_are_refused() -> None:
    with folder() as path:
        on_disk(path)
        (path / "only").mkdir()
        np.save(path / "only" / "x.npy", np.zeros((3, 2)))
        must_raise(BadInput, lambda: pv.load(path / "only", classes=2, value_range=(0, 1)))
        must_raise(BadInput, lambda: pv.load(path))
        must_raise(BadInput, lambda: pv.load(path / "x.npy", classes=2, value_range=(0, 1)))
        must_raise(BadInput, lambda: pv.load(path, schema=SCHEMA))
        for content in (b"{}", b'{"name": "x", "classes": 1, "low": 0, "high": 1}', b"no JSON"):
            (path / "data.json").write_bytes(content)
            must_raise(BadInput, lambda: pv.load(path))
        (path / "data.json").unlink()
        np.save(path / "y.npy", np.array([{}] * 300), allow_pickle=True)
        must_raise(BadInput, lambda: pv.load(path, classes=2, value_range=(0, 1)))
        np.save(path / "y.npy", np.full(300, 2))
        must_raise(BadInput, lambda: pv.load(path, classes=2, value_range=(0, 1)))


@check
def check_training_from_disk_is_training_from_memory() -> None:
    """Bit for bit, by every sampler, also where what is fetched ahead is read by several
    threads.
    """
    with folder() as path:
        mapped, whole = on_disk(path)
        for sampling in ("poisson", "partition", "shuffle"):
            one, other = (
                pv.train(
                    own,
                    epsilon=3,
                    model="mlp:4",
                    epochs=2,
                    batch_size=40,
                    sampling=sampling,
                    streams=pv.Streams.new(1),
                )
                for own in (mapped, whole)
            )
            for mine, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
                assert torch.equal(mine, theirs), sampling


@check
def check_rows_fetched_ahead_are_the_rows() -> None:
    with folder() as path:
        mapped, _ = on_disk(path)
        rows = TensorRows((mapped.x, mapped.y))
        batches = [np.array([5, 3, 200, 40]), np.zeros(0, np.int64), np.array([7])]
        for own, indices in zip(rows.ahead(batches), batches, strict=True):
            assert isinstance(own, FetchedRows)
            for asked in (
                indices,
                indices[1:],
                np.array([9, 250]),
                np.append(indices, 8),
                np.zeros(0, np.int64),
            ):
                for mine, theirs in zip(
                    own.fetch(torch.from_numpy(asked)),
                    rows.fetch(torch.from_numpy(asked)),
                    strict=True,
                ):
                    assert torch.equal(mine, theirs)


@check
def check_a_row_that_can_not_be_read_changes_no_other() -> None:
    """Where one fails that was fetched ahead, the others are there all the same, and it fails by
    itself.
    """
    with folder() as path:
        mapped, _ = on_disk(path)
        rows, at = TensorRows((mapped.x, mapped.y)), TensorRows.fetch

        def failing(own: TensorRows, places: torch.Tensor) -> Any:
            if 7 in places.tolist():
                raise OSError("a bad sector")
            return at(own, places)

        with mock.patch.object(TensorRows, "fetch", failing):
            (own,) = rows.ahead([np.array([3, 7, 8])])
            assert own.fetch(torch.tensor([3, 8]))[1].tolist() == mapped.y[[3, 8]].tolist()
            must_raise(OSError, lambda: own.fetch(torch.tensor([7])))


@check
def check_few_batches_are_drawn_ahead() -> None:
    """However many an epoch has: what is fetched ahead takes the memory of some batches."""

    class Pairs(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 1000

        def __getitem__(self, row: int) -> Any:
            return torch.full((2,), float(row)), row % 2

    with folder() as path:
        mapped, _ = on_disk(path)
        for rows, most in (
            (TensorRows((mapped.x, mapped.y)), 2),
            (DatasetRows(Pairs(), workers=1), 6),
        ):
            drawn: list[int] = []

            def batches(drawn: list[int] = drawn) -> Iterator[Any]:
                for number in range(200):
                    drawn.append(number)
                    yield np.array([number])

            for place, own in enumerate(rows.ahead(batches())):
                assert len(drawn) <= place + most
                assert len(own.fetch(torch.tensor([place]))[0]) == 1
                if place == 10:
                    break


@check
def check_rows_on_disk_are_not_read_into_memory() -> None:
    """16 MB of rows are loaded, settled and made a task with few of them in memory."""
    with folder() as path:
        for name, values in (
            ("x", np.zeros((100_000, 40), np.float32)),
            ("y", np.zeros(100_000, np.uint8)),
        ):
            np.save(path / f"{name}.npy", values)
        sizes: list[int] = []
        made = Task.__init__

        def measured(self: Task, *given: Any, **more: Any) -> None:
            made(self, *given, **more)
            sizes.append(tracemalloc.get_traced_memory()[1] if tracemalloc.is_tracing() else 0)
            raise KeyboardInterrupt

        def start() -> None:
            data = pv.load(path, classes=2, value_range=(0, 1))
            with mock.patch.object(Task, "__init__", measured):
                must_raise(KeyboardInterrupt, lambda: pv.train(data, epsilon=3))  # type: ignore[arg-type]

        start()  # so that what is imported and kept does not count
        tracemalloc.start()
        try:
            start()
        finally:
            tracemalloc.stop()
        assert sizes[1] < 3 << 20


@check
def check_twins_among_many_rows_are_estimated() -> None:
    """Of some rows only: test rows that are training rows are seen all the same, and equal rows are
    no proof of it.
    """
    rng = np.random.default_rng(3)
    for rows in (rng.random((4000, 3)), rng.integers(0, 9, (4000, 2)).astype(float)):
        exact = [dataset.overlap(own, rows) for own in (rows[::7], rng.random((50, rows.shape[1])))]
        with mock.patch.object(dataset, "_ASKED", 500):
            for (copies, twins), own in zip(
                exact, (rows[::7], rng.random((50, rows.shape[1]))), strict=True
            ):
                estimated = dataset.overlap(own, rows)
                assert estimated[0] == copies
                assert abs(estimated[1] - twins) < 0.05


@check
def check_a_process_reads_its_own_rows_ahead() -> None:
    """Not those of the others that it trains with."""

    class Half(World):
        def own(self, examples: Any) -> Any:
            return examples[examples % 2 == 0]

    with folder() as path:
        mapped, _ = on_disk(path)
        rows, read, at = TensorRows((mapped.x, mapped.y)), [], TensorRows.fetch

        def watched(own: TensorRows, places: torch.Tensor) -> Any:
            read.extend(places.tolist())
            return at(own, places)

        drawn = enumerate(Poisson(0.1).draw(300, np.random.default_rng(0)))
        some: Any = SimpleNamespace(
            indexed=rows, rows=rows, persons=None, row_key=lambda epoch, step: b""
        )
        session: Any = SimpleNamespace(world=Half(), device=torch.device("cpu"))
        with mock.patch.object(TensorRows, "fetch", watched):
            samples = [sample for _, sample, _ in task._with_rows(drawn, some, 0, session)]
        wanted = np.concatenate([sample.indices for sample in samples])
        assert sorted(read) == sorted(wanted[wanted % 2 == 0].tolist())


@check
def check_rows_fetched_ahead_are_those_that_are_asked_for() -> None:
    """Whichever of a batch, in whatever order, or none of it; one that fails does so alone, when it
    is asked for.
    """
    rows = TensorRows((torch.arange(40.0).view(20, 2), torch.arange(20)))
    batches = [np.array([3, 4, 9, 12]), np.array([15, 2, 7, 1, 0]), np.array([], np.int64)]
    at = TensorRows.fetch

    def fails_at_seven(own: TensorRows, places: torch.Tensor) -> Any:
        if 7 in places.tolist():
            raise OSError("a row that can't be read")
        return at(own, places)

    with (
        mock.patch.object(pinned_rows, "reads_pinned", return_value=True),
        mock.patch.object(torch.Tensor, "pin_memory", torch.Tensor.clone),
        mock.patch.object(TensorRows, "fetch", fails_at_seven),
    ):
        for number in range(6):
            fetched = pinned_rows.fetch_ahead(rows, batches, torch.device("cpu"), 5.0)
            for batch, ahead in zip(batches, fetched, strict=True):
                parts = [batch, batch[1:3], batch[-2:], batch[::-1], batch[[0] * len(batch)]]
                places = torch.from_numpy([*parts, np.array([19, 3])][number].copy())
                if 7 in places:
                    must_raise(OSError, lambda: ahead.fetch(places))  # noqa: B023
                    continue
                for _ in range(2):  # what is done with them changes no row
                    leaves = ahead.fetch(places)
                    assert all(map(torch.equal, leaves, at(rows, places)))
                    torch._foreach_zero_(list(leaves))
