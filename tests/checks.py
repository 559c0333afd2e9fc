"""Named checks of privacy properties. Tests run them on the code as it is; mutations must make them fail.

Every check raises (an AssertionError or an error of privlearn's) if its property does not hold. All are seeded.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import pickle
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import nn

import privlearn as pv
from privlearn import sampling
from privlearn import streams as streams_module
from privlearn.accounting import accountant, pld, zcdp
from privlearn.accounting.budget import Budget
from privlearn.accounting.events import Repeated, compose, tally
from privlearn.accounting.filters import fits
from privlearn.accounting.guarantee import Adjacency
from privlearn.accounting.ledger import Ledger
from privlearn.accounting.mechanisms import FixedBatches, Gaussian, Partitioned, PoissonSampled
from privlearn.clipping import gradients as clipping
from privlearn.clipping.bounded import Bounded, kept
from privlearn.clipping.clips import Flat, PerLayer
from privlearn.clipping.rows import second_moment, symmetric
from privlearn.descent import dpsgd as dpsgd_module
from privlearn.errors import (
    AdjacencyMismatch,
    BadInput,
    BudgetExceeded,
    NotPerExample,
    PrivlearnError,
    SampleReused,
    UnsupportedEvent,
)
from privlearn.mechanisms import noise as noise_module
from privlearn.mechanisms import release as release_module
from privlearn.models import check as models_check
from privlearn.plan import Plan
from privlearn.publishing import certificate, publish, verify

CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def must_raise(kind: type[Exception], action: Callable[[], Any]) -> Exception:
    try:
        action()
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}")


class NoDraws:
    """A noise stream that must not be drawn from."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"noise was drawn: {name}")


def one_sample(sampler: sampling.Sampler | None = None, examples: int = 8) -> sampling.Sample:
    return next(iter((sampler or sampling.FullBatch()).draw(examples, np.random.default_rng(0))))


def bounded(value: torch.Tensor, sensitivity: float = 1.0, sample: sampling.Sample | None = None) -> Bounded:
    return Bounded((value,), sensitivity, Adjacency.ADD_REMOVE, sample or one_sample())


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
        weight = min(1.0, kept(clip_norm, {p.dtype for p in trained}) / max(flat_norm(found), 1e-300))
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
    clip: Any, adjacency: Adjacency, x: torch.Tensor, y: torch.Tensor, net: nn.Module | None = None, **options: Any
) -> Bounded:
    net = net or small_net()
    return clipping.ClippedGradients(net, cross_entropy, clip, adjacency, **options)(one_sample(examples=len(x)), x, y)


# Noise and release


@check
def check_noise_has_the_stated_scale() -> None:
    """Two-sided: 200,000 draws; a scale 2% off on either side fails, false alarms are below 1e-6."""
    for dtype in (torch.float64, torch.float32):
        for sensitivity, multiplier in ((1.0, 1.0), (0.1, 4.0), (3.0, 0.5)):
            value = torch.zeros(200_000, dtype=dtype)
            ((noisy,),) = release_module.release(
                bounded(value, sensitivity),
                noise_multiplier=multiplier,
                ledger=Ledger(),
                stream=streams_module.Streams.new(1).noise,
            )
            require_standard_deviation(noisy.numpy(), multiplier * sensitivity)


