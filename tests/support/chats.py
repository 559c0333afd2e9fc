"""Made-up chats and pairs of answers, a tokenizer with a chat template, and a small model for
them.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from tests.support import texts as made

WORDS, LENGTH = 30, 16
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "{% for turn in messages %}"
    "{% if turn['role'] == 'user' %}<|user|> {{ turn['content'] }} </s> "
    "{% else %}<|assistant|> {% generation %}{{ turn['content'] }} </s>{% endgeneration %} "
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|> {% endif %}"
)


def require_trl() -> Any:
    """The module, or skip."""
    made.require_transformers()
    pytest.importorskip("peft", reason="peft is not installed")
    os.environ.setdefault("CI", "1")  # TRL counts its users elsewhere
    trl = pytest.importorskip("trl", reason="trl is not installed")
    pytest.importorskip("datasets").disable_progress_bars()
    return trl


def tokenizer() -> Any:
    """One token a word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = (*SPECIAL, *(f"w{number}" for number in range(WORDS)))
    words = {word: number for number, word in enumerate(names)}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    whole = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )
    whole.chat_template = TEMPLATE
    return whole


def llama(seed: int = 1) -> Any:
    """Llama, sized down."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(SPECIAL) + WORDS,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=64,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
    )


def lora(**changes: Any) -> Any:
    """Adapters for it, away from zero, so that gradients reach both of their halves."""
    from peft import LoraConfig

    usual = {"r": 2, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}
    return LoraConfig(task_type="CAUSAL_LM", **{**usual, **changes})


def chats(rows: int = 12, seed: int = 0) -> Any:
    """A data set of prompts and completions."""
    return _rows(rows, seed, "completion")


def pairs(rows: int = 12, seed: int = 0) -> Any:
    """A data set of prompts, each with a preferred and a rejected answer."""
    return _rows(rows, seed, "chosen", "rejected")


def _rows(rows: int, seed: int, *answers: str) -> Any:
    from datasets import Dataset

    rng = torch.Generator().manual_seed(seed)

    def turn(role: str) -> list[dict[str, str]]:
        length = int(torch.randint(2, 6, (1,), generator=rng))
        words = torch.randint(WORDS, (length,), generator=rng).tolist()
        return [{"role": role, "content": " ".join(f"w{word}" for word in words)}]

    made_rows = [
        {"prompt": turn("user"), **{name: turn("assistant") for name in answers}}
        for _ in range(rows)
    ]
    return Dataset.from_list(made_rows)


def settings(kind: Any, folder: Any, **changes: Any) -> Any:
    """`SFTConfig` or `DPOConfig`: plain gradient descent, nothing printed."""
    usual = {
        "per_device_train_batch_size": 4,
        "num_train_epochs": 2,
        "learning_rate": 0.5,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_length": LENGTH,
        "bf16": False,
        "report_to": [],
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
    }
    return kind(output_dir=str(folder), **{**usual, **changes})


def trainer(kind: str, folder: Any, changes: dict[str, Any] | None = None, **given: Any) -> Any:
    """`SFTTrainer` or `DPOTrainer` of TRL, or a private one, on 12 rows."""
    trl = require_trl()
    import privlearn as pv

    preferences = "DPO" in kind
    args = settings(trl.DPOConfig if preferences else trl.SFTConfig, folder, **(changes or {}))
    private = kind.startswith("Private")
    target = {"epsilon": 8.0, "delta": 1e-3} if private and "plan" not in given else {}
    usual = {
        "model": llama(),
        "train_dataset": pairs() if preferences else chats(),
        "processing_class": tokenizer(),
        **target,
    }
    return getattr(pv.huggingface if private else trl, kind)(args=args, **{**usual, **given})
