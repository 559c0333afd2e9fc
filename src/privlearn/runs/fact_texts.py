"""What differs between the facts of two processes, in words: values of settings, never of data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from privlearn.runs.checkpoint import tells_no_data

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
