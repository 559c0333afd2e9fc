"""Checking a published model: by anyone, without the data and without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from privlearn import sampling, schedules
from privlearn._storage import digest, loads
from privlearn.accounting import accountant
from privlearn.accounting.events import Event, compose, from_json, require_adjacency
from privlearn.accounting.filters import Limit, fits
from privlearn.accounting.guarantee import Adjacency, Guarantee, PrivacyUnit
from privlearn.accounting.mechanisms import Gaussian
from privlearn.errors import BadInput, PrivlearnError
from privlearn.publishing import claim as claim_module
from privlearn.publishing import ensemble, features, tuned
from privlearn.publishing.certificate import PARTS, header, parse
from privlearn.publishing.folder import CARD, CERTIFICATE, CONFIG, WEIGHTS, Contents, read
from privlearn.publishing.keys import PublicKey, read_public, signer_of

#: Relative difference below which a recomputed epsilon confirms the stated one.
_AGREE = 1e-6
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
        signed_by: fingerprint of the key whose signature the certificate carries, if it fits; None without one.
        runs: what the claim is for where the ledger held other runs, in words; None where this run was the only one.
        run_epsilon: what this run costs by itself, then.
    """

    ok: bool
    epsilon: float | None
    delta: float | None
    adjacency: str | None
    method: str | None
    unit: str | None
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    signed_by: str | None = None
    runs: str | None = None
    run_epsilon: float | None = None


def verify(folder: str | Path, *, key: str | Path | None = None) -> Verification:
    """Recompute the guarantee, the hashes and the signature of a published model.

    Args:
        folder: what `publish` wrote.
        key: the publisher's public key, a file. The certificate must then be signed with it. Without it a signature, if
            there is one, is only checked against the key that comes along, which anybody could have made.

    Raises:
        BadInput: the folder, its certificate or the key cannot be read at all.
    """
    trusted = None if key is None else read_public(key)
    return verify_contents(read(folder), trusted)


def verify_contents(contents: Contents, trusted: PublicKey | None = None) -> Verification:
    """As `verify`, for contents that were read already.

    Raises:
        BadInput: the certificate cannot be read at all.
    """
    certificate = parse(contents.files[CERTIFICATE])
    claim = certificate["claim"] if isinstance(certificate["claim"], dict) else {}
    problems, signed_by = _signature(certificate, trusted)
    problems += _changed_parts(certificate) + _changed_files(contents, certificate)
    found = None
    try:
        event = from_json(certificate["event"])
        found = _recompute(event, claim)
        problems += _contradictions(found, claim) + _card_contradictions(contents, claim, signed_by)
        problems += _other_releases(certificate, event, found) + _other_features(contents, certificate)
        problems += ensemble.uncovered(certificate["settings"], claim)
    except PrivlearnError as error:
        problems.append(f"the guarantee cannot be recomputed: {error}")
    adjacency = claim.get("adjacency")
    return Verification(
        ok=not problems,
        epsilon=found.epsilon if found else None,
        delta=_number(claim.get("delta")),
        adjacency=adjacency if isinstance(adjacency, str) else None,
        method=found.method if found else None,
        unit=str(found.unit) if found else None,
        problems=problems,
        warnings=_warnings(certificate, found) + _strangers(contents),
        signed_by=signed_by,
        **_of_other_runs(claim),
    )


def _of_other_runs(claim: dict[str, Any]) -> dict[str, Any]:
    """What the claim says of other runs, if that can be read."""
    said = claim.get("ledger")
    if not isinstance(said, dict) or said.get("runs") not in (
        claim_module.FIXED,
        claim_module.ADAPTIVE,
        claim_module.ALONE,
    ):
        return {}
    return {"runs": said["runs"], "run_epsilon": _number(said.get("run_epsilon"))}


def _signature(certificate: dict[str, Any], trusted: PublicKey | None) -> tuple[list[str], str | None]:
    """What is wrong with the signature, and the fingerprint of the key that it fits."""
    try:
        found = signer_of(certificate)
    except BadInput as error:
        return [str(error)], None
    if found is None:
        missing = "the certificate is not signed, and a signature with the key {} was asked for: get the signed copy"
        return ([missing.format(trusted.fingerprint)] if trusted else []), None
    if trusted and found.raw != trusted.raw:
        other = (
            f"it is signed with the key {found.fingerprint}, and not with the one that was given, {trusted.fingerprint}"
        )
        return [other], found.fingerprint
    return [], found.fingerprint


def _changed_parts(certificate: dict[str, Any]) -> list[str]:
    digests = certificate["digests"]
    if not isinstance(digests, dict) or set(digests) != set(PARTS):
        return [f"{CERTIFICATE} has no digests of its parts {', '.join(PARTS)}"]
    known = certificate["randomness"] in ("seeded", "operating system")
    problems = [] if known else [f"{CERTIFICATE} does not say whether the run was seeded"]
    return problems + [
        f"part {part!r} of {CERTIFICATE} was changed after publishing: its digest does not match"
        for part in PARTS
        if digests[part] != digest(certificate[part])
    ]


