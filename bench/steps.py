"""One training step by each library: plain, and with each example's gradient clipped.

All start from the same weights and descend at learning rate 0, which costs the same and keeps every
step the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from networks import Network, Tensors, losses
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from privlearn.core.accounting.events import Repeated
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.clipping.bounded import Bounded
from privlearn.core.clipping.clips import Flat
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.mechanisms.noise import add_gaussian
from privlearn.core.mechanisms.release import release
from privlearn.core.sampling import FullBatch, Sample
from privlearn.core.streams import Streams

NOISE_MULTIPLIER = 1.0
FAST_KERNELS = "fast_kernels" in inspect.signature(ClippedGradients).parameters


@dataclass(frozen=True)
class Step:
    """A step that can be taken again and again.

    Attributes:
        take: from inputs and targets; zeroes or replaces gradients, finds new ones, and descends.
        clipped_sum: the sum of clipped gradients that such a step descends by, by parameter name;
            None: not clipped.
    """

    take: Callable[[Tensor, Tensor], None]
    clipped_sum: Callable[[Tensor, Tensor], Tensors] | None = None


#: Makes a step for a network on a device.
Maker = Callable[[Network, str], Step]


def _descent(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.0)


def plain(network: Network, device: str) -> Step:
    """PyTorch, without privacy."""
    model = network.built(device)
    optimizer = _descent(model)

    def take(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return Step(take)


def all_rows(x: Tensor) -> Sample:
    """A fresh sample of every row."""
    return next(FullBatch().draw(len(x)))


def _clipped_gradients(
    network: Network, model: nn.Module, fast_kernels: bool | None
) -> ClippedGradients:
    options: dict[str, Any] = (
        {"fast_kernels": fast_kernels} if FAST_KERNELS and fast_kernels is not None else {}
    )
    clip, expected = Flat(network.clip), network.batch  # as a run's batches
    return ClippedGradients(model, losses, clip, Adjacency.ADD_REMOVE, expected=expected, **options)


def by_privlearn(noise: str = "none", fast_kernels: bool | None = None) -> Maker:
    """privlearn, clipping flat.

    Args:
        noise: `none`, `fast` (torch's) or `secure` (a release of privlearn's, charged to a ledger).
        fast_kernels: whether to use its own kernels; None: as it does by itself.
    """

    def make(network: Network, device: str) -> Step:
        if fast_kernels and not FAST_KERNELS:
            raise NotImplementedError("this release of privlearn has no fast kernels")
        model = network.built(device)
        optimizer = _descent(model)
        gradients = _clipped_gradients(network, model, fast_kernels)
        ledger, stream = Ledger(), Streams.new().noise
        # as training does: all steps are approved beforehand
        ledger.begin(Repeated(Gaussian(NOISE_MULTIPLIER), 10**6), Adjacency.ADD_REMOVE)
        sums = gradients.buffers()
        for parameter, total in zip(gradients.parameters.values(), sums, strict=True):
            parameter.grad = total

        def add_noise(bounded: Bounded) -> None:
            if noise == "secure":
                release(bounded, noise_multiplier=NOISE_MULTIPLIER, ledger=ledger, stream=stream)
            elif noise == "fast":
                scale = NOISE_MULTIPLIER * bounded.sensitivity
                for value in bounded.values:
                    value += torch.empty_like(value).normal_(0, scale)

        def take(x: Tensor, y: Tensor) -> None:
            add_noise(gradients(all_rows(x), x, y, out=sums))
            torch._foreach_div_(sums, len(x))
            optimizer.step()

        def clipped_sum(x: Tensor, y: Tensor) -> Tensors:
            return dict(zip(gradients.parameters, gradients(all_rows(x), x, y).values, strict=True))

        return Step(take, clipped_sum)

    return make


def by_opacus_hooks(network: Network, device: str) -> Step:
    """Opacus: every example's gradient by hooks, without noise."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model = GradSampleModule(network.for_opacus(network.built(device)))
    optimizer = DPOptimizer(
        _descent(model),
        noise_multiplier=0.0,
        max_grad_norm=network.clip,
        expected_batch_size=network.batch,
    )

    def take(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        for parameter in optimizer.params:
            parameter.grad_sample = None  # or it would be held until the next step

    return Step(take, _opacus_sum(network, model, take))


def by_opacus_ghost(network: Network, device: str) -> Step:
    """Opacus: the gradients' norms by ghost clipping and a second backward pass, without noise."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    model = GradSampleModuleFastGradientClipping(
        network.for_opacus(network.built(device)), max_grad_norm=network.clip
    )
    optimizer = DPOptimizerFastGradientClipping(
        _descent(model),
        noise_multiplier=0.0,
        max_grad_norm=network.clip,
        expected_batch_size=network.batch,
    )
    criterion = DPLossFastGradientClipping(model, optimizer, _Losses())

    def take(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        criterion(model(x), y).backward()
        optimizer.step()

    return Step(take, _opacus_sum(network, model, take))


class _Losses:
    """`losses` as Opacus expects them: it sets `reduction` to none when it calls."""

    reduction = "mean"

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return losses(outputs, targets)


def _opacus_sum(
    network: Network, model: nn.Module, take: Callable[[Tensor, Tensor], None]
) -> Callable[[Tensor, Tensor], Tensors]:
    def clipped_sum(x: Tensor, y: Tensor) -> Tensors:
        take(x, y)
        gradients = {name.removeprefix("_module."): p.grad for name, p in model.named_parameters()}
        return network.from_opacus(
            {name: g * network.batch for name, g in gradients.items() if g is not None}
        )

    return clipped_sum


def by_vmap(network: Network, device: str) -> Step:
    """PyTorch's own transforms: `vmap` of `grad`, all examples at once, without noise."""
    model = network.built(device)
    optimizer = _descent(model)
    parameters = dict(model.named_parameters())

    def clipped_sum(x: Tensor, y: Tensor) -> Tensors:
        return _clipped(network.clip, *_each(model, x, y))

    def take(x: Tensor, y: Tensor) -> None:
        for name, total in clipped_sum(x, y).items():
            parameters[name].grad = total / len(x)
        optimizer.step()

    return Step(take, clipped_sum)


def _each(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensors, Tensor]:
    """Every example's gradient, and its norm."""

    def single(weights: Tensors, row: Tensor, target: Tensor) -> Tensor:
        return losses(functional_call(model, weights, (row[None],)), target[None])[0]

    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    each = vmap(grad(single), in_dims=(None, 0, 0))(weights, x, y)
    norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in each.values()])
    return each, torch.linalg.vector_norm(norms, dim=0)


