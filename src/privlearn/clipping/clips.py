"""The ways to clip: frozen, public numbers, each with the most that one example is left with."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from privlearn._checks import between, count, one_of
from privlearn._public import kinds, registered

if TYPE_CHECKING:
    from torch import Tensor

_NORMS = (1e-12, 1e12)


class Clip:
    """A way to clip gradients. A final frozen dataclass with a `kind` and `@registered` is known everywhere.

    Attributes:
        clip_norm: the bound on one example's gradient, as the way defines it.
    """

    clip_norm: float
    #: What it is called on the command line and in certificates.
    kind: ClassVar[str]

    @abstractmethod
    def norm(self, clip_norm: float, layers: int) -> float:
        """The largest norm of what one example adds."""

    @abstractmethod
    def weights(self, norms: Tensor, clip_norm: float) -> Tensor:
        """Factors for gradients of these norms, each by itself."""


@final
@registered
@dataclass(frozen=True)
class Flat(Clip):
    """Clip each example's whole gradient to L2 norm `clip_norm` (Abadi et al. 2016)."""

    clip_norm: float
    kind: ClassVar[str] = "flat"

    def __post_init__(self) -> None:
        between("clip_norm", self.clip_norm, *_NORMS)

    def norm(self, clip_norm: float, layers: int) -> float:
        """The largest norm of what one example adds."""
        return clip_norm

    def weights(self, norms: Tensor, clip_norm: float) -> Tensor:
        """Factors for gradients of these norms."""
        return (clip_norm / norms).clamp(max=1.0)


@final
@registered
@dataclass(frozen=True)
class PerLayer(Clip):
    """Clip each example's gradient layer by layer, each to `clip_norm` (a layer's weight and bias are one group).

    With L layers the whole has norm up to clip_norm sqrt(L), and the noise follows that.
    """

    clip_norm: float
    kind: ClassVar[str] = "layer"

    def __post_init__(self) -> None:
        between("clip_norm", self.clip_norm, *_NORMS)

    def norm(self, clip_norm: float, layers: int) -> float:
        """The largest norm of what one example adds."""
        return clip_norm * math.sqrt(count("the number of layers", layers))

    def weights(self, norms: Tensor, clip_norm: float) -> Tensor:
        """Factors for gradients of these norms."""
        return (clip_norm / norms).clamp(max=1.0)


@final
@registered
@dataclass(frozen=True)
class Automatic(Clip):
    """Scale each example's gradient to nearly the same length: clip_norm / (norm + stability) (Bu et al. 2023, AUTO-S).

    There is nothing to tune: `clip_norm` and the learning rate only matter as their product.
    """

    clip_norm: float
    stability: float = 0.01
    kind: ClassVar[str] = "automatic"

    def __post_init__(self) -> None:
        between("clip_norm", self.clip_norm, *_NORMS)
        between("stability", self.stability, *_NORMS)

    def norm(self, clip_norm: float, layers: int) -> float:
        """The largest norm of what one example adds."""
        return clip_norm

    def weights(self, norms: Tensor, clip_norm: float) -> Tensor:
        """Factors for gradients of these norms."""
        return clip_norm / (norms + self.stability)


@final
@registered
@dataclass(frozen=True)
class Quantile(Clip):
    """Flat clipping that follows a quantile of the gradient norms (Andrew et al. 2021), starting at `clip_norm`.

    Every release also tells, with noise, how many gradients were clipped; the clip then moves by a factor
    exp(-rate x (share unclipped - quantile)). Count and gradient are one release: an example adds up to clip_norm of
    gradient and +-share x clip_norm of count, so its norm is at most clip_norm sqrt(1 + share^2), and the noise follows
    that. Released sums are scaled back to the first clip_norm, so that the learning rate keeps its meaning.

    Attributes:
        clip_norm: where it starts.
        quantile: the share of gradients that is to stay unclipped.
        rate: how fast it follows.
        share: how much of the release is the count's.
    """

    clip_norm: float
    quantile: float = 0.5
    rate: float = 0.2
    share: float = 0.1
    kind: ClassVar[str] = "quantile"

    def __post_init__(self) -> None:
        between("clip_norm", self.clip_norm, *_NORMS)
        between("quantile", self.quantile, 0.0, 1.0)
        between("rate", self.rate, 0.0, 10.0)
        between("share", self.share, 1e-3, 1.0)

    def norm(self, clip_norm: float, layers: int) -> float:
        """The largest norm of what one example adds, the count included."""
        return clip_norm * math.hypot(1.0, self.share)

    def weights(self, norms: Tensor, clip_norm: float) -> Tensor:
        """Factors for gradients of these norms."""
        return (clip_norm / norms).clamp(max=1.0)

    def count(self, norms: Tensor, clip_norm: float) -> Tensor:
        """What each example adds to the count: share x clip_norm if it stays unclipped, minus that otherwise."""
        step = self.share * clip_norm
        return (norms <= clip_norm).to(norms.dtype) * (2 * step) - step

    def moved(self, clip_norm: float, count: float, batch: float) -> float:
        """The next clip, from a released count and the expected batch size; at most a factor of two away."""
        unclipped = 0.5 + count / (2 * self.share * clip_norm * batch)
        step = math.exp(-self.rate * (min(max(unclipped, 0.0), 1.0) - self.quantile))
        return min(max(clip_norm * min(max(step, 0.5), 2.0), _NORMS[0]), _NORMS[1])


def named(name: str, clip_norm: float) -> Clip:
    """`flat`, `layer`, `automatic` or `quantile`, at `clip_norm`."""
    known = kinds(Clip)
    clip: Clip = known[one_of("clip", name, known)](clip_norm)
    return clip
