"""Named checks of what an accelerator needs: indices are looked at before a kernel meets them, and
too little memory is no absent example.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping import indices
from privlearn.core.clipping.clips import Flat
from privlearn.core.clipping.evaluation import RightAnswers
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.clipping.index_ranges import RANGES
from privlearn.core.clipping.indices import Indices
from privlearn.core.sampling import FullBatch
from privlearn.errors import OutOfMemory
from tests.support.checks import check, must_raise

aten = torch.ops.aten
_TABLE = torch.arange(12.0).view(4, 3)
_SCORES = torch.arange(12.0).view(3, 4).log_softmax(1)
_MAPS = _SCORES.view(3, 4, 1, 1)
_ZEROS = torch.zeros(())
#: Of `ctc_loss`: 6 positions of 3 examples and 4 classes; the last targets are beyond their length.
_CALLED = torch.arange(72.0).sin().view(6, 3, 4).log_softmax(2)
_LENGTHS = (6, 6, 6), (2, 2, 1)


#: Operations whose kernels on the processor don't look, or that it has none for.
_UNCHECKED = {"_ctc_loss", "_ctc_loss_backward", "_cudnn_ctc_loss", "miopen_ctc_loss"}


def _whole(*values: int) -> Tensor:
    return torch.tensor(values)


def _whole_of(values: tuple[int, ...]) -> Tensor:
    return torch.tensor(values)


def _without_kernel(operation: Any, targets: Tensor) -> tuple[Tensor, ...]:
    """Nothing, of an operation that the processor has no kernel for."""
    with contextlib.suppress(NotImplementedError):
        operation(_CALLED, targets, *_LENGTHS, 0, False, False)
    return ()


#: By operation: how it is called with what has a range, and values within and out of it.
CASES: dict[str, tuple[Callable[[Tensor], Any], list[Tensor], list[Tensor]]] = {
    "gather": (
        lambda i: _TABLE.gather(1, i[:, None].expand(-1, 2)),
        [_whole(0, 2)],
        [_whole(0, 3), _whole(-1, 0)],
    ),
    "scatter": (
        lambda i: _TABLE.scatter(0, i[None], 1.0),
        [_whole(3, 0)],
        [_whole(4, 0), _whole(-1, 0)],
    ),
    "scatter_add": (
        lambda i: _TABLE.scatter_add(0, i[None], torch.ones(1, 2)),
        [_whole(3, 0)],
        [_whole(4, 0)],
    ),
    "scatter_reduce": (
        lambda i: _TABLE.scatter_reduce(0, i[None], torch.ones(1, 2), "amax"),
        [_whole(3, 0)],
        [_whole(4, 0)],
    ),
    "index_select": (
        lambda i: _TABLE.index_select(0, i),
        [_whole(3, 0)],
        [_whole(4), _whole(-1)],
    ),
    "index_add": (
        lambda i: _TABLE.index_add(0, i, torch.ones(1, 3)),
        [_whole(3)],
        [_whole(4), _whole(-1)],
    ),
    "index_copy": (
        lambda i: _TABLE.index_copy(0, i, torch.ones(1, 3)),
        [_whole(3)],
        [_whole(4), _whole(-1)],
    ),
    "index_reduce": (
        lambda i: _TABLE.index_reduce(0, i, torch.ones(1, 3), "amax"),
        [_whole(3)],
        [_whole(4), _whole(-1)],
    ),
    "index_fill": (
        lambda i: _TABLE.index_fill(0, i, 1.0),
        [_whole(3), _whole(-4)],
        [_whole(4), _whole(-5)],
    ),
    "take": (_TABLE.take, [_whole(11, -12)], [_whole(12), _whole(-13)]),
    "put": (
        lambda i: _TABLE.put(i, torch.ones(1)),
        [_whole(11), _whole(-12)],
        [_whole(12), _whole(-13)],
    ),
    "index": (
        lambda i: _TABLE[:, i],
        [_whole(2, -3)],
        [_whole(3), _whole(-4)],
    ),
    "_unsafe_index": (
        lambda i: aten._unsafe_index(_TABLE, [None, i]),
        [_whole(2, -3)],
        [_whole(3), _whole(-4)],
    ),
    "index_put": (
        lambda i: _TABLE.index_put((i, _whole(0)), torch.ones(1)),
        [_whole(3), _whole(-4)],
        [_whole(4), _whole(-5)],
    ),
    "_unsafe_index_put": (
        lambda i: aten._unsafe_index_put(_TABLE, [i], torch.ones(1, 3)),
        [_whole(3), _whole(-4)],
        [_whole(4), _whole(-5)],
    ),
    "_index_put_impl": (
        lambda i: aten._index_put_impl_(_TABLE.clone(), [i], torch.ones(1, 3), True),
        [_whole(3), _whole(-4)],
        [_whole(4), _whole(-5)],
    ),
    "embedding": (lambda i: F.embedding(i, _TABLE), [_whole(0, 3)], [_whole(4), _whole(-1)]),
    "embedding_renorm": (
        lambda i: aten.embedding_renorm_(_TABLE.clone(), i, 1.0, 2.0),
        [_whole(0, 3)],
        [],  # the processor does not look
    ),
    "embedding_dense_backward": (
        lambda i: aten.embedding_dense_backward(torch.ones(2, 3), i, 4, -1, False),
        [_whole(0, 3)],
        [],
    ),
    "_embedding_bag": (
        lambda i: F.embedding_bag(i[None], _TABLE),
        [_whole(0, 3)],
        [_whole(4, 0), _whole(-1, 0)],
    ),
    "_embedding_bag_forward_only": (
        lambda i: aten._embedding_bag_forward_only(_TABLE, i, _whole(0)),
        [_whole(0, 3)],
        [_whole(4, 0), _whole(-1, 0)],
    ),
    "nll_loss_forward": (
        lambda i: F.nll_loss(_SCORES, i, reduction="none"),
        [_whole(0, 3, 2), _whole(0, -100, 2)],
        [_whole(0, 4, 2), _whole(0, -1, 2)],
    ),
    "nll_loss_backward": (
        lambda i: aten.nll_loss_backward(torch.ones(3), _SCORES, i, None, 0, -100, _ZEROS),
        [_whole(0, 3, 2), _whole(0, -100, 2)],
        [],
    ),
    "nll_loss2d_forward": (
        lambda i: F.nll_loss(_MAPS, i.view(3, 1, 1), reduction="none"),
        [_whole(0, 3, 2), _whole(0, -100, 2)],
        [_whole(0, 4, 2), _whole(0, -1, 2)],
    ),
    "nll_loss2d_backward": (
        lambda i: aten.nll_loss2d_backward(
            torch.ones(3, 1, 1), _MAPS, i.view(3, 1, 1), None, 0, -100, _ZEROS
        ),
        [_whole(0, 3, 2), _whole(0, -100, 2)],
        [],
    ),
    "multi_margin_loss": (
        lambda i: F.multi_margin_loss(_SCORES, i, reduction="none"),
        [_whole(0, 3, 2)],
        [_whole(0, 4, 2), _whole(0, -1, 2)],
    ),
    "multi_margin_loss_backward": (
        lambda i: aten.multi_margin_loss_backward(torch.ones(3), _SCORES, i, 1, 1.0, None, 0),
        [_whole(0, 3, 2)],
        [],
    ),
    "multilabel_margin_loss_forward": (
        lambda i: F.multilabel_margin_loss(_SCORES[0], i),
        [_whole(0, 3, -1, 0)],
        [_whole(0, 4, -1, 0), _whole(0, -2, -1, 0)],
    ),
    "_ctc_loss": (
        lambda i: aten._ctc_loss(_CALLED, i.view(3, 2), *_LENGTHS)[0],
        [_whole(1, 3, 2, 1, 3, 99), _whole(1, 3, 2, 1, 3, -1)],
        [_whole(1, 4, 2, 1, 3, 99), _whole(1, 3, -1, 1, 3, 99)],
    ),
    "_ctc_loss_backward": (
        lambda i: aten._ctc_loss_backward(
            torch.ones(3),
            _CALLED,
            i,
            *map(_whole_of, _LENGTHS),
            *aten._ctc_loss(_CALLED, i.clamp(0, 3), *_LENGTHS),
            0,
        ),
        [_whole(1, 3, 2, 1, 3)],
        [_whole(1, 3, 2, 1, 4), _whole(-1, 3, 2, 1, 3)],
    ),
    "_cudnn_ctc_loss": (
        lambda i: _without_kernel(aten._cudnn_ctc_loss, i),
        [_whole(1, 3, 2, 1, 3)],
        [_whole(1, 3, 2, 1, 4)],
    ),
    "miopen_ctc_loss": (
        lambda i: _without_kernel(aten.miopen_ctc_loss, i),
        [_whole(1, 3, 2, 1, 3)],
        [_whole(1, 3, 2, 1, 4)],
    ),
    "max_unpool2d": (
        lambda i: F.max_unpool2d(torch.ones(1, 1, 1, 2), i.view(1, 1, 1, 2), 2, output_size=(2, 4)),
        [_whole(0, 7)],
        [_whole(0, 8), _whole(0, -1)],
    ),
    "max_unpool3d": (
        lambda i: F.max_unpool3d(
            torch.ones(1, 1, 1, 1, 2), i.view(1, 1, 1, 1, 2), 2, output_size=(2, 2, 4)
        ),
        [_whole(0, 15)],
        [_whole(0, 16), _whole(0, -1)],
    ),
    "binary_cross_entropy": (
        lambda p: F.binary_cross_entropy(p, torch.ones(2), reduction="none"),
        [torch.tensor([0.0, 1.0])],
        [torch.tensor([0.5, 1.5]), torch.tensor([0.5, -0.5]), torch.tensor([0.5, math.nan])],
    ),
    "bernoulli": (
        torch.bernoulli,
        [torch.tensor([0.0, 1.0])],
        [torch.tensor([0.5, 1.5]), torch.tensor([0.5, -0.5]), torch.tensor([0.5, math.nan])],
    ),
    "multinomial": (
        lambda p: torch.multinomial(p, 1),
        [torch.tensor([0.0, 1.0])],
        [torch.tensor([0.5, -0.5]), torch.tensor([0.5, math.nan]), torch.tensor([0.0, 0.0])],
    ),
}


def _look(call: Callable[[Tensor], Any], values: Tensor) -> tuple[Any, bool]:
    """What a call gives while its indices are looked at, and whether one was out of range."""
    looks = Indices(torch.device("cpu"))
    looks.looks = True
    with mock.patch.object(indices, "on_processor", return_value=False), looks.defer():
        with looks.looking():
            out = call(values)
        assert looks.flag is not None, "the operation was not looked at"
        return out, bool(looks.flag)


@check
def check_indices_are_refused_where_the_processor_refuses_them() -> None:
    """Of each operation with a range: what the processor refuses is seen, in memory it is then in
    range, and all else stays as it is.
    """
    assert set(CASES) == set(RANGES)
    warnings.filterwarnings("ignore", "index_reduce", UserWarning)
    for name, (call, within, outside) in CASES.items():
        for values in within:
            before = values.clone()
            torch.manual_seed(0)
            expected = call(values)
            torch.manual_seed(0)
            out, seen = _look(call, values)
            assert not seen, f"{name} of {values}"
            assert torch.equal(values, before)
            for one, other in zip(_all(expected), _all(out), strict=True):
                assert torch.equal(one, other), name
        for given in outside:
            values = given.clone()
            if name not in _UNCHECKED:
                must_raise((IndexError, RuntimeError), lambda: call(given))  # noqa: B023
            _, seen = _look(call, values)
            assert seen, f"{name} of {given}"
            call(values)  # as a backward pass would meet it


def _all(out: Any) -> list[Tensor]:
    return list(out) if isinstance(out, tuple) else [out]


@check
def check_what_is_overwritten_is_what_autograd_keeps() -> None:
    """The backward pass meets no index out of range either, whatever the memory of the index is."""
    tokens = _whole(1, 9, 2, 9, 3)
    forms: list[Callable[[Tensor], Tensor]] = [
        lambda t: t,
        lambda t: t[::2],
        lambda t: t[:, None].expand(-1, 3),
        lambda t: t.unfold(0, 3, 1),
    ]
    for form in forms:
        weight = torch.ones(4, 2, requires_grad=True)
        out, seen = _look(lambda t, w=weight, f=form: F.embedding(f(t), w), tokens.clone())
        assert seen == bool((form(tokens) > 3).any())
        out.sum().backward()
        assert weight.grad is not None
        assert weight.grad.sum() == out.numel()


class _Aligned(nn.Module):
    """Scores of classes at each position, and the loss of a sequence of targets."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).log_softmax(2)

    @staticmethod
    def loss(out: Tensor, targets: Tensor) -> Tensor:
        lengths = [(width,) * len(out) for width in (out.shape[1], targets.shape[1])]
        return F.ctc_loss(out.transpose(0, 1), targets, *lengths, reduction="none")


