"""The tutorials run from top to bottom, as `make docs` runs them; the quick ones in every suite."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.pages.page_blocks import ROOT

HOOKS: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "site_hooks.py"))
TUTORIALS = [
    path for path in sorted((ROOT / "docs" / "tutorials").glob("*.py")) if HOOKS["cells"](path.read_text("utf-8"))
]
QUICK = {"from_opacus", "tables_with_pandas"}


@pytest.mark.parametrize(
    "path",
    [p if p.stem in QUICK else pytest.param(p, marks=pytest.mark.nightly) for p in TUTORIALS],
    ids=lambda p: p.stem,
)
def test_the_tutorial_runs(path: Path) -> None:
    page, pictures = HOOKS["page_of"](path)
    assert page.startswith("# ")
    assert "```text" in page
    assert all(f"({name})" in page and 1000 < len(picture) < 100_000 for name, picture in pictures.items())


def test_cells_are_read_as_they_stand() -> None:
    text = "# %% [markdown]\n# # Title\n# Text.\n\n# %%\nx = 1  # %% no cell\n"
    assert HOOKS["cells"](text) == [("markdown", "# Title\nText."), ("python", "x = 1  # %% no cell")]
    assert not HOOKS["cells"]("print(1)\n")
    assert len(TUTORIALS) >= 6
