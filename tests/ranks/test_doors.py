"""Other libraries' loops in two processes: Accelerate's, Opacus's, Hugging Face's and Lightning's
train what one process does.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

import privlearn as pv
from privlearn.runs import process_group
from tests.ranks import doors
from tests.ranks.processes import PATIENCE, alone, environment, started, torchrun


def in_one(folder: Path, *names: str) -> None:
    """The same in this process, as the only one that torchrun started."""
    states = pytest.importorskip("accelerate.state", reason="accelerate is not installed")
    folder.mkdir()
    for name in names:
        with alone():
            states.AcceleratorState._reset_state(reset_partial_state=True)
            doors.go(folder, name)
    states.AcceleratorState._reset_state(reset_partial_state=True)


def require_same(one: Path, two: Path, name: str, tolerance: float = 0.0) -> None:
    """The same weights in both processes, and in one up to `tolerance`; the same events; a valid
    certificate.
    """
    alone, *others = (
        torch.load(where / f"{name} of process {n}") for where, n in ((one, 0), (two, 0), (two, 1))
    )
    for own in others:
        assert own[0].keys() == alone[0].keys()
        assert all(torch.equal(own[0][key], others[0][0][key]) for key in own[0]), name
        assert all(
            torch.allclose(own[0][key], alone[0][key], rtol=0, atol=tolerance) for key in own[0]
        ), name
        assert own[1] == alone[1]
        assert own[2] == alone[2] | {"processes": 2}
    assert pv.verify(two / name).ok


def test_a_loop_that_accelerate_prepared_and_the_trainer_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    names, two = ("accelerate", "opacus", "transformers"), tmp_path / "two"
    two.mkdir()
    done = torchrun(2, "-m", "tests.ranks.doors", str(two), *names)
    assert done.returncode == 0, done.stderr
    in_one(tmp_path / "one", *names)
    for name in names:
        require_same(tmp_path / "one", two, name)


@pytest.mark.filterwarnings("ignore")
def test_lightnings_own_launcher(tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    two = tmp_path / "two"
    two.mkdir()
    words: list[Any] = [sys.executable, "-m", "tests.ranks.doors", str(two), "lightning"]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=PATIENCE, env=environment()
    )
    assert done.returncode == 0, done.stderr
    in_one(tmp_path / "one", "lightning")
    require_same(tmp_path / "one", two, "lightning", 1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("accelerate", marks=pytest.mark.nightly),
        pytest.param("lightning", marks=pytest.mark.nightly),
        pytest.param("transformers", marks=pytest.mark.nightly),
        pytest.param("by_settings_of_transformers", marks=pytest.mark.nightly),
        "by_a_setting_of_transformers",
    ],
)
def test_models_under_fsdp2_in_other_loops(name: str, tmp_path: Path) -> None:
    """In bfloat16, with frozen parameters or adapters: what one process trains with the whole
    model.
    """
    library = name.rpartition("_")[2]
    for module in ("lightning.pytorch",) if library == "lightning" else (library, "peft"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    two = tmp_path / "two"
    two.mkdir()
    done = torchrun(2, "-m", "tests.ranks.doors", str(two), f"sharded_{name}")
    assert done.returncode == 0, done.stderr
    in_one(tmp_path / "one", f"sharded_{name}")
    require_same(tmp_path / "one", two, f"sharded_{name}", 1e-6)


OWN_GROUP = """
import atexit, pathlib, sys
import torch.distributed as dist
from privlearn.runs.ranks import launched


def say():
    threads = [own.read_text().strip() for own in pathlib.Path("/proc/self/task").glob("*/comm")]
    inside = dist.is_initialized() or any("gloo" in own for own in threads)
    print("in the group" if inside else "left", file=sys.stderr)


atexit.register(say)
dist.init_process_group("gloo")
assert launched().size == 2
import torch.distributed.nn.functional  # as optimizers do; it holds on to the group
"""
#: A model that held the group is garbage, in a cycle of references, when the script ends.
GARBAGE = (
    OWN_GROUP
    + """
import gc
import torch
from torch.nn.parallel import DistributedDataParallel

gc.disable()
model = DistributedDataParallel(torch.nn.Linear(2, 2))
model(torch.ones(1, 2)).sum().backward()
del model
"""
)


@pytest.mark.parametrize(
    "script",
    [OWN_GROUP, GARBAGE, GARBAGE + "dist.barrier()\ndist.destroy_process_group()\n"],
    ids=["own group", "garbage", "garbage after the script left"],
)
def test_a_group_that_the_caller_began_is_left_at_the_end(script: str, tmp_path: Path) -> None:
    """Its threads end, too: one that is still there aborts the end of the interpreter now and
    then.
    """
    with started(2, tmp_path, "-c", script) as both:
        assert both.end() == ([0, 0], ["left\n"] * 2)


def test_a_script_that_fails_is_left_before_its_error_is_handled() -> None:
    """The handler, which may wait for somebody, comes after the others could hear that this process
    is gone.
    """
    done: list[str] = []
    group = SimpleNamespace(
        get_world_size=lambda: 2,
        is_initialized=lambda: True,
        group=SimpleNamespace(WORLD=None),
        destroy_process_group=lambda: done.append("left"),
    )
    with (
        mock.patch.object(process_group, "dist", group),
        mock.patch.object(process_group, "LEFT", []),
        mock.patch.object(sys, "excepthook", side_effect=lambda *_: done.append("handled")),
    ):
        process_group._leave_on_errors()
        sys.excepthook(ValueError, ValueError("of the script"), None)
    assert done == ["left", "handled"]
