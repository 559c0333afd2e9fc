"""Testers of every source of noise and every sampler: each accepts the right law and must reject
wrong ones.

All are two-sided. The probability that a right law fails anywhere in a run of tests/statistical is
below 1e-6 (seeds are fixed besides, so that it either never does or always): at most 20 runs of
testers on the right law with at most 400 comparisons each, so every single p-value may be as small
as 1e-6 / 8000 = 1.25e-10. In standard deviations of a normal figure that is 6.43; sample sizes are
chosen so that wrong laws are out by 10 and more.

P-values are exact (normal, chi-square and binomial laws) but for three kinds: fourth moments of a
million draws, spreads of thousands of batch sizes, and Kolmogorov and Smirnov's distance. For
these, limit laws are off by a factor of at most four at such levels (by the skewness of the sums),
and each counts as four comparisons.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from scipy import special, stats
from torch import Tensor, nn

import privlearn as pv
from privlearn.core import sampling
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping import clips, row_sums
from privlearn.core.mechanisms.noise import add_gaussian, add_on_grid
from privlearn.core.plan import Plan
from privlearn.core.streams import Streams
from privlearn.training import run as dpsgd_module
from privlearn.transforms import pca

FALSE_ALARM, RUNS, COMPARISONS = 1e-6, 24, 400
#: The smallest p-value that passes.
LEVEL = FALSE_ALARM / (RUNS * COMPARISONS)

Array = np.ndarray[Any, Any]
Adder = Callable[[Any, float, Any], None]
_made = [0]


def tester(function: Callable[..., None]) -> Callable[..., None]:
    """Count the comparisons that `function` makes, and fail if they are more than were budgeted."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        _made[0] = 0
        function(*args, **kwargs)
        assert 0 < _made[0] <= COMPARISONS, (
            f"{function.__name__} made {_made[0]} comparisons: {COMPARISONS} are budgeted"
        )

    return run


def likely(p: Any, what: str, times: int = 1) -> None:
    """Fail if one of the p-values `p` is below the level; each counts as `times` comparisons."""
    values = np.atleast_1d(np.asarray(p, dtype=float))
    _made[0] += times * values.size
    assert (values >= times * LEVEL).all(), (
        f"{what}: a p-value of {values.min():.2g} is below {times * LEVEL:.2g}"
    )


# Two-sided p-values


def normal_p(z: Any) -> Any:
    """Of figures with standard normal law."""
    return 2 * stats.norm.sf(np.abs(z))


def binomial_p(found: Any, trials: Any, chance: float) -> Any:
    """Of counts."""
    low, high = (
        stats.binom.cdf(found, trials, chance),
        stats.binom.sf(np.asarray(found) - 1, trials, chance),
    )
    return np.minimum(1.0, 2 * np.minimum(low, high))


def variance_p(z: Array) -> float:
    """Of the mean square of standard normal draws."""
    total = float((z**2).sum())
    return float(2 * min(stats.chi2.cdf(total, z.size), stats.chi2.sf(total, z.size)))


def independence_p(one: Array, other: Array) -> Any:
    """Standard normal draws against others, along the last dimension; given one, the product with
    the other is normal.

    Also of their magnitudes alone, brought to a normal law: pairs with a common radius, or with own
    signs only.
    """
    found = []
    for a, b in ((one, other), (_scores(one), _scores(other))):
        found.append(normal_p((a * b).sum(-1) / np.sqrt((a**2).sum(-1))))
    return np.concatenate([np.atleast_1d(p) for p in found])


def _scores(z: Array) -> Array:
    """Magnitudes of standard normal draws, as standard normal draws: Phi^-1(2 Phi(|z|) - 1)."""
    return np.asarray(
        special.ndtri(np.clip(special.erf(np.abs(z) / math.sqrt(2)), 1e-300, 1 - 1e-16))
    )


