"""A run that was left early can be published: it says so, and its claim is for all that was
approved.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import privlearn as pv

X = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def left(steps: int) -> pv.Result:
    plan = pv.Plan(pv.Poisson(0.25), epochs=3, clip=pv.Flat(1.0)).calibrate(epsilon=3.0, delta=1e-5)
    net = nn.Sequential(nn.Flatten(), nn.Linear(6, 2))
    run = pv.Run(
        plan, net, nn.CrossEntropyLoss(reduction="none"), (X, Y), streams=pv.Streams.new(0)
    )
    taken = 0
    for epoch in run:
        for batch in epoch:
            run.step(batch)
            taken += 1
            if taken == steps:
                return run.result()
    return run.result()


@pytest.mark.parametrize("steps", [1, 4, 7])
def test_it_is_published_with_the_claim_of_the_whole_plan(steps: int, tmp_path: Path) -> None:
    result = left(steps)
    assert result.facts["steps"] == steps
    assert result.facts["left_early"] is True
    out = pv.publish(result, tmp_path / "model", model_spec="linear", classes=2)
    found = pv.verify(out)
    assert found.ok
    assert found.epsilon == pytest.approx(result.plan.guarantee(1e-5).epsilon)
    assert "left early" in (out / "README.md").read_text()
    assert torch.equal(pv.load_model(out)(X), result.model(X))


def test_steps_that_do_not_go_with_the_plan_are_named() -> None:
    facts, plan = left(4).facts, left(4).plan
    assert plan.follows(facts) == []
    whole = {name: value for name, value in facts.items() if name != "left_early"}
    for forged in (
        whole,
        facts | {"steps": 13},
        facts | {"steps": -1},
        facts | {"left_early": "yes"},
    ):
        assert any("steps are stated" in problem for problem in plan.follows(forged))
    assert plan.follows(whole | {"steps": 12}) == []