def _changed_files(contents: Contents, certificate: dict[str, Any]) -> list[str]:
    files = certificate["files"]
    if not isinstance(files, dict) or set(files) != {WEIGHTS, CONFIG, CARD}:
        return [f"{CERTIFICATE} does not speak of exactly {WEIGHTS}, {CONFIG} and {CARD}", *contents.problems]
    return [
        *contents.problems,
        *(
            f"{name} is not the file that was certified: its SHA-256 does not match"
            for name in (WEIGHTS, CONFIG, CARD)
            if name in contents.digests and files[name] != contents.digests[name]
        ),
    ]


def _recompute(event: Event, claim: dict[str, Any]) -> Guarantee:
    delta = claim.get("delta")
    if isinstance(delta, bool) or not isinstance(delta, int | float):
        raise BadInput(f"the stated delta is {str(delta)[:40]}: expected a number in (0, 1)")
    unit = PrivacyUnit(claim.get("group_size", 1), claim.get("rows_per_person"))
    found = accountant.guarantee(event, Adjacency.parse(str(claim.get("adjacency"))[:40]), delta, unit.group_size)
    return replace(found, rows_per_person=unit.rows_per_person)


def _contradictions(found: Guarantee, claim: dict[str, Any]) -> list[str]:
    expected = _CLAIMS | set(found.unit.figures()) | ({"ledger"} & set(claim))
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


def _card_contradictions(contents: Contents, claim: dict[str, Any], signed_by: str | None) -> list[str]:
    """The card's header repeats the claim and names the key; it must not say something else."""
    if CARD not in contents.files or not set(claim) >= _CLAIMS:
        return []  # reported already
    head = header(claim["epsilon"], claim["delta"], claim["adjacency"], claim["unit"], signed_by)
    if contents.files[CARD].startswith(head.encode(errors="replace")):
        return []
    stated = ", ".join(f"{name} {str(claim[name])[:40]}" for name in ("epsilon", "delta", "adjacency"))
    return [f"{CARD} does not begin with what is certified: {stated}, signed by {signed_by or 'nobody'}"]


def _other_features(contents: Contents, certificate: dict[str, Any]) -> list[str]:
    """The public features that the run is said to have had must be those that stand in front of the network."""
    settings = certificate["settings"]
    try:
        stated = [_identity(part) for part in features.public(settings)]
    except (KeyError, TypeError, AttributeError):
        return [f"the settings in {CERTIFICATE} do not say what the public features are"]
    try:
        transforms = loads(contents.files[CONFIG])["transforms"]
        found = [_identity(part) for part in transforms if "spec" in part]
    except (ValueError, KeyError, TypeError, AttributeError):
        found = []  # what is wrong with it is reported already, or when a model is to be built from it
    if found == stated:
        return []
    return [f"{CERTIFICATE} states other public features than {CONFIG}: {str(stated)[:80]} and {str(found)[:80]}"]


def _identity(features: dict[str, Any]) -> tuple[str, ...]:
    """What public features go by: kind and spec, and the digest of an encoder that is not privlearn's."""
    return (str(features["kind"]), str(features["spec"]), str(features.get("digest", "")))


def _other_releases(certificate: dict[str, Any], event: Event, found: Guarantee) -> list[str]:
    """What the settings of the run describe must be the events, or go together with what is said of other runs."""
    try:
        settings = certificate["settings"]
        described = tuned.described(settings, described_run)
        of_batches = not (ensemble.is_ensemble(settings) or features.is_features(settings))
        unfollowed = (
            [*_undeclared(settings, found.adjacency), *_unfollowed(settings, found.adjacency)] if of_batches else []
        )
        others = claim_module.contradictions(certificate["claim"], event, described, found)
        return others + unfollowed + _inconsistent(settings)
    except (PrivlearnError, KeyError, TypeError, AttributeError, ValueError):
        return [f"the settings in {CERTIFICATE} describe no run that could be compared with its events"]


def _inconsistent(settings: dict[str, Any]) -> list[str]:
    """Figures that the settings state beside those that they follow from, and that differ.

    Raises:
        BadInput, KeyError, TypeError, ValueError, AttributeError: fields are missing or of other types.
    """
    follows: dict[str, Any] = {}
    if ensemble.is_ensemble(settings):
        follows = ensemble.derived(settings)
    elif not features.is_features(settings):
        sigmas, stated = settings["noise_multipliers"], settings["schedule"]
        schedule = schedules.parse(stated) if schedules.is_spec(stated) else None
        follows["epochs"] = len(sigmas)
        if schedule is not None and not isinstance(schedule, schedules.Validation):
            follows["noise_multipliers"] = [schedule(epoch) for epoch in range(len(sigmas))]
    return [
        f"the settings in {CERTIFICATE} state {name} {str(settings[name])[:60]}, and by what else they state it is "
        f"{str(true)[:60]}"
        for name, true in follows.items()
        if name in settings and not _agree(settings[name], true)
    ]


def _agree(stated: Any, true: Any) -> bool:
    if isinstance(true, list):
        return isinstance(stated, list) and len(stated) == len(true) and all(map(_agrees, stated, true))
    return _agrees(stated, true)


