"""Named checks of experts that are computed for a whole batch; planted bugs must make them fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

import privlearn as pv
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.rows import TensorRows
from privlearn.core.sampling import FullBatch
from tests.support import texts as made
from tests.support.checks import check

WIDTH, ROWS, LENGTH = 16, 4, 6
_ALL = {
    "vocab_size": made.WORDS,
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_cache": False,
    "num_experts_per_tok": 2,
}
_QWEN = {"num_experts": 3, "moe_intermediate_size": WIDTH, "decoder_sparse_step": 1}
_SHARED = {
    "n_routed_experts": 4,
    "moe_intermediate_size": WIDTH,
    "n_shared_experts": 1,
    "first_k_dense_replace": 0,
    "n_group": 2,
    "topk_group": 1,
}
_LATENT = {
    **_SHARED,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
}
_HEAD = {"head_dim": 8}
#: Architectures with experts: the beginning of a class's name, and what its configuration needs.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_local_experts": 3},
    "Qwen2Moe": {**_QWEN, "shared_expert_intermediate_size": WIDTH},
    "Qwen3Moe": {**_QWEN, **_HEAD},
    "Olmoe": {"num_experts": 3},
    "DeepseekV2": _LATENT,
    "DeepseekV3": _LATENT,
    "GraniteMoe": {"num_local_experts": 3},
    "GptOss": {"num_local_experts": 3, **_HEAD},
    "Glm4Moe": {**_SHARED, **_HEAD},
    "Dots1": {**_SHARED, **_HEAD},
    "MiniMaxM2": {"num_local_experts": 3, **_HEAD},
}


def model_of(name: str) -> Any:
    """A small model in double precision, whose experts all count."""
    transformers = made.require_transformers()
    config = getattr(transformers, f"{name}Config")(**{**_ALL, **ARCHITECTURES[name]})
    torch.manual_seed(1)
    model = getattr(transformers, f"{name}ForCausalLM")(config).double()
    with torch.no_grad():
        for own in model.parameters():
            own.add_(torch.randn(own.shape, dtype=own.dtype) * 0.1)
    model.set_experts_implementation("eager")
    return model


def clipped(model: Any, norm: float = 0.5) -> tuple[ClippedGradients, dict[str, Tensor]]:
    """The clipped sum of a batch, by parameter."""
    ids = torch.randint(3, made.WORDS, (ROWS, LENGTH), generator=torch.Generator().manual_seed(2))
    rows = {"attention_mask": torch.ones_like(ids), "input_ids": ids, "labels": ids}
    loss = pv.huggingface.ExampleLoss(model, 1.0)
    gradients = ClippedGradients(model, loss, pv.Flat(norm), Adjacency.ZERO_OUT)
    (sample,) = FullBatch().draw(ROWS, np.random.default_rng(0))
    values = gradients(sample, TensorRows(rows)).values
    return gradients, dict(zip(gradients.parameters, values, strict=True))


def require_equal(name: str, norm: float = 0.5) -> None:
    """Grouped experts take one pass, and give the sum of clipped gradients of single examples."""
    loop, expected = clipped(model_of(name), norm)
    assert loop.way == "loop"
    at_once, found = clipped(pv.huggingface.group_experts(model_of(name)), norm)
    assert at_once.way == "layers", at_once.reason
    for parameter, value in expected.items():
        # routers of some compute in single precision
        scale = value.abs().max() + 1e-9
        assert (found[parameter] - value).abs().max() < 1e-5 * scale, parameter


@check
def check_experts_are_computed_for_a_batch_at_once() -> None:
    """With biases, and weights the other way round (GPT-OSS), and without either."""
    require_equal("Mixtral")
    require_equal("GptOss")


@check
def check_a_weight_of_experts_has_each_examples_norm() -> None:
    """Of an example's products for all of its experts, whether or not they are kept."""
    from privlearn.huggingface import routing

    rng = torch.Generator().manual_seed(0)
    experts = torch.randint(3, (4, 6), generator=rng)
    left, right = torch.randn(4, 6, 5, generator=rng), torch.randn(4, 6, 7, generator=rng)
    dense = torch.zeros(4, 3, 5, 7)
    for example in range(4):
        for place in range(6):
            product = left[example, place, :, None] * right[example, place]
            dense[example, experts[example, place]] += product
    weights = torch.tensor([0.5, 0.0, 2.0, 1.0])
    usual = routing._AT_ONCE
    for at_once in (usual, 70, 1):
        routing._AT_ONCE = at_once
        try:
            products = routing.RoutedProducts(experts, left, right, (3, 5, 7))
            assert torch.allclose(products.squares, dense.square().sum((1, 2, 3)).double())
            assert torch.allclose(products.form(), dense, atol=1e-5)
            total = torch.zeros(3, 5, 7)
            products.add_weighted(weights, total)
            assert torch.allclose(total, torch.tensordot(weights, dense, 1), atol=1e-5)
        finally:
            routing._AT_ONCE = usual
