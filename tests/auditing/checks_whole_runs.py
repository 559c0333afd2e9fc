"""Named checks of audits of whole runs: of class statistics, PATE and boosting, by what they
release.
"""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import privlearn as pv
from privlearn.auditing import Audit, whole_runs
from privlearn.cli import main
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.bounded import Bounded, Contributions
from privlearn.core.mechanisms.release import release
from privlearn.core.plan import AbstractPlan
from privlearn.errors import BadInput
from privlearn.methods.neighbouring_runs import NeighbouringRuns
from privlearn.publishing import publish
from tests.support.checks import check, must_raise

REPLACE, ZERO = Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT
NOISE: dict[str, Any] = {"noise_multiplier": 0.5}


def attack(plan: AbstractPlan, trials: int = 100, **options: Any) -> Audit:
    """An audit of a whole run, seeded."""
    streams = pv.Streams.new(7, **options)
    return pv.audit(plan, trials=trials, confidence=0.95, streams=streams)


def require_kept(report: Audit, least: float) -> None:
    """The claim stands, which is that of the whole run, and the attack is no weak one."""
    assert report.ok, report
    assert report.public
    assert "whole run" in report.attack
    assert least * report.epsilon_claimed <= report.epsilon_lower <= report.epsilon_claimed, report
    assert report.epsilon_any <= report.epsilon_lower


def squares(adjacency: Adjacency | None = None) -> pv.statistics.LeastSquaresPlan:
    return pv.statistics.LeastSquaresPlan(3, 5, 2.0, adjacency=adjacency, **NOISE)


def boosting(**options: Any) -> pv.boosting.BoostingPlan:
    """One column, gone through twice; whose gradients reach the norm that they are clipped to."""
    column, target = pv.boosting.Interval(0.0, 1.0), pv.boosting.Values(0.0, 1.5)
    return pv.boosting.BoostingPlan((column,), target, bins=4, passes=2, **NOISE, **options)


def asked(aggregate: Any, noise_multiplier: float = 0.7) -> pv.teachers.PatePlan:
    return pv.teachers.PatePlan(2, 5, aggregate, noise_multiplier)


@check
def check_least_squares_keep_their_claim() -> None:
    require_kept(attack(squares()), 0.4)
    require_kept(attack(squares(), discrete=True), 0.4)


@check
def check_least_squares_with_a_row_in_another_ones_place_keep_their_claim() -> None:
    require_kept(attack(squares(REPLACE)), 0.3)


@check
def check_ridge_with_a_row_in_another_ones_place_keeps_its_claim() -> None:
    plan = pv.statistics.RidgePlan(3, 2.0, -1.0, 3.0, adjacency=REPLACE, **NOISE)
    require_kept(attack(plan), 0.3)


@check
def check_class_statistics_keep_their_claim() -> None:
    require_kept(attack(pv.statistics.FisherPlan(3, 5, 5, 2.0, **NOISE)), 0.4)


@check
def check_features_drawn_by_noise_keep_their_claim() -> None:
    """Two candidates, of which one is drawn."""
    plan = pv.statistics.SelectionPlan(
        2, 2, 1, 1.0, 0.5, way="gumbel", adjacency=REPLACE, noise_multiplier=2.0
    )
    require_kept(attack(plan, 200), 0.05)


@check
def check_released_rows_keep_their_claim() -> None:
    plan = pv.statistics.RowsPlan(3, 5, 2, 2.0, adjacency=ZERO, **NOISE)
    require_kept(attack(plan), 0.3)


@check
def check_random_answers_keep_their_claim() -> None:
    """Nearly all is spent on labels, of which there are many."""
    plan = pv.statistics.RowsPlan(
        50, 2, 2, 2.0, labels="randomised", label_share=0.99, noise_multiplier=0.3
    )
    require_kept(attack(plan), 0.2)


@check
def check_boosting_keeps_its_claim() -> None:
    require_kept(attack(boosting()), 0.4)


@check
def check_boosting_with_a_row_in_another_ones_place_keeps_its_claim() -> None:
    """Of labels, whose gradients are opposite and longer than the norm."""
    target = pv.boosting.Labels(2)
    plan = replace(boosting(adjacency=REPLACE), target=target, clip_norm=0.5, passes=1)
    require_kept(attack(plan, 200), 0.2)


