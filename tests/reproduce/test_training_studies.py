"""The studies that train: their files and words on made-up runs, and the store of runs."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from privlearn.cli import main
from privlearn.errors import BadInput
from privlearn.schedules import parse
from privlearn_studies import registry, seeds, sweep
from privlearn_studies.best.runs import BestOutcome, BestSetting
from privlearn_studies.dpmac import features as features_study
from privlearn_studies.dpmac.runs import MacOutcome, MacSetting
from privlearn_studies.pate import vote_runs
from privlearn_studies.pate.vector_runs import LENGTHS, VectorOutcome, VectorSetting
from privlearn_studies.pate.vote_runs import VoteOutcome, VoteSetting
from privlearn_studies.yu import runs as yu_runs
from privlearn_studies.yu.runs import Outcome, Setting

#: Studies of which every run is made by a sweep; those of feature selection and segmentation have tests of their own.
TRAINED = [
    study.name
    for study in registry.STUDIES
    if study.module and not study.name.startswith("dfs-") and study.name not in ("dpmac-features", "pate-segmentation")
]
OUTCOME = Outcome((0.5, 0.75), (), 0.7, (10.0, 9.0), 0.01, 0.5)


class MadeUp:
    """A sweep whose outcomes follow from setting and seed alone."""

    def __init__(self, *others: Any) -> None:
        pass

    def __call__(self, settings: Iterable[Any], numbers: Sequence[int]) -> dict[Any, list[Any]]:
        made: dict[type[Any], Any] = {
            Setting: self._outcome,
            MacSetting: self._outcome_of_dpmac,
            VoteSetting: self._outcome_of_votes,
            VectorSetting: self._outcome_of_vectors,
            BestSetting: self._outcome_of_best,
        }
        return {setting: [made[type(setting)](setting, number) for number in numbers] for setting in settings}

    def _outcome_of_best(self, setting: BestSetting, seed: int) -> BestOutcome:
        draw = np.random.default_rng([seed, len(str(setting))])
        return BestOutcome(0.9 + draw.normal(0, 0.01), setting.epsilon, 10.0, 7850)

    def _outcome_of_dpmac(self, setting: MacSetting, seed: int) -> MacOutcome:
        draw = np.random.default_rng([seed, len(str(setting))])
        test = tuple((0.9 + draw.normal(0, 0.01, setting.epochs)).tolist())
        norms = ((0.01, 0.2, 3.0),) * setting.epochs if setting.method == "dpmac" else ()
        noise = (setting.noise or 1.5) if setting.private else None
        return MacOutcome(test, test, noise, None if noise is None else setting.epsilon or 1.0, norms)

    def _outcome_of_votes(self, setting: VoteSetting, seed: int) -> VoteOutcome:
        draw = np.random.default_rng([seed, len(str(setting))])
        each = tuple((0.9 + draw.normal(0, 0.01, len(setting.queries))).tolist())
        noise = tuple(vote_runs.plan_of(setting, queries).noise_std for queries in setting.queries)
        return VoteOutcome(
            0.9, 0.92, each, noise, (setting.epsilon,) * len(each), ((0.8, 0.9, 0.95),) * len(each), each
        )

    def _outcome_of_vectors(self, setting: VectorSetting, seed: int) -> VectorOutcome:
        draw = np.random.default_rng([seed, len(str(setting))])
        curve = tuple((3 + draw.random(len(LENGTHS) + 1)).tolist())
        errors = tuple((20 + draw.random(3)).tolist())
        return VectorOutcome(
            0.3, 0.1, 8, 16, 20.0, 15.0, errors, errors, 12.0, 31.0, (setting.epsilon,) * 3, curve, curve[:-1]
        )

    def _outcome(self, setting: Setting, seed: int) -> Outcome:
        plain = setting.schedule is None
        draw = np.random.default_rng([seed, len(str(setting))])
        if plain or setting.epsilon:
            epochs = setting.epochs or 0
        elif setting.schedule.startswith("validation"):
            epochs = 64
        else:
            share = yu_runs._written(setting, 2) if setting.task == "mnist" else 2.0
            epochs = max(1, yu_runs._plan(setting, round(share**2)).epochs)
        test = tuple(np.round(0.9 - 0.5 * np.exp(-np.arange(epochs) / 5) + draw.normal(0, 0.002, epochs), 5).tolist())
        noise = () if plain else tuple(
            8.0 if setting.schedule.startswith("validation") else parse(setting.schedule)(t) for t in range(epochs)
        )  # fmt: skip
        return Outcome(test, test if plain else (), test[-1], noise, None if plain else 0.8, None if plain else 6.7)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", TRAINED)
def test_files_and_words(
    name: str, quick: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "Sweep", MadeUp)
    assert main(["reproduce", name, "--out", str(tmp_path), "--json", *(["--quick"] if quick else [])]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.{end}" for end in ("json", "md", "png")}
    labels = [(row["label"], row["metric"]) for row in printed["rows"]]
    assert len(set(labels)) == len(labels)
    assert all(math.isfinite(row["ours"]) for row in printed["rows"])
    text = (tmp_path / f"{name}.md").read_text()
    assert "nan" not in text
    assert "np.float" not in text
    # What is private and shown is called so.
    for label, metric in labels:
        if "training accuracy" in metric and "plain" not in label:
            assert "private" in metric


def test_the_papers_numbers_stand_beside_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "Sweep", MadeUp)
    rows = registry.find("yu-table2").run(quick=True).rows
    papers = {row.label: row.paper for row in rows if row.metric == "test accuracy" and row.paper is not None}
    assert papers["uniform (constant:start=8)"] == 0.919
    assert papers["polynomial (poly:k=3,end=2,period=100)"] == 0.932
    assert papers["uniform, 44 epochs"] == 0.929
    assert papers["step: plain training, as many epochs"] == 0.954
    epochs = {row.label.split(" ")[0]: row.ours for row in rows if row.metric == "epochs"}
    assert epochs == {"uniform": 100, "time": 38, "step": 31, "exponential": 71, "polynomial": 44, "validation": 64}


def test_features_are_those_of_the_released_weights(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights behind the projection come back as images that the network sees through it."""
    monkeypatch.setenv("PRIVLEARN_DATA", str(data_dir))
    setting = MacSetting("mnist", 1, 100, 0.01, "constant:start=1", 0.3, noise=1.0, pca_noise=4.0, first=500)
    network = torch.nn.Sequential(torch.nn.Linear(60, 8), torch.nn.ReLU(), torch.nn.Linear(8, 10))
    with torch.no_grad():
        network[2].weight.zero_()[3, 5] = 1.0  # the fifth unit is what speaks for a 3
    features = features_study._features(setting, network)
    task = features_study.task_of(setting)
    rows = task.rows(0, False).x[:500]
    directions = features_study.projection(task, 0, rows).get_buffer("components")
    expected = (rows @ directions) @ network[0].weight[5]
    assert torch.allclose(rows @ features[1], expected, rtol=1e-3, atol=1e-4)


