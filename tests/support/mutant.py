"""Planted bugs: a piece of source is changed in memory for one test, never on disk."""

from __future__ import annotations

import builtins
import dis
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import _lru_cache_wrapper
from types import CodeType
from typing import Any

import pytest

from privlearn.errors import PrivlearnError
from tests.support.checks import every_check


@dataclass(frozen=True)
class Mutant:
    """A bug: in `target` (a function, method or property), `old` becomes `new`, wherever `changed`
    sees it.

    `caught_by` is the named check that must fail.
    """

    name: str
    target: Any
    old: str
    new: str
    caught_by: str

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The bug is in the code for as long as the context is open, and nowhere afterwards: nor
        in modules that were imported meanwhile.
        """
        function, owner, name = self._place()
        module = sys.modules[function.__module__]
        namespace: dict[str, Any] = {}
        exec(self.compiled(), vars(module), namespace)
        mutated, original = namespace[name], vars(owner)[name]
        setattr(owner, name, mutated)
        _replace_imports(original, mutated)
        try:
            yield
        finally:
            setattr(owner, name, original)
            _replace_imports(mutated, original)

    def compiled(self) -> CodeType:
        """The code with the bug.

        Raises:
            AssertionError: the code that it changes is not there, or it reads a name that is not.
            SyntaxError: it is no Python where it stands.
        """
        function, _, _ = self._place()
        source = textwrap.dedent(inspect.getsource(function))
        try:
            changed_source = changed(source, self.old, self.new)
        except LookupError:
            raise AssertionError(
                f"{self.name}: {self.old!r} is not in {function.__qualname__} any more"
            ) from None
        module = sys.modules[function.__module__]
        code = compile(
            "from __future__ import annotations\n" + changed_source,
            f"<mutant {self.name}>",
            "exec",
            dont_inherit=True,
        )
        if unknown := _unknown_names(code, vars(module)):
            raise AssertionError(
                f"{self.name}: {', '.join(unknown)} is not defined in {module.__name__}: the bug "
                "would be caught for the wrong reason"
            )
        return code

    def files(self) -> set[str]:
        """The files of the code that the bug changes and of the check that catches it."""
        function, _, _ = self._place()
        check = inspect.unwrap(every_check()[self.caught_by])
        return {str(sys.modules[source.__module__].__file__) for source in (function, check)}

    def _place(self) -> tuple[Any, Any, str]:
        """The plain function (or class), and where it is to be replaced: a module or class, and the
        name in it.
        """
        target = self.target.fget if isinstance(self.target, property) else self.target
        target = inspect.unwrap(getattr(target, "__func__", target))
        owner: Any = sys.modules[target.__module__]
        *outer, name = target.__qualname__.split(".")
        for part in outer:
            owner = getattr(owner, part)
        return target, owner, name


def _unknown_names(code: CodeType, module: Mapping[str, Any]) -> list[str]:
    """The global names that code reads, and that neither it, its module nor Python has."""
    steps = [step for part in _parts(code) for step in dis.get_instructions(part)]
    read = {step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    written = {step.argval for step in steps if step.opname in ("STORE_GLOBAL", "STORE_NAME")}
    return sorted(read - {*module, *dir(builtins), *written})


def _parts(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)


#: A string, a comment, a number, a name, or signs. It takes pieces of source that tokenize refuses:
#: brackets that are not closed or not opened, and lines further out than the first.
_TOKEN = re.compile(
    r"""
    (?P<string> (?<!\w)(?:[bfru]|br|fr|rb|rf)?(?:\'{3}(?:\\.|[^\\])*?\'{3} | \"{3}(?:\\.|[^\\])*?\"{3})
      | (?<!\w)(?:[bfru]|br|fr|rb|rf)?(?:\'(?:\\.|[^\\\'\n])*\' | \"(?:\\.|[^\\\"\n])*\") )
    | (?P<comment> \#[^\n]* | \\\n )
    | \d[\w.]*(?:(?<=\de)[-+]\d+)?
    | \w+
    | \*\*= | //= | >>= | <<= | \.\.\. | -> | := | [-!=<>+*/%@&|^]= | \*\* | // | << | >>
    | [^\w\s]
    """,  # noqa: E501
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


def changed(source: str, old: str, new: str) -> str:
    """`source` with `new` at each place where its tokens are those of `old`, or where a string
    holds that text.

    Whitespace, line breaks, comments and a comma before a closing bracket don't count, so that a
    bug stays planted when the code around it is formatted anew.

    Raises:
        LookupError: `old` is nowhere in `source`.
    """
    tokens, wanted = _tokens(source), [token[0] for token in _tokens(old)]
    if old[:1].isspace():
        new = new.lstrip()
    if old[-1:].isspace():
        new = new.rstrip()
    places, at = [], 0
    while wanted and at + len(wanted) <= len(tokens):
        if [token[0] for token in tokens[at : at + len(wanted)]] == wanted:
            places.append((tokens[at].start(), tokens[at + len(wanted) - 1].end()))
            at += len(wanted)
        else:
            at += 1
    for string in (token for token in tokens if token["string"]):
        for match in re.finditer(re.escape(old), string[0]):
            place = string.start() + match.start(), string.start() + match.end()
            if all(place[1] <= other[0] or other[1] <= place[0] for other in places):
                places.append(place)
    if not places:
        raise LookupError(old)
    for start, end in sorted(places, reverse=True):
        source = source[:start] + new + source[end:]
    return source


def _tokens(text: str) -> list[re.Match[str]]:
    """The tokens that count of a piece of source, which need not be whole."""
    tokens: list[re.Match[str]] = []
    for token in _TOKEN.finditer(text):
        if token["comment"]:
            continue
        if token[0] in (")", "]", "}") and tokens and tokens[-1][0] == ",":
            tokens.pop()
        tokens.append(token)
    return tokens


def _replace_imports(old: Any, new: Any) -> None:
    """Where modules imported a function by name, they get another one in its place."""
    for name, module in sys.modules.copy().items():
        if name.startswith(("tests.", "privlearn")) and module is not None:
            for key, value in vars(module).copy().items():
                if value is old:
                    setattr(module, key, new)


def suite_of(
    mutants: Sequence[Mutant],
    *,
    caches: Sequence[Any] = (),
    errors: Sequence[type[BaseException]] = (),
) -> tuple[Callable[..., None], Callable[[], None]]:
    """Two tests for a module: that each mutant is caught by its check, and that all these checks
    exist and all these bugs can still be planted.

    Args:
        mutants: the bugs.
        caches: cached functions outside of privlearn that may remember what a mutant computed.
        errors: what a check may raise besides an AssertionError or one of privlearn's own. Anything
            else, a NameError say, would be a broken mutant, not a catch.
    """

    @pytest.mark.parametrize("mutant", mutants, ids=lambda mutant: mutant.name.replace(" ", "-"))
    def is_caught(mutant: Mutant) -> None:
        forget_results(caches)
        try:
            with (
                mutant.planted(),
                pytest.raises((AssertionError, PrivlearnError, *errors)),
            ):
                every_check()[mutant.caught_by]()
        finally:
            forget_results(caches)

    def names_a_check() -> None:
        assert {mutant.caught_by for mutant in mutants} <= set(every_check())
        for mutant in mutants:
            mutant.compiled()

    return is_caught, names_a_check


def forget_results(others: Sequence[Any] = ()) -> None:
    """Clear all cached functions of privlearn, and `others`.

    What sound code computed would hide a bug, and what a bug computed would fail the next test. A
    compiled kernel that was compared with sound operations would draw in place of a bug in these.
    """
    modules = [
        module
        for name, module in sys.modules.copy().items()
        if name.partition(".")[0] == "privlearn" and module is not None
    ]
    functions = {
        value
        for module in modules
        for value in vars(module).copy().values()
        if isinstance(value, _lru_cache_wrapper)
    }
    for function in {*functions, *others}:
        function.cache_clear()
