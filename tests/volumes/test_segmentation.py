"""Segmentation: the U-Net's gradients, DP-SGD on it, the command line, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn.cli import main
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.clipping.model_check import require_per_example
from privlearn.core.streams import Streams
from privlearn.errors import BadInput
from privlearn.methods import pate as teachers
from privlearn.models import networks
from privlearn_segmentation import Corrections, Start, Training, Warp, map_losses, start
from privlearn_studies import registry, runs
from privlearn_studies.fay2020 import segmentation
from privlearn_studies.fay2020.scans import Settings
from privlearn_studies.fay2020.segmenting import train, train_by_gradients
from privlearn_studies.runs import Outcome
from tests.support.nets import one_sample
from tests.volumes.checks import (
    CLASSES,
    SIDE,
    on_files,
    scans_of,
    small_net,
    small_run,
    small_study,
)

monai = pytest.importorskip("monai", reason="MONAI is not here: pip install 'privlearn[medical]'")
SHAPE = (1, SIDE, SIDE, SIDE)


def unet(seed: int = 0) -> nn.Module:
    return networks.build("unet:8,16,24", SHAPE, CLASSES, np.random.default_rng(seed))


def by_the_loop(network: nn.Module, x: Tensor, y: Tensor) -> list[list[Tensor]]:
    """The gradient of each example by itself, parameter by parameter."""
    found = []
    for row in range(len(x)):
        network.zero_grad()
        map_losses(network(x[row : row + 1]), y[row : row + 1]).sum().backward()
        found.append([p.grad.clone() for p in network.parameters() if p.grad is not None])
    network.zero_grad()
    return found


@pytest.mark.parametrize("clip", [pv.clipping.PerLayer(0.05), pv.Flat(0.2)], ids=["layer", "flat"])
def test_sums_of_the_unets_gradients_are_the_loops(clip: Any) -> None:
    """In float64, each layer (or the whole) of each example clipped by hand; the bound follows the
    number of layers.
    """
    network = unet().double()
    x, y = scans_of(5, 3).tensors()
    x = x.double()
    x[4] *= 0
    clipper = ClippedGradients(network, map_losses, clip, Adjacency.ADD_REMOVE)
    bounded = clipper(one_sample(examples=len(x)), x, y)
    names = [name for name, _ in network.named_parameters()]
    layers = [name.rpartition(".")[0] if clip.kind == "layer" else "" for name in names]
    expected = [torch.zeros_like(p) for p in network.parameters()]
    for gradients in by_the_loop(network, x, y):
        for layer in set(layers):
            own = [at for at, name in enumerate(layers) if name == layer]
            length = math.sqrt(sum(float(gradients[at].square().sum()) for at in own))
            for at in own:
                expected[at] += gradients[at] * min(1.0, clip.clip_norm / length)
    for one, other in zip(bounded.values, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert bounded.sensitivity == pytest.approx(clip.clip_norm * math.sqrt(len(set(layers))))
    assert len(set(layers)) == (9 if clip.kind == "layer" else 1)
    assert clipper.way == "layers", clipper.reason


def test_a_unet_is_computed_by_example() -> None:
    require_per_example(unet(), torch.zeros(1, *SHAPE))


def test_dpsgd_trains_maps() -> None:
    """Noise as the plan says, a ledger that ends at the target, and maps that come out."""
    data = scans_of(30)
    plan = pv.Plan(pv.Poisson(0.4), epochs=4, clip=pv.clipping.PerLayer(0.1)).calibrate(
        epsilon=8.0, delta=1e-3
    )
    result = pv.dpsgd(
        plan, unet(), map_losses, data, optimizer=torch.optim.Adam, streams=Streams.new(0)
    )
    assert result.ledger.event == plan.event()
    assert result.ledger.guarantee(1e-3).epsilon <= 8.0
    assert result.model(data.tensors()[0][:2]).shape == (2, CLASSES, SIDE, SIDE, SIDE)


def test_maps_are_learned() -> None:
    """A small network finds the parts of blocks that it never saw, and warps don't stand in the
    way.
    """
    from privlearn_segmentation import dice, maps_of, probabilities

    train, test = scans_of(12, 1), scans_of(8, 2)
    x, y = train.tensors()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = Training(steps=150, warp=Warp(mirror=0.5))(unet(), x, maps_of(y, CLASSES))
    found = probabilities(network, test.tensors()[0]).argmax(1)
    assert min(dice(found, test.tensors()[1], CLASSES)) > 0.7


def test_the_autoencoder_for_volumes_starts_from_the_middle() -> None:
    maps = torch.nn.functional.one_hot(scans_of(6).tensors()[1], CLASSES).movedim(-1, 1).float()
    shape, middle = tuple(maps.shape[1:]), maps.mean(0)
    found = teachers.Autoencoder.fit(
        pv.Dataset(maps, maps, public=True),
        4,
        0.1,
        encoder=networks.volume_encoder(shape, 4),
        decoder=networks.volume_decoder(shape, 4, middle=middle),
        loss="cross_entropy",
        epochs=1,
    )
    assert float(found.encode(maps).norm(dim=1).max()) <= 1
    decoded = found.decode(torch.zeros(1, 4))[0]
    assert float((decoded - middle).abs().mean()) < 0.1
    with pytest.raises(BadInput, match="multiples of 4"):
        networks.volume_encoder((3, 6, 8, 8), 4)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options that name private and public volumes in files; training is short."""
    return on_files(tmp_path, monkeypatch)


