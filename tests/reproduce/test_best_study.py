"""The study of default settings: what its runs are, what they spend, and what is kept of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from privlearn_studies.best.published import PUBLISHED
from privlearn_studies.best.runs import EXAMPLE, STATISTICS, BestOutcome, BestSetting
from privlearn_studies.pate.vote_runs import VoteSetting
from privlearn_studies.sweep import Store, Sweep
from privlearn_studies.yu.runs import Setting as YuSetting

import privlearn as pv
from privlearn.descent import rules
from privlearn_studies.best import accuracy, papers, runs


def test_every_setting_of_the_study_is_another_run_and_is_found_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.jsonl")
    grid = [*accuracy.full_grid(), *accuracy.quick_grid()]
    for number, setting in enumerate(grid):
        store.keep(setting.key(0), asdict(BestOutcome(number / 100, setting.epsilon, 1.0, number)))
    assert len(store.read()) == len(grid)
    found = {setting: setting.outcome(store.read()[_text(setting.key(0))]) for setting in grid}
    assert [outcome.weights for outcome in found.values()] == list(range(len(grid)))


def _text(key: dict[str, object]) -> str:
    from privlearn_studies.sweep import _canonical

    return _canonical(key)


def test_a_run_is_what_train_makes_and_spends_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    few = pv.load("digits")
    monkeypatch.setattr(runs, "load", lambda name: replace(few, name=name))
    outcome = BestSetting("digits", 2.0, first=300).run(3)
    data = replace(few, x=few.x[:300], y=few.y[:300])
    result = pv.train(data, epsilon=2.0, streams=pv.Streams.new(3))
    x, y = few.test_tensors()
    assert outcome.accuracy == pytest.approx(float((result.model(x).argmax(1) == y).double().mean()))
    assert 1.99 < outcome.epsilon <= 2.0
    assert outcome.weights == 650


def test_opacuss_example_is_priced_for_the_target(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings are another library's; the noise is for the target, and what was spent is what the ledger says."""
    monkeypatch.setenv("PRIVLEARN_DATA", str(data_dir))
    outcome = BestSetting("usps", 3.0, EXAMPLE, first=64).run(0)
    assert 2.98 < outcome.epsilon <= 3.0
    with pytest.raises(pv.errors.BadInput, match="way"):
        BestSetting("usps", 3.0, "nothing", first=64).run(0)


def test_the_figure_and_the_table_hold_what_was_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        setting: [BestOutcome(0.5 + index / 1000, 1.0, 2.0, 10)] * 2
        for index, setting in enumerate(accuracy.full_grid())
    }
    sweep = Sweep()
    monkeypatch.setattr(Sweep, "__call__", lambda self, grid, seeds: {setting: made[setting] for setting in grid})
    monkeypatch.setattr(accuracy, "reached_by_papers", lambda sweep, numbers: {("DP-MAC", 2.0): [0.96, 0.98]})
    findings = accuracy.run("best", False, None, sweep)
    rows = {(row.label, row.metric): row for row in findings.rows}
    first = rows["mnist, epsilon 0.5, defaults", "test accuracy"]
    assert (first.ours, first.paper) == (0.5, 0.92)
    assert rows["fashion-mnist, epsilon 3, defaults", "test accuracy"].paper == 0.897
    assert rows["mnist, epsilon 3, opacus's example", "test accuracy"].paper is None
    assert any("0.5000 ± 0.0000" in note for note in findings.notes)
    marks = {f"published: {each.whose}" for each in PUBLISHED if each.data == "mnist"}
    legend = {text.get_text() for text in findings.figure.axes[0].get_legend().get_texts()}
    assert marks | {"DP-MAC"} <= legend
    assert rows["mnist, epsilon 2, DP-MAC", "test accuracy"].ours == pytest.approx(0.97)
    assert any("| mnist | DP-MAC | – | – | 0.9700 ± 0.0141 |" in note for note in findings.notes)
    assert any("Tramèr and Boneh" in note and "0.897" in note for note in findings.notes)


def test_the_papers_methods_are_the_runs_of_their_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the epsilon that they are shown at, what each reached at its end."""
    asked: list[object] = []

    def made(self: Sweep, grid: Iterable[object], seeds: Sequence[int]) -> dict[object, list[SimpleNamespace]]:
        found = {}
        for setting in grid:
            asked.append(setting)
            several = isinstance(setting, VoteSetting)
            test = ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)) if several else (0.1, setting.epsilon)  # type: ignore[attr-defined]
            found[setting] = [SimpleNamespace(test=test)] * len(seeds)
        return found

    monkeypatch.setattr(Sweep, "__call__", made)
    found = papers.reached_by_papers(Sweep(), range(2))
    assert {way for way, _ in found} == set(papers.PAPERS)
    for (way, epsilon), accuracies in found.items():
        assert accuracies == [0.5 if way == papers.PAPERS[-1] else epsilon] * 2
    assert {setting.epsilon for setting in asked if isinstance(setting, YuSetting)} == {0.5, 2.0, 8.0}
    assert {setting.epsilon for setting in asked if isinstance(setting, VoteSetting)} == {2.0}


def test_statistics_spend_the_target_behind_the_same_features(monkeypatch: pytest.MonkeyPatch) -> None:
    few = pv.load("digits")
    monkeypatch.setattr(runs, "load", lambda name: replace(few, name=name))
    outcome = BestSetting("digits", 4.0, STATISTICS, first=1200).run(3)
    assert 3.99 < outcome.epsilon <= 4.0
    assert outcome.weights == 650
    assert outcome.accuracy > 0.5


def test_what_is_paid_for_stands_in_front_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).integers(0, 200, (90, 256), dtype=np.uint8)
    data = pv.Dataset(x[:60], np.arange(60) % 3, x[60:], np.arange(30) % 3, classes=3, low=0.0, high=200.0, name="rows")
    monkeypatch.setattr(runs, "load", lambda name: data)
    monkeypatch.setattr(rules, "WORTH_MOMENTS", 10)
    outcome = BestSetting("rows", 5.0).run(1)
    result = pv.train(data, epsilon=5.0, streams=pv.Streams.new(1))
    x_test, y = data.test_tensors()
    assert outcome.accuracy == pytest.approx(float((result.model(x_test).argmax(1) == y).double().mean()))
