"""Named checks of private segmentation: what one record reaches, what is public, and that figures
are what they say.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.streams import Streams
from privlearn.errors import BadInput
from privlearn.methods.pate import PublicPCA, answers
from privlearn.methods.pate.answers import Answers
from privlearn.methods.pate.plan import Ball, PatePlan
from privlearn_segmentation import (
    Corrections,
    MapStudent,
    Pairs,
    Seen,
    Start,
    Training,
    Warp,
    codes,
    dice,
    hippocampus,
    map_losses,
    maps_of,
)
from privlearn_segmentation.codes import MapCodes, draw_moved_maps, fit_autoencoder
from privlearn_segmentation.correcting import correct
from privlearn_segmentation.plan import WAYS
from privlearn_segmentation.scans import grid
from privlearn_segmentation.start import public_maps
from privlearn_studies.fay2020 import scans, segmenting
from privlearn_studies.fay2020.scans import Settings
from privlearn_studies.runs import Outcome
from tests.support.checks import check, must_raise
from tests.support.nets import one_sample
from tests.teachers.checks import Said

SIDE, CLASSES = 8, 3
SHORT = Training(steps=6)
BOUNDS: dict[str, Any] = {"classes": CLASSES, "low": 0.0, "high": 1.0}


def scans_of(rows: int, seed: int = 0, **more: Any) -> pv.Dataset:
    """Bright blocks in two parts, somewhere in the middle, with their masks."""
    rng = np.random.default_rng(seed)
    y = np.zeros((rows, *[SIDE] * 3), np.uint8)
    for own in y:
        a, b = rng.integers(1, 4, 2)
        own[a : a + 4, 2:4, b : b + 4], own[a : a + 4, 4:6, b : b + 4] = 1, 2
    x = np.clip(0.4 * (y == 1) + 0.8 * (y == 2) + 0.1 * rng.random(y.shape), 0, 1).astype(
        np.float32
    )
    return pv.Dataset(x[:, None], y, **BOUNDS | more)


def small_net(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv3d(1, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.ReLU(), nn.Conv3d(8, CLASSES, 1)
        )


def small_start(**more: Any) -> Start:
    given: dict[str, Any] = {
        "labelled": scans_of(2, 1, public=True),
        "pool": scans_of(5, 2, public=True),
    } | more
    return Start.learn(
        given["labelled"], given["pool"], small_net(), learning=Training(steps=20), tuning=SHORT
    )


def stored_volumes(brightest: float = 1.0) -> dict[str, bytes]:
    """A file like the published one, of 260 volumes of odd sizes; `brightest` multiplies the first
    one's values.
    """
    rng = np.random.default_rng(3)
    shapes = rng.integers(2, 7, (260, 3))
    sizes = shapes.prod(1)
    codes = np.concatenate([np.arange(size) % 50 for size in sizes])
    labels = np.concatenate([np.full(size, case % CLASSES) for case, size in enumerate(sizes)])
    tables = np.tile(np.linspace(5.0, 90.0, 50, dtype=np.float32), 260)
    tables[:50] *= brightest
    out = io.BytesIO()
    np.savez(
        out,
        codes=codes.astype(np.uint16),
        labels=labels.astype(np.uint8),
        lut=tables,
        shape=shapes,
        lut_offset=50 * np.arange(261),
        voxel_offset=np.concatenate([[0], sizes.cumsum()]),
    )
    return {"hippocampus.npz": out.getvalue()}


def stored(brightest: float = 1.0) -> pv.Dataset:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hippocampus, "GRID", (4, 4, 4))
        return hippocampus.hippocampus(stored_volumes(brightest))


def on_files(folder: Path, patch: pytest.MonkeyPatch) -> list[str]:
    """Options that name private volumes in a file of `folder`, beside public.npz; the public start
    trains shortly.
    """
    private, test, labelled, pool = scans_of(24), scans_of(6, 1), scans_of(3, 2), scans_of(9, 3)
    np.savez(folder / "private.npz", x=private.x, y=private.y, x_test=test.x, y_test=test.y)
    np.savez(folder / "public.npz", x=labelled.x, y=labelled.y, x_test=pool.x, y_test=0 * pool.y)
    defaults: Any = Start.learn.__func__  # type: ignore[attr-defined]
    quick = {"learning": Training(steps=30), "tuning": Training(steps=5, learning_rate=3e-3)}
    patch.setattr(defaults, "__kwdefaults__", defaults.__kwdefaults__ | quick)
    return [
        "--data",
        str(folder / "private.npz"),
        "--classes",
        "3",
        "--range",
        "0,1",
        "--epsilon",
        "8",
        "--delta",
        "1e-3",
    ]


@check
def check_a_volume_is_prepared_by_itself() -> None:
    """Another intensity of one volume changes at most that volume's row, and a scale of its own
    changes nothing.
    """
    one, other, scaled = stored(), stored(0.0), stored(1e5)
    changed = [
        int(row)
        for mine, theirs in ((one.x, other.x), (one.x_test, other.x_test))
        for row in np.flatnonzero((mine != theirs).reshape(len(mine), -1).any(1))
    ]
    assert len(changed) == 1
    assert np.allclose(one.x, scaled.x, atol=1e-6)
    assert np.allclose(one.x_test, scaled.x_test, atol=1e-6)
    assert one.x.min() >= 0
    assert one.x.max() <= 1


@check
def check_volumes_are_in_one_part() -> None:
    """180, 8, 40 and 32 volumes, none twice; the pool's masks are not handed out, and tests are not
    public.
    """
    data = stored()
    parts = hippocampus.split(data)
    rows = [bytes(np.ascontiguousarray(row)) for part in vars(parts).values() for row in part.x]
    everything = [bytes(row) for row in np.concatenate([data.x, data.x_test])]
    assert [len(part.x) for part in vars(parts).values()] == [180, 8, 40, 32]
    assert sorted(rows) == sorted(everything)
    assert parts.pool.y is None
    assert np.asarray(parts.labelled.y).any()
    assert [part.public for part in vars(parts).values()] == [False, True, True, False]
    assert len(hippocampus.split(data, 3).labelled.x) == 3


@check
def check_grids_keep_the_middle() -> None:
    """Padding and cropping are about the middle, and masks are those of most voxels of a block."""
    found = grid.on_grid(np.arange(1, 6), [2])
    assert found.tolist() == [2, 3]
    assert grid.on_grid(np.arange(1, 3), [6]).tolist() == [0, 0, 1, 2, 0, 0]
    mask = np.zeros((2, 2, 2), np.uint8)
    mask[0] = 2
    mask[1, 0, 0] = 2
    image, halved = grid.prepared(np.arange(8.0).reshape(2, 2, 2), mask, (2, 2, 2), CLASSES)
    assert halved.tolist() == [[[2]]]
    assert image.shape == (1, 1, 1, 1)
    assert float(image.squeeze()) == pytest.approx(0.5)
    # Channels are scaled each by itself, and whole volumes stay whole.
    two, same = grid.prepared(
        np.stack([np.arange(8.0), 90 * np.arange(8.0)]).reshape(2, 2, 2, 2),
        mask,
        (4, 2, 2),
        CLASSES,
        halve=False,
    )
    assert two.shape == (2, 4, 2, 2)
    assert np.allclose(two[0], two[1])
    assert same[1:3].tolist() == mask.tolist()


@check
def check_dice_by_hand() -> None:
    """2/3 where one of two voxels is found, 1 for a class that is nowhere, 0 for one that is
    missed; in the mean.
    """
    found = torch.tensor([[[1, 0, 0]], [[2, 2, 0]]])
    truth = torch.tensor([[[1, 1, 0]], [[0, 2, 2]]])
    assert dice(found, truth, 4) == pytest.approx([(2 / 3 + 1) / 2, (1 + 1 / 2) / 2, 1.0])
    assert dice(found * 0, truth, 3) == pytest.approx([1 / 2, 1 / 2])
    must_raise(BadInput, lambda: dice(found, truth[:1], 3))


@check
def check_volumes_and_maps_move_alike() -> None:
    """Where the scan is the mask itself both stay the same; turns, mirrors and patches really
    happen.
    """
    data = scans_of(12, 5)
    maps = maps_of(data.tensors()[1], CLASSES)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        moved, turned = Warp(angle=0.1, shift=0.02, stretch=0.02)(maps[:, 1:], maps)
        cut, cut_maps = Warp(angle=0.0, stretch=0.0, shift=0.0, mirror=1.0, patch=(4, 6, 8))(
            maps[:, 1:], maps
        )
    assert torch.allclose(moved, turned[:, 1:], atol=1e-5)
    assert float((moved - maps[:, 1:]).abs().max()) > 0.5
    assert torch.allclose(turned.sum(1), torch.ones(()), atol=1e-5)
    assert cut.shape[2:] == cut_maps.shape[2:] == (4, 6, 8)
    assert torch.allclose(cut, cut_maps[:, 1:], atol=1e-5)
    whole = maps[:, 1:].flip(2)
    assert any(
        torch.allclose(cut, whole[:, :, a : a + 4, b : b + 6], atol=1e-5)
        for a in range(5)
        for b in range(3)
    )


@check
def check_dpsgd_moves_volumes_and_maps_alike() -> None:
    """In what DP-SGD is given, where the scan is the mask itself; by the generator that it is
    given, and no other.
    """
    data, pairs = scans_of(12, 5), Pairs(CLASSES)
    y = data.tensors()[1]
    rows, targets = pairs.rows((y == 1).float()[:, None], y)
    assert len(rows) == len(targets) == 12
    moved = pairs.moved(Warp(angle=0.1, shift=0.02, stretch=0.02), 2)
    before = torch.random.get_rng_state()
    one, again, other = (
        moved.function(rows, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.allclose(one[:, 0], one[:, 2], atol=1e-5)
    assert float((one - rows).abs().max()) > 0.5
    network = small_net()
    torch.testing.assert_close(
        pairs.losses(pairs.network(network)(one), targets),
        map_losses(network(one[:, :1]), one[:, 1:]),
    )


@check
def check_copies_of_a_volume_are_one_example() -> None:
    """Whatever the copies, one volume adds at most the clip of every layer, and the price is that
    without copies.
    """
    data, pairs = scans_of(1, 5), Pairs(CLASSES)
    rows, targets = pairs.rows(*data.tensors())
    clip = pv.clipping.PerLayer(1e-3)
    moved = pairs.moved(Warp(), 3)
    clipper = ClippedGradients(
        pairs.network(small_net()), pairs.losses, clip, Adjacency.ADD_REMOVE, augmentation=moved
    )
    found = clipper(one_sample(examples=1), rows, targets)
    length = math.sqrt(sum(float(value.square().sum()) for value in found.values))
    assert found.sensitivity == pytest.approx(1e-3 * math.sqrt(3))
    assert 0.99 * found.sensitivity < length <= found.sensitivity * (1 + 1e-6)
    assert clipper.way != "loop", clipper.reason
    with small_study():
        plain, copied = (
            segmenting.train_by_gradients(0, epsilon=2.0, epochs=2, copies=copies)
            for copies in (0, 2)
        )
    assert plain.spent == copied.spent
    assert plain.test != copied.test


@check
def check_the_papers_noise_is_on_each_layer() -> None:
    """Of Fay et al.: 4 sqrt(6) on each layer's sum; 118 epochs cost 8 if one layer is released, 52
    with all nine.
    """
    from privlearn_studies.fay2020 import segmentation as study

    network = pv.models.build("unet", (1, 20, 28, 20), CLASSES, np.random.default_rng(0))
    assert segmenting.layers_of(network) == 9
    epochs = [call.epochs for call in study._calls(quick=False)[2].values() if call.papers]
    spent = []
    for number in epochs:
        plan = segmenting.plan_of(None, number, 9, 180)
        assert plan.noise_multipliers()[0] * plan.clip.norm(4.0, 9) == pytest.approx(
            4 * math.sqrt(6)
        )
        spent.append(plan.guarantee(1e-3).epsilon)
    assert spent == pytest.approx([52.0, 7.79], rel=1e-3)
    assert 7.9 < segmenting.plan_of(None, epochs[0], 1, 180).guarantee(1e-3).epsilon <= 8.0
    for more in (118 + 1, 6 + 1):
        layers = 1 if more > 100 else 9
        assert segmenting.plan_of(None, more, layers, 180).guarantee(1e-3).epsilon > 8.0


def corrections(queries: int = 3, order: int = 2) -> tuple[Corrections, Tensor]:
    made_up = torch.Generator().manual_seed(4)
    reference = (3 * torch.randn(queries, CLASSES, 4, 4, 4, generator=made_up)).softmax(1)
    return Corrections(reference, order), reference


@check
def check_codes_are_distances_of_maps() -> None:
    """The basis is orthonormal, a code of the reference is 0, and a small correction is recovered
    from its own code.
    """
    codes, reference = corrections()
    assert codes.size == 20
    assert not codes.encode(reference).any()
    unit = torch.eye(reference[0].numel()).view(-1, *reference.shape[1:])
    for query in range(len(reference)):
        own = Corrections(reference[query : query + 1], 2)
        basis = torch.cat([own.encode(reference[query : query + 1] + each) for each in unit])
        assert torch.allclose(basis.T @ basis, torch.eye(codes.size), atol=1e-3)
        code = 1e-3 * torch.randn(1, codes.size, generator=torch.Generator().manual_seed(query))
        assert torch.allclose(own.encode(own.decode(code)), code, atol=2e-4)
    # Where nothing is unsure there is no direction, and no division by 0.
    certain = maps_of(torch.zeros(2, 4, 4, 4), CLASSES)
    assert not Corrections(certain).encode(1 - certain).any()


@check
def check_noise_is_held_back() -> None:
    """Without noise a code is taken as it is; where there is nothing else, nearly nothing of it is
    left.
    """
    codes, _ = corrections(3)
    some = torch.linspace(-0.05, 0.05, 3 * codes.size).view(3, -1)
    assert torch.allclose(codes.recovered(some, 1e-9), codes.decode(some), atol=1e-5)
    many, few = corrections(40)
    noise = 0.3 * torch.randn(40, many.size, generator=torch.Generator().manual_seed(1))
    left = (many.recovered(noise, 0.3) - few).norm()
    assert float(left) < 0.45 * float((many.decode(noise) - few).norm())


@check
def check_one_teacher_moves_codes_by_the_diameter() -> None:
    """Whatever a teacher says, codes' sums move by at most twice the radius, over the whole chain;
    NaN says nothing.
    """
    start = small_start()
    rng = torch.Generator().manual_seed(0)
    usual = [torch.rand(5, CLASSES, SIDE, SIDE, SIDE, generator=rng).softmax(1) for _ in range(3)]
    plan = start.plan(5, 3)
    assert plan.aggregate.sensitivity == pytest.approx(2 * start.radius)

    def sums(last: Any) -> Tensor:
        found, _ = answers.sum_answers(
            plan,
            start.correcting(Said(*usual[:2], last)),
            start.reducer,
            start.inputs,
            Streams.new(0),
        )
        return found.sums

    wild = [
        usual[2],
        1e20 * usual[2],
        -1e6 * usual[0],
        usual[0] * math.nan,
        usual[1] * math.inf,
        None,
    ]
    reached = [sums(each) for each in wild]
    for one in reached:
        for other in reached:
            assert float((one - other).norm(dim=1).max()) <= 2 * start.radius * (1 + 1e-9)
    assert torch.equal(reached[3], reached[5])
    assert torch.equal(reached[4], reached[5])


@check
def check_a_view_that_fails_says_nothing() -> None:
    """A teacher whose answers can't be seen is as one without answers; no other is touched, and no
    message tells.
    """

    def through(said: Tensor) -> Tensor:
        if float(said.max()) > 1:
            raise ValueError("this teacher is private")
        return said + 1

    seen = Seen(Said(torch.zeros(2, 3), torch.full((2, 3), 5.0), None, torch.ones(2, 3)), through)
    found = list(seen.answers(torch.zeros(2, 1), Streams.new(0)))
    assert seen.count == 4
    assert Seen(seen, through, "again").describe()["seen_through"] == ["a public function", "again"]
    assert [None if each is None else float(each.mean()) for each in found] == [
        1.0,
        None,
        None,
        2.0,
    ]


@check
def check_a_start_is_public() -> None:
    """Volumes not declared public are refused, the pool's masks change nothing, and no training
    changes the start.
    """
    for name in ("labelled", "pool"):
        secret = {name: scans_of(3, public=False)}
        assert "public" in str(must_raise(BadInput, lambda own=secret: small_start(**own)))
    start, learned = small_start(), scans_of(2, 1)
    assert "among the training rows" in str(
        must_raise(BadInput, lambda: start.teachers(learned, 3))
    )
    one, other = (
        start,
        small_start(
            pool=replace(scans_of(5, 2, public=True), y=np.zeros((5, *[SIDE] * 3), np.uint8))
        ),
    )
    assert torch.equal(one.reference, other.reference)
    assert one.radius == other.radius > 1e-3
    before = {name: value.clone() for name, value in one.network.state_dict().items()}
    said = [
        each
        for each in one.teachers(scans_of(9), 3).answers(one.inputs, Streams.new(0))
        if each is not None
    ]
    codes = torch.randn(4, one.corrections.size)
    student = one.student(one.plan(4, 3).calibrate(epsilon=8.0, delta=1e-3))
    student(Answers(one.inputs, codes, torch.ones(4) > 0))
    for begun in (one.network, student.start):
        assert all(torch.equal(before[name], value) for name, value in begun.state_dict().items())
    assert len(said) > 1
    assert not torch.equal(said[0], said[1])
    must_raise(
        BadInput,
        lambda: MapStudent(small_net(), SHORT, scans_of(2))(
            Answers(one.inputs, one.reference[:2], torch.ones(2) > 0)
        ),
    )


@check
def check_training_what_a_start_gives_leaves_it_public() -> None:
    """DP-SGD on `start.network`, or on the given network, changes neither what PATE begins with nor
    the reference.
    """
    given = small_net()
    start = Start.learn(
        scans_of(2, 1, public=True),
        scans_of(5, 2, public=True),
        given,
        learning=Training(steps=20),
        tuning=SHORT,
    )
    before = {name: value.clone() for name, value in start.network.state_dict().items()}
    plan = pv.Plan(pv.Poisson(0.5), epochs=1, clip=pv.clipping.PerLayer(1.0)).calibrate(
        epsilon=8.0, delta=1e-3
    )
    for private in (start.network, given):
        start.tuning(
            private, *(scans_of(4).tensors()[0], maps_of(scans_of(4).tensors()[1], CLASSES))
        )
    result = pv.dpsgd(
        plan,
        start.network,
        map_losses,
        scans_of(9),
        optimizer=lambda p: torch.optim.SGD(p, 1.0),
        streams=Streams.new(0),
    )
    student = start.student(start.plan(4, 3).calibrate(epsilon=8.0, delta=1e-3))
    for name, value in before.items():
        assert not torch.equal(value, given.state_dict()[name]), "training is seen at all"
        for public in (start.network, student.start):
            assert torch.equal(value, public.state_dict()[name])
    assert not torch.equal(next(result.model.parameters()), next(start.network.parameters()))


@check
def check_students_know_the_noise() -> None:
    """What a student recovers is what the corrections make of codes with the plan's own noise."""
    start = small_start()
    plan = start.plan(4, 3).calibrate(epsilon=2.0, delta=1e-3)
    codes = torch.randn(4, start.corrections.size, generator=torch.Generator().manual_seed(0))
    recovered = start.student(plan).recover(codes)
    assert torch.equal(recovered, start.corrections.recovered(codes, plan.noise_std))
    assert not torch.allclose(recovered, start.corrections.decode(codes), atol=1e-3)


