"""Planted bugs are found by tokens: code that is formatted anew has them still."""

from __future__ import annotations

import ast
import sys
from functools import cache, lru_cache
from types import ModuleType

import pytest

from tests.support import mutant
from tests.support.checks import every_check
from tests.support.mutant import Mutant, changed, forget_results

SOURCE = """
def total(x, noise):
    # the sum
    return x.sum(dim=0) + noise * 2.0
"""
FORMATTED = """
def total(x, noise):
    return (
        x.sum(
            dim=0,
        )  # of the rows
        + noise
        * 2.0
    )
"""


@pytest.mark.parametrize("source", [SOURCE, FORMATTED])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x.sum(dim=0) + noise * 2.0", "x.sum(dim=0)"),
        ("noise *  2.0", "noise"),
        ("(dim=0)", "(dim=1)"),
    ],
)
def test_the_same_bug_is_planted_however_code_is_laid_out(source: str, old: str, new: str) -> None:
    planted = ast.dump(ast.parse(changed(source, old, new)))
    assert planted == ast.dump(ast.parse(SOURCE.replace(" ".join(old.split()), new)))


def test_a_part_of_a_name_is_no_token() -> None:
    assert changed("clip_norm = norm", "norm", "1.0") == "clip_norm = 1.0"
    with pytest.raises(LookupError):
        changed("clip_norm = 2", "norm", "1.0")


def test_every_place_is_changed() -> None:
    assert changed("a = b + b", "b", "c") == "a = c + c"


def test_a_piece_may_end_further_out_than_it_begins() -> None:
    source = "if a:\n    return b\nif c:\n    return b\nreturn d\n"
    expected = "if a:\n    return 0\nif c:\n    return b\nreturn d\n"
    assert changed(source, "    return b\nif c:", "    return 0\nif c:") == expected
    assert changed("f(a, b)[0]", "b)[", "c)[") == "f(a, c)[0]"


def test_statements_keep_their_places() -> None:
    source = "if a:\n    b()\n    c()\nd()\n"
    assert changed(source, "    b()\n    c()\n", "    c()\n") == "if a:\n    c()\nd()\n"
    assert changed(source, "b()", "b()\n    e()") == "if a:\n    b()\n    e()\n    c()\nd()\n"


@pytest.mark.parametrize("source", ['x = "a b, c"', "x = f'{y:.9g} a b, c'"])
def test_the_text_of_strings_counts_as_it_is(source: str) -> None:
    assert changed(source, "a b, c", "d") == source.replace("a b, c", "d")
    with pytest.raises(LookupError):
        changed(source, "a  b, c", "d")


@pytest.mark.parametrize("old", ["e", "a + c", "", "#"])
def test_what_is_not_there_is_an_error(old: str) -> None:
    with pytest.raises(LookupError):
        changed("a = b + c  # e", old, "d")


def test_what_sound_code_computed_does_not_hide_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cached function of the package is cleared, also one that was written today."""
    module = ModuleType("privlearn.written_today")
    module.square = cache(lambda x: x * x)  # type: ignore[attr-defined]
    module.cube = lru_cache(lambda x: x**3)  # type: ignore[attr-defined]
    elsewhere = cache(lambda x: x + 1)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    functions = [module.square, module.cube, elsewhere]
    for function in functions:
        function(2)
    forget_results([elsewhere])
    assert [function.cache_info().currsize for function in functions] == [0, 0, 0]


def test_a_module_that_is_imported_under_a_bug_has_sound_code_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("privlearn.imported_late")
    sound = mutant._tokens
    bug = Mutant("a bug", sound, "tokens.append(token)", "tokens.append(None)", "")
    with bug.planted():
        module.tokens = mutant._tokens  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        assert module.tokens("a") == [None]
    assert module.tokens is mutant._tokens is sound


def test_a_bug_whose_code_would_fail_by_itself_is_refused() -> None:
    """A name that is not defined would make any check fail, and so catch nothing."""
    check = next(iter(every_check()))
    bug = Mutant("a bug", mutant._tokens, "tokens.append(token)", "tokens.append(tokne)", check)
    expected = r"tokne is not defined in tests\.support\.mutant"
    with pytest.raises(AssertionError, match=expected), bug.planted():
        pass
