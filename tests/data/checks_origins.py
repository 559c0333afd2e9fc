"""Named checks that a row which the data repeat is seen; mutations must make them fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)

import privlearn as pv
from privlearn.core.clipping.derivative_bounds import Derivatives
from privlearn.data.dataset_rows import DatasetRows
from privlearn.data.origins import Origins, require_once
from privlearn.errors import BadInput
from privlearn.methods.boosting.plan import BoostingPlan, Interval
from privlearn.methods.boosting.targets import Labels
from privlearn.methods.dpmac.expansion import SOFTMAX
from privlearn.opacus import PrivacyEngine
from tests.support.checks import check, must_raise
from tests.support.nets import cross_entropy, flat_norm

ROWS = 24


class Around(Dataset[Any]):
    """A data set that changes the rows of another one."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, number: int) -> Any:
        x, y = self.inner[number]
        return x + 0.0, y


class Holding(Dataset[Any]):
    """A custom data set that holds arrays."""

    def __init__(self, x: Any, y: Any) -> None:
        self.pixels, self.labels = x, y

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, number: int) -> Any:
        return torch.as_tensor(self.pixels[number]), self.labels[number]


class Told(Dataset[Any]):
    """A data set that makes its rows."""

    def __len__(self) -> int:
        return 11

    def __getitem__(self, number: int) -> Any:
        return torch.tensor([300.0 + number % 11, 0.0]), 0


def numbered(rows: int = ROWS, first: int = 0) -> TensorDataset:
    """Rows that hold a number of their own."""
    x = torch.arange(first, first + rows).float()[:, None] + torch.tensor([0.0, 0.5])
    return TensorDataset(x, torch.arange(rows) % 2)


def drawn_nest(drawing: np.random.Generator, leaves: list[Any], depth: int) -> Any:
    """Parts and joins of data sets, nested at random."""
    kind = drawing.integers(5) if depth else 4
    if kind == 4:
        return leaves[drawing.integers(len(leaves))]
    inner = drawn_nest(drawing, leaves, depth - 1)
    if kind == 0:
        return Subset(
            inner, drawing.integers(-len(inner), len(inner), drawing.integers(1, 9)).tolist()
        )
    if kind == 1:
        return Subset(inner, drawing.permutation(len(inner))[: drawing.integers(1, len(inner) + 1)])
    if kind == 2:
        return Around(inner)
    return ConcatDataset([inner, drawn_nest(drawing, leaves, depth - 1)])


@check
def check_rows_that_come_again_are_counted_as_often() -> None:
    """In nests drawn at random the count is that of rows by what they hold, each of which is
    unique.
    """
    drawing = np.random.default_rng(0)
    leaves: list[Any] = [
        numbered(),
        numbered(7, 100),
        Holding(numbered(9, 200).tensors[0].numpy(), [0] * 9),
        Told(),
    ]
    several = 0
    for _ in range(300):
        given = drawn_nest(drawing, leaves, 4)
        true = max(Counter(float(given[row][0][0]) for row in range(len(given))).values())
        assert Origins(given).most == true, (given, true)
        several += true > 1
    assert 60 < several < 280, several


@check
def check_rows_in_shared_memory_are_one_row() -> None:
    """Of tensors, of arrays, in custom data sets; not where labels alone are shared."""
    x, y = torch.randn(ROWS, 3), torch.arange(ROWS) % 2
    views = [TensorDataset(x[:16], y[:16]), TensorDataset(x[15:], y[15:])]
    repeated: list[Any] = [
        ConcatDataset(views),
        ConcatDataset([TensorDataset(x, y), TensorDataset(x, 1 - y)]),
        ConcatDataset([TensorDataset(x, y), TensorDataset(torch.from_numpy(x.numpy()), y)]),
        ConcatDataset([Holding(x, y), Holding(x.numpy(), y)]),
        ConcatDataset([Holding(x, y), TensorDataset(x.flip(1), y), Around(Holding(x, y))]),
        StackDataset(TensorDataset(x, y), Subset(TensorDataset(x, y), range(ROWS - 1, -1, -1))),
    ]
    for given in repeated:
        assert Origins(given).most == 2, given
    assert Origins(pv.Dataset(x[:1].expand(ROWS, 3), y[:1].expand(ROWS))).most == ROWS
    apart: list[Any] = [
        ConcatDataset([TensorDataset(x[:16], y[:16]), TensorDataset(x[16:], y[16:])]),
        ConcatDataset([TensorDataset(x, y), TensorDataset(x.clone(), y)]),
        ConcatDataset(random_split(TensorDataset(x, y), [16, 8])),
        TensorDataset(x, torch.zeros(1).expand(ROWS)),
        StackDataset(x=TensorDataset(x), y=TensorDataset(x)),
        pv.Dataset(x, y),
        (y for _ in range(3)),  # of no length
    ]
    for given in apart:
        assert Origins(given).most == 1, given


