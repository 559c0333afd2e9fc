"""Planted bugs: a piece of source is changed in memory for one test, never on disk."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from privlearn.accounting import filters, rdp, trees
from privlearn.accounting.pld import pairs
from privlearn.errors import PrivlearnError
from tests.support.checks import every_check

#: Cached functions that prices go through: what a bug made of them must not be there for the next test.
_PRICES = (filters._widest_in_rho, filters.of_ledger, pairs.sketch, rdp._poisson, trees.gamma)


@dataclass(frozen=True)
class Mutant:
    """A bug: in `target` (a function, method or property), `old` becomes `new`.

    `caught_by` is the named check that must fail.
    """

    name: str
    target: Any
    old: str
    new: str
    caught_by: str

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        function, owner, name = self._place()
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.old) >= 1, f"{self.name}: {self.old!r} is not in {function.__qualname__} any more"
        module = sys.modules[function.__module__]
        namespace: dict[str, Any] = {}
        changed_source = "from __future__ import annotations\n" + source.replace(self.old, self.new)
        code = compile(changed_source, f"<mutant {self.name}>", "exec", dont_inherit=True)
        exec(code, vars(module), namespace)
        changed = namespace[name]
        replaced = getattr(owner, name) if owner is module else None
        patch.setattr(owner, name, changed)
        if owner is module:
            _replace_imports(patch, replaced, changed)

    def _place(self) -> tuple[Any, Any, str]:
        """The plain function (or class), and where it is to be replaced: a module or class, and the name in it."""
        target = self.target.fget if isinstance(self.target, property) else self.target
        target = inspect.unwrap(getattr(target, "__func__", target))
        owner: Any = sys.modules[target.__module__]
        *outer, name = target.__qualname__.split(".")
        for part in outer:
            owner = getattr(owner, part)
        return target, owner, name


def _replace_imports(patch: pytest.MonkeyPatch, old: Any, new: Any) -> None:
    """Where other modules imported the function by name, they get the mutant too."""
    for name, module in sys.modules.copy().items():
        if name.startswith(("tests.", "privlearn")) and module is not None:
            for key, value in vars(module).copy().items():
                if value is old:
                    patch.setattr(module, key, new)


def suite_of(
    mutants: Sequence[Mutant], *, caches: Sequence[Any] = (), errors: Sequence[type[BaseException]] = ()
) -> tuple[Callable[..., None], Callable[[], None]]:
    """Two tests for a module: that each mutant is caught by its check, and that all these checks exist.

    Args:
        mutants: the bugs.
        caches: cached functions that may remember what a mutant computed, besides those of prices.
        errors: what a check may raise besides an AssertionError or one of privlearn's own. Anything else, a NameError
            say, would be a broken mutant, not a catch.
    """

    @pytest.mark.parametrize("mutant", mutants, ids=lambda mutant: mutant.name.replace(" ", "-"))
    def is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
        _forget(caches)
        try:
            mutant.plant(monkeypatch)
            with pytest.raises((AssertionError, PrivlearnError, *errors)):
                every_check()[mutant.caught_by]()
        finally:
            monkeypatch.undo()
            _forget(caches)

    def names_a_check() -> None:
        assert {mutant.caught_by for mutant in mutants} <= set(every_check())

    return is_caught, names_a_check


def _forget(caches: Sequence[Any]) -> None:
    for cached in {*_PRICES, *caches}:
        cached.cache_clear()
    # A compiled kernel that was compared with sound operations would draw in place of a bug in these.
    if noise := sys.modules.get("privlearn.mechanisms.noise"):
        noise.kernel.cache_clear()
