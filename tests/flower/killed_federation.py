"""Kills servers and sites of a federation at random points, lets the servers go on, and prints what
was seen.

Run by test_kills.py in a process of its own, which has used no threads:
`killed_federation.py FOLDER KILLS SEED`. A point is a call or a return of any function: a process
counts them and kills itself at the one that was drawn.
"""

from __future__ import annotations

import json
import mmap
import os
import pickle
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Message

import privlearn as pv
from privlearn.core.accounting.events import compose, walk
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.core.mechanisms import release
from privlearn.flower import FlowerTeachers, teacher_app
from privlearn.runs.checkpoint import Checkpoint
from tests.support.local_grid import LocalGrid

SITES, QUERIES, CLASSES = 5, 12, 3
INPUTS = np.random.default_rng(1).normal(size=(QUERIES, 4)).astype(np.float32)
PLAN = pv.teachers.PatePlan(
    QUERIES, SITES, pv.teachers.Votes(CLASSES), noise_multiplier=0.5, adjacency="add_remove"
)
NODES = [{"site": site} for site in range(SITES)]
_DONE = 0


class Shared:
    """Whole numbers that outlive a killed process."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 32)

    def __getitem__(self, place: int) -> int:
        return int.from_bytes(self._memory[8 * place : 8 * place + 8], "little")

    def __setitem__(self, place: int, number: int) -> None:
        self._memory[8 * place : 8 * place + 8] = number.to_bytes(8, "little")


#: Of the shared numbers: events that a process counted, times that sites were asked, and events
#: until the first site was asked and until the first draw.
EVENTS, ASKED, UNTIL_ASKED, UNTIL_DRAWN = range(4)
shared = Shared()


def votes(site: int, asked: int) -> np.ndarray:
    """What a site says: something else each time that all are asked."""
    weights = np.random.default_rng((site, asked)).normal(size=(4, CLASSES))
    return (INPUTS @ weights).argmax(1)


def load(context: Any) -> Callable[[np.ndarray], np.ndarray]:
    """A teacher whose answers differ when it is asked again."""

    def answer(inputs: np.ndarray) -> np.ndarray:
        shared[UNTIL_ASKED] = shared[UNTIL_ASKED] or shared[EVENTS]
        said = votes(int(context.node_config["site"]), shared[ASKED] // SITES)
        shared[ASKED] += 1
        return said

    return answer


def kill_at(point: int) -> None:
    """Kill this process at an event; 0: count them all."""
    seen = 0

    def look(*_: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == point:
            os.kill(os.getpid(), signal.SIGKILL)
        if not point:
            shared[EVENTS] = seen

    sys.setprofile(look)


def in_a_process(work: Callable[[], None], point: int | None) -> int:
    """Fork, do it, and say how the process ended."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            if point is not None:
                kill_at(point)
            work()
            code = _DONE
        finally:
            sys.setprofile(None)
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def serve(folder: Path) -> pv.teachers.Answers | Any:
    """A server's whole work: what it draws is noted where a kill does not reach."""
    noised = release._add_noise
    notes = os.open(folder / "drawn", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def noted(part: Any, *more: Any) -> Any:
        shared[UNTIL_DRAWN] = shared[UNTIL_DRAWN] or shared[EVENTS]
        before = [value.clone() for value in part.values]
        values = noised(part, *more)
        pair = [[each.tolist() for each in side] for side in (before, values)]
        os.write(notes, (json.dumps(pair) + "\n").encode())
        return values

    release._add_noise = noted
    try:
        return pv.teachers.ask_teachers(
            PLAN,
            FlowerTeachers(LocalGrid(teacher_app(load), NODES), SITES, timeout=1.0),
            None,
            INPUTS,
            ledger=pv.Ledger.open(folder / "ledger", create=True),
            keep=folder / "answers",
        )
    finally:
        release._add_noise = noised
        os.close(notes)


def drawn(folder: Path) -> list[Any]:
    """Pairs of a sum and what was released of it, in the order of the draws."""
    file = folder / "drawn"
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines]


def charged(folder: Path) -> list[int]:
    """How many releases each run was charged on the ledger."""
    if not (folder / "ledger").exists():
        return []
    entries = LedgerFile(folder / "ledger").read().entries
    return [sum(times for _, times in walk(entry.spent)) for entry in entries]


