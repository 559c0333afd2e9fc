"""From released sums to scores: each block's shape, as the posterior mean of Gaussian filters.
Post-processing.

A released pair of sums (G, H) in a cell says that its best score is about its present one plus G /
H, up to noise of variance sigma^2 / H^2. Beforehand shapes are Gaussian: neighbouring bins a random
walk, categories independent, with a scale that is not known. So there is a Kalman filter for each
of several scales, and their means are averaged by how well each scale has foretold what was
released. Where noise is loud scores stay near 0, where it is small they follow the data: there is
no learning rate to choose. Between passes the other blocks change, so that shapes drift a little.
"""

from __future__ import annotations

from typing import final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Scales of the prior, over the plan's.
_SCALES = np.array([0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0])
#: Part of a random walk's variance that is independent from bin to bin; variance of its level;
#: drift between passes.
_ROUGH, _LEVEL, _DRIFT = 0.05, 0.04, 0.1
#: The floor under curvatures, over the noise in them, and the longest step of a score.
_FLOOR, _LONGEST = 0.5, 4.0


@final
class ShapeFilter:
    """What is known of one block's scores.

    Args:
        cells: how many there are.
        outputs: scores of a row.
        variance: of a score, beforehand.
        ordered: whether cells 1, 2, ... are neighbouring intervals.
    """

    def __init__(self, cells: int, outputs: int, variance: float, *, ordered: bool) -> None:
        self._scales = variance * _SCALES
        self._shape = _random_walk(cells) if ordered else None
        self._evidence = -np.abs(np.log(_SCALES))
        self._means = np.zeros((len(_SCALES), outputs, cells))
        if self._shape is None:
            self._covariances = np.tile(self._scales[:, None, None], (1, outputs, cells))
        else:
            prior = self._scales[:, None, None] * self._shape + _LEVEL
            self._covariances = np.tile(prior[:, None], (1, outputs, 1, 1))
        self._begun = False
        self.scores = np.zeros((outputs, cells))

    def update(
        self, gradients: Array, curvatures: Array, noise: tuple[float, float], row_variance: float
    ) -> Array:
        """Take in what was released at the present scores.

        Args:
            gradients: released sums, shape (outputs, cells).
            curvatures: likewise.
            noise: standard deviations of the noise in both.
            row_variance: of one row's gradient over its curvature.

        Returns:
            By how much the scores change, shape (outputs, cells).
        """
        weight = np.maximum(curvatures, max(_FLOOR * noise[1], 1e-9))
        observed = self.scores + np.clip(gradients / weight, -_LONGEST, _LONGEST)
        variance = (noise[0] / weight) ** 2 + row_variance / weight
        if self._begun:
            self._drift()
        self._begun = True
        if self._shape is None:
            self._take_apart(observed, variance)
        else:
            self._take_together(observed, variance)
        part = np.exp(self._evidence - self._evidence.max())
        before, self.scores = self.scores, np.einsum("s,soc->oc", part / part.sum(), self._means)
        return self.scores - before

    def _drift(self) -> None:
        if self._shape is None:
            self._covariances += _DRIFT * self._scales[:, None, None]
        else:
            self._covariances += _DRIFT * self._scales[:, None, None, None] * self._shape

    def _take_apart(self, observed: Array, variance: Array) -> None:
        """Each cell by itself."""
        total, surprise = self._covariances + variance, observed - self._means
        self._evidence -= 0.5 * (np.log(total) + surprise**2 / total).sum((1, 2))
        gain = self._covariances / total
        self._means += gain * surprise
        self._covariances *= 1 - gain

    def _take_together(self, observed: Array, variance: Array) -> None:
        """All cells of an output together."""
        covariances, surprise = self._covariances, observed - self._means
        root = np.linalg.cholesky(covariances + variance[..., None] * np.eye(observed.shape[-1]))
        solved = np.linalg.solve(root, np.concatenate([covariances, surprise[..., None]], -1))
        whitened, rest = solved[..., :-1], solved[..., -1]
        self._evidence -= np.log(np.diagonal(root, 0, -2, -1)).sum((1, 2)) + 0.5 * (rest**2).sum(
            (1, 2)
        )
        self._means += np.einsum("sodc,sod->soc", whitened, rest)
        self._covariances = covariances - np.einsum("sodc,sode->soce", whitened, whitened)


def _random_walk(cells: int) -> Array:
    """Covariances of a centred random walk over cells 1, 2, ..., of mean variance 1; cell 0 is
    apart.
    """
    bins = cells - 1
    places = (np.arange(bins) + 0.5) / bins
    walk = np.minimum(places[:, None], places)
    walk = walk - walk.mean(0) - walk.mean(1)[:, None] + walk.mean()
    walk = (1 - _ROUGH) * walk / max(float(np.diag(walk).mean()), 1e-12) + _ROUGH * np.eye(bins)
    together = np.eye(cells)
    together[1:, 1:] = walk
    return together
