"""What the pages' examples run on in the tests: small made-up data in place of large ones, and
short training.

What is made smaller is all here. Everything else of a block runs as it stands on the page.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import privlearn as pv
from privlearn.data import formats, named
from privlearn.transforms import made_up_images
from privlearn_segmentation import Start, Training, public_network
from privlearn_segmentation import hippocampus as hippocampus_module
from tests.pages.page_blocks import blocks
from tests.publishing.small_hub import small_hub

_ROWS, _TEST_ROWS = 300, 60
#: Of the hippocampus volumes: records; the other parts are as large as they are.
_RECORDS = 6


def images(name: str, *shape: int, high: float = 255.0) -> pv.Dataset:
    """Ten classes, each a bright square in a place of its own, in noise."""
    rng = np.random.default_rng(7)
    y = np.arange(_ROWS + _TEST_ROWS) % 10
    x = rng.uniform(0, 0.3, (len(y), *shape))
    rows, columns = shape[-2] // 2, shape[-1] // 5
    for label in range(10):
        top, left = rows * (label // 5), columns * (label % 5)
        x[y == label, ..., top : top + rows, left : left + columns] += 0.6
    return _dataset((high * x.clip(0, 1)).astype(np.uint8), y, name, 10, 0.0, high)


def rows(name: str, numbers: int, classes: int, high: float) -> pv.Dataset:
    """Rows of non-negative numbers, of which each class has larger ones in another part."""
    rng = np.random.default_rng(8)
    y = np.arange(_ROWS + _TEST_ROWS) % classes
    x = rng.uniform(0, 0.4, (len(y), numbers))
    x += 0.5 * (np.arange(numbers)[None] * classes // numbers == y[:, None])
    return _dataset((high * x.clip(0, 1)).astype(np.float32), y, name, classes, 0.0, high)


def _dataset(
    x: NDArray[Any], y: NDArray[Any], name: str, classes: int, low: float, high: float
) -> pv.Dataset:
    y = y.astype(np.int64)
    return pv.Dataset(
        x[:_ROWS],
        y[:_ROWS],
        x[_ROWS:],
        y[_ROWS:],
        classes=classes,
        low=low,
        high=high,
        name=name,
        note="made up",
    )


def hippocampus() -> pv.Dataset:
    """Few records, and the real numbers of public and test volumes, on their own grid: a block in
    two parts.
    """
    rng = np.random.default_rng(9)
    y = np.zeros(
        (
            _RECORDS
            + hippocampus_module.LABELLED
            + hippocampus_module.POOL
            + hippocampus_module.TEST,
            20,
            28,
            20,
        ),
        np.uint8,
    )
    for own in y:
        a, b, c = rng.integers(2, 8, 3)
        own[a : a + 6, b : b + 6, c : c + 5], own[a : a + 6, b + 6 : b + 12, c : c + 5] = 1, 2
    x = (0.4 * y + rng.uniform(0, 0.2, y.shape)).clip(0, 1).astype(np.float32)[:, None]
    return pv.Dataset(
        x[:_RECORDS],
        y[:_RECORDS],
        x[_RECORDS:],
        y[_RECORDS:],
        classes=3,
        low=0.0,
        high=1.0,
        name="hippocampus",
    )


def some_digits() -> pv.Dataset:
    """A third of the digits' training rows."""
    data = formats.digits({})
    return replace(data, x=data.x[:480], y=data.y[:480])


#: The named data sets of the pages, as the tests have them.
DATA: dict[str, Callable[[], pv.Dataset]] = {
    "digits": some_digits,
    "breast-cancer": lambda: formats.breast_cancer({}),
    "mnist": lambda: images("mnist", 28, 28),
    "usps-all": lambda: images("usps-all", 16, 16),
    "adult": lambda: rows("adult", 104, 2, 1.0),
    "cifar10-features": lambda: rows("cifar10-features", 1024, 10, 6.0),
    "hippocampus": hippocampus,
}


def patients(folder: Path) -> None:
    """patients.npz, and patients.csv with its schema; prices.npz."""
    rng = np.random.default_rng(5)
    y = np.arange(200) % 2
    np.savez(
        folder / "patients.npz",
        x=(rng.random((200, 8)) / 2 + y[:, None] / 2).astype(np.float32),
        y=y,
    )
    x = rng.random((200, 4)).astype(np.float32)
    np.savez(folder / "prices.npz", x=x, y=(5e5 * x.mean(1)).astype(np.float32))
    (folder / "patients.toml").write_text(
        'target = "ill"\n[columns.age]\nkind = "number"\nlow = 0\nhigh = 100\n[columns.ill]\nkind '
        '= "target"\nclasses = ["no", "yes"]\n'
    )
    _table(
        folder / "patients.csv",
        ("age", "ill"),
        [(20 + 50 * k % 100, ("no", "yes")[k % 2]) for k in range(200)],
    )


