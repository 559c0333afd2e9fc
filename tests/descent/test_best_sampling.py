"""`sampling="best"`: the least noise in the weights, for the same neighbours; what it needs; what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

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


@pytest.mark.parametrize("more", [{"sampling": "best"}, {"sampling": "fixed", "mechanism": "banded"}], ids=str)
def test_an_undeclared_number_of_rows_counts(more: dict[str, Any]) -> None:
    """Six steps an epoch have room for six bands, though the plan doesn't state how many rows there are."""
    result = pv.train(pv.load("digits"), epsilon=2.0, epochs=2, **more)
    assert result.plan.examples is None
    assert getattr(result.plan.correlation, "bands", 1) <= 6


def test_noise_on_a_grid_stays_independent() -> None:
    streams = pv.Streams.new(0, discrete=True)
    chosen: dict[str, Any] = {"epsilon": 8.0, "epochs": 2, "adjacency": "zero_out", "batch_size": 50}
    result = pv.train(pv.load("digits"), sampling="best", streams=streams, **chosen)
    assert result.plan.correlation is None
    with pytest.raises(PrivlearnError, match="grid"):
        pv.train(pv.load("digits"), sampling="cyclic-partition", mechanism="banded", streams=streams, **chosen)


@pytest.mark.parametrize("bands", [2, 8])
def test_a_loop_keeps_the_sampler_that_it_is_given(bands: int) -> None:
    """It is taken as it is, or refused: never replaced by one that suits the mechanism."""
    from torch import nn, optim
    from torch.utils.data import DataLoader, TensorDataset

    own, model = pv.sampling.CyclicPartition(batches=6, cycle=4), nn.Linear(4, 2)
    loader = DataLoader(TensorDataset(torch.zeros(240, 4), torch.zeros(240).long()), batch_size=10)

    def begun() -> Any:
        return pv.make_private(
            model, optim.SGD(model.parameters(), 0.1), loader, epsilon=4.0, delta=1e-3, epochs=2, max_grad_norm=1.0,
            sampling=own, mechanism=pv.mechanisms.Banded(bands),
        )  # fmt: skip

    if bands > own.cycle:
        with pytest.raises(PrivlearnError, match="at most 4 bands"):
            begun()
    else:
        private = begun()
        assert private.plan.sampling == own
        private.close()
