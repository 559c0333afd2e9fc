"""Each example has random numbers of its own: what dropout, a loss or a transform draws for it
depends on no other example.

Every number is a function of the batch's seed, of a digest of the example's content, of which call
draws it, and of its place in what that call draws for the example. So one example more or less
moves no other example's masks, and a sum of clipped gradients changes by at most the clip's norm,
also for those who know the seeds.

AES makes them on the processor. ChaCha20 makes them where they are needed (`core.chacha_blocks`),
with the same bits on every device: a key for each call, the digest as nonce, the place as counter.
A run draws masks by the cipher of its noise. Whole numbers are compared with whole numbers, so that
masks of one seed are the same on all devices.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from privlearn.core.clipping.layout import Layout, NotLayerwise
from privlearn.core.devices import (
    PROCESSOR,
    generator_states,
    on_processor,
    seed_accelerator,
    set_generator,
)

_BLOCK = 16  # bytes that AES makes at once
_LEAST = -(2**31)  # what stands for 0 in 32 bits with a sign
_aten = torch.ops.aten


@final
class RowRandom:
    """What the examples of a batch draw, whichever way they are computed.

    Attributes:
        device: where they are computed.
        active: whether the model or the loss is known to draw random numbers; where not, their
            blocks change nothing.
    """

    def __init__(self, device: torch.device = PROCESSOR) -> None:
        self.active, self.device = False, device
        #: "aes" or "chacha20"; None: ChaCha20 for what is drawn on an accelerator, else AES.
        self.cipher: str | None = None
        self._key = bytes(_BLOCK)
        self._examples = _Examples(np.zeros(0, np.uint64))

    @property
    def examples(self) -> int:
        """How many examples are computed."""
        return len(self._examples.digests)

    @contextmanager
    def made_up(self, examples: int) -> Iterator[None]:
        """A block in which so many made-up examples are computed."""
        held = self._examples
        self._examples = _Examples(np.arange(examples, dtype=np.uint64))
        try:
            yield
        finally:
            self._examples = held

    @contextmanager
    def only(self, numbers: Sequence[int]) -> Iterator[None]:
        """A block in which the examples with these numbers are computed, a number once or more."""
        held = self._examples
        self._examples = _Examples(held.digests[list(numbers)]) if self.active else held
        try:
            yield
        finally:
            self._examples = held

    def begin(self, key: bytes) -> None:
        """A batch comes, whose random numbers follow from `key`, 16 bytes."""
        self._key = key

    def take(self, examples: NDArray[np.uint64]) -> None:
        """Examples are computed that have these digests, in this order."""
        self._examples = _Examples(examples)

    def together(
        self, layouts: Sequence[Layout] | None = None, purpose: int = 0
    ) -> AbstractContextManager[object]:
        """A block in which all examples are computed at once.

        Args:
            layouts: for each call that draws, where the examples are in what it draws; by default
                dimension 0.
            purpose: 0 for the model and the loss, 1 for copies: they draw different numbers.
        """
        return self._draw_by_key(self._examples, layouts, purpose)

    def alone(self, number: int, purpose: int = 0) -> AbstractContextManager[object]:
        """A block in which only example `number` is computed. It draws what it draws `together`
        with others.
        """
        alone = _Examples(self._examples.digests[number : number + 1])
        return self._draw_by_key(alone, None, purpose)

    def _draw_by_key(
        self, examples: _Examples, layouts: Sequence[Layout] | None, purpose: int
    ) -> AbstractContextManager[object]:
        return (
            _Keyed(self._key, examples, layouts, purpose, self.cipher, self.device)
            if self.active or purpose
            else nullcontext()
        )

    def seed(self, number: int) -> int:
        """A number of 63 bits that the example at place `number` may seed other generators with."""
        digest = self._examples.digests[number].tobytes()
        block = _encrypt(self._key, b"".join((digest, bytes(8))))
        return int.from_bytes(block[:8], "little") >> 1


@final
class _Examples:
    """The digests of examples, which are copied to a device once."""

    def __init__(self, digests: NDArray[np.uint64]) -> None:
        self.digests = digests
        self._on: dict[torch.device, Tensor] = {}

    def nonces(self, device: torch.device) -> int | Tensor:
        """The digests, on a device; of a single one the number, which needs no copy."""
        if len(self.digests) == 1:
            return int(self.digests[0])
        if device not in self._on:
            self._on[device] = torch.from_numpy(self.digests.view(np.int64)).to(device)
        return self._on[device]


def _plain_attention(device: torch.device) -> AbstractContextManager[object]:
    """On an accelerator fused kernels of attention would make their masks themselves."""
    return nullcontext() if on_processor(device) else _UnfusedUnderDropout()


@final
class _UnfusedUnderDropout(TorchFunctionMode):
    """While it is active, attention with dropout is computed in single operations, whose mask is
    drawn by key. Attention without dropout keeps its fused kernels.

    A call that comes past this mode is seen by `_Keyed`, which refuses to draw for several
    examples at once.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        dropout = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
        with sdpa_kernel(SDPBackend.MATH) if dropout else nullcontext():
            return func(*args, **kwargs)


