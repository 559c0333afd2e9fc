"""What a user can check after installing privlearn: known answers, noise, clipping, the ledger, a
release.

Each check goes through the code that trainings use. Statistical ones fail by chance less than once
in a million times.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from scipy.special import ndtri
from scipy.stats import chi2, kstest
from torch import Tensor, nn

from privlearn.auditing.bounds import Floats
from privlearn.auditing.steps import audit
from privlearn.core import chacha_blocks
from privlearn.core.accounting import accountant
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import Event, Repeated
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.mechanisms import Gaussian, Partitioned, PoissonSampled
from privlearn.core.clipping.clips import Flat
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.mechanisms.noise import add_gaussian, kernel, known_answer
from privlearn.core.mechanisms.release import release
from privlearn.core.plan import Plan
from privlearn.core.sampling import FullBatch, Partition, Poisson
from privlearn.core.schedules import Constant
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.errors import BudgetExceeded, PrivlearnError
from privlearn.publishing.publish import publish
from privlearn.publishing.verify import verify
from privlearn.training.dpsgd import dpsgd

#: A statistical check fails beyond this, if all is well, less often than once in a million times.
_CHANCE, _DEVIATIONS = 1e-7, 6.0
#: Epsilons at delta 1e-5, and how far ours may be above and below, relatively: closed form; Chua et
#: al. 2024 and Feldman and Shenfeld 2025, by several accountants.
_EPSILONS: list[tuple[str, Event, float, float, float]] = [
    ("one Gaussian release, noise 1", Gaussian(1.0), 4.377178, 1e-5, 1e-6),
    (
        "1,000 Poisson steps, rate .01, noise 1",
        Repeated(PoissonSampled(0.01, Gaussian(1.0)), 1_000),
        1.8282,
        3e-3,
        1e-3,
    ),
    (
        "10 partition epochs of 100, noise 1",
        Repeated(Partitioned(100, Gaussian(1.0)), 10),
        1.70,
        0.026,
        0.022,
    ),
]


@final
@dataclass(frozen=True)
class Outcome:
    """What one check said.

    Attributes:
        name: of the check.
        ok: whether what has to hold holds.
        detail: what was seen.
        seconds: how long it took.
    """

    name: str
    ok: bool
    detail: str
    seconds: float


def selfcheck() -> Iterator[Outcome]:
    """Run every check, one after the other; under a minute."""
    for check in _CHECKS:
        begun = time.perf_counter()
        try:
            ok, detail = True, check()
        except (AssertionError, PrivlearnError, ArithmeticError, RuntimeError, ValueError) as error:
            ok, detail = (
                False,
                f"{type(error).__name__}: {error}" if str(error) else "it does not hold",
            )
        name = check.__name__.strip("_").replace("_", " ")
        yield Outcome(name, ok, detail, time.perf_counter() - begun)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def _epsilons_are_the_known_ones() -> str:
    for name, event, expected, above, below in _EPSILONS:
        seen = accountant.guarantees(event, Adjacency.ADD_REMOVE, 1e-5)[0].epsilon
        _require(
            (1 - below) * expected <= seen <= (1 + above) * expected,
            f"{name}: {seen}, expected {expected}",
        )
    return f"{len(_EPSILONS)} known answers"


def _random_bits_are_those_of_aes() -> str:
    bits, expected = known_answer()
    _require(bits == expected, f"{bits.hex()}, expected {expected.hex()}")
    return "the vector of NIST SP 800-38A"


def _random_bits_are_those_of_chacha20() -> str:
    bits, expected = chacha_blocks.known_answer()
    _require(bits == expected, f"{bits.hex()}, expected {expected.hex()}")
    stream = Streams.new(cipher="chacha20").noise
    drawn = torch.zeros(1 << 18, device="cpu")
    add_gaussian([drawn], 1.0, stream)
    _looks_normal(drawn.double().numpy())
    return "vectors of RFC 8439, by OpenSSL and by operations; 2^18 draws"


def _keys_are_fresh() -> str:
    keys = {Streams.new().noise.key for _ in range(100)}
    _require(len(keys) == 100, f"{len(keys)} keys of 100 are different")
    return "100 keys, all different"


def _noise_is_gaussian() -> str:
    for network in (
        nn.Linear(1024, 1024, bias=False, device="cpu"),
        nn.Linear(1024, 1024, bias=False, device="cpu").double(),
    ):
        draws = _noise(network, Streams.new())
        _looks_normal(draws)
        beside = float((draws[:-1] * draws[1:]).mean() * math.sqrt(len(draws)))
        _require(
            abs(beside) < _DEVIATIONS, f"neighbouring draws are correlated: {beside:.1f} deviations"
        )
    source = "by the compiled kernel" if kernel() else "by PyTorch's operations"
    return (
        f"2^20 draws each of float32 and float64, {source}: mean, variance, distribution, "
        "correlation"
    )


def _noise_on_a_grid_is_gaussian() -> str:
    _looks_normal(_noise(nn.Linear(512, 512, bias=False, device="cpu"), Streams.new(discrete=True)))
    return "2^18 draws"


def _noise(network: nn.Linear, streams: Streams) -> Floats:
    """What a release adds to a sum of gradients that are zero, for noise multiplier 1 and clipping
    norm 1.
    """
    (sample,) = FullBatch().draw(1)
    x = torch.zeros(1, network.in_features, dtype=network.weight.dtype, device="cpu")
    total = ClippedGradients(
        network, lambda outputs, _: outputs.sum(1), Flat(1.0), Adjacency.ZERO_OUT
    )(sample, x, x)
    ((noisy,),) = release(total, noise_multiplier=1.0, ledger=Ledger(), stream=streams.noise)
    return noisy.double().numpy().ravel()


def _looks_normal(draws: Floats) -> None:
    number = math.sqrt(len(draws))
    mean, spread = (
        float(draws.mean()) * number,
        float((draws**2).mean() - 1) * number / math.sqrt(2),
    )
    _require(abs(mean) < _DEVIATIONS, f"the mean is off by {mean:.1f} deviations")
    _require(abs(spread) < _DEVIATIONS, f"the variance is off by {spread:.1f} deviations")
    least = -float(ndtri(-math.log(_CHANCE) / (2 * len(draws))))
    _require(
        np.abs(draws).max() > least,
        f"no draw of {len(draws):,} lies beyond {least:.2f}: the tails are cut",
    )
    _require(
        kstest(draws, "norm").pvalue > _CHANCE,
        "the distribution is another one (Kolmogorov and Smirnov)",
    )


def _samples_are_as_often_as_priced() -> str:
    rate, rows, batches = 0.02, 2_000, 50
    counts = np.zeros(rows)
    for _ in range(20):
        for sample in Poisson(rate).draw(rows, Streams.new().sampling):
            counts[sample.indices] += 1
    steps = 20 * batches
    taken = (counts.sum() - rows * steps * rate) / math.sqrt(rows * steps * rate * (1 - rate))
    _require(abs(taken) < _DEVIATIONS, f"Poisson samples are off by {taken:.1f} deviations")
    spread = float(((counts - steps * rate) ** 2).sum() / (steps * rate * (1 - rate)))
    _require(
        _CHANCE < chi2.sf(spread, rows) < 1 - _CHANCE, f"chi-square of rows: {spread:.0f} of {rows}"
    )
    bins = np.array([len(sample) for sample in Partition(50).draw(100_000, Streams.new().sampling)])
    spread = float(((bins - 2_000) ** 2 / 2_000).sum())
    _require(bins.sum() == 100_000, f"a partition has {bins.sum()} of 100,000 rows")
    _require(
        _CHANCE < chi2.sf(spread, 49) < 1 - _CHANCE,
        f"chi-square of a partition's bins: {spread:.0f} of 49",
    )
    return "Poisson samples and a partition"


class _Network(nn.Module):
    """Some of what networks are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = (
            nn.Conv1d(3, 4, 3, device="cpu"),
            nn.LayerNorm(16, device="cpu"),
        )
        self.last = nn.Linear(16, 5, device="cpu")

    def forward(self, x: Tensor) -> Tensor:
        """Scores of rows of shape (3, 6)."""
        scores: Tensor = self.last(self.norm(self.convolution(x).flatten(1)).tanh())
        return scores


