"""`privlearn key`: make a pair of keys to sign certificates with."""

from __future__ import annotations

import argparse

from privlearn.cli import screen
from privlearn.publishing import keys


def run(options: argparse.Namespace) -> int:
    """Write both files; print the fingerprint."""
    made = keys.make(options.file)
    public = f"{options.file}.pub"
    if options.json:
        screen.print_json({"fingerprint": made.fingerprint, "private": options.file, "public": public})
        return 0
    out = screen.answers
    out.print(f"fingerprint [bold]{made.fingerprint}[/]")
    out.print(f"The private key is in {screen.plain(options.file)}: keep it to yourself; whoever has it signs as you.")
    out.print(
        f"The public key is in {screen.plain(public)}: give it to those who shall check your models, by another way than "
        "the models themselves."
    )
    return 0
