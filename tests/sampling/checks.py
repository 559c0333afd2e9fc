"""Named checks of samplers: what they draw is what is charged; mutations must make them fail."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from functools import partial

import numpy as np
import torch

from privlearn._public import kinds
from privlearn.core import sampling
from privlearn.core import streams as streams_module
from privlearn.core.accounting.events import compose
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.mechanisms import FixedBatches, Gaussian, Partitioned, PoissonSampled
from privlearn.core.clipping.bounded import Bounded
from privlearn.core.plan import Plan
from privlearn.core.schedules import Constant
from privlearn.errors import PrivlearnError, UnsupportedEvent
from tests.support.checks import check, must_raise
from tests.support.nets import one_sample, refused_release, released, seen


@check
def check_poisson_draws_independently_at_its_rate() -> None:
    """Each example's frequency, each pair's, and the spread of batch sizes; false alarms below 1e-6
    each.
    """
    examples, rate, batches = 40, 0.15, 4000
    sampler = sampling.Poisson(rate)
    stream = streams_module.Streams.new(6).sampling
    taken = np.zeros((batches, examples))
    drawn: list[sampling.Sample] = []
    while len(drawn) < batches:
        drawn += list(sampler.draw(examples, stream))
    for row, sample in zip(taken, drawn, strict=False):
        row[sample.indices] = 1
    assert len(list(sampler.draw(examples, stream))) == math.ceil(1 / rate)
    spread = 5.5 * math.sqrt(rate * (1 - rate) / batches)
    assert np.abs(taken.mean(0) - rate).max() < spread
    pairs = taken.T @ taken / batches - rate**2
    np.fill_diagonal(pairs, 0)
    assert np.abs(pairs).max() < 6 * rate * (1 - rate) / math.sqrt(batches)
    sizes = taken.sum(1)
    variance = examples * rate * (1 - rate)
    assert abs(sizes.var() / variance - 1) < 6 * math.sqrt(2 / batches)


@check
def check_empty_batches_are_drawn() -> None:
    sampler = sampling.Poisson(0.01)
    sizes = [len(sample) for sample in sampler.draw(5, streams_module.Streams.new(7).sampling)]
    assert len(sizes) == 100
    assert sizes.count(0) > 50
    sizes = [
        len(sample)
        for sample in sampling.Partition(50).draw(5, streams_module.Streams.new(7).sampling)
    ]
    assert len(sizes) == 50
    assert sum(sizes) == 5


@check
def check_partition_assigns_independently() -> None:
    examples, batches, epochs = 30, 5, 3000
    stream = streams_module.Streams.new(8).sampling
    bins = np.zeros((epochs, examples), dtype=int)
    for row in bins:
        for index, sample in enumerate(sampling.Partition(batches).draw(examples, stream)):
            row[sample.indices] = index
    counts = np.stack([(bins == b).mean(0) for b in range(batches)])
    assert np.abs(counts - 1 / batches).max() < 5.5 * math.sqrt(0.16 / epochs)
    together = (bins[:, :1] == bins[:, 1:]).mean(0)
    assert np.abs(together - 1 / batches).max() < 5.5 * math.sqrt(0.16 / epochs)
    sizes = np.stack([(bins == b).sum(1) for b in range(batches)])
    variance = examples / batches * (1 - 1 / batches)
    assert abs(sizes.var() / variance - 1) < 0.15


@check
def check_samplers_state_their_own_event() -> None:
    g = Gaussian(1.5)
    assert sampling.Poisson(0.3).event(g) == PoissonSampled(0.3, g)
    assert sampling.Partition(4).event(g) == Partitioned(4, g)
    assert sampling.Shuffle(3).event(g) == FixedBatches(g)
    assert sampling.FullBatch().event(g) == g


@check
def check_batches_are_released_for_the_neighbours_that_they_are_priced_for() -> None:
    """By a plan and by a release alone: groups by place, and a maximum, are those of a known number
    of rows.
    """
    samplers = {
        "poisson": sampling.Poisson(0.3),
        "truncated-poisson": sampling.TruncatedPoisson(0.3, 9, 5),
        "cyclic-poisson": sampling.CyclicPoisson(0.5, 2),
        "partition": sampling.Partition(3),
        "cyclic-partition": sampling.CyclicPartition(2, 2),
        "shuffle": sampling.Shuffle(3),
        "fixed": sampling.FixedOrder(3),
        "full": sampling.FullBatch(),
    }
    assert samplers.keys() == kinds(sampling.Sampler).keys()
    of_known_rows = {"truncated-poisson", "cyclic-poisson", "cyclic-partition", "shuffle", "fixed"}
    for sampler, adjacency in itertools.product(samplers.values(), Adjacency):
        sample, ledger = next(iter(sampler.draw(9, np.random.default_rng(0)))), Ledger()
        part = Bounded((torch.zeros(1),), 1.0, adjacency, sample, seen())
        if adjacency in sampler.adjacencies:
            assert (
                Plan(sampler, 1, Constant(2.0), adjacency=adjacency, examples=9).neighbours
                is adjacency
            )
            released(part, 2.0, ledger)
            continue
        must_raise(
            UnsupportedEvent,
            partial(Plan, sampler, 1, Constant(2.0), adjacency=adjacency, examples=9),
        )
        must_raise(UnsupportedEvent, partial(refused_release, part, 2.0, ledger))
        assert ledger.event == compose([])
    refused = {
        name for name, own in samplers.items() if Adjacency.ADD_REMOVE not in own.adjacencies
    }
    assert refused == of_known_rows & kinds(sampling.Sampler).keys() == of_known_rows


@check
def check_an_epoch_keeps_its_noise() -> None:
    """Later batches of an epoch need the same noise, ledger and neighbours as the first, which
    paid.
    """
    for sampler in (sampling.Partition(4), sampling.Shuffle(3)):
        first, second, *_ = sampler.draw(9, np.random.default_rng(0))
        ledger, kind = Ledger(), sampler.default_adjacency
        released(Bounded((torch.zeros(1),), 1.0, kind, first, seen()), 2.0, ledger)
        other_kind = next(a for a in Adjacency if a is not kind)
        for noise, account, neighbours in (
            (1.0, ledger, kind),
            (2.0, Ledger(), kind),
            (2.0, ledger, other_kind),
        ):
            later = Bounded((torch.zeros(1),), 1.0, neighbours, second, seen())
            must_raise(PrivlearnError, lambda a=(later, noise, account): refused_release(*a))
        released(Bounded((torch.zeros(1),), 1.0, kind, second, seen()), 2.0, ledger)
        assert ledger.event == compose([sampler.event(Gaussian(2.0))])


@check
def check_samples_and_streams_are_never_copied() -> None:
    sample = one_sample(sampling.Poisson(0.5))
    for other in (copy.copy(sample), copy.deepcopy(sample)):
        assert other is sample
    must_raise(TypeError, lambda: pickle.dumps(sample))
    streams = streams_module.Streams.new(0)
    seen: set[int] = set()
    for other in (
        copy.deepcopy(streams).noise,
        copy.copy(streams).noise,
        copy.deepcopy(streams.noise),
        streams.noise,
    ):
        words = set(other.words(50).tolist())
        assert not words & seen, "noise was drawn twice"
        seen |= words
    for secret in (streams, streams.noise):
        must_raise(TypeError, lambda secret=secret: pickle.dumps(secret))
