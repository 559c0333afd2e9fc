"""This file multiplies matrices by PyTorch's own products, or by oneDNN's where a probe finds them
faster, and says where results go.

`Scratch`: memory that is used again once it is free. The system clears every page that it hands
out, which can take as long as the product that fills it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, cast, final

import torch
from torch import Tensor
from torch.nn import functional as F

from privlearn.core.devices import on_processor


class Kernels:
    """PyTorch's own products."""

    def __init__(self) -> None:
        self.scratch = Scratch()
        #: Numbers of rows that oneDNN is given as they are, and how many: each has a product of a
        #: megabyte compiled.
        self.met, self.most = set[int](), 8

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x weight^T + bias, over the last dimension."""
        out = self.scratch.empty((*x.shape[:-1], weight.shape[0]), x)
        return _into(out, x, weight.t(), bias)

    def back(self, g: Tensor, weight: Tensor) -> Tensor:
        """g weight, over the last dimension: the gradient of the input."""
        return _into(self.scratch.empty((*g.shape[:-1], weight.shape[1]), g), g, weight)

    def each_outer(self, g: Tensor, a: Tensor) -> Tensor:
        """g[i]^T a[i] for each i: of shapes (batch, positions, outputs) and (batch, positions,
        inputs).
        """
        return torch.bmm(g.mT, a, out=self.scratch.empty((len(g), g.shape[2], a.shape[2]), g))

    def scaled(self, g: Tensor, weights: Tensor) -> Tensor:
        """weights[i] g[i] for each i."""
        return torch.mul(
            g, weights.view(-1, *[1] * (g.dim() - 1)), out=self.scratch.empty(g.shape, g)
        )

    def add_linear(self, x: Tensor, weight: Tensor, into: Tensor) -> None:
        """into += x weight^T, for x of shape (rows, inputs)."""
        into.addmm_(x, weight.T)

    def add_outer(self, g: Tensor, a: Tensor, into: Tensor) -> None:
        """into += g^T a, for g of shape (rows, outputs) and a of shape (rows, inputs)."""
        into.addmm_(g.T, a)


def _into(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    from privlearn.core.clipping.aligned_rows import align_rows  # for products alone

    rows, flat = align_rows(x.reshape(-1, x.shape[-1])), out.view(-1, out.shape[-1])
    if bias is None:
        torch.mm(rows, weight, out=flat)
    else:
        torch.addmm(bias, rows, weight, out=flat)
    return out


class _OneDNN(Kernels):
    """oneDNN's single-precision product; on some processors PyTorch's default library uses half of
    what they have.
    """

    #: Multiplications below which the call costs more than it saves.
    least = 1 << 22

    def each_outer(self, g: Tensor, a: Tensor) -> Tensor:
        # one call for each example, which all threads share
        least = self.least * torch.get_num_threads()
        if not self._suits(g, a, g[:1].numel() * a.shape[2], least):
            return super().each_outer(g, a)
        formed = self.scratch.empty((len(g), g.shape[2], a.shape[2]), g)
        factors = (t if t.mT.is_contiguous() else t.contiguous() for t in (g, a))
        for out, one, other in zip(formed, *factors, strict=True):
            out.copy_(_product(one.T, other.T, None))
        return formed

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not self._suits(x, weight, x.numel() * len(weight)):
            return super().linear(x, weight, bias)
        return self._by_rows(x, weight, bias)

    def back(self, g: Tensor, weight: Tensor) -> Tensor:
        if not self._suits(g, weight, g.numel() * weight.shape[1]):
            return super().back(g, weight)
        return self._by_rows(g, weight.T, None)

    def add_linear(self, x: Tensor, weight: Tensor, into: Tensor) -> None:
        if not self._suits(x, weight, x.numel() * len(weight)):
            super().add_linear(x, weight, into)
        else:
            into += self._by_rows(x, weight, None)

    def add_outer(self, g: Tensor, a: Tensor, into: Tensor) -> None:
        if not self._suits(g, a, g.numel() * a.shape[1]):
            super().add_outer(g, a, into)
        else:
            split = self._count_rows(len(g))
            one, other = g[:split].T, a[:split].T
            few = len(one) >= 3 * len(other)  # few rows take less time than few columns
            into += _product(other, one, None).T if few else _product(one, other, None)
            if split < len(g):
                into.addmm_(g[split:].T, a[split:])

    def _by_rows(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        split = self._count_rows(len(rows))
        if split == len(rows):
            return _product(x, weight, bias)
        out = self.scratch.empty((*x.shape[:-1], len(weight)), x)
        flat = out.view(-1, len(weight))
        flat[:split] = _product(rows[:split], weight, bias)
        _into(flat[split:], rows[split:], weight.T, bias)
        return out

    def _count_rows(self, rows: int) -> int:
        """How many of the rows go to oneDNN: few different numbers, whatever batches are drawn."""
        if rows in self.met or len(self.met) < self.most:
            self.met.add(rows)
            return rows
        return rows - rows % (1 << max(rows.bit_length() - 4, 0))

    def _suits(
        self, one: Tensor, other: Tensor, multiplications: int, least: int | None = None
    ) -> bool:
        plain = (
            one.dtype == other.dtype == torch.float32 and on_processor(one) and on_processor(other)
        )
        return plain and multiplications >= (least or self.least)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    bias = None if bias is None else bias.contiguous()  # oneDNN takes no notice of a bias's strides
    if not (weight.is_contiguous() or weight.T.is_contiguous()):
        weight = weight.contiguous()  # with other strides oneDNN takes a thousand times as long
    out = torch.ops.mkldnn._linear_pointwise(
        x.reshape(-1, x.shape[-1]), weight, bias, "none", [], ""
    )
    return cast(Tensor, out.view(*x.shape[:-1], weight.shape[0]))


@lru_cache
def _probe(threads: int) -> bool:
    """Whether oneDNN's product is there, right, and a good deal faster on this processor."""
    made_up = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(512, 512, generator=made_up, device="cpu") for _ in range(2))
    try:
        if not torch.allclose(_product(x, weight, None), F.linear(x, weight), rtol=1e-4, atol=1e-4):
            return False
        stock, ours = list[float](), list[float]()
        for _ in range(7):
            for times, product in ((stock, Kernels()), (ours, _OneDNN())):
                start = time.perf_counter()
                product.linear(x, weight, None)
                times.append(time.perf_counter() - start)
        return min(ours) < 0.8 * min(stock)
    except (RuntimeError, AttributeError, NotImplementedError):
        return False


