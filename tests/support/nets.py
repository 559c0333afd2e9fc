"""What many checks share: small networks, made-up data, samples and sums."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import nn

from privlearn.core import sampling
from privlearn.core import streams as streams_module
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping import gradients as clipping
from privlearn.core.clipping.bounded import Bounded, Contributions, kept
from privlearn.core.clipping.clips import Flat
from privlearn.core.mechanisms import release as release_module


class NoDraws:
    """A noise stream that must not be drawn from."""

    secret = watch = None

    def require_bound(self) -> None:
        """Its key ends with the call."""

    def words(self, number: int) -> Any:
        raise AssertionError("noise was drawn")

    def __call__(self, *arguments: Any) -> Any:
        raise AssertionError("training began")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"noise was drawn: {name}")


def one_sample(sampler: sampling.Sampler | None = None, examples: int = 8) -> sampling.Sample:
    return next(iter((sampler or sampling.FullBatch()).draw(examples, np.random.default_rng(0))))


def seen(bound: float = 1.0) -> Contributions:
    """Evidence for a made-up sum to which an example adds as much as it may."""
    return Contributions.of(torch.tensor([bound]), bound, "a test")


def bounded(
    value: torch.Tensor, sensitivity: float = 1.0, sample: sampling.Sample | None = None
) -> Bounded:
    return Bounded(
        (value,), sensitivity, Adjacency.ADD_REMOVE, sample or one_sample(), seen(sensitivity)
    )


def cross_entropy(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, y, reduction="none")


def small_net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)).double()


def small_data(rows: int = 12, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    made_up = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 5, generator=made_up, dtype=torch.float64)
    return x, torch.randint(3, (rows,), generator=made_up)


def flat_norm(parts: tuple[torch.Tensor, ...]) -> float:
    return math.sqrt(sum(float(part.double().square().sum()) for part in parts))


def clipped_by_the_loop(
    net: nn.Module, clip_norm: float, x: torch.Tensor, y: torch.Tensor, loss: Any = cross_entropy
) -> list[torch.Tensor]:
    """The truth: one example after another, each clipped by itself (with room for rounding)."""
    trained = [p for p in net.parameters() if p.requires_grad]
    total = [torch.zeros_like(p) for p in trained]
    for row in range(len(x)):
        value = loss(net(x[row : row + 1]), y[row : row + 1]).sum()
        found = torch.autograd.grad(value, trained, allow_unused=True, materialize_grads=True)
        weight = min(
            1.0, kept(clip_norm, {p.dtype for p in trained}) / max(flat_norm(found), 1e-300)
        )
        total = [sums + weight * part for sums, part in zip(total, found, strict=True)]
    return total


def require_the_loops_sum(
    net: nn.Module, clip_norm: float, x: torch.Tensor, y: torch.Tensor, way: str | None = None
) -> None:
    clipper = clipping.ClippedGradients(net, cross_entropy, Flat(clip_norm), Adjacency.ADD_REMOVE)
    found = clipper(one_sample(examples=len(x)), x, y).values
    for one, other in zip(found, clipped_by_the_loop(net, clip_norm, x, y), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert way in (None, clipper.way), clipper.reason


def clipped(
    clip: Any,
    adjacency: Adjacency,
    x: torch.Tensor,
    y: torch.Tensor,
    net: nn.Module | None = None,
    **options: Any,
) -> Bounded:
    net = net or small_net()
    return clipping.ClippedGradients(net, cross_entropy, clip, adjacency, **options)(
        one_sample(examples=len(x)), x, y
    )


def require_standard_deviation(draws: np.ndarray[Any, Any], std: float) -> None:
    draws = draws.astype(np.float64)
    chi2 = float((draws**2).sum()) / std**2
    low, high = stats.chi2.ppf([5e-8, 1 - 5e-8], len(draws))
    assert low < chi2 < high, f"standard deviation {draws.std()} where {std} was stated"
    assert abs(draws.mean()) < 5.4 * std / math.sqrt(len(draws))


def _moves(
    clip: Any, adjacency: Adjacency, x: torch.Tensor, y: torch.Tensor, scale: float, target: int
) -> Iterator[float]:
    base = clipped(clip, adjacency, x, y).values
    if adjacency is Adjacency.REPLACE_ONE:
        for other in range(3):
            one, two = x.clone(), x.clone()
            one[0] = two[0] = x[0].sign() * scale
            labels, others = y.clone(), y.clone()
            labels[0], others[0] = target, other
            before, after = (
                clipped(clip, adjacency, a, b).values for a, b in ((one, labels), (two, others))
            )
            yield flat_norm(tuple(a - b for a, b in zip(before, after, strict=True)))
    else:
        more = torch.cat([x, x[:1].sign() * scale]), torch.cat([y, torch.tensor([target])])
        yield flat_norm(
            tuple(a - b for a, b in zip(clipped(clip, adjacency, *more).values, base, strict=True))
        )


# Samplers

SAMPLERS: list[sampling.Sampler] = [
    sampling.Poisson(0.3),
    sampling.Partition(4),
    sampling.Shuffle(3),
    sampling.FullBatch(),
]


def released(part: Bounded, noise: float, account: Ledger) -> None:
    release_module.release(
        part, noise_multiplier=noise, ledger=account, stream=streams_module.Streams.new(9).noise
    )


def refused_release(part: Bounded, noise: float, account: Ledger) -> None:
    release_module.release(part, noise_multiplier=noise, ledger=account, stream=NoDraws())  # type: ignore[arg-type]