def require_normal(z: Array, what: str) -> None:
    """Mean, variance, fourth moment, shape, signs and tails of standard normal draws."""
    n = z.size
    likely(normal_p(z.sum() / math.sqrt(n)), f"the mean of {what}")
    likely(variance_p(z), f"the variance of {what}: {z.var():.5f}")
    likely(normal_p(((z**4).sum() - 3 * n) / math.sqrt(96 * n)), f"the fourth moment of {what}", 4)
    likely(stats.kstest(z, "norm").pvalue, f"the shape of {what}", 4)
    for far in (0.0, 0.5, 1.0, 2.0, 3.0, 4.0):
        beyond = [int((z > far).sum()), int((z < -far).sum())]
        likely(
            binomial_p(beyond, n, float(stats.norm.sf(far))),
            f"draws of {what} beyond {far:g}: {beyond} of {n}",
        )


# Noise


@tester
def require_gaussian(
    add: Adder = add_gaussian, dtype: torch.dtype = torch.float32, std: float = 1.0, seed: int = 0
) -> None:
    """A million draws, and on top of what was there; no part of them wider than another."""
    values = torch.full((1 << 20,), 0.5, dtype=dtype) * std
    add([values], std, Streams.new(seed).noise)
    z = values.double().numpy() / std - 0.5
    require_normal(z, f"noise in {dtype}")
    likely(
        [variance_p(part) for part in z.reshape(64, -1)],
        f"the variance of parts of noise in {dtype}",
    )
    assert len(np.unique(z)) > 0.9 * len(z), "numbers repeat themselves"
    # Of a million draws in single precision, 0.05 are so small that they are lost: more than ten
    # have a chance of 1e-22.
    assert (z == 0).sum() <= 10, f"{(z == 0).sum()} numbers have no noise"


def on_grid(values: Any, std: float, stream: Any) -> None:
    """Noise on a grid, added as `add_gaussian` adds."""
    add_on_grid(values, std, 1.0, stream)


def by_chacha(values: Any, std: float, stream: Any) -> None:
    """Noise that ChaCha20 makes, added as `add_gaussian` adds."""
    stream.choose("chacha20")
    add_gaussian(values, std, stream)


def on_grid_by_chacha(values: Any, std: float, stream: Any) -> None:
    """Noise on a grid that ChaCha20 makes."""
    stream.choose("chacha20")
    on_grid(values, std, stream)


@tester
def require_gaussian_on_grid(add: Adder = on_grid, seed: int = 0) -> None:
    """Half a million draws; their scale has 0.2% of room, because it pays for the rounding to the
    grid.
    """
    values = torch.full((1 << 19,), 0.3, dtype=torch.float64)
    add([values], 2.0, Streams.new(seed).noise)
    z = (values.numpy() - 0.3) / 2.0
    # A grid that is finer than any that there may be.
    assert np.equal(np.mod(values.numpy(), 2.0**-31), 0).all(), "numbers are off the grid"
    assert 1.0 - 0.006 < z.std() < 1.0 + 0.008, f"a standard deviation of {z.std()}"
    require_normal(z / z.std(), "noise on a grid")


@tester
def require_far_tails(
    add: Adder = add_gaussian, dtype: torch.dtype = torch.float32, seed: int = 0
) -> None:
    """Forty million draws: beyond 5 standard deviations there are 11 on each side."""
    stream, beyond, size, parts = Streams.new(seed).noise, np.zeros((3, 2), dtype=int), 1 << 20, 80
    for _ in range(parts):
        values = torch.zeros(size, dtype=dtype)
        add([values], 1.0, stream)
        beyond += [
            [int((values > far).sum()), int((values < -far).sum())] for far in (4.0, 4.5, 5.0)
        ]
    for far, found in zip((4.0, 4.5, 5.0), beyond, strict=True):
        likely(
            binomial_p(found, size * parts, float(stats.norm.sf(far))),
            f"draws beyond {far:g}: {found}",
        )


