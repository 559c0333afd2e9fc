"""Figures of the studies of DP-MAC that only compute, and what their differences are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from privlearn_studies import registry
from privlearn_studies.harder2020 import taylor
from privlearn_studies.report import apart, mean_row


def test_minima_of_expansions_are_near_the_truth_and_move_with_the_noise() -> None:
    """At 0 softplus has slope 1/2 and curvature 1/4, the logistic function slope 1/4: everything
    follows by hand.
    """
    rows = {
        (row.label.split(" ")[0], row.metric): row
        for row in registry.find("dpmac-taylor").run().rows
    }
    least = "weight with the least objective, exact"
    assert rows["input", least].ours == pytest.approx(-0.7, abs=0.011)
    assert rows["output", least].ours == pytest.approx(0.7, abs=0.011)
    hidden, output = taylor._objectives()
    x, z, y = hidden.inputs, hidden.targets, output.targets
    linear = float(((math.log(2) - z) * x).sum())  # 2 s (f - z) x with s = 1/2
    curvature = float(((1 / 4 + (math.log(2) - z) / 4) * x * x).sum())
    assert hidden.sums() == pytest.approx((linear, curvature))
    assert rows["input", "the same by the second order"].ours == pytest.approx(
        -linear / (2 * curvature)
    )
    assert output.sums() == pytest.approx((float(((0.5 - y) * x).sum()), float((x * x).sum()) / 8))
    spread = rows["output", "spread of the same under noise (half of 16th to 84th percentile)"].ours
    # In the main the linear coefficient moves it: noise of 8 x 2 x its sensitivity of 1/2, over
    # twice the curvature.
    assert spread == pytest.approx(8 * 2 * 0.5 / (2 * output.sums()[1]), rel=0.15)


def test_differences_of_unpaired_seeds_have_welchs_interval() -> None:
    """Against scipy's, for samples of different sizes and spreads; one seed says nothing."""
    rng = np.random.default_rng(0)
    one, other = rng.normal(0.96, 0.002, 10), rng.normal(0.955, 0.0005, 4)
    middle, half = apart(mean_row("", "", one.tolist()), mean_row("", "", other.tolist()))
    interval = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    assert (middle - half, middle + half) == pytest.approx((interval.low, interval.high))
    assert apart(mean_row("", "", [0.5]), mean_row("", "", one.tolist()))[1] == math.inf
    assert apart(mean_row("", "", [0.5, 0.5]), mean_row("", "", [0.25, 0.25])) == (0.25, 0.0)
