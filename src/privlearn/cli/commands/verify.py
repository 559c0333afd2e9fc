"""`privlearn verify` and `key`: recompute a published model's guarantee, hashes and signature; make
keys to sign.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privlearn.cli import screen
from privlearn.cli.request import Request
from privlearn.core.accounting.guarantee import PrivacyUnit, readable
from privlearn.core.accounting.ledgers.addresses import database_at
from privlearn.core.accounting.ledgers.similar_names import words_on_similar
from privlearn.declared.declared_document import is_declared_run
from privlearn.errors import BadInput
from privlearn.publishing import certificate, signing
from privlearn.publishing.folder import CERTIFICATE, ENVELOPES, RELEASED
from privlearn.publishing.hub import SCHEME, Download, download, is_address
from privlearn.publishing.verify import Verification, verify

if TYPE_CHECKING:
    from privlearn.publishing.envelopes import Signer


def run(request: Request) -> int:
    """Print the result; 1 if anything does not agree."""
    if is_address(request.folder):
        downloaded = download(request.folder)
        checked = downloaded.verify(key=request.key, signer=_signer(request))
        return _report(request.replaced(folder=str(downloaded.folder)), checked, downloaded)
    if is_declared_run(request.folder):
        from privlearn.cli.commands.certify import verify_declared_run  # seldom needed

        return verify_declared_run(request)
    return _report(request, verify(request.folder, key=request.key, signer=_signer(request)), None)


def _report(request: Request, checked: Verification, downloaded: Download | None) -> int:
    """Print what was verified; from the Hub, the commit that it is of."""
    place = _find_in_ledger(request) if request.ledger is not None and checked.ok else None
    if place is not None and place["row"] is None:
        checked = replace(checked, ok=False, problems=[*checked.problems, place["text"]])
    if request.json:
        in_ledger = {} if place is None else {"ledger": place}
        on_hub: dict[str, Any] = {}
        if downloaded is not None:
            on_hub = {"hub": {"name": downloaded.name, "commit": downloaded.commit}}
        screen.print_json({**checked.to_json(), **in_ledger, **on_hub})
        return 0 if checked.ok else 1
    out = screen.answers
    address = downloaded and f"{SCHEME}{downloaded.name}@{downloaded.commit}"
    name = screen.plain(address or request.folder)
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
        if place is not None:
            out.print(screen.plain(place["text"]))
        out.print(
            "This proves the arithmetic, and that the files are those of the certificate. That "
            "this was the run is the publisher's word."
        )
        out.print(_who(checked, request.key, Path(request.folder)))
        for signer in checked.attested_by:
            out.print(f"An envelope around it is signed by {screen.plain(signer)}.")
    else:
        out.print(f"{screen.style('red bold')}{name} does not verify{screen.END}:")
        for problem in checked.problems:
            out.print(f"  - {screen.plain(problem)}")
    for warning in checked.warnings:
        out.print(f"{screen.style('yellow')}warning{screen.END}: {screen.plain(warning)}")
    return 0 if checked.ok else 1


def _find_in_ledger(request: Request) -> dict[str, Any]:
    """Where in a ledger a folder was published: its certificate holds the digest of the last row of
    that moment.
    """
    file = Path(request.folder) / CERTIFICATE
    head = certificate.parse(file.read_bytes())["facts"].get(certificate.HEAD)
    database = database_at(request.ledger)
    if not database.exists():
        near = words_on_similar(database.path)
        raise BadInput(
            f"there is no ledger {database.path}{near}: expected the one that the run was charged "
            "to, check its name and folder"
        )
    names = database.names() if request.ledger_data is None else [request.ledger_data]
    text = (
        f"the certificate was made with another ledger than {database.path} (of "
        f"{', '.join(names)[:100]}), or with rows that it has no more"
    )
    for name in names:
        ledger = database.other(name)
        ledger.check()
        row = None if head is None else ledger.number_of(head)
        if row is not None:
            last, _ = ledger.head()
            text = (
                f"It was published after row {row} of the ledger of {name!r} in {database.path}, "
                f"which has {last}."
            )
            return {
                "file": str(database.path),
                "data": name,
                "row": row,
                "rows": last,
                "text": text,
            }
    return {"file": str(database.path), "data": None, "row": None, "rows": None, "text": text}


def _signer(request: Request) -> Signer | None:
    """Who must have signed an envelope, if that is asked for."""
    names = ("bundle", "public_key", "identity", "identity_provider", "trust_config")
    if not any(request.given(name) for name in names):
        return None
    from privlearn.publishing.envelopes import Signer

    return Signer(**{name: request.values[name] for name in names})


def _who(checked: Verification, key: str | None, folder: Path) -> str:
    """Whose word it is."""
    if checked.signed_by is None and checked.attested_by:
        return "The certificate itself is not signed."
    if checked.signed_by is None and any((folder / name).exists() for name in ENVELOPES):
        return "The certificate itself is not signed, and the envelopes around it were not checked."
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