class _AlignedAlone(_Aligned):
    """The same, by a loss that reads what it is given: examples are computed one by one."""

    @staticmethod
    def loss(out: Tensor, targets: Tensor) -> Tensor:
        assert out.sum().item() < 1
        return _Aligned.loss(out, targets)


@check
def check_targets_of_ctc_loss_are_looked_at_on_the_processor() -> None:
    """Its kernel would read, and write, beside the memory of an example: that example is absent,
    and the targets in memory stay as they are.
    """
    x, y = torch.rand(7, 6, 3, generator=torch.Generator().manual_seed(1)), torch.ones(7, 2).long()
    faulty = y.clone()
    faulty[2, 1] = 4
    others = torch.arange(7) != 2
    for model in (_Aligned(), _AlignedAlone()):
        sums = []
        for rows, targets in ((x, faulty), (x[others], y[others])):
            before = targets.clone()
            gradients = ClippedGradients(model, model.loss, Flat(1.0), Adjacency.ZERO_OUT)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # one way is slow
                gradients.prepare(x, y)
                (sample,) = FullBatch().draw(len(rows), np.random.default_rng(0))
                values = gradients(sample, rows, targets).values
            sums.append(torch.cat([value.flatten() for value in values]))
            assert torch.equal(targets, before)
        assert torch.allclose(*sums, atol=1e-6), gradients.way


