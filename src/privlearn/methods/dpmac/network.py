"""The layers of a fully connected network, read off an `nn.Sequential`, and what the curator may
look at of them.

Their activation functions: value, two derivatives, and the suprema that analytic sensitivities are
made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import pairwise
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn.core.clipping.model_check import require_shaped
from privlearn.errors import BadInput
from privlearn.runs.result import mean, with_nan, without_nan

#: Beyond this argument softplus is its asymptote to the last digit of double precision.
_FAR = 40.0
#: Distance of the points at which suprema of softplus are tabulated, and what may lie above them in
#: between, relatively: the functions are at least 0.25 there and have second derivatives below 2,
#: so that it is at most 2 * _STEP^2 / 8 / 0.25.
_STEP = 1e-3
_BETWEEN = 1e-6


@final
@dataclass(frozen=True, repr=False)
class Suprema:
    """Upper bounds of expressions in f, s = f', k = f'' and g = f - u s over |u| <= R_h, by unit h;
    shape (units,).

    Attributes:
        product: of |f s|.
        slope: of |s|.
        curvature: of |k|.
        rest: of |s g - k u f|.
        tilt: of |s - u k|.
        bend: of |s^2 + k f|.
        cross: of |2 g + k u^2|.
        constant: of |g^2 + k u^2 f|.
    """

    product: Tensor
    slope: Tensor
    curvature: Tensor
    rest: Tensor
    tilt: Tensor
    bend: Tensor
    cross: Tensor
    constant: Tensor


@final
@dataclass(frozen=True)
class Activation:
    """An elementwise activation function.

    Attributes:
        name: what to call it.
        value: f.
        slope: f'.
        curvature: f''.
        suprema: radii R, shape (units,), in double precision, to bounds over |u| <= R; constants
            will do. None: analytic sensitivities are not known, and are refused.
        lipschitz: the supremum of |f'| everywhere; with `suprema`.
    """

    name: str
    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    curvature: Callable[[Tensor], Tensor]
    suprema: Callable[[Tensor], Suprema] | None = None
    lipschitz: float = 1.0


def constants(radii: Tensor, **bounds: float) -> Suprema:
    """Bounds that hold for every argument, one number for each field of `Suprema`."""
    return Suprema(**{name: torch.full_like(radii, bound) for name, bound in bounds.items()})


def _linear_suprema(radii: Tensor) -> Suprema:
    """Of ReLU and of the identity, whose slope is 1 (or 0) and whose curvature and intercept are
    0.
    """
    flat = constants(
        radii,
        slope=1.0,
        curvature=0.0,
        rest=0.0,
        tilt=1.0,
        bend=1.0,
        cross=0.0,
        constant=0.0,
        product=0.0,
    )
    return Suprema(**{**vars(flat), "product": radii})


def _softplus_curvature(u: Tensor) -> Tensor:
    return torch.sigmoid(u) * torch.sigmoid(-u)


@lru_cache
def _softplus_table() -> tuple[Tensor, dict[str, Tensor]]:
    """Points 0 .. _FAR, and for each the largest value at points of at most its size, of either
    sign.
    """
    points = torch.arange(0, _FAR + _STEP, _STEP, dtype=torch.float64, device="cpu")
    columns = {}
    for name in (field.name for field in fields(Suprema)):
        at = torch.maximum(_softplus_term(name, points), _softplus_term(name, -points))
        columns[name] = torch.cummax(at, 0).values
    return points, columns


def _softplus_term(name: str, u: Tensor) -> Tensor:
    f, s, k = F.softplus(u, threshold=_FAR), torch.sigmoid(u), _softplus_curvature(u)
    g = f - u * s
    terms = {
        "product": lambda: f * s,
        "slope": lambda: s,
        "curvature": lambda: k,
        "rest": lambda: s * g - k * u * f,
        "tilt": lambda: s - u * k,
        "bend": lambda: s * s + k * f,
        "cross": lambda: 2 * g + k * u * u,
        "constant": lambda: g * g + k * u * u * f,
    }
    return terms[name]().abs()


def _softplus_suprema(radii: Tensor) -> Suprema:
    """From the table, and at the ends +-R themselves, so that what rises up to there is exact."""
    points, table = _softplus_table()
    below = torch.searchsorted(points, radii.clamp(max=_FAR), right=True) - 1
    suprema = {}
    for name, tabulated in table.items():
        ends = torch.maximum(_softplus_term(name, radii), _softplus_term(name, -radii))
        suprema[name] = torch.maximum(tabulated[below], ends) * (1 + _BETWEEN)
    return Suprema(**suprema)


def _step(u: Tensor) -> Tensor:
    return (u > 0).to(u.dtype)


def _tanh_slope(u: Tensor) -> Tensor:
    return 1 - torch.tanh(u).square()


def _tanh_curvature(u: Tensor) -> Tensor:
    return -2 * torch.tanh(u) * _tanh_slope(u)


def _tanh_suprema(radii: Tensor) -> Suprema:
    """For all arguments: 2 / (3 sqrt(3)), twice that, and what a search over a fine grid finds,
    each rounded up.
    """
    return constants(
        radii,
        product=0.385,
        slope=1.0,
        curvature=0.77,
        rest=0.655,
        tilt=1.174,
        bend=1.0,
        cross=2.01,
        constant=1.01,
    )


RELU = Activation("relu", torch.relu, _step, torch.zeros_like, _linear_suprema)
SOFTPLUS = Activation("softplus", F.softplus, torch.sigmoid, _softplus_curvature, _softplus_suprema)
TANH = Activation("tanh", torch.tanh, _tanh_slope, _tanh_curvature, _tanh_suprema)
IDENTITY = Activation("identity", lambda u: u, torch.ones_like, torch.zeros_like, _linear_suprema)
#: ln 2, softplus at 0.
LN2 = math.log(2)


#: Activation functions by the class of their module.
Activations = Mapping[type[nn.Module], Activation]
KNOWN: Activations = {nn.ReLU: RELU, nn.Softplus: SOFTPLUS, nn.Tanh: TANH}
_EXPECTED = (
    "DP-MAC trains fully connected networks: an nn.Sequential of Linear layers with ReLU, Softplus "
    "or Tanh between them (or an Activation of your own, in activations=), and a Linear layer last "
    "(a Flatten may come first), such as mlp:300"
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
        return (
            torch.cat([weight, self.linear.bias.detach()[:, None]], 1)
            if self.has_bias
            else weight.clone()
        )

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
            raise BadInput(
                f"the {type(module).__name__} {where} is not for this method: {_EXPECTED}"
            )
    if not linears or (last := between[-1]) is not None:
        ending = "no Linear layer" if not linears else f"an activation, {last.name}, last"  # type: ignore[union-attr]
        raise BadInput(
            f"the model has {ending}, and the loss takes what a Linear layer gives: {_EXPECTED}"
        )
    layers = [
        Layer(linear, activation) for linear, activation in zip(linears, between, strict=True)
    ]
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
            f"Softplus at {name!r} has beta {module.beta} and threshold {module.threshold}: "
            "expected nn.Softplus() as it comes, or an Activation of your own in activations="
        )
    return known[type(module)]


def _require_plain(model: nn.Module, layers: list[Layer]) -> None:
    """Refuse tied, frozen or complex parameters, hooks, and types that noise can't be added to."""
    parameters = [parameter for layer in layers for parameter in layer.parameters]
    if len(set(map(id, parameters))) < len(parameters):
        raise BadInput(
            f"a layer stands twice in the model, or two layers share a weight: {_EXPECTED}"
        )
    if not all(parameter.requires_grad for parameter in parameters):
        raise BadInput(
            "a layer of the model is frozen: DP-MAC trains all of them; set requires_grad"
        )
    if any(parameter.dtype not in (torch.float32, torch.float64) for parameter in parameters):
        raise BadInput(
            f"the model's parameters are {parameters[0].dtype}: expected float32 or float64; use "
            "model.float()"
        )
    for module in model.modules():
        if module._forward_hooks or module._forward_pre_hooks:
            raise BadInput(
                f"{type(module).__name__} of the model has hooks, which DP-MAC would not run: "
                "remove them"
            )
    for before, after in pairwise(layer.linear for layer in layers):
        if before.out_features != after.in_features:
            raise BadInput(
                f"a layer gives {before.out_features} numbers and the next takes "
                f"{after.in_features}: {_EXPECTED}"
            )


