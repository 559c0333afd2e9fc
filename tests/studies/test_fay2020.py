"""Figures of the studies of PATE: by hand, by formula, and what is kept of a run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from privlearn_studies import registry
from privlearn_studies.fay2020 import activation, pca, vectors, votes
from privlearn_studies.fay2020.votes import shifted
from privlearn_studies.runs import Outcome, Store


def test_the_loss_by_hand_and_the_papers_noise() -> None:
    """Five eigenvalues under a noise variance of 0.6, and eq. 15 at the paper's own setting."""
    losses = {row.label.split("l = ")[-1]: row for row in pca._by_hand()}
    for length, expected in enumerate((9.6, 5.2, 2.8, 2.4, 2.5, 3.0)):
        assert losses[str(length)].ours == pytest.approx(expected)
        assert losses[str(length)].paper == expected
    assert next(row.ours for row in pca._by_hand() if row.metric == "components by the rule") == 3
    noise, truth = pca._noises()
    assert (noise.paper, noise.ours) == (
        pytest.approx(1.282564, abs=1e-6),
        pytest.approx(1.073343, abs=1e-6),
    )
    assert (truth.paper, truth.ours) == (8.0, pytest.approx(6.337492, abs=1e-5))


def test_the_activation_is_as_uniform_as_it_is_said_to_be() -> None:
    rows = {
        (row.label, row.metric): row.ours
        for row in registry.find("pate-activation").run(quick=True).rows
    }
    assert activation.sup_distance() == (
        pytest.approx(-1.7318, abs=1e-3),
        pytest.approx(0.0176712, abs=1e-7),
    )
    # a Kolmogorov distance that chance exceeds once in 8,000 times
    by_chance = 2.2 / math.sqrt(20_000)
    for (label, metric), ours in rows.items():
        if metric.startswith("radius^l"):
            assert 0.0177 - by_chance < ours < 0.0177 + by_chance
        elif metric.startswith("direction"):
            assert ours < by_chance
        elif metric == "largest norm":
            assert ours < 1
        elif metric == "largest norm, less 1":
            assert ours < 2e-7, label
    radius = {metric: ours for (label, metric), ours in rows.items() if "first input" in label}
    assert radius["radius, as printed"] == 0
    assert radius["radius, stable form"] == pytest.approx(0.224017, abs=1e-6)
    assert radius["radius"] == pytest.approx(0.224017, abs=1e-6)
    # Where the printed form does not overflow, both are one.
    for first in (-50.0, -3.0, 0.0, 4.0):
        assert activation._stable(first, 64) == pytest.approx(
            float(activation.printed(first, 64)), rel=1e-5
        )


def test_images_are_moved_by_two_pixels_at_most_and_nothing_is_added() -> None:
    images = torch.zeros(500, 28, 28)
    images[:, 14, 10] = 1.0
    with torch.random.fork_rng():
        torch.manual_seed(0)
        moved = shifted(images)
    assert torch.equal(moved.sum((1, 2)), torch.ones(500))
    places = {(int(row), int(column)) for _, row, column in moved.nonzero()}
    assert places == {(row, column) for row in range(12, 17) for column in range(8, 13)}


def test_runs_of_pate_are_found_again(tmp_path: Path) -> None:
    """What is written for a run gives the same outcome; different settings have different keys,
    also across studies.
    """
    reached = Outcome(
        teacher=0.9,
        plurality=0.92,
        answers=(0.9, 0.8),
        test=((0.8, 0.9, 0.95),) * 2,
        epsilons=(2.0, 2.0),
    )
    for call in (votes.train.at(), vectors.train.at(teachers=250, epsilon=1.0)):
        store = Store(tmp_path / f"{call.function.name}.jsonl")
        store.keep(call.key(3), reached)
        assert list(store.read().values()) == [reached]
    vote, vector = votes.train.at(), vectors.train.at(teachers=250, epsilon=2.0)
    keys = [
        json.dumps(one.key(seed), sort_keys=True)
        for seed in (0, 1)
        for one in (
            vote,
            vote.but(teachers=100),
            vote.but(queries=(400,)),
            vote.but(epsilon=1.0),
            vote.but(first=9),
            vector,
            vector.but(epsilon=1.0),
            vector.but(teachers=100),
            vector.but(private=9),
        )
    ]
    assert len(set(keys)) == len(keys)


def test_the_closed_form_is_what_is_measured_where_it_must_be() -> None:
    """Targets of known variances, without clipping: the loss by formula, and the rule at its
    least.
    """
    rng = np.random.default_rng(0)
    variances = np.array([9.0, 4.0, 1.0, 0.25, 0.01])
    public, unseen = (
        torch.from_numpy(rng.standard_normal((rows, 5)) * np.sqrt(variances)).float()
        for rows in (4000, 1000)
    )
    from privlearn import Dataset
    from privlearn.methods.pate import Ball, PatePlan, PublicPCA

    every = PublicPCA.fit(Dataset(public, public, public=True))
    plan = PatePlan(1000, 40, Ball(20.0), noise_multiplier=0.8)
    assert plan.noise_std == pytest.approx(0.8)
    losses = [every.loss(plan.noise_std, length) for length in range(1, 6)]
    found = [pca.measured([plan], every.kept(length), unseen, 7)[0] for length in range(1, 6)]
    assert found == pytest.approx(losses, rel=0.08)
    assert int(np.argmin(found)) + 1 == every.best(plan.noise_std) == 3
