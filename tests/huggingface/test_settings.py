"""Settings of `TrainingArguments` that people use run, or are refused by name, as the page says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import privlearn as pv
from tests.support import texts as made

made.require_transformers()

from privlearn.huggingface import PrivateTrainer, unsupported  # noqa: E402

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
        "use_cache": False,
    },
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(len(RUNS)))
def test_settings_run(number: int, tmp_path: Path) -> None:
    trainer = PrivateTrainer(
        made.bert("ForSequenceClassification"),
        made.arguments(tmp_path / "runs", **RUNS[number]),
        train_dataset=made.labelled(),
        eval_dataset=made.labelled(4, 1),
        data_collator=made.padded,
        epsilon=8.0,
        delta=1e-3,
        max_length=made.LENGTH,
    )
    trainer.train()
    assert trainer.result.facts["steps"] == trainer.state.global_step
    assert pv.verify(trainer.publish(tmp_path / "model")).ok


def test_the_page_names_what_is_refused() -> None:
    table = _PAGE.read_text().split("### What is refused")[1].split("## Lightning")[0]
    assert [name for name in unsupported._ARGUMENTS if f"`{name}" not in table] == []


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
