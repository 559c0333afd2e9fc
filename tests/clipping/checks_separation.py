"""Named checks of the gate that keeps examples apart: models and losses that couple them, where
values hide it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import privlearn as pv
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping import backends, kernels
from privlearn.core.clipping.clips import Flat
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.clipping.layout import NotLayerwise
from privlearn.core.clipping.model_check import made_up_batch
from privlearn.core.clipping.separation.tracker import ConstantValues, MemoryPlace
from privlearn.errors import BadInput, NotPerExample
from tests.support.checks import check
from tests.support.nets import cross_entropy, flat_norm, one_sample

WIDTH = 6
Mix = Callable[[Tensor], Tensor]


def halves(h: Tensor) -> Tensor:
    return h.view(len(h) // 2, 2, -1).mean(1).repeat_interleave(2, 0) if len(h) % 2 == 0 else h


def written(h: Tensor) -> Tensor:
    total = torch.zeros(h.shape[1], dtype=h.dtype)
    total += h.detach()[0]
    return total.expand_as(h)


def placed(h: Tensor) -> Tensor:
    turned = torch.zeros_like(h)
    turned[torch.arange(len(h)).flip(0)] = h
    return turned


class Centred(torch.autograd.Function):
    """Examples meet in the backward pass alone."""

    @staticmethod
    def forward(ctx: object, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: object, g: Tensor) -> Tensor:
        return g - g.mean(0)


def hooked(h: Tensor) -> Tensor:
    other = h * 1.0
    if other.requires_grad:
        other.register_hook(lambda g: g - g.mean(0))
    return other


def updated(h: Tensor) -> Tensor:
    """A batch norm without an argument that says whether it is in training."""
    zeros, ones = (torch.full((WIDTH,), value, dtype=h.dtype) for value in (0.0, 1.0))
    norm = torch.ops.aten._batch_norm_with_update
    return norm(h, ones, zeros, zeros.clone(), ones.clone(), 0.1, 1e-5)[0]  # type: ignore[no-any-return]


#: What a layer's outputs, shape (batch, width), may be mixed by: of each kind of operation some.
MIXES: dict[str, Mix] = {
    **{
        f"reduced by {name}": (lambda h, name=name: h - getattr(h, name)(0, keepdim=True))
        for name in ("mean", "sum", "amax", "amin", "std", "var", "nansum", "logsumexp", "prod")
    },
    "reduced by all numbers' maximum": lambda h: h / (1 + h.detach().abs().max()),
    "reduced by a norm": lambda h: h / (1 + h.norm(dim=0)),
    "reduced by a median": lambda h: h - h.median(0).values,
    "reduced by batch norm": lambda h: F.batch_norm(h, None, None, training=True),
    "reduced by a batch norm that is always in training": updated,
    **{
        f"along the batch by {name}": (lambda h, name=name: getattr(h, name)(0))
        for name in ("cumsum", "cumprod", "softmax", "log_softmax", "logcumsumexp", "flip")
    },
    "along the batch by sort": lambda h: h.sort(0).values,
    "along the batch by cummax": lambda h: h.cummax(0).values,
    "along the batch by roll": lambda h: h.roll(1, 0),
    "a product with others": lambda h: torch.softmax(h @ h.T, -1) @ h,
    "a sum of products": lambda h: torch.einsum("bi,ci->bi", h, h),
    "a batched product with others": lambda h: torch.bmm(h[None], h.T[None])[0] @ h,
    "distances to others": lambda h: torch.cdist(h, h) @ h,
    "attention to others": lambda h: F.scaled_dot_product_attention(h[None], h[None], h[None])[0],
    "the first example": lambda h: h + h[0],
    "a slice": lambda h: torch.cat([h[1:], h[:1]]),
    "an index that reverses": lambda h: h[torch.arange(len(h)).flip(0)],
    "an index by values": lambda h: h[h[:, 0].argsort()],
    "a table filled from the batch": lambda h: torch.zeros(2, WIDTH, dtype=h.dtype).index_add(
        0, torch.arange(len(h)) % 2, h
    )[torch.arange(len(h)) % 2],
    "scattered by values": lambda h: torch.zeros(len(h), WIDTH, dtype=h.dtype).scatter_add(
        0, (h > 0).long(), h
    ),
    "pairs put together": halves,
    "the other order in memory": lambda h: h.t().reshape(h.shape),
    "strides": lambda h: (
        torch.as_strided(h, h.shape, (1, len(h))).clone() if len(h) <= WIDTH else h.flip(0)
    ),
    "written in place": written,
    "written at other places": placed,
    "read as a number": lambda h: h * float(h.detach().mean()),
    "read as a truth": lambda h: h * (2.0 if bool(h.detach().sum() > 3) else 1.0),
    "read by numpy": lambda h: h + torch.from_numpy(h.detach().numpy().mean(0)),
    "read as a list": lambda h: h * max(h.detach().flatten().tolist()),
    "the number of true entries": lambda h: h * len((h > 0).nonzero()),
    "entries that a mask picks": lambda h: h + h[h > 0].mean(),
    "the size of the batch": lambda h: h / len(h),
    "the place in the batch": lambda h: h * torch.arange(len(h), dtype=h.dtype)[:, None],
    "a backward pass of its own": lambda h: Centred.apply(h),  # type: ignore[no-untyped-call]
    "a hook on gradients": hooked,
}

#: What keeps examples apart, beside these.
HARMLESS: dict[str, Mix] = {
    "each example's maximum": lambda h: h / (1 + h.abs().amax(1, keepdim=True)),
    "views beside each other": lambda h: torch.cat([h, 2 * h]).view(2, len(h), -1).sum(0),
    "an index that counts": lambda h: h[torch.arange(len(h))],
    "along the features": lambda h: h.softmax(1).cumsum(1).flip(1),
    "a table of constants": lambda h: h + torch.arange(WIDTH, dtype=h.dtype),
    "classes as one number each": lambda h: (
        h + F.one_hot((h > 0).sum(1) % WIDTH, WIDTH).to(h.dtype)
    ),
    "zeros that are filled": lambda h: torch.zeros_like(h).copy_(h),
}


class Gated(nn.Module):
    """A mix behind a gain that begins at zero, as that of a residual branch: at first it shows
    nowhere.
    """

    def __init__(self, mix: Mix) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 3)
        self.gain, self.mix = nn.Parameter(torch.zeros(1)), mix

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x)) + 0.5
        return self.b(h + self.gain * self.mix(h))  # type: ignore[no-any-return]


class Marked(nn.Module):
    """A mix of rows that begin with a 7 alone: no made-up row does."""

    def __init__(self, mix: Mix) -> None:
        super().__init__()
        self.a, self.b, self.mix = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 3), mix

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x)) + 0.5
        return self.b(torch.where(x[:, :1] == 7, self.mix(h), h))  # type: ignore[no-any-return]


def rows() -> tuple[Tensor, Tensor]:
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x[:, 0], x[-1, 1:] = 7, 40.0
    return x, torch.arange(8) % 3


def moved(net: nn.Module, loss: object) -> tuple[float, str | None]:
    """How far removing the last row moves the clipped sum, over the clipping norm; and the way of
    the gradients.
    """
    x, y = rows()
    clipper = ClippedGradients(net, loss, Flat(0.1), Adjacency.ADD_REMOVE)  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            clipper.prepare(x, y)
        except (NotPerExample, BadInput):  # some mixes can't be computed for an example alone
            return 0.0, "refused"
        if isinstance(net, Gated):
            nn.init.constant_(net.gain, 1.5)  # as training moves it
        sums = [
            clipper(one_sample(examples=number), x[:number], y[:number]).values for number in (8, 7)
        ]
    return flat_norm(tuple(a - b for a, b in zip(*sums, strict=True))) / 0.1, clipper.way


def nets(mix: Mix) -> Iterator[nn.Module]:
    for kind in (Gated, Marked):
        torch.manual_seed(0)
        yield kind(mix).double()


def mixing(mix: Mix) -> Callable[[Tensor, Tensor], Tensor]:
    """A loss whose outputs are mixed, where they are large."""

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        wide = F.pad(outputs, (0, WIDTH - outputs.shape[1]))
        return cross_entropy(
            torch.where(outputs.abs() > 0.4, mix(wide)[:, : outputs.shape[1]], outputs), y
        )

    return loss


@check
def check_examples_that_a_model_couples_are_computed_one_by_one() -> None:
    """Whatever kind of operation couples them, and whatever hides it at first."""
    for name, mix in MIXES.items():
        for net in nets(mix):
            ratio, way = moved(net, cross_entropy)
            assert ratio <= 1 + 1e-6, (name, type(net).__name__, way, ratio)
            assert way != "layers", (name, type(net).__name__)


@check
def check_examples_that_a_loss_couples_are_computed_one_by_one() -> None:
    for name, mix in MIXES.items():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3)).double()
        ratio, way = moved(net, mixing(mix))
        assert ratio <= 1 + 1e-6, (name, way, ratio)
        assert way != "layers", name


class Eighth(nn.Module):
    """Mixes two examples of batches of eight alone, which are of no made-up size; it leaves the
    others as they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        return self.b(torch.cat([h[:1] + h[1:2], h[1:]]) if len(h) == 8 else h)  # type: ignore[no-any-return]


