"""A clip is frozen and public, and says how gradients are clipped and what norm one example is left
with at most.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple, final

from privlearn._checks import between, count, one_of
from privlearn._public import OMITTED, is_own, is_registered, kinds, registered
from privlearn.core.schedules import Schedule, spec
from privlearn.errors import BadInput, UnsoundExtension

if TYPE_CHECKING:
    from torch import Tensor

_NORMS = (1e-12, 1e12)
#: A few dozen roundings in double precision, by which a clipped norm may exceed its bound.
_ROUNDINGS = 2.0**-46


class Clip:
    """A way to clip gradients. A final frozen dataclass with a `kind` and `@registered` is known
    everywhere.

    What it says is checked, for every class: before a run on made-up norms, and where sums are
    formed for each example. One whose clipped norm would be above `norm` adds nothing there, so
    that the bound holds whatever the class does.

    Attributes:
        clip_norm: the bound on one example's gradient, in the sense of the class.
    """

    clip_norm: float
    #: What it is called on the command line and in certificates.
    kind: ClassVar[str]

    @abstractmethod
    def norm(self, clip_norm: float, layers: int) -> float:
        """The largest norm of what one example adds.

        Args:
            clip_norm: the current one, in place of the attribute: a clip may move it during a run.
            layers: how many groups of parameters are clipped by themselves; 1, but for `PerLayer`.
        """

    @abstractmethod
    def weights(self, norms: Tensor, clip_norm: float) -> Tensor:
        """Factors for gradients of these norms, each by itself.

        Args:
            norms: shape (groups, examples); 0 is possible.
            clip_norm: the current one, in place of the attribute. It is a little smaller, to leave
                room for rounding.
        """

    def at(self, epoch: int) -> float | None:
        """The clipping norm of an epoch, counted from 0, where a public schedule sets one for each;
        None: none does.
        """
        return None

    @property
    def moves(self) -> bool:
        """Whether steps may have other clipping norms than the first one."""
        return False

    def text(self) -> str:
        """What a model card says of it."""
        return f"{self.kind}, norm {self.clip_norm:g}"


@dataclass(frozen=True)
class ScheduledClip(Clip):
    """An interface: a clip whose norm may follow a public schedule, epoch by epoch.

    Guarantee: each sum's sensitivity is that of the norm it was clipped to, and the noise follows
    that. So a schedule costs nothing: what is charged depends on the noise multiplier alone.

    Attributes:
        clip_norm: that of the first epoch.
        schedule: the norm of epoch t is clip_norm x schedule(t) / schedule(0); None: it stays. One
            of privlearn's, or of a registered class.
    """

    clip_norm: float
    schedule: Schedule | None = field(default=None, kw_only=True, metadata=OMITTED)

    def __post_init__(self) -> None:
        between("clip_norm", self.clip_norm, *_NORMS)
        if self.schedule is None:
            return
        if not isinstance(self.schedule, Schedule) or not is_registered(self.schedule):
            raise BadInput(
                f"the clip's schedule is {repr(self.schedule)[:60]}: expected one that is known "
                "beforehand, such as pv.schedules.Exponential(k=0.01) or "
                "pv.schedules.PerEpoch((1.0, 0.5))"
            )

    def at(self, epoch: int) -> float | None:
        """The clipping norm of an epoch.

        Raises:
            BadInput: it falls to nothing, or grows beyond what is computed with.
        """
        if self.schedule is None:
            return None
        norm = self.clip_norm * (self.schedule(epoch) / self.schedule(0))
        return between(f"the clipping norm of epoch {epoch}", norm, *_NORMS)

    @property
    def moves(self) -> bool:
        """Whether it has a schedule."""
        return self.schedule is not None

    def text(self) -> str:
        """What a model card says of it."""
        said = f"{self.kind}, norm {self.clip_norm:g}"
        return said if self.schedule is None else f"{said} at first, {spec(self.schedule)}"


@final
@registered
@dataclass(frozen=True)
class Flat(ScheduledClip):
    """Clip each example's whole gradient to L2 norm `clip_norm` (Abadi et al. 2016), which may
    follow a `schedule`.
    """

    kind: ClassVar[str] = "flat"

    def norm(self, clip_norm: float, layers: int) -> float:
        """The largest norm of what one example adds."""
        return clip_norm

    def weights(self, norms: Tensor, clip_norm: float) -> Tensor:
        """Factors for gradients of these norms."""
        return (clip_norm / norms).clamp(max=1.0)


@final
@registered
@dataclass(frozen=True)
class PerLayer(ScheduledClip):
    """Clip each example's gradient layer by layer, each to `clip_norm` (a layer's weight and bias
    are one group).

    With L layers the whole has norm up to clip_norm sqrt(L), and the noise follows that.

    Attributes:
        parameters: whether each parameter is a group of its own, a layer's bias, too; L is then
            their number.
    """

    parameters: bool = field(default=False, kw_only=True, metadata=OMITTED)
    kind: ClassVar[str] = "layer"

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
    """Scale each example's gradient to nearly the same length: clip_norm / (norm + stability) (Bu
    et al. 2023, AUTO-S).

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
    """Flat clipping that follows a quantile of the gradient norms (Andrew et al. 2021), starting at
    `clip_norm`.

    Every release also tells, with noise, how many gradients were clipped; the clip then moves by a
    factor exp(-rate x (share unclipped - quantile)). Count and gradient are one release: an example
    adds up to clip_norm of gradient and +-share x clip_norm of count, so its norm is at most
    clip_norm sqrt(1 + share^2), and the noise follows that. Released sums are scaled back to the
    first clip_norm, so that the learning rate keeps its meaning.

    Attributes:
        clip_norm: where it starts.
        quantile: the share of gradients that is to stay unclipped.
        rate: how fast it follows.
        share: how much of the release is the count's.
        least, most: the clip stays between them.
    """

    clip_norm: float
    quantile: float = 0.5
    rate: float = 0.2
    share: float = 0.1
    least: float = field(default=_NORMS[0], kw_only=True, metadata=OMITTED)
    most: float = field(default=_NORMS[1], kw_only=True, metadata=OMITTED)
    kind: ClassVar[str] = "quantile"

    def __post_init__(self) -> None:
        between("clip_norm", self.clip_norm, *_NORMS)
        between("quantile", self.quantile, 0.0, 1.0)
        between("rate", self.rate, 0.0, 10.0)
        between("share", self.share, 1e-3, 1.0)
        between("least", self.least, _NORMS[0], self.clip_norm)
        between("most", self.most, self.clip_norm, _NORMS[1])

    @property
    def moves(self) -> bool:
        """It follows the norms."""
        return True

    def norm(self, clip_norm: float, layers: int) -> float:
        """The largest norm of what one example adds, the count included."""
        return clip_norm * math.hypot(1.0, self.share)

    def weights(self, norms: Tensor, clip_norm: float) -> Tensor:
        """Factors for gradients of these norms."""
        return (clip_norm / norms).clamp(max=1.0)

    def count(self, norms: Tensor, clip_norm: float) -> Tensor:
        """What each example adds to the count: share x clip_norm if it stays unclipped, minus that
        otherwise.
        """
        step = self.share * clip_norm
        return (norms <= clip_norm).to(norms.dtype) * (2 * step) - step

    def moved(self, clip_norm: float, count: float, batch: float) -> float:
        """The next clip, from a released count and the expected batch size; at most a factor of two
        away.
        """
        unclipped = 0.5 + count / (2 * self.share * clip_norm * batch)
        step = math.exp(-self.rate * (min(max(unclipped, 0.0), 1.0) - self.quantile))
        return min(max(clip_norm * min(max(step, 0.5), 2.0), self.least), self.most)


