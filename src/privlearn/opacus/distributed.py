"""`DifferentiallyPrivateDistributedDataParallel`: the wrapper of Opacus's scripts in several
processes.
"""

from __future__ import annotations

from typing import Any, final

from torch import nn

from privlearn._checks import checked


@final
class DifferentiallyPrivateDistributedDataParallel(nn.Module):
    """A module of a script that runs in several processes; the engine trains what is in it.

    Guarantee: that of the run, with any number of processes. They draw one batch, each computes a
    part of it, and noise is added once, to the sum over all of them (docs/distributed.md). Weights
    are those of the first process, from when the module is made private.

    Args:
        model: the module.
    """

    @checked
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's output."""
        return self.module(*args, **kwargs)
