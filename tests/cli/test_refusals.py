"""Bad input: exit code 2, one message that says what was given, what was expected and what to do;
nothing is left.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from privlearn.cli import main

TRAIN = ("train", "--data", "digits", "--epochs", "1")
BUDGET = ("budget", "--examples", "1000")

#: (options, what the message must contain)
REFUSALS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "epsilon zero": ((*TRAIN, "--epsilon", "0"), ("epsilon is 0", "above 0")),
    "epsilon negative": ((*TRAIN, "--epsilon", "-1"), ("epsilon is -1", "above 0")),
    "epsilon not a number": ((*TRAIN, "--epsilon", "nan"), ("epsilon is nan", "finite")),
    "epsilon infinite": ((*TRAIN, "--epsilon", "inf"), ("epsilon is inf", "finite")),
    "epsilon a word": ((*TRAIN, "--epsilon", "small"), ("--epsilon", "small")),
    "delta zero": ((*TRAIN, "--epsilon", "1", "--delta", "0"), ("delta is 0", "(0, 1)")),
    "delta one": ((*TRAIN, "--epsilon", "1", "--delta", "1"), ("delta is 1", "(0, 1)")),
    "delta negative": ((*TRAIN, "--epsilon", "1", "--delta", "-0.1"), ("delta is -0.1",)),
    "delta not a number": ((*TRAIN, "--epsilon", "1", "--delta", "nan"), ("delta is nan",)),
    "micro-batch of nothing": (
        (*TRAIN, "--epsilon", "4", "--microbatch", "0"),
        ("microbatch is 0", "at least 1"),
    ),
    "micro-batch of less": (
        (*TRAIN, "--epsilon", "4", "--microbatch", "-3"),
        ("microbatch is -3",),
    ),
    "micro-batch of a part": (
        (*TRAIN, "--epsilon", "4", "--microbatch", "2.5"),
        ("--microbatch", "'2.5'", "auto"),
    ),
    "unknown device": (
        (*TRAIN, "--epsilon", "4", "--device", "abacus"),
        ("'abacus'", "Expected cpu"),
    ),
    "unknown precision": (
        (*TRAIN, "--epsilon", "4", "--precision", "fp16"),
        ("'fp16'", "float32", "bf16"),
    ),
    "two targets": ((*BUDGET, "--epsilon", "1", "--rho", "1"), ("exactly one",)),
    "no target": (TRAIN, ("--epsilon E", "--noise-multiplier")),
    "noise zero": ((*BUDGET, "--noise-multiplier", "0"), ("--noise-multiplier is 0",)),
    "batch larger than the data": (
        (*TRAIN, "--epsilon", "1", "--batch-size", "5000"),
        ("--batch-size is 5000", "1437 examples", "at most 1437"),
    ),
    "batch of nothing": (
        (*BUDGET, "--epsilon", "1", "--batch-size", "0"),
        ("--batch-size is 0", "at least 1"),
    ),
    "no epochs": ((*BUDGET, "--epsilon", "1", "--epochs", "0"), ("epochs is 0",)),
    "unknown data": (
        ("train", "--data", "imagenet", "--epsilon", "1"),
        ("'imagenet' is unknown", "digits", "breast-cancer", "mnist", "fashion-mnist"),
    ),
    "missing file": (
        ("train", "--data", "gone.npz", "--classes", "2", "--range", "0,1", "--epsilon", "1"),
        ("no file gone.npz",),
    ),
    "missing data directory": (
        ("train", "--data", "mnist", "--data-dir", "nowhere", "--epsilon", "1"),
        ("no file nowhere", "--data-dir", "privlearn data fetch mnist"),
    ),
    "data without a source": (
        ("train", "--data", "usps", "--epsilon", "1"),
        ("cache/usps/usps.npz", "PRIVLEARN_DATA", "no public source"),
    ),
    "what is known of named data": (
        (
            "train",
            "--data",
            "digits",
            "--classes",
            "3",
            "--schema",
            "people.toml",
            "--epsilon",
            "1",
        ),
        ("what digits holds is known", "--classes and --schema"),
    ),
    "a table without a schema": (
        ("train", "--data", "people.csv", "--epsilon", "1"),
        ("--schema FILE.toml", "privlearn data schema"),
    ),
    "a table with classes": (
        (
            "train",
            "--data",
            "people.csv",
            "--schema",
            "people.toml",
            "--classes",
            "2",
            "--epsilon",
            "1",
        ),
        ("come from its schema", "leave out --classes"),
    ),
    "a missing schema": (
        ("train", "--data", "people.csv", "--schema", "people.toml", "--epsilon", "1"),
        ("schema people.toml cannot be read", "TOML"),
    ),
    "test rows beside an npz": (
        ("train", "--data", "rows.npz", "--test-data", "more.csv", "--epsilon", "1"),
        ("--test-data goes with a table", "x_test"),
    ),
    "fetching nothing": (("data", "fetch"), ("needs NAME", "mnist", "adult")),
    "fetching what is unknown": (
        ("data", "fetch", "imagenet"),
        ("'imagenet' is unknown", "cifar10"),
    ),
    "fetching what has no source": (
        ("data", "fetch", "cifar10-features"),
        ("no public source", "cache/cifar10-features", "features.u8.xz", "SHA-256 ecec839a"),
    ),
    "fetching volumes": (
        ("data", "fetch", "hippocampus"),
        ("no public source", "cache/msd-hippocampus"),
    ),
    "listing one": (("data", "list", "mnist"), ("leave out 'mnist'",)),
    "a template of nothing": (("data", "schema", "gone.csv"), ("there is no file gone.csv",)),
    "undeclared classes": (
        ("train", "--data", "gone.npz", "--epsilon", "1"),
        ("--classes K", "--range LO,HI"),
    ),
    "unknown schedule": (
        (*TRAIN, "--epsilon", "1", "--schedule", "sine:k=1"),
        ("'sine:k=1' is unknown", "exp:k=0.01", "poly:k=3"),
    ),
    "schedule without its rate": (
        (*BUDGET, "--epsilon", "1", "--schedule", "exp"),
        ("exp needs k",),
    ),
    "schedule with a stranger": (
        (*BUDGET, "--epsilon", "1", "--schedule", "exp:q=1"),
        ("no parameter 'q'", "k, start"),
    ),
    "schedule that cannot be read": (
        (*BUDGET, "--epsilon", "1", "--schedule", "exp:k=fast"),
        ("'k=fast'",),
    ),
    "schedule that grows": ((*BUDGET, "--epsilon", "1", "--schedule", "step:k=1.5"), ("below 1",)),
    "schedule down to zero": (
        (*BUDGET, "--epsilon", "1", "--schedule", "poly:k=1,end=0,period=10"),
        ("falls to 0 at epoch 10",),
    ),
    "two starts": (
        (*BUDGET, "--epsilon", "1", "--schedule", "exp:k=1,start=3", "--noise-multiplier", "4"),
        ("one of the two",),
    ),
    "a budget the PCA alone exceeds": (
        (*BUDGET, "--epsilon", "0.1", "--pca", "5", "--pca-noise", "1"),
        ("before and after training alone cost", "budget is epsilon 0.1"),
    ),
    "a budget that not one epoch meets": (
        (*BUDGET, "--epsilon", "0.1", "--noise-multiplier", "0.5"),
        ("not one epoch", "more noise"),
    ),
    "rho under Poisson sampling": ((*BUDGET, "--rho", "1"), ("no amplified zCDP", "epsilon")),
    "shuffling for add/remove": (
        (*BUDGET, "--rho", "1", "--sampling", "shuffle", "--adjacency", "add_remove"),
        ("no sound accounting for add_remove", "zero_out"),
    ),
    "sampling for replace-one": (
        (*BUDGET, "--epsilon", "1", "--adjacency", "replace_one"),
        ("no sound accounting for replace_one",),
    ),
    "partition for replace-one": (
        (*BUDGET, "--epsilon", "1", "--sampling", "partition", "--adjacency", "replace_one"),
        ("no sound accounting for replace_one",),
    ),
    "unknown adjacency": (
        (*BUDGET, "--epsilon", "1", "--adjacency", "swap"),
        ("'swap'", "replace_one"),
    ),
    "unknown sampling": (
        (*BUDGET, "--epsilon", "1", "--sampling", "random"),
        ("'random'", "truncated-poisson"),
    ),
    "unknown clip": ((*BUDGET, "--epsilon", "1", "--clip", "soft"), ("'soft'", "flat, layer")),
    "clip norm zero": ((*BUDGET, "--epsilon", "1", "--clip-norm", "0"), ("--clip-norm is 0",)),
    "no examples": (("budget", "--epsilon", "1"), ("--examples N",)),
    "negative examples": (("budget", "--examples", "-5", "--epsilon", "1"), ("examples is -5",)),
    "unknown model": (
        (*TRAIN, "--epsilon", "1", "--model", "resnet"),
        ("'resnet' is unknown", "mlp:100"),
    ),
    "model of unknown layers": (
        (*TRAIN, "--epsilon", "1", "--model", "layers:64,elu,10"),
        ("'elu'", "layers:flatten,64,relu,10"),
    ),
    "model of other outputs": (
        (*TRAIN, "--epsilon", "1", "--model", "layers:flatten,64"),
        ("has 64 outputs",),
    ),
    "model without widths": ((*TRAIN, "--epsilon", "1", "--model", "mlp:0"), ("hidden widths",)),
    "model that cannot be imported": (
        (*TRAIN, "--epsilon", "1", "--model", "no.such.module:make"),
        ("cannot be imported", "package.module:function"),
    ),
    "cnn on small images": ((*TRAIN, "--epsilon", "1", "--model", "cnn"), ("16 x 16", "(8, 8)")),
    "unknown optimizer": (
        (*TRAIN, "--epsilon", "1", "--optimizer", "magic"),
        ("'magic'", "torch.optim"),
    ),
    "momentum where there is none": (
        (*TRAIN, "--epsilon", "1", "--optimizer", "Adam", "--momentum", "0.9"),
        ("--momentum is for", "Adam takes none", "--optimizer SGD"),
    ),
    "momentum for the usual optimizer of dpmac": (
        (*TRAIN, "--epsilon", "1", "--method", "dpmac", "--momentum", "0.9"),
        ("--momentum is for", "Adam takes none", "--optimizer SGD and --learning-rate L"),
    ),
    "pca of too many": (
        (*TRAIN, "--epsilon", "1", "--pca", "65"),
        ("65 components of 64 features",),
    ),
    "negative seed": ((*TRAIN, "--epsilon", "1", "--seed", "-1"), ("seed is -1",)),
    "unknown option": ((*TRAIN, "--epsilom", "1"), ("--epsilom",)),
    "unknown command": (("tarin",), ("tarin",)),
    "missing configuration": ((*BUDGET, "--config", "gone.toml"), ("gone.toml cannot be read",)),
    "no folder": (("verify", "nowhere"), ("there is no folder nowhere", "train or publish")),
    "not a model": (("verify", "."), ("not a published model", "privacy.json")),
    "prediction from nothing": (
        ("predict", "nowhere", "--data", "digits"),
        ("there is no folder nowhere",),
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_input_is_refused(
    case: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PRIVLEARN_DATA", raising=False)
    monkeypatch.setattr("privlearn._storage.cache", lambda: tmp_path / "cache")
    options, expected = REFUSALS[case]
    out = ("--out", "out") if options[:1] == ("train",) else ()
    assert main([*options, *out]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    message = shown.err.strip().splitlines()[-1]
    assert message.startswith("privlearn: ")
    for part in expected:
        assert part in message, message
    assert list(tmp_path.iterdir()) == []


def rows(**changes: object) -> dict[str, object]:
    made_up = np.random.default_rng(0)
    return {"x": made_up.random((50, 4)), "y": np.arange(50) % 3, **changes}


NPZ: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "NaN": (
        rows(x=np.where(np.arange(200).reshape(50, 4) == 30, np.nan, 0.5)),
        ("not finite", "row 7"),
    ),
    "infinity": (rows(x=np.full((50, 4), np.inf)), ("not finite", "row 0")),
    "a label beyond the classes": (
        rows(y=np.arange(50) % 4),
        ("labels from 0 to 3", "0 to 2", "--classes"),
    ),
    "a negative label": (rows(y=np.arange(50) % 3 - 1), ("labels from -1 to 1",)),
    "labels that are not whole": (rows(y=np.linspace(0, 2, 50)), ("not whole", "whole numbers")),
    "fewer labels than rows": (rows(y=np.arange(49) % 3), ("50 inputs and 49 targets",)),
    "no rows": ({"x": np.zeros((0, 4)), "y": np.zeros(0, dtype=int)}, ("0 inputs",)),
    "no labels": ({"x": np.zeros((5, 4))}, ("holds x", "expected x and y")),
    "half a test set": (rows(x_test=np.zeros((5, 4))), ("x_test and y_test together",)),
    "words": (rows(x=np.full((50, 4), "a")), ("expected numbers",)),
    "pickled objects": (rows(x=np.full((50, 4), None)), ("cannot be read",)),
}


@pytest.mark.parametrize("case", NPZ)
def test_bad_files_are_refused(
    case: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arrays, expected = NPZ[case]
    path = tmp_path / "rows.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    declared = ("--classes", "3", "--range", "0,1", "--epsilon", "1", "--epochs", "1")
    assert main(["train", "--data", str(path), *declared, "--out", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    for part in expected:
        assert part in message, message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04 cut short"])
def test_damaged_files_are_refused(
    content: bytes, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "rows.npz"
    path.write_bytes(content)
    assert (
        main(
            [
                "train",
                "--data",
                str(path),
                "--classes",
                "3",
                "--range",
                "0,1",
                "--epsilon",
                "1",
                "--out",
                "o",
            ]
        )
        == 2
    )
    assert "cannot be read" in capsys.readouterr().err


def test_a_taken_folder_is_refused_before_training(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "kept").write_text("precious")
    assert main([*TRAIN, "--epsilon", "1", "--out", str(tmp_path / "kept")]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "kept").read_text() == "precious"


def test_a_folder_that_cannot_be_written_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert main([*TRAIN, "--epsilon", "1", "--out", str(tmp_path / "file" / "model")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_write_that_fails_leaves_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert main([*TRAIN, "--epsilon", "1", "--out", str(tmp_path / "model")]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