@check
def check_votes_keep_their_claim() -> None:
    require_kept(attack(asked(pv.teachers.Votes(3)), 200), 0.4)


@check
def check_codes_in_a_ball_keep_their_claim() -> None:
    require_kept(attack(asked(pv.teachers.Ball(2.0))), 0.4)


@check
def check_codes_in_a_box_keep_their_claim() -> None:
    require_kept(attack(asked(pv.teachers.Box(4))), 0.4)


@check
def check_confident_votes_keep_their_claim() -> None:
    require_kept(attack(asked(pv.teachers.ConfidentVotes(3, 3.0, 1))), 0.05)


@check
def check_a_score_follows_from_what_was_released_alone() -> None:
    """Of a method whose sums differ from run to run by secret numbers: a score that knew the run's
    own would tell whether the example took part, though nothing of it is released.
    """
    secret = np.random.default_rng(1)

    def run(took_part: bool, ledger: pv.Ledger, streams: pv.Streams) -> object:
        [sample] = pv.sampling.FullBatch().draw(3)
        value = torch.tensor([5 * secret.normal() + 0.01 * took_part], device="cpu")
        part = Bounded(
            (value,), 1.0, Adjacency.ADD_REMOVE, sample, Contributions.of(value * 0, 1.0, "test")
        )
        return release(part, noise_multiplier=1.0, ledger=ledger, stream=streams.noise)

    attacked = NeighbouringRuns(run, "shifts, whole run")
    scores = whole_runs._scores(attacked, 200, pv.Streams.new(2), None)
    apart = abs(float(scores[True].mean() - scores[False].mean()))
    spread = float(np.concatenate([scores[True], scores[False]]).std())
    assert apart < 0.35 * spread, (apart, spread)


@check
def check_plans_that_do_not_say_how_they_are_run_are_refused() -> None:
    metrics = pv.statistics.MetricsPlan(3, noise_multiplier=1.0)
    shared = replace(asked(pv.teachers.Votes(3)), site_noise=pv.teachers.SiteNoise(absent=0))
    for plan in (metrics, shared):
        error = must_raise(BadInput, lambda plan=plan: pv.audit(plan, trials=10))
        assert "--code FILE.py" in str(error)
    network = torch.nn.Linear(2, 2)
    must_raise(BadInput, lambda: pv.audit(squares(), network, trials=10))


def rows(seed: int = 3) -> pv.Dataset:
    rng = np.random.default_rng(seed)
    x, y = rng.random((60, 4), np.float32), rng.integers(2, size=60)
    return pv.Dataset(x, y, classes=2, low=0.0, high=1.0)


def trained(method: str) -> Any:
    """A model by a method, at a target."""
    options: dict[str, Any] = {"method": method, "epsilon": 8.0, "streams": pv.Streams.new(4)}
    if method == "pate":
        options |= {"public": replace(rows(5), public=True), "teachers": 5, "queries": 3}
        options |= {"teacher": "logistic", "epochs": 1}
    if method == "boosting":
        options |= {"passes": 1, "bins": 2}
    return pv.train(rows(), delta=1e-3, examples=60, **options)


@check
def check_published_runs_of_every_method_are_attacked_as_a_whole() -> None:
    """By `privlearn audit FOLDER`, at the price of the run; the card says so."""
    for method in ("features", "boosting", "pate"):
        result = trained(method)
        with TemporaryDirectory() as name:
            folder = publish.publish(result, Path(name) / "model", delta=1e-3)
            assert "privlearn audit ." in (folder / "README.md").read_text()
            printed = io.StringIO()
            arguments = ["audit", str(folder), "--trials", "40", "--confidence", "0.9999"]
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
                assert main([*arguments, "--json"]) == 0, printed.getvalue()
                report = json.loads(printed.getvalue())
                assert main(arguments) == 0
        guarantee = result.plan.guarantee(1e-3)
        assert abs(report["epsilon_claimed"] - guarantee.epsilon) < 1e-6 * guarantee.epsilon
        assert report["delta"] == 1e-3
        assert "Whole runs of the plan were attacked" in printed.getvalue()
        assert "no guarantee" in printed.getvalue()