@check
def check_a_program_that_batches_of_another_size_run_is_checked() -> None:
    torch.manual_seed(0)
    ratio, way = moved(Eighth().double(), cross_entropy)
    assert ratio <= 1 + 1e-6, (way, ratio)
    assert way != "layers"


@check
def check_examples_that_stay_apart_are_computed_at_once() -> None:
    for name, mix in HARMLESS.items():
        for net in nets(mix):
            assert moved(net, cross_entropy)[1] == "layers", (name, type(net).__name__)


def denied(net: nn.Module) -> bool:
    """Whether the gate by itself, without what compares values, keeps a model from being computed
    at once.
    """
    problem = backends.Problem(net, cross_entropy, dict(net.named_parameters()))
    batches = [made_up_batch(*rows(), size) for size in (5, 7)]
    try:
        backends.layouts(problem, kernels.Kernels(), batches)
    except NotLayerwise:
        return True
    return False


@check
def check_the_gate_denies_each_mix_by_itself() -> None:
    for name, mix in MIXES.items():
        torch.manual_seed(0)
        if name == "the size of the batch":
            assert denied(Marked(mix).double()), name
            continue
        with mock.patch.object(backends, "_same_notes", return_value=True):
            assert denied(Marked(mix).double()), name


@check
def check_the_gate_passes_what_stays_apart() -> None:
    for name, mix in HARMLESS.items():
        torch.manual_seed(0)
        assert not denied(Marked(mix).double()), name


