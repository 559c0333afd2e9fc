"""A user's function by its place, `package.module:function` or `folder/file.py:function`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from privlearn.errors import BadInput, PrivlearnError, first_line


def import_function(what: str, spec: str) -> Callable[..., Any]:
    """The function of a module that can be imported from the working directory, or of a file, whose
    folder is then imported from, as of a script.

    Args:
        what: the argument, for errors: `model`.
        spec: the place of the function.

    Raises:
        BadInput: there is no such module or function, or the module can't be read or fails as it is
            imported.
    """
    place, _, name = spec.rpartition(":")
    is_file = place.endswith(".py")
    try:
        function: Callable[..., Any] = getattr(
            _module_of(Path(place)) if is_file else _module_named(place, Path.cwd()), name
        )
    except SyntaxError as error:
        place = f"line {error.lineno} of {error.filename}"
        raise BadInput(
            f"{what} {spec!r} cannot be read: {error.msg}, {place}. Mend the file"
        ) from error
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(
            f"{what} {spec!r} cannot be imported: {first_line(error)}. Expected "
            "package.module:function, importable from here, or folder/file.py:function"
        ) from error
    except PrivlearnError:
        raise
    except Exception as error:
        raise BadInput(
            f"{what} {spec!r} cannot be imported: the module fails as it is imported, "
            f"{type(error).__name__}: {first_line(error)}. Mend the file"
        ) from error
    return function


def _module_of(file: Path) -> ModuleType:
    """The module in a file."""
    if not file.is_file():
        raise ImportError(f"there is no file {file}")
    module = _module_named(file.stem, file.resolve().parent)
    if Path(module.__file__ or "").resolve() != file.resolve():
        raise ImportError(f"another module has the name {file.stem}: rename the file")
    return module


def _module_named(name: str, folder: Path) -> ModuleType:
    """A module, which may lie in a folder."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return import_module(name)
