"""Named checks of noise that is correlated over steps: its covariance, its price, and where it is
refused.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import nn

import privlearn as pv
from privlearn.core import sampling, schedules, solving
from privlearn.core.accounting.events import compose, tally
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.mechanisms import FixedBatches, Gaussian, Partitioned, PoissonSampled
from privlearn.core.clipping.bounded import Bounded
from privlearn.core.clipping.derivative_bounds import Derivatives
from privlearn.core.mechanisms import banded, correlated, noise
from privlearn.core.mechanisms.banded import Banded, BandedStream
from privlearn.core.mechanisms.correlated_stream import CorrelatedStream
from privlearn.core.mechanisms.release import release
from privlearn.core.streams import Streams
from privlearn.errors import BadInput, PrivlearnError
from privlearn.publishing import certificate
from privlearn.runs.checkpoint import Checkpoint
from tests.support.checks import check, must_raise
from tests.support.nets import one_sample, seen, small_data

MATRICES = [(1, 0.0, 10), (2, 0.0, 7), (4, 0.9, 40), (8, 0.0, 300), (8, 0.95, 5), (64, 0.5, 1000)]


def matrix(coefficients: Any, steps: int) -> np.ndarray[Any, Any]:
    """C, written out."""
    made = np.zeros((steps, steps))
    for j, c in enumerate(coefficients):
        made += c * np.eye(steps, k=-j)
    return made


def noise_of_steps(
    stream: CorrelatedStream, steps: int, numbers: int, std: Any
) -> np.ndarray[Any, Any]:
    """What is added to zeros in each step, in double precision, shape (steps, numbers); `std` of
    all or of each.
    """
    added = []
    for own in np.broadcast_to(std, steps):
        values = (
            torch.zeros(numbers // 2, dtype=torch.float64),
            torch.zeros(numbers // 2, 1, dtype=torch.float64),
        )
        stream.add(values, float(own))
        added.append(torch.cat([value.view(-1) for value in values]).numpy())
    return np.array(added)


@check
def check_correlated_noise_has_its_covariance() -> None:
    """C D^-1 of what is added is white, D the standard deviations: each step's variance, and every
    pair of steps.

    Two-sided; false alarms below 1e-6 a figure.
    """
    falling = np.linspace(2.0, 0.5, 12)
    for bands, momentum, steps, std in (
        (3, 0.0, 12, 2.0),
        (8, 0.9, 12, 0.25),
        (1, 0.0, 5, 1.0),
        (4, 0.0, 12, falling),
    ):
        coefficients, numbers = Banded(bands, momentum).coefficients(steps), 20_000
        y = noise_of_steps(BandedStream(Streams.new(3).noise, coefficients), steps, numbers, std)
        white = matrix(coefficients, steps) @ (y / np.broadcast_to(std, steps)[:, None])
        low, high = (stats.chi2.ppf(p, numbers) / numbers for p in (5e-7, 1 - 5e-7))
        for t in range(steps):
            assert low < float((white[t] ** 2).mean()) < high, (bands, momentum, t)
            for other in range(t):
                assert abs(float((white[t] * white[other]).mean())) < 5 / math.sqrt(numbers), (
                    bands,
                    t,
                    other,
                )


@check
def check_noise_is_drawn_for_every_number_of_every_step() -> None:
    """In single precision, too: the noise that is taken back was added, and what C makes of all is
    fresh each step.
    """
    coefficients = Banded(4).coefficients(6)
    stream, values = BandedStream(Streams.new(4).noise, coefficients), torch.zeros(6, 5000)
    for row in values:
        stream.add((row,), 1.0)
    white = torch.from_numpy(matrix(coefficients, 6)).float() @ values
    plain = Streams.new(4).noise
    for row in white:
        fresh = torch.zeros(5000)
        noise.add_gaussian((fresh,), 1.0, plain)
        assert torch.allclose(row, fresh, atol=1e-5)


@check
def check_no_column_is_longer_than_one() -> None:
    """So one time that an example takes part costs no more than a release of its sensitivity; nor
    much less.
    """
    for bands, momentum, steps in MATRICES:
        c = Banded(bands, momentum).coefficients(steps)
        assert len(c) == min(bands, steps)
        assert 1 - 1e-9 < math.fsum(float(own) ** 2 for own in c) <= 1, (bands, momentum, steps)
        columns = matrix(c, steps)
        assert float((columns**2).sum(0).max()) <= 1


@check
def check_times_that_are_far_enough_apart_change_other_rows() -> None:
    """What an example may take part in under each sampler: disjoint rows of C, each time at most
    its sensitivity.
    """
    rng = np.random.default_rng(0)
    samplers = (
        sampling.CyclicPoisson(0.5, 4),
        sampling.CyclicPartition(3, 4),
        sampling.FixedOrder(3),
    )
    for sampler, examples in ((own, 11) for own in samplers):
        rest = sampler.separation(examples)
        steps = 3 * sampler.steps(examples)
        took = np.zeros((steps, examples), dtype=bool)
        drawn = [sample for _ in range(3) for sample in sampler.draw(examples, rng)]
        for row, sample in zip(took, drawn, strict=True):
            row[sample.indices] = True
        columns = np.abs(matrix(np.ones(rest), steps))
        for example in range(examples):
            assert took[:, example].any()
            assert columns[:, took[:, example]].sum(1).max() <= 1, "two times change one row"


@check
def check_a_cycle_takes_every_example_at_its_rate() -> None:
    """Each example once in a cycle at most, always in the same of its steps, at the rate,
    independently.
    """
    sampler, examples, epochs = sampling.CyclicPoisson(0.25, 3), 20, 700
    stream = Streams.new(5).sampling
    took = np.zeros((epochs * 4, 3, examples))
    for epoch in range(epochs):
        drawn = list(sampler.draw(examples, stream))
        assert len(drawn) == sampler.steps() == 12
        for step, sample in enumerate(drawn):
            took[4 * epoch + step // 3, step % 3, sample.indices] = 1
    groups = np.arange(examples) % 3
    for group in range(3):
        assert not took[:, group, groups != group].any(), "an example of another group"
    mine = took.sum(1)
    assert mine.max() == 1
    spread = 5.5 * math.sqrt(0.25 * 0.75 / len(mine))
    assert float(np.abs(mine.mean(0) - 0.25).max()) < spread
    pairs = mine.T @ mine / len(mine) - 0.25**2
    np.fill_diagonal(pairs, 0)
    assert float(np.abs(pairs).max()) < 6 * 0.25 * 0.75 / math.sqrt(len(mine))
    assert sampler.expected_batch_size(20) == 20 * 0.25 / 3


@check
def check_a_cyclic_partition_takes_every_example_once_an_epoch() -> None:
    """In a batch of its group, each as likely, independent of other examples and of other
    epochs.
    """
    sampler, examples, epochs = sampling.CyclicPartition(4, 3), 20, 3000
    stream = Streams.new(6).sampling
    places = np.full((epochs, examples), -1)
    for own in places:
        drawn = list(sampler.draw(examples, stream))
        assert len(drawn) == sampler.steps() == 12
        for step, sample in enumerate(drawn):
            assert (own[sample.indices] == -1).all(), "twice in an epoch"
            own[sample.indices] = step
    assert (places % 3 == np.arange(examples) % 3).all(), "an example of another group, or none"
    bins = places // 3
    spread = 5.5 * math.sqrt(0.25 * 0.75 / epochs)
    for batch in range(4):
        assert float(np.abs((bins == batch).mean(0) - 0.25).max()) < spread
    for other in (bins[:, 1:] == bins[:, :1], bins[1:] == bins[:-1]):
        assert float(np.abs(other.mean(0) - 0.25).max()) < spread, "drawn together"
    assert sampler.expected_batch_size(24) == 2
    ends = [sampling.CyclicPartition(100).in_cycles(cycle) for cycle in (1, 8, 33, 64, 100)]
    assert [(own.batches, own.cycle) for own in ends] == [
        (100, 1),
        (12, 8),
        (3, 33),
        (1, 100),
        (1, 100),
    ]
    must_raise(BadInput, lambda: sampling.CyclicPartition(5, 2).in_cycles(11))


@check
def check_a_cyclic_partition_is_charged_at_its_first_batch() -> None:
    """As one partition into the batches of a group; later batches of the epoch need the same
    noise.
    """
    sampler, g = sampling.CyclicPartition(4, 3), Gaussian(2.0)
    ledger, stream = Ledger(), BandedStream(Streams.new(0).noise, Banded(3).coefficients(24))
    for epoch in (1, 2):
        for sample in sampler.draw(9, np.random.default_rng(epoch)):
            part = Bounded((torch.zeros(2),), 1.0, Adjacency.ZERO_OUT, sample, seen())
            release(part, noise_multiplier=2.0, ledger=ledger, stream=stream)
            assert tally(ledger.event) == {Partitioned(4, g): epoch}
    assert sampler.epoch_event(g) == Partitioned(4, g)


@check
def check_a_cycle_is_charged_at_its_first_batch() -> None:
    """As one sampled release, at the rate within a group; later batches of the cycle need the same
    noise.
    """
    sampler, g = sampling.CyclicPoisson(0.25, 3), Gaussian(2.0)
    assert sampler.event(g) == PoissonSampled(0.25, g)
    ledger, stream = Ledger(), BandedStream(Streams.new(0).noise, Banded(3).coefficients(12))
    for number, sample in enumerate(sampler.draw(9, np.random.default_rng(0))):
        part = Bounded((torch.zeros(2),), 1.0, Adjacency.ZERO_OUT, sample, seen())
        release(part, noise_multiplier=2.0, ledger=ledger, stream=stream)
        assert tally(ledger.event) == {PoissonSampled(0.25, g): number // 3 + 1}
    assert ledger.event == compose([sampler.epoch_event(g)])


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 3)).double()


def plan(**changes: Any) -> pv.Plan:
    usual: dict[str, Any] = {
        "epochs": 2,
        "schedule": schedules.Constant(1.5),
        "correlation": Banded(3),
    }
    return pv.Plan(**{"sampling": sampling.CyclicPoisson(0.5, 3)} | usual | changes)


def trained(own: pv.Plan, stop: int = 0, **options: Any) -> pv.Result:
    """A run; with `stop`, one that is interrupted before that step."""
    arguments: dict[str, Any] = {"streams": Streams.new(5), **options}
    with pv.Run(
        own, linear(), nn.CrossEntropyLoss(reduction="none"), small_data(), **arguments
    ) as run:
        for epoch in run:
            for batch in epoch:
                if stop and batch.number == stop:
                    raise KeyboardInterrupt
                run.step(batch)
        return run.result()


def weights(result: pv.Result) -> torch.Tensor:
    return torch.cat([value.view(-1) for value in result.model.state_dict().values()])


@check
def check_correlated_noise_goes_on_after_an_interruption() -> None:
    """Bit for bit, wherever a run stopped: steps after it take back the noise of those before."""
    whole = trained(plan())
    assert not torch.equal(weights(whole), weights(trained(plan(correlation=None))))
    for stop in (1, 4, 7):
        with tempfile.TemporaryDirectory() as here:
            kept = {"checkpoint": Checkpoint(Path(here) / "run", every=1e-9)}
            must_raise(KeyboardInterrupt, partial(trained, plan(), stop, **kept))  # type: ignore[arg-type]
            again = trained(plan(), **kept)
            assert torch.equal(weights(again), weights(whole)), stop
            assert again.ledger.event == whole.ledger.event == plan().event()


@check
def check_correlated_noise_is_what_training_adds() -> None:
    """Rows that count as absent: weights move by the noise alone, which C makes white, in every
    step of a run.
    """
    x, y = small_data()
    own, moves = plan(sampling=sampling.FixedOrder(4), examples=12), []
    net = nn.Linear(5, 3).double()
    run = pv.Run(
        own,
        net,
        nn.CrossEntropyLoss(reduction="none"),
        (x * torch.nan, y),
        streams=Streams.new(1),
        optimizer=lambda p: torch.optim.SGD(p, lr=1.0),
    )
    for epoch in run:
        for batch in epoch:
            before = torch.cat([own.detach().view(-1).clone() for own in net.parameters()])
            run.step(batch)
            after = torch.cat([own.detach().view(-1) for own in net.parameters()])
            moves.append((before - after) * 4)
    c = Banded(3).coefficients(len(moves))
    white = (
        torch.from_numpy(matrix(c, len(moves))) @ torch.stack(moves) / (1.5 * own.clip.clip_norm)
    )
    low, high = (stats.chi2.ppf(p, white.numel()) / white.numel() for p in (1e-6, 1 - 1e-6))
    assert low < float((white**2).mean()) < high
    plain, numbers = Streams.new(1).noise, white.shape[1]
    first = torch.zeros(numbers, dtype=torch.float64)
    noise.add_gaussian((first[:15], first[15:]), 1.0, plain)
    assert torch.allclose(white[0], first)


@check
def check_bands_go_with_noise_that_falls() -> None:
    """Each epoch is charged at its own noise; every step adds D y, and goes on so after an
    interruption.

    Within what is charged at once the noise stays: a later batch with less of it is refused.
    """
    for sampler in (
        sampling.CyclicPoisson(0.25, 3),
        sampling.CyclicPartition(4, 3),
        sampling.FixedOrder(3),
    ):
        stream, ledger = BandedStream(Streams.new(0).noise, Banded(3).coefficients(24)), Ledger()
        first, second, *_ = sampler.draw(9, np.random.default_rng(0))
        parts = [
            Bounded((torch.zeros(2),), 1.0, Adjacency.ZERO_OUT, sample, seen())
            for sample in (first, second)
        ]
        release(parts[0], noise_multiplier=2.0, ledger=ledger, stream=stream)
        must_raise(
            PrivlearnError,
            partial(release, parts[1], noise_multiplier=0.5, ledger=ledger, stream=stream),
        )
    falls = schedules.PerEpoch((1.5, 0.9))
    own = plan(schedule=falls)
    assert tally(own.event()) == {PoissonSampled(0.5, Gaussian(noise)): 2 for noise in (1.5, 0.9)}
    assert certificate.read_plan(own.to_json()) == own
    whole = trained(own)
    assert whole.ledger.event == own.event()
    with tempfile.TemporaryDirectory() as here:
        kept = {"checkpoint": Checkpoint(Path(here) / "run", every=1e-9)}
        must_raise(KeyboardInterrupt, partial(trained, own, 8, **kept))  # type: ignore[arg-type]
        assert torch.equal(weights(trained(own, **kept)), weights(whole))
    steps = own.epochs * own.sampling.steps(12)
    c, multipliers = Banded(3).coefficients(steps), np.repeat([1.5, 0.9], steps // 2)
    written = (
        np.tril(np.ones((steps, steps))) @ np.diag(multipliers) @ np.linalg.inv(matrix(c, steps))
    )
    error = solving.noise_in_weights(own, 12)
    assert math.isclose(error, math.sqrt((written**2).sum() / steps), rel_tol=1e-8)
    alike = replace(own, schedule=schedules.Constant(1.5))
    spread = correlated.deviation_of(Banded(3).inverse(5000), 0.0, np.full(5000, 1.5))
    assert math.isclose(spread, 1.5 * Banded(3).deviation(5000), rel_tol=0.01)
    assert 0.9 / 1.5 < error / solving.noise_in_weights(alike, 12) < 1


@check
def check_correlated_noise_costs_what_independent_noise_does() -> None:
    """Where examples rest: the price of a cycle, or an epoch, and the certificate's plan is the
    plan.
    """
    for sampler, unit, times in (
        (sampling.CyclicPoisson(0.5, 3), PoissonSampled(0.5, Gaussian(1.5)), 2),
        (sampling.CyclicPartition(4, 3), Partitioned(4, Gaussian(1.5)), 1),
        (sampling.FixedOrder(4), FixedBatches(Gaussian(1.5)), 1),
    ):
        own = plan(sampling=sampler, examples=12)
        assert tally(own.event()) == {unit: 2 * times}
        assert certificate.read_plan(own.to_json()) == own
        assert "correlation" in own.to_json()
        assert "correlation" not in replace(own, correlation=None).to_json()


@check
def check_the_best_attack_on_correlated_noise_finds_what_is_claimed() -> None:
    """By the likelihood ratio of what is released, for 60,000 rows: at most the claimed delta, and
    near it.

    Batches are those that the sampler draws and noise is that of the stream. Each row adds 1 to its
    own number in the steps that it takes part in, or nothing: neighbours by zero-out. The noise of
    the second epoch may be another one.
    """
    rows, bands, epochs = 60_000, 4, 2
    cyclic, poisson = sampling.CyclicPartition(3, bands), sampling.CyclicPoisson(0.4, bands)
    cases = [
        *(
            (seed, own, 1.2)
            for seed, own in ((11, poisson), (12, sampling.FixedOrder(12_000)), (13, cyclic))
        ),
        *(
            (seed, own, 0.8)
            for seed, own in ((14, poisson), (15, sampling.FixedOrder(12_000)), (16, cyclic))
        ),
    ]
    for seed, sampler, later in cases:
        streams = Streams.new(seed)
        noisy = {"schedule": schedules.PerEpoch((1.2, later)), "correlation": Banded(bands)}
        planned = plan(sampling=sampler, examples=rows, epochs=epochs, **noisy)
        steps = epochs * sampler.steps(rows)
        c = Banded(bands).coefficients(steps)
        took = np.zeros((steps, rows))
        drawn = (sample for _ in range(epochs) for sample in sampler.draw(rows, streams.sampling))
        for row, sample in zip(took, drawn, strict=True):
            row[sample.indices] = 1
        std = np.repeat([1.2, later], sampler.steps(rows))
        noisy_steps = noise_of_steps(BandedStream(streams.noise, c), steps, rows, std)
        columns = matrix(c, steps) / std  # C D^-1
        white = columns @ noisy_steps
        # The attacker knows in which steps a row may take part, but not whether it was drawn there.
        rate, may = 1.0, took > 0
        if isinstance(sampler, sampling.CyclicPoisson):
            rate, may = (
                sampler.sampling_rate,
                np.arange(steps)[:, None] % bands == np.arange(rows) % bands,
            )
        elif sampler is cyclic:
            may = np.arange(steps)[:, None] % bands == np.arange(rows) % bands
        whole = ((columns**2).sum(0)[:, None] * std[:, None] ** 2 * may + ~may).min(
            0
        ) > 0.99  # the last steps' columns are cut off
        for sign in (1, -1):  # with the row against without it, and the other way round
            seen = white + (columns @ took if sign == 1 else 0)
            each = columns.T @ seen - (columns**2).sum(0)[:, None] / 2
            with np.errstate(divide="ignore"):
                ratio = np.where(may, np.logaddexp(np.log1p(-rate), np.log(rate) + each), 0.0).sum(
                    0
                )
            if sampler is cyclic:  # one of a group's batches in each epoch, and not known which
                own = np.where(may, each, -np.inf).reshape(epochs, -1, rows)
                ratio = (np.logaddexp.reduce(own, axis=1) - math.log(cyclic.batches)).sum(0)
            for delta in (0.1, 0.01):
                gained = np.maximum(0, 1 - np.exp(planned.guarantee(delta).epsilon - sign * ratio))
                most, error = (
                    float(gained[whole].mean()),
                    5 * float(gained.std()) / math.sqrt(whole.sum()),
                )
                assert max(most, float(gained.mean())) <= delta + error, (
                    sampler,
                    sign,
                    delta,
                    most,
                )
                assert sign == -1 or most >= 0.99 * delta - error, (sampler, delta, most)


@check
def check_correlated_noise_is_refused_where_it_has_no_price() -> None:
    """Before anything is drawn or charged."""
    refused: list[Callable[[], Any]] = [
        *(
            lambda own=own: plan(sampling=own)  # type: ignore[misc]
            for own in (
                sampling.Poisson(0.3),
                sampling.Partition(4),
                sampling.Shuffle(3),
                sampling.FullBatch(),
            )
        ),
        lambda: plan(sampling=sampling.CyclicPoisson(0.5, 2)),
        lambda: plan(sampling=sampling.CyclicPartition(4, 2)),
        lambda: plan(sampling=sampling.CyclicPartition(4, 3), group_size=2),
        lambda: plan(sampling=sampling.CyclicPartition(4, 3), group_size=2, correlation=None),
        lambda: plan(sampling=sampling.FixedOrder(5), examples=10),
        lambda: plan(schedule=schedules.Validation(0.7, m=2, period=2)),
        lambda: plan(clip=pv.clipping.Quantile(0.1)),
        lambda: plan(clip=Derivatives(0.3)),
        lambda: plan(group_size=2),
        lambda: plan(group_size=2, correlation=None),
        lambda: plan(sampling=sampling.FixedOrder(4), examples=12, group_size=2),
        lambda: plan(correlation=3),
        lambda: plan(correlation=Banded(0)),
        lambda: plan(correlation=Banded(4, momentum=1.0)),
        # Fewer rows are there than were declared.
        lambda: trained(plan(sampling=sampling.FixedOrder(6), examples=18)),
        lambda: trained(plan(), streams=Streams.new(5, discrete=True)),
    ]
    for make in refused:
        must_raise(BadInput, make)
    undeclared, loss = plan(sampling=sampling.FixedOrder(6)), nn.CrossEntropyLoss(reduction="none")
    facts = {"epochs": undeclared.epochs, "steps": 3 * undeclared.epochs}
    assert undeclared.examples is None
    assert undeclared.follows(facts | {"examples": 18}) == []
    for examples in (12, 6, 1):
        must_raise(BadInput, partial(pv.dpsgd, undeclared, linear(), loss, small_data(examples)))
        assert any("bands" in said for said in undeclared.follows(facts | {"examples": examples}))
    stream = BandedStream(Streams.new(0).noise, Banded(2).coefficients(4))
    stream.add((torch.zeros(3),), 1.0)
    earlier = stream.state_dict() | {"changes": False}
    must_raise(BadInput, lambda: BandedStream(Streams.new(0).noise, [1.0]).load_state_dict(earlier))
    parts = [Bounded((torch.zeros(2),), 1.0, Adjacency.ZERO_OUT, one_sample(), seen())] * 2
    must_raise(
        BadInput, lambda: release(*parts, noise_multiplier=1.0, ledger=Ledger(), stream=stream)
    )


@check
def check_bands_are_the_best_found() -> None:
    """No worse than independent noise or the banded square root; the error is that of C^-1 written
    out.
    """
    for bands, momentum, steps in MATRICES:
        c = Banded(bands, momentum).coefficients(steps)
        root = np.cumprod([1.0, *((2 * j - 1) / (2 * j) for j in range(1, len(c)))])
        error = banded.deviation(c, momentum, steps)
        assert error <= banded.deviation(root / np.linalg.norm(root), momentum, steps) * (1 + 1e-9)
        assert error <= banded.deviation([1.0], momentum, steps) * (1 + 1e-9)
        if steps <= 300:
            gains = np.array([(1 - momentum ** (i + 1)) / (1 - momentum) for i in range(steps)])
            written = matrix(gains, steps) @ np.linalg.inv(matrix(c, steps))
            assert math.isclose(error, math.sqrt((written**2).sum() / steps), rel_tol=1e-8)
        value, slopes = banded._squares(c, momentum, steps)
        for j in range(min(3, len(c))):
            step = 1e-6 * np.eye(len(c))[j]
            rise = (
                banded._squares(c + step, momentum, steps)[0]
                - banded._squares(c - step, momentum, steps)[0]
            )
            assert math.isclose(rise / 2e-6, slopes[j], rel_tol=1e-4, abs_tol=1e-4 * value)
