"""Named checks that an example acts on later sums through what was released alone: bit by bit, not
up to sensitivity.

One example is swapped for another that is far from it, and every release is replaced by the
recorded one. A sum of a batch, or of a leaf, in which neither of the two lies must have the same
bits: if not, something of the example was kept beside the releases (a running mean, a state of the
loss, of a transform or of the optimizer, an order of summation).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping import clips
from privlearn.core.clipping.augmentation import Augmentation
from privlearn.core.plan import Plan
from tests.boosting import checks as boosting
from tests.descent import checks_leaks as descent
from tests.mac import checks_runs as mac
from tests.support.checks import check
from tests.support.transcripts import Transcript, transcript

ZERO = Adjacency.ZERO_OUT
#: Each example takes part in one batch of four, twice.
BATCHES, EPOCHS = 4, 2


def differing(one: Transcript, other: Transcript) -> list[bool]:
    """For each release whether its sum before the noise differs in any bit."""
    assert len(one.sums) == len(other.sums)
    return [
        any(not torch.equal(a, b) for a, b in zip(first, second, strict=True))
        for first, second in zip(one.sums, other.sums, strict=True)
    ]


def require_apart(
    act: Callable[[str], Any], before: int = 0, rows: tuple[str, ...] = ("far",)
) -> None:
    """`act` trains on data with a row of `training.ROWS`: one sum in four differs after the first
    `before`, and no more.

    Each of `rows` takes an ordinary one's place.
    """
    base = transcript(act("ordinary"))
    for row in rows:
        changed = differing(base, transcript(act(row), replay=base))[before:]
        assert len(changed) % (BATCHES * EPOCHS) == 0, changed
        each = len(changed) // (BATCHES * EPOCHS)
        touched = [
            any(changed[each * step : each * (step + 1)]) for step in range(BATCHES * EPOCHS)
        ]
        for epoch in range(EPOCHS):
            assert sum(touched[BATCHES * epoch : BATCHES * (epoch + 1)]) == 1, (row, touched)


def settled(clip: Any = clips.Flat(0.5), **more: Any) -> Plan:  # noqa: B008
    schedule = pv.schedules.Constant(start=1.5)
    return Plan(
        pv.Partition(BATCHES),
        epochs=EPOCHS,
        schedule=schedule,
        clip=clip,
        adjacency=ZERO,
        examples=12,
        **more,
    )


class Running(nn.Module):
    """A loss that multiplies by a running mean of what it was before, which it keeps in a
    buffer.
    """

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(()).double())

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        losses = nn.functional.cross_entropy(scores, target, reduction="none")
        before = self.mean.clone()
        self.mean.mul_(0.9).add_(0.1 * losses.detach().mean())
        return losses * before


def shaken(x: Tensor, generator: torch.Generator) -> Tensor:
    return x + 0.1 * torch.randn(x.shape, generator=generator, dtype=x.dtype)


#: Ways of training by gradients: plans and options.
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as it is": ({}, {}),
    "quantile": ({"clip": clips.Quantile(0.5, rate=1.0)}, {}),
    "per layer, in pieces": ({"clip": clips.PerLayer(0.5)}, {"microbatch": 2}),
    "momentum": (
        {},
        {"optimizer": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01)},
    ),
    "adam": ({}, {"optimizer": lambda p: torch.optim.Adam(p, lr=0.1)}),
    "copies": ({}, {"augmentation": Augmentation(3, shaken)}),
    "dropout": ({}, {"make": lambda: descent.network(dropout=0.5)}),
    "by vmap": ({}, {"make": lambda: descent.Unruled().double()}),
    "mean weights": ({}, {"average": 0.5}),
}


@check
def check_batches_without_an_example_do_not_feel_it() -> None:
    """DP-SGD with each kind of state there is."""
    for name, (plan, options) in WAYS.items():
        rows = ("far", "NaN", "the only one of its class") if name == "as it is" else ("far",)
        require_apart(
            lambda row: descent.training(settled(**plan), descent.data_with(row, ZERO), **options),  # noqa: B023
            rows=rows,
        )


@check
def check_transforms_keep_nothing_of_an_example() -> None:
    """Public ones, which are applied to each row, and releases in front, whose sums are of all
    rows.
    """
    given = pv.transforms
    for front, before, width in (
        ((given.Centre((0, 3)), given.ClipToNorm(1.0)), 0, 5),
        ((given.PrivatePCA(3, 2.0),), 1, 3),
        ((given.PrivatePCA(4, 3.0), given.PrivatePCA(2, 2.0)), 2, 2),
    ):
        plan = settled(front=front)

        def made(width: int = width, single: bool = not before) -> nn.Module:
            """Public features are in single precision."""
            return descent.network(width).float() if single else descent.network(width)

        require_apart(
            lambda row: descent.training(plan, descent.data_with(row, ZERO), make=made),  # noqa: B023
            before,
        )


@check
def check_states_of_losses_keep_nothing_of_an_example() -> None:
    """A loss with a buffer that follows the examples: it is put back after each batch."""
    require_apart(
        lambda row: descent.training(settled(), descent.data_with(row, ZERO), loss=Running())
    )


@check
def check_coordinates_keep_nothing_of_another_example() -> None:
    """DP-MAC: the auxiliary coordinates of each row follow from that row and from what was
    released.
    """
    for bound in (pv.mac.Derivatives(0.3), pv.mac.Analytic(z_norm=1.0)):
        plan = mac.settled(pv.Partition(BATCHES), ZERO, bound)
        require_apart(lambda row: mac.training(plan, descent.data_with(row, ZERO)))  # noqa: B023


@check
def check_leaves_without_an_example_do_not_feel_it() -> None:
    """Boosting: of each round's sums only those of cells differ that one of the two rows falls
    into.
    """
    for target in boosting.TARGETS:
        plan = boosting.settled(target, adjacency=Adjacency.REPLACE_ONE, passes=2)
        rows = boosting.strange_rows(target)

        def run(last: Any, plan: Any = plan, target: Any = target, **replay: Any) -> Transcript:
            return transcript(
                lambda streams, _: pv.boosting.boost(
                    plan, boosting.with_last(target, last), streams=streams
                ),
                **replay,
            )

        base = run(rows[0])
        assert base.sums
        moved = 0
        for row in rows[1::17]:
            found = run(row, replay=base)
            for first, second in zip(base.sums, found.sums, strict=True):
                for a, b in zip(first, second, strict=True):
                    # One cell of each of the two rows in each tree, in each of the outputs.
                    cells = (a != b).reshape(-1, a.shape[-1]).any(0) if a.ndim > 1 else a != b
                    assert int(cells.sum()) <= 2 * plan.trees, (target, row, int(cells.sum()))
                    moved += int(cells.sum())
        assert moved, target
