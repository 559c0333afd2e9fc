"""Segmentation on the command line: what is said around a run, and what a certificate tells of its
start.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import privlearn as pv
from privlearn.cli import jobs, main, request
from privlearn.cli.commands import predict
from privlearn.cli.request import Request
from privlearn.errors import BadInput
from privlearn.metrics import Metrics
from privlearn.models import networks
from privlearn.runs import checkpoint
from privlearn.training import task
from privlearn_segmentation import (
    MapStudent,
    Start,
    Training,
    dice,
    hippocampus,
    maps_of,
    probabilities,
)
from privlearn_segmentation.pages import corrections, starting
from tests.volumes.checks import CLASSES, SIDE, on_files, scans_of, small_net, stored

NOTHING = "nothing is kept, and nothing is spent. Begin again, without --resume"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    pytest.importorskip("monai", reason="MONAI is not here: pip install 'privlearn[medical]'")
    return on_files(tmp_path, monkeypatch)


def run(command: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(list(command))
    out, err = capsys.readouterr()
    return code, out, " ".join(err.split())


def stop(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def pate(files: list[str], tmp_path: Path, *more: str) -> list[str]:
    return [
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
        str(tmp_path / "model"),
        *more,
    ]


def test_dpsgd_on_maps_explains_itself(
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
        "1",
        "--examples",
        "24",
    ]
    code, _, err = run([*command, "--explain", "--out", str(tmp_path / "model")], capsys)
    assert code == 0, err
    assert "learning rate" in err


def test_train_by_its_name_is_what_the_command_line_does_with_maps(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(pate(files, tmp_path, "--seed", "0"), capsys)
    assert code == 0, err
    data = pv.load(tmp_path / "private.npz", classes=3, value_range=(0, 1))
    public = pv.load(tmp_path / "public.npz", classes=3, value_range=(0, 1), public=True)
    settings = {"epsilon": 8.0, "delta": 1e-3, "teachers": 4, "model": "unet:8,16"}
    result = pv.train(
        data,
        method="segmentation",
        public=public,
        queries=6,
        streams=pv.Streams.new(0),
        **settings,
    )
    inputs = data.test_tensors()[0]
    torch.testing.assert_close(pv.load_model(tmp_path / "model")(inputs), result.model(inputs))
    out = pv.publish(result, tmp_path / "by-name")
    assert pv.verify(out).ok
    one, other = (json.loads((at / "privacy.json").read_text()) for at in (out, tmp_path / "model"))
    assert one["plan"] == other["plan"]
    for wrong, said in (
        ({"threshold": 2.0}, "threshold does not go with method='segmentation'"),
        ({"queries": 10}, "queries is 10, and there are 9 public volumes"),
        ({"public": None}, "give public="),
        ({"public": replace(public, x=data.x[:3])}, "public"),
        ({"public": replace(public, public=False)}, "give public="),
    ):
        with pytest.raises(BadInput, match=re.escape(said)):
            pv.train(data, method="segmentation", **{"public": public, **settings, **wrong})


@pytest.mark.parametrize("codes", ["pca", "autoencoder"])
def test_maps_are_released_in_the_ways_of_the_paper(
    codes: str, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = pate(files, tmp_path, "--seed", "0", "--codes", codes, "--epsilon", "80")
    code, _, err = run(command, capsys)
    assert code == 0, err
    assert re.search("noise of [0-9.]+ radii on each of [0-9]+ numbers", err)
    out = tmp_path / "model"
    assert pv.verify(out).ok
    card = " ".join((out / "README.md").read_text().split())
    assert f"| reducer | {codes}, codes of " in card
    assert "corrections of a public network" not in card
    data = pv.load(tmp_path / "private.npz", classes=3, value_range=(0, 1))
    public = pv.load(tmp_path / "public.npz", classes=3, value_range=(0, 1), public=True)
    settings = {"epsilon": 80.0, "delta": 1e-3, "teachers": 4, "model": "unet:8,16"}
    result = pv.train(
        data,
        method="segmentation",
        public=public,
        queries=6,
        codes=codes,
        streams=pv.Streams.new(0),
        **settings,
    )
    inputs = data.test_tensors()[0]
    torch.testing.assert_close(pv.load_model(out)(inputs), result.model(inputs))


def test_ways_that_are_none_are_refused_before_anything_is_trained(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(pate(files, tmp_path, "--codes", "fourier"), capsys)
    assert code == 2
    assert "corrections, pca, autoencoder" in err or "corrections, pca or autoencoder" in err
    assert "public network is trained" not in err
    budget = ["budget", "--method", "pate", "--epsilon", "1", "--codes", "pca"]
    code, _, err = run(budget, capsys)
    assert code == 2
    assert "--codes is for maps of classes" in err
    assert "needs --maps" in err
    digits = ["train", "--method", "pate", "--data", "digits", "--codes", "pca", "--epsilon", "1"]
    code, _, err = run([*digits, "--out", str(tmp_path / "digits")], capsys)
    assert code == 2
    assert "--codes is for maps of classes" in err


@pytest.mark.parametrize("method", ["dpsgd", "dpmac"])
@pytest.mark.parametrize(
    "place", [(checkpoint.Checkpoint, "write"), (networks, "build")], ids=["file", "before"]
)
def test_interrupted_before_the_first_step(
    method: str,
    place: tuple[Any, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    """There is nothing to go on with, and the message says so; the ledger agrees, and the run can
    begin again.
    """
    ledger, out = tmp_path / "study.json", str(tmp_path / "model")
    command = [
        "train",
        "--data",
        "digits",
        "--examples",
        "1437",
        "--method",
        method,
        "--model",
        "mlp:4",
        "--epochs",
        "2",
        "--epsilon",
        "8",
        "--ledger",
        str(ledger),
        "--out",
        out,
    ]
    with monkeypatch.context() as patch:
        patch.setattr(*place, stop)
        code, _, err = run(command, capsys)
    assert code == 130
    assert NOTHING in err
    assert "go on with --resume" not in err
    assert not Path(f"{out}.checkpoint").exists()
    assert json.loads(run(["ledger", str(ledger), "--json"], capsys)[1])["epsilon"] == 0
    code, _, err = run([*command, "--resume"], capsys)
    assert code == 2
    assert "leave out --resume" in err
    assert run(command, capsys)[0] == 0


def test_interrupted_between_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """While weights are looked at after an epoch, steps were paid for: they are not given up, and
    nobody says so.
    """
    out = str(tmp_path / "model")
    command = [
        "train",
        "--data",
        "digits",
        "--examples",
        "1437",
        "--epochs",
        "2",
        "--epsilon",
        "8",
        "--out",
        out,
    ]
    with monkeypatch.context() as patch:
        patch.setattr(task, "require_finite", stop)
        code, _, err = run(command, capsys)
    assert code == 130
    assert "go on with --resume" in err
    assert "nothing is spent" not in err
    assert run([*command, "--resume"], capsys)[0] == 0


def test_interrupted_in_the_public_start(
    files: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = pate(files, tmp_path)
    left = tmp_path / "model.teachers"
    with monkeypatch.context() as patch:
        patch.setattr(Start, "learn", stop)
        code, _, err = run(command, capsys)
    assert code == 130
    assert "a public network is trained first, on 3 public volumes with masks" in err
    assert NOTHING in err
    assert not left.exists()
    code, _, err = run([*command, "--resume"], capsys)
    assert code == 2
    assert "keeps nothing, and has spent nothing: leave out --resume" in err
    left.mkdir()
    with monkeypatch.context() as patch:  # a power cut, before any teacher was trained
        patch.setattr(Start, "learn", stop)
        _, _, err = run([*command, "--resume"], capsys)
    assert "keeps no teachers and no answers yet: the run begins from the beginning" in err


def test_what_is_public_is_told(
    files: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A student that is the public network gets a warning; the start's figures are on screen, card
    and certificate.
    """
    monkeypatch.setattr(MapStudent, "__call__", lambda self, answers: copy.deepcopy(self.start))
    with np.load(tmp_path / "public.npz") as archive:
        kept = {name: archive[name] for name in ("x", "y", "x_test")}
    np.savez(tmp_path / "public.npz", **kept)  # whose masks nobody knows
    out = tmp_path / "model"
    code, answer, err = run(pate(files, tmp_path), capsys)
    assert code == 0, err
    lines = [line.strip() for line in answer.splitlines()]
    at = next(number for number, line in enumerate(lines) if line.startswith("test Dice"))
    assert lines[at + 1].startswith("public network alone")
    assert lines[at].split()[2] == lines[at + 1].split()[3].rstrip(",")
    assert "warning: the student's Dice" in err
    assert "the private answers brought nothing" in err
    certificate = json.loads((out / "privacy.json").read_text())
    start = certificate["facts"]["public_start"]
    assert (start["volumes_with_masks"], start["student_began_as_it"], start["test_rows"]) == (
        3,
        True,
        6,
    )
    assert f"{start['test_metrics']['dice']:.4f}" == lines[at].split()[2]
    card = " ".join((out / "README.md").read_text().split())
    assert "| teachers answer with | corrections of a public network's predictions |" in card
    assert (
        "| the student began as | a public network, trained on 3 public volumes with masks, as "
        "teachers did |"
    ) in card
    assert (
        f"| that network alone, on the 6 test rows | dice {start['test_metrics']['dice']:.4f}, "
        "dice 1"
    ) in card
    assert "privlearn predict . --data DATA --out maps.npz" in card
    assert pv.verify(out).ok

    monkeypatch.setattr(predict, "_outputs", lambda *_: pytest.fail("computed for nothing"))
    for given in ((), ("--out", str(tmp_path / "maps.csv"))):
        code, _, err = run(
            ["predict", str(out), "--data", str(tmp_path / "private.npz"), *given], capsys
        )
        assert code == 2
        assert "give --out FILE.npz" in err


