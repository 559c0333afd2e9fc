"""The study of learned thresholds: both sides spend the same, and have as many tries."""

from __future__ import annotations

import pytest

from privlearn.core.accounting.events import tally
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn_studies.harder2020 import thresholds
from privlearn_studies.harder2020.thresholds import EPSILONS, GIVEN, LEARNED, NOISE, tries
from privlearn_studies.harder2020.training import DELTA, plan_of
from tests.studies.test_training_studies import MadeUp


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_both_sides_meet_the_target_with_the_histogram_counted(epsilon: float) -> None:
    calls = tries(epsilon)
    given, learned = (
        [call for key, call in calls.items() if key[1] == side] for side in (GIVEN, LEARNED)
    )
    assert len(given) == len(learned) == len(thresholds.QUANTILES)
    fixed, by_histogram = plan_of(given[0].setting), plan_of(learned[0].setting)
    for plan in (fixed, by_histogram):
        assert 0.995 * epsilon < plan.guarantee(DELTA).epsilon <= epsilon
    assert Gaussian(NOISE) in tally(by_histogram.event())
    assert Gaussian(NOISE) not in tally(fixed.event())
    assert by_histogram.noise_multipliers()[0] > fixed.noise_multipliers()[0]


def test_each_side_is_chosen_on_images_held_back() -> None:
    held = {
        (2.0, GIVEN, 0.1): 0.9,
        (2.0, GIVEN, 0.3): 0.95,
        (2.0, LEARNED, 0.5): 0.99,
        (8.0, GIVEN, 1.0): 0.98,
    }
    assert thresholds.chosen(held, 2.0, GIVEN) == (2.0, GIVEN, 0.3)
    assert thresholds.chosen(held, 2.0, LEARNED) == (2.0, LEARNED, 0.5)
    findings = thresholds.run(False, None, MadeUp())
    assert len(findings.rows) == len(EPSILONS) * (2 * 3 + 2 * len(thresholds.QUANTILES))
    assert all(row.seeds == 3 for row in findings.rows if row.ours_std is not None)
