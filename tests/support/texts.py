"""Made-up texts, and models of transformers for them: small enough for a test, with random
weights.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

WORDS, LENGTH = 40, 12


def require_transformers() -> Any:
    """The module, or skip."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    return pytest.importorskip("transformers", reason="transformers is not installed")


def texts(rows: int = 40, seed: int = 0, *, shortest: int = 5) -> list[dict[str, Any]]:
    """Sentences of a little grammar: each word follows from the one before, with some noise.
    Lengths differ.
    """
    rng = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(rows):
        length = int(torch.randint(shortest, LENGTH + 1, (1,), generator=rng))
        word = int(torch.randint(3, WORDS, (1,), generator=rng))
        ids = []
        for _ in range(length):
            ids.append(word)
            skipped = int(torch.randint(2, (1,), generator=rng))
            word = 3 + (word + 4 + skipped) % (WORDS - 3)
        made.append({"input_ids": ids})
    return made


def labelled(rows: int = 40, seed: int = 0) -> list[dict[str, Any]]:
    """The same, with a class for each text: whether its first word is in the first half."""
    return [{**row, "labels": int(row["input_ids"][0] < WORDS // 2)} for row in texts(rows, seed)]


def tagged(rows: int = 40, seed: int = 0) -> list[dict[str, Any]]:
    """The same, with a class for each word."""
    return [{**row, "labels": [word % 3 for word in row["input_ids"]]} for row in texts(rows, seed)]


def many_labelled(rows: int = 40, seed: int = 0) -> list[dict[str, Any]]:
    """The same, with three labels for each text, each of which holds or not."""
    return [
        {**row, "labels": [float(word % 2) for word in row["input_ids"][:3]]}
        for row in texts(rows, seed)
    ]


def translated(rows: int = 40, seed: int = 0) -> list[dict[str, Any]]:
    """The same, with each text's words in reverse as what a decoder is to give."""
    return [{**row, "labels": row["input_ids"][::-1]} for row in texts(rows, seed)]


def padded(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """A collate function that pads to the longest, as transformers' do; a text without a target is
    its own target.
    """
    longest = max(len(row["input_ids"]) for row in rows)

    def filled(values: list[int], fill: int) -> list[int]:
        return values + [fill] * (longest - len(values))

    batch = {
        "input_ids": torch.tensor([filled(row["input_ids"], 0) for row in rows]),
        "attention_mask": torch.tensor([filled([1] * len(row["input_ids"]), 0) for row in rows]),
    }
    labels = [row.get("labels", row["input_ids"]) for row in rows]
    whole = isinstance(labels[0], int) or isinstance(labels[0][0], float)
    return batch | {
        "labels": torch.tensor(labels if whole else [filled(own, -100) for own in labels])
    }


def gpt2(seed: int = 1, **changes: Any) -> Any:
    """GPT-2, sized down; its embedding is tied to its head."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    sizes = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 16, "n_layer": 1, "n_head": 2}
    return GPT2LMHeadModel(
        GPT2Config(**{**sizes, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, **changes})
    )


def still_gpt2(seed: int = 1) -> Any:
    """The same without dropout."""
    return gpt2(seed, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)


def bert(kind: str, seed: int = 1, **changes: Any) -> Any:
    """A model of BERT, sized down, by the end of its class's name."""
    import transformers

    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
        pad_token_id=0,
        **changes,
    )
    return getattr(transformers, f"Bert{kind}")(config)


def t5(seed: int = 1) -> Any:
    """T5, sized down."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(seed)
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=WORDS,
            d_model=16,
            d_kv=8,
            d_ff=32,
            num_layers=1,
            num_heads=2,
            decoder_start_token_id=0,
        )
    )


def _sizes(**changes: Any) -> dict[str, Any]:
    """Of an encoder and a decoder, sized down, without dropout."""
    sizes = dict.fromkeys(("encoder_layers", "decoder_layers"), 1)
    sizes |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
    sizes |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 32)
    still = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
    still |= dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop"), 0.0)
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    return {"vocab_size": WORDS, "d_model": 16, **sizes, **still, **tokens, **changes}


def translator(name: str, seed: int = 1, **changes: Any) -> Any:
    """A model of transformers with an encoder and a decoder, sized down, by its name."""
    import transformers

    torch.manual_seed(seed)
    config = getattr(transformers, f"{name}Config")(**_sizes(**changes))
    return getattr(transformers, f"{name}ForConditionalGeneration")(config)


def whisper(seed: int = 1) -> Any:
    """Whisper, sized down: it hears 20 frames of 8 numbers."""
    return translator(
        "Whisper", seed, num_mel_bins=8, max_source_positions=10, max_target_positions=LENGTH
    )


def speech_to_text(seed: int = 1) -> Any:
    """Speech2Text, sized down: it hears frames of 8 numbers."""
    return translator(
        "Speech2Text",
        seed,
        input_feat_per_channel=8,
        conv_channels=16,
        max_source_positions=40,
        max_target_positions=LENGTH,
    )


def heard(rows: int = 40, seed: int = 0, *, frames: int | None = None) -> list[dict[str, Any]]:
    """Sounds with what is said in them: so many frames of 8 numbers (as Whisper's, numbers first),
    or as many as there are words, times three.
    """
    rng = torch.Generator().manual_seed(seed)
    written = [row["input_ids"] for row in texts(rows, seed)]
    return [
        {
            "input_features": torch.randn(8, frames, generator=rng)
            if frames
            else torch.randn(3 * len(words), 8, generator=rng),
            "labels": words,
        }
        for words in written
    ]


def padded_sounds(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """A collate function of such rows."""
    sounds = [row["input_features"] for row in rows]
    labels = [torch.tensor(row["labels"]) for row in rows]
    batch = {"labels": torch.nn.utils.rnn.pad_sequence(labels, True, -100)}
    if len(sounds[0]) == 8:
        return {"input_features": torch.stack(sounds), **batch}
    masks = [torch.ones(len(sound), dtype=torch.long) for sound in sounds]
    return {
        "input_features": torch.nn.utils.rnn.pad_sequence(sounds, True),
        "attention_mask": torch.nn.utils.rnn.pad_sequence(masks, True),
        **batch,
    }


def lora(model: Any, **changes: Any) -> Any:
    """A model with adapters of PEFT, which alone are trained."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    torch.manual_seed(2)
    given = {
        "r": 2,
        "task_type": "CAUSAL_LM",
        "target_modules": ["c_attn"],
        "fan_in_fan_out": True,
        **changes,
    }
    return peft.get_peft_model(model, peft.LoraConfig(**given))


def settings(folder: Any) -> dict[str, Any]:
    """Settings of the trainer: 5 steps an epoch for 40 rows, nothing printed."""
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": 8,
        "num_train_epochs": 2,
        "learning_rate": 0.01,
        "report_to": [],
        "logging_steps": 2,
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
    }


def arguments(folder: Any, **changes: Any) -> Any:
    """The same as `TrainingArguments`, with changes."""
    from transformers import TrainingArguments

    return TrainingArguments(**{**settings(folder), **changes})
