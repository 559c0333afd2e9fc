"""Named checks of noise on a grid and of random streams; mutations must make them fail."""

from __future__ import annotations

import json
import math
import os
from unittest import mock

import mpmath
import numpy as np
import torch
from checks import bounded, check, require_standard_deviation
from scipy import stats

from privlearn import rng
from privlearn.accounting.ledger import Ledger
from privlearn.mechanisms import grid
from privlearn.mechanisms.release import release


def on_grid(value: torch.Tensor, multiplier: float = 1.0, sensitivity: float = 1.0, seed: int = 0) -> torch.Tensor:
    stream = rng.Streams.new(seed, discrete=True).noise
    ((noisy,),) = release(
        bounded(value.clone(), sensitivity), noise_multiplier=multiplier, ledger=Ledger(), stream=stream
    )
    return noisy


class Script:
    """A noise stream that hands out given words, then those of a real one."""

    def __init__(self, words: list[int]) -> None:
        self.first, self.then, self.asked = words, rng.Streams.new(0).noise, 0

    def words(self, number: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        self.asked += 1
        if self.first:
            found, self.first = self.first[:number], self.first[number:]
            return np.array(found, dtype=np.int64)
        return self.then.words(number)


@check
def check_noise_on_a_grid_has_the_stated_scale() -> None:
    """Two-sided: 200,000 draws; a scale 2% off on either side fails, false alarms are below 1e-6."""
    for sensitivity, multiplier in ((1.0, 1.0), (0.1, 4.0), (3.0, 0.5)):
        noisy = on_grid(torch.zeros(200_000, dtype=torch.float64), multiplier, sensitivity).numpy()
        require_standard_deviation(noisy, multiplier * sensitivity)
        assert stats.kstest(noisy / (multiplier * sensitivity), "norm").pvalue > 1e-6


@check
def check_noise_pays_for_the_rounding_to_the_grid() -> None:
    """The noise is that of the sensitivity of rounded values, of which every number may be half a step off."""
    for numbers in (1, 1000):
        with mock.patch.object(grid, "rounded_gaussian", side_effect=grid.rounded_gaussian) as drawn:
            noisy = on_grid(torch.full((numbers,), 0.3, dtype=torch.float64), multiplier=2.0, sensitivity=0.7)
        scale = drawn.call_args.args[1]
        found = noisy.numpy()
        step = 2.0 ** next(k for k in range(20, -60, -1) if np.equal(np.mod(found, 2.0**k), 0).all())
        assert scale * step >= 2.0 * (0.7 + step * math.sqrt(numbers))
        assert scale * step <= 2.0 * 0.7 * 1.002


@check
def check_everything_lies_on_the_grid() -> None:
    """Values that are off it leave no trace: low bits of the result don't depend on them."""
    for value in (0.0, 0.1, 1e-9, -123.456):
        noisy = on_grid(torch.full((5000,), value, dtype=torch.float64), 1.0, 1.0).numpy()
        assert np.equal(np.mod(noisy, 2.0**-20), 0).all()
    centred = on_grid(torch.full((200_000,), 0.1, dtype=torch.float64), 1.0, 1.0).numpy() - 0.1
    require_standard_deviation(centred, 1.0)


@check
def check_rounded_draws_are_exact() -> None:
    """Against 400 bits, also where double precision can't tell how to round, and at the ends of the uniform numbers."""
    made_up = np.random.default_rng(0)
    words = made_up.integers(-(2**63), 2**63 - 1, size=400, dtype=np.int64).tolist()
    words[:4] = [-(2**63), 2**63 - 1, 0, -(2**63) + 1]
    for scale in (0.3, 2.0**12, 2.0**30, 2.0**45):  # at the last, most draws need more bits
        stream = Script(list(words))
        found = grid.rounded_gaussian(len(words), scale, stream)  # type: ignore[arg-type]
        if scale > 2.0**40:
            assert stream.asked > len(words) // 4
        pairs = len(words) // 2
        with mpmath.workprec(400):
            for pair in range(4, pairs):
                uniform = mpmath.mpf(1) / 2 + mpmath.mpf(words[pair]) / 2**64
                reach = scale * mpmath.sqrt(-2 * mpmath.log(uniform))
                for value, draw in (
                    (reach * mpmath.cospi(mpmath.mpf(words[pairs + pair]) / 2**63), found[pair]),
                    (reach * mpmath.sinpi(mpmath.mpf(words[pairs + pair]) / 2**63), found[pairs + pair]),
                ):
                    unknown = (reach + scale**2 / (uniform * reach)) * mpmath.mpf(2) ** -61
                    assert abs(value - float(draw)) <= 0.5 + unknown
        assert torch.isfinite(found).all()
        assert torch.equal(found, found.round())


@check
def check_streams_go_on_where_they_were() -> None:
    for seed in (None, 3):
        streams = rng.Streams.new(seed, discrete=True)
        streams.noise.words(7)
        streams.sampling.random(5)
        streams.sampling.integers(3, size=1, dtype=np.int32)  # leaves half a word
        state = json.loads(json.dumps(streams.state()))
        for _ in range(2):
            again = rng.Streams.at(state)
            assert again.seeded == streams.seeded
            assert again.noise.discrete
        assert (again.noise.words(9) == streams.noise.words(9)).all()
        assert (
            again.sampling.integers(9, size=9, dtype=np.int32) == streams.sampling.integers(9, size=9, dtype=np.int32)
        ).all()
        assert (again.initialisation.random(9) == streams.initialisation.random(9)).all()
        assert (again.views.random(9) == streams.views.random(9)).all()


@check
def check_forked_processes_draw_other_numbers() -> None:
    streams = rng.Streams.new(4)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        words = np.concatenate([streams.noise.words(8), streams.sampling.integers(2**62, size=8)])
        os.write(write, words.astype(np.int64).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = set(np.frombuffer(os.read(read, 1 << 10), np.int64).tolist())
    ours = {*streams.noise.words(8).tolist(), *streams.sampling.integers(2**62, size=8).tolist()}
    assert len(theirs) == 16
    assert not theirs & ours, "a forked process draws the same numbers"
