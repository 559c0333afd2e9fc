"""Gradients of convolutions by products with patches, on accelerators: those have no fast
convolution of many groups, and unfold one row after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

#: Bytes of patches that are copied at once.
_AT_ONCE = 1 << 28

#: Strides, padding and dilations, each with one number for each spatial dimension.
Sizes = tuple[Sequence[int], Sequence[int], Sequence[int]]


def form(x: Tensor, g: Tensor, shape: Sequence[int], sizes: Sizes) -> Tensor:
    """The gradient of the weight for each example, shape (examples, *shape): one product each, of
    as many examples at once as their patches fill some memory.

    Args:
        x: inputs, shape (examples, rows, channels, ...).
        g: gradients of the outputs, likewise.
        shape: the weight's; it has one group.
        sizes: of the convolution.
    """
    inputs = math.prod(shape[1:])
    nbytes = g[0, :, 0].numel() * inputs * x.itemsize
    at_once = max(_AT_ONCE // max(nbytes, 1), 1)
    formed = x.new_empty(len(x), shape[0], inputs)
    for start in range(0, len(x), at_once):
        part = slice(start, start + at_once)
        patches = unfold(x[part].flatten(0, 1), shape[2:], sizes)
        outputs = g[part].flatten(3).transpose(1, 2).flatten(2)
        torch.bmm(outputs, patches.reshape(len(outputs), -1, inputs), out=formed[part])
    return formed.view(len(x), *shape)


def unfold(rows: Tensor, kernel: Sequence[int], sizes: Sizes) -> Tensor:
    """Patches, shape (rows, *positions, channels, *kernel), without a copy but of the padding."""
    stride, padding, dilation = sizes
    spatial = len(kernel)
    patches = F.pad(rows, [n for n in reversed(padding) for _ in range(2)])
    for axis, size in enumerate(kernel):
        reach = dilation[axis] * (size - 1) + 1
        patches = patches.unfold(2 + axis, reach, stride[axis])[..., :: dilation[axis]]
    places, inside = range(2, 2 + spatial), range(2 + spatial, 2 + 2 * spatial)
    return patches.permute(0, *places, 1, *inside)
