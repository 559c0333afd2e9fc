"""The processes that train together: which of them this is, and what they do as one. By default there is one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privlearn.errors import BadInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from privlearn.streams import NoiseStream

#: What launchers tell each of their processes: torchrun and accelerate, Open MPI, MPICH and Intel MPI, srun.
#: (SLURM_NTASKS is set in a batch script, too, which is one process.)
_COUNTS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


@dataclass(frozen=True)
class World:
    """One process by itself. Training in several would fill in these methods, and nothing else.

    Attributes:
        rank: the number of this process.
        size: how many processes there are.
    """

    rank: int = 0
    size: int = 1

    def part(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of the examples that all processes drew alike, those that this one computes."""
        return examples

    def sum(self, sums: Sequence[Tensor]) -> Sequence[Tensor]:
        """The sums over all processes of each one's `sums`."""
        return sums

    def noise(self, stream: NoiseStream) -> NoiseStream:
        """What this process draws noise from: all together must add it once."""
        return stream


def require_one_process() -> None:
    """Refuse to train as one of several processes that a launcher started: before anything is spent.

    Raises:
        BadInput: the environment says that there are several.
    """
    for name in _COUNTS:
        given = os.environ.get(name, "").strip()
        if given.isdecimal() and int(given) > 1:
            raise BadInput(
                f"{name} is {given}: each of {given} processes would train on the same private rows and spend what one "
                "run is booked for. Training in several processes is not supported: start one, without torchrun or "
                "mpirun (srun with --ntasks=1)",
                name=name,
            )
