"""`privlearn verify` and `key`: recompute a published model's guarantee, hashes and signature; make
keys to sign.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from privlearn.cli import screen
from privlearn.cli.request import Request
from privlearn.core.accounting.guarantee import PrivacyUnit, readable
from privlearn.publishing import signing
from privlearn.publishing.folder import RELEASED
from privlearn.publishing.verify import Verification, verify


def run(request: Request) -> int:
    """Print the result; 1 if anything does not agree."""
    checked = verify(request.folder, key=request.key)
    if request.json:
        screen.print_json(asdict(checked))
        return 0 if checked.ok else 1
    out = screen.answers
    name = screen.plain(request.folder)
    if checked.ok:
        assert checked.epsilon is not None
        whom = "" if checked.unit == str(PrivacyUnit()) else f", for {checked.unit}"
        # a file that the certificate does not name would not have been accepted
        rows = " and the released rows" if (Path(request.folder) / RELEASED).exists() else ""
        out.print(
            f"{screen.style('green bold')}{name} verifies{screen.END}: the weights{rows} are the "
            "certified ones, and the events give epsilon "
            f"{screen.BOLD}{readable(checked.epsilon)}{screen.END} at delta {checked.delta:g} "
            f"({checked.adjacency} neighbours, by {checked.method}{whom})."
        )
        if checked.runs is not None and checked.run_epsilon is not None:
            out.print(
                f"That is {checked.runs}. This run by itself costs epsilon "
                f"{readable(checked.run_epsilon)}."
            )
        out.print(
            "This proves the arithmetic, and that the files are those of the certificate. That "
            "this was the run is the publisher's word."
        )
        out.print(_who(checked, request.key))
    else:
        out.print(f"{screen.style('red bold')}{name} does not verify{screen.END}:")
        for problem in checked.problems:
            out.print(f"  - {screen.plain(problem)}")
    for warning in checked.warnings:
        out.print(f"{screen.style('yellow')}warning{screen.END}: {screen.plain(warning)}")
    return 0 if checked.ok else 1


def _who(checked: Verification, key: str | None) -> str:
    """Whose word it is."""
    if checked.signed_by is None:
        return "It is not signed: nothing here tells who the publisher is."
    if key is None:
        return (
            f"It is signed with the key {screen.BOLD}{checked.signed_by}{screen.END}, which came "
            f"along with it: anyone can make one. "
            "Whose key that is can't be known from here: give the publisher's own with --key."
        )
    return (
        f"It is signed with the key that you gave, {screen.BOLD}{checked.signed_by}{screen.END}: "
        "its holder says so, and no one has edited it since."
    )


def make_key(request: Request) -> int:
    """Write both files; print the fingerprint."""
    key = signing.make(request.file)
    public = f"{request.file}.pub"
    if request.json:
        screen.print_json(
            {"fingerprint": key.fingerprint, "private": request.file, "public": public}
        )
        return 0
    out = screen.answers
    out.print(f"fingerprint {screen.BOLD}{key.fingerprint}{screen.END}")
    out.print(
        f"The private key is in {screen.plain(request.file)}: keep it to yourself; anyone who has "
        "it can sign as you."
    )
    out.print(
        f"The public key is in {screen.plain(public)}: give it to those who shall check your "
        "models, by another way than the models themselves."
    )
    return 0
