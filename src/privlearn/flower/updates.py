"""A client's update as integers: clipped as one vector, and rounded to a public grid within the
clip's bound.

Numbers are multiples of a power of two, the step of the grid, so that sums of them are exact
wherever they are added up, and modulo a number, too. Rounding moves a vector of d numbers by at
most sqrt(d) / 2 steps. The update is clipped to the norm less that, so that its norm is within the
bound after rounding, which is compared in whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor, nn

#: What clients are asked for.
UPDATE = "update"
#: Steps of the grid in a clipping norm, over the root of how many numbers there are, at least.
_FINE = 64
#: A share of the clipping norm that is left for the roundings of double precision.
_ROOM = 2.0**-40
_MODEL, _TERMS = "model", "terms"


@final
@dataclass(frozen=True)
class UpdateGrid:
    """The public grid of updates of one round.

    Attributes:
        clip_norm: the L2 norm that an update is clipped to.
        size: how many numbers an update has.
        share: of the clipping norm, by which a client says whether its update was clipped; 0: it
            does not say so.
    """

    clip_norm: float
    size: int
    share: float = 0.0

    @property
    def step(self) -> float:
        """The distance of two neighbours on the grid: a power of two."""
        parts = [1 / math.sqrt(self.size), *([self.share] if self.share else [])]
        return float(2.0 ** math.floor(math.log2(self.clip_norm / _FINE * min(parts))))

    @property
    def numbers(self) -> int:
        """How many integers a client sends: one more where it says whether it was clipped."""
        return self.size + bool(self.share)

    @property
    def flag(self) -> int:
        """The integer by which a client says that its update was not clipped; its opposite says
        that it was.
        """
        return math.floor(Fraction(self.clip_norm * self.share) / Fraction(self.step))

    @property
    def most(self) -> int:
        """The largest absolute value of an integer."""
        return max(math.floor(Fraction(self.clip_norm) / Fraction(self.step)), self.flag)

    @property
    def squares(self) -> int:
        """The largest sum of squares of a client's integers."""
        radius = Fraction(self.clip_norm) / Fraction(self.step)
        return math.floor(radius**2) + self.flag**2

    def fits(self, integers: NDArray[np.int64]) -> bool:
        """Whether one client can have these integers, by their norm."""
        return sum_squares(integers) <= self.squares

    def encode(self, update: NDArray[np.float64]) -> NDArray[np.int64] | None:
        """The integers of a client; None for an update that is not finite, or of another size."""
        with np.errstate(all="ignore"):
            norm = float(np.linalg.norm(update))
        if update.shape != (self.size,) or not math.isfinite(norm):
            return None
        within = self.clip_norm * (1 - _ROOM) - self.step * math.sqrt(self.size) / 2
        factor = min(1.0, within / norm) if norm else 1.0
        integers = np.rint(update * (factor / self.step)).astype(np.int64)
        if self.share:
            flag = self.flag if norm <= self.clip_norm else -self.flag
            integers = np.append(integers, np.int64(flag))
        return integers if sum_squares(integers) <= self.squares else None


def pack_model(network: nn.Module, trained: Sequence[str], grid: UpdateGrid) -> RecordDict:
    """A request: the global model, which of its parameters are trained, and the clip."""
    state = {name: value.detach().cpu() for name, value in network.state_dict().items()}
    terms: dict[str, float | list[str]] = {
        "clip_norm": grid.clip_norm,
        "share": grid.share,
        "trained": list(trained),
    }
    return RecordDict({_MODEL: ArrayRecord(state), _TERMS: ConfigRecord(terms)})  # type: ignore[arg-type]


def load_model(content: RecordDict, network: nn.Module) -> tuple[list[str], float, float]:
    """Load the global model of a request into a network.

    Returns:
        The names of the parameters that are trained, the clipping norm, and the share by which a
        client says whether its update was clipped.

    Raises:
        Exception: it is another model's.
    """
    network.load_state_dict(content.array_records[_MODEL].to_torch_state_dict())
    terms = content.config_records[_TERMS]
    return list(terms["trained"]), float(terms["clip_norm"]), float(terms["share"])  # type: ignore[arg-type]


def flatten(network: nn.Module, names: Sequence[str]) -> NDArray[np.float64]:
    """Parameters one after the other, in double precision."""
    parameters = dict(network.named_parameters())
    parts: list[Tensor] = [parameters[name].detach().cpu().double().reshape(-1) for name in names]
    return np.array(torch.cat(parts).numpy())


def sum_squares(integers: NDArray[np.int64]) -> int:
    """The sum of the squares of some integers, exactly, however large they are."""
    largest = max(int(integers.max()), -int(integers.min())) if len(integers) else 0
    if largest >= 1 << 31:
        return sum(int(number) ** 2 for number in integers)
    at_once = (1 << 62) // max(largest, 1) ** 2  # whose squares add up to no more than 2^62
    starts = range(0, len(integers), at_once)
    return sum(int(part @ part) for part in (integers[at : at + at_once] for at in starts))
