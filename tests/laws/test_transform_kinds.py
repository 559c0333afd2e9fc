"""Every kind of transform in front of a network: the registry names one of each, and each keeps the
same laws.

Read back as it was written; rows of the declared shape, each by itself; charged what it is priced
at, and moved by one example by at most the stated sensitivity; published, verified and loaded with
the same predictions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn.core import transform as base
from privlearn.core.accounting.events import compose
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.bounded import Bounded
from privlearn.core.clipping.model_check import require_per_example
from privlearn.core.mechanisms import release as release_module
from privlearn.core.transform import PublicTransform, Transform
from privlearn.errors import BadInput, NotPerExample
from privlearn.runs.checkpoint import Checkpoint
from privlearn.transforms import pca
from privlearn.transforms.specs import parse
from tests.support.steps import EachStep
from tests.transforms import made_up_package
from tests.transforms.checks_encoders import few_images

IMAGE, NUMBERS = (3, 16, 16), (12,)
ROWS, CLASSES = 20, 3


def own_encoder() -> nn.Module:
    """A fixed module of the user's own."""
    made = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
    return made


@dataclass(frozen=True)
class Kind:
    """A transform, and the shape of the examples that it is for."""

    transform: Transform
    shape: tuple[int, ...]


TRANSFORMS = pv.transforms
#: At least one of each kind.
KINDS = {
    "scale": Kind(TRANSFORMS.Rescale(-2.0, 3.0), NUMBERS),
    "centre": Kind(TRANSFORMS.Centre((0, 3, 11)), NUMBERS),
    "clip": Kind(TRANSFORMS.ClipToNorm(1.5), NUMBERS),
    "scatter": Kind(TRANSFORMS.Scatter(J=2), IMAGE),
    "scatter, kept": Kind(TRANSFORMS.Scatter(J=1, kept=20), (16, 20)),
    "scatter-random": Kind(TRANSFORMS.ScatterRandom(J=2, units=9, mirror=0, kept=20), IMAGE),
    "scatter-random, encoded": Kind(
        TRANSFORMS.ScatterRandom(J=2, units=9, kept=20, encoded=30), IMAGE
    ),
    "norm": Kind(TRANSFORMS.RowNorm(power=0.5), IMAGE),
    "external": Kind(TRANSFORMS.External(f"{__name__}:own_encoder"), NUMBERS),
    "packaged": Kind(TRANSFORMS.Packaged(made_up_package.TAKEN, 64), IMAGE),
    "precomputed": Kind(TRANSFORMS.Precomputed("a net of ours", "ab" * 32), (2, 6)),
    "pca": Kind(TRANSFORMS.PrivatePCA(4, 3.0), NUMBERS),
    "moments": Kind(TRANSFORMS.Moments(12, 3.0, 2.0), NUMBERS),
    "select": Kind(TRANSFORMS.SelectFeatures(4, 3.0, CLASSES, 2.0), NUMBERS),
    "select by welch": Kind(
        TRANSFORMS.SelectFeatures(4, 3.0, CLASSES, 2.0, criterion="welch"), NUMBERS
    ),
    "select by gumbel": Kind(
        TRANSFORMS.SelectFeatures(4, 3.0, CLASSES, 2.0, 0.2, way="gumbel"), NUMBERS
    ),
}
of_each = pytest.mark.parametrize("name", KINDS)


@pytest.fixture(autouse=True)
def made_up() -> Iterator[None]:
    """A package that ships an encoder is installed."""
    with made_up_package.installed():
        yield


