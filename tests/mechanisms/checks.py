"""Named checks of noise, releases and what a sample is good for; mutations must make them fail."""

from __future__ import annotations

import contextlib
import math
import threading
from typing import Any

import numpy as np
import torch
from scipy import stats

from privlearn.core import sampling
from privlearn.core import streams as streams_module
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import compose, tally
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.clipping.bounded import Bounded
from privlearn.core.mechanisms import noise as noise_module
from privlearn.core.mechanisms import release as release_module
from privlearn.errors import (
    BadInput,
    BudgetExceeded,
    SampleReused,
)
from tests.support.checks import check, must_raise
from tests.support.nets import (
    SAMPLERS,
    NoDraws,
    bounded,
    one_sample,
    refused_release,
    released,
    require_standard_deviation,
    seen,
)

# Noise and release


@check
def check_noise_has_the_stated_scale() -> None:
    """Two-sided: 200,000 draws; a scale 2% off on either side fails, false alarms are below
    1e-6.
    """
    for dtype in (torch.float64, torch.float32):
        for sensitivity, multiplier in ((1.0, 1.0), (0.1, 4.0), (3.0, 0.5)):
            value = torch.zeros(200_000, dtype=dtype)
            ((noisy,),) = release_module.release(
                bounded(value, sensitivity),
                noise_multiplier=multiplier,
                ledger=Ledger(),
                stream=streams_module.Streams.new(1).noise,
            )
            require_standard_deviation(noisy.numpy(), multiplier * sensitivity)