def _clipped_sums_are_those_of_single_examples() -> str:
    generator = torch.Generator().manual_seed(1)
    network, loss, norm = _Network(), nn.CrossEntropyLoss(reduction="none"), 0.5
    x, y = (
        torch.randn(9, 3, 6, generator=generator, device="cpu"),
        torch.randint(5, (9,), generator=generator, device="cpu"),
    )
    parameters = list(network.parameters())
    expected = [torch.zeros_like(parameter) for parameter in parameters]
    for row in range(9):
        gradients = torch.autograd.grad(
            loss(network(x[row : row + 1]), y[row : row + 1])[0], parameters
        )
        factor = min(1.0, norm / float(torch.cat([part.flatten() for part in gradients]).norm()))
        for total, part in zip(expected, gradients, strict=True):
            total += factor * part
    (sample,) = FullBatch().draw(9)
    seen = ClippedGradients(network, loss, Flat(norm), Adjacency.ADD_REMOVE)(sample, x, y)
    distance = max(
        float((one - other).abs().max()) for one, other in zip(seen.values, expected, strict=True)
    )
    _require(distance < 2e-3 * norm, f"a sum is off by {distance:.1e}")
    _require(seen.sensitivity == norm, f"the sensitivity is {seen.sensitivity}, expected {norm}")
    return f"a network of four layers: largest difference {distance:.0e}"


