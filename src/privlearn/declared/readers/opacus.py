"""Runs of Opacus: a checkpoint of `PrivacyEngine.save_checkpoint`, or an accountant's state."""

from __future__ import annotations

import warnings
from contextlib import suppress
from io import BytesIO
from typing import Any

from privlearn._storage import loads
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.declared.peer_library import PeerLibrary, number_of, part_of, whole_number_of
from privlearn.declared.recorded_run import RecordedRun, RecordedSteps, merge_steps
from privlearn.errors import BadInput

_WHERE = "Opacus, a checkpoint or the state_dict of an accountant"


def read(content: bytes) -> RecordedRun:
    """The run in a checkpoint, or in `accountant.state_dict()` as torch or JSON wrote it.

    Opacus keeps the noise multiplier and the sampling rate of each step, and takes all batches for
    Poisson samples. Nothing of a file is run.

    Raises:
        BadInput: no such file.
    """
    whole = _load(content)
    state = whole.get("privacy_accountant_state_dict", whole) if isinstance(whole, dict) else None
    history = part_of(state, "history", list, _WHERE)
    steps = []
    for entry in history:
        if not isinstance(entry, list | tuple) or len(entry) != 3:
            raise BadInput(
                "the history of the accountant has an entry that is not a noise multiplier, a "
                "sampling rate and a number of steps: save the state_dict of an Opacus accountant"
            )
        noise, rate, count = entry
        steps.append(
            RecordedSteps(
                whole_number_of(count, "a number of steps"),
                "poisson",
                number_of(noise, "a noise multiplier"),
                number_of(rate, "a sampling rate"),
            )
        )
    return RecordedRun(
        library="opacus",
        accountant=part_of(state, "mechanism", str, _WHERE)[:20],
        neighbours=Adjacency.ADD_REMOVE,
        steps=merge_steps(steps),
        optimizer_steps=_count_steps(whole.get("optimizer_state_dict")),
    )


def _load(content: bytes) -> Any:
    """What torch or JSON wrote."""
    if content[:1] == b"{":
        try:
            return loads(content)
        except ValueError as error:
            raise BadInput(f"the file is not readable JSON: {error}") from error
    import torch

    try:
        return torch.load(BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        raise BadInput(
            "the file cannot be read without running code in it, or is not one of torch: save "
            "engine.accountant.state_dict() by json.dump, and give that file"
        ) from error


def _count_steps(optimizer: Any) -> int | None:
    """The most steps that the state of an optimizer has counted for a parameter."""
    state = optimizer.get("state") if isinstance(optimizer, dict) else None
    counted = []
    for part in state.values() if isinstance(state, dict) else ():
        with suppress(TypeError, ValueError, RuntimeError, OverflowError, AttributeError):
            counted.append(int(part["step"]) if "step" in part else 0)
    return max(counted, default=0) or None


def draw_rates(examples: int, batch_size: int) -> tuple[float, ...]:
    """One over the length of the loader, at which Opacus' own sampler draws: with the last batch
    of an epoch, and without it.
    """
    return 1 / -(-examples // batch_size), 1 / max(1, examples // batch_size)


def compute_epsilon(run: RecordedRun, delta: float) -> tuple[float, str] | None:
    """What Opacus' accountant says of the same history."""
    try:
        import opacus
        from opacus.accountants import create_accountant
    except ImportError:
        return None
    with warnings.catch_warnings(), suppress(Exception):
        warnings.simplefilter("ignore")
        accountant = create_accountant(mechanism=run.accountant)
        accountant.history = [
            (part.noise_multiplier, part.sampling_rate, part.count) for part in run.steps
        ]
        epsilon = float(accountant.get_epsilon(delta=delta))
        return epsilon, f"computed with opacus {opacus.__version__}, {run.accountant}"
    return None


LIBRARY = PeerLibrary(
    read,
    compute_epsilon,
    draw_rates,
    (
        "The sum of gradients was divided by the expected batch size, which is public, and not by "
        "the number of examples that were drawn.",
    ),
)
