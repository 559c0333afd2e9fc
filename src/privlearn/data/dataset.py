"""A data set holds arrays in memory, with what is publicly known of them.

Rows that belong to persons: which rows stand for each, so that a person can be one example.

Everything about a person is decided from that person's own id and rows, so data sets that differ in
one person differ in that person's line alone. Ids decide nothing but which rows go together; none
leaves this module.

Whether rows that are not protected are training rows: what is said of them would be said of private
rows, exactly.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from privlearn._checks import count, require_fit, with_plain_numbers
from privlearn.core.tensors import as_tensor
from privlearn.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

    from privlearn.data.schema import Schema


#: So many rows of a memory-mapped array are looked at together.
_AT_ONCE = 1024
#: Of more training rows than these, so many, evenly spread, are asked how often they have twins.
_ASKED = 1 << 17


@with_plain_numbers
@final
@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows to learn from, and declared public facts about them.

    Attributes:
        x: inputs, one row for each example. A sparse matrix of scipy, or a sparse tensor, stays
            sparse (`SparseMatrix`): DP-SGD makes those rows dense that it computes with.
        y: targets, one for each example; whole numbers 0 .. classes - 1 for classification, maps of
            them for segmentation. None: there are inputs alone, such as public ones that teachers
            are asked about.
        x_test: inputs to test on; not covered by any guarantee. None if there are none.
        y_test: their targets.
        classes: the declared number of classes; None if the targets are no classes.
        low: declared lower bound of the inputs, a number or an array of one example's shape; None:
            leave as they are.
        high: declared upper bound, likewise.
        name: what to call it.
        note: what is publicly known of where bounds and splits come from.
        schema: what was declared of the columns of the table that the rows come from; None if they
            come from none.
        remarks: what to tell the data's curator; not for publication.
        groups: for each row of x the id of the person that it belongs to, a whole number or a text;
            private, like the rows. With it an example is a person (`Plan.rows_per_person`). None: a
            row is an example.
        feature_names: public names of the numbers in a row, in their order; empty if they have
            none.
        target_bounds: declared bounds of targets that are numbers, one for each row: those beyond
            count as these. None: none are declared.
        target_ranges: names and declared bounds of targets of which each row has several numbers,
            {name: (low, high)}; y has shape (rows, targets). Empty: none are declared.
        public: whether the curator declares the rows public: they are not protected. For validation
            rows.
        labels: names of the columns of targets of which several hold at once: y has shape (rows,
            labels), each 0 or 1. Empty: there is one target for each row.
        grid: the size that scans in files were brought to, each by itself, to become rows, as a
            text; None: rows come from none.
    """

    x: Any
    y: Any = None
    x_test: Any = None
    y_test: Any = None
    classes: int | None = None
    low: float | NDArray[Any] | None = None
    high: float | NDArray[Any] | None = None
    name: str = "data"
    note: str = ""
    schema: Schema | None = None
    remarks: tuple[str, ...] = ()
    groups: Any = None
    public: bool = False
    feature_names: tuple[str, ...] = ()
    target_bounds: tuple[float, float] | None = None
    labels: tuple[str, ...] = ()
    grid: str | None = None
    target_ranges: Any = ()

    def __post_init__(self) -> None:
        for name in ("x", "y", "x_test", "y_test"):
            values = getattr(self, name)
            if values is not None and not isinstance(values, np.ndarray):
                # of values in other forms; arrays need none of it
                from privlearn.data.target_forms import as_array

                values = as_array(values, f"the data in {name} of {self.name}", rows=name[0] == "x")
                object.__setattr__(self, name, values)
        for name in ("labels", "feature_names"):
            require_fit(name, getattr(self, name), Iterable[str])
        from privlearn._target_ranges import read_declared

        read_declared(self)
        object.__setattr__(self, "labels", tuple(map(str, self.labels)))
        if self.labels and (self.classes is not None or self.target_bounds is not None):
            raise BadInput(
                "labels are given beside classes or target_bounds: leave these out, each label is "
                "0 or 1"
            )
        object.__setattr__(self, "feature_names", tuple(map(str, self.feature_names)))
        if self.feature_names and len(self.feature_names) != (
            features := math.prod(np.shape(self.x)[1:])
        ):
            raise BadInput(
                f"there are {len(self.feature_names)} feature_names, and rows of {features} "
                "numbers: expected a name for each"
            )

    def __repr__(self) -> str:
        """Shapes only: rows are private, and what is printed ends up in logs."""
        shapes = {
            name: np.shape(getattr(self, name))
            for name in ("x", "y", "x_test", "y_test", "groups")
            if getattr(self, name) is not None
        }
        parts = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        return f"Dataset({self.name!r}: {parts}, classes={self.classes})"

    @classmethod
    def _say_instead(cls, name: str, rows: Any) -> str:
        from privlearn.data.torch_rows import declaration_of  # for what is refused

        return declaration_of(name, rows)

    @property
    def examples(self) -> int:
        """The number of examples: of persons where there are `groups`, else of rows."""
        return len(self.x) if self.groups is None else persons_in(np.asarray(self.groups))

    @classmethod
    def of(cls, data: Dataset | tuple[Any, Any]) -> Dataset:
        """Return `data`, made from a pair (inputs, targets) if need be.

        Raises:
            BadInput: neither, rows that do not match, or test rows that are training rows.
        """
        if isinstance(data, cls):
            data.require_apart()
            return data
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise BadInput(
                f"the dataset is a {type(data).__name__}: expected a privlearn Dataset, a pair "
                "(inputs, targets) of arrays or tensors, or a map-style torch.utils.data.Dataset"
            )
        try:
            x, y = (part if hasattr(part, "shape") else np.asarray(part) for part in data)
        except ValueError as error:
            raise BadInput(
                f"the rows differ in shape: {error}. Expected arrays, or lists of rows of one "
                "length"
            ) from error
        if not x.shape or not y.shape:
            raise BadInput(
                f"inputs have the shape {tuple(x.shape)} and targets {tuple(y.shape)}: expected "
                "one row for each example"
            )
        if x.shape[0] != len(y):
            raise BadInput(
                f"there are {x.shape[0]} inputs and {len(y)} targets: expected one target for each "
                "input"
            )
        return cls(x, y)

    def with_plain_targets(self) -> Dataset:
        """Itself, with targets in the one form of what was declared: classes as whole numbers,
        whatever their type was, and one target for each row in shape (rows,).

        A look at all targets for the data's curator, before anything is spent.

        Raises:
            BadInput: targets that are none of what was declared, or not one for each row.
        """
        if self.target_ranges:
            from privlearn._target_ranges import with_number_rows

            numbers: Dataset = with_number_rows(self)
            return numbers
        if self.classes is None and self.target_bounds is None:
            return self
        if self.y is None and not self.public:
            as_tensor(None, f"the data in y of {self.name}")
        from privlearn.data.target_forms import class_numbers, target_numbers

        form = class_numbers if self.classes is not None else target_numbers
        plain = {}
        for name in ("y", "y_test"):
            rows = self.x if name == "y" else self.x_test
            if (targets := getattr(self, name)) is not None and rows is not None:
                plain[name] = form(targets, f"the data in {name} of {self.name}")
                if len(plain[name]) != len(rows):
                    raise BadInput(
                        f"{self.name} has {len(rows)} rows and {len(plain[name])} targets "
                        f"in {name}: expected one target for each row"
                    )
        changed = any(plain[name] is not getattr(self, name) for name in plain)
        return replace(self, **plain) if changed else self

    def checked(self) -> Dataset:
        """Return the data, with plain targets, if they can be used: a check for the curator, before
        planning, outside any guarantee.

        Raises:
            BadInput: no rows, rows that do not match, values that are no finite numbers, test rows
                that are training rows, or labels outside the declared classes.
        """
        targets = 0 if self.y is None else len(self.y)
        if self.y is None and self.public:
            targets = len(self.x)  # inputs that are only asked about need none
        if len(self.x) == 0 or len(self.x) != targets:
            raise BadInput(
                f"{self.name} has {len(self.x)} inputs and {targets} targets: expected equally "
                "many, and at least one"
            )
        if self.x_test is not None:
            shapes = np.shape(self.x)[1:], np.shape(self.x_test)[1:]
            targets = 0 if self.y_test is None else len(self.y_test)
            if self.y_test is None and self.public:
                targets = len(self.x_test)
            if shapes[0] != shapes[1] or len(self.x_test) != targets:
                raise BadInput(
                    f"x of {self.name} has rows of shape {shapes[0]}; x_test has "
                    f"{len(self.x_test)} rows of shape {shapes[1]} and y_test {targets}: expected "
                    "rows of one shape, and a target for each"
                )
        if (plain := self.with_plain_targets()) is not self:
            return plain.checked()
        for part, values in {"x": self.x, "x_test": self.x_test}.items():
            if _is_sparse(values):
                _require_finite_stored(self.name, part, values)
            elif values is not None:
                require_finite(self.name, part, np.asarray(values))
        self.require_apart()
        if self.groups is not None:
            require_groups(self.name, np.asarray(self.groups), len(self.x))
        if self.classes is not None:
            for part, labels in {"y": self.y, "y_test": self.y_test}.items():
                if labels is not None:
                    require_labels(self.name, part, np.asarray(labels), self.classes)
        if self.labels:
            for part, values in {"y": self.y, "y_test": self.y_test}.items():
                if values is not None:
                    require_zeros_and_ones(self.name, part, np.asarray(values), self.labels)
        if self.target_bounds is not None:
            for part, values in {"y": self.y, "y_test": self.y_test}.items():
                if values is not None and np.ndim(values) != 1:
                    raise BadInput(
                        f"{part} of {self.name} has shape {np.shape(values)}: expected one number "
                        "for each row"
                    )
                if values is not None:
                    require_finite(self.name, part, np.asarray(values))
        return self

    def require_apart(self) -> None:
        """Raise `BadInput` if private training rows are to be tested on: a check for the data's
        curator.
        """
        if self.x_test is None or self.public or not are_training_rows(self.x_test, self.x):
            return
        raise BadInput(
            f"the test data of {self.name} are the training data, or most of them are: figures "
            "from them would be exact figures of private rows. Give rows of other people (x_test, "
            "or test=), or none to test on"
        )

    def blocks(self, block_of: NDArray[np.int64], blocks: int) -> list[Dataset]:
        """The data of each of `blocks` disjoint blocks, without test rows; a person's rows stay
        together.

        Args:
            block_of: for each example the number of its block; examples are rows, or persons in the
                order of their ids.
            blocks: how many there are; some may be empty.
        """
        if self.groups is not None:
            block_of = block_of[
                np.unique(np.asarray(self.groups), return_inverse=True)[1].reshape(-1)
            ]
        x, y = self.tensors()
        groups = None if self.groups is None else np.asarray(self.groups)
        parts = []
        for block in range(blocks):
            rows = np.flatnonzero(block_of == block)
            theirs = None if groups is None else groups[rows]
            parts.append(
                replace(self, x=x[rows], y=y[rows], groups=theirs, x_test=None, y_test=None)
            )
        return parts

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets as tensors (`as_tensor`); inputs that have bounds are numbers to
        scale: float32.
        """
        x = as_tensor(self.x, f"the data in x of {self.name}", whole_is_float=self.low is not None)
        return x, self.target_tensor()

    @property
    def is_sparse(self) -> bool:
        """Whether the rows are those of a sparse matrix (`SparseMatrix`)."""
        return _is_sparse(self.x)

    def target_tensor(self) -> Tensor:
        """Targets as a tensor."""
        what, y = f"the data in y of {self.name}", self.y
        if getattr(getattr(y, "dtype", None), "kind", "") == "O":
            from privlearn.data.target_forms import without_objects

            y = without_objects(y, what)
        return as_tensor(y, what)

    def test_tensors(self) -> tuple[Tensor, Tensor]:
        """Test inputs and targets as tensors."""
        return as_tensor(self.x_test, whole_is_float=self.low is not None), as_tensor(self.y_test)

    def origin(self) -> dict[str, Any]:
        """What a published configuration says of where rows came from: a table's schema, or the
        grid of scans.
        """
        from privlearn.data.schema import of_table

        return of_table(self.schema) | ({} if self.grid is None else {"grid": self.grid})

    def bounds(self) -> tuple[Tensor, Tensor]:
        """The declared bounds as float32 tensors."""
        import torch

        return torch.as_tensor(self.low, dtype=torch.float32, device="cpu"), torch.as_tensor(
            self.high, dtype=torch.float32, device="cpu"
        )


def require_finite(name: str, part: str, values: NDArray[Any]) -> None:
    """Raise `BadInput` unless all of `values` are finite numbers."""
    if values.dtype.kind not in "fiub":
        raise BadInput(f"{part} of {name} holds {values.dtype} values: expected numbers")
    for start in range(0, len(values) if values.dtype.kind == "f" else 0, _AT_ONCE):
        finite = np.isfinite(values[start : start + _AT_ONCE])
        if not finite.all():
            raise _not_finite(
                name, part, start + int(np.argmin(finite.reshape(len(finite), -1).all(axis=1)))
            )


def _require_finite_stored(name: str, part: str, rows: Any) -> None:
    finite = np.isfinite(rows.stored)
    if not finite.all():
        raise _not_finite(name, part, rows.row_of(int(np.argmin(finite))))


def _not_finite(name: str, part: str, row: int) -> BadInput:
    return BadInput(
        f"{part} of {name} has a value that is not finite (NaN or infinity), first in row "
        f"{row}: fill or drop such rows by a rule that does not look at the other rows, "
        "and give the file again",
        row=row,
    )


def require_labels(name: str, part: str, labels: NDArray[Any], classes: int) -> None:
    """Raise `BadInput` unless `labels` are whole numbers from 0 to classes - 1."""
    # more than two: maps of classes
    whole = labels.dtype.kind in "iub" and (labels.ndim == 1 or labels.ndim > 2)
    if whole and len(labels) and int(labels.min()) >= 0 and int(labels.max()) < classes:
        return
    wrong = f"{labels.dtype} values of shape {labels.shape}"
    if whole and len(labels):
        wrong = f"labels from {labels.min()} to {labels.max()}"
    raise BadInput(
        f"{part} of {name} has {wrong}: expected whole numbers from 0 to {classes - 1}, the "
        f"{classes} declared classes (classes=)",
        classes=classes,
    )


def require_zeros_and_ones(
    name: str, part: str, values: NDArray[Any], labels: Sequence[str]
) -> None:
    """Raise `BadInput` unless `values` has a 0 or a 1 for each row and label."""
    numbers = values.dtype.kind in "fiub" and values.shape[1:] == (len(labels),)
    if not numbers or not np.isin(values, (0, 1)).all():
        wrong = f"{values.dtype} values of shape {values.shape}" if not numbers else "other values"
        raise BadInput(
            f"{part} of {name} has {wrong}: expected 0 or 1 for each row and each of the "
            f"{len(labels)} labels ({', '.join(labels[:6])[:60]})"
        )


def persons_in(groups: NDArray[Any]) -> int:
    """How many persons there are."""
    return len(np.unique(groups))


def most_rows(groups: NDArray[Any]) -> int:
    """How many rows one person has at most."""
    return int(np.unique(groups, return_counts=True)[1].max(initial=0))


def rows_of_persons(groups: NDArray[Any], rows_per_person: int, key: bytes) -> NDArray[np.int64]:
    """For each person the rows that stand for them, always `rows_per_person` of them; shape
    (persons, rows_per_person).

    A person with fewer rows has them again and again, in turn; of a person with more a random part
    is taken, once for the run. That choice follows from `key`, the person's id and how many rows
    they have: other persons have no part in it. (The guarantee does not rest on it: any choice from
    a person's own rows would do.) Persons are in the order of their ids, and rows in the order of
    the data.

    Args:
        groups: one id for each row, as `require_groups` accepts them.
        rows_per_person: public.
        key: at most 64 bytes, drawn for this run.
    """
    count("rows_per_person", rows_per_person)
    ids, person_of, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(person_of.reshape(-1), kind="stable")
    starts = np.cumsum(sizes) - sizes
    # In turn: row number i of a person with n rows is their i mod n.
    turns = starts[:, None] + np.arange(rows_per_person) % sizes[:, None]
    for person in np.flatnonzero(sizes > rows_per_person):
        turns[person] = starts[person] + _choice(
            ids[person], int(sizes[person]), rows_per_person, key
        )
    return np.asarray(order[turns], dtype=np.int64)


def require_groups(name: str, groups: NDArray[Any], rows: int) -> None:
    """Raise `BadInput` unless `groups` is a person's id, a whole number or a text, for each of
    `rows` rows.
    """
    if groups.ndim != 1 or len(groups) != rows:
        raise BadInput(
            f"groups of {name} has shape {groups.shape}: expected one person's id for each of the "
            f"{rows} rows, shape ({rows},)"
        )
    if groups.dtype.kind not in "iuUS":
        raise BadInput(
            f"groups of {name} holds {groups.dtype} values: expected whole numbers or texts, a "
            "person's id each"
        )


def _choice(person: Any, size: int, number: int, key: bytes) -> NDArray[np.int64]:
    """Which `number` of a person's `size` rows are taken, ascending."""
    digest = hashlib.blake2b(repr(person.item()).encode(), key=key, digest_size=16).digest()
    chosen = np.random.default_rng(int.from_bytes(digest, "big")).choice(
        size, number, replace=False
    )
    return np.sort(chosen).astype(np.int64)


def overlap(rows: Any, training: Any) -> tuple[float, float]:
    """The share of `rows` whose numbers are those of some training row, and of training rows that
    have a twin.

    Where `rows` are fresh, the two are about the same: a fresh row is as likely to be like a
    training row as another training row is. Rows of another shape, or of what are no numbers, have
    nothing in common.

    Args:
        rows: an array or a tensor of shape (rows, ...).
        training: the training rows, likewise.
    """
    first, second = _array(rows), _array(training)
    if first.shape[1:] != second.shape[1:] or not first.size or not second.size:
        return 0.0, 0.0
    if first.dtype.kind not in "fiub" or second.dtype.kind not in "fiub":
        return 0.0, 0.0
    kind = _common_kind(first, second)
    some = second
    if len(second) > _ASKED:
        places = np.linspace(0, len(second) - 1, _ASKED).astype(np.int64)
        some = second.at(places) if _is_sparse(second) else second[places]
    tested, asked = list(_hashes(first, kind)), list(_hashes(some, kind))
    watched = {*tested, *asked}
    seen = Counter(value for value in _hashes(second, kind) if value in watched)
    return sum(value in seen for value in tested) / len(tested), sum(
        seen[value] > 1 for value in asked
    ) / len(asked)


def are_training_rows(rows: Any, training: Any) -> bool:
    """Whether `rows` are the training rows, or more than half of them are copies of some, beyond
    what twins explain.
    """
    copies, twins = overlap(rows, training)
    return copies - twins > 0.5 or (copies == 1 and _are_equal(_array(rows), _array(training)))


def require_others(rows: Any, training: Any, what: str) -> None:
    """Raise `BadInput` if `rows`, which are given as public, are the training rows: a check for the
    data's curator.

    Args:
        rows: the public rows, as of `overlap`.
        training: the training rows, likewise.
        what: the public rows in words, for the message.
    """
    if are_training_rows(rows, training):
        raise BadInput(
            f"{what} are among the training rows, all or most of them: those are private, and "
            "public rows get no protection. Give rows of others"
        )


def _is_sparse(values: Any) -> bool:
    return hasattr(values, "stored")


def _common_kind(rows: Any, training: Any) -> np.dtype[Any]:
    """The type in which rows are compared: that of sparse ones, where there are some."""
    for values in (rows, training):
        if _is_sparse(values):
            return np.dtype(np.float32)
    kind: np.dtype[Any] = np.dtype(rows.dtype if rows.dtype == training.dtype else np.float64)
    return kind


def _are_equal(rows: Any, training: Any) -> bool:
    if _is_sparse(rows) or _is_sparse(training):
        kind = _common_kind(rows, training)
        return len(rows) == len(training) and [*_hashes(rows, kind)] == [*_hashes(training, kind)]
    return np.array_equal(rows, training)


def _array(values: Any) -> Any:
    if _is_sparse(values):
        return values
    if not hasattr(values, "detach"):
        return np.asarray(values)
    values = values.detach().cpu()  # a tensor; bfloat16 is nothing that numpy has
    return np.asarray((values.float() if values.dtype.itemsize == 2 else values).numpy())


def _hashes(values: Any, kind: np.dtype[Any]) -> Iterator[int]:
    """64 bits for each row."""
    blocks = (
        values.blocks()
        if _is_sparse(values)
        else (values[start : start + _AT_ONCE] for start in range(0, len(values), _AT_ONCE))
    )
    for block in blocks:
        for row in np.ascontiguousarray(block, dtype=kind):
            yield hash(row.tobytes())
