"""The study of default settings: what its runs are, what they spend, and what is kept of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import privlearn as pv
from privlearn.training import rules
from privlearn_studies import best
from privlearn_studies.best import EXAMPLE, STATISTICS
from privlearn_studies.others import PUBLISHED
from privlearn_studies.runs import FILE, Call, Outcome, Runs, Store, _canonical


def test_every_setting_of_the_study_is_another_run_and_is_found_again(tmp_path: Path) -> None:
    store = Store(tmp_path / FILE)
    grid = [*best.grid(), *best.grid(quick=True)]
    for number, call in enumerate(grid):
        store.keep(
            call.key(0),
            Outcome(accuracy=number / 100, epsilon=call.epsilon, seconds=1.0, weights=number),
        )
    assert len(store.read()) == len(set(grid)) == len(grid)
    assert [store.read()[_canonical(call.key(0))].weights for call in grid] == list(
        range(len(grid))
    )


def test_a_run_is_what_train_makes_and_spends_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    few = pv.load("digits")
    monkeypatch.setattr(best, "load", lambda name: replace(few, name=name))
    outcome = best.train(3, data="digits", epsilon=2.0, first=300)
    data = replace(few, x=few.x[:300], y=few.y[:300])
    result = pv.train(data, epsilon=2.0, streams=pv.Streams.new(3))
    x, y = few.test_tensors()
    assert outcome.accuracy == pytest.approx(
        float((result.model(x).argmax(1) == y).double().mean())
    )
    assert 1.99 < outcome.epsilon <= 2.0
    assert outcome.weights == 650


def test_opacuss_example_is_priced_for_the_target(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings are another library's; the noise is for the target, and what was spent is what
    the ledger says.
    """
    monkeypatch.setenv("PRIVLEARN_DATA", str(data_dir))
    outcome = best.train(0, data="usps", epsilon=3.0, way=EXAMPLE, first=64)
    assert 2.98 < outcome.epsilon <= 3.0
    with pytest.raises(pv.errors.BadInput, match="way"):
        best.train(0, data="usps", epsilon=3.0, way="nothing", first=64)


def test_the_figure_and_the_table_hold_what_was_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        call: [Outcome(accuracy=0.5 + index / 1000, epsilon=1.0, seconds=2.0, weights=10)] * 2
        for index, call in enumerate(best.grid())
    }
    monkeypatch.setattr(
        Runs, "__call__", lambda self, calls, seeds: {call: made[call] for call in calls}
    )
    monkeypatch.setattr(
        best, "reached_by_papers", lambda runs, numbers: {("DP-MAC", 2.0): [0.96, 0.98]}
    )
    findings = best.run(False, None, Runs())
    rows = {(row.label, row.metric): row for row in findings.rows}
    first = rows["mnist, epsilon 0.5, defaults", "test accuracy"]
    assert (first.ours, first.paper) == (0.5, 0.92)
    assert rows["fashion-mnist, epsilon 3, defaults", "test accuracy"].paper == 0.897
    assert rows["mnist, epsilon 3, opacus's example", "test accuracy"].paper is None
    assert "0.5000 ± 0.0000" in findings.notes
    marks = {f"published: {each.whose}" for each in PUBLISHED if each.data == "mnist"}
    assert marks | {"DP-MAC"} <= findings.figure.panels[0].labels
    assert rows["mnist, epsilon 2, DP-MAC", "test accuracy"].ours == pytest.approx(0.97)
    assert "| mnist | DP-MAC | – | – | 0.9700 ± 0.0141 |" in findings.notes
    assert any(
        "Tramèr and Boneh" in note and "0.897" in note for note in findings.notes.split("\n\n")
    )


def test_the_papers_methods_are_the_runs_of_their_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the epsilon that they are shown at, what each reached at its end."""
    asked: list[Call] = []

    def made(self: Runs, calls: Iterable[Call], seeds: Sequence[int]) -> dict[Call, list[Outcome]]:
        outcomes = {}
        for call in calls:
            asked.append(call)
            several = call.function.name == "pate-mnist"
            test = ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)) if several else (0.1, call.epsilon)
            outcomes[call] = [Outcome(test=test)] * len(seeds)
        return outcomes

    monkeypatch.setattr(Runs, "__call__", made)
    reached = best.reached_by_papers(Runs(), range(2))
    assert {way for way, _ in reached} == set(best.PAPERS)
    for (way, epsilon), accuracies in reached.items():
        assert accuracies == [0.5 if way == best.PAPERS[-1] else epsilon] * 2
    assert {call.epsilon for call in asked if call.function.name == "yu"} == {0.5, 2.0, 8.0}
    assert {call.epsilon for call in asked if call.function.name == "pate-mnist"} == {2.0}


def test_statistics_spend_the_target_behind_the_same_features(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = pv.load("digits")
    monkeypatch.setattr(best, "load", lambda name: replace(few, name=name))
    outcome = best.train(3, data="digits", epsilon=4.0, way=STATISTICS, first=1200)
    assert 3.99 < outcome.epsilon <= 4.0
    assert outcome.weights == 650
    assert outcome.accuracy > 0.5


def test_what_is_paid_for_stands_in_front_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).integers(0, 200, (90, 256), dtype=np.uint8)
    data = pv.Dataset(
        x[:60],
        np.arange(60) % 3,
        x[60:],
        np.arange(30) % 3,
        classes=3,
        low=0.0,
        high=200.0,
        name="rows",
    )
    monkeypatch.setattr(best, "load", lambda name: data)
    monkeypatch.setattr(rules, "WORTH_MOMENTS", 10)
    outcome = best.train(1, data="rows", epsilon=5.0)
    result = pv.train(data, epsilon=5.0, streams=pv.Streams.new(1))
    x_test, y = data.test_tensors()
    assert outcome.accuracy == pytest.approx(
        float((result.model(x_test).argmax(1) == y).double().mean())
    )
