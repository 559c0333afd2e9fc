"""Segmentation with three sites of a federation: each sends corrections, coded at the site."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed")
pytest.importorskip("monai", reason="MONAI is not here: pip install 'privlearn[medical]'")

import privlearn as pv
from privlearn.errors import BadInput
from privlearn.flower import FlowerTeachers, teacher_app
from privlearn_segmentation import Start, Training, maps_of, probabilities
from privlearn_segmentation.hippocampus import split
from tests.support.local_grid import LocalGrid

SITES, QUERIES = 3, 6


@pytest.mark.nightly
def test_corrections_of_three_sites_are_those_of_their_files_and_a_student_verifies(tmp_path):
    """On the real scans: 180 records dealt to three sites, with few steps of training."""
    try:
        parts = split(pv.load("hippocampus"))
    except BadInput as error:
        pytest.skip(f"needs the scans: {str(error)[:80]}")
    network = pv.models.build("unet", (1, 20, 28, 20), 3, np.random.default_rng(0))
    learning, tuning = Training(steps=30), Training(steps=5, learning_rate=3e-3)
    start = Start.learn(parts.labelled, parts.pool, network, learning=learning, tuning=tuning)
    x, y = parts.private.tensors()
    networks = []
    for site in range(SITES):
        copied = pv.models.build("unet", (1, 20, 28, 20), 3, np.random.default_rng(0))
        copied.load_state_dict(start.network.state_dict())
        rows = slice(site, 60, SITES)
        networks.append(start.tuning(copied, x[rows], maps_of(y[rows], 3)))

    def load(context):
        mine = networks[context.node_config["site"]]
        return lambda inputs: start.corrections.encode(probabilities(mine, inputs))

    grid = LocalGrid(teacher_app(load), [{"site": site} for site in range(SITES)])
    plan = start.plan(QUERIES, SITES).calibrate(epsilon=8.0, delta=1e-3)
    result = pv.pate(
        plan,
        FlowerTeachers(grid, SITES),
        start.reducer,
        parts.pool,
        start.student(plan),
        streams=pv.Streams.new(seed=1),
    )
    [sent, *_] = grid.received
    assert sum(record.count_bytes() for record in sent.content.values()) < QUERIES * 40 * 8 + 500
    for site, mine in enumerate(networks):
        said = probabilities(mine, start.inputs[:QUERIES])
        np.savez(tmp_path / f"{site}.npz", predictions=said.numpy())
    files = pv.teachers.Given([str(tmp_path / f"{site}.npz") for site in range(SITES)])
    asked = [
        pv.teachers.ask_teachers(
            plan, each, start.reducer, parts.pool, streams=pv.Streams.new(seed=1)
        ).targets
        for each in (start.correcting(files), FlowerTeachers(grid, SITES))
    ]
    assert torch.allclose(*asked, atol=1e-4)
    pv.publish(result, tmp_path / "student", model_spec="unet", classes=3, delta=1e-3)
    assert pv.verify(tmp_path / "student").ok
