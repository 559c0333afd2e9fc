"""This file tells models whose parameters several processes keep in parts (FSDP2) from those that
one process keeps whole.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from privlearn.errors import BadInput


def is_sharded(model: nn.Module) -> bool:
    """Whether a part of the model is under FSDP2."""
    if not torch.distributed.is_available():
        return False
    try:
        from torch.distributed.fsdp import FSDPModule
    except ImportError:  # of PyTorch before 2.6
        return False
    return any(isinstance(module, FSDPModule) for module in model.modules())


def is_shard(tensor: Tensor) -> bool:
    """Whether a tensor is one of which each process keeps a part (a DTensor)."""
    return hasattr(tensor, "placements")


def local_part(tensor: Tensor) -> Tensor:
    """What this process keeps of a tensor: all of it, or its shard."""
    shard: Any = tensor
    local: Tensor = shard.to_local() if is_shard(tensor) else tensor
    return local


def require_whole(model: nn.Module) -> None:
    """Raise `BadInput` if a model is under the FSDP of before."""
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise BadInput(
            "the model is in FullyShardedDataParallel: give the module in it to fully_shard, and "
            "train that"
        )


def require_plain(**asked: Any) -> None:
    """Raise `BadInput` if a run asks for what is not done with a model under FSDP2.

    Args:
        asked: by name.
    """
    names = {
        "reacts": "a schedule that follows validations",
        "temperature": "a temperature of the scores",
        "average": "an average of the weights",
    }
    for name, what in names.items():
        if asked.get(name):
            raise BadInput(
                f"the run has {what}, and the model is under fully_shard: leave it out, or train "
                "it whole"
            )