def run(command: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(list(command))
    out, err = capsys.readouterr()
    return code, out, err


def test_teachers_of_maps_on_the_command_line(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From volumes to a verified model and its predictions; what is public alone stands beside."""
    out = tmp_path / "model"
    code, answer, _ = run(
        [
            "train",
            *files,
            "--method",
            "pate",
            "--public",
            str(tmp_path / "public.npz"),
            "--teachers",
            "4",
            "--queries",
            "6",
            "--model",
            "unet:8,16",
            "--out",
            str(out),
            "--json",
        ],
        capsys,
    )
    found = json.loads(answer)
    assert code == 0
    assert found["epsilon"] == pytest.approx(8.0)
    assert (found["plan"]["queries"], found["plan"]["teachers"], found["answered"]) == (6, 4, 6)
    assert set(found["test_metrics"]) == set(found["public_only"]) == {"dice", "dice_1", "dice_2"}
    assert found["test_accuracy"] is None
    assert pv.verify(out).ok
    assert not Path(f"{out}.teachers").exists()
    loaded = pv.load_model(out)
    assert loaded.config["model"] == "unet:8,16"
    predictions = tmp_path / "maps.npz"
    assert (
        run(
            [
                "predict",
                str(out),
                "--data",
                str(tmp_path / "private.npz"),
                "--out",
                str(predictions),
            ],
            capsys,
        )[0]
        == 0
    )
    with np.load(predictions) as archive:
        assert archive["prediction"].shape == (24, SIDE, SIDE, SIDE)
        assert archive["scores"].shape == (24, CLASSES, SIDE, SIDE, SIDE)
    assert run(["predict", str(out), "--data", str(tmp_path / "private.npz")], capsys)[0] == 2
    (out / "model.safetensors").write_bytes(b"0" + (out / "model.safetensors").read_bytes()[1:])
    assert not pv.verify(out).ok
    assert loaded(scans_of(1).tensors()[0]).shape == (1, CLASSES, SIDE, SIDE, SIDE)


def test_dpsgd_on_maps_on_the_command_line(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "train",
        *files,
        "--model",
        "unet:8,16",
        "--clip",
        "layer",
        "--epochs",
        "2",
        "--examples",
        "24",
    ]
    code, answer, _ = run([*command, "--out", str(tmp_path / "model"), "--json"], capsys)
    assert code == 0
    assert 0 <= json.loads(answer)["test_metrics"]["dice"] <= 1
    assert pv.verify(tmp_path / "model").ok


REFUSED = {
    "dpmac": (["--method", "dpmac"], "maps of classes"),
    "votes": (
        ["--method", "pate", "--public", "public.npz", "--threshold", "3", "--answers", "2"],
        "for votes",
    ),
    "no public volumes": (["--method", "pate"], "give --public PATH"),
    "a network without maps": (["--model", "mlp:4", "--examples", "24"], "as --model unet has"),
    "odd sizes": (["--model", "unet:8,8,8,8,8", "--examples", "24"], "multiples of 16"),
    "odd channels": (["--model", "unet:8,9", "--examples", "24"], "multiples of 4"),
    "no channels": (["--model", "unet:eight", "--examples", "24"], "expected 2 to 8 numbers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(
    name: str, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more, message = REFUSED[name]
    code, _, err = run(["train", *files, *more, "--out", str(tmp_path / "model")], capsys)
    assert code == 2
    assert message in err.replace("\n", " ")


def test_without_monai_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"privlearn\[medical\]"):
        unet()


def test_references_must_be_probabilities() -> None:
    for reference in (
        torch.ones(2, 3, 4, 4, 4),
        torch.full((2, 3, 4, 4, 4), math.nan),
        torch.full((2, 3), 1 / 3),
    ):
        with pytest.raises(BadInput, match="expected finite probabilities"):
            Corrections(reference)
    with pytest.raises(BadInput, match="how many classes"):
        Start.learn(scans_of(2, public=True, classes=None), scans_of(2, public=True), small_net())
    with pytest.raises(BadInput, match="can't be cut"):
        Warp(patch=(9, 4, 4))(torch.zeros(1, *SHAPE), torch.zeros(1, *SHAPE))
    assert start.TUNING.steps < start.LEARNING.steps


def test_runs_of_the_study_are_found_again(tmp_path: Path) -> None:
    """What is written for a run gives the same outcome; settings that differ have different
    keys.
    """
    with small_study():
        found = small_run()
    descend, store = train_by_gradients.at, runs.Store(tmp_path / runs.FILE)
    store.keep(train.at(teachers=3).key(0), found)
    assert list(store.read().values()) == [found]
    keys = [
        json.dumps(one.key(seed), sort_keys=True)
        for seed in (0, 1)
        for one in (
            train.at(teachers=8),
            train.at(teachers=16),
            train.at(teachers=8, labelled=4),
            train.at(teachers=8, first=9),
            train.at(teachers=8, cells=((8.0, 10),)),
            train.at(teachers=8, settings=Settings(9)),
            descend(epsilon=None),
            descend(epsilon=8.0),
            descend(epsilon=8.0, start="public"),
            descend(epsilon=None, papers=True),
            descend(epsilon=8.0, start="public", learning_rate=1e-3),
        )
    ]
    assert len(set(keys)) == len(keys)
    assert registry.find("pate-segmentation").place == "fay2020.segmentation:run"
    assert segmentation.dice([Outcome(test=(0.5, 0.7))], "test") == [pytest.approx(0.6)]