def described_run(settings: dict[str, Any]) -> Event:
    """The events that the settings of a run amount to: with a filter its limit, whatever was spent of it."""
    if ensemble.is_ensemble(settings):
        return ensemble.described(settings)
    if features.is_features(settings):
        return features.described(settings)
    before = [features.earlier(part) for part in settings["before"] if part["kind"] != "histogram"]
    during = [from_json(settings["filter"])] if "filter" in settings else [_epochs(settings)]
    return compose([*before, *during])


def _epochs(settings: dict[str, Any]) -> Event:
    """What the epochs were, each with its validation if that was paid for."""
    sampler = sampling.from_description(settings["sampling"])
    paid = settings["validation"]["noise"] if "validation" in settings else None
    validation = [] if paid is None else [Gaussian(paid)]
    parts = [
        part for sigma in settings["noise_multipliers"] for part in (sampler.epoch_event(Gaussian(sigma)), *validation)
    ]
    for part in settings["before"]:
        if part["kind"] == "histogram":  # a release between the epochs
            parts.insert(part["after"], Gaussian(part["noise_multiplier"]))
    return compose(parts)


def _undeclared(settings: dict[str, Any], adjacency: Adjacency) -> list[str]:
    """What is wrong with a claim for neighbours that differ in the number of examples, where that was read off the data.

    The certificates of ensembles and of feature statistics have no such number.
    """
    if adjacency is not Adjacency.ADD_REMOVE or settings["examples_declared"] is True:
        return []
    return [
        f"{CERTIFICATE} claims add_remove neighbours and states the number of examples, which was taken from the data: the "
        "neighbours differ in it, so the claim holds for zero_out neighbours at most"
    ]


def _unfollowed(settings: dict[str, Any], adjacency: Adjacency) -> list[str]:
    """What is wrong with a run that reacted: its schedule tells that it did, and then it must have gone by a filter.

    It must have stayed within the filter, with the noise that its schedule makes of the accuracies that it states, and have
    paid for them as the schedule says. A run that did not react has neither a filter nor validations.

    Raises:
        BadInput: fields that don't go together.
        KeyError, TypeError, ValueError, AttributeError: fields are missing or of other types.
    """
    stated = settings["schedule"]
    schedule = schedules.parse(stated) if schedules.is_spec(stated) else None  # a user's own can't react
    reacts = isinstance(schedule, schedules.Validation)
    if ("filter" in settings) is not reacts or ("validation" in settings) is not reacts:
        return [
            f"the settings in {CERTIFICATE} do not go together: expected a filter and validations where noise follows "
            "validations (a schedule validation:...), and nowhere else"
        ]
    if not isinstance(schedule, schedules.Validation):
        return []
    limit, sigmas, validation = from_json(settings["filter"]), settings["noise_multipliers"], settings["validation"]
    accuracies = validation["accuracies"]
    if not isinstance(limit, Limit) or len(accuracies) != len(sigmas):
        raise BadInput("a filter that is none, or accuracies that are not one for each epoch")
    if validation["noise"] != schedule.noise or validation["public"] is not (schedule.noise is None):
        return [
            f"the validations in {CERTIFICATE} are not what its schedule says: with noise= they are paid for, else public"
        ]
    epochs = _epochs(settings)
    require_adjacency(epochs, adjacency)
    if fits(limit, epochs) and sigmas == list(schedule.noise_multipliers(accuracies))[:-1]:
        return []
    return [
        f"the noise multipliers in {CERTIFICATE} do not follow from its schedule and accuracies, or are more than its filter "
        "lets through"
    ]


def _strangers(contents: Contents) -> list[str]:
    """Files that the certificate does not speak of."""
    others = contents.strangers
    if not others:
        return []
    return [
        f"the folder also holds {', '.join(others[:5])}{' and more' if len(others) > 5 else ''}, which nobody certified"
    ]


def _number(value: Any) -> float | None:
    """`value` if it is a finite number: JSON has no others."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _warnings(certificate: dict[str, Any], found: Guarantee | None) -> list[str]:
    warnings = []
    if certificate.get("randomness") == "seeded":
        warnings.append(
            "the run used a fixed seed: whoever knows the seed can take the noise off the weights, and then nothing is "
            "protected"
        )
    settings, claim = certificate.get("settings"), certificate.get("claim")
    if not isinstance(settings, dict) or not isinstance(claim, dict) or found is None:
        return warnings
    if isinstance(claim.get("ledger"), dict) and claim["ledger"].get("runs") == claim_module.ALONE:
        warnings.append(
            "the guarantee is for this run alone: other runs were made on the same data, perhaps chosen after earlier "
            "results, and nothing limits what they tell together"
        )
    tuning = settings.get("tuning")
    examples = (tuning if isinstance(tuning, dict) and "examples" in tuning else settings).get("examples")
    if isinstance(examples, int) and found.delta * examples >= 1:
        warnings.append(
            f"delta {found.delta:g} is not below one over the {examples} examples: that allows giving away a whole example"
        )
    return warnings