#: What a number may be used for. It follows the size of the batch.
Sized = Callable[[Tensor, float], Tensor]
STATE = torch.ones(WIDTH, dtype=torch.float64)


def _beside(h: Tensor, number: float) -> Tensor:
    wide = torch.full((len(h), 2 * WIDTH), number, dtype=h.dtype)
    wide[:, :WIDTH] = h
    return wide[:, :WIDTH] * wide[:, WIDTH:]


def _into(h: Tensor, number: float) -> Tensor:
    wide = h.clone()
    wide[:, 0] = number
    return wide


def _at(h: Tensor, number: float) -> Tensor:
    wide = torch.zeros_like(h)
    wide[:, int(number)] = h[:, 0]
    return wide


def _item(h: Tensor, number: float) -> Tensor:
    factors = torch.ones(WIDTH, dtype=h.dtype)
    factors[0] = number
    return h * factors


SIZED: dict[str, Sized] = {
    "a factor": lambda h, number: h * number,
    "an argument": lambda h, number: F.leaky_relu(h, number / 10),
    "an argument by keyword": lambda h, number: torch.add(h, h, alpha=number),
    "arguments by keyword": lambda h, number: h.clamp(min=-number / 10, max=number / 10),
    "a complex factor": lambda h, number: (h * complex(number, 0)).real,
    "a tensor of no dimension": lambda h, number: h * torch.tensor(number),
    "a complex tensor": lambda h, number: (h * torch.tensor(complex(number, 0))).real,
    "a tensor of one number": lambda h, number: h * torch.tensor([number]),
    "a tensor of whole numbers": lambda h, number: h * torch.tensor([int(number)]),
    "a tensor that is filled": lambda h, number: h * torch.full((WIDTH,), number, dtype=h.dtype),
    "a tensor like another": lambda h, number: h * torch.full_like(h, number),
    "a product of constants": lambda h, number: h * (torch.ones(WIDTH, dtype=h.dtype) * number),
    "a range": lambda h, number: h * torch.linspace(0, number, WIDTH, dtype=h.dtype),
    "a matrix": lambda h, number: h @ (torch.eye(WIDTH, dtype=h.dtype) * number),
    "a tensor that was there": lambda h, number: h * STATE.fill_(number),
    "an entry that is written": _item,
    "written beside examples": _beside,
    "written into examples": _into,
    "a place that is written": _at,
    "a place that is read": lambda h, number: h + h[:, int(number)][:, None],
    "how much is read": lambda h, number: h + h[:, : int(number)].sum(1, keepdim=True),
    "a part of a constant": lambda h, number: (
        h + STATE.expand(2, -1)[:, : int(number)].sum() * STATE[int(number)]
    ),
    "which result is read": lambda h, number: (h * 2, h * 3)[int(number) - 2],
    "whether gradients flow": lambda h, number: h + (h if number == 2 else h.detach()),
    "beside a huge constant": lambda h, number: (
        h * torch.tensor([1e9] + [number] * (WIDTH - 1), dtype=h.dtype)
    ).clamp(-2, 2),
    "a large whole number": lambda h, number: torch.remainder(h, 10_000_000 + int(number)) / 1e7,
    "how a part is padded": lambda h, number: F.pad(
        h[:, None, :-2], (1, 1), mode="reflect" if number == 2 else "replicate"
    )[:, 0],
    "what a draw is by": lambda h, number: h * torch.bernoulli(torch.full_like(h, number / 10)),
    "a shift": lambda h, number: h.roll(int(number), 1),
    "a word": lambda h, number: F.gelu(h, approximate="tanh" if number == 2 else "none"),
    "a type": lambda h, number: h.to(torch.float32 if number == 2 else torch.float64).double(),
}


