"""Named checks of which rows a Poisson sample takes: the probability of each set of rows, by going
through the random bits; frequencies; and what it takes to draw from very many rows.
"""

from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import numpy as np

from privlearn.core import inclusion, sampling
from privlearn.core.streams import Streams
from tests.support.checks import check

ALL = 2**inclusion.DIGITS


class Asked(Exception):
    """More words were asked for than were laid down."""


class LaidDown:
    """A generator whose words are laid down."""

    def __init__(self, *words: int) -> None:
        self.words = list(words)

    def integers(self, low: int, high: int, size: int, **_: Any) -> Any:
        if size > len(self.words):
            raise Asked(size)
        taken, self.words = self.words[:size], self.words[size:]
        return np.array(taken, np.uint64)


def binomial(chance: int, size: int) -> list[Fraction]:
    """P(k of 2^size rows are taken) for k = 0, 1, ..."""
    p, rows = Fraction(chance, ALL), 2**size
    return [math.comb(rows, k) * p**k * (1 - p) ** (rows - k) for k in range(rows + 1)]


def rows_by_words(rows: int, chance: int, *words: int) -> tuple[tuple[int, ...], int]:
    """The rows that are taken with these words, and how many more are asked for."""
    try:
        return tuple(inclusion.by_blocks(rows, chance, LaidDown(*words)).tolist()), 0  # type: ignore[arg-type]
    except Asked as asked:
        return (), asked.args[0]


