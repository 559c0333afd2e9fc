"""What a private model, optimizer or loader says of attributes that Opacus's objects have, and it
has not.
"""

from __future__ import annotations

from typing import Any, final

from privlearn.errors import BadInput


@final
class NoSuchAttribute(BadInput, AttributeError):
    """An attribute of Opacus's objects, or of any other, that a private object doesn't have."""


def refuse_reading(what: str, name: str) -> Exception:
    """The error for an attribute that is read: most often by code of Opacus's."""
    if name.startswith("_"):
        return AttributeError(f"the private {what} has no attribute {name!r}")
    return NoSuchAttribute(
        f"the private {what} has no {name!r}. If code of Opacus's asked for it: its schedulers, "
        "memory managers, accountants and optimizers don't fit privlearn's objects. Import "
        "BatchMemoryManager, StepNoise, StepGradClip and the like from privlearn.opacus",
        name=name,
    )


def refuse_writing(what: str, name: str, value: Any) -> BadInput:
    """The error for an attribute that is written: nothing would follow from it."""
    return NoSuchAttribute(
        f"{name} was set to {str(value)[:40]}, and the private {what} has no such setting: nothing "
        "would follow from it. What may be set are noise_multiplier and max_grad_norm, before the "
        "first batch; all else is given to make_private",
        name=name,
    )