@check
def check_noise_is_normal_and_independent_throughout() -> None:
    """Over several blocks of draws: the shape of the distribution and of its tails, and no two parts alike."""
    block = noise_module._BLOCK
    for dtype in (torch.float64, torch.float32):
        noisy = torch.zeros(3, block, dtype=dtype)
        released(bounded(noisy), 1.0, Ledger())
        draws = noisy.double().numpy()
        assert stats.kstest(draws.ravel(), "norm").pvalue > 1e-6
        far, share = int((np.abs(draws) > 4).sum()), 2 * stats.norm.sf(4)
        assert abs(far - share * draws.size) < 5.5 * math.sqrt(share * draws.size)
        assert len(np.unique(draws)) > 0.9 * draws.size
        # Quarters of blocks: four draws have one radius, so even their squares must not go together.
        quarters = draws.reshape(12, -1)
        for values in (quarters, quarters**2):
            together = np.corrcoef(values) - np.eye(12)
            assert np.abs(together).max() < 5.9 / math.sqrt(block // 4)
    several = Bounded(tuple(torch.zeros(20_000) for _ in range(3)), 1.0, Adjacency.ADD_REMOVE, one_sample())
    (found,) = release_module.release(
        several, noise_multiplier=1.0, ledger=Ledger(), stream=streams_module.Streams.new(6).noise
    )
    assert np.abs(np.corrcoef([value.numpy() for value in found]) - np.eye(3)).max() < 0.04


def require_standard_deviation(draws: np.ndarray[Any, Any], std: float) -> None:
    draws = draws.astype(np.float64)
    chi2 = float((draws**2).sum()) / std**2
    low, high = stats.chi2.ppf([5e-8, 1 - 5e-8], len(draws))
    assert low < chi2 < high, f"standard deviation {draws.std()} where {std} was stated"
    assert abs(draws.mean()) < 5.4 * std / math.sqrt(len(draws))


@check
def check_joint_release_pays_for_its_parts() -> None:
    sample = one_sample()
    parts = [bounded(torch.zeros(100_000, dtype=torch.float64), s, sample) for s in (1.0, 2.0, 0.5)]
    ledger = Ledger()
    found = release_module.release(
        *parts, noise_multiplier=1.5, ledger=ledger, stream=streams_module.Streams.new(2).noise
    )
    assert ledger.event == compose([Gaussian(1.5)])
    # The joint sensitivity in units of each part's noise is what the charge says.
    total = 0.0
    for (noisy,), part in zip(found, parts, strict=True):
        total += (part.sensitivity / float(noisy.std())) ** 2
        require_standard_deviation(noisy.numpy(), 1.5 * math.sqrt(3) * part.sensitivity)
    assert math.isclose(total, 1 / 1.5**2, rel_tol=0.02)


@check
def check_nothing_is_drawn_over_budget() -> None:
    ledger = Ledger(Budget(rho=0.1))
    must_raise(
        BudgetExceeded,
        lambda: release_module.release(
            bounded(torch.zeros(3)),
            noise_multiplier=1.0,
            ledger=ledger,
            stream=NoDraws(),  # type: ignore[arg-type]
        ),
    )
    assert ledger.event.events == ()


@check
def check_every_release_is_charged() -> None:
    ledger = Ledger()
    stream = streams_module.Streams.new(3).noise
    for _ in range(3):
        release_module.release(bounded(torch.zeros(2)), noise_multiplier=2.0, ledger=ledger, stream=stream)
    assert tally(ledger.event) == {Gaussian(2.0): 3}


@check
def check_a_sample_is_good_for_one_release() -> None:
    for sampler in SAMPLERS:
        sample = one_sample(sampler)
        ledger, stream = Ledger(), streams_module.Streams.new(4).noise
        part = Bounded((torch.zeros(2),), 1.0, sampler.default_adjacency, sample)
        release_module.release(part, noise_multiplier=1.0, ledger=ledger, stream=stream)
        before = ledger.event
        must_raise(
            SampleReused,
            lambda part=part, ledger=ledger, stream=stream: release_module.release(
                part, noise_multiplier=1.0, ledger=ledger, stream=stream
            ),
        )
        assert ledger.event == before


@check
def check_noise_is_fresh_and_streams_are_apart() -> None:
    streams = streams_module.Streams.new(5)
    first, second = (noise_of(streams, 20_000) for _ in range(2))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.04
    words: list[int] = []
    fresh = [
        streams_module.Streams.new(5),
        streams_module.Streams.new(5, rank=1),
        streams_module.Streams.new(6),
        streams_module.Streams.new(),
        streams_module.Streams.new(),
    ]
    for drawn in fresh:
        words += drawn.noise.words(1000).tolist()
        for generator in (drawn.sampling, drawn.initialisation, drawn.views):
            words += generator.integers(-(2**63), 2**63 - 1, size=1000).tolist()
    assert len(set(words)) == len(words), "two streams share their numbers"


def noise_of(streams: streams_module.Streams, size: int) -> np.ndarray[Any, Any]:
    part = bounded(torch.zeros(size, dtype=torch.float64))
    ((noisy,),) = release_module.release(part, noise_multiplier=1.0, ledger=Ledger(), stream=streams.noise)
    return noisy.numpy()


# Clipping


@check
def check_sensitivity_follows_clip_and_adjacency() -> None:
    x, y = small_data()
    factor = {Adjacency.ADD_REMOVE: 1, Adjacency.ZERO_OUT: 1, Adjacency.REPLACE_ONE: 2}
    for adjacency in Adjacency:
        assert clipped(Flat(0.3), adjacency, x, y).sensitivity == 0.3 * factor[adjacency]
        per_layer = clipped(PerLayer(0.3), adjacency, x, y).sensitivity
        assert math.isclose(per_layer, 0.3 * math.sqrt(2) * factor[adjacency])


@check
def check_one_example_moves_the_sum_by_at_most_the_sensitivity() -> None:
    """Adversarial examples: opposite, huge, tiny; and the bound is attained within 1%."""
    x, y = small_data()
    for clip in (Flat(0.5), PerLayer(0.5)):
        for adjacency in Adjacency:
            worst = 0.0
            for scale in (1e-3, 1.0, 1e3, 1e6):
                for target in range(3):
                    worst = max(worst, *_moves(clip, adjacency, x, y, scale, target))
            bound = clipped(clip, adjacency, x, y).sensitivity
            assert worst <= bound * (1 + 1e-9), (clip, adjacency, worst, bound)
            reached = 0.9 if isinstance(clip, PerLayer) or adjacency is Adjacency.REPLACE_ONE else 0.99
            assert worst >= bound * reached, (clip, adjacency, worst, bound)


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
            before, after = (clipped(clip, adjacency, a, b).values for a, b in ((one, labels), (two, others)))
            yield flat_norm(tuple(a - b for a, b in zip(before, after, strict=True)))
    else:
        more = torch.cat([x, x[:1].sign() * scale]), torch.cat([y, torch.tensor([target])])
        yield flat_norm(tuple(a - b for a, b in zip(clipped(clip, adjacency, *more).values, base, strict=True)))


@check
def check_examples_that_are_not_finite_contribute_zero() -> None:
    x, y = small_data()
    expected = clipped(Flat(0.5), Adjacency.ADD_REMOVE, x, y).values
    for bad in (math.nan, math.inf, -math.inf, 1e300):
        row = torch.full((1, 5), bad, dtype=torch.float64)
        row[0, 2:] = 0.5
        found = clipped(Flat(0.5), Adjacency.ADD_REMOVE, torch.cat([x, row]), torch.cat([y, y[:1]])).values
        moved = flat_norm(tuple(a - b for a, b in zip(found, expected, strict=True)))
        assert moved <= 0.5 * (1 + 1e-9), f"an example of {bad} moved the sum by {moved}"
        if not math.isfinite(bad):
            assert moved <= 1e-12


@check
def check_microbatches_change_nothing() -> None:
    x, y = small_data(13)
    for clip in (Flat(0.2), PerLayer(0.2)):
        whole = clipped(clip, Adjacency.ADD_REMOVE, x, y).values
        for size in (1, 2, 5, 13, 100):
            parts = clipped(clip, Adjacency.ADD_REMOVE, x, y, microbatch=size).values
            for a, b in zip(whole, parts, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@check
def check_rules_agree_with_the_loop() -> None:
    """The rules are compared with the loop over single examples, and are then what is used."""
    torch.manual_seed(0)
    tokens = nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(12, 3)).double()
    images = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 3))
    rows = torch.randint(6, (9, 3)), torch.randn(9, 1, 4, 4, dtype=torch.float64)
    for net, x in zip((tokens, images.double()), rows, strict=True):
        require_the_loops_sum(net, 0.1, x, torch.arange(9) % 3, "layers")


