"""Three separate streams of random numbers: sampling, noise and initialisation.

Each stream is an AES counter-mode generator with a 128-bit key of its own. Without a seed the keys come from the
operating system and are never written down; with a seed they are derived from it, the run can be repeated, and
anyone who knows the seed can take the noise off: certificates say so.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, NoReturn, final

import numpy as np
from randomgen import AESCounter

from privlearn._validate import count


def _generator(seed: int | None, purpose: int) -> np.random.Generator:
    if seed is None:
        key = secrets.randbits(128)
    else:
        words = np.random.SeedSequence(seed, spawn_key=(purpose,)).generate_state(2, np.uint64)
        key = int(words[0]) << 64 | int(words[1])
    return np.random.Generator(AESCounter(key=key))


@final
@dataclass(frozen=True)
class Streams:
    """The random streams of one run.

    Attributes:
        sampling: draws batches. Its secrecy is what sampling amplification rests on.
        noise: draws the noise of releases. Copies of the streams are the streams: noise is never drawn twice.
        initialisation: draws initial weights; public.
        seeded: whether the keys follow from a seed that somebody may know.
    """

    sampling: np.random.Generator
    noise: np.random.Generator
    initialisation: np.random.Generator
    seeded: bool

    def __copy__(self) -> Streams:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Streams:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("Streams cannot be pickled: a copy would draw the same noise again")

    @classmethod
    def new(cls, seed: int | None = None) -> Streams:
        """Make fresh streams, from the operating system or from `seed` (a whole number, 0 or above)."""
        if seed is not None:
            count("seed", seed, least=0)
        sampling, noise, initialisation = (_generator(seed, purpose) for purpose in range(3))
        return cls(sampling, noise, initialisation, seeded=seed is not None)
