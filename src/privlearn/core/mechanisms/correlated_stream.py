"""`CorrelatedStream` draws the noise of a run's steps, correlated over them, and checks that it is
noise.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from privlearn.core.streams import NoiseStream
from privlearn.errors import BadInput, PrivlearnError, UnsoundExtension

if TYPE_CHECKING:
    from torch import Tensor

#: Numbers by which the noise of two steps is compared.
_COMPARED = 8


def is_too_small(share: float, numbers: int) -> bool:
    """Whether the mean square of so many independent normal numbers is this share of their variance
    once in 10^15.
    """
    return share < 1 and (
        share <= 0 or numbers / 2 * (share - 1 - math.log(share)) > 15 * math.log(10)
    )


class CorrelatedStream(ABC):
    """The noise of one run's steps, drawn from a noise stream and correlated over them: one `add` a
    step, in order.

    It is a part of the run that a checkpoint keeps: as secret as the noise stream is.

    Args:
        stream: where independent noise comes from.
        steps: how many steps C is scaled for; None: any number.
    """

    #: Whether each step may have a standard deviation of its own, by which what is correlated is
    #: multiplied.
    changes: ClassVar[bool] = False

    def __init__(self, stream: NoiseStream, steps: int | None = None) -> None:
        if stream.discrete:
            raise BadInput(
                "correlated noise is not a whole number of grid steps: leave out discrete noise, "
                "or the mechanism"
            )
        self._stream, self._steps = stream, steps
        self._taken, self._std = 0, None  # type: int, float | None
        self._sizes: Any = None  # of the values of each step
        self._variances: NDArray[np.float64] | None = None
        self._seen: set[bytes] = set()

    def drawing_for(
        self, values: Sequence[Tensor], places: Sequence[tuple[int, int]] | None = None
    ) -> AbstractContextManager[None]:
        """A block in which the noise of a step is drawn, for `values`: as of the stream that it is
        made of.
        """
        return self._stream.drawing_for(values, places)

    def add(
        self, values: Sequence[Tensor], std: float, places: Sequence[tuple[int, int]] | None = None
    ) -> None:
        """Add the noise of the next step to `values`, in place.

        Args:
            values: what is released; of the same sizes and types in each step.
            std: the noise multiplier times the sensitivity: the standard deviation of z, or this
                step's entry of D.
            places: where several processes have parts of the values, as of `noise.add_gaussian`.

        Raises:
            PrivlearnError: another standard deviation or other sizes than before, or a step more
                than C is scaled for: neither is priced.
        """
        import torch

        if self._std not in (None, std) and not self.changes:
            raise PrivlearnError(
                f"correlated noise began with standard deviation {self._std:g}, and a later step "
                f"asks for {std:g}: all steps need the same noise multiplier and clipping norm"
            )
        if not NoiseStream.is_one(self._stream):
            raise UnsoundExtension(
                f"{type(self).__name__} draws from another stream than the run's: pass it on"
            )
        sizes = [(value.numel(), value.dtype) for value in values], places
        if self._sizes is not None and self._sizes != sizes:
            raise PrivlearnError(
                "correlated noise began with values of other sizes or types: release the same "
                "values in each step"
            )
        if self._steps is not None and self._taken >= self._steps:
            raise PrivlearnError(
                f"the noise is correlated for a run of {self._steps} steps, and these are over: "
                "one more has no price. Begin another run"
            )
        self._std, self._sizes = std, sizes
        fresh = [torch.zeros_like(value) for value in values]
        before, unit = (self._stream.key, self._stream.position), 1.0 if self.changes else std
        self._fill(fresh, unit, places)
        self._require_fresh(fresh, unit, before)
        torch._foreach_add_(list(values), fresh, alpha=std if self.changes else 1.0)
        self._taken += 1

    def expect(self, inverse: NDArray[np.float64]) -> None:
        """Compare the noise of each step with what the first column of C^-1 makes of independent
        noise.
        """
        self._variances = np.cumsum(inverse**2)

    def _require_fresh(self, fresh: list[Tensor], std: float, before: tuple[bytes, int]) -> None:
        """Raise `UnsoundExtension` if a step's noise is none, too little or that of an earlier
        step. It is not added.

        No value that is released is looked at.
        """
        name, numbers = type(self).__name__, sum(tensor.numel() for tensor in fresh)
        if numbers and (self._stream.key, self._stream.position) == before:
            raise UnsoundExtension(
                f"{name} drew no random words for the noise of a step: nothing was released of it"
            )
        if numbers and self._variances is not None:
            squares = math.fsum(float(tensor.double().square().sum()) for tensor in fresh)
            expected = std**2 * float(self._variances[min(self._taken, len(self._variances) - 1)])
            if is_too_small(squares / (numbers * expected), numbers):
                raise UnsoundExtension(
                    f"{name} made {math.sqrt(squares / (numbers * expected)):.3g} times the noise "
                    "that its matrix says and that is charged: nothing was released of this step"
                )
        first = b"".join(tensor.view(-1)[:_COMPARED].cpu().numpy().tobytes() for tensor in fresh)
        digest = hashlib.blake2b(first, digest_size=16).digest()
        if numbers >= _COMPARED and digest in self._seen:
            raise UnsoundExtension(
                f"{name} made the noise of an earlier step again: nothing was released of it"
            )
        self._seen.add(digest)

    @abstractmethod
    def _fill(
        self, fresh: list[Tensor], std: float, places: Sequence[tuple[int, int]] | None
    ) -> None:
        """Make zeros the noise of the next step, for independent noise of standard deviation
        `std`.
        """

    @abstractmethod
    def _save(self) -> dict[str, Any]:
        """What `_fill` goes by, to be kept."""

    @abstractmethod
    def _go_on(self, state: dict[str, Any]) -> None:
        """Go by what was kept."""

    def state_dict(self) -> dict[str, Any]:
        """What later steps depend on."""
        return {"std": self._std, "taken": self._taken, "changes": self.changes, **self._save()}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Go on from a state.

        Raises:
            BadInput: an earlier version kept it, with noise of another standard deviation.
        """
        if state.get("changes", False) != self.changes:
            raise BadInput(
                "the correlated noise of this checkpoint was kept by an earlier version of "
                "privlearn, in other units: finish the run with that version, or begin it again"
            )
        self._std, self._taken, self._sizes = state["std"], state["taken"], None
        self._go_on(state)