def test_intervals_are_students() -> None:
    draw = np.random.default_rng(0)
    ours, others = draw.normal(0.93, 0.003, 10), draw.normal(0.92, 0.003, 10)
    middle, half = seeds.interval(ours, others)
    expected = stats.ttest_rel(ours, others).confidence_interval(0.95)
    assert (middle - half, middle + half) == pytest.approx((expected.low, expected.high))
    assert seeds.verdict(middle, half) == "better"
    assert seeds.verdict(-middle, half) == "worse"
    assert seeds.verdict(half / 2, half) == "within noise"
    assert seeds.interval([0.9], [0.8]) == (pytest.approx(0.1), math.inf)
    assert seeds.verdict(0.1, math.inf) == "one seed says nothing"
    assert seeds.gap_closed([0.93], [0.91], [0.96]) == pytest.approx(0.4)
    assert math.isnan(seeds.gap_closed([0.93], [0.96], [0.95]))


def test_a_run_is_found_again(tmp_path: Path) -> None:
    store = sweep.Store(tmp_path / "deep" / sweep.FILE)
    assert store.read() == {}
    setting = Setting("cancer", "exp:k=0.001,start=30", hidden=(10, 20))
    store.keep(setting.key(3), asdict(OUTCOME))
    (found,) = store.read().values()
    assert setting.outcome(found) == OUTCOME
    assert setting.key(3) != setting.key(4)
    assert replace(setting, rho=0.5).key(3) != setting.key(3)
    # The same setting said otherwise is the same run.
    assert Setting("cancer", "exp:k=0.001,start=30", clip="as written", hidden=(10, 20)).key(3) == setting.key(3)


