"""DP-MAC: clipped W-steps beside those with every example's matrices, and whole epochs by how
coordinates are fitted.

`python bench/dpmac.py [--quick] [--json] [--threads N]`. A W-step goes from auxiliary coordinates
to the clipped sums of all layers' derivatives. Both ways must find the same sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import common
import torch
from common import Case, Variant
from torch import Tensor, nn

import privlearn as pv
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.bounded import kept
from privlearn.core.sampling import FullBatch
from privlearn.methods.dpmac.coordinates import arguments, forward
from privlearn.methods.dpmac.expansion import SQUARED, hidden_first, hidden_second
from privlearn.methods.dpmac.network import Layer, layers_of, with_ones
from privlearn.methods.dpmac.sums import DerivativeSums, Products

THRESHOLD = 0.3
#: How far the norm of the sums may be from the one found with every example's matrices.
WITHIN = 1e-4
#: How coordinates are fitted; the first as in the paper.
FITS = {
    "30 steps of Adam": pv.mac.Coordinates(30, 0.003, "adam"),
    "10 steps of Adam": pv.mac.Coordinates(10, 0.01, "adam"),
    "5 steps of SGD": pv.mac.Coordinates(5, 0.1, "sgd"),
    "1 sweep": pv.mac.Coordinates(1, 1.0, "sweep"),
}


@dataclass(frozen=True)
class Size:
    """How large the cases are.

    Attributes:
        nets: widths from the input to the output, batch size, and the order of the expansion.
        rows: examples of the whole epochs.
        epochs: how many of them.
        rounds: of W-steps, and of epochs.
    """

    nets: tuple[tuple[tuple[int, ...], int, int], ...]
    rows: int
    epochs: int
    rounds: tuple[int, int]


DEEP = (256, 300, 100, 20, 100, 300, 256)
FULL = Size((((60, 300, 10), 1000, 1), (DEEP, 500, 1), ((60, 30, 10), 256, 2)), 60_000, 3, (15, 3))
QUICK = Size((((60, 300, 10), 200, 1), ((60, 30, 10), 64, 2)), 6_000, 1, (5, 1))
SMOKE = Size((((6, 9, 3), 20, 1), ((6, 5, 4, 3), 20, 2)), 200, 1, (1, 1))


def built(widths: Sequence[int]) -> nn.Sequential:
    """A network of fully connected layers with ReLU between them."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers[:-1])


def made_up(rows: int, width: int, seed: int) -> Tensor:
    """Numbers of order one."""
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


#: From the factors of each layer's derivatives to their clipped sums.
Sums = Callable[[Sequence[Layer], list[Products], int], list[Tensor]]


def by_products(layers: Sequence[Layer], products: list[Products], order: int) -> list[Tensor]:
    """privlearn's: norms are products of norms, sums are matrix products."""
    limits = [[THRESHOLD, THRESHOLD / 2][:order]] * len(layers)
    sums = DerivativeSums(
        [layer.shape for layer in layers], limits, products[0].inputs, Adjacency.ADD_REMOVE
    )
    sums.add(products)
    (sample,) = FullBatch().draw(len(products[0].inputs))
    return [value for part in sums.bounded(sample) for value in part.values]


def by_matrices(layers: Sequence[Layer], products: list[Products], order: int) -> list[Tensor]:
    """Every example's matrices, their norms, and the sum of the clipped ones."""
    totals = []
    for each in products:
        matrices = [torch.einsum("no,ni->noi", each.first, each.inputs)]
        if each.second is not None:
            matrices.append(torch.einsum("no,ni,nj->noij", each.second, each.inputs, each.inputs))
        for matrix, limit in zip(matrices, (THRESHOLD, THRESHOLD / 2), strict=False):
            norms = matrix.flatten(1).norm(dim=1)
            scales = (kept(limit, [matrix.dtype]) / norms).clamp(max=1.0)
            totals.append((matrix * scales.view(-1, *[1] * (matrix.dim() - 1))).sum(0))
    return totals


