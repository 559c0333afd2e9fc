"""What a published folder says and draws: places in pictures, who signed, whose data are protected,
figures.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

import privlearn as pv
from privlearn.core.accounting.guarantee import Adjacency, Guarantee
from privlearn.errors import BadInput
from privlearn.methods.statistics.metric_figures import Metrics
from privlearn.publishing import card, keys
from privlearn.publishing.accuracy import interval
from privlearn.publishing.charts import Axis, interval_chart, number_axis
from tests.publishing.checks import body_of, forge, key_in, published, workplace


def test_a_value_lies_between_the_ends_of_its_axis() -> None:
    axis = Axis("epoch", 2.0, 6.0, [])
    assert [axis.at(value) for value in (2.0, 3.0, 6.0)] == [0.0, 0.25, 1.0]


@pytest.mark.parametrize("high", [0.3, 1.2, 7.0, 40.0, 3000.0])
def test_an_axis_of_numbers_has_some_four_ticks_within_its_ends(high: float) -> None:
    places = [place for place, _ in number_axis("noise", 0.0, high).ticks]
    assert 3 <= len(places) <= 6
    assert places[0] == 0.0
    assert high / 2 < places[-1] <= high * (1 + 1e-9)


def test_shares_lie_where_the_ticks_below_them_say() -> None:
    drawn = interval_chart("a", "a", "a", [("one", 0.0, 0.25, 0.75), ("other", 0.25, 0.5, 1.0)])
    ticks = {
        text: place
        for place, text in re.findall(r'x="([\d.]+)" y="[\d.]+" text-anchor="\w+">(\d+) %', drawn)
    }
    assert list(ticks) == ["0", "25", "50", "75", "100"]
    assert re.findall(r'cx="([\d.]+)"', drawn) == [ticks["25"], ticks["50"]]
    spans = re.findall(r'class="span" x1="([\d.]+)" x2="([\d.]+)"', drawn)
    assert spans == [(ticks["0"], ticks["75"]), (ticks["25"], ticks["100"])]
    lines = {
        (float(left), float(right))
        for left, right in re.findall(r'"grid" x1="([\d.]+)" x2="([\d.]+)"', drawn)
    }
    assert lines == {(float(ticks["0"]), float(ticks["100"]))}
    assert float(ticks["25"]) == pytest.approx(10 + 0.25 * 332)


def test_the_page_says_whose_word_it_is_and_what_is_protected() -> None:
    with workplace() as place:
        key = key_in(place)
        signed, other = published(place, "signed", sign=key), published(place, "other")
        fingerprint = keys.read_public(f"{key}.pub").fingerprint
        assert f"with the key {fingerprint}" in (signed / "card.html").read_text()
        text = (other / "card.html").read_text()
        assert "Nothing here says who the publisher is." in text
        assert "One example" in text
        assert "One person" not in text


@pytest.mark.parametrize(("rows", "noun"), [(None, "examples"), (3, "persons")])
def test_neighbours_differ_in_what_is_protected(rows: int | None, noun: str) -> None:
    words = card.neighbours(Guarantee(1.0, 1e-5, Adjacency.ZERO_OUT, "PLD", rows_per_person=rows))
    assert f"number of {noun} is public" in words


def test_an_accuracy_that_was_rounded_to_single_precision_has_an_interval() -> None:
    rows = 10**6
    ends = interval(Metrics({"accuracy": (900_000 + 0.05) / rows}, rows))
    assert ends is not None
    assert ends[0] < 0.9 < ends[1]
    # no share of a million
    assert interval(Metrics({"accuracy": (900_000 + 0.5) / rows}, rows)) is None


def test_as_many_classes_as_there_may_be() -> None:
    with workplace() as place:
        assert published(place, "many", model_spec=None, classes=10**7).exists()
        with pytest.raises(BadInput, match="classes"):
            published(place, "more", model_spec=None, classes=10**7 + 1)


def test_the_rows_of_releases_are_numbered_to_the_last() -> None:
    with workplace() as place:
        text = (published(place) / "card.html").read_text()
    # four batches in each of two epochs
    assert '<th scope="row" class="number">1 to 8</th>' in text


@pytest.mark.parametrize("stated", [True, 1e301, "3.0", None])
def test_an_epsilon_that_is_no_number_of_the_events_is_reported(stated: Any) -> None:
    with workplace() as place:
        out = published(place)
        body = body_of(out)
        body["claim"]["epsilon"] = stated
        forge(out, body)
        problems = pv.verify(out).problems
    assert any("the events give epsilon" in problem for problem in problems), problems