def people(folder: Path) -> None:
    """people.csv and more.csv, as docs/data.md declares them, and new.csv without the target; and
    census.csv.
    """
    table = [
        (17 + k % 70, ("Private", "State-gov")[k // 70 % 2], ("<=50K", ">50K")[k % 2])
        for k in range(140)
    ]
    others = [(17 + k, "?", ("<=50K", ">50K")[k % 2]) for k in range(40)]
    heads = ("age", "workclass", "income")
    _table(folder / "people.csv", heads, table)
    _table(folder / "more.csv", heads, others)
    _table(folder / "new.csv", heads[:2], [row[:2] for row in table[:10]])
    _table(folder / "census.csv", heads, table[:50])


def people_with_schema(folder: Path) -> None:
    """people.csv and its schema, that of docs/data.md."""
    people(folder)
    (schema,) = [each.text for each in blocks("docs/data.md") if each.language == "toml"][:1]
    (folder / "people.toml").write_text(schema)


def houses(folder: Path) -> None:
    """houses.csv and new.csv, whose target is a number, and their schema."""
    rng = np.random.default_rng(6)
    x = rng.uniform(-1, 1, (300, 3)).round(3)
    lines = [(*row, round(float(row @ (0.5, -0.3, 0.2)), 3)) for row in x]
    columns = "".join(f'{name} = {{ kind = "number", low = -1, high = 1 }}\n' for name in "abc")
    (folder / "houses.toml").write_text(
        f'target = "price"\n[columns]\n{columns}price = {{ kind = "target", low = -1, high = 1 }}\n'
    )
    _table(folder / "houses.csv", ("a", "b", "c", "price"), lines)
    _table(folder / "new.csv", ("a", "b", "c"), [line[:3] for line in lines[:10]])


def people_and_houses(folder: Path) -> None:
    """Both tables; new.csv is of houses."""
    people_with_schema(folder)
    houses(folder)


def vectors(folder: Path) -> None:
    """vectors.csv, pool.csv, which has the targets, too, and their schema."""
    rng = np.random.default_rng(7)
    x = rng.uniform(-1, 1, (2300, 2)).round(3)
    lines = [(*row, *(row @ ((1, 0.5), (0.5, 1))).round(3)) for row in x]
    number = "low = -1, high = 1 }"
    columns = "".join(f'{name} = {{ kind = "number", {number}\n' for name in "ab")
    columns += "".join(f'{name} = {{ kind = "target", low = -2, high = 2 }}\n' for name in "uv")
    (folder / "vectors.toml").write_text(f'target = ["u", "v"]\n[columns]\n{columns}')
    _table(folder / "vectors.csv", ("a", "b", "u", "v"), lines[:2000])
    _table(folder / "pool.csv", ("a", "b", "u", "v"), lines[2000:])


def _table(path: Path, heads: tuple[str, ...], lines: list[tuple[Any, ...]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([heads, *lines])


def scans() -> dict[str, Any]:
    """One hospital's scans and masks."""
    data = hippocampus()
    return {"own_scans": data.x[:2], "own_masks": data.y[:2]}


def nifti_files(folder: Path) -> None:
    """Folders of private and public scans with masks, a folder of scans alone, and a scan."""
    import nibabel

    rng = np.random.default_rng(11)
    for place in ("private/images", "private/labels", "public/images", "public/labels", "scans"):
        (folder / place).mkdir(parents=True)
        for case in range(3):
            values = rng.integers(0, 3, (35, 50, 36)).astype(
                np.uint8 if "labels" in place else np.float32
            )
            nibabel.save(
                nibabel.Nifti1Image(values, np.eye(4)), folder / place / f"case-{case:03}.nii.gz"
            )
    shutil.copy(folder / "scans" / "case-001.nii.gz", folder / "scan.nii.gz")


def predictions_of_hospitals(names: dict[str, Any], folder: Path) -> None:
    """The folder of answers: what the page's hospital wrote, and what three others did."""
    answers = folder / "answers"
    answers.mkdir(exist_ok=True)
    mine = np.load(folder / "hospital-07.npz")["predictions"]
    shutil.copy(folder / "hospital-07.npz", answers)
    for other in range(3):
        np.savez(answers / f"hospital-1{other}.npz", predictions=np.roll(mine, other + 1, axis=-1))


def segments(names: dict[str, Any], folder: Path) -> None:
    """Call the function that docs/pate.md defines, on files of its own."""
    rng = np.random.default_rng(4)
    maps = rng.random((90, 12)).astype(np.float32) * np.linspace(40, 1, 12, dtype=np.float32)
    pool = pv.Dataset(rng.random((90, 3)).astype(np.float32), maps, low=0.0, high=1.0, public=True)
    files = []
    for teacher in range(60):
        files.append(str(folder / f"teacher-{teacher}.npz"))
        np.savez(files[-1], predictions=maps[:80] + rng.normal(size=(80, 12)).astype(np.float32))
    student = pv.teachers.Student(lambda shape: torch.nn.Linear(3, 12), "mse", epochs=2)
    assert names["segment"](pool, files, student).ledger.guarantee(1e-3).epsilon <= 8.0


def rows_of_a_client(configuration: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Five made-up rows of a client of docs/federated-training.md."""
    made_up = torch.Generator().manual_seed(int(configuration["client"]))
    return torch.rand(5, 64, generator=made_up), torch.randint(10, (5,), generator=made_up)


def trains_over_flower(names: dict[str, Any], folder: Path) -> None:
    """Call the page's server, on twenty of its clients."""
    from tests.support.local_grid import LocalGrid  # needs Flower

    grid = LocalGrid(names["client_app"], [{"client": client} for client in range(20)])
    names["train_federated"] = partial(names["train_federated"], timeout=0.1)
    names["train_model"](grid, None)
    assert pv.verify(folder / "model").ok
    assert not (folder / "run.checkpoint").exists()


@dataclass(frozen=True)
class Page:
    """What a page needs besides its own blocks.

    Attributes:
        names: what its Python takes for granted.
        files: called with the folder, before anything runs.
        toml: the file that its settings are kept in.
        smaller: numbers of its Python, and the smaller ones that take their place.
        before: what happens before the n-th block of Python, counted from 0.
        after: what happens at the end.
        around: what is open while the page runs.
    """

    names: Callable[[], dict[str, Any]] = dict
    files: Callable[[Path], None] | None = None
    toml: str = ""
    smaller: dict[str, str] = field(default_factory=dict)
    before: dict[int, Callable[[dict[str, Any], Path], None]] = field(default_factory=dict)
    after: Callable[[dict[str, Any], Path], None] | None = None
    around: Callable[[], AbstractContextManager[Any]] = nullcontext


NEEDS: dict[str, Page] = {
    "docs/command-line.md": Page(files=patients),
    "docs/data.md": Page(files=people, toml="people.toml"),
    "docs/settings.md": Page(toml="tune.toml"),
    "docs/methods.md": Page(files=people_and_houses),
    "docs/hub.md": Page(around=small_hub),
    "docs/federated-training.md": Page(
        names=lambda: {"read_rows": rows_of_a_client},
        smaller={"epochs=4": "epochs=1", "examples=300": "examples=20"},
        after=trains_over_flower,
    ),
    "docs/pate.md": Page(files=vectors, after=segments),
    "docs/segmentation.md": Page(
        names=scans,
        files=nifti_files,
        smaller={
            "epochs=40": "epochs=1",
            "epsilon=8, delta=1e-3\n": "epsilon=8, delta=1e-3, teachers=3, queries=4\n",
        },
        before={3: predictions_of_hospitals},
    ),
}
#: Commands that are too long for a test: their words are parsed.
TOO_LONG = {
    "privlearn reproduce yu-table2 --out docs/results": "hours of training",
    "privlearn demo hospitals": "starts Flower's simulation engine; tests/flower runs it",
    "privlearn budget --serve --examples 60000 --epsilon 3": "serves until it is interrupted",
}


#: A server that is not there: commands that name it are read, and not run.
SERVER = "@db.example/"


#: Options that make a command shorter, and the command that they are added to.
SHORTER = {
    "privlearn train --method pate --data mnist": (
        "--teachers",
        "10",
        "--queries",
        "20",
        "--epochs",
        "1",
    ),
    "privlearn train --method dpmac": ("--epochs", "1"),
    "privlearn train --data hippocampus --data-dir DIR --start public": ("--epochs", "1"),
    "privlearn train --data private --classes 3 --grid": ("--epochs", "1"),
}


def small(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Put stand-ins in place of the named data sets, and little in place of much that is made of no
    private data.
    """
    patch.setattr(named, "_load_named", lambda name, data_dir: DATA[name]())
    patch.setattr(made_up_images, "_IMAGES", 400)
    patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    defaults: Any = Start.learn.__func__  # type: ignore[attr-defined]
    quick = {"learning": Training(steps=3), "tuning": Training(steps=2, learning_rate=3e-3)}
    patch.setattr(defaults, "__kwdefaults__", defaults.__kwdefaults__ | quick)
    begun: Any = public_network.__wrapped__  # type: ignore[attr-defined]
    patch.setattr(begun, "__kwdefaults__", begun.__kwdefaults__ | {"learning": quick["learning"]})
