"""Named checks of a private `fit` that was interrupted and goes on."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import privlearn as pv
from privlearn.errors import BadInput
from privlearn.runs import Checkpoint
from tests.support.checks import check, must_raise


def _parts() -> Any:
    pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    from tests.lightning import test_lightning

    return test_lightning


def _fitted(folder: Path, kind: str, *, stop: int = 0, kept: bool = True) -> tuple[Any, ...]:
    """A fit of four epochs of five steps, which may be kept in a file, and end after a step."""
    parts = _parts()
    from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint

    class Stops(Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == stop:
                raise ValueError("stop")

    class Scheduled(parts.Classifier):  # type: ignore[misc,name-defined]
        def configure_optimizers(self) -> Any:
            if kind == "OneCycleLR":
                return parts.OneCycle.configure_optimizers(self)
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            if kind == "MultiStepLR":
                return [optimizer], [torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3])]
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=0)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": plateau, "monitor": "right"},
            }

        optimizers_for = parts.OneCycle.optimizers_for

    stopping = EarlyStopping("right", mode="max", patience=99)
    keeping = ModelCheckpoint(folder / "saved", monitor="right", mode="max", save_top_k=-1)
    file = Checkpoint(folder / "run.private", every=1e-9)
    private = parts.strategy(
        ledger=pv.Ledger(pv.Budget(4.0, 1e-3)), **({"checkpoint": file} if kept else {})
    )
    trainer, module, private = parts.fitted(
        folder,
        Scheduled(),
        private,
        max_epochs=4,
        callbacks=[Stops(), stopping, keeping],
        enable_checkpointing=True,
    )
    return trainer, module, private, stopping, keeping


@check
def check_an_interrupted_fit_ends_where_it_would_have_ended() -> None:
    """Bit for bit: within an epoch, at its end, and after the last step; with the schedulers', the
    callbacks' and the Trainer's own state, and the same charge.
    """
    for kind, stops in {"OneCycleLR": [7], "MultiStepLR": [7, 10], "Plateau": [10]}.items():
        with tempfile.TemporaryDirectory() as name:
            whole = _fitted(Path(name), kind, kept=False)
        for stop in stops:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                error = must_raise(ValueError, partial(_fitted, folder, kind, stop=stop))
                assert str(error) == "stop"
                for _ in range(2):  # the second time nothing is left to take
                    again = _fitted(folder, kind)
                    for one, other in zip(
                        whole[1].parameters(), again[1].parameters(), strict=True
                    ):
                        assert torch.equal(one, other), (kind, stop)
                    assert again[2].result.ledger.event == whole[2].result.ledger.event
                    assert again[2].result.facts == whole[2].result.facts
                    for attribute in ("global_step", "current_epoch", "callback_metrics"):
                        now, expected = (getattr(each[0], attribute) for each in (again, whole))
                        assert now == expected, (kind, stop, attribute)
                    assert again[3].wait_count == whole[3].wait_count
                    assert len(again[4].best_k_models) == len(whole[4].best_k_models) == 4
                best = again[2].publish(folder / "model", ckpt_path="best")
                assert pv.verify(best).ok
                assert not (folder / "run.private").exists()


@check
def check_lightnings_checkpoint_does_not_resume_a_run() -> None:
    """Its noise would be drawn anew: the message names what goes on."""
    parts = _parts()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trainer, *_ = _fitted(folder, "MultiStepLR")
        path = trainer.checkpoint_callback.best_model_path
        again = parts.pl.Trainer(
            strategy=parts.strategy(), max_epochs=2, accelerator="cpu", logger=False
        )
        error = must_raise(
            BadInput, lambda: again.fit(parts.Classifier(), parts.loader(), ckpt_path=path)
        )
        assert "PrivateStrategy(checkpoint=" in str(error)
    error = must_raise(BadInput, lambda: pv.lightning.PrivateDDPStrategy(checkpoint="x"))
    assert "one process" in str(error)


@check
def check_a_state_that_needs_pickling_is_refused_at_the_beginning() -> None:
    """Of a callback; nothing is spent."""
    parts = _parts()
    from lightning.pytorch.callbacks import Callback

    class Keeps(Callback):  # type: ignore[misc]
        def state_dict(self) -> dict[str, Any]:
            return {"object": object()}

    ledger = pv.Ledger(pv.Budget(4.0, 1e-3))
    with tempfile.TemporaryDirectory() as name:
        private = parts.strategy(ledger=ledger, checkpoint=Path(name) / "run.private")
        error = must_raise(
            BadInput, lambda: parts.fitted(Path(name), private=private, callbacks=[Keeps()])
        )
    assert "without pickling" in str(error)
    assert ledger.event == pv.Ledger().event
