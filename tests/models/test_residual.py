"""Wide residual networks: their sizes, norms, and that they treat examples one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import privlearn as pv
from privlearn.errors import BadInput
from privlearn.models.residual import ResidualBlock, StandardisedConv2d

SMALL: dict[str, Any] = {"depth": 10, "width": 1, "channels": 4, "groups": 2}


def test_the_usual_network_is_a_wrn_16_4() -> None:
    network = pv.models.wide_resnet((3, 32, 32), 10)
    convolutions = [part for part in network.modules() if isinstance(part, nn.Conv2d)]
    shortcuts = 3
    assert len(convolutions) + 1 - shortcuts == 14
    assert all(isinstance(part, StandardisedConv2d) for part in convolutions)
    assert 2.7e6 < sum(weights.numel() for weights in network.parameters()) < 2.8e6
    assert not any(isinstance(part, nn.BatchNorm2d) for part in network.modules())


@pytest.mark.parametrize("scale_norm", [False, True])
@pytest.mark.parametrize("standardised", [False, True])
def test_examples_are_treated_one_by_one(scale_norm: bool, standardised: bool) -> None:
    torch.manual_seed(0)
    network = pv.models.wide_resnet(
        (8, 8), 3, standardised=standardised, scale_norm=scale_norm, **SMALL
    )
    x = torch.randn(4, 8, 8)
    pv.models.require_per_example(network, x)
    plan = pv.Plan(pv.Poisson(0.5), epochs=1).calibrate(epsilon=4.0, delta=1e-3)
    data = (torch.randn(12, 8, 8), torch.arange(12) % 3)
    result = pv.dpsgd(plan, network, nn.CrossEntropyLoss(reduction="none"), data)
    assert result.ledger.event == plan.event()


def test_scale_norm_brings_a_blocks_sum_to_mean_0_and_variance_1() -> None:
    torch.manual_seed(0)
    x = 5 + 10 * torch.randn(6, 4, 8, 8)
    for scale_norm in (False, True):
        block = ResidualBlock(4, 4, 1, groups=2, standardised=True, scale_norm=scale_norm)
        groups = block(x).view(6, 2, -1)
        is_normal = torch.allclose(groups.mean(2), torch.zeros(6, 2), atol=1e-4) and torch.allclose(
            groups.var(2, unbiased=False), torch.ones(6, 2), atol=1e-3
        )
        assert is_normal is scale_norm


def test_standardised_filters_have_mean_0_and_the_fan_ins_variance() -> None:
    torch.manual_seed(0)
    layer = StandardisedConv2d(8, 3, 3, bias=False)
    with torch.no_grad():
        layer.weight.add_(2.0)
    kernel = torch.zeros(72, 8, 3, 3)
    kernel.view(72, 72).fill_diagonal_(1.0)
    filters = layer(kernel).view(72, 3)
    assert torch.allclose(filters.mean(0), torch.zeros(3), atol=1e-5)
    assert torch.allclose(filters.square().sum(0), torch.ones(3), atol=1e-2)


@pytest.mark.parametrize(
    "wrong",
    [{"depth": 12}, {"depth": 4}, {"groups": 3}, {"scale_norm": 1}, {"width": 0}, {"classes": -1}],
)
def test_sizes_that_do_not_fit_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        pv.models.wide_resnet(**{"input_shape": (8, 8), "classes": 3, **SMALL, **wrong})


def test_it_is_a_factory_of_the_option_model() -> None:
    data = pv.load("digits")
    from dataclasses import replace

    few = replace(data, x=data.x[:100], y=data.y[:100])
    result = pv.train(
        few,
        epsilon=4.0,
        delta=1e-3,
        epochs=1,
        model=lambda shape: pv.models.wide_resnet(shape, 10, **SMALL),
    )
    assert result.model(torch.zeros(2, 8, 8)).shape == (2, 10)
