"""Installing: wheel and sdist in an environment of their own, the lowest versions that are
declared, and start-up.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: What is run with the lowest versions: prices, releases, training, publishing, tables.
CORE = (
    "accounting/test_figures.py",
    "accounting/test_small_figures.py",
    "mechanisms",
    "publishing/test_folders.py",
    "publishing/test_loading.py",
    "descent/test_first_runs.py",
    "data/test_tables.py",
)


def run(*command: str | Path, at: Path, path: Path | None = None) -> str:
    """What a command says, in a folder that is not the project's; it must succeed."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PRIVLEARN_DATA")
    }
    environment |= {"PYTHONPATH": str(path)} if path else {}
    done = subprocess.run(
        list(map(str, command)),
        cwd=at,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def environment_in(place: Path, *packages: str) -> Path:
    """An environment with these packages, and behind them what is installed here: torch is
    large.
    """
    run(sys.executable, "-m", "venv", place, at=place.parent)
    python = place / "bin" / "python"
    if packages:
        run(
            python,
            "-m",
            "pip",
            "install",
            "-q",
            "--only-binary",
            ":all:",
            *packages,
            at=place.parent,
        )
    own = Path(
        run(
            python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", at=place.parent
        ).strip()
    )
    (own / "shared.pth").write_text(sysconfig.get_path("purelib"))
    return python


@pytest.mark.nightly
def test_wheel_and_sdist_install_and_work(tmp_path: Path) -> None:
    """The sdist makes the same wheel, and an installed wheel plans, trains and verifies outside of
    the project.
    """
    dist = tmp_path / "dist"
    run(sys.executable, "-m", "hatchling", "build", "-d", dist, at=ROOT)
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    build = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation")
    run(*build, sdist, "-w", tmp_path / "again", at=tmp_path)
    assert (tmp_path / "again" / wheel.name).read_bytes() == wheel.read_bytes()
    python = environment_in(tmp_path / "own")
    run(python, "-m", "pip", "install", "-q", "--no-deps", wheel, at=tmp_path)
    command = python.parent / "privlearn"
    assert "site-packages" in run(
        python, "-c", "import privlearn; print(privlearn.__file__)", at=tmp_path
    )
    assert str(tmp_path) in run(
        python, "-c", "import privlearn; print(privlearn.__file__)", at=tmp_path
    )
    assert "epsilon" in run(command, "budget", "--examples", "1000", "--epsilon", "2", at=tmp_path)
    assert "verifies" in run("bash", ROOT / "release" / "try.sh", python.parents[1], at=tmp_path)


def lowest(requirements: list[str]) -> list[str]:
    """The lowest version that each allows, in its last patch; torch stays as it is."""
    found = [
        re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", requirement) for requirement in requirements
    ]
    return [
        f"{name[1]}=={name[2]}{'.*' if name[2].count('.') < 2 else ''}"
        for name in found
        if name is not None and name[1] != "torch"
    ]


@pytest.mark.nightly
def test_the_lowest_versions_will_do(tmp_path: Path) -> None:
    pins = lowest([*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["tables"]])
    assert len(pins) == len(PROJECT["dependencies"]) - 1 + 3
    python = environment_in(tmp_path / "lowest", *pins, "pytest")
    versions = "from importlib.metadata import version; print(version('numpy'), version('scipy'))"
    assert run(python, "-c", versions, at=tmp_path).startswith("1.26")
    tests = [ROOT / "tests" / name for name in CORE]
    run(
        python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not nightly",
        f"--rootdir={ROOT}",
        *tests,
        at=ROOT,
        path=ROOT / "src",
    )


def test_plans_and_checks_start_without_torch(tmp_path: Path) -> None:
    """Nor with what is only asked for now and then."""
    for module in ("privlearn", "privlearn.cli.commands.budget", "privlearn.cli.commands.verify"):
        code = (
            f"import sys, {module}; print([m for m in sys.modules if m in {{'torch', "
            "'sklearn', 'matplotlib'}])"
        )
        assert (
            ast.literal_eval(run(sys.executable, "-c", code, at=tmp_path, path=ROOT / "src")) == []
        )
    code = (
        "import sys, privlearn; print([m for m in sys.modules if m.split('.')[0] in {'numpy', "
        "'scipy', 'rich'}])"
    )
    assert ast.literal_eval(run(sys.executable, "-c", code, at=tmp_path, path=ROOT / "src")) == []


def test_scipy_is_imported_where_something_is_priced(tmp_path: Path) -> None:
    """It takes longer to import than all of privlearn; and what a price does not call is not
    imported with it.
    """
    code = (
        "import sys, privlearn.cli.commands.budget, privlearn.cli.commands.verify, "
        "privlearn.cli.commands.ledger; "
    )
    code += "print([m for m in sys.modules if m.split('.')[0] in {'scipy', 'torch'}])"
    assert ast.literal_eval(run(sys.executable, "-c", code, at=tmp_path, path=ROOT / "src")) == []
    code = (
        "import sys; from privlearn import cli; cli.main(['budget', '--examples', '1000', "
        "'--batch-size', '50', "
    )
    code += (
        "'--epochs', '2', '--noise-multiplier', '2', '--json']); print('\\n', [m for m in "
        "sys.modules if m in "
    )
    code += (
        "{'torch', 'scipy.optimize', 'scipy.signal', 'scipy.stats', 'scipy.linalg', 'sklearn'}])"
    )
    said = run(sys.executable, "-c", code, at=tmp_path, path=ROOT / "src")
    assert '"epsilon"' in said
    assert ast.literal_eval(said.splitlines()[-1].strip()) == []


def test_the_citation_is_of_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    fields = dict(re.findall(r"^([\w-]+): *(.*)$", citation, re.MULTILINE))
    assert fields["version"] == PROJECT["version"]
    assert fields["license"] == PROJECT["license"]
    assert {"cff-version", "message", "title", "authors"} <= set(fields)


def test_extras_are_made_of_the_same_bounds() -> None:
    """A package has one lower bound, wherever it stands; what makes the docs and drives a browser
    is pinned.
    """
    extras = PROJECT["optional-dependencies"]
    assert {"images", "text", "tables", "medical", "docs", "distributed"} <= set(extras)
    bounds: dict[str, set[str]] = {}
    for requirement in (
        *PROJECT["dependencies"],
        *(one for several in extras.values() for one in several),
    ):
        name, _, least = requirement.partition(">=")
        bounds.setdefault(name, set()).add(least)
    assert {name: several for name, several in bounds.items() if len(several) > 1} == {}
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    names = {re.sub(r"\[.*", "", name).lower().replace("_", "-") for name in bounds}
    assert names - {"monai"} <= pinned
