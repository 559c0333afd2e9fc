"""Figures of DP-MAC with a source. Numbers marked [maths] were derived and checked independently of
this code.
"""

from __future__ import annotations

import math

import pytest
import torch

import privlearn as pv
from privlearn.core.accounting import accountant, rdp
from privlearn.core.accounting.events import Event, Repeated, compose
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian, PoissonSampled
from privlearn.core.clipping.derivative_bounds import shares_of_parts
from privlearn.methods.dpmac import analytic, network

DELTA = 1e-5


def figure(event: Event, method: str, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> float:
    return next(
        each.epsilon
        for each in accountant.guarantees(event, adjacency, DELTA)
        if each.method == method
    )


@pytest.mark.parametrize(
    ("sigma", "epochs", "by_rdp"), [(1.0, 30, 4.7515), (2.8, 30, 1.0809), (8.0, 10, 0.1842)]
)
def test_the_classifiers_sigmas_without_pca(sigma: float, epochs: int, by_rdp: float) -> None:
    """Harder et al. 2019, Table 2: MNIST, batches of 1000 of 60,000 [maths]. With the PCA:
    `test_dpmac_settings`.
    """
    plan = pv.Plan(
        pv.Poisson(1 / 60),
        epochs=epochs,
        schedule=pv.schedules.Constant(start=sigma),
        clip=pv.mac.Derivatives(0.3),
    )
    assert rdp.epsilon(plan.event(), DELTA) == pytest.approx(by_rdp, rel=1e-2)


@pytest.mark.parametrize(
    ("sigma", "batch", "by_rdp", "by_moments"),
    [
        (1.8, 500, 6.975, 7.7248),
        (3.1, 500, 3.4527, 3.9408),
        (4.1, 250, 1.6814, 1.9893),
        (7.8, 250, 0.8163, None),
    ],
)
def test_the_autoencoders_sigmas(
    sigma: float, batch: int, by_rdp: float, by_moments: float | None
) -> None:
    """Harder et al. 2019, Table 2: USPS, 50 epochs, claimed 8, 4, 2 and 1 [maths]."""
    event = Repeated(PoissonSampled(batch / 5000, Gaussian(sigma)), 50 * 5000 // batch)
    assert rdp.epsilon(event, DELTA) == pytest.approx(by_rdp, rel=1e-2)
    if by_moments is not None:
        assert figure(event, "moments-2016") == pytest.approx(by_moments, abs=1e-3)


@pytest.mark.parametrize(
    ("sigma", "epochs", "pca", "by_zcdp"),
    [(1.0, 30, 4.0, 41.3412), (2.8, 30, 8.0, 11.3269), (8.0, 10, 16.0, 2.0004)],
)
def test_fixed_batches_cost_what_they_cost(
    sigma: float, epochs: int, pca: float, by_zcdp: float
) -> None:
    """The released code's batches in fixed order, claimed 8, 2 and 0.5: zCDP, conversion of 2016,
    zero-out [maths].
    """
    plan = pv.Plan(
        pv.sampling.FixedOrder(1000),
        epochs=epochs,
        schedule=pv.schedules.Constant(start=sigma),
        clip=pv.mac.Derivatives(0.3),
        front=(pv.transforms.PrivatePCA(60, pca),),
    )
    assert plan.neighbours is Adjacency.ZERO_OUT
    assert figure(plan.event(), "zcdp-2016", Adjacency.ZERO_OUT) == pytest.approx(by_zcdp, abs=1e-3)
    assert plan.guarantee(DELTA).epsilon < by_zcdp
    with pytest.raises(pv.errors.UnsupportedEvent):
        pv.Plan(pv.sampling.FixedOrder(1000), adjacency=Adjacency.ADD_REMOVE)


def test_sensitivities_at_zero_weights() -> None:
    """Softplus, 3 units, T = 1, no bias [maths]: Da 4.842491, Db 2.200566, dT 2.200566, DC
    0.983154.
    """
    found = analytic.hidden(torch.zeros(3, 4), network.SOFTPLUS, 1.0, 1.0)
    assert found.constant == pytest.approx(4.842491, abs=1e-5)
    assert found.linear == pytest.approx(2.200566, abs=1e-5)
    assert found.gradient == pytest.approx(2.200566, abs=1e-5)
    assert found.curvature == pytest.approx(0.983154, abs=1e-5)


def test_sensitivities_at_half_weights() -> None:
    """Softplus and binary cross-entropy, 4 inputs, 3 units, all weights 1/2, T = 1 [maths]."""
    weight = torch.full((3, 4), 0.5)
    found = analytic.hidden(weight, network.SOFTPLUS, 1.0, 1.0)
    expected = (5.192622, 2.269459, 4.787901, 1.622909)
    for own, figure in zip(
        (found.constant, found.linear, found.gradient, found.curvature), expected, strict=True
    ):
        assert own == pytest.approx(figure, abs=1e-5)
    output = analytic.binary(weight, 1.0)
    expected = (2.079442, 0.925689, 1.266231, 0.216506)
    for own, figure in zip(
        (output.constant, output.linear, output.gradient, output.curvature), expected, strict=True
    ):
        assert own == pytest.approx(figure, abs=1e-5)


def test_softplus_constants() -> None:
    """Suprema over all arguments [maths]: of g^2 + k u^2 f, |s g - k u f|, s^2 + k f, and k u^2."""
    everywhere = network._softplus_suprema(torch.tensor([1e3], dtype=torch.float64))
    assert float(everywhere.constant) == pytest.approx(1.277894, abs=3e-6)
    assert float(everywhere.rest) == pytest.approx(0.346574, abs=1e-6)
    assert float(everywhere.bend) == pytest.approx(1.045334, abs=3e-6)
    assert float(everywhere.cross) == pytest.approx(2 * math.log(2), abs=3e-6)
    assert float(everywhere.tilt) == pytest.approx(1.0, abs=3e-6)
    u = torch.linspace(-40, 40, 800_001, dtype=torch.float64)
    assert float((network.SOFTPLUS.curvature(u) * u * u).max()) == pytest.approx(0.439229, abs=1e-6)


def test_noise_of_the_joint_release() -> None:
    """Threshold 0.3, two layers, sigma 2.8: 1.187939 on a sum, 5.939697e-4 after division by 2 x
    1000 [maths].
    """
    share = shares_of_parts(pv.mac.Derivatives(0.3), 2)[0]
    assert 2.8 * 0.3 / share == pytest.approx(1.187939, abs=1e-6)
    assert 2.8 * 0.3 / share / 2000 == pytest.approx(5.939697e-4, abs=1e-10)


def test_pca_and_training_are_one_guarantee() -> None:
    """At the paper's sigma for epsilon 2, by privacy loss distributions: 1.1003 [maths]."""
    plan = pv.Plan(
        pv.Poisson(1 / 60),
        epochs=30,
        schedule=pv.schedules.Constant(start=2.8),
        clip=pv.mac.Derivatives(0.3),
        front=(pv.transforms.PrivatePCA(60, 8.0),),
    )
    assert plan.event() == compose(
        [Gaussian(8.0), Repeated(PoissonSampled(1 / 60, Gaussian(2.8)), 1800)]
    )
    assert plan.guarantee(DELTA).epsilon == pytest.approx(1.1003, rel=2e-3)
