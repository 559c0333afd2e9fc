"""`MacSteps`: one batch after another, from its examples to steps of the weights, with the release in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor

from privlearn.accounting.adjacency import Adjacency
from privlearn.accounting.ledger import Ledger
from privlearn.clipping.bounded import Bounded
from privlearn.clipping.layerwise import Histogram
from privlearn.mechanisms.release import release
from privlearn.methods.mac.batch import BatchDerivatives
from privlearn.methods.mac.weights import WeightSteps
from privlearn.rng import Streams
from privlearn.sampling import FullBatch, Sample


@final
@dataclass(frozen=True)
class MacSteps:
    """What is done with each batch of a run.

    Attributes:
        derivatives: computes the bounded sums.
        weights: takes the steps.
        shares: of the unit of sensitivity, for each released part.
        ledger: what is charged.
        streams: the random streams.
        private: whether there is noise; without it nothing is charged here, and the run must have been marked as such.
    """

    derivatives: BatchDerivatives
    weights: WeightSteps
    shares: Sequence[float]
    ledger: Ledger
    streams: Streams
    private: bool = True

    def take(self, sample: Sample, x: Tensor, y: Tensor, noise_multiplier: float, mu: float) -> None:
        """Release the derivatives of one batch, jointly, and step on the objectives that they make."""
        parts = self.derivatives(sample, x, y, mu)
        released = self._released(parts, noise_multiplier, self.shares)
        scale = noise_multiplier if self.private else 0.0
        noise = [scale * part.sensitivity / share for part, share in zip(parts, self.shares, strict=True)]
        self.weights.take(self.derivatives.released(released), noise)

    def learn(self, learned: Histogram, adjacency: Adjacency, x: Tensor, y: Tensor, mu: float) -> None:
        """Release the histograms of derivative norms on all the data, and take the thresholds from them (Algorithm 2)."""
        if self.derivatives.learned:  # before an interruption
            self.ledger.charge(learned.event(), adjacency)
            return
        (everybody,) = FullBatch().draw(len(x))
        parts = self.derivatives.histograms(everybody, x, y, mu)
        self.derivatives.learn(self._released(parts, learned.noise_multiplier))

    def _released(
        self, parts: Sequence[Bounded], noise_multiplier: float, shares: Sequence[float] | None = None
    ) -> list[Tensor]:
        """The parts' values with noise; as they are in a run that is not private."""
        if not self.private:
            return [value for part in parts for value in part.values]
        noisy = release(
            *parts, noise_multiplier=noise_multiplier, ledger=self.ledger, stream=self.streams.noise, shares=shares
        )
        return [value for values in noisy for value in values]
