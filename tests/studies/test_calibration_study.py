"""The study of log losses beside the best temperature's: what it measures by."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privlearn_studies import calibration
from privlearn_studies.calibration import best_temperature, log_loss, measure


def test_the_best_temperature_is_what_scores_were_multiplied_by() -> None:
    draw = np.random.default_rng(0)
    scores = 2 * draw.normal(size=(20_000, 3))
    chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    labels = (chances.cumsum(1) > draw.random((len(scores), 1))).argmax(1)
    true = -np.log(chances[np.arange(len(labels)), labels]).mean()
    assert log_loss(scores, labels) == pytest.approx(true)
    for factor in (0.5, 1.0, 6.0):
        found, least = best_temperature(factor * scores, labels)
        assert found == pytest.approx(factor, rel=0.05)
        assert least == pytest.approx(true, rel=1e-3)
    wrong = np.array([[0.0, 1000.0]])
    assert log_loss(wrong, np.array([0])) == pytest.approx(-math.log(1e-6))


def test_the_oracle_is_never_worse_and_the_former_rule_has_its_own_noise() -> None:
    outcome = measure(0, name="breast-cancer", epsilon=3.0)
    assert outcome.best <= min(outcome.log_loss, outcome.before)
    assert outcome.before_temperature != outcome.temperature
    assert outcome.log_loss < calibration.GOAL * outcome.best
