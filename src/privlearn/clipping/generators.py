"""PyTorch's generators, which dropout and augmentation draw from: so that what is computed again draws the same numbers."""

from __future__ import annotations

import torch
from torch import Tensor


def drawn_by(device: torch.device) -> list[Tensor]:
    """Where the generators of the processor and of `device` are."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def draw_again(device: torch.device, drawn: list[Tensor]) -> None:
    """Let the generators draw again what they drew since they were at `drawn`."""
    torch.set_rng_state(drawn[0])
    if len(drawn) > 1:
        torch.cuda.set_rng_state(drawn[1], device)
