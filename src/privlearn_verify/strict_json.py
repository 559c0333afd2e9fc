"""JSON as strictly as the format reads it, its canonical form, and digests."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

from privlearn_verify.verdicts import Refusal, demand

BYTES_AT_MOST = {"privacy.json": 2**25, "card.html": 2**22}
SMALL = ("README.md", "config.json", "adapter_config.json", "audit.json")
ENVELOPES = ("privacy.intoto.jsonl", "privacy.sigstore.json", "model.sig")
BYTES_AT_MOST |= dict.fromkeys((*SMALL, *ENVELOPES), 2**20)


def read_json(name: str, data: bytes, infinite: tuple[str, ...] = ()) -> Any:
    """Parse a file as strictly as the page says; `infinite` names what may be infinite."""

    def read_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        demand(len(dict(pairs)) == len(pairs), f"{name}: a key stands twice in an object")
        return dict(pairs)

    def read_constant(text: str) -> float:
        demand(text == "Infinity", f"{name}: the number {text}")
        return math.inf

    def read_whole(text: str) -> int:
        demand(len(text) <= 20, f"{name}: a whole number of {len(text)} characters")
        return int(text)

    demand(len(data) <= BYTES_AT_MOST.get(name, math.inf), f"{name} is too large")
    try:
        value = json.loads(
            bytes(data).decode(),
            parse_int=read_whole,
            parse_constant=read_constant,
            object_pairs_hook=read_pairs,
        )
        demand(measure(value)[1] <= 80, f"{name}: nested too deep")
        demand(not has_infinite(value, infinite), f"{name}: an infinite number")
    except (ValueError, RecursionError) as error:
        raise Refusal(f"{name} is no JSON: {error}") from error
    return value


def list_inner(value: Any) -> list[Any]:
    """Return what an object or a list holds."""
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def measure(value: Any) -> tuple[int, int]:
    """Return how many values there are in a value, itself included, and how many levels."""
    inner = [measure(item) for item in list_inner(value)]
    return 1 + sum(x[0] for x in inner), 1 + max((x[1] for x in inner), default=0)


def has_infinite(value: Any, allowed: tuple[str, ...], name: str = "") -> bool:
    """Return whether there is an infinite number, except in fields of the allowed names."""
    if isinstance(value, dict):
        return any(has_infinite(item, allowed, key) for key, item in value.items())
    if isinstance(value, list):
        return any(has_infinite(item, allowed) for item in value)
    return isinstance(value, float) and math.isinf(value) and not (name in allowed and value > 0)


def write_canonical(value: Any) -> bytes:
    """Return the canonical form of a value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def compute_digest(data: bytes) -> str:
    """Return the SHA-256 of bytes in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()
