"""The fuzzer itself: what it promises, and that it reaches the bugs it is for."""

from __future__ import annotations

import json

import pytest

from tests.support import fuzz


def test_mutations_repeat_and_differ_from_the_content() -> None:
    content = b'{"a": 1, "b": [2, 3.5]}\nsecond line\n'
    first = list(fuzz.mutations(content, seed=1, count=200))
    assert first == list(fuzz.mutations(content, seed=1, count=200))
    assert first != list(fuzz.mutations(content, seed=2, count=200))
    assert len(first) == 200
    assert content not in first
    assert len(set(first)) > 150


@pytest.mark.parametrize("content", [b"", b"\n", b"x", bytes(range(256))])
def test_any_content_can_be_damaged(content: bytes) -> None:
    assert len(list(fuzz.mutations(content, seed=0, count=100))) == 100


@pytest.mark.parametrize("way", fuzz.WAYS, ids=lambda way: way.__name__)
def test_each_way_changes_something(way: object) -> None:
    content = b"one 1\ntwo 2\nthree 3\n" * 5
    draw = fuzz.random.Random(0)
    changed = [way(content, draw) for _ in range(50)]  # type: ignore[operator]
    assert sum(one != content for one in changed) > 25


def test_it_finds_a_careless_reader() -> None:
    """Readers that raise what they should not, of a kind that is easily overlooked."""

    def careless(content: bytes) -> None:
        try:
            value = json.loads(content)
            int(value["a"])
        except (ValueError, KeyError):
            pass

    raised = set()
    for damaged in fuzz.mutations(b'{"a": 1, "b": [2, 3.5]}', seed=0, count=2000):
        try:
            careless(damaged)
        except Exception as error:
            raised.add(type(error))
    assert {TypeError, OverflowError} <= raised
