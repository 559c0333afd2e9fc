"""Methods by their names: those of this package, and those that installed packages bring by an
entry point in the group `privlearn.methods`.
"""

from __future__ import annotations

from typing import Any

from privlearn import _entry_points
from privlearn.errors import BadInput, warn
from privlearn.methods import METHODS, Method


def find_method(name: str) -> Method:
    """The row of a method, by its name or another of its names: of this package, or of an installed
    one that has an entry point in the group `privlearn.methods`.

    Raises:
        BadInput: there is none, or its package cannot be imported.
    """
    for row in METHODS.values():
        if name == row.name or name in row.aliases:
            return row
    row = _entry_points.load(_entry_points.METHODS, name) if isinstance(name, str) else None
    if row is None:
        raise BadInput(
            f"method is {str(name)[:60]!r}: expected one of {', '.join(method_names())[:200]}"
        )
    return _enter(name, row)


def method_names() -> list[str]:
    """The names of all methods; those of installed packages are not imported."""
    return [*METHODS, *sorted({*_entry_points.names(_entry_points.METHODS)} - METHODS.keys())]


def installed_methods() -> dict[str, Method]:
    """All methods, by name, those of installed packages among them.

    Warns:
        PrivacyWarning: of each package whose method cannot be imported; the others are not
            affected.
    """
    for name, row in _entry_points.load_all(_entry_points.METHODS).items():
        try:
            if name not in METHODS:
                _enter(name, row)
        except BadInput as error:
            warn(f"{error}. It is left out")
    return METHODS


def method_of_maps() -> Method:
    """The row of the method that learns maps of classes alone, which an installed package brings.

    Raises:
        BadInput: no installed package has one.
    """
    for row in installed_methods().values():
        if row.targets == {"maps"} and row.pages:
            return row
    raise BadInput(
        "the targets are maps of classes, and no installed package learns them: the package "
        "privlearn_segmentation is part of privlearn. Install privlearn again"
    )


def _enter(name: str, row: Any) -> Method:
    """The row of an installed package, entered into the table.

    Raises:
        BadInput: it is no row, has another name, or a kind of plan that another package has.
    """
    if not isinstance(row, Method) or row.name != name:
        raise BadInput(
            f"the entry point {name!r} in {_entry_points.METHODS} is {repr(row)[:60]}: expected a "
            "privlearn.methods.Method of that name"
        )
    METHODS[name] = row
    return row
