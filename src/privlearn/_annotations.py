"""What the arguments of a function or a class may be, as its annotations say it."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import types
from collections.abc import Mapping
from typing import Any, final, get_args, get_type_hints


@final
class Annotations:
    """Reads the annotations of one function, or of a class as it is made, each when it is asked
    for.

    Args:
        target: the function or class. Names in a class's `_parsed` are left to its own code.
        parameters: those of the function, or of the class's `__init__`.
    """

    def __init__(self, target: Any, parameters: Mapping[str, inspect.Parameter]) -> None:
        self._target, self._parameters = target, parameters
        self._left = getattr(target, "_parsed", ())
        self._kinds: dict[str, Any] = {}

    def kind_of(self, name: str) -> Any:
        """What an argument may be; `Any`: nothing is known of it.

        Raises:
            NameError: an annotation names what its module does not import: it would guard nothing.
        """
        if name not in self._kinds:
            self._kinds[name] = self._kind_of(name)
        return self._kinds[name]

    def is_left(self, name: str) -> bool:
        """Whether the code of the class itself reads and checks an argument."""
        return name in self._left

    def takes_none(self, name: str) -> bool:
        """Whether an argument is annotated with None, which is told without reading the others."""
        part = self._parameters.get(name)
        annotation = None if part is None else part.annotation
        return isinstance(annotation, str) and annotation.endswith("| None")

    def _kind_of(self, name: str) -> Any:
        part = self._parameters.get(name)
        if part is None or part.kind is part.VAR_KEYWORD:
            return self._options.get(name, Any)
        return Any if part.annotation is part.empty else self._evaluated(name)

    @functools.cached_property
    def _options(self) -> Mapping[str, Any]:
        """What `**options: Unpack[...]` may hold, by name."""
        for name, part in self._parameters.items():
            if part.kind is part.VAR_KEYWORD:
                unpacked = get_args(self._evaluated(name))
                return get_type_hints(unpacked[0]) if unpacked else {}
        return {}

    def _evaluated(self, name: str) -> Any:
        annotation = self._parameters[name].annotation
        if not isinstance(annotation, str):
            return annotation
        module = self._module_of(name)
        try:
            return eval(annotation, dict(vars(module)))
        except NameError:
            return eval(annotation, vars(module) | _imported_for_types(module))

    def _module_of(self, name: str) -> types.ModuleType:
        """Where an argument is annotated: of a field that a class inherits, where its parent is."""
        parents = self._target.__mro__ if isinstance(self._target, type) else ()
        home = next((each for each in parents if name in inspect.get_annotations(each)), None)
        return sys.modules[(home or self._target).__module__]


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
