"""In a checkpoint of a model under FSDP2 each process writes its own shards, and any number of
processes reads them.

They are written by `torch.distributed.checkpoint` into a folder beside the checkpoint, which names
it. So a crash leaves the folder that was written before and the checkpoint that names it, whole.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from privlearn.core.clipping.sharded.models import is_shard
from privlearn.core.processes import World
from privlearn.errors import BadInput, first_line
from privlearn.runs.process_group import answered


def save_shards(path: Path, tensors: Mapping[str, Tensor], world: World) -> dict[str, Any] | None:
    """Write those of `tensors` that are sharded beside `path`, by all processes; what `load_shards`
    needs, if any are.

    Only the owner of the files may read them.
    """
    import torch.distributed.checkpoint as parallel

    shards = {name: tensor.detach() for name, tensor in tensors.items() if is_shard(tensor)}
    if not shards:
        return None
    folder = path.with_name(
        f"{path.name}.shards.{world.once(lambda: secrets.token_hex(4), 'a name for shards')}"
    )
    world.in_turn(lambda: folder.mkdir(mode=0o700, exist_ok=True), "the folder of shards")
    mask = os.umask(0o077)
    try:
        with _heard(f"{folder} cannot be written"):
            parallel.save(shards, checkpoint_id=folder)  # type: ignore[attr-defined]
    finally:
        os.umask(mask)
    return {
        "folder": folder.name,
        "tensors": {n: [list(t.shape), str(t.dtype)] for n, t in shards.items()},
    }


def load_shards(
    path: Path, saved: dict[str, Any] | None, like: Iterator[Tensor]
) -> dict[str, Tensor]:
    """The tensors that `save_shards` wrote, sharded over today's processes as one of `like` is."""
    import torch.distributed.checkpoint as parallel
    from torch.distributed.tensor import Shard, zeros

    if not saved:
        return {}
    mesh = next(tensor.device_mesh for tensor in like if is_shard(tensor))  # type: ignore[attr-defined]
    shards: dict[str, Any] = {
        name: zeros(
            shape,
            dtype=getattr(torch, kind.removeprefix("torch.")),
            device_mesh=mesh,
            placements=[Shard(0)],
        )
        for name, (shape, kind) in saved["tensors"].items()
    }
    folder = path.with_name(saved["folder"])
    with _heard(f"{folder}, the shards of the checkpoint {path.name}, cannot be read"):
        parallel.load(shards, checkpoint_id=folder)  # type: ignore[attr-defined]
    return shards


@contextmanager
def _heard(what: str) -> Iterator[None]:
    """A block in which all processes write or read shards, and hear of the failure of one."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with answered():
            yield
    # no Exception of Python's; it has the errors of all processes
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        failed = BadInput(
            f"{what}: process {rank} failed with {type(cause).__name__}: {first_line(cause)}"
        )
        failed.shared = True  # type: ignore[attr-defined]
        raise failed from error


def whole_state(model: nn.Module, *, keep: bool) -> dict[str, Tensor]:
    """The state of a model under FSDP2, its tensors gathered one by one by all processes; empty if
    it is not sharded.

    Args:
        model: the model.
        keep: whether this process wants it, on the processor.
    """
    state, whole = model.state_dict(), {}
    if not any(map(is_shard, state.values())):
        return {}
    for name, tensor in state.items():
        with answered():
            gathered = tensor.full_tensor() if is_shard(tensor) else tensor
        if keep:
            whole[name] = gathered.detach().cpu()
    return whole
