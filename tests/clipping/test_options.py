"""The engine's options: ways to clip, copies, low precision, products, micro-batches, devices; and
what is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn._public import kinds
from privlearn.cli import main
from privlearn.core import sampling, streams
from privlearn.core.accounting.events import tally
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.clipping import clips, kernels
from privlearn.core.clipping.augmentation import Augmentation
from privlearn.core.clipping.clips import Automatic, Clip, Flat, PerLayer, Quantile
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.plan import Plan
from privlearn.errors import BadInput
from privlearn.training.dpsgd import dpsgd
from tests.support.nets import (
    clipped_by_the_loop,
    cross_entropy,
    flat_norm,
    one_sample,
    small_data,
    small_net,
)

KINDS = tuple(kinds(Clip))


def engine(net: nn.Module, clip: Clip, **options: Any) -> ClippedGradients:
    return ClippedGradients(net, cross_entropy, clip, Adjacency.ADD_REMOVE, **options)


def clipped_sum(
    net: nn.Module, clip: Clip, x: Tensor, y: Tensor, **options: Any
) -> tuple[Tensor, ...]:
    return engine(net, clip, **options)(one_sample(examples=len(x)), x, y).values


def require_close(found: Any, expected: Any, rtol: float = 1e-9) -> None:
    scale = max(float(part.abs().max()) for part in expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=rtol, atol=rtol * scale)


# Ways to clip

NORMS = torch.tensor([0.0, 0.1, 0.5, 2.0, 1e9], dtype=torch.float64)


@pytest.mark.parametrize("kind", kinds(Clip).values())
def test_gradients_are_shortened_to_the_clip(kind: Callable[[float], Clip]) -> None:
    lengths = kind(0.5).weights(NORMS, 0.5) * NORMS
    assert float(lengths.max()) <= 0.5
    if lengths[1] == NORMS[1]:  # not where short ones get longer
        torch.testing.assert_close(lengths, NORMS.clamp(max=0.5))
    # The clip that is given counts, not the one that it began with.
    torch.testing.assert_close(kind(7.0).weights(NORMS, 0.5), kind(0.5).weights(NORMS, 0.5))


def test_automatic_clipping_brings_all_to_nearly_one_length() -> None:
    clip = Automatic(0.5, stability=0.01)
    lengths = clip.weights(NORMS, 0.5) * NORMS
    assert lengths.tolist() == pytest.approx([0.5 * n / (n + 0.01) for n in NORMS.tolist()])
    assert float(lengths.max()) <= 0.5


#: By kind an example, and the norm that it leaves of three layers.
LEFT: dict[str, tuple[Clip, float]] = {
    "flat": (Flat(0.5), 0.5),
    "layer": (PerLayer(0.5), 0.5 * math.sqrt(3)),
    "automatic": (Automatic(0.5), 0.5),
    "quantile": (Quantile(0.5, share=0.2), 0.5 * math.hypot(1, 0.2)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_norm_that_a_clip_leaves(kind: str) -> None:
    assert LEFT.keys() == kinds(Clip).keys()
    clip, norm = LEFT[kind]
    assert clip.norm(0.5, 3) == pytest.approx(norm)
    assert clip.norm(1.5, 3) == pytest.approx(3 * norm)


def test_layers_are_modules_with_weight_and_bias_together() -> None:
    net, (x, y) = small_net(), small_data()
    found = engine(net, PerLayer(1e-6))(one_sample(examples=1), x[:1], y[:1])
    assert found.sensitivity == pytest.approx(1e-6 * math.sqrt(2))
    weights = list(net.parameters())
    true = torch.autograd.grad(cross_entropy(net(x[:1]), y[:1]).sum(), weights)
    for layer in (slice(0, 2), slice(2, 4)):
        assert flat_norm(found.values[layer]) == pytest.approx(1e-6)
        length = flat_norm(true[layer])
        require_close(found.values[layer], [1e-6 / length * part for part in true[layer]])


@pytest.mark.parametrize("kind", kinds(Clip).values())
@pytest.mark.parametrize("norm", [0, -1.0, math.nan, math.inf, 1e-13, 1e13, True, "0.1"])
def test_clip_norms_that_are_refused(kind: Callable[[Any], Clip], norm: Any) -> None:
    with pytest.raises(BadInput, match="clip_norm is"):
        kind(norm)


def test_names_of_clips() -> None:
    assert [type(clips.named(name, 0.5)) for name in KINDS] == list(kinds(Clip).values())
    with pytest.raises(BadInput, match=", ".join(KINDS)):
        clips.named("soft", 0.5)


@pytest.mark.parametrize(
    ("field", "value"), [("quantile", 1.5), ("rate", -1), ("share", 0.0), ("share", math.nan)]
)
def test_quantiles_that_are_refused(field: str, value: float) -> None:
    with pytest.raises(BadInput, match=f"{field} is"):
        Quantile(0.5, **{field: value})


# Quantile clipping


def test_the_count_is_a_share_of_the_clip_for_each_example() -> None:
    clip = Quantile(0.5, share=0.2)
    assert clip.count(torch.tensor([0.1, 0.5, 0.6, 9.0]), 0.5).tolist() == pytest.approx(
        [0.1, 0.1, -0.1, -0.1]
    )
    x, y = small_data()
    *sums, count = clipped_sum(small_net(), Quantile(0.7), x, y)
    require_close(sums, clipped_by_the_loop(small_net(), 0.7, x, y))
    norms: list[Tensor] = []
    clipped_sum(small_net(), Quantile(0.7), x, y, observe=lambda losses, found: norms.append(found))
    unclipped = int((torch.cat(norms) <= 0.7).sum())
    assert float(count) == pytest.approx(0.07 * (2 * unclipped - 12))


def test_how_the_clip_follows_its_quantile() -> None:
    clip = Quantile(0.5, quantile=0.5, rate=0.2, share=0.1)
    for unclipped, batch in ((0, 10), (5, 10), (7, 10), (10, 10)):
        count = 0.1 * 0.5 * (2 * unclipped - batch)
        assert clip.moved(0.5, count, batch) == pytest.approx(
            0.5 * math.exp(-0.2 * (unclipped / batch - 0.5))
        )
    # Whatever the noise was, the step is at most that for all or none.
    assert clip.moved(0.5, 1e9, 10) == pytest.approx(0.5 * math.exp(-0.1))
    assert clip.moved(0.5, -1e9, 10) == pytest.approx(0.5 * math.exp(0.1))
    fast = Quantile(0.5, quantile=0.0, rate=10.0)
    assert fast.moved(0.5, 1e9, 10) == 0.25
    assert Quantile(1e-12, quantile=0.0).moved(1e-12, 1e9, 10) == 1e-12


def test_released_sums_keep_the_scale_of_the_first_clip() -> None:
    x, y = small_data()
    clipper = engine(small_net(), Quantile(0.5))
    clipper(one_sample(examples=12), x, y)
    noisy = [torch.ones(3), torch.tensor([0.3])]
    assert clipper.released(noisy, 12.0)[0].tolist() == [1.0] * 3
    now = clipper.clip_norm
    assert now != 0.5
    found = clipper(one_sample(examples=12), x, y)
    assert found.sensitivity == pytest.approx(now * math.hypot(1, 0.1))
    (kept,) = clipper.released([torch.ones(3), torch.tensor([0.0])], 12.0)
    assert kept.tolist() == pytest.approx([0.5 / now] * 3)


def test_count_and_gradient_are_paid_as_one_release() -> None:
    plan = Plan(
        sampling.FullBatch(), epochs=3, schedule=pv.schedules.Constant(2.0), clip=Quantile(0.5)
    )
    result = dpsgd(plan, small_net(), cross_entropy, small_data(), streams=streams.Streams.new(0))
    assert tally(result.ledger.event) == {Gaussian(2.0): 3}


# Copies


def spread(rows: Tensor, generator: torch.Generator | None = None) -> Tensor:
    factors = torch.linspace(0.2, 2.0, 4, dtype=rows.dtype).repeat(len(rows) // 4)
    return rows * factors.view(-1, *[1] * (rows.dim() - 1))


def test_copies_are_averaged_and_then_clipped() -> None:
    net, (x, y) = small_net(), small_data()
    expected = []
    for row in range(12):
        loss = cross_entropy(net(spread(x[row].expand(4, 5))), y[row].expand(4)).mean()
        found = torch.autograd.grad(loss, list(net.parameters()))
        expected.append([part * min(1.0, 1.1 / flat_norm(found)) for part in found])
    total = [sum(parts) for parts in zip(*expected, strict=True)]
    shapes: list[tuple[int, ...]] = []
    for microbatch in (None, 1, 5):
        augmentation = Augmentation(4, spread)
        found = clipped_sum(
            net,
            Flat(1.1),
            x,
            y,
            augmentation=augmentation,
            microbatch=microbatch,
            observe=lambda losses, norms: shapes.append((len(losses), len(norms))),
        )
        require_close(found, total)
    assert shapes[0] == (12, 12)


def test_one_copy_that_stays_as_it_is_changes_nothing() -> None:
    net, (x, y) = small_net(), small_data()
    found = clipped_sum(
        net, PerLayer(0.3), x, y, augmentation=Augmentation(1, lambda rows, generator: rows)
    )
    require_close(found, clipped_sum(net, PerLayer(0.3), x, y), rtol=1e-12)


@pytest.mark.parametrize("copies", [0, -1, 2.5, True])
def test_numbers_of_copies_that_are_refused(copies: Any) -> None:
    with pytest.raises(BadInput, match="copies is"):
        Augmentation(copies, spread)


# Low precision


def image_net() -> tuple[nn.Module, Tensor]:
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3)
    )
    return net, torch.randn(12, 1, 6, 6)


def sequence_net() -> tuple[nn.Module, Tensor]:
    net = nn.Sequential(
        nn.Linear(8, 16),
        nn.GELU(),
        nn.Linear(16, 4),
        nn.LayerNorm(4),
        nn.Flatten(),
        nn.Linear(24, 3),
    )
    return net, torch.randn(12, 6, 8)


def recurrent_net() -> tuple[nn.Module, Tensor]:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells, self.head = nn.LSTM(5, 6, batch_first=True), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.cells(x)[0][:, -1])

    return Last(), torch.randn(12, 4, 5)


def runs_in_bfloat16(net: nn.Module, x: Tensor) -> bool:
    """PyTorch has no LSTM in bfloat16 for processors without AVX-512."""
    try:
        with torch.autocast("cpu", torch.bfloat16):
            net(x)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("make", [image_net, sequence_net, recurrent_net])
def test_bfloat16(make: Callable[[], tuple[nn.Module, Tensor]]) -> None:
    """Sums are near those of single precision, and of their type; and no example moves them by more
    than the bound.
    """
    torch.manual_seed(0)
    net, x = make()
    y = torch.arange(12) % 3
    if not runs_in_bfloat16(net, x):
        with pytest.raises(BadInput, match="fails on made-up rows"):
            clipped_sum(net, Flat(0.1), x, y, autocast=torch.bfloat16)
        return
    plain = clipped_sum(net, Flat(0.1), x, y)
    low = clipped_sum(net, Flat(0.1), x, y, autocast=torch.bfloat16)
    assert all(value.dtype == torch.float32 for value in low)
    apart = flat_norm(tuple(a - b for a, b in zip(low, plain, strict=True)))
    assert 0 < apart < 0.05 * flat_norm(plain)
    clipper = engine(net, Flat(0.1), autocast=torch.bfloat16)
    for scale in (0.0, 1e-6, 1.0, 1e3, 1e9, 1e30, math.nan):
        for row in range(3):
            found = clipper(one_sample(examples=1), scale * x[row : row + 1], y[row : row + 1])
            assert flat_norm(found.values) <= 0.1


def test_types_that_are_refused() -> None:
    net = small_net()
    with pytest.raises(BadInput, match=r"autocast is torch\.float16"):
        engine(net, Flat(0.1), autocast=torch.float16)
    for dtype in (torch.float16, torch.bfloat16):
        with pytest.raises(BadInput, match=r"model\.float\(\)"):
            engine(small_net().to(dtype), Flat(0.1))
    with pytest.raises(BadInput, match="no trainable parameter"):
        engine(net.requires_grad_(False), Flat(0.1))


# Products


@pytest.fixture
def fresh_probe() -> Iterator[None]:
    kernels._probe.cache_clear()
    yield
    kernels._probe.cache_clear()


def missing(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    raise NotImplementedError("no such product here")


def broken(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    raise RuntimeError("could not create a primitive")


def wrong(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return nn.functional.linear(x, weight, bias) + 0.01


def slow(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    for _ in range(5):
        out = nn.functional.linear(x, weight, bias)
    return out


@pytest.mark.usefixtures("fresh_probe")
@pytest.mark.parametrize("product", [missing, broken, wrong, slow])
def test_products_that_do_not_serve_are_left(product: Any) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(5, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 3)
    )
    x, y = torch.randn(64, 5), torch.arange(64) % 3  # enough for a fast product to be asked for
    stock = clipped_sum(net, Flat(0.1), x, y, fast_kernels=False)
    with mock.patch.object(kernels, "_product", product):
        assert type(kernels.kernels()) is kernels.Kernels
        found = clipped_sum(net, Flat(0.1), x, y)
    for one, other in zip(found, stock, strict=True):
        assert torch.equal(one, other)


def test_fast_products_are_the_stock_ones() -> None:
    """Every product, of shapes and layouts that differ, whether or not the probe takes them on this
    processor.
    """
    try:
        kernels._product(torch.ones(2, 2), torch.ones(2, 2), None)
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        pytest.skip(f"this build of PyTorch has no oneDNN product: {error}")
    made_up = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made_up)

    fast, stock = kernels._OneDNN(), kernels.Kernels()
    rows, weight, bias, g = drawn(64, 5, 150), drawn(130, 150), drawn(130), drawn(64, 5, 130)
    assert rows.numel() * len(weight) > fast.least
    for x in (rows, drawn(64, 150, 5).mT, drawn(320, 150), drawn(150, 320).T):
        for w in (weight, drawn(150, 130).T):
            for b in (bias, None):
                torch.testing.assert_close(
                    fast.linear(x, w, b), stock.linear(x, w, b), rtol=1e-4, atol=1e-3
                )
    torch.testing.assert_close(fast.back(g, weight), stock.back(g, weight), rtol=1e-4, atol=1e-3)
    sums = [torch.ones(130, 150) for _ in range(2)]
    for products, into in zip((fast, stock), sums, strict=True):
        products.add_outer(g.flatten(0, 1), rows.flatten(0, 1), into)
    torch.testing.assert_close(*sums, rtol=1e-4, atol=1e-3)


def test_gradients_of_large_layers_are_formed_by_fast_products() -> None:
    """One product for each example, whatever memory the factors lie in; small ones as before."""
    made_up = torch.Generator().manual_seed(0)
    fast, stock = kernels._OneDNN(), kernels.Kernels()
    calls: list[int] = []

    def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        calls.append(len(x))
        return nn.functional.linear(x, weight, bias)

    with mock.patch.object(kernels, "_product", product):
        for outputs, formed in ((257, 3), (20, 0)):
            factors = [torch.randn(3, 130, width, generator=made_up) for width in (outputs, 140)]
            turned = [factor.mT.contiguous().mT for factor in factors]
            for g, a in (factors, turned, [factor[:, ::2] for factor in [*factors]]):
                calls.clear()
                large = g.shape[1] * g.shape[2] * a.shape[2] >= fast.least
                torch.testing.assert_close(
                    fast.each_outer(g, a), stock.each_outer(g, a), rtol=1e-4, atol=1e-3
                )
                assert calls == [outputs] * (formed if large else 0)


def test_batches_of_many_sizes_need_few_products() -> None:
    """oneDNN compiles and keeps a product for every number of rows; whatever it does not get is
    still computed.
    """
    met: set[int] = set()

    def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        met.add(x.shape[-1] if x.stride(-1) != 1 else len(x))
        return nn.functional.linear(x, weight, bias)

    made_up = torch.Generator().manual_seed(0)
    weight, bias = (
        torch.randn(*shape, generator=made_up, dtype=torch.float64) for shape in ((7, 5), (7,))
    )
    fast = kernels._OneDNN()
    with (
        mock.patch.object(kernels, "_product", product),
        mock.patch.object(fast, "_suits", return_value=True),
    ):
        for rows in range(1, 300):
            x, g = (
                torch.randn(rows, width, generator=made_up, dtype=torch.float64) for width in (5, 7)
            )
            torch.testing.assert_close(fast.linear(x, weight, bias), x @ weight.T + bias)
            torch.testing.assert_close(fast.back(g, weight), g @ weight)
            for product_of, expected in (
                (lambda into, g=g, x=x: fast.add_outer(g, x, into), g.T @ x),
                (lambda into, x=x: fast.add_linear(x, weight, into), x @ weight.T),
            ):
                into = torch.ones_like(expected)
                product_of(into)
                torch.testing.assert_close(into, expected + 1)
    assert len(met) < 60


def test_a_net_on_fast_products_has_the_same_sum() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(5, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 3)
    )
    x, y = torch.randn(64, 5), torch.arange(64) % 3
    stock = clipped_sum(net, Flat(0.1), x, y, fast_kernels=False)
    require_close(clipped_sum(net, Flat(0.1), x, y, fast_kernels=True), stock, rtol=1e-5)


# Micro-batches


class Unruled(nn.Module):
    """Computed by vmap, or where it asks for a value, in a loop."""

    def __init__(self, asks: bool) -> None:
        super().__init__()
        self.layer, self.scale, self.asks = nn.Linear(5, 3), nn.Parameter(torch.ones(3)), asks

    def forward(self, x: Tensor) -> Tensor:
        if self.asks and not bool(x.isfinite().all()):
            raise ValueError("no numbers")
        return torch.atan2(self.layer(x), self.scale)


@pytest.mark.parametrize("way", ["layers", "vmap", "loop"])
def test_any_micro_batch_gives_the_same_sum(way: str) -> None:
    torch.manual_seed(0)
    net = small_net() if way == "layers" else Unruled(way == "loop").double()
    x, y = small_data(13)
    expected = clipped_by_the_loop(net, 0.2, x, y)
    for microbatch in (None, 1, 2, 7, 12, 13, 14, 1000):
        clipper = engine(net, Flat(0.2), microbatch=microbatch)
        require_close(clipper(one_sample(examples=13), x, y).values, expected)
        assert clipper.way == way


def test_what_fits_into_memory_is_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fewer bytes there are, the fewer examples; never none."""
    x, y = small_data()
    expected = clipped_by_the_loop(small_net(), 0.2, x, y)
    met = []
    for room in (1, 1500, 1 << 28):
        sizes: list[int] = []
        monkeypatch.setattr("privlearn.core.clipping.agreement._WORKING_SET", room)
        found = clipped_sum(
            small_net(),
            Flat(0.2),
            x,
            y,
            observe=lambda losses, norms, s=sizes: s.append(len(losses)),
        )
        require_close(found, expected)
        met.append(max(sizes))
    assert met[0] == 1
    assert 1 < met[1] < met[2] == 12


