"""Layers that are trained in coordinates in which public inputs have less uneven curvature.

DP-KFC (Molina Van den Bosch et al., ICML 2026, arXiv:2605.13418) multiplies gradients of single
examples by K-FAC factors (Martens and Grosse 2015; Grosse and Martens 2016 for convolutions) that
are estimated on drawn noise, and clips them afterwards. Here the layer itself is written anew:

    y = c G^-p (W' A^-p (x - m) + b')

with m the mean and A the covariance of the layer's inputs, G the second moment of the gradients of
its outputs, each over its mean eigenvalue and damped. W' and b' are trained. The gradient of W' is
c G^-p g A^-p for g that of W, so that clipping acts behind the preconditioner. A step on W' moves W
by the square of the preconditioner.

DP-KFC adds its noise to W itself. Writing s = p + r, where gradients are multiplied by H^-p before
the noise and by H^-r after it, the noise in scores is tr(H^(1-2r)) tr(H^(1-2p)) for gradients of
covariance H. By the inequality of Cauchy and Schwarz, p = r makes it least among all of one s. So
it is the same power on both sides here, and p = 1/4 acts as DP-KFC's s = 1/2 does.

The privacy argument: the maps are constants of the model, as its initial weights are, and are
computed from inputs that hold no private row. The engine clips what an example adds to the sum of
gradients of W' and b' at the norm that the plan says, so the sensitivity is the plan's. Folding is
arithmetic on released weights. Nothing of it is charged.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, final, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn._checks import between, checked, count, one_of
from privlearn.core.memory import is_of_memory
from privlearn.core.tensors import as_tensor
from privlearn.data.dataset import Dataset, require_others
from privlearn.errors import BadInput, first_line
from privlearn.runs.result import Result

#: What inputs can be drawn as.
KINDS = ("pink", "white")
#: Numbers in a row of a layer's inputs, beyond which a factor is too large to be decomposed.
_WIDEST = 4096
_ROWS_AT_ONCE = 500
#: The name of the fact that a folded result states.
FACT = "preconditioned_by"


@checked
@final
@dataclass(frozen=True)
class DrawnInputs:
    """Inputs that a generator draws: no row of any data has a part in them.

    Guarantee: they follow from the fields alone.

    Attributes:
        kind: `white`, normal numbers that are independent; `pink`, for images (height, width) or
            (channels, height, width): noise whose amplitude falls as one over the frequency.
        number: how many.
        low: the lower end of the range of the numbers that the network is given, publicly known.
        high: its upper end. The mean is in the middle, and the standard deviation is a quarter of
            the range.
        seed: of the generator.

    Raises:
        BadInput: an unknown kind, fewer than one input, or no range.
    """

    kind: Literal["pink", "white"] = "pink"
    number: int = 2000
    low: float = 0.0
    high: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("kind", self.kind, KINDS)
        count("number", self.number, most=1 << 20)
        if not -math.inf < self.low < self.high < math.inf:
            raise BadInput(
                f"low is {self.low:g} and high is {self.high:g}: expected the public range of the "
                "numbers that the network is given, low below high"
            )

    @property
    def words(self) -> str:
        """What a certificate says of them."""
        return f"{self.number} drawn inputs ({self.kind} noise), no row of any data"

    @checked
    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """The inputs, shape (number, *shape), on the processor.

        Raises:
            BadInput: pink noise of another shape than that of images.
        """
        numbers = torch.from_numpy(
            np.random.default_rng(self.seed).normal(size=(self.number, *shape)).astype(np.float32)
        )
        if self.kind == "pink":
            if len(shape) not in (2, 3):
                raise BadInput(
                    f"pink noise is for images, and one input has shape {shape}: expected (height, "
                    "width) or (channels, height, width). Give kind='white'"
                )
            numbers = _pink(numbers)
        middle, quarter = (self.low + self.high) / 2, (self.high - self.low) / 4
        return middle + quarter * numbers


def _pink(white: Tensor) -> Tensor:
    """Images of mean 0 and standard deviation 1 each, their amplitude over the frequency."""
    height, width = white.shape[-2:]
    down, across = (torch.fft.fftfreq(size, device="cpu") for size in (height, width))
    frequency = torch.hypot(down[:, None], across[None]).clamp(min=1 / max(height, width))
    images = torch.fft.ifft2(torch.fft.fft2(white) / frequency).real.flatten(1)
    images = images - images.mean(1, keepdim=True)
    deviation = images.std(1, keepdim=True).clamp(min=torch.finfo(images.dtype).tiny)
    scaled: Tensor = images / deviation
    return scaled.reshape(white.shape)


@final
class Preconditioned(nn.Module):
    """A linear layer or a convolution in other coordinates: `precondition` makes it.

    Args:
        layer: the layer whose outputs it has at the start.
        mean: of the layer's inputs, shape (inputs,); zeros where the layer has no bias.
        inward: the roots of A, and their inverses: two tensors of shape (inputs, inputs).
        outward: those of G, of shape (outputs, outputs).
        preconditioned_by: what the factors were estimated on, in words.
    """

    mean: Tensor
    inward: Tensor
    outward: Tensor

    def __init__(
        self,
        layer: nn.Linear | nn.Conv2d,
        mean: Tensor,
        inward: tuple[Tensor, Tensor],
        outward: tuple[Tensor, Tensor],
        preconditioned_by: str,
    ) -> None:
        super().__init__()
        weight, dtype = layer.weight.detach(), layer.weight.dtype
        self.preconditioned_by = preconditioned_by
        self._is_convolution = isinstance(layer, nn.Conv2d)
        self._places: dict[str, Any] = (
            {name: getattr(layer, name) for name in ("stride", "padding", "dilation")}
            if isinstance(layer, nn.Conv2d)
            else {}
        )
        self._kernel = tuple(weight.shape[1:])
        self.register_buffer("mean", mean.to(weight))
        self.register_buffer("inward", inward[0].to(weight))
        self.register_buffer("outward", outward[0].to(weight))
        rows = weight.flatten(1).double()
        inner = outward[1] @ rows @ inward[1]
        self.weight = nn.Parameter(inner.to(dtype))
        self.bias: nn.Parameter | None = None
        if layer.bias is not None:
            moved = layer.bias.detach().double() + rows @ mean.double()
            self.bias = nn.Parameter((outward[1] @ moved).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        """What the layer gives."""
        if not self._is_convolution:
            inner = F.linear(x - self.mean, self.inward)
            return F.linear(F.linear(inner, self.weight, self.bias), self.outward)
        # a patch less the mean is a convolution with a bias
        kernels = self.inward.view(-1, *self._kernel)
        inner = F.conv2d(x, kernels, -(self.inward @ self.mean), **self._places)
        inner = F.conv2d(inner, self.weight[:, :, None, None], self.bias)
        return F.conv2d(inner, self.outward[:, :, None, None])

    @torch.no_grad()
    def folded(self) -> nn.Linear | nn.Conv2d:
        """The ordinary layer that computes the same."""
        outward, inward = self.outward.double(), self.inward.double()
        rows = outward @ self.weight.double() @ inward
        settings: dict[str, Any] = {
            "bias": self.bias is not None,
            "device": self.weight.device,
            "dtype": self.weight.dtype,
        }
        layer: nn.Linear | nn.Conv2d
        if self._is_convolution:
            channels, height, width = self._kernel
            layer = nn.Conv2d(channels, len(rows), (height, width), **self._places, **settings)
        else:
            layer = nn.Linear(rows.shape[1], len(rows), **settings)
        layer.weight.copy_(rows.view_as(layer.weight))
        if self.bias is not None and layer.bias is not None:
            layer.bias.copy_(outward @ self.bias.double() - rows @ self.mean.double())
        return layer.train(self.training)


@checked
def precondition(
    model: nn.Module,
    inputs: DrawnInputs | Dataset,
    shape: tuple[int, ...],
    *,
    private: Dataset | None = None,
    power: float = 0.25,
    damping: float = 1.0,
    seed: int = 0,
) -> nn.Module:
    """Write each linear layer and convolution of a model in other coordinates, for training.

    Labels are drawn from the model's own predictions, so that G is that of the Fisher information.
    The new model computes what the old one does. Train it by `pv.dpsgd` or `pv.train` as any other,
    and `fold` the result.

    Guarantee: gradients are clipped behind the preconditioner, by the same engine at the same
    norm, so that an example moves a release by at most what it moved it by before. Factors are
    computed from `inputs` and the initial weights alone. Drawn inputs hold no row. Rows of a data
    set have to be declared public, are compared with the private ones, and stand in the certificate
    as declared.

    Args:
        model: gives scores of classes, shape (rows, classes). It stays as it is.
        inputs: drawn ones, or `pv.Dataset(x, public=True)`, whose rows get no protection. They are
            what the network itself is given: scaled, where training scales rows.
        shape: of one input of the network.
        private: the data that will be trained on, where `inputs` is a data set. They are compared
            once, for the data's curator, and nothing else is done with them.
        power: of the factors; 0 leaves the means alone, 0.5 gives natural gradients.
        damping: what is added to eigenvalues, relative to their mean.
        seed: of the labels.

    Returns:
        A copy, with layers that hold fixed linear maps. Layers in groups, transposed, shared
        between places, or wider than 4,096 inputs stay as they are.

    Raises:
        BadInput: rows that were not declared public, or are the private ones; inputs of another
            shape; scores of another; or no layer that it could write anew.
    """
    between("power", power, 0.0, 1.0)
    between("damping", damping, 1e-6, 1e6)
    seed = count("seed", seed, least=0)
    if isinstance(inputs, Dataset):
        rows, words = (
            _declared_rows(inputs, private, shape),
            (f"{len(inputs.x)} rows that the publisher declares public ({inputs.name})"),
        )
    else:
        rows, words = inputs.draw(tuple(shape)), inputs.words
    written = copy.deepcopy(model)
    device = next((weights.device for weights in written.parameters()), torch.device("cpu"))
    layers = _layers(written)
    moments = {name: _Moments(layer) for name, layer in layers.items()}
    is_training = written.training
    written.eval()
    try:
        _run(written, moments, rows.to(device), seed)
    finally:
        written.train(is_training)
    for name, moment in moments.items():
        if moment.positions:
            written = _replace(written, name, moment.layer_of(power, damping, words))
    if not any(isinstance(part, Preconditioned) for part in written.modules()):
        raise BadInput(
            "the model has no layer that can be written in other coordinates: expected nn.Linear "
            f"or nn.Conv2d of at most {_WIDEST} inputs that are trained, without groups"
        )
    return written


@overload
def fold(trained: Result) -> Result: ...


@overload
def fold(trained: nn.Module) -> nn.Module: ...


@checked
def fold(trained: Result | nn.Module) -> Result | nn.Module:
    """The ordinary model that computes what a preconditioned one does, to publish.

    Guarantee: it is arithmetic on released weights and public maps, and costs nothing.

    Args:
        trained: what a method returned, or a network.

    Returns:
        A copy, with ordinary layers. A result states what the factors were estimated on
        (`facts["preconditioned_by"]`), which certificate and card repeat.

    Raises:
        BadInput: no layer is preconditioned, or the result's weights were changed after the run.
    """
    if isinstance(trained, Result):
        trained.require_unchanged()
        words = describe_inputs(trained.model)
        model = cast(nn.Sequential, _fold(trained.model))
        # a factory that is named builds the preconditioned network, not this one
        return replace(trained, model=model, facts=trained.facts | {FACT: words}, model_spec=None)
    describe_inputs(trained)
    return _fold(trained)


def describe_inputs(model: nn.Module) -> str:
    """What the factors of a model's layers were estimated on, all of it: layers that were written
    at different times may have different factors.

    Raises:
        BadInput: no layer is preconditioned.
    """
    words = [part.preconditioned_by for part in model.modules() if isinstance(part, Preconditioned)]
    if words:
        return "; ".join(dict.fromkeys(words))
    raise BadInput(
        "no layer of the model is preconditioned: expected what pv.models.precondition made and a "
        "method trained"
    )


def _fold(model: nn.Module) -> nn.Module:
    plain = copy.deepcopy(model)
    for name, part in list(plain.named_modules()):
        if isinstance(part, Preconditioned):
            plain = _replace(plain, name, part.folded())
    return plain


def _declared_rows(inputs: Dataset, private: Dataset | None, shape: tuple[int, ...]) -> Tensor:
    """The rows of a data set that was declared public and holds others than the private ones."""
    if not inputs.public:
        raise BadInput(
            "the inputs that curvature is estimated on get no protection, and were not declared "
            "public: expected pv.Dataset(x, public=True), or DrawnInputs()"
        )
    if private is None:
        raise BadInput(
            "inputs that are declared public are compared with the private rows: expected "
            "private=, the data that will be trained on, beside them"
        )
    require_others(inputs.x, private.x, "the inputs that curvature is estimated on")
    rows = as_tensor(inputs.x, whole_is_float=True).float()
    if rows.shape[1:].numel() != math.prod(shape) or not len(rows):
        raise BadInput(
            f"the inputs are {len(rows)} of shape {tuple(rows.shape[1:])}: expected at least one, "
            f"of shape {tuple(shape)}"
        )
    return rows.reshape(-1, *shape)


def _layers(model: nn.Module) -> dict[str, nn.Linear | nn.Conv2d]:
    """The layers that can be written anew, by name; those that stand in two places are left out."""
    names: dict[int, list[str]] = {}
    for name, part in model.named_modules(remove_duplicate=False):
        names.setdefault(id(part), []).append(name)
    layers: dict[str, nn.Linear | nn.Conv2d] = {}
    for name, part in model.named_modules():
        if type(part) not in (nn.Linear, nn.Conv2d) or len(names[id(part)]) > 1:
            continue
        layer = cast("nn.Linear | nn.Conv2d", part)
        plain = not isinstance(layer, nn.Conv2d) or (
            layer.groups == 1 and layer.padding_mode == "zeros"
        )
        trained = all(weights.requires_grad for weights in layer.parameters())
        if plain and trained and layer.weight[0].numel() <= _WIDEST:
            layers[name] = layer
    return layers


@final
class _Moments:
    """Sums over inputs of a layer, and over gradients of its outputs."""

    def __init__(self, layer: nn.Linear | nn.Conv2d) -> None:
        self._layer = layer
        outputs, inputs = layer.weight.flatten(1).shape
        place: dict[str, Any] = {"dtype": torch.float64, "device": layer.weight.device}
        self._sum = torch.zeros(inputs, **place)
        self._squares = torch.zeros(inputs, inputs, **place)
        self._flows = torch.zeros(outputs, outputs, **place)
        self.positions = 0

    def watch(self, _: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        """A hook on the layer's forward pass."""
        x = inputs[0].detach()
        outputs.register_hook(lambda flow: self._add(x, flow.detach()))  # type: ignore[no-untyped-call]

    def _add(self, x: Tensor, flow: Tensor) -> None:
        layer = self._layer
        if isinstance(layer, nn.Conv2d):
            # padding by name is what F.conv2d understands and F.unfold does not
            down, across = _padding(layer)
            x = F.pad(x, (*across, *down))
            patches = F.unfold(x, layer.kernel_size, layer.dilation, 0, layer.stride)
            x, flow = patches.mT.flatten(0, 1), flow.flatten(2).mT.flatten(0, 1)
        rows, flows = x.flatten(0, -2).double(), flow.flatten(0, -2).double()
        self._sum += rows.sum(0)
        self._squares += rows.T @ rows
        self._flows += flows.T @ flows
        self.positions += len(rows)

    def layer_of(self, power: float, damping: float, words: str) -> Preconditioned:
        """The layer in other coordinates.

        The expected square of the gradient's norm, on these inputs, stays what it was: a clip norm
        and the balance between layers mean the same as before.
        """
        mean = self._sum / self.positions
        if self._layer.bias is None:
            mean = torch.zeros_like(mean)
        inputs = self._squares / self.positions - mean.outer(mean)
        inward, before = _roots(inputs, power, damping)
        outward, behind = _roots(self._flows / self.positions, power, damping)
        scale = (before * behind) ** -0.5
        return Preconditioned(
            self._layer,
            mean,
            (scale * inward[0], inward[1] / scale),
            outward,
            words,
        )


