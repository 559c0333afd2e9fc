"""Autoencoder of Fay et al. (2020, Algorithm 2): a bottleneck in the unit ball, trained with the
release's noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn._checks import between, checked, count, one_of, positive
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput, first_line
from privlearn.methods.pate.reducers import Reducer, public_targets, unit_ball

_HIDDEN = 256

#: For each loss: what compares outputs with targets, and what makes a target of an output.
_LOSSES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "mse": (F.mse_loss, lambda out: out),
    "binary_cross_entropy": (F.binary_cross_entropy_with_logits, torch.sigmoid),
    "cross_entropy": (F.cross_entropy, lambda out: out.softmax(1)),
}


@checked
@final
class Autoencoder(Reducer):
    """An encoder into the unit ball and a decoder, fitted on public targets: `Autoencoder.fit`.

    Codes have norm at most 1 and are clipped about 0, so `pv.teachers.Ball(1.0)` clips nothing that
    the encoder made, and what is released is their noisy mean, as in the paper.

    Args:
        encoder: from targets (rows, *shape) to (rows, size + 1) numbers, which the unit ball's
            activation takes.
        decoder: from codes (rows, size) to outputs (rows, *shape).
        loss: "mse", "binary_cross_entropy" (targets in [0, 1]) or "cross_entropy" (targets are
            probabilities of classes, along the first dimension of their shape): what it was trained
            for, and how an output becomes a target.
        centre: the public target that stands in for one that can't be used.
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module, loss: str, centre: Tensor) -> None:
        self.encoder, self.decoder = encoder, decoder
        self.loss = one_of("loss", loss, _LOSSES)
        self._centre = centre
        try:
            self._size = self.encode(centre[None]).shape[1]
        except (RuntimeError, TypeError, IndexError) as error:
            raise BadInput(
                f"the encoder cannot run on a target of shape {tuple(centre.shape)}"
            ) from error

    @classmethod
    def fit(
        cls,
        public: Dataset,
        size: int,
        noise_std: float,
        *,
        encoder: nn.Module | None = None,
        decoder: nn.Module | None = None,
        loss: str = "mse",
        epochs: int = 100,
        batch_size: int = 64,
        learning_rate: float = 1e-3,
        seed: int = 0,
    ) -> Autoencoder:
        """Train on the targets of `public`, with Gaussian noise of `noise_std` on each number of
        the code.

        The noise is for the decoder to learn what it will see, `plan.noise_std`; it is no measure
        of privacy.

        Args:
            public: a data set that is declared public; its targets y are looked at. They get no
                protection at all.
            size: numbers in a code.
            noise_std: standard deviation of the noise in the bottleneck.
            encoder: ends in size + 1 numbers; by default one hidden layer.
            decoder: starts from `size` numbers; by default one hidden layer.
            loss: see the class.
            epochs: times that each target is seen.
            batch_size: targets in a step of Adam.
            learning_rate: of Adam.
            seed: of everything that is drawn; public.

        Raises:
            BadInput: data that are not declared public, or networks that don't fit the targets.
        """
        targets = public_targets(public)
        count("size", size), count("epochs", epochs), count("batch_size", batch_size)
        between("noise_std", noise_std, 0.0, 1e12), positive("learning_rate", learning_rate)
        one_of("loss", loss, _LOSSES)
        shape, numbers = tuple(targets.shape[1:]), math.prod(targets.shape[1:])
        with torch.random.fork_rng():
            torch.manual_seed(count("seed", seed, least=0, most=2**63 - 1))
            if encoder is None:
                encoder = nn.Sequential(
                    nn.Flatten(),
                    nn.Linear(numbers, _HIDDEN, device="cpu"),
                    nn.ReLU(),
                    nn.Linear(_HIDDEN, size + 1, device="cpu"),
                )
            if decoder is None:
                decoder = nn.Sequential(
                    nn.Linear(size, _HIDDEN, device="cpu"),
                    nn.ReLU(),
                    nn.Linear(_HIDDEN, numbers, device="cpu"),
                    nn.Unflatten(1, shape),
                )
            _require_fit(encoder, decoder, targets[:2], size)
            _train(
                encoder,
                decoder,
                _LOSSES[loss][0],
                targets,
                noise_std,
                epochs,
                batch_size,
                learning_rate,
            )
        return cls(encoder.eval(), decoder.eval(), loss, targets.mean(0))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one target."""
        return tuple(self._centre.shape)

    @property
    def size(self) -> int:
        """Numbers in a code."""
        return self._size

    @property
    def centre(self) -> Tensor:
        """The mean of the public targets."""
        return self._centre

    @property
    def code_centre(self) -> Tensor:
        """0, the unit ball's centre."""
        return torch.zeros(self.size, dtype=self._centre.dtype, device="cpu")

    @torch.no_grad()
    def encode(self, targets: Tensor) -> Tensor:
        """Codes in the unit ball."""
        return unit_ball(self.encoder(targets.to(self._centre)))

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Targets: of the form that the loss was for."""
        return _LOSSES[self.loss][1](self.decoder(codes.to(self._centre)))

    def describe(self) -> dict[str, Any]:
        """Its kind and public numbers."""
        codes = "in the unit ball, clipped about 0"
        return {"kind": "autoencoder", "size": self.size, "loss": self.loss, "codes": codes}


def _train(
    encoder: nn.Module,
    decoder: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    targets: Tensor,
    noise_std: float,
    epochs: int,
    batch_size: int,
    rate: float,
) -> None:
    """Adam on reconstructions from noisy codes."""
    descent = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=rate)
    encoder.train(), decoder.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(targets), device="cpu").split(batch_size):  # type: ignore[no-untyped-call]
            codes = unit_ball(encoder(targets[rows]))
            out = decoder(codes + noise_std * torch.randn_like(codes))
            descent.zero_grad()
            loss(out, targets[rows]).backward()  # type: ignore[no-untyped-call]
            descent.step()


def _require_fit(encoder: nn.Module, decoder: nn.Module, targets: Tensor, size: int) -> None:
    """Refuse networks that don't take the targets or don't give them back."""
    try:
        with torch.no_grad():
            inner = encoder(targets)
            shapes = tuple(inner.shape), tuple(decoder(inner[:, 1:]).shape)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise BadInput(
            f"the networks can't run on targets of shape {tuple(targets.shape[1:])}: "
            f"{first_line(error)}"
        ) from error
    if shapes != ((2, size + 1), tuple(targets.shape)):
        raise BadInput(
            f"two targets become {shapes[0]} and then {shapes[1]}: expected (2, {size + 1}), one "
            f"more than a code has, and {tuple(targets.shape)}"
        )
