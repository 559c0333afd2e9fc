"""What the server runs: it asks the hospitals, adds noise once, and publishes a student."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import privlearn as pv
from privlearn.flower import FlowerTeachers

server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Spend what the run's configuration says, and write the folder that it names."""
    config: dict[str, Any] = dict(context.run_config)
    plan = pv.teachers.PatePlan(
        config["queries"], config["sites"], pv.teachers.Votes(classes=2)
    ).calibrate(epsilon=config["epsilon"], delta=config["delta"])
    with np.load(config["inputs"]) as public:
        inputs = public["x"]
    teachers = FlowerTeachers(grid, config["sites"], timeout=config["timeout"])
    student = pv.teachers.Student(
        lambda shape: torch.nn.Linear(shape[0], 2),
        epochs=200,
        learning_rate=3e-3,
        spread=pv.teachers.Spread(components=5),
    )
    # a server that is killed and started again goes on from these two files
    ledger = pv.Ledger.open(config["ledger"], create=True)
    result = pv.pate(plan, teachers, None, inputs, student, ledger=ledger, keep=config["answers"])
    pv.publish(result, config["out"], delta=config["delta"])