@pytest.mark.parametrize(("own", "warned"), [(0.49, True), (0.5, True), (0.51, False)])
def test_students_that_bring_nothing_are_warned_of(
    own: float, warned: bool, monkeypatch: Any, capsys: Any
) -> None:
    dices = iter([0.5, own])
    monkeypatch.setattr(starting, "evaluate", lambda *_: Metrics({"dice": next(dices)}, 2))
    start = Start.learn(
        scans_of(2, 1, public=True),
        scans_of(5, 2, public=True),
        small_net(),
        learning=Training(steps=1),
        tuning=Training(steps=1),
    )
    plan = start.plan(5, 3).calibrate(epsilon=8.0, delta=1e-3)
    teachers = start.correcting(start.teachers(scans_of(6), 3))
    result = pv.pate(
        plan,
        teachers,
        start.reducer,
        scans_of(5, 2, public=True),
        lambda answers: nn.Conv3d(1, 3, 1),
    )
    data = scans_of(6, x_test=scans_of(2).x, y_test=scans_of(2).y)
    answer: dict[str, Any] = {"plan": plan.to_json()}
    result = corrections._with_start(result, data, start, answer)
    rows = corrections._maps_rows(result, data, answer)
    assert ("brought nothing" in " ".join(capsys.readouterr().err.split())) is warned
    assert next(iter(rows)) == "public network alone"
    assert answer["public_only"] == {"dice": 0.5}


