"""PyTorch's data sets and loaders: what is read of them, and what is refused, with what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

import privlearn as pv
from privlearn.data.torch_rows import rows_of
from privlearn.errors import BadInput, BudgetExceeded
from tests.data.checks import ROWS, train


class Listed(Dataset[Any]):
    """A map-style data set over a list, which counts how often rows are read."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows
        self.reads = 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Any:
        self.reads += 1
        return self.rows[number]


class Unending(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield torch.zeros(2), 0


class WithoutLength(Dataset[Any]):
    def __getitem__(self, number: int) -> Any:
        return torch.zeros(2), 0


PAIR = (torch.zeros(2), 0)


@pytest.mark.parametrize(
    "given",
    [
        ROWS,
        Listed([(x, y) for x, y in ROWS]),
        Listed([(x.numpy(), int(y)) for x, y in ROWS]),
        Listed([[x.tolist(), np.int64(y)] for x, y in ROWS]),
        Subset(ConcatDataset([ROWS, ROWS]), range(12)),
    ],
    ids=["TensorDataset", "tensors", "arrays", "lists", "subset"],
)
def test_rows_come_in_their_order(given: Dataset[Any]) -> None:
    x, y = rows_of(given).tensors()
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64
    assert x.tolist() == ROWS.tensors[0].tolist()
    assert y.tolist() == ROWS.tensors[1].tolist()


def test_training_on_a_data_set_is_training_on_its_rows() -> None:
    plan = pv.Plan(pv.Poisson(0.3), epochs=2, schedule=pv.schedules.Constant(1.0))
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    found = []
    listed = Listed([(x, y) for x, y in ROWS])
    for data in (tuple(ROWS.tensors), ROWS, listed):
        torch.manual_seed(0)
        result = pv.dpsgd(plan, torch.nn.Linear(2, 2), loss, data, streams=pv.Streams.new(1))
        found.append(torch.cat([value.flatten() for value in result.model.state_dict().values()]))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_no_row_is_read_where_the_budget_or_the_plan_refuses() -> None:
    listed = Listed([PAIR] * 12)
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    plan = pv.Plan(pv.Poisson(0.3), epochs=2, schedule=pv.schedules.Constant(1.0))
    with pytest.raises(BudgetExceeded):
        pv.dpsgd(
            plan,
            torch.nn.Linear(2, 2),
            loss,
            listed,
            ledger=pv.Ledger(pv.Budget(epsilon=0.1, delta=1e-5)),
        )
    with pytest.raises(BadInput):
        pv.dpsgd(plan, torch.nn.Linear(2, 2), loss, DataLoader(listed, batch_size=4, shuffle=True))
    assert listed.reads == 0


SETS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "iterable": (Unending(), ("Unending is an iterable data set", "Give a map-style data set")),
    "without a length": (
        WithoutLength(),
        ("WithoutLength has no length", "__len__ and __getitem__"),
    ),
    "empty": (Listed([]), ("no rows", "at least one")),
    "of one tensor": (TensorDataset(torch.zeros(3, 2)), ("1 tensors", "expected two")),
    "of inputs alone": (
        Listed([torch.zeros(2)]),
        ("row 0 of Listed", "tensor of shape (2,)", "a pair (input, target)"),
    ),
    "of triples": (
        Listed([PAIR, (1, 2, 3)]),
        ("row 1 of Listed is a tuple of 3", "a pair (input, target)"),
    ),
    "of dictionaries": (
        Listed([{"x": 1, "y": 2}]),
        ("row 0 of Listed is a dict", "a pair (input, target)"),
    ),
    "of words": (
        Listed([("a word", 1)]),
        ("input of row 0 is a str", "convert it in the data set"),
    ),
    "of labels that are words": (Listed([(torch.zeros(2), "cat")]), ("target of row 0 is a str",)),
    "of several shapes": (
        Listed([PAIR, (torch.zeros(3), 1)]),
        ("input of row 1", "shape (3,)", "row 0", "shape (2,)", "one shape and type"),
    ),
    "of several types": (
        Listed([PAIR, (torch.zeros(2), 0.5)]),
        ("target of row 1 is a float32", "int64"),
    ),
}


