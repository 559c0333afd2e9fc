"""Mixtures of experts of transformers, computed for all examples of a batch at once."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from privlearn._checks import checked
from privlearn.huggingface.routing import multiply_routed

#: As transformers calls this way to compute experts.
_NAME = "privlearn"


@checked
def group_experts(model: nn.Module) -> nn.Module:
    """Have the experts of a model computed by one product for each expert, whichever examples its
    tokens belong to.

    Weights and results are the same up to rounding. transformers computes experts one after
    another, as many as a batch happens to use, so that a private run computes one example after
    another. `PrivateTrainer` calls this by itself. Models without experts, and those whose experts
    transformers computes in one way alone, stay as they are.

    Args:
        model: of transformers 5, or one of PEFT around it; changed in place.

    Returns:
        The model.
    """
    try:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    except ImportError:  # transformers 4
        return model
    ALL_EXPERTS_FUNCTIONS.register(_NAME, _compute)
    modules: list[Any] = list(model.modules())
    for module in modules:
        if getattr(module, "_is_expert_parallel", None) is False:
            module.config._experts_implementation = _NAME
    return model


def _compute(experts: Any, hidden: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
    """What a layer of experts gives.

    Args:
        experts: the layer.
        hidden: shape (tokens, width).
        chosen: the experts of each token, shape (tokens, choices).
        shares: the weight of each, the same shape.
    """
    tokens, choices = chosen.shape
    numbers = chosen.reshape(-1)
    each = hidden[:, None].expand(-1, choices, -1).reshape(tokens * choices, -1)
    each = _project(experts, "gate_up_proj" if experts.has_gate else "up_proj", each, numbers)
    each = experts._apply_gate(each) if experts.has_gate else experts.act_fn(each)
    each = _project(experts, "down_proj", each, numbers)
    if getattr(experts, "has_post_expert_norm", False):
        each = experts.post_expert_norm(each)
    weighted = each.view(tokens, choices, -1) * shares[..., None]
    return weighted.sum(1).to(hidden.dtype)


def _project(experts: Any, name: str, x: Tensor, numbers: Tensor) -> Tensor:
    """Each row by its expert's layer of this name."""
    out = multiply_routed(x, getattr(experts, name), numbers, transposed=experts.is_transposed)
    return out + getattr(experts, f"{name}_bias")[numbers] if experts.has_bias else out
