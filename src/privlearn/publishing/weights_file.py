"""This file reads the head of a file of weights (safetensors): names, types and places of tensors,
and nothing else.

Read without torch and without safetensors, whose readers pass over fields that they do not know.
"""

from __future__ import annotations

import math
from io import BufferedReader
from typing import Any

from privlearn._checks import printable
from privlearn._storage import loads

#: Metadata that libraries write: the form of the tensors.
_METADATA: tuple[dict[str, str], ...] = ({}, {"format": "pt"})
#: Bytes of a number, by the name of its type.
_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "C64": 8,
}
_FIELDS = {"dtype", "shape", "data_offsets"}
#: Bytes of a head that is read, and characters of a name.
_MOST, _LONGEST = 1 << 24, 512


def problem_of(file: BufferedReader, size: int) -> str:
    """What is wrong with the head of a file of `size` bytes: what tensors do not need has no place
    in it.

    Returns:
        A few words; empty if there is nothing.
    """
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > size - 8:
        return "it cannot be read as safetensors"
    if length > _MOST:
        return f"its head is larger than {_MOST >> 20} MiB"
    content = file.read(length)
    try:
        head = loads(content.rstrip(b" "))
    except ValueError as error:
        return f"it cannot be read as safetensors: {printable(error)[:80]}"
    if not isinstance(head, dict) or len(content) - len(content.rstrip(b" ")) > 7:
        return "its head holds something else than tensors"
    if head.pop("__metadata__", {}) not in _METADATA:
        return "it has metadata that no model needs"
    return _layout(head, size - 8 - length)


def _layout(tensors: dict[str, Any], size: int) -> str:
    """What is wrong with the places of tensors, which have to fill `size` bytes, each once."""
    places = []
    for name, entry in tensors.items():
        if len(name) > _LONGEST or not name.isprintable():
            return f"this is not the name of a tensor: {printable(name)[:40]!r}"
        if not isinstance(entry, dict) or set(entry) != _FIELDS:
            return f"the tensor {name[:60]!r} has other fields than {', '.join(sorted(_FIELDS))}"
        shape, place = entry["shape"], entry["data_offsets"]
        if (
            not _whole(shape)
            or not _whole(place)
            or len(place) != 2
            or entry["dtype"] not in _BYTES
        ):
            return f"the tensor {name[:60]!r} has no type, shape or place"
        if place[1] - place[0] != math.prod(shape) * _BYTES[entry["dtype"]]:
            return f"the tensor {name[:60]!r} has another size than its shape"
        places.append((place[0], place[1]))
    end = 0
    for begin, after in sorted(places):
        if begin != end:
            return "its tensors do not lie end to end"
        end = after
    return "" if end == size else "it holds more than its tensors"


def _whole(values: Any) -> bool:
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < 1 << 60 for value in values
    )
