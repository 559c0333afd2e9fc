"""Named checks of losses as scripts write them: in a range of their own, means and sums of a batch;
mutations must make them fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import privlearn as pv
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.errors import NotPerExample
from privlearn.opacus import PrivacyEngine
from tests.loop.checks import X, Y, network, sgd, weights
from tests.support.checks import check, must_raise

ModelBatch = Callable[[Any, Any], Tensor]
WITHOUT_NOISE = {"noise_multiplier": 1e-6, "epochs": 2, "max_grad_norm": 1.0}
HALVES = (X[:, 0] > 0).float()


def of_one_number() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 1), nn.Sigmoid(), nn.Flatten(0))


def rows_of(*tensors: Tensor) -> DataLoader[Any]:
    """All rows in each batch."""
    return DataLoader(TensorDataset(*tensors), batch_size=60)


def trained(
    model: nn.Module, function: Any, *tensors: Tensor, rate: float = 0.5, **options: Any
) -> Any:
    """A run that is over."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    run = pv.make_private(model, optimizer, rows_of(*tensors), **WITHOUT_NOISE, **options)
    for batch in run.batches():
        run.step(batch, function)
    return run


def clipped(model: nn.Module, loss: ModelBatch, *tensors: Tensor, rate: float = 0.5) -> Tensor:
    """The weights of the loop that clips single examples, in which all are one batch."""
    own = list(model.parameters())
    for _ in range(WITHOUT_NOISE["epochs"]):  # type: ignore[call-overload]
        total = [torch.zeros_like(p) for p in own]
        for row in range(60):
            value = loss(model, [tensor[row : row + 1] for tensor in tensors]).sum()
            gradients = torch.autograd.grad(value, own, materialize_grads=True)
            norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
            scale = ((1 - 1 / 1024) / norm).clamp(max=1.0)
            total = [a + scale * b for a, b in zip(total, gradients, strict=True)]
        with torch.no_grad():
            for p, gradient in zip(own, total, strict=True):
                p -= rate * gradient / 60
    return weights(model)


def require_clipped(make: Callable[[], nn.Module], loss: Any, *tensors: Tensor) -> Any:
    """The run of this loss trains as the loop does that clips single examples."""
    run = trained(make(), loss, *tensors)
    expected = clipped(make(), loss, *tensors)
    moved = (expected - weights(make())).norm()
    assert moved > 1e-3
    assert (weights(run.model) - expected).norm() < 1e-3 * moved
    return run


def binary(model: Any, batch: Any) -> Tensor:
    return F.binary_cross_entropy(model(batch[0]), batch[1], reduction="none")


def of_itself(model: Any, batch: Any) -> Tensor:
    """Of inputs that are in [0, 1]."""
    decoded = (batch[0] @ model[0].weight.T).sigmoid() @ model[0].weight
    return F.binary_cross_entropy(decoded.sigmoid(), batch[0], reduction="none").mean(1)


def of_positive(model: Any, batch: Any) -> Tensor:
    if not bool((batch[1] > 0).all()):
        raise ValueError("targets have to be positive")
    return (model(batch[0]) - batch[1].log()) ** 2


def from_one(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1] - 1, reduction="none")


def of_two(model: Any, batch: Any) -> Tensor:
    if not bool((batch[2] > 0).all()):
        raise ValueError("classes begin with 1")
    return binary(model, batch) * batch[2]


def of_signs(model: Any, batch: Any) -> Tensor:
    """For other targets than 1 and -1 it is 0: nothing is refused, and nothing is seen."""
    one, other = model(batch[0]), model(batch[0].roll(1, 1))
    return F.cosine_embedding_loss(one, other, batch[1], reduction="none")


@check
def check_made_up_rows_lie_in_a_range_that_a_loss_accepts() -> None:
    cases: dict[str, tuple[Callable[[], nn.Module], ModelBatch, tuple[Tensor, ...]]] = {
        "targets of 0 and 1": (of_one_number, binary, (X, HALVES)),
        "inputs in [0, 1]": (of_one_number, of_itself, (X.sigmoid(), Y)),
        "positive targets": (of_one_number, of_positive, (X, X[:, 1].exp())),
        "classes from 1": (network, from_one, (X, Y + 1)),
        "two targets": (of_one_number, of_two, (X, HALVES, Y + 1)),
        "signs": (network, of_signs, (X, 2 * HALVES - 1)),
    }
    for name, (make, loss, tensors) in cases.items():
        run = require_clipped(make, loss, *tensors)
        assert run.task.gradients.way == "layers", name