def named(name: str, clip_norm: float) -> Clip:
    """The registered clip of a name, such as `flat`, at `clip_norm`."""
    known = kinds(Clip)
    clip: Clip = known[one_of("clip", name, known)](clip_norm)
    return clip


@final
class Weighed(NamedTuple):
    """What a clip makes of some gradients.

    Attributes:
        weights: factors, by group that is clipped by itself, and by example.
        counts: what each example adds to the count; None for a clip that has none.
        lengths: the norm of all that each example would add.
        within: which examples have no negative weight and stay within the bound; None: all.
    """

    weights: Tensor
    counts: Tensor | None
    lengths: Tensor
    within: Tensor | None


def weigh(
    clip: Clip, norms: Tensor, clip_norm: float, bound: float, room: float, *, asks: bool = True
) -> Weighed:
    """Have a clip weigh gradients, and see whether it keeps its bound.

    Args:
        clip: which may be anyone's.
        norms: of the gradients, by group that is clipped by itself, and by example.
        clip_norm: the current one.
        bound: `clip.norm`: the largest norm of what one example adds.
        room: the share of the bound that is left for rounding.
        asks: whether to look if all stay within the bound: on a GPU, to look is to wait.
    """
    import torch

    weights_of = clip.weights
    if not is_own(type(clip)):  # each example by itself, whatever the class does
        weights_of = torch.func.vmap(clip.weights, in_dims=(1, None), out_dims=1)
    weights = weights_of(norms, clip_norm / (1 + room))
    parts = weights * norms
    lengths = parts[0] if len(parts) == 1 else torch.linalg.vector_norm(parts, dim=0)
    most, counts = bound * (1 + _ROUNDINGS) / (1 + room), None
    if isinstance(clip, Quantile):
        counts = clip.count(norms[0], clip_norm)
        within = lengths <= (bound**2 - counts.square()).sqrt() * (most / bound)
        lengths = torch.hypot(lengths, counts)
    elif asks and len(parts) == 1 and torch.equal(lengths.clamp(0.0, most), lengths):
        return Weighed(weights, None, lengths, None)
    else:
        within = lengths <= most
    within &= (parts >= 0).all(0)
    return Weighed(weights, counts, lengths, None if asks and within.all() else within)


