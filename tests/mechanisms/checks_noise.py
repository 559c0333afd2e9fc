"""Named checks of noise on a grid and of random streams; mutations must make them fail."""

from __future__ import annotations

import json
import math
import os
from unittest import mock

import mpmath
import numpy as np
import torch
from scipy import stats

from privlearn.core import streams as streams_module
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.mechanisms import noise, selection
from privlearn.core.mechanisms.release import release
from tests.support.checks import check
from tests.support.nets import bounded, require_standard_deviation, seen


def on_grid(
    value: torch.Tensor,
    multiplier: float = 1.0,
    sensitivity: float = 1.0,
    seed: int = 0,
    *,
    discrete: bool = True,
) -> torch.Tensor:
    stream = streams_module.Streams.new(seed, discrete=discrete).noise
    ((noisy,),) = release(
        bounded(value.clone(), sensitivity),
        noise_multiplier=multiplier,
        ledger=Ledger(),
        stream=stream,
    )
    return noisy


class Script:
    """A noise stream that hands out given words, then those of a real one."""

    def __init__(self, words: list[int]) -> None:
        self.first, self.then, self.asked = words, streams_module.Streams.new(0).noise, 0

    def words(self, number: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        self.asked += 1
        if self.first:
            found, self.first = self.first[:number], self.first[number:]
            return np.array(found, dtype=np.int64)
        return self.then.words(number)


@check
def check_noise_on_a_grid_has_the_stated_scale() -> None:
    """Two-sided: 200,000 draws; a scale 2% off on either side fails, false alarms are below
    1e-6.
    """
    for sensitivity, multiplier in ((1.0, 1.0), (0.1, 4.0), (3.0, 0.5)):
        noisy = on_grid(torch.zeros(200_000, dtype=torch.float64), multiplier, sensitivity).numpy()
        require_standard_deviation(noisy, multiplier * sensitivity)
        assert stats.kstest(noisy / (multiplier * sensitivity), "norm").pvalue > 1e-6


@check
def check_noise_pays_for_the_rounding_to_the_grid() -> None:
    """The noise is that of the sensitivity of rounded values, of which every number may be half a
    step off.
    """
    for numbers in (1, 1000):
        with mock.patch.object(
            noise, "rounded_gaussian", side_effect=noise.rounded_gaussian
        ) as drawn:
            noisy = on_grid(
                torch.full((numbers,), 0.3, dtype=torch.float64), multiplier=2.0, sensitivity=0.7
            )
        scale = drawn.call_args.args[1]
        found = noisy.numpy()
        step = 2.0 ** next(
            k for k in range(20, -60, -1) if np.equal(np.mod(found, 2.0**k), 0).all()
        )
        assert scale * step >= 2.0 * (0.7 + step * math.sqrt(numbers))
        assert scale * step <= 2.0 * 0.7 * 1.002


@check
def check_all_numbers_of_a_release_share_one_grid() -> None:
    """The step and the scale follow from the numbers of all tensors together, whichever comes
    first.
    """
    for sizes in ((1, 999), (999, 1), (500, 500)):
        part = bounded(torch.zeros(0))
        values = tuple(torch.full((size,), 0.3, dtype=torch.float64) for size in sizes)
        part = type(part)(values, 0.7, part.adjacency, part.sample, seen(0.7))
        stream = streams_module.Streams.new(0, discrete=True).noise
        with mock.patch.object(
            noise, "rounded_gaussian", side_effect=noise.rounded_gaussian
        ) as drawn:
            release(part, noise_multiplier=2.0, ledger=Ledger(), stream=stream)
        step = 2.0 ** math.floor(math.log2(0.7 * 2**-10 / math.sqrt(1000)))
        for call in drawn.call_args_list:
            assert math.isclose(
                call.args[1] * step, 2.0 * (0.7 + step * math.sqrt(1000)), rel_tol=1e-9
            )


@check
def check_every_number_gets_noise_at_the_ends_of_blocks() -> None:
    """Tensors that end beside a block, and several that straddle them; continuous in both
    precisions, and on a grid.
    """
    for dtype, discrete, block in (
        (torch.float32, False, 1 << 17),
        (torch.float64, False, 1 << 17),
        (torch.float64, True, 1 << 16),
    ):
        near = [(block + more,) for more in (-8, -1, 0, 1, 2, 3, 4, 5, 7, 8)]
        for sizes in [*near, (2 * block + 7,), (block - 3, 5, 9, block + 1, 6)]:
            part = bounded(torch.zeros(0))
            values = tuple(torch.zeros(size, dtype=dtype) for size in sizes)
            part = type(part)(values, 1.0, part.adjacency, part.sample, seen())
            stream = streams_module.Streams.new(0, discrete=discrete).noise
            (noisy,) = release(part, noise_multiplier=1e3, ledger=Ledger(), stream=stream)
            for value in noisy:
                assert bool((value[-200:] != 0).all()), (dtype, discrete, sizes)
                assert int((value == 0).sum()) <= 2, (dtype, discrete, sizes)


@check
def check_draws_are_those_that_the_words_make() -> None:
    """Each draw against its definition in double precision: radii, split and angles, to the digits
    of its type.
    """
    made_up = np.random.default_rng(0)
    for dtype, wide in ((torch.float64, True), (torch.float32, False)):
        fours = 500
        words = made_up.integers(
            -(2**63), 2**63 - 1, size=5 * fours if wide else 2 * fours + 750, dtype=np.int64
        )
        found = (
            noise.gaussian(4 * fours, dtype, Script(words.tolist()))
            .double()
            .numpy()
            .reshape(2, 2, fours)
        )  # type: ignore[arg-type]
        uniform = words[: 2 * fours] / 2.0**64 + 0.5
        size = -2 * np.log(uniform[:fours] * uniform[fours:])
        more = words[2 * fours :] / 2.0**63 if wide else words[2 * fours :].view(np.int32) / 2.0**31
        split, turns = more[:fours] / 2 + 0.5, more[fours:].reshape(2, fours)
        radii = np.sqrt(np.stack([size * split, size * (1 - split)]))
        true = np.stack([radii * np.cos(np.pi * turns), radii * np.sin(np.pi * turns)])
        assert np.abs(found - true).max() < (3e-13 if wide else 3e-6), (
            dtype,
            np.abs(found - true).max(),
        )


@check
def check_polynomials_are_the_functions_that_they_stand_for() -> None:
    """Sine and cosine of half a turn, evaluated in double precision, to the error that is stated of
    them.
    """
    t = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    sine, cosine = (noise._polynomial(each, t * t) for each in (noise._SINE, noise._COSINE))
    assert float((sine * t - (math.pi / 2 * t).sin()).abs().max()) < 1e-8
    assert float((cosine - (math.pi / 2 * t).cos()).abs().max()) < 5e-10


@check
def check_gumbel_draws_reach_the_far_tail() -> None:
    """Against 400 bits, for words from one end to the other, the two last ones included; and their
    law.
    """
    made_up = np.random.default_rng(0)
    words = [0, 1, 2, 1000, 2**30, 2**47, 2**62, 2**63 - 1, -(2**63), -(2**62), -(2**20)]
    words += made_up.integers(-(2**63), 2**63 - 1, size=100, dtype=np.int64).tolist()
    found = selection.gumbel(len(words), Script(list(words)))  # type: ignore[arg-type]
    with mpmath.workprec(400):
        for word, draw in zip(words, found.tolist(), strict=True):
            uniform = mpmath.ldexp(word % 2**64, -64) + mpmath.ldexp(1, -65)
            true = float(-mpmath.log(-mpmath.log(1 - uniform)))
            assert math.isclose(
                draw, true, rel_tol=1e-4 if word == -(2**20) else 1e-12, abs_tol=1e-12
            ), (
                word,
                draw,
                true,
            )
    assert float(found[0]) > 45
    drawn = selection.gumbel(50_000, streams_module.Streams.new(0).noise).numpy()
    assert stats.kstest(drawn, "gumbel_r").pvalue > 1e-6


@check
def check_everything_lies_on_the_grid() -> None:
    """Values that are off it leave no trace: low bits of the result don't depend on them."""
    for value in (0.0, 0.1, 1e-9, -123.456):
        noisy = on_grid(torch.full((5000,), value, dtype=torch.float64), 1.0, 1.0).numpy()
        assert np.equal(np.mod(noisy, 2.0**-20), 0).all()
    centred = on_grid(torch.full((200_000,), 0.1, dtype=torch.float64), 1.0, 1.0).numpy() - 0.1
    require_standard_deviation(centred, 1.0)


def finer_than(
    bits: int, value: float, dtype: torch.dtype, multiplier: float, *, discrete: bool
) -> float:
    """How often a released number below 1/2 is no multiple of 2^-bits, where `value` was
    released.
    """
    there = torch.full((50_000,), value, dtype=dtype)
    noisy = on_grid(there, multiplier, seed=int(value), discrete=discrete).double().numpy()
    return float(np.mean((np.abs(noisy) < 0.5) & (np.mod(noisy, 2.0**-bits) != 0)))


@check
def check_low_bits_tell_nothing_on_a_grid() -> None:
    """The attack of Mironov (2012), for Gaussians: what is below the spacing of 1 + noise can't
    have come from 1.

    In floating point it tells 0 from its neighbour 1 for certain in a quarter of all numbers at
    noise multiplier 1 (docs/gaps.md); on a grid in none.
    """
    for dtype, bits in ((torch.float32, 24), (torch.float64, 53)):
        for multiplier, sure in ((1.0, 0.257), (4.0, 0.066)):
            given = {"bits": bits, "dtype": dtype, "multiplier": multiplier}
            assert finer_than(value=1.0, discrete=False, **given) == 0  # type: ignore[arg-type]
            assert abs(finer_than(value=0.0, discrete=False, **given) - sure) < 0.01  # type: ignore[arg-type]
            for value in (0.0, 1.0):
                assert finer_than(value=value, discrete=True, **given) == 0  # type: ignore[arg-type]


@check
def check_rounded_draws_are_exact() -> None:
    """Against 400 bits, also where double precision can't tell how to round, and at the ends of the
    uniform numbers.
    """
    made_up = np.random.default_rng(0)
    words = made_up.integers(-(2**63), 2**63 - 1, size=400, dtype=np.int64).tolist()
    words[:4] = [-(2**63), 2**63 - 1, 0, -(2**63) + 1]
    for scale in (0.3, 2.0**12, 2.0**30, 2.0**45):  # at the last, most draws need more bits
        stream = Script(list(words))
        found = noise.rounded_gaussian(len(words), scale, stream)  # type: ignore[arg-type]
        if scale > 2.0**40:
            assert stream.asked > len(words) // 4
        pairs = len(words) // 2
        with mpmath.workprec(400):
            for pair in range(4, pairs):
                uniform = mpmath.mpf(1) / 2 + mpmath.mpf(words[pair]) / 2**64
                reach = scale * mpmath.sqrt(-2 * mpmath.log(uniform))
                for value, draw in (
                    (reach * mpmath.cospi(mpmath.mpf(words[pairs + pair]) / 2**63), found[pair]),
                    (
                        reach * mpmath.sinpi(mpmath.mpf(words[pairs + pair]) / 2**63),
                        found[pairs + pair],
                    ),
                ):
                    unknown = (reach + scale**2 / (uniform * reach)) * mpmath.mpf(2) ** -61
                    assert abs(value - float(draw)) <= 0.5 + unknown
        assert torch.isfinite(found).all()
        assert torch.equal(found, found.round())


@check
def check_streams_go_on_where_they_were() -> None:
    for seed in (None, 3):
        streams = streams_module.Streams.new(seed, discrete=True)
        streams.noise.words(7)
        streams.sampling.random(5)
        streams.sampling.integers(3, size=1, dtype=np.int32)  # leaves half a word
        state = json.loads(json.dumps(streams.state()))
        for _ in range(2):
            again = streams_module.Streams.at(state)
            assert again.seeded == streams.seeded
            assert again.noise.discrete
        assert (again.noise.words(9) == streams.noise.words(9)).all()
        assert (
            again.sampling.integers(9, size=9, dtype=np.int32)
            == streams.sampling.integers(9, size=9, dtype=np.int32)
        ).all()
        assert (again.initialisation.random(9) == streams.initialisation.random(9)).all()
        assert (again.views.random(9) == streams.views.random(9)).all()


@check
def check_forked_processes_draw_other_numbers() -> None:
    streams = streams_module.Streams.new(4)
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
