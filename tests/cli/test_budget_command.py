"""`privlearn budget`, through the command line's own function."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privlearn._public import kinds
from privlearn.cli import main
from privlearn.core.mechanisms.correlated import Correlation
from privlearn.core.sampling import Sampler
from tests.support.registries import completed


def budget(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["budget", *options, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


SHUFFLED = (
    "--examples",
    "60000",
    "--sampling",
    "shuffle",
    "--batch-size",
    "600",
    "--rho",
    "0.78125",
)


@pytest.mark.parametrize(
    ("options", "epochs"),
    [
        (("--noise-multiplier", "8"), 100),
        (("--noise-multiplier", "10", "--schedule", "exp:k=0.01"), 71),
        (("--noise-multiplier", "10", "--schedule", "time:k=0.05"), 38),
        (("--noise-multiplier", "10", "--schedule", "step:k=0.6,period=10"), 31),
        (("--noise-multiplier", "10", "--schedule", "poly:k=3,end=2,period=100"), 44),
    ],
)
def test_table_two(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], epochs: int
) -> None:
    found = budget(capsys, *SHUFFLED, *options)
    assert found["epochs"] == epochs
    assert found["steps"] == 100 * epochs
    assert len(found["noise_multipliers"]) == epochs
    assert found["adjacency"] == "zero_out"
    assert found["rho"] <= 0.78125 * (1 + 1e-12)


def test_keys_and_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    found = budget(
        capsys,
        "--examples",
        "60000",
        "--batch-size",
        "600",
        "--noise-multiplier",
        "6",
        "--epochs",
        "400",
    )
    assert set(found) == {
        "adjacency",
        "delta",
        "epsilon",
        "method",
        "rho",
        "epochs",
        "steps",
        "noise_multipliers",
        "guarantees",
        "group_size",
        "unspent",
        "plan",
        "attack",
    }
    assert found["epsilon"] == pytest.approx(1.283, abs=2e-3)
    assert found["rho"] is None
    assert found["method"] == "pld"
    bounds = {
        row["method"]: row["epsilon"] for row in found["guarantees"] if row["kind"] == "bound"
    }
    assert min(bounds.values()) == found["epsilon"]
    assert bounds["moments-2016"] == pytest.approx(1.6705, abs=1e-3)
    (estimate,) = (row for row in found["guarantees"] if row["kind"] == "estimate")
    assert estimate["epsilon"] == pytest.approx(2.3732, abs=1e-3)


@pytest.mark.parametrize("sampling", ["poisson", "partition", "shuffle", "full"])
def test_a_target_is_met_from_below(capsys: pytest.CaptureFixture[str], sampling: str) -> None:
    size = () if sampling == "full" else ("--batch-size", "250")
    found = budget(
        capsys,
        "--examples",
        "5000",
        "--sampling",
        sampling,
        *size,
        "--epsilon",
        "3",
        "--epochs",
        "20",
        "--schedule",
        "step:k=0.8,period=5",
    )
    assert 2.991 <= found["epsilon"] <= 3
    assert len(set(found["noise_multipliers"])) == 4


def test_a_target_with_given_noise_ends_training(capsys: pytest.CaptureFixture[str]) -> None:
    options = (
        "--examples",
        "5000",
        "--batch-size",
        "250",
        "--epsilon",
        "1",
        "--noise-multiplier",
        "2",
    )
    longest = budget(capsys, *options)["epochs"]
    assert budget(capsys, *options, "--epochs", "3")["epochs"] == 3
    plain = ("--examples", "5000", "--batch-size", "250", "--noise-multiplier", "2", "--epochs")
    assert (
        budget(capsys, *plain, str(longest))["epsilon"]
        <= 1
        < budget(capsys, *plain, str(longest + 1))["epsilon"]
    )


def test_per_layer_clipping_costs_the_same_for_the_same_multiplier(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ("--examples", "600", "--batch-size", "60", "--noise-multiplier", "2")
    layer, flat = budget(capsys, *options, "--clip", "layer"), budget(capsys, *options)
    assert layer.pop("plan")["clip"]["kind"] == "layer"
    assert flat.pop("plan")["clip"]["kind"] == "flat"
    assert layer == flat


@pytest.mark.parametrize("method", ["dpsgd", "dpmac"])
def test_a_run_is_priced_with_the_batches_that_it_takes(
    method: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """20,000 rows are enough that the two methods have other batches where nobody says how large
    they are.
    """
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "rows.npz", x=rng.random((20_000, 2), np.float32), y=rng.integers(2, size=20_000)
    )
    options = ("--method", method, "--examples", "20000", "--epsilon", "1", "--epochs", "1")
    data = (
        "--data",
        str(tmp_path / "rows.npz"),
        "--classes",
        "2",
        "--range",
        "0,1",
        "--model",
        "mlp:2",
    )
    assert (
        main(["train", *options, *data, "--seed", "0", "--json", "--out", str(tmp_path / "model")])
        == 0
    )
    trained, priced = json.loads(capsys.readouterr().out), budget(capsys, *options)
    for name in ("epsilon", "steps", "noise_multipliers"):
        assert priced[name] == trained[name]
    assert priced["steps"] == {"dpsgd": 16, "dpmac": 61}[method]


def test_a_configuration_file_gives_options_and_the_command_line_wins(
    capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        "examples = 60000\nbatch-size = 600\nnoise_multiplier = 6.0\nepochs = 400\nsampling = "
        '"shuffle"\n'
    )
    assert budget(capsys, "--config", str(path))["adjacency"] == "zero_out"
    found = budget(capsys, "--config", str(path), "--sampling", "poisson")
    assert found["epsilon"] == pytest.approx(1.283, abs=2e-3)


def test_a_configuration_file_of_another_method_is_priced_as_that(
    capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    """What only training needs is passed over; what would change the price is not."""
    path = tmp_path / "plan.toml"
    path.write_text('method = "features"\nexamples = 1000\nepsilon = 2\nseed = 3\ndevice = "cpu"\n')
    found = budget(capsys, "--config", str(path), "--numbers", "8", "--classes", "3")
    assert found["epochs"] is None
    assert found["plan"]["classes"] == 3
    path.write_text('features = "pca:60"\nexamples = 1000\nepsilon = 2\n')
    assert main(["budget", "--config", str(path)]) == 2
    assert "'features' in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            ("--method", "features", "--device", "cpu"),
            "--method features does not go with --device",
        ),
        (
            ("--method", "pate", "--checkpoint-every", "3"),
            "--method pate does not go with --checkpoint-every",
        ),
        (("--method", "dpmac", "--explain"), "--method dpmac does not go with --explain"),
        (("--keep", "3"), "--keep is for --method features"),
        (("--z-rate", "0.1"), "--z-rate is for --method dpmac"),
    ],
)
def test_options_that_a_method_does_not_take_are_refused(
    options: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    out = tmp_path / "model"
    assert main(["train", "--data", "digits", "--epsilon", "1", *options, "--out", str(out)]) == 2
    assert reason in capsys.readouterr().err
    assert not out.exists()


def test_the_advice_on_noisy_rows_names_options(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["budget", "--method", "features", "--numbers", "10", "--classes", "3"]
    assert main([*words, "--mode", "rows", "--examples", "200", "--epsilon", "0.5"]) == 0
    said = " ".join("".join(capsys.readouterr()).split())
    assert "will hardly be better than always the most frequent class" in said
    assert "spend more, or release statistics (--mode statistics)" in said
    assert "pv." not in said


def test_for_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["budget", "--examples", "60000", "--batch-size", "600", "--epsilon", "2"]) == 0
    shown = capsys.readouterr().out
    assert "pld" in shown
    assert "the tightest" in shown
    assert "no outcome becomes more than" in shown


def test_planning_and_verifying_never_import_torch() -> None:
    code = (
        "import sys; from privlearn.cli import main;main(['budget', '--examples', '1000', "
        "'--batch-size', '100', '--epsilon', '2', '--pca', '5']);main(['verify', 'nowhere']); "
        "main(['data', 'list']);import privlearn; privlearn.Plan; privlearn.verify; "
        "privlearn.Flat; privlearn.core.schedules;assert 'torch' not in sys.modules, 'torch was "
        "imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


PLANNED = ("--examples", "60000", "--batch-size", "600", "--epochs", "20")


def test_samplers_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    """Each as a plan of its own has it; the one with the least noise in the weights first."""
    found = budget(capsys, *PLANNED, "--epsilon", "2", "--sampling", "best")
    rows = {(row["sampling"], row["mechanism"]): row for row in found["samplers"]}
    names = kinds(Sampler).keys() - {"full"}  # whose one batch is all rows
    independent = {(name, "independent") for name in names}
    assert set(rows) == independent | {
        ("cyclic-poisson", "banded"),
        ("cyclic-partition", "banded"),
        *(("fixed", mechanism) for mechanism in kinds(Correlation)),
    }
    assert found["best"] == "cyclic-partition" == found["samplers"][0]["sampling"]
    assert found["train"] == next(
        row for row in found["samplers"] if row["adjacency"] == "add_remove"
    )
    noise = [row["noise_in_weights"] for row in found["samplers"]]
    assert noise == sorted(noise)
    for (name, mechanism), row in rows.items():
        alone = budget(
            capsys, *PLANNED, "--epsilon", "2", "--sampling", name, "--mechanism", mechanism
        )
        assert row["noise_multiplier"] == alone["noise_multipliers"][0]
        assert (row["adjacency"], row["epsilon"]) == (alone["adjacency"], alone["epsilon"])


def test_noise_for_momentum_is_compared_with_independent_noise_under_momentum(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Momentum makes the noise in the weights larger, whichever it is; its share stays below
    one.
    """
    fixed = ("--epsilon", "8", "--epochs", "5", "--sampling", "fixed")
    specs = completed(
        "correlations",
        [
            "banded:bands=32,momentum=0.9",
            "bisr:bands=32,momentum=0.9",
            "blt:buffers=1,momentum=0.9",
        ],
    )
    for mechanism in specs:
        found = budget(capsys, *PLANNED[:4], *fixed, "--mechanism", mechanism)
        assert 0.3 < found["plan"]["mechanism"]["relative_noise"] < 1, mechanism


