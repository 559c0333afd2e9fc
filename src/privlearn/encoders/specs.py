"""Encoders by name."""

from __future__ import annotations

from privlearn._validate import parse_spec
from privlearn.encoders.external import External
from privlearn.encoders.scattering import Scattering
from privlearn.errors import BadInput

Encoder = Scattering | External


def encoder(spec: str, *, code: bool = True) -> Encoder | None:
    """The encoder that `spec` names, or None for "raw".

    Args:
        spec: `raw`, `scatter`, `scatter:J=2`, or `package.module:function`.
        code: whether code of the user's may be imported; not what a file from elsewhere names.

    Raises:
        BadInput: an unknown name or number, or code that can't be used.
    """
    name, _, rest = spec.partition(":")
    if spec == "raw":
        return None
    if name == "scatter":
        _, numbers = parse_spec("features", spec)
        scale = numbers.pop("J", 2.0)
        if numbers or scale != int(scale):
            raise BadInput(f"features {spec!r} cannot be read: expected scatter, or scatter:J=2 with a whole number")
        return Scattering(int(scale))
    if code and name and rest.isidentifier():
        return External(spec)
    raise BadInput(
        f"features {spec[:60]!r} are unknown: expected raw, scatter:J=2, or package.module:function", spec=spec
    )
