"""Named checks of DP-MAC's coefficients and coordinates; mutations must make them fail."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn.methods.dpmac import coordinates as coordinates_module
from privlearn.methods.dpmac.coordinates import Coordinates
from privlearn.methods.dpmac.expansion import (
    BINARY,
    SOFTMAX,
    SQUARED,
    Output,
    Surrogate,
    hidden_first,
    hidden_second,
)
from privlearn.methods.dpmac.network import layers_of
from tests.mac.nets import ACTIVATIONS, TANH, derivatives, made_up, net, sample_of, values
from tests.support.checks import check

# Coefficients


@check
def check_coefficients_are_those_of_the_taylor_expansion() -> None:
    """Against automatic differentiation: first and halved second derivatives of one example's
    objective, by layer.
    """
    z_in, z_out, y = (
        torch.randn(3, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
        *made_up(1, 4, 4),
    )
    weight = torch.randn(4, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    cases: list[tuple[Any, Any, Any]] = []
    for activation, _ in ACTIVATIONS.values():
        cases.append(
            (
                lambda W, f=activation: (z_out[0] - f.value(W @ z_in)).square().sum(),
                hidden_first(activation, (weight @ z_in)[None], z_out),
                hidden_second(activation, (weight @ z_in)[None], z_out),
            )
        )
    for output in (SQUARED, BINARY, SOFTMAX):
        y = y / y.sum() if output is SOFTMAX else y
        cases.append(
            (
                lambda W, loss=output, y=y: loss.losses((W @ z_in)[None], y)[0],
                output.first((weight @ z_in)[None], y),
                output.second((weight @ z_in)[None], y) if output.second else None,
            )
        )
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
                assert abs(moved - by_surrogate) <= 100 * scale**3, (
                    "the rebuilt polynomial departs from the objective"
                )


@check
def check_derivatives_are_those_of_the_weighted_objective() -> None:
    """With one sweep and a large mu, the released sums are the loss's own gradients, in every
    layer, but for 1 / mu.
    """
    for output in (SQUARED, BINARY):
        model, (x, y) = net(5, 7, 6, 3, kind=nn.Softplus), made_up(9, 5, 3)
        layers = layers_of(model)
        found = derivatives(
            model, pv.mac.Derivatives(1e6), output, coordinates=Coordinates(1, 1.0, "sweep")
        )
        true = torch.autograd.grad(output.losses(model(x), y).sum(), list(model.parameters()))
        for mu, near in ((1e3, 1e-2), (1e6, 1e-5)):
            sums = values(found(sample_of(range(9)), x, y, mu))
            for layer, total, weight, bias in zip(layers, sums, true[::2], true[1::2], strict=True):
                expected = torch.cat([weight, bias[:, None]], 1)
                assert total.shape == layer.shape
                assert float((total - expected).norm()) <= near * float(expected.norm()), (
                    output.name,
                    mu,
                )


def _polynomial(surrogate: Surrogate, weight: Tensor) -> Tensor:
    assert surrogate.curvature is not None
    return (weight * surrogate.linear).sum() + torch.einsum(
        "hi,hij,hj->", weight, surrogate.curvature, weight
    )


@check
def check_surrogates_are_rebuilt_from_what_was_released() -> None:
    """Its gradient at the weights of the expansion is the released sum, whatever the noise; further
    off C counts.
    """
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
    """To the minimum where C is definite and well above the noise; else no longer than the floor
    allows, downhill.
    """
    generator = torch.Generator().manual_seed(0)
    weight, first = (torch.randn(3, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    root = torch.randn(3, 4, 4, generator=generator, dtype=torch.float64)
    definite = root @ root.mT + torch.eye(4, dtype=torch.float64)
    quiet = Surrogate.around(weight, first, definite)
    at_minimum = weight - quiet.newton(weight, 1e-6)
    assert float(quiet.gradient(at_minimum).abs().max()) < 1e-9
    for noise, damping in ((0.0, 0.5), (3.0, 1e-6)):
        wild = Surrogate.around(
            weight, first, definite - 4 * torch.eye(4, dtype=torch.float64), noise
        )
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
        z = [
            each.clone().requires_grad_()
            for each in coordinates_module.forward(layers, x[row : row + 1])
        ]
        kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[settings.optimizer]
        descent = kind(z, lr=settings.rate)
        for _ in range(settings.steps):
            loss = output.losses(
                coordinates_module.arguments(layers[-1], z[-1]), y[row : row + 1]
            ).sum()
            for layer, seen, own in zip(layers, [x[row : row + 1], *z], z, strict=False):
                assert layer.activation is not None
                loss = (
                    loss
                    + mu
                    * (own - layer.activation.value(coordinates_module.arguments(layer, seen)))
                    .square()
                    .sum()
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
            for own, expected in zip(
                found, _by_autograd(model, output, x, y, settings, 0.7), strict=True
            ):
                assert torch.allclose(own, expected, atol=1e-9), (output.name, optimizer)


#: By how much an example's coordinates may move with the batch around it, from rounding alone, by
#: precision.
STILL = {torch.float64: 1e-12, torch.float32: 2e-6}


#: Z-steps that it is tested with: small ones along gradients, and whole sweeps.
ZSTEPS = (Coordinates(30, 0.003, "adam"), Coordinates(3, 0.5, "sweep"))


def _moved(
    dtype: torch.dtype, scale: float, radius: float | None, settings: Coordinates = ZSTEPS[0]
) -> float:
    """The most that an example's coordinates move when the batch around it changes."""
    model = net(5, 7, 6, 3, kind=nn.ReLU, dtype=dtype)
    layers, (x, y) = layers_of(model), made_up(40, 5, 3, dtype=dtype)
    x, y = x * scale, y * scale
    far = torch.cat([x[:1], 1e3 * x[1:]])

    def fit(rows: Tensor, targets: Tensor) -> list[Tensor]:
        return coordinates_module.fitted(
            layers, SQUARED, rows, targets, settings, 1.0, radius=radius
        )

    whole = fit(x, y)
    others = [
        (fit(x[:1], y[:1]), 0),
        (fit(x[:7], y[:7]), 0),
        (fit(far, y), 0),
        (fit(x.flip(0), y.flip(0)), -1),
    ]
    return max(
        float((a[0] - b[at]).abs().max())
        for found, at in others
        for a, b in zip(whole, found, strict=True)
    )