def with_ones(rows: Tensor, layer: Layer) -> Tensor:
    """`rows` with the bias's column of ones, if the layer has a bias."""
    return torch.cat([rows, rows.new_ones(len(rows), 1)], 1) if layer.has_bias else rows


@final
class LayerDiagnostics:
    """Collects, epoch by epoch: the mean loss of the network, and of each layer's first derivatives
    the mean norm and the share that was clipped; NaN where no example had one. How many examples
    had a layer that was not finite (such layers add nothing) is `left_out`.
    """

    def __init__(self, layers: int) -> None:
        self.figures: dict[str, list[Any]] = {
            "loss": [],
            "norms": [],
            "clipped_shares": [],
            "left_out": [],
        }
        self._layers = layers
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._rows, self._loss, self._left_out = 0, 0.0, 0
        self._norms, self._clipped, self._counted = ([0.0] * self._layers for _ in range(3))

    def see(self, losses: Tensor, norms: list[Tensor], clipped: Tensor) -> None:
        """Some examples' losses, shape (examples,), norms by layer, and which were clipped,
        (layers, examples).
        """
        finite = losses.isfinite()
        self._rows += int(finite.sum())
        self._loss += float(losses[finite].sum(dtype=torch.float64))
        usable = torch.stack(norms).isfinite()
        self._left_out += int((~usable.all(0)).sum())
        for layer, (layer_norms, ok) in enumerate(zip(norms, usable, strict=True)):
            self._norms[layer] += float(layer_norms[ok].sum())
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
        self._rows, self._loss, self._left_out, self._norms, self._clipped, self._counted = state[
            "epoch"
        ]
