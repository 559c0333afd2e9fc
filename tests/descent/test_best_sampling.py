"""`sampling="best"`: the least noise in the weights, for the same neighbours; what it needs; what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

import privlearn as pv
from privlearn import solving
from privlearn.accounting.guarantee import Adjacency
from privlearn.descent import best_sampling, rules
from privlearn.descent.choices import Facts, TrainRequest
from privlearn.errors import PrivlearnError

EXAMPLES = 60_000


def settled(**chosen: Any) -> rules.Settled:
    usual = {"epsilon": 4.0, "epochs": 5, "batch_size": 600}
    return rules.settle(TrainRequest(**usual | chosen), Facts(EXAMPLES))


@pytest.mark.parametrize("more", [{"adjacency": "zero_out"}, {"examples": EXAMPLES}, {"optimizer": "Adam"}], ids=str)
def test_no_other_choice_leaves_less_noise(more: dict[str, Any]) -> None:
    best = settled(sampling="best", **more)
    explained = {own.name: own for own in best.settings("SGD", 1.0)}
    assert explained["batches"].value == best.plan.sampling.kind
    assert "least noise" in (explained["batches"].why or "given")
    assert best.plan.correlation is None or "least noise" in (explained["mechanism"].why or "given")
    noise = solving.noise_in_weights(best.plan, EXAMPLES)
    correlated = "optimizer" not in more
    assert (best.plan.correlation is not None) == (correlated and best.plan.neighbours is Adjacency.ZERO_OUT)
    for name, mechanism in best_sampling.choices("independent", correlated=correlated):
        try:
            other = settled(sampling=name, mechanism=mechanism, **more)
        except PrivlearnError:
            continue
        if other.plan.neighbours is best.plan.neighbours:
            assert noise <= solving.noise_in_weights(other.plan, EXAMPLES), (name, mechanism)


def test_neighbours_are_those_of_poisson_sampling() -> None:
    """Which samplers are best never decides what the guarantee protects."""
    for more in ({}, {"examples": EXAMPLES}, {"adjacency": "zero_out"}):
        assert settled(sampling="best", **more).plan.neighbours is settled(**more).plan.neighbours


def test_a_given_mechanism_stays() -> None:
    best = settled(sampling="best", mechanism="banded:bands=4", adjacency="zero_out")
    assert best.plan.correlation == pv.mechanisms.Banded(4)
    assert isinstance(best.plan.sampling, pv.sampling.CyclicPartition)


@pytest.mark.parametrize(
    "more",
    [
        {"noise_multiplier": 1.0, "epsilon": None},
        {"solve": "epochs", "noise_multiplier": 1.0},
        {"mechanism": "bisr:bands=4", "examples": EXAMPLES},
    ],
    ids=str,
)
def test_what_cannot_be_compared_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(PrivlearnError):
        settled(sampling="best", **more)


def test_a_model_is_trained_by_it() -> None:
    result = pv.train(pv.load("digits"), epsilon=4.0, sampling="best", adjacency="zero_out", epochs=3)
    assert result.plan.correlation is not None
    assert result.ledger.event == result.plan.event()
