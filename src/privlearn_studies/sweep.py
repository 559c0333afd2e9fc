"""Many runs at once, each kept as soon as it is done, so that a sweep can be interrupted and continued."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, final

from privlearn.errors import BadInput

#: The file in the folder of a study's results that keeps every run, whatever study it was for.
FILE = "runs.jsonl"
_DIGITS = 6


class Run(Protocol):
    """A run that a sweep can make: a frozen value that says all that distinguishes it from others but its seed."""

    def key(self, seed: int) -> dict[str, Any]:
        """Its settings as plain values, the seed among them: equal keys, equal runs."""
        ...

    def run(self, seed: int) -> Any:
        """Make it. What it reached is a dataclass of numbers and tuples of them."""
        ...

    def outcome(self, kept: dict[str, Any]) -> Any:
        """What a run reached, from its fields; lists stand for tuples."""
        ...


AnyRun = TypeVar("AnyRun", bound=Run)


@final
@dataclass(frozen=True)
class Store:
    """The runs in a file, one JSON object a line; a run is looked up by its key.

    Attributes:
        path: the file; made when the first run is kept.
    """

    path: Path

    def read(self) -> dict[str, dict[str, Any]]:
        """The outcomes' fields by the runs' keys, as text; a line that was cut off while it was written is passed over.

        Raises:
            BadInput: the file cannot be read.
        """
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(
                f"{self.path} cannot be read: {error}. Delete it to begin anew, or use another --out"
            ) from error
        found: dict[str, dict[str, Any]] = {}
        for line in lines:
            try:
                entry = json.loads(line)
                found[_canonical(entry["run"])] = dict(entry["outcome"])
            except (ValueError, KeyError, TypeError):
                continue
        return found

    def keep(self, run: dict[str, Any], outcome: dict[str, Any]) -> None:
        """Append what the run of that key reached.

        Raises:
            BadInput: the file cannot be written.
        """
        line = json.dumps({"run": run, "outcome": outcome}, allow_nan=False)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            cut = self.path.exists() and not self.path.read_bytes().endswith(b"\n") and self.path.stat().st_size
            with self.path.open("a", encoding="utf-8") as file:
                file.write(("\n" if cut else "") + line + "\n")
        except OSError as error:
            raise BadInput(
                f"{self.path} cannot be written: {error.strerror}. Give another folder with --out"
            ) from error


@final
class Sweep:
    """Makes runs over seeds, several at once, and keeps what they reached.

    Args:
        folder: where the runs are kept; None: nowhere.
        jobs: processes at once, each with one thread; None: as many as there are processors.
        progress: called with (runs done, runs in all).
    """

    def __init__(
        self, folder: Path | None = None, jobs: int | None = None, progress: Callable[[int, int], None] | None = None
    ) -> None:
        self._store = Store(folder / FILE) if folder else None
        self._jobs = jobs or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else jobs or 1
        self._progress = progress

    def __call__(self, settings: Iterable[AnyRun], seeds: Sequence[int]) -> dict[AnyRun, list[Any]]:
        """The outcomes of each setting, one for each seed, in their order; what was run before is not run again."""
        wanted = list(dict.fromkeys(settings))
        kept = self._store.read() if self._store else {}
        known: dict[str, Any] = {}
        for setting in wanted:
            for name in (_canonical(setting.key(seed)) for seed in seeds):
                with suppress(TypeError, KeyError):  # a line of another make
                    known[name] = setting.outcome(kept[name])
        # Seed by seed, so that an interrupted sweep has whole pairs.
        runs = [(setting, seed) for seed in seeds for setting in wanted]
        missing = [run for run in runs if _canonical(run[0].key(run[1])) not in known]
        done = len(runs) - len(missing)
        if missing:
            context = multiprocessing.get_context("spawn")
            others = multiprocessing.active_children()
            with ProcessPoolExecutor(min(self._jobs, len(missing)), context, initializer=_one_thread) as pool:
                with _deaf_children():
                    under_way = {pool.submit(_train, setting, seed): (setting, seed) for setting, seed in missing}
                try:
                    for finished in as_completed(under_way):
                        setting, seed = under_way[finished]
                        run, outcome = setting.key(seed), finished.result()
                        known[_canonical(run)] = setting.outcome(outcome)
                        if self._store:
                            self._store.keep(run, outcome)
                        done += 1
                        if self._progress:
                            self._progress(done, len(runs))
                except BaseException:
                    # Runs that are under way are given up: nobody waits for them.
                    pool.shutdown(wait=False, cancel_futures=True)
                    for process in multiprocessing.active_children():
                        if process not in others:
                            process.terminate()
                    raise
        return {setting: [known[_canonical(setting.key(seed))] for seed in seeds] for setting in wanted}


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


def _train(setting: Run, seed: int) -> dict[str, Any]:
    """The fields of what a run reached, as they will be found again."""
    found: dict[str, Any] = _plain(asdict(setting.run(seed)))
    return found


def _canonical(run: dict[str, Any]) -> str:
    return json.dumps(run, sort_keys=True)


def _plain(value: Any) -> Any:
    """Lists for tuples, and numbers inside them to six significant digits."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [float(f"{each:.{_DIGITS}g}") if isinstance(each, float) else _plain(each) for each in value]
    return value
