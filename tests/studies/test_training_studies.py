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
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import privlearn_studies
from privlearn.cli import main
from privlearn.core.schedules import parse
from privlearn.errors import BadInput
from privlearn_studies import registry, report, runs
from privlearn_studies.data import TASKS, Rows
from privlearn_studies.fay2020 import votes
from privlearn_studies.fay2020.vectors import LENGTHS
from privlearn_studies.harder2020 import features as hidden_units
from privlearn_studies.harder2020 import training as dpmac
from privlearn_studies.harder2020.training import Setting as MacSetting
from privlearn_studies.runs import Call, Outcome
from privlearn_studies.yu2019 import training
from privlearn_studies.yu2019.training import Setting

#: Studies of which every run is made by `Runs`; those of feature selection and segmentation have
#: tests of their own.
TRAINED = [
    study.name
    for study in registry.STUDIES
    if study.trains
    and not study.name.startswith("dfs-")
    and study.name
    not in ("dpmac-features", "pate-segmentation", "pate-from-nothing", "pate-tumours")
]
OUTCOME = Outcome(
    test=(0.5, 0.75), train=(), train_end=0.7, noise=(10.0, 9.0), rho=0.01, epsilon=0.5
)


def call(*given: Any, **named: Any) -> Call:
    """A run of the studies of Yu et al."""
    return training.train.at(Setting(*given, **named))


