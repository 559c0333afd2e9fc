"""What the annotations of a module stand for."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import types
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints


def kind_of(target: Any, parameters: Mapping[str, inspect.Parameter], name: str) -> Any:
    """The annotation of an argument of a function, or of a class as it is made; `Any` where there
    is none.
    """
    part = parameters.get(name)
    if part is not None and part.kind is not part.VAR_KEYWORD:
        bare = part.annotation is part.empty
        return Any if bare else evaluated(part.annotation, module_of(target, name))
    for several, part in parameters.items():
        if part.kind is part.VAR_KEYWORD:
            unpacked = get_args(evaluated(part.annotation, module_of(target, several)))
            return _options(unpacked[0]).get(name, Any) if unpacked else Any
    return Any


@functools.cache
def _options(kind: Any) -> dict[str, Any]:
    """What `**options: Unpack[...]` may hold, by name."""
    return get_type_hints(kind)


def module_of(target: Any, argument: str) -> types.ModuleType:
    """Where an argument is annotated: of a field that a class inherits, where its parent is."""
    parents = target.__mro__ if isinstance(target, type) else ()
    home = next((each for each in parents if argument in inspect.get_annotations(each)), target)
    return sys.modules[home.__module__]


def evaluated(annotation: Any, module: types.ModuleType) -> Any:
    """What an annotation of a module stands for.

    Raises:
        NameError: it names what the module does not import: it would guard nothing.
    """
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, dict(vars(module)))
    except NameError:
        return eval(annotation, vars(module) | _imported_for_types(module))


@functools.cache
def _imported_for_types(module: types.ModuleType) -> dict[str, Any]:
    """What a module imports for type checkers alone, because its parts need each other or to begin
    fast.
    """
    names: dict[str, Any] = {"__name__": module.__name__, "__package__": module.__package__}
    for statement in ast.parse(inspect.getsource(module)).body:
        if isinstance(statement, ast.If) and ast.unparse(statement.test).endswith("TYPE_CHECKING"):
            exec(compile(ast.Module(statement.body, []), str(module.__file__), "exec"), names)
    return names
