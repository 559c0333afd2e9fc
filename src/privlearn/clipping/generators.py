"""Global random generators: put to a seed for a block, and back to where they were."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor


def drawn_by(device: torch.device) -> list[Tensor]:
    """Where PyTorch's generators of the processor and of `device` are."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def draw_again(device: torch.device, drawn: list[Tensor]) -> None:
    """Let PyTorch's generators draw again what they drew since they were at `drawn`."""
    torch.set_rng_state(drawn[0])
    if len(drawn) > 1:
        torch.cuda.set_rng_state(drawn[1], device)


def draw_from(seed: int) -> None:
    """Put PyTorch's generators of the processor and of CUDA to `seed`, as `torch.manual_seed`.

    That also asks for devices that are not there, and formats and keeps the call's stack for each: milliseconds, every time.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


@contextmanager
def unmoved(device: torch.device) -> Iterator[None]:
    """However the block draws, PyTorch's generators are then where they were."""
    drawn = drawn_by(device)
    try:
        yield
    finally:
        draw_again(device, drawn)


def foreign_state() -> str:
    """Where numpy's and Python's global generators are, to compare."""
    numpy = np.random.get_state(legacy=False)  # noqa: NPY002 - what others draw from
    return f"{numpy} {numpy['state']['key'].tobytes().hex()} {random.getstate()}"


@contextmanager
def generators_at(seed: int) -> Iterator[None]:
    """For the block: PyTorch's, numpy's and Python's global random generators at `seed`. All are then what they were."""
    legacy, plain = np.random.get_state(), random.getstate()  # noqa: NPY002 - what estimators draw from
    with torch.random.fork_rng():
        draw_from(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(legacy)  # noqa: NPY002
            random.setstate(plain)
