"""Named checks of the weights that a private strategy publishes: those of any step, of the run's
own.
"""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import privlearn as pv
from privlearn.errors import BadInput
from tests.support.checks import check, must_raise


def _parts() -> Any:
    pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    from tests.lightning import test_lightning

    return test_lightning


def _saved(folder: Path, module: Any = None, **settings: Any) -> tuple[Any, Any, Any, list[str]]:
    """A trainer, a module and a strategy that have trained, and the checkpoints of the epochs."""
    parts = _parts()
    from lightning.pytorch.callbacks import ModelCheckpoint

    keeping = ModelCheckpoint(folder / "saved", monitor="right", mode="max", save_top_k=-1)
    fitted = parts.fitted(
        folder,
        module,
        parts.strategy(**settings),
        max_epochs=3,
        callbacks=[keeping],
        enable_checkpointing=True,
    )
    return (*fitted, sorted(keeping.best_k_models))


def _facts(folder: Path) -> dict[str, Any]:
    assert pv.verify(folder).ok
    facts: dict[str, Any] = json.loads((folder / "privacy.json").read_text())["facts"]
    return facts


@check
def check_a_steps_weights_are_published_as_that_steps() -> None:
    """Of a checkpoint that the run wrote, by its name or as the best; with the step in the
    certificate, which claims all. Loaded by the Trainer they are recognised, too.
    """
    parts = _parts()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trainer, module, private, paths = _saved(folder)
        best = trainer.checkpoint_callback.best_model_path
        for number, path in enumerate(paths):
            facts = _facts(private.publish(folder / f"model{number}", ckpt_path=path))
            # the last epoch's are the result itself
            expected = None if number == 2 else 5 * (number + 1)
            assert facts.get("weights_of_step") == expected
            assert facts["steps"] == 15
            loaded = pv.load_model(folder / f"model{number}", parts.Classifier()).network
            weights = torch.load(path, weights_only=True)["state_dict"]
            for key, weight in loaded.state_dict().items():
                assert torch.equal(weight, weights[key])
        step = _facts(private.publish(folder / "best", ckpt_path="best")).get("weights_of_step", 15)
        assert paths[step // 5 - 1] == best
        assert private.result.plan.event() == private.result.ledger.event
        rows = torch.utils.data.DataLoader(parts.rows(1), batch_size=16)
        trainer.validate(module, rows, ckpt_path=paths[0], weights_only=True, verbose=False)
        assert _facts(private.publish(folder / "loaded"))["weights_of_step"] == 5


@check
def check_weights_of_others_are_not_published() -> None:
    """Changed after the run, in a checkpoint or in the module, also those that are frozen; or saved
    after the run, or where a private figure may choose, or beside a mean.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        module = _parts().Classifier()
        module.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        trainer, module, private, paths = _saved(folder, module)

        def refused(said: str, **given: Any) -> None:
            error = must_raise(BadInput, lambda: private.publish(folder / "model", **given))
            assert said in str(error), error

        first = torch.load(paths[0], weights_only=True)
        first["state_dict"]["net.0.weight"][0, 0] += 1e-3
        torch.save(first, folder / "changed.ckpt")
        refused("does not hold weights that this run noted", ckpt_path=folder / "changed.ckpt")
        refused("can't be read as weights", ckpt_path=folder / "none.ckpt")
        with torch.no_grad():
            module.net[0].weight[0, 0] += 1e-3
        refused("were changed after the run")
        trainer.save_checkpoint(folder / "late.ckpt")
        refused("does not hold weights that this run noted", ckpt_path=folder / "late.ckpt")
        with torch.no_grad():
            module.frozen += 1
        refused("were changed after the run", ckpt_path=paths[0])
        with torch.no_grad():
            module.frozen -= 1
        private.private.session.figure_use = "a private figure was compared"
        refused("may follow from private rows", ckpt_path=paths[0])
        private.publish(folder / "last", ckpt_path=paths[-1])  # which nothing chose
    with tempfile.TemporaryDirectory() as name:
        *_, private, paths = _saved(Path(name), average=0.5)
        error = must_raise(BadInput, lambda: private.publish(Path(name) / "x", ckpt_path=paths[0]))
        assert "average=0.5 publishes the mean" in str(error)
        assert _facts(private.publish(Path(name) / "mean"))["average"] == 0.5


@check
def check_a_checkpoint_within_a_step_is_not_noted() -> None:
    """Or of weights that something else changed: nothing is claimed then."""
    parts = _parts()

    class Saving(parts.Classifier):  # type: ignore[misc,name-defined]
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            optimizer.register_step_post_hook(self.save)
            return optimizer

        def save(self, *_: Any) -> None:
            if self.trainer.global_step == 2:
                self.trainer.save_checkpoint(self.trainer.default_root_dir + "/inner.ckpt")

    class Changing(parts.Classifier):  # type: ignore[misc,name-defined]
        def on_train_epoch_end(self) -> None:
            with torch.no_grad():
                self.net[0].weight += 1.0
            self.trainer.save_checkpoint(self.trainer.default_root_dir + "/outer.ckpt")

    def published(module: Any, path: str) -> str:
        with tempfile.TemporaryDirectory() as name:
            *_, private = parts.fitted(Path(name), module, max_epochs=1)
            error = must_raise(
                BadInput,
                lambda: private.publish(Path(name) / "model", ckpt_path=Path(name) / path),
            )
        return str(error)

    said = published(Saving(), "inner.ckpt")
    assert "does not hold weights" in said, said
    assert "nothing can be claimed" in published(Changing(), "outer.ckpt")


@check
def check_a_stated_step_of_weights_was_taken() -> None:
    plan = pv.Plan(pv.Poisson(0.2), epochs=2, clip=pv.Flat(0.5)).calibrate(epsilon=4.0, delta=1e-3)
    facts = {"examples": 40, "steps": 10, "noise": "floating point"}
    assert not plan.follows({**facts, "weights_of_step": 10})
    for more in ({"weights_of_step": 11}, {"weights_of_step": 5, "average": 0.5}):
        assert any(
            "weights_of_step is no step" in problem for problem in plan.follows(facts | more)
        )


@check
def check_frozen_weights_that_a_script_changes_are_named() -> None:
    """A running mean of the weights in the module, also through `.data`: the run would put it back.
    What a step writes is put back, and nothing is said of it. A mean in a callback stays.
    """
    parts = _parts()
    from lightning.pytorch.callbacks import Callback

    class Averaging(parts.Classifier):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.mean = copy.deepcopy(self.net).requires_grad_(False)

        def on_train_batch_end(self, *_: Any) -> None:
            for mean, weight in zip(self.mean.parameters(), self.net.parameters(), strict=True):
                mean.data.mul_(0.9).add_(weight.data, alpha=0.1)

    class Writing(parts.Classifier):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.large = nn.Parameter(torch.zeros(1 << 19), requires_grad=False)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            optimizer.register_step_post_hook(lambda *_: self.large.data.add_(1.0))
            return optimizer

    class Beside(Callback):  # type: ignore[misc]
        def on_train_start(self, trainer: Any, module: Any) -> None:
            self.mean = copy.deepcopy(module.net)

        on_train_batch_end = Averaging.on_train_batch_end

        @property
        def net(self) -> nn.Module:
            return self.mean

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        error = must_raise(BadInput, lambda: parts.fitted(folder, Averaging()))
        assert "'mean.0.weight' was changed between two steps" in str(error)
        assert "average=0.5" in str(error)
        parts.fitted(folder, Writing())
        *_, private = parts.fitted(folder, callbacks=[Beside()])
        assert _facts(private.publish(folder / "model"))["steps"] == 10


@check
def check_training_ends_once_nothing_can_be_claimed() -> None:
    """A scheduler that is given a number by hand: the next step says so. Not at its publication."""
    parts = _parts()

    class ByHand(parts.Classifier):  # type: ignore[misc,name-defined]
        public = False

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=0)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": plateau, "monitor": "right"},
            }

        def on_train_epoch_end(self) -> None:
            right = float(self.trainer.callback_metrics["right"])
            if self.public:
                right = pv.runs.declare_public(right, because="of validation rows")
            self.lr_schedulers().step(right)

    class Declared(ByHand):
        public = True

    ledger = pv.Ledger(pv.Budget(4.0, 1e-3))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        private = parts.strategy(ledger=ledger)
        error = must_raise(BadInput, lambda: parts.fitted(folder, ByHand(), private, max_epochs=3))
        assert "a scheduler was given a number" in str(error)
        assert private.private.steps_done == 6
        *_, private = parts.fitted(folder, Declared(), max_epochs=3)
        assert pv.verify(private.publish(folder / "model")).ok
