"""A rule of anyone's operation gives autograd's gradients, or is not used: named checks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from privlearn.core import sampling
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.capture import Call, Capture
from privlearn.core.clipping.clips import Flat
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.clipping.operations import RULES
from privlearn.core.clipping.per_example import Dense
from tests.support.checks import check
from tests.support.nets import flat_norm
from tests.support.registries import forgotten
from tests.support.training import FEATURES, LOSS, ROWS, rows

#: Made-up batches have fewer examples than this.
RARE = 16


class Offset:
    """x - p; where a batch is large, with a gradient that is too small for its norm to be
    clipped.
    """

    def __init__(self, parameter: Tensor, factor: float) -> None:
        self.parameters, self._factor = (parameter,), factor

    def forward(self, x: Tensor) -> Tensor:
        return x - self.parameters[0]

    def backward(self, call: Call, x: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        each = -call.grouped(g).sum(1)
        call.keep(
            self.parameters[0], None, Dense(each * (self._factor if len(each) > RARE else 1.0))
        )
        return g if wanted else None


class Net(nn.Module):
    """An offset that is trained, and what follows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.offset, self.linear = nn.Parameter(torch.zeros(FEATURES)), nn.Linear(FEATURES, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.sub(x.flatten(1), self.offset))


def sums(factor: float | None, before: int = 0) -> tuple[tuple[Tensor, ...], ClippedGradients]:
    """The clipped sums of all rows by a rule that is off by `factor`, after one of fewer; None:
    without one.
    """

    def subtract(capture: Capture, x: Any, parameter: Any) -> Any:
        return capture.run(Offset(parameter, factor or 1.0), x, low=False)

    with forgotten():
        if factor is not None:
            RULES[torch.sub] = subtract
        x, y = rows()
        clipped = ClippedGradients(Net(), LOSS, Flat(0.5), Adjacency.ZERO_OUT)
        clipped.prepare(x, y)
        if before:
            (few,) = sampling.FullBatch().draw(before)
            clipped(few, x, y)
        (sample,) = sampling.FullBatch().draw(ROWS)
        return clipped(sample, x, y).values, clipped


@check
def check_a_rule_that_is_off_for_a_rare_shape_is_not_used() -> None:
    """One example is compared with autograd in the first batch of about each size: then all are
    computed by it.
    """
    expected, _ = sums(None)
    for factor in (1.0, 0.1, 3.0):
        computed, clipped = sums(factor)
        for one, other in zip(computed, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert clipped.way == ("layers" if factor == 1 else "loop"), (factor, clipped.way)
        assert factor == 1 or "rule" in str(clipped.reason)
    assert flat_norm(expected) > 1


@check
def check_rules_are_compared_in_batches_of_each_size() -> None:
    """A small batch that comes first, in which the rule is right, is no reason not to look at a
    large one.
    """
    expected, _ = sums(None)
    computed, clipped = sums(0.1, before=RARE // 2)
    for one, other in zip(computed, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert clipped.way == "loop"
