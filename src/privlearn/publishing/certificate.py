"""The certificate: which events happened, what they cost, and which files it speaks of.

It proves arithmetic: that these events give this epsilon, and that these are the weights. That this was the run is the
publisher's word.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from privlearn.accounting.accountant import Guarantee
from privlearn.accounting.event_json import JSON_VERSION, to_json
from privlearn.accounting.events import Event
from privlearn.errors import BadInput

#: File names of a published model.
WEIGHTS, CERTIFICATE, CONFIG, CARD = "model.safetensors", "privacy.json", "config.json", "README.md"
#: The parts of a certificate, each with a digest of its own.
PARTS = ("claim", "event", "settings", "randomness", "files")
_FORMAT = "privlearn-certificate"
_LARGEST = 1 << 22


def make(
    event: Event, guarantee: Guarantee, settings: dict[str, Any], seeded: bool, files: dict[str, bytes]
) -> dict[str, Any]:
    """Return the certificate of `event` and `files` as plain JSON values."""
    claim = {
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "adjacency": guarantee.adjacency.value,
        "method": guarantee.method,
        "rho": guarantee.rho,
        "unit": str(guarantee.unit),
        **guarantee.unit.figures(),
    }
    body = {
        "claim": claim,
        "event": to_json(event),
        "settings": settings,
        "randomness": "seeded" if seeded else "operating system",
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    digests = {part: digest(value) for part, value in body.items()}
    return {"format": _FORMAT, "version": JSON_VERSION, **body, "digests": digests}


def read(folder: Path) -> dict[str, Any]:
    """Read the certificate of a published folder.

    Raises:
        BadInput: there is none, or it is none.
    """
    path = folder / CERTIFICATE
    if not path.is_file():
        raise BadInput(f"{folder} is no published model: it has no {CERTIFICATE}. Give the folder that train wrote")
    if path.stat().st_size > _LARGEST:
        raise BadInput(f"{path} is larger than {_LARGEST >> 20} MiB: that is no certificate of privlearn")
    try:
        data = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError, OSError) as error:
        raise BadInput(f"{path} is not readable JSON: {error}") from error
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise BadInput(f"{path} is no certificate of privlearn: its format is not {_FORMAT!r}")
    if data.get("version") != JSON_VERSION:
        raise BadInput(
            f"{path} has version {str(data.get('version'))[:40]}: this privlearn reads version {JSON_VERSION}. Use a "
            "matching one"
        )
    return data


def digest(value: Any) -> str:
    """SHA-256 of a JSON value in canonical form."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands there twice")
    return found
