"""Named checks of noise that ChaCha20 makes; mutations must make them fail."""

from __future__ import annotations

import importlib
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import mpmath
import numpy as np
import torch
from scipy import stats

from privlearn.core import chacha, chacha_blocks, mechanisms
from privlearn.core.mechanisms import noise
from privlearn.core.mechanisms.bisr import BISR
from privlearn.core.streams import NoiseStream, Streams
from privlearn.errors import BadInput
from privlearn.runs.checkpoint import Checkpoint
from privlearn.runs.repeats import Repeats
from tests.support.checks import check, must_raise

KEY, CPU = bytes(range(32)), torch.device("cpu")
#: Places, some beyond what 32 bits count.
RANGES = [(0, 3), (7, 8), (2**32 - 2, 2**32 + 3), (2**40, 2**40 + 2), (2**62 - 1, 2**62)]


def stream(seed: int = 4, *, discrete: bool = False) -> NoiseStream:
    return Streams.new(seed, discrete=discrete, cipher="chacha20").noise


@check
def check_blocks_are_the_published_ones_however_they_are_made() -> None:
    """RFC 8439's; and by operations those of OpenSSL, at places beyond 2^32, for any nonce."""
    made, expected = chacha_blocks.known_answer()
    assert made == expected
    at = chacha_blocks.counters_of(RANGES, CPU)
    for nonce in (0, 1, 2**31 - 1):
        by_openssl = chacha_blocks.words_at(KEY, nonce, RANGES, CPU)
        assert torch.equal(chacha_blocks.by_operations(KEY, nonce, at), by_openssl)
    nonces = torch.tensor([0, 5, -1, -(2**63), 2**40])
    each = [chacha.by_openssl(KEY, int(n) % 2**64, 9, 1)[0] for n in nonces]
    found = chacha_blocks.by_operations(KEY, nonces, torch.full((5,), 9))
    assert np.array_equal(found.T.numpy(), np.stack(each))
    assert chacha_blocks.works_on(CPU)


@check
def check_no_block_is_made_for_two_uses() -> None:
    """Of a stream's key: at any place, in any round of refinement, for any cipher's key; and no
    counter wraps.
    """
    blocks = [chacha.by_openssl(KEY, chacha.NOISE, at, 1).tobytes() for at in range(50)]
    blocks += [chacha.by_openssl(KEY, chacha.NOISE, at + 2**32, 1).tobytes() for at in range(50)]
    for pair in range(50):
        more = noise._further_bits(KEY, pair)
        blocks += [more().tobytes() for _ in range(3)]
    assert len(set(blocks)) == len(blocks)
    by_hand = chacha_blocks.by_operations(KEY, chacha.NOISE, torch.tensor([3, 3 + 2**32]))
    assert not torch.equal(by_hand[:, 0], by_hand[:, 1])
    keys = {chacha.derive_key(bytes(16), use, of=of) for use in (b"a", b"b") for of in (b"", b"c")}
    assert len(keys) == 4
    assert stream(1).chacha_key != stream(2).chacha_key


@check
def check_streams_of_chacha_go_on_where_they_were() -> None:
    """Words, noise and skipped words, from a state, and in another process."""
    streams = Streams.new(3, cipher="chacha20")
    streams.noise.words(7)
    noise.add_gaussian([torch.zeros(100)], 1.0, streams.noise)
    again = Streams.at(json.loads(json.dumps(streams.state())))
    other = Streams.new(8)
    other.move_to(streams.positions())
    passed = Streams.at(streams.state())
    seen = []
    for each in (streams, again, other):
        assert each.noise.cipher == "chacha20"
        drawn = torch.zeros(30)
        noise.add_gaussian([drawn], 1.0, each.noise)
        seen.append((drawn.tolist(), each.noise.words(9).tolist(), each.noise.position))
    assert seen[0] == seen[1] == seen[2]
    passed.noise.skip(4 * 8)  # what 30 numbers take
    assert passed.noise.words(9).tolist() == seen[0][1]
    first, second = torch.zeros(2, 64)
    for values in (first, second):
        noise.add_gaussian([values], 1.0, streams.noise)
    assert len({*first.tolist(), *second.tolist()}) > 120, "noise is drawn twice"


