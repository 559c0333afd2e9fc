"""This file has the base of the modules that transform rows before a network, each row by itself,
and what scales rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

_ROWS_AT_ONCE = 256


class RowTransform(nn.Module):
    """A fixed transform of rows, each by itself: in front of a network, and in a published model.

    Attributes:
        kind: of the `Transform` that makes such modules, and that makes an empty one for published
            weights to fill.
    """

    kind: ClassVar[str]
    #: Whether it computes all rows at once, for there is nothing to wait for.
    at_once: ClassVar[bool] = False
    #: Whether code of the user's computes it: then it is tried on a made-up row, and never stands
    #: behind a release.
    is_users_code: ClassVar[bool] = False

    @property
    def spec(self) -> str:
        """What it is called."""
        return self.kind

    def describe(self) -> dict[str, Any]:
        """What a certificate says of public features."""
        return self.config()

    def config(self) -> dict[str, Any]:
        """What a published configuration states of it: enough for `Transform.empty`, and none of
        its numbers.
        """
        first = next(iter(self.buffers()))
        return {"kind": self.kind, "shape": list(first.shape)}

    def require_per_example(self, row: Tensor) -> None:
        """Refuse code of the user's in which rows have a part in each other's features, by a
        made-up `row`.
        """

    def require_finite(self, features: Tensor, rows: Tensor) -> None:
        """Refuse code of the user's that makes `features` that are no numbers of `rows`."""

    def choice(self, names: Sequence[str]) -> dict[str, Any] | None:
        """Which features it chose, as plain values, by the names of those before it; None: it
        chooses none.
        """
        return None

    def names_after(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The names of its features, by those before it; empty where each is made of several."""
        return ()


@final
class Scale(RowTransform):
    """Clip to declared public ranges and scale: to [0, 1], or into [-1, 1] with 0 kept where a
    range reaches below 0.

    Part of the published model.
    """

    kind = "scale"

    def __init__(self, low: Tensor, high: Tensor) -> None:
        super().__init__()
        self.register_buffer("low", low)
        self.register_buffer("high", high)

    def forward(self, x: Tensor) -> Tensor:
        """Scale `x`, shape (batch, ...); the bounds are scalars or have the shape of one
        example.
        """
        low, high = self.get_buffer("low"), self.get_buffer("high")
        clipped = torch.minimum(torch.maximum(x.to(low), low), high)
        signed = low < 0
        width = torch.where(signed, torch.maximum(low.abs(), high.abs()), high - low)
        return (clipped - low.where(~signed, 0)) / width

    def names_after(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The same: numbers stay in their places."""
        return names


def in_blocks(
    module: RowTransform, x: Tensor, progress: Callable[[int, int], None] | None = None
) -> Tensor:
    """What a public module makes of the rows `x` (rows, ...), one for each: some rows at once,
    where it takes long.

    Args:
        module: the module.
        x: the rows.
        progress: called with (rows done, rows in all).
    """
    if module.at_once:
        return module(x)  # type: ignore[no-any-return]
    encoded: Tensor | None = None
    with torch.no_grad():
        for start in range(0, len(x), _ROWS_AT_ONCE):
            part = module(x[start : start + _ROWS_AT_ONCE])
            if encoded is None:
                encoded = part.new_empty(len(x), *part.shape[1:])
            encoded[start : start + len(part)] = part
            if progress:
                progress(start + len(part), len(x))
    return module(x) if encoded is None else encoded


#: Makes the features of rows by a public module; in a block of `chain.feature_cache` it keeps them.
MAKE_FEATURES: ContextVar[Callable[[RowTransform, Tensor], Tensor]] = ContextVar(
    "make_features", default=in_blocks
)
