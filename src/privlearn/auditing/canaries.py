"""One whole training with canaries, each of which takes part or not by a coin of its own (Steinke et al. 2023).

A canary is an example whose gradient lies along one direction that nothing else uses: a parameter of its own beside the
network, which the training treats like any other. So the network learns what it would without canaries, and what is
released along each of those directions tells whether its canary took part. Batches, clipping, noise and composition
are those of the run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset as TorchDataset

from privlearn._checks import count
from privlearn.accounting.guarantee import Adjacency
from privlearn.auditing.bounds import Floats, one_run_epsilon
from privlearn.auditing.distinguishing import Claim
from privlearn.auditing.report import Audit
from privlearn.auditing.steps import warn_of_rows
from privlearn.clipping.losses import Loss
from privlearn.data.dataset import Dataset
from privlearn.descent.dpsgd import dpsgd
from privlearn.errors import BadInput
from privlearn.plan import Plan
from privlearn.streams import Streams

#: How much longer than 1 a canary's gradient is: it is clipped at any usual norm.
_LONG = 1e4
#: Shares of the canaries that are guessed at: those with the highest and the lowest scores.
_GUESSED = (0.05, 0.2, 1.0)
_ASSUMES = "the run is the claimed one with some other noise, which is independent for each parameter"


def audit_training(
    plan: Plan,
    model: nn.Module | Callable[[tuple[int, ...]], nn.Module],
    loss: Callable[[Tensor, Tensor], Tensor],
    data: Dataset,
    *,
    canaries: int = 1_000,
    delta: float = 1e-5,
    confidence: float = 0.99,
    streams: Streams | None = None,
    **arguments: Any,
) -> Audit:
    """Train once with canaries of which half take part, and say what their guessing proves about the whole run.

    The attacker sees every released step. `epsilon_any` assumes nothing (Steinke et al. 2023, Theorem 5.2) and is far
    below the truth, as all bounds from one run are; `epsilon_lower` takes the canaries as independent trials, which
    they are if the noise of each parameter is drawn by itself.

    Args:
        plan: of the training; canaries count among its examples.
        model: as for `dpsgd`.
        loss: of outputs and targets, one value for each example.
        data: the examples, made up or public: no ledger is charged for them.
        canaries: how many; half of them, by fair coins, take part. The others add nothing.
        delta: where epsilon is stated.
        confidence: of all that is said.
        streams: the random streams of the run; by default fresh and secret ones.
        arguments: further ones of `dpsgd`.

    Raises:
        BadInput: as `dpsgd`, or transforms in front of the network: they see rows, and canaries have none.
    """
    canaries = count("canaries", canaries)
    if plan.front:
        raise BadInput("the plan has transforms in front of the network: audit a plan without them")
    if plan.neighbours is Adjacency.REPLACE_ONE:
        raise BadInput("the plan is for replace_one neighbours: expected add_remove or zero_out, of which one is empty")
    warn_of_rows(data)
    x, y = data.tensors()
    streams = streams or Streams.new()
    coins = streams.views.integers(2, size=canaries).astype(bool)
    if min(coins.sum(), (~coins).sum()) < 2:
        raise BadInput(f"of {canaries} canaries all but one fell on one side: expected more of them, 100 at least")
    network = copy.deepcopy(model) if isinstance(model, nn.Module) else model(tuple(x.shape[1:]))
    audited = replace(plan, temperature=None, examples=plan.examples or len(x) + canaries)
    watch = _Watch(canaries, audited.noise_multipliers(), audited.sampling.steps(len(x) + canaries))
    make = arguments.pop("optimizer", None) or (lambda parameters: torch.optim.SGD(parameters, lr=0.1))

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = make(parameters)
        made.register_step_pre_hook(watch.see)
        return made

    dpsgd(
        audited, _WithCanaries(network, canaries), cast(Loss, _Loss(loss)), _rows(x, y, coins), optimizer=optimizer,
        streams=streams, **arguments,
    )  # fmt: skip
    scores = watch.scores
    claim = Claim(lambda factor: audited.scaled(factor).event(), audited.neighbours, 1.0, delta, _ASSUMES)
    attack = f"a training of {audited.epochs} epochs with {canaries:,} canaries, white box"
    report = claim.judged(scores[~coins], scores[coins], confidence, attack)
    free = _guessed(scores, coins, delta, confidence)
    return replace(
        report, epsilon_any=free, epsilon_lower=max(free, report.epsilon_lower),
        ok=report.ok and free <= report.epsilon_claimed, trials=canaries // 2,
        public=data.public,
    )  # fmt: skip


def _guessed(scores: Floats, coins: Any, delta: float, confidence: float) -> float:
    """Epsilon from guesses at the canaries with the highest and lowest scores, the best of several shares of them."""
    order = np.argsort(scores)
    lower = []
    for share in _GUESSED:
        half = max(1, int(share * len(scores) / 2))
        right = int(coins[order[-half:]].sum() + (~coins[order[:half]]).sum())
        lower.append(one_run_epsilon(len(scores), 2 * half, right, delta, 1 - (1 - confidence) / len(_GUESSED)))
    return max(lower)


@final
class _WithCanaries(nn.Module):
    """A network, and a parameter with one number for each canary."""

    def __init__(self, network: nn.Module, canaries: int) -> None:
        super().__init__()
        self.network = network
        self.canaries = nn.Parameter(torch.zeros(canaries, 1))


@final
class _Loss:
    """The loss of an example; of a canary that takes part, its own parameter, steeply; of one that does not, zero."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._loss = loss

    def __call__(self, model: Any, batch: Any) -> Tensor:
        """One loss for each example."""
        x, y, number, part = batch
        own = self._loss(model.network(x), y)
        total: Tensor = own * (part == 0) + _LONG * F.embedding(number, model.canaries)[:, 0] * (part == 1)
        return total


@final
class _Rows(TorchDataset[tuple[Tensor, ...]]):
    """Rows of several tensors."""

    def __init__(self, *tensors: Tensor) -> None:
        self._tensors = tensors

    def __len__(self) -> int:
        return len(self._tensors[0])

    def __getitem__(self, row: int) -> tuple[Tensor, ...]:
        return tuple(tensor[row] for tensor in self._tensors)


def _rows(x: Tensor, y: Tensor, coins: Any) -> _Rows:
    """The examples, marked 0, and canaries, marked 1 if they take part and else 2, with their numbers."""
    canaries = len(coins)
    part = torch.cat([torch.zeros(len(x)), torch.from_numpy(np.where(coins, 1.0, 2.0)).float()])
    number = torch.cat([torch.zeros(len(x), dtype=torch.int64), torch.arange(canaries)])
    like = torch.zeros(1, dtype=torch.int64).expand(canaries)  # any row: what a canary holds is not looked at
    return _Rows(torch.cat([x, x[like]]), torch.cat([y, y[like]]), number, part)


@final
class _Watch:
    """Adds up what is released along the canaries' parameters, each step weighted by one over its noise's variance.

    Args:
        canaries: how many.
        noise_multipliers: of each epoch.
        steps: in an epoch.
    """

    def __init__(self, canaries: int, noise_multipliers: tuple[float, ...], steps: int) -> None:
        self._weights = np.repeat(1 / np.square(noise_multipliers), steps)
        self._taken = 0
        self.scores = np.zeros(canaries)

    def see(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Before each step of the optimizer."""
        own = next(p for group in optimizer.param_groups for p in group["params"] if p.shape == (len(self.scores), 1))
        assert own.grad is not None
        self.scores += self._weights[self._taken] * own.grad[:, 0].double().cpu().numpy()
        self._taken += 1