WARNED = {
    "crowds": (
        ["--examples", "24", "--teachers", "13"],
        ["13 teachers share 24 examples"],
        ["drowns"],
    ),
    "room": (["--examples", "24", "--teachers", "12"], [], ["teachers share", "drowns"]),
    "noise": (
        ["--noise-multiplier", "2.1"],
        ["1.05 radii, is larger than any whole answer may be"],
        ["teachers share"],
    ),
    "less noise": (["--noise-multiplier", "1.9"], [], ["drowns"]),
}


@pytest.mark.parametrize("name", WARNED)
def test_warnings_come_before_training(
    name: str, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    more, told, untold = WARNED[name]
    monkeypatch.setattr(Start, "learn", stop)
    command = pate(files, tmp_path, *more)
    if "--noise-multiplier" in more:
        del command[command.index("--epsilon") : command.index("--epsilon") + 2]
    _, _, err = run(command, capsys)
    for part in told:
        assert part in err
    for part in untold:
        assert part not in err


def test_queries_beyond_the_pool_are_refused_before_training(
    files: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Start, "learn", lambda *_: pytest.fail("trained for nothing"))
    code, _, err = run(pate(files, tmp_path, "--queries", "10"), capsys)
    assert code == 2
    assert "--queries is 10, and there are 9 public volumes to ask about" in err
    assert "--queries 9" in err
    code, _, err = run(pate(files, tmp_path, "--noise-multiplier", "2"), capsys)
    assert code == 2, "one of --epsilon and --noise-multiplier"


def test_masks_of_test_volumes_are_needed_unless_public(tmp_path: Path) -> None:
    path, data = tmp_path / "own.npz", scans_of(3)
    np.savez(path, x=data.x, y=data.y, x_test=data.x)
    with pytest.raises(BadInput, match="x_test and y_test together"):
        pv.load(str(path), classes=3, value_range=(0, 1))
    assert pv.load(str(path), classes=3, value_range=(0, 1), public=True).y_test is None
    np.savez(path, x=data.x, y=data.y, y_test=data.y)
    with pytest.raises(BadInput, match="x_test and y_test together"):
        pv.load(str(path), classes=3, value_range=(0, 1), public=True)
    with pytest.raises(BadInput, match="and y_test 0"):
        pv.Dataset(data.x, data.y, data.x, classes=3).checked()


def test_both_methods_are_tested_on_the_same_hippocampi(monkeypatch: pytest.MonkeyPatch) -> None:
    data = stored()
    monkeypatch.setattr(jobs, "load", lambda *_, **__: data)

    def tested(method: str) -> pv.Dataset:
        return jobs.data_of(Request.of("train", data="hippocampus", method=method))

    want = hippocampus.split(data).test
    assert np.array_equal(tested("dpsgd").x_test, want.x)
    assert np.array_equal(tested("dpsgd").y_test, want.y)
    asked, _, pool = corrections._volumes_apart(Request.of("train", method="pate"), tested("pate"))
    assert np.array_equal(asked.x_test, want.x)
    assert len(pool.x) == 40


def test_arrays_are_taken_as_tensors_are() -> None:
    data = scans_of(4)
    arrays, tensors = (data.x.astype(float), np.asarray(data.y)), data.tensors()
    assert torch.equal(maps_of(arrays[1], CLASSES), maps_of(tensors[1], CLASSES))
    found = []
    for x, y in (arrays, tensors):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            found.append(Training(steps=2)(small_net(), x, np.asarray(maps_of(y, CLASSES))))
    one, other = (
        probabilities(net, x) for net, x in zip(found, (arrays[0], tensors[0]), strict=True)
    )
    assert torch.allclose(one, other, atol=1e-5)
    assert one.shape == (4, CLASSES, SIDE, SIDE, SIDE)
    assert dice(arrays[1], tensors[1], CLASSES) == [1.0, 1.0]
    wrong: dict[str, Callable[[], Any]] = {
        "don't go together": lambda: Training(steps=1)(
            small_net(), arrays[0], maps_of(arrays[1][:3], CLASSES)
        ),
        "labels hold": lambda: maps_of(np.array(["hippocampus"]), CLASSES),
    }
    for message, call in wrong.items():
        with pytest.raises(BadInput, match=message):
            call()


def test_help_has_the_numbers_for_volumes(capsys: pytest.CaptureFixture[str]) -> None:
    for command, asked, told in (
        ("train", "--help-all", ("250; 32 for maps", "for maps of classes 20")),
        ("predict", "--help", ("--out maps.npz",)),
    ):
        with pytest.raises(SystemExit):
            request.parse([command, asked])
        said = " ".join(capsys.readouterr().out.split())
        for part in told:
            assert part in said


def test_budget_speaks_of_corrections(capsys: pytest.CaptureFixture[str]) -> None:
    """The noise that a run will state in radii, on as many numbers, and what is kept of
    corrections.
    """
    budget = ["budget", "--method", "pate", "--maps", "--classes", "3", "--delta", "1e-3"]
    code, out, err = run(
        [*budget, "--epsilon", "4", "--queries", "5", "--teachers", "6", "--json"], capsys
    )
    assert code == 0, err
    answer = json.loads(out)
    start = Start.learn(
        scans_of(2, 1, public=True),
        scans_of(5, 2, public=True),
        small_net(),
        learning=Training(steps=1),
        tuning=Training(steps=1),
    )
    plan = start.plan(5, 6).calibrate(epsilon=4.0, delta=1e-3)
    figures = answer["corrections"]
    assert answer["epsilon"] == pytest.approx(plan.guarantee(1e-3).epsilon)
    assert figures["numbers"] == start.corrections.size
    assert figures["noise_in_radii"] == pytest.approx(plan.noise_std / start.radius)
    for row in figures["kept"]:
        signal, noise = row["length"] ** 2 / figures["numbers"], figures["noise_in_radii"] ** 2
        assert row["kept_of_own"] == pytest.approx(signal / (signal + noise))
        assert row["kept_of_common"] == pytest.approx(signal / (signal + noise / 5))
    for codes, numbers in (("pca", "as many as are above it"), ("autoencoder", "8")):
        code, out, err = run([*budget, "--epsilon", "1", "--codes", codes], capsys)
        assert code == 0, err
        assert f"0.7196 radii on each number of a code ({numbers})" in " ".join(out.split())
    code, out, err = run([*budget, "--epsilon", "1"], capsys)
    assert "20 queries, whole volumes, to 32 teachers" in out
    assert "0.7196 radii on each of 40 numbers" in out
    for more, said in (
        (["--threshold", "5", "--answers", "2"], "--threshold is for votes"),
        (["--queries", "0"], "queries"),
        (["--epsilon", "1", "--noise-multiplier", "1"], "one of them"),
    ):
        assert run([*budget, "--epsilon", "1", *more], capsys)[0] == 2
        assert said in run([*budget, "--epsilon", "1", *more], capsys)[2]
    code, _, err = run(["budget", "--method", "pate", "--maps", "--epsilon", "1"], capsys)
    assert "give --classes K" in err
