"""Published folders on the Hugging Face Hub, beside a stand-in for it, and checks of all folders of
a repository: the hook for pre-commit and the GitHub Action.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from privlearn.cli import main
from privlearn.errors import BadInput
from privlearn.publishing import verify_folders
from privlearn.publishing.hub import download, push_to_hub
from tests.publishing.checks_envelopes import make_folder
from tests.publishing.checks_hub import ADDRESS, holding_a_model
from tests.publishing.small_hub import NAME, small_hub

ROOT = Path(__file__).parents[2]


# -- the command line


def test_the_command_verifies_an_address_and_prints_the_commit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with small_hub() as hub:
        repository = holding_a_model(hub)
        commit = repository.branches["main"]
        assert main(["verify", ADDRESS]) == 0
        assert f"{ADDRESS}@{commit} verifies" in " ".join(capsys.readouterr().out.split())
        assert main(["verify", ADDRESS, "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed["hub"] == {"name": NAME, "commit": commit}
        bad = repository.commit({**repository.files, "adapter.bin": b""})
        assert main(["verify", f"{ADDRESS}@{bad}"]) == 1
        assert f"{ADDRESS}@{bad} does not verify" in " ".join(capsys.readouterr().out.split())


def test_a_new_process_asks_the_hub_of_its_environment(tmp_path: Path) -> None:
    """As users run it: HF_ENDPOINT names a Hub of one's own."""
    with small_hub() as hub:
        commit = holding_a_model(hub).branches["main"]
        environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path)}
        environment["HF_HUB_OFFLINE"] = "0"
        command = [sys.executable, "-m", "privlearn", "verify", ADDRESS, "--json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["hub"]["commit"] == commit


def test_without_the_package_or_a_network_it_says_what_is_missing() -> None:
    with mock.patch.dict(sys.modules, {"huggingface_hub": None}):
        with pytest.raises(BadInput, match=r"pip install 'privlearn\[hub\]'"):
            download(ADDRESS)
        with pytest.raises(BadInput, match=r"pip install 'privlearn\[hub\]'"):
            push_to_hub(make_folder()[0], NAME)
    from huggingface_hub import constants

    with (
        mock.patch.object(constants, "ENDPOINT", "http://127.0.0.1:9"),
        mock.patch.object(constants, "HF_HUB_OFFLINE", False),
        pytest.raises(BadInput, match="the network"),
    ):
        download(ADDRESS)


# -- folders in a repository


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with two published folders, one of them deep in it."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    for name in ("model", "runs/deep/model"):
        shutil.copytree(make_folder()[0], tmp_path / name)
    (tmp_path / "train.py").write_text("")
    return tmp_path


def hook() -> dict[str, Any]:
    (each,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    return dict(each)


def action() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "action.yml").read_text("utf-8")))


def run_hook(repository: Path, *files: str) -> subprocess.CompletedProcess[str]:
    """The hook's entry, as pre-commit calls it: in the repository, with its arguments."""
    words = [*shlex.split(hook()["entry"]), *hook().get("args", []), *files]
    assert words[0] == "python"
    return subprocess.run(
        [sys.executable, *words[1:]], cwd=repository, capture_output=True, text=True
    )


def test_the_hook_verifies_every_folder_of_a_repository(repository: Path) -> None:
    done = run_hook(repository)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split("\n")[:2] == ["model: verifies", "runs/deep/model: verifies"]
    (repository / "runs/deep/model/config.json").write_text("{}")
    done = run_hook(repository)
    assert done.returncode == 1
    assert "model: verifies\nruns/deep/model: does not verify\n  - " in done.stdout


def test_the_hook_looks_at_all_folders_whatever_changed() -> None:
    """A file that was deleted is not among those that pre-commit names."""
    assert hook()["pass_filenames"] is False
    assert hook()["always_run"] is True


@pytest.mark.parametrize("name", ["model.safetensors", "README.md", "card.html", "config.json"])
def test_a_file_that_was_deleted_is_missed(repository: Path, name: str) -> None:
    (repository / "model" / name).unlink()
    assert run_hook(repository).returncode == 1


def test_a_broken_certificate_is_no_reason_to_pass(repository: Path) -> None:
    certificate = repository / "model" / "privacy.json"
    certificate.write_text("version https://git-lfs.github.com/spec/v1\n")
    assert verify_folders.main([str(repository)]) == 1
    certificate.unlink()
    certificate.symlink_to("nowhere")
    assert verify_folders.main([str(repository)]) == 1
    certificate.unlink()
    certificate.mkdir()
    assert verify_folders.main([str(repository)]) == 1


def test_files_stand_for_their_folders(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "model" / "config.json").write_text("{}")
    files = [str(repository / name) for name in ("train.py", "runs/deep/model/config.json")]
    assert verify_folders.main(files) == 0
    assert verify_folders.main([*files, str(repository / "model" / "README.md")]) == 1
    assert verify_folders.main([str(repository / "train.py")]) == 1  # nothing was verified
    assert "nothing was verified" in capsys.readouterr().err


def test_a_key_has_to_have_signed_every_folder(repository: Path) -> None:
    assert verify_folders.main([str(repository), "--key", f"{make_folder()[1]}.pub"]) == 1


def test_names_of_folders_command_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(make_folder()[0], tmp_path / "a\n::set-output\x1b[2J")
    assert verify_folders.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("\n") == 1


def test_hook_and_action_name_an_entry_that_is_there() -> None:
    """Both run the module of this package, and the action gives it what it is declared to take."""
    module = verify_folders.__name__
    assert hook()["language"] == "python"
    assert hook()["entry"] == f"python -m {module}"
    assert hook()["args"] == ["."]
    steps = action()["runs"]["steps"]
    assert action()["runs"]["using"] == "composite"
    ran = "\n".join(step.get("run", "") for step in steps)
    assert f"python -m {module} " in ran
    assert set(re.findall(r"-m (privlearn[\w.]*)", ran)) == {module}
    # what a caller writes is never part of a program
    assert "${{" not in ran
    read = {
        name
        for step in steps
        for value in (step.get("env") or {}).values()
        for name in re.findall(r"inputs\.([\w-]+)", str(value))
    }
    read |= {
        name
        for step in steps
        for value in (step.get("with") or {}).values()
        for name in re.findall(r"inputs\.([\w-]+)", str(value))
    }
    assert read == set(action()["inputs"])


@pytest.mark.skipif(os.name == "nt", reason="the step is of bash")
@pytest.mark.parametrize("key", ["", "signing key.pub"])
def test_the_step_of_the_action_verifies(repository: Path, key: str) -> None:
    """Run as a runner does, but for the installation."""
    step = action()["runs"]["steps"][-1]
    assert step["shell"] == "bash"
    inputs = {name: str(each.get("default", "")) for name, each in action()["inputs"].items()}
    inputs |= {"key": key}
    if key:
        shutil.copy(f"{make_folder()[1]}.pub", repository / key)
    given = {
        name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda match: inputs[match[1]], text)
        for name, text in step["env"].items()
    }
    programs = repository / "bin"
    programs.mkdir()
    (programs / "python").symlink_to(sys.executable)
    environment = {**os.environ, **given, "PATH": f"{programs}:{os.environ['PATH']}"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", step["run"]],
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
    )
    # nothing in it is signed
    assert done.returncode == bool(key), done.stdout + done.stderr
    assert "runs/deep/model" in done.stdout
