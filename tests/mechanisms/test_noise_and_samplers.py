"""Every source of noise and every sampler has its law, and the testers that say so reject planted
wrong ones.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from privlearn.core import sampling
from privlearn.core.clipping import row_sums
from privlearn.core.mechanisms.noise import add_gaussian
from privlearn.core.mechanisms.release import release
from privlearn.core.streams import Streams
from tests.mechanisms import testers as s

SINGLE, DOUBLE = torch.float32, torch.float64

#: The testers on the right law; their number is what the budget of false alarms is divided by.
RIGHT: dict[str, Callable[[], None]] = {
    "noise in single precision": lambda: s.require_gaussian(dtype=SINGLE),
    "noise in double precision": lambda: s.require_gaussian(dtype=DOUBLE),
    "much noise": lambda: s.require_gaussian(dtype=DOUBLE, std=1e9, seed=1),
    "little noise": lambda: s.require_gaussian(dtype=SINGLE, std=1e-9, seed=2),
    "numbers in single precision": lambda: s.require_independent_numbers(dtype=SINGLE),
    "numbers in double precision": lambda: s.require_independent_numbers(dtype=DOUBLE),
    "noise on a grid": s.require_gaussian_on_grid,
    "numbers on a grid": lambda: s.require_independent_numbers(s.on_grid, dtype=DOUBLE),
    "noise by ChaCha20 in single precision": lambda: s.require_gaussian(s.by_chacha, dtype=SINGLE),
    "noise by ChaCha20 in double precision": lambda: s.require_gaussian(s.by_chacha, dtype=DOUBLE),
    "numbers by ChaCha20": lambda: s.require_independent_numbers(s.by_chacha, dtype=SINGLE),
    "noise on a grid by ChaCha20": lambda: s.require_gaussian_on_grid(s.on_grid_by_chacha),
    "parts of a release by ChaCha20": lambda: s.require_independent_parts(s.by_chacha),
    "releases in a row by ChaCha20": lambda: s.require_fresh_noise(s.by_chacha),
    "parts of a release": s.require_independent_parts,
    "releases in a row": s.require_fresh_noise,
    "streams": s.require_streams_apart,
    "training": s.require_noisy_training,
    "PCA": s.require_pca_noise,
    "Poisson sampling": s.require_poisson,
    "partitions": s.require_partition,
    "shuffles": s.require_shuffle,
    "far tails in single precision": lambda: s.require_far_tails(dtype=SINGLE),
    "far tails in double precision": lambda: s.require_far_tails(dtype=DOUBLE),
}


def test_the_budget_of_false_alarms_holds() -> None:
    assert len(RIGHT) <= s.RUNS
    assert s.LEVEL * s.RUNS * s.COMPARISONS <= 1.0001e-6
    assert 6.4 < -s.special.ndtri(s.LEVEL / 2) < 6.5


@pytest.mark.parametrize("name", RIGHT)
def test_the_right_law_is_accepted(name: str) -> None:
    RIGHT[name]()


# Noise that is wrong. Each is added as `add_gaussian` adds.


def changed(change: Callable[[torch.Tensor], torch.Tensor]) -> s.Adder:
    """Right noise, of which `change` makes something else."""

    def add(values: Any, std: float, stream: Any) -> None:
        for value in values:
            noise = torch.zeros(value.numel(), dtype=value.dtype)
            add_gaussian([noise], 1.0, stream)
            value.view(-1).add_(change(noise), alpha=std)

    return add


def uniform(z: torch.Tensor) -> torch.Tensor:
    return (torch.special.ndtr(z) - 0.5) * math.sqrt(12)


def laplace(z: torch.Tensor) -> torch.Tensor:
    u = torch.special.ndtr(z.double()) - 0.5
    return (-u.sign() * torch.log1p(-2 * u.abs()) / math.sqrt(2)).to(z.dtype)


def of_few_levels(z: torch.Tensor) -> torch.Tensor:
    return (z * 64).round() / 64


def widening(z: torch.Tensor) -> torch.Tensor:
    return z * torch.linspace(0.95, math.sqrt(3 - 0.95**2 - 0.95), len(z), dtype=z.dtype)


WRONG_SHAPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sigma 1% too small": lambda z: z * 0.99,
    "sigma 1% too large": lambda z: z * 1.01,
    "off centre by 1%": lambda z: z + 0.01,
    "uniform": uniform,
    "Laplace": laplace,
    "signs only": torch.sign,
    "of one sign": torch.abs,
    "tails cut off at 4": lambda z: z.clamp(-4, 4),
    "tails cut off at 3, sigma mended": lambda z: z.clamp(-3, 3) * 1.0015,
    "one tail cut off": lambda z: z.clamp(max=4),
    "of few levels": of_few_levels,
    "wider at the end": widening,
    "some numbers without": lambda z: z * (torch.arange(len(z)) % 200 > 0),
    "none": torch.zeros_like,
}


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
@pytest.mark.parametrize("name", WRONG_SHAPES)
def test_noise_of_a_wrong_shape_is_rejected(name: str, dtype: torch.dtype) -> None:
    with pytest.raises(AssertionError):
        s.require_gaussian(changed(WRONG_SHAPES[name]), dtype=dtype)


def test_tails_cut_off_far_out_are_rejected() -> None:
    for far in (4.5, 5.0):
        with pytest.raises(AssertionError):
            s.require_far_tails(changed(lambda z, far=far: z.clamp(-far, far)), dtype=SINGLE)


def on_grid_but(change: Callable[[torch.Tensor], torch.Tensor]) -> s.Adder:
    """Noise on a grid, of which `change` makes something else."""

    def add(values: Any, std: float, stream: Any) -> None:
        for value in values:
            noise = torch.zeros_like(value)
            s.on_grid([noise], 1.0, stream)
            value.view(-1).add_(change(noise.view(-1)), alpha=std)

    return add


@pytest.mark.parametrize(
    "change",
    [
        lambda z: z * 0.99,
        lambda z: z * 1.01,
        lambda z: z,  # the value itself is off the grid
        lambda z: (z * 16).round() / 16,
        lambda z: z.clamp(-3.5, 3.5),
        lambda z: z.abs(),
    ],
)
def test_wrong_noise_on_a_grid_is_rejected(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(AssertionError):
        s.require_gaussian_on_grid(on_grid_but(change))


def variance_for_std(values: Any, std: float, stream: Any) -> None:
    add_gaussian(values, std**2, stream)


def replacing(values: Any, std: float, stream: Any) -> None:
    for value in values:
        value.zero_()
    add_gaussian(values, std, stream)


@pytest.mark.parametrize("add", [variance_for_std, replacing])
def test_noise_of_another_scale_or_place_is_rejected(add: s.Adder) -> None:
    with pytest.raises(AssertionError):
        s.require_gaussian(add, std=1.01)


def halves(
    z: torch.Tensor, how: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """The second half made of the first, and of what it was."""
    half = (len(z) + 1) // 2
    return torch.cat([z[:half], how(z[: len(z) - half], z[half:])])


WRONG_NUMBERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "halves are the same": lambda z: halves(z, lambda first, second: first),
    "halves are opposite": lambda z: halves(z, lambda first, second: -first),
    "halves have the same size": lambda z: halves(
        z, lambda first, second: first.abs() * second.sign()
    ),
    "halves go together a little": lambda z: halves(
        z, lambda first, second: 0.05 * first + math.sqrt(0.9975) * second
    ),
    "neighbours are the same": lambda z: z[::2].repeat_interleave(2)[: len(z)],
    "blocks are the same": lambda z: z[: 1 << 12].repeat(len(z) // (1 << 12) + 1)[: len(z)],
    "neighbours have the same size": lambda z: (
        z[::2].abs().repeat_interleave(2)[: len(z)] * z.roll(7).sign()
    ),
}


@pytest.mark.parametrize("name", WRONG_NUMBERS)
def test_numbers_that_go_together_are_rejected(name: str) -> None:
    with pytest.raises(AssertionError):
        s.require_independent_numbers(changed(WRONG_NUMBERS[name]))


def one_noise_for_all(values: Any, std: float, stream: Any) -> None:
    for value in values:
        add_gaussian([value], std, Streams.new(4).noise)


def same_for_equal_shapes(values: Any, std: float, stream: Any) -> None:
    noises: dict[Any, torch.Tensor] = {}
    for value in values:
        if value.shape not in noises:
            noises[value.shape] = torch.zeros(value.shape, dtype=DOUBLE)
            add_gaussian([noises[value.shape]], std, stream)
        value += noises[value.shape].to(value.dtype)


def only_the_first(values: Any, std: float, stream: Any) -> None:
    add_gaussian(values[:1], std, stream)


def by_sensitivity_of_each(values: Any, std: float, stream: Any) -> None:
    for value in values:
        add_gaussian([value], std / math.sqrt(len(values)), stream)


@pytest.mark.parametrize(
    "add", [one_noise_for_all, same_for_equal_shapes, only_the_first, by_sensitivity_of_each]
)
def test_parts_that_share_or_lack_noise_are_rejected(add: s.Adder) -> None:
    with pytest.raises(AssertionError):
        s.require_independent_parts(add)


class Again:
    """Noise that is drawn once, and used again for some releases."""

    def __init__(self, every: int, signs: bool = False) -> None:
        self.every, self.signs, self.calls = every, signs, 0
        self.held: list[torch.Tensor] = []

    def __call__(self, values: Any, std: float, stream: Any) -> None:
        fresh = [torch.zeros_like(value) for value in values]
        add_gaussian(fresh, 1.0, stream)
        if self.calls % self.every == 0:
            self.held = fresh
        self.calls += 1
        for value, noise, other in zip(values, self.held, fresh, strict=True):
            value.add_(noise.abs() * other.sign() if self.signs else noise, alpha=std)


@pytest.mark.parametrize(
    ("every", "signs"), [(2, False), (5, False), (10**9, False), (10**9, True)]
)
def test_noise_that_is_used_again_is_rejected(every: int, signs: bool) -> None:
    with pytest.raises(AssertionError):
        s.require_fresh_noise(Again(every, signs))


def test_streams_that_are_the_same_are_rejected() -> None:
    def one_purpose(seed: int | None = None) -> Streams:
        made = Streams.new(seed)
        return Streams(
            made.sampling, made.noise, copy.deepcopy(made.sampling), made.views, made.seeded
        )

    for new in (
        lambda seed=None: Streams.new(0 if seed is None else seed),
        lambda seed=None: Streams.new(9),
        one_purpose,
    ):
        with pytest.raises(AssertionError):
            s.require_streams_apart(new)


# Training


def releasing(add: s.Adder) -> Callable[..., Any]:
    """`release` with other noise."""

    def wrong(*parts: Any, noise_multiplier: float, ledger: Any, stream: Any) -> Any:
        before = [[value.clone() for value in part.values] for part in parts]
        found = release(*parts, noise_multiplier=noise_multiplier, ledger=ledger, stream=stream)
        for part, values in zip(parts, before, strict=True):
            for value, was in zip(part.values, values, strict=True):
                value.copy_(was)
            add(list(part.values), noise_multiplier * part.sensitivity, stream)
        return found

    return wrong


WRONG_RELEASES: dict[str, Callable[[], s.Adder]] = {
    "once an epoch": lambda: Again(5),
    "once": lambda: Again(10**9),
    "the same for both parameters": lambda: same_for_equal_shapes,
    "for one parameter only": lambda: only_the_first,
    "shared out among parameters": lambda: by_sensitivity_of_each,
    "1% too little": lambda: changed(lambda z: z * 0.99),
    "signs": lambda: changed(torch.sign),
}


@pytest.mark.parametrize("name", WRONG_RELEASES)
def test_training_with_wrong_noise_is_rejected(name: str) -> None:
    with pytest.raises(AssertionError):
        s.require_noisy_training({"release": releasing(WRONG_RELEASES[name]())})


# PCA


_SYMMETRIC = row_sums.symmetric  # as it is before a test replaces it


def plain_triangle(vector: torch.Tensor, features: int) -> torch.Tensor:
    """sqrt(2) was forgotten."""
    upper = vector.new_zeros(features, features)
    i, j = row_sums._upper_triangle(features)
    upper[i, j] = vector
    return upper.triu(1) + upper.triu(1).T + upper.diag().diag()


def both_halved(vector: torch.Tensor, features: int) -> torch.Tensor:
    return _SYMMETRIC(vector, features) / math.sqrt(2)


def lopsided(vector: torch.Tensor, features: int) -> torch.Tensor:
    matrix = _SYMMETRIC(vector, features)
    return matrix.triu() + matrix.tril(-1).roll(1, 0).tril(-1)


@pytest.mark.parametrize("layout", [plain_triangle, both_halved, lopsided])
def test_pca_noise_in_a_wrong_layout_is_rejected(layout: Any) -> None:
    with pytest.raises(AssertionError):
        s.require_pca_noise({"symmetric": layout})


def test_pca_noise_that_is_used_again_is_rejected() -> None:
    with pytest.raises(AssertionError):
        s.require_pca_noise({"release": releasing(Again(10**9))})


# Samplers that are wrong


def batches(taken: Any) -> Iterator[sampling.Sample]:
    """Samples of these rows."""
    for chosen in taken:
        yield sampling.Sample(np.asarray(chosen), sampling.EpochCharge(sampling.FullBatch().event))


def of_rate(rate: float) -> Callable[..., Any]:
    return lambda n, rng: batches([np.flatnonzero(rng.random(n) < rate) for _ in range(5)])


WRONG_POISSON: dict[str, Callable[..., Any]] = {
    "rate 2% too large": of_rate(0.204),
    "rate 2% too small": of_rate(0.196),
    "batches of one size": lambda n, rng: batches([rng.permutation(n)[: n // 5] for _ in range(5)]),
    "one batch for an epoch": lambda n, rng: batches([np.flatnonzero(rng.random(n) < 0.2)] * 5),
    "a partition": lambda n, rng: sampling.Partition(5).draw(n, rng),
    "empty batches skipped": lambda n, rng: [
        b for b in sampling.Poisson(0.2).draw(n, rng) if len(b) > 6
    ],
    "neighbours together": lambda n, rng: batches(
        [np.flatnonzero(np.repeat(rng.random(n // 2) < 0.2, 2)) for _ in range(5)]
    ),
    "some rows more often": lambda n, rng: batches(
        [np.flatnonzero(rng.random(n) < np.where(np.arange(n) % 2, 0.21, 0.19)) for _ in range(5)]
    ),
    "half the time larger": lambda n, rng: batches(
        [
            np.flatnonzero(rng.random(n) < 0.2 + 0.02 * (2 * (rng.random() < 0.5) - 1))
            for _ in range(5)
        ]
    ),
}


@pytest.mark.parametrize("name", WRONG_POISSON)
def test_wrong_poisson_sampling_is_rejected(name: str) -> None:
    with pytest.raises(AssertionError):
        s.require_poisson(WRONG_POISSON[name])


def by_bins(bins: Any) -> Iterator[sampling.Sample]:
    return batches([np.flatnonzero(bins == number) for number in range(5)])


class Once:
    """An epoch that is drawn once, and repeated."""

    def __init__(self, sampler: sampling.Sampler) -> None:
        self.sampler = sampler
        self.drawn: list[Any] = []

    def __call__(self, n: int, rng: Any) -> Any:
        self.drawn = self.drawn or list(self.sampler.draw(n, rng))
        return self.drawn


def drawn_again(n: int, rng: Any) -> Any:
    """In one epoch of twenty, a row falls where it fell before."""
    bins = np.arange(n) % 5
    fresh = rng.integers(5, size=n)
    return by_bins(np.where(rng.random(n) < 0.05, bins, fresh))


WRONG_PARTITIONS: dict[str, Callable[[], Callable[..., Any]]] = {
    "equal sizes": lambda: lambda n, rng: by_bins(rng.permutation(np.arange(n) % 5)),
    "drawn once": lambda: Once(sampling.Partition(5)),
    "neighbours together": lambda: (
        lambda n, rng: by_bins(np.repeat(rng.integers(5, size=n // 2), 2))
    ),
    "some batches larger": lambda: (
        lambda n, rng: by_bins(rng.choice(5, size=n, p=[0.22, 0.195, 0.195, 0.195, 0.195]))
    ),
    "a row's favourite": lambda: drawn_again,
    "rows left out": lambda: (
        lambda n, rng: by_bins(np.where(rng.random(n) < 0.01, 9, rng.integers(5, size=n)))
    ),
    "Poisson batches": lambda: lambda n, rng: sampling.Poisson(0.2).draw(n, rng),
}


@pytest.mark.parametrize("name", WRONG_PARTITIONS)
def test_wrong_partitions_are_rejected(name: str) -> None:
    with pytest.raises(AssertionError):
        s.require_partition(WRONG_PARTITIONS[name]())


def in_order(order: Any) -> Iterator[sampling.Sample]:
    return batches([order[start : start + 4] for start in range(0, len(order), 4)])


def swaps(n: int, rng: Any) -> Any:
    """Each place swapped with any other: not every order alike."""
    order = np.arange(n)
    for place in range(n):
        other = int(rng.integers(n))
        order[[place, other]] = order[[other, place]]
    return in_order(order)


WRONG_SHUFFLES: dict[str, Callable[[], Callable[..., Any]]] = {
    "shuffled once": lambda: Once(sampling.Shuffle(4)),
    "not shuffled": lambda: lambda n, rng: in_order(np.arange(n)),
    "turned": lambda: lambda n, rng: in_order(np.roll(np.arange(n), int(rng.integers(n)))),
    "back and forth": lambda: (
        lambda n, rng: in_order(np.arange(n)[:: 1 if rng.random() < 0.5 else -1])
    ),
    "swapped with any": lambda: swaps,
    "only batches shuffled": lambda: (
        lambda n, rng: in_order(
            np.concatenate([np.arange(n)[start::3] for start in rng.permutation(3)])
        )
    ),
    "the last row stays": lambda: lambda n, rng: in_order(np.append(rng.permutation(n - 1), n - 1)),
}


@pytest.mark.parametrize("name", WRONG_SHUFFLES)
def test_wrong_shuffles_are_rejected(name: str) -> None:
    with pytest.raises(AssertionError):
        s.require_shuffle(WRONG_SHUFFLES[name]())
