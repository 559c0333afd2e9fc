"""Named checks of layers in coordinates of public curvature; mutations must make them fail."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn.errors import BadInput
from privlearn.neighbours import ReleaseRecorder
from privlearn.publishing.folder import CERTIFICATE
from privlearn.training.preconditioning import Preconditioned
from tests.neighbours.loops import BATCH, CLIP, ROWS, compare_loop
from tests.support.checks import check, must_raise


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))


def pictures() -> tuple[nn.Module, tuple[int, ...]]:
    """A network of convolutions of many forms, and the shape of its inputs."""
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding="valid", dilation=(1, 2), bias=False),
        nn.ReLU(),
        nn.Conv2d(4, 3, (3, 4), padding="same"),
        nn.Conv2d(3, 3, 3, padding=(1, 0)),
        nn.Flatten(),
        nn.Linear(48, 3, bias=False),
    )
    return nn.Sequential(*layers), (2, 9, 8)


def drawn_data(rows: int = 60, seed: int = 1, **declared: Any) -> pv.Dataset:
    x = np.random.default_rng(seed).normal(size=(rows, 5)).astype(np.float32)
    return pv.Dataset(x, (x[:, 0] > 0).astype(np.int64), classes=2, **declared)


def trained(inputs: Any = None) -> pv.Result:
    """A short run of a preconditioned network."""
    data = drawn_data()
    inputs = inputs or pv.models.DrawnInputs("white", number=200)
    return short_run(pv.models.precondition(network(), inputs, (5,), private=data), data)


def short_run(model: nn.Module, data: pv.Dataset) -> pv.Result:
    plan = pv.Plan(pv.Poisson(0.2), epochs=1, examples=60).calibrate(epsilon=3.0, delta=1e-3)
    return pv.dpsgd(plan, model, nn.CrossEntropyLoss(reduction="none"), data)


def preconditioned_run(rows: Any, recorder: ReleaseRecorder) -> nn.Module:
    """`pv.models.precondition`, `pv.dpsgd` and `pv.models.fold`, as users call them."""
    x, y = (np.asarray(part) for part in rows)
    private = pv.Dataset(x, y, classes=2)
    drawn = pv.models.DrawnInputs("white", number=300)
    with recorder.ignore():
        model = pv.models.precondition(
            network(), drawn, (5,), private=private, power=0.5, damping=0.1
        )
    plan = pv.Plan(
        pv.Poisson(BATCH / ROWS),
        epochs=1,
        clip=pv.Flat(CLIP),
        schedule=pv.schedules.Constant(1.0),
        examples=ROWS,
    )
    result = pv.dpsgd(plan, model, nn.CrossEntropyLoss(reduction="none"), rows)
    return pv.models.fold(result).model


@check
def check_a_row_moves_preconditioned_releases_by_at_most_the_sensitivity() -> None:
    comparison = compare_loop(preconditioned_run, runs=1)
    assert comparison.ok, comparison.report()
    assert 0.9 < comparison.largest_ratio < 1.001, comparison.report()


@check
def check_curvature_is_of_rows_that_are_declared_public() -> None:
    private, others = drawn_data(), drawn_data(seed=2, public=True)
    twins = pv.Dataset(private.x, public=True)
    for inputs, beside, words in (
        (drawn_data(seed=2), private, "not declared public"),
        (others, None, "compared with the private rows"),
        (twins, private, "among the training rows"),
    ):

        def write(inputs: Any = inputs, beside: Any = beside) -> Any:
            return pv.models.precondition(network(), inputs, (5,), private=beside)

        error = must_raise(BadInput, write)
        assert words in str(error), error
    pv.models.precondition(network(), others, (5,), private=private)
    must_raise(BadInput, lambda: pv.models.precondition(network(), private.x, (5,)))  # type: ignore[arg-type]


@check
def check_preconditioned_and_folded_networks_compute_the_same() -> None:
    for net, shape in ((network(), (5,)), pictures()):
        x = torch.randn(4, *shape, generator=torch.Generator().manual_seed(3))
        before = {name: values.clone() for name, values in net.state_dict().items()}
        written = pv.models.precondition(
            net, pv.models.DrawnInputs("white", number=300), shape, power=0.5, damping=0.1
        )
        assert torch.allclose(written(x), net(x), atol=1e-5)
        with torch.no_grad():
            for weights in written.parameters():
                weights += 0.1 * torch.randn(
                    weights.shape, generator=torch.Generator().manual_seed(len(weights))
                )
        plain = pv.models.fold(written)
        assert torch.allclose(plain(x), written(x), atol=1e-4), (plain(x) - written(x)).abs().max()
        assert not torch.allclose(plain(x), net(x), atol=1e-2)
        shapes = {name: values.shape for name, values in before.items()}
        assert {name: values.shape for name, values in plain.state_dict().items()} == shapes
        assert all(torch.equal(values, before[name]) for name, values in net.state_dict().items())


def second_moment(rows: Tensor) -> Tensor:
    return rows.T @ rows / len(rows)


@check
def check_inputs_are_white_behind_the_root_of_their_covariance() -> None:
    """With power 1/2 and hardly any damping; and the expected gradient is as long as before."""
    torch.manual_seed(0)
    mixed = (torch.randn(4000, 5) @ torch.randn(5, 5) + 3).numpy()
    inputs, layer = pv.Dataset(mixed, public=True), nn.Linear(5, 4)
    written: Any = pv.models.precondition(
        layer, inputs, (5,), private=drawn_data(), power=0.5, damping=1e-6
    )
    assert isinstance(written, Preconditioned)
    x = torch.from_numpy(mixed)
    white = (x - written.mean) @ written.inward.T
    moment = second_moment(white)
    assert torch.allclose(moment / moment.diagonal().mean(), torch.eye(5), atol=0.01), moment
    chances = layer(x).detach().double().softmax(1)
    # that of labels drawn by the scores, in expectation
    fisher = torch.diag(chances.mean(0)) - second_moment(chances)
    damped: Any = pv.models.precondition(layer, inputs, (5,), private=drawn_data(), power=0.5)
    moment = second_moment((x - damped.mean) @ damped.inward.T)
    outward = damped.outward.double()
    traces = (moment.trace(), (outward @ fisher @ outward.T).trace())
    before = (second_moment(x - x.mean(0)).trace(), fisher.trace())
    ratio = float(traces[0] * traces[1] / (before[0] * before[1]))
    assert 0.9 < ratio < 1.1, ratio


@check
def check_certificates_say_what_curvature_is_of() -> None:
    for inputs, words in (
        (None, "200 drawn inputs (white noise), no row of any data"),
        (drawn_data(seed=2, public=True, name="others"), "declares public (others)"),
    ):
        result = trained(inputs)
        with tempfile.TemporaryDirectory() as place:
            unfolded = must_raise(BadInput, lambda: pv.publish(result, Path(place, "unfolded")))  # noqa: B023
            assert "pv.models.fold" in str(unfolded)
            folder = pv.publish(pv.models.fold(result), Path(place, "model"))
            certificate = json.loads((folder / CERTIFICATE).read_text("utf-8"))
            assert words in certificate["facts"]["preconditioned_by"]
            assert words in (folder / "README.md").read_text("utf-8").replace("\\", "")
            assert not pv.verify(folder).problems


@check
def check_certificates_say_all_that_curvature_is_of() -> None:
    """Of a body that was written by drawn inputs, with a new head that public rows wrote."""
    data, others = drawn_data(), drawn_data(seed=2, public=True, name="others")
    body = pv.models.precondition(network(), pv.models.DrawnInputs("white", number=200), (5,))
    model = pv.models.precondition(
        nn.Sequential(body, nn.ReLU(), nn.Linear(2, 2)), others, (5,), private=data
    )
    folded = pv.models.fold(short_run(model, data))
    with tempfile.TemporaryDirectory() as place:
        folder = pv.publish(folded, Path(place, "model"))
        certificate = json.loads((folder / CERTIFICATE).read_text("utf-8"))
        assert certificate["facts"]["preconditioned_by"] == (
            "200 drawn inputs (white noise), no row of any data; "
            "60 rows that the publisher declares public (others)"
        )
        assert not pv.verify(folder).problems


@check
def check_a_result_that_was_changed_is_not_folded() -> None:
    result = trained()
    with torch.no_grad():
        next(result.model.parameters()).add_(1.0)
    must_raise(BadInput, lambda: pv.models.fold(result))


@check
def check_patches_are_those_that_the_convolution_sees() -> None:
    """The means of a padded convolution's patches, position by position."""
    net = nn.Sequential(nn.Conv2d(1, 2, (3, 2), padding="same"), nn.Flatten(), nn.Linear(24, 2))
    ones = pv.Dataset(np.ones((8, 1, 4, 3), np.float32), public=True)
    private = pv.Dataset(np.zeros((8, 1, 4, 3), np.float32), np.zeros(8, np.int64), classes=2)
    written: Any = pv.models.precondition(net, ones, (1, 4, 3), private=private)
    kernel = torch.zeros(6, 1, 3, 2)
    kernel.view(6, 6).fill_diagonal_(1.0)
    seen = nn.functional.conv2d(torch.ones(1, 1, 4, 3), kernel, padding="same")
    assert torch.allclose(written[0].mean, seen.mean((0, 2, 3)), atol=1e-6), written[0].mean
