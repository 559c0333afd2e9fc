"""Architectures that people train, made small from configurations, with random weights: one row
each.

Every row says how its model is made, what a batch of three examples is, what loss each example has,
and what becomes of it: by which way its gradients are computed, or what it is refused for. Nothing
is downloaded. When rows have changed,
`python bench/architectures.py --write docs/measured/architectures.md` writes the page's tables and
the JSON beside it again.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EXAMPLES, LENGTH, VOCABULARY, CLASSES = 3, 9, 48, 3

Batch = dict[str, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]


@dataclass(frozen=True)
class Architecture:
    """One row.

    Attributes:
        name: as people call it.
        package: what it comes from.
        make: the model, with random weights.
        batch: three examples.
        loss: (model, batch) to one value for each example.
        outcome: the way of the clipping engine (layers, vmap, loop), or `refused`.
        reason: what falls back, or is refused: a part of what is said.
        repeats_constants: whether the model computes a constant anew for each place in the batch.
            Where a processor rounds these differently, it goes by `vmap`.
    """

    name: str
    package: str
    make: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Loss
    outcome: str = "layers"
    reason: str = ""
    repeats_constants: bool = False


ARCHITECTURES: list[Architecture] = []
COLUMNS = {field.name for field in fields(Architecture)}


def row(
    name: str,
    package: str,
    make: Callable[[], nn.Module],
    batch: Callable[[], Batch],
    loss: Loss,
    **more: Any,
) -> None:
    ARCHITECTURES.append(Architecture(name, package, make, batch, loss, **more))


# Models


def still(model: nn.Module) -> nn.Module:
    """The model without dropout, in whatever part it is: so that it is a function of its inputs."""
    for module in model.modules():
        for name in (
            "p",
            "drop_prob",
            "drop_rate",
            "attn_drop",
            "dropout",
            "attn_dropout",
            "stochastic_depth_prob",
        ):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def configured(
    config: str, model: str, keep: bool = False, **options: Any
) -> Callable[[], nn.Module]:
    """A model of `transformers`, of a small configuration; without dropout, unless it is to be
    kept.
    """

    def make() -> nn.Module:
        transformers: Any = importlib.import_module("transformers")
        made = getattr(transformers, config)(**options)
        if not keep:
            for part in (made, *(v for v in vars(made).values() if hasattr(v, "to_dict"))):
                for name, value in list(vars(part).items()):
                    if "drop" in name and isinstance(value, float):
                        setattr(part, name, 0.0)
        torch.manual_seed(0)
        return getattr(transformers, model)(made)

    return make


def of_timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    """A class of `timm.models`, small."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        made: nn.Module = getattr(importlib.import_module("timm.models"), name)(**options)
        return still(made)

    return make


def of_torchvision(name: str, **options: Any) -> Callable[[], nn.Module]:
    """A class of `torchvision.models`, small."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        given = {key: value() if callable(value) else value for key, value in options.items()}
        made: nn.Module = getattr(importlib.import_module("torchvision.models"), name)(**given)
        return still(made)

    return make


# Batches


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def tokens(length: int = LENGTH, vocabulary: int = VOCABULARY) -> Batch:
    """Texts of three lengths, padded."""
    ids = torch.randint(
        3, vocabulary, (EXAMPLES, length), generator=torch.Generator().manual_seed(0)
    )
    mask = torch.ones_like(ids)
    mask[1, -2:] = mask[2, -4:] = 0
    return {"input_ids": ids.where(mask > 0, 1), "attention_mask": mask}


def labelled(batch: Batch, classes: int = CLASSES) -> Batch:
    return batch | {"labels": torch.arange(EXAMPLES) % classes}


def texts() -> Batch:
    return labelled(tokens())


def continued() -> Batch:
    """Texts whose tokens are predicted; padding is not."""
    batch = tokens()
    return batch | {"labels": batch["input_ids"].where(batch["attention_mask"] > 0, -100)}


def pairs() -> Batch:
    """Texts and what is to be made of them."""
    batch = tokens()
    target = torch.randint(3, VOCABULARY, (EXAMPLES, 6), generator=torch.Generator().manual_seed(2))
    own = target.clone()
    own[2, -2:] = -100
    return batch | {"decoder_input_ids": target.roll(1, 1), "labels": own}


def images(size: int = 32, channels: int = 3) -> Callable[[], Batch]:
    return lambda: labelled({"pixel_values": drawn(EXAMPLES, channels, size, size)})


def sounds(length: int = 400) -> Callable[[], Batch]:
    return lambda: labelled({"input_values": drawn(EXAMPLES, length)})


def unmasked(batch: Callable[[], Batch]) -> Callable[[], Batch]:
    return lambda: {name: leaf for name, leaf in batch().items() if name != "attention_mask"}


# Losses


def given(batch: Batch) -> Batch:
    return {name: leaf for name, leaf in batch.items() if name != "labels"}


def classified(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of a class."""
    return F.cross_entropy(model(**given(batch)).logits, batch["labels"], reduction="none")


def called(model: nn.Module, batch: Batch) -> Tensor:
    """The same, of a model that takes images and gives scores."""
    return F.cross_entropy(model(batch["pixel_values"]), batch["labels"], reduction="none")