class MadeUp(runs.Runs):
    """Runs whose outcomes follow from their arguments and seed alone."""

    def __call__(self, calls: Iterable[Call], seeds: Sequence[int]) -> dict[Call, list[Outcome]]:
        made = {
            "yu": self._yu,
            "dpmac": self._dpmac,
            "pate-mnist": self._votes,
            "pate-vectors": self._vectors,
            "best, tables centred": self._best,
            "small-data, plain": self._plain,
            "six-tables, second version": self._table,
            "correlated noise": self._correlated,
            "preconditioning": self._preconditioned,
            "better-steps": self._steps,
            "persons": self._persons,
            "calibration": self._calibrated,
            "public-encoders": self._encoded,
        }
        return {
            call: [
                made[call.function.name](call, np.random.default_rng([seed, len(str(call.given))]))
                for seed in seeds
            ]
            for call in calls
        }

    def _best(self, call: Call, draw: np.random.Generator) -> Outcome:
        return Outcome(
            accuracy=0.9 + draw.normal(0, 0.01), epsilon=call.epsilon, seconds=10.0, weights=7850
        )

    def _plain(self, call: Call, draw: np.random.Generator) -> Outcome:
        return Outcome(
            accuracy=0.95 + draw.normal(0, 0.01), majority=0.1, examples=call.first or 60_000
        )

    def _correlated(self, call: Call, draw: np.random.Generator) -> Outcome:
        return Outcome(
            accuracy=0.9 + draw.normal(0, 0.01), epsilon=call.epsilon, noise=1.0, bands=4
        )

    def _preconditioned(self, call: Call, draw: np.random.Generator) -> Outcome:
        return Outcome(
            accuracy=0.9 + draw.normal(0, 0.01), epsilon=call.epsilon, noise=1.0, weights=2410
        )

    def _steps(self, call: Call, draw: np.random.Generator) -> Outcome:
        return Outcome(figure=0.9 + draw.normal(0, 0.01), epsilon=call.epsilon, noise=1.0)

    def _calibrated(self, call: Call, draw: np.random.Generator) -> Outcome:
        losses = dict.fromkeys(("log_loss", "best", "before"), 0.3 + draw.normal(0, 0.01))
        names = ("temperature", "best_temperature", "before_temperature")
        return Outcome(**losses, **dict.fromkeys(names, 2.0))

    def _encoded(self, call: Call, draw: np.random.Generator) -> Outcome:
        return Outcome(accuracy=0.9 + draw.normal(0, 0.01), epsilon=call.epsilon, majority=0.1)

    def _persons(self, call: Call, draw: np.random.Generator) -> Outcome:
        return Outcome(
            accuracy=0.9 + draw.normal(0, 0.01), epsilon=call.epsilon, noise=0.01, examples=4000
        )

    def _table(self, call: Call, draw: np.random.Generator) -> Outcome:
        if call.name == "values":
            return Outcome(rmse=2.0 + draw.normal(0, 0.1), mae=1.0, r2=0.8)
        loss = 0.4 + draw.normal(0, 0.01)
        return Outcome(accuracy=0.9, auc=1 - loss, log_loss=loss, expected_calibration_error=0.1)

    def _dpmac(self, call: Call, draw: np.random.Generator) -> Outcome:
        test = tuple((0.9 + draw.normal(0, 0.01, call.epochs)).tolist())
        norms = ((0.01, 0.2, 3.0),) * call.epochs if call.method == "dpmac" else ()
        noise = (call.noise or 1.5) if call.private else None
        epsilon = None if noise is None else call.epsilon or 1.0
        learned = {"thresholds": (0.1, 0.2)} if call.learned else {}
        return Outcome(test=test, train=test, noise=noise, epsilon=epsilon, norms=norms, **learned)

    def _votes(self, call: Call, draw: np.random.Generator) -> Outcome:
        each = tuple((0.9 + draw.normal(0, 0.01, len(call.queries))).tolist())
        noise = tuple(
            votes.plan_of(queries, call.teachers, call.epsilon).noise_std
            for queries in call.queries
        )
        several = {
            "epsilons": (call.epsilon,) * len(each),
            "test": ((0.8, 0.9, 0.95),) * len(each),
            "noise": noise,
        }
        return Outcome(teacher=0.9, plurality=0.92, answers=each, seen=each, **several)

    def _vectors(self, call: Call, draw: np.random.Generator) -> Outcome:
        curve = tuple((3 + draw.random(len(LENGTHS) + 1)).tolist())
        errors = tuple((20 + draw.random(3)).tolist())
        return Outcome(
            noise=0.3,
            autoencoder_noise=0.1,
            rule=8,
            size=16,
            teacher=20.0,
            ensemble=15.0,
            answers=errors,
            students=errors,
            public=12.0,
            mean=31.0,
            epsilons=(call.epsilon,) * 3,
            by_length=curve,
            expected=curve[:-1],
        )

    def _yu(self, call: Call, draw: np.random.Generator) -> Outcome:
        setting, plain = call.setting, call.schedule is None
        if plain or setting.epsilon:
            epochs = setting.epochs or 0
        elif setting.schedule.startswith("validation"):
            epochs = 64
        else:
            share = training._written(setting, 2) if setting.task == "mnist" else 2.0
            epochs = max(1, training.plan_of(setting, round(share**2)).epochs)
        test = tuple(
            np.round(
                0.9 - 0.5 * np.exp(-np.arange(epochs) / 5) + draw.normal(0, 0.002, epochs), 5
            ).tolist()
        )
        noise = (
            ()
            if plain
            else tuple(
                8.0 if setting.schedule.startswith("validation") else parse(setting.schedule)(t)
                for t in range(epochs)
            )
        )
        rho, epsilon = (None, None) if plain else (0.8, 6.7)
        return Outcome(
            test=test,
            train=test if plain else (),
            train_end=test[-1],
            noise=noise,
            rho=rho,
            epsilon=epsilon,
        )


@pytest.mark.one_of(5, privlearn_studies)
@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", TRAINED)
def test_files_and_words(
    name: str,
    quick: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runs, "Runs", MadeUp)
    assert (
        main(["reproduce", name, "--out", str(tmp_path), "--json", *(["--quick"] if quick else [])])
        == 0
    )
    printed = json.loads(capsys.readouterr().out)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}.{end}" for end in ("json", "md", "png")
    }
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
    monkeypatch.setattr(runs, "Runs", MadeUp)
    rows = registry.find("yu-table2").run(quick=True).rows
    papers = {
        row.label: row.paper
        for row in rows
        if row.metric == "test accuracy" and row.paper is not None
    }
    assert papers["uniform (constant:start=8)"] == 0.919
    assert papers["polynomial (poly:k=3,end=2,period=100)"] == 0.932
    assert papers["uniform, 44 epochs"] == 0.929
    assert papers["step: plain training, as many epochs"] == 0.954
    epochs = {row.label.split(" ")[0]: row.ours for row in rows if row.metric == "epochs"}
    assert epochs == {
        "uniform": 100,
        "time": 38,
        "step": 31,
        "exponential": 71,
        "polynomial": 44,
        "validation": 64,
    }


