"""The plugin in a session of pytest of its own, data of each form, and doors of privlearn."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import privlearn as pv
from privlearn.errors import BadInput
from privlearn.neighbours import ReleaseRecorder, compare_runs
from privlearn.neighbours.neighbouring_rows import count_rows, make_neighbours
from privlearn.opacus import PrivacyEngine
from tests.neighbours.loops import BATCH, CLIP, ROWS, data, network

pytest_plugins = ["pytester"]

PLUGIN = ("-p", "no:privlearn", "-p", "privlearn.neighbours.plugin", "-p", "no:cacheprovider")


def test_the_plugin_imports_nothing_heavy() -> None:
    script = (
        "import sys, privlearn.neighbours.plugin; "
        "print(*({'torch', 'numpy', 'privlearn.core'} & set(sys.modules)))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert not printed.strip()


def test_the_package_names_the_plugin() -> None:
    text = (pytest.importorskip("tests.support.history").ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nprivlearn = "privlearn.neighbours.plugin"' in text


@pytest.mark.parametrize("options", [(), ("--dp-neighbours",)])
def test_other_tests_are_left_alone(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    pytester.makepyfile(
        """
        import pytest, sys

        @pytest.fixture
        def rows():
            return 3

        @pytest.mark.parametrize("number", [1, 2])
        def test_ordinary(rows, number, monkeypatch):
            assert rows == 3

        class TestClass:
            def test_method(self, tmp_path):
                assert tmp_path.is_dir()
        """
    )
    result = pytester.runpytest_inprocess(*PLUGIN, "--strict-markers", *options)
    result.assert_outcomes(passed=3)
    assert "neighbouring runs" not in result.stdout.str()


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("@pytest.mark.dp_neighbours\ndef test_it(dp_rows): pass", "has no data="),
        ("@pytest.mark.dp_neighbours(data=[1, 2])\ndef test_it(): pass", "does not take dp_rows"),
        ("def test_it(dp_rows): pass", "without the mark"),
        (
            "@pytest.mark.dp_neighbours(data=lambda: 1 / 0)\ndef test_it(dp_rows): pass",
            "ZeroDivisionError",
        ),
        (
            "@pytest.mark.dp_neighbours(data=torch.ones(3), adjacency='other')\n"
            "def test_it(dp_rows): pass",
            "adjacency is 'other'",
        ),
    ],
)
def test_wrong_uses_say_what_is_expected(pytester: pytest.Pytester, test: str, said: str) -> None:
    pytester.makepyfile(f"import pytest, torch\n{test}")
    result = pytester.runpytest_inprocess(*PLUGIN, "--dp-neighbours")
    assert result.ret == 1
    assert said in result.stdout.str()


def test_methods_and_parameters_are_compared(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from tests.neighbours.loops import data, plain_loop

        class TestTraining:
            @pytest.mark.dp_neighbours(data=data(), noise_multiplier=1.0, runs=1)
            @pytest.mark.parametrize("bug", ["", "by layers"])
            def test_loop(self, dp_rows, dp_recorder, bug):
                plain_loop(dp_rows, dp_recorder, bug)
        """
    )
    # In a process of its own: pytester forgets modules, and PyTorch can't be imported twice.
    result = pytester.runpytest_subprocess(*PLUGIN, "--dp-neighbours")
    result.assert_outcomes(passed=1, failed=1)
    text = result.stdout.str()
    assert "neighbouring runs" in text
    assert "times as much" in text


@pytest.mark.parametrize(
    "rows",
    [
        torch.arange(6.0).view(3, 2),
        np.arange(6, dtype=np.float32).reshape(3, 2),
        pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": ["x", "y", "z"]}),
        {"x": torch.ones(3, 2), "y": np.arange(3)},
        [torch.ones(3, 2), torch.arange(3)],
    ],
    ids=["tensor", "array", "table", "dict", "list"],
)
@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one", "zero_out"])
def test_rows_of_each_form_have_neighbours(rows: Any, adjacency: str) -> None:
    first, others = make_neighbours(rows, adjacency, {"filled": math.nan}, None)
    assert count_rows(first) == (2 if adjacency == "add_remove" else 3)
    assert len(others) == (5 if adjacency == "replace_one" else 6)
    assert {count_rows(other) for other in others.values()} == {3}
    assert all(type(other) is type(rows) for other in others.values())


