"""Weight standardisation takes each output channel's weights less their mean, over their standard
deviation.

Networks without batch normalisation (BiT, NF-Nets) write it as `F.batch_norm` of the weights, with
statistics of the weights at hand. Under `vmap` its backward pass copies the weights once for each
example; the formula needs no copies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from privlearn.core.clipping.kernels import Kernels
from privlearn.core.clipping.per_example import (
    CANCELLED,
    GRAM_LOST,
    GRAM_ROUNDINGS,
    Dense,
    ExampleGradients,
)
from privlearn.core.clipping.row_norms import SAFE, norms_of, row_norms

#: The share of the squared norm that has to be left beside the part along z; otherwise the gradient
#: is formed.
_TAKEN_OUT = 0.5


@final
@dataclass(frozen=True, repr=False)
class Standardisation:
    """y = gain (x - mean) / sqrt(variance + eps) + shift, over all but the second dimension of x,
    the first being 1.

    Attributes:
        x: shape (1, channels, ...).
        gain: shape (channels,), or None for 1.
        shift: shape (channels,), or None for 0.
        eps: what is added to variances.
    """

    x: Tensor
    gain: Tensor | None
    shift: Tensor | None
    eps: float
    #: By type: the weights are what they are until the step is over, and so are these.
    _computed: dict[torch.dtype, tuple[Tensor, Tensor, Tensor]] = field(
        default_factory=dict, repr=False
    )

    @classmethod
    def of(
        cls,
        input: Tensor,  # noqa: A002 - as PyTorch calls it
        running_mean: Tensor | None = None,
        running_var: Tensor | None = None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: Any = 0.1,
        eps: float = 1e-5,
    ) -> Standardisation | None:
        """The arguments of `torch.nn.functional.batch_norm`; None if that is another operation than
        this one.
        """
        fits = (
            training
            and running_mean is None
            and running_var is None
            and input.dim() > 2
            and len(input) == 1
        )
        return cls(input, weight, bias, eps) if fits else None

    def statistics(self, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """z, shape (channels, K); what gradients are scaled by, shape (channels,); and mean(z^2),
        which eps lessens.
        """
        dtype = dtype or self.x.dtype
        if dtype not in self._computed:
            self._computed[dtype] = self._statistics(dtype)
        return self._computed[dtype]

    def _statistics(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        rows = self.x.detach()[0].flatten(1).to(dtype)
        z = rows - rows.mean(1, keepdim=True)
        variances = torch.linalg.vector_norm(z, dim=1).square() / rows.shape[1]
        scales = (variances + self.eps).rsqrt()
        gain = 1.0 if self.gain is None else self.gain.detach().to(scales.dtype)
        return z.mul_(scales[:, None]), scales * gain, variances * scales.square()

    @torch.no_grad()
    def backward(self, flow: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Each example's gradients of what was given, for its gradients of y, shape (batch, 1,
        channels, ...).

        With z the standardised weights, K in a channel: the gradient of x is gain / sqrt(variance +
        eps) times (flow - mean(flow) - z mean(flow z)).
        """
        z, scales, _ = self.statistics(flow.dtype)
        by_channel = flow.reshape(len(flow), *z.shape)
        # Both sums in one pass over the gradients: channel by channel, a product with (1, z).
        with_ones = torch.stack([torch.ones_like(z), z], 1)
        sums = torch.bmm(by_channel.transpose(0, 1), with_ones.mT)
        yield from self.of_sums(sums[:, :, 0].mT, sums[:, :, 1].mT)
        beyond = torch.bmm(sums, with_ones.div_(-z.shape[1])).transpose(0, 1)
        yield (
            self.x,
            beyond.add_(by_channel).mul_(scales[:, None]).reshape(len(flow), *self.x.shape),
        )

    def of_sums(self, plain: Tensor, with_z: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The gradients of shift and gain: the sums of flow, and of flow z, both of shape (batch,
        channels).
        """
        if self.shift is not None:
            yield self.shift, plain
        if self.gain is not None:
            yield self.gain, with_z

    def taken_back(self, total: Tensor) -> Tensor:
        """The gradient of x for one gradient of y, both of shape (channels, K); `total` is
        overwritten.
        """
        z, scales, _ = self.statistics(total.dtype)
        along = torch.linalg.vecdot(total, z)[:, None] / z.shape[1]
        return (
            total.sub_(total.mean(1, keepdim=True))
            .addcmul_(z, along, value=-1)
            .mul_(scales[:, None])
        )

    def taken_back_by_example(
        self, gradients: ExampleGradients
    ) -> Iterator[tuple[Tensor, ExampleGradients]]:
        """Each example's gradients of what was standardised, and of gain and shift, from those of
        what came out.
        """
        if isinstance(gradients, OuterSums):
            x_gradients = ThroughStandardisation(gradients, self)
            yield self.x, x_gradients
            for source, flow in self.of_sums(x_gradients.plain, x_gradients.with_z):
                yield source, Dense(flow)
        else:
            for source, flow in self.backward(gradients.form().to(self.x.dtype)):
                yield source, Dense(flow)


@final
class OuterSums:
    """Each example's gradient of weights as a sum of outer products over few positions, formed only
    when asked for.

    Args:
        g: gradients of the outputs, shape (batch, positions, channels).
        a: inputs, shape (batch, positions, K).
        shape: of the weights, channels x K numbers in all.
        kernels: for the matrix products.
    """

    def __init__(self, g: Tensor, a: Tensor, shape: Sequence[int], kernels: Kernels) -> None:
        self.g, self.a, self.shape, self.kernels = g, a, shape, kernels
        self.nbytes = g.nbytes + a.nbytes

    @property
    def squares(self) -> Tensor:
        """The squared norms."""
        return Dense(self.form()).squares

    def add_weighted(self, weights: Tensor, into: Tensor) -> None:
        """Of formed gradients."""
        Dense(self.form()).add_weighted(weights, into)

    def form(self) -> Tensor:
        """One product for each example."""
        return self.kernels.each_outer(self.g, self.a).view(len(self.g), *self.shape)


@final
class ThroughStandardisation:
    """Gradients of the weights that were standardised, from those of what came out: no gradient is
    formed.

    Standardising takes out of each channel's gradient its mean and its part along z. The mean goes
    with that of each input, before anything is added up. With G the gradient that is left and s the
    channel's scale, that of the weights has the squared norm s^2 (|G|^2 - (G z)^2 (2 - mean(z^2)) /
    K): |G|^2 comes from Gram matrices, G z from the positions. An example of which this tells too
    little, or of which z takes more than half, is formed in double precision and kept apart: what
    is added up for the others is at most sqrt(2) times as long as what they add to the sum, and so
    is what rounding leaves. Weighted sums are taken back once, all examples together.

    Args:
        sums: the gradients of the standardised weights.
        through: the standardisation.
    """

    any_shape = True

    def __init__(self, sums: OuterSums, through: Standardisation) -> None:
        self._through, self._kernels = through, sums.kernels
        z, scales, left = through.statistics()
        g, a = sums.g, sums.a - sums.a.mean(2, keepdim=True)
        self._g, self._a, self.nbytes = g, a, g.nbytes + a.nbytes
        #: The sums of the gradient, and of the gradient times z, by example and channel.
        self.plain = torch.bmm(sums.a.sum(2)[:, None], g)[:, 0]
        self.with_z = torch.linalg.vecdot(g, self._kernels.linear(a, z, None), dim=1)
        scaled = g * scales
        inputs, outputs = torch.bmm(a, a.mT), torch.bmm(scaled, scaled.mT)
        sizes = norms_of(inputs, outputs)
        whole = sizes.prod(0)
        traces = (t.diagonal(dim1=1, dim2=2).sum(1).double() for t in (inputs, outputs))
        before = torch.linalg.vecdot(inputs.flatten(1), outputs.flatten(1)).double()
        along = (self.with_z * scales).double().square() * (2 - left).double()
        self.squares = before - along.sum(1) / z.shape[1]
        # What single precision can't square goes the same way: either factor may be too small or
        # too large.
        squarable = (sizes > SAFE[0] ** 2).all(0) & (sizes < SAFE[1] ** 2).all(0)
        safe = (self.squares > CANCELLED * whole) & (self.squares > _TAKEN_OUT * before) & squarable
        roundings = GRAM_ROUNDINGS + GRAM_LOST * (g.shape[1] + g.shape[2] + a.shape[2])
        self.squares += roundings * torch.finfo(g.dtype).eps * (whole + 2 * math.prod(traces))
        self._apart = (~safe).nonzero()[:, 0]
        if len(self._apart):
            lengths = norms_of(*(t[self._apart].flatten(1) for t in (scaled, a)))
            # A layer that is not reached yet, as behind a gain that starts at zero: nothing to
            # form.
            nothing = (lengths == 0).any(0) & lengths.isfinite().all(0)
            self.squares[self._apart[nothing]] = 0.0
            self._apart, lengths = self._apart[~nothing], lengths[:, ~nothing]
        if len(self._apart):
            self._exact = self._take_back(g[self._apart].double().mT @ a[self._apart].double())
            self.squares[self._apart] = (
                row_norms(self._exact).square().where(lengths.isfinite().all(0), math.inf)
            )

    def _take_back(self, formed: Tensor) -> Tensor:
        """Formed gradients of what came out, (examples, channels, K), as those of what was
        standardised.
        """
        *_, (_, flow) = self._through.backward(formed[:, None])
        return flow[:, 0].reshape(formed.shape)

    def add_weighted(self, weights: Tensor, into: Tensor) -> None:
        """One more weight gradient, of the weighted outputs, taken back once."""
        rows = into.view(self._g.shape[2], -1)
        if len(self._apart):
            rows += torch.tensordot(weights[self._apart].double(), self._exact, 1).to(into.dtype)
            weights = weights.index_fill(0, self._apart, 0.0)
        scaled = self._g.to(into.dtype) * weights[:, None, None]
        total = torch.zeros_like(rows)
        self._kernels.add_outer(scaled.flatten(0, 1), self._a.to(into.dtype).flatten(0, 1), total)
        rows += self._through.taken_back(total)

    def form(self) -> Tensor:
        """One product for each example, taken back."""
        return self._take_back(self._g.mT @ self._a).view(len(self._g), *self._through.x.shape)
