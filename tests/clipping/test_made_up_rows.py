"""A loss that says what rows may look like: it is tried on such rows, and never shown the data
before the run.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import privlearn as pv
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.clips import Flat
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.rows import TensorRows
from privlearn.errors import BadInput, NotPerExample
from tests.clipping.architectures import IMAGE, PLACES, Batch, like
from tests.support.nets import one_sample

MARK = 7
ROWS = 4


class Reader(nn.Module):
    """Refuses texts that do not begin with a mark; `couples` those that do, if it is to."""

    def __init__(self, couples: bool = False) -> None:
        super().__init__()
        self.table, self.head, self.couples = nn.Embedding(16, 4), nn.Linear(4, 3), couples

    def forward(self, ids: Tensor) -> Tensor:
        if not (ids[:, 0] == MARK).all():
            raise ValueError("a text has no mark")
        read = self.table(ids)
        if self.couples:
            read = read - read.mean(0, keepdim=True)
        return self.head(read.mean(1))


class MarkedLoss:
    """A loss of the model and the batch that keeps what its `made_up` was called with."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch["ids"]), batch["labels"], reduction="none")

    def made_up(self, batch: Batch) -> Batch:
        self.seen.append(batch["ids"].clone())
        batch["ids"][:, 0] = MARK
        return batch


class Widened(MarkedLoss):
    def made_up(self, batch: Batch) -> Batch:
        return batch | {"ids": batch["ids"].repeat(1, 2)}


def texts() -> Batch:
    ids = torch.randint(2, 16, (ROWS, 5), generator=torch.Generator().manual_seed(0))
    ids[:, 0] = MARK
    return {"ids": ids, "labels": torch.arange(ROWS) % 3}


def trained(model: nn.Module, loss: object) -> pv.Run:
    plan = pv.Plan(
        pv.sampling.FullBatch(), 1, schedule=pv.schedules.Constant(1.0), clip=pv.Flat(1.0)
    )
    return pv.Run(plan, model, loss, texts())  # type: ignore[arg-type]


def test_a_model_that_refuses_random_rows_is_computed_on_such_as_the_loss_makes() -> None:
    loss = MarkedLoss()
    with (
        pytest.raises(BadInput, match="a text has no mark"),
        trained(Reader(), lambda model, batch: loss(model, batch)),
    ):
        pass
    with trained(Reader(), loss) as run:
        assert run.task.gradients.way == "layers"
        for epoch in run:
            for batch in epoch:
                run.step(batch)
    assert loss.seen
    for ids in loss.seen:
        # but for the mark, which it may have set before
        assert int(ids[:, 1:].max()) < 2, "made_up was shown other than made-up rows"


def test_examples_that_are_coupled_in_such_rows_alone_are_refused() -> None:
    with (
        pytest.raises(NotPerExample, match="other examples"),
        trained(Reader(couples=True), MarkedLoss()),
    ):
        pass


def test_made_up_changes_values_alone() -> None:
    with (
        pytest.raises(BadInput, match="other tensors, shapes or types"),
        trained(Reader(), Widened()),
    ):
        pass


def test_a_row_that_the_model_refuses_counts_as_absent() -> None:
    """The model is shown a row without its mark: it adds nothing, and the others' sum is what it is
    without it.
    """
    torch.manual_seed(0)
    batch = texts()
    batch["ids"][1, 0] = 0
    clipper = ClippedGradients(Reader(), MarkedLoss(), Flat(1e-2), Adjacency.ADD_REMOVE)
    require_sum_of(clipper, batch, [0, 2, 3])


def require_sum_of(clipper: ClippedGradients, batch: Batch, rows: list[int]) -> None:
    """The clipped sum of the batch is that of these rows."""
    kept = {name: leaf[rows] for name, leaf in batch.items()}
    one, other = (
        clipper(one_sample(examples=len(b["labels"])), TensorRows(b)).values for b in (batch, kept)
    )
    for with_it, without in zip(one, other, strict=True):
        torch.testing.assert_close(with_it, without)


def test_an_image_does_not_move_into_another_examples_text() -> None:
    """LLaVA counts the places of a whole batch: a text with one too many takes the next image's
    first piece.
    """
    pytest.importorskip(
        "transformers", reason="transformers is not installed: pip install 'privlearn[test]'"
    )
    row = like("LLaVA")
    batch = row.batch()
    batch["input_ids"][0, PLACES], batch["input_ids"][1, PLACES - 1] = IMAGE, 3
    model = row.make().double()
    assert row.loss(model, batch).isfinite().all()  # plain training would not notice
    clipper = ClippedGradients(model, row.loss, Flat(1e-2), Adjacency.ADD_REMOVE)
    require_sum_of(clipper, batch, [2])
