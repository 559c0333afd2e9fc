"""Random numbers of PyTorch that are the same on neighbouring data, row by row; and noise in them.

Each call of a random operation of PyTorch, whichever it is (all are tagged as such), starts from a
seed of its own, which follows from its generator's state; the state behind it follows from that
seed, and not from how many numbers were drawn. Who sets a generator back draws the same again.
Numbers of the first n rows do not depend on how many rows come behind them, so that the last row
can be added or left out: uniform numbers and masks of dropout by how PyTorch draws them, normal
ones because they are drawn here.

A normal draw counts as noise for as long as it is only scaled, cut or seen in another shape. Where
such noise is added to a value, that sum is released.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from privlearn.core.devices import on_processor
from privlearn.neighbours.recording import RunRecording

#: The source of releases whose noise the run added by PyTorch's own operations.
ADDED = "noise that PyTorch drew"
_NORMAL = {"aten::randn", "aten::randn_like", "aten::normal", "aten::normal_"}
_SUMS = {"aten::add": 1.0, "aten::add_": 1.0, "aten::sub": -1.0, "aten::sub_": -1.0}
_SCALES = {"aten::mul", "aten::mul_", "aten::div", "aten::div_"}
_SAME = {"aten::clone", "aten::_to_copy", "aten::detach", "aten::neg", "aten::lift_fresh"}


class CoupledDraws(TorchDispatchMode):
    """While it is entered, PyTorch's random numbers do not depend on how many were drawn before,
    and sums of values and normal noise are recorded as releases.

    Args:
        recording: what records them.
        noise_multiplier: the claimed one: a value's sensitivity is its noise's standard deviation
            over it; None: not claimed.
        sensitivity: the claimed one of each release; None: what follows from the multiplier.
    """

    def __init__(
        self,
        recording: RunRecording,
        *,
        noise_multiplier: float | None,
        sensitivity: float | None,
    ) -> None:
        super().__init__()
        self._recording = recording
        self._multiplier, self._sensitivity = noise_multiplier, sensitivity
        #: The standard deviations of tensors that are noise.
        self._noise = WeakIdKeyDictionary()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        if torch.Tag.nondeterministic_seeded in func.tags:
            return self._draw(func, name, args, kwargs)
        if not self._noise:
            return func(*args, **kwargs)
        return self._follow(func, name, args, kwargs)

    def _draw(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        generator = _generator_of(args, kwargs)
        seed = _digest(generator.get_state().numpy().tobytes())
        generator.manual_seed(seed)
        drawn = func(*args, **kwargs)
        generator.manual_seed(_digest(f"behind {seed}".encode()))
        if name not in _NORMAL:
            if not self._recording.is_suspended:
                self._recording.close()  # another batch, or another mask
            return drawn
        arguments = _arguments(func, args, kwargs)
        mean, std = arguments.get("mean", 0.0), arguments.get("std", 1.0)
        noise = _normal_numbers(seed, drawn)
        value = mean if isinstance(mean, Tensor) else torch.full_like(drawn, mean)
        drawn.copy_(value + noise * std)
        if self._recording.is_suspended or drawn.requires_grad or _is_drawn_by_privlearn():
            return drawn
        least = float(std.min()) if isinstance(std, Tensor) else float(std)
        if isinstance(mean, Tensor) and bool(mean.count_nonzero()):
            self._release(mean.expand_as(drawn), drawn, least)
        else:
            self._noise[drawn] = least
        return drawn

    def _follow(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation; where noise goes in, see what becomes of it."""
        places = [place for place, value in enumerate(args) if self._std(value) is not None]
        if not places or self._recording.is_suspended:
            return func(*args, **kwargs)
        std = self._std(args[places[0]])
        assert std is not None
        if name in _SUMS and len(args) == 2 and isinstance(args[1], Tensor):
            return self._add(func, name, args, kwargs, places)
        factor = self._factor(func, name, args)
        if factor is None:  # weights that are drawn, say: no noise, or no longer
            for place in places:
                self._noise.pop(args[place], None)
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        for part in result if isinstance(result, tuple | list) else (result,):
            if isinstance(part, Tensor):
                self._noise[part] = std * factor
        return result

    def _factor(self, func: Any, name: str, args: tuple[Any, ...]) -> float | None:
        """What the operation multiplies noise by; None: it is no longer noise."""
        if func.is_view or name in _SAME:
            return 1.0
        if name in _SCALES and self._std(args[0]) is not None:
            factor = _number(args[1])
            if factor is not None:
                return abs(factor) if "mul" in name else abs(1 / factor)
        if name == "aten::mul" and (factor := _number(args[0])) is not None:
            return abs(factor)
        return None

    def _add(
        self,
        func: Any,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        places: list[int],
    ) -> Any:
        stds = [self._std(value) for value in args]
        alpha = abs(float(kwargs.get("alpha", 1.0)))
        if len(places) == 2:
            sum_ = func(*args, **kwargs)
            self._noise[sum_] = float(np.hypot(stds[0], stds[1] * alpha))
            return sum_
        noise_place = places[0]
        std = stds[noise_place] * (alpha if noise_place == 1 else 1.0)
        if args[noise_place].requires_grad:  # a weight's first value
            self._noise.pop(args[noise_place], None)
            return func(*args, **kwargs)
        other = args[1 - noise_place]
        factor = 1.0 if noise_place == 1 else _SUMS[name] * float(kwargs.get("alpha", 1.0))
        value = other.detach().clone() * factor
        result = func(*args, **kwargs)
        self._noise.pop(result, None)  # in place: it is no longer noise alone
        self._release(value.expand_as(result), result, std)
        return result

    def _release(self, value: Tensor, noisy: Tensor, std: float) -> None:
        record_added(
            self._recording,
            value,
            noisy,
            std,
            noise_multiplier=self._multiplier,
            sensitivity=self._sensitivity,
        )

    def _std(self, value: Any) -> Any:
        return self._noise.get(value) if isinstance(value, Tensor) else None


