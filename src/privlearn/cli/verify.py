"""`privlearn verify`: recompute the guarantee and the hashes of a published model."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from privlearn.accounting.unit import Unit
from privlearn.cli import screen
from privlearn.publishing.verification import verify


def run(options: argparse.Namespace) -> int:
    """Print what was found; 1 if anything does not agree."""
    found = verify(options.folder)
    if options.json:
        screen.print_json(asdict(found))
        return 0 if found.ok else 1
    out = screen.answers
    if found.ok:
        whom = "" if found.unit == str(Unit()) else f", for {found.unit}"
        out.print(
            f"[green bold]{options.folder} verifies[/]: the weights are the certified ones, and the events give epsilon "
            f"[bold]{found.epsilon:.4f}[/] at delta {found.delta:g} ({found.adjacency} neighbours, by {found.method}{whom})."
        )
        out.print("This proves the arithmetic and the files. That this was the run is the publisher's word.")
    else:
        out.print(f"[red bold]{options.folder} does not verify[/]:")
        for problem in found.problems:
            out.print(f"  - {problem}")
    for warning in found.warnings:
        out.print(f"[yellow]warning[/]: {warning}")
    return 0 if found.ok else 1
