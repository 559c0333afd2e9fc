"""A private figure is a number computed on private data without a release: it is for the curator's
eyes, and is followed where Python takes it.

What is shown or formatted is free, arithmetic gives figures again. What makes a plain number of
one, or compares it, is reported to the runs that are under way: from there on it is not known what
follows from it.
"""

from __future__ import annotations

import operator
import sys
import sysconfig
import types
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

#: What was done with a figure, as messages say it.
COMPARED, PLAIN = "compared", "used as a plain number"
#: What Python wants a plain value of.
_CONVERSIONS = {"__float__", "__int__", "__index__"}
_COMPARISONS = {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"}
#: Functions that take the place of a method, where `operator` has none with its name.
_BUILTIN: dict[str, Callable[..., Any]] = {"__divmod__": divmod, "__pow__": pow}
#: Where Python and installed packages lie.
_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


@final
@dataclass(frozen=True, eq=False)
class FigureUse:
    """A private figure became a plain value.

    Attributes:
        what: `COMPARED` or `PLAIN`.
        place: file and line of the script.
        by: the first argument of the function that did it: of a method, its object.
        silent: whether nothing is said of it yet: what a library makes of a figure may be a picture
            or a line of a log, and what a script computes without gradients an accuracy to print.
    """

    what: str
    place: str
    by: object
    silent: bool

    def __str__(self) -> str:
        return f"a private figure was {self.what} at {self.place}"


class FigureWatch(Protocol):
    """A run that has to know what becomes of private figures while it is under way."""

    @property
    def under_way(self) -> bool:
        """Whether it begins to count."""

    def figure_used(self, use: FigureUse, *, warn: bool) -> bool:
        """A private figure of this process became a plain value. Returns whether the run warned of
        it, which it does only if `warn`.
        """


_WATCHES: weakref.WeakKeyDictionary[FigureWatch, None] = weakref.WeakKeyDictionary()  # in order


def watch_figures(watch: FigureWatch) -> None:
    """Report to this run, until it is gone."""
    _WATCHES[watch] = None


class PrivateFigure:
    """A number computed on private data without a release.

    `publish` and plans refuse it, and what arithmetic makes of it. It is also a float or an int: it
    prints, formats and is written as JSON like one. Python's arithmetic and NumPy's functions give
    figures again (a plain float plus a count does not). A comparison, and what makes a plain number
    of it (`float(figure)`, an array of NumPy), is noted with its place by the runs that are under
    way (`runs.optimizers.Descent`). What code in C reads without asking (`torch.tensor`, `math`,
    `json`, `%`) is not.
    """

    def __copy__(self) -> PrivateFigure:
        return self

    def __deepcopy__(self, memo: object) -> PrivateFigure:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return private_figures, (plain(self),)

    def __bool__(self) -> bool:
        return bool(followed(bool, "__bool__", self))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return followed(
            lambda *values: getattr(ufunc, method)(*values, **options), "__array_ufunc__", *inputs
        )

    @classmethod
    def __torch_function__(
        cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        note(PLAIN)
        return function(*plain(args), **plain(kwargs or {}))


class _PrivateFloat(PrivateFigure, float):
    pass


class _PrivateInt(PrivateFigure, int):
    pass


def followed(function: Callable[..., Any], name: str, *values: Any) -> Any:
    """What a function gives of figures, as a figure; what is none is noted."""
    return as_figures(function(*plain(values)), name)


def as_figures(result: Any, name: str) -> Any:
    """What a function of this name computed from private values, as figures; what is none is noted.

    Texts are for the curator's eyes, and stay texts.
    """
    if name in _CONVERSIONS:
        note(PLAIN)
        return result
    if result is None or result is NotImplemented or isinstance(result, str):
        return result
    if getattr(result, "ndim", None) == 0 and not hasattr(result, "__setitem__"):
        result = result.item()  # one of NumPy's numbers
    if isinstance(result, bool):
        note(COMPARED)
        return result
    figures = private_figures(result)
    if figures is result:
        note(PLAIN)
    return figures


def plain(values: Any) -> Any:
    """Plain numbers of figures, also in dictionaries, lists and tuples; all else as it is. Nothing
    is noted.
    """
    if isinstance(values, Mapping):
        return {name: plain(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return type(values)(map(plain, values))
    if isinstance(values, _PrivateFloat):
        return float.__float__(values)
    return int.__int__(values) if isinstance(values, _PrivateInt) else values


def private_figures(values: Any) -> Any:
    """Numbers, also in dictionaries, lists and tuples, as `PrivateFigure`; all else as it is."""
    if isinstance(values, Mapping):
        return {name: private_figures(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return type(values)(map(private_figures, values))
    if isinstance(values, bool | PrivateFigure) or not isinstance(values, int | float):
        return values
    return (_PrivateFloat if isinstance(values, float) else _PrivateInt)(values)


def _function_of(name: str) -> Callable[..., Any]:
    """What a method of numbers computes, as a function of all of its operands."""
    direct: Callable[..., Any] | None = _BUILTIN.get(name) or getattr(operator, name, None)
    if direct:
        return direct
    turned = f"__{name[3:]}"
    apply: Callable[..., Any] | None = _BUILTIN.get(turned) or getattr(operator, turned, None)
    if name.startswith("__r") and apply:
        return lambda number, other: apply(other, number)
    return lambda number, *others: getattr(number, name)(*others)


def _follow(kind: type, base: type) -> None:
    """Let all that numbers of a base can do be followed, but for what every object has: its text,
    its hash.
    """
    for name in dir(base):
        what = next(vars(parent)[name] for parent in base.__mro__ if name in vars(parent))
        if (name in vars(object) and name not in _COMPARISONS) or name in vars(PrivateFigure):
            continue
        function = _function_of(name)
        if isinstance(what, types.GetSetDescriptorType):

            def part(figure: Any, name: str = name) -> Any:
                return private_figures(getattr(plain(figure), name))

            setattr(kind, name, property(part))
        elif isinstance(what, types.MethodDescriptorType | types.WrapperDescriptorType):

            def method(*values: Any, function: Any = function, name: str = name) -> Any:
                return followed(function, name, *values)

            setattr(kind, name, method)


_follow(_PrivateFloat, float)
_follow(_PrivateInt, int)


def note(what: str, *, silent: bool = False) -> None:
    """Tell the runs that are under way that a private figure became a plain value."""
    watches = [watch for watch in list(_WATCHES) if watch.under_way]
    if not watches:
        return
    use, warned = _use(what, silent=silent), False
    for watch in watches:  # a run that a script left is under way, too, until it is collected
        warned |= watch.figure_used(use, warn=not warned)


def _use(what: str, *, silent: bool) -> FigureUse:
    """Who did it, outside of this package, and the line of the script that it is part of."""
    frame: types.FrameType | None = sys._getframe(1)
    while (
        frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "privlearn"
    ):
        frame = frame.f_back
    script = frame
    while script is not None and in_library(script.f_code):
        script = script.f_back
    line = script or frame
    place = f"{Path(line.f_code.co_filename).name}:{line.f_lineno}" if line else "an unknown place"
    return FigureUse(
        what, place, None if frame is None else first_argument(frame), silent or script is not frame
    )


def first_argument(frame: types.FrameType) -> object:
    """Of a method, its object; None of a function without arguments."""
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def in_library(code: types.CodeType) -> bool:
    """Whether code is Python's own, or an installed package's."""
    return code.co_filename.startswith((*_LIBRARIES, "<frozen"))