def test_features_are_those_of_the_released_weights(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights behind the projection come back as images that the network sees through it."""
    monkeypatch.setenv("PRIVLEARN_DATA", str(data_dir))
    setting = MacSetting(
        "mnist", 1, 100, 0.01, "constant:start=1", 0.3, noise=1.0, pca_noise=4.0, first=500
    )
    network = torch.nn.Sequential(torch.nn.Linear(60, 8), torch.nn.ReLU(), torch.nn.Linear(8, 10))
    with torch.no_grad():
        network[2].weight.zero_()[3, 5] = 1.0  # the fifth unit is what speaks for a 3
    features = hidden_units.features(setting, network)
    task = hidden_units.task_of(setting)
    rows = task.rows(0, False).x[:500]
    directions = hidden_units.projection(task, 0, rows).get_buffer("components")
    expected = (rows @ directions) @ network[0].weight[5]
    assert torch.allclose(rows @ features[1], expected, rtol=1e-3, atol=1e-4)


def test_released_features_are_centred_by_a_published_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each pixel by itself, whatever the other rows are: the mean of the rows is not looked at."""

    def rows(seed: int, validate: bool) -> Rows:
        x = torch.rand(8, 784, generator=torch.Generator().manual_seed(seed))
        x[0, :2] = torch.tensor([0.0, 1.0])
        y = torch.zeros(8, dtype=torch.long)
        return Rows(x, y, x[:4], y[:4], x[4:], y[4:])

    setting = MacSetting(
        "mnist", 1, 4, 0.1, "constant:start=1", 1.0, pca_noise=4.0, features="released"
    )
    monkeypatch.setitem(TASKS, "mnist", replace(TASKS["mnist"], rows=rows))
    plain, centred = rows(3, False), dpmac.task_of(setting).rows(3, False)
    for there, moved in (
        (plain.x, centred.x),
        (plain.x_valid, centred.x_valid),
        (plain.x_test, centred.x_test),
    ):
        torch.testing.assert_close(moved, (there - 0.1307) / 0.8693)
    assert float(centred.x.max()) == 1.0
    whitened = dpmac.task_of(replace(setting, features="whitened"))
    assert torch.equal(whitened.rows(3, False).x, plain.x)
    with pytest.raises(BadInput, match="expected one of"):
        dpmac.task_of(replace(setting, features="scaled"))


def test_intervals_are_students() -> None:
    draw = np.random.default_rng(0)
    ours, others = draw.normal(0.93, 0.003, 10), draw.normal(0.92, 0.003, 10)
    middle, half = report.interval(ours, others)
    expected = stats.ttest_rel(ours, others).confidence_interval(0.95)
    assert (middle - half, middle + half) == pytest.approx((expected.low, expected.high))
    assert report.verdict(middle, half) == "better"
    assert report.verdict(-middle, half) == "worse"
    assert report.verdict(half / 2, half) == "within noise"
    assert report.interval([0.9], [0.8]) == (pytest.approx(0.1), math.inf)
    assert report.verdict(0.1, math.inf) == "one seed says nothing"
    assert report.gap_closed([0.93], [0.91], [0.96]) == pytest.approx(0.4)
    assert math.isnan(report.gap_closed([0.93], [0.96], [0.95]))


def test_a_run_is_found_again(tmp_path: Path) -> None:
    store = runs.Store(tmp_path / "deep" / runs.FILE)
    assert store.read() == {}
    setting = call("cancer", "exp:k=0.001,start=30", hidden=(10, 20))
    store.keep(setting.key(3), OUTCOME)
    assert store.read() == {runs._canonical(setting.key(3)): OUTCOME}
    assert setting.key(3) != setting.key(4)
    assert setting.but(rho=0.5).key(3) != setting.key(3)
    # The same setting said otherwise is the same run.
    assert call("cancer", "exp:k=0.001,start=30", clip="as written", hidden=(10, 20)).key(
        3
    ) == setting.key(3)
    whole = call("cancer", "exp:start=30,k=0.001", hidden=(10, 20, 10), learning_rate=0.1, rho=0.4)
    assert whole.key(3) == call("cancer", "exp:k=0.001,start=30").key(3) != setting.key(3)


def test_runs_of_different_arguments_have_different_keys() -> None:
    """Also those of different studies; and a run is the same value wherever it is asked for."""

    @runs.cached("some")
    def some(seed: int, *, size: int, rate: float = 0.5) -> dict[str, Any]:
        return {"size": size, "rates": [rate] * 2, "parts": [{"seed": seed}]}

    @runs.cached("others")
    def others(seed: int, *, size: int, rate: float = 0.5) -> dict[str, Any]:
        return {"size": size}

    calls = [some.at(size=1), some.at(size=2), some.at(size=1, rate=0.25), others.at(size=1)]
    assert len({json.dumps(one.key(seed)) for one in calls for seed in (0, 1)}) == 8
    assert some.at(size=1, rate=0.5) == calls[0] == calls[2].but(rate=0.5)
    assert calls[0].key(0) == {"run": "some", "size": 1, "seed": 0}
    assert calls[2](7) == Outcome(size=1, rates=(0.25, 0.25), parts=(Outcome(seed=7),))
    with pytest.raises(TypeError):
        some.at(sise=1)
    with pytest.raises(AttributeError):
        _ = calls[0].sise


def test_a_line_that_was_cut_off_is_run_again(tmp_path: Path) -> None:
    store = runs.Store(tmp_path / runs.FILE)
    settings = [call("cancer", None, epochs=number) for number in (1, 2, 3)]

    def keep(setting: Call) -> None:
        store.keep(setting.key(0), Outcome(**vars(OUTCOME) | {"train_end": setting.epochs / 10}))

    for setting in settings:
        keep(setting)
    whole = store.path.read_bytes()
    for cut in (
        whole[:-1],
        whole[:-20],
        whole + b'{"run": [',
        whole + b"\xc3"[:0] + b"null\n",
        whole[:-40] + b"\n",
    ):
        store.path.write_bytes(cut)
        assert {round(kept.train_end, 3) for kept in store.read().values()} >= {0.1, 0.2}
        keep(settings[2])
        assert {round(kept.train_end, 3) for kept in store.read().values()} == {0.1, 0.2, 0.3}
    store.path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="cannot be read"):
        store.read()