def kill_servers(folder: Path, kills: int, seed: int) -> Counter[str]:
    """Kill servers, let each go on until it ends, and count what was seen."""
    chance, seen = random.Random(seed), Counter[str]()
    warm = folder / "warm"
    warm.mkdir()
    serve(warm)  # what is imported late is imported before a fork
    counted = folder / "counted"
    counted.mkdir()
    assert in_a_process(lambda: serve(counted) and None, 0) == _DONE
    events, critical = shared[EVENTS], (shared[UNTIL_ASKED], shared[UNTIL_DRAWN])
    while seen["kills"] < kills:
        place = folder / f"server-{seen['servers']}"
        place.mkdir()
        seen["servers"] += 1
        shared[ASKED] = 0
        asked_after_a_draw = 0
        while True:
            killed_again = chance.random() < 0.4 or not (place / "ledger").exists()
            # half of them from the first question to the first draw, where a file is written
            point = chance.randint(*(critical if chance.random() < 0.5 else (1, events)))
            point = point if killed_again and seen["kills"] < kills else None
            before, asked = len(drawn(place)), shared[ASKED]
            status = in_a_process(lambda place=place: serve(place) and None, point)
            asked_after_a_draw += before > 0 and shared[ASKED] > asked
            paper = charged(place)
            seen["a draw before its charge"] += len({str(each) for each in drawn(place)}) > max(
                paper, default=0
            )
            if status == -signal.SIGKILL:
                seen["kills"] += 1
                seen["kills before the ledger was there"] += not (place / "ledger").exists()
                seen["kills after the ledger and before a draw"] += (
                    place / "ledger"
                ).exists() and not drawn(place)
                seen["kills while noise was drawn"] += 0 < len(drawn(place)) < QUERIES
                continue
            assert status == _DONE, status
            break
        pairs = drawn(place)
        releases = {json.dumps(pair) for pair in pairs}
        seen["servers with other noise for a query"] += len(releases) != QUERIES
        seen["servers that drew the same noise again"] += len(pairs) > QUERIES
        seen["servers that asked again after a draw"] += asked_after_a_draw > 0
        seen["servers that asked sites again"] += shared[ASKED] > SITES
        answers = serve(place)  # kept: nothing is asked or drawn
        released = [pair[1][0] for pair in pairs[-QUERIES:]]
        same = np.array_equal(np.array(released), answers.scores.numpy())
        seen["servers whose answers are not what was drawn"] += not same
        seen["servers charged once"] += [each for each in charged(place) if each] == [QUERIES]
        seen["servers with more than one run on the ledger"] += len(charged(place)) > 1
        # a run that was begun and lost before its file was written is open, and spent nothing
        right = compose([PLAN.event()] * len(charged(place)))
        seen["servers with a right ledger"] += pv.Ledger.open(place / "ledger").event == right
    seen["points to choose from"] = events
    return seen


def kill_between(folder: Path) -> dict[str, Any]:
    """Kill a server when the ledger has its run, and no file yet says how to go on."""
    folder.mkdir()

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def serve_and_die() -> None:
        Checkpoint.write = die  # type: ignore[method-assign]
        serve(folder)

    status = in_a_process(serve_and_die, None)
    before = len(drawn(folder))
    serve(folder)
    return {"status": status, "drawn": [before, len(drawn(folder))], "charged": charged(folder)}


class ProcessGrid(LocalGrid):
    """A grid whose sites are processes: one of them is killed at an event while it answers."""

    victim, point = 0, 0

    def _answer(self, message: Message) -> list[Message]:
        node = message.metadata.dst_node_id
        reads, writes = os.pipe()

        def reply() -> None:
            [answer] = LocalGrid._answer(self, message)
            os.write(writes, pickle.dumps(answer.content))

        point = self.point if node == self.victim else None
        status = in_a_process(reply, point)
        os.close(writes)
        with os.fdopen(reads, "rb") as pipe:
            content = pipe.read()
        if status == -signal.SIGKILL and not content:
            return []
        return [Message(pickle.loads(content), reply_to=message)]


def ask(grid: LocalGrid) -> tuple[Any, int, bool]:
    """What is released with noise of a known seed, how many were silent, and whether the ledger has
    one charge.
    """
    shared[ASKED] = 0
    ledger = pv.Ledger()
    answers = pv.teachers.ask_teachers(
        PLAN,
        FlowerTeachers(grid, SITES, timeout=0.2),
        None,
        INPUTS,
        streams=pv.Streams.new(seed=3),
        ledger=ledger,
    )
    silent = answers.private_diagnostics["teachers_without_answers"]
    return answers.scores, silent, ledger.event == PLAN.event()


def kill_sites(kills: int, seed: int) -> Counter[str]:
    """Kill a site in each asking, and compare with one that is absent."""
    chance, seen = random.Random(seed), Counter[str]()
    app = teacher_app(load)
    whole, _, _ = ask(ProcessGrid(app, NODES))
    counting = ProcessGrid(app, NODES)
    counting.victim, counting.point = 1, 0
    ask(counting)
    events = shared[EVENTS]
    while seen["kills"] < kills:
        grid = ProcessGrid(app, NODES)
        grid.victim, grid.point = chance.randint(1, SITES), chance.randint(1, events)
        victim = grid.victim
        scores, silent, once = ask(grid)
        without, _, _ = ask(
            LocalGrid(
                app, NODES, before=lambda each, dead=victim: each.metadata.dst_node_id != dead
            )
        )
        seen["kills"] += 1
        seen["sites that counted as absent"] += silent == 1
        seen["sites that had answered"] += silent == 0
        seen["askings charged once"] += once
        expected = without if silent else whole
        seen["other sums than with an absent site"] += not torch.equal(scores, expected)
    seen["points to choose from"] = events
    return seen


def main(folder: Path, kills: int, seed: int) -> None:
    """Kill servers, then sites."""
    seen: dict[str, Any] = {"servers": kill_servers(folder, kills, seed)}
    seen["between"] = kill_between(folder / "between")
    seen["sites"] = kill_sites(kills, seed)
    print(json.dumps(seen))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
