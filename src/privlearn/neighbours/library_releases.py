"""Where privlearn, Opacus and PyTorch's optimizers release: what a recording hooks into.

Privlearn: the one function that adds noise to a bounded value, which carries its sensitivity.
Opacus: `add_noise` of its optimizers, between the sum of clipped gradients and what they hand on;
the sensitivity is `max_grad_norm`. Optimizers of PyTorch: the gradients of each step, which follow
from what was released, and from nothing else that is private.
"""

from __future__ import annotations

import hashlib
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from privlearn.core import streams
from privlearn.core.mechanisms import release as release_module
from privlearn.core.mechanisms.correlated_stream import CorrelatedStream
from privlearn.neighbours.recording import RunRecording


@contextmanager
def recorded_libraries(recording: RunRecording, seed: int, rows: int) -> Iterator[None]:
    """A block in which releases of privlearn and of Opacus are recorded, or replayed.

    Args:
        recording: of the run.
        seed: of privlearn's random streams, where the run leaves their keys to the operating
            system.
        rows: the most rows that the data have: so many numbers are drawn where a number is drawn
            for each row.
    """
    with ExitStack() as stack:
        stack.enter_context(_privlearn(recording))
        stack.enter_context(_row_numbers(rows))
        stack.enter_context(mock.patch.object(secrets, "token_bytes", _known_bytes(seed)))
        stack.enter_context(_opacus(recording))
        hook = register_optimizer_step_pre_hook(_optimizer_hook(recording))
        stack.callback(hook.remove)
        yield


@contextmanager
def _privlearn(recording: RunRecording) -> Iterator[None]:
    add_noise = vars(release_module)["_add_noise"]
    drawing_for = streams.NoiseStream.drawing_for
    last: list[Any] = []  # parts of the release that is open

    def record_release(part: Any, multiplier: float, stream: Any) -> tuple[Tensor, ...]:
        before = [value.detach().clone() for value in part.values]
        with recording.suspended():
            released: tuple[Tensor, ...] = add_noise(part, multiplier, stream)
        if not last or part.sample is not last[0].sample or not recording.is_open("privlearn"):
            recording.begin("privlearn")
            last.clear()
        last.append(part)
        recording.adjacencies.add(part.adjacency.value)
        independent = not isinstance(stream, CorrelatedStream)
        for value, noisy in zip(before, released, strict=True):
            recording.add(
                value,
                noisy,
                sensitivity=part.sensitivity,
                noise_std=multiplier * part.sensitivity if independent else None,
                part=len(last) - 1,
            )
        return released

    def noted(stream: Any, values: Any, places: Any = None) -> Any:
        if not recording.is_suspended:
            recording.unclaimed.append("privlearn drew noise for a selection or a random answer")
        return drawing_for(stream, values, places)

    with (
        mock.patch.object(release_module, "_add_noise", record_release),
        mock.patch.object(streams.NoiseStream, "drawing_for", noted),
    ):
        yield


@contextmanager
def _row_numbers(rows: int) -> Iterator[None]:
    """Privlearn's streams draw as many numbers as the larger data set has rows, so that a row's
    number does not depend on whether there is one more.
    """
    kind: Any = np.random.Generator

    def random(stream: Any, size: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(size, int) and 0 < size < rows:
            return kind.random(stream, rows, *args, **kwargs)[:size]
        return kind.random(stream, size, *args, **kwargs)

    def integers(stream: Any, *args: Any, size: Any = None, **kwargs: Any) -> Any:
        if isinstance(size, int) and 0 < size < rows:
            return kind.integers(stream, *args, size=rows, **kwargs)[:size]
        return kind.integers(stream, *args, size=size, **kwargs)

    with (
        mock.patch.object(streams.RandomStream, "random", random, create=True),
        mock.patch.object(streams.RandomStream, "integers", integers, create=True),
    ):
        yield


def _known_bytes(seed: int) -> Callable[[int | None], bytes]:
    """Bytes in the operating system's place: the same in each run."""
    calls = [0]

    def token_bytes(number: int | None = None) -> bytes:
        calls[0] += 1
        key = f"{seed} {calls[0]}".encode()
        return hashlib.shake_256(key).digest(32 if number is None else number)

    return token_bytes


@contextmanager
def _opacus(recording: RunRecording) -> Iterator[None]:
    """Opacus' optimizers, of all classes that add noise, if Opacus is imported."""
    module = sys.modules.get("opacus.optimizers")
    if module is None:
        yield
        return
    with ExitStack() as stack:
        for kind in _with_subclasses(module.DPOptimizer):
            if "add_noise" in vars(kind):
                record_release = _opacus_noise(vars(kind)["add_noise"], recording)
                stack.enter_context(mock.patch.object(kind, "add_noise", record_release))
        yield


def _opacus_noise(
    add_noise: Callable[[Any], None], recording: RunRecording
) -> Callable[[Any], None]:
    def record_release(optimizer: Any) -> None:
        if recording.is_suspended:  # called by a subclass
            add_noise(optimizer)
            return
        parameters = [part for part in optimizer.params if part.summed_grad is not None]
        before = [part.summed_grad.detach().clone() for part in parameters]
        with recording.suspended():
            add_noise(optimizer)
        recording.begin("Opacus")
        sensitivity = float(optimizer.max_grad_norm)
        std = float(optimizer.noise_multiplier) * sensitivity
        for part, value in zip(parameters, before, strict=True):
            recording.add(value.view_as(part), part.grad, sensitivity=sensitivity, noise_std=std)
        recording.close()

    return record_release


def _with_subclasses(kind: Any) -> Iterator[Any]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _with_subclasses(subclass)


def _optimizer_hook(recording: RunRecording) -> Callable[..., None]:
    """Notes the gradients that each step of an optimizer takes."""
    steps = [0]

    def hook(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        recording.close()
        steps[0] += 1
        for group in optimizer.param_groups:
            for place, parameter in enumerate(group["params"]):
                name = f"the gradient of parameter {place} in step {steps[0]} of the optimizer"
                if parameter.grad is None:
                    recording.note(name, None)
                else:
                    recording.note_state(name, parameter.grad)
            name = f"the learning rate of step {steps[0]} of the optimizer"
            recording.note(name, group.get("lr"))

    return hook
