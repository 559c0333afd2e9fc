"""One whole training with canaries, each of which takes part or not by a coin of its own (Steinke
et al. 2023).

A canary is an example whose gradient lies along one direction that nothing else uses: a parameter
of its own beside the network, which the training treats like any other. So the network learns what
it would without canaries, and what is released along each of those directions tells whether its
canary took part. Batches, clipping, noise and composition are those of the run.
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
from privlearn.auditing.bounds import epsilon_of_form
from privlearn.auditing.distinguishing import Claim
from privlearn.auditing.one_run import Bools, OneRun
from privlearn.auditing.report import Audit
from privlearn.auditing.steps import warn_of_rows
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.losses import Loss
from privlearn.core.plan import Plan
from privlearn.core.sampling import Poisson
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from privlearn.runs.given import gradient_clip
from privlearn.training.dpsgd import dpsgd

#: How much longer than 1 a canary's gradient is: it is clipped at any usual norm.
_LONG = 1e4
_ASSUMES = (
    "the run is the claimed one with some other noise, which is independent for each parameter"
)


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
    """Train once with canaries of which half take part, and say what their guessing proves about
    the whole run.

    The attacker sees every released step. `epsilon_any` assumes nothing, and `epsilon_curve` that
    the run's trade-off curve is the claimed one or that for some other noise (Mahloujifar et al.
    2024); both are far below the truth, as such bounds from one run are. `epsilon_lower` takes the
    canaries as independent trials, which they are if the noise of each parameter is drawn by
    itself.

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
        BadInput: as `dpsgd`, or transforms in front of the network: they see rows, and canaries
            have none.
    """
    canaries = count("canaries", canaries)
    if plan.front:
        raise BadInput("the plan has transforms in front of the network: audit a plan without them")
    if plan.neighbours is Adjacency.REPLACE_ONE:
        raise BadInput(
            "the plan is for replace_one neighbours: expected add_remove or zero_out, of which one "
            "is empty"
        )
    warn_of_rows(data)
    x, y = data.tensors()
    streams = streams or Streams.new()
    coins = fair_coins(canaries, streams)
    network = copy.deepcopy(model) if isinstance(model, nn.Module) else model(tuple(x.shape[1:]))
    audited = replace(plan, temperature=None, examples=plan.examples or len(x) + canaries)
    layers = 1 + sum(parameter.requires_grad for parameter in network.parameters())
    watch = _Watch(audited, len(x) + canaries, canaries, layers)
    make = arguments.pop("optimizer", None) or (
        lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    )

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        built: torch.optim.Optimizer = make(parameters)
        built.register_step_pre_hook(watch.see)
        return built

    dpsgd(
        audited,
        _WithCanaries(network, canaries),
        cast(Loss, _Loss(loss)),
        _rows(x, y, coins),
        optimizer=optimizer,
        streams=streams,
        **arguments,
    )
    scores = watch.scores
    claim = Claim(
        lambda factor: audited.scaled(factor).event(), audited.neighbours, 1.0, delta, _ASSUMES
    )
    attack = f"a training of {audited.epochs} epochs with {canaries:,} canaries, white box"
    # half of the error is for independent trials, half for the run as a whole
    half = (1 + confidence) / 2
    report = claim.judged(scores[~coins], scores[coins], half, attack)
    report = with_guesses(report, claim, OneRun.of(scores, coins, half))
    return replace(report, confidence=confidence, trials=canaries // 2, public=data.public)


def with_guesses(report: Audit, claim: Claim, run: OneRun) -> Audit:
    """A report of one run, with what guesses at its canaries prove.

    Args:
        report: what is proved if canaries are independent trials.
        claim: of the run, as an event for each factor on its noise.
        run: the guesses.
    """
    free = run.epsilon(claim.delta)
    assert claim.noise is not None
    of_curve = max(
        free, epsilon_of_form(run.refute, claim.event, claim.adjacency, claim.noise, claim.delta)
    )
    return replace(
        report,
        epsilon_any=free,
        epsilon_curve=of_curve,
        epsilon_lower=max(of_curve, report.epsilon_lower),
        ok=report.ok and free <= report.epsilon_claimed and not run.refute(report.curve),
    )


def fair_coins(canaries: int, streams: Streams) -> Bools:
    """Which canaries take part: each by a fair coin of its own.

    Raises:
        BadInput: so few that nothing can be told of them.
    """
    coins = streams.views.integers(2, size=canaries).astype(bool)
    if min(coins.sum(), (~coins).sum()) < 2:
        raise BadInput(
            f"of {canaries} canaries all but one fell on one side: expected more of them, 100 at "
            "least"
        )
    return coins


@final
class _WithCanaries(nn.Module):
    """A network, and a parameter with one number for each canary."""

    def __init__(self, network: nn.Module, canaries: int) -> None:
        super().__init__()
        self.network = network
        self.canaries = nn.Parameter(torch.zeros(canaries, 1, device="cpu"))


@final
class _Loss:
    """The loss of an example; of a canary that takes part, its own parameter, steeply; of one that
    does not, zero.
    """

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._loss = loss

    def __call__(self, model: Any, batch: Any) -> Tensor:
        """One loss for each example."""
        x, y, number, part = batch
        losses = self._loss(model.network(x), y)
        total: Tensor = losses * (part == 0) + _LONG * F.embedding(number, model.canaries)[:, 0] * (
            part == 1
        )
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
    """The examples, marked 0, and canaries, marked 1 if they take part and else 2, with their
    numbers.
    """
    canaries = len(coins)
    part = torch.cat(
        [torch.zeros(len(x), device="cpu"), torch.from_numpy(np.where(coins, 1.0, 2.0)).float()]
    )
    number = torch.cat(
        [torch.zeros(len(x), dtype=torch.int64, device="cpu"), torch.arange(canaries, device="cpu")]
    )
    # any row: what a canary holds is not looked at
    like = torch.zeros(1, dtype=torch.int64, device="cpu").expand(canaries)
    return _Rows(torch.cat([x, x[like]]), torch.cat([y, y[like]]), number, part)


@final
class _Watch:
    """Adds up the log likelihood ratios of what is released along the canaries' parameters.

    A sampled canary is in a batch with the sampling rate, or in one batch of each epoch that is
    kept secret.

    Args:
        plan: of the run.
        examples: rows, canaries among them.
        canaries: how many.
        layers: parameters that are trained.
    """

    def __init__(self, plan: Plan, examples: int, canaries: int, layers: int) -> None:
        sampler, clip = plan.sampling, gradient_clip(plan)
        size, longest = (
            sampler.expected_batch_size(plan.examples or examples),
            clip.norm(clip.clip_norm, layers),
        )
        self._scale, self._signal = size / longest, clip.norm(clip.clip_norm, 1) / longest
        self._steps = sampler.steps(examples)
        self._noise = np.repeat(plan.noise_multipliers(), self._steps)
        self._rate = sampler.sampling_rate if isinstance(sampler, Poisson) else None
        self._epoch, self._taken = np.full(canaries, -np.inf), 0
        self.scores = np.zeros(canaries)

    def see(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Before each step of the optimizer."""
        embedding = next(
            p
            for group in optimizer.param_groups
            for p in group["params"]
            if p.shape == (len(self.scores), 1)
        )
        assert embedding.grad is not None
        released = self._scale * embedding.grad[:, 0].double().cpu().numpy()
        ratios = (released - self._signal / 2) * self._signal / self._noise[self._taken] ** 2
        self._taken += 1
        if self._rate is not None and self._rate < 1:
            self.scores += np.logaddexp(np.log1p(-self._rate), np.log(self._rate) + ratios)
            return
        self._epoch = np.logaddexp(self._epoch, ratios)
        if self._taken % self._steps == 0:
            self.scores += self._epoch
            self._epoch = np.full_like(self.scores, -np.inf)
