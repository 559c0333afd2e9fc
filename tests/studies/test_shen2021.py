"""Figures of the studies of feature selection: the toy model in small, settings told apart, and
what is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privlearn_studies import registry
from privlearn_studies.report import Findings, save
from privlearn_studies.runs import FILE, Call, Outcome, Runs, Store
from privlearn_studies.shen2021 import features, grids, recovery, releases, sizes, toy
from privlearn_studies.shen2021.releases import ReleaseSetting
from tests.studies import checks_shen2021 as dfs_study_checks
from tests.support.checks import CHECKS


@pytest.mark.parametrize(
    "name", [name for name in vars(dfs_study_checks) if name.startswith("check_")]
)
def test_the_studies_do_what_they_say(name: str) -> None:
    CHECKS[name]()


def _ours(findings: Findings) -> dict[tuple[str, str], float]:
    return {(row.label, row.metric): row.ours for row in findings.rows}


def test_the_toy_has_its_least_error_inside() -> None:
    """With noise that grows with dimensions, rows of all features are near chance, and of few they
    are not.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toy, "_KEPT", (1, 10, 200, 1000))
        found = _ours(toy.run(True, 1, Runs()))
    error = "error of Fisher's classifier"
    assert found["ten features apart by 1, noise 0", f"{error}: 1 - Phi(Psi)"] == pytest.approx(
        0.056923, abs=1e-6
    )
    released = [
        found[f"{kept} chosen privately, rows released", error] for kept in (1, 10, 200, 1000)
    ]
    assert released[1] < min(released[0], released[2]) - 0.02
    assert released[3] > 0.45
    for noise in (0, 1, 2):
        for kept in (10, 1000):
            closed = found[f"first {kept}, noise {noise}", f"{error}: closed form, means learned"]
            assert found[f"first {kept}, noise {noise}", error] == pytest.approx(closed, abs=0.02)


def test_selection_is_exact_where_the_closed_form_says() -> None:
    """Of 24 seeds as many as a binomial law allows, on the slope and on both sides of it."""
    for rows, criterion in ((500, "distance"), (850, "distance"), (1000, "t"), (2000, "t")):
        exact = sum(recovery.chosen(criterion, rows, seed) == 1.0 for seed in range(24))
        said = recovery.scores_of(criterion, rows).recovery(500, 10)
        assert abs(exact - 24 * said) <= 4 * np.sqrt(24 * said * (1 - said)) + 0.5
    assert [recovery.chosen(None, 250, seed) for seed in range(3)] == [1.0] * 3


def test_true_features_are_found_where_noise_is_small() -> None:
    found = _ours(toy.means(True, 2, Runs()))
    metric = "part of the true features among the ten chosen"
    assert found["epsilon 5", metric] == 1.0
    assert found["epsilon 0.5", metric] > 0.5
    for epsilon in (0.5, 2.0):
        assert toy.selection_of(epsilon).guarantee(1e-5).epsilon == pytest.approx(epsilon, rel=3e-3)
    assert (
        found["epsilon 0.5", "noise in a class mean"]
        > 3 * found["epsilon 2", "noise in a class mean"]
    )


def test_runs_of_feature_studies_are_found_again(tmp_path: Path) -> None:
    """What is written for a run gives the same outcome; settings that differ have different
    keys.
    """
    some = releases.release.at(ReleaseSetting("mnist", "rows", 2.0, (5, 10)))
    linear, size = (
        releases.head.at(data="mnist", epsilon=2.0),
        sizes.train.at(model="mlp:10", epsilon=2.0, rate=10.0),
    )
    for call, outcome in (
        (some, Outcome(test=(0.5, 0.6), held=(0.4, 0.5), noise=(1.0, 2.0), epsilons=(2.0, 2.0))),
        (linear, Outcome(test=0.5, epsilon=2.0)),
        (size, Outcome(test=0.5, held=0.6, epsilon=2.0, parameters=7)),
    ):
        store = Store(tmp_path / f"{call.function.name}.jsonl")
        store.keep(call.key(3), outcome)
        assert list(store.read().values()) == [outcome]
    variants = [
        some,
        some.but(data="cifar10-features"),
        some.but(release="statistics"),
        some.but(epsilon=None),
        some.but(keeps=(5,)),
        some.but(criterion="t"),
        some.but(chosen="without privacy"),
        some.but(per_class=50),
        some.but(way="gumbel"),
        some.but(share=0.2),
        some.but(split=grids.EVEN),
        linear,
        linear.but(epsilon=1.0),
        linear.but(per_class=50),
        size,
        size.but(first=9),
        size.but(model="mlp:11"),
    ]
    keys = [json.dumps(one.key(seed), sort_keys=True) for seed in (0, 1) for one in variants]
    assert len(set(keys)) == len(keys)


def test_a_whole_study_on_digits_is_written(tmp_path: Path) -> None:
    """Every table, panel and file, with little data; runs are not made twice."""
    study = registry.find("dfs-mnist")
    grid = replace(dfs_study_checks.GRID, epsilons=(2.0, 10.0), heads=(50,), keeps=(10, 30, 64))

    class Here(Runs):  # type: ignore[misc]
        def __call__(
            self, calls: Iterable[Call], seeds: Sequence[int]
        ) -> dict[Call, list[Outcome]]:
            return {call: [call(seed) for seed in seeds] for call in calls}

    with dfs_study_checks.with_digits(), pytest.MonkeyPatch.context() as patch:
        patch.setitem(grids.GRIDS, "dfs-mnist", grid)
        found = features.on_data("dfs-mnist")(False, 2, Here())
    save(study, found, tmp_path)
    text = (tmp_path / "dfs-mnist.md").read_text()
    for head in (
        "Noisy rows",
        "What choosing privately costs",
        "whoever wants a classifier",
        "Where selection starts",
    ):
        assert f"**{head}" in text or head in text
    assert (tmp_path / "dfs-mnist.png").stat().st_size > 10_000
    assert not (tmp_path / FILE).exists()
    ours = _ours(found)
    for release in ("rows", "statistics"):
        assert (
            9.97 <= ours[f"{release}, epsilon 10", "largest epsilon spent, at delta 1e-05"] <= 10.0
        )
    clean = ours["statistics, no noise, by distance, way means, 64 features", "test accuracy"]
    assert clean > 0.8
    assert all(np.isfinite(value) for value in ours.values())
