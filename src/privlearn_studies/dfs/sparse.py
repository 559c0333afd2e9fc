"""The sparse Gaussian toy model: two classes that differ in a few of many features."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from privlearn.statistics.classifiers import fisher_weights
from privlearn.statistics.plan import FeaturesPlan
from privlearn.transforms.select import Statistics


@final
@dataclass(frozen=True)
class Sparse:
    """Class 0 has mean `gap` in the first `signals` features and 0 in the others, class 1 has mean 0; all deviations are 1.

    Attributes:
        features: how many there are.
        rows: of each class.
        signals: features in which the classes differ.
        gap: by how much.
    """

    features: int = 1000
    rows: int = 500
    signals: int = 10
    gap: float = 1.0

    def means(self) -> NDArray[np.float64]:
        """Of class 0."""
        return np.where(np.arange(self.features) < self.signals, self.gap, 0.0)

    def draw(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Rows, shape (2 rows, features), and their classes."""
        y = np.repeat([0, 1], self.rows)
        x = rng.standard_normal((2 * self.rows, self.features)) + (y == 0)[:, None] * self.means()
        return torch.from_numpy(x), torch.from_numpy(y)

    def bayes(self, kept: int, variance: float) -> float:
        """The least error with the first `kept` features under noise of `variance`: 1 - Phi(Psi), maths by hand.

        Psi = sqrt(sum_j gap_j^2 / (1 + variance)) / 2.
        """
        return float(stats.norm.sf(math.sqrt(self._apart(kept, variance)) / 2))

    def learned(self, kept: int, variance: float) -> float:
        """The same where means are of n = 2 rows samples: Psi = G / (2 sqrt(G + 4 kept / n)), G the sum above, for large n.

        Fan and Fan 2008, Theorem 1, for classes of one size: what each feature adds to the error of the means gathers.
        """
        apart = self._apart(kept, variance)
        gathered = 4 * kept / (2 * self.rows)
        return float(stats.norm.sf(apart / 2 / math.sqrt(apart + gathered)))

    def error(self, weight: Tensor, bias: Tensor, indices: NDArray[np.int64], variance: float) -> float:
        """The exact error, on rows under noise of `variance`, of a linear classifier of the features `indices`."""
        w = (weight[0] - weight[1]).double().numpy()
        b = float(bias[0] - bias[1])
        spread = math.sqrt(1 + variance) * float(np.linalg.norm(w)) + 1e-300
        first = float(w @ self.means()[indices]) + b
        return float(stats.norm.sf(first / spread) + stats.norm.sf(-b / spread)) / 2

    def _apart(self, kept: int, variance: float) -> float:
        return min(kept, self.signals) * self.gap**2 / (1 + variance)


def fisher_of(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and biases of Fisher's classifier of rows of two classes, as they are."""
    member = torch.stack([y == 0, y == 1], 1).double()
    statistics = Statistics(member.sum(0), member.T @ x.double(), x.double().square().sum(0), 0.0, 0.0)
    return fisher_weights(
        statistics, FeaturesPlan(2, x.shape[1], x.shape[1], math.sqrt(x.shape[1]), least_variance=1e-9)
    )
