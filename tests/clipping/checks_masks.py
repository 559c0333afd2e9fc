"""Named checks of masks that ChaCha20 makes, and of masks on devices; mutations must make them
fail.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from privlearn.core.clipping import randomness
from privlearn.core.clipping.layout import Layout, NotLayerwise
from privlearn.core.clipping.randomness import RowRandom
from tests.clipping.checks_draws import (
    NETS,
    VIEWS,
    C,
    distance,
    dropping,
    engine,
    made,
    require_neighbours_close,
    rows_of,
    summed,
)
from tests.support.checks import check

CIPHERS = ("aes", "chacha20")
DIGESTS = np.array([5, 2**63 + 7, 9, 2**64 - 1, 6], np.uint64)


def random_of(cipher: str | None, key: bytes = bytes(range(16)), rows: int = 5) -> RowRandom:
    random = RowRandom()
    random.active, random.cipher = True, cipher
    random.begin(key)
    random.take(DIGESTS[:rows])
    return random


def device_dropout(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """What `torch.dropout` calls on an accelerator."""
    out: tuple[Tensor, Tensor] = torch.ops.aten.native_dropout.default(x, p, True)
    return out


@check
def check_masks_of_one_seed_are_the_same_on_all_devices() -> None:
    """By the call of the processor and by that of accelerators, for shares from 0 to 1; and the
    scaled rows, too.
    """
    for cipher in CIPHERS:
        for p in (0.1, 0.5, 0.3, 2.0**-32, 1 - 2.0**-33, 1.0):
            x = 1 + torch.arange(1000.0).view(5, 200)
            with random_of(cipher).together():
                here = F.dropout(x, p)
            with random_of(cipher).together():
                there, mask = device_dropout(x, p)
            assert torch.equal(here, there), (cipher, p)
            assert torch.equal(mask, there != 0)
            assert mask.dtype == torch.bool
    for share in (2.0**-32, 0.3, 0.7, 1 - 2.0**-32, 1.0):
        least = math.ceil(Fraction(share) * 2**32)
        near = [number for number in range(least - 3, least + 3) if 0 <= number < 2**32]
        bits = torch.tensor(near).sub(2**31).int()
        expected = [number < least for number in near]
        for given in (share, torch.full((len(near),), share, dtype=torch.float64)):
            assert randomness._below(bits, given).tolist() == expected, share


class _Kernels(TorchDispatchMode):
    """Notes which operations are called, and whether fused attention was allowed meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.fused_allowed: set[bool] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.names.add(func._schema.name)
        self.fused_allowed.add(torch.backends.cuda.flash_sdp_enabled())
        return func(*args, **(kwargs or {}))


@check
def check_attention_with_dropout_draws_its_mask_by_key_on_an_accelerator() -> None:
    """In single operations, which draw by key; without dropout by the fused kernels. The device is
    one that counts as an accelerator, and the rows are on the processor.
    """
    random = RowRandom(torch.device("meta"))
    random.active, random.cipher = True, "aes"
    random.begin(bytes(range(16)))
    random.take(DIGESTS)
    q = torch.randn(5, 2, 7, 8, generator=torch.Generator().manual_seed(0))
    fused = "aten::_scaled_dot_product_flash_attention_for_cpu"
    with random.together(), _Kernels() as without:
        F.scaled_dot_product_attention(q, q, q)
        F.scaled_dot_product_attention(q, q, q, None, 0.0)
    assert fused in without.names
    for call in (
        lambda: F.scaled_dot_product_attention(q, q, q, None, 0.5),
        lambda: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5),
    ):
        results = []
        for _ in range(2):
            with random.together(), _Kernels() as under:
                results.append(call())
            assert fused not in under.names
            assert under.fused_allowed == {False}
        assert torch.equal(*results)
    past_the_mode = torch.ops.aten._scaled_dot_product_flash_attention.default
    on_meta = q.to("meta")
    with random.together(), pytest.raises(NotLayerwise, match="for all examples at once"):
        past_the_mode(on_meta, on_meta, on_meta, 0.5)


@check
def check_masks_of_chacha_follow_from_row_call_and_batch_alone() -> None:
    """Whoever else is there, in whichever order and layout, and however many numbers are drawn."""
    x = torch.ones(5, 37)
    with random_of("chacha20").together():
        first, second = torch.rand_like(x), torch.rand_like(x)
    with random_of("chacha20", bytes(16)).together():
        other = torch.rand_like(x)
    with random_of("chacha20").together():
        longer = torch.rand(5, 50)
    numbers = torch.cat([first, second, other]).flatten().tolist()
    assert len(set(numbers)) > 0.999 * len(numbers)
    assert torch.equal(longer[:, :37], first)
    for row in range(5):
        with random_of("chacha20").alone(row):
            assert torch.equal(torch.rand(1, 37), first[row : row + 1])
    some = random_of("chacha20")
    some.take(DIGESTS[[3, 1]])
    with some.together():
        assert torch.equal(torch.rand(2, 37), first[[3, 1]])
    with random_of("chacha20").together([Layout(1, 1)]):
        beside = torch.rand(37, 5)
    assert torch.equal(beside.T, first)
    with random_of("aes").together():
        assert not torch.equal(torch.rand_like(x), first)
    with random_of(None).together():
        usual = torch.rand_like(x)
    with random_of("aes").together():
        assert torch.equal(torch.rand_like(x), usual)


@check
def check_masks_of_chacha_of_other_rows_do_not_move() -> None:
    """A row more or less moves the sum by the sensitivity at most, with every seed known."""
    x, y = rows_of()
    for name in ("layers", "the loop"):
        clipper = engine(made(NETS[name][1]), microbatch=4)
        clipper.draw_by("chacha20")
        require_neighbours_close(clipper, x, y)
    images, _ = rows_of((3, 3, 5))
    flat = torch.nn.Flatten()
    for augmentation in list(VIEWS.values())[:2]:
        net = made(lambda: torch.nn.Sequential(flat, torch.nn.Dropout(0.5), torch.nn.Linear(45, 3)))
        clipper = engine(net, augmentation=augmentation)
        clipper.draw_by("chacha20")
        require_neighbours_close(clipper, images, y)
    sums = []
    for cipher in CIPHERS:
        clipper = engine(made(dropping))
        clipper.draw_by(cipher)
        sums.append(summed(clipper, x, y))
    assert distance(*sums) > 0.1 * C, "the cipher changes nothing"


@check
def check_numbers_of_chacha_have_their_distributions() -> None:
    random = RowRandom()
    random.active, random.cipher = True, "chacha20"
    random.begin(bytes(range(3, 19)))
    random.take(np.arange(1000, dtype=np.uint64))
    x = torch.ones(1000, 40, dtype=torch.float64)
    with random.together():
        draws = {
            "uniform": (torch.rand(1000, 40), "uniform"),
            "normal": (torch.randn_like(x), "norm"),
            "exponential": (torch.empty(1000, 40).exponential_(2.0) * 2, "expon"),
        }
        shares = (
            torch.bernoulli(0.3 * x),
            torch.bernoulli(0.3 * x.float()),
            torch.empty(1000, 40).bernoulli_(0.3),
            F.dropout(x, 0.7) * 0.3,
            device_dropout(x, 0.7)[0] * 0.3,
        )
    for name, (values, law) in draws.items():
        assert stats.kstest(values.flatten().double().numpy(), law).pvalue > 1e-3, name
    for share in shares:
        assert stats.binomtest(int(share.sum().round()), 40_000, 0.3).pvalue > 1e-3
