"""No test lists by hand what is registered: a new kind takes part in every law because it is there.

A literal list, tuple, set or dictionary offends if it names at least three kinds of one registry
and more than half of them. `registries.examples` gives one of each kind instead. A table that needs
numbers for each kind by itself is allowed where an assertion compares it with the registry, so that
a new kind fails until it has a row, and a list where `registries.completed` adds to it what the
registry has beyond it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support import registries

TESTS = Path(__file__).parents[1]
#: What a comparison with a registry is written with.
ACCESSES = {"kinds", "_KINDS", "HEADS", "METHODS", "REGISTRIES", "examples", "__subclasses__"}
#: Offenders that are known, by registry: figures, texts and names of single kinds, which no
#: registry could give. To shrink, not to grow.
STILL: dict[str, set[str]] = {
    "clips": {"frozen/names.py: automatic, flat, layer, quantile"},
    "samplers": {"frozen/names.py: fixed, full, partition, poisson, shuffle"},
    "schedules": {
        "accounting/checks_prices.py: constant, exp, step, time",
        "accounting/test_figures.py: constant, exp, poly, step, time",
        "plan/test_solving.py: exp, poly, step, time",
        "schedules/test_composed_schedules.py: constant, exp, poly, step, time",
        "studies/test_every_study.py: constant, exp, poly, step, time, validation",
        "studies/test_yu2019.py: constant, exp, poly, step, time",
    },
    "correlations": {"mechanisms/test_correlated.py: banded, bisr, blt"},
    "mechanisms": {
        "accounting/checks_groups.py: filter, fixed_batches, gaussian, gaussian_filter, laplace, "
        "poisson_sampled, pure_dp, rando",
        "pages/test_page_claims.py: filter, fixed_batches, gaussian, gaussian_filter, laplace, "
        "one_of, parallel, partitioned, ",
    },
    "plans": {
        (
            "frozen/names.py: blocks, boosting, fisher, gradients, least-squares, pate, "
            "random-stopping, rows, selection"
        ),
        "laws/test_reprs.py: blocks, boosting, fisher, gradients, least-squares, metrics, pate, "
        "random-stopping, ridge,",
    },
}


@cache
def trees() -> dict[str, ast.Module]:
    return {
        path.relative_to(TESTS).as_posix(): ast.parse(path.read_text("utf-8"))
        for path in sorted(TESTS.rglob("*.py"))
    }


def named(element: ast.expr) -> Iterator[str]:
    """What an element of a literal is called: a class, what calls it, or a text such as
    `banded:bands=8`.
    """
    match element:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield name
        case ast.Constant(value=str(text)):
            yield text.partition(":")[0]
        case ast.Call(func=ast.Name(id="param") | ast.Attribute(attr="param"), args=[first, *_]):
            yield from named(first)
        case ast.Call(func=function):
            yield from named(function)
            if isinstance(function, ast.Attribute):  # of_size, calibrate and the like
                yield from named(function.value)
        case ast.Lambda(body=body):
            yield from named(body)
        case ast.Tuple(elts=[first, *_]) | ast.List(elts=[first, *_]):
            yield from named(first)


def literals(tree: ast.Module) -> Iterator[tuple[ast.expr, list[set[str]]]]:
    """Every literal collection, and what each of its elements is called."""
    for node in ast.walk(tree):
        match node:
            case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
                yield node, [set(named(element)) for element in elements]
            case ast.Dict(keys=keys, values=values):
                pairs = zip(keys, values, strict=True)
                yield node, [{*named(value), *(named(key) if key else ())} for key, value in pairs]


def compared(tree: ast.Module) -> set[str]:
    """The tables that an assertion of a file compares with a registry."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            words = {own.id for own in ast.walk(node) if isinstance(own, ast.Name)}
            words |= {own.attr for own in ast.walk(node) if isinstance(own, ast.Attribute)}
            names |= words if words & ACCESSES else set()
    return names


@cache
def compared_elsewhere() -> dict[str, set[str]]:
    """By file the tables that an assertion of another one, which imports them, compares with a
    registry.
    """
    tables: dict[str, set[str]] = defaultdict(set)
    for tree in trees().values():
        names = compared(tree)
        for node in ast.walk(tree) if names else ():
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("tests."):
                path = f"{str(node.module).removeprefix('tests.').replace('.', '/')}.py"
                tables[path] |= names & {alias.name for alias in node.names}
    return tables


def is_completed(node: ast.AST) -> bool:
    """Whether it is a call that adds what the registry has beyond what is listed."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "completed"
    )


def assigned(node: ast.AST) -> set[str]:
    """What an assignment or a function gives a name to."""
    match node:
        case ast.Assign(targets=targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.FunctionDef(name=name):
            return {name}
    return set()


@cache
def places(path: str) -> list[list[set[str]]]:
    """Of every literal collection that is no table: what each of its elements is called."""
    tree = trees()[path]
    tables = compared(tree) | compared_elsewhere()[path]
    listed = [node for node in ast.walk(tree) if assigned(node) & tables or is_completed(node)]
    allowed = {id(part) for node in listed for part in ast.walk(node)}
    return [
        elements
        for node, elements in literals(tree)
        if len(elements) >= 3 and id(node) not in allowed
    ]


def offenders(registry: str) -> Iterator[str]:
    members = {
        kind: {kind, cls.__name__} for kind, cls in registries.REGISTRIES[registry]().items()
    }
    for path in trees():
        for elements in places(path):
            listed = {
                kind for kind, names in members.items() for words in elements if names & words
            }
            if len(listed) >= 3 and 2 * len(listed) > len(members):
                yield f"{path}: {', '.join(sorted(listed))[:90]}"


@pytest.mark.parametrize("registry", registries.REGISTRIES)
def test_no_test_lists_what_is_registered(registry: str) -> None:
    known, there = STILL.get(registry, set()), set(offenders(registry))
    assert not there - known, f"new offenders: {sorted(there - known)}"
    assert not known - there, f"no longer offend, take them out of STILL: {sorted(known - there)}"


@pytest.mark.parametrize("registry", registries.REGISTRIES)
def test_there_is_an_example_of_every_kind(registry: str) -> None:
    kinds = registries.REGISTRIES[registry]()
    assert kinds
    if registry in registries.EXAMPLES:
        assert {type(example) for example in registries.examples(registry)} == set(kinds.values())


def test_lists_by_hand_offend() -> None:
    text = (
        'for clip in (Flat(0.1), pv.clips.PerLayer(0.1), "quantile", lambda: '
        "Automatic(0.2)):\n    pass\n"
    )
    trees()["made_up.py"] = ast.parse(text)
    places.cache_clear()
    try:
        assert any(offender.startswith("made_up.py") for offender in offenders("clips"))
        places.cache_clear()
        trees()["made_up.py"] = ast.parse(
            "TABLE = {Flat: 1, PerLayer: 2, Quantile: 3}\nassert set(TABLE) == kinds(Clip)"
        )
        assert not any(offender.startswith("made_up.py") for offender in offenders("clips"))
    finally:
        places.cache_clear()
        del trees()["made_up.py"]


if __name__ == "__main__":
    for registry in registries.REGISTRIES:
        for offender in sorted(set(offenders(registry))):
            print(registry, offender)
