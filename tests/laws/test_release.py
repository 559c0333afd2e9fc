"""A release: workflows, recipes, the lock, extras and the bill of materials say what
pyproject.toml says.
"""

from __future__ import annotations

import copy
import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
LOCK = tomllib.loads((ROOT / "uv.lock").read_text("utf-8"))
BILL: dict[str, Any] = runpy.run_path(str(ROOT / "release" / "bill_of_materials.py"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
#: Packages that conda-forge calls by other names.
OF_CONDA = {"duckdb": "python-duckdb", "torch": "pytorch"}
#: The operating systems of the classifiers by the runners that try them.
SYSTEMS = {
    "ubuntu-latest": "POSIX :: Linux",
    "macos-latest": "MacOS",
    "windows-latest": "Microsoft :: Windows",
}
#: Pins of constraints.txt that the lock need not hold: the Makefile's `lock` says why.
UNPINNED = {"pymdown-extensions"}


def classified(kind: str) -> set[str]:
    """What the classifiers say after `kind`."""
    start = f"{kind} :: "
    return {each.removeprefix(start) for each in PROJECT["classifiers"] if each.startswith(start)}


def jobs(name: str) -> dict[str, Any]:
    text = (ROOT / ".github" / "workflows" / name).read_text("utf-8")
    return dict(yaml.safe_load(text)["jobs"])


def steps() -> list[str]:
    """What all steps of all workflows run."""
    return [
        str(step["run"])
        for path in WORKFLOWS
        for job in jobs(path.name).values()
        for step in job["steps"]
        if "run" in step
    ]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# -- Pythons and systems


def test_each_python_and_system_of_the_classifiers_is_tried() -> None:
    matrix = jobs("tests.yml")["installation"]["strategy"]["matrix"]
    pythons = set(matrix["python"])
    assert pythons == classified("Programming Language :: Python")
    assert {SYSTEMS[name] for name in matrix["system"]} == classified("Operating System")
    assert set(matrix["system"]) == set(SYSTEMS)
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert all(version in allowed for version in pythons)
    first = min(pythons, key=lambda version: int(version.split(".")[1]))
    assert PROJECT["requires-python"] == f">={first}"


def test_wheels_are_built_and_tried_with_each_python_on_each_system() -> None:
    settings = PYPROJECT["tool"]["cibuildwheel"]
    built = {
        f"3.{name.removeprefix('cp3').removesuffix('-*')}" for name in settings["build"].split()
    }
    assert built == classified("Programming Language :: Python")
    assert settings["environment"]["PRIVLEARN_COMPILE"] == "1"
    assert settings["test-command"] == "bash {project}/release/try.sh"
    matrix = jobs("release.yml")["compiled"]["strategy"]["matrix"]
    assert set(SYSTEMS) <= set(matrix["system"])
    assert {"linux", "macos", "windows"} <= set(settings)


def test_workflows_run_what_is_there() -> None:
    """Targets of make, scripts, tests, and files of versions."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert WORKFLOWS
    ran = steps()
    for text in ran:
        assert set(re.findall(r"\bmake ([a-z]+)", text)) <= targets
        for path in re.findall(r"\b(?:tests|release|docs)/[\w/.-]+", text):
            assert (ROOT / path).exists(), path
    assert {"make test", "make docs", "make wheel", "bash release/try.sh"} <= set(ran)


# -- versions and dependencies


def test_every_file_of_a_release_names_this_version() -> None:
    recipe = yaml.safe_load((ROOT / "release" / "conda" / "recipe.yaml").read_text("utf-8"))
    image = (ROOT / "Dockerfile").read_text("utf-8")
    (locked,) = (each for each in LOCK["package"] if each["name"] == PROJECT["name"])
    label = re.search(r'image\.version="([^"]+)"', image)
    assert label is not None
    versions = {recipe["context"]["version"], label[1], locked["version"]}
    assert versions == {PROJECT["version"]}
    python = re.search(r"^ARG PYTHON=(.+)$", image, re.MULTILINE)
    assert python is not None
    assert python[1] in classified("Programming Language :: Python")
    assert recipe["about"]["license"] == PROJECT["license"]
    assert recipe["about"]["summary"] == PROJECT["description"]


def test_the_conda_recipe_needs_what_the_package_needs() -> None:
    recipe = yaml.safe_load((ROOT / "release" / "conda" / "recipe.yaml").read_text("utf-8"))
    expected = {
        (OF_CONDA.get(each.name, each.name), str(each.specifier))
        for each in map(Requirement, PROJECT["dependencies"])
    }
    expected.add(("python", PROJECT["requires-python"]))
    listed = {tuple(each.split()) for each in recipe["requirements"]["run"]}
    assert listed == expected
    (build_backend,) = PYPROJECT["build-system"]["requires"]
    assert str(build_backend).replace(">=", " >=") in recipe["requirements"]["host"]
    scripts = recipe["build"]["python"]["entry_points"]
    assert dict(script.split(" = ") for script in scripts) == PROJECT["scripts"]
    packages = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {f"src/{name}" for name in recipe["tests"][0]["python"]["imports"]} == set(packages)


def test_the_lock_is_of_these_requirements_and_versions() -> None:
    """`make lock` makes it anew."""
    (locked,) = (each for each in LOCK["package"] if each["name"] == PROJECT["name"])
    recorded = {
        (
            canonical(each["name"]),
            each.get("specifier", ""),
            tuple(each.get("extras", ())),
            each.get("marker", ""),
        )
        for each in locked["metadata"]["requires-dist"]
    }
    asked = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    expected = {
        (
            canonical(each.name),
            str(each.specifier),
            tuple(sorted(each.extras)),
            f"extra == '{extra}'" if extra else "",
        )
        for extra, requirements in asked.items()
        for each in map(Requirement, requirements)
    }
    assert recorded == expected
    assert LOCK["requires-python"] == PROJECT["requires-python"]
    versions: dict[str, set[str]] = {}
    for package in LOCK["package"]:
        versions.setdefault(package["name"], set()).add(package["version"])
    pins = [
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
        if "==" in line
    ]
    other = {
        name: (pinned, sorted(versions[canonical(name)]))
        for name, pinned in pins
        if canonical(name) in versions
        and canonical(name) not in UNPINNED
        and pinned not in versions[canonical(name)]
    }
    assert not other


# -- the bill of materials


def made_bill(lock: dict[str, Any], place: Path, content: bytes = b"a wheel") -> dict[str, Any]:
    wheel = place / "privlearn-0.1.0-py3-none-any.whl"
    wheel.write_bytes(content)
    return dict(BILL["bill"](lock, PROJECT, [wheel]))


def test_the_bill_lists_all_that_may_be_installed_with_the_package(tmp_path: Path) -> None:
    made = made_bill(LOCK, tmp_path)
    names = {each["name"] for each in made["components"]}
    assert {each.name for each in map(Requirement, PROJECT["dependencies"])} <= names
    assert {"cffi", "sympy", "jinja2"} <= names  # of cryptography, of torch, of that
    assert not names & {"pytest", "privlearn", "mkdocs"}
    references = {each["bom-ref"] for each in made["components"]}
    own = made["metadata"]["component"]["bom-ref"]
    edges = {each["ref"]: each["dependsOn"] for each in made["dependencies"]}
    assert set(edges) == references | {own}
    assert {name for below in edges.values() for name in below} <= references
    for each in made["components"]:
        assert each["externalReferences"], each["name"]


def test_the_bill_follows_from_the_lock_and_the_wheel(tmp_path: Path) -> None:
    made = made_bill(LOCK, tmp_path)
    assert made_bill(LOCK, tmp_path) == made
    other = made_bill(LOCK, tmp_path, b"another wheel")
    assert other["serialNumber"] != made["serialNumber"]
    planted = copy.deepcopy(LOCK)
    (numpy,) = (each for each in planted["package"] if each["name"] == "numpy")
    numpy["wheels"][0]["hash"] = f"sha256:{'0' * 64}"
    assert made_bill(planted, tmp_path)["serialNumber"] != made["serialNumber"]
    assert json.loads(json.dumps(made)) == made


# -- the image


def test_the_image_gets_the_files_that_it_copies_and_builds_of() -> None:
    patterns = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    sent = {each.removeprefix("!") for each in patterns if each.startswith("!")}
    assert patterns[0] == "**"
    image = (ROOT / "Dockerfile").read_text("utf-8")
    copied = {
        name
        for line in re.findall(r"^COPY (?!--from)(.+)$", image, re.MULTILINE)
        for name in line.split()[:-1]
        if name != "."
    }
    built_of = {"pyproject.toml", "hatch_build.py", "src", PROJECT["readme"]}
    assert copied | built_of | set(PROJECT["license-files"]) == sent
    assert all((ROOT / name).exists() for name in sent)


# -- extras


def test_the_page_says_what_each_extra_brings() -> None:
    page = (ROOT / "docs" / "installation.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", page, re.MULTILINE)
    assert [name for name, _ in rows] == sorted(PROJECT["optional-dependencies"])
    for name, packages in rows:
        brought = {Requirement(each).name for each in PROJECT["optional-dependencies"][name]}
        if name == "test":  # all that tests need: too many for a row
            continue
        assert set(re.findall(r"[A-Za-z][\w-]+", packages)) - {"nothing"} == brought, name


# -- the script that tries an installation


def stand_in(place: Path, failing: str) -> Path:
    """An environment whose privlearn does nothing, and fails at one command."""
    folder = place / "bin"
    folder.mkdir(parents=True)
    (folder / "python").write_text("#!/bin/sh\n")
    (folder / "privlearn").write_text(f'#!/bin/sh\necho "$1"\n[ "$1" != "{failing}" ]\n')
    for name in ("python", "privlearn"):
        (folder / name).chmod(0o755)
    return place


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a shell script")
@pytest.mark.parametrize("failing", ["selfcheck", "train", "verify", "nothing"])
def test_the_trial_fails_where_a_command_fails(failing: str, tmp_path: Path) -> None:
    place = stand_in(tmp_path / "environment", failing)
    done = subprocess.run(
        ["bash", str(ROOT / "release" / "try.sh"), str(place)], capture_output=True, text=True
    )
    commands = ["selfcheck", "train", "verify"]
    ran = commands[: commands.index(failing) + 1] if failing in commands else commands
    assert done.stdout.split() == ran
    assert (done.returncode == 0) == (failing == "nothing")


# -- systems without what POSIX has

#: Run in a fresh process: modules and names that Windows lacks are taken from the package alone,
#: for what it is made of asks which system it is on, and every module is imported.
WITHOUT_POSIX = """
import importlib, importlib.util, os, pkgutil, signal, sys

ABSENT = {"fcntl", "grp", "pwd", "resource", "syslog", "termios", "tty", "pty"}

class Windows:
    def find_spec(self, name, path=None, target=None):
        frame = sys._getframe(1)
        while "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if name in ABSENT and frame.f_globals.get("__name__", "").startswith("privlearn"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

if "privlearn" in sys.argv:  # what it is made of is for this system
    import torch._dynamo, scipy, sklearn, pyarrow, duckdb, filelock, joblib
for name in ABSENT:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Windows())
for name in ("fork", "register_at_fork", "getuid", "geteuid", "O_DIRECTORY", "O_NOFOLLOW",
             "O_CLOEXEC", "sched_getaffinity", "fchmod", "killpg", "setsid"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGKILL", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGCHLD", "SIGPIPE", "setitimer"):
    if hasattr(signal, name):
        delattr(signal, name)
failed = []
for package in sys.argv[1:]:
    module = importlib.import_module(package)
    for each in pkgutil.walk_packages(module.__path__, f"{package}."):
        if each.name.endswith("__main__") or each.name.endswith("._noise_kernel"):
            continue
        if any(part in each.name for part in (".huggingface", ".lightning")):
            continue
        try:
            importlib.import_module(each.name)
        except ModuleNotFoundError as error:
            if error.name not in ("triton", "monai", "nibabel", "kymatio", "opacus"):
                failed.append(f"{each.name}: {error}")
        except Exception as error:
            failed.append(f"{each.name}: {type(error).__name__} {error}")
print("imports fail:", failed)
if "privlearn" in sys.argv[1:]:
    from privlearn.cli import main
    assert main(["key", "signer"]) == 0
    assert main(["train", "--data", "digits", "--examples", "1437", "--epsilon", "4", "--epochs",
                 "2", "--ledger", "study.db", "--sign", "signer", "--out", "model"]) == 0
    assert main(["verify", "model", "--key", "signer.pub"]) == 0
"""


def without_posix(place: Path, path: Path, *packages: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX, *packages],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(path), "USERNAME": "analyst"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.nightly
def test_without_what_windows_lacks_the_package_imports_trains_and_verifies(
    tmp_path: Path,
) -> None:
    packages = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    said = without_posix(tmp_path, ROOT / "src", *(Path(name).name for name in packages))
    assert "imports fail: []" in said
    assert "verifies" in said


def test_a_module_that_windows_lacks_is_noticed(tmp_path: Path) -> None:
    package = tmp_path / "privlearn_planted"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "locks.py").write_text("import fcntl\n")
    (package / "forks.py").write_text("import os\nos.register_at_fork(before=print)\n")
    said = without_posix(tmp_path, tmp_path, "privlearn_planted")
    assert "privlearn_planted.locks: No module named 'fcntl'" in said
    assert "privlearn_planted.forks: AttributeError" in said


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not in a clone")
def test_text_has_the_same_bytes_on_all_systems() -> None:
    """On Windows git would put other ends of lines, and wheels and digests would be others."""
    rules = (ROOT / ".gitattributes").read_text("utf-8").splitlines()
    assert "* text=auto eol=lf" in rules
    done = subprocess.run(
        ["git", "ls-files", "--eol"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    crlf = [line for line in done.stdout.splitlines() if line.startswith(("i/crlf", "i/mixed"))]
    assert not crlf