@pytest.mark.parametrize("case", SETS)
def test_data_sets_are_refused(case: str) -> None:
    """By the reader of whole data sets; and before training, but where single rows can't be
    used.
    """
    given, expected = SETS[case]
    with pytest.raises(BadInput) as caught:
        rows_of(given)
    for part in expected:
        assert part in str(caught.value)
    if case not in ABSENT:
        with pytest.raises(BadInput):
            train(given, pv.Poisson(0.5))


#: Which rows count as absent: they are fetched by index, and nothing is said of one that can't be
#: used.
ABSENT = ("of triples", "of several shapes", "of several types")


@pytest.mark.parametrize("case", ABSENT)
def test_rows_that_cannot_be_used_count_as_absent(case: str) -> None:
    result = train(SETS[case][0], pv.sampling.FullBatch())
    assert result.private_diagnostics["left_out"] == [1]


def collate(rows: list[Any]) -> Any:
    return rows


class Loader(DataLoader[Any]):
    pass


INSTEAD = ("give loader.dataset", "pv.Poisson, pv.Partition or pv.Shuffle")
LOADERS: dict[str, tuple[DataLoader[Any], tuple[str, ...]]] = {
    "sequential": (DataLoader(ROWS, batch_size=4), ("shuffle=False", "same batches", *INSTEAD)),
    "with replacement": (
        DataLoader(ROWS, batch_size=4, sampler=RandomSampler(ROWS, replacement=True)),
        ("draws with replacement", "several times in a batch", *INSTEAD),
    ),
    "of a part": (
        DataLoader(ROWS, batch_size=4, sampler=RandomSampler(ROWS, num_samples=8)),
        ("draws 8 of 12 rows an epoch", *INSTEAD),
    ),
    "with weights": (
        DataLoader(ROWS, batch_size=4, sampler=WeightedRandomSampler([1.0] * 12, 12)),
        ("a sampler of its own (WeightedRandomSampler)", *INSTEAD),
    ),
    "with a batch sampler": (
        DataLoader(ROWS, batch_sampler=BatchSampler(RandomSampler(ROWS), 4, False)),
        ("a batch_sampler of its own", *INSTEAD),
    ),
    "without batches": (DataLoader(ROWS, batch_size=None), ("has no batches", *INSTEAD)),
    "with a collate_fn": (
        DataLoader(ROWS, batch_size=4, shuffle=True, collate_fn=collate),
        ("a collate_fn of its own", "mix those of a batch", *INSTEAD),
    ),
    "that drops rows": (
        DataLoader(ROWS, batch_size=5, shuffle=True, drop_last=True),
        ("drop_last=True", "trains on it", *INSTEAD),
    ),
    "of another class": (Loader(ROWS, batch_size=4, shuffle=True), ("is a Loader", *INSTEAD)),
    "of an iterable data set": (
        DataLoader(Unending(), batch_size=4),
        ("Unending is an iterable data set",),
    ),
}


@pytest.mark.parametrize("case", LOADERS)
def test_loaders_are_refused(case: str) -> None:
    loader, expected = LOADERS[case]
    with pytest.raises(BadInput) as caught:
        train(loader, pv.Shuffle(4))
    for part in expected:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "sampling", [pv.Poisson(0.5), pv.Partition(3), pv.Shuffle(6), pv.sampling.FullBatch()]
)
def test_a_plan_that_draws_otherwise_is_refused(sampling: Any) -> None:
    with pytest.raises(BadInput) as caught:
        train(DataLoader(ROWS, batch_size=4, shuffle=True), sampling)
    for part in (
        "batches of 4",
        type(sampling).__name__,
        "pv.Shuffle(batch_size=4)",
        "no amplification",
        "loader.dataset",
    ):
        assert part in str(caught.value)


def test_a_shuffling_loader_that_drops_nothing_is_taken() -> None:
    for settings in ({}, {"drop_last": True}, {"num_workers": 2}, {"generator": torch.Generator()}):
        loader = DataLoader(ROWS, batch_size=4, shuffle=True, **settings)  # type: ignore[arg-type]
        assert train(loader, pv.Shuffle(4)).facts["steps"] == 3
