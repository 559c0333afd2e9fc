"""Runs that are kept: functions of a seed, made several at once, and read again when a study goes
on or is repeated.

A run is a function, `@cached("name") def train(seed, *, model, epsilon, ...) -> dict`. What it
returns is kept in a file under its name, its arguments (those that differ from their defaults) and
the seed.
"""

from __future__ import annotations

import inspect
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, final

from privlearn.errors import BadInput

#: The file in the folder of a study's results that keeps every run, whatever study it was for.
FILE = "runs.jsonl"
_DIGITS = 6
#: What a run reached: its numbers as attributes, lists as tuples.
Outcome = SimpleNamespace


@final
class Cached:
    """A function of a seed and other arguments, whose outcomes can be kept.

    Args:
        name: what outcomes are kept under; another one once the function changes what it computes.
        function: from the seed and keyword arguments, or one frozen value called `setting`, to a
            dictionary of numbers.
    """

    def __init__(
        self, name: str, function: Callable[..., dict[str, Any]], same: Callable[[Any], Any] | None
    ) -> None:
        self.name, self._function, self._same = name, function, same
        _, *others = inspect.signature(function).parameters.values()
        self._signature = inspect.Signature(others)
        self.__wrapped__ = function

    def __reduce__(self) -> tuple[Any, ...]:
        return _imported, (self._function.__module__, self._function.__name__)

    def __call__(self, seed: int, *arguments: Any, **named: Any) -> Outcome:
        """Make the run here and now."""
        outcome: Outcome = _whole(self._function(seed, *arguments, **named))
        return outcome

    def at(self, *arguments: Any, **named: Any) -> Call:
        """The run of these arguments, to be asked for."""
        bound = self._signature.bind(*arguments, **named)
        bound.apply_defaults()
        return Call(self, tuple(sorted(bound.arguments.items())))

    def key(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that differ from their defaults, as plain values."""
        usual = {name: one.default for name, one in self._signature.parameters.items()}
        arguments = {
            name: self._same(value) if self._same else value for name, value in arguments.items()
        }
        return {"run": self.name} | {
            name: _key(value) for name, value in arguments.items() if value != usual[name]
        }


def cached(
    name: str, same: Callable[[Any], Any] | None = None
) -> Callable[[Callable[..., dict[str, Any]]], Cached]:
    """Make a run of a function. `same` brings arguments that mean the same run to one form, for its
    key.
    """
    return lambda function: Cached(name, function, same)


@final
@dataclass(frozen=True)
class Call:
    """A run to be asked for; its arguments, and the fields of its setting, are read as attributes.

    Attributes:
        function: what is run.
        given: all arguments but the seed, by name.
    """

    function: Cached
    given: tuple[tuple[str, Any], ...]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("function", "given"):
            raise AttributeError(name)
        arguments = dict(self.given)
        return arguments[name] if name in arguments else getattr(arguments.get("setting"), name)

    def but(self, **changes: Any) -> Call:
        """The same with other arguments, or other fields of its setting."""
        arguments = dict(self.given)
        inside = {name: value for name, value in changes.items() if name not in arguments}
        arguments |= {name: value for name, value in changes.items() if name in arguments}
        if inside:
            arguments["setting"] = replace(arguments["setting"], **inside)
        return self.function.at(**arguments)

    def key(self, seed: int) -> dict[str, Any]:
        """What the run is kept under."""
        return self.function.key(dict(self.given)) | {"seed": seed}

    def __call__(self, seed: int) -> Outcome:
        """Make the run here and now."""
        return self.function(seed, **dict(self.given))


@final
@dataclass(frozen=True)
class Store:
    """The runs in a file, one JSON object a line; a run is looked up by its key.

    Attributes:
        path: the file; made when the first run is kept.
    """

    path: Path

    def read(self) -> dict[str, Outcome]:
        """Outcomes by the runs' keys, as text; a line that was cut off while it was written is
        passed over.

        Raises:
            BadInput: the file cannot be read.
        """
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(
                f"{self.path} cannot be read: {error}. Delete it to begin anew, or use another "
                "folder"
            ) from error
        outcomes: dict[str, Outcome] = {}
        for line in lines:
            try:
                entry = json.loads(line)
                outcomes[_canonical(entry["run"])] = _whole(dict(entry["outcome"]))
            except (ValueError, KeyError, TypeError):
                continue
        return outcomes

    def keep(self, run: dict[str, Any], outcome: Outcome) -> None:
        """Append what the run of that key reached.

        Raises:
            BadInput: the file cannot be written.
        """
        line = json.dumps({"run": run, "outcome": outcome}, allow_nan=False, default=vars)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            cut = (
                self.path.exists()
                and not self.path.read_bytes().endswith(b"\n")
                and self.path.stat().st_size
            )
            with self.path.open("a", encoding="utf-8") as file:
                file.write(("\n" if cut else "") + line + "\n")
        except OSError as error:
            raise BadInput(
                f"{self.path} cannot be written: {error.strerror}. Give another folder"
            ) from error


@final
class Runs:
    """Makes runs over seeds, several at once, and keeps what they reached.

    Args:
        folder: where the runs are kept; None: nowhere.
        jobs: processes at once, each with one thread; None: as many as there are processors.
        progress: called with (runs done, runs in all).
    """

    def __init__(
        self,
        folder: Path | None = None,
        jobs: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._store = Store(folder / FILE) if folder else None
        self._jobs = jobs or (
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        )
        self._progress = progress or (lambda done, total: None)

    def __call__(self, calls: Iterable[Call], seeds: Sequence[int]) -> dict[Call, list[Outcome]]:
        """The outcomes of each run, one for each seed, in their order; what was run before is not
        run again.
        """
        wanted = list(dict.fromkeys(calls))
        known = self._store.read() if self._store else {}
        # Seed by seed, so that an interrupted study has whole pairs.
        every = [(call, seed) for seed in seeds for call in wanted]
        missing = [(call, seed) for call, seed in every if _canonical(call.key(seed)) not in known]
        for number, (call, seed, outcome) in enumerate(
            _carry_out(missing, self._jobs), len(every) - len(missing) + 1
        ):
            known[_canonical(call.key(seed))] = outcome
            if self._store:
                self._store.keep(call.key(seed), outcome)
            self._progress(number, len(every))
        return {call: [known[_canonical(call.key(seed))] for seed in seeds] for call in wanted}

    def named(self, calls: Mapping[Any, Call], seeds: Sequence[int]) -> dict[Any, list[Outcome]]:
        """The same by the calls' own names."""
        outcomes = self(calls.values(), seeds)
        return {name: outcomes[call] for name, call in calls.items()}


def _carry_out(
    missing: Sequence[tuple[Call, int]], jobs: int
) -> Iterator[tuple[Call, int, Outcome]]:
    """Runs as they end, each in a process with one thread."""
    if not missing:
        return
    others = multiprocessing.active_children()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(missing)), context, initializer=_one_thread) as pool:
        with _deaf_children():
            under_way = {pool.submit(_rounded, call, seed): (call, seed) for call, seed in missing}
        try:
            for finished in as_completed(under_way):
                yield *under_way[finished], finished.result()
        except BaseException:
            # Runs that are under way are given up.
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                if process not in others:
                    process.terminate()
            raise


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes started in the block do not hear Ctrl-C: their parent sees to them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _imported(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


def _rounded(call: Call, seed: int) -> Outcome:
    """What a run reached, as it will be found again: numbers in lists have six significant
    digits.
    """

    def short(value: Any) -> Any:
        if isinstance(value, Outcome):
            return Outcome(**{name: short(each) for name, each in vars(value).items()})
        if isinstance(value, tuple):
            return tuple(
                float(f"{each:.{_DIGITS}g}") if isinstance(each, float) else short(each)
                for each in value
            )
        return value

    outcome: Outcome = short(call(seed))
    return outcome


def _whole(value: Any) -> Any:
    """Plain values as an outcome: attributes for dictionaries, tuples for lists."""
    if isinstance(value, dict):
        return Outcome(**{name: _whole(each) for name, each in value.items()})
    return tuple(map(_whole, value)) if isinstance(value, list | tuple) else value


def _key(value: Any) -> Any:
    """An argument as a plain value; of a frozen value the fields that differ from their
    defaults.
    """
    if is_dataclass(value):
        every = {each.name: (getattr(value, each.name), each.default) for each in fields(value)}
        return {
            name: _key(field_value)
            for name, (field_value, usual) in every.items()
            if usual is MISSING or field_value != usual
        }
    return [_key(each) for each in value] if isinstance(value, tuple) else value


def _canonical(run: dict[str, Any]) -> str:
    return json.dumps(run, sort_keys=True)
