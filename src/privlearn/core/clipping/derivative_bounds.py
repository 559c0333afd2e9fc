"""These frozen, public numbers say how the derivative sums of DP-MAC are bounded; `derivatives` has
the sums themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

from privlearn._checks import between, checked, count, positive
from privlearn._public import registered
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.errors import BadInput

#: One number for all layers, or one for each, the output layer last.
PerLayerNumber = float | tuple[float, ...]
_NORMS = (1e-12, 1e12)
_MOST_BINS = 10_000


@final
@registered
@dataclass(frozen=True)
class Histogram:
    """A release of how long the examples' derivatives are, layer by layer, from which thresholds
    are learned.

    One Gaussian release on all the data (Harder et al. 2019, Algorithm 2): each example counts in
    one bin of each layer's histogram. A layer's threshold becomes the upper end of the bin where
    released counts reach `quantile`.

    Attributes:
        noise_multiplier: noise standard deviation over the sensitivity of all histograms together.
        after: epochs of training, with the thresholds of the plan, that come before it.
        quantile: the share of examples whose derivatives are to stay as they are.
        low: the upper end of the lowest bin.
        high: the lower end of the highest bin. The bins between are of equal ratio.
        bins: how many there are, the two outermost included.
    """

    noise_multiplier: float
    after: int = 1
    quantile: float = 0.5
    low: float = 1e-6
    high: float = 1e3
    bins: int = 74
    kind: ClassVar[str] = "histogram"

    def __post_init__(self) -> None:
        Gaussian(self.noise_multiplier)
        count("after", self.after, least=0)
        between("quantile", self.quantile, 0.0, 1.0)
        for name in ("low", "high"):
            between(name, getattr(self, name), *_NORMS)
        count("bins", self.bins, least=3, most=_MOST_BINS)
        if self.low >= self.high:
            raise BadInput(
                f"the histogram's low is {self.low:g} and high {self.high:g}: expected low below "
                "high"
            )

    def text(self) -> str:
        """What a card says of it."""
        return (
            f"histogram of derivatives after {self.after} epochs (noise multiplier "
            f"{self.noise_multiplier:g})"
        )

    def event(self) -> Gaussian:
        """What it costs."""
        return Gaussian(self.noise_multiplier)

    def edges(self) -> list[float]:
        """The ends between bins, bins - 1 of them, rising from `low` to `high`."""
        ratio = math.log(self.high / self.low) / (self.bins - 2)
        return [self.low * math.exp(ratio * place) for place in range(self.bins - 1)]

    def threshold(self, counts: list[float], default: float) -> float:
        """The threshold that released counts speak for; `default` if there is nothing but noise in
        them.

        Args:
            counts: of the bins, from the lowest norms to the highest.
            default: the threshold so far.
        """
        total = math.fsum(counts)
        reached = 0.0
        for number, edge in zip(counts, self.edges(), strict=False):
            reached += number
            if total > 0 and reached >= self.quantile * total:
                return edge
        return self.high if total > 0 else default


@checked
@final
@registered
@dataclass(frozen=True)
class Derivatives:
    """Clip each example's derivative matrices, layer by layer (Harder et al. 2019, sec. 2.2).

    For layer k and example n, dT_nk is the (outputs x inputs) matrix of first derivatives of the
    layer's objective, the bias included, and d2T_nk the stack of its second ones; hidden layers'
    objectives are weighted by mu. Their Frobenius norms are clipped before they are summed. All
    layers and both kinds are one joint release.

    Attributes:
        first: thresholds of |dT_nk|.
        second: thresholds of |d2T_nk|; None for the expansion of first order, which needs no second
            derivatives.
        shares: how the unit of sensitivity is split between the layers, as positive numbers of
            which only the ratios count: a layer with twice the share gets half the noise. Empty:
            evenly.
        learned: a histogram that replaces the thresholds in the course of the run.
    """

    first: PerLayerNumber = 0.3
    second: PerLayerNumber | None = None
    shares: tuple[float, ...] = ()
    learned: Histogram | None = None
    kind: ClassVar[str] = "derivatives"

    def __post_init__(self) -> None:
        for name in ("first", "second", "shares"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        for name, value in (("first", self.first), ("second", self.second)):
            for number in () if value is None else value if isinstance(value, tuple) else (value,):
                between(f"the threshold {name}", number, *_NORMS)
        if self.first == () or self.second == ():
            raise BadInput(
                "there are no thresholds: give one number, or one for each layer, the output layer "
                "last"
            )
        _require_shares(self.shares)

    @property
    def order(self) -> int:
        """Of the expansion: 1 or 2."""
        return 1 if self.second is None else 2

    @property
    def clip_norm(self) -> float:
        """The largest threshold of first derivatives."""
        return max(self.first) if isinstance(self.first, tuple) else self.first

    def thresholds(self, layers: int) -> list[list[float]]:
        """For each kind of derivative, from the first, the thresholds of all layers.

        Raises:
            BadInput: thresholds are given for another number of layers.
        """
        kinds = [self.first] if self.second is None else [self.first, self.second]
        return [_each("thresholds", kind, layers) for kind in kinds]


@checked
@final
@registered
@dataclass(frozen=True)
class Analytic:
    """Bound derivatives by the weights and bounds on inputs, in place of clipping (Harder et al.
    2019, appendices).

    With noise `Derivatives` trains far better: these bounds are for the worst example, and large
    where weights are.

    The bounds are `analytic`'s, which correct the printed ones. They hold because inputs, auxiliary
    coordinates and targets really are projected onto balls of these radii, for each example by
    itself.

    Attributes:
        z_norm: the radius for every layer's auxiliary coordinates.
        x_norm: the radius for inputs; None: the square root of their number, which inputs in [-1,
            1] never exceed.
        y_norm: the radius for targets of the squared loss.
        order: of the expansion: 1 or 2.
        shares: as for `Derivatives`.
    """

    z_norm: float | None = None
    x_norm: float | None = None
    y_norm: float | None = None
    order: int = 1
    shares: tuple[float, ...] = ()
    kind: ClassVar[str] = "analytic"

    def __post_init__(self) -> None:
        if self.z_norm is None:
            raise BadInput(
                "analytic sensitivities need a bound on the auxiliary coordinates: give "
                "pv.mac.Analytic(z_norm=...), the radius "
                "that they are projected to, or clip with pv.mac.Derivatives"
            )
        for name in ("z_norm", "x_norm", "y_norm"):
            if getattr(self, name) is not None:
                between(name, getattr(self, name), 1e-6, 1e6)
        if self.order not in (1, 2):
            raise BadInput(f"order is {self.order!r}: expected 1 or 2, of the Taylor expansion")
        _require_shares(self.shares)

    @property
    def clip_norm(self) -> float:
        """The radius of the auxiliary coordinates."""
        assert self.z_norm is not None
        return self.z_norm


#: How DP-MAC bounds what one example adds.
Layerwise = Derivatives | Analytic


def shares_of_parts(bound: Layerwise, layers: int) -> list[float]:
    """The share of the unit of sensitivity that each released part gets: squares add up to 1.

    Parts are in the order layer 1 first derivatives, layer 1 second derivatives, layer 2, ... A
    layer's own share is split evenly between its kinds. Each of M K equal parts gets 1 / sqrt(M K)
    (Harder et al. 2019, sec. 2.3).

    Raises:
        BadInput: shares are given for another number of layers.
    """
    shares = _each("shares", bound.shares or 1.0, layers)
    length = math.sqrt(math.fsum(share**2 for share in shares) * bound.order)
    return [share / length for share in shares for _ in range(bound.order)]


def _each(what: str, value: PerLayerNumber, layers: int) -> list[float]:
    if not isinstance(value, tuple):
        return [value] * layers
    if len(value) != layers:
        raise BadInput(
            f"there are {len(value)} {what}, and the network has {layers} layers, the output layer "
            "included: give one for each"
        )
    return list(value)


def _require_shares(shares: tuple[float, ...]) -> None:
    for share in shares:
        positive("a layer's share", share)
    if shares and max(shares) > 1e6 * min(shares):
        raise BadInput(
            f"shares are {shares}: expected numbers within a factor of a million of each other"
        )
