"""The study of few rows and small epsilon: which rows are trained on, and what is read off its
points.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import privlearn as pv
from privlearn_studies import best, small_data
from privlearn_studies.small_data import Point, least_for, limits_of


def point(examples: int, epsilon: float, accuracy: float, plain: float = 0.9) -> Point:
    return Point("made up", examples, epsilon, (accuracy - 0.01, accuracy + 0.01), (plain,), (0.1,))


def test_rows_are_the_first_of_an_order_of_each_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    few = pv.load("digits")
    monkeypatch.setattr(best, "load", lambda name: few)
    long, short, other = (
        best.rows_of("digits", 300, 1),
        best.rows_of("digits", 100, 1),
        best.rows_of("digits", 100, 2),
    )
    assert np.array_equal(np.asarray(long.x)[:100], short.x)
    assert np.array_equal(np.asarray(long.y)[:100], short.y)
    assert not np.array_equal(short.y, other.y)
    assert {row.tobytes() for row in np.asarray(long.x)} <= {
        row.tobytes() for row in np.asarray(few.x)
    }
    for seed in (None, 1):
        assert np.array_equal(best.rows_of("digits", None, seed).x, few.x)
    assert np.array_equal(best.rows_of("digits", 50).x, np.asarray(few.x)[:50])


def test_private_runs_and_those_without_privacy_have_the_same_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = pv.load("digits")
    asked = []

    def rows_of(data: str, first: int | None, seed: int | None = None) -> pv.Dataset:
        asked.append((data, first, seed))
        at = np.random.default_rng(0).permutation(few.examples)[:first]
        return replace(few, x=np.asarray(few.x)[at], y=np.asarray(few.y)[at])

    monkeypatch.setattr(best, "rows_of", rows_of)
    outcome = small_data.plain(2, data="digits", first=400)
    best.train(2, data="digits", epsilon=3.0, first=400, shuffled=True)
    assert asked == [("digits", 400, 2)] * 2
    assert outcome.examples == 400
    assert outcome.accuracy > 0.85
    assert outcome.majority == pytest.approx(
        np.mean(np.asarray(few.y_test) == np.bincount(rows_of("", 400).y).argmax())
    )


def test_every_private_run_is_of_shuffled_rows_but_for_all_of_them() -> None:
    grid = small_data.grid()
    assert len({str(call.key(0)) for call in grid}) == len(grid) == 60
    assert all(call.shuffled == (call.first is not None) for call in grid)
    # With all rows it is a run of the study of defaults.
    shared = {call for call in best.grid() if call.way == best.DEFAULTS} & set(grid)
    assert {call.epsilon for call in shared} == {0.5, 1.0, 3.0, 8.0}


def test_parts_of_the_way_from_the_majority_class_to_no_privacy() -> None:
    points = [
        point(100, 0.1, 0.105),
        point(100, 1.0, 0.3),
        point(1000, 1.0, 0.6),
        point(1000, 3.0, 0.85),
    ]
    assert [round(each.part, 3) for each in points] == [0.006, 0.25, 0.625, 0.938]
    assert [least_for(points, part) for part in (0.1, 0.5, 0.9)] == [100.0, 1000.0, 3000.0]
    assert limits_of(points) == ("10", "100", "1,000", "3,000")
    # One number of rows that falls short moves the limit behind it.
    assert least_for([*points, point(10_000, 0.2, 0.4)], 0.5) == 3000.0
    assert limits_of(points[2:3]) == ("–", "1,000", "1,000", "–")
    assert least_for([], 0.5) == math.inf
    assert point(1, 1.0, 0.2, plain=0.1).part == math.inf
