"""The certificate: which events happened, what they cost, and which files it speaks of.

It proves arithmetic: that these events give this epsilon, and that these are the weights. That this was the run is the
publisher's word. Checking it needs neither the data nor torch.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from privlearn.accounting import accountant
from privlearn.accounting.accountant import Guarantee
from privlearn.accounting.adjacency import Adjacency
from privlearn.accounting.events import JSON_VERSION, Event, from_json, to_json
from privlearn.errors import BadInput, PrivlearnError

#: File names of a published model.
WEIGHTS, CERTIFICATE, CONFIG, CARD = "model.safetensors", "privacy.json", "config.json", "README.md"
_FORMAT = "privlearn-certificate"
_UNIT = "one example (one row of the training data)"
#: Relative difference below which a recomputed epsilon confirms the stated one.
_AGREE = 1e-6
_LARGEST = 1 << 22


@final
@dataclass(frozen=True)
class Verification:
    """What `verify` found. `ok` is whether the folder agrees with its certificate.

    Attributes:
        ok: no problems were found.
        epsilon: recomputed from the events; None if that was impossible.
        delta: as stated.
        adjacency: as stated.
        method: the accountant that gives `epsilon`.
        problems: what does not agree, each a sentence.
        warnings: what weakens the statement without contradicting it.
    """

    ok: bool
    epsilon: float | None
    delta: float | None
    adjacency: str | None
    method: str | None
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


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
        "unit": _UNIT,
    }
    body = {
        "claim": claim,
        "event": to_json(event),
        "settings": settings,
        "randomness": "seeded" if seeded else "operating system",
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    digests = {part: _digest(value) for part, value in body.items()}
    return {"format": _FORMAT, "version": JSON_VERSION, **body, "digests": digests}


def verify(folder: str | Path) -> Verification:
    """Recompute the guarantee and the hashes of a published model.

    Raises:
        BadInput: the folder or its certificate cannot be read at all.
    """
    folder = Path(folder)
    certificate = read(folder)
    problems = _changed_parts(certificate) + _changed_files(folder, certificate)
    warnings: list[str] = []
    if certificate.get("randomness") == "seeded":
        warnings.append(
            "the run used a fixed seed: whoever knows the seed can take the noise off the weights, and then nothing is "
            "protected"
        )
    claim = certificate["claim"] if isinstance(certificate.get("claim"), dict) else {}
    found = None
    try:
        found = _recompute(certificate, claim)
    except PrivlearnError as error:
        problems.append(f"the guarantee cannot be recomputed: {error}")
    if found is not None:
        problems += _contradictions(found, claim) + _card_contradictions(folder, found)
        if found.delta >= 1e-3:
            warnings.append(f"delta is {found.delta:g}: a delta well below one over the number of examples is usual")
    stated = {key: claim.get(key) for key in ("delta", "adjacency")}
    return Verification(
        ok=not problems,
        epsilon=found.epsilon if found else None,
        delta=stated["delta"] if isinstance(stated["delta"], int | float) else None,
        adjacency=stated["adjacency"] if isinstance(stated["adjacency"], str) else None,
        method=found.method if found else None,
        problems=problems,
        warnings=warnings,
    )


def read(folder: Path) -> dict[str, Any]:
    """Read the certificate of a published folder.

    Raises:
        BadInput: there is none, or it is none.
    """
    path = folder / CERTIFICATE
    if not path.is_file():
        raise BadInput(f"{folder} is no published model: it has no {CERTIFICATE}. Give the folder that train wrote")
    try:
        if path.stat().st_size > _LARGEST:
            raise BadInput(f"{path} is larger than {_LARGEST >> 20} MiB: that is no certificate of privlearn")
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path} is not readable JSON: {error}") from error
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise BadInput(f"{path} is no certificate of privlearn: its format is not {_FORMAT!r}")
    if data.get("version") != JSON_VERSION:
        raise BadInput(
            f"{path} has version {data.get('version')!r}: this privlearn reads version {JSON_VERSION}. Use a matching one"
        )
    return data


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _changed_parts(certificate: dict[str, Any]) -> list[str]:
    digests = certificate.get("digests")
    if not isinstance(digests, dict):
        return [f"{CERTIFICATE} has no digests"]
    parts = ("claim", "event", "settings", "randomness", "files")
    return [
        f"the {part} in {CERTIFICATE} was changed after publishing: its digest does not match"
        for part in parts
        if digests.get(part) != _digest(certificate.get(part))
    ]


def _changed_files(folder: Path, certificate: dict[str, Any]) -> list[str]:
    files = certificate.get("files")
    problems = []
    for name in (WEIGHTS, CONFIG):
        path = folder / name
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif not isinstance(files, dict) or files.get(name) != _file_digest(path):
            problems.append(f"{name} is not the file that was certified: its SHA-256 does not match")
    return problems


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _recompute(certificate: dict[str, Any], claim: dict[str, Any]) -> Guarantee:
    delta = claim.get("delta")
    if isinstance(delta, bool) or not isinstance(delta, int | float):
        raise BadInput(f"the stated delta is {delta!r}: expected a number in (0, 1)")
    event = from_json(certificate.get("event"))
    return accountant.guarantee(event, Adjacency.parse(str(claim.get("adjacency"))), delta)


def _contradictions(found: Guarantee, claim: dict[str, Any]) -> list[str]:
    stated = claim.get("epsilon")
    if isinstance(stated, bool) or not isinstance(stated, int | float) or not math.isfinite(stated):
        return [f"the stated epsilon is {stated!r}: expected a number"]
    problems = []
    if not math.isclose(stated, found.epsilon, rel_tol=_AGREE, abs_tol=_AGREE):
        problems.append(
            f"the events give epsilon {found.epsilon:.6g} at delta {found.delta:g}, and the certificate states {stated:.6g}"
        )
    rho = claim.get("rho")
    if (rho is None) != (found.rho is None) or (
        found.rho is not None
        and not (isinstance(rho, int | float) and math.isclose(rho, found.rho, rel_tol=_AGREE, abs_tol=1e-300))
    ):
        problems.append(f"the events give rho {found.rho}, and the certificate states {rho!r}")
    if claim.get("unit") != _UNIT:
        problems.append(
            f"the certificate states {claim.get('unit')!r} as what is protected: these events protect {_UNIT}"
        )
    return problems


def _card_contradictions(folder: Path, found: Guarantee) -> list[str]:
    """The card's header repeats the claim; it must not say something else."""
    path = folder / CARD
    if not path.is_file():
        return [f"{CARD} is missing"]
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    header = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines[:40])}
    problems = []
    for key, true in {"epsilon": found.epsilon, "delta": found.delta}.items():
        try:
            stated = float(header.get(key, "nan"))
        except ValueError:
            stated = math.nan
        if not math.isclose(stated, true, rel_tol=_AGREE, abs_tol=_AGREE if key == "epsilon" else 0.0):
            problems.append(
                f"{CARD} states {key} {header.get(key, 'nowhere')}, and the certificate's events give {true!r}"
            )
    if header.get("adjacency") != found.adjacency.value:
        problems.append(
            f"{CARD} states adjacency {header.get('adjacency')}, and the certificate {found.adjacency.value}"
        )
    return problems
