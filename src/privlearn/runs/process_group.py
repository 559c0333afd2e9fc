"""The group of processes that torchrun started: how this process joins it, and how it leaves."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import FunctionType, TracebackType

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from privlearn.core.devices import accelerator, take_device
from privlearn.errors import ProcessLost

#: What torchrun tells each process.
LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
#: Whether this process joined a group here.
JOINED: list[bool] = []
#: Whether this process left the group after an error of its own.
LEFT: list[bool] = []


@contextmanager
def answered() -> Iterator[None]:
    """A block in which others have to answer."""
    try:
        yield
    except RuntimeError as error:  # of all kinds of torch.distributed
        raise ProcessLost(
            "another process of this run ended, or did not answer in time: all end here. Start all "
            "of them again; a run with a checkpoint goes on from it, on as many processes or "
            "others"
        ) from error


def join() -> None:
    """Begin the group of the processes that torchrun started.

    Raises:
        ProcessLost: this process has left it, or others do not answer.
    """
    if LEFT:
        raise ProcessLost("this process left the others after an error: start all of them again")
    kind = accelerator()
    backends = "gloo"
    if kind is not None:
        fast = dist.Backend.default_device_backend_map.get(kind.type, "gloo")
        if fast != "gloo" and dist.is_backend_available(fast):
            backends = f"cpu:gloo,{kind.type}:{fast}"
            if "LOCAL_RANK" in os.environ:
                take_device(kind, int(os.environ["LOCAL_RANK"]))
    with answered():
        dist.init_process_group(backends)
    _leave_on_errors()
    JOINED.append(True)


def leave_at_exit() -> None:
    """Also a group that the caller, or another library, began and did not leave."""
    atexit.unregister(_end)
    atexit.register(_end)


def _leave_on_errors() -> None:
    """Let the others hear of an error that ends the script before anything else is done with it, by
    a debugger say.
    """
    handler = sys.excepthook

    def end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if dist.is_initialized():
            LEFT.append(True)
            leave()
        handler(kind, error, trace)

    if dist.get_world_size() > 1:
        sys.excepthook = end


def first_to_fail() -> bool:
    """Whether this process is the first of those that torchrun started to ask: the one that says
    why they end.
    """
    names = [os.environ.get(name, "") for name in LAUNCHED]
    if not all(names) or not names[1].isdecimal() or int(names[1]) < 2:
        return True
    if not JOINED:
        return names[0] == "0"  # it is the same in all of them
    run = [os.environ.get(f"TORCHELASTIC_{name}", "") for name in ("RUN_ID", "RESTART_COUNT")]
    try:
        store = TCPStore(names[2], int(names[3]), is_master=False, timeout=timedelta(seconds=10))
        return store.add("/".join(["privlearn", "failed", *run]), 1) == 1
    except RuntimeError:  # the store is gone, with the process that had it
        return True


def _end() -> None:
    """Leave the group at the interpreter's end, also if another process has left before."""
    if dist.is_initialized():
        with suppress(RuntimeError):
            dist.barrier(async_op=True).wait(timeout=timedelta(seconds=30))
        leave()
    else:  # the script left it by itself, and what holds on to it is left to us
        _forget()
        gc.collect()


def leave() -> None:
    """Leave the group, and wait for its threads: they let go of tensors, for which they need the
    interpreter.

    One that asks for it while the interpreter ends would abort the process. They end with the
    group, so nothing may hold on to that. `DistributedDataParallel` does, in a cycle of references
    that garbage collection alone frees. The script may: then there is only time to wait for.
    """
    if group := dist.group.WORLD:
        _forget()
    left = weakref.ref(group) if group else lambda: None
    del group
    dist.destroy_process_group()
    gc.collect()
    if left():
        time.sleep(0.2)


def _forget() -> None:
    """Take groups out of PyTorch's own functions: the defaults of a module that was imported after
    one began.
    """
    functions = vars(sys.modules.get("torch.distributed.nn.functional", dist)).values()
    for function in functions:
        if isinstance(function, FunctionType) and any(
            isinstance(default, dist.ProcessGroup) for default in function.__defaults__ or ()
        ):
            function.__defaults__ = tuple(
                None if isinstance(default, dist.ProcessGroup) else default
                for default in function.__defaults__ or ()
            )
