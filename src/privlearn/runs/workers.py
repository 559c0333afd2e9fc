"""Several trainings at once, in processes that joblib starts: each is trained as it would be here.

What they are given and give back is private, and goes over joblib's pipes, or over the network of a
cluster's backend (`joblib.parallel_config`), which has to be trusted then. Rows are never put into
files for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from pickle import PicklingError
from typing import Any

import torch

from privlearn.errors import BadInput, ProcessLost


def processes(jobs: int | None, what: str) -> int:
    """How many of `what` (teachers, say) joblib trains at once.

    Args:
        jobs: processes; -1: as many as there are processors; None: as many as joblib's
            `parallel_config` says, else 1.
        what: to name them.

    Raises:
        BadInput: in threads of one process, where the random numbers of one would depend on the
            others.
    """
    if jobs == 1:
        return 1
    import joblib
    from joblib.parallel import get_active_backend

    at_once = int(joblib.effective_n_jobs(jobs))
    backend, _ = get_active_backend()
    if at_once > 1 and getattr(backend, "supports_sharedmem", False):
        raise BadInput(
            f"joblib's backend is {type(backend).__name__}: {what} in threads would draw from "
            "the same random "
            "generators, so that one record could change several. Give a backend of processes, "
            "joblib.parallel_config("
            '"loky"), or jobs=1'
        )
    return at_once


def at_once(
    jobs: int | None, work: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """What `work` makes of each task, in their order: in other processes, or here where there is
    one task.

    Raises:
        ProcessLost: one of them was killed. What was charged stays charged.
        BadInput: a task can't be pickled, as one that holds random streams.
    """
    if len(tasks) < 2 or jobs == 1:
        return [work(*task) for task in tasks]
    from joblib import Parallel, delayed

    threads = _threads()
    try:
        return list(
            Parallel(n_jobs=jobs, max_nbytes=None)(
                delayed(_elsewhere)(threads, work, *task) for task in tasks
            )
        )
    except PicklingError as error:
        raise BadInput(
            "what is trained can't be pickled, and other processes get it so: it holds an open "
            "file, random streams or the like. Give functions that hold plain values, or jobs=1"
        ) from error
    except BrokenExecutor as error:
        raise ProcessLost(
            "a process that trained beside this one was killed, or ran out of memory: nothing is "
            "released, and what was charged stays charged. Train fewer at once (jobs)"
        ) from error


def _threads() -> dict[str, int]:
    """The threads that this process computes with: others need as many, or last digits would
    differ.
    """
    from threadpoolctl import threadpool_info

    most = {"torch": torch.get_num_threads()}
    for pool in threadpool_info():
        most[pool["user_api"]] = max(pool["num_threads"], most.get(pool["user_api"], 1))
    return most


def _elsewhere(threads: dict[str, int], work: Callable[..., Any], *task: Any) -> Any:
    """`work`, in another process."""
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(threads["torch"])
    with threadpool_limits({api: most for api, most in threads.items() if api != "torch"}):
        return work(*task)
