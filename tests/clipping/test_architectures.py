"""Each architecture is computed right, by the way that is stated, or refused by name; none is
wrong.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.clips import Flat
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.rows import TensorRows
from tests.clipping.architectures import (
    ARCHITECTURES,
    EXAMPLES,
    GROUPED,
    WIDE,
    Architecture,
    Batch,
    configured,
    like,
)
from tests.clipping.judge import by_privlearn
from tests.support.nets import one_sample

os.environ.setdefault("HF_HUB_OFFLINE", "1")

#: Those that people use most: a second each, or less. The others are for the night.
EVERY_TIME = {
    "BERT",
    "RoBERTa",
    "DeBERTa-v2",
    "DistilBERT",
    "ELECTRA",
    "XLNet",
    "Longformer",
    "Reformer",
    "GPT-2",
    "GPT-NeoX",
    "OPT",
    "BLOOM",
    "Llama",
    "Mistral",
    "Gemma",
    "Falcon",
    "Mixtral",
    "NLLB-MoE",
    "T5",
    "BART",
    "ViT",
    "Swin",
    "ConvNeXT",
    "ResNet",
    "CLIP, own pairs",
    "CLIP, contrastive",
    "Whisper",
    "wav2vec2",
    "wav2vec2, SpecAugment",
    "ViT (timm)",
    "efficientnet_b0 (timm)",
    "resnet18 (torchvision)",
    "Swin (torchvision)",
    "LoRA on GPT-2",
    "LoRA on Llama",
    "DoRA on Llama",
    "GPT-2, checkpointed",
    "GPT-2, checkpointed (reentrant)",
    "Llama, tied",
    "BERT, head alone",
    "LLaVA",
    "LoRA on LLaVA",
}

pytestmark = pytest.mark.filterwarnings("ignore")


def required(package: str) -> None:
    pytest.importorskip(
        package,
        reason=f"{package} is not installed: pip install 'privlearn[test]'",
        exc_type=ImportError,
    )
    if package == "transformers":
        import transformers

        transformers.logging.set_verbosity_error()


def marked(row: Architecture) -> object:
    marks = [] if row.name in EVERY_TIME else [pytest.mark.nightly]
    return pytest.param(row, id=row.name.replace(" ", "-"), marks=marks)


@pytest.mark.parametrize("row", [marked(row) for row in ARCHITECTURES])
def test_an_architecture_is_right_or_refused_by_name(row: Architecture) -> None:
    required(row.package)
    verdict = by_privlearn(row)
    if row.repeats_constants and verdict.outcome == "vmap":
        assert "constant that differs from one place in the batch to the next" in verdict.reason
        return
    assert verdict.outcome == row.outcome, verdict
    assert row.reason in verdict.reason


def unpadded(batch: Batch) -> Batch:
    return batch | {"attention_mask": torch.ones_like(batch["attention_mask"])}


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Llama", "T5", "LoRA on Llama"])
def test_batches_without_padding_are_as_fast_as_those_with_it(name: str) -> None:
    """Masks of ones make these models take another path."""
    required("peft" if name.startswith("LoRA") else "transformers")
    row = like(name)
    verdict = by_privlearn(row, unpadded(row.batch()))
    assert verdict.outcome == "layers", verdict


@pytest.mark.parametrize(
    ("config", "model", "options", "base"),
    [
        ("BertConfig", "BertForSequenceClassification", WIDE | {"num_labels": 3}, "BERT"),
        ("LlamaConfig", "LlamaForCausalLM", GROUPED | {"attention_dropout": 0.2}, "Llama"),
        (
            "GPT2Config",
            "GPT2LMHeadModel",
            {"vocab_size": 48, "n_embd": 16, "n_layer": 2, "n_head": 2},
            "GPT-2",
        ),
    ],
)
def test_dropout_leaves_out_the_same_beside_others_and_alone(
    config: str, model: str, options: dict[str, object], base: str
) -> None:
    required("transformers")
    net, row = configured(config, model, keep=True, **options)().double().train(), like(base)
    batch = row.batch()

    def summed(rows: slice) -> list[torch.Tensor]:
        clipper = ClippedGradients(
            net, row.loss, Flat(1.0), Adjacency.ADD_REMOVE, view_seeds=np.random.default_rng(0)
        )
        own = {name: leaf[rows] for name, leaf in batch.items()}
        sums = clipper(one_sample(examples=len(own["labels"])), TensorRows(own)).values
        assert clipper.way == "layers", clipper.reason
        return list(sums)

    alone = [summed(slice(number, number + 1)) for number in range(EXAMPLES)]
    for total, *own in zip(summed(slice(None)), *alone, strict=True):
        torch.testing.assert_close(total, torch.stack(own).sum(0), rtol=1e-6, atol=1e-9)


def test_routed_experts_are_computed_in_single_precision_where_there_is_no_other() -> None:
    """Products of groups of tokens have no double precision: the model is looked at and computed in
    its own.
    """
    required("transformers")
    row = like("Mixtral")
    options = GROUPED | {"num_local_experts": 3, "num_experts_per_tok": 2}
    net = configured("MixtralConfig", "MixtralForCausalLM", **options)().train()
    clipper = ClippedGradients(net, row.loss, Flat(1e3), Adjacency.ADD_REMOVE)
    batch = row.batch()
    sums = clipper(one_sample(examples=EXAMPLES), TensorRows(batch)).values
    true = torch.autograd.grad(
        row.loss(net, batch).sum(), list(net.parameters()), materialize_grads=True
    )
    for total, expected in zip(sums, true, strict=True):
        torch.testing.assert_close(total, expected, rtol=1e-3, atol=1e-4)
