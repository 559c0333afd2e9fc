"""Mutations of the rooms that a guarantee rests on: which tests notice them.

    python -m tests.mutations record          which tests run which lines (tens of minutes)
    python -m tests.mutations run             200 mutations and more, one after another (an hour or
    two) python -m tests.mutations table           what became of them, by room; survivors that
    nobody explained

Needs `pip install coverage`. All is written to `--folder`, and `run` goes on where it was left.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.mutations.draw import PACKAGE, ROOMS, Mutation, drawn
from tests.mutations.explained import EXPLAINED

ROOT = PACKAGE.parents[1]
#: The tests that are recorded: those of the rooms, the laws on layers, and all named checks.
TESTS = (
    "tests/test_checks.py",
    "tests/accounting",
    "tests/mechanisms",
    "tests/sampling",
    "tests/publishing",
    "tests/clipping",
    "tests/laws/test_layer_kinds.py",
    "tests/boosting",
    "tests/statistics",
    "tests/mac",
    "tests/teachers",
    "tests/tuning",
)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutations", description=__doc__.splitlines()[0]
    )
    parser.add_argument("command", choices=["record", "run", "table"])
    parser.add_argument(
        "--folder", type=Path, default=ROOT / ".mutations", help="where everything is kept"
    )
    parser.add_argument("--seed", type=int, default=25, help="which mutations are drawn")
    parser.add_argument(
        "--rooms", nargs="+", choices=list(ROOMS), default=list(ROOMS), metavar="ROOM"
    )
    parser.add_argument(
        "--number", type=int, help="how many in each room (default: by room, 240 in all)"
    )
    parser.add_argument(
        "--limit", type=float, default=60, help="seconds for a mutation, after which no test begins"
    )
    parser.add_argument("--survivors", action="store_true", help="run those again that survived")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="which to record")
    request = parser.parse_args()
    request.folder.mkdir(parents=True, exist_ok=True)
    return {"record": record, "run": run, "table": table}[request.command](request)


def record(request: argparse.Namespace) -> int:
    """Run the tests under coverage, each as a context."""
    command = [
        *(
            sys.executable,
            "-m",
            "coverage",
            "run",
            f"--data-file={request.folder / 'touched'}",
            "-m",
            "pytest",
            "-q",
        ),
        *(
            "-p",
            "tests.mutations.touched",
            "-m",
            "not nightly",
            "--ignore-glob=*mutants*",
            *request.tests,
        ),
    ]
    from tests.mutations.touched import SECONDS

    where = {**os.environ, SECONDS: str(request.folder / "seconds.json")}
    return subprocess.run(command, cwd=ROOT, env=where, check=False).returncode


def run(request: argparse.Namespace) -> int:
    """Make each mutation that is drawn and has no outcome yet, and run the tests that touch it."""
    import pytest

    from tests.mutations.killing import Killing

    past = outcomes(request.folder)
    again = {
        name
        for name, outcome in past.items()
        if outcome["outcome"] == "survived" and request.survivors
    }
    planted = planted_bugs()
    mutations = [
        each
        for room in request.rooms
        for each in drawn(room, request.seed, request.number, planted)
    ]
    mutations = [
        each for each in mutations if each.name not in past or each.name in again - EXPLAINED.keys()
    ]
    seconds = json.loads((request.folder / "seconds.json").read_text())
    tests = touching(request.folder, mutations, seconds)
    files = sorted({test.split("::")[0] for those in tests.values() for test in those})
    killing = Killing(tests, seconds, request.limit, request.folder / "outcomes.jsonl")
    return int(
        pytest.main(
            ["-q", "-p", "no:cacheprovider", "-p", "no:faulthandler", *files], plugins=[killing]
        )
    )


def touching(
    folder: Path, mutations: list[Mutation], seconds: dict[str, float]
) -> dict[Mutation, list[str]]:
    """The tests that run the lines of each mutation, the quickest first."""
    from coverage import CoverageData

    data: dict[str, dict[int, set[str]]] = {}
    for path in sorted(folder.glob("touched*")):
        recorded = CoverageData(str(path))
        recorded.read()
        for file in recorded.measured_files():
            lines = data.setdefault(str(Path(file).resolve()), {})
            for line, tests in recorded.contexts_by_lineno(file).items():
                lines.setdefault(line, set()).update(tests)

    def of(mutation: Mutation) -> list[str]:
        lines = data.get(str(PACKAGE / mutation.file), {})
        first, last, statement = mutation.lines
        tests = set().union(
            *(lines.get(line, set()) for line in range(first, last + 1))
        ) or lines.get(statement, set())
        known = {test for test in tests if seconds.get(test, float("inf")) < float("inf")}
        return sorted(known, key=lambda test: (seconds[test], test))

    return {mutation: of(mutation) for mutation in mutations}


def planted_bugs() -> set[str]:
    """All functions that our planted bugs make, as source."""
    import ast
    import inspect
    import textwrap
    from importlib import import_module

    from tests.mutations.draw import functions_of
    from tests.support.mutant import Mutant, changed

    made = set()
    for path in sorted((ROOT / "tests").glob("*/mutants*.py")):
        module = import_module(".".join(("tests", path.parent.name, path.stem)))
        for bug in [
            each
            for table in vars(module).values()
            if isinstance(table, list | tuple)
            for each in table
        ]:
            if isinstance(bug, Mutant):
                source = changed(
                    textwrap.dedent(inspect.getsource(bug._place()[0])), bug.old, bug.new
                )
                made |= {ast.unparse(function) for _, function in functions_of(ast.parse(source))}
    return made


def outcomes(folder: Path) -> dict[str, dict[str, object]]:
    """The last outcome of each mutation, by name."""
    path = folder / "outcomes.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {line["name"]: line for line in lines}


def table(request: argparse.Namespace) -> int:
    """Print a row for each room, and what survived without an explanation; 1 if anything did."""
    past, open_ones = outcomes(request.folder), []
    print("| room | drawn | killed | equivalent | open |\n| --- | --- | --- | --- | --- |")
    for room in request.rooms:
        own = {name: each["outcome"] for name, each in past.items() if each["room"] == room}
        alive = [name for name, outcome in own.items() if outcome != "killed"]
        left = [name for name in alive if name not in EXPLAINED]
        counts = Counter(own.values())
        print(
            f"| {room} | {len(own)} | {counts['killed']} | {len(alive) - len(left)} | {len(left)} |"
        )
        open_ones += left
    print(*open_ones, sep="\n")
    return int(bool(open_ones))


if __name__ == "__main__":
    sys.exit(main())
