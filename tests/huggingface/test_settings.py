"""Settings of `TrainingArguments` that people use run, or are refused by name, as the page says."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

import privlearn as pv
from tests.support import texts as made

transformers = made.require_transformers()

from privlearn.huggingface import PrivateTrainer, sharding, unsupported  # noqa: E402

_PAGE = Path(__file__).parents[2] / "docs/trainers.md"
#: Settings that don't exclude each other, in a few runs.
RUNS: list[dict[str, Any]] = [
    {
        "optim": "adafactor",
        "weight_decay": 0.01,
        "max_grad_norm": 0.5,
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr": 1e-4},
        "warmup_steps": 1,
        "max_steps": 3,
        "gradient_accumulation_steps": 2,
        "per_device_train_batch_size": 4,
        "seed": 3,
        "data_seed": 4,
        "bf16": True,
        "label_smoothing_factor": 0.1,
        "logging_first_step": True,
        "logging_nan_inf_filter": False,
        "include_num_input_tokens_seen": "all",
        "save_strategy": "steps",
        "save_steps": 1,
        "save_total_limit": 1,
        "save_only_model": True,
        "torch_empty_cache_steps": 1,
        "remove_unused_columns": True,
        "run_name": "run",
    },
    {
        "optim": "adamw_torch_fused",
        "adam_beta1": 0.8,
        "adam_beta2": 0.9,
        "adam_epsilon": 1e-6,
        "num_train_epochs": 1,
        "lr_scheduler_type": "reduce_lr_on_plateau",
        "metric_for_best_model": "loss",
        "greater_is_better": False,
        "eval_strategy": "steps",
        "eval_steps": 3,
        "eval_delay": 1,
        "eval_on_start": True,
        "eval_accumulation_steps": 1,
        "per_device_eval_batch_size": 2,
        "include_for_metrics": ["inputs", "loss"],
        "label_names": ["labels"],
        "save_strategy": "best",
        "gradient_checkpointing": True,
        "average_tokens_across_devices": False,
        "use_cache": True,
    },
    {
        "optim": "adamw_torch",
        "optim_args": "fused=False",
        "num_train_epochs": 1,
        "activation_checkpointing": True,
        "activation_checkpointing_kwargs": {"use_reentrant": False},
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "bf16_full_eval": True,
        "prediction_loss_only": True,
        "eval_do_concat_batches": False,
        "eval_strategy": "epoch",
        "logging_strategy": "epoch",
        "log_level": "error",
        "dataloader_num_workers": 1,
        "enable_jit_checkpoint": True,
        "skip_memory_metrics": False,
        "report_to": "all",
        "disable_tqdm": False,
        "use_cpu": True,
    },
    {
        "num_train_epochs": 1,
        "batch_eval_metrics": True,
        "fp16_full_eval": True,
        "remove_unused_columns": False,
        "eval_strategy": "epoch",
        "fsdp": True,  # in one process the model is whole
        "fsdp_config": {"transformer_layer_cls_to_wrap": ["BertLayer"]},
    },
]
#: Of those that training does not follow, the ones that can be changed on any machine.
NOT_FOLLOWED: dict[str, Any] = {
    "average_tokens_across_devices": False,
    "tf32": False,
    "log_on_each_node": False,
    "log_level_replica": "error",
    "project": "mine",
    "save_on_each_node": True,
    "hub_strategy": "end",
    "hub_always_push": True,
    "hub_model_id": "mine",
    "ignore_data_skip": True,
    "restore_callback_states_from_checkpoint": True,
    "accelerator_config": {"even_batches": False},
    "dataloader_persistent_workers": True,
    "dataloader_num_workers": 1,
    "dataloader_prefetch_factor": 3,
    "dataloader_in_order": False,
    "length_column_name": "size",
    "ddp_find_unused_parameters": True,
    "ddp_timeout": 60,
    "do_train": True,
    "do_predict": True,
    "resume_from_checkpoint": "nowhere",
}


def _accuracy(predicted: Any, compute_result: bool = True) -> dict[str, float]:
    return {"rows": 1.0} if compute_result else {}


def trainer_with(folder: Path, settings: dict[str, Any], **privacy: Any) -> PrivateTrainer:
    return PrivateTrainer(
        made.bert("ForSequenceClassification"),
        made.arguments(folder, **settings),
        train_dataset=made.labelled(),
        eval_dataset=made.labelled(4, 1),
        data_collator=made.padded,
        compute_metrics=_accuracy if settings.get("batch_eval_metrics") else None,
        epsilon=8.0,
        delta=1e-3,
        max_length=made.LENGTH,
        **privacy,
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(len(RUNS)))
def test_settings_run(number: int, tmp_path: Path) -> None:
    trainer = trainer_with(tmp_path / "runs", RUNS[number])
    trainer.train()
    assert trainer.result.facts["steps"] == trainer.state.global_step
    trainer.evaluate()
    assert pv.verify(trainer.publish(tmp_path / "model")).ok


def test_blocks_are_sharded_by_themselves_unless_their_weights_are_tied() -> None:
    """BERT's embeddings are a block of transformers, and tied to its head."""
    for model, config, blocks in (
        (made.gpt2(n_layer=2), {}, ["GPT2Block", "GPT2Block"]),
        (made.bert("ForMaskedLM"), {}, ["BertLayer"]),
        (made.bert("ForSequenceClassification"), {}, ["BertLayer", "BertEmbeddings"]),
        (made.gpt2(), {"transformer_layer_cls_to_wrap": "GPT2MLP"}, ["GPT2MLP"]),
        (made.gpt2(), {"auto_wrap_policy": "NO_WRAP"}, []),
    ):
        assert [type(module).__name__ for module in sharding._blocks(model, config)] == blocks
    with pytest.raises(pv.errors.BadInput, match="no module of it"):
        list(sharding._blocks(made.gpt2(), {"transformer_layer_cls_to_wrap": ["BertLayer"]}))


