"""Named checks: norms and sums are computed in single precision, whatever the caller has set for
products.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.clips import Flat
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.precision import single_precision
from privlearn.core.sampling import FullBatch
from tests.support.checks import check

PLACES: list[Any] = [getattr(torch.backends.mkldnn, name) for name in ("matmul", "conv", "rnn")]


def settings() -> list[str]:
    return [place.fp32_precision for place in PLACES]


@contextmanager
def reduced(precision: str) -> Iterator[None]:
    """What `torch.set_float32_matmul_precision("medium")` and the like do, put back afterwards."""
    before = settings()
    try:
        for place in PLACES:
            place.fp32_precision = precision
        yield
    finally:
        for place, own in zip(PLACES, before, strict=True):
            place.fp32_precision = own


class Asks(nn.Module):
    """A model that notes what holds while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = nn.Linear(3, 2), set[str]()

    def forward(self, x: Tensor) -> Tensor:
        self.seen |= set(settings())
        return self.layer(x)


@check
def check_products_are_in_single_precision_whatever_is_set() -> None:
    """Also where the model fails; and what was set holds again afterwards."""
    for precision in ("bf16", "tf32", "ieee"):
        model = Asks()
        engine = ClippedGradients(
            model, nn.CrossEntropyLoss(reduction="none"), Flat(1.0), Adjacency.ZERO_OUT
        )
        with reduced(precision):
            for _ in range(2):
                (sample,) = FullBatch().draw(4)
                engine(sample, torch.rand(4, 3), torch.arange(4) % 2)
                assert settings() == [precision] * 3
            assert model.seen == {"ieee"}
            try:
                with single_precision(torch.device("cpu")):
                    raise KeyError
            except KeyError:
                assert settings() == [precision] * 3
