"""Named checks of DP-MAC; mutations must make them fail."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checks import check, must_raise, one_sample
from leak_checks import PRICED, ROWS, data_with
from torch import Tensor, nn
from transcripts import require_alike, transcript

import privlearn as pv
from privlearn import rng, sampling
from privlearn.accounting.adjacency import Adjacency
from privlearn.accounting.events import walk
from privlearn.accounting.ledger import Ledger
from privlearn.clipping import analytic
from privlearn.clipping.activations import IDENTITY, RELU, SOFTPLUS, Activation, constants
from privlearn.clipping.derivatives import DerivativeSums, Products, histogram
from privlearn.clipping.layerwise import Layerwise, shares_of_parts
from privlearn.errors import UnsupportedEvent
from privlearn.mechanisms import release as release_module
from privlearn.methods import dpmac as dpmac_module
from privlearn.methods.checkpoint import Checkpoint
from privlearn.methods.mac import batch as batch_module
from privlearn.methods.mac import coordinates as coordinates_module
from privlearn.methods.mac.coordinates import Coordinates
from privlearn.methods.mac.expansion import BINARY, OUTPUTS, SOFTMAX, SQUARED, Output, hidden_first, hidden_second
from privlearn.methods.mac.network import layers_of, with_ones
from privlearn.methods.mac.objective import Surrogate
from privlearn.methods.mac.steps import MacSteps
from privlearn.publishing import bundle, verification

ADD, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE


def _tanh_slope(u: Tensor) -> Tensor:
    return 1 - torch.tanh(u) ** 2


def _tanh_curvature(u: Tensor) -> Tensor:
    return -2 * torch.tanh(u) * _tanh_slope(u)


#: An activation of the user's own, with bounds found on a grid of six million points and rounded up.
TANH = Activation(
    "tanh", torch.tanh, _tanh_slope, _tanh_curvature,
    lambda radii: constants(radii, product=0.385, slope=1.0, curvature=0.77, rest=0.655, tilt=1.174, bend=1.0, cross=2.01,
                            constant=1.01),
)  # fmt: skip
ACTIVATIONS: dict[str, tuple[Activation, type[nn.Module]]] = {
    "relu": (RELU, nn.ReLU), "softplus": (SOFTPLUS, nn.Softplus), "tanh": (TANH, nn.Tanh),
}  # fmt: skip


def net(
    *widths: int, kind: type[nn.Module] = nn.Softplus, dtype: torch.dtype = torch.float64, seed: int = 0
) -> nn.Sequential:
    torch.manual_seed(seed)
    parts: list[nn.Module] = []
    for before, after in pairwise(widths):
        parts += [nn.Linear(before, after), kind()]
    return nn.Sequential(*parts[:-1]).to(dtype)


def made_up(
    rows: int, inputs: int, outputs: int, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inputs, generator=generator, dtype=torch.float64)
    return x.to(dtype), torch.rand(rows, outputs, generator=generator, dtype=torch.float64).to(dtype)


def derivatives(
    model: nn.Module, bound: Layerwise, output: Output = BINARY, **more: Any
) -> batch_module.BatchDerivatives:
    settings: dict[str, Any] = {"adjacency": ADD, "coordinates": Coordinates(5, 0.05, "adam"), "examples": 64} | more
    return batch_module.BatchDerivatives(
        layers_of(model, {nn.Tanh: TANH}),
        output,
        bound,
        settings.pop("adjacency"),
        settings.pop("coordinates"),
        **settings,
    )


def sample_of(rows: Any) -> sampling.Sample:
    return sampling.Sample(np.asarray(rows), one_sample()._unit)


def values(parts: Any) -> list[Tensor]:
    return [part.values[0] for part in parts]


# Coefficients


@check
def check_coefficients_are_those_of_the_taylor_expansion() -> None:
    """Against automatic differentiation: first and halved second derivatives of one example's objective, by layer."""
    z_in, z_out, y = torch.randn(3, generator=torch.Generator().manual_seed(1), dtype=torch.float64), *made_up(1, 4, 4)
    weight = torch.randn(4, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    cases: list[tuple[Any, Any, Any]] = []
    for activation, _ in ACTIVATIONS.values():
        cases.append((
            lambda W, f=activation: (z_out[0] - f.value(W @ z_in)).square().sum(),
            hidden_first(activation, (weight @ z_in)[None], z_out),
            hidden_second(activation, (weight @ z_in)[None], z_out),
        ))  # fmt: skip
    for output in (SQUARED, BINARY, SOFTMAX):
        y = y / y.sum() if output is SOFTMAX else y
        cases.append((
            lambda W, loss=output, y=y: loss.losses((W @ z_in)[None], y)[0],
            output.first((weight @ z_in)[None], y),
            output.second((weight @ z_in)[None], y) if output.second else None,
        ))  # fmt: skip
    for objective, d, c in cases:
        first = torch.func.grad(objective)(weight)
        assert torch.allclose(first, torch.outer(d[0], z_in), atol=1e-12), "first derivatives"
        if c is not None:
            second = torch.func.hessian(objective)(weight)  # (outputs, inputs, outputs, inputs)
            own = torch.stack([second[h, :, h] for h in range(4)]) / 2
            found = c[0][:, None, None] * torch.outer(z_in, z_in)
            assert torch.allclose(own, found, atol=1e-12), "second derivatives"
            rebuilt = Surrogate.around(weight, first, found)
            for scale in (1e-2, 1e-3):
                other = weight + scale * torch.ones_like(weight)
                moved = objective(other) - objective(weight)
                by_surrogate = _polynomial(rebuilt, other) - _polynomial(rebuilt, weight)
                assert abs(moved - by_surrogate) <= 100 * scale**3, "the rebuilt polynomial departs from the objective"


@check
def check_derivatives_are_those_of_the_weighted_objective() -> None:
    """With one sweep and a large mu, the released sums are the loss's own gradients, in every layer, but for 1 / mu."""
    for output in (SQUARED, BINARY):
        model, (x, y) = net(5, 7, 6, 3, kind=nn.Softplus), made_up(9, 5, 3)
        layers = layers_of(model)
        found = derivatives(model, pv.Derivatives(1e6), output, coordinates=Coordinates(1, 1.0, "sweep"))
        true = torch.autograd.grad(output.losses(model(x), y).sum(), list(model.parameters()))
        for mu, near in ((1e3, 1e-2), (1e6, 1e-5)):
            sums = values(found(sample_of(range(9)), x, y, mu))
            for layer, total, weight, bias in zip(layers, sums, true[::2], true[1::2], strict=True):
                expected = torch.cat([weight, bias[:, None]], 1)
                assert total.shape == layer.shape
                assert float((total - expected).norm()) <= near * float(expected.norm()), (output.name, mu)


def _polynomial(surrogate: Surrogate, weight: Tensor) -> Tensor:
    assert surrogate.curvature is not None
    return (weight * surrogate.linear).sum() + torch.einsum("hi,hij,hj->", weight, surrogate.curvature, weight)


@check
def check_surrogates_are_rebuilt_from_what_was_released() -> None:
    """Its gradient at the weights of the expansion is the released sum, whatever noise there is; further off C counts."""
    generator = torch.Generator().manual_seed(0)
    weight, first = (torch.randn(3, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    noisy = torch.randn(3, 4, 4, generator=generator, dtype=torch.float64)
    found = Surrogate.around(weight, first, noisy)
    assert torch.allclose(found.gradient(weight), first, atol=1e-12)
    step = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    expected = first + torch.einsum("hij,hj->hi", noisy + noisy.mT, step)
    assert torch.allclose(found.gradient(weight + step), expected, atol=1e-12)


@check
def check_newton_steps_are_safe() -> None:
    """To the minimum where C is definite and well above the noise; else no longer than the floor allows, and downhill."""
    generator = torch.Generator().manual_seed(0)
    weight, first = (torch.randn(3, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    root = torch.randn(3, 4, 4, generator=generator, dtype=torch.float64)
    definite = root @ root.mT + torch.eye(4, dtype=torch.float64)
    quiet = Surrogate.around(weight, first, definite)
    at_minimum = weight - quiet.newton(weight, 1e-6)
    assert float(quiet.gradient(at_minimum).abs().max()) < 1e-9
    for noise, damping in ((0.0, 0.5), (3.0, 1e-6)):
        wild = Surrogate.around(weight, first, definite - 4 * torch.eye(4, dtype=torch.float64), noise)
        assert wild.curvature is not None
        assert float(torch.linalg.eigvalsh(wild.curvature).min()) < 0
        step, floor = wild.newton(weight, damping), max(damping, noise * math.sqrt(8))
        assert bool((step.norm(dim=1) <= first.norm(dim=1) / (2 * floor) * (1 + 1e-9)).all())
        assert bool(((step * first).sum(1) > 0).all()), "it goes uphill"


# Coordinates


def _by_autograd(
    model: nn.Sequential, output: Output, x: Tensor, y: Tensor, settings: Coordinates, mu: float
) -> list[Tensor]:
    """Coordinates as eq. 2 has them, by automatic differentiation; every example by itself."""
    layers = layers_of(model, {nn.Tanh: TANH})
    found: list[list[Tensor]] = []
    for row in range(len(x)):
        z = [each.clone().requires_grad_() for each in coordinates_module.forward(layers, x[row : row + 1])]
        kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[settings.optimizer]
        descent = kind(z, lr=settings.rate)
        for _ in range(settings.steps):
            loss = output.losses(coordinates_module.arguments(layers[-1], z[-1]), y[row : row + 1]).sum()
            for layer, seen, own in zip(layers, [x[row : row + 1], *z], z, strict=False):
                assert layer.activation is not None
                loss = (
                    loss + mu * (own - layer.activation.value(coordinates_module.arguments(layer, seen))).square().sum()
                )
            descent.zero_grad()
            (loss / 2).backward()
            descent.step()
        found.append([each.detach() for each in z])
    return [torch.cat(each) for each in zip(*found, strict=True)]


@check
def check_coordinates_follow_the_gradients_of_equation_two() -> None:
    for output in (SQUARED, BINARY, SOFTMAX):
        for optimizer in ("adam", "sgd"):
            model, (x, y) = net(4, 6, 5, 3), made_up(3, 4, 3)
            y = y / y.sum(1, keepdim=True) if output is SOFTMAX else y
            settings = Coordinates(6, 0.02, optimizer)
            found = coordinates_module.fitted(layers_of(model), output, x, y, settings, 0.7)
            for own, expected in zip(found, _by_autograd(model, output, x, y, settings, 0.7), strict=True):
                assert torch.allclose(own, expected, atol=1e-9), (output.name, optimizer)


#: By how much an example's coordinates may move with the batch around it, from rounding alone, by precision.
STILL = {torch.float64: 1e-12, torch.float32: 2e-6}


#: Z-steps that it is tested with: small ones along gradients, and whole sweeps.
ZSTEPS = (Coordinates(30, 0.003, "adam"), Coordinates(3, 0.5, "sweep"))


def _moved(dtype: torch.dtype, scale: float, radius: float | None, settings: Coordinates = ZSTEPS[0]) -> float:
    """The most that an example's coordinates move when the batch around it changes."""
    model = net(5, 7, 6, 3, kind=nn.ReLU, dtype=dtype)
    layers, (x, y) = layers_of(model), made_up(40, 5, 3, dtype=dtype)
    x, y = x * scale, y * scale
    far = torch.cat([x[:1], 1e3 * x[1:]])

    def fit(rows: Tensor, targets: Tensor) -> list[Tensor]:
        return coordinates_module.fitted(layers, SQUARED, rows, targets, settings, 1.0, radius=radius)

    whole = fit(x, y)
    others = [(fit(x[:1], y[:1]), 0), (fit(x[:7], y[:7]), 0), (fit(far, y), 0), (fit(x.flip(0), y.flip(0)), -1)]
    return max(float((a[0] - b[at]).abs().max()) for found, at in others for a, b in zip(whole, found, strict=True))


@check
def check_coordinates_do_not_move_with_the_batch() -> None:
    """To 1e-12 in double precision, 2e-6 in single; also small ones, whose Adam steps tell means from sums; and in a ball."""
    for dtype, still in STILL.items():
        for scale, radius in ((1.0, None), (1e-3, None), (1.0, 0.5)):
            for settings in ZSTEPS:
                moved = _moved(dtype, scale, radius, settings)
                assert moved <= still, f"{dtype}, scale {scale}, radius {radius}, {settings}: moved by {moved}"


@torch.no_grad()
def _residuals(layers: Any, x: Tensor, z: list[Tensor]) -> list[Tensor]:
    """z_k - f(W_k z_{k-1}) in every hidden layer."""
    return [
        own - layer.activation.value(coordinates_module.arguments(layer, seen))
        for layer, seen, own in zip(layers, [x, *z], z, strict=False)
    ]


@check
def check_a_sweep_backpropagates() -> None:
    """After one, residuals are gradients of the loss by the activations over -2 mu, for any mu; half of that at rate 0.5."""
    for output in (SQUARED, BINARY, SOFTMAX):
        for kind in (nn.ReLU, nn.Softplus, nn.Tanh):
            model, (x, y) = net(4, 7, 6, 5, 3, kind=kind), made_up(8, 4, 3)
            y = y / y.sum(1, keepdim=True) if output is SOFTMAX else y
            layers = layers_of(model, {nn.Tanh: TANH})
            given = [x]
            for layer in layers[:-1]:
                assert layer.activation is not None
                given.append(layer.activation.value(layer.linear(given[-1])))
            loss = output.losses(layers[-1].linear(given[-1]), y).sum()
            gradients = torch.autograd.grad(loss, given[1:])
            for mu, rate in ((0.7, 1.0), (1e3, 1.0), (3.0, 0.5)):
                z = coordinates_module.fitted(layers, output, x, y, Coordinates(1, rate, "sweep"), mu)
                for found, expected in zip(_residuals(layers, x, z), gradients, strict=True):
                    assert torch.allclose(found, -rate * expected / (2 * mu), rtol=1e-8, atol=1e-14), (output.name, mu)


@check
def check_sweeps_end_where_the_objective_is_least() -> None:
    """There the gradients of eq. 2 by all coordinates vanish, which thousands of small steps would need."""
    for output in (SQUARED, BINARY):
        model, (x, y) = net(4, 7, 6, 5, 3), made_up(8, 4, 3)
        layers = layers_of(model)
        first = coordinates_module.arguments(layers[0], x)
        for settings in (Coordinates(40, 1.0, "sweep"), Coordinates(200, 0.3, "sweep")):
            z = coordinates_module.fitted(layers, output, x, y, settings, 2.0)
            with torch.no_grad():
                left = coordinates_module._gradients(layers, output, first, z, y, 2.0)
            assert max(float(each.abs().max()) for each in left) < 1e-12, (output.name, settings)
            assert min(float(each.norm()) for each in _residuals(layers, x, z)) > 1e-4


@check
def check_stored_coordinates_stay_with_their_record() -> None:
    """What an example left is where it goes on, in whatever batch and place it comes again; others are as on a first visit."""
    model, (x, y) = net(4, 6, 3), made_up(10, 4, 3)
    bound = pv.Derivatives(1e6)

    def after(*batches: list[int]) -> Any:
        found = derivatives(model, bound, coordinates=Coordinates(5, 0.3, "sgd", stored=True), examples=10)
        return [values(found(sample_of(rows), x, y, 1.0)) for rows in batches][-1]

    def close(one: list[Tensor], other: list[Tensor]) -> bool:
        return all(torch.allclose(a, b, atol=1e-10) for a, b in zip(one, other, strict=True))

    longer = derivatives(model, bound, coordinates=Coordinates(10, 0.3, "sgd"))
    twice = values(longer(sample_of([3]), x, y, 1.0))
    assert close(after([1, 3, 5], [3]), twice)
    assert close(after([3], [3]), twice)
    assert not close(after([3]), twice), "nothing was stored"
    assert close(after([1, 5], [3]), after([3])), "another's coordinates were taken"
    fresh = derivatives(model, bound, coordinates=Coordinates(5, 0.3, "sgd"))
    assert close(values([fresh(sample_of([3]), x, y, 1.0) for _ in range(2)][-1]), after([3])), "they are kept unasked"


# Sensitivities


BOUNDS: list[Layerwise] = [
    pv.Derivatives((0.3, 0.1, 0.5)),
    pv.Derivatives(0.3, (0.2, 0.7, 0.1)),
    pv.Analytic(z_norm=1.0, x_norm=1.5, y_norm=0.8),
    pv.Analytic(z_norm=1.0, x_norm=1.5, y_norm=0.8, order=2),
]


@check
def check_one_example_moves_the_derivative_sums_by_at_most_the_sensitivity() -> None:
    """Whatever it holds, for every bound, loss and kind of neighbour; and clipping is tight."""
    rows = [torch.tensor(row, dtype=torch.float64) for row, _ in ROWS.values()]
    for bound in BOUNDS:
        for output in OUTPUTS.values():
            if bound.order == 2 and output is SOFTMAX:
                continue
            for adjacency in (ADD, REPLACE):
                model, (x, y) = net(5, 6, 4, 3), made_up(10, 5, 3)
                x = torch.cat([x, torch.stack(rows)])
                y = torch.cat(
                    [y, torch.rand(len(rows), 3, generator=torch.Generator().manual_seed(9), dtype=torch.float64)]
                )
                y = y / y.sum(1, keepdim=True) if output is SOFTMAX else y
                settings = Coordinates(5, 0.05, "adam") if adjacency is ADD else Coordinates(2, 0.9, "sweep")
                found = derivatives(model, bound, output, adjacency=adjacency, coordinates=settings)
                base = found(sample_of(range(10)), x, y, 1.0)
                assert len(base) == 3 * bound.order
                reached = [0.0] * len(base)
                for extra in range(10, len(x)):
                    own = [*range(10), extra]
                    other = [*range(10)] if adjacency is ADD else [*range(10), 10 + (extra + 1) % len(rows)]
                    parts = [found(sample_of(places), x, y, 1.0) for places in (own, other)]
                    for number, (one, two) in enumerate(zip(*parts, strict=True)):
                        moved = float((one.values[0] - two.values[0]).norm())
                        assert moved <= one.sensitivity * (1 + 1e-9), (bound, output.name, adjacency, number, extra)
                        reached[number] = max(reached[number], moved / one.sensitivity)
                if isinstance(bound, pv.Derivatives) and adjacency is ADD:
                    assert min(reached) > 0.999, (bound, output.name, reached)


@check
def check_sums_of_first_order_have_no_room_for_second() -> None:
    """For so many inputs that their square is no size of a tensor; on a device without memory."""
    try:
        DerivativeSums([(1, 2**32)], [[0.3]], torch.zeros(0, device="meta"), ADD)
    except RuntimeError as error:
        raise AssertionError("room is made for second derivatives") from error


@check
def check_derivative_sums_are_those_of_clipped_matrices() -> None:
    """Against matrices that are formed, clipped and added up one by one; in parts as well as at once."""
    generator = torch.Generator().manual_seed(0)
    z, d, c = (
        torch.randn(9, n, generator=generator, dtype=torch.float64) * 10 ** torch.linspace(-3, 3, 9)[:, None]
        for n in (4, 3, 3)
    )
    first, second = torch.zeros(3, 4, dtype=torch.float64), torch.zeros(3, 4, 4, dtype=torch.float64)
    for n in range(9):
        one, two = torch.outer(d[n], z[n]), c[n][:, None, None] * torch.outer(z[n], z[n])
        first += one * min(1.0, 0.3 / float(one.norm()))
        second += two * min(1.0, 0.2 / float(two.norm()))
    for parts in (1, 3):
        sums = DerivativeSums([(3, 4)], [[0.3, 0.2]], z, ADD)
        for rows in torch.arange(9).tensor_split(parts):
            clipped = sums.add([Products(z[rows], d[rows], c[rows])])
        found = sums.bounded(one_sample())
        assert [part.sensitivity for part in found] == [0.3, 0.2]
        for own, expected in zip(values(found), (first, second), strict=True):
            assert torch.allclose(own, expected, atol=1e-12)
    assert bool(clipped[0, -1])


@check
def check_examples_that_are_not_finite_add_no_derivatives() -> None:
    z, d = torch.ones(5, 2), torch.ones(5, 3)
    z[0, 0], d[1, 2], z[2], d[3] = math.nan, math.inf, 3e38, 0.0
    sums = DerivativeSums([(3, 2)], [[1.0, 1.0]], z, ADD)
    sums.add([Products(z, d, d)])
    alone = DerivativeSums([(3, 2)], [[1.0, 1.0]], z, ADD)
    alone.add([Products(z[4:], d[4:], d[4:])])
    for own, expected in zip(values(sums.bounded(one_sample())), values(alone.bounded(one_sample())), strict=True):
        assert bool(own.isfinite().all())
        assert torch.allclose(own, expected)


def _scaled(v: Tensor, radius: float) -> Tensor:
    return v * torch.clamp(radius / v.norm(), max=1.0)


def _hidden_norms(activation: Activation, weight: Tensor, z: Tensor, target: Tensor) -> dict[str, Tensor]:
    u = weight @ z
    d, c = hidden_first(activation, u, target), hidden_second(activation, u, target)
    constant = ((target - activation.value(u)).square() - d * u + c * u * u).sum()
    return _norms(constant, d, c, u, z)


def _binary_norms(weight: Tensor, z: Tensor, y: Tensor) -> dict[str, Tensor]:
    u = weight @ z
    assert BINARY.second is not None
    d, c = torch.sigmoid(u) - y, BINARY.second(u[None], y[None])[0]
    constant = (nn.functional.softplus(u) - u * torch.sigmoid(u) + c * u * u).sum()
    return _norms(constant, d, c, u, z)


def _norms(constant: Tensor, d: Tensor, c: Tensor, u: Tensor, z: Tensor) -> dict[str, Tensor]:
    return {
        "constant": constant.abs(),
        "linear": z.norm() * (d - 2 * c * u).norm(),
        "gradient": z.norm() * d.norm(),
        "curvature": z.norm() ** 2 * c.norm(),
    }


#: How much of each bound the search must reach: they are attained, or nearly.
MARGINS = {
    "softplus": {"constant": 0.999, "linear": 0.999, "gradient": 0.999, "curvature": 0.999},
    "relu": {"constant": 0.999, "linear": 0.999, "gradient": 0.999, "curvature": 0.999},
    "tanh": {"constant": 0.9, "linear": 0.9, "gradient": 0.999, "curvature": 0.6},
    "identity": {"constant": 0.999, "linear": 0.999, "gradient": 0.999, "curvature": 0.999},
    "binary": {"constant": 0.999, "linear": 0.999, "gradient": 0.999, "curvature": 0.999},
}


def _worst(
    norms: Callable[[Tensor, Tensor, Tensor], dict[str, Tensor]],
    bounds: Callable[[Tensor, float, float], analytic.Sensitivities],
    classes: bool,
    steps: int,
) -> dict[str, float]:
    """The largest ratios of norm to bound that ascent on an example and the weights finds."""
    found = dict.fromkeys(MARGINS["softplus"], 0.0)
    generator = torch.Generator().manual_seed(0)
    for inputs, outputs, t_in, t_out, scale in (
        (1, 1, 0.7, 1.3, 1e-3), (3, 2, 1.0, 1.0, 2.0), (5, 20, 4.0, 0.3, 0.3), (4, 3, 0.3, 4.0, 6.0), (1, 4, 3.0, 1.0, 4.0),
    ):  # fmt: skip
        for key in found:
            for sign in (-1.0, 1.0):
                z = torch.randn(inputs, generator=generator, dtype=torch.float64)
                start = (z / z.norm()).expand(outputs, inputs) * scale
                weight = (
                    start + 1e-3 * torch.randn(outputs, inputs, generator=generator, dtype=torch.float64)
                ).requires_grad_()
                z = (3 * t_in * z / z.norm()).requires_grad_()
                target = (sign * torch.ones(outputs, dtype=torch.float64) * 2 * t_out).requires_grad_()
                ascent = torch.optim.Adam([weight, z, target], lr=0.05)
                for _ in range(steps):
                    own = (target > 0).double() if classes else _scaled(target, t_out)
                    norm = norms(weight, _scaled(z, t_in), own)[key]
                    bound = getattr(bounds(weight, t_in, t_out), key)
                    found[key] = max(found[key], float(norm.detach()) / bound)
                    ascent.zero_grad()
                    (-norm / bound).backward()
                    ascent.step()
    return found


def require_bounds_hold(steps: int) -> None:
    cases: dict[str, tuple[Any, Any, bool]] = {
        activation.name: (
            lambda w, z, t, f=activation: _hidden_norms(f, w, z, t),
            lambda w, ti, to, f=activation: analytic.hidden(w, f, ti, to),
            False,
        )
        for activation in (SOFTPLUS, RELU, TANH, IDENTITY)
    }
    cases["binary"] = (_binary_norms, lambda w, ti, to: analytic.binary(w, ti), True)
    for name, case in cases.items():
        for key, ratio in _worst(*case, steps).items():
            assert ratio <= 1 + 1e-9, f"{name}: {key} is exceeded by a factor of {ratio}"
            assert ratio >= MARGINS[name][key], f"{name}: only {ratio} of the bound on {key} is reached"


@check
def check_analytic_sensitivities_hold_for_the_worst_example() -> None:
    """No violation by ascent over weights, inputs and targets of several sizes, and each bound nearly reached."""
    require_bounds_hold(steps=12)


@check
def check_softmax_derivatives_are_bounded() -> None:
    u, y = made_up(200, 6, 6, seed=3)
    d = SOFTMAX.first(u * 30, nn.functional.one_hot(y.argmax(1), 6).double())
    assert float(d.norm(dim=1).max()) <= analytic.softmax(1.0) * (1 + 1e-12)
    assert float(d.norm(dim=1).max()) >= 0.999 * analytic.softmax(1.0)


@check
def check_suprema_of_softplus_are_above_every_value() -> None:
    """On points that are not the table's, up to each of many radii, tiny and huge ones included; to a relative 2e-6."""
    from privlearn.clipping import activations

    radii = torch.cat([torch.tensor([0.0, 1e-9, 39.9995, 41.0, 1e3]), torch.logspace(-4, 2, 40)]).double()
    found = activations._softplus_suprema(radii)
    for name in ("product", "slope", "curvature", "rest", "tilt", "bend", "cross", "constant"):
        for radius, bound in zip(radii, getattr(found, name), strict=True):
            points = torch.linspace(-1, 1, 20_011, dtype=torch.float64) * radius
            largest = float(activations._softplus_term(name, points).max())
            assert largest <= float(bound), (name, float(radius))
            assert float(bound) <= largest * (1 + 5e-6), (name, float(radius))


@check
@torch.no_grad()
def check_what_analytic_bounds_rest_on_is_projected() -> None:
    """Inputs, coordinates and targets lie in their balls, and no derivative exceeds its bound, however wild the data."""
    for output in (SQUARED, BINARY):
        for order in (1, 2):
            for kind in (nn.ReLU, nn.Softplus, nn.Tanh):
                bound = pv.Analytic(z_norm=0.6, x_norm=0.9, y_norm=0.5, order=order)
                model, (x, y) = net(4, 6, 5, 3, kind=kind), made_up(30, 4, 3)
                x = x * 10 ** torch.linspace(-2, 4, 30, dtype=torch.float64)[:, None]
                y = (y * 50 if output is SQUARED else y).clone()
                seen: list[Any] = []
                settings = Coordinates(2, 1.0, "sweep") if kind is nn.Softplus else Coordinates(20, 0.3, "adam")
                found = derivatives(
                    model, bound, output, coordinates=settings, observe=lambda *own, to=seen: to.append(own)
                )
                for mu in (1.0, 30.0):
                    (_, inputs, targets) = next(iter(found._parts(sample_of(range(30)), x, y)))
                    products = found._products(torch.arange(30), inputs, targets, mu)
                    radii = [0.9, 0.6, 0.6]
                    for product, radius in zip(products, radii, strict=True):
                        assert float(product.inputs.norm(dim=1).max()) <= math.hypot(radius, 1.0) * (1 + 1e-12)
                    if output is SQUARED:
                        assert float(targets.norm(dim=1).max()) <= 0.5 * (1 + 1e-12)
                    for product, limits in zip(products, found.limits(mu), strict=True):
                        for norms, limit in zip(product.norms(), limits, strict=True):
                            assert float(norms.max()) <= limit * (1 + 1e-12), (output.name, order, kind, mu)
                    found(sample_of(range(30)), x, y, mu)
                    with torch.no_grad():
                        model[0].weight.mul_(20)  # bounds follow the weights
                assert seen


# The joint release


@check
def check_the_joint_release_counts_every_layer() -> None:
    """Noise of sigma sqrt(M K) times each sensitivity, the output layer counted; or by any other split that adds up to one."""
    for bound in (pv.Derivatives(0.3), pv.Derivatives((0.3, 0.1), 2.0), pv.Derivatives(0.3, shares=(1.0, 3.0))):
        model = net(60, 70, 60)
        found = derivatives(model, bound)
        shares = shares_of_parts(bound, 2)
        assert math.isclose(sum(share**2 for share in shares), 1.0)
        parts = found(sample_of(np.arange(0)), *made_up(1, 60, 60), 1.0)
        unit = math.sqrt(sum(share**2 for share in shares))
        streams, ledger = rng.Streams.new(4), Ledger()
        steps = MacSteps(found, None, shares, ledger, streams)  # type: ignore[arg-type]
        released = steps._released(parts, 2.8, shares)
        for value, part, share in zip(released, parts, shares, strict=True):
            expected = 2.8 * part.sensitivity * unit / share
            assert abs(float(value.std()) / expected - 1) < 0.05, (bound, float(value.std()), expected)
            if not bound.shares:
                assert math.isclose(expected, 2.8 * math.sqrt(2 * bound.order) * part.sensitivity)
        assert len(list(walk(ledger.event))) == 1


@check
def check_shares_are_at_most_the_whole() -> None:
    """`release` refuses a split whose squares add up to more than one, before it charges."""
    parts = [_bounded_zeros() for _ in range(1)]
    ledger = Ledger()
    for shares in ([1.0, 0.5], [1.1], [0.5, 0.5], [-0.5], [0.0]):
        sample = one_sample()
        own = [replace(parts[0], sample=sample) for _ in range(2 if len(shares) == 2 and shares[0] == 1.0 else 1)]
        must_raise(
            pv.errors.BadInput,
            lambda own=own, shares=shares: release_module.release(  # type: ignore[misc]
                *own, noise_multiplier=1.0, ledger=ledger, stream=rng.Streams.new(0).noise, shares=shares
            ),
        )
    assert not list(walk(ledger.event))


def _bounded_zeros() -> Any:
    return DerivativeSums([(2, 2)], [[1.0]], torch.zeros(1), ADD).bounded(one_sample())[0]


@check
def check_fixed_batches_are_not_amplified() -> None:
    """Batches in a fixed order cost what one release an epoch does, like shuffled ones; each row is in one of them."""
    batches = [list(sample.indices) for sample in pv.FixedOrder(5).draw(12)]
    assert batches == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    for sampler in (pv.FixedOrder(5), pv.Shuffle(5)):
        plan = pv.Plan(sampler, epochs=4, schedule=pv.schedules.Constant(start=2.0))
        one = pv.Plan(pv.FullBatch(), epochs=4, schedule=pv.schedules.Constant(start=2.0))
        assert math.isclose(plan.guarantee(1e-5).epsilon, one.guarantee(1e-5).epsilon, rel_tol=1e-9)


# Learned thresholds


@check
def check_histograms_of_norms_are_bounded() -> None:
    """An example counts once in each, and once in all where it is not finite: not at all; replacing it moves sqrt(2)."""
    norms = torch.tensor([1e-9, 0.5, 2.0, 1e9, math.nan, math.inf])
    edges = pv.Histogram(1.0, low=1e-3, high=1e3, bins=8).edges()
    assert len(edges) == 7
    for adjacency, moved in ((ADD, 1.0), (REPLACE, math.sqrt(2))):
        parts = histogram([norms, norms[:3]], edges, one_sample(), adjacency)
        assert [part.sensitivity for part in parts] == [moved, moved]
        assert [float(part.values[0].sum()) for part in parts] == [4.0, 3.0]
        for n in range(6):
            without = histogram([norms[torch.arange(6) != n]], edges, one_sample(), adjacency)[0].values[0]
            assert float((parts[0].values[0] - without).norm()) <= 1.0
            other = norms.clone()
            other[n] = 30.0
            changed = histogram([other], edges, one_sample(), adjacency)[0].values[0]
            assert float((parts[0].values[0] - changed).norm()) <= math.sqrt(2) + 1e-12


@check
def check_thresholds_are_learned_and_paid_for() -> None:
    """They become the quantile that was asked for, layer by layer and kind by kind, for one event on all the data."""
    x, y = made_up(64, 5, 3)
    learned = pv.Histogram(1e-4, after=1, quantile=0.5, low=1e-4, high=1e2, bins=602)
    bound = pv.Derivatives(0.3, 0.3, learned=learned)
    plan = pv.Plan(pv.Poisson(0.2), epochs=2, schedule=pv.schedules.Constant(start=1e6), clip=bound)
    result = pv.dpmac(plan, net(5, 6, 3), BINARY.name, (x, y), optimizer=lambda p: torch.optim.SGD(p, lr=1e-12),
                      coordinates=Coordinates(5, 0.05, "adam"), streams=pv.Streams.new(0))  # fmt: skip
    assert result.ledger.event == plan.event()
    assert learned.event() in [leaf for leaf, _ in walk(plan.event())]
    found = derivatives(net(5, 6, 3), bound)
    norms = [[own.detach() for own in p.norms()] for p in found._products(torch.arange(64), x, y, 1.0)]
    for layer in range(2):
        first, second = (torch.quantile(own, 0.5) for own in norms[layer])
        ours = [result.settings["thresholds"][kind][layer] for kind in range(2)]
        assert math.isclose(ours[0], float(first), rel_tol=0.1), (ours, first)
        assert math.isclose(ours[1], 2 * float(second), rel_tol=0.1), (ours, second)


# Whole runs


def settled(sampler: sampling.Sampler, adjacency: Adjacency | None = None, clip: Any = None, **more: Any) -> pv.Plan:
    clip = clip or pv.Derivatives(0.3)
    return pv.Plan(sampler, epochs=2, schedule=pv.schedules.Exponential(k=0.3, start=1.5), clip=clip, adjacency=adjacency,
                   examples=12, **more)  # fmt: skip


@check
def check_a_batch_is_one_event() -> None:
    """However many layers there are, the ledger holds what the plan says: one event a batch, or an epoch."""
    x, y = made_up(12, 5, 3)
    for sampler in (pv.Poisson(0.3), pv.Partition(4), pv.Shuffle(5), pv.FixedOrder(5), pv.FullBatch()):
        for widths in ((5, 3), (5, 6, 4, 3)):
            plan = settled(sampler)
            result = pv.dpmac(
                plan, net(*widths), BINARY.name, (x, y), streams=pv.Streams.new(0), coordinates=Coordinates(2)
            )
            assert result.ledger.event == plan.event(), (sampler, widths)
            expected = 2 * sampler.steps(12) if isinstance(sampler, pv.Poisson) else 2
            assert sum(times for _, times in walk(result.ledger.event)) == expected


def training(plan: pv.Plan, data: Any, **options: Any) -> Any:
    """A run of `dpmac` for `transcript`, published into its folder."""

    def run(streams: rng.Streams, folder: Path) -> None:
        seen: list[Any] = streams.noise._seen  # type: ignore[attr-defined]
        result = dpmac_module.dpmac(
            plan, net(5, 4, 3), BINARY.name, data, streams=streams, optimizer=lambda p: torch.optim.SGD(p, lr=0.3),
            progress=lambda *done: seen.append(("progress", done)), coordinates=Coordinates(3, 0.1, "adam"), **options,
        )  # fmt: skip
        seen.append(("ledger", result.ledger.event, repr(result.ledger), sorted(result.private_diagnostics)))
        seen.append(("result", repr(result), result.settings, result.architecture))
        bundle.publish(result, folder / "model", delta=1e-5)

    return run


@check
def check_neighbouring_mac_runs_look_the_same() -> None:
    """By record and replay, for every sampler with every kind of neighbour, every bound, and rows of every kind."""
    fixed = (pv.FixedOrder(5), Adjacency.ZERO_OUT)
    learned = pv.Derivatives(0.3, 0.5, shares=(2.0, 1.0), learned=pv.Histogram(3.0))
    bounds = [pv.Derivatives(0.3), learned, pv.Analytic(z_norm=1.0), pv.Analytic(z_norm=1.0, order=2)]
    rows = list(ROWS)
    for number, (sampler, adjacency) in enumerate([*PRICED, fixed]):
        bound = bounds[number % 4]
        plan = settled(sampler, adjacency, bound)
        base = transcript(training(plan, data_with(None, plan.neighbours)))
        assert base.released, base.seen
        for row in rows if number in (0, 1, 2, 3) else [rows[number % len(rows)]]:
            found = transcript(training(plan, data_with(row, plan.neighbours)), replay=base)
            require_alike(base, found, (sampler, adjacency, bound, row))


@check
def check_mac_runs_in_pieces_end_where_the_whole_one_does() -> None:
    """Stopped after every few steps and gone on with, thresholds learned on the way: bit for bit the same, charges too."""

    class Stopped(Exception):
        pass

    x, y = made_up(20, 5, 3)
    learned = pv.Derivatives(0.3, 0.5, learned=pv.Histogram(3.0, after=1))
    for clip, before in ((learned, ()), (pv.Analytic(z_norm=1.0), (pv.PCA(3, 4.0),))):
        plan = pv.Plan(
            pv.Poisson(0.3), epochs=3, schedule=pv.schedules.Exponential(k=0.3, start=1.5), clip=clip, before=before
        )

        def go(stop: int | None, path: Path | None, plan: pv.Plan = plan) -> pv.Result:
            done = [0]

            def progress(steps: int, of: int) -> None:
                done[0] += 1
                if done[0] == stop:
                    raise Stopped

            return pv.dpmac(
                plan, lambda shape: net(*shape, 4, 3, seed=2), BINARY.name, (x, y), streams=pv.Streams.new(5),
                progress=progress, coordinates=Coordinates(3, 0.1, "adam"),
                checkpoint=None if path is None else Checkpoint(path, every=1e-9),
            )  # fmt: skip

        whole = go(None, None)
        for stop in (2, 5):
            with tempfile.TemporaryDirectory() as name:
                for _ in range(20):
                    try:
                        pieces = go(stop, Path(name) / "run")
                        break
                    except Stopped:
                        pass
                assert pieces.ledger.event == whole.ledger.event == plan.event()
                assert pieces.settings == whole.settings
                for one, other in zip(
                    pieces.model.state_dict().values(), whole.model.state_dict().values(), strict=True
                ):
                    assert torch.equal(one, other)


@check
def check_runs_without_noise_are_never_published() -> None:
    x, y = made_up(12, 5, 3)
    result = pv.dpmac(
        settled(pv.Poisson(0.3)), net(5, 4, 3), BINARY.name, (x, y), private=False, streams=pv.Streams.new(0)
    )
    with tempfile.TemporaryDirectory() as name:
        must_raise(UnsupportedEvent, lambda: bundle.publish(result, Path(name) / "model", delta=1e-5))
        assert not list(Path(name).iterdir())


@check
def check_mac_certificates_are_recomputed() -> None:
    """A published run verifies, its histogram included; leaving that out of the events is found."""
    x, y = made_up(20, 5, 3)
    clip = pv.Derivatives(0.3, 0.5, learned=pv.Histogram(3.0))
    plan = settled(pv.Poisson(0.3), clip=clip, before=(pv.PCA(4, 8.0),))
    result = pv.dpmac(plan, lambda shape: net(*shape, 4, 3), BINARY.name,
                      (x, y), streams=pv.Streams.new(0), coordinates=Coordinates(2))  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        out = bundle.publish(result, Path(name) / "model", delta=1e-5)
        assert verification.verify(out).ok
        assert "histogram" in (out / "README.md").read_text()
        settings = json.loads((out / "privacy.json").read_text())["settings"]
    assert list(walk(verification.described_run(settings))) == list(walk(result.ledger.event))
    settings["before"][1]["noise_multiplier"] = 0.5
    assert list(walk(verification.described_run(settings))) != list(walk(result.ledger.event))


@check
def check_sums_are_divided_by_a_public_number() -> None:
    """On an empty batch and on a full one, what was released moves the weights by the same factor: 1 / (2 q N)."""
    x, y = made_up(12, 5, 3)
    for sampler in (pv.Poisson(0.5), pv.FullBatch()):
        plan = pv.Plan(
            sampler, epochs=1, schedule=pv.schedules.Constant(start=1.0), clip=pv.Derivatives(1e-9), examples=1000
        )
        model = net(5, 3)
        before = layers_of(model)[0].weight()
        record = transcript(
            lambda streams, _, plan=plan, model=model: pv.dpmac(  # type: ignore[misc]
                plan, model, BINARY.name, (x, y), streams=streams, optimizer=lambda p: torch.optim.SGD(p, lr=1.0)
            )
        )
        moved = before - layers_of(model)[0].weight()
        expected = torch.stack([found[0] for found in record.released]).sum(0) / (2 * sampler.expected_batch_size(1000))
        assert torch.allclose(moved, expected, rtol=1e-9, atol=1e-15), sampler


@check
def check_the_bias_counts_in_every_norm() -> None:
    """A layer with a bias sees inputs one longer: in clipping, in analytic bounds, and in what is released."""
    model, (x, y) = net(4, 3), made_up(5, 4, 3)
    layer = layers_of(model)[0]
    assert with_ones(x, layer).shape == (5, 5)
    found = derivatives(model, pv.Derivatives(1e-3))
    (part,) = found(sample_of([0]), x * 1e-9, y, 1.0)  # nothing but the bias has a gradient
    assert abs(float(part.values[0].norm()) / 1e-3 - 1) < 1e-6
    assert part.values[0].shape == (3, 5)
    bound = derivatives(model, pv.Analytic(z_norm=1.0, x_norm=1e-6)).limits()[0][0]
    true = float((torch.sigmoid(layer.linear.bias.detach()) - 1).norm())
    assert bound >= true > 0.1
