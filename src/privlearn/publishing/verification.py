"""Checking a published model: by anyone, without the data and without torch."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from privlearn import sampling
from privlearn.accounting import accountant
from privlearn.accounting.accountant import Guarantee
from privlearn.accounting.adjacency import Adjacency
from privlearn.accounting.event_json import from_json
from privlearn.accounting.events import Event, Gaussian, compose, tally
from privlearn.accounting.unit import Unit
from privlearn.errors import BadInput, PrivlearnError
from privlearn.publishing.certificate import CARD, CERTIFICATE, CONFIG, PARTS, WEIGHTS, digest, read

#: Relative difference below which a recomputed epsilon confirms the stated one.
_AGREE = 1e-6
_LARGEST_CARD = 1 << 20
_CLAIMS = {"epsilon", "delta", "adjacency", "method", "rho", "unit"}


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
        unit: whose data `epsilon` is for; None if that could not be read.
        problems: what does not agree, each a sentence.
        warnings: what weakens the statement without contradicting it.
    """

    ok: bool
    epsilon: float | None
    delta: float | None
    adjacency: str | None
    method: str | None
    unit: str | None
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def verify(folder: str | Path) -> Verification:
    """Recompute the guarantee and the hashes of a published model.

    Raises:
        BadInput: the folder or its certificate cannot be read at all.
    """
    folder = Path(folder)
    certificate = read(folder)
    claim = certificate["claim"] if isinstance(certificate.get("claim"), dict) else {}
    problems = _changed_parts(certificate) + _changed_files(folder, certificate)
    found = None
    try:
        event = from_json(certificate.get("event"))
        found = _recompute(event, claim)
        problems += _contradictions(found, claim) + _card_contradictions(folder, found)
        problems += _unlisted_releases(certificate, event)
    except PrivlearnError as error:
        problems.append(f"the guarantee cannot be recomputed: {error}")
    delta, adjacency = claim.get("delta"), claim.get("adjacency")
    return Verification(
        ok=not problems,
        epsilon=found.epsilon if found else None,
        delta=float(delta) if isinstance(delta, int | float) else None,
        adjacency=adjacency if isinstance(adjacency, str) else None,
        method=found.method if found else None,
        unit=str(found.unit) if found else None,
        problems=problems,
        warnings=_warnings(certificate, found) + _strangers(folder),
    )


def _changed_parts(certificate: dict[str, Any]) -> list[str]:
    digests = certificate.get("digests")
    if not isinstance(digests, dict):
        return [f"{CERTIFICATE} has no digests"]
    return [
        f"part {part!r} of {CERTIFICATE} was changed after publishing: its digest does not match"
        for part in PARTS
        if digests.get(part) != digest(certificate.get(part))
    ]


def _changed_files(folder: Path, certificate: dict[str, Any]) -> list[str]:
    files = certificate.get("files")
    problems = []
    for name in (WEIGHTS, CONFIG, CARD):
        path = folder / name
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif not isinstance(files, dict) or files.get(name) != _file_digest(path):
            problems.append(f"{name} is not the file that was certified: its SHA-256 does not match")
    return problems


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _recompute(event: Event, claim: dict[str, Any]) -> Guarantee:
    delta = claim.get("delta")
    if isinstance(delta, bool) or not isinstance(delta, int | float):
        raise BadInput(f"the stated delta is {str(delta)[:40]}: expected a number in (0, 1)")
    unit = Unit(claim.get("group_size", 1), claim.get("rows_per_person"))
    found = accountant.guarantee(event, Adjacency.parse(str(claim.get("adjacency"))[:40]), delta, unit.group_size)
    return replace(found, rows_per_person=unit.rows_per_person)


def _contradictions(found: Guarantee, claim: dict[str, Any]) -> list[str]:
    expected = _CLAIMS | set(found.unit.figures())
    if set(claim) != expected:
        return [f"the claim has the fields {sorted(claim)}: expected {sorted(expected)}"]
    problems = []
    if not _agrees(claim["epsilon"], found.epsilon):
        problems.append(
            f"the events give epsilon {found.epsilon:.6g} at delta {found.delta:g}, and the certificate states "
            f"{str(claim['epsilon'])[:40]}"
        )
    if claim["rho"] != found.rho and not (found.rho is not None and _agrees(claim["rho"], found.rho)):
        problems.append(f"the events give rho {found.rho}, and the certificate states {str(claim['rho'])[:40]}")
    for key, true in {"unit": str(found.unit), "method": found.method}.items():
        if claim[key] != true:
            problems.append(f"the certificate states {key} {str(claim[key])[:60]!r}: for these events it is {true!r}")
    return problems


