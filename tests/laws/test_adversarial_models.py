"""Models, data and surroundings made to break the bound or the sum: each is right, or refused.

The truth is a loop over single examples that is written out here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import rnn
from torch.utils.checkpoint import checkpoint

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.augmentation import Augmentation, Transform
from privlearn.core.clipping.clips import Automatic, Clip, Flat, Quantile
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.clipping.kernels import _OneDNN
from privlearn.core.mechanisms.noise import add_gaussian
from privlearn.core.streams import Streams
from privlearn.errors import BadInput, NotPerExample
from tests.support.nets import cross_entropy, one_sample

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)

ROWS, CLIP = 11, 0.05
#: What a row has at its start to be treated in another way; no made-up row has it.
MARK = -1.0

Run = Callable[[Any, Tensor], Tensor]


class Net(nn.Module):
    """Its parts, and how they are run; a linear layer reads the output."""

    def __init__(self, run: Run, **parts: Any) -> None:
        super().__init__()
        self.run, self.head = run, nn.LazyLinear(3)
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.run(self, x).flatten(1))


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(0.5 * torch.randn(shape))


def by_the_loop(
    net: nn.Module, x: Tensor, y: Tensor, weight: Callable[[float], float]
) -> list[Tensor]:
    trained = [p for p in net.parameters() if p.requires_grad]
    total = [torch.zeros_like(p) for p in trained]
    for row in range(len(x)):
        loss = cross_entropy(net(x[row : row + 1]), y[row : row + 1]).sum()
        found = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
        factor = weight(length(found))
        total = [sums + factor * part for sums, part in zip(total, found, strict=True)]
    return total


def length(parts: Any) -> float:
    return math.sqrt(sum(float(part.double().square().sum()) for part in parts))


def distance(one: Any, other: Any) -> float:
    return length([a.double() - b.double() for a, b in zip(one, other, strict=True)])


def flat(norm: float) -> float:
    return min(1.0, CLIP / max(norm, 1e-300))


def summed(
    net: nn.Module, x: Tensor, y: Tensor, clip: Clip | None = None, **options: Any
) -> tuple[Tensor, ...]:
    clipper = ClippedGradients(
        net, cross_entropy, clip or Flat(CLIP), Adjacency.ADD_REMOVE, **options
    )
    return clipper(one_sample(examples=len(x)), x, y).values


def made(
    run: Run, parts: Callable[[], dict[str, Any]], x: Tensor
) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    net = Net(run, **parts())
    net(x[:2])
    return net.double(), x.double() if x.is_floating_point() else x, torch.arange(len(x)) % 3


def drawn(*shape: int) -> Tensor:
    rows = torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(1))
    return rows * torch.linspace(0.1, 4, ROWS).view(-1, *[1] * len(shape))


def marked(*shape: int) -> Tensor:
    x = drawn(*shape)
    x.flatten(1)[[1, 4, 7], 0] = MARK
    return x


def order(x: Tensor) -> Tensor:
    """Marked rows last."""
    return (x.flatten(1)[:, 0] == MARK).long().argsort(stable=True)


def matrix(x: Tensor) -> Tensor:
    return F.one_hot(order(x), len(x)).to(x.dtype)


def marks(x: Tensor) -> int:
    return int((x[:, 0] == MARK).sum())


def rotated(n: Any, x: Tensor) -> Tensor:
    k = marks(x)
    out = n.a(torch.cat([x[k:], x[:k]])).tanh()
    return torch.cat([out[len(x) - k :], out[: len(x) - k]])


def written(n: Any, x: Tensor) -> Tensor:
    z = torch.zeros_like(x)
    z[order(x)] = x
    return n.a(z).tanh()[order(x)]


def shortest_last(n: Any, x: Tensor) -> Tensor:
    ordered = (x[..., 0] != MARK).sum(1).sort(descending=True, stable=True)[1]
    return n.a(x.transpose(0, 1)[:, ordered]).tanh()[:, ordered.argsort()].sum(0)


def packed(n: Any, x: Tensor) -> Tensor:
    lengths = (x[..., 0] != MARK).sum(1)
    rows = rnn.pack_padded_sequence(x.transpose(0, 1), lengths, enforce_sorted=False)
    return rnn.pad_packed_sequence(rows._replace(data=n.a(rows.data).tanh()))[0].sum(0)


def second(move: Callable[[Tensor, Tensor], Tensor]) -> Run:
    """Orders the batch while it is the second dimension."""
    return lambda n, x: move(
        n.a(move(x.transpose(0, 1), order(x))).tanh(), order(x).argsort()
    ).transpose(0, 1)


#: Orders that only real data have. They change nothing in what is computed, so only gradients tell.
ORDERS: dict[str, tuple[Run, tuple[int, ...]]] = {
    "behind dots": (lambda n, x: n.a(x[..., order(x), :]).tanh()[..., order(x).argsort(), :], (5,)),
    "behind a new dimension": (
        lambda n, x: n.a(x[None, order(x)][0]).tanh()[None, order(x).argsort()][0],
        (5,),
    ),
    "by numpy": (lambda n, x: n.a(x[order(x).numpy()]).tanh()[order(x).argsort().numpy()], (5,)),
    "by a list": (lambda n, x: n.a(x[order(x).tolist()]).tanh()[order(x).argsort().tolist()], (5,)),
    "by a look-up": (
        lambda n, x: F.embedding(order(x).argsort(), n.a(F.embedding(order(x), x)).tanh()),
        (5,),
    ),
    "by a matrix": (lambda n, x: matrix(x).T @ n.a(matrix(x) @ x).tanh(), (5,)),
    "by a sum of products": (
        lambda n, x: torch.einsum(
            "ji,jc->ic", matrix(x), n.a(torch.einsum("ij,jc->ic", matrix(x), x)).tanh()
        ),
        (5,),
    ),
    "by aten": (
        lambda n, x: torch.ops.aten.index(
            n.a(torch.ops.aten.index(x, [order(x)])), [order(x).argsort()]
        ),
        (5,),
    ),
    "by slices": (rotated, (5,)),
    "by writing": (written, (5,)),
    "by gathering": (
        lambda n, x: torch.take_along_dim(
            n.a(x.gather(dim=-2, index=order(x)[:, None].expand(-1, 5))),
            order(x).argsort()[:, None],
            -2,
        ),
        (5,),
    ),
    "by rolling": (lambda n, x: n.a(x.roll(marks(x), 0)).roll(-marks(x), 0), (5,)),
    "batch second": (second(lambda t, o: t[:, o]), (6, 5)),
    "batch second, selected": (second(lambda t, o: t.index_select(1, o)), (6, 5)),
    "batch second, by length": (shortest_last, (6, 5)),
    "batch second, packed": (packed, (6, 5)),
}


@pytest.mark.parametrize("name", ORDERS)
def test_rows_that_only_real_data_puts_in_order(name: str) -> None:
    run, shape = ORDERS[name]
    net, x, y = made(run, lambda: {"a": nn.Linear(5, 4)}, marked(*shape))
    assert distance(summed(net, x, y), by_the_loop(net, x, y, flat)) <= 1e-10
    few, more = summed(net, x[:-1], y[:-1]), summed(net, x, y)
    assert distance(few, more) <= CLIP * (1 + 1e-9)


@pytest.mark.parametrize("rows", [1, 6, 11])
def test_order_within_an_example_is_no_alarm(rows: int) -> None:
    """Not even where a sequence is as long as the batch, or every dimension could be that of a
    batch of one.
    """

    def run(n: Any, x: Tensor) -> Tensor:
        x = x[:, torch.tensor([2, 0, 1, 3, 5, 4])].sort(1)[0].flip(1).cumsum(1)
        return n.a(x)[torch.arange(len(x)), x[..., 0].argmax(1)]

    net, x, y = made(run, lambda: {"a": nn.Linear(5, 4)}, drawn(6, 5))
    x, y = x[:rows], y[:rows]
    clipper = ClippedGradients(net, cross_entropy, Flat(CLIP), Adjacency.ADD_REMOVE)
    found = clipper(one_sample(examples=rows), x, y).values
    assert distance(found, by_the_loop(net, x, y, flat)) <= 1e-10
    assert clipper.way == "layers", clipper.reason


def hooked(t: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    if t.requires_grad:
        t.register_hook(change)
    return t


class Tenfold(torch.autograd.Function):
    """Changes the gradient that it is given, which others may hold."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.mul_(-10)