def sets_by_blocks(rows: int, chance: int, size: int) -> dict[tuple[int, ...], Fraction]:
    """The probability of each set of rows: of every number of each block, and of every place, one
    word.
    """
    low, high = inclusion.thresholds(chance, size, 64)
    edges = [0, *high[:-1], *[2**64] * (2**size + 1 - len(high))]
    word_of = [(first + last) // 2 for first, last in zip(edges, low, strict=True)]
    mass, likely = binomial(chance, size), dict[tuple[int, ...], Fraction]()
    for counts in product(range(2**size + 1), repeat=-(-rows // 2**size)):
        drawn: list[tuple[int, ...]] = []
        for places in product(range(2**size), repeat=sum(counts)):
            own, asked = rows_by_words(rows, chance, *(word_of[k] for k in counts), *places)
            at, again = 0, 0
            for k in counts:  # blocks with two equal places are drawn again, whole
                again += k * (len(set(places[at : at + k])) < k)
                at += k
            assert asked == again, "a part of a block is drawn again"
            if not asked:
                drawn.append(own)
        for own in drawn:
            part = math.prod(mass[k] for k in counts) / len(drawn)
            likely[own] = likely.get(own, Fraction(0)) + part
    return likely


@check
def check_every_set_of_rows_has_its_probability() -> None:
    """Exactly, as fractions: rows are independent, each with its chance, the first and the last,
    too.
    """
    for rows, chance, size in ((5, 3 << 50, 1), (6, 5 << 49, 1), (3, 3 << 49, 2), (4, 7 << 48, 2)):
        p, likely = Fraction(chance, ALL), sets_by_blocks(rows, chance, size)
        for number in range(rows + 1):
            for own in combinations(range(rows), number):
                assert likely.pop(own, 0) == p**number * (1 - p) ** (rows - number), own
        assert not likely, f"{next(iter(likely))} is no set of rows"


@check
def check_bounds_hold_the_distribution_function() -> None:
    """So that a number of rows is decided only where the digits drawn so far decide it."""
    for chance, size in ((3 << 49, 2), ((1 << 47) - 1, 6), (12345678901, 5), (ALL // 70, 6)):
        for digits in (64, 192):
            low, high = inclusion.thresholds(chance, size, digits)
            below = Fraction(0)
            for least, most, mass in zip(low, high, binomial(chance, size), strict=False):
                below += mass
                assert least <= below * 2**digits <= most
                assert most - least <= 2
            assert high[-1] >= 2**digits > low[-1]


@check
def check_undecided_digits_are_followed_by_further_ones() -> None:
    """At the edge between two numbers of rows, the next words decide: by the digits of the edge
    itself.
    """
    chance, size, rest = ALL // 70, 6, 2**64
    below = Fraction(0)
    for k, mass in enumerate(binomial(chance, size)[:12]):
        below += mass
        first, second = int(below * 2**64), int(below * 2**128)
        for further, number in ((second % rest - 1, k), (second % rest + 1, k + 1)):
            words = LaidDown(first, further)
            assert inclusion._counts(1, chance, size, words).tolist() == [number]  # type: ignore[arg-type]
        third = int(below * 2**192) % rest
        for further, number in ((third - 1, k), (third + 1, k + 1)):
            words = LaidDown(first, second % rest, further)
            assert inclusion._counts(1, chance, size, words).tolist() == [number]  # type: ignore[arg-type]


@check
def check_no_row_is_taken_more_often_than_is_priced() -> None:
    """The chance is at most the rate, and a number of 53 bits is taken if it is below the
    chance.
    """
    rates = [*np.random.default_rng(0).random(200), 1 / 3, 0.1, 1e-7, 3e-9, 1.0, 2.0**-53, 2.0**-60]
    for rate in map(float, rates):
        assert 0 <= Fraction(rate) - Fraction(inclusion.chance_of(rate), ALL) < Fraction(1, ALL), (
            rate
        )

    class Numbers:
        def __init__(self, *numbers: int) -> None:
            self.numbers = np.array([number / ALL for number in numbers])

        def random(self, size: int) -> Any:
            own, self.numbers = self.numbers[:size], self.numbers[size:]
            return own

    for rate in (1 / 3, 0.1, 1e-7):
        chance = inclusion.chance_of(rate)
        numbers = Numbers(chance - 1, chance, 0, ALL - 1)
        assert inclusion.taken(4, rate, numbers).tolist() == [0, 2]  # type: ignore[arg-type]
    drawn = Streams.new(3).sampling.random(1000) * ALL
    assert (drawn == np.floor(drawn)).all(), "what is compared has other digits"


@check
def check_rows_of_large_tables_are_taken_at_their_rate() -> None:
    """Each row's frequency and each near pair's, in blocks; false alarms below 1e-6 each."""
    rows, rate, draws = 120, 0.05, 6000
    rng, taken = Streams.new(4).sampling, np.zeros((draws, rows))
    for own in taken:
        own[inclusion.by_blocks(rows, inclusion.chance_of(rate), rng)] = 1
    spread = math.sqrt(rate * (1 - rate) / draws)
    assert np.abs(taken.mean(0) - rate).max() < 5.8 * spread
    assert abs(taken.mean() - rate) < 5 * spread / math.sqrt(rows)
    for distance in (1, 2, 7, 16, 33):
        pairs = (taken[:, distance:] * taken[:, :-distance]).mean()
        expected = rate**2
        assert abs(pairs - expected) < 8 * math.sqrt(expected / (draws * (rows - distance)))
    assert abs(taken.sum(1).var() / (rows * rate * (1 - rate)) - 1) < 6 * math.sqrt(2 / draws)


@check
def check_samples_of_large_tables_are_rows() -> None:
    """Through the sampler: different rows, in order, of the whole range, as many as expected; both
    ends, too.
    """
    rows, rate = 3 * inclusion.FEW + 5, 1e-4
    samples = [
        sample.indices
        for sample, _ in zip(
            sampling.Poisson(rate).draw(rows, Streams.new(5).sampling), range(400), strict=False
        )
    ]
    for own in samples:
        assert (np.diff(own) > 0).all(), "a row is taken twice"
        assert not len(own) or (own[0] >= 0 and own[-1] < rows)
    every = np.concatenate(samples)
    expected = rows * rate * len(samples)
    assert abs(len(every) - expected) < 5.5 * math.sqrt(expected)
    parts = np.bincount(every * 50 // rows, minlength=50)
    # chi-square, 49 degrees of freedom
    assert ((parts - expected / 50) ** 2 / (expected / 50)).sum() < 130
    ends = {
        row
        for seed in range(300)
        for row in inclusion.taken(rows, 1 / 80, Streams.new(seed).sampling)[[0, -1]]
    }
    assert min(ends) < 3
    assert max(ends) >= rows - 3


@check
def check_few_rows_are_drawn_as_ever() -> None:
    """Up to 2^16 rows, and where many are taken, each row has a number of the stream: samples of
    earlier versions.
    """
    for rows, rate in (
        (0, 0.5),
        (1, 1.0),
        (50_000, 1e-3),
        (inclusion.FEW, 1e-4),
        (inclusion._AT_ONCE + 999, 0.3),
    ):
        own = inclusion.taken(rows, rate, np.random.default_rng(1))
        assert np.array_equal(own, np.flatnonzero(np.random.default_rng(1).random(rows) < rate))


@check
def check_drawing_takes_the_memory_of_a_batch() -> None:
    stream = Streams.new(6).sampling
    epoch = sampling.Poisson(1e-8).draw(10**10, stream)
    next(epoch)
    tracemalloc.start()
    try:
        sizes = [len(sample) for sample, _ in zip(epoch, range(20), strict=False)]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert 1500 < sum(sizes) < 2500
