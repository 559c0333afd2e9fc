"""Named checks of noise that is correlated over all steps, where the times of an example change the
same rows of C g.

What is claimed: k times of an example, in the same step of each epoch, cost together what k
independent releases do.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import nn

import privlearn as pv
from privlearn._public import to_json
from privlearn.core import sampling, schedules, solving
from privlearn.core.accounting.events import tally
from privlearn.core.accounting.mechanisms import FixedBatches, Gaussian
from privlearn.core.mechanisms import noise
from privlearn.core.mechanisms.banded import Banded
from privlearn.core.mechanisms.bisr import BISR
from privlearn.core.mechanisms.blt import BLT
from privlearn.core.mechanisms.correlated import Correlation, sensitivity
from privlearn.core.streams import Streams
from privlearn.errors import BadInput, PrivlearnError
from privlearn.publishing import certificate
from privlearn.runs.checkpoint import Checkpoint
from tests.mechanisms.checks_correlated import matrix, noise_of_steps, plan, trained, weights
from tests.ranks import checks as processes
from tests.ranks.threads import outcomes
from tests.support.checks import check, must_raise
from tests.support.nets import small_data
from tests.support.registries import completed, examples

MATRICES: list[Correlation] = [BISR(1), BISR(3), BISR(4, 0.9), BISR(8), BLT(1), BLT(2, 0.5), BLT(3)]
#: Epochs, and steps in each.
RUNS = [(1, 6), (2, 3), (3, 4), (5, 2), (7, 1)]
FIXED = sampling.FixedOrder(4)


def cases() -> Iterator[tuple[Correlation, int, int]]:
    return ((own, epochs, each) for own in MATRICES for epochs, each in RUNS)


def apart(steps: int, separation: int) -> Iterator[list[int]]:
    """All ways to take part in steps that are at least `separation` apart."""
    for taken in itertools.product((False, True), repeat=steps):
        at = [step for step, own in enumerate(taken) if own]
        if all(later - earlier >= separation for earlier, later in itertools.pairwise(at)):
            yield at


@check
def check_no_times_of_an_example_cost_more_than_is_claimed() -> None:
    """By brute force over all of them, in each length of a run, with any directions; and the
    dearest cost nearly that.

    A run of k epochs that ends after e costs at most e releases, wherever in its epoch an example
    stands.
    """
    rng = np.random.default_rng(3)
    for own, epochs, each in cases():
        steps = epochs * each
        c = matrix(own.coefficients(steps, each), steps)
        dearest = 0.0
        for at in apart(steps, each):
            moved = np.linalg.norm(c[:, at].sum(1)) if at else 0.0
            dearest = max(dearest, float(moved))
            turned = rng.standard_normal((len(at), 3))
            turned /= np.linalg.norm(turned, axis=1, keepdims=True)
            assert np.linalg.norm(c[:, at] @ turned) <= moved + 1e-9
        assert math.sqrt(epochs) * (1 - 1e-5) < dearest <= math.sqrt(epochs), (own, epochs, each)
        for first in range(each):
            for ended in range(1, epochs + 1):
                seen = c[: ended * each, first : ended * each : each].sum(1)
                assert np.linalg.norm(seen) <= math.sqrt(ended), (own, epochs, each, ended)


@check
def check_the_bound_holds_for_any_column() -> None:
    """Also where numbers are negative, or rise: against all times and all signs; exact where they
    fall.
    """
    rng = np.random.default_rng(4)
    for number in range(40):
        steps, each = int(rng.integers(2, 8)), int(rng.integers(1, 4))
        column = rng.standard_normal(steps)
        if number == 1:
            steps, each, column = 4, 2, np.array([0.1, 0.0, 0.0, 1.0])  # dearest in steps 0 and 3
        if falling := number % 2 == 0:
            column = np.sort(np.abs(column))[::-1]
        c, bound, dearest = matrix(column, steps), sensitivity(column, each), 0.0
        for at in apart(steps, each):
            for signs in itertools.product((1.0, -1.0), repeat=len(at)):
                dearest = max(dearest, float(np.linalg.norm(c[:, at] @ np.array(signs))))
        assert dearest <= bound
        assert not falling or bound <= dearest * (1 + 1e-5)


@check
def check_noise_over_all_steps_has_its_covariance() -> None:
    """C y is white, and y has the covariance of C^-1: each step's variance, and every pair of
    steps, two-sided.
    """
    numbers = 20_000
    for own, epochs, each, std in (
        (BISR(3), 3, 4, 2.0),
        (BISR(8, 0.9), 2, 5, 0.3),
        (BLT(1), 2, 6, 1.0),
        (BLT(3, 0.9), 3, 4, 2.0),
    ):
        steps = epochs * each
        y = noise_of_steps(own.stream(Streams.new(3).noise, steps, each), steps, numbers, std) / std
        c = matrix(own.coefficients(steps, each), steps)
        white = c @ y
        low, high = (stats.chi2.ppf(p, numbers) / numbers for p in (5e-7, 1 - 5e-7))
        for t in range(steps):
            assert low < float((white[t] ** 2).mean()) < high, (own, t)
            for other in range(t):
                assert abs(float((white[t] * white[other]).mean())) < 5 / math.sqrt(numbers), (
                    own,
                    t,
                    other,
                )
        inverse = np.linalg.inv(c)
        expected = inverse @ inverse.T
        each_std = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / numbers)
        assert float((np.abs(y @ y.T / numbers - expected) / each_std).max()) < 5.5, own


@check
def check_noise_over_all_steps_is_what_training_adds() -> None:
    """Rows that count as absent: weights move by the noise alone, in every step and epoch of a run
    of the plan.
    """
    x, y = torch.full((12, 40), torch.nan), torch.zeros(12, dtype=torch.long)
    for own in (BISR(5), BLT(2)):
        planned, moves = plan(sampling=FIXED, examples=12, epochs=3, correlation=own), []
        net = nn.Linear(40, 50).double()
        run = pv.Run(
            planned,
            net,
            nn.CrossEntropyLoss(reduction="none"),
            (x.double(), y),
            streams=Streams.new(1),
            optimizer=lambda p: torch.optim.SGD(p, lr=1.0),
        )
        for epoch in run:
            for batch in epoch:
                before = torch.cat([own.detach().view(-1).clone() for own in net.parameters()])
                run.step(batch)
                after = torch.cat([own.detach().view(-1) for own in net.parameters()])
                moves.append((before - after) * 4 / (1.5 * planned.clip.clip_norm))
        steps, numbers = len(moves), len(moves[0])
        assert steps == 9
        white = matrix(own.coefficients(steps, 3), steps) @ torch.stack(moves).numpy()
        low, high = (stats.chi2.ppf(p, numbers) / numbers for p in (5e-7, 1 - 5e-7))
        for t in range(steps):
            assert low < float((white[t] ** 2).mean()) < high, (own, t)
            for other in range(t):
                assert abs(float((white[t] * white[other]).mean())) < 5.5 / math.sqrt(numbers), (
                    own,
                    t,
                    other,
                )
        plain = Streams.new(1).noise  # and each step's is drawn anew
        for t in range(steps):
            fresh = torch.zeros(50, 40, dtype=torch.float64), torch.zeros(50, dtype=torch.float64)
            noise.add_gaussian(fresh, 1.0, plain)
            assert np.allclose(
                white[t], torch.cat([own.view(-1) for own in fresh]).numpy(), atol=1e-6
            ), (own, t)


@check
def check_the_best_attack_finds_what_all_times_together_cost() -> None:
    """By the likelihood ratio of all that a run releases, for 40,000 rows: at most the claimed
    delta, and near it.
    """
    rows, std, epochs, each = 40_000, 1.4, 3, 4
    for seed, own in enumerate((BISR(4), BLT(2)), start=21):
        sampler = sampling.FixedOrder(rows // each)
        planned = plan(
            sampling=sampler,
            examples=rows,
            epochs=epochs,
            correlation=own,
            schedule=schedules.Constant(std),
        )
        steps = epochs * each
        stream = own.stream(Streams.new(seed).noise, steps, sampler.separation(rows))
        c = matrix(own.coefficients(steps, each), steps)
        took = np.zeros((steps, rows))
        drawn = (sample for _ in range(epochs) for sample in sampler.draw(rows))
        for row, sample in zip(took, drawn, strict=True):
            row[sample.indices] = 1
        moved = c @ took
        for sign in (1, -1):
            seen = c @ noise_of_steps(stream, steps, rows, std) + (moved if sign == 1 else 0)
            stream = own.stream(Streams.new(seed + 50).noise, steps, sampler.separation(rows))
            ratio = ((moved * seen).sum(0) - (moved**2).sum(0) / 2) / std**2
            first = took[0] == 1  # those that move all of the column
            for delta in (0.1, 0.01):
                gained = np.maximum(0, 1 - np.exp(planned.guarantee(delta).epsilon - sign * ratio))
                error = 5 * float(gained.std()) / math.sqrt(first.sum())
                assert float(gained.mean()) <= delta + error
                assert abs(float(gained[first].mean()) - delta) <= error, (own, sign, delta)


@check
def check_noise_over_all_steps_goes_on_after_an_interruption() -> None:
    """Bit for bit, wherever a run stopped, and charged once; of BISR no tensor is kept."""
    for own in (BISR(5), BLT(2)):
        planned = plan(sampling=FIXED, examples=12, epochs=3, correlation=own)
        whole = trained(planned)
        assert not torch.equal(weights(whole), weights(trained(replace(planned, correlation=None))))
        for stop in (1, 4, 8):
            with tempfile.TemporaryDirectory() as here:
                kept = {"checkpoint": Checkpoint(Path(here) / "run", every=1e-9)}
                must_raise(KeyboardInterrupt, partial(trained, planned, stop, **kept))  # type: ignore[arg-type]
                again = trained(planned, **kept)
                assert torch.equal(weights(again), weights(whole)), (own, stop)
                assert again.ledger.event == whole.ledger.event == planned.event()
    stream = BISR(3).stream(Streams.new(0).noise, 6, 3)
    for _ in range(4):
        stream.add((torch.zeros(1000),), 1.0)
    assert len(str(stream.state_dict())) < 500


@check
def check_noise_over_all_steps_is_charged_by_the_epoch() -> None:
    """As independent noise on batches in a fixed order; a plan is read back, and an early end
    claims all of it.
    """
    for own in (BISR(5), BLT(2)):
        planned = plan(sampling=FIXED, examples=12, epochs=3, correlation=own)
        assert tally(planned.event()) == {FixedBatches(Gaussian(1.5)): 3}
        assert certificate.read_plan(planned.to_json()) == planned
        with pv.Run(
            planned, nn.Linear(5, 3).double(), nn.CrossEntropyLoss(reduction="none"), small_data()
        ) as run:
            for epoch in run:
                for batch in epoch:
                    run.step(batch)
                    assert tally(run.session.ledger.event) == {
                        FixedBatches(Gaussian(1.5)): batch.epoch + 1
                    }
                    if batch.number == 4:
                        break
                if batch.number == 4:
                    break
            early = run.result()
        assert tally(early.ledger.event) == {FixedBatches(Gaussian(1.5)): 2}
        with tempfile.TemporaryDirectory() as here:
            verified = pv.verify(pv.publish(early, Path(here) / "model", delta=1e-5))
        assert verified.ok
        assert verified.epsilon == planned.guarantee(1e-5).epsilon


@check
def check_noise_over_all_steps_is_refused_where_it_has_no_price() -> None:
    """Other batches than those in a fixed order, noise or norms that change, groups, and a step too
    many.
    """
    refused: list[Callable[[], Any]] = []
    unordered = [own for own in examples("samplers") if own.separation(12) != own.steps(12)]
    for own in (BISR(2), BLT(1)):
        made = partial(plan, correlation=own)
        refused += [
            *(
                partial(made, sampling=batches, **more)
                for batches in (
                    sampling.CyclicPoisson(0.5, 1),
                    sampling.CyclicPoisson(1.0, 1),
                    sampling.CyclicPoisson(0.5, 4),
                    sampling.CyclicPartition(4, 3),
                    *unordered,
                )
                for more in ({}, {"examples": 12})
            ),
            partial(made, sampling=FIXED, schedule=schedules.Exponential(k=0.1, start=2.0)),
            partial(made, sampling=FIXED, schedule=schedules.Validation(0.7, m=2, period=2)),
            partial(made, sampling=FIXED, clip=pv.clipping.Quantile(0.1)),
            partial(made, sampling=FIXED, group_size=2),
            lambda made=made: trained(made(sampling=FIXED), streams=Streams.new(5, discrete=True)),
        ]
        refused += [lambda own=own: type(own)(0), lambda own=own: type(own)(2, momentum=1.0)]
        stated = made(sampling=FIXED).to_json()  # what a certificate may hold
        for batches in (sampling.Poisson(0.3), sampling.Shuffle(3)):
            refused += [partial(certificate.read_plan, stated | {"sampling": to_json(batches)})]
    for make in refused:
        must_raise(BadInput, make)
    for own in (BISR(2), BLT(1)):
        stream = own.stream(Streams.new(0).noise, 4, 2)
        stream.add((torch.zeros(3),), 1.0)
        must_raise(PrivlearnError, lambda stream=stream: stream.add((torch.zeros(3),), 0.5))
        must_raise(PrivlearnError, lambda stream=stream: stream.add((torch.zeros(4),), 1.0))
        for _ in range(3):
            stream.add((torch.zeros(3),), 1.0)
        must_raise(PrivlearnError, lambda stream=stream: stream.add((torch.zeros(3),), 1.0))


@check
def check_processes_share_noise_that_is_drawn_again() -> None:
    """Two processes train what one does, also after an interruption; noise that is kept is refused
    with several.
    """
    planned = pv.Plan(
        sampling.FixedOrder(10), 3, schedules.Constant(1.5), pv.Flat(0.5), correlation=BISR(6)
    )
    alone, (result, other) = processes.trained(planned), processes.on(2, planned)
    processes.require_close(alone, result)
    assert processes.bits(result) == processes.bits(other)
    assert alone.ledger.event == result.ledger.event
    with tempfile.TemporaryDirectory() as there:
        kept: Any = {"checkpoint": Checkpoint(Path(there) / "run", every=1e-9)}
        outcomes(2, lambda world: processes.trained(planned, world=world, stop=7, **kept))
        for again in processes.on(2, planned, **kept):
            assert processes.bits(again) == processes.bits(result)
    for own in (BLT(1), Banded(2)):
        refused = outcomes(
            2,
            lambda world, own=own: processes.trained(
                replace(planned, correlation=own), world=world
            ),
        )
        assert all(isinstance(error, BadInput) for error in refused), refused


@check
def check_the_error_is_that_of_the_matrix_written_out() -> None:
    """Of BISR, C^-1 times itself is (1 - x)(1 - momentum x) up to its bands; columns of BLT are
    positive and fall.
    """
    for own, epochs, each in cases():
        steps = epochs * each
        c = matrix(own.coefficients(steps, each), steps)
        inverse = np.linalg.inv(c)
        assert np.allclose(inverse[:, 0], own.inverse(steps, each), atol=1e-9)
        m = own.momentum
        gains = [(1 - m ** (i + 1)) / (1 - m) for i in range(steps)]
        written = math.sqrt(float(((matrix(gains, steps) @ inverse) ** 2).sum() / steps))
        assert math.isclose(own.deviation(steps, each), written, rel_tol=1e-9)
        if isinstance(own, BISR):
            root = own.inverse(steps, each)[: own.bands] / own.inverse(steps, each)[0]
            square = np.convolve(root, root)[: len(root)]
            assert np.allclose(square, [1.0, -1 - m, m, *[0.0] * steps][: len(root)], atol=1e-12)
        else:
            assert (np.diff(c[:, 0]) <= 1e-12).all()
            assert c[-1, 0] > 0


@check
def check_correlation_over_all_steps_leaves_less_noise() -> None:
    """Than independent noise, and than bands that examples rest for, where epochs are many: what it
    is there for.
    """
    examples, batch = 6000, 100
    fixed = pv.Plan(sampling.FixedOrder(batch), 20, examples=examples)
    left = {
        str(own): solving.noise_in_weights(
            replace(fixed, correlation=own).calibrate(epsilon=4.0, delta=1e-5), examples
        )
        for own in completed(
            "correlations", (None, Banded(8), Banded(32), BISR(8), BISR(32), BLT(1), BLT(3))
        )
    }
    independent = left["None"]
    assert left[str(BISR(8))] < 0.9 * left[str(Banded(8))] < independent
    assert left[str(BISR(32))] < left[str(Banded(32))]
    assert left[str(BLT(1))] < 0.3 * independent
    assert left[str(BLT(3))] <= left[str(BLT(1))]
