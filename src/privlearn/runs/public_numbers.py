"""A public number is one that a user declares to follow from no private row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privlearn._checks import as_plain
from privlearn._figures import PrivateFigure
from privlearn.errors import BadInput

#: The most characters of a reason, which certificates state.
_LONGEST = 200


class PublicNumber:
    """A number that was declared public, by `declare_public`. It is also a float or an int.

    What arithmetic makes of it is a plain number again: the last number has to be declared.

    Attributes:
        because: why it is public, in the user's words.
    """

    because: str

    def __reduce__(self) -> tuple[Any, ...]:
        return plain_number, (plain_number(self),)


class _PublicFloat(PublicNumber, float):
    pass


class _PublicInt(PublicNumber, int):
    pass


def declare_public(value: Any, *, because: str) -> Any:
    """Declare that a number follows from no private row, so that it may steer learning rates.

    The declaration is taken as given, as that of public rows is. A scheduler may be given the
    number, `scheduler.step(declare_public(accuracy, because="..."))`, and a setting of an optimizer
    may be set to it, `group["lr"] = declare_public(rate, because="...")`.

    Args:
        value: a number, or a tensor or an array that holds one and has no axes.
        because: why it is public, such as "accuracy on public rows". The certificate states it.

    Returns:
        The number, a float or an int, with its declaration.

    Raises:
        BadInput: it is no number, or a private figure, or nothing says why it is public.
    """
    if not isinstance(because, str) or not (because.strip() and because.isprintable()):
        raise BadInput(
            "because holds no words in one line: say why the number is public, such as "
            'because="accuracy on public rows"'
        )
    if len(because) > _LONGEST:
        raise BadInput(f"because has {len(because)} characters: expected at most {_LONGEST}")
    number = value.item() if getattr(value, "ndim", None) == 0 else as_plain(value, float)
    if isinstance(number, PrivateFigure):
        raise BadInput(
            "value is a private figure, computed from private rows without noise: it "
            "can't be declared public. Declare a metric of public rows"
        )
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise BadInput(
            f"value is a {type(value).__name__}: expected a number, or a tensor of one without axes"
        )
    public = (_PublicFloat if isinstance(number, float) else _PublicInt)(number)
    public.because = because
    return public


def declare_metrics(metrics: Mapping[str, Any], *, because: str) -> dict[str, Any]:
    """Metrics of public rows by name, with each number declared public."""
    return {
        name: declare_public(value, because=because) if type(value) in (int, float) else value
        for name, value in metrics.items()
    }


def plain_number(value: Any) -> Any:
    """A public number without its declaration; all else as it is."""
    if isinstance(value, _PublicFloat):
        return float.__float__(value)
    return int.__int__(value) if isinstance(value, _PublicInt) else value