@check
def check_norms_do_not_underflow() -> None:
    """A huge input and a tiny gradient, whose squares leave single precision."""
    net = nn.Linear(1000, 1000, bias=False)
    x, y = torch.full((1, 1000), 5e17), torch.zeros(1, 1000)

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (2.6e-23 * output).sum(1)

    clipper = clipping.ClippedGradients(net, loss, Flat(1e-3), Adjacency.ADD_REMOVE)
    assert flat_norm(clipper(one_sample(examples=1), x, y).values) <= 1e-3 * 1.0001


@check
def check_losses_that_couple_examples_are_harmless() -> None:
    """A loss over the batch is computed example by example, or refused: one example never moves more than its bound."""

    def centred(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return cross_entropy(output - output.mean(0), target)

    def weighted(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return cross_entropy(output, target) / (target > 0).sum().clamp(min=1)

    x, y = small_data(12)
    y[:-1] = 0
    y[-1] = 1
    for loss in (centred, weighted):
        found = []
        for rows in (11, 12):
            clipper = clipping.ClippedGradients(small_net(), loss, Flat(0.01), Adjacency.ADD_REMOVE)
            try:
                found.append(clipper(one_sample(examples=rows), x[:rows], y[:rows]).values)
            except NotPerExample:
                break
        if len(found) == 2:
            assert flat_norm(tuple(a - b for a, b in zip(*found, strict=True))) <= 0.01 * (1 + 1e-9)


@check
def check_rules_that_disagree_are_not_used() -> None:
    """Positions before examples: shapes say that an example's rows are neighbours, and only its gradient that not."""

    class PositionsFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.Linear(5, 4), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = self.layer(x.transpose(0, 1).reshape(-1, 5)).tanh()
            return self.head(rows.view(2, -1, 4).transpose(0, 1).flatten(1))

    torch.manual_seed(0)
    made_up = torch.Generator().manual_seed(0)
    x = torch.randn(9, 2, 5, generator=made_up, dtype=torch.float64)
    require_the_loops_sum(PositionsFirst().double(), 0.1, x, torch.arange(9) % 3)


@check
def check_repeated_tokens_are_merged_before_the_norm() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(12, 3)).double()
    net[2].requires_grad_(False)
    tokens = torch.tensor([[1, 1, 1], [2, 3, 2]])
    found = clipped(Flat(1e-3), Adjacency.ADD_REMOVE, tokens, torch.tensor([0, 1]), net)
    for row in range(2):
        alone = clipped(Flat(1e-3), Adjacency.ADD_REMOVE, tokens[row : row + 1], torch.tensor([row]), net)
        assert math.isclose(flat_norm(alone.values), 1e-3, rel_tol=1e-9)
    assert flat_norm(found.values) <= 2e-3


@check
def check_pca_moment_is_bounded() -> None:
    made_up = torch.Generator().manual_seed(0)
    x = torch.randn(20, 6, generator=made_up, dtype=torch.float64)
    for adjacency, factor in ((Adjacency.ADD_REMOVE, 1.0), (Adjacency.REPLACE_ONE, math.sqrt(2))):
        worst = 0.0
        for scale in (0.1, 1.0, 50.0):
            other = x.clone()
            if adjacency is Adjacency.REPLACE_ONE:
                x = x.clone()
                x[0] = scale * torch.eye(6, dtype=torch.float64)[0]
                other[0] = scale * torch.eye(6, dtype=torch.float64)[1]
            else:
                other = torch.cat([x, scale * x[:1].sign()])
            one, two = (second_moment(rows, 1.0, one_sample(examples=len(rows)), adjacency) for rows in (x, other))
            worst = max(worst, float((one.values[0] - two.values[0]).norm()))
        assert one.sensitivity == factor
        assert 0.999 * factor <= worst <= factor * (1 + 1e-12)
    rows = x / x.norm(dim=1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(symmetric(one.values[0], 6), rows.T @ rows)
    for norm in (0.3, 7.0):  # long rows: all have this norm
        moment = second_moment(100 * x, norm, one_sample(examples=20), adjacency)
        assert math.isclose(moment.sensitivity, factor * norm**2)
        torch.testing.assert_close(symmetric(moment.values[0], 6).trace(), torch.tensor(20 * norm**2).double())


@check
def check_a_sample_is_spent_once_by_two_threads() -> None:
    """While one thread charges, another one waits, and is then refused."""
    both, started = threading.Barrier(2), []

    class Slow:
        def charge(self, event: Any, adjacency: Adjacency) -> None:
            started.append(event)
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.2)  # which is reached only if both charge at once

    sample, account, refused = one_sample(), Slow(), []

    def spend() -> None:
        try:
            sample.spend(Gaussian(1.0), Adjacency.ADD_REMOVE, account)  # type: ignore[arg-type]
        except SampleReused as error:
            refused.append(error)

    threads = [threading.Thread(target=spend) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(started) == len(refused) == 1


@check
def check_pca_moment_of_many_rows_is_bounded() -> None:
    """In single precision, of many rows that point nearly the same way: one adds its own moment, and no rounding."""
    made_up = torch.Generator().manual_seed(0)
    x = 9 * torch.randn(6, generator=made_up) + torch.randn(100_000, 6, generator=made_up)
    whole, without, alone = (
        second_moment(rows, 1.0, one_sample(examples=len(rows)), Adjacency.ADD_REMOVE).values[0].double()
        for rows in (x, x[1:], x[:1])
    )
    assert float((whole - without).norm()) <= 1
    assert float((whole - without - alone).norm()) <= 1e-9


@check
def check_models_that_couple_examples_are_refused() -> None:
    class Centred(nn.Module):
        def __init__(self, weight: float) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)
            self.weight = weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.layer(x)
            return out - self.weight * out.mean(0)

    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)
            self.register_buffer("seen", torch.zeros(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += x.detach().mean(0)
            return self.layer(x)

    class InTraining(nn.Module):
        """Couples in training only, forward in time, for large batches, or at some values."""

        def __init__(self, how: str) -> None:
            super().__init__()
            self.layer, self.how = nn.Linear(5, 3), how
            self.kept = nn.Parameter(torch.zeros(5), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.layer(x)
            if self.how == "training" and self.training:
                return out - out.mean(0)
            if self.how == "causal":
                return out.cumsum(0)
            if self.how == "size":
                return out - out.mean(0) if len(x) > 16 else out
            if self.how == "value":
                return out / 255 if bool(x.max() > 10) else out
            if self.how == "divided":
                return out / len(x)
            if self.how == "frozen":
                self.kept.data.copy_(x[0].float())
            return out

    norm = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    ways = [InTraining(how).eval() for how in ("training", "causal", "size", "value", "divided", "frozen")]
    for net in (norm, Centred(1.0), Centred(1e-4), Remembers(), *ways):
        must_raise(NotPerExample, lambda net=net: models_check.require_per_example(net, x))
    fine = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.LayerNorm(4), nn.Linear(4, 3))
    models_check.require_per_example(fine, x)
    # Of rows of many numbers fewer are made up.
    many = torch.zeros(1, 1 << 14)
    large = nn.Linear(1 << 14, 2)
    models_check.require_per_example(large, many)
    must_raise(NotPerExample, lambda: models_check.require_per_example(nn.Sequential(large, nn.BatchNorm1d(2)), many))


# Samplers

SAMPLERS: list[sampling.Sampler] = [
    sampling.Poisson(0.3),
    sampling.Partition(4),
    sampling.Shuffle(3),
    sampling.FullBatch(),
]


@check
def check_poisson_draws_independently_at_its_rate() -> None:
    """Each example's frequency, each pair's, and the spread of batch sizes; false alarms below 1e-6 each."""
    examples, rate, batches = 40, 0.15, 4000
    sampler = sampling.Poisson(rate)
    stream = streams_module.Streams.new(6).sampling
    taken = np.zeros((batches, examples))
    drawn: list[sampling.Sample] = []
    while len(drawn) < batches:
        drawn += list(sampler.draw(examples, stream))
    for row, sample in zip(taken, drawn, strict=False):
        row[sample.indices] = 1
    assert len(list(sampler.draw(examples, stream))) == math.ceil(1 / rate)
    spread = 5.5 * math.sqrt(rate * (1 - rate) / batches)
    assert np.abs(taken.mean(0) - rate).max() < spread
    pairs = taken.T @ taken / batches - rate**2
    np.fill_diagonal(pairs, 0)
    assert np.abs(pairs).max() < 6 * rate * (1 - rate) / math.sqrt(batches)
    sizes = taken.sum(1)
    variance = examples * rate * (1 - rate)
    assert abs(sizes.var() / variance - 1) < 6 * math.sqrt(2 / batches)


@check
def check_empty_batches_are_drawn() -> None:
    sampler = sampling.Poisson(0.01)
    sizes = [len(sample) for sample in sampler.draw(5, streams_module.Streams.new(7).sampling)]
    assert len(sizes) == 100
    assert sizes.count(0) > 50
    sizes = [len(sample) for sample in sampling.Partition(50).draw(5, streams_module.Streams.new(7).sampling)]
    assert len(sizes) == 50
    assert sum(sizes) == 5


@check
def check_partition_assigns_independently() -> None:
    examples, batches, epochs = 30, 5, 3000
    stream = streams_module.Streams.new(8).sampling
    bins = np.zeros((epochs, examples), dtype=int)
    for row in bins:
        for index, sample in enumerate(sampling.Partition(batches).draw(examples, stream)):
            row[sample.indices] = index
    counts = np.stack([(bins == b).mean(0) for b in range(batches)])
    assert np.abs(counts - 1 / batches).max() < 5.5 * math.sqrt(0.16 / epochs)
    together = (bins[:, :1] == bins[:, 1:]).mean(0)
    assert np.abs(together - 1 / batches).max() < 5.5 * math.sqrt(0.16 / epochs)
    sizes = np.stack([(bins == b).sum(1) for b in range(batches)])
    variance = examples / batches * (1 - 1 / batches)
    assert abs(sizes.var() / variance - 1) < 0.15


@check
def check_samplers_state_their_own_event() -> None:
    g = Gaussian(1.5)
    assert sampling.Poisson(0.3).event(g) == PoissonSampled(0.3, g)
    assert sampling.Partition(4).event(g) == Partitioned(4, g)
    assert sampling.Shuffle(3).event(g) == FixedBatches(g)
    assert sampling.FullBatch().event(g) == g


@check
def check_an_epoch_keeps_its_noise() -> None:
    """Later batches of an epoch need the same noise, ledger and neighbours as the first, which paid."""
    for sampler in (sampling.Partition(4), sampling.Shuffle(3)):
        first, second, *_ = sampler.draw(9, np.random.default_rng(0))
        ledger, kind = Ledger(), sampler.default_adjacency
        released(Bounded((torch.zeros(1),), 1.0, kind, first), 2.0, ledger)
        other_kind = next(a for a in Adjacency if a is not kind)
        for noise, account, neighbours in ((1.0, ledger, kind), (2.0, Ledger(), kind), (2.0, ledger, other_kind)):
            later = Bounded((torch.zeros(1),), 1.0, neighbours, second)
            must_raise(PrivlearnError, lambda a=(later, noise, account): refused_release(*a))
        released(Bounded((torch.zeros(1),), 1.0, kind, second), 2.0, ledger)
        assert ledger.event == compose([sampler.event(Gaussian(2.0))])


def released(part: Bounded, noise: float, account: Ledger) -> None:
    release_module.release(part, noise_multiplier=noise, ledger=account, stream=streams_module.Streams.new(9).noise)


def refused_release(part: Bounded, noise: float, account: Ledger) -> None:
    release_module.release(part, noise_multiplier=noise, ledger=account, stream=NoDraws())  # type: ignore[arg-type]


@check
def check_a_refused_sample_is_not_used_up() -> None:
    poor, part = Ledger(Budget(rho=0.1)), bounded(torch.zeros(1))
    must_raise(BudgetExceeded, lambda: refused_release(part, 1.0, poor))
    released(part, 3.0, poor)
    assert tally(poor.event) == {Gaussian(3.0): 1}


@check
def check_samples_and_streams_are_never_copied() -> None:
    sample = one_sample(sampling.Poisson(0.5))
    for other in (copy.copy(sample), copy.deepcopy(sample)):
        assert other is sample
    must_raise(TypeError, lambda: pickle.dumps(sample))
    streams = streams_module.Streams.new(0)
    seen: set[int] = set()
    for other in (copy.deepcopy(streams).noise, copy.copy(streams).noise, copy.deepcopy(streams.noise), streams.noise):
        words = set(other.words(50).tolist())
        assert not words & seen, "noise was drawn twice"
        seen |= words
    for secret in (streams, streams.noise):
        must_raise(TypeError, lambda secret=secret: pickle.dumps(secret))


@check
def check_one_sample_is_released_once_by_many_threads() -> None:
    for trial in range(30):
        part, ledger = bounded(torch.zeros(1), 1.0, one_sample(sampling.Poisson(0.5))), Ledger()
        done: list[int] = []

        def work(part: Bounded = part, ledger: Ledger = ledger, done: list[int] = done) -> None:
            with contextlib.suppress(SampleReused):
                released(part, 1.0, ledger)
                done.append(1)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == 1, trial
        assert sum(tally(ledger.event).values()) == 1


# Training


def train(plan: Plan, rows: int = 12, streams: streams_module.Streams | None = None, **options: Any) -> Any:
    return dpsgd_module.dpsgd(
        plan,
        small_net(),
        cross_entropy,
        small_data(rows),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        streams=streams or streams_module.Streams.new(0),
        **options,
    )


@check
def check_the_ledger_ends_where_the_plan_said() -> None:
    for sampler in SAMPLERS:
        for before in ((), (pv.transforms.PrivatePCA(3, 5.0),)):
            plan = Plan(sampler, epochs=3, schedule=pv.schedules.Exponential(k=0.2, start=4.0), front=before,
                        examples=12)  # fmt: skip
            network = nn.Sequential(nn.Linear(3 if before else 5, 3)).double()
            result = dpsgd_module.dpsgd(
                plan, network, cross_entropy, small_data(), streams=streams_module.Streams.new(0)
            )
            assert result.ledger.event == plan.event()
            assert result.ledger.adjacency is sampler.default_adjacency


@check
def check_every_step_is_noisy_and_paid() -> None:
    """With nearly empty batches the parameters still move at every step, by noise over the public divisor."""
    plan = Plan(sampling.Poisson(0.02), epochs=1, schedule=pv.schedules.Constant(1.0), clip=Flat(1.0), examples=500)
    moves = recorded_updates(plan, *small_data(3), seed=1)
    assert len(moves) == 50
    draws = torch.stack(moves).flatten().numpy()
    # Three examples of norm at most 1 hardly show; noise 1 over the declared 10 a batch does.
    assert 0.09 < draws.std() < 0.11


@check
def check_the_divisor_is_public() -> None:
    """With the same noise, one example more changes the update by its gradient over the declared number, no more."""
    x, y = small_data(6)
    plan = Plan(sampling.FullBatch(), epochs=1, schedule=pv.schedules.Constant(1e-6), clip=Flat(1e6), examples=10,
                adjacency=Adjacency.ADD_REMOVE)  # fmt: skip
    five, six = (recorded_updates(plan, x[:rows], y[:rows]) for rows in (5, 6))
    own = clipped(Flat(1e6), Adjacency.ADD_REMOVE, x[5:], y[5:]).values
    torch.testing.assert_close(six[0] - five[0], torch.cat([g.flatten() for g in own]) / 10, rtol=0, atol=1e-9)


def recorded_updates(plan: Plan, x: torch.Tensor, y: torch.Tensor, seed: int = 0) -> list[torch.Tensor]:
    """The noisy averages that the optimizer was given, step by step."""
    seen: list[torch.Tensor] = []

    class Recorder(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            seen.append(torch.cat([p.grad.flatten().clone() for p in self.param_groups[0]["params"]]))
            super().step(closure)

    dpsgd_module.dpsgd(
        plan,
        small_net(),
        cross_entropy,
        (x, y),
        optimizer=lambda p: Recorder(p, lr=0.1),
        streams=streams_module.Streams.new(seed),
    )
    return seen


@check
def check_neighbouring_runs_differ_only_by_the_released_sums() -> None:
    """Record and replay with the same randomness: one step on neighbours moves each update by at most C / divisor."""
    x, y = small_data(12)
    plan = Plan(sampling.FullBatch(), epochs=1, schedule=pv.schedules.Constant(0.7), clip=Flat(0.25), examples=12,
                adjacency=Adjacency.ADD_REMOVE)  # fmt: skip
    eleven, twelve = (recorded_updates(plan, x[:rows], y[:rows], seed=3) for rows in (11, 12))
    moved = float((eleven[0] - twelve[0]).norm())
    assert 0 < moved <= 0.25 / 12 * (1 + 1e-9)


@check
def check_training_refuses_before_touching_data() -> None:
    class Untouchable:
        def __len__(self) -> int:
            raise AssertionError("data was touched")

    plan = Plan(sampling.FullBatch(), epochs=5, schedule=pv.schedules.Constant(1.0))
    must_raise(
        BudgetExceeded,
        lambda: dpsgd_module.dpsgd(
            plan, small_net(), cross_entropy, (Untouchable(), Untouchable()), ledger=Ledger(Budget(rho=1.0))
        ),
    )


# Accounting and ledger


@check
def check_counts_are_priced() -> None:
    for leaf in (Gaussian(3.0), FixedBatches(Gaussian(3.0)), Partitioned(7, Gaussian(3.0))):
        assert math.isclose(zcdp.rho(Repeated(leaf, 20)), 20 / 18)
        assert math.isclose(zcdp.rho(Repeated(Repeated(leaf, 4), 5)), 20 / 18)
    step = PoissonSampled(0.01, Gaussian(1.0))
    assert 1.82 < pld.epsilon(Repeated(step, 1000), 1e-5) < 1.835
    assert math.isclose(pld.epsilon(Repeated(Repeated(step, 10), 100), 1e-5), pld.epsilon(Repeated(step, 1000), 1e-5))


@check
def check_epsilon_is_never_below_the_exact_gaussian() -> None:
    for sigma in (0.5, 1.0, 8.0, 60.0):
        for times in (1, 7, 400):
            exact = zcdp.gaussian_epsilon(math.sqrt(times) / sigma, 1e-5)
            found = pld.epsilon(Repeated(Gaussian(sigma), times), 1e-5)
            assert exact <= found * (1 + 1e-12)
            assert found <= exact * 1.001 + 1e-9


@check
def check_shuffling_is_not_amplified() -> None:
    epoch = FixedBatches(Gaussian(6.0))
    found = accountant.guarantee(Repeated(epoch, 400), Adjacency.ZERO_OUT, 1e-5)
    assert found.epsilon >= 19.13
    must_raise(UnsupportedEvent, lambda: accountant.guarantee(epoch, Adjacency.ADD_REMOVE, 1e-5))
    must_raise(
        UnsupportedEvent,
        lambda: accountant.guarantee(PoissonSampled(0.1, Gaussian(1.0)), Adjacency.REPLACE_ONE, 1e-5),
    )


@check
def check_adjacencies_never_mix() -> None:
    ledger = Ledger()
    ledger.charge(Gaussian(1.0), Adjacency.ADD_REMOVE)
    must_raise(AdjacencyMismatch, lambda: ledger.charge(Gaussian(1.0), Adjacency.ZERO_OUT))
    sample = one_sample()
    parts = [Bounded((torch.zeros(1),), 1.0, kind, sample) for kind in (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT)]
    must_raise(
        AdjacencyMismatch,
        lambda: release_module.release(
            *parts,
            noise_multiplier=1.0,
            ledger=Ledger(),
            stream=NoDraws(),  # type: ignore[arg-type]
        ),
    )


@check
def check_the_ledger_holds_its_budget() -> None:
    ledger = Ledger(Budget(rho=1.0))
    for _ in range(4):
        ledger.charge(Gaussian(math.sqrt(2)), Adjacency.ADD_REMOVE)
    must_raise(BudgetExceeded, lambda: ledger.charge(Gaussian(1000.0), Adjacency.ADD_REMOVE))
    assert tally(ledger.event) == {Gaussian(math.sqrt(2)): 4}
    ledger = Ledger(Budget(epsilon=1.0, delta=1e-5))
    step = PoissonSampled(0.05, Gaussian(1.5))
    with contextlib.suppress(BudgetExceeded):
        for _ in range(500):
            ledger.charge(step, Adjacency.ADD_REMOVE)
    count = tally(ledger.event)[step]
    assert ledger.limit is not None
    assert fits(ledger.limit, Repeated(step, count))
    assert not fits(ledger.limit, Repeated(step, count + 1))
    assert 0.8 < pld.epsilon(Repeated(step, count), 1e-5) <= ledger.guarantee(1e-5).epsilon <= 1.0


@check
def check_approval_covers_only_what_was_approved() -> None:
    ledger = Ledger(Budget(rho=1.0))
    ledger.begin(Repeated(Gaussian(2.0), 8), Adjacency.ADD_REMOVE)
    for _ in range(8):
        ledger.charge(Gaussian(2.0), Adjacency.ADD_REMOVE)
    must_raise(BudgetExceeded, lambda: ledger.charge(Gaussian(2.0), Adjacency.ADD_REMOVE))
    ledger = Ledger(Budget(rho=1.0))
    ledger.begin(Repeated(Gaussian(2.0), 8), Adjacency.ADD_REMOVE)
    must_raise(BudgetExceeded, lambda: ledger.charge(Gaussian(0.5), Adjacency.ADD_REMOVE))


@check
def check_spending_is_never_forked() -> None:
    ledger = Ledger(Budget(rho=1.0))
    for other in (copy.copy(ledger), copy.deepcopy(ledger), copy.deepcopy({"inside": ledger})["inside"]):
        other.charge(Gaussian(3.0), Adjacency.ADD_REMOVE)
    assert tally(ledger.event) == {Gaussian(3.0): 3}
    must_raise(TypeError, lambda: pickle.dumps(ledger))


@check
def check_calibration_stays_below_its_target() -> None:
    for sampler in (sampling.Poisson(0.05), sampling.Partition(20), sampling.Shuffle(10), sampling.FullBatch()):
        for schedule in (pv.schedules.Constant(), pv.schedules.Exponential(k=0.05), pv.schedules.Polynomial(k=3)):
            plan = Plan(sampler, epochs=12, schedule=schedule, front=(pv.transforms.PrivatePCA(4, 16.0),))
            plan = plan.calibrate(epsilon=2.0, delta=1e-5)
            assert 1.994 <= plan.guarantee(1e-5).epsilon <= 2.0


@check
def check_table_two_of_yu() -> None:
    """Yu et al. 2019, Table II: the epochs at which a budget of rho 0.78125 ends."""
    specs = {"constant:start=8": 100, "time:k=0.05": 38, "step:k=0.6,period=10": 31, "exp:k=0.01": 71}
    specs["poly:k=3,end=2,period=100"] = 44
    for spec, epochs in specs.items():
        plan = Plan(sampling.Shuffle(600), schedule=pv.schedules.parse(spec)).within(Budget(rho=0.78125))
        assert plan.epochs == epochs, (spec, plan.epochs)


# Publishing


@check
def check_changes_to_a_published_model_are_found() -> None:
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(sampling.Poisson(0.25), epochs=2).calibrate(epsilon=3.0, delta=1e-5)
        result = train(plan)
        out = publish.publish(result, Path(folder) / "model")
        assert verify.verify(out).ok
        for change in CHANGES:
            _require_found(out, change)
        weights = (out / "model.safetensors").read_bytes()
        (out / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
        found = verify.verify(out)
        assert not found.ok
        assert "model.safetensors" in " ".join(found.problems)


def _halve_count(body: dict[str, Any]) -> None:
    body["events"]["events"][0]["count"] //= 2


def _drop_event(body: dict[str, Any]) -> None:
    body["events"]["events"] = []


def _more_noise(body: dict[str, Any]) -> None:
    body["events"]["events"][0]["event"]["event"]["noise_multiplier"] *= 1.001


def _smaller_claim(body: dict[str, Any]) -> None:
    body["claim"]["epsilon"] *= 0.999


def _larger_claim(body: dict[str, Any]) -> None:
    body["claim"]["epsilon"] *= 1.01


def _other_plan(body: dict[str, Any]) -> None:
    body["plan"]["schedule"]["start"] = 99.0


def _other_method(body: dict[str, Any]) -> None:
    body["claim"]["method"] = "magic"


def _more_claims(body: dict[str, Any]) -> None:
    body["claim"]["certified_by"] = "somebody"


def _other_neighbours(body: dict[str, Any]) -> None:
    body["claim"]["adjacency"] = "replace_one"


def _unseeded(body: dict[str, Any]) -> None:
    body["randomness"] = "operating system"


CHANGES = [_halve_count, _drop_event, _more_noise, _smaller_claim, _larger_claim, _other_neighbours, _unseeded,
           _other_plan, _other_method, _more_claims]  # fmt: skip


def _require_found(out: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path, card = out / "privacy.json", out / "README.md"
    original, original_card = path.read_text(), card.read_text()
    for forge in (False, True):
        body = json.loads(original)
        before = certificate.header(*_stated(body["claim"]), None)
        change(body)
        if forge:  # a careful forger mends card and digests too; the arithmetic remains
            card.write_text(original_card.replace(before, certificate.header(*_stated(body["claim"]), None)))
            body["files"]["README.md"] = hashlib.sha256(card.read_bytes()).hexdigest()
            body["digests"] = {part: certificate.digest(body[part]) for part in body["digests"]}
        path.write_text(json.dumps(body))
        found = verify.verify(out)
        path.write_text(original)
        card.write_text(original_card)
        if not forge or change is not _unseeded:
            assert not found.ok, f"{change.__name__} went unnoticed"
            assert found.problems


def _stated(claim: dict[str, Any]) -> list[Any]:
    return [claim[name] for name in ("epsilon", "delta", "adjacency", "unit")]


@check
def check_private_figures_are_not_published() -> None:
    plan = Plan(sampling.FullBatch(), epochs=2).calibrate(epsilon=3.0, delta=1e-5)
    result = train(plan)
    assert set(result.private_diagnostics) == {"loss", "clipped_share", "left_out"}
    assert "0." not in repr(result.private_diagnostics)
    with tempfile.TemporaryDirectory() as folder:
        must_raise(
            PrivlearnError,
            lambda: publish.publish(result, Path(folder) / "a", data=result.private_diagnostics),  # type: ignore
        )
        out = publish.publish(result, Path(folder) / "b")
        text = " ".join(path.read_bytes().decode("latin-1") for path in out.iterdir())
        for figure in result.private_diagnostics["loss"]:
            assert f"{figure:.6f}"[:8] not in text


@check
def check_seeded_runs_say_so() -> None:
    plan = Plan(sampling.FullBatch(), epochs=1).calibrate(epsilon=3.0, delta=1e-5)
    with tempfile.TemporaryDirectory() as folder:
        seeded = publish.publish(train(plan, streams=streams_module.Streams.new(0)), Path(folder) / "seeded")
        fresh = publish.publish(train(plan, streams=streams_module.Streams.new()), Path(folder) / "fresh")
        assert any("seed" in warning for warning in verify.verify(seeded).warnings)
        assert verify.verify(fresh).warnings == []


@check
def check_gaussian_noise_is_for_values_bounded_in_l2() -> None:
    """Another norm is refused before anything is charged or changed."""
    ledger, value = Ledger(), torch.zeros(3)
    in_l1 = Bounded((value,), 1.0, Adjacency.ADD_REMOVE, one_sample(), norm="L1")
    must_raise(BadInput, lambda: refused_release(in_l1, 2.0, ledger))
    assert ledger.adjacency is None
    assert not value.any()
