"""Rows of a known linear layer whose scores cancel each other, so that their last digits decide,
arranged so that all of them gain when they move one place up.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

#: A row is rounded by its place among as many.
_PLACES = 4
#: Rows to choose from, and the best of them that are taken for each place.
_CHOICE, _BEST = 400, 50


def cancelling_rows(layer: nn.Linear, size: float, number: int) -> Tensor:
    """`number` rows of about this size, float32: the first class's chance grows if the first row is
    left out.

    Products are rounded by where a row begins in memory. Which rows gain is tried by the layer
    itself, once in each place.
    """
    weights = layer.weight.detach().double()
    apart = weights - weights.mean(0) if len(weights) > 1 else weights
    drawn = torch.Generator().manual_seed(1)
    middle, around = (
        torch.randn(rows, layer.in_features, generator=drawn).double() for rows in (1, _CHOICE)
    )
    level = torch.eye(layer.in_features).double() - torch.linalg.pinv(apart) @ apart
    rows = (size * (middle + 0.3 * around) @ level).float()
    repeated = rows.repeat_interleave(_PLACES, 0)
    chances = []
    with torch.no_grad():
        for place in range(_PLACES):
            moved = torch.cat([rows.new_zeros(place, layer.in_features), repeated])
            scores = layer(moved)[place::_PLACES].double()
            chances.append((scores.softmax(1) if len(weights) > 1 else scores.sigmoid())[:, 0])
    best = [
        (chances[place - 1] - chances[place]).argsort(descending=True)[:_BEST]
        for place in range(_PLACES)
    ]
    return rows[[int(best[row % _PLACES][row // _PLACES % _BEST]) for row in range(number)]]
