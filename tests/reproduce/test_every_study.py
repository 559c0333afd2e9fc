"""Every study of the registry runs: in small by default, and as `--quick` has it at night.

In small a study is run as `--quick` runs it, with its page, but each run that it asks for is made with few rows, for an
epoch or two, and with the numbers of the first of its kind. A study of another kind of run needs an entry in `SMALL`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_training_studies import MadeUp

from privlearn.data.dataset import Dataset
from privlearn.data.named import load
from privlearn_studies import registry, sweep, tasks
from privlearn_studies.best import runs as best_runs
from privlearn_studies.best.runs import BestSetting
from privlearn_studies.dfs import release_runs, size_runs
from privlearn_studies.dfs.release_runs import HeadSetting, ReleaseSetting
from privlearn_studies.dfs.size_runs import SizeSetting
from privlearn_studies.dpmac import features as dpmac_features
from privlearn_studies.dpmac.runs import MacSetting
from privlearn_studies.findings import Findings
from privlearn_studies.pate import scans, segmentation_figure, segmentation_runs, vote_runs
from privlearn_studies.pate.scans import Settings
from privlearn_studies.pate.segmentation_baselines import GradientSetting
from privlearn_studies.pate.segmentation_runs import SegmentationSetting
from privlearn_studies.pate.vector_runs import VectorSetting
from privlearn_studies.pate.vote_runs import VoteSetting
from privlearn_studies.writer import save
from privlearn_studies.yu.runs import Setting

_SCHEDULES = {
    "constant": "constant:start=8", "time": "time:k=0.05", "step": "step:k=0.6,period=10", "exp": "exp:k=0.01",
    "poly": "poly:k=3,end=2,period=100", "validation": "validation:k=0.7,m=5,threshold=0.01,period=10",
}  # fmt: skip
_BRIEF = Settings(public=2, teacher=1, alone=1, epochs=1)


def _of_yu(run: Setting) -> Setting:
    schedule = None if run.schedule is None else _SCHEDULES[run.schedule.partition(":")[0]]
    size = None if run.task == "cancer" else 100
    own = replace(run, schedule=schedule, epochs=2, first=200, batch_size=size, rho=None, learning_rate=None)
    return replace(own, hidden=None if run.hidden is None else (10,) * len(run.hidden))


def _of_dpmac(run: MacSetting) -> MacSetting:
    own = replace(run, epochs=1, first=200, batch_size=50, rate=0.01, learning_rates="constant:start=1")
    noises = {name: None if getattr(run, name) is None else 4.0 for name in ("noise", "epsilon", "pca_noise")}
    return replace(own, **noises)


def _of_sizes(run: SizeSetting) -> SizeSetting:
    name, _, widths = run.model.partition(":")
    small = run.model if name == "cnn" else f"{name}:{','.join('10' for _ in widths.split(','))}"
    return replace(run, model=small, epsilon=2.0, rate=20.0, epochs=1, sampling_rate=0.5, first=200)


#: From each kind of run to a small one; runs that differ in numbers alone become the same.
SMALL: dict[type[Any], Callable[[Any], Any]] = {
    Setting: _of_yu,
    MacSetting: _of_dpmac,
    BestSetting: lambda run: replace(run, epsilon=3.0, first=150),
    VoteSetting: lambda run: replace(run, teachers=3, epochs=1, first=300),
    VectorSetting: lambda run: replace(run, teachers=20, epsilon=8.0, queries=12, private=400, size=4, epochs=1),
    ReleaseSetting: lambda run: replace(run, epsilon=run.epsilon and 10.0, per_class=50, share=0.1),
    HeadSetting: lambda run: replace(run, epsilon=10.0, per_class=50),
    SizeSetting: _of_sizes,
    SegmentationSetting: lambda run: replace(run, teachers=2, first=8, settings=_BRIEF),
    GradientSetting: lambda run: replace(run, epsilon=run.epsilon and 8.0, epochs=1, first=8, settings=_BRIEF),
}


def small(run: Any) -> Any:
    assert type(run) in SMALL, f"a study asks for a {type(run).__name__}: say in SMALL how it runs in a second"
    return SMALL[type(run)](run)


@cache
def _made(run: Any, seed: int) -> Any:
    outcome = run.run(seed)
    assert run.outcome(sweep._plain(sweep.asdict(outcome))) is not None
    return outcome


class Small:
    """A sweep that makes small runs; what a page expects for each epoch is there for each of the run's own."""

    def __init__(self, *others: Any) -> None:
        self._made_up = MadeUp()

    def __call__(self, settings: Iterable[Any], numbers: Sequence[int]) -> dict[Any, list[Any]]:
        return {one: [self._outcome(one, number) for number in numbers] for one in settings}

    def _outcome(self, run: Any, number: int) -> Any:
        found = _made(small(run), number)
        if not isinstance(run, Setting | MacSetting):
            return found
        [[long]] = self._made_up([run], [number]).values()
        lists = {each.name: (getattr(found, each.name), getattr(long, each.name)) for each in fields(found)}
        return replace(found, **{
            name: tuple(own[at % len(own)] for at in range(len(wanted)))
            for name, (own, wanted) in lists.items() if isinstance(own, tuple) and own
        })  # fmt: skip


