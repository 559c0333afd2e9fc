"""Named checks of DP-MAC's releases and runs; mutations must make them fail."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import privlearn as pv
from privlearn._storage import digest
from privlearn.core import sampling
from privlearn.core import streams as streams_module
from privlearn.core.accounting.events import walk
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.clipping.derivative_bounds import shares_of_parts
from privlearn.core.mechanisms import release as release_module
from privlearn.errors import UnsupportedEvent
from privlearn.methods.dpmac import dpmac as dpmac_module
from privlearn.methods.dpmac.coordinates import Coordinates
from privlearn.methods.dpmac.dpmac import MacSteps
from privlearn.methods.dpmac.expansion import BINARY
from privlearn.methods.dpmac.network import layers_of, with_ones
from privlearn.methods.dpmac.sums import DerivativeSums, histogram
from privlearn.publishing import certificate, publish, verify
from privlearn.runs.checkpoint import Checkpoint
from tests.descent.checks_leaks import PRICED, ROWS, data_with
from tests.mac.nets import ADD, REPLACE, derivatives, made_up, net, sample_of
from tests.support.checks import check, must_raise
from tests.support.nets import one_sample
from tests.support.registries import completed
from tests.support.steps import EachStep, Noted
from tests.support.transcripts import require_alike, transcript

# The joint release


@check
def check_the_joint_release_counts_every_layer() -> None:
    """Noise of sigma sqrt(M K) times each sensitivity, output layer included; or by other shares
    that sum to one.
    """
    for bound in (
        pv.mac.Derivatives(0.3),
        pv.mac.Derivatives((0.3, 0.1), 2.0),
        pv.mac.Derivatives(0.3, shares=(1.0, 3.0)),
    ):
        model = net(60, 70, 60)
        found = derivatives(model, bound)
        shares = shares_of_parts(bound, 2)
        assert math.isclose(sum(share**2 for share in shares), 1.0)
        parts = found(sample_of(np.arange(0)), *made_up(1, 60, 60), 1.0)
        unit = math.sqrt(sum(share**2 for share in shares))
        streams, ledger = streams_module.Streams.new(4), Ledger()
        steps = MacSteps(found, None, shares, ledger, streams)  # type: ignore[arg-type]
        released = steps._release(parts, 2.8, shares)
        for value, part, share in zip(released, parts, shares, strict=True):
            expected = 2.8 * part.sensitivity * unit / share
            assert abs(float(value.std()) / expected - 1) < 0.05, (
                bound,
                float(value.std()),
                expected,
            )
            if not bound.shares:
                assert math.isclose(expected, 2.8 * math.sqrt(2 * bound.order) * part.sensitivity)
        assert len(list(walk(ledger.event))) == 1


@check
def check_shares_are_at_most_the_whole() -> None:
    """`release` refuses a split whose squares add up to more than one, before it charges."""
    parts = [_bounded_zeros() for _ in range(1)]
    ledger = Ledger()
    for shares in ([1.0, 0.5], [1.1], [0.5, 0.5], [-0.5], [0.0]):
        sample = one_sample()
        own = [
            replace(parts[0], sample=sample)
            for _ in range(2 if len(shares) == 2 and shares[0] == 1.0 else 1)
        ]
        must_raise(
            pv.errors.BadInput,
            lambda own=own, shares=shares: release_module.release(  # type: ignore[misc]
                *own,
                noise_multiplier=1.0,
                ledger=ledger,
                stream=streams_module.Streams.new(0).noise,
                shares=shares,
            ),
        )
    assert not list(walk(ledger.event))


def _bounded_zeros() -> Any:
    return DerivativeSums([(2, 2)], [[1.0]], torch.zeros(1), ADD).bounded(one_sample())[0]


@check
def check_fixed_batches_are_not_amplified() -> None:
    """Batches in a fixed order cost what one release an epoch does, like shuffled ones; each row is
    in one of them.
    """
    batches = [list(sample.indices) for sample in pv.sampling.FixedOrder(5).draw(12)]
    assert batches == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    for sampler in (pv.sampling.FixedOrder(5), pv.Shuffle(5)):
        plan = pv.Plan(sampler, epochs=4, schedule=pv.schedules.Constant(start=2.0))
        one = pv.Plan(pv.sampling.FullBatch(), epochs=4, schedule=pv.schedules.Constant(start=2.0))
        assert math.isclose(plan.guarantee(1e-5).epsilon, one.guarantee(1e-5).epsilon, rel_tol=1e-9)


# Learned thresholds


@check
def check_histograms_of_norms_are_bounded() -> None:
    """An example counts once in each if its norm is finite, else not at all; replacing it moves
    sqrt(2).
    """
    norms = torch.tensor([1e-9, 0.5, 2.0, 1e9, math.nan, math.inf])
    edges = pv.mac.Histogram(1.0, low=1e-3, high=1e3, bins=8).edges()
    assert len(edges) == 7
    for adjacency, moved in ((ADD, 1.0), (REPLACE, math.sqrt(2))):
        parts = histogram([norms, norms[:3]], edges, one_sample(), adjacency)
        assert [part.sensitivity for part in parts] == [moved, moved]
        assert [float(part.values[0].sum()) for part in parts] == [4.0, 3.0]
        for n in range(6):
            without = histogram([norms[torch.arange(6) != n]], edges, one_sample(), adjacency)[
                0
            ].values[0]
            assert float((parts[0].values[0] - without).norm()) <= 1.0
            other = norms.clone()
            other[n] = 30.0
            changed = histogram([other], edges, one_sample(), adjacency)[0].values[0]
            assert float((parts[0].values[0] - changed).norm()) <= math.sqrt(2) + 1e-12


@check
def check_thresholds_are_learned_and_paid_for() -> None:
    """They become the quantile that was asked for, layer by layer and kind by kind, for one event
    on all the data.
    """
    x, y = made_up(64, 5, 3)
    learned = pv.mac.Histogram(1e-4, after=1, quantile=0.5, low=1e-4, high=1e2, bins=602)
    bound = pv.mac.Derivatives(0.3, 0.3, learned=learned)
    plan = pv.Plan(pv.Poisson(0.2), epochs=2, schedule=pv.schedules.Constant(start=1e6), clip=bound)
    result = pv.dpmac(
        plan,
        net(5, 6, 3),
        BINARY.name,
        (x, y),
        optimizer=lambda p: torch.optim.SGD(p, lr=1e-12),
        coordinates=Coordinates(5, 0.05, "adam"),
        mu=1.0,
        streams=pv.Streams.new(0),
    )
    assert result.ledger.event == plan.event()
    assert learned.event() in [leaf for leaf, _ in walk(plan.event())]
    found = derivatives(net(5, 6, 3), bound)
    norms = [
        [own.detach() for own in p.norms()] for p in found._products(torch.arange(64), x, y, 1.0)
    ]
    for layer in range(2):
        first, second = (torch.quantile(own, 0.5) for own in norms[layer])
        ours = [result.facts["thresholds"][kind][layer] for kind in range(2)]
        assert math.isclose(ours[0], float(first), rel_tol=0.1), (ours, first)
        assert math.isclose(ours[1], 2 * float(second), rel_tol=0.1), (ours, second)


# Whole runs


def settled(
    sampler: sampling.Sampler, adjacency: Adjacency | None = None, clip: Any = None, **more: Any
) -> pv.Plan:
    clip = clip or pv.mac.Derivatives(0.3)
    return pv.Plan(
        sampler,
        epochs=2,
        schedule=pv.schedules.Exponential(k=0.3, start=1.5),
        clip=clip,
        adjacency=adjacency,
        examples=12,
        **more,
    )


@check
def check_a_batch_is_one_event() -> None:
    """However many layers there are, the ledger holds what the plan says: one event a batch, or an
    epoch.
    """
    x, y = made_up(12, 5, 3)
    for sampler in completed(
        "samplers",
        [
            pv.Poisson(0.3),
            pv.Partition(4),
            pv.Shuffle(5),
            pv.sampling.FixedOrder(5),
            pv.sampling.FullBatch(),
        ],
    ):
        for widths in ((5, 3), (5, 6, 4, 3)):
            plan = settled(sampler)
            result = pv.dpmac(
                plan,
                net(*widths),
                BINARY.name,
                (x, y),
                streams=pv.Streams.new(0),
                coordinates=Coordinates(2),
            )
            assert result.ledger.event == plan.event(), (sampler, widths)
            expected = 2 * sum(times for _, times in walk(sampler.epoch_event(Gaussian(1.0))))
            assert expected in (2, 2 * sampler.steps(12))
            assert sum(times for _, times in walk(result.ledger.event)) == expected


def training(plan: pv.Plan, data: Any, **options: Any) -> Any:
    """A run of `dpmac` for `transcript`, published into its folder."""

    def run(streams: streams_module.Streams, folder: Path) -> None:
        seen: list[Any] = streams.noise._seen  # type: ignore[attr-defined]
        result = dpmac_module.dpmac(
            plan,
            net(5, 4, 3),
            BINARY.name,
            data,
            streams=streams,
            optimizer=lambda p: torch.optim.SGD(p, lr=0.3),
            callbacks=Noted(seen),
            coordinates=Coordinates(3, 0.1, "adam"),
            **options,
        )
        seen.append(
            ("ledger", result.ledger.event, repr(result.ledger), sorted(result.private_diagnostics))
        )
        seen.append(("result", repr(result), result.facts, result.architecture))
        publish.publish(result, folder / "model", delta=1e-5)

    return run


@check
def check_neighbouring_mac_runs_look_the_same() -> None:
    """By record and replay, for every sampler with every kind of neighbour, every bound, and rows
    of every kind.
    """
    fixed = (pv.sampling.FixedOrder(5), Adjacency.ZERO_OUT)
    learned = pv.mac.Derivatives(0.3, 0.5, shares=(2.0, 1.0), learned=pv.mac.Histogram(3.0))
    bounds = [
        pv.mac.Derivatives(0.3),
        learned,
        pv.mac.Analytic(z_norm=1.0),
        pv.mac.Analytic(z_norm=1.0, order=2),
    ]
    rows = list(ROWS)
    for number, (sampler, adjacency) in enumerate([*PRICED, fixed]):
        bound = bounds[number % 4]
        plan = settled(sampler, adjacency, bound)
        base = transcript(training(plan, data_with(None, plan.neighbours)))
        assert base.released, base.seen
        for row in rows if number in (0, 1, 2, 3) else [rows[number % len(rows)]]:
            found = transcript(training(plan, data_with(row, plan.neighbours)), replay=base)
            require_alike(base, found, (sampler, adjacency, bound, row))


@check
def check_mac_runs_in_pieces_end_where_the_whole_one_does() -> None:
    """Stopped after every few steps and continued, with learned thresholds: bit for bit the same,
    charges too.
    """

    class Stopped(Exception):
        pass

    x, y = made_up(20, 5, 3)
    learned = pv.mac.Derivatives(0.3, 0.5, learned=pv.mac.Histogram(3.0, after=1))
    for clip, before in (
        (learned, ()),
        (pv.mac.Analytic(z_norm=1.0), (pv.transforms.PrivatePCA(3, 4.0),)),
    ):
        plan = pv.Plan(
            pv.Poisson(0.3),
            epochs=3,
            schedule=pv.schedules.Exponential(k=0.3, start=1.5),
            clip=clip,
            front=before,
        )

        def go(stop: int | None, path: Path | None, plan: pv.Plan = plan) -> pv.Result:
            done = [0]

            def progress(steps: int, of: int) -> None:
                done[0] += 1
                if done[0] == stop:
                    raise Stopped

            return pv.dpmac(
                plan,
                lambda shape: net(*shape, 4, 3, seed=2),
                BINARY.name,
                (x, y),
                streams=pv.Streams.new(5),
                callbacks=EachStep(progress),
                coordinates=Coordinates(3, 0.1, "adam"),
                checkpoint=None if path is None else Checkpoint(path, every=1e-9),
            )

        whole = go(None, None)
        for stop in (2, 5):
            with tempfile.TemporaryDirectory() as name:
                for _ in range(20):
                    try:
                        pieces = go(stop, Path(name) / "run")
                        break
                    except Stopped:
                        pass
                assert pieces.ledger.event == whole.ledger.event == plan.event()
                assert pieces.facts == whole.facts
                for one, other in zip(
                    pieces.model.state_dict().values(),
                    whole.model.state_dict().values(),
                    strict=True,
                ):
                    assert torch.equal(one, other)


@check
def check_runs_without_noise_are_never_published() -> None:
    x, y = made_up(12, 5, 3)
    result = pv.dpmac(
        settled(pv.Poisson(0.3)),
        net(5, 4, 3),
        BINARY.name,
        (x, y),
        private=False,
        streams=pv.Streams.new(0),
    )
    with tempfile.TemporaryDirectory() as name:
        must_raise(
            UnsupportedEvent, lambda: publish.publish(result, Path(name) / "model", delta=1e-5)
        )
        assert not list(Path(name).iterdir())


@check
def check_mac_certificates_are_recomputed() -> None:
    """A published run verifies, its histogram included; leaving that out of the events is found."""
    x, y = made_up(20, 5, 3)
    clip = pv.mac.Derivatives(0.3, 0.5, learned=pv.mac.Histogram(3.0))
    plan = settled(pv.Poisson(0.3), clip=clip, front=(pv.transforms.PrivatePCA(4, 8.0),))
    result = pv.dpmac(
        plan,
        lambda shape: net(*shape, 4, 3),
        BINARY.name,
        (x, y),
        streams=pv.Streams.new(0),
        coordinates=Coordinates(2),
    )
    with tempfile.TemporaryDirectory() as name:
        out = publish.publish(result, Path(name) / "model", delta=1e-5)
        assert verify.verify(out).ok
        assert "histogram" in (out / "README.md").read_text()
        body = json.loads((out / "privacy.json").read_text())
        assert certificate.read_plan(body["plan"]) == plan
        assert list(walk(plan.event())) == list(walk(result.ledger.event))
        body["plan"]["clip"]["learned"]["noise_multiplier"] = 0.5
        body["digests"]["plan"] = digest(body["plan"])
        (out / "privacy.json").write_text(json.dumps(body))
        assert not verify.verify(out).ok


@check
def check_sums_are_divided_by_a_public_number() -> None:
    """On an empty batch and on a full one, what was released moves the weights by the same factor:
    1 / (2 q N).
    """
    x, y = made_up(12, 5, 3)
    for sampler in (pv.Poisson(0.5), pv.sampling.FullBatch()):
        plan = pv.Plan(
            sampler,
            epochs=1,
            schedule=pv.schedules.Constant(start=1.0),
            clip=pv.mac.Derivatives(1e-9),
            examples=1000,
        )
        model = net(5, 3)
        before = layers_of(model)[0].weight()
        record = transcript(
            lambda streams, _, plan=plan, model=model: pv.dpmac(  # type: ignore[misc]
                plan,
                model,
                BINARY.name,
                (x, y),
                streams=streams,
                optimizer=lambda p: torch.optim.SGD(p, lr=1.0),
            )
        )
        moved = before - layers_of(model)[0].weight()
        expected = torch.stack([found[0] for found in record.released]).sum(0) / (
            2 * sampler.expected_batch_size(1000)
        )
        assert torch.allclose(moved, expected, rtol=1e-9, atol=1e-15), sampler


@check
def check_the_bias_counts_in_every_norm() -> None:
    """A layer with a bias sees inputs one longer: in clipping, in analytic bounds, and in what is
    released.
    """
    model, (x, y) = net(4, 3), made_up(5, 4, 3)
    layer = layers_of(model)[0]
    assert with_ones(x, layer).shape == (5, 5)
    found = derivatives(model, pv.mac.Derivatives(1e-3))
    (part,) = found(sample_of([0]), x * 1e-9, y, 1.0)  # nothing but the bias has a gradient
    assert abs(float(part.values[0].norm()) / 1e-3 - 1) < 1e-6
    assert part.values[0].shape == (3, 5)
    bound = derivatives(model, pv.mac.Analytic(z_norm=1.0, x_norm=1e-6)).limits()[0][0]
    true = float((torch.sigmoid(layer.linear.bias.detach()) - 1).norm())
    assert bound >= true > 0.1
