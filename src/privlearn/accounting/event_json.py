"""Events as JSON, by a closed, versioned table of kinds: what certificates carry. Nothing else can be read back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from privlearn._public import with_own_form
from privlearn.accounting.events import (
    ZCDP,
    Composed,
    Event,
    Filter,
    FixedBatches,
    Gaussian,
    GaussianFilter,
    Laplace,
    NonPrivate,
    OneOf,
    Parallel,
    Partitioned,
    PoissonSampled,
    PureDP,
    RandomisedResponse,
    RepeatAndSelect,
    Repeated,
    Selection,
)
from privlearn.errors import BadInput

_KINDS: dict[str, type[Event]] = {
    "gaussian": Gaussian,
    "poisson_sampled": PoissonSampled,
    "partitioned": Partitioned,
    "fixed_batches": FixedBatches,
    "laplace": Laplace,
    "randomised_response": RandomisedResponse,
    "selection": Selection,
    "repeat_and_select": RepeatAndSelect,
    "pure_dp": PureDP,
    "zcdp": ZCDP,
    "parallel": Parallel,
    "one_of": OneOf,
    "filter": Filter,
    "gaussian_filter": GaussianFilter,
    "non_private": NonPrivate,
    "repeated": Repeated,
    "composed": Composed,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_FIELDS = {kind: tuple(field.name for field in fields(kind)) for kind in _NAMES}  # type: ignore[arg-type]
#: Version of the JSON form below. It changes whenever the meaning of a stored event would.
JSON_VERSION = 1
_DEEPEST = 32


def to_json(event: Event) -> dict[str, Any]:
    """Return `event` as plain JSON values, by a closed table of kinds."""
    out: dict[str, Any] = {"kind": _NAMES[type(event)]}
    for name in _FIELDS[type(event)]:
        value = getattr(event, name)
        if isinstance(value, Event):
            value = to_json(value)
        elif isinstance(value, tuple):
            value = [to_json(part) if isinstance(part, Event) else part for part in value]
        out[name] = value
    return out


def from_json(data: Any, *, _depth: int = 0) -> Event:
    """Rebuild an event from `to_json`'s form.

    Raises:
        BadInput: an unknown kind, a missing, unknown or ill-typed field, or a tree nested too deeply.
    """
    if not isinstance(data, dict) or _depth > _DEEPEST:
        given = "nested too deeply" if _depth > _DEEPEST else f"a {type(data).__name__}"
        raise BadInput(f"an event is {given}: expected a JSON object, nested at most {_DEEPEST} deep")
    name = data.get("kind")
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise BadInput(f"an event has kind {name!r}: this version knows {', '.join(_KINDS)}", kind=name)
    expected = {"kind", *_FIELDS[kind]}
    if set(data) != expected:
        raise BadInput(f"a {name} event has the fields {sorted(data)}: expected {sorted(expected)}")
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key == "kind":
            continue
        if key == "event":
            value = from_json(value, _depth=_depth + 1)
        elif key in ("events", "orders", "bounds"):
            if not isinstance(value, list):
                raise BadInput(f"{key} is a {type(value).__name__}: expected a list")
            value = tuple(from_json(part, _depth=_depth + 1) if key == "events" else part for part in value)
        elif key == "reason" and not isinstance(value, str):
            raise BadInput(f"reason is a {type(value).__name__}: expected text")
        values[key] = value
    return kind(**values)


with_own_form("event", Event, to_json, from_json)
