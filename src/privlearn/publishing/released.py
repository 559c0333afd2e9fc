"""Rows that were released, as they are read from a published folder."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from io import StringIO
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from privlearn._display import Described, Summary
from privlearn.errors import BadInput
from privlearn.methods.statistics.plan import RowsPlan
from privlearn.publishing import certificate, folder
from privlearn.publishing.folder import CERTIFICATE, RELEASED, Contents
from privlearn.publishing.verify import Verification


@final
@dataclass(frozen=True, eq=False, repr=False)
class PublishedRows(Described):
    """Released rows, their folder verified: free to use, with any method.

    Attributes:
        x: the noisy numbers, single precision, shape (rows, columns). Numbers with declared bounds
            are scaled: the model's `transform` brings other rows to this form.
        y: the class of each, a whole number from 0, shape (rows,); randomised if the plan says so.
        columns: names of the numbers.
        classes: what the classes are called.
        bounds: the declared bounds of each number before it was scaled; empty where none are known.
        noise_std: standard deviation of the noise in each number.
        label_truth: the probability that a label is the true one.
        verification: what `verify` says of the folder, with its guarantee.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    columns: tuple[str, ...]
    classes: tuple[str, ...]
    bounds: tuple[tuple[float, float], ...]
    noise_std: float
    label_truth: float
    verification: Verification

    def _summary(self) -> Summary:
        guarantee, *more = self.verification._summary().rows
        shape = f"{len(self.x):,} of {len(self.columns):,} numbers, {len(self.classes)} classes"
        noise = (
            f"standard deviation {self.noise_std:.4g}; labels are true with probability "
            f"{self.label_truth:.4g}"
        )
        return Summary(
            "PublishedRows: their folder agrees with its certificate",
            [("rows", shape), ("noise", noise), guarantee, *more[:2]],
        )


def read_rows(contents: Contents, verification: Verification) -> PublishedRows:
    """The released rows of a folder, which verified.

    Raises:
        BadInput: it holds no released rows.
        CertificateMismatch: the file was changed since the folder was checked.
    """
    if contents.rows is None:
        raise BadInput(
            f"{contents.path} holds no {RELEASED}: rows are published by pv.publish(released, "
            "folder) of what pv.statistics.release_features returned"
        )
    claims = certificate.parse(contents.files[CERTIFICATE])
    plan, facts = certificate.read_plan(claims["plan"]), claims["facts"]["released_rows"]
    assert isinstance(plan, RowsPlan)
    x, y = _numbers(folder.content(contents, RELEASED).decode(), facts)
    return PublishedRows(
        x,
        y,
        tuple(facts["columns"]),
        tuple(facts["classes"]),
        tuple((low, high) for low, high in facts["bounds"]),
        plan.noise_of_rows,
        plan.label_truth,
        verification,
    )


def _numbers(text: str, facts: dict[str, Any]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Rows and labels of a file that was looked at."""
    places = {name: place for place, name in enumerate(facts["classes"])}
    lines = csv.reader(StringIO(text, newline=""), strict=True)
    next(lines)
    x, y = [], []
    for *numbers, label in lines:
        x.append(np.array(numbers, dtype=np.float32))
        y.append(places[label])
    shape = (len(x), len(facts["columns"]))
    return np.array(x, dtype=np.float32).reshape(shape), np.array(y, dtype=np.int64)
