"""What a run releases and what else can be seen of it, recorded, and replayed on neighbouring data.

The guarantee of a training composes adaptively: given what was released so far, the next release is
a mechanism whose sensitivity is claimed. So a run on neighbouring data gets the releases of the
first run in place of its own: its state is the same at each step, and what a release moved by is
due to the row alone. Whatever else differs was not released: it leaks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Diverged(RuntimeError):
    """A run on neighbouring data can't be replayed: it releases something else."""


@dataclass(repr=False)
class NoisyTensor:
    """A tensor that noise was added to.

    Attributes:
        before: the numbers before the noise, float64.
        after: with it.
        sensitivity: how far neighbouring data may move all tensors of the same part, in L2; None
            where none is claimed.
        noise_std: the claimed standard deviation of its noise; None: not claimed.
        part: of the release, which of its bounded values this belongs to.
    """

    before: Tensor
    after: Tensor
    sensitivity: float | None
    noise_std: float | None
    part: int = 0

    def noise(self, over: float | None) -> Tensor:
        """What was added, over a claimed number, flat."""
        return (self.after.double() - self.before).flatten() / (over or 1.0)


@dataclass(repr=False)
class Release:
    """Tensors that are released jointly.

    Each part of a release has a sensitivity of its own. Where their noise differs for it, they
    share one unit of sensitivity: squares of the parts' changes, each over its sensitivity and
    times its share, add up to at most 1.
    """

    source: str
    pieces: list[NoisyTensor] = field(default_factory=list)

    @property
    def is_claimed(self) -> bool:
        """Whether a sensitivity is claimed for all of it."""
        return all(piece.sensitivity is not None for piece in self.pieces)

    @property
    def sensitivity(self) -> float:
        """Of all parts together."""
        parts = {piece.part: piece.sensitivity or 0.0 for piece in self.pieces}
        return math.hypot(*parts.values())

    def compare(self, other: Release) -> tuple[float, float, float]:
        """By how much the values differ in those of a neighbour: in L2, the largest ratio to a
        sensitivity (of a part, or of all), and how much of that may be rounding.
        """
        moved, rounding = 0.0, 0.0
        ratios: dict[int, float] = {}
        shares: dict[int, float] = {}
        for one, two in zip(self.pieces, other.pieces, strict=True):
            change = float((one.before - two.before).norm())
            change = math.inf if math.isnan(change) else change
            moved = math.hypot(moved, change)
            if one.sensitivity:
                ratio = change / one.sensitivity
                length = float(one.before.norm()) / one.sensitivity
                rounding = math.hypot(rounding, 32 * torch.finfo(one.after.dtype).eps * length)
                shares[one.part] = one.sensitivity / one.noise_std if one.noise_std else 1.0
            else:
                ratio = math.inf if change else 0.0
                shares[one.part] = 1.0
            ratios[one.part] = math.hypot(ratios.get(one.part, 0.0), ratio)
        together = math.hypot(*(ratios[part] * shares[part] for part in ratios))
        together /= math.hypot(*shares.values()) or 1.0
        return moved, max(together, *ratios.values()), rounding + 1e-5


