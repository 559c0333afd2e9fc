"""The matrices by which noise is correlated over steps, as specs name them: banded, bisr and
blt.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from privlearn._checks import one_of
from privlearn._public import kinds
from privlearn.core.mechanisms.banded import Banded
from privlearn.core.mechanisms.bisr import BISR
from privlearn.core.mechanisms.blt import BLT
from privlearn.core.mechanisms.correlated import Correlation
from privlearn.errors import BadInput

#: Those that are here; others are registered where they are written.
_OWN: tuple[type[Correlation], ...] = (Banded, BISR, BLT)


def choices(spec: Correlation | str | None) -> list[Correlation] | list[None]:
    """The correlations that a spec leaves open: one for `banded:bands=8,momentum=0.9`, several
    without bands.

    A correlation itself is one. None for `independent`, and where nothing is given.

    Raises:
        BadInput: an unknown name or number.
    """
    if spec is None or isinstance(spec, Correlation):
        return [spec]  # type: ignore[return-value]
    from privlearn._short_specs import parse_spec  # only where a text is given

    name, numbers = parse_spec("mechanism", spec)
    known: dict[str, type[Any]] = {correlation.kind: correlation for correlation in _OWN} | kinds(
        Correlation
    )
    if one_of("mechanism", name, ["independent", *known]) == "independent":
        if numbers:
            raise BadInput(f"mechanism {spec!r}: independent noise has no parameters", spec=spec)
        return [None]
    matrix = known[name]
    allowed = [part.name for part in fields(matrix)]
    if unknown := sorted(set(numbers) - set(allowed)):
        raise BadInput(
            f"mechanism {spec!r} has no parameter {unknown[0]!r}: expected {', '.join(allowed)}, "
            f"for example {name}:{allowed[0]}={matrix.tried[-1]}",
            spec=spec,
        )
    number = numbers.pop(allowed[0], None)
    if number is None:
        return [matrix(tried, **numbers) for tried in matrix.tried]
    return [matrix(int(number) if number.is_integer() else number, **numbers)]


def spec(correlation: Correlation | None) -> str:
    """What `choices` reads it from."""
    if correlation is None:
        return "independent"
    return f"{correlation.kind}:" + ",".join(
        f"{name}={value:g}" for name, value in vars(correlation).items() if value
    )
