"""A package's names are imported when they are first used, because planning and verifying must not
wait for torch.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package: the names in the stub beside it, for
    type checkers, too.

    Args:
        package: its name.
        file: its `__init__.py`. Beside it lies `__init__.pyi`:
            `from privlearn.core.plan import Plan as Plan`, a line a name.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text("utf-8"))
    homes = {
        name.name: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        return (
            import_module(f"{package}.{name}")
            if home == package
            else getattr(import_module(str(home)), name)
        )

    return get, lambda: sorted(homes), sorted(homes)
