"""Where features come from, and heads from noisy sums (tests/transforms/checks_sources.py), and on
the command line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import privlearn as pv
from privlearn.cli import main
from privlearn.runs.checkpoint import Checkpoint
from tests.support.checks import CHECKS
from tests.support.steps import EachStep
from tests.transforms import checks_encoders as encoder_checks
from tests.transforms import checks_sources as feature_source_checks

OWN = sorted(name for name in vars(feature_source_checks) if name.startswith("check_"))
Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("name", OWN)
def test_feature_sources(name: str) -> None:
    CHECKS[name]()


@pytest.fixture
def rows(tmp_path: Path) -> str:
    data = encoder_checks.images(60)
    path = tmp_path / "images.npz"
    np.savez(path, x=data.x, y=data.y, x_test=data.x_test, y_test=data.y_test)
    return str(path)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    data = encoder_checks.images(60)
    path = tmp_path / "features"
    with encoder_checks.code(encoder_checks.LINEAR) as spec:
        feature_source_checks.folder_of(path, data, spec, normalise=True)
    return str(path)


TARGET = ["--classes", "3", "--range", "0,255", "--epsilon", "5", "--delta", "1e-3", "--seed", "1"]
COMMON = [*TARGET, "--epochs", "2"]


def facts_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "privacy.json").read_text())["facts"]
    return found


def plan_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "privacy.json").read_text())["plan"]
    return found


def test_a_folder_of_features_takes_the_place_of_rows(
    rows: str, folder: str, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "model"
    assert (
        main(
            ["train", "--data", rows, *COMMON, "--features", folder, "--explain", "--out", str(out)]
        )
        == 0
    )
    told = capsys.readouterr()
    assert "you declare public" in told.err
    assert "order is not checked" not in told.err
    assert "--data FOLDER_OF_FEATURES\n" in (out / "README.md").read_text()
    assert "estimates of probabilities" in (out / "README.md").read_text()
    assert "precomputed by a net of ours" in told.err
    assert "test accuracy" in told.out
    assert pv.verify(out).ok
    assert facts_of(out)["public_features"]["normalisation"] == "of each example"  # type: ignore[index]
    # Predictions for the folder are those for rows of features; test rows come first.
    assert main(["predict", str(out), "--data", folder]) == 0
    by_folder = capsys.readouterr().out
    features = np.load(Path(folder) / "test.npy")
    np.savez(tmp_path / "rows.npz", x=features)
    assert main(["predict", str(out), "--data", str(tmp_path / "rows.npz")]) == 0
    assert capsys.readouterr().out == by_folder
    assert len(by_folder.splitlines()) == 1 + len(features)
    assert main(["predict", str(out), "--data", folder, "--part", "train"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 61
    assert main(["predict", str(out), "--data", rows]) == 2
    assert "shape" in capsys.readouterr().err


def test_folders_that_do_not_fit_are_refused(
    rows: str, folder: str, tmp_path: Path, capsys: Capture
) -> None:
    out, raw, made = tmp_path / "model", tmp_path / "raw", tmp_path / "made"
    assert main(["train", "--data", rows, *COMMON, "--features", folder, "--out", str(out)]) == 0
    assert main(["train", "--data", rows, *COMMON, "--features", "raw", "--out", str(raw)]) == 0
    pv.transforms.save_features(made, np.zeros((60, 9), np.float32), encoder="theirs")
    capsys.readouterr()
    for model, data, said in (
        (raw, folder, "takes rows: give rows"),
        (out, str(made), "same encoder"),
        (out, str(raw), "features.json"),
    ):
        assert main(["predict", str(model), "--data", data]) == 2
        assert said in capsys.readouterr().err
    pv.transforms.save_features(
        tmp_path / "ours", np.zeros((60, 9), np.float32), encoder="a net of ours"
    )
    assert main(["predict", str(out), "--data", str(tmp_path / "ours"), "--part", "test"]) == 2
    assert "test" in capsys.readouterr().err
    end = ["--out", str(tmp_path / "refused")]
    for more, said in (
        (["--features", str(made), "--public", rows], "--public"),
        (["--features", folder, "--features-cache", "x"], "--features-cache"),
        (["--features", str(tmp_path / "nowhere")], "features.json"),
    ):
        assert main(["train", "--data", rows, *COMMON, *more, *end]) == 2
        assert said in capsys.readouterr().err
        assert not (tmp_path / "refused").exists()


def test_an_interrupted_run_with_moments_on_a_folder_goes_on(folder: str, tmp_path: Path) -> None:
    front, data = pv.transforms.read_features(folder, encoder_checks.images(60))
    plan = pv.Plan(
        pv.Poisson(0.5),
        epochs=2,
        clip=pv.Flat(0.1),
        front=(*front, pv.transforms.Moments(9, 5.0, 3.0)),
    )
    plan = plan.calibrate(epsilon=3.0, delta=1e-3)

    def run(**more: object) -> pv.Result:
        make = lambda shape: pv.models.build("linear", shape, 3, np.random.default_rng(0))  # noqa: E731
        loss = torch.nn.CrossEntropyLoss(reduction="none")
        return pv.dpsgd(plan, make, loss, data, streams=pv.Streams.new(0), **more)  # type: ignore[arg-type]

    def stop(done: int, steps: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    whole, file = run(), tmp_path / "run.checkpoint"
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=Checkpoint(file, every=1e-9), callbacks=EachStep(stop))
    resumed = run(checkpoint=file)
    assert resumed.ledger.event == plan.event()
    for name, value in whole.model.state_dict().items():
        assert value.equal(resumed.model.state_dict()[name])


def test_what_a_folder_does_not_say_is_said(rows: str, tmp_path: Path, capsys: Capture) -> None:
    """Without `of=` nobody can check the order; without test rows there are no test figures."""
    data, made, out = encoder_checks.images(60), tmp_path / "made", tmp_path / "model"
    pv.transforms.save_features(made, np.random.default_rng(0).random((60, 9)), encoder="theirs")
    (no_test, no_order) = pv.transforms.read_features(str(made), data)[1].remarks
    assert "test" in no_test
    assert "of=data" in no_order
    assert main(["train", "--data", rows, *COMMON, "--features", str(made), "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert "order is not checked" in " ".join(told.err.split())
    assert "in the file" not in told.out
    half = tmp_path / "half"
    pv.transforms.save_features(half, np.zeros((60, 9)), encoder="theirs", of=data)
    np.save(half / "test.npy", np.zeros((6, 9)))
    (aside,) = pv.transforms.read_features(str(half), data)[1].remarks
    assert "order" in aside
    for wrong, said in (
        ({"train": np.zeros((60, 9), int)}, "floating-point"),
        ({"train": np.zeros((60, 9)), "test": np.zeros((6, 8))}, r"\(9,\)"),
    ):
        with pytest.raises(pv.errors.BadInput, match=said):
            pv.transforms.save_features(tmp_path / "wrong", **wrong, encoder="theirs")


def test_code_of_ones_own_is_named_where_it_is_needed(
    rows: str, tmp_path: Path, capsys: Capture
) -> None:
    """By the card, and by the refusal to predict without it; a folder of features is not what it
    takes.
    """
    out, made = tmp_path / "model", tmp_path / "made"
    pv.transforms.save_features(made, np.zeros((60, 9)), encoder="theirs")
    with encoder_checks.code(encoder_checks.LINEAR) as spec:
        assert main(["train", "--data", rows, *COMMON, "--features", spec, "--out", str(out)]) == 0
        assert (
            f"privlearn predict . --data DATA --features {spec}\n"
            in (out / "README.md").read_text()
        )
        capsys.readouterr()
        assert main(["predict", str(out), "--data", rows]) == 2
        assert f"give it yourself with --features {spec}" in capsys.readouterr().err
        assert main(["predict", str(out), "--data", rows, "--features", spec]) == 0
        assert main(["predict", str(out), "--data", str(made), "--features", spec]) == 2
        assert f"makes features of them itself, by {spec}" in " ".join(
            capsys.readouterr().err.split()
        )


def test_advice_on_budgets_of_moments(capsys: Capture) -> None:
    """Numbers, not classes; epsilon alone where batches are Poisson."""
    common = ["budget", "--examples", "6000", "--normalise", "moments"]
    assert main([*common, "--numbers", "64", "--epsilon", "2"]) == 0
    assert "means and variances" in capsys.readouterr().out
    for more, said, unsaid in (
        (["--epsilon", "2"], "--numbers P", "--classes"),
        (["--numbers", "64", "--noise-multiplier", "2"], "--epsilon E", "--rho"),
        (
            ["--numbers", "64", "--noise-multiplier", "2", "--sampling", "shuffle"],
            "--rho R",
            "--classes",
        ),
    ):
        assert main([*common, *more]) == 2
        told = capsys.readouterr().err
        assert said in told
        assert unsaid not in told
    assert (
        main(["budget", "--examples", "6000", "--select", "4", "--numbers", "64", "--epsilon", "2"])
        == 2
    )
    assert "--classes K" in capsys.readouterr().err


def test_paid_components_are_the_same_by_either_name(
    rows: str, tmp_path: Path, capsys: Capture
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    assert (
        main(
            ["train", "--data", rows, *COMMON, "--pca", "4", "--pca-noise", "9", "--out", str(one)]
        )
        == 0
    )
    assert (
        main(
            [
                "train",
                "--data",
                rows,
                *COMMON,
                "--features",
                "pca:4",
                "--pca-noise",
                "9",
                "--out",
                str(other),
            ]
        )
        == 0
    )
    for file in ("model.safetensors", "config.json", "privacy.json", "README.md", "card.html"):
        assert (one / file).read_bytes() == (other / file).read_bytes()
    capsys.readouterr()
    for more, said in (
        (["--features", "pca:4", "--pca", "4"], "the same"),
        (["--features", "pca:4", "--pca", "3"], "both ask"),
        (["--features", "pcas"], "pca:L"),
        (["--features", "pcas"], "scatter-random"),
        (["--features", "pca:x"], "pca:60"),
        (["--features", "pca:4", "--method", "pate"], "--pca"),
        (["--features", "pca:4", "--method", "features"], "--pca"),
    ):
        assert main(["train", "--data", rows, *TARGET, *more, "--out", str(tmp_path / "no")]) == 2
        assert said in capsys.readouterr().err


def test_moments_are_paid_for_on_the_command_line(
    rows: str, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "model"
    for more, numbers, norm in (([], 256, 8.0), (["--features", "scatter:J=1"], 576, 24.0)):
        target = tmp_path / f"model{numbers}"
        assert (
            main(
                [
                    "train",
                    "--data",
                    rows,
                    *COMMON,
                    *more,
                    "--normalise",
                    "moments",
                    "--explain",
                    "--out",
                    str(target),
                ]
            )
            == 0
        )
        assert pv.verify(target).ok
        before = plan_of(target)["front"][-1]  # type: ignore[index]
        assert len(plan_of(target)["front"]) == 1 + bool(more)  # type: ignore[arg-type]
        assert (before["kind"], before["features"], before["row_norm"]) == (
            "moments",
            numbers,
            pytest.approx(norm),
        )  # type: ignore[index]
        assert main(["predict", str(target), "--data", rows]) == 0
        rate = facts_of(target)["optimizer"]["lr"]  # type: ignore[index]
        assert f"{rate:.4g}" in capsys.readouterr().err
    for more, said in (
        (["--normalise", "moments", "--pca", "4"], "--pca"),
        (["--normalise", "moments", "--select", "4"], "--select"),
        (["--normalise", "mean"], "norm:power=1"),
        (["--normalise", "moments:share=2"], "share"),
        (["--normalise", "moments", "--method", "features"], "--normalise"),
        (["--normalise", "moments", "--method", "dpmac"], "--normalise"),
        (["--row-norm", "3"], "--row-norm"),
    ):
        assert main(["train", "--data", rows, *TARGET, *more, "--out", str(out)]) == 2
        assert said in capsys.readouterr().err
    budget = [
        "budget",
        "--examples",
        "60000",
        "--epsilon",
        "2",
        "--classes",
        "10",
        "--numbers",
        "64",
    ]
    assert main([*budget, "--normalise", "moments:share=0.1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["epsilon"] <= 2.0
    assert found["plan"]["before"][0]["features"] == 64
    assert main([*budget, "--normalise", "moments"]) == 0
    assert "means and variances" in capsys.readouterr().out


@pytest.mark.parametrize("mode", ["statistics", "least-squares", "rows"])
def test_heads_from_statistics_behind_public_features(
    mode: str, rows: str, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "model"
    options = ["--method", "features", "--mode", mode, "--features", "scatter:J=1"]
    assert main(["train", "--data", rows, *TARGET, *options, "--out", str(out)]) == 0
    assert pv.verify(out).ok
    found = facts_of(out)
    assert found["public_features"]["spec"] == "scatter:J=1"  # type: ignore[index]
    plan = plan_of(out)
    assert plan["features"] == 576
    assert plan["row_norm"] == pytest.approx(24.0)
    assert plan.get("coordinate_bound") is None
    capsys.readouterr()
    assert main(["predict", str(out), "--data", rows]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 61
    model = pv.load_model(out)
    assert model(torch.zeros(2, 16, 16)).shape == (2, 3)


def test_least_squares_on_a_folder_and_in_a_budget(
    rows: str, folder: str, tmp_path: Path, capsys: Capture
) -> None:
    out, least = tmp_path / "model", ["--method", "features", "--mode", "least-squares"]
    assert (
        main(["train", "--data", rows, *TARGET, *least, "--features", folder, "--out", str(out)])
        == 0
    )
    assert pv.verify(out).ok
    assert "least squares" in (out / "README.md").read_text()
    assert main(["predict", str(out), "--data", folder]) == 0
    budget = [
        "budget",
        *least,
        "--classes",
        "10",
        "--numbers",
        "300",
        "--epsilon",
        "1",
        "--examples",
        "60000",
    ]
    capsys.readouterr()
    assert main([*budget, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    plan = pv.statistics.LeastSquaresPlan(10, 300, 0.5 * 300**0.5).calibrate(
        epsilon=1.0, delta=1e-5
    )
    assert found["plan"]["noise_multiplier"] == pytest.approx(plan.noise)
    assert found["class_sum_noise"] == pytest.approx(plan.noise_of_sums)
    assert main(budget) == 0
    assert "least squares" in capsys.readouterr().out
    assert (
        main(
            ["train", "--data", rows, *TARGET, *least, "--keep", "5", "--out", str(tmp_path / "no")]
        )
        == 2
    )
    assert "--keep" in capsys.readouterr().err
    with encoder_checks.code(encoder_checks.LINEAR) as spec:
        options = [*least, "--features", spec]
        assert (
            main(["train", "--data", rows, *TARGET, *options, "--out", str(tmp_path / "no")]) == 2
        )
        assert "--row-norm" in capsys.readouterr().err
        assert (
            main(
                [
                    "train",
                    "--data",
                    rows,
                    *TARGET,
                    *options,
                    "--row-norm",
                    "9",
                    "--out",
                    str(tmp_path / "yes"),
                ]
            )
            == 0
        )