def in_place(n: Any, x: Tensor) -> Tensor:
    h = n.a(x)
    h += n.b(h.relu())
    return n.b(h.relu_()).mul_(2)


def attacked(n: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        z = x.detach().requires_grad_(True)
        (g,) = torch.autograd.grad(n.a(z).tanh().sum(), z)
    return n.a(x + 0.1 * g.sign()).tanh()


def routed(n: Any, x: Tensor) -> Tensor:
    gates = n.gate(x).softmax(1)
    out, chosen = x.new_zeros(len(x), 5), gates.argmax(1)
    for number, expert in enumerate((n.a, n.b)):
        rows = (chosen == number).nonzero()[:, 0]
        out = out.index_add(0, rows, expert(x[rows]))
    return out * gates.max(1, keepdim=True)[0]


def switched(n: Any, x: Tensor) -> Tensor:
    gates = n.gate(x).softmax(1)
    chosen = F.one_hot(gates.argmax(1), 2).to(x.dtype)
    place = ((chosen.T.cumsum(1) - 1) * chosen.T).sum(0).long()
    sent = F.one_hot(place, len(x)).to(x.dtype)[:, None] * chosen[..., None]
    experts = zip((n.a, n.b), torch.einsum("tec,tm->ecm", sent, x), strict=True)
    return torch.einsum(
        "tec,ecm->tm", sent * gates[..., None], torch.stack([e(t) for e, t in experts])
    )


HELD: dict[str, tuple[Run, tuple[int, ...]]] = {
    "a hook that changes a gradient": (
        lambda n, x: hooked(n.a(x), lambda g: g.mul_(2)).tanh(),
        (5,),
    ),
    "a hook that changes a shared gradient": (
        lambda n, x: n.a(x) + hooked(x * n.scale, lambda g: g.clamp_(-0.05, 0.05)),
        (5,),
    ),
    "a function that changes a shared gradient": (
        lambda n, x: Tenfold.apply(x * n.scale) + n.a(x),
        (5,),
    ),
    "in place": (in_place, (5,)),
    "in place, after a recurrence": (lambda n, x: n.gru(x)[0].mul_(2), (6, 5)),
    "without gradients beside": (lambda n, x: n.a(x) * n.a(x).detach() + n.b(x), (5,)),
    "a gradient within": (attacked, (5,)),
    "recomputed, unchecked": (
        lambda n, x: checkpoint(
            lambda z: n.b(n.a(z).tanh()), x, use_reentrant=False, determinism_check="none"
        ),
        (5,),
    ),
    "routed to experts": (routed, (5,)),
    "switched to experts": (switched, (5,)),
    "windows of examples": (
        lambda n, x: n.a(x.unflatten(1, (3, 2)).flatten(0, 1)).tanh().view(len(x), -1),
        (6, 5),
    ),
    "examples of windows": (
        lambda n, x: (
            n.a(x.unflatten(1, (3, 2)).transpose(0, 1).flatten(0, 1))
            .tanh()
            .view(3, len(x), -1)
            .transpose(0, 1)
        ),
        (6, 5),
    ),
    "two halves as one batch": (
        lambda n, x: n.a(torch.cat([x[:, :3], x[:, 3:]])).tanh().chunk(2)[1],
        (6, 5),
    ),
    "as long as both made-up batches": (
        lambda n, x: n.a(x.transpose(0, 1)).tanh().transpose(0, 1),
        (35, 5),
    ),
    "data of a weight": (lambda n, x: n.a(x) + x @ n.a.weight.data.T, (5,)),
    "part of a weight": (lambda n, x: F.linear(x, n.a.weight[:3], n.a.bias[:3]), (5,)),
    "a weight times a scale": (lambda n, x: F.linear(x, n.a.weight * n.scale, n.a.bias), (5,)),
    "a mask from the data": (
        lambda n, x: n.attention(x, x, x, key_padding_mask=x[..., 0] > 2)[0],
        (6, 5),
    ),
}


def parts() -> dict[str, Any]:
    layers = {
        "a": nn.Linear(5, 5),
        "b": nn.Linear(5, 5),
        "gate": nn.Linear(5, 2),
        "scale": parameter(5),
    }
    return layers | {
        "gru": nn.GRU(5, 4, batch_first=True),
        "attention": nn.MultiheadAttention(5, 1, batch_first=True),
    }


@pytest.mark.parametrize("name", HELD)
def test_models_that_are_hard_to_see_through(name: str) -> None:
    run, shape = HELD[name]
    net, x, y = made(run, parts, drawn(*shape))
    scaled = Automatic(CLIP)
    for rows in (1, 2, ROWS):
        own = x[:rows], y[:rows]
        assert distance(summed(net, *own), by_the_loop(net, *own, flat)) <= 1e-10
        true = by_the_loop(net, *own, lambda norm: CLIP / (norm + scaled.stability))
        assert distance(summed(net, *own, scaled), true) <= 1e-10


WIDE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(1000, 3, bias=False)), (1000,)),
    "sequence": (
        lambda: nn.Sequential(nn.Linear(50, 40, bias=False), nn.Flatten(), nn.Linear(160, 3)),
        (4, 50),
    ),
    "images": (
        lambda: nn.Sequential(nn.Conv2d(12, 14, 3), nn.Flatten(), nn.Linear(56, 3)),
        (12, 4, 4),
    ),
}


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("clip_norm", [1.0, 1e-2, 1e-5])
def test_huge_examples_stay_within_the_bound(name: str, clip_norm: float) -> None:
    """Their weights would leave single precision, and be rounded up."""
    make, shape = WIDE[name]
    torch.manual_seed(0)
    net = make()
    net[0].weight.data *= 1e-4
    row, y = torch.randn(1, *shape).clamp(-1, 1), torch.tensor([1])
    for clip in (Flat(clip_norm), Quantile(clip_norm)):
        for scale in (1e10, 1e19, 1e25, 1e36, 1e38, 3e38):
            x = torch.full_like(row, scale) if name == "linear" else row * scale
            assert length(summed(net, x, y, clip)) <= clip.norm(clip_norm, 1) * (1 + 1e-6)

    # A gradient that is huge by both of its factors.
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return (1e20 * output).flatten(1).sum(1)

    clipper = ClippedGradients(net, loss, Flat(clip_norm), Adjacency.ADD_REMOVE)
    assert length(clipper(one_sample(examples=1), row * 1e20, y).values) <= clip_norm * (1 + 1e-6)


