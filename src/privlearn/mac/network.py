"""The layers of a fully connected network, read off an `nn.Sequential`, and what the curator may look at of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import torch
from torch import Tensor, nn

from privlearn.errors import BadInput
from privlearn.mac.activations import RELU, SOFTPLUS, TANH, Activation
from privlearn.models.check import require_shaped
from privlearn.runs.result import mean, with_nan, without_nan

#: Activation functions by the class of their module.
Activations = Mapping[type[nn.Module], Activation]
KNOWN: Activations = {nn.ReLU: RELU, nn.Softplus: SOFTPLUS, nn.Tanh: TANH}
_EXPECTED = (
    "DP-MAC trains fully connected networks: an nn.Sequential of Linear layers with ReLU, Softplus or Tanh between them "
    "(or an Activation of your own, in activations=), and a Linear layer last (a Flatten may come first), such as mlp:300"
)


@final
@dataclass(frozen=True)
class Layer:
    """A linear layer and the activation behind it; the output layer has none.

    Attributes:
        linear: the module, whose parameters are trained in place.
        activation: what follows it.
    """

    linear: nn.Linear
    activation: Activation | None

    @property
    def has_bias(self) -> bool:
        """Whether there is a bias, which is then the last column of `weight`."""
        return self.linear.bias is not None

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs, the bias's 1 included."""
        return self.linear.out_features, self.linear.in_features + self.has_bias

    def weight(self) -> Tensor:
        """The weights as they are now, the bias as the last column; shape `shape`."""
        weight = self.linear.weight.detach()
        return torch.cat([weight, self.linear.bias.detach()[:, None]], 1) if self.has_bias else weight.clone()

    def set_gradient(self, gradient: Tensor) -> None:
        """Hand a gradient of `weight` to the parameters."""
        inputs = self.linear.in_features
        self.linear.weight.grad = gradient[:, :inputs].contiguous()
        if self.has_bias:
            self.linear.bias.grad = gradient[:, inputs].contiguous()

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The weight, and the bias if there is one."""
        return list(self.linear.parameters())


def layers_of(model: nn.Module, activations: Activations | None = None) -> list[Layer]:
    """The layers of `model`, in order.

    Args:
        model: a fully connected network.
        activations: activation functions by their modules' classes, beside ReLU and softplus.

    Raises:
        BadInput: it is none.
    """
    require_shaped(model)
    known = {**KNOWN, **(activations or {})}
    linears: list[nn.Linear] = []
    between: list[Activation | None] = []
    for name, module in _flat(model):
        if type(module) is nn.Linear:
            if linears and between[-1] is None:
                raise BadInput(f"two Linear layers follow each other at {name!r}: {_EXPECTED}")
            linears.append(module)
            between.append(None)
        elif type(module) in known and linears and between[-1] is None:
            between[-1] = _activation(module, known, name)
        elif not (type(module) is nn.Flatten and not linears) and type(module) is not nn.Identity:
            where = f"at {name!r} of the model" if name else "that the model is"
            raise BadInput(f"the {type(module).__name__} {where} is not for this method: {_EXPECTED}")
    if not linears or between[-1] is not None:
        ending = "no Linear layer" if not linears else f"an activation, {between[-1].name}, last"  # type: ignore[union-attr]
        raise BadInput(f"the model has {ending}, and the loss takes what a Linear layer gives: {_EXPECTED}")
    layers = [Layer(linear, activation) for linear, activation in zip(linears, between, strict=True)]
    _require_plain(model, layers)
    return layers


def _flat(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules of nested `nn.Sequential`s, in order, with their names."""
    if type(module) is not nn.Sequential:
        yield name, module
        return
    for child_name, child in module._modules.items():
        assert child is not None
        yield from _flat(child, f"{name}.{child_name}".lstrip("."))


def _activation(module: nn.Module, known: Activations, name: str) -> Activation:
    if isinstance(module, nn.Softplus) and (module.beta != 1 or module.threshold < 20):
        raise BadInput(
            f"Softplus at {name!r} has beta {module.beta} and threshold {module.threshold}: expected nn.Softplus() as it "
            "comes, or an Activation of your own in activations="
        )
    return known[type(module)]


def _require_plain(model: nn.Module, layers: list[Layer]) -> None:
    """Refuse tied, frozen or complex parameters, hooks, and types that noise can't be added to."""
    parameters = [parameter for layer in layers for parameter in layer.parameters]
    if len(set(map(id, parameters))) < len(parameters):
        raise BadInput(f"a layer stands twice in the model, or two layers share a weight: {_EXPECTED}")
    if not all(parameter.requires_grad for parameter in parameters):
        raise BadInput("a layer of the model is frozen: DP-MAC trains all of them; set requires_grad")
    if any(parameter.dtype not in (torch.float32, torch.float64) for parameter in parameters):
        raise BadInput(
            f"the model's parameters are {parameters[0].dtype}: expected float32 or float64; use model.float()"
        )
    for module in model.modules():
        if module._forward_hooks or module._forward_pre_hooks:
            raise BadInput(f"{type(module).__name__} of the model has hooks, which DP-MAC would not run: remove them")
    for before, after in pairwise(layer.linear for layer in layers):
        if before.out_features != after.in_features:
            raise BadInput(
                f"a layer gives {before.out_features} numbers and the next takes {after.in_features}: {_EXPECTED}"
            )


def with_ones(rows: Tensor, layer: Layer) -> Tensor:
    """`rows` with the bias's column of ones, if the layer has a bias."""
    return torch.cat([rows, rows.new_ones(len(rows), 1)], 1) if layer.has_bias else rows


@final
class LayerDiagnostics:
    """Collects, epoch by epoch: the mean loss of the network, and of each layer's first derivatives the mean norm and the
    share that was clipped; NaN where no example had one. How many examples had a layer that was not finite (such layers add
    nothing) is `left_out`.
    """

    def __init__(self, layers: int) -> None:
        self.figures: dict[str, list[Any]] = {"loss": [], "norms": [], "clipped_shares": [], "left_out": []}
        self._layers = layers
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._rows, self._loss, self._left_out = 0, 0.0, 0
        self._norms, self._clipped, self._counted = ([0.0] * self._layers for _ in range(3))

    def see(self, losses: Tensor, norms: list[Tensor], clipped: Tensor) -> None:
        """Some examples' losses, shape (examples,), norms for each layer, and which were clipped, shape (layers, examples)."""
        finite = losses.isfinite()
        self._rows += int(finite.sum())
        self._loss += float(losses[finite].sum(dtype=torch.float64))
        usable = torch.stack(norms).isfinite()
        self._left_out += int((~usable.all(0)).sum())
        for layer, (own, ok) in enumerate(zip(norms, usable, strict=True)):
            self._norms[layer] += float(own[ok].sum())
            self._clipped[layer] += int(clipped[layer][ok].sum())
            self._counted[layer] += int(ok.sum())

    def end_epoch(self) -> None:
        """Add the epoch to `figures`."""
        self.figures["loss"].append(mean(self._loss, self._rows))
        for name, sums in (("norms", self._norms), ("clipped_shares", self._clipped)):
            self.figures[name].append(list(map(mean, sums, self._counted)))
        self.figures["left_out"].append(self._left_out)
        self._begin_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        sums = [self._rows, self._loss, self._left_out, self._norms, self._clipped, self._counted]
        return {"figures": without_nan(self.figures), "epoch": sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        self.figures = with_nan(state["figures"])
        self._rows, self._loss, self._left_out, self._norms, self._clipped, self._counted = state["epoch"]
