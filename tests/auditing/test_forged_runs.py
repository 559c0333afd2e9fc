"""A run of 1,000 steps with one that was forged, replayed 400 times: found as often as is said."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import privlearn as pv
from privlearn.auditing import Transcript, commit, replay
from tests.auditing.checks_replay import at_step, rows, without_noise


def train(checkpoint: Any) -> Any:
    plan = pv.Plan(pv.sampling.Poisson(0.05), 50, pv.schedules.Constant(1.0), examples=40)
    torch.manual_seed(3)
    return pv.dpsgd(
        plan, nn.Linear(3, 2), nn.CrossEntropyLoss(reduction="none"), rows(), checkpoint=checkpoint
    )


@pytest.mark.nightly
def test_one_forged_step_of_a_thousand_is_found_as_often_as_said(tmp_path: Path) -> None:
    folder = tmp_path / "transcript"
    commit(rows(), folder, train)
    with at_step(503, without_noise):
        train(Transcript(folder, steps=20))
    reports = [
        replay(folder, train, steps=50, choice=bytes([number % 256, number // 256]))
        for number in range(400)
    ]
    assert {(report.steps, report.replayed, report.parts) for report in reports} == {(1000, 60, 50)}
    expected, caught = 1 - reports[0].escape(1), sum(not report.agrees for report in reports)
    assert expected == pytest.approx(3 / 50)
    assert abs(caught - 400 * expected) < 4.5 * math.sqrt(400 * expected * (1 - expected)), caught
    print(f"{caught} of 400 found, expected {400 * expected:.1f}")