def small() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    return (
        nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)),
        drawn(5),
        torch.arange(ROWS) % 3,
    )


def recurrent(kind: type[nn.RNNBase]) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    net = Net(lambda n, x: n.a(x)[0], a=kind(5, 4, batch_first=True))
    net(drawn(6, 5))
    return net, drawn(6, 5), torch.arange(ROWS) % 3


@pytest.mark.parametrize("case", [small, lambda: recurrent(nn.GRU), lambda: recurrent(nn.RNN)])
def test_the_callers_autocast_changes_nothing(
    case: Callable[[], tuple[nn.Module, Tensor, Tensor]],
) -> None:
    net, x, y = case()
    expected = summed(net, x, y)
    clipper = ClippedGradients(net, cross_entropy, Flat(CLIP), Adjacency.ADD_REMOVE)
    with torch.autocast("cpu", torch.bfloat16):
        found = clipper(one_sample(examples=ROWS), x, y).values
        with torch.no_grad():
            net[0].weight.zero_() if isinstance(net, nn.Sequential) else net.head.weight.zero_()
        moved = clipper(one_sample(examples=ROWS), x, y).values
    assert distance(found, expected) <= 1e-6
    assert distance(moved, summed(net, x, y)) <= 1e-6


def test_complex_parameters_are_refused() -> None:
    net, x, y = small()
    net.phase = nn.Parameter(torch.randn(3, dtype=torch.cfloat))
    with pytest.raises(BadInput, match="complex64"):
        summed(net, x, y)