def _agrees(stated: Any, true: float) -> bool:
    if isinstance(stated, bool) or not isinstance(stated, int | float) or abs(stated) > 1e300:
        return False
    return math.isclose(stated, true, rel_tol=_AGREE, abs_tol=1e-12)


def _card_contradictions(folder: Path, found: Guarantee) -> list[str]:
    """The card's header repeats the claim; it must not say something else."""
    path = folder / CARD
    if not path.is_file():
        return []  # reported with the files
    if path.stat().st_size > _LARGEST_CARD:
        return [f"{CARD} is larger than {_LARGEST_CARD >> 20} MiB"]
    head, *lines = path.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
    if head != "---" or "---" not in lines:
        return [f"{CARD} has no header with the guarantee"]
    pairs = [line.partition(":") for line in lines[: lines.index("---")]]
    stated = {key.strip(): value.strip() for key, _, value in pairs}
    if len(stated) != len(pairs):
        return [f"the header of {CARD} says something twice"]
    true = {"epsilon": repr(found.epsilon), "delta": repr(found.delta), "adjacency": found.adjacency.value}
    problems = [
        f"{CARD} states {key} {stated.get(key, 'nowhere')[:40]}, and the events give {value}"
        for key, value in true.items()
        if not _same_text(stated.get(key, ""), value)
    ]
    if stated.get("unit", str(Unit())) != str(found.unit):
        problems.append(f"{CARD} speaks of {stated.get('unit', str(Unit()))[:80]}, and the claim of {found.unit}")
    return problems


def _same_text(stated: str, true: str) -> bool:
    try:
        return _agrees(float(stated), float(true))
    except ValueError:
        return stated == true


def _unlisted_releases(certificate: dict[str, Any], event: Event) -> list[str]:
    """What the settings of the run describe must be among the events (which may hold other runs' too)."""
    try:
        described = tally(described_run(certificate["settings"]))
    except (PrivlearnError, KeyError, TypeError, AttributeError, ValueError):
        return [f"the settings in {CERTIFICATE} describe no run that could be compared with its events"]
    counted = tally(event)
    if any(counted.get(leaf, 0) < times for leaf, times in described.items()):
        return [f"the settings in {CERTIFICATE} describe releases that are not among its events"]
    return []


def described_run(settings: dict[str, Any]) -> Event:
    """The events that the settings of a DP-SGD run amount to."""
    sampler = sampling.from_description(settings["sampling"])
    before = [Gaussian(part["noise_multiplier"]) for part in settings["before"]]
    return compose([*before, *(sampler.epoch_event(Gaussian(sigma)) for sigma in settings["noise_multipliers"])])


def _strangers(folder: Path) -> list[str]:
    """Files that the certificate does not speak of."""
    others = sorted(path.name for path in folder.iterdir() if path.name not in {WEIGHTS, CONFIG, CARD, CERTIFICATE})
    if not others:
        return []
    return [
        f"the folder also holds {', '.join(others[:5])}{' and more' if len(others) > 5 else ''}, which nobody certified"
    ]


def _warnings(certificate: dict[str, Any], found: Guarantee | None) -> list[str]:
    warnings = []
    if certificate.get("randomness") == "seeded":
        warnings.append(
            "the run used a fixed seed: whoever knows the seed can take the noise off the weights, and then nothing is "
            "protected"
        )
    settings = certificate.get("settings")
    if not isinstance(settings, dict) or found is None:
        return warnings
    examples = settings.get("examples")
    if isinstance(examples, int) and found.delta * examples >= 1:
        warnings.append(
            f"delta {found.delta:g} is not below one over the {examples} examples: that allows giving away a whole example"
        )
    if found.adjacency is Adjacency.ADD_REMOVE and settings.get("examples_declared") is not True:
        warnings.append(
            "the number of examples was taken from the data and stands in this certificate: it is not protected, though "
            "the neighbours differ in it"
        )
    return warnings
