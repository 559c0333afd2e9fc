"""A number of another library becomes Python's own, never above what was given."""

from __future__ import annotations

import math
import types
from decimal import Decimal
from fractions import Fraction
from numbers import Integral, Rational, Real
from typing import Any, Literal, Union, get_args, get_origin

from privlearn._checks import NUMBERS, OF_NUMBERS, fits, holds_other_number
from privlearn._figures import PrivateFigure


def as_plain(value: Any, kind: Any) -> Any:
    """`value` with Python's own int, float or bool for a number of another library; all else as it
    is.

    Guarantee: what is stored, written and compared is a plain number, which in decimals is never
    above the number that was given: a target is never exceeded. Scalars, arrays and tensors
    without axes are taken exactly (`np.float32(0.1)` is 0.10000000149011612); a `Fraction` or a
    `Decimal` becomes the nearest float that is written no larger. Private figures stay figures.

    Args:
        value: what an argument was given; also a tuple, a list or a dictionary of such values.
        kind: how the argument is annotated. What may be something else than a number stays so.
    """
    if not holds_other_number(value):
        return value
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        numbers = [part for part in parts if part in NUMBERS]
        if any(fits(value, part) for part in parts if part not in numbers):
            kinds = [part for part in parts if get_args(part)]
            return as_plain(value, kinds[0]) if len(kinds) == 1 else value
        return _as_number(value, int in numbers) if numbers else as_plain(value, parts[0])
    if kind in NUMBERS or origin is Literal:
        return _as_number(value, kind is not float)
    if isinstance(value, dict) and len(parts) == 2:
        return {name: as_plain(part, parts[1]) for name, part in value.items()}
    if type(value) in (tuple, list) and parts:
        several = origin is tuple and parts[1:] != (...,)
        each = parts if several and len(parts) == len(value) else parts[:1] * len(value)
        return type(value)(map(as_plain, value, each))
    return value


def _as_number(value: Any, whole: bool) -> Any:
    """One value of another library as Python's number; what is none, or attached to a graph of
    gradients, as it is.

    Args:
        whole: whether a `Fraction` or a `Decimal` without a fraction becomes an int.
    """
    if getattr(value, "ndim", None) == 0:
        if _letter(value) not in OF_NUMBERS or getattr(value, "requires_grad", False):
            return value
        try:
            value = value.item()
        except (AttributeError, RuntimeError, TypeError, ValueError):
            return value
    if isinstance(value, int | float | PrivateFigure) or not isinstance(value, Real | Decimal):
        return value
    if isinstance(value, Integral):
        return int(value)
    try:
        number = float(value)
    except (OverflowError, ValueError):
        return value
    if not math.isfinite(number):
        return number if math.isnan(number) or number == value else value
    exact = value if isinstance(value, Rational | Decimal) else Fraction(*_ratio(value))
    if whole and exact == int(number):
        return int(number)
    written = (Decimal if isinstance(exact, Decimal) else Fraction)(repr(number))
    return math.nextafter(number, -math.inf) if written > exact else number


def _ratio(value: Any) -> tuple[int, int]:
    """Numerator and denominator of a float of another width."""
    ratio = getattr(value, "as_integer_ratio", float(value).as_integer_ratio)()
    return int(ratio[0]), int(ratio[1])


def _letter(value: Any) -> str:
    """By which letter a scalar or an array of NumPy says what it holds; of all else that of
    floats.
    """
    return str(getattr(getattr(value, "dtype", None), "kind", "f"))