@check
def check_lists_between_brackets_are_looked_at() -> None:
    """Whatever becomes an index is: sizes and single places are not, which PyTorch looks at."""
    device = Indices(torch.device("cpu"))
    device.looks = True
    get = Tensor.__getitem__
    every = slice(None)
    taken: list[Any] = [[0, 7], (every, [0, 7]), ((0, 7), (1, 2)), np.array([0, 7]), range(3)]
    taken += [torch.tensor(7), (every, torch.tensor([7])), [[0, 7], [1, 2]], [torch.tensor(1), 2]]
    for index in taken:
        looking = device.at_call(get, (_TABLE, index), {})
        assert isinstance(looking, indices._Looking), index
    for index in (7, every, (0, 7), (every, None, 1), (..., 2), None, torch.ones(4) > 0):
        assert not isinstance(device.at_call(get, (_TABLE, index), {}), indices._Looking), index


@check
def check_an_index_on_the_processor_raises_at_once() -> None:
    """An operation on the device takes it, and waits for no flag."""
    looks = Indices(torch.device("cpu"))
    looks.looks = True
    for outside in (_whole(4), _whole(0, -5)):
        before = outside.clone()
        with looks.defer(), looks.looking():
            raised = must_raise(IndexError, lambda: _TABLE[outside])  # noqa: B023
        assert str(raised) == indices.OUT_OF_RANGE
        assert looks.flag is None
        assert torch.equal(outside, before)


