"""Servers and sites of a federation that are killed at random points: what is then released."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
@pytest.mark.parametrize("kills", [5, pytest.param(40, marks=pytest.mark.nightly)])
def test_a_federation_with_killed_parts_releases_each_answer_once(kills, tmp_path):
    """One charge, one noise for each query, and a killed site is an absent one."""
    script = Path(__file__).with_name("killed_federation.py")
    command = [sys.executable, str(script), str(tmp_path), str(kills), "51"]
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout)
    # killed between the ledger and the file: an open run is left that spent nothing
    between = seen["between"]
    assert between == {"status": -9, "drawn": [0, 12], "charged": [0, 12]}, seen
    servers, sites = seen["servers"], seen["sites"]
    assert servers["kills"] == sites["kills"] == kills, seen
    for never in (
        "a draw before its charge",
        "servers with other noise for a query",
        "servers that asked again after a draw",
        "servers whose answers are not what was drawn",
    ):
        assert servers[never] == 0, seen
    assert servers["servers charged once"] == servers["servers"], seen
    assert servers["servers with a right ledger"] == servers["servers"], seen
    assert sites["other sums than with an absent site"] == 0, seen
    assert sites["sites that counted as absent"] + sites["sites that had answered"] == kills, seen
    assert sites["askings charged once"] == kills, seen
    if kills >= 40:  # or the points say little
        assert servers["kills after the ledger and before a draw"] >= 3, seen
        assert servers["kills while noise was drawn"] >= 3, seen