class SizedModel(nn.Module):
    """Uses a number for something: by batches of more than so many rows, another one."""

    def __init__(self, use: Sized, more: float, most: int = 75) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 3)
        self.use, self.more, self.most = use, more, most

    def forward(self, x: Tensor) -> Tensor:
        number = self.more if len(x) > self.most else 2.0
        return self.b(self.use(torch.tanh(self.a(x)), number))  # type: ignore[no-any-return]


def way_at(
    net: nn.Module,
    *sizes: int,
    loss: Any = cross_entropy,
    then: Callable[[], None] | None = None,
) -> list[str | None]:
    """How batches of these sizes are computed, one after the other; and again after `then`."""
    x = torch.randn(max(sizes), 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.arange(max(sizes)) % 3
    clipper = ClippedGradients(net, loss, Flat(0.1), Adjacency.ADD_REMOVE)
    ways = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            clipper.prepare(x, y)
        except NotPerExample:
            return ["refused"]
        for again in (False, True) if then else (False,):
            if again and then:
                then()
            for size in sizes:
                clipper(one_sample(examples=size), x[:size], y[:size])
                ways.append(clipper.way)
    return ways


@check
def check_the_gate_denies_what_follows_the_size_of_the_batch() -> None:
    """A number of 2 at most 75 rows, and of 3 for more: no made-up batch is as large."""
    for name, use in SIZED.items():
        torch.manual_seed(0)
        first, second = way_at(SizedModel(use, 3.0).double(), 72, 80)
        assert first == "layers", name
        assert second != "layers", name


class Warming(nn.Module):
    """A factor that begins at 1, and follows a number of the caller's later, over a size."""

    def __init__(self, over: Callable[[Tensor], int]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 3)
        self.beta, self.over = 0.0, over

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        return self.b(h * (1 + self.beta / self.over(h)))  # type: ignore[no-any-return]


class Chosen(nn.Module):
    """A loss that is one of two columns, by the size of the batch."""

    def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
        each = F.cross_entropy(outputs, y, reduction="none")
        return torch.stack([each, 2 * each], 1)[:, int(len(outputs) > 75)]


#: By what each of these is told, beside the flow of results: the arguments of operations, where
#: they read and write, or what is in constants.
TOLD_BY = {
    "a factor": "arguments",
    "an argument by keyword": "arguments",
    "a complex factor": "arguments",
    "a word": "arguments",
    "a shift": "arguments",
    "a large whole number": "arguments",
    "a tensor of one number": "values",
    "a tensor that is filled": "values",
    "a matrix": "values",
    "a tensor that was there": "values",
    "beside a huge constant": "values",
    "what a draw is by": "values",
    "written beside examples": "values",
    "written into examples": "values",
    "a place that is written": "places",
    "a place that is read": "places",
    "how much is read": "places",
    "a type": "places",
}


def notes_of(net: nn.Module, size: int) -> dict[str, list[Any]]:
    """What the gate notes of a pass over so many rows, by kind."""
    problem = backends.Problem(net, cross_entropy, dict(net.named_parameters()))
    seen = backends.layouts(problem, kernels.Kernels(), [made_up_batch(*rows(), n) for n in (5, 7)])
    leaves = problem.inputs(made_up_batch(*rows(), size))
    with problem.random.made_up(size):
        _, notes = backends.SeparationCheck(problem, seen)._follow(leaves, size, None)
    values = [note for note in notes if isinstance(note, ConstantValues)]
    places = [note for note in notes if isinstance(note, MemoryPlace)]
    kinds = (ConstantValues, MemoryPlace)
    arguments = [note for note in notes[1:] if not isinstance(note, kinds)]
    return {"values": values, "places": places, "arguments": arguments}


@check
def check_each_kind_of_note_shows_what_it_is_for() -> None:
    """By itself, whatever the others show."""
    for name, kind in TOLD_BY.items():
        for more, expected in ((3.0, False), (2.0, True)):
            torch.manual_seed(0)
            net = SizedModel(SIZED[name], more).double()
            small, large = (notes_of(net, size)[kind] for size in (72, 80))
            assert backends._same_notes(small, large) is expected, (name, more)


@check
def check_the_gate_looks_again_where_numbers_have_changed() -> None:
    """A number with a point may follow a public schedule, and not the size of the batch."""
    for over, expected in ((len, False), (lambda h: 72, True)):
        torch.manual_seed(0)
        net = Warming(over).double()
        ways = way_at(net, 72, 80, then=lambda net=net: setattr(net, "beta", 100.0))
        assert ways[:2] == ["layers"] * 2
        assert (ways[2:] == ["layers"] * 2) is expected, (over, ways)


@check
def check_small_batches_agree_with_others() -> None:
    """All sizes are compared with one."""

    def use(h: Tensor, number: float) -> Tensor:
        return torch.where(h > 2, h * number, h)  # which shows nowhere

    for most in (2, 3, 4, 7):
        torch.manual_seed(0)
        net = SizedModel(use, 3.0, most).double()
        ways = way_at(net, most + 1, most)
        assert "layers" not in ways, (most, ways)


@check
def check_the_gate_denies_a_loss_that_is_chosen_by_the_size_of_the_batch() -> None:
    torch.manual_seed(0)
    net = SizedModel(lambda h, number: h, 2.0).double()
    ways = way_at(net, 72, 80, loss=Chosen())
    assert ways[0] == "layers"
    assert ways[1] != "layers"


@check
def check_the_gate_passes_numbers_that_stay() -> None:
    for name, use in SIZED.items():
        torch.manual_seed(0)
        ways = way_at(SizedModel(use, 2.0).double(), 72, 80, 3)
        assert ways == ["layers"] * 3, name


class Remembering(nn.Module):
    """Subtracts a number of the batch before, which it holds in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(5, 3)
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        before, marked = self.last, (x[:, :1] == 7).to(x.dtype)
        self.last = (x * marked).detach()[:1]
        return self.a(x if before is None else x - before)  # type: ignore[no-any-return]


class Elsewhere(Remembering):
    """The same in an object that is no module, and that nobody puts back."""

    def __init__(self) -> None:
        vars(self)["object"] = SimpleNamespace(last=None)
        super().__init__()

    @property
    def last(self) -> Tensor | None:  # type: ignore[override]
        return self.object.last  # type: ignore[no-any-return]

    @last.setter
    def last(self, value: Tensor | None) -> None:
        vars(self)["object"].last = value


class Averaging(nn.Module):
    """Subtracts a moving average of its inputs, in a plain tensor that it writes into."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(5, 3)
        self.mean = torch.zeros(5, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.detach()[0] * (x.detach()[0, 0] == 7))
        return self.a(x - self.mean)  # type: ignore[no-any-return]


@check
def check_what_a_model_remembers_of_a_batch_is_in_no_other() -> None:
    """A tensor of an earlier batch is no constant: a program that uses one is not computed at
    once.
    """
    torch.manual_seed(0)
    # what it keeps is put back after each pass
    assert moved(Remembering().double(), cross_entropy)[0] <= 1
    assert moved(Elsewhere().double(), cross_entropy)[1] != "layers"
    assert denied(Remembering().double())
    assert denied(Elsewhere().double())
    assert denied(Averaging().double())


def centred(h: Tensor) -> Tensor:
    return h - h.mean(0)


def scaled(h: Tensor) -> Tensor:
    return h / float(h.abs().max())


#: What couples all examples, and the operation that a refusal names.
NAMED: dict[str, Any] = {
    "mean over the batch": centred,
    "max over the batch": scaled,
    "flip over the batch": lambda h: h.flip(0),
    "softmax over the batch": lambda h: torch.softmax(h, 0),
    "picking or reordering examples": lambda h: h + h[:1],
}


class Applied(nn.Module):
    """A function between two layers."""

    def __init__(self, mix: Mix) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.mix = nn.Linear(WIDTH, 4), nn.Linear(4, 3), mix

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.mix(self.a(x)))  # type: ignore[no-any-return]


