"""Runs by Accelerate's, Lightning's, Hugging Face's and Opacus's doors, for processes that
something else starts.

`python -m tests.ranks.doors FOLDER NAME...` publishes each model to FOLDER/NAME, and writes what
each process got.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.data import DataLoader, TensorDataset

import privlearn as pv
from privlearn.core.clipping.sharded.models import is_sharded
from privlearn.runs.shards import whole_state
from tests.support import texts as made
from tests.support.checks import must_raise
from tests.support.vision import make_torchvision_importable

make_torchvision_importable()
PROCESSES = 2
SPENT: Any = {"epsilon": 4.0, "delta": 1e-3, "epochs": 2, "max_grad_norm": 0.5}


def rows() -> TensorDataset:
    made_up = torch.Generator().manual_seed(1)
    x = torch.randn(40, 4, generator=made_up)
    return TensorDataset(x, (x[:, 0] > 0).long())


def streams(*, discrete: bool = True) -> pv.Streams:
    """Each process brings its own; the first one's are used. On a grid no bit depends on the number
    of processes.
    """
    return pv.Streams.new(7 + _rank(), discrete=discrete)


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def accelerate(folder: Path) -> pv.Result:
    """A custom loop, all of whose objects were prepared by an Accelerator."""
    from accelerate import Accelerator, DataLoaderConfiguration

    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True)
    )
    torch.manual_seed(_rank())
    net: Any = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    scheduler: Any = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    loader: Any = DataLoader(rows(), batch_size=8, shuffle=True)

    def loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    if accelerator.num_processes > 1:
        each = Accelerator(cpu=True).prepare(loader)
        refused = must_raise(
            pv.errors.BadInput, lambda: pv.make_private(net, optimizer, each, **SPENT)
        )
        assert "split_batches=True" in str(refused)
    net, optimizer, loader, scheduler = accelerator.prepare(net, optimizer, loader, scheduler)
    private = pv.make_private(net, optimizer, loader, **SPENT, streams=streams())
    for batch in private.batches():
        private.step(batch, loss)
        scheduler.step()
    private.publish(folder)
    return private.result()


def lightning(folder: Path) -> pv.Result:
    """Lightning's Trainer; in one process with the strategy for one."""
    import lightning.pytorch as pl

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 2)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            right = (self.net(batch[0]).argmax(1) == batch[1]).float().mean()
            self.log("right", right, sync_dist=True)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    alone = os.environ.get("WORLD_SIZE") == "1"
    torch.manual_seed(_rank())
    kind = pv.lightning.PrivateStrategy if alone else pv.lightning.PrivateDDPStrategy
    private = kind(epsilon=4.0, delta=1e-3, max_grad_norm=0.5, streams=streams(discrete=False))
    trainer = pl.Trainer(
        strategy=private,
        devices=1 if alone else PROCESSES,
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(
        Classifier(),
        DataLoader(rows(), batch_size=8, shuffle=True),
        DataLoader(rows(), batch_size=20),
    )
    private.publish(folder)
    return private.result


def transformers(folder: Path) -> pv.Result:
    """The Trainer of transformers."""
    args = made.arguments(folder.parent / "progress", save_strategy="steps", save_steps=4)
    trainer = pv.huggingface.PrivateTrainer(
        made.gpt2(_rank()),
        args,
        train_dataset=made.texts(),
        data_collator=made.padded,
        epsilon=8.0,
        delta=1e-3,
        max_length=made.LENGTH,
        streams=streams(),
    )
    trainer.train()
    trainer.publish(folder)
    return trainer.result


def shard(model: nn.Module, blocks: Iterable[nn.Module]) -> None:
    """Put the model under FSDP2, where there are several processes."""
    if _several():
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        for block in (*blocks, model):
            fully_shard(block)


def _several() -> bool:
    return os.environ.get("WORLD_SIZE") != "1"


def _half_frozen() -> Any:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    net[0].requires_grad_(False)
    return net


def _losses(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]).float(), batch[1], reduction="none")


def sharded_accelerate(folder: Path) -> pv.Result:
    """A custom loop in bfloat16 whose model is under FSDP2, half of it frozen; the loader and the
    optimizer are prepared.
    """
    from accelerate import Accelerator, DataLoaderConfiguration

    configuration = DataLoaderConfiguration(split_batches=True)
    accelerator = Accelerator(cpu=True, dataloader_config=configuration)
    net = _half_frozen()
    shard(net, [net[0], net[2]])
    optimizer: Any = torch.optim.SGD(net[2].parameters(), lr=0.5, momentum=0.9)
    loader: Any = DataLoader(rows(), batch_size=8, shuffle=True)
    optimizer, loader = accelerator.prepare(optimizer, loader)
    private = pv.make_private(
        net, optimizer, loader, **SPENT, streams=streams(discrete=False), precision="bf16"
    )
    for batch in private.batches():
        private.step(batch, _losses)
    private.publish(folder)
    return private.result()


