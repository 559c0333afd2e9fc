"""Named checks: norms and sums are computed in single precision, whatever the caller has set for
products.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from privlearn.core import precision as precisions
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.clips import Flat
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.clipping.kernels import Kernels
from privlearn.core.clipping.operations import patches
from privlearn.core.precision import single_precision
from privlearn.core.sampling import FullBatch
from tests.support.checks import check

#: The module: its package has a function of that name.
convolution = import_module("privlearn.core.clipping.operations.convolution")
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


class Noted:
    """Notes in which precision products are computed, by what they are for."""

    def __init__(self) -> None:
        self.seen: dict[str, set[str]] = {}

    def during(self, name: str, function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            of = f"{name} {arguments[-1]}" if name == "gradient" else name
            self.seen.setdefault(of, set()).update(settings())
            return function(*arguments, **options)

        return call


class Branched(nn.Module):
    """Layers of all kinds that multiply: alone, in a run of layers, and without a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.run = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 3, 2), nn.ReLU())
        self.alone, self.conv = nn.Linear(16, 8), nn.Conv1d(2, 12, 2)
        self.out = nn.Linear(36, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.alone(self.run(x).flatten(1))
        return self.out(self.conv(hidden.unflatten(1, (2, 4))).flatten(1))


@check
def check_norms_and_sums_are_in_full_precision_on_an_accelerator() -> None:
    """What the model hands on is computed there as the caller has set it: with it, TF32 is as fast
    as without privacy. All that norms and sums are made of is in full precision.
    """
    noted = Noted()
    places = {
        "linear": (Kernels, "linear"),
        "linear back": (Kernels, "back"),
        "linear sum": (Kernels, "add_outer"),
        "convolution": (torch, "convolution"),
        "gradient": (convolution.Convolution, "_native"),  # of the input (0), of the weight (1)
        "patches": (patches, "form"),
        "Gram matrices": (convolution, "GramNorms"),
    }
    torch.manual_seed(0)
    with ExitStack() as stack:
        for name, (owner, attribute) in places.items():
            function = noted.during(name, getattr(owner, attribute))
            stack.enter_context(mock.patch.object(owner, attribute, function))
        for place in (precisions, convolution):
            stack.enter_context(mock.patch.object(place, "on_processor", return_value=False))
        engine = ClippedGradients(
            Branched(),
            nn.CrossEntropyLoss(reduction="none"),
            Flat(1.0),
            Adjacency.ZERO_OUT,
            fast_kernels=False,
        )
        stack.enter_context(reduced("tf32"))
        for _ in range(2):
            (sample,) = FullBatch().draw(6)
            engine(sample, torch.rand(6, 1, 8, 8), torch.arange(6) % 2)
            assert settings() == ["tf32"] * 3
    assert engine.way == "layers"
    for name in ("linear", "linear back", "convolution", "gradient 0"):
        assert "tf32" in noted.seen[name], name
    for name in ("linear sum", "gradient 1", "patches", "Gram matrices"):
        assert noted.seen[name] == {"ieee"}, name