def test_given_noise_is_priced_by_every_sampler(capsys: pytest.CaptureFixture[str]) -> None:
    found = budget(capsys, *PLANNED, "--noise-multiplier", "1", "--sampling", "best")
    assert [row["sampling"] for row in found["samplers"]][:3] == [
        "partition",
        "cyclic-partition",
        "poisson",
    ]
    alone = budget(capsys, *PLANNED, "--noise-multiplier", "1", "--sampling", "poisson")
    assert found["samplers"][2]["epsilon"] == alone["epsilon"]


def test_truncated_batches_have_their_price(capsys: pytest.CaptureFixture[str]) -> None:
    """At the usual maximum that of Poisson batches; at a small one more, and no batch of it is
    larger.
    """
    poisson, usual, small = (
        budget(capsys, *PLANNED, "--noise-multiplier", "1", "--sampling", name)
        for name in ("poisson", "truncated-poisson", "truncated-poisson:maximum=660")
    )
    assert poisson["epsilon"] <= usual["epsilon"] <= poisson["epsilon"] * (1 + 1e-6)
    assert small["epsilon"] > 1.1 * poisson["epsilon"]
    assert usual["adjacency"] == "zero_out"
    assert small["plan"]["sampling"]["maximum"] == 660 < usual["plan"]["sampling"]["maximum"]
    solved = ("--epsilon", "2", "--noise-multiplier", "1", "--solve", "batch-size")
    sizes = [
        budget(capsys, "--examples", "60000", "--epochs", "20", *solved, "--sampling", name)[
            "plan"
        ]["sampling"]
        for name in ("poisson", "truncated-poisson")
    ]
    assert sizes[0]["sampling_rate"] == sizes[1]["sampling_rate"]


def test_samplers_without_a_price_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Poisson sampling has no price in rho."""
    found = budget(capsys, *PLANNED, "--rho", "0.5", "--sampling", "best")
    assert {"poisson", "truncated-poisson", "cyclic-poisson"} <= set(found["refused"])
    assert found["best"] in ("fixed", "shuffle", "partition", "cyclic-partition")


@pytest.mark.parametrize(
    "more",
    [
        ("--epsilon", "2", "--noise-multiplier", "1"),
        ("--epsilon", "2", "--solve", "epochs"),
        ("--method", "dpmac"),
        ("--epsilon", "2", "--plot", "plan.png"),
    ],
)
def test_what_samplers_are_not_compared_for(
    capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    assert main(["budget", *PLANNED, "--sampling", "best", *more]) == 2
    assert "--sampling best" in capsys.readouterr().err