@check
def check_rows_of_lists_are_their_objects() -> None:
    """Dictionaries, arrays, pairs with one in them: the same object is the same row, an equal one
    is another.
    """
    kinds: tuple[Callable[[int], Any], ...] = (
        lambda n: {"ids": n},
        lambda n: torch.ones(3),
        lambda n: np.ones(3),
        lambda n: (torch.ones(2), 1),
        lambda n: ("a", [n]),
    )
    for make in kinds:
        rows = [make(row) for row in range(6)]
        for given in (
            rows * 3,
            Holding(rows * 3, 0),
            DataLoader(rows * 3),
            ConcatDataset([rows, rows, rows]),
        ):  # type: ignore[arg-type,list-item]
            assert Origins(given).most == 3, given
        assert Origins(rows).most == Origins([*rows, make(0)]).most == 1
    assert Origins([0, 1, 0, "a", "a", None, (1, 2), (1, 2)]).most == 1


class Arrow:
    """What a Hugging Face data set is: a table, and perhaps indices into it."""

    def __init__(self, table: Any, indices: Any = None) -> None:
        self._data, self._indices = table, indices

    def __len__(self) -> int:
        return len(self._data if self._indices is None else self._indices)

    def __getitem__(self, number: int) -> Any:
        raise AssertionError("a row was read")

    def with_format(self, kind: str) -> Any:
        raise AssertionError("rows were read")

    def select(self, places: list[int]) -> Any:
        arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        return Arrow(self._data, arrow.table({"indices": arrow.array(places, arrow.uint64())}))


@check
def check_rows_of_arrow_tables_are_their_places() -> None:
    """Selected twice, or in tables that were joined to themselves or to a part; no row is read."""
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = arrow.table(
        {"nothing": arrow.nulls(8), "text": [f"row {n}" for n in range(8)], "label": list(range(8))}
    )
    joined = [
        arrow.concat_tables([table, table]),
        arrow.concat_tables([table.slice(0, 5), table.slice(4)]),
    ]
    for given in (
        Arrow(table).select([0, 0, 1]),
        *map(Arrow, joined),
        Arrow(joined[0]).select([1, 9]),
    ):
        assert Origins(given).most == 2, given._data
        assert Origins(Around(given)).most == 2
    parts = arrow.concat_tables([table.slice(0, 4), table.slice(4)])
    for given in (
        Arrow(table),
        Arrow(table).select([3, 1]),
        Arrow(parts),
        Arrow(joined[0]).select([1, 10]),
    ):
        assert Origins(given).most == 1, given._data


def repeated() -> dict[str, tuple[Any, int]]:
    """Data that repeat rows, and how often."""
    rows = numbered()
    return {
        "indices": (Subset(rows, [0] * 10 + list(range(1, ROWS))), 10),
        "joined": (ConcatDataset([rows] * 3), 3),
        "nested": (
            Subset(ConcatDataset([Around(rows), Subset(rows, range(5))]), range(ROWS + 5)),
            2,
        ),
    }


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(2, 2)


def plan(group: int = 1, **more: Any) -> pv.Plan:
    return pv.Plan(
        pv.sampling.FullBatch(),
        epochs=1,
        schedule=pv.schedules.Constant(1.0),
        clip=pv.Flat(0.02),
        group_size=group,
        **more,
    )


def by_dpsgd(given: Any, group: int) -> Any:
    return pv.dpsgd(plan(group), network(), cross_entropy, given, streams=pv.Streams.new(0))


def by_a_loop(given: Any, group: int) -> Any:
    net = network()
    options: Any = {"epochs": 1, "noise_multiplier": 1.0, "max_grad_norm": 0.02, "sampling": "full"}
    private = pv.make_private(
        net,
        torch.optim.SGD(net.parameters(), lr=1.0),
        DataLoader(given, batch_size=4),
        group_size=group,
        adjacency="add_remove",
        examples=72,
        streams=pv.Streams.new(0),
        **options,
    )
    for batch in private.batches():
        private.step(batch, nn.CrossEntropyLoss(reduction="none"))
    return private.result()


