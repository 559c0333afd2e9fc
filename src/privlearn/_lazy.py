"""A package's names are imported when they are first used, because planning and verifying must not
wait for torch.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

#: Of each package the public names, with the module that each comes from and its name there.
PLACES: dict[str, dict[str, tuple[str, str]]] = {}


def lazy(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package: the names in the stub beside it, for
    type checkers, too.

    Args:
        package: its name.
        file: its `__init__.py`. Beside it lies `__init__.pyi`:
            `from privlearn.core.plan import Plan as Plan`, a line a name. A second name of a
            package takes two lines: `from privlearn.methods import pate as _pate` and
            `teachers = _pate`, or, of another distribution's package, `import other as _other`
            and `name = _other`.
    """
    homes = names_of(ast.parse(Path(file).with_suffix(".pyi").read_text("utf-8")))
    PLACES[package] = homes

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, original = homes[name]
        if not original:
            return import_module(home)
        if home != package and hasattr(parent := import_module(home), original):
            return getattr(parent, original)
        return import_module(f"{home}.{original}")

    return get, lambda: sorted(homes), sorted(homes)


def names_of(stub: ast.Module) -> dict[str, tuple[str, str]]:
    """The public names of a stub, each with the module that it is imported from and its name there:
    empty where it is that module.
    """
    homes: dict[str, tuple[str, str]] = {}
    for node in stub.body:
        if isinstance(node, ast.ImportFrom):
            homes |= {n.asname or n.name: (str(node.module), n.name) for n in node.names}
        elif isinstance(node, ast.Import):
            homes |= {n.asname or n.name: (n.name, "") for n in node.names}
        elif isinstance(node, ast.Assign):
            homes |= {ast.unparse(n): homes[ast.unparse(node.value)] for n in node.targets}
    return {name: home for name, home in homes.items() if not name.startswith("_")}
