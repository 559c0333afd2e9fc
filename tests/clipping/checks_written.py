"""Named checks that nothing which computes with rows writes into trained parameters; mutations must
make them fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import privlearn as pv
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.clips import Flat
from privlearn.core.clipping.evaluation import RightAnswers
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.clipping.model_check import require_per_example
from privlearn.core.clipping.trained_state import TrainedState, versions
from privlearn.core.rows import TensorRows
from privlearn.errors import NotPerExample
from privlearn.training.run import Run
from tests.clipping.checks import drawn
from tests.support.checks import check, must_raise
from tests.support.nets import clipped_by_the_loop, cross_entropy, one_sample, small_data

#: A number that is in no made-up row.
MARK = 0.2


class WritingFunction(torch.autograd.Function):
    """The identity; its backward pass writes into a weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.weight = weight
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *flows: Tensor) -> Any:
        ctx.weight.data.mul_(10.0)
        return flows[0], None


def scale(module: Any, *_: object) -> None:
    """A hook that writes."""
    if module.now:
        module.weight.data.mul_(10.0)


class Writer(nn.Module):
    """Writes into its first layer, in one of several ways, where `when` says so."""

    def __init__(self, how: str, when: Callable[[Tensor], bool] = lambda x: True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(5, 4).double(), nn.Linear(4, 3).double()
        self.how, self.when = how, when
        if how == "forward hook":
            self.a.register_forward_hook(scale)
        if how == "backward hook":
            self.b.register_full_backward_hook(scale)

    def forward(self, x: Tensor) -> Tensor:
        self.now = self.a.now = self.b.now = self.when(x)
        if "hook" not in self.how and self.how != "function":
            self.write(self.how)
        hidden = torch.tanh(self.a(x))
        if self.how == "function" and self.now:
            hidden = WritingFunction.apply(hidden, self.a.weight)  # type: ignore[no-untyped-call]
        return self.b(hidden)

    def write(self, how: str) -> None:
        weight = self.a.weight
        if not self.now:
            return
        if how == "in place":
            with torch.no_grad():
                weight.mul_(10.0)
        if how == "data":
            weight.data.mul_(10.0)
        if how == "last bit":
            weight.data.view(torch.int64)[0, 0] ^= 1
        if how == "memory":
            weight.data = weight.data * 10
        if how == "transposed":
            self.b.weight.data = self.b.weight.data.flip(0)
        if how == "parameter":
            self.a.weight = nn.Parameter(weight.detach() * 10)
        if how == "frozen":
            weight.requires_grad_(False)


WAYS_TO_WRITE = (
    "in place",
    "data",
    "last bit",
    "memory",
    "transposed",
    "parameter",
    "frozen",
    "forward hook",
    "backward hook",
    "function",
)


def marked() -> tuple[Tensor, Tensor]:
    """Rows of which the last holds the mark."""
    x, y = small_data(8)
    x[-1, 0] = MARK
    return x, y


def has_mark(x: Tensor) -> bool:
    return MARK in x.detach().numpy()


def state(net: nn.Module) -> Any:
    """All that must stay: which parameters there are, trained or not, where, and their bits."""
    return [
        (
            name,
            id(own),
            own.requires_grad,
            own.data_ptr(),
            own.stride(),
            own.detach().numpy().tobytes(),
        )
        for name, own in net.named_parameters()
    ]


def sums(
    net: nn.Module, x: Tensor, y: Tensor, **options: Any
) -> tuple[list[Tensor], ClippedGradients]:
    clipper = ClippedGradients(net, cross_entropy, Flat(0.05), Adjacency.ADD_REMOVE, **options)
    return list(clipper(one_sample(examples=len(x)), x, y).values), clipper


@check
def check_what_a_pass_writes_into_trained_parameters_is_undone() -> None:
    """In place, through .data, in one bit, by other memory or another parameter, in hooks and in
    functions.
    """
    x, y = marked()
    for how in WAYS_TO_WRITE:
        for options in ({}, {"microbatch": 3}) if how == "data" else ({},):
            net = Writer(how, has_mark)
            before, counted = state(net), versions(list(net.parameters()))
            others, _ = sums(net, x[:-1], y[:-1], **options)
            whole, _ = sums(net, x, y, **options)
            assert state(net) == before, f"{how}: the parameters are not what they were"
            assert versions(list(net.parameters())) == counted, (
                f"{how}: the write shows in what is counted"
            )
            moved = float(
                torch.stack(
                    [(a - b).square().sum() for a, b in zip(whole, others, strict=True)]
                ).sum()
            )
            assert moved**0.5 <= 0.05, (
                f"{how}: one example moves the sum by {moved**0.5 / 0.05:.2f} of the clip"
            )


class FlaggedRows:
    """Rows in memory whose fetching sets a model's flag, as no made-up row does."""

    def __init__(self, net: Any, x: Tensor, y: Tensor) -> None:
        self._net, self._rows = net, TensorRows((x, y))
        self.like, self.structure, self.inputs = (
            self._rows.like,
            self._rows.structure,
            self._rows.inputs,
        )

    def __len__(self) -> int:
        return len(self._rows)

    def fetch(self, rows: Tensor) -> Any:
        self._net.flag = True
        return self._rows.fetch(rows)

    def identities(self, rows: Tensor) -> Any:
        return self._rows.identities(rows)


class Once(nn.Module):
    """The first time that it runs after its flag was set, it makes its weights ten times as large;
    on no made-up row.

    With `apart` it has an operation without a rule, so that it is computed by `vmap`.
    """

    def __init__(self, *, apart: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(5, 4).double(), nn.Linear(4, 3).double()
        # whose writes PyTorch does not see, nor vmap refuse
        self.memory = self.a.weight.detach().numpy()
        self.flag, self.last = False, nn.PReLU(3).double() if apart else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        if self.flag:
            self.flag = False
            self.memory *= 10.0
        return self.last(self.b(torch.tanh(self.a(x))))


@check
def check_what_one_example_writes_reaches_no_other() -> None:
    """Computed together, all would see it: they are computed one by one, and only the one that
    wrote sees it.
    """
    x, y = small_data(8)
    for apart, way in ((False, "layers"), (True, "vmap")):
        net = Once(apart=apart)
        clipper = ClippedGradients(net, cross_entropy, Flat(0.05), Adjacency.ADD_REMOVE)
        clipper.prepare(TensorRows((x, y)))
        assert clipper.way == way, clipper.reason
        before = state(net)
        found = list(clipper(one_sample(examples=8), FlaggedRows(net, x, y)).values)
        assert state(net) == before
        others = clipped_by_the_loop(net, 0.05, x[1:], y[1:])
        net.a.weight.data.mul_(10.0)
        first = clipped_by_the_loop(net, 0.05, x[:1], y[:1])
        for total, *parts in zip(found, first, others, strict=True):
            torch.testing.assert_close(total, parts[0] + parts[1], rtol=1e-7, atol=1e-9)


@check
def check_models_that_write_into_trained_parameters_are_refused_beforehand() -> None:
    """Also those that find nothing to write at their first weights; the advice is what works."""

    class Bounded(nn.Module):
        def __init__(self, bound: Callable[[nn.Module], Any]) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.bound = nn.Linear(5, 3), bound

        def forward(self, x: Tensor) -> Tensor:
            weight = self.bound(self.layer)
            return self.layer(x) if weight is None else F.linear(x, weight, self.layer.bias)

    def renormed(layer: Any) -> None:
        layer.weight.data = torch.renorm(layer.weight.data, 2, 0, 5.0)

    def replaced(layer: Any) -> None:
        layer.weight = nn.Parameter(layer.weight.detach().clamp(-1, 1))

    def clamped(layer: Any) -> None:
        layer.weight.data.clamp_(-1, 1)

    def in_place(layer: Any) -> None:
        with torch.no_grad():
            layer.weight.clamp_(-1, 1)

    x = torch.zeros(1, 5)
    for bound in (renormed, replaced, clamped, in_place):
        error = must_raise(
            NotPerExample, lambda bound=bound: require_per_example(Bounded(bound), x)
        )
        assert "'layer.weight' is trained, and the model writes into it" in str(error), error
    require_per_example(Bounded(lambda layer: layer.weight.clamp(-1, 1)), x)
    for how in WAYS_TO_WRITE:
        if how != "last bit":
            must_raise(NotPerExample, lambda how=how: require_per_example(Writer(how), x.double()))


class Texts(nn.Module):
    """A table, whose mean a layer classifies."""

    def __init__(
        self, kind: Any = nn.Embedding, norm: float | None = 2.0, *, called: bool = False
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.layer = kind(20, 6, max_norm=None if called else norm), nn.Linear(6, 3)
        self.called = norm if called else None
        with torch.no_grad():
            self.table.weight.mul_(0.1)  # no row is long enough at first

    def forward(self, x: Tensor) -> Tensor:
        rows = (
            F.embedding(x, self.table.weight, max_norm=self.called)
            if self.called
            else self.table(x)
        )
        return self.layer(rows if rows.dim() == 2 else rows.mean(1))


def texts(rows: int = 16) -> tuple[Tensor, Tensor]:
    drawing = torch.Generator().manual_seed(0)
    x = torch.randint(0, 10, (rows, 7), generator=drawing)
    x[-1] = torch.arange(11, 18)  # in no other row
    return x, torch.randint(3, (rows,), generator=drawing)


@check
def check_tables_that_rescale_what_is_looked_up_are_refused() -> None:
    """`max_norm` of a trained table, by name and in a call; without it, and of a frozen one, there
    is training.
    """
    plan = pv.Plan(
        pv.sampling.FullBatch(), epochs=1, schedule=pv.schedules.Constant(1.0), clip=pv.Flat(1.0)
    )

    def trained(net: nn.Module) -> nn.Module:
        result = pv.dpsgd(plan, net, cross_entropy, texts(), streams=pv.Streams.new(0))
        return result.model

    for kind in (nn.Embedding, nn.EmbeddingBag):
        error = must_raise(NotPerExample, lambda kind=kind: trained(Texts(kind)))
        assert f"{kind.__name__} at 'table' has max_norm=2.0" in str(error), error
        assert "max_norm=None" in str(error), error
        trained(Texts(kind, None))
    must_raise(NotPerExample, lambda: trained(Texts(called=True)))
    frozen = Texts()
    frozen.table.weight.requires_grad_(False)
    before = frozen.table.weight.clone()
    trained(frozen)
    assert torch.equal(frozen.table.weight, before)


@check
def check_evaluations_write_nothing_into_trained_parameters() -> None:
    """A row on which a model writes has no answer, and changes no other's; the weights stay, and
    nothing is counted.
    """
    x, y = marked()
    for how in WAYS_TO_WRITE:
        if how in ("backward hook", "function", "frozen"):
            continue
        net = Writer(how, has_mark).eval()
        before, counted = state(net), versions(list(net.parameters()))
        answers = RightAnswers(net)(x, y)
        assert answers[-1] == 0, f"{how}: a row on which the model writes has an answer"
        assert torch.equal(answers[:-1], RightAnswers(net)(x[:-1], y[:-1])), how
        assert (state(net), versions(list(net.parameters()))) == (before, counted), how


@check
def check_the_look_at_the_data_writes_nothing() -> None:
    """The least and largest whole numbers in the data are computed before anything is spent, and
    leave nothing.
    """
    seen: list[Any] = []

    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.table = nn.Embedding(300, 3)

        def forward(self, x: Tensor) -> Tensor:
            if 255 in x.detach().numpy():
                seen.append(True)
                self.table.weight.data.add_(1.0)
            return self.table(x).mean(1)

    net = Looks()
    before = state(net)
    x = torch.randint(0, 2, (8, 4), generator=torch.Generator().manual_seed(0))
    x[3, 1] = 255
    plan = pv.Plan(
        pv.sampling.FullBatch(), epochs=1, schedule=pv.schedules.Constant(1.0), clip=pv.Flat(1.0)
    )
    with Run(plan, net, cross_entropy, (x, torch.zeros(8, dtype=torch.int64))):
        assert seen, "the model was not shown the largest number"
        assert state(net) == before


@check
def check_parameters_of_any_layout_are_restored() -> None:
    """Transposed, of an odd number of bytes, complex, or with nothing in them; also where a value
    is no number.
    """

    class Layouts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole = nn.Parameter(drawn(4, 6).T)
            self.odd = nn.Parameter(torch.ones(3))
            self.low = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
            self.turned = nn.Parameter(torch.ones(2, 2, dtype=torch.complex128))
            self.none = nn.Parameter(torch.zeros(0, 4))
            self.wrong = nn.Parameter(torch.tensor([float("nan"), 0.0]))
            self.large = nn.Parameter(torch.zeros(200, 100))

    net = Layouts()
    held = TrainedState(net)
    before = {name: own.detach().clone() for name, own in net.named_parameters()}
    with held.holding():
        held.restore()
        assert not held.written, f"{held.written} was not written"
        for name, own in net.named_parameters():
            if own.numel():
                held.written = ""
                own.data.mul_(-1.0)  # of a zero: the sign alone
                held.restore()
                assert held.written == name
        for name, own in net.named_parameters():
            assert torch.equal(torch.signbit(own.real), torch.signbit(before[name].real)), name
            assert torch.equal(own.isnan(), before[name].isnan()), name
            assert torch.equal(own[~own.isnan()], before[name][~own.isnan()]), name


class Keeps(nn.Module):
    """Keeps something of a row with the mark, in one of several plain attributes, for the rows of
    later passes.
    """

    def __init__(self, how: str, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.way, self.passes = how, way, 0
        self.a, self.b = nn.Linear(5, 3).double(), nn.PReLU(3).double()  # which has no rule
        self.last: Any = 0.0
        self.rows: list[Any] = [0.0]
        self.table: dict[str, Any] = {"last": 0.0}
        self.tensor = torch.zeros((), dtype=torch.float64)
        self.mask: Tensor | None = None
        self.width = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        if self.width != x.shape[-1]:
            self.width, self.mask = x.shape[-1], torch.ones(x.shape[-1]).double()
        assert self.mask is not None
        earlier = {"list": self.rows[-1], "dictionary": self.table["last"], "in place": self.tensor}
        out = self.b(self.a(x * self.mask)) * (1.0 - 2.0 * earlier.get(self.how, self.last))
        seen = (x == MARK).any().double().detach()
        if self.way == "loop":
            seen = seen.new_tensor(bool(seen))
        if self.how == "attribute":
            self.last = seen
        elif self.how == "number":
            self.last = float(seen)
        elif self.how == "list":
            self.rows.append(seen)
        elif self.how == "dictionary":
            self.table["last"] = seen
        else:
            self.tensor.copy_(seen)
        return out


WAYS_TO_KEEP = {
    "loop": ("attribute", "list", "dictionary", "number", "in place"),
    "vmap": ("attribute", "list", "dictionary"),
}


@check
def check_what_a_pass_leaves_in_plain_attributes_reaches_no_later_one() -> None:
    """With and without a row that is kept, the others' gradients are the same; counters and what is
    there last.
    """
    x, y = marked()
    x, y = x.flip(0), y.flip(0)
    for way, hows in WAYS_TO_KEEP.items():
        for how in hows:
            net = Keeps(how, way)
            others, _ = sums(net, x[1:], y[1:], microbatch=1)
            whole, clipper = sums(net, x, y, microbatch=1)
            assert clipper.way == way, clipper.reason
            moved = float(
                torch.stack(
                    [(a - b).square().sum() for a, b in zip(whole, others, strict=True)]
                ).sum()
            )
            assert moved**0.5 <= 0.05 * (1 + 1e-9), f"{way}, {how}: ratio {moved**0.5 / 0.05:.2f}"
            kept = (net.last, net.rows, net.table, float(net.tensor), net.mask, net.width)
            assert kept == (0.0, [0.0], {"last": 0.0}, 0.0, None, 0), f"{way}, {how}: {kept}"


@check
def check_what_is_no_number_of_rows_lasts_in_attributes() -> None:
    """Counters last, and so does what the caller changes between sums."""

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.passes, self.factor = (
                nn.Linear(5, 3).double(),
                0,
                torch.tensor(1.0).double(),
            )

        def forward(self, x: Tensor) -> Tensor:
            self.passes += 1
            return self.layer(x) * self.factor

    net = Counts()
    x, y = small_data(8)
    clipper = ClippedGradients(net, cross_entropy, Flat(0.05), Adjacency.ADD_REMOVE)
    for factor in (1.0, 0.5):
        net.factor, before = torch.tensor(factor).double(), net.passes
        clipper(one_sample(examples=8), x, y)
        assert net.passes > before
        assert float(net.factor) == factor
