"""`privlearn demo hospitals`: what it refuses, prints and publishes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from privlearn import cli
from privlearn.cli.commands import demo
from tests.conftest import ROOT

EXAMPLE = ROOT / "examples" / "hospitals"


def test_without_flower_the_command_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    assert cli.main(["demo", "hospitals"]) == 2
    said = capsys.readouterr().err
    assert "flwr and ray" in said
    assert "pip install 'privlearn[flower]'" in said


def _in_this_process(monkeypatch):
    """Without Ray: the server's app is called with a grid that calls the hospitals' app."""
    pytest.importorskip("flwr", reason="Flower is not installed")
    pytest.importorskip("ray", reason="Ray is not installed")
    from privlearn.flower import hospitals
    from tests.support.local_grid import LocalGrid

    def run(server_app, client_app, num_supernodes, backend_config):
        configs = [{"partition-id": site} for site in range(num_supernodes)]
        grid = LocalGrid(client_app, configs)
        server_app(grid, grid.contexts[1])

    monkeypatch.setattr(hospitals, "run_simulation", run)


def test_figures_are_those_of_what_passed(tmp_path, monkeypatch, capsys):
    _in_this_process(monkeypatch)
    out = tmp_path / "student"
    words = ["demo", "hospitals", "--sites", "10", "--out", str(out), "--json"]
    assert cli.main(words) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["sites"] == 10
    assert said["epsilon"] == pytest.approx(8, rel=1e-3)
    assert json.loads((out / "privacy.json").read_bytes())
    assert said["accuracy"] > said["accuracy_of_one_answer"]
    passed = said["traffic"][-1]
    assert passed["question"].startswith("query.")
    assert (passed["requests"], passed["replies"]) == (10, 10)
    assert passed["request_bytes"] >= 10 * 20 * 30 * 4
    assert 10 * 20 <= passed["reply_bytes"] < passed["request_bytes"]


def test_what_is_printed_names_every_party(tmp_path, monkeypatch, capsys):
    _in_this_process(monkeypatch)
    out = tmp_path / "student"
    assert cli.main(["demo", "hospitals", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    for words in ("a hospital", "the server", "a reader", "epsilon 8.00", "verifies"):
        assert words in said


@pytest.mark.parametrize(
    ("words", "expected"),
    [(("--sites", "1"), "at least 2"), (("--sites", "21"), "20"), (("--epsilon", "0"), "above 0")],
)
def test_numbers_out_of_range_are_refused(tmp_path, monkeypatch, capsys, words, expected):
    _in_this_process(monkeypatch)
    out = tmp_path / "student"
    assert cli.main(["demo", "hospitals", *words, "--out", str(out)]) == 2
    assert expected in capsys.readouterr().err
    assert not out.exists()


def test_a_folder_that_is_there_is_refused(tmp_path, monkeypatch, capsys):
    _in_this_process(monkeypatch)
    assert cli.main(["demo", "hospitals", "--out", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.nightly
def test_the_command_runs_in_the_simulation_engine(tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed")
    pytest.importorskip("ray", reason="Ray is not installed")
    command = [sys.executable, "-m", "privlearn", "demo", "hospitals", "--json"]
    ended = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    said = json.loads(ended.stdout)
    assert said["ok"]
    assert said["traffic"][-1]["replies"] == 3
    verify = [sys.executable, "-m", "privlearn", "verify", "hospitals"]
    assert subprocess.run(verify, cwd=tmp_path, capture_output=True).returncode == 0


@pytest.mark.nightly
def test_server_and_hospitals_as_processes_over_tls_publish_a_student(tmp_path):
    """The example: a SuperLink, three SuperNodes with keys of their own, and `flwr run`."""
    pytest.importorskip("flwr", reason="Flower is not installed")
    if not (Path(sys.executable).parent / "flower-superlink").exists():
        pytest.skip("flower-superlink is not beside this Python")
    place = tmp_path / "federation"
    script = str(EXAMPLE / "start.py")
    ended = subprocess.run(
        [sys.executable, script, str(place)], capture_output=True, text=True, timeout=500
    )
    logs = "".join(log.read_text()[-2000:] for log in place.glob("*.log"))
    assert ended.returncode == 0, ended.stdout + ended.stderr + logs
    assert "verifies" in ended.stdout
    assert (place / "student" / "privacy.json").exists()
