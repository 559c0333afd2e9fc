"""Separate streams of random numbers for sampling, noise, initialisation and views.

Each stream is AES in counter mode with a 128-bit key of its own. Without a seed the keys come from the operating
system; with a seed they are derived from it, the run can be repeated, and anyone who knows the seed can take the noise
off: certificates say so.
"""

from __future__ import annotations

import os
import secrets
import weakref
from dataclasses import dataclass
from typing import Any, NoReturn, final

import numpy as np
from numpy.typing import NDArray
from randomgen import AESCounter

from privlearn._validate import count
from privlearn.errors import BadInput

_BLOCK = 16  # bytes that AES makes at once
_ZEROS = memoryview(bytes(1 << 20))


@final
class NoiseStream:
    """The random bits that noise is made of: AES-128 in counter mode, by OpenSSL.

    Copies of a stream are the stream, and it can't be pickled: no bit is ever handed out twice.

    Args:
        key: 16 bytes.
        position: blocks of 16 bytes that were handed out before.
        discrete: whether releases are to make noise on a grid of it (`mechanisms.grid`).
    """

    def __init__(self, key: bytes, position: int = 0, *, discrete: bool = False) -> None:
        self.discrete = discrete
        self._start(key, position)

    def _start(self, key: bytes, position: int) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # not to verify or plan

        self.key, self.position = key, position
        counter = modes.CTR(position.to_bytes(_BLOCK, "big"))
        self._encryptor = Cipher(algorithms.AES128(key), counter).encryptor()

    def words(self, number: int) -> NDArray[np.int64]:
        """`number` words of 64 random bits."""
        size = -(-number * 8 // _BLOCK) * _BLOCK
        bits = np.empty(size + _BLOCK, np.uint8)
        for start in range(0, size, len(_ZEROS)):
            self._encryptor.update_into(_ZEROS[: size - start], bits[start:].data)
        self.position += size // _BLOCK
        return bits[: number * 8].view(np.int64)

    def __copy__(self) -> NoiseStream:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> NoiseStream:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a NoiseStream cannot be pickled: a copy would draw the same noise again")


@final
@dataclass(frozen=True, eq=False)
class Streams:
    """The random streams of one run.

    Processes that are forked go on with fresh keys of their own, so that no two draw the same noise.

    Attributes:
        sampling: draws batches. Its secrecy is what sampling amplification rests on.
        noise: draws the noise of releases. Copies of the streams are the streams: noise is never drawn twice.
        initialisation: draws initial weights; public.
        views: seeds the changed copies of examples, whose gradients are bounded whatever they are; public.
        seeded: whether the keys follow from a seed that somebody may know.
    """

    sampling: np.random.Generator
    noise: NoiseStream
    initialisation: np.random.Generator
    views: np.random.Generator
    seeded: bool

    def __post_init__(self) -> None:
        _ALIVE.add(self)

    def __copy__(self) -> Streams:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Streams:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("Streams cannot be pickled: a copy would draw the same noise again")

    @classmethod
    def new(cls, seed: int | None = None, *, rank: int = 0, discrete: bool = False) -> Streams:
        """Make fresh streams, from the operating system or from `seed` (a whole number, 0 or above).

        Args:
            seed: None for keys from the operating system.
            rank: which of several processes this is: with the same seed, each has streams of its own.
            discrete: whether releases add noise on a grid, in exact arithmetic.
        """
        if seed is not None:
            count("seed", seed, least=0)
        count("rank", rank, least=0)
        sampling, noise, initialisation, views = (_key(seed, rank, purpose) for purpose in range(4))
        return cls(
            _generator(sampling),
            NoiseStream(noise, discrete=discrete),
            _generator(initialisation),
            _generator(views),
            seeded=seed is not None,
        )

    def state(self) -> dict[str, Any]:
        """Keys and positions, as plain values: a secret, like the noise itself.

        Streams that are made `at` it draw the very same numbers, so it is for continuing one run in one place.
        """
        return {
            "sampling": _state(self.sampling),
            "noise": {
                "key": self.noise.key.hex(),
                "position": self.noise.position,
                "discrete": self.noise.discrete,
            },
            "initialisation": _state(self.initialisation),
            "views": _state(self.views),
            "seeded": self.seeded,
        }

    @classmethod
    def at(cls, state: dict[str, Any]) -> Streams:
        """The streams whose `state` was taken.

        Raises:
            BadInput: no such state.
        """
        try:
            found = state["noise"]
            position = count("position", found["position"], least=0)
            noise = NoiseStream(bytes.fromhex(found["key"]), position, discrete=bool(found["discrete"]))
            sampling, initialisation, views = (_restored(state[n]) for n in ("sampling", "initialisation", "views"))
            return cls(sampling, noise, initialisation, views, seeded=bool(state["seeded"]))
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise BadInput(f"that is no state of random streams: {error}") from error


def _key(seed: int | None, rank: int, purpose: int) -> bytes:
    if seed is None:
        return secrets.token_bytes(16)
    return np.random.SeedSequence(seed, spawn_key=(purpose, rank)).generate_state(2, np.uint64).tobytes()


def _generator(key: bytes) -> np.random.Generator:
    return np.random.Generator(AESCounter(key=int.from_bytes(key, "little")))


def _state(generator: np.random.Generator) -> dict[str, Any]:
    """The generator's state, its arrays as lists."""
    found = generator.bit_generator.state
    inner = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in found["s"].items()}
    return {**{name: value for name, value in found.items() if name != "s"}, "s": inner}


def _restored(state: dict[str, Any]) -> np.random.Generator:
    generator = _generator(bytes(16))
    arrays = generator.bit_generator.state["s"]
    inner = {
        name: np.array(state["s"][name], dtype=value.dtype) if isinstance(value, np.ndarray) else state["s"][name]
        for name, value in arrays.items()
    }
    generator.bit_generator.state = {**state, "s": inner}
    return generator


_ALIVE: weakref.WeakSet[Streams] = weakref.WeakSet()


def _part_ways() -> None:
    """In a forked process: other keys, or it would draw what its parent draws."""
    for streams in list(_ALIVE):
        streams.noise._start(secrets.token_bytes(16), 0)
        for generator in (streams.sampling, streams.initialisation, streams.views):
            generator.bit_generator.state = _generator(secrets.token_bytes(16)).bit_generator.state


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _part_ways())