@check
def check_coordinates_do_not_move_with_the_batch() -> None:
    """To 1e-12 in double precision, 2e-6 in single; also small ones, where Adam tells means from
    sums; in a ball.
    """
    for dtype, still in STILL.items():
        for scale, radius in ((1.0, None), (1e-3, None), (1.0, 0.5)):
            for settings in ZSTEPS:
                moved = _moved(dtype, scale, radius, settings)
                assert moved <= still, (
                    f"{dtype}, scale {scale}, radius {radius}, {settings}: moved by {moved}"
                )


@torch.no_grad()
def _residuals(layers: Any, x: Tensor, z: list[Tensor]) -> list[Tensor]:
    """z_k - f(W_k z_{k-1}) in every hidden layer."""
    return [
        own - layer.activation.value(coordinates_module.arguments(layer, seen))
        for layer, seen, own in zip(layers, [x, *z], z, strict=False)
    ]


@check
def check_a_sweep_backpropagates() -> None:
    """After one, residuals are the loss's gradients by activations over -2 mu, for any mu; half of
    that at rate 0.5.
    """
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
                z = coordinates_module.fitted(
                    layers, output, x, y, Coordinates(1, rate, "sweep"), mu
                )
                for found, expected in zip(_residuals(layers, x, z), gradients, strict=True):
                    assert torch.allclose(
                        found, -rate * expected / (2 * mu), rtol=1e-8, atol=1e-14
                    ), (output.name, mu)


@check
def check_sweeps_end_where_the_objective_is_least() -> None:
    """There the gradients of eq. 2 by all coordinates vanish, which thousands of small steps would
    need.
    """
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
    """An example continues where it left off, in any batch and place; others are as on a first
    visit.
    """
    model, (x, y) = net(4, 6, 3), made_up(10, 4, 3)
    bound = pv.mac.Derivatives(1e6)

    def after(*batches: list[int]) -> Any:
        found = derivatives(
            model, bound, coordinates=Coordinates(5, 0.3, "sgd", stored=True), examples=10
        )
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
    assert close(values([fresh(sample_of([3]), x, y, 1.0) for _ in range(2)][-1]), after([3])), (
        "they are kept unasked"
    )