@check
def check_a_stream_has_one_cipher() -> None:
    """It is chosen before the first bit, and stays; parts and drawn-again noise have it, too."""
    for cipher in ("aes", "chacha20"):
        undecided = Streams.new(5).noise
        assert undecided.cipher is None
        undecided.choose(cipher)
        undecided.choose("aes")
        undecided.choose("chacha20")
        assert undecided.cipher == cipher
        assert undecided.part().cipher == cipher
    for draw in (
        lambda noisy: noisy.words(1),
        lambda noisy: noisy.skip(8),
        lambda noisy: noise.add_gaussian([torch.zeros(3)], 1.0, noisy),
        lambda noisy: noisy.part(),
    ):
        drawn = Streams.new(5).noise
        draw(drawn)
        drawn.choose("chacha20")
        assert drawn.cipher == "aes"
    must_raise(BadInput, lambda: Streams.new(cipher="rc4"))
    must_raise(BadInput, lambda: NoiseStream(bytes(16), cipher=""))
    one, other = (Streams.new(5, cipher=cipher).noise for cipher in ("aes", "chacha20"))
    assert one.words(4).tolist() != other.words(4).tolist()


@check
def check_a_key_that_outlives_a_call_is_bound_to_its_cipher() -> None:
    """One secret, bound to the same for two ciphers, has two keys: no key and place has two
    noises.
    """
    keys = []
    for cipher in ("aes", "chacha20", "chacha20"):
        streams = Streams.of_secret(bytes(32), bytes(64), cipher=cipher)
        must_raise(BadInput, lambda streams=streams: streams.noise.words(1))
        streams.bind({"plan": "this one"})
        keys.append((streams.noise.key, streams.sampling.bytes(8)))
    assert keys[1] == keys[2]
    assert keys[0][0] != keys[1][0]
    assert keys[0][1] != keys[1][1]


@check
def check_noise_of_another_cipher_on_a_noted_sum_is_refused() -> None:
    """The same key and place: with another cipher a second, independent noise of one sum."""
    with tempfile.TemporaryDirectory() as folder:
        notes = Checkpoint(Path(folder) / "run")
        values = [torch.ones(9)]
        for cipher in ("aes", "aes", "chacha20"):
            repeats = Repeats(notes)
            repeats.recall()
            taken = NoiseStream(bytes(16), cipher=cipher)
            if cipher == "aes":
                repeats.see(taken, values, None)
            else:
                must_raise(BadInput, partial(repeats.see, taken, values, None))


@check
def check_draws_of_chacha_are_those_that_the_words_make() -> None:
    """Each against its definition in many digits, to the digits of its type; also far out, where 64
    bits of the radius count.
    """
    words = chacha.by_openssl(KEY, 0, 0, 200).copy()
    # The smallest uniform numbers: upper halves of zero.
    for block, lower in enumerate((0, 1, 2, 1000, -1, -(2**31))):
        words[block, :4], words[block, 4:8] = 0, lower
    words[6, :8] = -1  # the largest
    unsigned = words.astype(np.uint32).astype(object)
    for dtype, room in ((torch.float64, 1e-13), (torch.float32, 1e-6)):
        found = noise.normals_of(torch.from_numpy(words).T.contiguous(), dtype).view(-1, 8)
        for block in range(0, 200, 1 if dtype == torch.float64 else 7):
            for pair in range(4):
                bits = [int(unsigned[block, 4 * part + pair]) for part in range(4)]
                with mpmath.workprec(200):
                    uniform = mpmath.mpf((bits[0] << 32) + bits[1]) / 2**64 + mpmath.mpf(2) ** -65
                    angle = (bits[2] << 32) + bits[3]
                    turn = (angle - (angle >> 63 << 64)) / mpmath.mpf(2**63)
                    radius = mpmath.sqrt(-2 * mpmath.log(uniform))
                    expected = [radius * mpmath.cospi(turn), radius * mpmath.sinpi(turn)]
                draws = found[block, [pair, pair + 4]].tolist()
                for draw, true in zip(draws, expected, strict=True):
                    off = abs(draw - float(true))
                    near = room * (2 + float(radius)) if block != 6 else 2e-8
                    assert off < near, (dtype, block, draw, true)
        assert float(found[0, [0, 4]].double().norm()) > 9.4
        assert found.isfinite().all()