@check
def check_binary_cross_entropy_trains_in_all_forms() -> None:
    expected = clipped(of_one_number(), binary, X, HALVES)
    for loss in (binary, nn.BCELoss(reduction="none"), lambda m, b: nn.BCELoss()(m(b[0]), b[1])):
        run = trained(of_one_number(), loss, X, HALVES)
        torch.testing.assert_close(weights(run.model), expected, rtol=1e-3, atol=1e-4)
    for criterion in (nn.BCELoss(), F.binary_cross_entropy):
        engine, model = PrivacyEngine(), of_one_number()
        module, optimizer, batches = engine.make_private(
            module=model,
            optimizer=sgd(model),
            data_loader=rows_of(X, HALVES),
            **WITHOUT_NOISE,  # type: ignore[arg-type]
        )
        for _ in range(2):
            for x, y in batches:
                optimizer.zero_grad()
                criterion(module(x), y).backward()
                optimizer.step()
        torch.testing.assert_close(weights(model), expected, rtol=1e-3, atol=1e-4)


@check
def check_a_made_up_rows_range_never_follows_from_private_rows() -> None:
    """What a loss is given before the first step is the same, to the bit, for all rows."""

    def seen_with(*tensors: Tensor) -> list[Tensor]:
        seen = []

        def noting(model: Any, batch: Any) -> Tensor:
            seen.extend(leaf.detach().clone().double() for leaf in batch)
            return binary(model, batch)

        model = of_one_number()
        pv.make_private(model, sgd(model), rows_of(*tensors), loss=noting, **WITHOUT_NOISE)
        return seen

    one = seen_with(X, HALVES)
    for tensors in ((X + 1000, HALVES), (X, 1 - HALVES), (X * 0, HALVES * 0.3), (X, HALVES - 5)):
        other = seen_with(*tensors)
        assert len(one) == len(other) > 0
        assert all(map(torch.equal, one, other))


@check
def check_a_loss_that_refuses_all_ranges_is_refused_before_a_row_is_seen() -> None:
    def never(model: Any, batch: Any) -> Tensor:
        raise ValueError("these rows are not what was expected")

    model = of_one_number()
    run = pv.make_private(model, sgd(model), rows_of(X, HALVES), **WITHOUT_NOISE)
    batch = next(run.batches())
    error = must_raise(pv.errors.BadInput, lambda: run.step(batch, never))
    assert "not what was expected" in str(error)
    assert "made_up" in str(error)
    assert not run.steps_done


@check
def check_a_loss_that_is_silent_outside_its_range_is_tried_within_it() -> None:
    """It is 0 for random targets; for those of 1 and -1 it couples examples."""

    def silent(model: Any, batch: Any) -> Tensor:
        outputs = model(batch[0])
        values = (outputs - outputs.mean(0)).square().sum(1)
        return torch.where(batch[1].abs() == 1, values, 0.0 * values)

    must_raise(NotPerExample, lambda: trained(network(), silent, X, 2 * HALVES - 1))


@check
def check_made_up_rows_are_as_the_loop_says() -> None:
    """`made_up=` takes the place of what is learned, for functions and for modules of torch."""

    def only_seven(model: Any, batch: Any) -> Tensor:
        if not bool((batch[0][:, 0] == 7).all()):
            raise ValueError("rows begin with a 7")
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    class OnlySeven(nn.Module):
        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            if not bool((targets[:, 0] == 7).all()):
                raise ValueError("targets begin with a 7")
            return (outputs - targets).square().mean(1)

    def beginning(batch: Any) -> Any:
        for leaf in batch:
            if leaf.dim() > 1:
                leaf[:, 0] = 7
        return batch

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def forward(self, x: Tensor) -> Any:
            if not bool((x[:, 0] == 7).all()):
                raise ValueError("rows begin with a 7")
            return self.network(x)

    marked = X.clone()
    marked[:, 0] = 7
    cases: tuple[tuple[Callable[[], nn.Module], Any, tuple[Tensor, ...]], ...] = (
        (network, only_seven, (marked, Y)),
        (network, OnlySeven(), (X, marked[:, :2])),
        (Reader, nn.CrossEntropyLoss(reduction="none"), (marked, Y)),
    )
    for make, loss, tensors in cases:
        for given in ({"loss": loss}, {}):
            run = trained(make(), loss, *tensors, rate=0.01, made_up=beginning, **given)
            assert run.steps_done == 2
        must_raise(pv.errors.PrivlearnError, lambda: trained(make(), loss, *tensors))  # noqa: B023


