"""Compare what the library computes now with the frozen figures: `python tests/frozen/freeze.py`.

The figures prove that a change of the code changes no result. Machines and versions of libraries
round otherwise: `agreement.py` says how far figures may differ for that, and `machine.json` where
they were frozen. What was frozen anew, and why, is written in `README.md`.

    python tests/frozen/freeze.py                      # every difference; exit code 1 if there is
    one python tests/frozen/freeze.py --only plans,runs    # of some sections python
    tests/frozen/freeze.py --case dpmac         # of the cases whose names contain a text python
    tests/frozen/freeze.py --write              # freeze the figures as they are now
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_info

HERE = Path(__file__).resolve().parent


def frozen(section: str) -> dict[str, Any]:
    """The figures that were written down."""
    figures: dict[str, Any] = json.loads((HERE / f"{section}.json").read_text())
    return figures


def machine() -> dict[str, str]:
    """What figures depend on beside the code."""
    versions = {
        name: version(name)
        for name in ("torch", "numpy", "scipy", "scikit-learn", "dp-accounting", "kymatio")
    }
    info = Path("/proc/cpuinfo")
    models = (
        [
            line.partition(":")[2].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        if info.exists()
        else []
    )
    kind = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, {''.join(models[:1])}"
    # OPENBLAS_CORETYPE, too
    blas = {pool["architecture"] for pool in threadpool_info() if pool["user_api"] == "blas"}
    return {
        "python": platform.python_version(),
        "processor": kind,
        "kernels of BLAS": ", ".join(sorted(blas)),
    } | versions


def elsewhere() -> list[str]:
    """In what the machine differs from the one on which figures were frozen: there rounding may
    differ.
    """
    here, there = machine(), frozen("machine")
    return [
        f"{name}: frozen with {there.get(name)}, here {here[name]}"
        for name in here
        if here[name] != there.get(name)
    ]


def failed(figures: dict[str, Any]) -> list[str]:
    """The cases that ended with an error that is no refusal."""
    return [f"{name}: {case['FAILED']}" for name, case in figures.items() if "FAILED" in case]


def readable(figures: Any) -> str:
    """JSON with a line for each value, and lists of numbers on one line."""
    text = json.dumps(figures, indent=1, sort_keys=True)
    numbers = re.compile(r"\[[-+.,\deE\s]+\]")
    return (
        numbers.sub(
            lambda match: re.sub(r"\s+", " ", match[0]).replace("[ ", "[").replace(" ]", "]"), text
        )
        + "\n"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Compare what the library computes now with the frozen figures."
    )
    parser.add_argument("--write", action="store_true", help="freeze the figures as they are now")
    parser.add_argument(
        "--only",
        metavar="SECTIONS",
        help="plans, runs, commands, folders: some of them, with commas",
    )
    parser.add_argument(
        "--case", default="", metavar="TEXT", help="cases alone whose names contain this text"
    )
    options = parser.parse_args(argv)
    if options.write and options.case:
        parser.error("--write freezes whole sections: leave out --case")
    sys.path[:0] = [str(HERE), str(HERE.parents[1])]
    from figures import SECTIONS, differences  # takes a moment

    sections = options.only.split(",") if options.only else list(SECTIONS)
    if unknown := set(sections) - set(SECTIONS):
        parser.error(
            f"no sections: {', '.join(sorted(unknown))}. Expected some of {', '.join(SECTIONS)}"
        )
    code = 0
    if not options.write:
        for line in elsewhere():
            print(line)
    for section in sections:
        start = time.perf_counter()
        new = SECTIONS[section](options.case)
        seconds = time.perf_counter() - start
        if options.write:
            if errors := failed(new):
                print(f"{section}: not written, for cases failed", *errors, sep="\n  ")
                code = 1
                continue
            # What agrees keeps its figures, so that a diff has what changed alone.
            old = frozen(section)
            for name in new.keys() & old.keys():
                if not [*differences(section, {name: old[name]}, {name: new[name]})]:
                    new[name] = old[name]
            changed = sum(new[name] != old.get(name) for name in new)
            (HERE / f"{section}.json").write_text(readable(new))
            print(f"{section}: {changed} of {len(new)} cases written in {seconds:.0f} s")
            continue
        old = {name: case for name, case in frozen(section).items() if options.case in name}
        changes = list(differences(section, old, new))
        print(f"{section}: {len(new)} cases in {seconds:.0f} s, {len(changes)} differences")
        for change in changes:
            print(f"  {section}/{change}")
        code |= bool(changes)
    if options.write:
        (HERE / "machine.json").write_text(json.dumps(machine(), indent=1, sort_keys=True) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