@tester
def require_independent_numbers(
    add: Adder = add_gaussian, dtype: torch.dtype = torch.float32, seed: int = 0
) -> None:
    """Numbers of one tensor at distances of powers of two, and the halves of tensors of any
    size.
    """
    stream = Streams.new(seed).noise
    values = torch.zeros(1 << 19, dtype=dtype)
    add([values], 1.0, stream)
    z = values.double().numpy()
    for apart in range(19):
        pairs = z.reshape(-1, 2, 1 << apart)
        likely(
            independence_p(pairs[:, 0].ravel(), pairs[:, 1].ravel()), f"numbers {1 << apart} apart"
        )
    for size in (40_000, 40_001, 40_002, 40_003, (1 << 17) + 40_000):
        values = torch.zeros(size, dtype=dtype)
        add([values], 1.0, stream)
        z, half = values.double().numpy(), (size + 1) // 2
        for start in (half, half - 1):
            likely(
                independence_p(z[: size - half], z[start : start + size - half]),
                f"halves of {size} numbers",
            )


@tester
def require_independent_parts(add: Adder = add_gaussian, seed: int = 0) -> None:
    """The tensors of one release, of any shapes and types."""
    single, double = torch.float32, torch.float64
    shapes = {
        single: [(30_000,), (300, 100), (30_000,), (131_072,)],
        double: [(30_000,), (30, 1000)],
    }
    parts = [
        torch.zeros(shape, dtype=kind)
        for kind in (single, double, single)
        for shape in shapes[kind][:3]
    ]
    add(parts, 2.0, Streams.new(seed).noise)
    z = [part.double().numpy().ravel() / 2.0 for part in parts]
    for i, one in enumerate(z):
        likely(variance_p(one), f"the variance of part {i}")
        for j in range(i):
            likely(independence_p(one[:30_000], z[j][:30_000]), f"parts {i} and {j}")


@tester
def require_fresh_noise(add: Adder = add_gaussian, seed: int = 0) -> None:
    """Releases one after the other, on one stream."""
    stream, found = Streams.new(seed).noise, []
    for _ in range(30):
        values = torch.zeros(20_000)
        add([values], 1.0, stream)
        found.append(values.double().numpy())
    for apart in (1, 2, 5, 10):
        for step in range(apart, 30):
            likely(
                independence_p(found[step], found[step - apart]),
                f"releases {step - apart} and {step}",
            )


@tester
def require_streams_apart(new: Callable[..., Streams] = Streams.new) -> None:
    """Fresh streams, other seeds, and other purposes."""

    def noise(streams: Streams) -> Array:
        values = torch.zeros(100_000, dtype=torch.float64)
        add_gaussian([values], 1.0, streams.noise)
        return values.numpy()

    made = [noise(new()), noise(new()), noise(new()), noise(new(0)), noise(new(1)), noise(new(2))]
    for i, one in enumerate(made):
        for j in range(i):
            likely(independence_p(one, made[j]), f"the noise of streams {i} and {j}")
    for seed in (None, 3):
        streams = new(seed)
        others = [
            stream.standard_normal(100_000)
            for stream in (streams.sampling, streams.initialisation, streams.views)
        ]
        for i, j in ((0, 1), (0, 2), (1, 2)):
            likely(
                independence_p(others[i], others[j]),
                "two of the streams of sampling, initialisation and views",
            )
        for other in others:
            likely(independence_p(noise(streams), other), "the stream of noise and another")


@contextlib.contextmanager
def _patched(modules: Any, patches: dict[str, Any] | None) -> Iterator[None]:
    """A module, or the first of several that has it, with other functions, for planted bugs."""
    modules = modules if isinstance(modules, tuple) else (modules,)
    with contextlib.ExitStack() as stack:
        for name, other in (patches or {}).items():
            module = next(module for module in modules if hasattr(module, name))
            stack.enter_context(mock.patch.object(module, name, other))
        yield


