"""The wheel: built twice, in two places, of files with other times, it is the same to the byte."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = (
    "src",
    "docs/format",
    "hatch_build.py",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "constraints.txt",
)


def built(place: Path, time: int) -> Path:
    """The wheel of a copy of the source, whose files were all changed at `time`."""
    place.mkdir()
    for name in SOURCE:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__", "*.so")
            )
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, place / name)
    for path in place.rglob("*"):
        os.utime(path, (time, time))
    wheel = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        str(place),
        "--no-deps",
        "-w",
        str(place / "wheel"),
    ]
    subprocess.run(wheel, check=True)
    (made,) = (place / "wheel").iterdir()
    return made


@pytest.mark.nightly
def test_the_wheel_is_reproducible_and_holds_the_package_alone(tmp_path: Path) -> None:
    one, other = built(tmp_path / "one", 1_600_000_000), built(tmp_path / "other", 1_700_000_001)
    assert one.name == other.name
    assert one.read_bytes() == other.read_bytes()
    names = zipfile.ZipFile(one).namelist()
    assert "privlearn/py.typed" in names
    assert "privlearn/__init__.pyi" in names
    schemas = {path.name for path in (ROOT / "docs" / "format").glob("*.schema.json")}
    shipped = [name for name in names if name.startswith("privlearn_verify/format/")]
    assert schemas == {Path(name).name for name in shipped}
    for name in ("schema.sql", "roles.sql"):
        assert f"privlearn/core/accounting/ledgers/postgresql/{name}" in names
    (points,) = (name for name in names if name.endswith(".dist-info/entry_points.txt"))
    text = zipfile.ZipFile(one).read(points).decode()
    assert "segmentation = privlearn_segmentation.method:SEGMENTATION" in text
    assert {name.split("/")[0].split("-")[0] for name in names} == {
        "privlearn",
        "privlearn_segmentation",
        "privlearn_studies",
        "privlearn_verify",
    }