@check
def check_every_number_has_its_place_whatever_is_made_of_the_others() -> None:
    """Parts of wholes, several values, and however many are made at once: the same bits, and as
    much of the stream.
    """
    sizes = (40, 3, 300, 1)
    for discrete in (False, True):

        def add(
            values: list[torch.Tensor],
            places: noise.Places | None = None,
            discrete: bool = discrete,
        ) -> int:
            taken = stream(discrete=discrete)
            if discrete:
                noise.add_on_grid(values, 1.0, 1.0, taken, places)
            else:
                noise.add_gaussian(values, 1.0, taken, places)
            return taken.position

        wholes = [torch.zeros(size, dtype=torch.float64) for size in sizes]
        position = add(wholes)
        assert position == -(-sum(sizes) // 8)
        assert all(bool((whole != 0).all()) for whole in wholes)
        assert len({value for whole in wholes for value in whole.tolist()}) > 330
        for first, last in ((0.0, 0.3), (0.3, 0.3), (0.31, 1.0), (0.99, 1.0)):
            begins, ends = ([round(share * size) for size in sizes] for share in (first, last))
            parts = [
                torch.zeros(end - begin, dtype=torch.float64)
                for begin, end in zip(begins, ends, strict=True)
            ]
            assert add(parts, [*zip(begins, sizes, strict=True)]) == position
            for part, whole, begin, end in zip(parts, wholes, begins, ends, strict=True):
                assert torch.equal(part, whole[begin:end])
        for block in (10, 64):
            again = [torch.zeros(size, dtype=torch.float64) for size in sizes]
            with mock.patch.object(noise, "_BLOCK", block):
                assert add(again) == position
            assert all(map(torch.equal, again, wholes))


@check
def check_rounded_draws_of_chacha_are_exact() -> None:
    """Against 400 bits, also where double precision can't tell how to round; how many pairs that is
    moves nothing, and each has further bits of its own.
    """
    blocks = [(5, 30), (2**33, 2**33 + 5)]
    places = [at for first, last in blocks for at in range(first, last)]
    for scale in (0.3, 2.0**12, 2.0**49):  # at the last, all pairs need more bits
        with mock.patch.object(noise, "_further_bits", side_effect=noise._further_bits) as asked:
            found = noise.rounded_at(KEY, blocks, scale, CPU).view(-1, 8)
        pairs = [call.args[1] for call in asked.call_args_list]
        assert len(set(pairs)) == len(pairs)
        if scale > 2.0**40:
            assert sorted(pairs) == [4 * place + pair for place in places for pair in range(4)]
        alone = torch.cat([noise.rounded_at(KEY, [(at, at + 1)], scale, CPU) for at in places])
        assert torch.equal(alone.view(-1, 8), found)
        for row, place in enumerate(places):
            bits = chacha.by_openssl(KEY, chacha.NOISE, place, 1)[0].astype(np.uint32).tolist()
            for pair in range(4):
                radius, angle = (
                    chacha.to_signed(bits[at + pair] << 32 | bits[at + pair + 4]) for at in (0, 8)
                )
                more = noise._further_bits(KEY, 4 * place + pair)()
                for part in range(4):
                    radius = radius << 64 | int(more[part])
                    angle = angle << 64 | int(more[4 + part])
                with mpmath.workprec(400):
                    uniform = mpmath.mpf(1) / 2 + mpmath.ldexp(radius, -320)
                    reach = scale * mpmath.sqrt(-2 * mpmath.log(uniform))
                    turn = mpmath.ldexp(angle, -319)
                    for value, draw in (
                        (reach * mpmath.cospi(turn), found[row, pair]),
                        (reach * mpmath.sinpi(turn), found[row, pair + 4]),
                    ):
                        assert abs(value - float(draw)) <= 0.5 + 1e-30
    taken = stream(discrete=True)
    values = torch.zeros(800, dtype=torch.float64)
    noise.add_on_grid([values], 2.0**34, 1.0, taken)
    assert taken.position == 100


@check
def check_earlier_noise_is_drawn_again_by_its_cipher() -> None:
    """Of a matrix mechanism that keeps places instead of tensors."""
    mechanism, steps = BISR(3), 4
    inverse = mechanism.inverse(steps)
    fresh = stream()
    z = []
    for _ in range(steps):
        z.append(torch.zeros(50, dtype=torch.float64))
        noise.add_gaussian([z[-1]], 1.0, fresh)
    correlated = mechanism.stream(stream(), steps)
    for step in range(steps):
        values = [torch.zeros(50, dtype=torch.float64)]
        correlated.add(values, 1.0)
        expected = sum(inverse[ago] * z[step - ago] for ago in range(min(step, 2) + 1))
        assert torch.allclose(values[0], expected, atol=1e-12)


@check
def check_noise_of_chacha_has_the_stated_scale() -> None:
    for dtype in (torch.float32, torch.float64):
        values = torch.zeros(200_000, dtype=dtype)
        noise.add_gaussian([values], 3.0, stream())
        assert stats.kstest(values.double().numpy() / 3.0, "norm").pvalue > 1e-6
        assert abs(float(values.double().std()) / 3.0 - 1) < 5 / math.sqrt(400_000)
    grid = torch.zeros(200_000, dtype=torch.float64)
    noise.add_on_grid([grid], 2.0, 1.5, stream())
    assert 0.993 < float(grid.std()) / 3.0 < 1.009
    assert np.equal(np.mod(grid.numpy(), 2.0**-20), 0).all()


@check
def check_a_kernel_that_makes_other_blocks_is_not_used() -> None:
    """One that is compiled for a device has to make the blocks of the operations, to the bit, at
    any place and for any nonces.
    """

    def right(key: torch.Tensor, nonces: torch.Tensor, counters: torch.Tensor) -> torch.Tensor:
        return chacha_blocks.by_operations(
            key.numpy().tobytes(), nonces.expand_as(counters), counters
        )

    def of_32_bits(key: torch.Tensor, nonces: torch.Tensor, counters: torch.Tensor) -> torch.Tensor:
        return right(key, nonces, counters & 0xFFFFFFFF)

    def of_one_nonce(
        key: torch.Tensor, nonces: torch.Tensor, counters: torch.Tensor
    ) -> torch.Tensor:
        return right(key, nonces[:1], counters)

    def that_fails(*given: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("it can't be compiled")

    for make in (right, of_32_bits, of_one_nonce, that_fails):
        chacha_blocks._kernel.cache_clear()
        module = SimpleNamespace(by_triton=make)
        with mock.patch.dict(sys.modules, {"privlearn.core.chacha_kernel": module}):
            assert chacha_blocks._kernel(CPU) is (make if make is right else None)
    chacha_blocks._kernel.cache_clear()


@contextmanager
def with_triton() -> Iterator[None]:
    """A block in which modules of kernels can be imported, if not run."""
    language = SimpleNamespace(constexpr=lambda value: value)
    triton = SimpleNamespace(jit=lambda function: function, language=language)
    with mock.patch.dict(sys.modules, {"triton": triton, "triton.language": language}):
        yield
    vars(mechanisms).pop("normals_kernel", None)


@check
def check_a_kernel_that_draws_otherwise_is_not_used() -> None:
    """One that is compiled for normal draws has to make those of the operations, at any place."""

    def right(key: bytes, nonce: int, ranges: Any, device: torch.device) -> torch.Tensor:
        return noise.normals_of(chacha_blocks.words_at(key, nonce, ranges, device), torch.float32)

    def of_32_bits(key: bytes, nonce: int, ranges: Any, device: torch.device) -> torch.Tensor:
        (*_, (_, last)) = ranges
        return right(key, nonce, [*ranges[:-1], (2**32 - 1, 2**32), (0, last - 2**32)], device)

    def too_short(key: bytes, nonce: int, ranges: Any, device: torch.device) -> torch.Tensor:
        return right(key, nonce, ranges, device) * 0.999

    def of_other_blocks(key: bytes, nonce: int, ranges: Any, device: torch.device) -> torch.Tensor:
        return right(key, chacha.NOISE, ranges, device)

    def that_fails(*given: Any) -> torch.Tensor:
        raise RuntimeError("it can't be compiled")

    for draw in (right, of_32_bits, too_short, of_other_blocks, that_fails):
        noise._kernel_on.cache_clear()
        with with_triton():
            sys.modules.pop("privlearn.core.mechanisms.normals_kernel", None)
            module = importlib.import_module("privlearn.core.mechanisms.normals_kernel")
            with mock.patch.object(module, "draw_normals", draw):
                assert noise._kernel_on(CPU) is (draw if draw is right else None)
    noise._kernel_on.cache_clear()


@check
def check_a_kernel_of_normal_draws_is_chosen_by_their_number() -> None:
    """Not by what was drawn before: a step that a resumed run repeats has the same noise."""
    drawn: list[int] = []

    def draw(key: bytes, nonce: int, ranges: Any, device: torch.device) -> torch.Tensor:
        drawn.append(sum(last - first for first, last in ranges))
        return noise.normals_of(chacha_blocks.words_at(key, nonce, ranges, device), torch.float32)

    elsewhere = mock.patch.object(noise, "on_processor", return_value=False)
    kernel = mock.patch.object(noise, "_kernel_on", return_value=draw)
    for calls in (0, 10**6):
        asked = mock.patch.dict(chacha_blocks._asked, {CPU: calls})
        with elsewhere, kernel, asked, mock.patch.object(chacha_blocks, "_COMPILED_FROM", 100):
            for numbers in (8, 792, 800, 80_000):
                noise.add_gaussian([torch.zeros(numbers)], 1.0, stream())
    assert drawn == [100, 10_000] * 2
