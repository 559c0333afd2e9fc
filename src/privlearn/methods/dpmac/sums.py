"""`BatchDerivatives`: from the examples of a batch to the bounded sums of all layers' derivatives.

`DerivativeSums`: sums of clipped per-example derivative matrices that are outer products, and their
sensitivities.

A layer's first derivatives for one example are d z^T, its second ones the stack of c_h z z^T over
units h. So their norms are products of norms, |d| |z| and |c| |z|^2, and their clipped sums are
matrix products: nothing of shape (examples, outputs, inputs) is ever built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.bounded import BLOCK, Bounded, Contributions, kept
from privlearn.core.clipping.derivative_bounds import Analytic, Derivatives, Layerwise
from privlearn.core.clipping.row_norms import row_norms
from privlearn.core.sampling import Sample
from privlearn.errors import BadInput
from privlearn.methods.dpmac import analytic
from privlearn.methods.dpmac.coordinates import Coordinates, arguments, fitted, forward, projected
from privlearn.methods.dpmac.expansion import BINARY, SOFTMAX, Output, hidden_first, hidden_second
from privlearn.methods.dpmac.network import Layer, with_ones

#: Called with the losses, the norms of each layer's first derivatives and which were clipped:
#: private.
Observer = Callable[[Tensor, list[Tensor], Tensor], None]


@final
class BatchDerivatives:
    """Computes, for drawn batches, what DP-MAC releases: sums of clipped derivatives of each
    layer's objective.

    For each example its coordinates are fitted by itself, with the weights as they are; then come
    its derivatives in all layers, and `clipping` bounds and adds them up.

    Args:
        layers: the network's; their weights are read whenever a batch is computed.
        output: the output layer's loss.
        bound: how derivatives are bounded.
        adjacency: the kind of neighbour.
        coordinates: how coordinates are fitted.
        examples: how many there are, for coordinates that are stored.
        at_once: examples that are computed at once; by default 1024, and at most.
        observe: called with private figures.

    Raises:
        BadInput: thresholds for another number of layers, or an analytic bound that is not known.

    Attributes:
        thresholds: of the derivatives, for each kind and layer; None where bounds are analytic.
        learned: whether the thresholds are the learned ones.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        output: Output,
        bound: Layerwise,
        adjacency: Adjacency,
        coordinates: Coordinates,
        *,
        examples: int,
        at_once: int | None = None,
        observe: Observer | None = None,
    ) -> None:
        self._layers, self._output, self._bound, self._adjacency = layers, output, bound, adjacency
        self._coordinates, self._at_once, self._observe = (
            coordinates,
            min(at_once or BLOCK, BLOCK),
            observe,
        )
        self.thresholds = bound.thresholds(len(layers)) if isinstance(bound, Derivatives) else None
        self.learned = False
        self._radius = bound.z_norm if isinstance(bound, Analytic) else None
        if isinstance(bound, Analytic) and output not in (BINARY, SOFTMAX) and bound.y_norm is None:
            raise BadInput(
                "the squared loss has analytic sensitivities only for targets within a ball: give "
                "pv.mac.Analytic(y_norm=...), or "
                "clip with pv.mac.Derivatives"
            )
        weight = layers[0].linear.weight
        self._like = weight.detach().new_zeros(0)
        self._stored = (
            [self._like.new_zeros(examples, layer.linear.out_features) for layer in layers[:-1]]
            if coordinates.stored
            else []
        )
        self._met = torch.zeros(
            examples if coordinates.stored else 0, dtype=torch.bool, device=weight.device
        )
        self.limits()  # whatever can be refused

    def limits(self, mu: float = 1.0) -> list[list[float]]:
        """For each layer the largest norm of each of its parts: thresholds, or analytic bounds at
        the current weights.

        `mu` is the weight of hidden layers' objectives, which analytic bounds grow with.
        """
        if self.thresholds is not None:
            halved = [
                [threshold / 2**kind for threshold in by_layer]
                for kind, by_layer in enumerate(self.thresholds)
            ]
            return [list(by_kind) for by_kind in zip(*halved, strict=True)]
        last = len(self._layers) - 1
        return [
            [bound * (mu if number < last else 1.0) for bound in self._analytic_limits(number)]
            for number in range(last + 1)
        ]

    @torch.no_grad()
    def __call__(self, sample: Sample, x: Tensor, y: Tensor, mu: float) -> list[Bounded]:
        """The bounded sums over the examples that `sample` drew: for each layer its first, then its
        second part.

        First parts are the sums of dT (of b, where bounds are analytic and the expansion is of
        second order), of shape (outputs, inputs), the bias as the last input; second parts those of
        C = d2T / 2, of shape (outputs, inputs, inputs). T is the layer's objective as eq. 2 has it,
        so that of a hidden layer is mu |z_k - f(W_k z_{k-1})|^2.

        Args:
            sample: the batch.
            x: all inputs, shape (rows, inputs).
            y: all targets, shape (rows, outputs).
            mu: the weight of hidden layers' objectives.
        """
        shapes = [layer.shape for layer in self._layers]
        sums = DerivativeSums(shapes, self.limits(mu), self._like, self._adjacency)
        for rows, inputs, targets in self._parts(sample, x, y):
            products = self._products(rows, inputs, targets, mu)
            clipped = sums.add(products)
            if self._observe:
                self._observe(
                    self._losses(inputs, targets),
                    [product.norms()[0] for product in products],
                    clipped,
                )
        return sums.bounded(sample)

    @torch.no_grad()
    def histograms(self, sample: Sample, x: Tensor, y: Tensor, mu: float) -> list[Bounded]:
        """How many examples have derivatives of which norm: a histogram by kind and layer;
        arguments as for a call.

        Raises:
            BadInput: there are no thresholds to learn.
        """
        learned = self._bound.learned if isinstance(self._bound, Derivatives) else None
        if learned is None or self.thresholds is None:
            raise BadInput(
                "there is no histogram in the plan: give "
                "pv.mac.Derivatives(learned=pv.mac.Histogram(...))"
            )
        collected: list[list[Tensor]] = [
            [self._like.new_zeros(0).double()] for by_layer in self.thresholds for _ in by_layer
        ]
        for rows, inputs, targets in self._parts(sample, x, y):
            norms = [product.norms() for product in self._products(rows, inputs, targets, mu)]
            by_kind = [
                layer_norms * 2**kind
                for kind, layers in enumerate(zip(*norms, strict=True))
                for layer_norms in layers
            ]
            for norms_so_far, layer_norms in zip(collected, by_kind, strict=True):
                norms_so_far.append(layer_norms)
        return histogram(
            [torch.cat(pieces) for pieces in collected], learned.edges(), sample, self._adjacency
        )

    def learn(self, counts: Sequence[Tensor]) -> None:
        """Take the thresholds that released histograms speak for."""
        assert isinstance(self._bound, Derivatives)
        assert self._bound.learned is not None
        assert self.thresholds is not None
        flat = [threshold for by_layer in self.thresholds for threshold in by_layer]
        new = [
            self._bound.learned.threshold(c.tolist(), old)
            for c, old in zip(counts, flat, strict=True)
        ]
        layers = len(self._layers)
        self.thresholds = [new[start : start + layers] for start in range(0, len(new), layers)]
        self.learned = True

    def released(self, noisy: Sequence[Tensor]) -> list[Tensor]:
        """Released sums in the type of the weights: sums are in double precision."""
        return [value.to(self._like.dtype) for value in noisy]

    def state_dict(self) -> dict[str, Any]:
        """What the next sum depends on beside the model and the data; plain and public."""
        return {"thresholds": self.thresholds, "learned": self.learned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another was."""
        self.thresholds, self.learned = state["thresholds"], state["learned"]

    def _parts(
        self, sample: Sample, x: Tensor, y: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The batch in parts: the places of some examples, their inputs and their targets, brought
        into their balls.
        """
        bound = self._bound
        for start in range(0, len(sample), self._at_once):
            rows = torch.from_numpy(sample.indices[start : start + self._at_once]).to(x.device)
            inputs, targets = x[rows].to(self._like), y[rows].to(self._like)
            if isinstance(bound, Analytic):
                inputs = projected(inputs, self._input_radius())
                targets = (
                    targets
                    if self._output in (BINARY, SOFTMAX)
                    else projected(targets, bound.y_norm)
                )
            yield rows.to(self._like.device), inputs, targets

    def _products(self, rows: Tensor, x: Tensor, y: Tensor, mu: float) -> list[Products]:
        """The derivatives of some examples in every layer."""
        z = self._fit(rows, x, y, mu)
        second = self._bound.order == 2
        products = []
        for layer, seen, target in zip(self._layers, [x, *z], [*z, y], strict=True):
            u = arguments(layer, seen)
            if layer.activation is not None:
                d = mu * hidden_first(layer.activation, u, target)
                c = mu * hidden_second(layer.activation, u, target) if second else None
            else:
                d = self._output.first(u, target)
                c = self._output.second(u, target) if second and self._output.second else None
            if c is not None and isinstance(self._bound, Analytic):
                d = d - 2 * c * u  # of b = dT - 2 C w, whose bound is less than that of dT
            products.append(Products(with_ones(seen, layer), d, c))
        return products

    def _fit(self, rows: Tensor, x: Tensor, y: Tensor, mu: float) -> list[Tensor]:
        """Coordinates of some examples, from where they were at their last visit if that is
        kept.
        """
        start = None
        if self._coordinates.stored:
            met = self._met[rows, None]
            new = forward(self._layers, x, self._radius)
            start = [
                stored[rows].where(met, z_k) for stored, z_k in zip(self._stored, new, strict=True)
            ]
        z = fitted(
            self._layers,
            self._output,
            x,
            y,
            self._coordinates,
            mu,
            radius=self._radius,
            start=start,
        )
        if self._coordinates.stored:
            for stored, z_k in zip(self._stored, z, strict=True):
                stored[rows] = z_k
            self._met[rows] = True
        return z

    def _losses(self, x: Tensor, y: Tensor) -> Tensor:
        """The network's own losses, whatever coordinates are."""
        last = [x, *forward(self._layers, x, self._radius)][-1]
        return self._output.losses(arguments(self._layers[-1], last), y)

    def _input_radius(self) -> float:
        assert isinstance(self._bound, Analytic)
        radius = self._bound.x_norm
        return math.sqrt(self._layers[0].linear.in_features) if radius is None else radius

    def _analytic_limits(self, number: int) -> list[float]:
        """The sensitivities of a layer's parts, at its weights as they are, which were released."""
        assert isinstance(self._bound, Analytic)
        assert self._bound.z_norm is not None
        layer, radius = self._layers[number], self._bound.z_norm
        inputs = analytic.with_bias(radius if number else self._input_radius(), layer.has_bias)
        if layer.activation is not None:
            limits = analytic.hidden(layer.weight(), layer.activation, inputs, radius)
        elif self._output is SOFTMAX:
            return [analytic.softmax(inputs)]
        elif self._output is BINARY:
            limits = analytic.binary(layer.weight(), inputs)
        else:
            assert self._bound.y_norm is not None
            limits = analytic.squared(layer.weight(), inputs, self._bound.y_norm)
        return [limits.gradient] if self._bound.order == 1 else [limits.linear, limits.curvature]


@final
@dataclass(frozen=True, repr=False)
class Products:
    """A layer's derivatives for some examples, as factors.

    Attributes:
        inputs: z, shape (examples, inputs), a column of ones for the bias included.
        first: d, shape (examples, outputs): the first derivatives of example n are d_n z_n^T.
        second: c, shape (examples, outputs): those of second order, halved, are c_nh z_n z_n^T for
            unit h. None: not wanted.
    """

    inputs: Tensor
    first: Tensor
    second: Tensor | None = None

    def norms(self) -> list[Tensor]:
        """Frobenius norms of each example's matrices, first and halved second order, each of shape
        (examples,).
        """
        z = row_norms(self.inputs)
        return [z * row_norms(self.first)] + (
            [] if self.second is None else [z * z * row_norms(self.second)]
        )


@final
class DerivativeSums:
    """Adds up clipped derivatives, layer by layer, a few examples at a time.

    Guarantee: one example changes a layer's sum of first derivatives by at most its limit in
    Frobenius norm, and likewise that of second ones, whatever the example holds; an example with a
    layer that is not finite adds nothing to that layer. Limits leave room for the rounding of norms
    and sums (`rounding` says how much, and what is proven); sums are in double precision.

    Args:
        shapes: (outputs, inputs) of each layer, the bias's column included.
        limits: for each layer the largest norm of first derivatives, and, if they are wanted, of
            halved second ones.
        like: a tensor of the type and on the device that derivatives have.
        adjacency: the kind of neighbour.

    Raises:
        BadInput: limits that are no positive numbers, or not one list for each layer.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, int]],
        limits: Sequence[Sequence[float]],
        like: Tensor,
        adjacency: Adjacency,
    ) -> None:
        if len(shapes) != len(limits) or not all(
            0 < limit < 1e30 for layer in limits for limit in layer
        ):
            raise BadInput(
                f"limits are {limits}: expected positive numbers for each of {len(shapes)} layers"
            )
        self._limits = [tuple(layer) for layer in limits]
        self._adjacency, self._dtype = adjacency, like.dtype
        self._added = [
            [Contributions(limit, type(self).__name__) for limit in layer] for layer in self._limits
        ]
        like = like.double()
        self._sums = [
            [like.new_zeros(outputs, *[inputs] * order) for order, _ in enumerate(layer, start=1)]
            for (outputs, inputs), layer in zip(shapes, self._limits, strict=True)
        ]

    @torch.no_grad()
    def add(self, products: Sequence[Products]) -> Tensor:
        """Add some examples' derivatives, one `Products` for each layer; at most `rounding.BLOCK`
        at once.

        Returns:
            Which layers' first derivatives were clipped, shape (layers, examples): private.
        """
        clipped = []
        for sums, seen, product in zip(self._sums, self._added, products, strict=True):
            norms = product.norms()
            z = _units(product.inputs, norms[0])
            across = row_norms(z)
            for total, norm, added, factor in zip(
                sums, norms, seen, (product.first, product.second), strict=False
            ):
                assert factor is not None
                each = (
                    _units(factor, norm)
                    * self._lengths(norm, added.bound).to(factor.dtype)[:, None]
                )
                added.see(row_norms(each) * across ** (total.dim() - 1))
                if total.dim() == 2:
                    total.add_(each.T @ z)
                else:
                    for unit in range(len(total)):
                        total[unit].add_((z * each[:, unit, None]).T @ z)
            clipped.append(norms[0] > seen[0].bound)
        return torch.stack(clipped)

    def bounded(self, sample: Sample) -> list[Bounded]:
        """The sums as bounded values of `sample`, whose examples they are of: by layer, first order
        first.
        """
        return [
            Bounded(
                (total,),
                self._adjacency.sum_sensitivity(added.bound),
                self._adjacency,
                sample,
                added,
            )
            for sums, seen in zip(self._sums, self._added, strict=True)
            for total, added in zip(sums, seen, strict=True)
        ]

    def _lengths(self, norms: Tensor, limit: float) -> Tensor:
        """The lengths to which matrices of these norms are clipped; 0 where they are not finite."""
        lengths = norms.clamp(max=kept(limit, [self._dtype]))
        return torch.where(norms.isfinite(), lengths, 0.0)


def _units(rows: Tensor, norms: Tensor) -> Tensor:
    """Rows brought to length 1; 0 where they are 0, or where `norms` (of what they are a factor of)
    aren't finite.
    """
    lengths = row_norms(rows)
    usable = norms.isfinite() & lengths.isfinite() & (lengths > 0)
    scaled = rows / lengths.where(usable, 1.0).to(rows.dtype)[:, None]
    return scaled.where(usable[:, None], 0.0)


def histogram(
    norms: Sequence[Tensor], edges: Sequence[float], sample: Sample, adjacency: Adjacency
) -> list[Bounded]:
    """How many examples have norms in each bin, for each of several kinds of norm; sensitivity
    computed here.

    An example counts in one bin of each histogram; one whose norm is not finite, in none. So it
    adds a vector of length 1 to each, and replacing it by another moves at most two numbers by 1.

    Args:
        norms: for each histogram the norms, shape (examples,).
        edges: the ends between bins, rising.
        sample: the batch that they are of.
        adjacency: the kind of neighbour.

    Returns:
        For each histogram its counts, shape (bins,), in double precision.
    """
    moved = 2**0.5 if adjacency is Adjacency.REPLACE_ONE else 1.0
    ends = torch.tensor(edges, dtype=torch.float64, device="cpu")
    parts = []
    for lengths in norms:
        finite = lengths[lengths.isfinite()].double().cpu()
        counts = torch.bincount(torch.bucketize(finite, ends), minlength=len(edges) + 1).double()
        added = Contributions.of(torch.ones_like(finite), 1.0, "histogram")
        parts.append(Bounded((counts,), moved, adjacency, sample, added))
    return parts