@check
def check_a_students_ledger_is_its_plans() -> None:
    """All that is charged is one Gaussian for each volume, at the sensitivity of the radius."""
    start, ledger = small_start(), Ledger()
    plan = start.plan(4, 3).calibrate(epsilon=2.0, delta=1e-3)
    pool = scans_of(5, 2, public=True)
    result = pv.pate(
        plan,
        start.correcting(start.teachers(scans_of(9), 3)),
        start.reducer,
        pool,
        start.student(plan),
        ledger=ledger,
        streams=Streams.new(0),
    )
    assert ledger.event == plan.event()
    assert ledger.guarantee(1e-3).epsilon == pytest.approx(2.0, rel=1e-6)
    assert plan.noise_std == pytest.approx(plan.noise * 2 * start.radius / 3)
    assert result.model(pool.tensors()[0]).shape == (5, CLASSES, SIDE, SIDE, SIDE)


@check
def check_codes_of_maps_cost_what_is_stated() -> None:
    """Whatever maps are released as: a Gaussian for each volume, at the sensitivity of the radius,
    which public maps tell; the reducer is made for that noise.
    """
    start, private = small_start(), scans_of(9)
    pool = scans_of(5, 2, public=True)
    asked = PatePlan(4, 3, Ball(1.0)).calibrate(epsilon=80.0, delta=1e-3)
    fitted_for = []

    def fit(maps: pv.Dataset, noise_std: float) -> Any:
        fitted_for.append(noise_std)
        return fit_autoencoder(maps, noise_std, epochs=1)

    for way in WAYS:
        with mock.patch.object(codes, "fit_autoencoder", fit):
            chosen = MapCodes.choose(way, asked, start)
        plan, ledger = chosen.plan, Ledger()
        assert isinstance(plan.aggregate, Ball)
        radius = plan.aggregate.radius
        assert plan.noise_std == pytest.approx(plan.noise * 2 * radius / 3)
        result = correct(chosen, private, pool, start, ledger=ledger, streams=Streams.new(0))
        assert ledger.event == plan.event()
        assert ledger.guarantee(1e-3).epsilon == pytest.approx(80.0, rel=1e-6)
        assert result.facts["reducer"]["size"] == chosen.reducer.size
        if way == "corrections":
            assert radius == start.radius
            continue
        said = next(
            iter(
                chosen.answering(start.teachers(private, 3)).answers(
                    start.inputs[:4], Streams.new(0)
                )
            )
        )
        assert said is not None
        torch.testing.assert_close(
            said.sum(1), torch.ones(len(said), SIDE, SIDE, SIDE), rtol=0, atol=2e-3
        )
        if way == "autoencoder":
            assert radius == 1.0
            assert fitted_for == [plan.noise_std]
            assert float(chosen.reducer.encode(said).norm(dim=1).max()) <= 1 + 1e-6
        else:
            maps = draw_moved_maps(start)
            lengths = chosen.reducer.encode(maps.tensors()[1]).norm(dim=1)
            assert float((lengths <= radius).double().mean()) >= 0.9
            assert isinstance(chosen.reducer, PublicPCA)
            assert chosen.reducer.size == chosen.reducer.best(plan.noise_std)