def record_added(
    recording: RunRecording,
    value: Tensor,
    noisy: Tensor,
    std: float,
    *,
    noise_multiplier: float | None,
    sensitivity: float | None,
) -> None:
    """Record a sum of a value and noise; several without a step between are one release."""
    if not recording.is_open(ADDED):
        recording.begin(ADDED)
    if sensitivity is None and noise_multiplier is not None:
        sensitivity = std / noise_multiplier
    known = noise_multiplier is not None and sensitivity is not None
    claimed = noise_multiplier * sensitivity if known else None  # type: ignore[operator]
    recording.add(value, noisy, sensitivity=sensitivity, noise_std=claimed)


def _is_drawn_by_privlearn() -> bool:
    """Whether privlearn itself called PyTorch: its noise does not come from there."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith(("torch.", "privlearn.neighbours.")) and name != "torch":
            return name.partition(".")[0] == "privlearn"
        frame = frame.f_back
    return False


def _generator_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Generator:
    """The generator that an operation draws from."""
    values = (*args, *kwargs.values())
    for value in values:
        if isinstance(value, torch.Generator):
            return value
    device = kwargs.get("device")
    tensors = [value for value in values if isinstance(value, Tensor)]
    if device is None and tensors:
        device = tensors[0].device
    if device is None or on_processor(torch.device(device)):
        return torch.default_generator
    device = torch.device(device)
    module = torch.get_device_module(device)
    current = module.current_device()  # which also prepares the device
    generators: Sequence[torch.Generator] = module.default_generators
    return generators[current if device.index is None else device.index]


def _digest(content: bytes) -> int:
    """A seed."""
    return int.from_bytes(hashlib.sha256(content).digest()[:7], "big")


def _number(value: Any) -> float | None:
    """A factor: a number, or a tensor of one."""
    if isinstance(value, int | float):
        return float(value) or None
    if isinstance(value, Tensor) and value.dim() == 0 and value.dtype.is_floating_point:
        return float(value) or None
    return None


def _arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """An operation's arguments by name, with its defaults."""
    schema = func._schema.arguments
    named = {
        argument.name: argument.default_value
        for argument in schema
        if argument.default_value is not None
    }
    named.update(zip((argument.name for argument in schema), args, strict=False))
    return {**named, **kwargs}


def _normal_numbers(seed: int, like: Tensor) -> Tensor:
    """Standard normal numbers; the first of them are the same however many there are."""
    numbers = np.random.default_rng(seed).standard_normal(like.numel())
    return torch.from_numpy(numbers).to(like.dtype).to(like.device).view(like.shape)