def rows(shape: tuple[int, ...], seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(ROWS, *shape, generator=generator), torch.arange(ROWS) % CLASSES


def fitted(
    transform: Transform,
    x: Tensor,
    y: Tensor,
    ledger: Any = None,
    adjacency: Any = Adjacency.ADD_REMOVE,
) -> Any:
    with few_images(60):
        stream = pv.Streams.new(0).noise
        return transform.fit(
            x, adjacency, pv.Ledger() if ledger is None else ledger, stream, labels=y
        )


def test_every_kind_is_here() -> None:
    assert {kind.transform.kind for kind in KINDS.values()} == set(base.kinds())


@of_each
def test_what_is_written_is_read_back(name: str) -> None:
    own = KINDS[name].transform
    assert base.from_json(own.to_json()) == own
    if isinstance(
        own,
        TRANSFORMS.Scatter
        | TRANSFORMS.ScatterRandom
        | TRANSFORMS.RowNorm
        | TRANSFORMS.External
        | TRANSFORMS.Packaged,
    ):
        assert parse(own.spec) == own
    with pytest.raises(BadInput):
        base.from_json(own.to_json() | {"another": 1})
    with pytest.raises(BadInput):
        base.from_json(own.to_json() | {"kind": "os"})


@of_each
def test_an_example_is_transformed_by_itself_to_the_declared_shape(name: str) -> None:
    own, shape = KINDS[name].transform, KINDS[name].shape
    x, y = rows(shape)
    module = fitted(own, x, y)
    made = module(x)
    assert tuple(made.shape) == (ROWS, *own.output_shape(shape))
    assert made.isfinite().all()
    assert not list(module.parameters())
    others = torch.rand(x.shape, generator=torch.Generator().manual_seed(5)) * 3
    others[4] = x[4]
    torch.testing.assert_close(module(others)[4], made[4], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(module(x[4:5])[0], made[4], rtol=1e-3, atol=1e-3)
    if "scatter" not in name and name not in (
        "external",
        "packaged",
    ):  # whose numbers are of single precision
        require_per_example(module, x[:1], fixed=True)


@of_each
def test_public_ones_look_at_no_row_and_others_are_paid_for(name: str) -> None:
    own, shape = KINDS[name].transform, KINDS[name].shape
    event = own.event()
    assert (event is None) == isinstance(own, PublicTransform)
    ledger = pv.Ledger()
    module = fitted(own, *rows(shape), ledger=ledger)
    assert ledger.event == compose([] if event is None else [event])
    if event is None:
        other = fitted(own, torch.full_like(rows(shape)[0], math.nan), rows(shape)[1])
        assert other.config() == module.config()
        for key, value in module.state_dict().items():
            assert torch.equal(other.state_dict()[key], value)


@contextmanager
def watched(released: list[Bounded]) -> Iterator[None]:
    """What is released in the block, before its noise."""
    real = release_module.release

    def release(*bounded: Bounded, **more: Any) -> Any:
        released.extend(bounded)
        return real(*bounded, **more)

    with (
        mock.patch.object(release_module, "release", release),
        mock.patch.object(pca, "release", release),
    ):
        yield


@of_each
@pytest.mark.parametrize(
    "adjacency", [Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE]
)
def test_one_example_moves_what_is_released_by_at_most_the_sensitivity(
    name: str, adjacency: Adjacency
) -> None:
    own, shape = KINDS[name].transform, KINDS[name].shape
    if own.event() is None or "gumbel" in name:  # whose scores tests/statistics/checks.py moves
        pytest.skip("nothing is released with Gaussian noise alone")
    x, y = rows(shape)
    for scale in (0.01, 1.0, 100.0):
        moved = x.clone()
        moved[-1] = scale * torch.randn(shape, generator=torch.Generator().manual_seed(7))
        if adjacency is Adjacency.REPLACE_ONE:
            neighbour = moved.clone()
            neighbour[-1] *= -0.5
            pair = (moved, neighbour)
        elif adjacency is Adjacency.ZERO_OUT:
            empty = moved.clone()
            empty[-1] = math.nan  # a row that can't be computed adds nothing
            pair = (moved, empty)
        else:
            pair = (moved, moved[:-1])
        found: list[list[Bounded]] = [[], []]
        for values, into in zip(pair, found, strict=True):
            with watched(into):
                fitted(own, values, y[: len(values)], adjacency=adjacency)
        assert found[0]
        for one, other in zip(*found, strict=True):
            assert one.sensitivity == other.sensitivity
            squares = sum(
                float((a.double() - b.double()).square().sum())
                for a, b in zip(one.values, other.values, strict=True)
            )
            assert math.sqrt(squares) <= one.sensitivity * (1 + 1e-6)


def trained(plan: pv.Plan, data: pv.Dataset, **more: Any) -> pv.Result:
    make = lambda shape: pv.models.build("linear", shape, CLASSES, np.random.default_rng(0))  # noqa: E731
    with few_images(60):
        loss = nn.CrossEntropyLoss(reduction="none")
        return pv.dpsgd(plan, make, loss, data, **{"streams": pv.Streams.new(0)} | more)


def planned(*front: Transform) -> pv.Plan:
    return pv.Plan(
        pv.Poisson(0.5), epochs=2, schedule=pv.schedules.Constant(start=1.0), front=front
    )


@of_each
def test_published_ones_come_back(name: str, tmp_path: Path) -> None:
    own, shape = KINDS[name].transform, KINDS[name].shape
    x, y = rows(shape)
    result = trained(planned(own), pv.Dataset(x.numpy(), y.numpy(), classes=CLASSES))
    assert result.ledger.event == planned(own).event()
    out = pv.publish(result, tmp_path / "model", delta=1e-5, model_spec="linear", classes=CLASSES)
    assert pv.verify(out).ok
    code = own.name if isinstance(own, TRANSFORMS.External) else None
    model = pv.load_model(out, features=code)
    torch.testing.assert_close(model(x), result.model(x), rtol=1e-6, atol=1e-6)


#: Public ones before, between and behind releases.
CHAIN = (
    TRANSFORMS.Rescale(-2.0, 3.0),
    TRANSFORMS.External(f"{__name__}:own_encoder"),
    TRANSFORMS.PrivatePCA(4, 3.0),
    TRANSFORMS.RowNorm(power=1.0),
    TRANSFORMS.Moments(4, 3.0, 2.0),
    TRANSFORMS.ClipToNorm(1.5),
)


@pytest.mark.parametrize("stop", [None, 1, 3])
def test_a_chain_is_made_in_its_order_and_goes_on_after_an_interruption(
    stop: int | None, tmp_path: Path
) -> None:
    x, y = rows(NUMBERS)
    data, plan = pv.Dataset(x.numpy(), y.numpy(), classes=CLASSES), planned(*CHAIN)
    result = trained(plan, data)
    assert [module.config()["kind"] for module in list(result.model)[:-1]] == [
        own.kind for own in CHAIN
    ]  # type: ignore[call-overload]
    assert plan.event() == compose(
        [own.event() for own in plan.releases] + list(replace(plan, front=()).event().events)
    )
    assert result.ledger.event == plan.event()
    assert [own.kind for own in result.plan.releases] == ["pca", "moments"]
    assert [part["kind"] for part in result.facts["public_features"]] == ["external", "norm"]
    if stop is not None:
        file = tmp_path / "run.checkpoint"

        def interrupt(done: int, steps: int) -> None:
            if done == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            trained(
                plan, data, checkpoint=Checkpoint(file, every=1e-9), callbacks=EachStep(interrupt)
            )
        resumed = trained(plan, data, checkpoint=file)
        assert resumed.ledger.event == plan.event()
        for name, value in result.model.state_dict().items():
            assert torch.equal(value, resumed.model.state_dict()[name])
        result = resumed
    out = pv.publish(result, tmp_path / "model", delta=1e-5, model_spec="linear", classes=CLASSES)
    assert pv.verify(out).ok
    model = pv.load_model(out, features=f"{__name__}:own_encoder")
    torch.testing.assert_close(model(x), result.model(x), rtol=1e-6, atol=1e-6)


def test_features_of_a_plan_are_kept_for_the_same_rows(tmp_path: Path) -> None:
    x, y = rows(IMAGE)
    plan = planned(TRANSFORMS.Rescale(0.0, 1.0), TRANSFORMS.Scatter(J=1))
    done: list[tuple[int, int]] = []
    data = pv.Dataset(x.numpy(), y.numpy(), classes=CLASSES)
    with TRANSFORMS.feature_cache(tmp_path / "kept", lambda *rows: done.append(rows)):
        first, again = trained(plan, data), trained(plan, data)
        assert done == [(ROWS, ROWS)] * 3  # scaled twice, scattered once
        other = trained(replace(plan, front=(TRANSFORMS.Rescale(0.0, 2.0), *plan.front[1:])), data)
    assert len(list((tmp_path / "kept").iterdir())) == 2
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name])
    weights = "2.1.weight"
    assert not torch.equal(first.model.state_dict()[weights], other.model.state_dict()[weights])
    trained(plan, data)
    assert len(done) == 5