def test_a_line_that_was_cut_off_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = sweep.Store(tmp_path / sweep.FILE)
    settings = [Setting("cancer", None, epochs=number) for number in (1, 2, 3)]
    for setting in settings:
        store.keep(setting.key(0), asdict(replace(OUTCOME, train_end=setting.epochs / 10)))
    whole = store.path.read_bytes()
    for cut in (whole[:-1], whole[:-20], whole + b'{"run": [', whole + b"\xc3"[:0] + b"null\n", whole[:-40] + b"\n"):
        store.path.write_bytes(cut)
        assert {round(found["train_end"], 3) for found in store.read().values()} >= {0.1, 0.2}
        store.keep(settings[2].key(0), asdict(replace(OUTCOME, train_end=0.3)))
        assert {round(found["train_end"], 3) for found in store.read().values()} == {0.1, 0.2, 0.3}
    store.path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="cannot be read"):
        store.read()


def test_a_sweep_goes_on_where_it_ended(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVLEARN_DATA", str(data_dir))
    settings = [Setting("cancer", "constant:start=25", epochs=2), Setting("cancer", None, epochs=2)]
    seen: list[tuple[int, int]] = []
    first = sweep.Sweep(tmp_path, jobs=2, progress=lambda done, total: seen.append((done, total)))(settings, range(2))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    # In another process, the same as here.
    here = yu_runs.train(settings[0], 1)
    assert first[settings[0]][1].test == pytest.approx(here.test, abs=1e-5)

    def refuse(*given: Any) -> Outcome:
        raise AssertionError("it was run again")

    monkeypatch.setattr(sweep, "ProcessPoolExecutor", refuse)
    again = sweep.Sweep(tmp_path)(settings, range(2))
    assert again == first


def test_an_interruption_ends_at_once_and_keeps_what_is_done(data_dir: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "privlearn", "reproduce", "yu-fig14", "--jobs", "2", "--out", str(tmp_path)]
    running = subprocess.Popen(
        command, env={**os.environ, "PRIVLEARN_DATA": str(data_dir)}, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
        # Where the tests run in the background, interruptions may be ignored, and children would ignore them, too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    store = sweep.Store(tmp_path / sweep.FILE)
    for _ in range(600):
        if store.read():
            break
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    try:
        _, said = running.communicate(timeout=120)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 130
    assert "the same command goes on from there" in said
    assert "Traceback" not in said
    assert store.read()
    for _ in range(100):  # the last of them ends a moment later
        if not _alive_in_session(running.pid):
            break
        time.sleep(0.1)
    assert not _alive_in_session(running.pid)


def _alive_in_session(session: int) -> bool:
    try:
        os.killpg(session, 0)
    except ProcessLookupError:
        return False
    return True


def test_bad_settings_are_refused() -> None:
    with pytest.raises(BadInput, match="task"):
        yu_runs.train(Setting("imagenet", None), 0)
    with pytest.raises(BadInput, match="clip"):
        yu_runs.train(Setting("cancer", "constant", clip="loosely"), 0)


@pytest.mark.parametrize("options", [["--jobs", "0"], ["--seeds", "0"]])
def test_refusals_of_the_command(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "yu-fig9", *options]) == 2
    assert options[0][2:] in capsys.readouterr().err
