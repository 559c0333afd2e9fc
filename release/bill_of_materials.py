"""The bill of materials of a release, in CycloneDX 1.6: its wheels, and what they depend on.

    python release/bill_of_materials.py dist > dist/privlearn.cdx.json

It lists the packages that `pip install privlearn` may bring on any system, in the versions that
privlearn is tested with, from `uv.lock`: with the hash of each file, and who needs whom. The same
wheels and the same lock give the same bytes: it has no time, and its number follows from its
content.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tomllib
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: What CycloneDX calls the hashes of `uv.lock`.
ALGORITHMS = {"sha256": "SHA-256", "sha512": "SHA-512"}


def reference(package: dict[str, Any]) -> str:
    """The package URL, by which a bill refers to a package."""
    return f"pkg:pypi/{package['name']}@{package['version']}"


def is_needed_by(requirement: dict[str, Any], package: dict[str, Any]) -> bool:
    """Whether `package` is what `requirement` names; a lock may hold several versions of one."""
    same_version = requirement.get("version", package["version"]) == package["version"]
    return requirement["name"] == package["name"] and same_version


def needed(
    packages: list[dict[str, Any]], package: dict[str, Any], extras: Iterable[str] = ()
) -> list[tuple[dict[str, Any], tuple[str, ...]]]:
    """The packages that `package` needs itself, with its `extras`; each with the extras asked."""
    requirements = list(package.get("dependencies", []))
    for extra in extras:
        requirements += package.get("optional-dependencies", {}).get(extra, [])
    return [
        (other, tuple(requirement.get("extra", ())))
        for requirement in requirements
        for other in packages
        if is_needed_by(requirement, other)
    ]


def component(package: dict[str, Any]) -> dict[str, Any]:
    """A package with the files that may be installed of it."""
    files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
    distributions = []
    for file in sorted(files, key=lambda file: str(file["url"])):
        algorithm, _, digest = file["hash"].partition(":")
        hashes = [{"alg": ALGORITHMS[algorithm], "content": digest}]
        distributions.append({"type": "distribution", "url": file["url"], "hashes": hashes})
    return {
        "type": "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "purl": reference(package),
        "externalReferences": distributions,
    }


def bill(lock: dict[str, Any], project: dict[str, Any], wheels: Iterable[Path]) -> dict[str, Any]:
    """The bill of `project` and its `wheels`, by `lock`."""
    packages = lock["package"]
    (root,) = (package for package in packages if package["name"] == project["name"])
    open_ones: list[tuple[dict[str, Any], tuple[str, ...]]] = [(root, ())]
    seen: set[tuple[str, tuple[str, ...]]] = set()
    edges: dict[str, set[str]] = {}
    components: dict[str, dict[str, Any]] = {}
    while open_ones:
        package, extras = open_ones.pop()
        own = reference(package)
        if (own, extras) in seen:
            continue
        seen.add((own, extras))
        below = needed(packages, package, extras)
        edges.setdefault(own, set()).update(reference(other) for other, _ in below)
        if package is not root:
            components[own] = component(package)
        open_ones += below
    files = [
        {
            "type": "file",
            "bom-ref": wheel.name,
            "name": wheel.name,
            "hashes": [
                {"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}
            ],
        }
        for wheel in sorted(wheels)
    ]
    content = {
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": reference(root),
                "name": project["name"],
                "version": project["version"],
                "description": project["description"],
                "licenses": [{"license": {"id": project["license"]}}],
                "purl": reference(root),
                "components": files,
            }
        },
        "components": [components[name] for name in sorted(components)],
        "dependencies": [{"ref": name, "dependsOn": sorted(edges[name])} for name in sorted(edges)],
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest)}",
        "version": 1,
        **content,
    }


def main(folder: str) -> None:
    """Print the bill of the wheels in `folder`."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    print(json.dumps(bill(lock, project, Path(folder).glob("*.whl")), indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