@check
def check_noise_is_normal_and_independent_throughout() -> None:
    """Over several blocks of draws: the shape of the distribution and of its tails, and no two
    parts alike.
    """
    block = noise_module._BLOCK
    for dtype in (torch.float64, torch.float32):
        noisy = torch.zeros(3, block, dtype=dtype)
        released(bounded(noisy), 1.0, Ledger())
        draws = noisy.double().numpy()
        assert stats.kstest(draws.ravel(), "norm").pvalue > 1e-6
        far, share = int((np.abs(draws) > 4).sum()), 2 * stats.norm.sf(4)
        assert abs(far - share * draws.size) < 5.5 * math.sqrt(share * draws.size)
        assert len(np.unique(draws)) > 0.9 * draws.size
        # Quarters of blocks: four draws have one radius, so even their squares must not go
        # together.
        quarters = draws.reshape(12, -1)
        for values in (quarters, quarters**2):
            together = np.corrcoef(values) - np.eye(12)
            assert np.abs(together).max() < 5.9 / math.sqrt(block // 4)
    several = Bounded(
        tuple(torch.zeros(20_000) for _ in range(3)),
        1.0,
        Adjacency.ADD_REMOVE,
        one_sample(),
        seen(),
    )
    (found,) = release_module.release(
        several, noise_multiplier=1.0, ledger=Ledger(), stream=streams_module.Streams.new(6).noise
    )
    assert np.abs(np.corrcoef([value.numpy() for value in found]) - np.eye(3)).max() < 0.04


@check
def check_joint_release_pays_for_its_parts() -> None:
    sample = one_sample()
    parts = [bounded(torch.zeros(100_000, dtype=torch.float64), s, sample) for s in (1.0, 2.0, 0.5)]
    ledger = Ledger()
    found = release_module.release(
        *parts, noise_multiplier=1.5, ledger=ledger, stream=streams_module.Streams.new(2).noise
    )
    assert ledger.event == compose([Gaussian(1.5)])
    # The joint sensitivity in units of each part's noise is what the charge says.
    total = 0.0
    for (noisy,), part in zip(found, parts, strict=True):
        total += (part.sensitivity / float(noisy.std())) ** 2
        require_standard_deviation(noisy.numpy(), 1.5 * math.sqrt(3) * part.sensitivity)
    assert math.isclose(total, 1 / 1.5**2, rel_tol=0.02)


@check
def check_nothing_is_drawn_over_budget() -> None:
    ledger = Ledger(Budget(rho=0.1))
    must_raise(
        BudgetExceeded,
        lambda: release_module.release(
            bounded(torch.zeros(3)),
            noise_multiplier=1.0,
            ledger=ledger,
            stream=NoDraws(),  # type: ignore[arg-type]
        ),
    )
    assert ledger.event.events == ()


@check
def check_every_release_is_charged() -> None:
    ledger = Ledger()
    stream = streams_module.Streams.new(3).noise
    for _ in range(3):
        release_module.release(
            bounded(torch.zeros(2)), noise_multiplier=2.0, ledger=ledger, stream=stream
        )
    assert tally(ledger.event) == {Gaussian(2.0): 3}


@check
def check_a_sample_is_good_for_one_release() -> None:
    for sampler in SAMPLERS:
        sample = one_sample(sampler)
        ledger, stream = Ledger(), streams_module.Streams.new(4).noise
        part = Bounded((torch.zeros(2),), 1.0, sampler.default_adjacency, sample, seen())
        release_module.release(part, noise_multiplier=1.0, ledger=ledger, stream=stream)
        before = ledger.event
        must_raise(
            SampleReused,
            lambda part=part, ledger=ledger, stream=stream: release_module.release(
                part, noise_multiplier=1.0, ledger=ledger, stream=stream
            ),
        )
        assert ledger.event == before


@check
def check_noise_is_fresh_and_streams_are_apart() -> None:
    streams = streams_module.Streams.new(5)
    first, second = (noise_of(streams, 20_000) for _ in range(2))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.04
    words: list[int] = []
    fresh = [
        streams_module.Streams.new(5),
        streams_module.Streams.new(5, rank=1),
        streams_module.Streams.new(6),
        streams_module.Streams.new(),
        streams_module.Streams.new(),
    ]
    for drawn in fresh:
        words += drawn.noise.words(1000).tolist()
        for generator in (drawn.sampling, drawn.initialisation, drawn.views):
            words += generator.integers(-(2**63), 2**63 - 1, size=1000).tolist()
    assert len(set(words)) == len(words), "two streams share their numbers"


def noise_of(streams: streams_module.Streams, size: int) -> np.ndarray[Any, Any]:
    part = bounded(torch.zeros(size, dtype=torch.float64))
    ((noisy,),) = release_module.release(
        part, noise_multiplier=1.0, ledger=Ledger(), stream=streams.noise
    )
    return noisy.numpy()


@check
def check_a_sample_is_spent_once_by_two_threads() -> None:
    """While one thread charges, another one waits, and is then refused."""
    both, started = threading.Barrier(2), []

    class Slow:
        def charge(self, event: Any, adjacency: Adjacency) -> None:
            started.append(event)
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.2)  # which is reached only if both charge at once

    sample, account, refused = one_sample(), Slow(), []

    def spend() -> None:
        try:
            sample.spend(Gaussian(1.0), Adjacency.ADD_REMOVE, account)  # type: ignore[arg-type]
        except SampleReused as error:
            refused.append(error)

    threads = [threading.Thread(target=spend) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(started) == len(refused) == 1


@check
def check_a_refused_sample_is_not_used_up() -> None:
    poor, part = Ledger(Budget(rho=0.1)), bounded(torch.zeros(1))
    must_raise(BudgetExceeded, lambda: refused_release(part, 1.0, poor))
    released(part, 3.0, poor)
    assert tally(poor.event) == {Gaussian(3.0): 1}


@check
def check_one_sample_is_released_once_by_many_threads() -> None:
    for trial in range(30):
        part, ledger = bounded(torch.zeros(1), 1.0, one_sample(sampling.Poisson(0.5))), Ledger()
        done: list[int] = []

        def work(part: Bounded = part, ledger: Ledger = ledger, done: list[int] = done) -> None:
            with contextlib.suppress(SampleReused):
                released(part, 1.0, ledger)
                done.append(1)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == 1, trial
        assert sum(tally(ledger.event).values()) == 1


@check
def check_gaussian_noise_is_for_values_bounded_in_l2() -> None:
    """Another norm is refused before anything is charged or changed."""
    ledger, value = Ledger(), torch.zeros(3)
    in_l1 = Bounded((value,), 1.0, Adjacency.ADD_REMOVE, one_sample(), seen(), norm="L1")
    must_raise(BadInput, lambda: refused_release(in_l1, 2.0, ledger))
    assert ledger.adjacency is None
    assert not value.any()
