"""USPS images as targets of 256 numbers: private ones, public ones and those to test on, drawn afresh for each seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
import torch
from torch import Tensor

from privlearn.data.named import load

SIDE = 16
PRIVATE, PUBLIC, POOL, TEST = 8000, 1000, 1000, 1000
_PIXELS = 255.0


@final
@dataclass(frozen=True)
class Images:
    """Disjoint sets of images, each of shape (rows, 256) with pixels from 0 to 1.

    Attributes:
        private: what teachers learn from.
        public: public ones, whose targets are looked at.
        pool: public ones again; only their inputs are looked at.
        test: for the figures.
    """

    private: Tensor
    public: Tensor
    pool: Tensor
    test: Tensor


def images(seed: int, private: int = PRIVATE) -> Images:
    """The 11,000 images in an order of the seed's own, split; of the private ones only the first `private`."""
    everything = _all()
    order = torch.from_numpy(np.random.default_rng([seed, PRIVATE]).permutation(len(everything)))
    parts = everything[order].split([PRIVATE, PUBLIC, POOL, TEST])  # type: ignore[no-untyped-call]
    return Images(parts[0][:private], *parts[1:])


def covered(whole: Tensor) -> Tensor:
    """The same images with the lower half black: what teachers and students see of them."""
    seen = whole.clone().view(-1, SIDE, SIDE)
    seen[:, SIDE // 2 :] = 0
    return seen.view(len(whole), -1)


@lru_cache(maxsize=1)
def _all() -> Tensor:
    data = load("usps-all")
    x = np.concatenate([data.x, data.x_test]).reshape(-1, SIDE**2).astype(np.float32)
    return torch.from_numpy(x / np.float32(_PIXELS))
