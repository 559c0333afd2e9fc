"""What installed packages add by entry points, looked up when it is asked for.

A package names a method in its pyproject.toml, for example:

    [project.entry-points."privlearn.methods"]
    my-method = "my_package.method:METHOD"

Names are read from the metadata of installed packages. An object is imported when its name is asked
for, or when all of a group are.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from privlearn.errors import BadInput, first_line, warn

#: The groups: rows of methods, and folders of other forms that `load` reads.
METHODS, FOLDERS = "privlearn.methods", "privlearn.folders"


def names(group: str) -> list[str]:
    """The names in a group; nothing is imported."""
    return sorted({point.name for point in entry_points(group=group)})


def load(group: str, name: str) -> Any:
    """The object of that name; None: no installed package has one.

    Raises:
        BadInput: it cannot be imported, or two packages have different ones.
    """
    points = list(entry_points(group=group, name=name))
    if len({point.value for point in points}) > 1:
        places = " and ".join(sorted({_place(point) for point in points}))
        raise BadInput(
            f"two installed packages have an entry point {name!r} in {group}: {places}. Uninstall "
            "one of them"
        )
    return _load(points[0]) if points else None


def load_all(group: str) -> dict[str, Any]:
    """The objects of a group that can be imported, by name.

    Warns:
        PrivacyWarning: of each one that cannot be imported; the others are not affected.
    """
    loaded = {}
    for name in names(group):
        try:
            loaded[name] = load(group, name)
        except BadInput as error:
            warn(f"{error}. It is left out")
    return loaded


def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:  # whatever another package's code raises
        raise BadInput(
            f"the entry point {point.name!r} in {point.group}, {_place(point)}, cannot be "
            f"imported: {first_line(error)}. Repair or uninstall that package"
        ) from error


def _place(point: EntryPoint) -> str:
    """The object that an entry point names, with its package."""
    package = "" if point.dist is None else f" of {point.dist.name}"
    return f"{point.value}{package}"
