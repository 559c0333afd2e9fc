"""Published folders as an attacker would hand them over, and places where nothing should be
written.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

import privlearn as pv
from privlearn.cli import main
from privlearn.errors import BadInput
from privlearn.publishing import new_folder
from tests.publishing.checks import published

NAMES = ("model.safetensors", "config.json", "README.md", "card.html", "privacy.json")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return published(tmp_path)


def test_links_to_the_certified_content_are_followed(model: Path, tmp_path: Path) -> None:
    """Download caches keep a model as a folder of links. What counts is the content."""
    (tmp_path / "blobs").mkdir()
    for name in NAMES:
        (model / name).rename(tmp_path / "blobs" / name)
        (model / name).symlink_to(Path("..") / "blobs" / name)
    assert pv.verify(model).ok
    weights = (tmp_path / "blobs" / "model.safetensors").read_bytes()
    (tmp_path / "blobs" / "model.safetensors").write_bytes(weights[:-1] + b"\0")
    assert not pv.verify(model).ok


@pytest.mark.parametrize("name", NAMES)
def test_pipes_devices_and_folders_are_no_files(
    name: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """None of them is waited for, and none is read without end."""
    makers = {
        "pipe": lambda path: os.mkfifo(path),
        "device": lambda path: path.symlink_to("/dev/zero"),
        "folder": lambda path: path.mkdir(),
        "nowhere": lambda path: path.symlink_to("nowhere"),
        "itself": lambda path: path.symlink_to(path),
    }
    for make in makers.values():
        (model / name).unlink() if not (model / name).is_dir() else (model / name).rmdir()
        make(model / name)
        code = main(["verify", str(model)])
        shown = capsys.readouterr()
        assert code == (2 if name == "privacy.json" else 1)
        assert (
            f"{name} is not a plain file" in shown.out + shown.err
            or f"{name} is missing" in shown.out + shown.err
        )


@pytest.mark.parametrize("name", NAMES[1:])
def test_huge_files_are_not_read(
    name: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (model / name).open("r+b") as file:
        file.truncate(1 << 40)
    assert main(["verify", str(model)]) == (2 if name == "privacy.json" else 1)
    shown = capsys.readouterr()
    assert f"{name} is larger than" in shown.out + shown.err


def test_files_that_may_not_be_read_are_named(model: Path) -> None:
    true_open = Path.open

    def denied(path: Path, *options: object, **more: object) -> object:
        if path.name == "config.json":
            raise PermissionError(13, "Permission denied")
        return true_open(path, *options, **more)  # type: ignore[call-overload]

    with mock.patch("pathlib.Path.open", denied):
        found = pv.verify(model)
    assert "config.json cannot be read: Permission denied" in found.problems


def test_what_is_published_follows_the_umask(tmp_path: Path) -> None:
    for umask, mode in ((0o077, 0o700), (0o022, 0o755), (0o027, 0o750)):
        before = os.umask(umask)
        try:
            out = published(tmp_path, f"model-{umask}")
        finally:
            os.umask(before)
        assert stat.S_IMODE(out.stat().st_mode) == mode
        assert {stat.S_IMODE((out / name).stat().st_mode) for name in NAMES} == {mode & 0o666}


def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    with (
        mock.patch("os.access", return_value=False),
        pytest.raises(BadInput, match="not a folder that you may write to"),
    ):
        new_folder.require_free(tmp_path / "model")
    with (
        mock.patch("pathlib.Path.mkdir", side_effect=OSError(30, "Read-only file system")),
        pytest.raises(BadInput, match="Read-only file system"),
    ):
        published(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_made_meanwhile_above_stays(tmp_path: Path) -> None:
    """Cleaning up takes away what was made, and nothing that others have put there since."""

    def full(*_: object) -> None:
        (tmp_path / "runs" / "theirs").write_text("precious")
        raise OSError(28, "No space left on device")

    with mock.patch("os.fsync", full), pytest.raises(BadInput, match="No space left"):
        published(tmp_path, "runs/today/model")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["theirs"]


def test_names_cannot_paint_the_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Brackets are no markup, and control characters, bidirectional marks and line breaks are
    spelled out.
    """
    name = "[/][bold]a\x1b[2J\u202e\nm verifies"
    out = published(tmp_path, name)
    (out / "[red]\x1b[31m\nprivlearn: fine").write_text("")
    for _ in range(2):
        assert main(["verify", str(out)]) == 1
        shown = capsys.readouterr().out
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        assert "[/][bold]a\\x1b[2J\\u202e\\nm verifies" in shown
        assert "[red]\\x1b[31m\\nprivlearn: fine, not in the certificate" in shown
        (out / "model.safetensors").write_bytes(b"")
    assert main(["verify", str(tmp_path / "gone\x1b[2J")]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_claims_cannot_paint_the_screen(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = json.loads((model / "privacy.json").read_text())
    for text in ("[/]", "[green]", "\x1b[2J", "\ud800", "x" * 10_000):
        body["claim"] |= {"method": text, "adjacency": text, "unit": text, "epsilon": text}
        (model / "privacy.json").write_text(json.dumps(body))
        assert main(["verify", str(model)]) == 1
        assert main(["verify", str(model), "--json"]) == 1
        assert "\x1b" not in capsys.readouterr().out


def rows(place: Path) -> str:
    np.savez(place / "rows.npz", x=np.zeros((4, 5)))
    return str(place / "rows.npz")


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_predictions_overwrite_nothing(
    suffix: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "victim").write_text("precious")
    out = tmp_path / f"out{suffix}"
    for target in ("victim", "nowhere"):
        out.symlink_to(tmp_path / target)
        assert main(["predict", str(model), "--data", rows(tmp_path), "--out", str(out)]) == 2
        assert "exists already" in capsys.readouterr().err
        out.unlink()
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (tmp_path / "nowhere").exists()
    data, full = rows(tmp_path), OSError(28, "No space left on device")
    with (
        mock.patch("numpy.savez", side_effect=full),
        mock.patch("privlearn.cli.commands.predict._csv", side_effect=full),
    ):
        assert main(["predict", str(model), "--data", data, "--out", str(out)]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert not out.exists()
    assert (
        main(
            [
                "predict",
                str(model),
                "--data",
                rows(tmp_path),
                "--out",
                str(tmp_path / "no" / f"o{suffix}"),
            ]
        )
        == 2
    )


def test_a_full_standard_output_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch("sys.stdout.write", side_effect=OSError(28, "No space left on device")):
        assert main(["data", "list", "--json"]) == 2
    assert "the system refused" in capsys.readouterr().err


def test_weights_that_no_network_has(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Certified, but nothing that could be loaded: refused with what was found and what should be
    there.
    """
    from safetensors.numpy import save

    from tests.publishing.checks import body_of, forge

    weights = {"0.1.weight": np.zeros((3, 4)), "0.1.bias": np.zeros(3)}
    for content, said in (
        (b"", "cannot be read as safetensors"),
        ((1 << 60).to_bytes(8, "little") + b"{}", "cannot be read as safetensors"),
        (save(weights), "does not fit the model 'linear'"),
        (save({}), "does not fit the model 'linear'"),
    ):
        (model / "model.safetensors").write_bytes(content)
        forge(model, body_of(model))
        assert main(["verify", str(model)]) == ("cannot be read" in said)
        capsys.readouterr()
        assert main(["predict", str(model), "--data", rows(tmp_path)]) == 2
        assert said in capsys.readouterr().err


CONFIGURATIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "no TOML": ("epsilon 3", ("cannot be read", "Expected a TOML file")),
    "no text": ("\udcff", ("cannot be read", "Expected a TOML file")),
    "a table": ("[epsilon]\na = 1", ("[epsilon]", "is a table", "expected plain options")),
    "a key twice": ("epsilon = 1\nepsilon = 2", ("cannot be read",)),
    "a key in two spellings": (
        "clip_norm = 1\nclip-norm = 2",
        ("stands twice", "keep one of them"),
    ),
    "another configuration": (
        'config = "other.toml"',
        ("'config'", "is not an option", "such as epsilon"),
    ),
    "help": ("help = true", ("'help'", "is not an option")),
    "an option with an equals sign": (
        '"epsilon=3" = true',
        ("is not an option", "expected names as on the command line"),
    ),
    "an option with a space": ('"a b" = 1', ("is not an option",)),
    "an empty option": ('"" = 1', ("is not an option",)),
    "an option nobody knows": ("epsilom = 3", ("'epsilom' in",)),
    "text for a number": ('epsilon = "much"', ("--epsilon", "'much'")),
    "a list for a number": ("epsilon = [1, 2]", ("--epsilon", "'1,2'")),
    "a date for a number": ("epsilon = 1979-05-27", ("--epsilon", "1979-05-27")),
    "no number": ("epsilon = nan", ("epsilon is nan", "expected")),
    "an endless number": (f"epochs = 1{'0' * 5000}", ("cannot be read",)),
    "endless nesting": (f"epochs = {'[' * 5000}", ("cannot be read",)),
    "a large file": (f"# {'x' * 300_000}", ("larger than 256 KiB",)),
    "a group of millions": (
        "group_size = 2147483648\nnoise_multiplier = 3",
        ("--group-size is above", "whole number"),
    ),
}


@pytest.mark.parametrize("case", CONFIGURATIONS)
def test_configurations_are_refused(
    case: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text, expected = CONFIGURATIONS[case]
    (tmp_path / "plan.toml").write_bytes(text.encode(errors="surrogateescape"))
    assert main(["budget", "--examples", "1000", "--config", str(tmp_path / "plan.toml")]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    for part in expected:
        assert part in shown.err, shown.err


def test_a_configuration_is_never_passed_over(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "plan.toml").write_text("noise_multiplier = 6.0\nepochs = 4\nbatch_size = 100\n")
    path = str(tmp_path / "plan.toml")
    answers = []
    for given in (["--config", path], [f"--config={path}"]):
        assert main(["budget", "--examples", "1000", "--json", *given]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1]
    assert answers[0]["epochs"] == 4
    for given, said in (
        (["budget", "--config", path, f"--config={path}"], "--config is given twice"),
        (["budget", "--config"], "--config needs a file"),
        (["--config", path, "budget"], "before the command"),
        (["budget", "--config", str(tmp_path)], "cannot be read"),
        (["budget", "--config", "a\0b"], "cannot be read"),
        (["budget", "--config", "a" * 5000], "cannot be read"),
    ):
        assert main(given) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("where", ["a\0b", "x" * 300, "y/" * 3000])
def test_paths_that_no_system_knows(
    where: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for command in (["verify", where], ["predict", where, "--data", "digits"]):
        assert main(command) == 2
        assert "privlearn: " in capsys.readouterr().err
    with contextlib.chdir(tmp_path):
        assert main(["train", "--data", "digits", "--epsilon", "1", "--out", where]) == 2
    said = capsys.readouterr().err
    assert "Choose another folder" in said
    assert "--out" in said
    shutil.rmtree(tmp_path)


def test_python_verifies_in_a_process_of_its_own_without_torch(tmp_path: Path) -> None:
    """Whatever a plan holds: what scales rows of a table, moments, directions."""
    rng = np.random.default_rng(0)
    x = rng.random((60, 4)).astype(np.float32)
    data = pv.Dataset(x, (x[:, 0] > 0.5).astype(np.int64), classes=2, low=0.0, high=1.0)
    for name, choices in (
        ("centre", {}),
        ("moments", {"normalise": "moments"}),
        ("pca", {"pca": 2}),
    ):
        result = pv.train(
            data, epsilon=5.0, delta=1e-3, epochs=2, streams=pv.Streams.new(1), **choices
        )
        pv.publish(result, tmp_path / name)
        script = (
            f"import sys, privlearn as pv; found = pv.verify({str(tmp_path / name)!r}); "
            "print(found)\n"
        )
        script += "sys.exit(not found.ok or 'torch' in sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_result_outlives_a_folder_that_is_not_free(tmp_path: Path) -> None:
    """What the message says publishes it."""
    x, y = torch.rand(40, 3), torch.randint(2, (40,))
    plan = pv.Plan(pv.Poisson(0.3), 1, pv.schedules.Constant(2.0), pv.Flat(0.5), examples=40)
    result = pv.dpsgd(plan, nn.Linear(3, 2), nn.CrossEntropyLoss(reduction="none"), (x, y))
    for name in ("model", "model-2"):
        (tmp_path / name).mkdir()
    with pytest.raises(BadInput, match="nothing is overwritten") as refused:
        pv.publish(result, tmp_path / "model", delta=1e-5)
    (call,) = re.findall(r"unharmed: (pv\.publish\(result, '.*'\)),", str(refused.value))
    eval(call.replace("')", "', delta=1e-5)"), {"pv": pv, "result": result})
    assert pv.verify(tmp_path / "model-3").ok


def test_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = tmp_path / "gone"
    assert main(["verify", str(gone)]) == 2
    assert f"there is no folder {gone}: expected" in " ".join(capsys.readouterr().err.split())
    gone.mkdir()
    with pytest.raises(BadInput, match="is not a published model"):
        pv.verify(gone)


def test_an_archive_of_a_folder_is_to_be_unpacked(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = shutil.make_archive(str(tmp_path / "packed"), "zip", model)
    assert main(["verify", archive]) == 2
    assert "unpack an archive of one first" in capsys.readouterr().err
    with pytest.raises(BadInput, match="unpack an archive of one first"):
        pv.load_model(archive)
    shutil.unpack_archive(archive, tmp_path / "unpacked")
    assert pv.verify(tmp_path / "unpacked").ok
    (tmp_path / "unpacked" / "notes.txt").write_text("mine")
    (problem,) = pv.verify(tmp_path / "unpacked").problems
    assert "notes.txt, not in the certificate: another library might load them" in problem