def unclipped(layers: Sequence[Layer], products: list[Products], order: int) -> list[Tensor]:
    """No clipping: the sums alone."""
    firsts = [each.first.T @ each.inputs for each in products]
    seconds = [
        torch.einsum("no,ni,nj->oij", e.second, e.inputs, e.inputs)
        for e in products
        if e.second is not None
    ]
    return firsts + seconds


def w_step(widths: Sequence[int], batch: int, order: int, rounds: int) -> Case:
    """A W-step on made-up examples."""

    def of(name: str, sums: Sums, within: float | None = None) -> Variant:
        def prepared() -> common.Run:
            layers = layers_of(built(widths))
            x, y = made_up(batch, widths[0], 1), made_up(batch, widths[-1], 2)
            with torch.no_grad():
                z = [each + 0.1 * made_up(batch, each.shape[1], 3) for each in forward(layers, x)]

            @torch.no_grad()
            def run() -> Callable[[], float]:
                products = []
                for layer, seen, target in zip(layers, [x, *z], [*z, y], strict=True):
                    u, second = arguments(layer, seen), None
                    if layer.activation is not None:
                        first = hidden_first(layer.activation, u, target)
                        second = hidden_second(layer.activation, u, target) if order == 2 else None
                    else:
                        first = SQUARED.first(u, target)
                        second = (
                            SQUARED.second(u, target) if order == 2 and SQUARED.second else None
                        )
                    products.append(Products(with_ones(seen, layer), first, second))
                totals = sums(layers, products, order)
                return lambda: float(torch.stack([total.norm() for total in totals]).norm())

            return run

        return Variant(name, prepared, within=within, prepared=True)

    title = f"W-step of {'-'.join(map(str, widths))}, batch {batch}, order {order}"
    ways = (
        of("clipped, by products", by_products),
        of("clipped, every example's matrices", by_matrices, WITHIN),
        of("not clipped", unclipped),
    )
    return Case(title, "norm", ways, rounds)


def whole(rows: int, epochs: int, rounds: int) -> Case:
    """Whole epochs of the paper's classifier on made-up rows, by how coordinates are fitted."""

    def of(name: str, coordinates: pv.mac.Coordinates) -> Variant:
        def prepared() -> common.Run:
            x, y = made_up(rows, 60, 1), torch.arange(rows) % 10
            schedule = pv.schedules.Constant(start=2.8)
            plan = pv.Plan(
                pv.Poisson(1 / 60),
                epochs=epochs,
                schedule=schedule,
                clip=pv.mac.Derivatives(THRESHOLD),
            )

            def run() -> float:
                pv.dpmac(
                    plan,
                    built((60, 300, 10)),
                    "binary_cross_entropy",
                    (x, y),
                    coordinates=coordinates,
                    optimizer=lambda p: torch.optim.Adam(p, lr=0.01),
                    streams=pv.Streams.new(0),
                )
                return float(epochs * 60)

            return run

        return Variant(name, prepared, within=0.0, slow=True, prepared=True)

    fits = tuple(of(name, coordinates) for name, coordinates in FITS.items())
    return Case(f"{epochs} x 60 steps of 60-300-10 on {rows:,} rows", "steps", fits, rounds)


def cases(size: Size) -> list[Case]:
    """All cases at `size`."""
    steps = [w_step(widths, batch, order, size.rounds[0]) for widths, batch, order in size.nets]
    return [*steps, whole(size.rows, size.epochs, size.rounds[1])]


def main() -> None:
    """The command line."""
    parser = common.parser(__file__, "DP-MAC: W-steps with clipping, and whole epochs.")
    parser.add_argument("--threads", type=int, help="threads of torch; by default its own choice")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    common.main(__file__, options, cases(QUICK if options.quick else FULL), 1)


if __name__ == "__main__":
    main()
