"""`release_features`: noisy rows of few features, with public or randomised labels, which any
method can learn from.

`select_features`: which features tell classes apart, chosen privately.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from privlearn._display import Described, Summary
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping.row_sums import bounded_rows, finite_rows
from privlearn.core.mechanisms import selection
from privlearn.core.mechanisms.release import release
from privlearn.core.sampling import FullBatch
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput, warn
from privlearn.methods.statistics.classifiers import classifier, fisher, least_squares
from privlearn.methods.statistics.opening import LabelledRows, Origin, opened
from privlearn.methods.statistics.plan import (
    ClassifierPlan,
    FisherPlan,
    LeastSquaresPlan,
    RowsPlan,
    SelectionPlan,
)
from privlearn.runs.result import Result
from privlearn.transforms.modules import ClipRows, Keep, Scale
from privlearn.transforms.select import Statistics, scored

#: Features that are listed.
_FIRST = 20
#: Features of rows that are published, at most: a certificate names each.
_MOST_COLUMNS = 10_000
#: Rows that are written at once.
_AT_ONCE = 1_000


@final
@dataclass(frozen=True, eq=False, repr=False)
class ReleasedRows:
    """Noisy rows and their labels: free to use, if they were released privately (the ledger says
    whether).

    Attributes:
        x: rows of the kept features, the best first, single precision, shape (rows, keep).
        y: labels, shape (rows,); randomised if the plan says so.
        indices: the kept features' places in a flattened row.
        noise_std: standard deviation of the noise in each number.
        plan: what was spent.
        ledger: where it was charged.
        origin: what is public of the rows that they come from.
    """

    x: Tensor
    y: Tensor
    indices: Tensor
    noise_std: float
    plan: RowsPlan
    ledger: Ledger
    origin: Origin

    def __post_init__(self) -> None:
        object.__setattr__(self, "_versions", self._versions_now())

    def _versions_now(self) -> list[int]:
        return [part._version for part in (self.x, self.y, self.indices)]

    def require_unchanged(self) -> None:
        """Raise `BadInput` if rows, labels or places were changed after the release."""
        if self._versions != self._versions_now():  # type: ignore[attr-defined]
            raise BadInput(
                "the rows were changed after their release: nothing can be claimed for them. "
                "Publish them as they are, and change a copy, rows.x.clone()"
            )

    def classifier(self) -> Result:
        """Fisher's classifier from the noisy rows: post-processing. It is for rows without noise.

        Variances are those of the noisy rows: what tells features apart in them is the signal
        beside that. Randomised labels are undone in expectation. `publish` writes the rows beside
        the classifier.
        """
        front = [Keep(self.indices), ClipRows(torch.tensor(self.plan.rest_norm, device="cpu"))]
        result = classifier(self.plan, self.origin, front, self.statistics(), self.ledger)
        if self.plan.keep > _MOST_COLUMNS:
            return result
        facts = result.facts | {"examples": len(self.x), "released_rows": self._facts()}
        return replace(result, facts=facts, released=self.to_csv)

    def publishable(self) -> Result:
        """The classifier with the rows, as `publish` takes them.

        Raises:
            BadInput: a row has more features than are published, or rows were changed.
        """
        self.require_unchanged()
        if self.plan.keep > _MOST_COLUMNS:
            raise BadInput(
                f"the rows have {self.plan.keep:,} features: at most {_MOST_COLUMNS:,} are "
                "published. Release fewer, keep="
            )
        return replace(self.classifier(), model_spec="linear", classes=self.plan.classes)

    def to_csv(self) -> bytes:
        """The rows as a CSV in UTF-8: a line of names, then a line for each row, its label last.

        Numbers have all digits of single precision. A label is the name of its class, where the
        data name classes, or its number.

        Raises:
            BadInput: the rows were changed after their release.
        """
        self.require_unchanged()
        layout = self._facts()
        labels = np.array(layout["classes"], dtype=object)[self.y.numpy()]
        text = StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*layout["columns"], layout["label"]])
        for start in range(0, len(self.x), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            numbers = self.x[part].float().numpy().astype(str)
            writer.writerows(
                [*row, label] for row, label in zip(numbers.tolist(), labels[part], strict=True)
            )
        return text.getvalue().encode()

    def _facts(self) -> dict[str, Any]:
        """What the file of rows holds, for the certificate."""
        origin, places = self.origin, self.indices.tolist()
        columns = [origin.names[place] if origin.names else f"x{place}" for place in places]
        label = "label" if origin.schema is None else origin.schema.target
        while label in columns:
            label += "_"
        classes = list(map(str, range(self.plan.classes)))
        if origin.schema is not None and origin.schema.classes:
            classes = list(origin.schema.classes)
        return {"columns": columns, "label": label, "bounds": self._bounds(), "classes": classes}

    def _bounds(self) -> list[list[float]]:
        """The declared bounds of each column; empty where none are known."""
        if len(self.origin.transforms) != 1 or not isinstance(self.origin.transforms[0], Scale):
            return []
        low, high = (
            self.origin.transforms[0].get_buffer(name).expand(self.origin.input_shape).flatten()
            for name in ("low", "high")
        )
        return torch.stack([low, high], 1)[self.indices].double().tolist()

    def statistics(self) -> Statistics:
        """Counts, sums and moments of the noisy rows."""
        member = (self.y[:, None] == torch.arange(self.plan.classes, device="cpu")).double()
        # noise mostly cancels: single precision shows
        counts, sums = member.sum(0), member.T @ self.x.double()
        if self.plan.label_epsilon is not None:
            counts, sums = (
                _undone(reported, self.plan.label_epsilon) for reported in (counts, sums)
            )
        # of a sum over a class of usual size
        std = self.noise_std * math.sqrt(len(self.x) / self.plan.classes)
        return Statistics(counts, sums, self.x.double().square().sum(0), std, 0.0)


def _undone(reported: Tensor, epsilon: float) -> Tensor:
    """Totals by true class, in expectation, from totals by randomised class, shape (classes,
    ...).
    """
    true = selection.truth(epsilon, len(reported))
    other = (1 - true) / (len(reported) - 1)
    return (reported - other * reported.sum(0)) / (true - other)


def release_features(
    plan: RowsPlan,
    dataset: LabelledRows,
    *,
    ledger: Ledger | None = None,
    streams: Streams | None = None,
) -> ReleasedRows:
    """Choose features, and release every row of them once, with noise.

    Guarantee: all that is returned is `plan.guarantee(delta)`-DP, for zero-out or replace-one
    neighbours: the number of rows, and their order, are public. The ledger is charged exactly
    `plan.event()`: the selection, one Gaussian release of all rows (each is in it once), and
    randomised response for the labels unless they are declared public. Choosing features by all
    rows needs a trusted curator: this is not local privacy.

    Args:
        plan: what will be spent, and how.
        dataset: as for `select_features`.
        ledger: what to charge; by default a new one with the plan's budget.
        streams: the random streams; by default new ones.

    There is a warning, by public numbers alone, where the rows will teach hardly anything
    (`RowsPlan.noise_warnings`).

    Raises:
        BudgetExceeded, BadInput: as `select_features`.
    """
    with opened(plan, RowsPlan, dataset, ledger, streams) as rows:
        for warning in plan.noise_warnings(len(rows.x)):
            warn(warning)
        stream, best = rows.stream, torch.arange(plan.features, device="cpu")
        if plan.selects:
            best, _ = plan.selection.chosen(
                rows.x, rows.y, plan.neighbours, rows.ledger, stream, prepare=rows.prepare
            )
        (sample,) = FullBatch().draw(len(rows.x))
        bounded = bounded_rows(
            rows.x, sample, plan.neighbours, norm=plan.rest_norm, columns=best, prepare=rows.prepare
        )
        present = finite_rows(rows.x, sample, best, rows.prepare)
        ((noisy,),) = release(
            bounded, noise_multiplier=plan.rest_noise, ledger=rows.ledger, stream=stream
        )
        labels = torch.from_numpy(np.asarray(rows.y).astype(np.int64))
        if plan.label_epsilon is not None:
            labels = selection.randomised(
                labels,
                present,
                epsilon=plan.label_epsilon,
                categories=plan.classes,
                adjacency=plan.neighbours,
                ledger=rows.ledger,
                stream=stream,
            )
    std = plan.rest_noise * bounded.sensitivity
    return ReleasedRows(noisy, labels, best, std, plan, rows.ledger, rows.origin)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Selected(Described):
    """Chosen features, and what was released to choose them: free to use.

    Attributes:
        indices: the features' places in a flattened row, the best first, shape (keep,).
        statistics: of all features, where they were chosen by means.
        counts: of each class, as released.
        scores: what each was ranked by, shape (keep,); None for Gumbel noise, which releases the
            order alone.
        score_noise: the standard deviation of the noise in each score; None without scores.
        names: of the chosen features, where the data name them; else none.
        plan: what was spent.
        ledger: where it was charged.
    """

    indices: Tensor
    statistics: Statistics | None
    counts: Tensor
    plan: SelectionPlan
    ledger: Ledger
    scores: Tensor | None = None
    score_noise: Tensor | None = None
    names: tuple[str, ...] = ()

    def _summary(self) -> Summary:
        first = ", ".join((self.names or list(map(str, self.indices.tolist())))[:_FIRST])
        return Summary(
            f"Selected: {len(self.indices)} features",
            [("the best first", first), *self.plan._summary().rows[-2:]],
        )

    def transform(self) -> Keep:
        """A module that keeps these features of rows as they are given, best first."""
        return Keep(self.indices)


def select_features(
    plan: SelectionPlan,
    dataset: LabelledRows,
    *,
    ledger: Ledger | None = None,
    streams: Streams | None = None,
) -> Selected:
    """Choose the plan's number of features.

    Guarantee: what is returned is `plan.guarantee(delta)`-DP for the plan's adjacency and unit, and
    the ledger is charged exactly `plan.event()`. Labels and shapes are looked at once, for the
    data's curator, before anything is spent. From then on a row that is not finite counts as none,
    a row beyond the bounds is clipped, and an empty class has a floor: nothing is said about any of
    them.

    Args:
        plan: what will be spent, and how.
        dataset: a `Dataset`, a pair (inputs, classes) or a map-style PyTorch data set. Declared
            bounds scale it first.
        ledger: what to charge; by default a new one with the plan's budget.
        streams: the random streams; by default new ones, seeded by the operating system.

    Raises:
        BudgetExceeded: the plan does not fit the ledger's budget; before any data is touched.
        BadInput: labels outside the declared classes, or rows not of the plan's length; before
            anything is spent.
    """
    with opened(plan, SelectionPlan, dataset, ledger, streams) as rows:
        indices, released = plan.selection.chosen(
            rows.x, rows.y, plan.neighbours, rows.ledger, rows.stream, prepare=rows.prepare
        )
    statistics = released if isinstance(released, Statistics) else None
    counts = released.counts if isinstance(released, Statistics) else released
    scores, noise = (
        (None, None) if statistics is None else scored(statistics, plan.criterion, plan.least_count)
    )
    names = (
        tuple(rows.origin.names[index] for index in indices.tolist()) if rows.origin.names else ()
    )
    return Selected(
        indices,
        statistics,
        counts,
        plan,
        rows.ledger,
        None if scores is None else scores[indices],
        None if noise is None else noise[indices],
        names,
    )


def train_classifier(
    plan: ClassifierPlan, data: Dataset, options: Any, *, ledger: Ledger | None, streams: Streams
) -> Result:
    """A classifier from the statistics that a plan releases, as `train` calls it.

    Args:
        plan: with its noise.
        data: the rows, with declared classes.
        options: none is read, since the plan has all of them.
        ledger: what to charge; None: a new one.
        streams: the random streams.

    Raises:
        BadInput: as `fisher`, `least_squares` and `release_features`.
    """
    if isinstance(plan, RowsPlan):
        rows = release_features(plan, data, ledger=ledger, streams=streams)
        return replace(rows.classifier(), model_spec="linear", classes=plan.classes)
    if isinstance(plan, LeastSquaresPlan):
        result = least_squares(plan, data, ledger=ledger, streams=streams)
    else:
        assert isinstance(plan, FisherPlan)
        result = fisher(plan, data, ledger=ledger, streams=streams)
    return replace(result, model_spec="linear", classes=plan.classes)
