"""`Augmentation`: changed copies of an example, which are one example."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from privlearn._validate import count
from privlearn.clipping.agreement import close, rounding_of
from privlearn.clipping.moves import Moves
from privlearn.errors import BadInput, NotPerExample

#: (rows, generator) to changed rows, of the same shape and type; shape (rows, ...).
Transform = Callable[[Tensor, torch.Generator], Tensor]


@final
@dataclass(frozen=True)
class Augmentation:
    """Several changed copies of each example, or views, whose gradients are averaged before clipping (De et al. 2022).

    Costs time, not privacy: the mean of the copies is one gradient, and is clipped as one, whatever they are.

    Attributes:
        copies: of each example.
        transform: of images `flip` (left to right), `shift:2` (up to so many pixels, 0 comes in) or both, `flip,shift:2`; or a
            function of inputs of shape (rows, ...) and a generator, which is where they are, to inputs of that shape: each
            row changed by itself, at random by that generator.

    Raises:
        BadInput: no copies, or neither a spec that can be read nor a function.
    """

    copies: int
    transform: str | Transform

    def __post_init__(self) -> None:
        count("copies", self.copies)
        if isinstance(self.transform, str):
            Moves.parse(self.transform)
        elif not callable(self.transform):
            raise BadInput(
                f"transform is {repr(self.transform)[:60]}: expected a text such as flip,shift:2, or a function of "
                "(rows, generator) to rows"
            )

    @property
    def function(self) -> Transform:
        """The transform, as a function."""
        return Moves.parse(self.transform) if isinstance(self.transform, str) else self.transform

    @property
    def shown(self) -> str:
        """What is done to the copies, for certificates."""
        return self.transform if isinstance(self.transform, str) else "given in Python"


@final
class Views:
    """Makes the copies of batches, with random numbers from a stream of their own.

    Each sample begins with a fresh seed: so what is drawn for it depends neither on how many rows the samples before it had
    nor on what else draws numbers (noise, batches, dropout).

    Args:
        augmentation: which copies; None: every row once, as it is.
        seeds: the stream; by default seeds come from PyTorch's own generator.
    """

    def __init__(self, augmentation: Augmentation | None, seeds: np.random.Generator | None) -> None:
        self.copies = 1 if augmentation is None else augmentation.copies
        self._transform = None if augmentation is None else augmentation.function
        self._seeds, self._generator = seeds, torch.Generator()

    def begin(self, device: torch.device) -> None:
        """A sample comes, which is computed on `device`."""
        if self._transform is not None:
            seed = torch.randint(2**62, ()) if self._seeds is None else self._seeds.integers(2**63)
            self._generator = torch.Generator(device).manual_seed(int(seed))

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The copies of inputs and targets: those of one row beside each other."""
        if self._transform is None:
            return x, y
        copied = x.repeat_interleave(self.copies, 0)
        return self._transform(copied, self._generator), y.repeat_interleave(self.copies, 0)

    def drawn(self) -> Tensor:
        """Where the generator is."""
        return self._generator.get_state()

    def draw_again(self, drawn: Tensor) -> None:
        """Draw again what was drawn since the generator was at `drawn`."""
        self._generator.set_state(drawn)

    def require_own_rows(self, rows: Tensor) -> None:
        """Refuse a transform that mixes the rows of different examples, of made-up `rows` with their copies.

        (One that draws random numbers from elsewhere can't be told.)

        Raises:
            NotPerExample: it does, or makes rows of another shape.
        """
        transform, copies = self._transform, self.copies
        if transform is None:
            return

        def transformed(rows: Tensor) -> Tensor:
            torch.manual_seed(0)
            out = transform(rows.clone(), torch.Generator(rows.device).manual_seed(0))
            if out.shape != rows.shape or out.dtype != rows.dtype:
                raise NotPerExample(
                    f"the augmentation turns {tuple(rows.shape)} of {rows.dtype} into {tuple(out.shape)} of {out.dtype}: "
                    "expected as many rows, of the same shape and type"
                )
            return out

        out = transformed(rows)
        if not torch.equal(out, transformed(rows)):
            return
        for start in range(0, len(rows), copies):
            own = slice(start, start + copies)
            others = rows.roll(copies, 0)
            others[own] = rows[own]
            if not close(transformed(others)[own], out[own], rounding_of(out[own])):
                raise NotPerExample(
                    "the augmentation mixes rows of different examples: give a transform that changes each row by itself"
                )
