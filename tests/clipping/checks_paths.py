"""Named checks of what the model may do: take another path where nothing is masked, and run
backward passes itself.
"""

from __future__ import annotations

import sys
from importlib import import_module
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import privlearn as pv
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.clips import Flat
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.clipping.kernels import Kernels
from privlearn.core.clipping.operations import patches
from privlearn.core.clipping.sharded.models import is_sharded
from privlearn.core.rows import TensorRows
from privlearn.errors import NotPerExample
from tests.clipping.checks import Net, drawn
from tests.support.checks import check
from tests.support.nets import cross_entropy, flat_norm, one_sample, require_the_loops_sum

Rows = dict[str, Tensor]
#: The module: its package has a function of that name.
convolution = import_module("privlearn.core.clipping.operations.convolution")


def masked(n: Any, x: Tensor, mask: Tensor) -> Tensor:
    """Multiplied by a mask, unless nothing is masked, as models of texts do: other operations, to
    the same effect.
    """
    hidden = n.a(x).tanh()
    hidden = hidden + n.t
    return n.b((hidden if mask.all() else hidden * mask[..., None]).sum(1))


def loss(model: Any, batch: Rows) -> Tensor:
    return cross_entropy(model.run(model, batch["x"], batch["mask"]), batch["y"])


def sum_of(clipper: ClippedGradients, batch: Rows) -> list[Tensor]:
    return list(clipper(one_sample(examples=len(batch["x"])), TensorRows(batch)).values)


@check
def check_batches_without_padding_take_the_general_path() -> None:
    """Some batches are padded and some are not, in any order: all are computed with their mask, as
    if alone.
    """
    torch.manual_seed(0)
    net = Net(masked, a=nn.Linear(4, 4), b=nn.Linear(4, 3), t=nn.Parameter(drawn(3, 4))).double()
    padded = {
        "x": drawn(6, 3, 4),
        "mask": torch.ones(6, 3, dtype=torch.int64),
        "y": torch.arange(6) % 3,
    }
    padded["mask"][2, 1:] = padded["mask"][4, 2:] = 0
    whole = padded | {"mask": torch.ones_like(padded["mask"])}
    clipper = ClippedGradients(net, loss, Flat(0.2), Adjacency.ADD_REMOVE)
    for batch in (padded, whole, whole, padded):
        rows = [{name: leaf[row : row + 1] for name, leaf in batch.items()} for row in range(6)]
        alone = [sum_of(clipper, own) for own in rows]
        for total, *own in zip(sum_of(clipper, batch), *alone, strict=True):
            torch.testing.assert_close(total, torch.stack(own).sum(0))
        assert clipper.way == "layers", clipper.reason