@check
def check_means_and_sums_of_a_batch_are_of_its_examples() -> None:
    """Also where a batch's length divides, and where weights are added up, whose number a batch's
    length may divide.
    """

    def mean(model: Any, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    def total(model: Any, batch: Any) -> Tensor:
        return 0.1 * F.cross_entropy(model(batch[0]), batch[1], reduction="sum")

    def parts(model: Any, batch: Any) -> Tensor:
        values = (model(batch[0]) - batch[1][:, None]) ** 2
        return values.mean() + 0.1 * model(batch[0]).abs().sum() / len(batch[0])

    def with_weights(model: Any, batch: Any) -> Tensor:
        return mean(model, batch) + 0.05 * model[0].weight.pow(2).sum()

    def by_time(model: Any, batch: Any) -> Tensor:
        """Rows of several values, whose values lie before rows when they are averaged."""
        outputs = model(batch[0][:, None] * torch.tensor([1.0, -1.0, 0.5])[:, None])
        return outputs.transpose(0, 1).reshape(-1).square().mean()

    def make() -> nn.Module:  # 6 x 10 weights: a batch has as many rows
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 2))

    def of_some(model: Any, batch: Any) -> Tensor:
        """Over those values of an example that count: one, two or three."""
        outputs = model(batch[0][:, None] * torch.tensor([1.0, -1.0, 0.5])[:, None])
        labels = batch[1].flatten()
        return 0.1 * F.cross_entropy(outputs.flatten(0, 1), labels, ignore_index=2)

    labels = torch.randint(2, (60, 3), generator=torch.Generator().manual_seed(1))
    labels[torch.arange(3) > torch.arange(60)[:, None] % 3] = 2  # as no made-up row has

    for loss in (mean, total, parts, with_weights, by_time):
        require_clipped(make, loss, X, Y)
    run = require_clipped(make, of_some, X, labels)
    assert run.task.gradients.way == "layers"  # else its gradients were seen to be others


@check
def check_a_mean_that_couples_examples_is_refused() -> None:
    def weighted(model: Any, batch: Any) -> Tensor:
        """By a sum of weights, which other examples decide; those of made-up rows are equal."""
        weight = torch.tensor([1.0, 1.0, 4.0])
        return F.cross_entropy(model(batch[0]) @ torch.ones(2, 3), batch[1], weight=weight)

    def contrasting(model: Any, batch: Any) -> Tensor:
        z = F.normalize(model(batch[0]), dim=1)
        return F.cross_entropy(10 * z @ z.T, torch.arange(len(z)))

    def centred(model: Any, batch: Any) -> Tensor:
        outputs = model(batch[0])
        return (outputs - outputs.mean(0)).square().mean()

    for loss in (weighted, contrasting, centred):
        must_raise(NotPerExample, lambda: trained(network(), loss, X, Y))  # noqa: B023


@check
def check_a_single_example_that_is_left_over_changes_no_way() -> None:
    """Neither for a mean over the batch, which is taken for it as for the others, nor where the
    model goes another way for it: what follows is computed layer by layer.
    """

    def mean(model: Any, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    def of_each(model: Any, batch: Any) -> Tensor:
        scores = model(batch[0])
        scores = scores if len(scores) > 1 else scores.clone()
        return F.cross_entropy(scores, batch[1], reduction="none")

    for loss in (mean, of_each):
        run = trained(network(), loss, X, Y, microbatch=59)
        assert run.task.gradients.way == "layers", loss
        assert torch.allclose(weights(run.model), weights(trained(network(), loss, X, Y).model))
    with mock.patch.object(ClippedGradients, "_compute_one_by_one") as computed:
        trained(network(), mean, X, Y, microbatch=59)
    assert not computed.called
