"""The command `privlearn-verify`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from privlearn_verify.folder_verdict import check_folder


def main() -> int:
    """Verify the folder that the command line names, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="privlearn-verify",
        description="Verify a folder with a privlearn certificate, by the published format alone.",
    )
    parser.add_argument("folder", help="the published folder")
    parser.add_argument("--key", type=Path, help="a file with the publisher's public key")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    arguments = parser.parse_args()
    key = None
    if arguments.key:
        try:
            key = arguments.key.read_bytes()
        except OSError as error:
            parser.exit(2, f"privlearn-verify: the key cannot be read: {error}\n")
    report = check_folder(arguments.folder, key)
    if arguments.json:
        print(json.dumps(asdict(report)))
    else:
        print(report.verdict)
        if report.verdict == "ok":
            print(f"epsilon {report.epsilon} at delta {report.delta}")
            print(f"for {report.adjacency} neighbours, by the method {report.method}")
            print(f"signed by {report.signed_by}" if report.signed_by else "not signed")
        for name in ("problems", "unchecked", "warnings"):
            for sentence in getattr(report, name):
                print(f"{name}: {sentence}")
    return {"ok": 0, "not ok": 1, "cannot check": 2}[report.verdict]


if __name__ == "__main__":
    raise SystemExit(main())