@pytest.mark.filterwarnings("ignore")
def test_settings_that_are_not_followed_change_no_weight(tmp_path: Path) -> None:
    weights = []
    for settings in ({}, NOT_FOLLOWED):
        trainer = trainer_with(tmp_path, {"max_steps": 2, **settings}, streams=pv.Streams.new(4))
        trainer.train()
        weights.append(torch.cat([own.flatten() for own in trainer.model.parameters()]))
    assert torch.equal(*weights)


def _page() -> str:
    return _PAGE.read_text().split("### What is refused")[1].split("## Lightning")[0]


def test_each_setting_runs_or_is_refused_or_is_said_not_to_be_followed() -> None:
    """All those of the version of transformers that the page names; each in one table."""
    page = " ".join(_page().split())
    version = ".".join(transformers.__version__.split(".")[:2])
    if f"transformers {version}, " not in page:
        pytest.skip(f"the page does not count the settings of transformers {version}")
    everything = {field.name for field in fields(transformers.TrainingArguments)}
    tables = [set(unsupported._ARGUMENTS), unsupported.RUNS, unsupported.NOT_FOLLOWED]
    for name in everything:
        assert sum(name in table for table in tables) == 1, name
    usual = {field.name: field.default for field in fields(transformers.TrainingArguments)}
    changed = {
        name
        for settings in RUNS
        for name, value in {**made.settings("unused"), **settings}.items()
        if value != usual[name]
    }
    assert sorted(unsupported.RUNS & everything - changed) == []
    assert [name for name in unsupported._ARGUMENTS if f"`{name}" not in page] == []
    assert [name for name in unsupported.NOT_FOLLOWED if f"`{name}`" not in page] == []
    counts = [len(table & everything) for table in tables]
    assert f"{counts[1]} run, {counts[0]} are refused, and {counts[2]} concern" in page


def test_what_a_refused_setting_advises_is_accepted(tmp_path: Path) -> None:
    """Batches that fit into memory by accumulation, in place of `auto_find_batch_size`; counts of
    expected tokens; evaluation by length.
    """
    changes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    counted = {"include_num_input_tokens_seen": "all"}
    trainer = PrivateTrainer(
        made.gpt2(),
        made.arguments(tmp_path, **changes, **counted, bf16=True, max_steps=1),
        train_dataset=made.texts(),
        eval_dataset=made.texts(4, 1),
        data_collator=made.padded,
        epsilon=8.0,
        delta=1e-3,
        max_length=made.LENGTH,
        evaluate_by_length=True,
        streams=pv.Streams.new(3),
    )
    trainer.train()
    assert trainer.evaluate()["eval_loss"] > 0
