"""Batch norms that are replaced."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import privlearn as pv


def network() -> Any:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    net = nn.Sequential(body, nn.Flatten(), nn.BatchNorm1d(4 * 16), nn.Linear(4 * 16, 3))
    for _ in range(3):
        net(torch.randn(8, 1, 6, 6) * 2 + 1)  # the public data
    return net


def test_frozen_norms_compute_what_evaluation_did_and_are_private() -> None:
    net, x = network(), torch.randn(5, 1, 6, 6)
    wanted = net.eval()(x)
    with pytest.raises(pv.errors.NotPerExample):
        pv.models.require_per_example(net, x)
    trained = list(net.parameters())
    assert pv.models.replace_batch_norm(net, frozen=True) is net
    assert torch.allclose(net.train()(x), wanted, atol=1e-5)
    assert list(map(id, net.parameters())) == list(map(id, trained))
    pv.models.require_per_example(net, x)
    plan = pv.Plan(pv.Poisson(0.5), epochs=1).calibrate(epsilon=4.0, delta=1e-3)
    data = (torch.randn(20, 1, 6, 6), torch.arange(20) % 3)
    result = pv.dpsgd(plan, net, nn.CrossEntropyLoss(reduction="none"), data)
    assert result.ledger.event == plan.event()


def test_group_norms_take_over_weights() -> None:
    net = network()
    weight = net[0][1].weight
    pv.models.replace_batch_norm(net, groups=4)
    assert isinstance(net[0][1], nn.GroupNorm)
    assert net[0][1].weight is weight
    pv.models.require_per_example(net, torch.randn(5, 1, 6, 6))
    alone = pv.models.replace_batch_norm(nn.BatchNorm2d(6), groups=3)
    assert isinstance(alone, nn.GroupNorm)


def test_what_cannot_be_replaced_is_named() -> None:
    with pytest.raises(pv.errors.BadInput, match=r"'0\.1'"):
        pv.models.replace_batch_norm(network(), groups=3)
    for given in ({}, {"frozen": True, "groups": 2}):
        with pytest.raises(pv.errors.BadInput, match="give one"):
            pv.models.replace_batch_norm(network(), **given)
    with pytest.raises(pv.errors.BadInput, match="no running statistics"):
        pv.models.replace_batch_norm(nn.BatchNorm2d(3, track_running_stats=False), frozen=True)