class _Hungry(nn.Module):
    """A linear model that has too little memory for rows that begin with 1, or for many rows."""

    def __init__(self, error: Exception, most: int = 99) -> None:
        super().__init__()
        self.layer, self._error, self._most = nn.Linear(3, 1), error, most

    def forward(self, x: Tensor) -> Tensor:
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor(x)
        if not wrapped and (len(x) > self._most or (x[:, 0] == 1).any()):
            raise self._error
        return self.layer(x)


_ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7.13 GiB"),
    MemoryError("7.13"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 713 bytes."),
]


def _sum_of(model: _Hungry, x: Tensor) -> Tensor:
    most, model._most = model._most, 99  # as made-up rows are
    gradients = ClippedGradients(
        model, lambda out, y: out[:, 0] * y, Flat(1.0), Adjacency.ZERO_OUT, expected=len(x)
    )
    gradients.prepare(x, torch.ones(len(x)))
    model._most = most
    (sample,) = FullBatch().draw(len(x), np.random.default_rng(0))
    return torch.cat([v.flatten() for v in gradients(sample, x, torch.ones(len(x))).values])


@check
def check_too_little_memory_for_one_example_ends_the_run() -> None:
    """And says nothing of sizes; for many at once it is none, and other failures are absent."""
    x = torch.arange(24.0).view(8, 3)
    usual = _sum_of(_Hungry(ValueError()), x)
    assert torch.allclose(_sum_of(_Hungry(_ERRORS[0], most=2), x), usual)
    x[5, 0] = 1
    absent = _sum_of(_Hungry(ValueError("of a row")), x)
    rest = _sum_of(_Hungry(ValueError()), torch.cat([x[:5], x[6:]]))
    assert torch.allclose(absent, rest)
    for error in _ERRORS:
        surfaced = must_raise(OutOfMemory, lambda: _sum_of(_Hungry(error), x))  # noqa: B023
        assert not set("0123456789") & set(str(surfaced).replace("bf16", ""))
        assert surfaced.__suppress_context__


@check
def check_too_little_memory_is_no_row_without_an_answer() -> None:
    """Where a model is evaluated, with its rows together or each by itself."""

    class Fails(nn.Module):
        def __init__(self, most: int) -> None:
            super().__init__()
            self.layer, self._most, self._rows = nn.Linear(3, 2), most, 0

        def forward(self, x: Tensor) -> Tensor:
            whole = torch._C._functorch.is_functorch_wrapped_tensor(x)
            if self._most == 0 or (self._most == 1 and whole):
                raise torch.OutOfMemoryError("7.13 GiB")
            return self.layer(x)

    x, y = torch.ones(5, 3), torch.zeros(5, dtype=torch.int64)
    assert RightAnswers(Fails(1))(x, y).abs().sum() == 5
    must_raise(OutOfMemory, lambda: RightAnswers(Fails(0))(x, y))