@pytest.mark.parametrize("dtype", [torch.cfloat, torch.float16, torch.int64])
def test_noise_is_only_added_to_real_numbers(dtype: torch.dtype) -> None:
    with pytest.raises(BadInput, match="float32 or float64"):
        add_gaussian([torch.zeros(3), torch.zeros(3, dtype=dtype)], 1.0, Streams.new(0).noise)


def test_fast_products_of_any_strides() -> None:
    torch.manual_seed(0)
    fast = _OneDNN()
    fast.least = 0
    x, weight = torch.randn(33, 20), torch.randn(24, 20)
    rows = (
        x,
        torch.randn(20, 33).T,
        torch.randn(1, 20).expand(33, 20),
        torch.randn(33, 1).expand(33, 20),
    )
    weights = (weight, torch.randn(20, 24).T, torch.randn(48, 23)[::2, 1:21])
    biases = (None, torch.randn(24), torch.randn(1).expand(24), torch.randn(48)[::2])
    for a in rows:
        for w in weights:
            for b in biases:
                torch.testing.assert_close(
                    fast.linear(a, w, b), F.linear(a, w, b), rtol=1e-4, atol=1e-4
                )
            torch.testing.assert_close(fast.back(a @ w.T, w), a @ w.T @ w, rtol=1e-4, atol=1e-3)
    for g in (torch.randn(33, 24), torch.randn(24, 33).T, torch.randn(1).expand(33, 24)):
        for into in (torch.zeros(24, 20), torch.zeros(20, 24).T):
            fast.add_outer(g, x, into)
            torch.testing.assert_close(into, g.T @ x, rtol=1e-4, atol=1e-4)


