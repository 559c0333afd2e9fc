"""Planted bugs: a piece of source is changed in memory for one test, never on disk."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from checks import CHECKS

from privlearn.errors import PrivlearnError


@dataclass(frozen=True)
class Mutant:
    """A bug: in `target` ("module:function" or "module:Class.method"), `old` becomes `new`.

    `caught_by` is the named check that must fail.
    """

    name: str
    target: str
    old: str
    new: str
    caught_by: str

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        module_name, _, path = self.target.partition(":")
        module = importlib.import_module(module_name)
        *outer, name = path.split(".")
        owner: Any = module
        for part in outer:
            owner = getattr(owner, part)
        found = inspect.getattr_static(owner, name)
        kind = type(found) if isinstance(found, classmethod | staticmethod | property) else None
        function = found.fget if kind is property else (found.__func__ if kind else found)
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.old) >= 1, f"{self.name}: {self.old!r} is not in {self.target} any more"
        namespace: dict[str, Any] = {}
        changed_source = "from __future__ import annotations\n" + source.replace(self.old, self.new)
        code = compile(changed_source, f"<mutant {self.name}>", "exec", dont_inherit=True)
        exec(code, vars(module), namespace)
        changed = namespace[name]
        patch.setattr(owner, name, changed)
        if not outer:
            _replace_imports(patch, function, changed)


def _replace_imports(patch: pytest.MonkeyPatch, old: Any, new: Any) -> None:
    """Where other modules imported the function by name, they get the mutant too."""
    import sys

    for name, module in list(sys.modules.items()):
        if (name.endswith("checks") or name.startswith("privlearn")) and module is not None:
            for key, value in list(vars(module).items()):
                if value is old:
                    patch.setattr(module, key, new)


def suite_of(
    mutants: Sequence[Mutant], *, caches: Sequence[Any] = (), errors: Sequence[type[BaseException]] = ()
) -> tuple[Callable[..., None], Callable[[], None]]:
    """Two tests for a module: that each mutant is caught by its check, and that all these checks exist.

    Args:
        mutants: the bugs.
        caches: cached functions that may remember what a mutant computed.
        errors: what a check may raise besides an AssertionError or one of privlearn's own. Anything else, a NameError say,
            would be a broken mutant, not a catch.
    """

    @pytest.mark.parametrize("mutant", mutants, ids=lambda mutant: mutant.name.replace(" ", "-"))
    def is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
        _forget(caches)
        try:
            mutant.plant(monkeypatch)
            with pytest.raises((AssertionError, PrivlearnError, *errors)):
                CHECKS[mutant.caught_by]()
        finally:
            monkeypatch.undo()
            _forget(caches)

    def names_a_check() -> None:
        assert {mutant.caught_by for mutant in mutants} <= set(CHECKS)

    return is_caught, names_a_check


def _forget(caches: Sequence[Any]) -> None:
    for cached in caches:
        cached.cache_clear()
