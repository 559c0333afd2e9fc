"""The benchmark of sums over a federation runs, and its figures are those of what passes."""

from __future__ import annotations

import importlib

import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from privlearn.flower.summation import InTheClear
from tests.conftest import ROOT


@pytest.fixture
def federation(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("federation")


def test_bytes_of_a_client_follow_from_its_numbers_alone(federation):
    few, more = (federation.measure(InTheClear(), "64 numbers", count, 1) for count in (3, 6))
    assert few.messages == more.messages == 2
    assert few.up == more.up
    assert few.down == more.down
    assert 64 * 8 <= few.up < 64 * 8 + 200
    long = federation.measure(InTheClear(), "4096 numbers", 3, 1)
    assert long.up - few.up == (4096 - 64) * 8
    assert long.down == few.down


def test_a_sum_that_is_wrong_ends_the_benchmark(federation, monkeypatch):
    monkeypatch.setattr(federation, "add_up", lambda *_: 0)
    with pytest.raises(AssertionError):
        federation.measure(InTheClear(), "64 numbers", 3, 1)


def test_growth_is_the_slope_of_logarithms(federation):
    rows = [federation.Row("x", n, 2, 1.0, 8.0 * n, 1.0, float(n) ** 2) for n in (10, 100, 1000)]
    assert federation.growth(rows, "up") == pytest.approx(1)
    assert federation.growth(rows, "server_seconds") == pytest.approx(2)


def test_the_table_has_a_line_for_each_row(federation):
    row = federation.measure(
        federation.find_summation("privlearn.flower.summation:InTheClear"), "64 numbers", 3, 1
    )
    lines = federation.table([row, row]).splitlines()
    assert len(lines) == 4
    assert all(line.count("|") == 8 for line in lines)


def test_the_picture_of_the_parties_is_drawn(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    importlib.import_module("parties").draw(tmp_path / "federation.png")
    assert (tmp_path / "federation.png").stat().st_size > 10_000