def by_an_engine(given: Any, group: int) -> Any:
    net = network()
    return PrivacyEngine().make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
        data_loader=DataLoader(given, batch_size=4),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        epochs=1,
        group_size=group,
    )


def by_statistics(given: Any, group: int) -> Any:
    own = pv.statistics.LeastSquaresPlan(classes=2, features=2, row_norm=2.0, group_size=group)
    return pv.statistics.least_squares(own.calibrate(epsilon=3, delta=1e-5), given)


def by_dpmac(given: Any, group: int) -> Any:
    net = nn.Sequential(nn.Linear(2, 3), nn.Softplus(), nn.Linear(3, 2))
    derivatives = replace(plan(group), clip=Derivatives(1.0))
    return pv.dpmac(derivatives, net, SOFTMAX.name, given, streams=pv.Streams.new(0))


def by_boosting(given: Any, group: int) -> Any:
    columns = (Interval(0.0, 30.0, "one"), Interval(0.0, 30.0, "other"))
    own = BoostingPlan(
        columns,
        Labels(2),
        bins=4,
        passes=1,
        trees=1,
        depth=1,
        noise_multiplier=3.0,
        group_size=group,
    )
    return pv.boosting.boost(own, given, streams=pv.Streams.new(0))


def by_tuning(given: Any, group: int) -> Any:
    def train(candidate: Any, rows: Any, ledger: Any, streams: Any) -> Any:
        return pv.dpsgd(
            candidate.plan, network(), cross_entropy, rows, ledger=ledger, streams=streams
        )

    own = pv.tuning.Blocks(
        tuple(pv.tuning.Candidate(name, plan(group, examples=ROWS)) for name in ("one", "two")),
        selection_epsilon=1.0,
    )
    return pv.tune(own, train, given, streams=pv.Streams.new(0))


DOORS: dict[str, Callable[[Any, int], Any]] = {
    "dpsgd": by_dpsgd,
    "make_private": by_a_loop,
    "PrivacyEngine": by_an_engine,
    "statistics": by_statistics,
    "dpmac": by_dpmac,
    "boosting": by_boosting,
    "tune": by_tuning,
}


@check
def check_repeated_rows_are_refused_at_every_door() -> None:
    """And a declared group is the way out that the message says it is."""
    for door, train in DOORS.items():
        for name, (given, most) in repeated().items():
            error = str(must_raise(BadInput, lambda train=train, given=given: train(given, 1)))
            assert f"one row stands {most} times in the data" in error, (door, name, error)
            assert f"group_size={most}" in error, (door, name, error)
            if door != "statistics" or most == 3:
                train(given, most)
            must_raise(BadInput, lambda train=train, given=given, most=most: train(given, most - 1))


@check
def check_a_declared_group_covers_its_copies() -> None:
    """All copies of one row move the sum by no more than the group's share of noise is for."""
    rows = numbered()
    others = Subset(rows, range(1, ROWS))

    def weights(given: Any, group: int) -> tuple[Tensor, ...]:
        return tuple(own.detach() for own in by_a_loop(given, group).model.parameters())

    whole, less = weights(ConcatDataset([rows] * 3), 3), weights(ConcatDataset([others] * 3), 3)
    moved = 72 * flat_norm(tuple(a - b for a, b in zip(whole, less, strict=True))) / 0.02
    assert 1 < moved <= 3, moved
    claimed = [
        plan(group, adjacency="add_remove", examples=72).guarantee(1e-5).epsilon for group in (1, 3)
    ]
    assert claimed[1] > claimed[0]


@check
def check_copies_of_a_row_are_one_persons() -> None:
    """Where examples are persons, copies may be of one person, and not of two."""
    rows = DatasetRows(
        ConcatDataset([numbered(), numbered(4, 100), Subset(numbered(8, 200), [0, 1, 0])])
    )
    persons = plan(rows_per_person=2)
    ids = [str(n // 2) for n in range(ROWS)] + ["a", "b", "c", "d"]
    require_once(rows, persons.unit, [*ids, "e", "f", "e"])
    error = must_raise(BadInput, lambda: require_once(rows, persons.unit, [*ids, "e", "e", "f"]))
    assert "under the ids of different persons" in str(error), error
    rows.groups = [*ids, "e", "e", "f"]
    must_raise(BadInput, lambda: pv.dpsgd(persons, network(), cross_entropy, rows))
