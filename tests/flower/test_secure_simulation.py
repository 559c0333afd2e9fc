"""Secure sums in Flower's own simulation engine, which runs each site in a process of Ray."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")

SCRIPT = """
import os
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
import numpy as np
from flwr.app import RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from privlearn.flower import SecureSum
from privlearn.flower.requests import await_nodes

SITES, SIZE = 4, 50
summation = SecureSum(threshold=3)
client_app, server_app = ClientApp(), ServerApp()


def integers_of(site):
    return np.random.default_rng(site).integers(-9, 10, SIZE)


def compute(content, context, circle):
    site = int(context.node_config["partition-id"])
    return None if content["leave-out"]["site"] == site else integers_of(site)


summation.serve(client_app, "integers", compute)


@server_app.main()
def main(grid, context):
    from flwr.app import ConfigRecord

    nodes = await_nodes(grid, SITES, 200)
    for left_out in (-1, 2, -1):
        content = RecordDict({"leave-out": ConfigRecord({"site": left_out})})
        total = summation.add_up(
            grid, nodes, "integers", content, size=SIZE, bound=9, timeout=200
        )
        sites = [site for site in range(SITES) if site != left_out]
        assert np.array_equal(total.values, sum(integers_of(site) for site in sites))
        assert len(total.nodes) == len(sites)
    print("all sums are exact")


run_simulation(server_app, client_app, num_supernodes=SITES)
"""


@pytest.mark.nightly
def test_sums_of_four_sites_in_the_simulation_engine_are_exact(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    run = subprocess.run(
        [sys.executable, str(script)], check=True, capture_output=True, timeout=300
    )
    assert b"all sums are exact" in run.stdout