def _a_refusal_comes_before_noise() -> str:
    streams, ledger = Streams.new(), Ledger(Budget(epsilon=0.1, delta=1e-5))
    (sample,) = FullBatch().draw(1)
    x = torch.zeros(1, 2, device="cpu")
    total = ClippedGradients(
        nn.Linear(2, 1, device="cpu"),
        lambda outputs, _: outputs[:, 0],
        Flat(1.0),
        Adjacency.ZERO_OUT,
    )(sample, x, x)
    try:
        release(total, noise_multiplier=1.0, ledger=ledger, stream=streams.noise)
    except BudgetExceeded:
        _require(streams.noise.position == 0, "noise was drawn for a release that was refused")
        return "a release beyond the budget"
    raise AssertionError("a release beyond the budget was not refused")


def _what_is_published_verifies() -> str:
    plan = Plan(FullBatch(), 2, Constant(2.0), examples=8)
    data = Dataset(np.eye(8, 3, dtype=np.float32), np.arange(8) % 2, classes=2)
    result = dpsgd(plan, nn.Linear(3, 2, device="cpu"), nn.CrossEntropyLoss(reduction="none"), data)
    with tempfile.TemporaryDirectory() as place:
        out = publish(result, Path(place) / "model", delta=1e-5)
        _require(verify(out).ok, "; ".join(verify(out).problems))
        weights = out / "model.safetensors"
        *others, last = weights.read_bytes()
        weights.write_bytes(bytes([*others, last ^ 1]))
        _require(not verify(out).ok, "changed weights verify")
    return "a model, and the same with one byte changed"


def _a_step_keeps_its_claim() -> str:
    report = audit(
        Plan(FullBatch(), 1, Constant(0.5), examples=10), trials=1_000, confidence=1 - _CHANCE
    )
    _require(report.ok, report.verdict)
    _require(
        report.epsilon_lower > 0.3 * report.epsilon_claimed, f"the attack is weak: {report.verdict}"
    )
    return (
        f"epsilon at least {report.epsilon_lower:.2f} of {report.epsilon_claimed:.2f} claimed, "
        "1,000 trials"
    )


_CHECKS: tuple[Callable[[], str], ...] = (
    _epsilons_are_the_known_ones,
    _random_bits_are_those_of_aes,
    _random_bits_are_those_of_chacha20,
    _keys_are_fresh,
    _noise_is_gaussian,
    _noise_on_a_grid_is_gaussian,
    _samples_are_as_often_as_priced,
    _clipped_sums_are_those_of_single_examples,
    _a_refusal_comes_before_noise,
    _what_is_published_verifies,
    _a_step_keeps_its_claim,
)
