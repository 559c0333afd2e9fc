"""What differs between the facts of two processes, in words: values of settings, never of data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

#: How many facts a message names, and how long a value and all of it may be.
_NAMED, _VALUE, _WHOLE = 3, 40, 150


def compare(names: Sequence[str], there: Mapping[str, str], first: Mapping[str, str]) -> str:
    """The names of facts that differ from those of process 0, with both values where these are
    public settings and short.
    """
    named = names[:_NAMED]
    in_detail = " and ".join(
        name + _both_values(there.get(name, "none"), first.get(name, "none")) for name in named
    )
    return in_detail if len(in_detail) <= _WHOLE else " and ".join(named)


def _both_values(there: str, first: str) -> str:
    """Two texts from where they differ; nothing of those with a digest of rows."""
    if not (tells_no_data(there) and tells_no_data(first)):
        return ""
    pairs = enumerate(zip(there, first, strict=False))
    start = next((place for place, (one, other) in pairs if one != other), len(first))
    begin = max(there.rfind(mark, 0, start) for mark in " (") + 1
    one, other = (text[begin:].split(", ")[0][:_VALUE] for text in (there, first))
    return f" ({one}, and {other} in process 0)"


def differences(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What differs between the facts of two runs, in words."""
    differ = [name for name in now if then.get(name) != now[name]]
    differ = [name for name in differ if name != "plan"] or differ  # which says the same at length
    said = (
        f"its setting {name!r} was {then.get(name)} and is {now[name]}"
        if len(str(then.get(name))) + len(now[name]) < 200 and tells_no_data(now[name])
        else f"its {name} differs"
        for name in differ
    )
    return "; ".join(said) or "it has other settings"


def tells_no_data(fact: str) -> bool:
    """Whether a fact has no digest in it, which is as secret as the rows that it is of."""
    return re.search("[0-9a-f]{64}", fact) is None
