"""What a training function says about its releases, where its library does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, overload

import torch
from torch import Tensor

from privlearn._checks import positive
from privlearn.neighbours.recording import RunRecording

#: Adds noise to values, and returns them.
AddNoise = Callable[[Sequence[Tensor]], Sequence[Tensor]]


class ReleaseRecorder:
    """Records what a training function says; without a recording it only does what it is asked to.

    Privlearn's and Opacus' releases are recorded without it, and so is noise that PyTorch draws and
    the function adds.
    """

    def __init__(self, recording: RunRecording | None = None) -> None:
        self._recording = recording

    def __repr__(self) -> str:
        return f"ReleaseRecorder(recording={self._recording is not None})"

    @property
    def is_recording(self) -> bool:
        """Whether runs on neighbouring data are compared now."""
        return self._recording is not None

    @overload
    def release(
        self,
        values: Tensor,
        *,
        sensitivity: float,
        noise_multiplier: float,
        add_noise: AddNoise | None = None,
    ) -> Tensor: ...
    @overload
    def release(
        self,
        values: Sequence[Tensor],
        *,
        sensitivity: float,
        noise_multiplier: float,
        add_noise: AddNoise | None = None,
    ) -> list[Tensor]: ...
    def release(
        self,
        values: Tensor | Sequence[Tensor],
        *,
        sensitivity: float,
        noise_multiplier: float,
        add_noise: AddNoise | None = None,
    ) -> Tensor | list[Tensor]:
        """Add noise to values, which are released jointly.

        Args:
            values: sums before the noise, of any shapes.
            sensitivity: the claimed L2 distance of all values together on neighbouring data.
            noise_multiplier: the claimed standard deviation of the noise over the sensitivity.
            add_noise: takes the values, as a list, and returns them with noise, as new tensors; by
                default normal noise of PyTorch is added.

        Returns:
            The values with noise: a tensor for a tensor, else a list.
        """
        positive("sensitivity", sensitivity)
        positive("noise_multiplier", noise_multiplier)
        parts = [values] if isinstance(values, Tensor) else list(values)
        before = [part.detach().clone() for part in parts]
        std = sensitivity * noise_multiplier
        with self.ignore():
            if add_noise is None:
                noisy = [part + std * torch.randn_like(part) for part in parts]
            else:
                noisy = list(add_noise(parts))
            if self._recording is not None:
                self._recording.begin("recorder.release")
                for value, result in zip(before, noisy, strict=True):
                    self._recording.add(value, result, sensitivity=sensitivity, noise_std=std)
                self._recording.close()
        return noisy[0] if isinstance(values, Tensor) else noisy

    def step(self) -> None:
        """End a release: what noise is added to from here on belongs to the next one.

        A step of an optimizer of PyTorch, and a draw of random numbers that are not normal, end a
        release, too.
        """
        if self._recording is not None:
            self._recording.close()

    @contextmanager
    def ignore(self) -> Iterator[None]:
        """A block whose normal noise is no part of a release: augmentation, say."""
        if self._recording is None:
            yield
            return
        with self._recording.suspended():
            yield

    def output(self, name: str, value: Any) -> None:
        """Declare a value that leaves the training: a loss that is printed, a mean that is saved.

        It has to be the same on neighbouring data.
        """
        if self._recording is not None:
            self._recording.note(name, value)
