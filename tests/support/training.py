"""Small runs through every door, by a clip, a sampler, a schedule and a correlation of anyone's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import privlearn as pv
from privlearn.errors import UnsoundExtension
from tests.support.checks import must_raise

ROWS, FEATURES, CLASSES = 60, 5, 3
LOSS = nn.CrossEntropyLoss(reduction="none")


def rows() -> tuple[Tensor, Tensor]:
    y = torch.arange(ROWS) % CLASSES
    x = nn.functional.one_hot(y, FEATURES).float() + 0.1 * torch.randn(
        ROWS, FEATURES, generator=torch.manual_seed(0)
    )
    return x, y


def net(shape: Any = None) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, CLASSES))


def by_dpsgd(plan: pv.Plan, x: Tensor | None = None, ledger: pv.Ledger | None = None) -> pv.Result:
    """A run of DP-SGD, on rows `x` or the usual ones."""
    usual, y = rows()
    x = usual if x is None else x
    data = pv.Dataset(x.numpy(), y.numpy()[: len(x)], classes=CLASSES)
    return pv.dpsgd(plan, net, LOSS, data, ledger=ledger, streams=pv.Streams.new(0))


def by_make_private(**options: Any) -> None:
    """Two epochs of `make_private`."""
    model = net()
    given = {"epsilon": 4.0, "delta": 1e-5, "epochs": 2, "streams": pv.Streams.new(0)} | options
    given |= {} if "clip" in given else {"max_grad_norm": 0.2}
    loader = DataLoader(TensorDataset(*rows()), batch_size=20)
    private = pv.make_private(model, torch.optim.SGD(model.parameters(), lr=1.0), loader, **given)
    for batch in private.batches():
        private.step(batch, LOSS)


def by_train(**options: Any) -> pv.Result:
    """`pv.train`."""
    x, y = rows()
    given = {
        "epsilon": 4.0,
        "epochs": 2,
        "learning_rate": 1.0,
        "streams": pv.Streams.new(0),
    } | options
    return pv.train(pv.Dataset(x.numpy(), y.numpy(), classes=CLASSES), **given)


def must_be_refused(name: str, action: Callable[[], Any], ledger: pv.Ledger | None = None) -> None:
    """`action` is refused, by the name of the class that breaks its word; a ledger was not
    charged.
    """
    error = must_raise(UnsoundExtension, action)
    assert name in str(error), error
    assert ledger is None or not ledger.event.events, ledger.event
