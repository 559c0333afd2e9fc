"""Named checks of what certificates, cards and results tell of feature releases; mutations must
make them fail.
"""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import privlearn as pv
from privlearn.core.accounting.events import walk
from privlearn.errors import BadInput
from privlearn.methods.statistics.plan import ChoosingPlan, FisherPlan, RowsPlan, SelectionPlan
from privlearn.publishing import publish, verify
from privlearn.transforms import select as mechanism
from privlearn.transforms.modules import Keep
from privlearn.transforms.select import SelectFeatures, Statistics
from tests.statistics.checks import EVERY_PLAN, B, K, R, carried_out, settled, some_rows
from tests.support.checks import check, must_raise
from tests.support.steps import EachStep


def named(x: Tensor, y: Tensor) -> pv.Dataset:
    return pv.Dataset(x.float(), y, classes=K, feature_names=("age|x", "blood", "cells", "dose"))


def plans_that_choose() -> list[ChoosingPlan]:
    return [plan for plan in EVERY_PLAN if isinstance(plan, ChoosingPlan) and plan.selects]


@check
def check_the_chosen_features_are_told_and_no_others() -> None:
    """Settings, certificate and card name what the model keeps, in order; scores only if statistics
    were released.
    """
    data = named(*some_rows(60))
    for plan in plans_that_choose():
        result = carried_out(plan, data)
        if isinstance(plan, SelectionPlan):
            assert result.names == tuple(data.feature_names[index] for index in result.indices)
            assert (result.scores is None) is plan.selection.by_gumbel
            continue
        result = result if isinstance(plan, FisherPlan) else result.classifier()
        (kept,) = [
            module.get_buffer("indices").tolist()
            for module in result.model
            if isinstance(module, Keep)
        ]
        (chosen,) = result.facts["chosen"]
        assert chosen["indices"] == kept
        assert chosen["names"] == [data.feature_names[index] for index in kept]
        assert set(chosen) - {"indices", "names"} == (
            {"scores", "noise_std"} if isinstance(plan, FisherPlan) else set()
        )
        with tempfile.TemporaryDirectory() as name:
            out = publish.publish(result, Path(name) / "model", delta=1e-5)
            assert json.loads((out / "privacy.json").read_text())["facts"]["chosen"] == [chosen]
            card = (out / "README.md").read_text()
            (row,) = [line for line in card.splitlines() if line.startswith("| chosen")]
            assert [int(part.split()[0]) for part in row.split(" | ")[-1].split("; ")] == kept
            assert ("Labels are declared public" in card) is (
                isinstance(plan, RowsPlan) and plan.labels == "public"
            )
            assert verify.verify(out).ok
    assert "chosen" not in pv.statistics.fisher(settled(keep=4), data).facts
    assert (
        "chosen"
        not in pv.statistics.release_features(settled(RowsPlan, keep=4), data).classifier().facts
    )


@check
def check_scores_are_those_of_the_released_statistics() -> None:
    """By hand, for both criteria; and their noise is that of sums of constant rows, over many
    runs.
    """
    statistics = Statistics(
        torch.tensor([10.0, 40.0, 20.0]),
        torch.tensor([[10.0, 0.0], [0.0, 80.0], [60.0, 20.0]]),
        torch.tensor([400.0, 300.0]),
        3.0,
        0.0,
    )
    score, noise = mechanism.scored(statistics, "distance", 1.0)
    assert torch.allclose(score, torch.tensor([3.0, 2.0]))
    assert torch.allclose(
        noise, torch.tensor([3.0 * math.hypot(1 / 40, 1 / 20), 3.0 * math.hypot(1 / 10, 1 / 40)])
    )
    deviation = statistics.variances(1.0).sqrt()
    score, noise = mechanism.scored(statistics, "t", 1.0)
    error = torch.tensor([1 / 40 + 1 / 20, 1 / 10 + 1 / 40]).sqrt()
    assert torch.allclose(score, torch.tensor([3.0, 2.0]) / error / deviation)
    pair = torch.tensor([math.hypot(1 / 40, 1 / 20), math.hypot(1 / 10, 1 / 40)])
    assert torch.allclose(noise, 3.0 * pair / error / deviation)
    plan = settled(
        SelectionPlan,
        classes=2,
        features=2000,
        keep=1999,
        row_norm=2000.0,
        noise_multiplier=0.02,
        way="means",
    )
    x, y = torch.zeros(400, 2000), torch.arange(400) % 2
    x[::2] = 1.0
    found = pv.statistics.select_features(plan, (x, y), streams=pv.Streams.new(0))
    assert found.scores is not None
    assert found.score_noise is not None
    assert found.scores.tolist() == sorted(found.scores.tolist(), reverse=True)
    assert abs(float(found.scores.std() / found.score_noise.mean()) - 1) < 0.1


def in_two_pieces(plan: pv.Plan, data: pv.Dataset) -> pv.Result:
    """The run with seed 0, interrupted after its first step and gone on with."""

    def stop(done: int, steps: int) -> None:
        raise KeyboardInterrupt

    def run(**more: Any) -> pv.Result:
        loss = torch.nn.CrossEntropyLoss(reduction="none")
        return pv.dpsgd(plan, torch.nn.Linear(2, K), loss, data, streams=pv.Streams.new(0), **more)

    with tempfile.TemporaryDirectory() as name:
        try:
            run(checkpoint=Path(name) / "run", callbacks=EachStep(stop))
        except KeyboardInterrupt:
            return run(checkpoint=Path(name) / "run")
    raise AssertionError("the run was not interrupted")