@check
def check_reducers_of_maps_see_masks_and_the_public_network() -> None:
    """Masks are moved, at random by a public seed; then come the public network's maps."""
    start = small_start()
    maps = draw_moved_maps(start).tensors()[1]
    assert torch.equal(maps[-5:], start.reference)
    assert len(maps) == 100 + 5
    masks = public_maps(start.labelled, CLASSES)[1]
    apart = (maps[:-5] - masks.repeat(50, 1, 1, 1, 1)).flatten(1).norm(dim=1)
    assert float(apart.min()) > 0
    assert torch.equal(draw_moved_maps(start).tensors()[1], maps)
    assert not torch.equal(draw_moved_maps(start, 1).tensors()[1], maps)


@contextmanager
def small_study(private_seed: int = 0) -> Iterator[None]:
    """The study's volumes, made up and small; only the private ones follow `private_seed`."""
    made = hippocampus.Parts(
        scans_of(9, private_seed),
        scans_of(8, 11, public=True),
        scans_of(5, 12, public=True),
        scans_of(4, 13),
    )
    truth = torch.cat([made.pool.tensors()[1], made.pool.tensors()[1].flip(1)])
    with pytest.MonkeyPatch.context() as patch:
        for module in (scans, segmenting):
            patch.setattr(module, "parts", lambda *_: made)
            patch.setattr(module, "fresh", lambda data, seed: small_net(seed))
        patch.setattr(segmenting, "pool_truth", lambda *_: truth)
        patch.setattr(segmenting, "EPSILONS", (2.0,))
        patch.setattr(segmenting, "QUERIES", (3, 8))
        scans.public_side.cache_clear()
        yield
        scans.public_side.cache_clear()


