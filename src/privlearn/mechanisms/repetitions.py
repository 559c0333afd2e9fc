"""How often something is repeated: one draw of the law that `RepeatAndSelect` is priced for."""

from __future__ import annotations

import mpmath
import numpy as np

from privlearn.accounting import repeat
from privlearn.accounting.events import RepeatAndSelect
from privlearn.rng import NoiseStream

_WORDS = 4  # of 64 bits, in the uniform number


def draw(event: RepeatAndSelect, stream: NoiseStream) -> int:
    """The number of runs, from the law of `event`; secret, like noise: the price is for the best outcome alone.

    By inversion: the least k up to which the law's probabilities add up to a uniform number of 256 bits, in numbers of
    400. No probability is off by more than 2^-255, and there is no largest k: a cap would be another law, which the theorems
    do not cover.
    """
    with mpmath.workprec(512):
        uniform = mpmath.mpf(1) / 2
        for word in stream.words(_WORDS).view(np.uint64):
            uniform = uniform + int(word)
            uniform = mpmath.ldexp(uniform, -64)
        # ... so that the last word's bits are the leading ones.
        passed = mpmath.mpf(0)
    for k, probability in enumerate(repeat.law(event.mean, event.shape)):
        with mpmath.workprec(512):
            passed += probability
            if passed > uniform:
                return k
    raise AssertionError("the law has no end")