def test_runs_go_on_where_they_ended(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVLEARN_DATA", str(data_dir))
    settings = [call("cancer", "constant:start=25", epochs=2), call("cancer", None, epochs=2)]
    seen: list[tuple[int, int]] = []
    first = runs.Runs(tmp_path, jobs=2, progress=lambda done, total: seen.append((done, total)))(
        settings, range(2)
    )
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    # In another process, the same as here.
    here = settings[0](1)
    assert first[settings[0]][1].test == pytest.approx(here.test, abs=1e-5)

    def refuse(*given: Any) -> Outcome:
        raise AssertionError("it was run again")

    monkeypatch.setattr(runs, "ProcessPoolExecutor", refuse)
    again = runs.Runs(tmp_path)(settings, range(2))
    assert again == first


def test_an_interruption_ends_at_once_and_keeps_what_is_done(
    data_dir: Path, tmp_path: Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "privlearn",
        "reproduce",
        "yu-fig14",
        "--jobs",
        "2",
        "--out",
        str(tmp_path),
    ]
    running = subprocess.Popen(
        command,
        env={**os.environ, "PRIVLEARN_DATA": str(data_dir)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Where the tests run in the background, interruptions may be ignored, and children would
        # ignore them, too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    store = runs.Store(tmp_path / runs.FILE)
    for _ in range(3000):  # a busy machine takes a minute to begin
        if store.read():
            break
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    try:
        _, said = running.communicate(timeout=600)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 130
    assert "the same command goes on from there" in said
    assert "Traceback" not in said
    assert store.read()
    for _ in range(3000):  # the last of them ends a moment later
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
        call("imagenet", None)(0)
    with pytest.raises(BadInput, match="clip"):
        call("cancer", "constant", clip="loosely")(0)


@pytest.mark.parametrize("options", [["--jobs", "0"], ["--seeds", "0"]])
def test_refusals_of_the_command(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "yu-fig9", *options]) == 2
    assert options[0][2:] in capsys.readouterr().err
