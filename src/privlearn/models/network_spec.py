"""What a `models.networks.NetworkSpec` is called, without torch."""

from __future__ import annotations

from typing import Any

from privlearn.errors import BadInput


def require_spec(what: str, spec: Any) -> None:
    """Raise `BadInput` unless `spec` is of a type that `models.build` takes."""
    if not isinstance(spec, str) and (not callable(spec) or isinstance(spec, type)):
        kind = "class" if isinstance(spec, type) else type(spec).__name__
        raise BadInput(
            f"{what} is a {kind}: expected a text, such as 'linear' or 'mlp:100', a "
            "torch.nn.Module, or a function from the shape of one example to one"
        )


def name_of(spec: Any) -> str:
    """What messages and explanations call it."""
    if isinstance(spec, str):
        return repr(spec)
    return str(getattr(spec, "__name__", type(spec).__name__))


def kind_of(spec: Any) -> str:
    """The kind of network that a text names, such as `mlp`; empty for a network or a function."""
    return spec.partition(":")[0] if isinstance(spec, str) else ""


def text_of(spec: Any) -> str | None:
    """The text that `models.build` can build it again by; None for a network or a function."""
    return spec if isinstance(spec, str) else None
