"""Named checks of modules that are no longer Python's, and of rows that are mixed, at every door;
mutations must make them fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import privlearn as pv
from privlearn.errors import BadInput, NotPerExample
from tests.loop.checks import X, Y, loader, private
from tests.support.checks import check, must_raise


def doors(model: Any) -> list[Callable[[], Any]]:
    """Calls that would train a model."""
    plan = pv.Plan(pv.Poisson(0.25), epochs=1, clip=pv.Flat(1.0)).calibrate(epsilon=3, delta=1e-3)
    loss = nn.CrossEntropyLoss(reduction="none")
    engine = pv.opacus.PrivacyEngine()
    given = {"noise_multiplier": 1.0, "max_grad_norm": 1.0}

    def sgd() -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    return [
        lambda: pv.make_private(model, sgd(), loader(), epochs=1, **given),
        lambda: pv.dpsgd(plan, model, loss, (X, Y)),
        lambda: pv.Run(plan, model, loss, (X, Y)),
        lambda: pv.opacus.ModuleValidator.validate(model),
        lambda: engine.make_private(
            module=model, optimizer=sgd(), data_loader=loader(), epochs=1, **given
        ),
    ]


@check
def check_compiled_modules_are_refused_by_name_at_every_door() -> None:
    """Also within another module; the module that they were made from is trained."""
    plain = nn.Sequential(nn.Linear(X.shape[1], 3))
    exported = torch.export.export(plain, (X[:3],)).module()
    scripted, traced = torch.jit.script(plain), torch.jit.trace(plain, X[:3])
    for model, maker in (
        (scripted, "torch.jit"),
        (traced, "torch.jit"),
        (exported, "torch.export"),
    ):
        for whole in (model, nn.Sequential(nn.Identity(), model)):
            for door in doors(whole):
                error = must_raise(BadInput, door)
                assert f"was made by {maker}" in str(error), error
    program = torch.export.export(plain, (X[:3],))
    for door in doors(program)[1:3]:
        assert "expected a torch.nn.Module" in str(must_raise(BadInput, door))
    doors(plain)[1]()


@check
def check_what_mixes_rows_is_refused_with_what_to_do() -> None:
    """A loss, or a collate function, that takes an even number of rows, or several."""
    rows = TensorDataset(X, Y)

    def paired(batch: list[Any]) -> Any:
        assert len(batch) % 2 == 0, "the batch size has to be even"
        return torch.utils.data.default_collate(batch)

    error = must_raise(
        BadInput, lambda: private(None, DataLoader(rows, batch_size=15, collate_fn=paired))
    )
    assert "takes one row at a time" in str(error), error

    def even(model: nn.Module, batch: Any) -> Tensor:
        assert len(batch[0]) % 2 == 0, "the batch size has to be even"
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    error = must_raise(BadInput, lambda: private(loss=even))
    assert "has to be even. It is called with any number of examples" in str(error), error

    def mixed(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(model((x + x.flip(0)) / 2), y, reduction="none")

    must_raise(NotPerExample, lambda: private(loss=mixed))
