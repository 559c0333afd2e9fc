"""Several processes of torch.distributed, played by threads of this one that take turns: what the
laws are held on.

A thread runs alone until it has to hear from the others. `tests/ranks/test_torchrun.py` has real
processes.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from privlearn.core import samples
from privlearn.runs import process_group, ranks
from privlearn.runs.ranks import Ranks

#: How many seconds a thread may take on a busy machine.
_PATIENCE = 300.0


class Threads:
    """The calls of torch.distributed that `runs.ranks` makes, between threads.

    Attributes:
        left: which of them left the group by themselves.
    """

    def __init__(self, size: int) -> None:
        self.size, self._own = size, threading.local()
        self._turn = threading.Condition()
        self._running: int | None = None
        self._waiting: dict[int, tuple[str, Any]] = {}
        self._round = 0
        self._heard: dict[int, tuple[str, Any]] = {}
        self._alive = set(range(size))
        self.left: set[int] = set()

    def run(self, work: Callable[[Ranks], Any]) -> list[Any]:
        """What `work` returns or raises in each thread."""
        results: list[Any] = [None] * self.size

        def begin(rank: int) -> None:
            self._own.rank = rank
            try:
                with self._turn:
                    self._wait(lambda: self._running is None)
                    self._running = rank
                results[rank] = work(Ranks(rank, self.size))
            except BaseException as error:
                results[rank] = error
            finally:
                with self._turn:
                    self._running = None
                    self._alive.discard(rank)
                    self._turn.notify_all()

        # Locks of one process would be held while another thread has its turn.
        alone = mock.patch.object(samples, "_ONE_AT_A_TIME", nullcontext())
        functions = self._functions()
        with (
            mock.patch.object(ranks, "dist", functions),
            mock.patch.object(process_group, "dist", functions),
            alone,
        ):
            threads = [
                threading.Thread(target=begin, args=(rank,), daemon=True)
                for rank in range(self.size)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(_PATIENCE)
        assert not any(thread.is_alive() for thread in threads), "a thread hangs"
        return results

    def _wait(self, ready: Callable[[], bool]) -> None:
        if not self._turn.wait_for(ready, _PATIENCE):
            raise RuntimeError("no answer in time")

    def _exchange(self, name: str, value: Any) -> list[Any]:
        """What all threads give to this call, in the order of their ranks."""
        rank = self._own.rank
        with self._turn:
            now = self._round
            self._waiting[rank] = (name, value)
            self._running = None
            if len(self._waiting) == self.size:
                self._heard, self._waiting, self._round = self._waiting, {}, now + 1
            self._turn.notify_all()
            self._wait(lambda: self._round > now or len(self._alive) < self.size)
            if self._round == now:
                raise RuntimeError("Connection closed by peer")
            heard = dict(self._heard)
            self._wait(lambda: self._running is None)
            self._running = rank
        if len({call for call, _ in heard.values()}) > 1:
            raise RuntimeError("processes call different collectives")
        return [heard[other][1] for other in range(self.size)]

    def _functions(self) -> Any:
        def all_gather(into: Sequence[Tensor], own: Tensor, async_op: bool = False) -> Any:
            for target, theirs in zip(into, self._exchange("all_gather", own.clone()), strict=True):
                target.copy_(theirs)
            return SimpleNamespace(wait=lambda: None)

        def all_to_all_single(into: Tensor, own: Tensor) -> None:
            pieces = [
                theirs.chunk(self.size)[self._own.rank]
                for theirs in self._exchange("all_to_all", own.clone())
            ]
            into.copy_(torch.cat(pieces))

        def all_gather_object(into: list[Any], own: Any) -> None:
            into[:] = copy.deepcopy(self._exchange("all_gather_object", own))

        def broadcast_object_list(box: list[Any], source: int, device: Any = None) -> None:
            theirs = self._exchange(
                "broadcast_object", copy.deepcopy(box) if self._own.rank == source else None
            )
            if self._own.rank != source:
                box[:] = copy.deepcopy(theirs[source])

        def broadcast(tensor: Tensor, source: int) -> None:
            tensor.copy_(self._exchange("broadcast", tensor.detach().clone())[source])

        def destroy_process_group() -> None:
            with self._turn:
                self._alive.discard(self._own.rank)
                self.left.add(self._own.rank)
                self._turn.notify_all()

        return SimpleNamespace(
            all_gather=all_gather,
            all_to_all_single=all_to_all_single,
            all_gather_object=all_gather_object,
            broadcast_object_list=broadcast_object_list,
            broadcast=broadcast,
            get_backend_config=lambda: "cpu:gloo",
            rank=lambda: self._own.rank,
            is_initialized=lambda: True,
            group=SimpleNamespace(WORLD=None),
            destroy_process_group=destroy_process_group,
        )


def together(size: int, work: Callable[[Ranks], Any]) -> list[Any]:
    """What `work` returns in each of so many processes; the first process's error, if one
    raises.
    """
    results = Threads(size).run(work)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def outcomes(size: int, work: Callable[[Ranks], Any]) -> list[Any]:
    """What `work` returns or raises in each of so many processes."""
    return Threads(size).run(work)