def small_run() -> Outcome:
    return segmenting.train(
        0, teachers=3, labelled=2, cells=((2.0, 3),), settings=Settings(6, 3, 4, 1)
    )


@check
def check_releases_of_the_study_cost_what_is_stated() -> None:
    """Each way's ledger ends at the target; noise over radius is 2 sqrt(N) / (K mu), the paper's 2
    / K in a ball.
    """
    from privlearn.core.accounting import zcdp

    with small_study():
        found = small_run()
        gradients = segmenting.train_by_gradients(0, epsilon=2.0, epochs=2)
    assert len(found.cells) == 1 + 3 * 2
    for cell in found.cells:
        assert cell.spent == pytest.approx(cell.epsilon, rel=1e-6)
        assert cell.noise == pytest.approx(
            2 * math.sqrt(cell.queries) / 3 / zcdp.gaussian_mu_for(2.0, 1e-3), rel=1e-6
        )
        assert (cell.student is not None) == (cell.queries == 3)
    assert gradients.spent == pytest.approx(2.0, rel=1e-2)
    assert gradients.spent <= 2.0


@check
def check_a_run_of_the_study_is_its_seeds() -> None:
    """The same seed makes the same run, whatever was drawn before."""
    found = []
    with torch.random.fork_rng():
        for before in (1, 2):
            torch.manual_seed(before)
            with small_study():
                found.append(small_run())
    assert found[0] == found[1]


@check
def check_public_figures_of_the_study_are_public() -> None:
    """With other private volumes all that is called public is the same; what teachers say is
    not.
    """
    with small_study():
        one = small_run()
    with small_study(private_seed=5):
        other = small_run()
    for name in ("public", "public_pool", "itself", "mean"):
        assert getattr(one, name) == getattr(other, name)
    assert [cell.size for cell in one.cells] == [cell.size for cell in other.cells]
    assert [cell.noise for cell in one.cells] == [cell.noise for cell in other.cells]
    assert one.teacher != other.teacher
    assert [cell.answers for cell in one.cells] != [cell.answers for cell in other.cells]


@check
def check_seeds_have_public_volumes_of_their_own() -> None:
    """So many of the eight public volumes, others for the next seed, each with its own mask."""
    with small_study():
        whole = scans.parts().labelled
        first, second = scans.chosen(2, 0), scans.chosen(2, 1)
    assert [len(part.x) for part in (first, second)] == [2, 2]
    assert np.array_equal(first.x, whole.x[:2])
    assert np.array_equal(second.y, whole.y[2:4])
    assert first.public