# What is left behind


def picture(net: nn.Module) -> Any:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    modules = [
        (n, m.training, set(vars(m)), [len(getattr(m, h)) for h in hooks])
        for n, m in net.named_modules()
    ]
    parameters = [
        (
            name,
            id(p),
            type(p),
            p.dtype,
            p.requires_grad,
            p._backward_hooks,
            id(p.grad),
            p.data.numpy().tobytes(),
            p.stride(),
        )
        for name, p in net.named_parameters(remove_duplicate=False)
    ]
    buffers = [(name, id(b), b.dtype, b.tolist()) for name, b in net.named_buffers()]
    return (
        modules,
        parameters,
        buffers,
        torch.is_grad_enabled(),
        torch._C._len_torch_function_stack(),
    )


@contextmanager
def untouched(net: nn.Module) -> Iterator[None]:
    before = picture(net)
    try:
        yield
    finally:
        assert picture(net) == before


class Fails(nn.Module):
    """Raises from its forward pass once it has been called so often."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.calls = inner, [10**9]
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        self.calls[0] -= 1
        if self.calls[0] < 0:
            raise ArithmeticError("out of luck")
        return self.inner(x - self.mean.to(x.dtype))


@pytest.mark.parametrize("precision", ["double", "single", "bfloat16"])
@pytest.mark.parametrize("way", ["layers", "vmap", "loop"])
def test_the_model_is_left_as_it_was(way: str, precision: str) -> None:
    torch.manual_seed(0)
    inner: nn.Module = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, 3))
    net = Fails(inner if way == "layers" else Unruled(way == "loop"))
    x, y = small_data()
    if precision == "double":
        net.double()
    else:
        x = x.float()
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    list(net.parameters())[-1].requires_grad_(False)
    inner.eval()
    clipper = engine(net, Flat(0.2), autocast=torch.bfloat16 if precision == "bfloat16" else None)
    with untouched(net):
        clipper(one_sample(examples=12), x, y)
    assert clipper.way == way
    # However far it comes, while a way is chosen or while it runs.
    for calls in (*range(12), 15, 20):
        net.calls[0] = calls
        with untouched(net):
            try:
                engine(net, Flat(0.2), microbatch=5)(one_sample(examples=12), x, y)
            except BadInput:
                continue
    assert all(
        parameter.grad is not None and parameter.grad.eq(1).all() for parameter in net.parameters()
    )


# What is refused


@pytest.mark.parametrize("microbatch", [0, -1, 2.5, True, "4"])
def test_micro_batches_that_are_refused(microbatch: Any) -> None:
    with pytest.raises(BadInput, match=r"microbatch is .*whole number of at least 1"):
        engine(small_net(), Flat(0.1), microbatch=microbatch)


def train(**options: Any) -> Any:
    plan = Plan(sampling.FullBatch(), epochs=1, schedule=pv.schedules.Constant(2.0))
    x, y = small_data()
    return dpsgd(
        plan,
        small_net().float(),
        cross_entropy,
        (x.float(), y),
        streams=streams.Streams.new(0),
        **options,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "abacus"}, "device 'abacus' can't be used"),
        ({"device": "cuda:99"}, "device 'cuda:99' can't be used"),
        ({"precision": "float16"}, "precision is 'float16': expected one of float32, bf16"),
        ({"microbatch": 0}, "microbatch is 0"),
        ({"microbatch": 2.5}, "microbatch is 2.5"),
    ],
)
def test_training_refuses(options: dict[str, Any], message: str) -> None:
    ledger = pv.Ledger()
    with pytest.raises(BadInput, match=message):
        train(ledger=ledger, **options)
    assert ledger.event.events == ()


def test_training_in_low_precision_says_so() -> None:
    result = train(precision="bf16", device="cpu", microbatch=5)
    assert result.facts["precision"] == "bf16"
    assert all(p.dtype == torch.float32 for p in result.model.parameters())


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--device", "abacus"), ("device 'abacus'", "Expected cpu")),
        (("--device", "cuda:99"), ("device 'cuda:99'", "Expected cpu")),
        (("--precision", "fp16"), ("precision is 'fp16'", "float32, bf16")),
        (("--microbatch", "0"), ("microbatch is 0", "at least 1")),
        (("--microbatch", "-1"), ("microbatch is -1", "at least 1")),
        (("--microbatch", "2.5"), ("--microbatch", "2.5")),
        (("--microbatch", "some"), ("--microbatch", "some")),
        (("--clip", "soft"), ("'soft'", "flat, layer, automatic, quantile")),
        (("--clip", "automatic", "--clip-norm", "0"), ("--clip-norm is 0",)),
    ],
)
def test_the_command_line_refuses(
    options: tuple[str, ...],
    parts: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    assert (
        main(
            [
                "train",
                "--data",
                "digits",
                "--epochs",
                "1",
                "--epsilon",
                "1",
                *options,
                "--out",
                str(out),
            ]
        )
        == 2
    )
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.startswith("privlearn: ")
    for part in parts:
        assert part in message
    assert not out.exists()


@pytest.mark.parametrize("clip", KINDS)
def test_the_command_line_clips(
    clip: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = [
        "--data",
        "digits",
        "--epochs",
        "1",
        "--epsilon",
        "4",
        "--batch-size",
        "700",
        "--seed",
        "0",
    ]
    options += ["--clip", clip, "--microbatch", "auto", "--precision", "bf16", "--device", "cpu"]
    assert main(["train", *options, "--out", str(tmp_path / "out"), "--json"]) == 0
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "out")]) == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_the_engine_on_cuda() -> None:
    """The same sums as on the processor, in every way; the model and its gradients stay on the
    device.
    """
    for way in ("layers", "vmap", "loop"):
        torch.manual_seed(0)
        net = small_net() if way == "layers" else Unruled(way == "loop").double()
        x, y = small_data(13)
        expected = clipped_by_the_loop(net, 0.2, x, y)
        clipper = engine(net.cuda(), Flat(0.2), microbatch=5)
        found = clipper(one_sample(examples=13), x, y).values
        assert clipper.way == way
        assert all(value.is_cuda for value in found)
        require_close([value.cpu() for value in found], expected)
    for make in (image_net, sequence_net, recurrent_net):
        torch.manual_seed(0)
        built, x = make()
        y = torch.arange(12) % 3
        expected = clipped_by_the_loop(built, 0.1, x, y)
        # Convolutions there keep ten bits of their factors.
        require_close(
            [v.cpu() for v in clipped_sum(built.cuda(), Flat(0.1), x, y)], expected, rtol=1e-2
        )
        low = clipped_sum(built, Flat(0.1), x[:1], y[:1], autocast=torch.bfloat16)
        assert flat_norm(low) <= 0.1
