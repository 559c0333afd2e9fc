"""A language model of public text gets an adapter (LoRA) of private text.

All text is made by this program, so nothing has to be fetched. It has sentences
of two small grammars, which share their words and differ in which word follows
which. The public one stands for what a model has read before, the private one
for letters of a few hundred people. Runs on two cores in about two minutes:

    python docs/tutorials/private_adapter.py
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import privlearn as pv

WORDS, LENGTH = 60, 24


def sentences(rows: int, seed: int, step: int) -> list[dict[str, list[int]]]:
    """Sentences of 12 to 24 words: after w comes w + step or w + step + 1."""
    rng = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(rows):
        length = int(torch.randint(12, LENGTH + 1, (1,), generator=rng))
        words = [int(torch.randint(WORDS, (1,), generator=rng))]
        for skipped in torch.randint(2, (length - 1,), generator=rng).tolist():
            words.append((words[-1] + step + skipped) % WORDS)
        made.append({"input_ids": [3 + word for word in words]})
    return made


def collate(rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    """A batch, padded to its longest sentence; padding is no target."""
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor(
        [
            row["input_ids"] + [0] * (longest - len(row["input_ids"]))
            for row in rows
        ]
    )
    return {
        "input_ids": ids,
        "attention_mask": (ids > 0).long(),
        "labels": ids.masked_fill(ids == 0, -100),
    }


def arguments(folder: Path, **own: Any) -> TrainingArguments:
    """What both trainings have in common."""
    return TrainingArguments(
        str(folder),
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=100,
        **own,
    )


def main(
    rows: int = 4000, epochs: int = 10, epsilon: float = 3.0
) -> dict[str, float]:
    """Train, publish, verify and load again.

    Returns:
        Perplexities on held-out sentences, and epsilon.
    """
    folder = Path(tempfile.mkdtemp())
    sizes = {
        "vocab_size": 3 + WORDS,
        "n_positions": LENGTH,
        "n_embd": 48,
        "n_layer": 2,
        "n_head": 4,
    }
    model = GPT2LMHeadModel(
        GPT2Config(**sizes, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    )
    public = sentences(rows, seed=1, step=7)
    args = arguments(
        folder,
        num_train_epochs=2,
        per_device_train_batch_size=32,
        learning_rate=3e-3,
    )
    Trainer(model, args, train_dataset=public, data_collator=collate).train()
    base = {name: value.clone() for name, value in model.state_dict().items()}

    private, unseen = (
        sentences(rows, seed=2, step=11),
        sentences(500, seed=3, step=11),
    )
    adapted = get_peft_model(
        model,
        LoraConfig(
            task_type="CAUSAL_LM",
            r=8,
            target_modules=["c_attn", "c_fc"],
            fan_in_fan_out=True,
        ),
    )
    args = arguments(
        folder,
        num_train_epochs=epochs,
        per_device_train_batch_size=128,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
    )
    trainer = pv.huggingface.PrivateTrainer(
        adapted,
        args,
        train_dataset=private,
        eval_dataset=unseen,
        data_collator=collate,
        epsilon=epsilon,
        delta=1e-5,
        max_grad_norm=0.5,
        max_length=LENGTH,
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]

    published = trainer.publish(folder / "adapter")
    verified = pv.verify(published)
    assert verified.ok
    again = GPT2LMHeadModel(model.config)
    again.load_state_dict(
        {name.replace(".base_layer", ""): value for name, value in base.items()}
    )
    again = pv.huggingface.load_pretrained(published, again)
    x = torch.arange(3, 15)[None]
    assert torch.equal(again.eval()(x).logits, adapted.eval()(x).logits)
    return {
        "before": math.exp(before),
        "after": math.exp(after),
        "epsilon": float(verified.epsilon or math.inf),
    }


if __name__ == "__main__":
    figures = main()
    print("perplexity on unseen private-style text:")
    print(f"{figures['before']:.1f} before, {figures['after']:.1f} after")
    print(f"epsilon {figures['epsilon']:.3f} at delta 1e-5")