def require_clipped(clip: Clip, clip_norm: float, groups: int, layers: int) -> float:
    """The clip's bound, if it keeps that on made-up norms from 0 up, each clipped by itself and
    whenever it is asked.

    Args:
        clip: which may be anyone's.
        clip_norm: the current one.
        groups: how many norms of an example are clipped.
        layers: of the model.

    Raises:
        UnsoundExtension: it does not. No row was looked at.
    """
    import torch

    name, bound = type(clip).__name__, float(clip.norm(clip_norm, layers))
    if not 0 < bound < math.inf:
        raise UnsoundExtension(
            f"the clip {name} has the norm {bound:g}: expected a finite number above 0"
        )
    few = torch.tensor(
        [0.0, *(2.0**power for power in range(-40, 41)), 0.999, 1.001, 3.0],
        dtype=torch.float64,
        device="cpu",
    )
    same = (few * clip_norm).expand(groups, -1)
    norms = torch.cat([same, torch.stack([row.roll(shift) for shift, row in enumerate(same)])], 1)
    try:
        weights, _, _, within = weigh(clip, norms, clip_norm, bound, 0.0)
        turned, one = (
            weigh(clip, part, clip_norm, bound, 0.0).weights
            for part in (norms.flip(1), norms[:, -1:])
        )
        plain = clip.weights(norms, clip_norm)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise UnsoundExtension(
            f"the clip {name} fails on made-up norms of shape {tuple(norms.shape)}: "
            f"{type(error).__name__}. Expected weights(norms, clip_norm) of the same shape, each "
            "number computed from its own norm"
        ) from error
    if within is not None:
        worst = int((~within).nonzero()[0, 0])
        raise UnsoundExtension(
            f"the clip {name} gives a gradient of norm {float(norms[0, worst]):g} the weight "
            f"{float(weights[0, worst]):g}, and says that an example adds at most {bound:g}: "
            "expected weights of at least 0 with weights x norms at most norm()",
            bound=bound,
        )
    again = ((turned.flip(1), weights), (one, weights[:, -1:]), (plain, weights))
    if not all(torch.allclose(other, first, rtol=1e-12, atol=0.0) for other, first in again):
        raise UnsoundExtension(
            f"the clip {name} gives the same norm another weight in other company, or the next "
            "time: expected weights that follow from each example's own norm alone, so that one "
            "example can't change the others'"
        )
    return bound