def mixing() -> nn.Module:
    """A module in which rows have a part in each other's features."""
    return nn.BatchNorm1d(12, track_running_stats=False, affine=False)


def test_plans_hold_transforms_and_not_too_many() -> None:
    for front in ((TRANSFORMS.RowNorm(),) * 7, ("pca:4",), [TRANSFORMS.RowNorm()]):
        with pytest.raises(BadInput, match="front"):
            pv.Plan(pv.Poisson(0.5), front=front)  # type: ignore[arg-type]


def test_what_does_not_fit_is_refused_before_anything_is_spent() -> None:
    x, y = rows(NUMBERS)
    data = pv.Dataset(x.numpy(), y.numpy(), classes=CLASSES)
    for front, kind in (
        ((TRANSFORMS.External(f"{__name__}:mixing"), TRANSFORMS.PrivatePCA(4, 3.0)), NotPerExample),
        (
            (TRANSFORMS.PrivatePCA(12, 3.0), TRANSFORMS.External(f"{__name__}:own_encoder")),
            BadInput,
        ),
        ((TRANSFORMS.PrivatePCA(4, 3.0), TRANSFORMS.Scatter()), BadInput),
        ((TRANSFORMS.RowNorm(), TRANSFORMS.PrivatePCA(13, 3.0)), BadInput),
        ((TRANSFORMS.PrivatePCA(4, 3.0), TRANSFORMS.Moments(12, 3.0, 1.0)), BadInput),
    ):
        ledger = pv.Ledger()
        with pytest.raises(kind):
            trained(planned(*front), data, ledger=ledger)
        assert ledger.event == compose([])