def predicted(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of each next token, over a public number of them."""
    logits = model(**given(batch)).logits[:, -LENGTH:-1]  # a prompt may stand in front
    each = F.cross_entropy(
        logits.transpose(1, 2), batch["labels"][:, 1:], reduction="none", ignore_index=-100
    )
    return each.sum(1) / LENGTH


def translated(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of the target's tokens."""
    logits = model(**given(batch)).logits
    each = F.cross_entropy(
        logits.transpose(1, 2), batch["labels"], reduction="none", ignore_index=-100
    )
    return each.sum(1) / LENGTH


def tagged(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of a class for every token that is one."""
    logits = model(**given(batch)).logits
    each = F.cross_entropy(
        logits.transpose(1, 2), batch["labels"], reduction="none", ignore_index=-100
    )
    return each.sum(1) / LENGTH


def pooled(model: nn.Module, batch: Batch) -> Tensor:
    """Of a model without a head: how far its mean state is from one."""
    states = model(**given(batch)).last_hidden_state
    return (states.flatten(1).sin().mean(1) - 1).square()


WIDE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32,
    "pad_token_id": 1,
}
ENDS = {"bos_token_id": 0, "eos_token_id": 2}
GROUPED = {**WIDE, **ENDS, "num_key_value_heads": 1}
ENCODER_DECODER = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 32,
    "pad_token_id": 1,
    "decoder_start_token_id": 2,
    **ENDS,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 2,
    "num_heads": 2,
    "pad_token_id": 1,
    "decoder_start_token_id": 0,
    "eos_token_id": 2,
}
PATCHES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 16,
    "patch_size": 8,
    "num_labels": CLASSES,
}


WORDS = {"vocab_size": VOCABULARY, "pad_token_id": 1}


def of_transformers(
    name: str,
    config: str,
    model: str,
    base: dict[str, Any],
    batch: Callable[[], Batch],
    loss: Loss,
    **more: Any,
) -> None:
    """A row from a configuration: what is not said of the row is an option of the configuration."""
    columns = {key: more.pop(key) for key in list(more) if key in COLUMNS}
    row(name, "transformers", configured(config, model, **{**base, **more}), batch, loss, **columns)


def encoder(
    name: str,
    config: str,
    model: str,
    base: Any = WIDE,
    batch: Any = texts,
    loss: Any = classified,
    **more: Any,
) -> None:
    of_transformers(name, config, model, {**base, "num_labels": CLASSES}, batch, loss, **more)


def causal(
    name: str,
    config: str,
    model: str,
    base: Any = GROUPED,
    batch: Any = continued,
    loss: Any = predicted,
    **more: Any,
) -> None:
    of_transformers(name, config, model, base, batch, loss, **more)


def sequence(
    name: str,
    config: str,
    model: str,
    base: Any = ENCODER_DECODER,
    batch: Any = pairs,
    loss: Any = translated,
    **more: Any,
) -> None:
    of_transformers(name, config, model, base, batch, loss, **more)


encoder("BERT", "BertConfig", "BertForSequenceClassification")
encoder("RoBERTa", "RobertaConfig", "RobertaForSequenceClassification")
encoder(
    "XLM-RoBERTa, tokens",
    "XLMRobertaConfig",
    "XLMRobertaForTokenClassification",
    loss=tagged,
    batch=continued,
    num_labels=VOCABULARY,
)
encoder(
    "DeBERTa",
    "DebertaConfig",
    "DebertaForSequenceClassification",
    relative_attention=True,
    pos_att_type=["p2c", "c2p"],
)
encoder(
    "DeBERTa-v2",
    "DebertaV2Config",
    "DebertaV2ForSequenceClassification",
    relative_attention=True,
    position_buckets=4,
    norm_rel_ebd="layer_norm",
    share_att_key=True,
    pos_att_type=["p2c", "c2p"],
)
encoder(
    "DistilBERT",
    "DistilBertConfig",
    "DistilBertForSequenceClassification",
    dim=16,
    n_layers=2,
    n_heads=2,
    hidden_dim=32,
)
encoder("ALBERT", "AlbertConfig", "AlbertForSequenceClassification", embedding_size=8)
encoder("ELECTRA", "ElectraConfig", "ElectraForSequenceClassification", embedding_size=8)
encoder(
    "MobileBERT",
    "MobileBertConfig",
    "MobileBertForSequenceClassification",
    embedding_size=8,
    intra_bottleneck_size=8,
    true_hidden_size=8,
)
encoder(
    "SqueezeBERT",
    "SqueezeBertConfig",
    "SqueezeBertForSequenceClassification",
    embedding_size=16,
    q_groups=2,
    k_groups=2,
    v_groups=2,
    post_attention_groups=1,
    intermediate_groups=2,
    output_groups=2,
)
encoder("FNet", "FNetConfig", "FNetForSequenceClassification", batch=unmasked(texts))
encoder("MPNet", "MPNetConfig", "MPNetForSequenceClassification")
encoder(
    "XLNet",
    "XLNetConfig",
    "XLNetForSequenceClassification",
    base=WORDS,
    d_model=16,
    n_layer=2,
    n_head=2,
    d_inner=32,
    repeats_constants=True,
)
encoder(
    "Longformer",
    "LongformerConfig",
    "LongformerForSequenceClassification",
    attention_window=4,
    outcome="loop",
    reason="over the batch",
)
encoder(
    "BigBird", "BigBirdConfig", "BigBirdForSequenceClassification", attention_type="original_full"
)
encoder(
    "Funnel",
    "FunnelConfig",
    "FunnelForSequenceClassification",
    base=WORDS,
    block_sizes=[1, 1],
    num_decoder_layers=1,
    d_model=16,
    n_head=2,
    d_head=8,
    d_inner=32,
)
encoder(
    "ModernBERT",
    "ModernBertConfig",
    "ModernBertForSequenceClassification",
    **ENDS,
    cls_token_id=0,
    sep_token_id=2,
)
encoder("RoFormer", "RoFormerConfig", "RoFormerForSequenceClassification", embedding_size=16)
encoder("ConvBERT", "ConvBertConfig", "ConvBertForSequenceClassification", embedding_size=16)
encoder(
    "Nystromformer",
    "NystromformerConfig",
    "NystromformerForSequenceClassification",
    num_landmarks=9,
    segment_means_seq_len=9,
)
encoder(
    "Reformer",
    "ReformerConfig",
    "ReformerForSequenceClassification",
    attn_layers=["local", "local"],
    axial_pos_embds=False,
    attention_head_size=8,
    feed_forward_size=32,
    local_attn_chunk_length=3,
    is_decoder=False,
    outcome="loop",
    reason="_ReversibleFunction is not seen",
)
encoder(
    "ESM",
    "EsmConfig",
    "EsmForSequenceClassification",
    position_embedding_type="rotary",
    mask_token_id=3,
)
encoder(
    "XLM",
    "XLMConfig",
    "XLMForSequenceClassification",
    emb_dim=16,
    n_layers=2,
    n_heads=2,
    outcome="loop",
    reason="over the batch",
)
encoder(
    "RemBERT",
    "RemBertConfig",
    "RemBertForSequenceClassification",
    input_embedding_size=8,
    output_embedding_size=8,
)
encoder("XLM-RoBERTa-XL", "XLMRobertaXLConfig", "XLMRobertaXLForSequenceClassification")
encoder("CamemBERT", "CamembertConfig", "CamembertForSequenceClassification")
encoder("Data2Vec text", "Data2VecTextConfig", "Data2VecTextForSequenceClassification")
encoder(
    "YOSO",
    "YosoConfig",
    "YosoForSequenceClassification",
    use_expectation=True,
    outcome="loop",
    reason="YosoCumulation is not seen",
)
encoder(
    "LayoutLM", "LayoutLMConfig", "LayoutLMForSequenceClassification", max_2d_position_embeddings=16
)
encoder("LUKE", "LukeConfig", "LukeForSequenceClassification", entity_vocab_size=5)
encoder("Splinter", "SplinterConfig", "SplinterModel", loss=pooled)
encoder(
    "Perceiver",
    "PerceiverConfig",
    "PerceiverForSequenceClassification",
    num_latents=4,
    d_latents=16,
    d_model=16,
    num_blocks=1,
    num_self_attends_per_block=1,
    num_self_attention_heads=2,
    num_cross_attention_heads=2,
)
encoder("BERT, masked words", "BertConfig", "BertForMaskedLM", loss=tagged, batch=continued)
encoder("EuroBERT", "EuroBertConfig", "EuroBertForSequenceClassification")

causal("GPT-2", "GPT2Config", "GPT2LMHeadModel", n_embd=16, n_layer=2, n_head=2, n_positions=32)
causal(
    "GPT-2, classes",
    "GPT2Config",
    "GPT2ForSequenceClassification",
    n_embd=16,
    n_layer=2,
    n_head=2,
    n_positions=32,
    num_labels=CLASSES,
    loss=classified,
    batch=texts,
)
causal(
    "GPT-Neo",
    "GPTNeoConfig",
    "GPTNeoForCausalLM",
    num_layers=2,
    num_heads=2,
    attention_types=[[["global", "local"], 1]],
    window_size=4,
)
causal("GPT-NeoX", "GPTNeoXConfig", "GPTNeoXForCausalLM")
causal(
    "GPT-J",
    "GPTJConfig",
    "GPTJForCausalLM",
    n_embd=16,
    n_layer=2,
    n_head=2,
    n_positions=32,
    rotary_dim=4,
)
causal("OPT", "OPTConfig", "OPTForCausalLM", ffn_dim=32, word_embed_proj_dim=16)
causal(
    "BLOOM",
    "BloomConfig",
    "BloomForCausalLM",
    n_layer=2,
    n_head=2,
    outcome="loop",
    reason="GeLUFunction is not seen",
)
causal("Llama", "LlamaConfig", "LlamaForCausalLM")
causal(
    "Llama, classes",
    "LlamaConfig",
    "LlamaForSequenceClassification",
    num_labels=CLASSES,
    loss=classified,
    batch=texts,
)
causal("Mistral", "MistralConfig", "MistralForCausalLM", sliding_window=4)
causal("Qwen2", "Qwen2Config", "Qwen2ForCausalLM")
causal("Qwen3", "Qwen3Config", "Qwen3ForCausalLM", head_dim=8)
causal("Gemma", "GemmaConfig", "GemmaForCausalLM", head_dim=8)
causal("Gemma 2", "Gemma2Config", "Gemma2ForCausalLM", head_dim=8, sliding_window=8)
causal("Gemma 3", "Gemma3TextConfig", "Gemma3ForCausalLM", head_dim=8, sliding_window=4)
causal("Phi", "PhiConfig", "PhiForCausalLM", num_key_value_heads=2)
causal("Phi-3", "Phi3Config", "Phi3ForCausalLM")
causal("Falcon", "FalconConfig", "FalconForCausalLM")
causal("StableLM", "StableLmConfig", "StableLmForCausalLM")
causal("Cohere", "CohereConfig", "CohereForCausalLM")
causal("OLMo 2", "Olmo2Config", "Olmo2ForCausalLM")
causal("Granite", "GraniteConfig", "GraniteForCausalLM")
causal("SmolLM 3", "SmolLM3Config", "SmolLM3ForCausalLM")
causal("StarCoder 2", "Starcoder2Config", "Starcoder2ForCausalLM")
causal(
    "MPT",
    "MptConfig",
    "MptForCausalLM",
    n_heads=2,
    n_layers=2,
    d_model=16,
    max_seq_len=32,
    expansion_ratio=2,
)
causal(
    "CodeGen",
    "CodeGenConfig",
    "CodeGenForCausalLM",
    n_embd=16,
    n_layer=2,
    n_head=4,
    n_positions=32,
    rotary_dim=4,
    num_attention_heads=4,
)
causal(
    "Mixtral",
    "MixtralConfig",
    "MixtralForCausalLM",
    num_local_experts=3,
    num_experts_per_tok=2,
    experts_implementation="eager",
    outcome="loop",
    reason="no dimension for the batch",
)
causal(
    "Qwen2-MoE",
    "Qwen2MoeConfig",
    "Qwen2MoeForCausalLM",
    num_experts=3,
    num_experts_per_tok=2,
    moe_intermediate_size=16,
    shared_expert_intermediate_size=16,
    experts_implementation="eager",
    outcome="loop",
    reason="no dimension for the batch",
)
causal(
    "OLMoE",
    "OlmoeConfig",
    "OlmoeForCausalLM",
    num_experts=3,
    num_experts_per_tok=2,
    experts_implementation="eager",
    outcome="loop",
    reason="no dimension for the batch",
)
causal(
    "GPT-OSS",
    "GptOssConfig",
    "GptOssForCausalLM",
    head_dim=8,
    num_local_experts=3,
    num_experts_per_tok=2,
    sliding_window=4,
    experts_implementation="eager",
    outcome="loop",
    reason="over the batch",
)
causal(
    "DeepSeek-V3",
    "DeepseekV3Config",
    "DeepseekV3ForCausalLM",
    moe_intermediate_size=16,
    n_routed_experts=4,
    n_group=2,
    topk_group=1,
    num_experts_per_tok=2,
    kv_lora_rank=8,
    q_lora_rank=8,
    qk_rope_head_dim=4,
    v_head_dim=8,
    qk_nope_head_dim=4,
    first_k_dense_replace=1,
    num_key_value_heads=2,
    experts_implementation="eager",
    outcome="loop",
    reason="no dimension for the batch",
)
causal("Mamba", "MambaConfig", "MambaForCausalLM", state_size=4, time_step_rank=4)
causal(
    "Mamba 2",
    "Mamba2Config",
    "Mamba2ForCausalLM",
    state_size=4,
    num_heads=4,
    head_dim=8,
    n_groups=1,
    chunk_size=4,
)
causal(
    "RecurrentGemma",
    "RecurrentGemmaConfig",
    "RecurrentGemmaForCausalLM",
    lru_width=16,
    attention_window_size=4,
    num_hidden_layers=3,
    outcome="loop",
    reason="SqrtBoundDerivative is not seen",
)
causal("BioGPT", "BioGptConfig", "BioGptForCausalLM")
causal(
    "GPT-BigCode",
    "GPTBigCodeConfig",
    "GPTBigCodeForCausalLM",
    n_embd=16,
    n_layer=2,
    n_head=2,
    n_positions=32,
)
causal("Cohere 2", "Cohere2Config", "Cohere2ForCausalLM")
causal("Nemotron", "NemotronConfig", "NemotronForCausalLM")
causal("Persimmon", "PersimmonConfig", "PersimmonForCausalLM")
causal("OLMo", "OlmoConfig", "OlmoForCausalLM")
causal("GLM", "GlmConfig", "GlmForCausalLM", head_dim=8)
causal("GLM 4", "Glm4Config", "Glm4ForCausalLM", head_dim=8)
causal("Helium", "HeliumConfig", "HeliumForCausalLM", head_dim=8)
causal("EXAONE 4", "Exaone4Config", "Exaone4ForCausalLM")
causal("DiffLlama", "DiffLlamaConfig", "DiffLlamaForCausalLM", num_key_value_heads=2)
causal("Ernie 4.5", "Ernie4_5Config", "Ernie4_5ForCausalLM", head_dim=8)
causal("LFM2", "Lfm2Config", "Lfm2ForCausalLM", layer_types=["conv", "full_attention"])
causal("VaultGemma", "VaultGemmaConfig", "VaultGemmaForCausalLM", head_dim=8)
causal("RWKV", "RwkvConfig", "RwkvForCausalLM", attention_hidden_size=16, context_length=32)
causal(
    "Falcon Mamba", "FalconMambaConfig", "FalconMambaForCausalLM", state_size=4, time_step_rank=4
)
causal(
    "Jamba",
    "JambaConfig",
    "JambaForCausalLM",
    mamba_d_state=4,
    mamba_dt_rank=4,
    use_mamba_kernels=False,
    attn_layer_period=2,
    attn_layer_offset=1,
    expert_layer_period=4,
    expert_layer_offset=3,
    num_experts=2,
)
causal(
    "Zamba 2",
    "Zamba2Config",
    "Zamba2ForCausalLM",
    mamba_d_state=4,
    n_mamba_heads=4,
    mamba_headdim=8,
    mamba_ngroups=1,
    num_mem_blocks=1,
    hybrid_layer_ids=[1],
    layers_block_type=["mamba", "hybrid"],
    use_mamba_kernels=False,
    chunk_size=4,
)
for name, config, model, experts in (
    (
        "Qwen3-MoE",
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {"num_experts": 3, "moe_intermediate_size": 16, "head_dim": 8},
    ),
    ("Granite MoE", "GraniteMoeConfig", "GraniteMoeForCausalLM", {"num_local_experts": 3}),
):
    causal(
        name,
        config,
        model,
        num_experts_per_tok=2,
        experts_implementation="eager",
        outcome="loop",
        reason="no dimension for the batch",
        **experts,
    )
causal("Transformer in BERT's code", "BertConfig", "BertLMHeadModel", is_decoder=True)

sequence("T5", "T5Config", "T5ForConditionalGeneration", base=T5)
sequence(
    "T5 1.1",
    "T5Config",
    "T5ForConditionalGeneration",
    base=T5,
    feed_forward_proj="gated-gelu",
    tie_word_embeddings=False,
)
sequence("mT5", "MT5Config", "MT5ForConditionalGeneration", base=T5)
sequence("LongT5", "LongT5Config", "LongT5ForConditionalGeneration", base=T5, local_radius=2)
sequence("UMT5", "UMT5Config", "UMT5ForConditionalGeneration", base=T5)
sequence("PLBart", "PLBartConfig", "PLBartForConditionalGeneration")
sequence(
    "Pegasus-X",
    "PegasusXConfig",
    "PegasusXForConditionalGeneration",
    block_size=4,
    num_global_tokens=2,
)
sequence("BART", "BartConfig", "BartForConditionalGeneration")
sequence("MBart", "MBartConfig", "MBartForConditionalGeneration")
sequence("Pegasus", "PegasusConfig", "PegasusForConditionalGeneration")
sequence("Marian", "MarianConfig", "MarianMTModel")
sequence("Blenderbot", "BlenderbotConfig", "BlenderbotForConditionalGeneration")
sequence("M2M100", "M2M100Config", "M2M100ForConditionalGeneration")
sequence(
    "ProphetNet",
    "ProphetNetConfig",
    "ProphetNetForConditionalGeneration",
    WORDS | ENDS,
    max_position_embeddings=32,
    decoder_start_token_id=2,
    encoder_ffn_dim=32,
    decoder_ffn_dim=32,
    hidden_size=16,
    num_encoder_layers=2,
    num_decoder_layers=2,
    num_encoder_attention_heads=2,
    num_decoder_attention_heads=2,
    ngram=2,
    batch=unmasked(pairs),
)
sequence(
    "NLLB-MoE",
    "NllbMoeConfig",
    "NllbMoeForConditionalGeneration",
    num_experts=2,
    expert_capacity=4,
    encoder_sparse_step=1,
    decoder_sparse_step=1,
    router_jitter_noise=0.0,
    outcome="refused",
    reason="other examples",
)
sequence(
    "Switch Transformers",
    "SwitchTransformersConfig",
    "SwitchTransformersForConditionalGeneration",
    base=T5,
    num_experts=2,
    expert_capacity=4,
    router_jitter_noise=0.0,
    num_sparse_encoder_layers=1,
    num_sparse_decoder_layers=1,
    outcome="loop",
    reason="__getitem__ may change",
)


def vision(
    name: str, config: str, model: str, base: Any = PATCHES, size: int = 16, **more: Any
) -> None:
    of_transformers(
        name, config, model, {**base, "image_size": size}, images(size), classified, **more
    )


STAGES = {"num_labels": CLASSES}
PYRAMID = {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 2, "patch_size": 2}
vision("ViT", "ViTConfig", "ViTForImageClassification")
vision("DeiT", "DeiTConfig", "DeiTForImageClassification")
vision("DeiT, distilled", "DeiTConfig", "DeiTForImageClassificationWithTeacher")
vision("BEiT", "BeitConfig", "BeitForImageClassification")
vision(
    "BEiT, relative positions",
    "BeitConfig",
    "BeitForImageClassification",
    use_relative_position_bias=True,
)
vision("Data2Vec vision", "Data2VecVisionConfig", "Data2VecVisionForImageClassification")
vision("Swin", "SwinConfig", "SwinForImageClassification", STAGES, **PYRAMID)
vision("Swin V2", "Swinv2Config", "Swinv2ForImageClassification", STAGES, **PYRAMID)
vision(
    "ConvNeXT",
    "ConvNextConfig",
    "ConvNextForImageClassification",
    STAGES,
    hidden_sizes=[8, 16],
    depths=[1, 1],
    num_stages=2,
    patch_size=4,
)
vision(
    "ConvNeXT V2",
    "ConvNextV2Config",
    "ConvNextV2ForImageClassification",
    STAGES,
    hidden_sizes=[8, 16],
    depths=[1, 1],
    num_stages=2,
    patch_size=4,
)
vision("DINOv2", "Dinov2Config", "Dinov2ForImageClassification")
vision(
    "PoolFormer",
    "PoolFormerConfig",
    "PoolFormerForImageClassification",
    STAGES,
    size=32,
    hidden_sizes=[8, 8, 16, 16],
    depths=[1, 1, 1, 1],
)
vision(
    "PVT",
    "PvtConfig",
    "PvtForImageClassification",
    size=32,
    hidden_sizes=[8, 8, 16, 16],
    depths=[1, 1, 1, 1],
    num_attention_heads=[1, 1, 2, 2],
    patch_sizes=[4, 2, 2, 2],
)
vision(
    "FocalNet",
    "FocalNetConfig",
    "FocalNetForImageClassification",
    STAGES,
    embed_dim=8,
    hidden_sizes=[8, 16],
    depths=[1, 1],
    patch_size=4,
    focal_levels=[2, 2],
    focal_windows=[3, 3],
)
vision(
    "BiT",
    "BitConfig",
    "BitForImageClassification",
    STAGES,
    size=32,
    num_groups=4,
    embedding_size=32,
    hidden_sizes=[32, 64],
    depths=[1, 1],
)
vision(
    "ResNet",
    "ResNetConfig",
    "ResNetForImageClassification",
    STAGES,
    size=32,
    embedding_size=8,
    hidden_sizes=[8, 16],
    depths=[1, 1],
    outcome="refused",
    reason="BatchNorm2d",
)
vision(
    "MobileViT",
    "MobileViTConfig",
    "MobileViTForImageClassification",
    STAGES,
    size=32,
    outcome="refused",
    reason="BatchNorm2d",
)
vision(
    "EfficientNet",
    "EfficientNetConfig",
    "EfficientNetForImageClassification",
    STAGES,
    size=32,
    width_coefficient=0.25,
    depth_coefficient=0.25,
    hidden_dim=320,
    outcome="refused",
    reason="BatchNorm2d",
)


STEPPED = {
    "hidden_sizes": [8, 8, 16, 16],
    "depths": [1, 1, 1, 1],
    "num_attention_heads": [1, 1, 2, 2],
}
vision(
    "SegFormer",
    "SegformerConfig",
    "SegformerForImageClassification",
    STAGES,
    32,
    **STEPPED,
    decoder_hidden_size=8,
)
vision("PVT v2", "PvtV2Config", "PvtV2ForImageClassification", STAGES, 32, **STEPPED)
vision(
    "DINOv2, registers", "Dinov2WithRegistersConfig", "Dinov2WithRegistersForImageClassification"
)
vision("ViT-MSN", "ViTMSNConfig", "ViTMSNForImageClassification")
vision("I-JEPA", "IJepaConfig", "IJepaForImageClassification")


def pixels(name: str) -> Loss:
    """How far what a model gives for each pixel is from nothing, in the mean."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        out: Tensor = getattr(model(pixel_values=batch["pixel_values"]), name)
        return out.sin().flatten(1).mean(1)

    return loss


row(
    "SegFormer, pixels",
    "transformers",
    configured(
        "SegformerConfig",
        "SegformerForSemanticSegmentation",
        **STAGES,
        **STEPPED,
        decoder_hidden_size=8,
    ),
    images(32),
    pixels("logits"),
    outcome="refused",
    reason="BatchNorm2d",
)
DEPTHS = {
    "num_hidden_layers": 4,
    "backbone_out_indices": [0, 1, 2, 3],
    "neck_hidden_sizes": [8, 8, 8, 8],
    "fusion_hidden_size": 8,
    "is_hybrid": False,
}
row(
    "DPT, depths",
    "transformers",
    configured("DPTConfig", "DPTForDepthEstimation", **PATCHES | DEPTHS),
    images(16),
    pixels("predicted_depth"),
)


def frames() -> Batch:
    return labelled({"pixel_values": drawn(EXAMPLES, 2, 3, 16, 16)})


def video(name: str, config: str, model: str, **more: Any) -> None:
    of_transformers(name, config, model, PATCHES | {"num_frames": 2}, frames, classified, **more)


video("VideoMAE", "VideoMAEConfig", "VideoMAEForVideoClassification", tubelet_size=2)
video("ViViT", "VivitConfig", "VivitForVideoClassification", tubelet_size=[2, 8, 8])
video(
    "TimeSformer",
    "TimesformerConfig",
    "TimesformerForVideoClassification",
    outcome="vmap",
    reason="taking apart the batch",
)


def own_pair(model: nn.Module, batch: Batch) -> Tensor:
    """How far the text of an example is from its image, by itself."""
    text = model.get_text_features(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
    )
    image = model.get_image_features(pixel_values=batch["pixel_values"])
    texts, images = (own if isinstance(own, Tensor) else own.pooler_output for own in (text, image))
    return 1 - F.cosine_similarity(texts, images) * model.logit_scale.sigmoid()


def contrasted(model: nn.Module, batch: Batch) -> Tensor:
    """The loss that CLIP was trained with: every image against every text of the batch."""
    return F.cross_entropy(
        model(**given(batch)).logits_per_text, torch.arange(len(batch["labels"])), reduction="none"
    )


def captioned() -> Batch:
    return labelled(tokens() | {"pixel_values": drawn(EXAMPLES, 3, 16, 16)})


def two_towers(name: str, config: str, model: str, **more: Any) -> None:
    text = {**WIDE, **ENDS, "projection_dim": 8}
    make = configured(
        config,
        model,
        text_config=text,
        vision_config={**PATCHES, "projection_dim": 8},
        projection_dim=8,
    )
    row(name, "transformers", make, captioned, more.pop("loss", own_pair), **more)


two_towers("CLIP, own pairs", "CLIPConfig", "CLIPModel")
two_towers(
    "CLIP, contrastive",
    "CLIPConfig",
    "CLIPModel",
    loss=contrasted,
    outcome="refused",
    reason="other examples",
)
two_towers("SigLIP, own pairs", "SiglipConfig", "SiglipModel")
row(
    "ViLT",
    "transformers",
    configured("ViltConfig", "ViltModel", **{**WIDE, **PATCHES, "max_image_length": -1}),
    captioned,
    pooled,
    outcome="loop",
    reason="draws more or fewer random numbers",
)


IMAGE, PLACES = 40, 4  # the token that stands for a piece of an image, and how many


def described() -> Batch:
    """Texts that begin with tokens in whose place the image is read."""
    ids = torch.randint(3, IMAGE, (EXAMPLES, LENGTH), generator=torch.Generator().manual_seed(0))
    ids[:, :PLACES] = IMAGE
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": drawn(EXAMPLES, 3, 16, 16),
        "labels": ids.where(ids != IMAGE, -100),
    }


def continued_from_image(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of each next token, where made-up texts, too, have places for the image."""
    return predicted(model, batch)


def with_places(batch: Batch) -> Batch:
    places = torch.arange(LENGTH) < PLACES
    return batch | {
        "input_ids": batch["input_ids"].where(~places.to(batch["input_ids"].device), IMAGE)
    }


continued_from_image.made_up = with_places  # type: ignore[attr-defined]

SEEING = {
    "text_config": {**GROUPED, "model_type": "llama"},
    "image_token_index": IMAGE,
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full",
    "vision_config": {**PATCHES, "model_type": "siglip_vision_model"},
}
row(
    "LLaVA, random rows",
    "transformers",
    configured("LlavaConfig", "LlavaForConditionalGeneration", **SEEING),
    described,
    predicted,
    outcome="refused",
    reason="cannot run on inputs",
)
row(
    "LLaVA",
    "transformers",
    configured("LlavaConfig", "LlavaForConditionalGeneration", **SEEING),
    described,
    continued_from_image,
    outcome="loop",
)
LOOKING = {
    "text_config": {**GROUPED, "model_type": "gemma", "head_dim": 8},
    "image_token_index": IMAGE,
    "projection_dim": 16,
    "vision_config": {
        **PATCHES,
        "model_type": "siglip_vision_model",
        "projection_dim": 16,
        "vision_use_head": False,
    },
}
row(
    "PaliGemma",
    "transformers",
    configured("PaliGemmaConfig", "PaliGemmaForConditionalGeneration", **LOOKING),
    described,
    continued_from_image,
    outcome="loop",
    reason="sum over the batch",
)


def captioned_by(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of each next token of a caption."""
    logits = model(**given(batch)).logits[:, -LENGTH:-1]
    return F.cross_entropy(
        logits.transpose(1, 2), batch["input_ids"][:, 1:], reduction="none"
    ).mean(1)


row(
    "BLIP, captions",
    "transformers",
    configured(
        "BlipConfig",
        "BlipForConditionalGeneration",
        vision_config=PATCHES,
        projection_dim=8,
        text_config={**WIDE, **ENDS, "encoder_hidden_size": 16, "is_decoder": True},
    ),
    described,
    captioned_by,
)
row(
    "GIT",
    "transformers",
    configured("GitConfig", "GitForCausalLM", **WIDE, **ENDS, vision_config=PATCHES),
    described,
    captioned_by,
)
causal(
    "TrOCR's decoder",
    "TrOCRConfig",
    "TrOCRForCausalLM",
    WIDE | ENDS,
    d_model=16,
    decoder_layers=2,
    decoder_attention_heads=2,
    decoder_ffn_dim=32,
)


# Series


SERIES = {
    "num_input_channels": 2,
    "context_length": 16,
    "patch_length": 4,
    "patch_stride": 4,
    "d_model": 16,
    "num_targets": CLASSES,
}


def series() -> Batch:
    return labelled({"past_values": drawn(EXAMPLES, 16, 2)})


def of_series(name: str) -> Loss:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(
            getattr(model(**given(batch)), name), batch["labels"], reduction="none"
        )

    return loss


PATCHED = {**SERIES, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 32}
of_transformers(
    "PatchTST",
    "PatchTSTConfig",
    "PatchTSTForClassification",
    PATCHED,
    series,
    of_series("prediction_logits"),
    outcome="refused",
    reason="BatchNorm1d",
)
of_transformers(
    "PatchTST, layer norm",
    "PatchTSTConfig",
    "PatchTSTForClassification",
    PATCHED,
    series,
    of_series("prediction_logits"),
    norm_type="layernorm",
)
of_transformers(
    "PatchTSMixer",
    "PatchTSMixerConfig",
    "PatchTSMixerForTimeSeriesClassification",
    SERIES,
    series,
    of_series("prediction_outputs"),
    num_layers=2,
)


# Sounds


def heard() -> Batch:
    return {
        "input_features": drawn(EXAMPLES, 8, 20),
        "decoder_input_ids": pairs()["decoder_input_ids"],
        "labels": pairs()["labels"],
    }


SOUND = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "conv_dim": (16, 16),
    "conv_stride": (4, 4),
    "conv_kernel": (8, 4),
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "num_feat_extract_layers": 2,
    "classifier_proj_size": 8,
    "num_labels": CLASSES,
    "mask_time_prob": 0.0,
    "apply_spec_augment": False,
}


def audio(
    name: str,
    config: str,
    model: str,
    base: Any = SOUND,
    batch: Any = sounds(),  # noqa: B008
    **more: Any,
) -> None:
    of_transformers(name, config, model, base, batch, classified, **more)


row(
    "Whisper",
    "transformers",
    configured(
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        **ENCODER_DECODER,
        num_mel_bins=8,
        max_source_positions=10,
        max_target_positions=32,
    ),
    heard,
    translated,
)
audio("wav2vec2", "Wav2Vec2Config", "Wav2Vec2ForSequenceClassification")
audio(
    "wav2vec2, layer norm",
    "Wav2Vec2Config",
    "Wav2Vec2ForSequenceClassification",
    feat_extract_norm="layer",
    do_stable_layer_norm=True,
)
audio(
    "wav2vec2, SpecAugment",
    "Wav2Vec2Config",
    "Wav2Vec2ForSequenceClassification",
    apply_spec_augment=True,
    mask_time_prob=0.5,
    mask_time_length=2,
    outcome="refused",
    reason="other examples",
)
audio("UniSpeech-SAT", "UniSpeechSatConfig", "UniSpeechSatForSequenceClassification")
audio("Data2Vec audio", "Data2VecAudioConfig", "Data2VecAudioForSequenceClassification")
audio(
    "Wav2Vec2-Conformer",
    "Wav2Vec2ConformerConfig",
    "Wav2Vec2ConformerForSequenceClassification",
    outcome="refused",
    reason="BatchNorm1d",
)
audio(
    "Wav2Vec2-BERT",
    "Wav2Vec2BertConfig",
    "Wav2Vec2BertForSequenceClassification",
    base={**WIDE, "num_labels": CLASSES, "apply_spec_augment": False},
    feature_projection_input_dim=8,
    batch=lambda: labelled({"input_features": drawn(EXAMPLES, 12, 8)}),
)
audio(
    "SEW-D",
    "SEWDConfig",
    "SEWDForSequenceClassification",
    squeeze_factor=2,
    position_buckets=4,
    outcome="loop",
    reason="no rule for what aten.detach",
)
audio("HuBERT", "HubertConfig", "HubertForSequenceClassification")
audio("WavLM", "WavLMConfig", "WavLMForSequenceClassification")
audio("SEW", "SEWConfig", "SEWForSequenceClassification", squeeze_factor=2)
audio(
    "Audio Spectrogram Transformer",
    "ASTConfig",
    "ASTForAudioClassification",
    patch_size=4,
    frequency_stride=4,
    time_stride=4,
    num_mel_bins=8,
    max_length=16,
    batch=lambda: labelled({"input_values": drawn(EXAMPLES, 16, 8)}),
)


# timm and torchvision

TIMM = {"num_classes": CLASSES}
SQUARE = {**TIMM, "img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}


def timm(
    name: str, kind: str, size: int = 16, options: dict[str, Any] | None = None, **more: Any
) -> None:
    row(
        f"{name} (timm)",
        "timm",
        of_timm(kind, **{**TIMM, **(options or {})}),
        images(size),
        called,
        **more,
    )


timm("ViT", "VisionTransformer", options=SQUARE)
timm(
    "ViT, registers and scales",
    "VisionTransformer",
    options={**SQUARE, "reg_tokens": 2, "init_values": 0.1, "qk_norm": True},
)
timm("EVA", "Eva", options=SQUARE)
timm("BEiT", "Beit", options=SQUARE)
timm("CaiT", "Cait", options=SQUARE)
timm(
    "Mixer", "MlpMixer", options={"img_size": 16, "patch_size": 8, "embed_dim": 16, "num_blocks": 2}
)
timm("ConvNeXt", "ConvNeXt", size=32, options={"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)})
timm(
    "Swin",
    "SwinTransformer",
    options={
        "img_size": 16,
        "patch_size": 2,
        "embed_dim": 8,
        "depths": (1, 1),
        "num_heads": (1, 2),
        "window_size": 4,
    },
)
timm(
    "Swin V2",
    "SwinTransformerV2",
    options={
        "img_size": 16,
        "patch_size": 2,
        "embed_dim": 8,
        "depths": (1, 1),
        "num_heads": (1, 2),
        "window_size": 4,
    },
)


def by_name(name: str, **options: Any) -> Callable[[], nn.Module]:
    """A model of timm by its name, with smaller sizes where it lets itself be told."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        return still(
            importlib.import_module("timm").create_model(name, num_classes=CLASSES, **options)
        )

    return make


def grouped_norm(channels: int, **_: Any) -> nn.Module:
    return nn.GroupNorm(2, channels)


row("nf_resnet26 (timm)", "timm", by_name("nf_resnet26"), images(32), called)
row("resnetv2_50 with group norm (timm)", "timm", by_name("resnetv2_50x1_bit"), images(32), called)
row(
    "efficientnet_b0 (timm)",
    "timm",
    by_name("efficientnet_b0"),
    images(32),
    called,
    outcome="refused",
    reason="BatchNorm",
)
row(
    "mobilenetv3 (timm)",
    "timm",
    by_name("mobilenetv3_small_050"),
    images(32),
    called,
    outcome="refused",
    reason="BatchNorm",
)
row("poolformer_s12 (timm)", "timm", by_name("poolformer_s12"), images(32), called)
row("gmlp (timm)", "timm", by_name("gmlp_ti16_224", img_size=32), images(32), called)
row("resmlp (timm)", "timm", by_name("resmlp_12_224", img_size=32), images(32), called)
row(
    "regnet (timm)",
    "timm",
    by_name("regnetx_002"),
    images(32),
    called,
    outcome="refused",
    reason="BatchNorm",
)


def half_groups() -> Any:
    return lambda channels: nn.GroupNorm(2, channels)


def torchvision(
    name: str, kind: str, size: int = 32, options: dict[str, Any] | None = None, **more: Any
) -> None:
    make = of_torchvision(kind, **{"num_classes": CLASSES, **(options or {})})
    row(f"{name} (torchvision)", "torchvision", make, images(size), called, **more)


torchvision("resnet18", "resnet18", outcome="refused", reason="BatchNorm2d")
torchvision("resnet18 with group norm", "resnet18", options={"norm_layer": half_groups})
torchvision(
    "ViT",
    "VisionTransformer",
    size=16,
    options={
        "image_size": 16,
        "patch_size": 8,
        "num_layers": 2,
        "num_heads": 2,
        "hidden_dim": 16,
        "mlp_dim": 32,
    },
)
torchvision(
    "Swin",
    "SwinTransformer",
    size=16,
    options={
        "patch_size": [2, 2],
        "embed_dim": 8,
        "depths": [1, 2],
        "num_heads": [1, 2],
        "window_size": [2, 2],
    },
)
torchvision("SqueezeNet", "squeezenet1_1")
torchvision("densenet121", "densenet121", outcome="refused", reason="BatchNorm2d")
torchvision("efficientnet_b0", "efficientnet_b0", outcome="refused", reason="BatchNorm2d")
torchvision("mobilenet_v3_small", "mobilenet_v3_small", outcome="refused", reason="BatchNorm2d")


def small_convnext() -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    torch.manual_seed(0)
    return still(
        ConvNeXt([CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 1)], num_classes=CLASSES)
    )


row("ConvNeXt (torchvision)", "torchvision", small_convnext, images(32), called)


# Adapters, tied weights, checkpointing


def adapted(
    base: Callable[[], nn.Module], kind: str = "LoraConfig", **options: Any
) -> Callable[[], nn.Module]:
    """The model with PEFT's adapters, which alone are trained; what starts at zero is moved a
    little.
    """

    def make() -> nn.Module:
        peft: Any = importlib.import_module("peft")
        made = peft.get_peft_model(base(), getattr(peft, kind)(**options))
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.requires_grad:
                    parameter += 0.1 * torch.randn_like(parameter)
        return still(made)

    return make


def changed(
    base: Callable[[], nn.Module], change: Callable[[Any], object]
) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = base()
        change(model)
        return model

    return make


def like(name: str) -> Architecture:
    return next(own for own in ARCHITECTURES if own.name == name)


def variant(
    name: str,
    base: str,
    make: Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]],
    **more: Any,
) -> None:
    own = like(base)
    row(name, more.pop("package", own.package), make(own.make), own.batch, own.loss, **more)


for base, targets in {
    "GPT-2": ["c_attn", "c_proj"],
    "Llama": ["q_proj", "v_proj"],
    "BERT": ["query", "value"],
    "ViT": ["q_proj", "v_proj"],
    "T5": ["q", "v"],
}.items():
    variant(
        f"LoRA on {base}",
        base,
        lambda make, targets=targets, base=base: adapted(
            make, target_modules=targets, r=2, lora_dropout=0.0, fan_in_fan_out=base == "GPT-2"
        ),
        package="peft",
    )
variant(
    "DoRA on Llama",
    "Llama",
    lambda make: adapted(make, target_modules=["q_proj", "v_proj"], r=2, use_dora=True),
    package="peft",
)
variant(
    "rsLoRA on all linear layers of Qwen2",
    "Qwen2",
    lambda make: adapted(make, target_modules="all-linear", r=2, use_rslora=True),
    package="peft",
)
variant(
    "LoRA on the embedding of Llama",
    "Llama",
    lambda make: adapted(make, target_modules=["embed_tokens", "q_proj"], r=2),
    package="peft",
)
variant(
    "IA3 on Llama",
    "Llama",
    lambda make: adapted(
        make,
        "IA3Config",
        target_modules=["k_proj", "v_proj", "down_proj"],
        feedforward_modules=["down_proj"],
    ),
    package="peft",
)
variant(
    "prompt tuning on Llama",
    "Llama",
    lambda make: adapted(make, "PromptTuningConfig", task_type="CAUSAL_LM", num_virtual_tokens=2),
    package="peft",
)
variant(
    "prefix tuning on Llama",
    "Llama",
    lambda make: adapted(make, "PrefixTuningConfig", task_type="CAUSAL_LM", num_virtual_tokens=2),
    package="peft",
)


def language_layers(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return adapted(make, target_modules=r".*language_model.*(q_proj|v_proj)", r=2)


QUERIES = {"target_modules": ["q_proj", "v_proj"]}
variant("LoRA on LLaVA", "LLaVA", language_layers, package="peft", outcome="loop")
variant(
    "AdaLoRA on Llama",
    "Llama",
    lambda make: adapted(make, "AdaLoraConfig", **QUERIES, init_r=2, target_r=2, total_step=10),
    package="peft",
)
variant(
    "VeRA on Llama",
    "Llama",
    lambda make: adapted(make, "VeraConfig", target_modules=["q_proj", "o_proj"], r=2),
    package="peft",
)
variant(
    "layer-norm tuning on Llama",
    "Llama",
    lambda make: adapted(make, "LNTuningConfig", task_type="CAUSAL_LM"),
    package="peft",
)
variant(
    "LoRA with biases and a head on BERT",
    "BERT",
    lambda make: adapted(
        make,
        target_modules=["query", "value"],
        r=2,
        bias="lora_only",
        modules_to_save=["classifier"],
    ),
    package="peft",
)
variant(
    "LoRA on ConvNeXT",
    "ConvNeXT",
    lambda make: adapted(make, target_modules=["pwconv1", "pwconv2"], r=2),
    package="peft",
)
for name, kind, options, reason in (
    ("LoHa", "LoHaConfig", {"r": 2}, "no dimension for the batch"),
    ("LoKr", "LoKrConfig", {"r": 2}, "no dimension for the batch"),
    ("OFT", "OFTConfig", {"oft_block_size": 4}, "einsum without a rule"),
):
    variant(
        f"{name} on Llama",
        "Llama",
        lambda make, kind=kind, options=options: adapted(make, kind, **QUERIES, **options),
        package="peft",
        outcome="loop",
        reason=reason,
    )
variant(
    "P-tuning on Llama",
    "Llama",
    lambda make: adapted(
        make,
        "PromptEncoderConfig",
        task_type="CAUSAL_LM",
        num_virtual_tokens=2,
        encoder_hidden_size=8,
    ),
    package="peft",
)


def checkpointed(model: Any) -> None:
    model.gradient_checkpointing_enable({"use_reentrant": False})


def checkpointed_reentrant(model: Any) -> None:
    model.gradient_checkpointing_enable({"use_reentrant": True})


def only_the_head(model: Any) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("classifier"))


def eager(model: Any) -> None:
    model.set_attn_implementation("eager")


for base in ("BERT", "GPT-2", "Llama", "T5", "ViT"):
    variant(f"{base}, checkpointed", base, lambda make: changed(make, checkpointed))
variant(
    "GPT-2, checkpointed (reentrant)", "GPT-2", lambda make: changed(make, checkpointed_reentrant)
)
variant("BERT, head alone", "BERT", lambda make: changed(make, only_the_head))
variant("ViT, head alone", "ViT", lambda make: changed(make, only_the_head))
for base in ("BERT", "GPT-2", "Llama"):
    variant(f"{base}, eager attention", base, lambda make: changed(make, eager))
causal("Llama, tied", "LlamaConfig", "LlamaForCausalLM", tie_word_embeddings=True)
causal(
    "GPT-2, untied",
    "GPT2Config",
    "GPT2LMHeadModel",
    n_embd=16,
    n_layer=2,
    n_head=2,
    n_positions=32,
    tie_word_embeddings=False,
)