def _cut(rows: int | None, tests: int | None) -> Callable[[str], Dataset]:
    """Named data with the first of its rows."""

    def read(name: str) -> Dataset:
        data = load(name)
        return replace(data, x=data.x[:rows], y=data.y[:rows], x_test=data.x_test[:tests], y_test=data.y_test[:tests])

    return read


@cache
def _cropped(name: str) -> Dataset:
    """Volumes of 8 x 8 x 8 voxels."""
    data, middle = load(name), (slice(6, 14), slice(10, 18), slice(6, 14))
    parts = {part: np.ascontiguousarray(getattr(data, part)[(..., *middle)]) for part in ("x", "y", "x_test", "y_test")}
    return replace(data, **parts)


def _forget() -> None:
    remembered = (
        tasks._flat, tasks._projected, size_runs._rows, release_runs.parts, release_runs._whole, release_runs.plan_of,
        release_runs._order, scans.parts, scans.public_side, scans.pool_truth,
    )  # fmt: skip
    for one in remembered:
        one.cache_clear()


@pytest.fixture(scope="module")
def little(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Small runs of little data; what is remembered of other data is forgotten before and after."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVLEARN_DATA", str(data_dir))
        patch.setattr(sweep, "Sweep", Small)
        train = dpmac_features.train
        patch.setattr(dpmac_features, "train", lambda setting, seed: train(small(setting), seed))
        patch.setattr(tasks, "load", _cut(None, 200))
        patch.setattr(release_runs, "load", _cut(2000, 200))
        patch.setattr(best_runs, "load", _cut(None, 50))
        patch.setattr(best_runs, "cache", lambda: tmp_path_factory.mktemp("features"))
        patch.setattr(vote_runs, "POOL", 450)
        patch.setattr(scans, "load", _cropped)
        patch.setattr(segmentation_figure, "_SIZE", (8, 8))
        patch.setattr(segmentation_runs, "EPSILONS", (8.0,))
        patch.setattr(segmentation_runs, "QUERIES", (10, 80))
        _forget()
        yield
        _forget()


def _require_whole(study: registry.Study, findings: Findings, folder: Path) -> None:
    """Finite figures, one for each name, and the three files."""
    assert findings.rows
    assert len({(row.label, row.metric) for row in findings.rows}) == len(
        {(row.label, row.metric, row.ours) for row in findings.rows}
    )
    assert all(math.isfinite(row.ours) for row in findings.rows)
    save(study, findings, folder, True)
    assert {path.suffix for path in folder.glob(f"{study.name}.*")} == {".json", ".md", ".png"}


@pytest.mark.parametrize("study", registry.STUDIES, ids=lambda study: study.name)
def test_every_study_runs_in_small(study: registry.Study, little: None, tmp_path: Path) -> None:
    _require_whole(study, study.run(quick=True, seeds=1), tmp_path)


def test_a_study_without_a_small_run_is_noticed() -> None:
    with pytest.raises(AssertionError, match="say in SMALL"):
        Small()([Settings()], [0])


@pytest.mark.nightly
@pytest.mark.parametrize("study", registry.STUDIES, ids=lambda study: study.name)
def test_quick_runs(study: registry.Study, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVLEARN_DATA", str(data_dir))
    findings = study.run(quick=True, folder=tmp_path)
    _require_whole(study, findings, tmp_path)
    tests = [row.ours for row in findings.rows if row.metric.startswith(("test accuracy", "test error"))]
    assert all(value > 0.1 for value in tests)
