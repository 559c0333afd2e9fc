"""Training, evaluation and predictions on a device, by the loops of other libraries, give the
processor's figures.

Run by test_device_faults.py in a process that has the simulated device, and by `pytest
tests/runs/doors_on_simulated.py` on CUDA.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import privlearn as pv
from tests.support import texts
from tests.support.devices import ACCELERATOR
from tests.support.simulated.device import is_installed

pytestmark = pytest.mark.filterwarnings("ignore")


def streams() -> pv.Streams:
    return pv.Streams.new(5, cipher="chacha20")


def rows(seed: int, number: int = 40) -> TensorDataset:
    random = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (number,), generator=random)
    return TensorDataset(torch.randn(number, 4, generator=random) + F.one_hot(y, 4), y)


def lightning_on(device: str, folder: Path) -> tuple[dict[str, float], Tensor, Tensor]:
    """Metrics, predictions and weights."""
    pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

    class Classifier(pl.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            with torch.device("cpu"):
                torch.manual_seed(3)
                self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def _right(self, name: str, batch: Any) -> None:
            assert batch[0].device.type == device
            self.log(name, (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self._right("validated", batch)

        def test_step(self, batch: Any, batch_idx: int) -> None:
            self._right("tested", batch)

        def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
            return self.net(batch[0]).softmax(1)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    class Simulated(pl.accelerators.Accelerator):  # type: ignore[name-defined, misc]
        """Lightning knows no other accelerators than its own."""

        def setup_device(self, device: torch.device) -> None:
            assert device.type == ACCELERATOR

        def teardown(self) -> None: ...

        @staticmethod
        def parse_devices(devices: Any) -> int:
            return 1

        @staticmethod
        def get_parallel_devices(devices: Any) -> list[torch.device]:
            return [torch.device(ACCELERATOR, 0)]

        @staticmethod
        def auto_device_count() -> int:
            return 1

        @staticmethod
        def is_available() -> bool:
            return True

        @staticmethod
        def name() -> str:
            return ACCELERATOR

    private = pv.lightning.PrivateStrategy(
        epsilon=4.0, delta=1e-3, max_grad_norm=0.5, streams=streams(), device=device
    )
    trainer = pl.Trainer(
        strategy=private,
        accelerator=Simulated() if device not in ("cpu", "cuda") else device,
        devices=1,
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
    )
    module, others = Classifier(), DataLoader(rows(1), batch_size=16)
    trainer.fit(module, DataLoader(rows(0), batch_size=8, shuffle=True), others)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    metrics |= trainer.validate(module, others, verbose=False)[0]
    metrics |= trainer.test(module, others, verbose=False)[0]
    predicted = torch.cat([part.cpu() for part in trainer.predict(module, others)])
    return metrics, predicted, weights_of(module)


def trainer_on(device: str, folder: Path) -> tuple[dict[str, float], Tensor, Tensor]:
    """Metrics, predictions and weights."""
    texts.require_transformers()
    from accelerate import PartialState
    from accelerate.state import AcceleratorState
    from transformers import TrainingArguments

    place = torch.device("cpu") if device == "cpu" else torch.device(device, 0)

    class Arguments(TrainingArguments):  # type: ignore[misc]
        """Accelerate knows no other accelerators than its own."""

        @property
        def _setup_devices(self) -> torch.device:
            super()._setup_devices  # noqa: B018 - sets what else is asked for
            PartialState._shared_state["device"] = place
            return place

    with torch.device("cpu"):
        still = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        # weights that are shared are not, once the simulated device has them
        model = texts.gpt2(1, tie_word_embeddings=False, **still)
    AcceleratorState._reset_state(reset_partial_state=True)
    changes = {"logging_steps": 1000, "num_train_epochs": 1, "optim": "sgd"}
    args = Arguments(**{**texts.settings(folder), **changes, "use_cpu": device != "cuda"})
    trainer = pv.huggingface.PrivateTrainer(
        model,
        args,
        train_dataset=texts.texts(),
        eval_dataset=texts.texts(12, 7),
        data_collator=texts.padded,
        epsilon=8.0,
        delta=1e-3,
        max_length=texts.LENGTH,
        streams=streams(),
    )
    trainer.train()
    assert next(model.parameters()).device.type == device
    metrics = trainer.evaluate()
    predicted = trainer.predict(texts.texts(12, 7))
    metrics |= predicted.metrics
    metrics = {name: value for name, value in metrics.items() if name.endswith("loss")}
    return metrics, torch.as_tensor(predicted.predictions), weights_of(model)


def weights_of(module: nn.Module) -> Tensor:
    return torch.cat([weight.detach().cpu().flatten() for weight in module.parameters()])


@pytest.mark.parametrize("run", [lightning_on, trainer_on])
def test_figures_are_the_processors(run: Any, tmp_path: Path) -> None:
    """Of validation, test and predictions after private training."""
    here, there = (run(device, tmp_path / device) for device in ("cpu", ACCELERATOR))
    assert here[0].keys() == there[0].keys()
    for name, value in here[0].items():
        assert there[0][name] == pytest.approx(value, abs=1e-4), name
    assert torch.allclose(here[1], there[1], atol=1e-3)
    assert torch.allclose(here[2], there[2], atol=1e-4)
    assert is_installed() or ACCELERATOR == "cuda"
