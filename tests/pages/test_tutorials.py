"""The tutorials run from top to bottom, as `make docs` runs them; the quick ones in every suite."""

from __future__ import annotations

import importlib.util
import json
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.pages.page_blocks import ROOT

HOOKS: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "site_hooks.py"))
TUTORIALS = [
    path
    for path in sorted((ROOT / "docs" / "tutorials").glob("*.py"))
    if HOOKS["cells"](path.read_text("utf-8"))
]
QUICK = {"from_opacus", "tables_with_pandas"}


@pytest.mark.parametrize(
    "path",
    [p if p.stem in QUICK else pytest.param(p, marks=pytest.mark.nightly) for p in TUTORIALS],
    ids=lambda p: p.stem,
)
def test_the_tutorial_runs(path: Path) -> None:
    done = HOOKS["run"](path)
    page, pictures = HOOKS["page_of"](path, done)
    notebook = json.loads(HOOKS["notebook_of"](done))
    written = [
        (cell["cell_type"].replace("code", "python"), cell["source"]) for cell in notebook["cells"]
    ]
    assert written == HOOKS["cells"](path.read_text("utf-8"))
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    assert sum(output["output_type"] == "display_data" for output in outputs) == len(pictures)
    assert any(output.get("text", "") for output in outputs)
    nbformat = importlib.util.find_spec("nbformat") and importlib.import_module("nbformat")
    if nbformat:
        nbformat.validate(nbformat.from_dict(notebook))
    assert page.startswith("# ")
    assert "```text" in page
    assert all(
        f"({name})" in page and 1000 < len(picture) < 100_000 for name, picture in pictures.items()
    )


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda p: p.stem)
def test_the_notebook_beside_a_tutorial_is_made_of_it(path: Path) -> None:
    """`make notebooks` writes it anew."""
    assert path.with_suffix(".ipynb").read_bytes() == (
        HOOKS["empty_notebook_of"](path.read_text("utf-8")).encode()
    )


def test_notebooks_are_of_tutorials_alone_and_have_no_outputs(tmp_path: Path) -> None:
    written = {path.stem for path in (ROOT / "docs" / "tutorials").glob("*.ipynb")}
    assert written == {path.stem for path in TUTORIALS}
    (tmp_path / "new.py").write_text("# %% [markdown]\n# # New\n\n# %%\nprint(1)\n")
    (tmp_path / "plain.py").write_text("print(1)\n")
    HOOKS["write_notebooks"](tmp_path)
    assert [path.name for path in tmp_path.glob("*.ipynb")] == ["new.ipynb"]
    text, code = json.loads((tmp_path / "new.ipynb").read_text("utf-8"))["cells"]
    assert (text["source"], code["source"]) == ("# New", "print(1)")
    assert code["outputs"] == []
    assert code["execution_count"] is None


def test_pictures_that_were_open_before_are_not_a_tutorials(tmp_path: Path) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.figure()
    path = tmp_path / "drawing.py"
    path.write_text(
        "# %% [markdown]\n# # Title\n\n# %%\nfrom matplotlib import pyplot\npyplot.plot([1, 2])\n"
    )
    done = HOOKS["run"](path)
    assert [len(drawn) for _, _, _, drawn in done] == [0, 1]
    assert not pyplot.get_fignums()


@pytest.mark.nightly
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """All tutorials are run, and all links checked; a warning is an error. Within a quarter of an
    hour.
    """
    pytest.importorskip("material", reason='the site needs pip install "privlearn[docs]"')
    pytest.importorskip("mkdocstrings")
    began = time.monotonic()
    build = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert time.monotonic() - began < 15 * 60
    for path in TUTORIALS:
        assert (tmp_path / "site" / "tutorials" / f"{path.stem}.html").exists()
        assert json.loads(
            (tmp_path / "site" / "tutorials" / f"{path.stem}.ipynb").read_text("utf-8")
        )["cells"]


def test_cells_are_read_as_they_stand() -> None:
    text = "# %% [markdown]\n# # Title\n# Text.\n\n# %%\nx = 1  # %% no cell\n"
    assert HOOKS["cells"](text) == [
        ("markdown", "# Title\nText."),
        ("python", "x = 1  # %% no cell"),
    ]
    assert not HOOKS["cells"]("print(1)\n")
    assert len(TUTORIALS) >= 6