def test_rows_that_make_no_neighbours_are_refused() -> None:
    with pytest.raises(BadInput, match="equally long"):
        compare_runs(lambda rows, recorder: None, (torch.ones(3), torch.ones(2)))
    with pytest.raises(BadInput, match="at least two"):
        compare_runs(lambda rows, recorder: None, torch.ones(1))


def test_a_first_run_that_fails_raises_its_error() -> None:
    with pytest.raises(ZeroDivisionError):
        compare_runs(lambda rows, recorder: 1 / 0, torch.ones(3))


def own_loop(rows: Any, recorder: ReleaseRecorder) -> Any:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(*rows), batch_size=int(BATCH), shuffle=True)
    target = {"epsilon": 3.0, "delta": 1e-5, "epochs": 1, "max_grad_norm": CLIP}
    private = pv.make_private(model, optimizer, loader, examples=ROWS, **target)
    for batch in private.batches():
        private.step(batch, lambda m, b: cross_entropy(m(b[0]), b[1], reduction="none"))
    private.close()
    return model


def in_opacus_form(rows: Any, recorder: ReleaseRecorder) -> Any:
    model = network()
    model, optimizer, loader = PrivacyEngine().make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(*rows), batch_size=int(BATCH), shuffle=True),
        target_epsilon=3.0,
        target_delta=1e-5,
        epochs=1,
        max_grad_norm=CLIP,
        examples=ROWS,
    )
    for x, y in loader:
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(model(x), y).backward()
        optimizer.step()
    return model


def logistic(rows: Any, recorder: ReleaseRecorder) -> Any:
    options = {"examples": ROWS, "epochs": 2}
    estimator = pv.sklearn.DPLogisticRegression(
        epsilon=1, classes=[0, 1], bounds=(-4, 4), options=options
    )
    return estimator.fit(rows[0].numpy().astype(float), rows[1].numpy())


@pytest.mark.parametrize("door", [own_loop, in_opacus_form, logistic])
def test_doors_of_privlearn_keep_their_claims(door: Any) -> None:
    comparison = compare_runs(door, data(), runs=1)
    assert comparison.ok, comparison.report()
    assert 0.9 < comparison.largest_ratio < 1.001, comparison.report()


def as_estimator_rows() -> Any:
    """Inputs, classes and weights."""
    x, y = (part.numpy() for part in data())
    return x.astype(float), y, np.ones(len(y), int)


def test_a_row_of_weight_0_is_absent() -> None:
    def boost(rows: Any, recorder: ReleaseRecorder) -> Any:
        x, y, weights = rows
        estimator = pv.sklearn.DPBoostingClassifier(epsilon=1, classes=[0, 1], bounds=(-4, 4))
        return estimator.fit(x, y, sample_weight=weights)

    x, y, weights = as_estimator_rows()
    options: dict[str, Any] = {"adjacency": "zero_out", "absent": (x[:1], y[:1], 0 * weights[:1])}
    comparison = compare_runs(boost, (x, y, weights), runs=1, **options)
    assert comparison.ok, comparison.report()
    assert 0.9 < comparison.largest_ratio < 1.001, comparison.report()


def test_joint_releases_keep_their_claim() -> None:
    """Statistics with a sensitivity each, which are released together."""

    def fisher(rows: Any, recorder: ReleaseRecorder) -> Any:
        estimator = pv.sklearn.DPFisherClassifier(epsilon=1, classes=[0, 1], bounds=(-4, 4))
        return estimator.fit(*rows)

    comparison = compare_runs(fisher, as_estimator_rows()[:2], runs=1)
    (problem,) = comparison.problems
    assert "claimed for zero_out" in problem
    assert 0.9 < comparison.largest_ratio < 1.001, comparison.report()


def test_global_generators_and_classes_are_left_as_they_were() -> None:
    from privlearn.core import streams
    from privlearn.core.mechanisms import release

    before = torch.get_rng_state(), vars(release)["_add_noise"], dict(vars(streams.RandomStream))
    compare_runs(own_loop, data(), runs=1)
    assert torch.equal(before[0], torch.get_rng_state())
    assert vars(release)["_add_noise"] is before[1]
    assert dict(vars(streams.RandomStream)) == before[2]
