"""Sampling, noise, initialisation and views draw from separate streams of random numbers.

Each stream is AES in counter mode with a 128-bit key of its own; the noise of a run on an
accelerator is ChaCha20, which is made there (`core.chacha`). Without a seed the keys come from
the operating system; with a seed they are derived from it, the run can be repeated, and anyone who
knows the seed can take the noise off: certificates say so. A run counts as seeded unless every one
of its streams has a key from the operating system.

A key draws noise for one thing only. Where a secret outlives a call (in a kept folder, in a
commitment), the keys of sampling and of noise follow from it and from all that determines the sums
(`Streams.bind`), and before that no noise can be drawn. What noise is drawn for is shown to a
stream's watch first (`NoiseStream.drawing_for`).
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from randomgen import AESCounter

from privlearn._checks import count, one_of, with_plain_numbers
from privlearn._display import Described, Summary
from privlearn.errors import BadInput

_BLOCK = 16  # bytes that AES makes at once
#: What noise can be made by, and the bytes of a block, which positions count.
_BLOCKS: Mapping[str, int] = {"aes": _BLOCK, "chacha20": 64}
#: The name of the cipher among what keys follow from.
CIPHER = "noise cipher"
_ZEROS = memoryview(bytes(1 << 20))

#: Of parts of larger wholes: where each begins in its whole, and the size of the whole.
Places: TypeAlias = Sequence[tuple[int, int]]
#: Called with a stream, the values that it is about to draw noise for, and their places; raises to
#: refuse.
Watch: TypeAlias = "Callable[[NoiseStream, Sequence[Any], Places | None], None]"


@final
class NoiseStream:
    """The random bits that noise is made of, by a cipher in counter mode.

    AES-128 is made by OpenSSL on the processor. ChaCha20, with a key of 256 bits that is derived
    from the stream's 128, is made anywhere: each block follows from the key and its place, on every
    device the same. One cipher makes all of a stream: two of them would make two noises for one
    sum, of which only one is charged. It is chosen before the first bit is drawn, by a run
    (`choose`) or by who made the stream; else it is AES.

    Copies of a stream are the stream, and it can't be pickled: no bit is ever handed out twice. In
    a forked process it goes on with a fresh key from the operating system.

    Args:
        key: 16 bytes.
        position: blocks that were handed out before, of 16 bytes, or of ChaCha20 of 64.
        discrete: whether releases are to make noise on a grid of it (`mechanisms.noise`).
        cipher: what makes the bits; None: that is not chosen yet.
    """

    def __init__(
        self,
        key: bytes,
        position: int = 0,
        *,
        discrete: bool = False,
        cipher: str | None = None,
    ) -> None:
        self.discrete = discrete
        self.cipher = cipher if cipher is None else one_of("cipher", cipher, _BLOCKS)
        #: Whether the key came from the operating system, so that it is not known.
        self.from_system = False
        #: What the key is going to follow from, once it is known what the stream draws for; None:
        #: the key is there.
        self.secret: bytes | None = None
        #: What is shown the values before noise is drawn for them; None where the key ends with the
        #: call.
        self.watch: Watch | None = None
        self._drawing = False
        self._start(key, position)
        _ALIVE.add(self)

    @contextmanager
    def drawing_for(self, values: Sequence[Any], places: Places | None = None) -> Iterator[None]:
        """A block in which noise is drawn for `values`, tensors that have none yet: the watch sees
        them before.

        Args:
            values: what the noise is for.
            places: where these are parts of larger wholes.

        Raises:
            BadInput: the streams outlive the call, and are not bound; or the watch refuses.
        """
        self.require_bound()
        self.choose("aes")
        if self.watch is not None:
            self.watch(self, values, places)
        self._drawing = True
        try:
            yield
        finally:
            self._drawing = False

    def require_bound(self) -> None:
        """Raise `BadInput` where the secret outlives the call, and what the key is for is not
        known.
        """
        if self.secret is not None:
            raise BadInput(
                "these random streams belong to a kept folder or a recorded run, and were given to "
                "something else: their noise would be that of another call. Leave streams out, or "
                "give pv.Streams.new()"
            )

    def _require_shown(self) -> None:
        """Raise unless it is known what the key is for, and what is drawn for was shown to the
        watch.
        """
        self.require_bound()
        self.choose("aes")
        if self.watch is not None and not self._drawing:
            raise BadInput(
                "noise was drawn outside of drawing_for(values), and nothing says what it is for: "
                "use it"
            )

    def choose(self, cipher: str) -> None:
        """Let a cipher make the bits, if none was chosen: once it is, it stays."""
        if self.cipher is None:
            self.cipher = cipher

    def _start(self, key: bytes, position: int = 0) -> None:
        # not to verify or plan
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        self.key, self.position = key, position
        counter = modes.CTR(position.to_bytes(_BLOCK, "big"))
        self._encryptor = Cipher(algorithms.AES128(key), counter).encryptor()

    @property
    def chacha_key(self) -> bytes:
        """The key of ChaCha20, 32 bytes; for noise (`mechanisms.noise`)."""
        from privlearn.core import chacha  # not to verify or plan

        return chacha.derive_key(self.key, b"noise")

    def take(self, blocks: int) -> int:
        """The place of the next blocks of ChaCha20, which are handed out: who calls makes them
        (`core.chacha`).
        """
        self._require_shown()
        assert self.cipher == "chacha20", "AES is made here, in order"
        place, self.position = self.position, self.position + blocks
        return place

    @staticmethod
    def is_one(stream: object) -> bool:
        """Whether it is a noise stream, and nothing that only looks like one."""
        return type(stream) is NoiseStream

    def words(self, number: int) -> NDArray[np.int64]:
        """`number` words of 64 random bits."""
        self._require_shown()
        return self._bits(number * 8).view(np.int64)

    def _bits(self, wanted: int) -> NDArray[np.uint8]:
        """As many bytes, of whole blocks."""
        if self.cipher == "chacha20":
            from privlearn.core import chacha  # not to verify or plan

            blocks = -(-wanted // chacha.BLOCK)
            keystream = chacha.by_openssl(self.chacha_key, chacha.NOISE, self.take(blocks), blocks)
            return keystream.reshape(-1).view(np.uint8)[:wanted]
        size = -(-wanted // _BLOCK) * _BLOCK
        bits = np.empty(size + _BLOCK, np.uint8)
        for start in range(0, size, len(_ZEROS)):
            self._encryptor.update_into(_ZEROS[: size - start], bits[start:].data)
        self.position += size // _BLOCK
        return bits[:wanted]

    def part(self) -> NoiseStream:
        """Another stream, whose key are the next bits of this one; of its cipher, if that was
        chosen.
        """
        chosen = self.cipher
        self._require_shown()
        stream = NoiseStream(self._bits(_BLOCK).tobytes(), discrete=self.discrete, cipher=chosen)
        stream.from_system = self.from_system
        return stream

    def skip(self, number: int) -> None:
        """Go past what `words(number)` would hand out, without making it: another process has
        it.
        """
        if number:
            self.choose("aes")
            self._start(self.key, self.position - (-number * 8 // _BLOCKS[str(self.cipher)]))

    def __copy__(self) -> NoiseStream:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> NoiseStream:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a NoiseStream cannot be pickled: a copy would draw the same noise again")


@final
class RandomStream(np.random.Generator):
    """A numpy generator on AES-128 in counter mode. A forked process gets a fresh key from the
    operating system.

    Args:
        key: 16 bytes.
        from_system: whether the key came from the operating system, so that it is not known.
    """

    def __init__(self, key: bytes, from_system: bool) -> None:
        super().__init__(AESCounter(key=int.from_bytes(key, "little")))
        self.from_system = from_system
        _ALIVE.add(self)

    def _start(self, key: bytes) -> None:
        self.bit_generator.state = AESCounter(key=int.from_bytes(key, "little")).state


@final
@dataclass(frozen=True, eq=False, repr=False)
class Streams(Described):
    """The random streams of one run: `Streams.new()` makes them, with keys from the operating
    system.

    `Streams.new(seed)` makes streams that repeat a run, for trying out: anyone who knows the seed
    can take the noise off, so the certificate says that the run was seeded. In a forked process
    each stream goes on with a fresh key, so that no two processes draw the same numbers.

    Attributes:
        sampling: draws batches. Secret: amplification by sampling rests on it.
        noise: draws the noise of releases. Secret. Copies of the streams are the streams: noise is
            never drawn twice.
        initialisation: draws initial weights. No guarantee of DP-SGD rests on its secrecy.
        views: seeds, for each batch, dropout and the changed copies of examples. What an example
            draws follows from this seed and the example itself, not from other examples; so no
            guarantee rests on its secrecy.
        seeded: whether anyone may know a key. True also where it is given as False, unless each of
            the four streams was made by `Streams.new()` or `Streams.at()` with a key from the
            operating system.
    """

    sampling: np.random.Generator
    noise: NoiseStream
    initialisation: np.random.Generator
    views: np.random.Generator
    seeded: bool

    def __post_init__(self) -> None:
        streams = (self.sampling, self.noise, self.initialisation, self.views)
        secret = all(getattr(stream, "from_system", False) for stream in streams)
        object.__setattr__(self, "seeded", self.seeded or not secret)

    def _summary(self) -> Summary:
        if self.seeded:
            said = (
                "anyone who knows the seed can take the noise off: for trying out, and stated "
                "in the certificate"
            )
            return Summary("Streams from a seed", [("a run can be repeated", said)])
        return Summary(
            "Streams with keys from the operating system",
            [("used", "by one run; no other draws the same noise")],
        )

    def __copy__(self) -> Streams:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Streams:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("Streams cannot be pickled: a copy would draw the same noise again")

    @classmethod
    @with_plain_numbers
    def new(
        cls,
        seed: int | None = None,
        *,
        rank: int = 0,
        discrete: bool = False,
        cipher: str | None = None,
    ) -> Streams:
        """Make fresh streams, from the operating system or from `seed` (a whole number, 0 or
        above).

        Args:
            seed: None for keys from the operating system.
            rank: which of several processes this is: with the same seed, each has streams of its
                own.
            discrete: whether releases add noise on a grid, in exact arithmetic.
            cipher: what makes noise, and masks of dropout: "chacha20" is made on any device, with
                the same bits on all of them; "aes" on the processor. None: ChaCha20 in a run whose
                model is on an accelerator, else AES.
        """
        if seed is not None:
            count("seed", seed, least=0)
        count("rank", rank, least=0)
        keys = [_key(seed, rank, purpose) for purpose in range(4)]
        sampling, initialisation, views = (
            RandomStream(keys[purpose], seed is None) for purpose in (0, 2, 3)
        )
        noise = NoiseStream(keys[1], discrete=discrete, cipher=cipher)
        noise.from_system = seed is None
        return cls(sampling, noise, initialisation, views, seeded=seed is not None)

    def part(self) -> Streams:
        """Streams for one of several runs in this one, which may then go on at once: keys are these
        streams' next bits.

        Each key is drawn from the stream that it is for: who knows all streams but the noise knows
        no noise of a part.
        """
        sampling, initialisation, views = (
            RandomStream(stream.bytes(_BLOCK), getattr(stream, "from_system", False))
            for stream in (self.sampling, self.initialisation, self.views)
        )
        return Streams(sampling, self.noise.part(), initialisation, views, seeded=self.seeded)

    @classmethod
    def of_key(cls, key: bytes, *, discrete: bool = False, cipher: str | None = None) -> Streams:
        """The streams whose four keys are the parts of one of 64 bytes, which has to be as secret
        as the data.

        They do not count as seeded: the key has to come from the operating system's random numbers.
        """
        keys = [key[start : start + 16] for start in range(0, 64, 16)]
        sampling, initialisation, views = (
            RandomStream(keys[purpose], True) for purpose in (0, 2, 3)
        )
        noise = NoiseStream(keys[1], discrete=discrete, cipher=cipher)
        noise.from_system = True
        return cls(sampling, noise, initialisation, views, seeded=False)

    @classmethod
    def of_secret(
        cls,
        secret: bytes,
        key: bytes,
        *,
        discrete: bool = False,
        cipher: str | None = None,
    ) -> Streams:
        """Streams of a secret that outlives the call: they draw no noise before they are bound
        (`bind`).

        Args:
            secret: what the keys of sampling, noise and views are going to follow from; at most 64
                bytes.
            key: 64 bytes, as secret: what initial weights, and what is assigned before, are drawn
                from.
            discrete, cipher: as of `new`.
        """
        streams = cls.of_key(key, discrete=discrete, cipher=cipher)
        streams.noise.secret = secret
        return streams

    def bind(self, determined: Mapping[str, str]) -> None:
        """Let the keys of a secret that outlives the call follow from what they are used for, too,
        in place.

        Guarantee: streams of one secret that are bound to anything else have other keys, and so
        independent noise; and those that are bound to the same draw the same again, for the same
        sums. The cipher is one of the things that they are bound to. Other streams stay as they
        are: their keys end with the call, or are of a declared seed.

        Args:
            determined: all that the sums follow from, by name, as texts: the plan, options, digests
                of data.
        """
        secret = self.noise.secret
        if secret is None:
            return
        self.noise.choose("aes")
        said = json.dumps({**determined, **self.describe_cipher()}, sort_keys=True).encode()
        key = hashlib.blake2b(said, key=secret, person=b"bound").digest()
        self.noise.secret = None
        self.noise._start(key[:16])
        for stream, start in ((self.sampling, 16), (self.views, 32)):
            stream._start(key[start : start + 16])  # type: ignore[attr-defined]

    def describe_cipher(self) -> dict[str, str]:
        """The cipher of the noise, for what keys follow from; nothing for AES, which is usual."""
        cipher = self.noise.cipher
        return {} if cipher in (None, "aes") else {CIPHER: str(cipher)}

    def state(self) -> dict[str, Any]:
        """Keys and positions, as plain values: a secret, like the noise itself.

        Streams that are made `at` it draw the very same numbers, so it is for continuing one run in
        one place, and on one kind of device: a cipher that is not chosen yet stays open.
        """
        return {
            "sampling": _state(self.sampling),
            "noise": {
                "key": self.noise.key.hex(),
                "position": self.noise.position,
                "discrete": self.noise.discrete,
                "cipher": self.noise.cipher,
            },
            "initialisation": _state(self.initialisation),
            "views": _state(self.views),
            "seeded": self.seeded,
        }

    def positions(self) -> tuple[Any, ...]:
        """Keys and positions, for a process that draws the same numbers in step (`move_to`): as
        secret as the noise.
        """
        generators = (self.sampling, self.initialisation, self.views)
        noise = self.noise
        return (
            noise.key,
            noise.position,
            noise.discrete,
            noise.cipher,
            *(generator.bit_generator.state for generator in generators),
        )

    def move_to(self, positions: tuple[Any, ...]) -> None:
        """Draw on, in place, what the streams with these `positions` draw: one run's numbers in
        several processes.
        """
        key, position, self.noise.discrete, self.noise.cipher, *states = positions
        self.noise._start(key, position)
        for generator, state in zip(
            (self.sampling, self.initialisation, self.views), states, strict=True
        ):
            generator.bit_generator.state = state

    @classmethod
    def at(cls, state: dict[str, Any]) -> Streams:
        """The streams whose `state` was taken.

        Raises:
            BadInput: no such state.
        """
        try:
            noise_state = state["noise"]
            position = count("position", noise_state["position"], least=0)
            noise = NoiseStream(
                bytes.fromhex(noise_state["key"]),
                position,
                discrete=bool(noise_state["discrete"]),
                cipher=noise_state.get("cipher", "aes"),  # earlier versions had no other
            )
            noise.from_system = secret = not state["seeded"]
            sampling, initialisation, views = (
                _restore(state[name], secret) for name in ("sampling", "initialisation", "views")
            )
            return cls(sampling, noise, initialisation, views, seeded=not secret)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise BadInput(f"this is not a state of random streams: {error}") from error


def _key(seed: int | None, rank: int, purpose: int) -> bytes:
    if seed is None:
        return secrets.token_bytes(16)
    return (
        np.random.SeedSequence(seed, spawn_key=(purpose, rank))
        .generate_state(2, np.uint64)
        .tobytes()
    )


def _state(generator: np.random.Generator) -> dict[str, Any]:
    """The generator's state, its arrays as lists."""
    state = generator.bit_generator.state
    inner = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in state["s"].items()
    }
    return {**{name: value for name, value in state.items() if name != "s"}, "s": inner}


def _restore(state: dict[str, Any], from_system: bool) -> RandomStream:
    generator = RandomStream(bytes(16), from_system)
    arrays = generator.bit_generator.state["s"]
    inner = {
        name: np.array(state["s"][name], dtype=value.dtype)
        if isinstance(value, np.ndarray)
        else state["s"][name]
        for name, value in arrays.items()
    }
    generator.bit_generator.state = {**state, "s": inner}
    return generator


#: Every stream, each by itself: what is taken off its `Streams` is given a fresh key, too.
_ALIVE: weakref.WeakSet[NoiseStream | RandomStream] = weakref.WeakSet()


def _fresh_keys() -> None:
    """In a forked process: other keys, or it would draw what its parent draws."""
    for stream in list(_ALIVE):
        stream._start(secrets.token_bytes(16))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _fresh_keys())