def test_fast_products_get_dense_weights() -> None:
    """With other strides oneDNN takes its reference implementation, which is a thousand times
    slower: a layer whose input is a slice would be.
    """
    torch.manual_seed(0)
    fast = _OneDNN()
    fast.least = 0
    weights = []

    def note(x: Tensor, weight: Tensor, *options: Any) -> Tensor:
        weights.append(weight)
        return x @ weight.T

    sliced, x = torch.randn(33, 48)[:, 4:24], torch.randn(33, 20)
    into = torch.zeros(20, 20)
    with mock.patch.object(torch.ops.mkldnn, "_linear_pointwise", note, create=True):
        torch.testing.assert_close(fast.linear(x, sliced, None), x @ sliced.T)
        torch.testing.assert_close(fast.back(torch.ones(5, 33), sliced), torch.ones(5, 33) @ sliced)
        fast.add_outer(x, sliced, into)
        torch.testing.assert_close(into, x.T @ sliced)
        fast.add_outer(sliced, x[:, :5], into[:, :5])
        torch.testing.assert_close(into[:, 5:], (x.T @ sliced)[:, 5:])
        torch.testing.assert_close(into[:, :5], (x.T @ sliced)[:, :5] + sliced.T @ x[:, :5])
    assert len(weights) == 4
    assert all(weight.is_contiguous() or weight.T.is_contiguous() for weight in weights)


@pytest.mark.parametrize("change", ["replaced", "loaded", "frozen"])
def test_parameters_that_are_no_longer_the_models_are_refused(change: str) -> None:
    net, x, y = small()
    clipper = ClippedGradients(net, cross_entropy, Flat(CLIP), Adjacency.ADD_REMOVE)
    clipper(one_sample(examples=ROWS), x, y)
    if change == "replaced":
        net[0].weight = nn.Parameter(net[0].weight.detach().clone())
    elif change == "loaded":
        net.load_state_dict(
            {name: value.clone() for name, value in net.state_dict().items()}, assign=True
        )
    else:
        net[0].requires_grad_(False)
    with pytest.raises(BadInput, match="begin a new run"):
        clipper(one_sample(examples=ROWS), x, y)


@pytest.mark.parametrize(
    "transform",
    [
        lambda rows, generator: rows.flip(0),
        lambda rows, generator: (
            0.7 * rows + 0.3 * rows[torch.randperm(len(rows), generator=generator)]
        ),
        lambda rows, generator: rows - rows.mean(0),
        lambda rows, generator: rows[::2],
    ],
)
def test_augmentations_that_mix_examples_are_refused(transform: Transform) -> None:
    with pytest.raises(NotPerExample, match="augmentation"):
        summed(*small(), augmentation=Augmentation(2, transform))