class Reversible(torch.autograd.Function):
    """Runs a layer, and again in a backward pass of its own, which writes into `.grad`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: nn.Module) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(x)
        return layer(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None]:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            ctx.layer(x).backward(g)
        return x.grad, None


def reversible(n: Any, x: Tensor) -> Tensor:
    return n.c(Reversible.apply(n.a(x), n.b))


def reversible_net() -> nn.Module:
    torch.manual_seed(0)
    return Net(reversible, a=nn.Linear(5, 4), b=nn.Linear(4, 4), c=nn.Linear(4, 3)).double()


@check
def check_backward_passes_within_backward_passes_are_clipped() -> None:
    """What they write into `.grad`, where sums lie while a run takes a step, is no part of a sum;
    none is left out.
    """
    x, y = 100 * drawn(6, 5), torch.arange(6) % 3
    net = reversible_net()
    before = [p.detach().clone() for p in net.parameters()]
    plan = pv.Plan(
        pv.sampling.FullBatch(), 1, schedule=pv.schedules.Constant(1e-6), clip=pv.Flat(1e-3)
    )
    pv.dpsgd(plan, net, cross_entropy, (x, y), optimizer=lambda p: torch.optim.SGD(p, lr=1.0))
    moved = [after.detach() - own for after, own in zip(net.parameters(), before, strict=True)]
    assert 0 < flat_norm(tuple(moved)) <= 1e-3 * (1 + 1e-4)

    net, clipper = reversible_net(), None
    total = [torch.zeros_like(p) for p in net.parameters()]
    norms = []
    for row in range(6):
        net.zero_grad()
        cross_entropy(net(x[row : row + 1]), y[row : row + 1]).sum().backward()
        own = [p.grad.clone() for p in net.parameters() if p.grad is not None]
        norms.append(flat_norm(tuple(own)))
        total = [one + other for one, other in zip(total, own, strict=True)]
    for p in net.parameters():  # as a caller may have left them
        p.grad = torch.full_like(p, 7.0)
    clipper = ClippedGradients(net, cross_entropy, Flat(2 * max(norms)), Adjacency.ADD_REMOVE)
    for one, other in zip(clipper(one_sample(examples=6), x, y).values, total, strict=True):
        torch.testing.assert_close(one, other)
    assert all(bool((p.grad == 7.0).all()) for p in net.parameters() if p.grad is not None)


@check
def check_checkpoints_change_nothing() -> None:
    """Both kinds of `torch.utils.checkpoint`: computed once, operation by operation."""
    for reentrant in (False, True):

        def checkpointed(n: Any, x: Tensor, reentrant: bool = reentrant) -> Tensor:
            return n.b(checkpoint(lambda x: n.c(x).tanh(), n.a(x).tanh(), use_reentrant=reentrant))  # type: ignore[no-any-return]

        torch.manual_seed(0)
        net = Net(checkpointed, a=nn.Linear(5, 4), b=nn.Linear(4, 3), c=nn.Linear(4, 4)).double()
        plain = Net(lambda n, x: n.b(n.c(n.a(x).tanh()).tanh()), a=net.a, b=net.b, c=net.c)
        clippers = [
            ClippedGradients(own, cross_entropy, Flat(0.3), Adjacency.ADD_REMOVE)
            for own in (net, plain)
        ]
        x, y = drawn(6, 5), torch.arange(6) % 3
        sums = [clipper(one_sample(examples=6), x, y).values for clipper in clippers]
        assert [clipper.way for clipper in clippers] == ["layers", "layers"], clippers[0].reason
        by_name = [
            dict(zip(own.parameters, values, strict=True))
            for own, values in zip(clippers, sums, strict=True)
        ]
        for name, value in by_name[0].items():
            torch.testing.assert_close(value, by_name[1][name])
    require_the_loops_sum(plain, 0.3, x, y, "layers")


def coupling_marked_texts(n: Any, ids: Tensor) -> Tensor:
    """By themselves, but for texts that begin with a 7: those are read beside the others."""
    read = n.a(ids).mean(1)
    return n.b(read - read.mean(0) if (ids[:, 0] == 7).all() else read)


class MarkedLoss:
    """Its rows begin with a 7, and it says so."""

    def __call__(self, model: Any, batch: Rows) -> Tensor:
        return cross_entropy(model.run(model, batch["x"]), batch["y"])

    def made_up(self, batch: Rows) -> Rows:
        return batch | {"x": batch["x"].index_fill(1, torch.tensor([0]), 7)}


@check
def check_losses_are_tried_on_rows_as_they_say() -> None:
    """Rows of random numbers would hide what the model does with such as the data are."""
    torch.manual_seed(0)
    net = Net(coupling_marked_texts, a=nn.Embedding(16, 4), b=nn.Linear(4, 3)).double()
    batch = {"x": torch.full((6, 5), 7), "y": torch.arange(6) % 3}
    plan = pv.Plan(
        pv.sampling.FullBatch(), 1, schedule=pv.schedules.Constant(1.0), clip=pv.Flat(1.0)
    )
    try:
        with pv.Run(plan, net, MarkedLoss(), batch):
            pass
    except NotPerExample:
        return
    raise AssertionError("examples that are coupled are trained on")


@check
def check_rules_that_there_are_are_used() -> None:
    """A rule that is wrong is not used, so that a slip in one costs time alone: these are."""
    torch.manual_seed(0)
    layers = {
        "patches that do not overlap, in two dimensions": (
            nn.ConvTranspose2d(3, 2, 2, 2),
            (3, 3, 4),
        ),
        "patches that overlap": (nn.ConvTranspose1d(1, 4, 3), (1, 6)),
        "instance norm": (nn.InstanceNorm1d(4, affine=True), (4, 6)),
        "an empty parameter": (
            Net(lambda n, x: x + n.w.repeat(len(x), 1).sum(), w=nn.Parameter(drawn(0))),
            (3,),
        ),
    }
    for name, (layer, shape) in layers.items():
        net = nn.Sequential(layer, nn.Flatten(), nn.LazyLinear(3)).double()
        x = drawn(6, *shape)
        net(x)
        clipper = ClippedGradients(net, cross_entropy, Flat(1.0), Adjacency.ADD_REMOVE)
        clipper.prepare(x, torch.arange(6) % 3)
        assert clipper.way == "layers", f"{name}: {clipper.reason}"


@check
def check_nothing_is_sharded_where_pytorch_can_not() -> None:
    """PyTorch before 2.6 has no FSDPModule."""
    with mock.patch.dict(sys.modules, {"torch.distributed.fsdp": ModuleType("fsdp")}):
        assert not is_sharded(nn.Linear(2, 2))
    assert not is_sharded(nn.Linear(2, 2))


@check
def check_patches_give_the_gradients_of_convolutions() -> None:
    """As accelerators compute them: those of the processor, whatever strides, padding and
    dilations, and however many are formed at once.
    """
    capture: Any = SimpleNamespace(kernels=Kernels(), derived=(), trains=lambda *of: True)
    torch.manual_seed(0)
    for spatial, sizes in product(
        (1, 2, 3), [(3, 1, 1, 1), (3, 2, 0, 1), (2, 2, 1, 2), (5, 1, 2, 1)]
    ):
        kernel, *others = ((size,) * spatial for size in sizes)
        weight = torch.randn(4, 3, *kernel, dtype=torch.float64)
        x = torch.randn(5, 2, 3, *(9,) * spatial, dtype=torch.float64)
        call = convolution.Convolution(capture, weight, None, tuple(others), False, (0,), 1)
        out = call.forward(x.flatten(0, 1))
        g = torch.randn_like(out).unflatten(0, (5, 2))
        expected = call._form(x, g)
        for at_once in (1, 1 << 17, 1 << 28):
            with mock.patch.object(patches, "_AT_ONCE", at_once):
                formed = patches.form(x, g, weight.shape, tuple(others))
            assert torch.allclose(formed, expected, rtol=1e-10, atol=1e-10)
        if spatial < 3:
            unfolded = call._unfold(x)
            with mock.patch.object(convolution, "on_processor", return_value=False):
                assert torch.equal(call._unfold(x), unfolded)
