"""Training that will be slow says so: why, and what to change."""

from __future__ import annotations

import warnings

#: How long the other ways take, by measurements (docs/performance.md) and by what they do.
_SLOW = {
    "vmap": (
        "by torch.func.vmap, which takes 1 to 55 times as long as layer by layer, and several "
        "times the memory"
    ),
    "loop": "one example after another, which takes about as many passes as a batch has examples",
}


#: What to change where the model or the loss decides it.
_FASTER = (
    "where the batch is read or mixed, use x.shape, a constant or the example alone; where an "
    "operation has no rule, use another or freeze its layer"
)


def warn_of_slowness(way: str, reason: str | None, loss: object = None) -> None:
    """Say, where gradients are not computed layer by layer, why, and what to change. Nothing of it
    is private.

    Args:
        way: how they are computed.
        reason: what the fastest way met.
        loss: one that calls the model with one example at a time says so by `slowness`: why, and
            what is faster.
    """
    if way in _SLOW:
        why, faster = getattr(loss, "slowness", None) or (reason, _FASTER)
        warnings.warn(
            f"training will be slow: gradients are computed {_SLOW[way]}, because {why}. The "
            f"guarantee is the same. Faster: {faster}",
            stacklevel=2,
        )


def warn_of_idle_processes(expected: float, chunk: int, processes: int) -> None:
    """Say, with noise on a grid in several processes, that some have nothing to do: public numbers
    alone.

    Args:
        expected: examples in a batch.
        chunk: examples that one process computes at once.
        processes: how many there are.
    """
    least = max(1, int(expected / processes))
    if expected / chunk <= processes / 2 and least < chunk:
        warnings.warn(
            f"with noise on a grid {processes} processes share what one computes at once, {chunk} "
            f"examples, and a batch has {expected:.6g}: some have nothing to do. Give "
            f"microbatch={least} on any number of processes: bits follow from it",
            stacklevel=2,
        )
