"""Public features (tests/transforms/checks_encoders.py), and on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import privlearn as pv
from privlearn.cli import main
from privlearn.core.accounting.events import walk
from privlearn.runs.checkpoint import Checkpoint
from privlearn.training import rules
from privlearn.transforms import specs
from tests.support.checks import CHECKS
from tests.support.steps import EachStep
from tests.transforms import checks_encoders as encoder_checks

OWN = sorted(name for name in vars(encoder_checks) if name.startswith("check_"))


@pytest.mark.parametrize("name", OWN)
def test_encoders(name: str) -> None:
    CHECKS[name]()


@pytest.fixture
def rows(tmp_path: Path) -> str:
    data = encoder_checks.images(60)
    path = tmp_path / "images.npz"
    np.savez(path, x=data.x, y=data.y, x_test=data.x_test, y_test=data.y_test)
    return str(path)


COMMON = [
    "--classes",
    "3",
    "--range",
    "0,255",
    "--epsilon",
    "5",
    "--delta",
    "1e-3",
    "--epochs",
    "2",
    "--seed",
    "1",
]


def test_images_are_scattered_in_front_of_a_linear_model(
    rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    assert main(["train", "--data", rows, *COMMON, "--out", str(out)]) == 0
    assert "--features raw" in capsys.readouterr().err
    assert (
        json.loads((out / "privacy.json").read_text())["facts"]["public_features"]["spec"]
        == "scatter:J=2"
    )
    assert pv.verify(out).ok
    assert main(["predict", str(out), "--data", rows]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 61
    for others in (["--features", "raw"], ["--model", "mlp:5"], ["--pca", "4"]):
        plain = tmp_path / others[-1].replace(":", "")
        assert main(["train", "--data", rows, *COMMON, *others, "--out", str(plain)]) == 0
        assert "public_features" not in json.loads((plain / "privacy.json").read_text())["facts"]


def test_a_small_network_stands_on_maps_of_features(rows: str, tmp_path: Path) -> None:
    out = tmp_path / "model"
    assert (
        main(
            [
                "train",
                "--data",
                rows,
                *COMMON,
                "--features",
                "scatter:J=2",
                "--model",
                "cnn",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    assert pv.verify(out).ok
    model = pv.load_model(out)
    assert [tuple(value.shape) for value in model[-1].parameters()][-2:] == [(3, 32), (3,)]
    assert main(["predict", str(out), "--data", rows]) == 0


def test_features_are_kept_where_told_and_refused_where_unfit(
    rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    for number in range(2):
        out = tmp_path / f"model{number}"
        options = ["--features", "scatter:J=1", "--features-cache", str(kept)]
        assert main(["train", "--data", rows, *COMMON, *options, "--out", str(out)]) == 0
    assert len(list(kept.iterdir())) == 2  # training and test rows
    weights = [
        (tmp_path / f"model{number}" / "model.safetensors").read_bytes() for number in range(2)
    ]
    assert weights[0] == weights[1]
    capsys.readouterr()
    out = str(tmp_path / "refused")
    for options, said in (
        (["--features", "scatter:J=3.5"], "whole number"),
        (["--features", "scatter:J=4", "--model", "cnn"], "16 x 16 or larger"),
        (["--features", "nowhere:make"], "imported"),
    ):
        assert main(["train", "--data", rows, *COMMON, *options, "--out", out]) == 2
        assert said in capsys.readouterr().err
        assert not Path(out).exists()
    for options, said in (
        (["--method", "pate", "--features", "scatter:J=2"], "--features"),
        (["--method", "features", "--explain"], "--explain"),
        (["--method", "pate", "--explain"], "--explain"),
        (["--method", "dpmac", "--explain"], "--explain"),
        (["--tune", "tune.toml", "--features", "scatter:J=2"], "--features"),
    ):
        assert (
            main(["train", "--data", rows, *COMMON[:4], *options, "--epsilon", "5", "--out", out])
            == 2
        )
        assert said in capsys.readouterr().err


def test_an_interrupted_run_on_features_goes_on(rows: str, tmp_path: Path) -> None:
    data, features = encoder_checks.images(), "scatter:J=2"
    whole = encoder_checks.run(data, features)
    file = tmp_path / "run.checkpoint"

    def stop(done: int, steps: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encoder_checks.run(
            data, features, checkpoint=Checkpoint(file, every=1e-9), callbacks=EachStep(stop)
        )
    resumed = encoder_checks.run(data, features, checkpoint=file)
    for name, value in whole.model.state_dict().items():
        assert value.equal(resumed.model.state_dict()[name])


def test_train_needs_no_settings(tmp_path: Path) -> None:
    """The same weights as the command line makes, and a guarantee that meets the target."""
    data = encoder_checks.images(60)
    result = pv.train(data, epsilon=5.0, delta=1e-3, streams=pv.Streams.new(1))
    assert 4.9 < result.ledger.guarantee(1e-3).epsilon <= 5.0
    assert result.facts["public_features"]["spec"] == "scatter:J=2"
    path, out = tmp_path / "images.npz", tmp_path / "model"
    np.savez(path, x=data.x, y=data.y)
    target = [
        "--classes",
        "3",
        "--range",
        "0,255",
        "--epsilon",
        "5",
        "--delta",
        "1e-3",
        "--seed",
        "1",
    ]
    assert main(["train", "--data", str(path), *target, "--out", str(out)]) == 0
    published = pv.load_model(out)
    for name, value in result.model.state_dict().items():
        assert value.equal(published.state_dict()[name])
    with pytest.raises(pv.errors.BadInput, match="classes"):
        pv.train((data.x, data.y), epsilon=1.0)  # type: ignore[arg-type]


def test_what_train_takes_is_what_the_command_line_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same weights; and what it returns is published with all that `predict` asks for."""
    data = encoder_checks.images(60)
    path = tmp_path / "images.npz"
    np.savez(path, x=data.x, y=data.y)
    target = [
        "--classes",
        "3",
        "--range",
        "0,255",
        "--epsilon",
        "5",
        "--delta",
        "1e-3",
        "--seed",
        "1",
    ]
    for number, (options, more, transforms) in enumerate(
        (
            (
                [
                    "--normalise",
                    "moments:share=0.1",
                    "--average",
                    "0.5",
                    "--label-smoothing",
                    "0.1",
                ],
                {"normalise": "moments:share=0.1", "average": 0.5, "label_smoothing": 0.1},
                ["Scale", "Standardise"],
            ),
            (
                ["--features", "norm:power=1", "--normalise", "moments"],
                {"features": "norm:power=1", "normalise": "moments"},
                ["Scale", "Normalised", "Standardise"],
            ),
            (
                ["--features", "raw", "--views", "2", "--augment", "flip", "--model", "cnn"],
                {
                    "features": "raw",
                    "augmentation": pv.clipping.Augmentation(2, "flip"),
                    "model": "cnn",
                },
                ["Scale"],
            ),
        )
    ):
        ours, theirs = tmp_path / f"ours{number}", tmp_path / f"theirs{number}"
        result = pv.train(data, epsilon=5.0, delta=1e-3, streams=pv.Streams.new(1), **more)  # type: ignore[arg-type]
        assert [type(part).__name__ for part in result.model.children()][:-1] == transforms
        assert 4.9 < result.ledger.guarantee(1e-3).epsilon <= 5.0
        pv.publish(result, ours)
        assert main(["train", "--data", str(path), *target, *options, "--out", str(theirs)]) == 0
        assert (ours / "model.safetensors").read_bytes() == (
            theirs / "model.safetensors"
        ).read_bytes()
        assert (ours / "config.json").read_bytes() == (theirs / "config.json").read_bytes()
        capsys.readouterr()
        assert main(["predict", str(ours), "--data", str(path)]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 61
    unbounded = pv.Dataset(data.x.astype(np.float32), data.y, classes=3)
    copies = pv.clipping.Augmentation(2, "flip")
    for given, wrong, said in (
        (unbounded, {"normalise": "moments", "features": "raw"}, "row_norm"),
        (data, {"normalise": "moments", "features": "pca:4"}, "pca:4"),
        (data, {"normalise": "mean"}, "expected moments"),
        (data, {"average": 0.0}, "average"),
        (data, {"label_smoothing": 1.0}, "label_smoothing"),
        (data, {"augmentation": copies}, "raw"),
    ):
        ledger = pv.Ledger()
        with pytest.raises(pv.errors.BadInput, match=said):
            pv.train(given, epsilon=5.0, delta=1e-3, ledger=ledger, **wrong)  # type: ignore[arg-type]
        assert not list(walk(ledger.event))


def test_rows_of_many_numbers_are_normalised_one_by_one() -> None:
    x = np.random.default_rng(0).integers(0, 200, (40, 256), dtype=np.uint8)
    data = pv.Dataset(x, np.arange(40) % 3, classes=3, low=0.0, high=200.0)
    result = pv.train(data, epsilon=5.0, delta=1e-3, streams=pv.Streams.new(1))
    assert result.facts["public_features"]["spec"] == "norm:power=0.5"
    features = result.model[:-1](data.tensors()[0])  # type: ignore[index]
    assert np.allclose(features.mean(1), 0, atol=1e-5)
    assert np.allclose(features.var(1, correction=0), 1, atol=1e-3)
    few = pv.Dataset(x[:, :20], np.arange(40) % 3, classes=3, low=0.0, high=200.0)
    assert "public_features" not in pv.train(few, epsilon=5.0, delta=1e-3).facts


def test_what_was_chosen_is_told(
    rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    assert main(["train", "--data", rows, *COMMON, "--explain", "--out", str(out)]) == 0
    told = " ".join(capsys.readouterr().err.split())
    rate = json.loads((out / "privacy.json").read_text())["facts"]["optimizer"]["lr"]
    assert f"learning rate {rate:.4g}" in told
    assert "epochs 2 as given" in told


def test_moments_stand_behind_rows_of_many_numbers_where_they_pay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By examples x epsilon, the same by Python and the command line; `--normalise none` for
    none.
    """
    x = np.random.default_rng(0).integers(0, 200, (80, 256), dtype=np.uint8)
    data = pv.Dataset(x, np.arange(80) % 3, classes=3, low=0.0, high=200.0)
    kinds = lambda result: [type(release).__name__ for release in result.model.children()]  # noqa: E731
    assert "Standardise" not in kinds(pv.train(data, epsilon=5.0, delta=1e-3))
    monkeypatch.setattr(rules, "WORTH_MOMENTS", 400)
    assert "Standardise" not in kinds(pv.train(data, epsilon=4.9, delta=1e-3))
    result = pv.train(data, epsilon=5.0, delta=1e-3, streams=pv.Streams.new(1))
    assert "Standardise" in kinds(result)
    assert 4.9 < result.ledger.guarantee(1e-3).epsilon <= 5.0
    path = tmp_path / "rows.npz"
    np.savez(path, x=data.x, y=data.y)
    target = [
        "--data",
        str(path),
        "--classes",
        "3",
        "--range",
        "0,200",
        "--epsilon",
        "5",
        "--delta",
        "1e-3",
        "--seed",
        "1",
    ]
    for number, more in enumerate(([], ["--normalise", "none"])):
        out = tmp_path / f"model{number}"
        assert main(["train", *target, *more, "--explain", "--out", str(out)]) == 0
        assert pv.verify(out).ok
        told = " ".join(capsys.readouterr().err.split())
        published = pv.load_model(out)
        names = [type(part).__name__ for part in published.children()]
        assert ("Standardise" in names) == (not more)
        assert f"normalisation {'none' if more else 'noisy moments'}" in told
        if not more:
            for name, value in result.model.state_dict().items():
                assert value.equal(published.state_dict()[name])


def test_few_examples_have_few_directions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By examples x epsilon, the same by Python and the command line."""
    monkeypatch.setattr(specs, "_LARGE", 200)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "images.npz"
    data = encoder_checks.images(60)
    np.savez(path, x=data.x, y=data.y)
    target = [
        "--data",
        str(path),
        "--classes",
        "3",
        "--range",
        "0,255",
        "--epsilon",
        "5",
        "--delta",
        "1e-3",
    ]
    with encoder_checks.few_images(350):
        for few, kept in ((301, 20), (300, 30)):
            for name, number in (
                ("_FEW", few),
                ("_LEAST_DIRECTIONS", 20),
                ("_DIRECTIONS", (30, 40)),
            ):
                monkeypatch.setattr(specs, name, number)
            spec = f"scatter:J=2,kept={kept}"
            result = pv.train(data, epsilon=5.0, delta=1e-3)
            assert result.facts["public_features"]["spec"] == spec
            out = tmp_path / f"model{kept}"
            assert main(["train", *target, "--out", str(out)]) == 0
            assert (
                json.loads((out / "privacy.json").read_text())["facts"]["public_features"]["spec"]
                == spec
            )
            assert main(["predict", str(out), "--data", str(path)]) == 0
