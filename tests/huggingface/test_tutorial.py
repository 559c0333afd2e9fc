"""The tutorial runs: in small here, as it stands among the long tests."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.support import texts as made

made.require_transformers()
pytest.importorskip("peft", reason="peft is not installed")

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorials" / "private_adapter.py"


def figures(**given: Any) -> dict[str, float]:
    made_by = runpy.run_path(str(TUTORIAL))
    return dict(made_by["main"](**given))


def test_it_publishes_an_adapter() -> None:
    assert 0 < figures(rows=400, epochs=1)["epsilon"] <= 3.0


@pytest.mark.nightly
def test_it_learns_the_private_grammar() -> None:
    learned = figures()
    assert learned["after"] < learned["before"] / 2