def _padding(layer: nn.Conv2d) -> tuple[tuple[int, int], tuple[int, int]]:
    """What is added above and below, and on the left and on the right."""
    if isinstance(layer.padding, str):
        if layer.padding == "valid":
            return (0, 0), (0, 0)
        totals = [
            step * (size - 1) for step, size in zip(layer.dilation, layer.kernel_size, strict=True)
        ]
        down, across = ((total // 2, total - total // 2) for total in totals)
        return down, across
    down, across = ((int(size), int(size)) for size in layer.padding)
    return down, across


def _roots(matrix: Tensor, power: float, damping: float) -> tuple[tuple[Tensor, Tensor], float]:
    """(M + damping)^-power and its inverse, M over its mean eigenvalue; and what the first does to
    the trace.
    """
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    values = values.clamp(min=0)
    mean = values.mean()
    if not mean > 0:  # nothing arrives here, or nothing flows back
        same = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
        return (same, same), 1.0
    values = values / mean
    damped = values + damping
    root = (vectors * damped**-power) @ vectors.T
    back = (vectors * damped**power) @ vectors.T
    return (root, back), float((values * damped ** (-2 * power)).mean())


def _run(model: nn.Module, moments: dict[str, _Moments], rows: Tensor, seed: int) -> None:
    """One forward and one backward pass over the inputs, in blocks."""
    hooks = [
        model.get_submodule(name).register_forward_hook(moment.watch)
        for name, moment in moments.items()
    ]
    generator = np.random.default_rng(seed)
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for block in rows.split(_ROWS_AT_ONCE):  # type: ignore[no-untyped-call]
            with torch.random.fork_rng(devices=()), torch.enable_grad():
                scores = _score(model, block)
                if scores.dim() != 2 or len(scores) != len(block):
                    raise BadInput(
                        f"the model turns {len(block)} inputs into shape {tuple(scores.shape)}: "
                        "expected (rows, classes), scores that labels can be drawn by"
                    )
                shares = scores.detach().softmax(1).cumsum(1)
                drawn = torch.from_numpy(generator.random((len(block), 1))).to(shares)
                labels = (drawn > shares).sum(1).clamp(max=scores.shape[1] - 1)
                loss = F.cross_entropy(scores, labels, reduction="sum")
                torch.autograd.grad(loss, weights, allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()


def _score(model: nn.Module, rows: Tensor) -> Tensor:
    """What the model makes of rows.

    Raises:
        BadInput: it can't run on them.
    """
    try:
        return cast(Tensor, model(rows))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if is_of_memory(error):
            raise
        raise BadInput(
            f"the model cannot run on inputs of shape {tuple(rows.shape[1:])}: "
            f"{first_line(error)}. Expected shape= to be that of one input"
        ) from error


def _replace(model: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    """The model with another layer of that name; the layer, where it is the model itself."""
    if not name:
        return layer
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, layer)
    return model