#: The largest block whose release the GNU C library learns from: 32 MiB on 64-bit systems, its own
#: header included.
_LEARNT_FROM = (1 << 25) - (1 << 16)


@lru_cache
def keep_freed_memory() -> None:
    """Let the C library keep up to 64 MiB that were freed, where it decides by the largest block
    that it got back.

    It would otherwise hand a step's memory back to the system and get it again, cleared, page by
    page, in every step. A program that ever freed a tensor of 32 MiB has done the same; what
    `mallopt` or the environment sets stays.
    """
    torch.empty(_LEARNT_FROM, dtype=torch.uint8, device="cpu")


def kernels(fast: bool | None = None, *, fitted: bool = True) -> Kernels:
    """The products to use: oneDNN's or not, or, by default, whichever a probe finds faster;
    `fitted` to batches met.
    """
    keep_freed_memory()
    chosen = _OneDNN() if (_probe(torch.get_num_threads()) if fast is None else fast) else Kernels()
    chosen.most = chosen.most if fitted else 0
    return chosen


#: Bytes from which memory is kept; smaller blocks stay with the allocator anyway.
_LEAST = 1 << 18
#: Steps after which memory that was not used is let go.
_KEPT = 4

#: How many tensors hold a storage; PyTorch has no public name for it, and where there is none
#: nothing is used again.
_holders: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


class _NewMemory:
    """In place of scratch memory: new tensors."""

    def empty(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """A new tensor, whose numbers are anything."""
        return like.new_empty(shape)

    def next_step(self) -> None:
        """Nothing is used again."""


@final
class UnusedKernels(Kernels):
    """PyTorch's own products, in memory that nothing used before."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = _NewMemory()  # type: ignore[assignment]


@final
class Scratch:
    """Uninitialised tensors for one engine's steps. On a GPU, PyTorch's own allocator does this."""

    def __init__(self) -> None:
        self._step = 0
        #: By their bytes: storages, and the step that each was last used in.
        self._held: dict[int, list[list[Any]]] = {}

    def next_step(self) -> None:
        """Let go of what the last steps did not use."""
        self._step += 1
        used = {
            size: [entry for entry in held if entry[1] > self._step - _KEPT]
            for size, held in self._held.items()
        }
        self._held = {size: held for size, held in used.items() if held}

    def empty(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """A contiguous tensor of this shape, of the type and on the device of `like`; its numbers
        are anything.
        """
        nbytes = math.prod(shape) * like.itemsize
        if _holders is None or not on_processor(like) or nbytes < _LEAST:
            return like.new_empty(shape)
        # batches of about the same size find each other's memory
        granule = 1 << (nbytes.bit_length() - 4)
        size = -(-nbytes // granule) * granule
        entry = self._free(size) or self._free(size + granule)
        if entry is None:
            memory = torch.empty(size, dtype=torch.uint8, device="cpu")
            entry = [memory.untyped_storage(), self._step]
            self._held.setdefault(size, []).append(entry)
        entry[1] = self._step
        # Not a view: the model may change it in place.
        return cast(Tensor, like.new_empty(0).set_(entry[0], 0, tuple(shape)))  # type: ignore[call-overload]

    def _free(self, size: int) -> list[Any] | None:
        """A storage of so many bytes that no tensor holds."""
        assert _holders is not None
        return next(
            (entry for entry in self._held.get(size, ()) if _holders(entry[0]._cdata) == 1), None
        )