def refusal(mix: Mix) -> str:
    """What the training of a model is refused with; empty if it is trained."""
    plan = pv.Plan(
        pv.sampling.FullBatch(), 1, schedule=pv.schedules.Constant(1.0), clip=pv.Flat(1.0)
    )
    rows = made_up_batch(torch.zeros(1, WIDTH), torch.zeros(1, dtype=torch.int64), 8)
    try:
        pv.dpsgd(plan, Applied(mix), cross_entropy, rows, streams=pv.Streams.new(0))
    except NotPerExample as error:
        return str(error)
    return ""


@check
def check_a_refusal_names_the_operation_and_its_line() -> None:
    """Of what couples examples, with what to write instead, in 300 characters; what the advice says
    is trained.
    """
    for operation, mix in NAMED.items():
        said, code = refusal(mix), mix.__code__
        named = re.search(
            rf"{operation}.*\({Path(__file__).name}, line (\d+), in {code.co_name}\)", said
        )
        assert named, said
        assert code.co_firstlineno <= int(named[1]) <= code.co_firstlineno + 1, said
        assert "Compute it within each example, as over dim=1, or use a constant" in said, said
    said = refusal(FunctionType(centred.__code__.replace(co_name="long" * 60), globals()))
    assert "mean over the batch" in said
    assert len(said) <= 300, len(said)
    assert not refusal(lambda h: h - h.mean(1, keepdim=True))
