"""Test metrics: against scikit-learn and closed forms, by a trained model, the command line and a
published folder.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, log_loss, r2_score, roc_auc_score
from torch import nn

import privlearn as pv
from privlearn.cli import main
from privlearn.errors import BadInput
from privlearn.methods.statistics.metric_figures import Metrics
from privlearn.metrics import calibration_error, of_classes, of_values

RNG = np.random.default_rng(0)


def test_figures_of_classes_are_those_of_scikit_learn() -> None:
    for classes in (2, 3):
        # rounded, so that many are equal
        probabilities = RNG.dirichlet(np.ones(classes), 200).round(1)
        probabilities /= probabilities.sum(1, keepdims=True)
        y = RNG.integers(classes, size=200)
        metrics = of_classes(probabilities, y)
        predicted = probabilities.argmax(1)
        assert metrics["accuracy"] == (predicted == y).mean()
        assert metrics["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, predicted))
        assert metrics["log_loss"] == pytest.approx(log_loss(y, probabilities))
        theirs = roc_auc_score(
            y, probabilities[:, 1] if classes == 2 else probabilities, multi_class="ovr"
        )
        assert metrics["auc"] == pytest.approx(theirs)
        assert sum(map(sum, metrics.confusion_matrix or ())) == metrics.rows == 200


def test_calibration_error_of_known_cases() -> None:
    right = np.arange(100) < 80
    assert calibration_error(np.full(100, 0.8), right) == pytest.approx(0.0)
    assert calibration_error(np.full(100, 1.0), right) == pytest.approx(0.2)
    assert calibration_error(
        np.repeat([0.6, 0.9], 50), np.repeat([True, False], 50)
    ) == pytest.approx(0.65)


def test_classes_that_no_row_has_leave_out_what_needs_them() -> None:
    metrics = of_classes(np.array([[0.9, 0.1], [0.6, 0.4]]), np.array([0, 0]))
    assert "auc" not in metrics.figures
    assert metrics["balanced_accuracy"] == 1.0
    three = of_classes(np.eye(3)[[0, 1, 1]], np.array([0, 1, 1]))  # none of class 2
    assert three["auc"] == three["accuracy"] == 1.0
    assert math.isfinite(three["log_loss"])


def test_figures_of_values() -> None:
    y, predicted = np.array([1.0, 2.0, 4.0]), np.array([1.0, 3.0, 2.0])
    metrics = of_values(predicted, y)
    assert metrics["rmse"] == pytest.approx(math.sqrt(5 / 3))
    assert metrics["mae"] == 1.0
    assert metrics["r2"] == pytest.approx(r2_score(y, predicted))
    same = np.ones(3)
    assert [of_values(guess, same)["r2"] for guess in (same, y)] == [
        r2_score(same, guess) for guess in (same, y)
    ]
    network = nn.Linear(1, 1)
    nn.init.ones_(network.weight)
    nn.init.zeros_(network.bias)
    assert pv.evaluate(network, predicted[:, None].astype(np.float32), y)["rmse"] == pytest.approx(
        metrics["rmse"]
    )


def test_a_result_a_published_model_and_the_command_line_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = RNG.random((120, 6)).astype(np.float32)
    y = (x[:, 0] > x[:, 1]).astype(np.int64)
    np.savez(tmp_path / "rows.npz", x=x[:90], y=y[:90], x_test=x[90:], y_test=y[90:])
    given = [
        "train",
        "--data",
        str(tmp_path / "rows.npz"),
        "--classes",
        "2",
        "--range",
        "0,1",
        "--epsilon",
        "9",
    ]
    assert (
        main([*given, "--epochs", "3", "--seed", "1", "--out", str(tmp_path / "model"), "--json"])
        == 0
    )
    said = json.loads(capsys.readouterr().out)
    data = pv.load(str(tmp_path / "rows.npz"), classes=2, value_range=(0, 1))
    result = pv.train(data, epsilon=9, epochs=3, streams=pv.Streams.new(1))
    metrics = pv.evaluate(result, data)
    assert dict(metrics.figures) == pytest.approx(said["test_metrics"])
    assert [*map(list, metrics.confusion_matrix or ())] == said["test_confusion_matrix"]
    assert said["test_rows"] == metrics.rows == 30
    published = pv.evaluate(pv.load_model(tmp_path / "model"), x[90:], y[90:])
    assert dict(published.figures) == pytest.approx(dict(metrics.figures))
    assert published.confusion_matrix == metrics.confusion_matrix
    card = (tmp_path / "model" / "README.md").read_text()
    assert f"| log loss | {metrics['log_loss']:.4f} on 30 rows |" in card
    assert "the test data are not protected" in card
    pv.publish(
        result, tmp_path / "again", delta=1e-5, test_metrics=metrics.figures, test_rows=metrics.rows
    )
    assert "accuracy: " in repr(metrics)
    assert "no guarantee covers these rows" in repr(metrics)


def test_what_does_not_fit_is_refused() -> None:
    net, x = nn.Linear(4, 3), torch.zeros(5, 4)
    data = pv.Dataset(np.zeros((5, 4)), np.zeros(5, np.int64))
    for arguments, said in (
        ((net, x), "without targets"),
        ((net, x, [0, 1]), "5 rows and 2 targets"),
        ((net, x, [0, 1, 2, 3, 0]), "expected classes from 0 to 2"),
        ((net, x, [0.5, 1, 2, 1, 0]), "not whole numbers"),
        ((net, torch.zeros(5, 7), [0] * 5), "the model cannot run on these rows"),
        ((net, x[:0], []), "at least one"),
        ((net, data), "no test rows"),
        ((net, data, [0] * 5), "leave the others out"),
    ):
        with pytest.raises(BadInput, match=said):
            pv.evaluate(*arguments)
    assert Metrics({"rmse": 1.0}, 2).to_json() == {"rmse": 1.0, "rows": 2}


def test_rows_in_the_forms_of_pytorch_are_evaluated() -> None:
    torch.manual_seed(0)
    net, x, y = nn.Linear(4, 3), torch.randn(30, 4), torch.randint(3, (30,))
    expected = pv.evaluate(net, x, y)
    rows = torch.utils.data.TensorDataset(x, y)
    listed = torch.utils.data.Subset(rows, range(30))
    for data in ((x, y), (x.numpy(), y.numpy()), rows, listed):
        assert pv.evaluate(net, data).figures == expected.figures
    loader: Any = torch.utils.data.DataLoader(rows, batch_size=4)
    with pytest.raises(BadInput, match=r"is a DataLoader, without targets.*loader\.dataset"):
        pv.evaluate(net, loader)
    assert pv.evaluate(net, loader.dataset).figures == expected.figures


def test_train_says_how_rows_of_pytorch_are_declared() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(60, 4), torch.randint(3, (60,))
    rows = torch.utils.data.TensorDataset(x, y)
    for dataset, said in (
        (rows, "pv.Dataset(*dataset.tensors, classes=K)"),
        ((x, y), "pv.Dataset(*dataset, classes=K)"),
        (torch.utils.data.DataLoader(rows), "pv.Dataset(*dataset.dataset.tensors, classes=K)"),
        (torch.utils.data.Subset(rows, [0]), "pv.Dataset(x, y, classes=K)"),
        (3, "a Dataset, such as"),
    ):
        with pytest.raises(BadInput, match=re.escape(said)):
            pv.train(cast(Any, dataset), epsilon=3)
    pv.train(pv.Dataset(*rows.tensors, classes=3), epsilon=3, epochs=1)


def test_paid_metrics_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = RNG.random((300, 3)).astype(np.float32)
    y = (x[:, 0] > x[:, 1]).astype(np.int64)
    np.savez(tmp_path / "rows.npz", x=x[:150], y=y[:150], x_test=x[150:], y_test=y[150:])
    given = [
        "train",
        "--data",
        str(tmp_path / "rows.npz"),
        "--classes",
        "2",
        "--range",
        "0,1",
        "--epsilon",
        "2",
    ]
    paid = [*given, "--epochs", "2", "--paid-metrics", "1.5"]
    for number, method in enumerate(
        (["--normalise", "none"], ["--method", "features"], ["--method", "boosting"])
    ):
        own = [*given, "--paid-metrics", "1.5", *["--epochs", "2"] * (not number)]
        out = tmp_path / f"model{number}"
        assert main([*own, *method, "--out", str(out), "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        verified = pv.verify(out)
        assert verified.ok
        assert 2.0 < verified.epsilon == said["ledger"]["epsilon"] < 3.5  # type: ignore[operator]
        assert verified.run_epsilon == pytest.approx(said["epsilon"])
        assert said["paid_metrics"]["epsilon"] == pytest.approx(1.5, rel=0.01)
        assert said["paid_metrics"]["errors"]["accuracy"] > 0
        exact = pv.evaluate(pv.load_model(out), x[150:], y[150:])
        assert said["test_confusion_matrix"] != [*map(list, exact.confusion_matrix or ())]
        card = (out / "README.md").read_text()
        assert "Released with noise" in card
        assert "not protected" not in card.split("## How it was trained")[0]

    file = ["--ledger", str(tmp_path / "ledger.json"), "--normalise", "none"]
    assert main(["ledger", file[1], "--epsilon", "4"]) == 0
    assert main([*paid, *file, "--out", str(tmp_path / "on-a-ledger")]) == 0
    text = capsys.readouterr().out
    assert "released with noise" in text
    assert "±" in text
    assert main([*paid, *file, "--out", str(tmp_path / "no-room")]) == 2
    assert not (tmp_path / "no-room").exists()


def test_paid_metrics_that_cannot_be_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = RNG.random((60, 3)).astype(np.float32), RNG.integers(2, size=60)
    np.savez(tmp_path / "rows.npz", x=x, y=y)
    given = [
        "train",
        "--data",
        str(tmp_path / "rows.npz"),
        "--classes",
        "2",
        "--range",
        "0,1",
        "--epsilon",
        "2",
    ]
    for more, said in (
        (["--paid-metrics", "1"], "needs test rows"),
        (
            ["--paid-metrics", "-1", "--test-data", str(tmp_path / "rows.npz")],
            "--paid-metrics is -1",
        ),
        (["--metric", "fame"], "invalid choice"),
    ):
        if "--test-data" in more:
            np.savez(tmp_path / "rows.npz", x=x, y=y, x_test=1 - x, y_test=y)
            more = more[:2]
        assert main([*given, *more, "--out", str(tmp_path / "model")]) == 2
        assert said in capsys.readouterr().err
    plan = pv.statistics.MetricsPlan(2, noise_multiplier=1.0)
    for arguments, expected in (
        ({"paid": 1.0}, "expected pv.statistics.MetricsPlan"),
        ({"paid": pv.statistics.MetricsPlan(2)}, "no noise yet"),
        ({"paid": pv.statistics.MetricsPlan(3, noise_multiplier=1.0)}, "expected \\(2, 3\\)"),
        ({"ledger": pv.Ledger()}, "without paid"),
        ({"paid": plan, "targets": [0, 1, 2, 0, 1]}, "whole numbers from 0 to 1"),
        ({"paid": plan, "targets": [0.5] * 5}, "whole numbers from 0 to 1"),
    ):
        with pytest.raises(BadInput, match=expected):
            pv.evaluate(
                nn.Linear(4, 2), torch.zeros(5, 4), **{"targets": [0, 1, 0, 1, 0], **arguments}
            )


def test_the_metric_that_is_shown_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [
        "train",
        "--data",
        "breast-cancer",
        "--method",
        "features",
        "--epsilon",
        "2",
        "--metric",
        "log-loss",
    ]
    assert main([*given, "--out", str(tmp_path / "model")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(
        line.split()[:3] == ["test", "log", "loss"] and "on 114 rows" in line for line in lines
    )
    assert any(line.split()[:2] == ["test", "accuracy"] and "AUC" in line for line in lines)
