"""Named checks of rows of different lengths; mutations must make them fail."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import privlearn as pv
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.data.dataset_rows import DatasetRows
from privlearn.data.padding import Padding
from privlearn.errors import BadInput
from privlearn.training.loop_losses import ModelLoss
from tests.support.checks import check, must_raise
from tests.support.nets import flat_norm, one_sample

TOKENS = 30
Rows = list[dict[str, Any]]


def texts(*lengths: int, seed: int = 0) -> Rows:
    made_up = torch.Generator().manual_seed(seed)
    return [
        {"ids": torch.randint(1, TOKENS, (length,), generator=made_up), "label": number % 2}
        for number, length in enumerate(lengths)
    ]


def padded(rows: Rows, left: bool = False, length: int = 0) -> dict[str, Tensor]:
    """To the longest of the batch: zeros beside the tokens, and a mask."""
    longest = max(length, *(len(row["ids"]) for row in rows))
    ids, mask = torch.zeros(len(rows), longest, dtype=torch.long), torch.zeros(len(rows), longest)
    for number, row in enumerate(rows):
        own = slice(longest - len(row["ids"]), longest) if left else slice(0, len(row["ids"]))
        ids[number, own], mask[number, own] = row["ids"], 1.0
    return {"ids": ids, "mask": mask, "labels": torch.tensor([row["label"] for row in rows])}


class Reader(nn.Module):
    """Attention over tokens with places: what is padded is masked, if `masks`; at most `longest`
    tokens.
    """

    def __init__(self, masks: bool = True, longest: int = 1000) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places, self.out = (
            nn.Embedding(TOKENS, 4),
            nn.Embedding(longest, 4),
            nn.Linear(4, 2),
        )
        self.masks = masks

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        mask = mask if self.masks else torch.ones_like(mask)
        places = torch.arange(ids.shape[1]) + 0 * ids
        own = self.tokens(ids) + self.places(places)
        scores = (own @ own.transpose(1, 2)).masked_fill(mask[:, None] == 0, -1e9).softmax(-1)
        return self.out(
            ((scores @ own) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        )


def loss(model: Any, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(
        model(batch["ids"], batch["mask"]), batch["labels"], reduction="none"
    )


def clipped_sum(
    rows: Rows,
    collate: Any = padded,
    model: nn.Module | None = None,
    workers: int = 0,
    **options: Any,
) -> Any:
    given = DatasetRows(rows, collate, workers)  # type: ignore[arg-type]
    given.try_collate()
    clipper = ClippedGradients(
        model or Reader(), ModelLoss(loss), pv.Flat(0.1), Adjacency.REPLACE_ONE, **options
    )
    sample = one_sample(examples=len(rows))
    (own,) = given.ahead([sample.indices])
    return clipper(sample, own).values


LENGTHS = (3, 9, 5, 17, 12, 3, 30, 8)


def looped(rows: Rows, model: nn.Module) -> list[Tensor]:
    """The clipped sum, each row computed by itself and without padding."""
    sums = [torch.zeros_like(own) for own in model.parameters()]
    for row in rows:
        gradients = torch.autograd.grad(loss(model, padded([row])).sum(), list(model.parameters()))
        norm = float(torch.cat([own.flatten() for own in gradients]).norm())
        for total, own in zip(sums, gradients, strict=True):
            total += own * min(1.0, 0.1 / norm)
    return sums


def require_same(sums: Any, others: Any) -> None:
    for one, other in zip(sums, others, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=2e-3, atol=1e-4)


@check
def check_rows_of_different_lengths_are_the_loops() -> None:
    """The sum is that of each row computed by itself, without padding; from workers, and in parts,
    too.
    """
    rows = texts(*LENGTHS)
    options: tuple[dict[str, Any], ...] = ({}, {"microbatch": 2}, {"workers": 2})
    for given in options:
        require_same(clipped_sum(rows, **given), looped(rows, Reader()))


@check
def check_a_rows_gradient_does_not_depend_on_others_lengths() -> None:
    """Also of a model that sees the padding: a longer row in place of another moves the sum by no
    more than its own.
    """
    for masks in (True, False):
        sums = [clipped_sum(texts(*LENGTHS[:-1], last), model=Reader(masks)) for last in (8, 60)]
        others = [
            clipped_sum(texts(*LENGTHS[:-1], last)[-1:] + texts(3, 4), model=Reader(masks))
            for last in (8, 60)
        ]
        for one, other in (sums, others):
            assert flat_norm(tuple(a - b for a, b in zip(one, other, strict=True))) <= 0.2


@check
def check_what_a_row_is_padded_to_follows_from_itself() -> None:
    """Alone, among longer rows and among shorter ones it is made the same."""
    rows = texts(*LENGTHS, 90)
    given = DatasetRows(rows, padded)  # type: ignore[arg-type]
    given.try_collate()
    seen: list[dict[int, Any]] = []
    for company in ([0], [0, 6, 8], list(range(9))):
        own = {}
        for part, numbers in given.by_shape(np.array(company), lambda rows: True):
            for number in numbers.tolist():
                own[number] = [leaf.tolist() for leaf in part.fetch(torch.tensor([number]))]
        assert set(own) == set(company)
        seen.append(own)
    assert seen[0][0] == seen[1][0] == seen[2][0]
    assert seen[1][8] == seen[2][8]
    assert len(seen[0][0][0][0]) == 8


@check
def check_padding_is_learned_from_the_collate_function() -> None:
    rows = texts(*LENGTHS)
    learners: tuple[tuple[Callable[[Rows], Any], bool], ...] = (
        (padded, False),
        (lambda own: padded(own, left=True), True),
    )
    for collate, left in learners:
        given = DatasetRows(rows, collate)  # type: ignore[arg-type]
        given.try_collate()
        padding = given._maker.padding
        assert padding == Padding((((0, left),), ((0, left),), ()), (0, 0.0, 0))
        row = given.fetch(torch.tensor([0]))
        ids, mask, label = padding.padded(row, padding.rounded_up(((3,), (3,), ())))
        expected = padded(rows[:1], left=left, length=8)
        assert torch.equal(ids, expected["ids"])
        assert torch.equal(mask, expected["mask"])
        assert torch.equal(label, expected["labels"])
        assert given.stated[0] == (1,)


@check
def check_collate_functions_that_do_more_than_pad_are_refused() -> None:
    def packed(rows: Rows) -> dict[str, Tensor]:
        joined = torch.cat([row["ids"] for row in rows])
        return {
            "ids": joined[None],
            "mask": torch.ones(1, len(joined)),
            "labels": torch.tensor([rows[0]["label"]]),
        }

    def sorted_by_length(rows: Rows) -> dict[str, Tensor]:
        return padded(sorted(rows, key=lambda row: len(row["ids"])))

    def masked_by_company(rows: Rows) -> dict[str, Tensor]:
        batch = padded(rows)
        return {**batch, "mask": batch["mask"] / batch["mask"].sum()}

    def padded_with_others(rows: Rows) -> dict[str, Tensor]:
        batch = padded(rows)
        return {**batch, "ids": batch["ids"].where(batch["mask"] > 0, batch["ids"].flip(0))}

    def cut_to_the_shortest(rows: Rows) -> dict[str, Tensor]:
        shortest = min(len(row["ids"]) for row in rows)
        return padded([{**row, "ids": row["ids"][:shortest]} for row in rows])

    for collate in (
        packed,
        sorted_by_length,
        masked_by_company,
        padded_with_others,
        cut_to_the_shortest,
    ):
        given = DatasetRows(texts(*LENGTHS[::-1]), collate)  # type: ignore[arg-type]
        must_raise(BadInput, given.try_collate)


class Forgetful(Reader):
    """Drops some of what it read of long rows, and of these alone."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        own = super().forward(ids, mask)
        return nn.functional.dropout(own, 0.5) if ids.shape[1] > 8 else own


