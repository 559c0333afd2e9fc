"""Packages whose names are imported when they are first used: planning and verifying must not wait for torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package.

    Args:
        package: its name.
        homes: for each public name, the module of the package that defines it; "" for a module itself.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] == "":
            return import_module(f"{package}.{name}")
        home = homes[name]
        return getattr(import_module(home if home.startswith("privlearn.") else f"{package}.{home}"), name)

    return get, lambda: sorted(homes), sorted(homes)
