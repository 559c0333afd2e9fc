"""`sampling="best"`: the least noise in the weights, for the same neighbours; what it needs; what
it refuses.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

import privlearn as pv
from privlearn.core import solving
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.errors import PrivlearnError
from privlearn.training import best_sampling, rules
from privlearn.training.choices import Facts, TrainRequest

EXAMPLES = 60_000


def settled(**chosen: Any) -> rules.Settled:
    usual = {"epsilon": 4.0, "epochs": 5, "batch_size": 600}
    return rules.settle(TrainRequest(**usual | chosen), Facts(EXAMPLES))


@pytest.mark.parametrize(
    "more", [{"adjacency": "zero_out"}, {"examples": EXAMPLES}, {"optimizer": "Adam"}], ids=str
)
def test_no_other_choice_leaves_less_noise(more: dict[str, Any]) -> None:
    best = settled(sampling="best", **more)
    explained = {own.name: own for own in best.settings("SGD", 1.0)}
    assert explained["batches"].value == best.plan.sampling.kind
    assert "least noise" in (explained["batches"].why or "given")
    assert best.plan.correlation is None or "least noise" in (explained["mechanism"].why or "given")
    noise = solving.noise_in_weights(best.plan, EXAMPLES)
    correlated = "optimizer" not in more
    assert (best.plan.correlation is not None) == (
        correlated and best.plan.neighbours is Adjacency.ZERO_OUT
    )
    for name, mechanism in best_sampling.choices(None, correlated=correlated):
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


def test_given_neighbours_need_no_price_of_poisson_sampling() -> None:
    best = settled(sampling="best", adjacency="replace_one").plan
    assert best.neighbours is Adjacency.REPLACE_ONE
    with pytest.raises(PrivlearnError):
        settled(adjacency="replace_one")


@pytest.mark.parametrize(
    "mechanism", ["independent", pv.mechanisms.Banded(4), "banded:bands=4"], ids=str
)
def test_a_given_mechanism_stays(mechanism: Any) -> None:
    best = settled(sampling="best", mechanism=mechanism, adjacency="zero_out")
    assert best.plan.correlation == (
        None if mechanism == "independent" else pv.mechanisms.Banded(4)
    )
    assert isinstance(best.plan.sampling, pv.sampling.Partition | pv.sampling.CyclicPartition)
    assert best.request.mechanism == mechanism


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
    result = pv.train(
        pv.load("digits"), epsilon=4.0, sampling="best", adjacency="zero_out", epochs=3
    )
    assert result.plan.correlation is not None
    assert result.ledger.event == result.plan.event()


@pytest.mark.parametrize(
    "more", [{"sampling": "best"}, {"sampling": "fixed", "mechanism": "banded"}], ids=str
)
def test_an_undeclared_number_of_rows_counts(more: dict[str, Any]) -> None:
    """Six steps an epoch have room for six bands, though the plan doesn't state how many rows there
    are.
    """
    result = pv.train(pv.load("digits"), epsilon=2.0, epochs=2, **more)
    assert result.plan.examples is None
    assert getattr(result.plan.correlation, "bands", 1) <= 6


def test_noise_on_a_grid_stays_independent() -> None:
    streams = pv.Streams.new(0, discrete=True)
    chosen: dict[str, Any] = {
        "epsilon": 8.0,
        "epochs": 2,
        "adjacency": "zero_out",
        "batch_size": 50,
    }
    result = pv.train(pv.load("digits"), sampling="best", streams=streams, **chosen)
    assert result.plan.correlation is None
    with pytest.raises(PrivlearnError, match="grid"):
        pv.train(
            pv.load("digits"),
            sampling="cyclic-partition",
            mechanism="banded",
            streams=streams,
            **chosen,
        )


@pytest.mark.parametrize("way", [None, "random-stopping"])
def test_an_estimator_says_that_noise_is_on_a_grid(way: str | None) -> None:
    options = {"sampling": "best", "adjacency": "zero_out", "epochs": 2, "batch_size": 50}
    common: dict[str, Any] = {
        "epsilon": 8.0,
        "delta": 1e-3,
        "random_state": pv.Streams.new(0, discrete=True),
    }
    made: Any = pv.sklearn.DPClassifier(classes=range(2), bounds=(0, 1), options=options, **common)
    if way is not None:
        made = made.set_params(random_state=None)
        made = pv.sklearn.DPSearchCV(made, {"model": ["linear", "mlp:4"]}, way=way, **common)
    rows = torch.rand(600, 4).numpy()
    fitted = made.fit(rows, (rows[:, 0] < 0.5).astype(int))
    plans = (
        [fitted.result_.plan]
        if way is None
        else [own.plan for own in fitted.result_.plan.candidates]
    )
    assert all(plan.correlation is None for plan in plans)


def test_a_sampler_and_a_matrix_are_taken_as_they_are() -> None:
    digits, own = pv.load("digits"), pv.sampling.CyclicPartition(batches=6, cycle=4)
    chosen: dict[str, Any] = {"epsilon": 4.0, "epochs": 2, "sampling": own}
    result = pv.train(digits, mechanism=pv.mechanisms.Banded(3), **chosen)
    assert result.plan.sampling == own
    assert result.plan.correlation == pv.mechanisms.Banded(3)
    assert pv.train(digits, **chosen).plan.correlation is None
    with pytest.raises(PrivlearnError, match="at most 4 bands"):
        pv.train(digits, mechanism="banded:bands=8", **chosen)
    with pytest.raises(PrivlearnError, match="leave out batch_size"):
        pv.train(digits, batch_size=50, **chosen)
    with pytest.raises(PrivlearnError, match="sampling is 5"):
        pv.train(digits, **chosen | {"sampling": 5})


def loop(optimizer: Any = optim.SGD, **chosen: Any) -> pv.Run:
    model = nn.Linear(4, 2)
    loader = DataLoader(TensorDataset(torch.zeros(240, 4), torch.zeros(240).long()), batch_size=10)
    usual = {"epsilon": 4.0, "delta": 1e-3, "epochs": 2, "max_grad_norm": 1.0}
    return pv.make_private(model, optimizer(model.parameters(), 0.1), loader, **usual | chosen)


@pytest.mark.parametrize(
    "more", [{}, {"adjacency": "zero_out"}, {"examples": 240}, {"mechanism": "banded"}], ids=str
)
def test_a_loop_takes_what_leaves_the_least_noise(more: dict[str, Any]) -> None:
    """By every plan that a loop can name, one after another."""
    with loop(sampling="best", **more) as private:
        best, poisson = (
            private.plan,
            loop(**{name: own for name, own in more.items() if name != "mechanism"}),
        )
    assert best.neighbours is poisson.plan.neighbours
    noise = solving.noise_in_weights(best, 240)
    for name, mechanism in best_sampling.choices(more.get("mechanism"), correlated=True):
        try:
            other = loop(**more | {"sampling": name, "mechanism": mechanism}).plan
        except PrivlearnError:
            continue
        if other.neighbours is best.neighbours:
            assert noise <= solving.noise_in_weights(other, 240), (name, mechanism)
    assert (best.correlation is None) == (more == {"examples": 240})


@pytest.mark.parametrize(
    "more",
    [
        {"optimizer": optim.Adam},
        {"mechanism": "independent"},
        {"streams": pv.Streams.new(0, discrete=True)},
    ],
    ids=["Adam", "given", "grid"],
)
def test_noise_of_a_loop_stays_independent(more: dict[str, Any]) -> None:
    with loop(sampling="best", adjacency="zero_out", **more) as private:
        assert private.plan.correlation is None
        assert not isinstance(private.plan.sampling, pv.Poisson)
        for batch in private.batches():
            private.step(batch, nn.CrossEntropyLoss(reduction="none"))
        assert private.ledger.event == private.plan.event()


def test_a_loop_without_a_target_is_refused() -> None:
    with pytest.raises(PrivlearnError, match="give epsilon= or rho="):
        loop(sampling="best", epsilon=None, noise_multiplier=1.0)


@pytest.mark.parametrize("bands", [2, 8])
def test_a_loop_keeps_the_sampler_that_it_is_given(bands: int) -> None:
    """It is taken as it is, or refused: never replaced by one that suits the mechanism."""
    own = pv.sampling.CyclicPartition(batches=6, cycle=4)
    chosen: dict[str, Any] = {"sampling": own, "mechanism": pv.mechanisms.Banded(bands)}
    if bands > own.cycle:
        with pytest.raises(PrivlearnError, match="at most 4 bands"):
            loop(**chosen)
    else:
        with loop(**chosen) as private:
            assert private.plan.sampling == own
