"""A run is one process: several that train on the same rows would each spend what one run is booked for."""

from __future__ import annotations

import os

from privlearn.errors import BadInput

#: What launchers tell each of their processes: torchrun and accelerate, Open MPI, MPICH and Intel MPI, srun. (SLURM_NTASKS is
#: set in a batch script, too, which is one process.)
_COUNTS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def require_one_process() -> None:
    """Refuse to train as one of several processes that a launcher started: before anything is spent.

    Raises:
        BadInput: the environment says that there are several.
    """
    for name in _COUNTS:
        given = os.environ.get(name, "").strip()
        if given.isdecimal() and int(given) > 1:
            raise BadInput(
                f"{name} is {given}: each of {given} processes would train on the same private rows and spend what one run is "
                "booked for. Training in several processes is not supported: start one, without torchrun or mpirun (srun with "
                "--ntasks=1)",
                name=name,
            )
