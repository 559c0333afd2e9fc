"""Entry points of this source, where the installed metadata are of an earlier one."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def write_distribution(folder: Path, name: str, groups: dict[str, dict[str, str]]) -> None:
    """Write the metadata of a distribution with entry points into a folder: on the path, it counts
    as installed.
    """
    place = folder / f"{name}-1.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n", encoding="utf-8"
    )
    lines = []
    for group, points in groups.items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in points.items()), ""]
    (place / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


def make_entry_points_visible() -> None:
    """Put a distribution with the project's entry points on the path, here and for processes that
    are started, unless they are installed.
    """
    declared = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["entry-points"]
    if all(entry_points(group=group, name=name) for group in declared for name in declared[group]):
        return
    folder = tempfile.mkdtemp(prefix="privlearn-entry-points-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_distribution(Path(folder), "privlearn_source", declared)
    sys.path.append(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), folder]))
