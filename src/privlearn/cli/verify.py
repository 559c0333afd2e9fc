"""`privlearn verify`: recompute guarantee, hashes and signature of a published model."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from privlearn.accounting.guarantee import PrivacyUnit
from privlearn.cli import screen
from privlearn.publishing.verify import Verification, verify


def run(options: argparse.Namespace) -> int:
    """Print what was found; 1 if anything does not agree."""
    found = verify(options.folder, key=options.key)
    if options.json:
        screen.print_json(asdict(found))
        return 0 if found.ok else 1
    out = screen.answers
    name = screen.plain(options.folder)
    if found.ok:
        whom = "" if found.unit == str(PrivacyUnit()) else f", for {found.unit}"
        out.print(
            f"[green bold]{name} verifies[/]: the weights are the certified ones, and the events give epsilon "
            f"[bold]{found.epsilon:.4f}[/] at delta {found.delta:g} ({found.adjacency} neighbours, by {found.method}{whom})."
        )
        if found.runs is not None:
            out.print(f"That is {found.runs}. This run by itself costs epsilon {found.run_epsilon:.4f}.")
        out.print("This proves the arithmetic and the files. That this was the run is the publisher's word.")
        out.print(_who(found, options.key))
    else:
        out.print(f"[red bold]{name} does not verify[/]:")
        for problem in found.problems:
            out.print(f"  - {screen.plain(problem)}")
    for warning in found.warnings:
        out.print(f"[yellow]warning[/]: {screen.plain(warning)}")
    return 0 if found.ok else 1


def _who(found: Verification, key: str | None) -> str:
    """Whose word it is."""
    if found.signed_by is None:
        return "It is not signed: nothing here tells who the publisher is."
    if key is None:
        return (
            f"It is signed with the key [bold]{found.signed_by}[/], which came along with it: anybody can make one. Whose key "
            "that is can't be known from here: give the publisher's own with --key."
        )
    return (
        f"It is signed with the key that you gave, [bold]{found.signed_by}[/]: its holder says so, and nobody has edited "
        "it since."
    )
