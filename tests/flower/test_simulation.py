"""PATE in Flower's own simulation engine, which runs each site in a process of Ray."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")

SCRIPT = """
import os
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
import sys
import numpy as np
import torch
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
import privlearn as pv
from privlearn.flower import FlowerTeachers, teacher_app

SITES = 3
x, y = load_digits(return_X_y=True)
x = (x / 16).astype(np.float32)


def load(context):
    rows = slice(int(context.node_config["partition-id"]), 1200, SITES)
    return LogisticRegression(max_iter=500).fit(x[rows], y[rows])


server_app = ServerApp()


@server_app.main()
def main(grid, context):
    votes = pv.teachers.Votes(10)
    plan = pv.teachers.PatePlan(40, SITES, votes).calibrate(epsilon=8, delta=1e-3)
    teachers = FlowerTeachers(grid, SITES, timeout=120)
    student = pv.teachers.Student(lambda shape: torch.nn.Linear(64, 10))
    result = pv.pate(plan, teachers, None, x[1200:1400], student)
    assert result.private_diagnostics["teachers_without_answers"] == 0
    pv.publish(result, sys.argv[1], delta=1e-3)


run_simulation(server_app, teacher_app(load), num_supernodes=SITES)
"""


@pytest.mark.nightly
def test_three_sites_in_the_simulation_engine_publish_a_student_that_verifies(tmp_path):
    script, out = tmp_path / "run.py", tmp_path / "student"
    script.write_text(SCRIPT)
    subprocess.run([sys.executable, str(script), str(out)], check=True, timeout=300)
    verify = [sys.executable, "-m", "privlearn", "verify", str(out)]
    assert subprocess.run(verify, check=True, capture_output=True).returncode == 0