@pytest.mark.parametrize(
    "transform",
    [
        lambda rows, generator: rows + 0.1 * torch.randn(rows.shape, generator=generator).to(rows),
        lambda rows, generator: rows.unflatten(0, (-1, 2)).flip(1).flatten(0, 1),
        lambda rows, generator: rows.roll(int(torch.randint(3, (), generator=generator)), 1),
        # PyTorch's own generator will do, too
        lambda rows, generator: rows + 0.1 * torch.randn_like(rows),
        lambda rows, generator: rows.mul_(2),
    ],
)
def test_augmentations_that_keep_to_an_example_are_taken(transform: Transform) -> None:
    net, x, y = small()
    before = x.clone()
    found = summed(net, x, y, augmentation=Augmentation(2, transform))
    assert 0 < length(found) <= ROWS * CLIP
    assert torch.equal(x, before)


class Stops(nn.Module):
    """Fails at its nth call."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        return x


@pytest.mark.parametrize("at", [1, 4, 7, 9, 12, 14, 16])
def test_an_interrupt_leaves_the_users_model(at: int) -> None:
    net, x, y = small()
    net.insert(1, Stops(at))
    net.register_buffer("table", torch.ones(3))
    tied, view, table = net[0].weight, net[0].weight.view(-1), net.table
    held = [(p, p.data_ptr(), p.detach().clone()) for p in net.parameters()]
    drawn_so_far = torch.get_rng_state()
    clipper = ClippedGradients(net, cross_entropy, Flat(CLIP), Adjacency.ADD_REMOVE, microbatch=2)
    with pytest.raises(KeyboardInterrupt):
        clipper(one_sample(examples=ROWS), x, y)
    for p, (before, place, value) in zip(net.parameters(), held, strict=True):
        assert p is before
        assert p.data_ptr() == place
        assert torch.equal(p, value)
    assert net[0].weight is tied
    assert view.data_ptr() == tied.data_ptr()
    assert net.table is table
    assert all(module.training for module in net.modules())
    assert torch.equal(torch.get_rng_state(), drawn_so_far)


def standardised(n: Any, x: Tensor) -> Tensor:
    x -= 0.5
    x /= 0.25
    return n.a(x)


def standardised_data(n: Any, x: Tensor) -> Tensor:
    x.data.sub_(0.5)
    return n.a(x)


def standardised_and_sorted(n: Any, x: Tensor) -> Tensor:
    o = order(x)
    return standardised(n, x)[o][o.argsort()]


@pytest.mark.parametrize("run", [standardised, standardised_data, standardised_and_sorted])
def test_models_that_write_into_their_inputs(run: Run) -> None:
    """Rows are computed again without those that are not finite, or in another way."""
    net, x, y = made(run, lambda: {"a": nn.Linear(5, 4)}, marked(5))
    true = by_the_loop(net, x.clone(), y, flat)
    bad = torch.cat([x, torch.full((1, 5), math.nan, dtype=x.dtype)])
    for rows in (x, bad):
        before = rows.clone()
        assert distance(summed(net, rows, torch.cat([y, y[:1]])[: len(rows)]), true) <= 1e-10
        assert torch.equal(rows.nan_to_num(), before.nan_to_num())


def test_a_loss_that_writes_into_the_targets() -> None:
    net, x, _ = small()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        target *= 0.5
        return (output - target).square().sum(1)

    y = torch.ones(ROWS, 3)
    more = torch.cat([x, torch.full((1, 5), math.inf)]), torch.cat([y, y[:1]])
    clipper = ClippedGradients(net, loss, Flat(CLIP), Adjacency.ADD_REMOVE)
    found = [
        clipper(one_sample(examples=len(rows)), rows, targets).values
        for rows, targets in ((x, y), more)
    ]
    assert distance(*found) <= 1e-6


def test_writing_into_some_inputs_only_changes_nothing() -> None:
    """What is computed again is computed from the data."""

    def run(n: Any, x: Tensor) -> Tensor:
        return n.a(
            x.masked_fill_(x == MARK, 3.0) if (x == MARK).any() else x.masked_fill(x == MARK, 3.0)
        )

    net, x, y = made(run, lambda: {"a": nn.Linear(5, 4)}, marked(5))
    assert distance(summed(net, x, y), by_the_loop(net, x.clone(), y, flat)) <= 1e-10