class RunRecording:
    """A run's releases, in order, and what else can be seen of it.

    Args:
        replay: the recording of the first run, whose releases this one gets; None for the first.
    """

    def __init__(self, replay: RunRecording | None = None) -> None:
        self.replay = replay
        self.releases: list[Release] = []
        self.outputs: list[tuple[str, Any]] = []
        self.uncompared: list[str] = []
        self.unclaimed: list[str] = []
        #: The neighbours that privlearn's releases are claimed for.
        self.adjacencies: set[str] = set()
        self.diverged: str | None = None
        self._open: Release | None = None
        self._suspended = 0

    @property
    def is_suspended(self) -> bool:
        """Whether noise that is drawn is accounted for elsewhere."""
        return self._suspended > 0

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """A block whose noise belongs to a release that is recorded otherwise, or to none."""
        self._suspended += 1
        try:
            yield
        finally:
            self._suspended -= 1

    def begin(self, source: str) -> None:
        """Begin a release; the one that is open ends."""
        self.close()
        self._open = Release(source)
        self.releases.append(self._open)

    def close(self) -> None:
        """End the release that is open, if one is."""
        self._open = None

    def is_open(self, source: str) -> bool:
        """Whether a release of this source is open."""
        return self._open is not None and self._open.source == source

    def add(
        self,
        before: Tensor,
        after: Tensor,
        *,
        sensitivity: float | None,
        noise_std: float | None,
        part: int = 0,
    ) -> None:
        """Add a tensor to the release that is open. In a replay, `after` gets the recorded numbers,
        in place.

        Raises:
            Diverged: the first run released nothing here, or something of another shape.
        """
        assert self._open is not None
        noisy = after.detach().clone()
        self._open.pieces.append(
            NoisyTensor(before.detach().double().clone(), noisy, sensitivity, noise_std, part)
        )
        if self.replay is None:
            return
        number, place = len(self.releases) - 1, len(self._open.pieces) - 1
        recorded = self.replay.releases[number : number + 1]
        pieces = recorded[0].pieces[place : place + 1] if recorded else []
        if not pieces:
            raise Diverged(
                f"release {number + 1} has a value on this data that it does not have on the "
                f"other: the {len(self._open.pieces)}th, by {self._open.source}"
            )
        if pieces[0].after.shape != after.shape:
            raise Diverged(
                f"release {number + 1} has shape {tuple(after.shape)} on this data and "
                f"{tuple(pieces[0].after.shape)} on the other"
            )
        with torch.no_grad():
            after.copy_(pieces[0].after)

    def note_state(self, name: str, state: Tensor) -> None:
        """Record a tensor that the run goes on with. In a replay it gets the recorded numbers, in
        place: what comes later is not due to a difference that is reported here.
        """
        place = len(self.outputs)
        self.note(name, state)
        if self.replay is None or place >= len(self.replay.outputs):
            return
        recorded_name, recorded = self.replay.outputs[place]
        if recorded_name == name and getattr(recorded, "shape", None) == state.shape:
            with torch.no_grad():
                state.copy_(recorded)

    def note(self, name: str, value: Any) -> None:
        """Record what can be seen of the run besides its releases."""
        for inner, plain in plain_values(name, value, self.uncompared):
            self.outputs.append((inner, plain))


def plain_values(name: str, value: Any, uncompared: list[str]) -> Iterator[tuple[str, Any]]:
    """The tensors, arrays, numbers and texts of a value, each with a name."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        yield name, value
    elif isinstance(value, Tensor):
        yield name, value.detach().clone()
    elif isinstance(value, np.ndarray | np.generic):
        yield name, np.array(value)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from plain_values(f"{name}[{key!r}]", part, uncompared)
    elif isinstance(value, Sequence):
        for place, part in enumerate(value):
            yield from plain_values(f"{name}[{place}]", part, uncompared)
    elif callable(getattr(value, "state_dict", None)):
        yield from plain_values(name, dict(value.state_dict()), uncompared)
    elif callable(getattr(value, "get_params", None)):  # an estimator in scikit-learn's form
        for key, part in sorted(vars(value).items()):
            if key.endswith("_") and not key.startswith("_"):
                yield from plain_values(f"{name}.{key}", part, uncompared)
    else:
        uncompared.append(f"{name} ({type(value).__name__})")


def differs(one: Any, other: Any) -> bool:
    """Whether two values that can be seen differ by more than rounding."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        one, other = one.cpu(), other.cpu()
        if one.dtype is torch.bfloat16:
            one, other = one.float(), other.float()
        one, other = one.numpy(), other.numpy()
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if one.shape != other.shape or one.dtype != other.dtype:
            return True
        if one.dtype.kind not in "fc":
            return not np.array_equal(one, other)
        largest = np.abs(one[np.isfinite(one)]).max(initial=0.0)
        return not np.allclose(one, other, rtol=1e-6, atol=1e-6 * largest, equal_nan=True)
    if isinstance(one, float) and isinstance(other, float):
        both_missing = math.isnan(one) and math.isnan(other)
        return not (both_missing or math.isclose(one, other, rel_tol=1e-6))
    return type(one) is not type(other) or bool(one != other)


def in_words(one: Any, other: Any) -> str:
    """Two values that differ, in a few words."""
    if isinstance(one, int | float | str) and isinstance(other, int | float | str):
        return f"{one!r:.40} and {other!r:.40}"
    if getattr(one, "shape", 0) != getattr(other, "shape", 0):
        return f"shapes {tuple(one.shape)} and {tuple(other.shape)}"
    if isinstance(one, Tensor | np.ndarray):
        pair = [
            np.asarray(value.cpu() if isinstance(value, Tensor) else value)
            for value in (one, other)
        ]
        if all(part.dtype.kind in "fiu" for part in pair):
            lengths = [float(np.linalg.norm(part.astype(float))) for part in pair]
            change = float(np.linalg.norm(pair[0].astype(float) - pair[1].astype(float)))
            return f"lengths {lengths[0]:.4g} and {lengths[1]:.4g}, {change:.2g} apart"
    return "another value"
