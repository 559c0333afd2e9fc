"""Steps that are repeated after an interruption, compared with what they were before it.

The noise of a repeated step is the same. On the same sum that is the same release, which gives nothing away; on another
sum, the difference of the two releases would have no noise at all.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import torch

from privlearn.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

    from privlearn.runs.checkpoint import Checkpoint

#: How far projections may lie apart, over the norm of what was released: another processor rounds otherwise.
_TOLERANCE = 1e-4
_WIDTH, _VECTORS = 1 << 14, 16


@final
class Repeats:
    """What each step was taken with, noted beside the checkpoint before anything of it leaves the run.

    Args:
        file: the checkpoint; None: this process keeps none, and nothing is noted.
    """

    def __init__(self, file: Checkpoint | None) -> None:
        self._file = file
        self._noted: list[tuple[str, list[float]]] = []  # of each step before an interruption

    def forget(self) -> None:
        """A run begins."""
        if self._file:
            self._file.forget_notes()

    def recall(self) -> None:
        """A run goes on: its steps so far were noted.

        Raises:
            BadInput: the notes are damaged.
        """
        lines = [line.split() for line in self._file.notes()] if self._file else []
        try:
            for digest, *figures in lines:
                if len(figures) not in (0, 2):
                    raise ValueError("a note has other figures than a projection and a norm")
                self._noted.append((digest, [float.fromhex(value) for value in figures]))
        except ValueError as error:
            assert self._file is not None
            raise BadInput(
                f"the notes of steps beside {self._file.path} are damaged: repeated steps can't be compared. Begin "
                "anew; what the run was charged stays charged"
            ) from error

    def compare(self, step: int, settings: str) -> None:
        """Before a step's noise is drawn.

        Raises:
            BadInput: the step was taken before an interruption, with other settings of the optimizer.
        """
        if step < len(self._noted) and self._noted[step][0] != _digest(settings):
            raise BadInput(
                f"step {step + 1} was taken before the interruption, with other settings of the optimizer (its "
                "learning rate, say), and would be repeated with the same noise. Let the run keep the scheduler, "
                "private.keep(scheduler), or begin anew; what the run was charged stays charged"
            )

    def note(self, step: int, settings: str, released: Sequence[Tensor]) -> None:
        """After a step's release, before the parameters know of it.

        Raises:
            BadInput: the step was taken before an interruption, and released something else, with the same noise.
        """
        if self._file is None:
            return
        now = projections(released) if released else []
        if step >= len(self._noted):
            self._file.note(" ".join([_digest(settings), *(value.hex() for value in now)]))
            return
        then = self._noted[step][1]
        # Of shards no sums are noted. Figures that are no numbers are not alike.
        if then and now and not all(abs(own - old) <= _TOLERANCE * now[-1] for own, old in zip(now, then, strict=True)):
            raise BadInput(
                f"step {step + 1} was taken before the interruption, with the same noise on other sums: a row, the "
                "loss or the model has changed since. Go on with what the run began with, on a machine of the same "
                "kind, or begin anew; what the run was charged stays charged"
            )


def projections(released: Sequence[Tensor]) -> list[float]:
    """The product of all values with a fixed random vector of signs, and their norm: alike for what is nearly alike."""
    values = [own.detach().reshape(-1) for own in released]
    values = [own.float() if own.element_size() < 4 else own for own in values]
    parts = [_projected(number, own) for number, own in enumerate(values)]
    figures = torch.stack([own.float() for own in (*parts, *torch._foreach_norm(values))]).tolist()  # waited for once
    return [math.fsum(figures[: len(parts)]), math.hypot(*figures[len(parts) :])]


def _projected(number: int, values: Tensor) -> Tensor:
    signs = _signs(number % _VECTORS, values.device, values.dtype)
    if len(values) <= _WIDTH:
        return torch.dot(values, signs[: len(values)])
    full = len(values) // _WIDTH * _WIDTH
    by_row = values[:full].view(-1, _WIDTH) @ signs
    places = _places(len(by_row), values.device, values.dtype)
    return torch.dot(by_row, places) + torch.dot(values[full:], signs[: len(values) - full])


def _digest(settings: str) -> str:
    return hashlib.blake2b(settings.encode(), digest_size=8).hexdigest()


@functools.cache
def _signs(number: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return _random_signs(number, _WIDTH).to(device, dtype)


@functools.lru_cache(maxsize=256)
def _places(rows: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return _random_signs(_VECTORS, rows).to(device, dtype)


def _random_signs(seed: int, size: int) -> Tensor:
    made_up = torch.Generator().manual_seed(seed)
    return torch.randint(2, (size,), generator=made_up).float() * 2 - 1
