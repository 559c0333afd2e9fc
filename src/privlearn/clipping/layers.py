"""Per-example gradients of one layer, from its input and the gradient of its output.

A rule answers two questions about one call of a layer: how long each example's gradient is, and what the weighted sum
of the gradients is. Where it can, it answers both without forming any per-example gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight


class LayerGradient(Protocol):
    """The gradients of a layer's trainable parameters, one per example."""

    def squared_norms(self) -> Tensor:
        """Squared L2 norm of each example's gradient, all the layer's parameters together; shape (batch,)."""
        ...

    def weighted_sum(self, weights: Tensor) -> dict[str, Tensor]:
        """Sum over the examples of weights[i] x gradient i, by parameter name."""
        ...


@final
class Formed:
    """Gradients that were formed: tensors of shape (batch, *parameter)."""

    def __init__(self, gradients: dict[str, Tensor]) -> None:
        self._gradients = gradients

    def squared_norms(self) -> Tensor:
        """Sum of squares."""
        return torch.stack([_squares(g.flatten(1)) for g in self._gradients.values()]).sum(0)

    def weighted_sum(self, weights: Tensor) -> dict[str, Tensor]:
        """One product with the weights."""
        return {name: (weights @ g.flatten(1)).view(g.shape[1:]) for name, g in self._gradients.items()}


@final
class _LinearRows:
    """A linear layer on rows: the gradient is the outer product g a^T, so its norm is a product of norms."""

    def __init__(self, inputs: Tensor, gradient: Tensor, wanted: frozenset[str]) -> None:
        self._inputs, self._gradient, self._wanted = inputs, gradient, wanted

    def squared_norms(self) -> Tensor:
        # In double precision: a product of a huge and a tiny square must not underflow.
        length = _squares(self._inputs) * ("weight" in self._wanted) + ("bias" in self._wanted)
        return length * _squares(self._gradient)

    def weighted_sum(self, weights: Tensor) -> dict[str, Tensor]:
        scaled = self._gradient * weights[:, None]
        sums = {"weight": lambda: scaled.T @ self._inputs, "bias": lambda: scaled.sum(0)}
        return {name: sums[name]() for name in self._wanted}


@final
class _EmbeddingRows:
    """An embedding: an example's gradient has a row for each of its distinct tokens, merged before the norm."""

    def __init__(self, layer: nn.Embedding, tokens: Tensor, gradient: Tensor) -> None:
        self._layer = layer
        self._tokens = tokens.reshape(len(tokens), -1)
        self._gradient = gradient.reshape(len(tokens), -1, layer.embedding_dim)
        if layer.padding_idx is not None:
            self._gradient = self._gradient * (self._tokens != layer.padding_idx)[..., None]

    def squared_norms(self) -> Tensor:
        batch = len(self._tokens)
        owner = torch.arange(batch, device=self._tokens.device)[:, None]
        keys, slot = (owner * self._layer.num_embeddings + self._tokens).unique(return_inverse=True)  # type: ignore[no-untyped-call]
        merged = self._gradient.new_zeros(len(keys), self._layer.embedding_dim)
        merged.index_add_(0, slot.flatten(), self._gradient.flatten(0, 1))
        norms = self._gradient.new_zeros(batch, dtype=torch.float64)
        return norms.index_add_(0, keys // self._layer.num_embeddings, _squares(merged))

    def weighted_sum(self, weights: Tensor) -> dict[str, Tensor]:
        total = self._gradient.new_zeros(self._layer.weight.shape)
        scaled = self._gradient * weights[:, None, None]
        return {"weight": total.index_add_(0, self._tokens.flatten(), scaled.flatten(0, 1))}


def _squares(rows: Tensor) -> Tensor:
    """Squared L2 norm of each row, in double precision."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return lengths.square()


def _linear(layer: nn.Linear, a: Tensor, g: Tensor, wanted: frozenset[str]) -> LayerGradient:
    if a.dim() == 2:
        return _LinearRows(a, g, wanted)
    a, g = a.flatten(1, -2), g.flatten(1, -2)
    formed: dict[str, Callable[[], Tensor]] = {"weight": lambda: g.mT @ a, "bias": lambda: g.sum(1)}
    return Formed({name: formed[name]() for name in wanted})


def _conv2d(layer: nn.Conv2d, a: Tensor, g: Tensor, wanted: frozenset[str]) -> LayerGradient:
    batch, weight = len(a), layer.weight

    def per_example() -> Tensor:
        # Each example becomes a group of channels of one big image, so one call gives every example's gradient.
        shape = [batch * weight.shape[0], *weight.shape[1:]]
        gradient = conv2d_weight(  # type: ignore[no-untyped-call]
            a.reshape(1, -1, *a.shape[2:]),
            shape,
            g.reshape(1, -1, *g.shape[2:]),
            layer.stride,
            layer.padding,
            layer.dilation,
            batch * layer.groups,
        )
        out: Tensor = gradient.view(batch, *weight.shape)
        return out

    formed: dict[str, Callable[[], Tensor]] = {"weight": per_example, "bias": lambda: g.sum((2, 3))}
    return Formed({name: formed[name]() for name in wanted})


def _layer_norm(layer: nn.LayerNorm, a: Tensor, g: Tensor, wanted: frozenset[str]) -> LayerGradient:
    shape = layer.normalized_shape
    normal = F.layer_norm(a, shape, eps=layer.eps)
    return _affine(normal, g, wanted, lambda t: t.reshape(len(t), -1, *shape).sum(1))


def _group_norm(layer: nn.GroupNorm, a: Tensor, g: Tensor, wanted: frozenset[str]) -> LayerGradient:
    normal = F.group_norm(a, layer.num_groups, eps=layer.eps)
    return _affine(normal, g, wanted, lambda t: t.reshape(*t.shape[:2], -1).sum(2))


def _affine(normal: Tensor, g: Tensor, wanted: frozenset[str], add_up: Callable[[Tensor], Tensor]) -> LayerGradient:
    formed: dict[str, Callable[[], Tensor]] = {
        "weight": lambda: add_up(g * normal),
        "bias": lambda: add_up(g),
    }
    return Formed({name: formed[name]() for name in wanted})


def _embedding(layer: nn.Embedding, a: Tensor, g: Tensor, wanted: frozenset[str]) -> LayerGradient:
    return _EmbeddingRows(layer, a, g)


_Rule = Callable[..., LayerGradient]
_RULES: dict[type[nn.Module], _Rule] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
    nn.Embedding: _embedding,
}


def rule_for(layer: nn.Module) -> _Rule | None:
    """The rule that covers `layer` as it is configured, or None. Subclasses are not covered: they may differ."""
    if isinstance(layer, nn.Conv2d) and (layer.padding_mode != "zeros" or isinstance(layer.padding, str)):
        return None
    if isinstance(layer, nn.Embedding) and (layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse):
        return None
    if not {name for name, _ in layer.named_parameters(recurse=False)} <= {"weight", "bias"}:
        return None
    return _RULES.get(type(layer))
