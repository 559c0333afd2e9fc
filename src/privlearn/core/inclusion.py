"""This file draws which of many rows a Poisson sample takes: exactly, in time and memory of the
rows that are taken.

Each row is taken independently with probability c / 2^53, where c is a whole number. Where there
are few rows, or many of them are taken, each row is compared with a number of 53 random bits. Else
rows are treated in blocks of 2^b: first how many rows of the block are taken (a binomial number, by
inversion), then which (distinct places, each set of that size equally likely). Both ways have
exactly the same distribution, without rounding, so that a sample does not tell by which it was
drawn, or how many rows there are. Inversion compares the binary digits of one uniform number with
those of the distribution function, in whole numbers with bounds on both sides, and draws further
digits where the first 64 don't decide.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

#: A row is taken if a whole number below 2^53 is below the chance.
DIGITS = 53
#: Up to so many rows are always treated one by one: of so few, blocks gain a tenth of a
#: millisecond.
FEW = 1 << 16
_AT_ONCE = 1 << 20
#: The largest chance at which blocks are used: one in 64.
_RARE = 1 << (DIGITS - 6)


def chance_of(rate: float) -> int:
    """The largest whole number c with c / 2^53 at most `rate`: a row is never taken more often than
    is priced.
    """
    return math.floor(math.ldexp(rate, DIGITS))


def taken(rows: int, rate: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """The rows of 0 .. rows - 1 that are taken, ascending, each independently with probability
    chance_of(rate) / 2^53.

    That is at most `rate`, and less than 2^-53 below it.
    """
    chance = chance_of(rate)
    if rows <= FEW or chance > _RARE:
        return one_by_one(rows, chance, rng)
    return by_blocks(rows, chance, rng)


def one_by_one(rows: int, chance: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`taken`, from 53 random bits for each row."""
    # exact, as are the numbers that are drawn: multiples of 2^-53 below 1
    limit = math.ldexp(chance, -DIGITS)
    starts = range(0, max(rows, 1), _AT_ONCE)  # drawn from also where there are none, as for one
    parts = [
        np.flatnonzero(rng.random(min(_AT_ONCE, rows - start)) < limit) + start for start in starts
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def by_blocks(rows: int, chance: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`taken`, from about two words of 64 random bits for each row that is taken. `chance` is below
    2^53.
    """
    if not chance:
        return np.zeros(0, np.int64)
    # of a block of 2^size rows about one is taken
    size = min(DIGITS - chance.bit_length(), (rows - 1).bit_length())
    blocks = ((rows - 1) >> size) + 1
    block_of = np.repeat(np.arange(blocks), _counts(blocks, chance, size, rng))
    drawn = np.sort((block_of << size) + _places(len(block_of), size, rng))
    # all places of such a block again: sets stay equally likely
    while (twice := drawn[1:] == drawn[:-1]).any():
        again = np.isin(drawn >> size, drawn[1:][twice] >> size)
        drawn[again] = (drawn[again] >> size << size) + _places(int(again.sum()), size, rng)
        drawn.sort()
    return drawn[drawn < rows]  # the last block may go on beyond the last row


def _words(number: int, rng: np.random.Generator) -> NDArray[np.uint64]:
    """Words of 64 random bits."""
    return rng.integers(0, 2**64 - 1, size=number, dtype=np.uint64, endpoint=True)


def _places(number: int, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Uniform places in blocks of 2^size rows."""
    return (_words(number, rng) & np.uint64((1 << size) - 1)).astype(np.int64)


def _counts(blocks: int, chance: int, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """How many rows of each block are taken: binomial numbers."""
    words = _words(blocks, rng)
    low, high = thresholds(chance, size, 64)
    counts = np.searchsorted(
        np.array([bound for bound in high if bound < 2**64], np.uint64), words, side="right"
    )
    most = np.searchsorted(np.array(low, np.uint64), words, side="right")
    for block in np.flatnonzero(most != counts):  # hardly ever: about 20 words of 2^64
        counts[block] = _decide(int(words[block]), chance, size, rng)
    return counts


def _decide(word: int, chance: int, size: int, rng: np.random.Generator) -> int:
    """How many rows a block has whose first 64 binary digits `word` don't say it: further digits
    are drawn.
    """
    digits, least, most = 64, 0, -1
    while least != most:
        word, digits = (word << 64) | int(_words(1, rng)[0]), digits + 64
        low, high = thresholds(chance, size, digits)
        least, most = bisect_right(high, word), bisect_right(low, word)
    return least


@lru_cache(maxsize=64)
def thresholds(chance: int, size: int, digits: int) -> tuple[list[int], list[int]]:
    """Bounds below and above on 2^digits P(at most k rows of a block of 2^size are taken), for k =
    0, 1, ...

    The last bound above is 2^digits or more; those below are less. In whole numbers: each is
    rounded to its own side.
    """
    # digits that rounding may cost: squaring doubles an error, up to 2^53 times
    spare = 2 * DIGITS + 64
    one, absent = 1 << (digits + spare), (1 << DIGITS) - chance
    low = high = absent << (digits + spare - DIGITS)
    for _ in range(size):
        low, high = low * low // one, -(-high * high // one)
    sums, lows, highs = [low, high], [], []
    for k in range((1 << size) + 1):
        lows.append(min(sums[0] >> spare, (1 << digits) - 1))
        highs.append(-(-sums[1] >> spare))
        if highs[-1] >= 1 << digits:
            break
        # how the probability of k + 1 follows from that of k
        more, less = ((1 << size) - k) * chance, (k + 1) * absent
        low, high = low * more // less, -(-high * more // less)
        sums = [sums[0] + low, sums[1] + high]
    return lows, highs
