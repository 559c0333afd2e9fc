"""A pytest plugin: each mutation is made in a forked process, which runs the tests that touch it,
the quickest first.

Nothing changes on disk: functions of the mutated file get the code of the changed syntax tree.
"""

from __future__ import annotations

import ast
import faulthandler
import gc
import json
import os
import resource
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.mutations.draw import PACKAGE, Mutation
from tests.mutations.touched import forget

_GIBIBYTE = 2**30


@dataclass
class Killing:
    """The plugin, and what became of each mutation.

    Attributes:
        tests: for each mutation the tests to run, in this order.
        seconds: what each takes on the code as it is. A test that takes ten times as long, and 20 s
            more, has noticed the mutation (an endless loop, say).
        limit: after so many seconds no further test begins.
        report: where a line of JSON is added for each mutation.
    """

    tests: dict[Mutation, list[str]]
    seconds: dict[str, float]
    limit: float
    report: Path
    items: dict[str, pytest.Item] = field(default_factory=dict)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        for file in {mutation.file for mutation in self.tests}:
            import_module(
                "privlearn." + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            )
        _functions()
        forget()
        gc.freeze()  # or each process would copy what its collector looks at
        for mutation, tests in self.tests.items():
            outcome = self._outcome(mutation, [test for test in tests if test in self.items])
            with self.report.open("a") as file:
                print(
                    json.dumps({"room": mutation.room, "name": mutation.name, **outcome}), file=file
                )
            print(f"{outcome['outcome']:>9}  {mutation.name}", flush=True)
        return True

    def _outcome(self, mutation: Mutation, tests: list[str]) -> dict[str, Any]:
        if not tests:
            return {"outcome": "survived", "tests": 0, "all": True}
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reading)
            try:
                self._child(mutation, tests, writing)
            finally:
                os._exit(1)
        os.close(writing)
        with os.fdopen(reading) as file:
            lines = [json.loads(line) for line in file.read().splitlines()]
        os.waitpid(pid, 0)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what the test forked
        if lines and "outcome" in lines[-1]:
            return dict(lines[-1])
        return {
            "outcome": "killed",
            "by": lines[-1]["begun"] if lines else "",
            "how": "time or abort",
        }

    def _child(self, mutation: Mutation, tests: list[str], writing: int) -> None:
        def say(**what: Any) -> None:
            os.write(writing, (json.dumps(what) + "\n").encode())

        os.setpgid(0, 0)
        began, silent = time.monotonic(), os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        resource.setrlimit(resource.RLIMIT_AS, (16 * _GIBIBYTE, 16 * _GIBIBYTE))
        try:
            patch(mutation)
        except Exception:
            say(outcome="broken", how=traceback.format_exc())
            os._exit(0)
        for number, test in enumerate(tests):
            if time.monotonic() - began > self.limit:
                say(outcome="survived", tests=number, all=False)
                os._exit(0)
            say(begun=test)
            faulthandler.dump_traceback_later(20 + 10 * self.seconds[test], exit=True, file=silent)
            reports = runtestprotocol(self.items[test], log=False, nextitem=None)
            if failed := [report for report in reports if report.failed]:
                text = str(failed[0].longrepr).splitlines()
                say(outcome="killed", by=test, tests=number + 1, how=text[-1][:200] if text else "")
                os._exit(0)
        say(outcome="survived", tests=len(tests), all=True)
        os._exit(0)


def patch(mutation: Mutation) -> None:
    """Give the function the mutated code, wherever it is referred to, and empty the package's
    caches.
    """
    path = PACKAGE / mutation.file
    new = dict(_codes(compile(mutation.tree(), str(path), "exec", dont_inherit=True)))
    old = dict(
        _codes(compile(ast.parse(path.read_text("utf-8")), str(path), "exec", dont_inherit=True))
    )
    key = max(key for key in old if key[0] == mutation.function and key[1] <= mutation.lines[0])
    functions = _functions().get((str(path), *key), [])
    assert functions, f"{mutation.name}: no such function"
    for function in functions:
        function.__code__ = new[key]
    forget()


@cache
def _functions() -> dict[tuple[str, str, int], list[FunctionType]]:
    """The functions of the package that there are, by file, qualified name and first line."""
    known: dict[tuple[str, str, int], list[FunctionType]] = {}
    for own in gc.get_objects():
        if type(own) is FunctionType and own.__code__.co_filename.startswith(str(PACKAGE)):
            code = own.__code__
            known.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(
                own
            )
    return known


def _codes(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    """The codes of functions, by qualified name and first line."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield (inner.co_qualname, inner.co_firstlineno), inner
            yield from _codes(inner)