def sharded_lightning(folder: Path) -> pv.Result:
    """Lightning's Trainer in bfloat16, of a module under FSDP2, half of it frozen."""
    import lightning.pytorch as pl

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = _half_frozen()

        def configure_model(self) -> None:
            if not is_sharded(self):
                shard(self, [self.net[0], self.net[2]])

        def forward(self, x: Tensor) -> Any:
            return self.net(x)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return _losses(self, batch).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.net[2].parameters(), lr=0.2, momentum=0.9)

    alone = os.environ.get("WORLD_SIZE") == "1"
    kind = pv.lightning.PrivateStrategy if alone else pv.lightning.PrivateDDPStrategy

    def fit(loss: Any) -> Any:
        own: Any = {"epsilon": 4.0, "delta": 1e-3, "max_grad_norm": 0.5, "loss": loss}
        private = kind(**own, streams=streams(discrete=False))
        pl.Trainer(
            strategy=private,
            devices=1 if alone else PROCESSES,
            accelerator="cpu",
            precision="bf16-mixed",
            max_epochs=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        ).fit(Classifier(), DataLoader(rows(), batch_size=8, shuffle=True))
        return private

    if not alone:
        refused = must_raise(pv.errors.BadInput, lambda: fit(None))
        assert "PrivateStrategy(loss=...)" in str(refused), refused
        refused = must_raise(
            pv.errors.BadInput, lambda: fit(lambda model, batch: _losses(model.net, batch))
        )
        assert "call model(...)" in str(refused), refused
    private = fit(_losses)
    private.publish(folder)
    return private.result


def sharded_transformers(folder: Path) -> pv.Result:
    """The Trainer of transformers in bfloat16, of a model under FSDP2 with adapters (LoRA)."""
    from peft import LoraConfig, get_peft_model

    chosen = LoraConfig(r=2, lora_alpha=4, target_modules=["c_attn"], init_lora_weights=False)
    model: Any = made.gpt2(3)
    model = get_peft_model(model, chosen)
    shard(model, [*model.base_model.model.transformer.h])
    return _with_transformers(folder, model, bf16=True)


def sharded_by_settings_of_transformers(folder: Path) -> pv.Result:
    """The Trainer of transformers, which shards all parameters of a model as its settings say, and
    computes activations again.
    """
    fsdp = {"fsdp": True, "fsdp_config": {"reshard_after_forward": False}}
    model = made.gpt2(3, n_layer=2)
    settings = {"gradient_checkpointing": True, **(fsdp if _several() else {})}
    result = _with_transformers(folder, model, **settings)
    gathered_alone = [module for module in model.modules() if isinstance(module, FSDPModule)]
    assert len(gathered_alone) == (3 if _several() else 0)  # two blocks, and what is around them
    return result


def sharded_by_a_setting_of_transformers(folder: Path) -> pv.Result:
    """The same by `fsdp="full_shard"`, in bfloat16, with adapters (LoRA)."""
    from peft import LoraConfig, get_peft_model

    chosen = LoraConfig(r=2, lora_alpha=4, target_modules=["c_attn"], init_lora_weights=False)
    model: Any = get_peft_model(made.gpt2(3), chosen)
    fsdp = {"fsdp": "full_shard auto_wrap"} if _several() else {}
    result = _with_transformers(folder, model, bf16=True, **fsdp)
    assert is_sharded(model) == _several()
    return result


def _with_transformers(folder: Path, model: Any, **settings: Any) -> pv.Result:
    args = made.arguments(
        folder.parent / f"progress of {folder.name}",
        save_strategy="steps",
        save_steps=4,
        **settings,
    )
    trainer = pv.huggingface.PrivateTrainer(
        model,
        args,
        train_dataset=made.texts(),
        data_collator=made.padded,
        epsilon=8.0,
        delta=1e-3,
        max_length=made.LENGTH,
        streams=streams(discrete=False),
    )
    trainer.train()
    trainer.publish(folder)
    return trainer.result


def opacus(folder: Path) -> pv.Result:
    """A script in Opacus's form, by its wrapper for several processes, in physical batches."""
    torch.manual_seed(_rank())
    net = pv.opacus.DifferentiallyPrivateDistributedDataParallel(
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    engine = pv.opacus.PrivacyEngine()
    model, own, loader = engine.make_private_with_epsilon(
        module=net,
        optimizer=optimizer,
        data_loader=DataLoader(rows(), batch_size=8),
        target_epsilon=4.0,
        target_delta=1e-3,
        epochs=2,
        max_grad_norm=0.5,
        streams=streams(),
    )
    with pv.opacus.BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=3, optimizer=own
    ) as batches:
        for _ in range(2):
            for x, y in batches:
                own.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                own.step()
    engine.publish(folder)
    return engine.run.result()


DOORS = {
    "accelerate": accelerate,
    "lightning": lightning,
    "opacus": opacus,
    "sharded_accelerate": sharded_accelerate,
    "sharded_by_settings_of_transformers": sharded_by_settings_of_transformers,
    "sharded_by_a_setting_of_transformers": sharded_by_a_setting_of_transformers,
    "sharded_lightning": sharded_lightning,
    "sharded_transformers": sharded_transformers,
    "transformers": transformers,
}


def go(folder: Path, name: str) -> None:
    """Train by a door, publish, and write this process's weights and events."""
    result = DOORS[name](folder / name)
    torch.save(
        [
            whole_state(result.model, keep=True) or result.model.state_dict(),
            str(result.ledger.event),
            result.facts,
        ],
        folder / f"{name} of process {_rank()}",
    )


if __name__ == "__main__":
    for named in sys.argv[2:]:
        go(Path(sys.argv[1]), named)