@check
def check_random_numbers_for_some_lengths_alone_stay_fast() -> None:
    """Some lengths draw, others do not, in any order: no row falls back to one example after
    another.
    """
    given = DatasetRows(texts(*LENGTHS), padded)  # type: ignore[arg-type]
    given.try_collate()
    clipper = ClippedGradients(Forgetful(), ModelLoss(loss), pv.Flat(0.1), Adjacency.REPLACE_ONE)
    for _ in range(2):
        clipper(one_sample(examples=len(LENGTHS)), given)
        assert (clipper.way, clipper.reason) == ("layers", None)


@check
def check_lengths_that_the_model_cannot_have_are_not_padded_to() -> None:
    """Of 20 places, a row of 17 tokens is not padded to 32; one of 21 counts as absent, and says
    nothing.
    """
    rows = texts(3, 17, 20, 9)
    require_same(clipped_sum(rows, model=Reader(longest=20)), looped(rows, Reader(longest=20)))
    require_same(
        clipped_sum([*rows, *texts(21)], model=Reader(longest=20)), looped(rows, Reader(longest=20))
    )


class Encoding(UserDict):  # type: ignore[type-arg]
    """A dictionary of another class, as tokenizers give it."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["data"][name]
        except KeyError as error:
            raise AttributeError(name) from error


@check
def check_the_loss_gets_what_the_collate_function_makes() -> None:
    """A class of dictionaries stays what it is, also padded, and the published shapes say nothing
    of lengths.
    """
    kinds = set()

    def own(model: Any, batch: Any) -> Tensor:
        kinds.add(type(batch))
        return nn.functional.cross_entropy(
            model(batch.ids, batch.mask), batch["labels"], reduction="none"
        )

    model, kind = Reader(), type("Encoding", (Encoding,), {})  # one that PyTorch has not met
    loader = DataLoader(texts(*LENGTHS), batch_size=4, collate_fn=lambda rows: kind(padded(rows)))  # type: ignore[arg-type]
    loop = pv.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        loader,
        epsilon=3.0,
        delta=1e-5,
        epochs=1,
        max_grad_norm=1.0,
    )
    seen = [loop.step(batch, own) for batch in loop.batches()]
    assert kinds == {kind}
    assert all(figures["left_out"] == 0 for figures in seen)
    assert loop.result().architecture["input_shape"] == [1]
