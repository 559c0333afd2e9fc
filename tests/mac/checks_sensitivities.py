"""Named checks of DP-MAC's sensitivities; mutations must make them fail."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn.core.clipping.derivative_bounds import Layerwise
from privlearn.methods.dpmac import analytic
from privlearn.methods.dpmac.coordinates import Coordinates
from privlearn.methods.dpmac.expansion import (
    BINARY,
    OUTPUTS,
    SOFTMAX,
    SQUARED,
    hidden_first,
    hidden_second,
)
from privlearn.methods.dpmac.network import IDENTITY, RELU, SOFTPLUS, Activation
from privlearn.methods.dpmac.sums import DerivativeSums, Products
from tests.descent.checks_leaks import ROWS
from tests.mac.nets import ADD, REPLACE, TANH, derivatives, made_up, net, sample_of, values
from tests.support.checks import check
from tests.support.nets import one_sample

# Sensitivities


BOUNDS: list[Layerwise] = [
    pv.mac.Derivatives((0.3, 0.1, 0.5)),
    pv.mac.Derivatives(0.3, (0.2, 0.7, 0.1)),
    pv.mac.Analytic(z_norm=1.0, x_norm=1.5, y_norm=0.8),
    pv.mac.Analytic(z_norm=1.0, x_norm=1.5, y_norm=0.8, order=2),
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
                    [
                        y,
                        torch.rand(
                            len(rows),
                            3,
                            generator=torch.Generator().manual_seed(9),
                            dtype=torch.float64,
                        ),
                    ]
                )
                y = y / y.sum(1, keepdim=True) if output is SOFTMAX else y
                settings = (
                    Coordinates(5, 0.05, "adam")
                    if adjacency is ADD
                    else Coordinates(2, 0.9, "sweep")
                )
                found = derivatives(model, bound, output, adjacency=adjacency, coordinates=settings)
                base = found(sample_of(range(10)), x, y, 1.0)
                assert len(base) == 3 * bound.order
                reached = [0.0] * len(base)
                for extra in range(10, len(x)):
                    own = [*range(10), extra]
                    other = (
                        [*range(10)]
                        if adjacency is ADD
                        else [*range(10), 10 + (extra + 1) % len(rows)]
                    )
                    parts = [found(sample_of(places), x, y, 1.0) for places in (own, other)]
                    for number, (one, two) in enumerate(zip(*parts, strict=True)):
                        moved = float((one.values[0] - two.values[0]).norm())
                        assert moved <= one.sensitivity * (1 + 1e-9), (
                            bound,
                            output.name,
                            adjacency,
                            number,
                            extra,
                        )
                        reached[number] = max(reached[number], moved / one.sensitivity)
                if isinstance(bound, pv.mac.Derivatives) and adjacency is ADD:
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
    """Against matrices that are formed, clipped and added up one by one; in parts as well as at
    once.
    """
    generator = torch.Generator().manual_seed(0)
    z, d, c = (
        torch.randn(9, n, generator=generator, dtype=torch.float64)
        * 10 ** torch.linspace(-3, 3, 9)[:, None]
        for n in (4, 3, 3)
    )
    first, second = (
        torch.zeros(3, 4, dtype=torch.float64),
        torch.zeros(3, 4, 4, dtype=torch.float64),
    )
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


def nearly_aligned(rows: int) -> Products:
    generator = torch.Generator().manual_seed(1)
    z, d = (
        10 * (torch.randn(n, generator=generator) + 0.3 * torch.randn(rows, n, generator=generator))
        for n in (6, 5)
    )
    return Products(z, d, d.flip(1))


def single_sums(given: Products, rows: slice) -> list[Tensor]:
    """Sums of derivatives in single precision, clipped to 1 and 2, over some of the rows, a
    thousand at a time.
    """
    own = Products(given.inputs[rows], given.first[rows], given.second[rows])  # type: ignore[index]
    sums = DerivativeSums([(5, 6)], [[1.0, 2.0]], own.inputs, ADD)
    for part in torch.arange(len(own.inputs)).split(1000):
        sums.add([Products(own.inputs[part], own.first[part], own.second[part])])  # type: ignore[index]
    found = values(sums.bounded(one_sample()))
    assert all(value.dtype == torch.float64 for value in found)
    return found


@check
def check_clipped_derivatives_leave_room_for_rounding() -> None:
    """Not one of two hundred in single precision is above its limit, not even by its rounding."""
    found = nearly_aligned(200)
    for row in range(200):
        for own, limit in zip(single_sums(found, slice(row, row + 1)), (1.0, 2.0), strict=True):
            assert 0.999 * limit <= float(own.norm()) <= limit, (row, float(own.norm()) / limit - 1)


@check
def check_sums_of_many_derivatives_are_bounded() -> None:
    """Of many rows in nearly the same direction: the first adds its own derivatives, and no
    rounding of the others'.
    """
    for rows, within in ((1000, 2**-10), (8000, 2**-10)):
        found = nearly_aligned(rows)
        sums = [single_sums(found, own) for own in (slice(0, None), slice(1, None), slice(0, 1))]
        for limit, whole, without, alone in zip((1.0, 2.0), *sums, strict=True):
            assert float((whole - without).norm()) <= limit, (rows, limit)
            assert float((whole - without - alone).norm()) <= within * limit, (rows, limit)


@check
def check_examples_that_are_not_finite_add_no_derivatives() -> None:
    z, d = torch.ones(5, 2), torch.ones(5, 3)
    z[0, 0], d[1, 2], z[2], d[3] = math.nan, math.inf, 3e38, 0.0
    sums = DerivativeSums([(3, 2)], [[1.0, 1.0]], z, ADD)
    sums.add([Products(z, d, d)])
    alone = DerivativeSums([(3, 2)], [[1.0, 1.0]], z, ADD)
    alone.add([Products(z[4:], d[4:], d[4:])])
    for own, expected in zip(
        values(sums.bounded(one_sample())), values(alone.bounded(one_sample())), strict=True
    ):
        assert bool(own.isfinite().all())
        assert torch.allclose(own, expected)


def _scaled(v: Tensor, radius: float) -> Tensor:
    return v * torch.clamp(radius / v.norm(), max=1.0)


def _hidden_norms(
    activation: Activation, weight: Tensor, z: Tensor, target: Tensor
) -> dict[str, Tensor]:
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
        (1, 1, 0.7, 1.3, 1e-3),
        (3, 2, 1.0, 1.0, 2.0),
        (5, 20, 4.0, 0.3, 0.3),
        (4, 3, 0.3, 4.0, 6.0),
        (1, 4, 3.0, 1.0, 4.0),
    ):
        for key in found:
            for sign in (-1.0, 1.0):
                z = torch.randn(inputs, generator=generator, dtype=torch.float64)
                start = (z / z.norm()).expand(outputs, inputs) * scale
                weight = (
                    start
                    + 1e-3 * torch.randn(outputs, inputs, generator=generator, dtype=torch.float64)
                ).requires_grad_()
                z = (3 * t_in * z / z.norm()).requires_grad_()
                target = (
                    sign * torch.ones(outputs, dtype=torch.float64) * 2 * t_out
                ).requires_grad_()
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
            assert ratio >= MARGINS[name][key], (
                f"{name}: only {ratio} of the bound on {key} is reached"
            )


@check
def check_analytic_sensitivities_hold_for_the_worst_example() -> None:
    """No violation by ascent over weights, inputs and targets of several sizes, and each bound
    nearly reached.
    """
    require_bounds_hold(steps=12)


@check
def check_softmax_derivatives_are_bounded() -> None:
    u, y = made_up(200, 6, 6, seed=3)
    d = SOFTMAX.first(u * 30, nn.functional.one_hot(y.argmax(1), 6).double())
    assert float(d.norm(dim=1).max()) <= analytic.softmax(1.0) * (1 + 1e-12)
    assert float(d.norm(dim=1).max()) >= 0.999 * analytic.softmax(1.0)


@check
def check_suprema_of_softplus_are_above_every_value() -> None:
    """On points that are not the table's, up to each of many radii, tiny and huge ones included; to
    a relative 2e-6.
    """
    from privlearn.methods.dpmac import network

    radii = torch.cat(
        [torch.tensor([0.0, 1e-9, 39.9995, 41.0, 1e3]), torch.logspace(-4, 2, 40)]
    ).double()
    found = network._softplus_suprema(radii)
    for name in ("product", "slope", "curvature", "rest", "tilt", "bend", "cross", "constant"):
        for radius, bound in zip(radii, getattr(found, name), strict=True):
            points = torch.linspace(-1, 1, 20_011, dtype=torch.float64) * radius
            largest = float(network._softplus_term(name, points).max())
            assert largest <= float(bound), (name, float(radius))
            assert float(bound) <= largest * (1 + 5e-6), (name, float(radius))


@check
def check_suprema_of_tanh_are_above_every_value() -> None:
    """On a grid up to where tanh is 1 to the last digit; and none is more than 2% above."""
    u = torch.linspace(0, 25, 2_000_001, dtype=torch.float64)
    f, s, k = TANH.value(u), TANH.slope(u), TANH.curvature(u)
    g = f - u * s
    found = TANH.suprema(torch.ones(1, dtype=torch.float64))  # type: ignore[misc]
    terms = {
        "product": f * s,
        "slope": s,
        "curvature": k,
        "rest": s * g - k * u * f,
        "tilt": s - u * k,
        "bend": s * s + k * f,
        "cross": 2 * g + k * u * u,
        "constant": g * g + k * u * u * f,
    }
    for name, values_of in terms.items():
        largest, bound = float(values_of.abs().max()), float(getattr(found, name))
        assert largest <= bound <= 1.02 * largest, (name, largest, bound)
    assert TANH.lipschitz >= float(s.max())


@check
@torch.no_grad()
def check_what_analytic_bounds_rest_on_is_projected() -> None:
    """Inputs, coordinates and targets lie in their balls, no derivative exceeds its bound, however
    wild the data.
    """
    for output in (SQUARED, BINARY):
        for order in (1, 2):
            for kind in (nn.ReLU, nn.Softplus, nn.Tanh):
                bound = pv.mac.Analytic(z_norm=0.6, x_norm=0.9, y_norm=0.5, order=order)
                model, (x, y) = net(4, 6, 5, 3, kind=kind), made_up(30, 4, 3)
                x = x * 10 ** torch.linspace(-2, 4, 30, dtype=torch.float64)[:, None]
                y = (y * 50 if output is SQUARED else y).clone()
                seen: list[Any] = []
                settings = (
                    Coordinates(2, 1.0, "sweep")
                    if kind is nn.Softplus
                    else Coordinates(20, 0.3, "adam")
                )
                found = derivatives(
                    model,
                    bound,
                    output,
                    coordinates=settings,
                    observe=lambda *own, to=seen: to.append(own),
                )
                for mu in (1.0, 30.0):
                    (_, inputs, targets) = next(iter(found._parts(sample_of(range(30)), x, y)))
                    products = found._products(torch.arange(30), inputs, targets, mu)
                    radii = [0.9, 0.6, 0.6]
                    for product, radius in zip(products, radii, strict=True):
                        assert float(product.inputs.norm(dim=1).max()) <= math.hypot(
                            radius, 1.0
                        ) * (1 + 1e-12)
                    if output is SQUARED:
                        assert float(targets.norm(dim=1).max()) <= 0.5 * (1 + 1e-12)
                    for product, limits in zip(products, found.limits(mu), strict=True):
                        for norms, limit in zip(product.norms(), limits, strict=True):
                            assert float(norms.max()) <= limit * (1 + 1e-12), (
                                output.name,
                                order,
                                kind,
                                mu,
                            )
                    found(sample_of(range(30)), x, y, mu)
                    with torch.no_grad():
                        model[0].weight.mul_(20)  # bounds follow the weights
                assert seen
