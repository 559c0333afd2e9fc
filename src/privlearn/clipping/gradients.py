"""The clipped sum of per-example gradients.

Three ways to the same numbers: one backward pass through layers that have a rule, `torch.func.vmap`, and a loop over
single examples. The loop is the truth; the fastest way that agrees with it is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, grad, vmap

from privlearn._validate import count
from privlearn.accounting.adjacency import Adjacency
from privlearn.clipping.bounded import Bounded, Clip, Flat
from privlearn.clipping.layers import Formed, LayerGradient, rule_for
from privlearn.errors import BadInput, NotPerExample, PrivlearnError
from privlearn.models import made_up_batch, without_dropout
from privlearn.sampling import Sample

#: A loss of a batch: (outputs, targets) to one value for each example, shape (batch,).
Loss = Callable[[Tensor, Tensor], Tensor]
#: Shown each physical batch's losses and gradient norms, which are private.
Observer = Callable[[Tensor, Tensor], None]

#: Numbers that per-example gradients of one physical batch may hold, unless a micro-batch size is given.
_ELEMENTS = 1 << 28


class _NotLayerwise(PrivlearnError):
    """The gradients can't be read off the layers' inputs and outputs."""


@final
class ClippedGradients:
    """Computes sums of clipped per-example gradients of a model.

    Guarantee: under the clip's bound, one example changes the returned sum by at most its `sensitivity` in L2 norm,
    whatever the example holds; an example whose gradient is not finite contributes zero.

    Args:
        model: per-example (`models.require_per_example` checks); its trainable parameters get gradients.
        loss: (outputs, targets) to one loss for each example, shape (batch,).
        clip: `Flat` or `PerLayer`.
        adjacency: the kind of neighbour.
        microbatch: rows that are computed at once; memory only, the result is the same.
        observe: called with the losses and norms of each physical batch, for private diagnostics.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        clip: Clip,
        adjacency: Adjacency,
        *,
        microbatch: int | None = None,
        observe: Observer | None = None,
    ) -> None:
        self.model, self.loss, self.clip, self.adjacency = model, loss, clip, adjacency
        self._observe = observe
        # remove_duplicate: a tied parameter stands here once, under its first name.
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise BadInput("the model has no trainable parameter: set requires_grad on what is to be trained")
        self._layer_of = {name: name.rpartition(".")[0] for name in self.parameters}
        self._layers = sorted(set(self._layer_of.values()))
        size = sum(p.numel() for p in self.parameters.values())
        self._chunk = max(16, _ELEMENTS // size) if microbatch is None else count("microbatch", microbatch)
        narrow = [str(p.dtype) for p in self.parameters.values() if p.dtype in (torch.float16, torch.bfloat16)]
        if narrow:
            raise BadInput(
                f"the model's parameters are {narrow[0]}: sums and noise in so few digits break the bound. Use "
                "model.float()"
            )
        self._compute: Callable[[Tensor, Tensor], tuple[dict[str, LayerGradient], Tensor]] | None = None

    def __call__(self, sample: Sample, x: Tensor, y: Tensor) -> Bounded:
        """The clipped sum over the rows of `x` (inputs) and `y` (targets) that `sample` drew.

        Args:
            sample: the batch that was drawn.
            x: all inputs, shape (examples, ...).
            y: all targets, shape (examples, ...).

        Returns:
            One tensor for each trainable parameter, in the model's order.

        Raises:
            NotPerExample: the loss is not one value for each example.
        """
        self.prepare(x, y)
        total = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        for start in range(0, len(sample), self._chunk):
            rows = torch.from_numpy(sample.indices[start : start + self._chunk])
            for name, part in self._clipped_sum(x[rows], y[rows]).items():
                total[name] += part
        norm = self.clip.norm(len(self._layers))
        return Bounded(tuple(total.values()), self.adjacency.sum_sensitivity(norm), self.adjacency, sample)

    def prepare(self, x: Tensor, y: Tensor) -> None:
        """Choose how to compute, from the shapes and types of `x` and `y` alone; done once.

        Raises:
            NotPerExample: the loss is not one value for each example, or couples them.
        """
        if self._compute is None:
            self._compute = self._choose(x, y)

    def _clipped_sum(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        assert self._compute is not None
        gradients, losses = self._compute(x, y)
        squares = torch.stack([gradients[layer].squared_norms() for layer in self._layers])  # (layers, batch)
        finite = squares.isfinite().all(0) & losses.isfinite()
        if not finite.all():
            # Without the others' rows the rest comes out the same: the model is per-example.
            return self._clipped_sum(x[finite], y[finite]) if finite.any() else {}
        if self._observe:
            self._observe(losses.detach(), squares.sum(0).sqrt())
        norms = (squares.sum(0, keepdim=True) if isinstance(self.clip, Flat) else squares).sqrt()
        weights = (self.clip.clip_norm / norms).clamp(max=1.0).expand_as(squares).to(losses.dtype)
        return {
            f"{layer}.{name}" if layer else name: part
            for layer, row in zip(self._layers, weights, strict=True)
            for name, part in gradients[layer].weighted_sum(row).items()
        }

    # One backward pass in which only gradients of activations flow.

    def _has_rules(self) -> bool:
        every = [id(p) for _, p in self.model.named_parameters(remove_duplicate=False)]
        tied = len(every) != len(set(every))
        return not tied and all(rule_for(self.model.get_submodule(layer)) for layer in self._layers)

    def _by_layers(self, x: Tensor, y: Tensor) -> tuple[dict[str, LayerGradient], Tensor]:
        with self._recorded() as calls, torch.enable_grad():
            losses = self._losses(self.model(x), y)
        edges = [edge for _, edge, _ in calls.values()]
        flows = torch.autograd.grad(losses.sum(), edges, allow_unused=True)
        found: dict[str, LayerGradient] = {}
        for (layer, (inputs, _, version)), flow in zip(calls.items(), flows, strict=True):
            module = self.model.get_submodule(layer)
            if inputs._version != version or flow is None or len(inputs) != len(x) or len(flow) != len(x):
                raise _NotLayerwise(f"layer {layer!r} was not called on rows of examples that stay as they were")
            wanted = frozenset(n for n, p in module.named_parameters(recurse=False) if p.requires_grad)
            rule = rule_for(module)
            assert rule is not None
            found[layer] = rule(module, inputs, flow, wanted)
        if len(found) != len(self._layers):
            raise _NotLayerwise("a layer was not called")
        return found, losses.detach()

    @contextmanager
    def _recorded(self) -> Iterator[dict[str, tuple[Tensor, GradientEdge, int]]]:
        """Record each layer's input and the place of its output in the graph, by hooks that end with the block."""
        calls: dict[str, tuple[Tensor, GradientEdge, int]] = {}

        def recorder(layer: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
            def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
                if layer in calls or len(inputs) != 1:
                    raise _NotLayerwise(f"layer {layer!r} was called twice, or by keyword")
                calls[layer] = (inputs[0].detach(), get_gradient_edge(output), inputs[0]._version)

            return record

        hooks = [self.model.get_submodule(name).register_forward_hook(recorder(name)) for name in self._layers]
        try:
            yield calls
        finally:
            for hook in hooks:
                hook.remove()

    # All examples at once, for every other layer.

    def _by_vmap(self, x: Tensor, y: Tensor) -> tuple[dict[str, LayerGradient], Tensor]:
        frozen = {n: p.detach() for n, p in self.model.named_parameters() if n not in self.parameters}
        frozen |= dict(self.model.named_buffers())

        def single(parameters: dict[str, Tensor], row: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
            output = functional_call(self.model, {**parameters, **frozen}, (row[None],))
            value = self._losses(output, target[None])[0]
            return value, value.detach()

        trained = {name: p.detach() for name, p in self.parameters.items()}
        each = vmap(grad(single, has_aux=True), in_dims=(None, 0, 0), randomness="different")
        formed, losses = each(trained, x, y)
        return self._by_layer(formed), losses

    def _losses(self, output: Tensor, y: Tensor) -> Tensor:
        losses = self.loss(output, y)
        if losses.shape != y.shape[:1]:
            raise NotPerExample(
                f"the loss has shape {tuple(losses.shape)} for a batch of {len(y)}: expected one value for each example, "
                f"shape ({len(y)},). Give a loss with reduction='none', and average over what is not the batch",
                shape=tuple(losses.shape),
            )
        return losses

    # One example at a time: the truth that the other two are held against, and the last resort.

    def _by_loop(self, x: Tensor, y: Tensor) -> tuple[dict[str, LayerGradient], Tensor]:
        trained, rows, losses = list(self.parameters.values()), [], []
        for row in range(len(x)):
            with torch.enable_grad():
                loss = self._losses(self.model(x[row : row + 1]), y[row : row + 1])[0]
                found = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
            rows.append(found)
            losses.append(loss.detach())
        formed = {name: torch.stack(parts) for name, *parts in zip(self.parameters, *rows, strict=True)}
        return self._by_layer(formed), torch.stack(losses)

    def _by_layer(self, formed: dict[str, Tensor]) -> dict[str, LayerGradient]:
        return {
            layer: Formed({n.rpartition(".")[2]: g for n, g in formed.items() if self._layer_of[n] == layer})
            for layer in self._layers
        }

    def _choose(self, x: Tensor, y: Tensor) -> Callable[[Tensor, Tensor], tuple[dict[str, LayerGradient], Tensor]]:
        """Take the fastest way that agrees with the loop over single examples, on made-up rows of many scales.

        Raises:
            NotPerExample: the loss is not one value for each example.
        """
        rows, targets = made_up_batch(x, y)
        with without_dropout(self.model):
            truth, losses = self._by_loop(rows, targets)
            self._require_uncoupled(rows, targets, losses)
            ways = [self._by_layers] if self._has_rules() else []
            for way in (*ways, self._by_vmap):
                try:
                    found = way(rows, targets)
                except NotPerExample:
                    raise
                except (PrivlearnError, RuntimeError, ValueError, IndexError, KeyError):
                    continue
                if self._agree(found, (truth, losses)):
                    return way
        return self._by_loop

    def _require_uncoupled(self, rows: Tensor, targets: Tensor, alone: Tensor) -> None:
        """Refuse a loss whose value for one example depends on the others: it is not the one that would be trained."""
        with torch.no_grad(), torch.random.fork_rng():
            together = [self._losses(self.model(rows), targets) for _ in range(2)]
        usable = alone.isfinite()
        draws = not torch.equal(together[0][usable], together[1][usable])  # its own random numbers: nothing to compare
        if not draws and not _close(together[0][usable], alone[usable]):
            raise NotPerExample(
                "the loss of one example changes with the other examples of the batch: give a loss without means, weights or "
                "normalisation over the batch"
            )

    def _agree(
        self, found: tuple[dict[str, LayerGradient], Tensor], truth: tuple[dict[str, LayerGradient], Tensor]
    ) -> bool:
        """Whether every example's loss, gradient norms and gradients are the same, one example at a time."""
        (ours, losses), (theirs, true_losses) = found, truth
        usable = true_losses.isfinite()
        for layer in self._layers:
            usable &= theirs[layer].squared_norms().isfinite()
        if not _close(losses[usable], true_losses[usable]):
            return False
        for layer in self._layers:
            if not _close(ours[layer].squared_norms()[usable], theirs[layer].squared_norms()[usable]):
                return False
            for row in usable.nonzero()[:, 0].tolist():
                single = torch.zeros_like(losses)
                single[row] = 1.0
                expected = theirs[layer].weighted_sum(single)
                for name, part in ours[layer].weighted_sum(single).items():
                    if not _close(part, expected[name]):
                        return False
        return True


def _close(one: Tensor, other: Tensor) -> bool:
    scale = float(other.abs().max()) if other.numel() else 0.0
    return torch.allclose(one.double(), other.double(), rtol=5e-3, atol=2e-3 * scale + 1e-12)
