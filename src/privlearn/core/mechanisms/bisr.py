"""Noise that is correlated over all steps, and drawn again instead of kept: the banded inverse
square root (BISR).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from privlearn._checks import count, with_plain_numbers
from privlearn._public import registered
from privlearn.core.mechanisms.correlated import (
    MOST_BANDS,
    USUAL_BANDS,
    Column,
    Correlation,
    filtered,
    impulse,
    require_numbers,
    scale,
)
from privlearn.core.mechanisms.correlated_stream import CorrelatedStream
from privlearn.core.streams import NoiseStream

if TYPE_CHECKING:
    from torch import Tensor


@final
@registered
@dataclass(frozen=True)
class BISR(Correlation):
    """The banded inverse square root: C^-1 is made of the first coefficients of sqrt((1 - x) (1 -
    momentum x)).

    y_t is a sum of independent noise of this step and of bands - 1 earlier ones, which is drawn
    again each time: no tensor is kept. C has no bands, so the times of an example change the same
    rows: C is scaled for all of them together, for batches in a fixed order
    (`correlated.sensitivity`).

    Attributes:
        bands: coefficients of C^-1; 1 is independent noise. Drawing noise takes that many times as
            long.
        momentum: that of SGD.

    Source: Kalinin, McKenna, Upadhyay and Lampert 2025, "Back to square roots".
    """

    bands: int
    momentum: float = 0.0
    kind: ClassVar[str] = "bisr"
    tried = USUAL_BANDS
    keeps_tensors = False

    def __post_init__(self) -> None:
        require_numbers(self, MOST_BANDS)

    @with_plain_numbers
    def coefficients(self, steps: int, separation: int = 1) -> Column:
        """As of every `Correlation`."""
        column = self._raw_column(steps)
        return column / scale(column, count("separation", separation))

    @with_plain_numbers
    def inverse(self, steps: int, separation: int = 1) -> Column:
        """As of every `Correlation`."""
        root, coefficients = self._root(steps), np.zeros(steps)
        coefficients[: len(root)] = root * scale(
            self._raw_column(steps), count("separation", separation)
        )
        return coefficients

    def stream(self, noise: NoiseStream, steps: int, separation: int = 1) -> RedrawnStream:
        """The noise of a run."""
        return RedrawnStream(noise, self.inverse(steps, separation)[: self.bands], steps)

    def text(self) -> str:
        """As of every `Correlation`."""
        return f"correlated over all steps ({self.kind}, bands={self.bands})"

    def _root(self, steps: int) -> Column:
        """C^-1 before it is scaled: no more coefficients than steps."""
        bands = min(self.bands, count("steps", steps))
        root = np.cumprod([1.0, *((2 * j - 3) / (2 * j) for j in range(1, bands))])
        product: Column = np.convolve(root, root * self.momentum ** np.arange(bands))[:bands]
        return product

    def _raw_column(self, steps: int) -> Column:
        return filtered([1.0], self._root(steps), impulse(steps))


@final
class RedrawnStream(CorrelatedStream):
    """Noise that is a sum of this step's independent noise and of that of earlier steps, which is
    drawn again.

    Every number of z stays one number, however often it is drawn, and all that is released is made
    of C g + z. Of earlier steps the key and the position in the stream are kept.

    Args:
        stream: where independent noise comes from.
        coefficients: the first column of C^-1, without zeros at its end.
        steps: how many steps C is scaled for.
    """

    def __init__(
        self, stream: NoiseStream, coefficients: Sequence[float] | Column, steps: int
    ) -> None:
        super().__init__(stream, steps)
        self._coefficients = [float(c) for c in coefficients]
        # where the noise of earlier steps was drawn, the latest first
        self._past: list[tuple[bytes, int]] = []

    def _fill(
        self, fresh: list[Tensor], std: float, places: Sequence[tuple[int, int]] | None
    ) -> None:
        from privlearn.core.mechanisms import noise

        here = (self._stream.key, self._stream.position)
        noise.add_gaussian(fresh, std * self._coefficients[0], self._stream, places)
        for coefficient, (key, position) in zip(self._coefficients[1:], self._past, strict=False):
            again = NoiseStream(key, position, cipher=self._stream.cipher)
            noise.add_gaussian(fresh, std * coefficient, again, places)
        self._past = [here, *self._past][: len(self._coefficients) - 1]

    def _save(self) -> dict[str, Any]:
        past = [[key.hex(), position] for key, position in self._past]
        return {"coefficients": list(self._coefficients), "past": past}

    def _go_on(self, state: dict[str, Any]) -> None:
        self._coefficients = list(state["coefficients"])
        self._past = [(bytes.fromhex(key), position) for key, position in state["past"]]