def _clipped(clip: float, each: Tensors, norms: Tensor) -> Tensors:
    factors = (clip / norms).clamp(max=1.0)
    return {name: (factors @ g.flatten(1)).view(g.shape[1:]) for name, g in each.items()}


# The truth


@lru_cache(1)
def truth(network: Network) -> tuple[Tensors, Tensor]:
    """The clipped sum of the rows that are checked, one example after another in double precision;
    and the norms.
    """
    model = network.built().double()
    x, y = network.rows()
    x, y = x[: network.checked], y[: network.checked]
    x = x.double() if x.is_floating_point() else x
    parameters = dict(model.named_parameters())
    total = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    norms = []
    for row, target in zip(x.split(1), y.split(1), strict=True):
        gradient = torch.autograd.grad(losses(model(row), target).sum(), list(parameters.values()))
        norm = torch.linalg.vector_norm(
            torch.stack([torch.linalg.vector_norm(g) for g in gradient])
        )
        norms.append(norm)
        for name, part in zip(parameters, gradient, strict=True):
            total[name] += part * (network.clip / norm).clamp(max=1.0)
    return total, torch.stack(norms)


def distance(network: Network, sums: Tensors) -> float:
    """The L2 distance of `sums` from the truth, over the truth's norm."""
    total, _ = truth(network)
    if sums.keys() != total.keys():
        raise KeyError(f"the sums are of other parameters: {sorted(sums.keys() ^ total.keys())}")
    apart = sum(
        float((sums[name].detach().double().cpu() - total[name]).square().sum()) for name in total
    )
    return float((apart / sum(float(part.square().sum()) for part in total.values())) ** 0.5)


# Noise


def by_torch(like: Tensor) -> Tensor:
    """torch's generator: fast, and not secure."""
    return torch.empty_like(like).normal_()


def by_the_library() -> Callable[[Tensor], Tensor]:
    """privlearn's noise."""
    stream = Streams.new().noise

    def draw(like: Tensor) -> Tensor:
        into = torch.zeros_like(like)
        add_gaussian([into], 1.0, stream)
        return into

    return draw


def noise_alone(draw: Callable[[Tensor], Tensor]) -> Maker:
    """As much noise as a step needs, and nothing else."""

    def make(network: Network, device: str) -> Step:
        like = torch.empty(network.parameters, device=device)

        def take(x: Tensor, y: Tensor) -> None:
            draw(like)

        return Step(take)

    return make