@final
class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down the shapes of what is drawn in the block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if _draws(func, args, kwargs or {}):
            self.shapes.append(tuple(_pick_drawn(func, out).shape))
        return out


@final
class _Keyed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is active, what PyTorch draws are functions of the examples' digests."""

    def __init__(
        self,
        key: bytes,
        examples: _Examples,
        layouts: Sequence[Layout] | None,
        purpose: int,
        cipher: str | None,
        device: torch.device,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._key, self._layouts, self._cipher = key, layouts, cipher
        self._of, self._examples = examples, examples.digests
        self._seed = int.from_bytes(key[8 * purpose :][:8], "little") >> 1
        self._calls = 0
        self._attention = _plain_attention(device)

    def __enter__(self) -> _Keyed:
        # Each call that draws takes one number of PyTorch's own generator, as its name: so what is
        # computed again from where that generator was (torch.utils.checkpoint) draws the same.
        draw_from(self._seed)
        self._attention.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._attention.__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not _draws(func, args, kwargs):
            return func(*args, **kwargs)
        name = int(torch.randint(2**63 - 1, (), device="cpu"))
        kwargs = {key: None if key == "generator" else value for key, value in kwargs.items()}
        if func not in _FILLS:
            return self._draw_from_seed(func, args, kwargs, name)
        arguments = _arguments(func, args, kwargs)
        out = args[0]
        if not func._schema.is_mutable:
            out = (
                torch.empty_like(out) if isinstance(out, Tensor) else _allocate(func, args, kwargs)
            )
        bits = self._numbers(name, tuple(out.shape), out.device)
        return _fill(_FILLS[func], out, bits, arguments)

    def _numbers(self, name: int, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Uniform numbers of 32 bits for what one call draws, int32: from -2^31 on, the least.

        They are on `device`, or on the processor where that can't make them, or AES does.
        """
        number, layout = len(self._examples), self._layout(shape)
        size = int(np.prod(shape, dtype=np.int64)) // max(number, 1)
        chosen = self._cipher or ("aes" if on_processor(device) else "chacha20")
        bits = self._by_aes(name, size) if chosen == "aes" else self._by_chacha(name, size, device)
        if layout.axis == 0:
            return bits.reshape(shape)
        rows = bits.reshape(number, shape[0], shape[1] // number, *shape[2:])
        return rows.movedim(0, 1).reshape(shape)

    def _by_chacha(self, name: int, size: int, device: torch.device) -> Tensor:
        """So many numbers for each example, by ChaCha20 where it works."""
        from privlearn.core import chacha, chacha_blocks  # not to verify or plan

        device = device if chacha_blocks.works_on(device, in_double=True) else torch.device("cpu")
        number, blocks = len(self._examples), -(-size // chacha.WORDS)
        key = chacha.derive_key(self._key, b"masks", of=name.to_bytes(8, "little"))
        nonces = self._of.nonces(device)
        if not isinstance(nonces, int):
            nonces = nonces.repeat_interleave(blocks, output_size=number * blocks)
        counters = torch.arange(blocks, device=device).repeat(number)
        words = chacha_blocks.blocks_of(key, nonces, counters).view(chacha.WORDS, number, blocks)
        return words.movedim(0, 2).reshape(number, -1)[:, :size]

    def _by_aes(self, name: int, size: int) -> Tensor:
        """So many numbers for each example, by AES on the processor."""
        number, blocks = len(self._examples), -(-size * 4 // _BLOCK)
        plain = np.empty((number, blocks, 2), np.uint64)
        plain[:, :, 0], plain[:, :, 1] = self._examples[:, None], np.arange(blocks, dtype=np.uint64)
        call_key = _encrypt(self._key, name.to_bytes(_BLOCK, "little"))
        encrypted = bytearray(_encrypt(call_key, plain.data.cast("B")))
        bits = np.frombuffer(encrypted, np.int32)[: plain.size * 2].reshape(number, blocks * 4)
        return torch.from_numpy(bits)[:, :size] ^ _LEAST

    def _layout(self, shape: tuple[int, ...]) -> Layout:
        number, call = len(self._examples), self._calls
        self._calls += 1
        if number == 1:
            return Layout(0, 1)
        if self._layouts is not None and call >= len(self._layouts):
            raise NotLayerwise("the model draws more random numbers than it did on made-up rows")
        layout = Layout(0, 1) if self._layouts is None else self._layouts[call]
        if len(shape) <= layout.axis or shape[layout.axis] % number:
            raise NotLayerwise(
                f"random numbers of shape {shape} are not drawn for each of {number} examples"
            )
        return layout

    def _draw_from_seed(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: int
    ) -> Any:
        """What has no fill is drawn for one example, from a seed of its own."""
        if len(self._examples) != 1:
            raise NotLayerwise(f"{func} draws for all examples at once")
        seed_bytes = _encrypt(self._key, self._examples.tobytes() + name.to_bytes(8, "little"))
        seed = int.from_bytes(seed_bytes[:8], "little") >> 1
        device = next(
            (value.device for value in args if isinstance(value, Tensor)), torch.device("cpu")
        )
        with unmoved(device):
            draw_from(seed)
            return func(*args, **kwargs)


def _encrypt(key: bytes, plain: Any) -> bytes:
    """AES-128 of whole blocks, each by itself."""
    # not to verify or plan
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    return Cipher(algorithms.AES128(key), modes.ECB()).encryptor().update(plain)


def _arguments(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    known = func._schema.arguments
    defaults = {
        argument.name: argument.default_value for argument in known if argument.has_default_value()
    }
    return defaults | dict(zip((argument.name for argument in known), args, strict=False)) | kwargs


def _draws(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a call draws random numbers: not one of attention, a recurrent net or dropout that
    leaves nothing out.
    """
    return torch.Tag.nondeterministic_seeded in func.tags and draws_numbers(
        func, _arguments(func, args, kwargs)
    )


def draws_numbers(func: Any, arguments: dict[str, Any]) -> bool:
    """Whether a call with these arguments draws random numbers."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    off = any(arguments.get(name, 1) == 0 for name in ("dropout_p", "dropout", "train"))
    return not off and bool(arguments.get("training", True))


def _pick_drawn(func: Any, out: Any) -> Tensor:
    """What a call drew: the last of its results, its mask."""
    drawn: Tensor = out[-1] if isinstance(out, tuple) else out
    return drawn


def _allocate(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    """A tensor of the shape, type and place that a call makes; its numbers are anything."""
    with unmoved(torch.device(kwargs.get("device") or "cpu")):
        out: Tensor = func(*args, **kwargs)
    return out


def _fill(kind: str, out: Tensor, bits: Tensor, arguments: dict[str, Any]) -> Any:
    """What a call of this kind draws, from uniform numbers of 32 bits.

    Args:
        kind: one of those in `_FILLS`.
        out: where to put it.
        bits: as many as `out` has numbers, in its shape; int32, from -2^31 on.
        arguments: those of the call, by name.
    """
    if kind == "bernoulli":
        share = arguments["p"] if "p" in arguments else arguments["self"].detach().to(bits.device)
        return out.copy_(_below(bits, share))
    if kind == "dropout":
        # As `torch.dropout` does on the processor, by `bernoulli_`.
        rows, share = arguments["input"], 1 - arguments["p"]
        mask = _below(bits, share).to(rows.device)
        scale = mask.to(rows.dtype)
        return rows * (scale.div_(share) if share else scale), mask
    if kind == "normal":
        return out.copy_(
            torch.special.ndtri(_inner(bits)) * arguments.get("std", 1.0)
            + arguments.get("mean", 0.0)
        )
    if kind == "exponential":
        return out.copy_(-_inner(bits).log() / arguments["lambd"])
    # from [0, 1), in single precision exactly
    unit = (_from_zero(bits) >> 8).double() * 2.0**-24
    if kind == "leaks":
        slopes = (unit * (arguments["upper"] - arguments["lower"]) + arguments["lower"]).to(out)
        return arguments["self"] * arguments["noise"].copy_(
            slopes.where(arguments["self"] <= 0, 1.0)
        )
    low, high = arguments.get("from", 0.0), arguments.get("to", 1.0)
    return out.copy_(unit * (high - low) + low)


def _below(bits: Tensor, share: float | Tensor) -> Tensor:
    """Which of uniform numbers are among this share of them, the lowest: compared in whole
    numbers.
    """
    if isinstance(share, Tensor):
        return _from_zero(bits) < (share.double() * 2.0**32).ceil().long()
    least = math.ceil(share * 2.0**32) + _LEAST
    return torch.ones_like(bits, dtype=torch.bool) if least > ~_LEAST else bits < least


def _from_zero(bits: Tensor) -> Tensor:
    """Whole numbers from 0 to 2^32 - 1."""
    return bits.long() - _LEAST


def _inner(bits: Tensor) -> Tensor:
    """Numbers from (0, 1), float64."""
    return (_from_zero(bits).double() + 0.5) * 2.0**-32


#: Calls that draw, and what.
_FILLS: dict[Any, str] = {
    _aten.bernoulli_.float: "bernoulli",
    _aten.bernoulli.p: "bernoulli",
    _aten.bernoulli.default: "bernoulli",
    _aten.native_dropout.default: "dropout",
    _aten.uniform_.default: "uniform",
    _aten.rand.default: "uniform",
    _aten.rand.generator: "uniform",
    _aten.rand_like.default: "uniform",
    _aten.normal_.default: "normal",
    _aten.randn.default: "normal",
    _aten.randn.generator: "normal",
    _aten.randn_like.default: "normal",
    _aten.exponential_.default: "exponential",
    _aten.rrelu_with_noise.default: "leaks",
}


def fresh_key() -> bytes:
    """16 bytes from PyTorch's own generator."""
    return torch.randint(256, (_BLOCK,), dtype=torch.uint8, device="cpu").numpy().tobytes()


def drawn_by(device: torch.device) -> list[Tensor]:
    """Where PyTorch's generators of the processor and of `device` are."""
    return [
        torch.get_rng_state(),
        *generator_states(device),
    ]


def draw_again(device: torch.device, drawn: list[Tensor]) -> None:
    """Let PyTorch's generators draw again what they drew since they were at `drawn`."""
    torch.set_rng_state(drawn[0])
    if len(drawn) > 1:
        set_generator(device, drawn[1])


def draw_from(seed: int) -> None:
    """Put PyTorch's generators of the processor and of accelerators to `seed`, as
    `torch.manual_seed`.

    That also asks for devices that are not there, and formats the call's stack for each:
    milliseconds, every time.
    """
    torch.default_generator.manual_seed(seed)
    seed_accelerator(seed)


@contextmanager
def unmoved(device: torch.device) -> Iterator[None]:
    """However the block draws, PyTorch's generators are then where they were."""
    drawn = drawn_by(device)
    try:
        yield
    finally:
        draw_again(device, drawn)


def foreign_state() -> str:
    """Where numpy's and Python's global generators are, to compare."""
    name, key, *rest = np.random.get_state()  # noqa: NPY002 - what others draw from
    return f"{name} {np.asarray(key).tobytes().hex()} {rest} {random.getstate()}"


@contextmanager
def generators_at(seed: int) -> Iterator[None]:
    """For the block: PyTorch's, numpy's and Python's global generators at `seed`. All are then what
    they were.
    """
    legacy, plain = np.random.get_state(), random.getstate()  # noqa: NPY002 - what estimators draw from
    with torch.random.fork_rng():
        draw_from(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(legacy)  # noqa: NPY002
            random.setstate(plain)
