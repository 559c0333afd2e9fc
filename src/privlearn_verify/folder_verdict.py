"""The verdict on a folder."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from privlearn_verify.certificate_signatures import check_signature
from privlearn_verify.claim_events import check_claim
from privlearn_verify.fact_agreement import list_public_features
from privlearn_verify.folder_files import check_cards, check_digests, check_other_files, check_rows
from privlearn_verify.schema_rules import check_schema
from privlearn_verify.strict_json import BYTES_AT_MOST, ENVELOPES, has_infinite, read_json
from privlearn_verify.verdicts import CLOCK, Findings, Refusal, Report, demand


def check(files: Mapping[str, bytes], key: bytes | None = None) -> Report:
    """Return the report on a folder's files by name; `key` is the wanted public key."""
    CLOCK.start(60)
    findings = Findings()
    hidden = sorted(name for name in files if name.startswith("."))
    findings.warnings += [f"the hidden file {name} is not checked" for name in hidden]
    around = sorted(set(files) & set(ENVELOPES))
    findings.warnings += [f"the signature {name} is not checked" for name in around]
    with np.errstate(all="ignore"):
        claim = findings.attempt(check_all, files, key, findings) or {}
    verdict = "not ok" if findings.problems else "cannot check" if findings.unchecked else "ok"
    return Report(
        verdict,
        epsilon=claim.get("epsilon"),
        delta=claim.get("delta"),
        adjacency=claim.get("adjacency"),
        method=claim.get("method"),
        signed_by=findings.signed_by,
        problems=findings.problems,
        unchecked=findings.unchecked,
        warnings=findings.warnings,
    )


def check_all(files: Mapping[str, bytes], key: bytes | None, findings: Findings) -> Any:
    """Check a folder's files, and return the claim."""
    demand("privacy.json" in files, "privacy.json is missing")
    certificate = read_json("privacy.json", files["privacy.json"], ("shape",))
    plan = certificate.get("plan") if isinstance(certificate, dict) else None
    demand(not has_infinite(plan, ()), "the plan has an infinite number")
    check_schema(certificate, {"$ref": "urn:privlearn:certificate:2"}, "privacy.json")
    if certificate["randomness"] == "seeded":
        findings.warnings.append("noise is from a seed: who knows it can remove the noise")
    findings.attempt(check_signature, certificate, key, findings)
    findings.attempt(check_digests, certificate, files)
    if all(name in files for name in certificate["files"]):
        findings.attempt(check_cards, certificate["claim"], findings.signed_by, files)
        public = findings.attempt(list_public_features, certificate["facts"]) or []
        findings.attempt(check_other_files, files, public)
        findings.attempt(check_rows, files, certificate)
    findings.attempt(check_claim, certificate, findings)
    return certificate["claim"]


def check_folder(path: str | Path, key: bytes | None = None) -> Report:
    """Return the report on a folder."""
    files: dict[str, Any] = {}
    try:
        for entry in Path(path).iterdir():
            if entry.name.startswith("."):
                files[entry.name] = b""
                continue
            demand(entry.is_file(), f"{entry.name} is no plain file")
            with entry.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                demand(
                    size <= BYTES_AT_MOST.get(entry.name, math.inf), f"{entry.name} is too large"
                )
                empty = not size
                files[entry.name] = (
                    b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                )
    except (OSError, ValueError, Refusal) as error:
        return Report("not ok", problems=[str(error)])
    return check(files, key)