@tester
def require_noisy_training(patches: dict[str, Any] | None = None) -> None:
    """What the optimizer gets in a run on rows that count for nothing: noise of the plan's scale,
    fresh at each step.

    Every number is a Gaussian of standard deviation multiplier x clip norm, over the declared batch
    size; independent of others, of earlier steps and of the other parameter's.
    """
    seen: list[list[Array]] = []

    class Recorder(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            seen.append(
                [p.grad.double().numpy().ravel().copy() for p in self.param_groups[0]["params"]]
            )

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = (
                nn.Linear(2, 20_000, bias=False),
                nn.Linear(2, 20_000, bias=False),
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.one(x) + self.other(x)

    epochs, k = 3, 0.5
    plan = Plan(
        sampling.Partition(5),
        epochs,
        pv.schedules.Exponential(k=k, start=3.0),
        clips.Flat(0.25),
        examples=50,
    )
    data = torch.full((50, 2), math.nan), torch.zeros(50)
    with _patched(dpsgd_module, patches):
        pv.dpsgd(
            plan,
            Two(),
            lambda out, y: out.square().sum(1),
            data,
            optimizer=lambda p: Recorder(p, lr=0.0),
            streams=Streams.new(5),
        )
    assert len(seen) == 5 * epochs
    z = [
        [part * 10.0 / (0.25 * 3.0 * math.exp(-k * (step // 5))) for part in parts]
        for step, parts in enumerate(seen)
    ]
    require_normal(np.concatenate([part for parts in z for part in parts]), "noise in training")
    for step, parts in enumerate(z):
        likely([variance_p(part) for part in parts], f"the variance of step {step}")
        likely(independence_p(*parts), f"two parameters at step {step}")
        for earlier in range(max(0, step - 5), step):
            likely(independence_p(parts[0], z[earlier][0]), f"steps {earlier} and {step}")


@tester
def require_pca_noise(patches: dict[str, Any] | None = None) -> None:
    """The matrix that PCA decomposes, on rows of zeros: symmetric, variance s^2 on the diagonal and
    s^2 / 2 off it.
    """
    features, multiplier, found = 200, 2.0, []
    real = torch.linalg.eigh
    stream = Streams.new(7).noise

    def seen(matrix: Tensor) -> Any:
        found.append(matrix.double().numpy().copy())
        return real(torch.eye(features, dtype=matrix.dtype))

    with mock.patch.object(torch.linalg, "eigh", seen), _patched((row_sums, pca), patches):
        for _ in range(60):
            pv.transforms.PrivatePCA(2, multiplier).fit(
                torch.zeros(3, features), Adjacency.ADD_REMOVE, Ledger(), stream
            )
    matrices = np.stack(found) / multiplier
    assert (matrices == matrices.transpose(0, 2, 1)).all(), "the noise is not symmetric"
    diagonal = np.diagonal(matrices, axis1=1, axis2=2)
    i, j = np.triu_indices(features, 1)
    beside = matrices[:, i, j] * math.sqrt(2)
    require_normal(diagonal.ravel(), "noise on the diagonal")
    require_normal(beside.ravel(), "noise beside the diagonal")
    likely(
        independence_p(diagonal[1:].ravel(), diagonal[:-1].ravel()), "diagonals one after the other"
    )
    likely(independence_p(beside[1:].ravel(), beside[:-1].ravel()), "matrices one after the other")
    likely(
        independence_p(beside[:, : features // 2].ravel(), diagonal[:, features // 2 :].ravel()),
        "a diagonal and a row",
    )


# Samplers


def _spread_p(sizes: Array, trials: int, chance: float) -> float:
    """Of the variance of independent binomial counts."""
    variance = trials * chance * (1 - chance)
    fourth = variance * (1 + 3 * (trials - 2) * chance * (1 - chance))
    scaled = ((sizes - trials * chance) ** 2 - variance).sum() / math.sqrt(
        len(sizes) * (fourth - variance**2)
    )
    return float(normal_p(scaled))


@tester
def require_poisson(draw: Callable[..., Any] | None = None, seed: int = 0) -> None:
    """Each example independently in each batch, at the rate; batches in the number and sizes that
    follow from it.
    """
    rate, examples, batches = 0.2, 60, 30_000
    draw = draw or sampling.Poisson(rate).draw
    stream, taken, number = Streams.new(seed).sampling, np.zeros((batches, examples), dtype=bool), 0
    while number < batches:
        epoch = list(draw(examples, stream))
        assert len(epoch) == 5, "an epoch is ceil(1 / rate) batches, empty ones too"
        for sample in epoch:
            assert len(np.unique(sample.indices)) == len(sample)
            taken[number, sample.indices] = True
            number += 1
    likely(binomial_p(int(taken.sum()), taken.size, rate), f"the rate: {taken.mean():.4f}")
    likely(binomial_p(taken.sum(0), batches, rate), "each example's rate")
    for apart in (1, 2, 7):
        together = (taken & np.roll(taken, apart, axis=1)).sum(0)
        likely(binomial_p(together, batches, rate**2), f"pairs of examples {apart} apart")
    for apart in (1, 5):
        pairs = taken.reshape(-1, 2, apart, examples)
        both = int((pairs[:, 0] & pairs[:, 1]).sum())
        likely(binomial_p(both, taken.size // 2, rate**2), f"batches {apart} apart")
    sizes = taken.sum(1)
    likely(_spread_p(sizes, examples, rate), f"the variance of batch sizes: {sizes.var():.3f}", 4)


@tester
def require_partition(draw: Callable[..., Any] | None = None, seed: int = 0) -> None:
    """Every example once an epoch, in a batch by itself and at random, afresh each epoch."""
    batches, examples, epochs = 5, 30, 8000
    draw = draw or sampling.Partition(batches).draw
    stream, bins = Streams.new(seed).sampling, np.full((epochs, examples), -1)
    for row in bins:
        drawn = list(draw(examples, stream))
        assert sorted(np.concatenate([sample.indices for sample in drawn])) == list(
            range(examples)
        ), "not once an epoch"
        assert len(drawn) == batches
        for number, sample in enumerate(drawn):
            row[sample.indices] = number
    counts = np.stack([(bins == number).sum(0) for number in range(batches)])
    likely(binomial_p(counts, epochs, 1 / batches), "each example's batch")
    for apart in (1, 2, 7):
        same = (bins == np.roll(bins, apart, axis=1)).sum(0)
        likely(binomial_p(same, epochs, 1 / batches), f"pairs of examples {apart} apart")
    pairs = bins.reshape(-1, 2, examples)
    likely(
        binomial_p(int((pairs[:, 0] == pairs[:, 1]).sum()), epochs * examples // 2, 1 / batches),
        "epochs in a row",
    )
    for number in range(batches):
        sizes = (bins == number).sum(1)
        likely(
            _spread_p(sizes, examples, 1 / batches), f"the variance of sizes: {sizes.var():.3f}", 4
        )


@tester
def require_shuffle(draw: Callable[..., Any] | None = None, seed: int = 0) -> None:
    """Every order alike, afresh each epoch: places of each row, which of two comes first, and what
    follows what.
    """
    examples, size, epochs = 11, 4, 8000
    draw = draw or sampling.Shuffle(size).draw
    stream, order = Streams.new(seed).sampling, np.zeros((epochs, examples), dtype=int)
    for row in order:
        drawn = list(draw(examples, stream))
        assert [len(sample) for sample in drawn] == [4, 4, 3]
        row[:] = np.concatenate([sample.indices for sample in drawn])
        assert len(np.unique(row)) == examples
    place = order.argsort(1)
    counts = np.stack([(place == spot).sum(0) for spot in range(examples)])
    likely(binomial_p(counts, epochs, 1 / examples), "each row's place")
    for apart in (1, 2, 5):
        other = np.roll(place, apart, axis=1)
        likely(
            binomial_p((place < other).sum(0), epochs, 0.5),
            f"which of two rows {apart} apart comes first",
        )
        likely(
            binomial_p((place + 1 == other).sum(0), epochs, 1 / examples),
            f"rows {apart} apart that follow each other",
        )
    pairs = place.reshape(-1, 2, examples)
    likely(
        binomial_p((pairs[:, 0] == pairs[:, 1]).sum(0), epochs // 2, 1 / examples),
        "epochs in a row",
    )