@check
def check_a_selection_before_training_tells_what_it_chose() -> None:
    """Also of a run in pieces; the published network keeps those very features."""
    data = named(*some_rows(30))
    for before in (
        (SelectFeatures(2, 4.0, K, R, B),),
        (SelectFeatures(3, 4.0, K, R, B), pv.transforms.PrivatePCA(2, 4.0)),
        (pv.transforms.PrivatePCA(3, 4.0), SelectFeatures(2, 4.0, K, R, B)),
    ):
        plan = pv.Plan(
            pv.Poisson(0.3),
            epochs=1,
            schedule=pv.schedules.Constant(start=2.0),
            front=before,
            examples=30,
        )
        result = pv.dpsgd(
            plan,
            torch.nn.Linear(2, K),
            torch.nn.CrossEntropyLoss(reduction="none"),
            data,
            streams=pv.Streams.new(0),
        )
        (kept,) = [
            module.get_buffer("indices").tolist()
            for module in result.model
            if isinstance(module, Keep)
        ]
        (chosen,) = result.facts["chosen"]
        names = (
            {}
            if before[0].kind == "pca"
            else {"names": [data.feature_names[index] for index in kept]}
        )
        assert chosen == {"indices": kept, **names}
        assert result.plan == plan
        with tempfile.TemporaryDirectory() as name:
            out = publish.publish(result, Path(name) / "model", delta=1e-5)
            assert verify.verify(out).ok
            assert "| chosen, the best first |" in (out / "README.md").read_text()
        again = in_two_pieces(plan, data)
        assert again.facts == result.facts


@check
def check_stated_choices_are_those_of_the_plan() -> None:
    """As many choices as the plan has selections, each of as many features as are kept, each
    feature once.
    """
    selects = pv.Plan(pv.Poisson(0.3), front=(SelectFeatures(2, 4.0, K, R, B),), examples=30)
    for plan, facts in ((settled(), {}), (selects, {"examples": 30, "steps": 4 * 30})):
        assert plan.follows(facts | {"chosen": [{"indices": [3, 1]}]}) == []
        for forged in (
            [],
            None,
            {"indices": [3, 1]},
            [{"indices": [3, 1]}] * 2,
            [{"indices": [1]}],
            [{"indices": [1, 1]}],
            [{"indices": [1, -1]}],
            [{"indices": [1, "2"]}],
            [{}],
            [[1, 2]],
            [None],
        ):
            must_raise(
                Exception,
                lambda plan=plan, facts=facts, forged=forged: plan.follows(
                    facts | {"chosen": forged}
                ),
            )  # type: ignore[misc]
        must_raise(BadInput, lambda plan=plan, facts=facts: plan.follows(facts))  # type: ignore[misc]
    must_raise(BadInput, lambda: settled(keep=4).follows({"chosen": [{"indices": [0, 1, 2, 3]}]}))


@check
def check_targets_are_met_to_the_last_digits() -> None:
    """Of rho always, and of epsilon where all releases are Gaussian; never exceeded, for groups
    neither.
    """
    for settled_plan in EVERY_PLAN[::2]:
        gumbel = (
            isinstance(settled_plan, ChoosingPlan)
            and settled_plan.selects
            and settled_plan.selection.by_gumbel
        )
        near = 3e-3 if gumbel or getattr(settled_plan, "labels", "") == "randomised" else 1e-9
        for target, close in (({"rho": 0.3}, 1e-12), ({"epsilon": 2.0, "delta": 1e-5}, near)):
            for size in (1, 3):
                plan = replace(settled_plan, noise_multiplier=None, group_size=size)
                found = plan.calibrate(**target)  # type: ignore[arg-type]
                assert found.budget is not None
                spent = found.budget.spent(found.event(), found.neighbours)
                assert found.budget.limit * (1 - close) <= spent <= found.budget.limit, (
                    plan,
                    target,
                    spent,
                )
                assert found.guarantee(1e-5).epsilon <= 2.0 or "rho" in target


@check
def check_nobody_has_more_rows_than_are_protected() -> None:
    """Person ids are held against the declared bound before anything is spent; they change nothing
    else.
    """
    x, y = some_rows()
    for size, most in ((1, 1), (3, 2), (2, 2)):
        plan = settled(group_size=size)
        found = pv.statistics.fisher(
            plan, pv.Dataset(x, y, groups=np.arange(40) // most), streams=pv.Streams.new(0)
        )
        usual = pv.statistics.fisher(plan, (x, y), streams=pv.Streams.new(0))
        assert torch.equal(found.model(x.float()), usual.model(x.float()))
        assert found.ledger.unit.group_size == size
        ledger, more = pv.Ledger(), pv.Dataset(x, y, groups=np.arange(40) // (size + 1))
        must_raise(
            pv.errors.BadInput,
            lambda plan=plan, more=more, ledger=ledger: pv.statistics.fisher(
                plan, more, ledger=ledger
            ),
        )  # type: ignore[misc]
        assert not list(walk(ledger.event))
