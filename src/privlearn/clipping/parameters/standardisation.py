"""Weight standardisation: each output channel's weights less their mean, over their standard deviation.

Networks without batch normalisation (BiT, NF-Nets) write it as `F.batch_norm` of the weights, with statistics of the
weights at hand. Under `vmap` its backward pass copies the weights once for each example; the formula needs no copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from privlearn.clipping.per_example import GRAM_LOST, GRAM_ROUNDINGS, Dense, ExampleGradients, row_norms

#: Of the squared norm before means are taken out, the share below which what is left is formed in double precision.
_CANCELLED = 0.02


@final
@dataclass(frozen=True, repr=False)
class Standardisation:
    """y = gain (x - mean) / sqrt(variance + eps) + shift, over all but the second dimension of x, the first being 1.

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
    _computed: dict[torch.dtype, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict, repr=False)

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
        """The arguments of `torch.nn.functional.batch_norm`; None if that is another operation than this one."""
        own = training and running_mean is None and running_var is None and input.dim() > 2 and len(input) == 1
        return cls(input, weight, bias, eps) if own else None

    def statistics(self, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """z, shape (channels, K); what gradients are scaled by, shape (channels,); and mean(z^2), which eps lessens."""
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
        """Each example's gradients of what was given, for its gradients of y, shape (batch, 1, channels, ...).

        With z the standardised weights, K in a channel: the gradient of x is gain / sqrt(variance + eps) times
        (flow - mean(flow) - z mean(flow z)).
        """
        z, scales, _ = self.statistics(flow.dtype)
        own = flow.reshape(len(flow), *z.shape)
        # Both sums in one pass over the gradients: channel by channel, a product with (1, z).
        with_ones = torch.stack([torch.ones_like(z), z], 1)
        sums = torch.bmm(own.transpose(0, 1), with_ones.mT)
        yield from self.of_sums(sums[:, :, 0].mT, sums[:, :, 1].mT)
        beyond = torch.bmm(sums, with_ones.div_(-z.shape[1])).transpose(0, 1)
        yield self.x, beyond.add_(own).mul_(scales[:, None]).reshape(len(flow), *self.x.shape)

    def of_sums(self, plain: Tensor, with_z: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The gradients of shift and gain: the sums of flow, and of flow z, both of shape (batch, channels)."""
        if self.shift is not None:
            yield self.shift, plain
        if self.gain is not None:
            yield self.gain, with_z

    def taken_back(self, total: Tensor) -> Tensor:
        """The gradient of x for one gradient of y, both of shape (channels, K); `total` is overwritten."""
        z, scales, _ = self.statistics(total.dtype)
        along = torch.linalg.vecdot(total, z)[:, None] / z.shape[1]
        return total.sub_(total.mean(1, keepdim=True)).addcmul_(z, along, value=-1).mul_(scales[:, None])


@final
class OuterSums:
    """Each example's gradient of standardised weights as a sum of outer products over few positions, not formed.

    Args:
        g: gradients of the outputs, shape (batch, positions, channels).
        a: inputs, shape (batch, positions, K).
        shape: of the standardised weights, channels x K numbers in all.
        weighted: (weights, into) adds the weighted sum to `into`, of that shape.
    """

    def __init__(self, g: Tensor, a: Tensor, shape: Sequence[int], weighted: Callable[[Tensor, Tensor], None]) -> None:
        self.g, self.a, self.shape, self.weighted = g, a, shape, weighted
        self.nbytes = g.nbytes + a.nbytes

    @property
    def squares(self) -> Tensor:
        """The squared norms."""
        return row_norms(self.form()).square()

    def add_weighted(self, weights: Tensor, into: Tensor) -> None:
        """One weight gradient, of the weighted outputs."""
        self.weighted(weights, into)

    def form(self) -> Tensor:
        """One product for each example."""
        return (self.g.mT @ self.a).view(len(self.g), *self.shape)


@final
class ThroughStandardisation:
    """Gradients of the weights that were standardised, from those of what came out: no gradient is formed.

    With G the gradient of a channel's standardised weights and s its scale, the gradient of the weights has the squared
    norm s^2 (|G|^2 - (G 1)^2 / K - (G z)^2 (2 - mean(z^2)) / K). |G|^2 comes from Gram matrices, G 1 and G z from the
    positions. Where little is left of |G|^2, this says nothing: such an example's gradient is formed, in double
    precision, and kept apart. Weighted sums are taken back once, all examples together.

    Args:
        sums: the gradients of the standardised weights.
        through: the standardisation.
    """

    def __init__(self, sums: OuterSums, through: Standardisation) -> None:
        self._sums, self._through = sums, through
        z, scales, left = through.statistics()
        g, a, each = sums.g, sums.a, z.shape[1]
        #: The sums of G, and of G z, by example and channel.
        self.plain = torch.bmm(a.sum(2)[:, None], g)[:, 0]
        self.with_z = torch.linalg.vecdot(g.mT, (a @ z.T).mT)
        scaled = g * scales
        inputs, outputs = torch.bmm(a, a.mT), torch.bmm(scaled, scaled.mT)
        whole = row_norms(inputs) * row_norms(outputs)
        traces = (t.diagonal(dim1=1, dim2=2).sum(1).double() for t in (inputs, outputs))
        means = (self.plain * scales).double().square() + (self.with_z * scales).double().square() * (2 - left).double()
        self.squares = torch.linalg.vecdot(inputs.flatten(1), outputs.flatten(1)).double() - means.sum(1) / each
        # Below 1e-24 single precision has lost digits of a Gram matrix's entries; beyond 1e24 it has none left.
        safe = (self.squares > _CANCELLED * whole) & (whole > 1e-24) & (whole < 1e24)
        roundings = GRAM_ROUNDINGS + GRAM_LOST * (g.shape[1] + g.shape[2] + a.shape[2])
        self.squares += roundings * torch.finfo(g.dtype).eps * (whole + 2 * math.prod(traces))
        self._apart = (~safe).nonzero()[:, 0]
        if len(self._apart):
            lengths = torch.stack([row_norms(t[self._apart].flatten(1)) for t in (scaled, a)])
            # A layer that is not reached yet, as behind a gain that starts at zero: nothing to form.
            nothing = (lengths == 0).any(0) & lengths.isfinite().all(0)
            self.squares[self._apart[nothing]] = 0.0
            self._apart, lengths = self._apart[~nothing], lengths[:, ~nothing]
        if len(self._apart):
            formed = (g[self._apart].double().mT @ a[self._apart].double())[:, None]
            *_, (_, own) = through.backward(formed)
            self._exact = own.view(len(own), *z.shape)
            self.squares[self._apart] = row_norms(self._exact).square().where(lengths.isfinite().all(0), math.inf)
        self.nbytes = sums.nbytes

    def add_weighted(self, weights: Tensor, into: Tensor) -> None:
        """One more weight gradient, of the weighted outputs, taken back once."""
        rows = into.view(self._through.x.shape[1], -1)
        if len(self._apart):
            rows += torch.tensordot(weights[self._apart].double(), self._exact, 1).to(into.dtype)
            weights = weights.index_fill(0, self._apart, 0.0)
        total = torch.zeros(tuple(self._sums.shape), dtype=into.dtype, device=into.device)
        self._sums.add_weighted(weights, total)
        rows += self._through.taken_back(total.view_as(rows))

    def form(self) -> Tensor:
        """One product for each example, taken back."""
        *_, (_, own) = self._through.backward(self._sums.form()[:, None])
        return own


def taken_back(gradients: ExampleGradients, through: Standardisation) -> Iterator[tuple[Tensor, ExampleGradients]]:
    """Each example's gradients of what was standardised, and of gain and shift, from those of what came out."""
    if isinstance(gradients, OuterSums):
        own = ThroughStandardisation(gradients, through)
        yield through.x, own
        for given, flow in through.of_sums(own.plain, own.with_z):
            yield given, Dense(flow)
    else:
        for given, flow in through.backward(gradients.form().to(through.x.dtype)):
            yield given, Dense(flow)
